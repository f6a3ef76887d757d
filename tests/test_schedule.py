"""Schedules: seeded, hashed, and what their statistics say of them."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetgpu.errors import DataError
from hetgpu.evidence.metrics import arrivals_s
from hetgpu.measure.schedule import Prompts, Schedule, length_model, paper_schedule, poisson_schedule, trace_schedule


def test_the_paper_s_schedule_is_its_very_arrivals_and_the_same_prompts_at_every_rate():
    fast, slow = paper_schedule(32.0), paper_schedule(1.0)
    assert np.array_equal(fast.arrival_s, arrivals_s(32.0, 200))
    assert np.array_equal(fast.prompt, slow.prompt)
    assert np.array_equal(fast.input_tokens, slow.input_tokens)
    assert fast.sha256 != slow.sha256
    assert paper_schedule(32.0).sha256 == fast.sha256


def test_a_poisson_schedule_is_one():
    found = [poisson_schedule(4.0, 2000, seed).statistics() for seed in range(3)]
    for statistics in found:
        assert statistics["gap_cv"] == pytest.approx(1.0, abs=0.1)
        assert statistics["achieved_req_per_s"] == pytest.approx(4.0, rel=0.1)
    assert len({statistics["achieved_req_per_s"] for statistics in found}) == 3, "not rescaled to one rate"


def test_two_seeds_share_no_prompt_and_the_same_seed_is_the_same_bytes():
    one, two = poisson_schedule(4.0, 50, 1), poisson_schedule(4.0, 50, 2)
    ids = [{i for line in s.lines().splitlines() for i in json.loads(line)["hash_ids"]} for s in (one, two)]
    assert not ids[0] & ids[1]
    assert poisson_schedule(4.0, 50, 1).sha256 == one.sha256


def test_every_line_is_what_vllm_s_client_reads():
    for line in paper_schedule(8.0, 20).lines().splitlines():
        entry = json.loads(line)
        assert set(entry) == {"timestamp", "input_length", "output_length", "hash_ids"}
        assert len(entry["hash_ids"]) == -(-entry["input_length"] // 16)


def test_lengths_come_in_pairs_of_the_length_model():
    found = length_model()
    assert len(found.input_tokens) == 200
    assert np.corrcoef(np.log(found.input_tokens), np.log(found.output_tokens))[0, 1] < -0.3
    assert length_model(scale_in=2.0).input_tokens.sum() == 2 * found.input_tokens.sum()
    pairs = set(zip(found.input_tokens, found.output_tokens, strict=True))
    drawn = [poisson_schedule(4.0, 50, seed) for seed in (1, 2)]
    assert all(set(zip(s.input_tokens, s.output_tokens, strict=True)) <= pairs for s in drawn)
    assert not np.array_equal(drawn[0].input_tokens, drawn[1].input_tokens)


def test_more_prompts_than_there_are_is_refused():
    with pytest.raises(DataError, match="201 are wanted, the length model has 200"):
        paper_schedule(4.0, 201)


def test_a_data_set_s_prompts_are_sent_once_each_in_an_order_of_the_seed_s():
    tokens = tuple((number, number + 1) for number in range(30))
    prompts = Prompts(np.full(30, 2), np.full(30, 5), "a set", tokens)
    one, two = poisson_schedule(4.0, 30, 1, prompts), poisson_schedule(4.0, 30, 2, prompts)
    assert sorted(one.token_ids) == sorted(two.token_ids) == list(tokens)
    assert one.token_ids != two.token_ids
    assert [json.loads(line)["hash_ids"] for line in one.lines().splitlines()] == [list(ids) for ids in one.token_ids]


def test_what_is_asked_has_a_hash_that_arrivals_do_not_change():
    fast, slow = paper_schedule(32.0), paper_schedule(1.0)
    assert fast.prompts_sha256 == slow.prompts_sha256
    assert poisson_schedule(4.0, 50, 1).prompts_sha256 != poisson_schedule(4.0, 50, 2).prompts_sha256


def test_a_real_trace_is_scaled_to_a_rate_and_keeps_its_shape(tmp_path):
    path = tmp_path / "azure.csv"
    rows = [
        "2023-11-16 18:15:46.6805900,374,44",
        "2023-11-16 18:15:50.6805900,396,109",
        "2023-11-16 18:15:58.6805900,5,0",
    ]
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(rows) + "\n")
    schedule = trace_schedule(path, qps=2.0, n=3)
    assert schedule.arrival_s == pytest.approx([0.0, 1 / 3, 1.0])
    assert schedule.output_tokens.tolist() == [44, 109, 1]
    path.write_text("time,ContextTokens\n1,2\n")
    with pytest.raises(DataError, match="column missing: GeneratedTokens, TIMESTAMP"):
        trace_schedule(path, 2.0, 3)


@pytest.mark.parametrize(
    ("arrivals", "lengths", "message"),
    [([0.0, 2.0, 1.0], [1, 1, 1], "fall back in time"), ([0.0, 1.0], [1, 0], "no tokens"), ([0.0], [1, 1], "lengths")],
)
def test_what_no_client_could_send_is_refused(arrivals, lengths, message):
    columns = np.array(arrivals), np.array(lengths)
    with pytest.raises(DataError, match=message):
        Schedule(columns[0], columns[1], columns[1], np.arange(len(arrivals)), "")


@given(st.floats(0.1, 100.0), st.integers(2, 60))
def test_arrivals_scale_with_the_rate(qps, n):
    assert paper_schedule(qps, n).arrival_s * qps == pytest.approx(paper_schedule(1.0, n).arrival_s)
