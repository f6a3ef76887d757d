"""The simulated engine against one that goes step by step, what must always hold, and the fit's pieces."""

import math
from dataclasses import replace

import naive_engine
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetgpu.errors import DataError
from hetgpu.evidence.catalog import load_gpus, load_models
from hetgpu.evidence.records import read_stage_output
from hetgpu.paths import inside
from hetgpu.simulate import kernel
from hetgpu.simulate.calibrate import (
    cost,
    fit_constants,
    log_errors,
    predictions,
    read_constants,
    start_constants,
)
from hetgpu.simulate.capacity import Replica, grows, highest_qps, split, ttft_p99_ms
from hetgpu.simulate.engine import Engine, EngineShape, Load, simulate, simulate_in_turn
from hetgpu.simulate.machines import (
    CPU_SHAPE,
    CPU_START,
    errors_pct,
    figures,
    fit_step_costs,
    on_card,
    read_public_trace,
)
from hetgpu.simulate.protocol import METRICS, RATES_QPS, answers_to, cell, published_pairs, scaled_to
from hetgpu.simulate.steptime import StepCosts, kv_tokens, step_costs
from hetgpu.simulate.validate import interpolated, medians, with_groups

COSTS = StepCosts(1e-3, 8e-3, 3e-5, 2e-6, 1e-6, 5e-5, 2e-3, 1e-9, 1e-3, 5e-4, 9.3e-3, 2.5, 0.2)


