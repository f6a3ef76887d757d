"""Measuring a tier: the machine is held against it, and vLLM's own client runs against a stub engine."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from hetgpu.errors import DataError
from hetgpu.evidence.catalog import load_gpus, load_tiers
from hetgpu.evidence.traces import read_trace, summarise
from hetgpu.measure import machine, tier
from hetgpu.measure.client import ClientError, requests_frame, run_client
from hetgpu.measure.engine import Engine, EngineSpec, precision_arguments
from hetgpu.measure.model import build_tiny_model, fingerprint
from hetgpu.measure.prompts import sharegpt
from hetgpu.measure.run import Planned, Setting, sweep, sweep_missing
from hetgpu.measure.schedule import Prompts, paper_schedule

STUB = Path(__file__).parent / "stub_engine.py"


def facts(*names):
    return {"gpus": [{"name": name, "uuid": f"GPU-{number}"} for number, name in enumerate(names)]}


def test_a_machine_is_its_tier_or_is_refused():
    tiers, name = load_tiers(), load_gpus()["RTX-4090"].nvml_names[0]
    machine.check_tier(tiers["2x-rtx-4090"], facts(name, name))
    machine.check_tier(tiers["cpu-local"], facts())
    for key, seen, message in (
        ("2x-rtx-4090", facts(name), "1 GPUs are seen, the tier has 2"),
        ("1x-rtx-4090", facts("NVIDIA L4"), "device 'NVIDIA L4' is no RTX-4090"),
        ("1x-h100-pcie", facts(), "no GPU is seen here"),
    ):
        with pytest.raises(DataError, match=message):
            machine.check_tier(tiers[key], seen)


def test_two_machines_are_told_apart():
    here = machine.fingerprint()
    assert machine.machine_id(here) == machine.machine_id(dict(here))
    assert machine.machine_id(here) != machine.machine_id(here | {"cores": -1})


def test_a_tier_s_engine_has_a_rank_a_gpu_and_the_paper_s_order_of_rates():
    request = tier.Request(tier="2x-rtx-4090", model="some/model", precision="fp16", arguments="--load-format dummy")
    spec = tier.spec_of(request, load_tiers()["2x-rtx-4090"], "some/model")
    assert spec.arguments == ("--tensor-parallel-size", "2", "--load-format", "dummy")
    assert spec.precision == "fp16"
    plans = tier.plans(request)
    assert [plan.target_qps for plan in plans] == [32.0, 16.0, 8.0, 4.0, 1.0]
    assert all(len(plan.schedule) == 200 for plan in plans)
    assert np.array_equal(plans[0].schedule.prompt, plans[-1].schedule.prompt)


def test_an_unknown_tier_is_named():
    with pytest.raises(DataError, match="9x-x: is not in tiers.yaml"):
        tier.tier_of(tier.Request(tier="9x-x"))


def test_an_entry_that_cannot_be_is_named_with_its_field():
    with pytest.raises(DataError, match=r"entry 2: .*qps: .*known: tier, model"):
        tier.requests_from([{"tier": "cpu-local"}, {"tier": "cpu-local", "qps": 4}])
    with pytest.raises(DataError, match="prompts: Input should be greater than or equal to 2"):
        tier.requests_from([{"tier": "cpu-local", "prompts": 1}])


def test_what_differs_from_the_paper_s_protocol_stands_in_the_workload():
    names = [
        tier.Request(tier="cpu-local", **more).workload
        for more in (
            {},
            {"prompts": 20},
            {"protocol": "schedule", "prompts": 50, "label": "eager"},
            {"requests": "data/external/ShareGPT.json"},
        )
    ]
    assert names == ["paper", "paper-20", "schedule-50-eager", "paper-ShareGPT"]


def test_precision_is_the_weights_own_where_nothing_is_asked(tmp_path):
    def of(model, precision="auto"):
        return tier.precision_of(tier.Request(tier="1x-rtx-4090", precision=precision), model)

    assert of("neuralmagic/Llama-3.1-Nemotron-70B-Instruct-HF-FP8-dynamic") == "fp8"
    assert of("some/unknown-model") == "auto"
    assert of("some/unknown-model", "awq") == "awq"
    (tmp_path / "config.json").write_text('{"torch_dtype": "float16"}')
    assert of(str(tmp_path)) == "fp16"
    (tmp_path / "config.json").write_text('{"dtype": "float16", "quantization_config": {"quant_method": "awq"}}')
    assert of(str(tmp_path)) == "awq"
    with pytest.raises(DataError, match="fp7: is not known. Mend: use one of auto, bf16"):
        of("m", "fp7")


@pytest.mark.parametrize(
    ("precision", "arguments"),
    [("fp8", ("--quantization", "fp8")), ("awq", ("--quantization", "awq")), ("bf16", ("--dtype", "bfloat16"))],
)
def test_a_precision_is_told_to_the_engine(precision, arguments):
    assert precision_arguments(precision) == arguments


def test_an_engine_in_another_environment_is_started_by_its_command():
    request = tier.Request(tier="1x-rtx-4090", engine="docker run --rm --init --gpus all vllm/vllm-openai:v0.8.5")
    spec = tier.spec_of(request, load_tiers()["1x-rtx-4090"], "m")
    assert spec.command[:3] == ("docker", "run", "--rm")
    assert spec.arguments == ("--tensor-parallel-size", "1")


def test_the_schedule_protocol_sends_no_prompt_twice_and_repeats_differ():
    request = tier.Request(tier="cpu-local", protocol="schedule", rates_qps=(4.0, 2.0), prompts=30, repeats=2)
    found = tier.plans(request)
    assert [(plan.target_qps, plan.repeat) for plan in found] == [(4.0, 0), (2.0, 0), (4.0, 1), (2.0, 1)]
    prompts = np.concatenate([plan.schedule.prompt for plan in found])
    assert len(np.unique(prompts)) == len(prompts) == 120
    assert "--no-enable-prefix-caching" in tier.spec_of(request, load_tiers()["cpu-local"], "m").arguments


def test_a_real_trace_is_cut_into_runs_that_share_no_request(project):
    rows = [f"2023-11-16 18:{n // 60:02}:{n % 60:02}.0000000,{100 + n},{10 + n}" for n in range(60)]
    (project / "azure.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(rows) + "\n")
    request = tier.Request(tier="cpu-local", requests="azure.csv", rates_qps=(4.0, 2.0), prompts=20)
    found = tier.plans(request)
    assert [plan.schedule.input_tokens[0] for plan in found] == [100, 120]
    with pytest.raises(DataError, match="holds 0 requests after the first 60"):
        tier.plans(request.model_copy(update={"repeats": 3}))


# -- vLLM's client against the stub ----------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    pytest.importorskip("vllm", reason="the engine is not installed here")
    folder = tmp_path_factory.mktemp("models")
    model = build_tiny_model(folder / "a")
    assert fingerprint(model) == fingerprint(build_tiny_model(folder / "b")), "the same bytes every time"
    return str(model)


@pytest.fixture
def start(project, tmp_path):
    interpreter = tmp_path / "python"
    interpreter.write_text(f'#!/bin/sh\nexec {sys.executable} {STUB} "$@"\n')
    interpreter.chmod(0o755)

    def started(fail=""):
        spec = EngineSpec("m", command=(str(interpreter),), environment={"STUB_FAIL": fail}, ready_limit_s=15.0)
        return Engine.start(spec, tmp_path / "engine.log", lambda text: None)

    return started


@pytest.mark.engine
def test_a_sweep_writes_runs_that_agree_with_the_client_and_resumes(start, tokenizer, tmp_path):
    setting = Setting(load_tiers()["cpu-local"], "m", "bf16", tokenizer, tmp_path / "traces")
    plans = [Planned("paper", 50.0, repeat, paper_schedule(50.0, 6)) for repeat in (0, 1)]
    said = []
    with start() as engine:
        folders = sweep(engine, setting, plans[:1], tmp_path / "scratch", said.append)
        folders = sweep(engine, setting, plans, tmp_path / "scratch", said.append)
    assert len(said) == 2, "the first run was not made again"
    nobody = lambda: pytest.fail("an engine was started for runs that are there")  # noqa: E731
    assert sweep_missing(nobody, setting, plans, tmp_path / "scratch", said.append) == folders
    for folder in folders:
        trace = read_trace(folder)
        row, client = summarise(trace), trace.run["client"]["summary"]
        assert (row.completed, row.failed, row.headline) == (6, 0, True), trace.failed_checks
        assert row.ttft_mean_ms == pytest.approx(client["mean_ttft_ms"])
        assert row.output_tokens == trace.run["server"]["vllm:generation_tokens_total"]
        assert (trace.requests.sent_s >= trace.requests.scheduled_s).all()


@pytest.mark.engine
def test_a_run_of_another_schedule_is_not_taken_for_the_planned_one(start, tokenizer, tmp_path):
    setting = Setting(load_tiers()["cpu-local"], "m", "bf16", tokenizer, tmp_path / "traces")
    with start() as engine:
        sweep(engine, setting, [Planned("paper", 50.0, 0, paper_schedule(50.0, 4))], tmp_path / "s", lambda text: None)
    nobody = lambda: pytest.fail("an engine was started")  # noqa: E731
    with pytest.raises(DataError, match="another schedule is there already. Mend: give this one a label"):
        sweep_missing(nobody, setting, [Planned("paper", 50.0, 0, paper_schedule(50.0, 5))], tmp_path / "s")


@pytest.mark.engine
def test_a_data_set_s_very_tokens_are_sent(start, tokenizer, tmp_path):
    schedule = paper_schedule(
        50.0, 3, Prompts(np.array([2, 3, 4]), np.array([3, 4, 5]), "a set", ((5, 6), (7, 8, 9), (10, 11, 12, 13)))
    )
    with start() as engine:
        run_client(engine, tokenizer, schedule, tmp_path / "c")
        assert engine.counters()["vllm:prompt_tokens_total"] == 2 + 3 + 4
        assert engine.counters()["vllm:generation_tokens_total"] == 3 + 4 + 5
    received = (tmp_path / "engine.log").read_text()
    assert "prompt [10, 11, 12, 13]" in received


@pytest.mark.engine
def test_sharegpt_is_read_by_vllm_s_own_reader(tokenizer, tmp_path):
    def talk(number):
        return {"conversations": [{"value": f"request {number} " * 6}, {"value": f"answer {number} " * 9}]}

    path = tmp_path / "sharegpt.json"
    path.write_text(json.dumps([talk(number) for number in range(8)] + [{"conversations": [{"value": "alone"}]}]))
    found = sharegpt(path, tokenizer, 6)
    assert [len(ids) for ids in found.token_ids] == list(found.input_tokens)
    assert len(set(found.token_ids)) == 6
    assert (found.output_tokens > 8).all()
    assert sharegpt(path, tokenizer, 6).token_ids == found.token_ids
    with pytest.raises(DataError, match="8 usable conversations, 9 are wanted"):
        sharegpt(path, tokenizer, 9)
    path.write_text('["not", "talks"')
    with pytest.raises(DataError, match="is no ShareGPT file"):
        sharegpt(path, tokenizer, 2)
    with pytest.raises(DataError, match="no such file. Mend: `make sharegpt` fetches it"):
        sharegpt(tmp_path / "none.json", tokenizer, 2)


@pytest.mark.engine
def test_power_of_another_machine_is_not_read_here(start, tokenizer, tmp_path):
    setting = Setting(load_tiers()["cpu-local"], "m", "bf16", tokenizer, tmp_path / "traces", here=False)
    with start() as engine:
        (folder,) = sweep(
            engine, setting, [Planned("p", 50.0, 0, paper_schedule(50.0, 3))], tmp_path / "s", lambda text: None
        )
    run = read_trace(folder).run
    assert (run["energy"]["energy_j"], run["energy"]["reason"], run["energy"]["idle_w"]) == (None, "unavailable", None)
    assert run["engine_here"] is False


@pytest.mark.engine
def test_an_engine_killed_in_mid_run_leaves_no_run_that_can_be_read(start, tokenizer, tmp_path):
    setting = Setting(load_tiers()["cpu-local"], "m", "bf16", tokenizer, tmp_path / "traces")
    plan = Planned("paper", 50.0, 0, paper_schedule(50.0, 4))
    with start("dies_serving") as engine, pytest.raises(RuntimeError, match="stopped answering|left no result"):
        sweep(engine, setting, [plan], tmp_path / "scratch", lambda text: None)
    assert not list((tmp_path / "traces").rglob("run.json")) if (tmp_path / "traces").exists() else True
    with start() as engine:
        assert sweep(engine, setting, [plan], tmp_path / "scratch", lambda text: None)[0].is_dir()


@pytest.mark.engine
def test_a_server_that_hangs_is_an_error_at_the_limit(start, tokenizer, tmp_path):
    with start("hangs") as engine, pytest.raises(ClientError, match="took longer than 20 s"):
        run_client(engine, tokenizer, paper_schedule(50.0, 2), tmp_path / "c", limit_s=20.0)


def test_a_result_that_does_not_fit_its_schedule_is_refused():
    with pytest.raises(DataError, match="start_times.*not of the schedule's 3 requests"):
        requests_frame({"start_times": [1.0]}, paper_schedule(1.0, 3), "local")
