"""What a warm prefix cache does to TTFT: the experiment's runs compared arm by arm, over repeats."""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy import stats

from hetgpu.errors import DataError

PREFIX = "paper-cache-"
METRICS = ("ttft_mean_ms", "ttft_p99_ms", "tpot_mean_ms")


def _of_experiment(runs: pd.DataFrame) -> pd.DataFrame:
    """The experiment's runs that may be counted, with their ``arm`` (on, off, emptied) from the workload's name."""
    kept = runs[runs.workload.str.startswith(PREFIX) & runs.headline]
    return kept.assign(arm=kept.workload.str.removeprefix(PREFIX))


def interval(values: pd.Series) -> tuple[float, float, float]:
    """Mean and the ends of its 95 % interval over repeats (Student's t); ends NaN for fewer than two."""
    found = values.to_numpy(dtype=float)
    if len(found) < 2:
        return float(found.mean()), float("nan"), float("nan")
    half = stats.t.ppf(0.975, len(found) - 1) * found.std(ddof=1) / np.sqrt(len(found))
    return float(found.mean()), float(found.mean() - half), float(found.mean() + half)


def by_arm(runs: pd.DataFrame) -> pd.DataFrame:
    """Each metric's mean and 95 % interval over repeats, for every arm and rate.

    Parameters
    ----------
    runs : summary rows of the experiment (measured).

    Returns
    -------
    Columns arm, target_qps, metric, mean, low, high, repeats; highest rate first.

    Raises
    ------
    DataError : when there is no run of the experiment among them.
    """
    runs = _of_experiment(runs)
    if runs.empty:
        raise DataError("measured runs", "", "none of the prefix-cache experiment", "run `make campaign`")
    rows = []
    for (arm, qps), group in runs.groupby(["arm", "target_qps"], sort=False):
        for metric in METRICS:
            mean, low, high = interval(group[metric])
            rows.append((arm, qps, metric, mean, low, high, len(group)))
    table = pd.DataFrame(rows, columns=["arm", "target_qps", "metric", "mean", "low", "high", "repeats"])
    return table.sort_values(["metric", "target_qps", "arm"], ascending=[True, False, True], ignore_index=True)


def ratio_to_cold(runs: pd.DataFrame, cold: str = "emptied") -> pd.DataFrame:
    """Each run of arm ``on`` over the cold arm's same rate and repeat: mean ratio and 95 % interval.

    Returns
    -------
    Columns target_qps, metric, ratio, low, high, repeats; below 1 the warm cache makes the metric look better.
    """
    runs = _of_experiment(runs)
    key = ["target_qps", "record"]
    on, other = (runs[runs.arm == arm].set_index(key) for arm in ("on", cold))
    both = on.index.intersection(other.index)
    rows = []
    for metric in METRICS:
        ratios = (on.loc[both, metric] / other.loc[both, metric]).groupby("target_qps")
        for qps, values in ratios:
            mean, low, high = interval(values)
            rows.append((qps, metric, mean, low, high, len(values)))
    table = pd.DataFrame(rows, columns=["target_qps", "metric", "ratio", "low", "high", "repeats"])
    return table.sort_values(["metric", "target_qps"], ascending=[True, False], ignore_index=True)


def short_sentence(runs: pd.DataFrame) -> str:
    """The experiment's result in one sentence, for the page of findings."""
    ratios = ratio_to_cold(runs).query("metric == 'ttft_mean_ms'").set_index("target_qps").ratio
    later = ratios[ratios.index < ratios.index.max()]
    return (
        f"On a real vLLM (this project's CPU tier, no GPU) the authors' order of rates against one server makes the "
        f"mean TTFT of every rate after the first {later.min():.2f} to {later.max():.2f} of what a cold prefix cache "
        f"gives: published TTFTs that met a warm cache say little of a first visit."
    )


def sentence(runs: pd.DataFrame) -> str:
    """The experiment in words: what the warm cache did to TTFT, rate by rate, with intervals."""
    ratios = ratio_to_cold(runs).set_index(["metric", "target_qps"])
    loads = sorted(runs.target_qps.unique(), reverse=True)
    off = ratio_to_cold(runs, "off").set_index(["metric", "target_qps"])

    def said(metric: str, load: float) -> str:
        row = ratios.loc[(metric, load)]
        return f"{row.ratio:.2f} ({row.low:.2f}-{row.high:.2f})"

    first, later = loads[0], loads[1:]
    means = " and ".join(f"{said('ttft_mean_ms', load)} at {load:g} QPS" for load in later)
    tails = " and ".join(f"{said('ttft_p99_ms', load)} at {load:g} QPS" for load in later)
    against_off = " and ".join(f"{off.loc[('ttft_mean_ms', load)].ratio:.2f}" for load in later)
    return (
        f"With the prefix cache on and the highest rate first, as the authors ran it, mean TTFT is {means} of what it "
        f"is when the cache is emptied before each rate, and P99 TTFT {tails} (mean and 95 % interval over "
        f"{int(ratios.repeats.max())} repeats). At the first rate, {first:g} QPS, which meets an empty cache in either "
        f"case, it is {said('ttft_mean_ms', first)}. Against a cache that is off the ratios are {against_off}."
    )


def agreement(campaign: pd.DataFrame, local: pd.DataFrame) -> str:
    """Whether this machine's runs say the same as the campaign's: is a warm cache's TTFT below a cold one's?

    The sizes differ from machine to machine; what must agree is the direction, at each rate that
    both ran and that met a warm cache (all but the highest).
    """
    there, here = (
        ratio_to_cold(runs).query("metric == 'ttft_mean_ms'").set_index("target_qps").ratio
        for runs in (campaign, local)
    )
    rates = sorted((there.index.intersection(here.index)).difference([max(here.index)]), reverse=True)
    if not rates:
        return "this machine ran no rate that the campaign ran against a warm cache: nothing to compare"
    words = "; ".join(f"{rate:g} QPS: here {here[rate]:.2f}, campaign {there[rate]:.2f}" for rate in rates)
    agrees = all((here[rate] < 1) == (there[rate] < 1) for rate in rates)
    return f"warm over cold mean TTFT, {words}: this machine {'agrees' if agrees else 'does NOT agree'}"