def small_case(seed):
    """Two loads in turn on a small engine; equal prompts have equal lengths."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 30))
    tokens, budget, seqs = int(rng.integers(200, 1500)), int(rng.integers(20, 200)), int(rng.integers(1, 12))
    shape = EngineShape(tokens, budget, seqs, bool(rng.integers(0, 2)), int(rng.choice([4, 16])))
    lengths, loads = rng.integers(1, 100, 100), []
    for _ in range(2):
        prompt = rng.integers(0, max(1, n // 2), n) if rng.integers(0, 2) else np.arange(n)
        arrivals = np.sort(rng.uniform(0, rng.choice([0.1, 2.0]), n))
        loads.append(Load(arrivals, lengths[prompt], rng.integers(1, 60, n), prompt))
    return shape, loads


def test_the_kernel_agrees_with_an_engine_that_goes_step_by_step():
    seen = dict.fromkeys(("preempted", "hit", "evicted", "chunked", "blocked", "full"), 0)
    for seed in range(250):
        shape, loads = small_case(seed)
        slow, counted = naive_engine.serve(COSTS, shape, loads)
        for (first, last), result in zip(slow, simulate_in_turn(COSTS, shape, loads), strict=True):
            assert result.first_token_s == pytest.approx(first, rel=1e-9), seed
            assert result.last_token_s == pytest.approx(last, rel=1e-9), seed
        seen = {name: seen[name] + counted[name] for name in seen}
    assert all(number > 100 for number in seen.values()), f"a case was hardly met: {seen}"


@settings(max_examples=60, deadline=None)
@given(st.integers(1000, 10**6))
def test_what_must_always_hold(seed):
    shape, loads = small_case(seed)
    results = simulate_in_turn(COSTS, shape, loads)
    for load, result in zip(loads, results, strict=True):
        assert np.isfinite(result.first_token_s).all(), "a request was lost"
        assert (result.first_token_s > load.arrival_s + COSTS.api_s).all()
        # An answer's tokens come one a step, and no step is shorter than the floor.
        least = COSTS.floor_s * (load.output_tokens - 1)
        assert (result.last_token_s - result.first_token_s >= least * (1 - 1e-9)).all()
        assert result.peak_blocks <= shape.kv_tokens // shape.block_tokens
        assert result.hit_tokens % shape.block_tokens == 0
        assert result.hit_tokens == 0 or shape.prefix_cache
    again = simulate_in_turn(COSTS, shape, loads)
    same = [a.last_token_s.tobytes() == b.last_token_s.tobytes() for a, b in zip(results, again, strict=True)]
    assert all(same)


def test_requests_are_admitted_in_the_order_of_their_arrival():
    rng = np.random.default_rng(1)
    load = Load(np.sort(rng.uniform(0, 1, 40)), np.full(40, 50), np.full(40, 5))
    result = simulate(COSTS, EngineShape(2000, 64, 4, prefix_cache=False), load)
    assert (np.diff(result.first_token_s) >= 0).all()


def test_a_single_request_takes_what_the_formula_says():
    costs = StepCosts(1e-3, 8e-3, 3e-5, 2e-6, 0.0, 5e-5, 2e-3, 1e-9, 1e-3, 5e-4, 0.0, 4.0, 0.0)
    prompt, answer = 40, 30
    result = simulate(costs, EngineShape(1000), Load(np.array([5.0]), np.array([prompt]), np.array([answer])))
    knee = (8e-3**4 + (5e-5 * prompt) ** 4) ** 0.25
    first = 5.0 + 1e-3 + 1e-3 + knee + 2e-6 * prompt + 1e-9 * prompt * prompt / 2 + 2e-3 + 5e-4
    assert result.first_token_s[0] == pytest.approx(first, rel=1e-12)
    steps = [1e-3 + (8e-3**4 + 5e-5**4) ** 0.25 + 3e-5 + 2e-6 * (prompt + k) for k in range(1, answer)]
    assert result.last_token_s[0] == pytest.approx(first + math.fsum(steps), rel=1e-12)
    assert result.steps == answer


def test_stopping_at_every_arrival_gives_the_same_bytes_as_one_run():
    for seed in range(40):
        shape, (load, _) = small_case(seed)
        engine = Engine(COSTS, shape, len(load.arrival_s), 100)
        for arrival, tokens_in, tokens_out, prompt in zip(
            load.arrival_s, load.input_tokens, load.output_tokens, load.prompt, strict=True
        ):
            engine.advance(arrival)
            engine.push(arrival, tokens_in, tokens_out, prompt)
            assert engine[kernel.USED] <= shape.kv_tokens // shape.block_tokens
        engine.advance()
        whole = simulate(COSTS, shape, load)
        assert engine.result(load).last_token_s == pytest.approx(whole.last_token_s, rel=1e-12)
        assert engine[kernel.RUNNING] == engine[kernel.WAITING] == 0


def test_a_warm_cache_shortens_the_first_token_and_a_cache_that_is_too_small_does_not():
    load = Load(np.arange(10) * 1.0, np.full(10, 400), np.full(10, 8), np.arange(10))
    for tokens, warm in ((20_000, True), (1_000, False)):
        first, second = simulate_in_turn(COSTS, EngineShape(tokens), [load, load])
        assert first.hit_tokens == 0
        assert (second.hit_tokens == 10 * 384) is warm
        assert ((second.first_token_s < first.first_token_s).all()) == warm


@pytest.mark.parametrize(
    ("load", "message"),
    [
        (Load(np.array([1.0, 0.5]), np.ones(2, int), np.ones(2, int)), "arrivals fall back"),
        (Load(np.array([0.0, np.nan]), np.ones(2, int), np.ones(2, int)), "not finite"),
        (Load(np.zeros(2), np.array([1, 1]), np.array([1, 0])), "request 1: has no tokens"),
        (Load(np.zeros(2), np.array([1, 900]), np.array([1, 200])), "needs 1100 tokens of KV.*ask for at most 992"),
        (Load(np.zeros(2), np.ones(3, int), np.ones(2, int)), r"columns of lengths \[2, 3, 2\]"),
    ],
)
def test_a_load_that_cannot_be_served_is_named(load, message):
    with pytest.raises(DataError, match=message):
        simulate(COSTS, EngineShape(1000), load)


def test_an_engine_or_a_step_that_cannot_be_is_named():
    with pytest.raises(DataError, match="300 sequences with a budget of 200"):
        EngineShape(1000, 200, 300)
    with pytest.raises(DataError, match="per_seq_s: is -1"):
        StepCosts(1e-3, per_seq_s=-1)
    with pytest.raises(DataError, match="a step takes no time"):
        StepCosts(0.0)
    gpus, models = load_gpus(), load_models()
    big = models["deepseek-ai/DeepSeek-R1-Distill-Llama-70B"]
    with pytest.raises(DataError, match="needs 13[12] GiB for its weights.*take more cards, or fewer bits"):
        kv_tokens(gpus["H100-PCIe"], 1, big, start_constants("H100-PCIe"))


def test_precision_changes_the_weights_and_nothing_else():
    gpu, model = load_gpus()["RTX-4090"], load_models()["deepseek-ai/DeepSeek-R1-Distill-Qwen-14B"]
    constants = start_constants("RTX-4090")
    half, four = (step_costs(gpu, 2, model, constants, precision) for precision in ("bf16", "awq"))
    assert four.weights_s == pytest.approx(half.weights_s * 0.56 / 2)
    assert four.per_kv_token_s == half.per_kv_token_s
    assert kv_tokens(gpu, 1, model, constants, "awq") > 0


# -- the protocol and the fit ----------------------------------------------------------------------


@pytest.mark.parametrize("total", [200, 777, 43_074, 90_001])
def test_lengths_meet_a_total_exactly(total):
    lengths = np.random.default_rng(0).integers(4, 900, 200).astype(float)
    assert scaled_to(lengths, total).sum() == total
    assert scaled_to(lengths, total).min() >= 1
    if total > 10_000:
        said = answers_to(lengths, total, 0.8)
        assert said.sum() == total
        assert said.max() == pytest.approx(0.8 * lengths.max(), rel=0.02)


@pytest.fixture(scope="module")
def pairs():
    return published_pairs(read_stage_output("published"), read_stage_output("audit_cells"))


def test_every_pair_with_all_five_rates_is_simulated_at_its_own_token_totals(pairs):
    assert len(pairs) == 24
    for pair in pairs:
        assert len(pair.loads) == 6
        assert int(pair.loads[1].input_tokens.sum()) == int(pair.runs.input_tokens.median())
        assert int(pair.loads[1].output_tokens.sum()) == int(pair.runs.output_tokens.median())


def test_the_fit_finds_constants_that_made_the_data(pairs):
    pair = next(p for p in pairs if p.model.model.endswith("Llama-8B") and p.gpu.gpu == "H100-PCIe")
    true = start_constants("H100-PCIe")
    made = pair.runs.copy()
    for qps, result in pair.simulate(true).items():
        made.loc[qps, list(METRICS)] = cell(result, qps)
    known = [replace(pair, runs=made, stalled=frozenset())]
    assert cost(known, true) == pytest.approx(0.0, abs=1e-12)
    start = replace(true, bandwidth_share=0.7, flop_share=0.4)
    found = fit_constants(known, start, ("bandwidth_share", "flop_share"))
    assert found.bandwidth_share == pytest.approx(true.bandwidth_share, rel=0.01)
    # Its cache was warm at all rates but one, so little of it is prefill and the share of FLOP/s is known less.
    assert found.flop_share == pytest.approx(true.flop_share, rel=0.1)
    assert cost(known, found) < 0.05 * cost(known, start)


def test_merged_chunks_leave_the_fit_only_what_the_engine_can_explain(pairs):
    pair = next(p for p in pairs if p.stalled)
    rate = next(iter(pair.stalled))
    (errors,) = log_errors(pair, start_constants(pair.gpu.gpu), [rate])
    assert list(errors[:2]) == [0.0, 0.0]
    assert (errors[2:] != 0).all()


def test_the_committed_predictions_follow_from_the_committed_constants(pairs):
    constants = read_constants(read_stage_output("constants"))
    inferred = read_stage_output("workload").set_index(["gpu", "gpu_count", "model"])
    committed = read_stage_output("predictions")
    assert len(committed) == len(pairs) * len(RATES_QPS), "a cell was left out"
    pair = next(p for p in pairs if p.model.model.endswith("Qwen-14B") and p.gpu.gpu == "H100-PCIe")
    known = inferred.loc[(pair.gpu.gpu, pair.count, pair.model.model)]
    mine = replace(pair, longest=float(known.longest_share), cached=bool(known.cached))
    again = predictions([mine], constants)
    same = committed[(committed.model == pair.model.model) & (committed.gpu == pair.gpu.gpu)]
    for metric in METRICS:
        name = f"{metric}_simulated"
        assert again[name].to_numpy() == pytest.approx(same[name].to_numpy(), rel=1e-6)


def test_held_out_errors_beat_a_line_between_the_fitted_rates():
    sizes = {name: model.parameters_b for name, model in load_models().items()}
    cells = with_groups(read_stage_output("predictions"), sizes)
    ours, line = medians(cells[cells.held_out]), medians(interpolated(cells))
    h100 = "1x H100 PCIe, models to 14B"
    assert (ours.loc[h100] <= line.loc[h100]).all()
    assert ours.loc[h100, "ttft_mean_ms_error_pct"] < 5
    assert ours.loc[h100, "duration_s_error_pct"] < 3


# -- capacity --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def replica():
    constants = read_constants(read_stage_output("constants"))["H100-PCIe"]
    return Replica(load_gpus()["H100-PCIe"], 1, load_models()["deepseek-ai/DeepSeek-R1-Distill-Qwen-7B"], constants)


def test_the_load_that_a_limit_allows_holds_it_and_a_little_more_does_not(replica):
    qps = highest_qps(replica, 100.0, seed=1)
    assert ttft_p99_ms(replica.run(qps, 1)) <= 100.0
    assert ttft_p99_ms(replica.run(qps * 1.25, 1)) > 100.0
    assert highest_qps(replica, 1.0, seed=1) == 0.0
    assert not grows(replica.run(qps, 1))
    assert grows(replica.run(200.0, 1))


def test_short_runs_count_the_drain_and_long_ones_the_rate(replica):
    short, long = (split(replica, 4, 16.0, requests, seed=1)["req_per_s"] for requests in (100, 8000))
    assert short < 0.75 * 16.0 < 0.95 * 16.0 < long


def test_a_gpu_whose_frame_is_empty_is_no_group():
    assert medians(pd.DataFrame(columns=["group", *(f"{m}_error_pct" for m in METRICS)])).empty


# -- other machines --------------------------------------------------------------------------------


def test_a_machine_s_step_costs_are_found_from_its_own_runs():
    true = replace(CPU_START, base_s=8e-3, compute_s=2.5e-4)
    runs = []
    for seed, qps in ((1, 2.0), (2, 4.0)):
        draw = np.random.default_rng(seed)
        arrivals = np.cumsum(draw.exponential(1 / qps, 60))
        load = Load(arrivals, draw.integers(20, 900, 60), draw.integers(5, 80, 60))
        runs.append((load, figures(simulate(true, CPU_SHAPE, load))))
    found = fit_step_costs(runs)
    for load, seen in runs:
        errors = errors_pct(simulate(found, CPU_SHAPE, load), seen)
        assert max(abs(error) for error in errors.values()) < 3.0, errors


def test_a_card_that_nothing_was_fitted_to_is_predicted_from_its_data_sheet(tmp_path):
    seen = read_public_trace(inside("data", "published", "traces", "rtxpro6000_llama31_8b_vllm019.jsonl"))
    assert len(seen[0].arrival_s) == 300
    assert seen[1][0] == pytest.approx(7100, rel=0.01), "the trace's own mean TTFT, ms"
    gpu, model = load_gpus()["RTX-PRO-6000-WS"], load_models()["meta-llama/Llama-3.1-8B-Instruct"]
    constants = read_constants(read_stage_output("constants"))
    lent = on_card(seen, gpu, model, constants["RTX-4090"], budget=2048, seqs=128)
    assert abs(lent["ttft_mean_ms_error_pct"]) < 15
    large = on_card(seen, gpu, model, constants["RTX-4090"], budget=8192, seqs=1024)
    assert large["ttft_mean_ms_error_pct"] < -90, "without its limit of 128 sequences nobody would have queued"
    (tmp_path / "bad.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(DataError, match="is no such trace"):
        read_public_trace(tmp_path / "bad.jsonl")
