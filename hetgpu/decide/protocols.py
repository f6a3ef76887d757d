"""The paper's protocol beside the schedule protocol, on the same engine at the same rates.

What a short run from an empty server tells is not what the server sustains: part of it is the drain
after the last arrival, and with one set of arrivals its repeats cannot show how much arrivals matter.
"""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from hetgpu.decide.cache_effect import interval
from hetgpu.errors import DataError
from hetgpu.evidence import metrics
from hetgpu.evidence.traces import Trace

#: Workload of the campaign -> what it is called beside the others.
PROTOCOLS = {
    "paper-cache-on": "paper, cache on",
    "paper-cache-emptied": "paper, cache emptied",
    "schedule": "schedule",
}
METRICS = ("ttft_mean_ms", "ttft_p99_ms", "tpot_mean_ms", "req_per_s", "req_in_window_per_s", "drain_share")


def window(trace: Trace) -> dict[str, float]:
    """What was finished while requests still arrived, per second, and the run's share after the last arrival."""
    done = trace.requests[trace.requests.error.isna()]
    last_s = float(trace.requests.scheduled_s.max())
    finished_s = done.sent_s + done.e2e_ms / 1e3
    return {
        "req_in_window_per_s": metrics.ratio(int((finished_s <= last_s).sum()), last_s),
        "drain_share": metrics.ratio(max(0.0, trace.run["duration_s"] - last_s), trace.run["duration_s"]),
    }


def by_protocol(runs: pd.DataFrame, traces: Iterable[Trace]) -> pd.DataFrame:
    """Each metric's mean and 95 % interval over repeats, for every protocol and rate.

    Parameters
    ----------
    runs : summary rows (measured); only those that passed every error-level check count.
    traces : the runs themselves.

    Returns
    -------
    Columns protocol, target_qps, metric, mean, low, high, repeats.

    Raises
    ------
    DataError : when one of :data:`PROTOCOLS` has no run.
    """
    windows = pd.DataFrame([{"run_id": trace.run["run_id"], **window(trace)} for trace in traces])
    kept = runs[runs.headline & runs.workload.isin(PROTOCOLS)].merge(windows, on="run_id")
    kept = kept.assign(protocol=kept.workload.map(PROTOCOLS))
    if missing := sorted(set(PROTOCOLS) - set(kept.workload)):
        raise DataError("measured runs", ", ".join(missing), "no run of this workload", "run `make campaign`")
    rows = [
        (protocol, qps, metric, *interval(group[metric]), len(group))
        for protocol in PROTOCOLS.values()
        for qps, group in kept[kept.protocol == protocol].groupby("target_qps")
        for metric in METRICS
    ]
    return pd.DataFrame(rows, columns=["protocol", "target_qps", "metric", "mean", "low", "high", "repeats"])


def sentence(table: pd.DataFrame) -> str:
    """The comparison in words, from :func:`by_protocol`."""
    found = table.set_index(["protocol", "metric", "target_qps"])
    paper, cold, ours = PROTOCOLS.values()
    loads = sorted(table.target_qps.unique())
    low, high = loads[0], loads[-1]

    def said(protocol: str, metric: str, qps: float, digits: int = 0) -> str:
        row = found.loc[(protocol, metric, qps)]
        return f"{row['mean']:.{digits}f} ({row.low:.{digits}f} to {row.high:.{digits}f})"

    ttft = [said(protocol, "ttft_mean_ms", low) for protocol in (paper, cold, ours)]
    drain = [said(protocol, "drain_share", high, 2) for protocol in (cold, ours)]
    return (
        f"At {low:g} QPS mean TTFT is {ttft[0]} ms by the paper's protocol, {ttft[1]} ms by the same with the cache "
        f"emptied before each rate, and {ttft[2]} ms by the schedule protocol, whose every repeat has arrivals and "
        f"prompts of its own (mean and 95 % interval). At {high:g} QPS, more than this engine sustains, {drain[0]} of "
        f"a run by the paper's protocol lies after its last arrival, and {drain[1]} of one by the schedule."
    )
