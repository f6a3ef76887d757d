"""Runs that sent the same prompts are compared answer by answer, and protocols rate by rate."""

import pandas as pd
import pytest

from hetgpu.decide.alike import alike
from hetgpu.decide.protocols import PROTOCOLS, by_protocol, sentence, window
from hetgpu.errors import DataError
from hetgpu.evidence.traces import Trace


def trace(name, answers, prompts="p", tokens=None, qps=4.0, **more):
    requests = pd.DataFrame({"request": range(len(answers)), "answer_sha256": answers})
    requests["output_tokens"] = tokens or 10
    requests["error"] = None
    run = {"run_id": name, "workload": {"prompts_sha256": prompts, "target_qps": qps}} | more
    return Trace(None, run, requests, None)


def test_equal_prompts_are_compared_and_others_are_not():
    found = alike(
        [
            trace("a", ["x", "y", "z", "w"]),
            trace("b", ["x", "y", "z", "v"]),
            trace("other prompts", ["x"], "q"),
            trace("another load", ["x"], qps=8.0),
            trace("a run without the hash", ["x"], None),
        ]
    )
    (row,) = found.itertuples()
    assert (row.run_a, row.run_b, row.requests, row.equal_answers_share, row.alike) == ("a", "b", 4, 0.75, True)


def test_a_tier_that_says_less_is_not_alike():
    (row,) = alike([trace("a", ["x", "y"]), trace("b", ["x", "y"], tokens=9)]).itertuples()
    assert (row.output_tokens_a, row.output_tokens_b, row.alike) == (20, 18, False)
    (row,) = alike([trace("a", ["x", "y"]), trace("b", ["v", "w"])]).itertuples()
    assert (row.equal_answers_share, row.alike) == (0.0, False)


def arrivals(name, duration_s):
    requests = pd.DataFrame({"scheduled_s": [0.0, 5.0, 10.0], "sent_s": [0.0, 5.0, 10.0], "e2e_ms": [4e3, 6e3, 2e3]})
    return Trace(None, {"run_id": name, "duration_s": duration_s}, requests.assign(error=None), None)


def test_what_is_finished_while_requests_arrive_is_told_from_the_drain():
    found = window(arrivals("a", 12.5))
    assert found["req_in_window_per_s"] == pytest.approx(1 / 10)
    assert found["drain_share"] == pytest.approx(2.5 / 12.5)


def test_protocols_are_compared_over_repeats_that_passed_their_checks():
    rows, traces = [], []
    for workload in PROTOCOLS:
        for qps in (1.0, 4.0):
            for repeat, ttft in enumerate((10.0, 20.0, 999.0)):
                name = f"{workload} {qps} {repeat}"
                traces.append(arrivals(name, 12.5))
                row = {"run_id": name, "workload": workload, "target_qps": qps, "headline": ttft < 100}
                figures = ("ttft_mean_ms", "ttft_p99_ms", "tpot_mean_ms", "req_per_s")
                rows.append(row | dict.fromkeys(figures, ttft))
    runs = pd.DataFrame(rows)
    table = by_protocol(runs, traces)
    cell = table.query("protocol == 'schedule' and target_qps == 4 and metric == 'ttft_mean_ms'").iloc[0]
    assert (cell["mean"], cell.repeats) == (15.0, 2)
    assert cell.low < 15.0 < cell.high
    assert "15 (" in sentence(table)
    assert "0.20 (0.20 to 0.20)" in sentence(table)
    with pytest.raises(DataError, match="schedule: no run of this workload"):
        by_protocol(runs[runs.workload != "schedule"], traces)
