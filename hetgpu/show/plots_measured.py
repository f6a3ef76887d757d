"""Figures of our own runs: repeats with their intervals, and what one machine measured."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from hetgpu.show.plots import plain_log
from hetgpu.show.style import foot

#: Arms of the prefix-cache experiment: label, colour, marker.
ARM_LOOKS = {
    "on": ("cache on, highest rate first (the paper's order)", "#0B4F8A", "o"),
    "emptied": ("cache emptied before each rate", "#E66101", "s"),
    "off": ("cache off", "#7F7F7F", "^"),
}


#: Protocols on one engine, as :data:`hetgpu.decide.protocols.PROTOCOLS` calls them: label, colour, marker.
PROTOCOL_LOOKS = {
    "paper, cache on": ("the paper's protocol", "#0B4F8A", "o"),
    "paper, cache emptied": ("the same, cache emptied before each rate", "#E66101", "s"),
    "schedule": ("schedule: fresh arrivals and prompts", "#4D1D00", "D"),
}
LATENCY_PANELS = {"ttft_mean_ms": "mean TTFT, ms", "ttft_p99_ms": "P99 TTFT, ms", "tpot_mean_ms": "mean TPOT, ms"}


def prefix_cache(by_arm: pd.DataFrame, evidence: str) -> Figure:
    """TTFT over load with the prefix cache on, emptied and off; bars are 95 % intervals over repeats.

    Parameters
    ----------
    by_arm : columns arm, target_qps, metric, mean, low, high (ms).
    evidence : the note under the figure.
    """
    return _with_intervals(by_arm, "arm", ARM_LOOKS, evidence)


def protocols(by_protocol: pd.DataFrame, evidence: str) -> Figure:
    """Latencies over load by each protocol; bars are 95 % intervals over repeats.

    Parameters
    ----------
    by_protocol : columns protocol, target_qps, metric, mean, low, high (ms).
    evidence : the note under the figure.
    """
    return _with_intervals(by_protocol, "protocol", PROTOCOL_LOOKS, evidence)


def _with_intervals(table: pd.DataFrame, by: str, looks: dict[str, tuple[str, str, str]], evidence: str) -> Figure:
    figure, axes = plt.subplots(1, len(LATENCY_PANELS), figsize=(7.2, 2.9))
    loads = sorted(table.target_qps.unique())
    for ax, (metric, label) in zip(axes, LATENCY_PANELS.items(), strict=True):
        for key, (name, colour, marker) in looks.items():
            part = table[(table.metric == metric) & (table[by] == key)].sort_values("target_qps")
            # An interval that reaches below zero has no lower end on a log axis: its bar stops at the axis.
            spread = [part["mean"] - part.low.clip(lower=part["mean"] * 0.01), part.high - part["mean"]]
            bars: dict[str, Any] = {"color": colour, "marker": marker, "capsize": 2.5, "label": name}
            ax.errorbar(part.target_qps, part["mean"], yerr=spread, **bars)
        plain_log(ax.xaxis, loads, base=2)
        ax.set_yscale("log")
        ax.set_title(label)
        ax.grid(True)
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=len(names))
    foot(figure, evidence, "target load, requests/s (QPS)")
    return figure


def own_runs(runs: pd.DataFrame, evidence: str) -> Figure:
    """Mean TTFT and mean TPOT over load of every configuration that a machine measured; repeats are points.

    Parameters
    ----------
    runs : summary rows.
    evidence : the note under the figure.
    """
    named = runs.assign(series=runs.tier + ", " + runs.model + ", " + runs.precision + ", " + runs.workload)
    figure, axes = plt.subplots(1, 2, figsize=(7.2, 3.4))
    for ax, metric in zip(axes, ("ttft_mean_ms", "tpot_mean_ms"), strict=True):
        # No error bar: with one or two repeats there is none to draw, so every run is a point.
        sns.lineplot(
            named, x="target_qps", y=metric, hue="series", style="series", markers=True, estimator=None,
            units="record", ax=ax, palette="colorblind", legend=ax is axes[0],
        )  # fmt: skip
        plain_log(ax.xaxis, sorted(named.target_qps.unique()), base=2)
        ax.set(yscale="log", title=LATENCY_PANELS[metric], xlabel="", ylabel="")
        ax.grid(True)
    handles, names = axes[0].get_legend_handles_labels()
    axes[0].get_legend().remove()
    figure.legend(handles, names, loc="outside upper center", ncols=1)
    foot(figure, evidence, "target load, requests/s (QPS)")
    return figure
