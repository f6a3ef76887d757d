"""Traces: written whole or not at all, checked when read, summarised by the one definition."""

import json

import numpy as np
import pandas as pd
import pytest

from hetgpu.decide.cache_effect import by_arm, interval, ratio_to_cold
from hetgpu.errors import DataError
from hetgpu.evidence import traces
from hetgpu.measure import checks
from hetgpu.paths import inside


def requests(n=4, **changes):
    frame = pd.DataFrame(
        {
            "request": np.arange(n),
            "scheduled_s": np.arange(n) * 1.0,
            "sent_s": np.arange(n) * 1.0 + 0.001,
            "ttft_ms": [100.0] * n,
            "e2e_ms": [200.0] * n,
            "chunk_gaps_ms": [[10.0] * 10] * n,
            "input_tokens": [20] * n,
            "output_tokens": [11] * n,
            "wanted_output_tokens": [11] * n,
            "request_class": ["all"] * n,
            "endpoint": ["local"] * n,
            "answer_sha256": ["x"] * n,
            "error": pd.Series([None] * n, dtype=object),
        }
    )
    return frame.assign(**changes)


def run(**changes):
    values = {"run_id": "measured/x", "evidence": "measured", "tier": "cpu-local", "gpu": None, "gpu_count": 0}
    values |= {"model": "m", "precision": "bf16", "engine": {"name_and_version": "vllm 0"}, "duration_s": 4.0}
    values |= {"workload": {"name": "w", "repeat": 0, "target_qps": 1.0}, "started_utc": "2026-12-01T00:00:00Z"}
    return values | {"energy": {"energy_j": None, "method": None}, "checks": []} | changes


def test_a_run_is_read_back_as_it_was_written(tmp_path, project):
    folder = traces.write_trace(tmp_path / "qps1-rep0", run(), requests(), None, f"loaded {project}/x\n")
    trace = traces.read_trace(folder)
    pd.testing.assert_frame_equal(
        trace.requests.drop(columns="chunk_gaps_ms"), requests().drop(columns="chunk_gaps_ms")
    )
    assert (folder / "server.log").read_text() == "loaded <project>/x\n"
    assert sorted(p.name for p in folder.iterdir()) == ["requests.parquet", "run.json", "server.log"]


def test_a_run_is_never_overwritten_and_never_half_there(tmp_path, project, monkeypatch):
    folder = traces.write_trace(tmp_path / "a" / "rep0", run(), requests(), None, None)
    with pytest.raises(DataError, match="is there already"):
        traces.write_trace(folder, run(), requests(), None, None)
    monkeypatch.setattr(traces, "write_json", lambda *a: (_ for _ in ()).throw(OSError("No space left on device")))
    with pytest.raises(DataError, match="could not be written: No space.*free some space"):
        traces.write_trace(tmp_path / "a" / "rep1", run(), requests(), None, None)
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["rep0"]
    assert list(traces.find_traces(tmp_path)) == [folder]


def test_a_changed_file_is_noticed(tmp_path, project):
    folder = traces.write_trace(tmp_path / "rep0", run(), requests(), None, "log")
    (folder / "server.log").write_text("other")
    with pytest.raises(DataError, match="server.log: is missing or was changed after the run"):
        traces.read_trace(folder)


def test_a_folder_without_its_record_and_another_schema_are_refused(tmp_path, project):
    with pytest.raises(DataError, match="not a run, or one that was never finished"):
        traces.read_trace(tmp_path)
    folder = traces.write_trace(tmp_path / "rep0", run(), requests(), None, None)
    content = json.loads((folder / "run.json").read_text()) | {"schema_version": 99}
    (folder / "run.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match="schema version 99"):
        traces.read_trace(folder)
    with pytest.raises(DataError, match="holds no run"):
        traces.summaries_of(tmp_path / "nothing")


def test_a_summary_is_the_metrics_of_the_requests(tmp_path, project):
    row = traces.summarise(traces.read_trace(traces.write_trace(tmp_path / "r", run(), requests(), None, None)))
    assert (row.completed, row.failed, row.req_per_s) == (4, 0, 1.0)
    assert (row.ttft_mean_ms, row.tpot_mean_ms, row.chunk_gap_p99_ms) == (100.0, 10.0, 10.0)
    assert (row.tok_out_per_s, row.tok_total_per_s, row.energy_j) == (11.0, 31.0, None)
    assert (row.output_tokens_counted_by, row.headline) == ("server", True)


def test_a_run_that_failed_a_check_is_kept_out_of_headlines_with_its_reason(tmp_path, project):
    frame = requests(error=[None, None, "Connection reset", None])
    found = checks.request_checks(frame, 4.0)
    trace = traces.write_trace(tmp_path / "r", run(checks=traces.check_rows(found)), frame, None, None)
    row = traces.summarise(traces.read_trace(trace))
    assert (row.completed, row.failed, row.headline) == (3, 1, False)
    assert "every_request_finished: 4 sent, 3 finished, 1 failed Connection reset" in row.reason


def test_a_run_in_which_all_failed_has_no_latency_at_all(tmp_path, project):
    frame = requests(error=["refused"] * 4)
    trace = traces.write_trace(
        tmp_path / "r", run(checks=traces.check_rows(checks.request_checks(frame, 4.0))), frame, None, None
    )
    row = traces.summarise(traces.read_trace(trace))
    assert (row.completed, row.ttft_mean_ms, row.headline) == (0, None, False)


def passed(found):
    return {check.name: check.passed for check in found}


def test_the_checks_find_what_they_look_for():
    good = requests()
    assert passed(checks.request_checks(good, 4.0)) == dict.fromkeys(
        ("every_request_finished", "answers_as_long_as_asked", "duration_plausible"), True
    )
    assert not passed(checks.request_checks(good, 2.0))["duration_plausible"]
    assert not passed(checks.request_checks(requests(output_tokens=[11, 11, 10, 11]), 4.0))["answers_as_long_as_asked"]
    assert all(passed(checks.client_checks(good, 0.5)).values())
    assert not passed(checks.client_checks(good, 0.99))["client_cpu"]
    assert not passed(checks.client_checks(requests(sent_s=np.arange(4) + 0.5), 0.5))["client_lag"]
    assert not passed(checks.client_checks(requests(chunk_gaps_ms=[[50.0, 50.0]] * 4), 0.5))["chunks_merged"]
    at_once = requests(chunk_gaps_ms=[[0.001] * 9 + [99.9]] * 4)
    assert not passed(checks.client_checks(at_once, 0.5))["chunks_at_once"]


def test_the_server_s_counts_are_held_against_the_client_s():
    before = {"vllm:prompt_tokens_total": 5.0, "vllm:generation_tokens_total": 1.0}
    after = {"vllm:prompt_tokens_total": 85.0, "vllm:generation_tokens_total": 45.0}
    assert passed(checks.server_checks(requests(), before, after))["server_token_counts"]
    after["vllm:generation_tokens_total"] = 44.0
    assert not passed(checks.server_checks(requests(), before, after))["server_token_counts"]
    silent = checks.server_checks(requests(), {}, {})
    assert [(check.severity, check.passed) for check in silent] == [("warning", False)]


def campaign():
    rows = []
    for arm, scale in (("on", 0.5), ("emptied", 1.0), ("off", 1.0)):
        for record in (1, 2, 3):
            for qps in (4.0, 2.0):
                ttft = 100.0 * scale * (1 + 0.01 * record)
                rows.append((f"paper-cache-{arm}", qps, record, ttft, 2 * ttft, 10.0, True))
    names = ["workload", "target_qps", "record", "ttft_mean_ms", "ttft_p99_ms", "tpot_mean_ms", "headline"]
    return pd.DataFrame(rows, columns=names)


def test_arms_are_compared_repeat_by_repeat():
    ratios = ratio_to_cold(campaign()).set_index(["metric", "target_qps"])
    assert ratios.loc[("ttft_mean_ms", 4.0), "ratio"] == pytest.approx(0.5)
    assert ratios.loc[("ttft_mean_ms", 4.0), "low"] == pytest.approx(0.5)
    assert ratios.loc[("tpot_mean_ms", 2.0), "ratio"] == 1.0
    table = by_arm(campaign())
    assert len(table) == 3 * 2 * 3
    assert (table.low <= table["mean"]).all()
    with pytest.raises(DataError, match="none of the prefix-cache experiment"):
        by_arm(campaign().assign(headline=False))


def test_an_interval_is_student_s():
    mean, low, high = interval(pd.Series([1.0, 2.0, 3.0]))
    assert (mean, high - mean) == (2.0, pytest.approx(4.3027 / np.sqrt(3), abs=1e-3))
    assert low == pytest.approx(2 * mean - high)
    assert np.isnan(interval(pd.Series([1.0]))[1])


def test_every_committed_run_is_whole_and_agrees_with_the_client_s_own_figures():
    folders = list(traces.find_traces(inside("data", "traces", "measured")))
    assert folders
    for folder in folders:
        trace = traces.read_trace(folder)
        row, client = traces.summarise(trace), trace.run["client"]["summary"]
        assert row.evidence == "measured"
        assert row.tier == "cpu-local"
        pairs = {
            row.ttft_mean_ms: client["mean_ttft_ms"],
            row.ttft_p99_ms: client["p99_ttft_ms"],
            row.tpot_mean_ms: client["mean_tpot_ms"],
            row.chunk_gap_mean_ms: client["mean_itl_ms"],
            row.tok_total_per_s: client["total_token_throughput"],
            row.req_per_s: client["request_throughput"],
        }
        for ours, theirs in pairs.items():
            assert ours == pytest.approx(theirs, rel=1e-6), folder
        assert trace.run["server"]["vllm:generation_tokens_total"] == row.output_tokens
