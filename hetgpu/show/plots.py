"""One function a figure: takes the data to plot, returns the Matplotlib figure. Computes nothing."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator, PercentFormatter

from hetgpu.evidence.records import short_model
from hetgpu.show.style import COLOURS, FAINT, FONT_PT, INK, LABELS, MARKERS, TIER_ORDER, foot

#: A tier's name where there is little room.
SHORT = {tier: LABELS[tier].replace(" PCIe", "").replace("RTX ", "") for tier in LABELS}

#: Colour of a cell that no tier wins.
NOBODY = "#F0F0F0"

PUBLISHED = "evidence: published (the authors' records)"
NOTE_PT = FONT_PT - 2

#: Letters keep a white rim, so that a label stays legible over a line.
RIM = [withStroke(linewidth=2.0, foreground="white")]


def _tiers_in(frame: pd.DataFrame) -> list[str]:
    return [tier for tier in TIER_ORDER if tier in set(frame.tier)]


def plain_log(axis: Axis, ticks: Sequence[float], base: int = 10) -> None:
    """A logarithmic axis with these ticks, written as plain numbers."""
    scale = axis.axes.set_xscale if axis is axis.axes.xaxis else axis.axes.set_yscale
    scale("log", base=base)
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_major_formatter(FixedFormatter([f"{tick:,.6g}".replace(",", " ") for tick in ticks]))
    axis.set_minor_locator(NullLocator())


def _line(ax: Axes, frame: pd.DataFrame, tier: str, x: str, y: str) -> None:
    part = frame[frame.tier == tier].sort_values("target_qps")
    ax.plot(part[x], part[y], label=LABELS[tier], **_look(tier))


def _look(tier: str) -> dict[str, Any]:
    return {
        "color": COLOURS[tier],
        "marker": MARKERS[tier],
        "markeredgecolor": "white",
        "markeredgewidth": 0.4,
    }


def _tier_legend(figure: Figure, frame: pd.DataFrame) -> None:
    tiers = _tiers_in(frame)
    handles = [Line2D([], [], **_look(tier)) for tier in tiers]
    figure.legend(handles, [LABELS[tier] for tier in tiers], loc="outside upper center", ncols=len(tiers))


def _say(ax: Axes, text: str, at: tuple[float, float], offset: tuple[float, float], **how: Any) -> None:
    """A small label beside a point, ``offset`` in points."""
    look: dict[str, Any] = {"fontsize": NOTE_PT, "color": INK, "path_effects": RIM, "zorder": 1.5} | how
    ax.annotate(text, at, xytext=offset, textcoords="offset points", **look)


def achieved_rate(computed: pd.DataFrame, printed: pd.DataFrame) -> Figure:
    """Figure 1: target QPS against achieved requests/s, labelled with USD per million tokens.

    Parameters
    ----------
    computed : columns tier, target_qps, req_per_s, usd_per_mtok_total.
    printed : what the printed figure draws otherwise: target_qps, req_per_s, label, offset, align.
    """
    figure, ax = plt.subplots(figsize=(6.3, 4.1))
    loads = sorted(computed.target_qps.unique())
    ax.plot(loads, loads, color=FAINT, linestyle="--", linewidth=1, label="ideal: achieved = target")
    for tier in _tiers_in(computed):
        _line(ax, computed, tier, "target_qps", "req_per_s")
        offset = (0, 7) if tier == "1x-h100-pcie" else (0, -14)
        for row in computed[computed.tier == tier].itertuples():
            at = (row.target_qps, row.req_per_s)
            _say(ax, f"{row.usd_per_mtok_total:.3f}", at, offset, ha="center", color=COLOURS[tier])
    hollow: dict[str, Any] = {"marker": "d", "markersize": 8, "markerfacecolor": "none", "markeredgecolor": INK}
    ax.plot(
        printed.target_qps,
        printed.req_per_s,
        linestyle="none",
        label="drawn in the paper, not in the records",
        **hollow,
    )
    for row in printed.itertuples():
        _say(ax, row.label, (row.target_qps, row.req_per_s), row.offset, ha=row.align)
    plain_log(ax.xaxis, loads, base=2)
    plain_log(ax.yaxis, [1, 2, 4, 8, 16, 32], base=2)
    ax.set(xlim=(0.85, 48), ylim=(0.72, 38), xlabel="target load, requests/s (QPS)")
    ax.set_ylabel("achieved, requests/s, drain included")
    ax.grid(True)
    ax.legend(loc="upper left")
    ax.set_title("labels: USD per million tokens (in + out)", loc="left", color=FAINT)
    foot(figure, PUBLISHED)
    return figure


def cost_latency(frame: pd.DataFrame, slo_ms: float) -> Figure:
    """Cost per million tokens against P99 TTFT, a panel a model, a line a tier through its loads."""
    models = list(dict.fromkeys(frame.model))
    figure, axes = plt.subplots(1, len(models), figsize=(7.2, 3.6), sharey=True, squeeze=False)
    for ax, model in zip(axes[0], models, strict=True):
        part = frame[frame.model == model]
        for tier in _tiers_in(part):
            _line(ax, part, tier, "usd_per_mtok_total", "ttft_p99_ms")
            ends = part[part.tier == tier].sort_values("target_qps").iloc[[0, -1]]
            for end in ends.itertuples():
                _say(ax, f"{end.target_qps:g}", (end.usd_per_mtok_total, end.ttft_p99_ms), (4, 4))
        ax.axhline(slo_ms, color=INK, linestyle=":", linewidth=1)
        plain_log(ax.xaxis, [0.01, 0.1, 1])
        plain_log(ax.yaxis, [10, 100, 1000, 10000])
        ax.set(xlim=(0.009, 2.6), ylim=(9, 40000), title=short_model(model))
        ax.grid(True)
    axes[0][0].set_ylabel("P99 TTFT, ms")
    _say(axes[0][0], f"SLO {slo_ms:g} ms", (0.0105, slo_ms), (0, 3))
    _tier_legend(figure, frame)
    foot(figure, PUBLISHED, "USD per million tokens (in + out); beside the points: target QPS")
    return figure


def dollar_throughput(frame: pd.DataFrame) -> Figure:
    """Tokens that one USD buys over load, a panel a model."""
    frame = frame.assign(mtok_total_per_usd=frame.tok_total_per_usd / 1e6)
    rows = {"mtok_total_per_usd": ("million tokens (in + out) per USD", [1, 2, 5, 10, 20, 50])}
    return _over_load(frame, rows, (7.2, 3.0))


def latency_load(frame: pd.DataFrame) -> Figure:
    """P99 TTFT and mean TPOT over load, a column a model."""
    rows = {
        "ttft_p99_ms": ("P99 TTFT, ms", [10, 100, 1000, 10000]),
        "tpot_mean_ms": ("mean TPOT, ms", [5, 10, 20, 50, 100, 200]),
    }
    return _over_load(frame, rows, (7.2, 4.8))


def _over_load(
    frame: pd.DataFrame, rows: Mapping[str, tuple[str, Sequence[float]]], size: tuple[float, float]
) -> Figure:
    """Small multiples over load: a row a quantity, a column a model, a line a tier."""
    models = list(dict.fromkeys(frame.model))
    figure, axes = plt.subplots(len(rows), len(models), figsize=size, sharey="row", sharex=True, squeeze=False)
    for line, (column, (label, ticks)) in zip(axes, rows.items(), strict=True):
        for ax, model in zip(line, models, strict=True):
            part = frame[frame.model == model]
            for tier in _tiers_in(part):
                _line(ax, part, tier, "target_qps", column)
            plain_log(ax.xaxis, sorted(frame.target_qps.unique()), base=2)
            plain_log(ax.yaxis, ticks)
            ax.grid(True)
        line[0].set_ylabel(label)
    for ax, model in zip(axes[0], models, strict=True):
        ax.set_title(short_model(model))
    _tier_legend(figure, frame)
    foot(figure, PUBLISHED, "target load, requests/s (QPS)")
    return figure


def winners(frame: pd.DataFrame, slos_ms: list[float]) -> Figure:
    """Which tier is the cheapest that meets each P99 TTFT, a panel an SLO, rows models, columns loads.

    Parameters
    ----------
    frame : columns slo_ms, model, target_qps, tier (null where none meets it), usd_per_mtok_total.
    """
    models = list(dict.fromkeys(frame.model))
    loads = sorted(frame.target_qps.unique())
    tiers = _tiers_in(frame.dropna(subset="tier"))
    colours = ListedColormap([NOBODY, *(COLOURS[tier] for tier in tiers)])
    code = {tier: place for place, tier in enumerate(tiers, start=1)}
    figure, axes = plt.subplots(1, len(slos_ms), figsize=(7.2, 0.37 * len(models) + 1.15), sharey=True, squeeze=False)
    for ax, slo in zip(axes[0], slos_ms, strict=True):
        part = frame[frame.slo_ms == slo].set_index(["model", "target_qps"])
        codes = part.tier.map(lambda tier: code.get(tier, 0)).unstack().loc[models, loads].astype(int)
        costs = part.usd_per_mtok_total.unstack().loc[models, loads]
        # The tier stands in its cell: two dark colours are one in grey.
        names = part.tier.map(lambda tier: SHORT.get(tier, "none")).unstack().loc[models, loads]
        text = names + costs.map(lambda usd: "" if pd.isna(usd) else f"\n{usd:.3f}")
        scale = {"vmin": -0.5, "vmax": len(tiers) + 0.5, "cmap": colours, "cbar": False}
        sns.heatmap(codes, ax=ax, annot=text, fmt="", annot_kws={"fontsize": NOTE_PT}, linewidths=1, **scale)
        ax.set(title=f"P99 TTFT up to {slo:g} ms", xlabel="", ylabel="")
        ax.set_xticklabels([f"{load:g}" for load in loads])
        ax.set_yticklabels([short_model(model) for model in models], rotation=0)
        ax.tick_params(length=0)
    handles = [Patch(color=COLOURS[tier]) for tier in tiers] + [Patch(facecolor=NOBODY, edgecolor=FAINT)]
    labels = [f"{LABELS[tier]} is cheapest" for tier in tiers] + ["no tier in the records"]
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), columnspacing=1.0, handlelength=1.2)
    foot(figure, PUBLISHED, "target load, requests/s (QPS); in the cells: USD per million tokens (in + out)")
    return figure


def audit_cells(cells: pd.DataFrame) -> Figure:
    """Drain share, stall ratio and prefix-cache sign of every cell: rows (tier, model), columns loads."""
    cells = cells[cells.record == 1].assign(row=lambda f: f.tier.map(LABELS) + "  " + f.model.map(short_model))
    tier_of = cells.drop_duplicates("row").set_index("row").tier
    order = sorted(tier_of.index, key=lambda row: (TIER_ORDER.index(tier_of[row]), row))
    panels = [
        ("drain_share", "share of the run\nthat is drain", "Blues", (0.0, 1.0), ".2f"),
        ("stall_ratio", "mean chunk gap / TPOT\n(outlined: stalled)", "Oranges", (0.9, 2.0), ".2f"),
        (
            "prefill_interruption_ratio",
            "P99 / median chunk gap\n(w warm, c cold, ? unknown)",
            "Greys",
            (1.0, 8.0),
            ".1f",
        ),
    ]
    marks = _grid(cells, order, "cache").map({"warm": " w", "cold": " c", "unidentified": " ?"}.get)
    figure, axes = plt.subplots(1, 3, figsize=(7.2, 0.225 * len(order) + 1.1), sharey=True)
    for ax, (column, title, palette, (low, high), form) in zip(axes, panels, strict=True):
        grid = _grid(cells, order, column)
        text = grid.map(lambda value, form=form: format(value, form))
        if column == "prefill_interruption_ratio":
            text = text + marks
        small = {"fontsize": FONT_PT - 3}
        sns.heatmap(
            grid,
            ax=ax,
            cmap=palette,
            vmin=low,
            vmax=high,
            cbar=False,
            annot=text,
            fmt="",
            annot_kws=small,
            linewidths=0.5,
        )
        ax.set_title(title, fontsize=FONT_PT - 1)
        ax.set_xticklabels([f"{load:g}" for load in grid.columns])
        ax.set(xlabel="target QPS", ylabel="")
        ax.tick_params(length=0)
    for y, x in zip(*np.nonzero(_grid(cells, order, "stalled").to_numpy(dtype=bool)), strict=True):
        axes[1].add_patch(Rectangle((x, y), 1, 1, fill=False, edgecolor=INK, linewidth=1.1))
    axes[0].set_yticklabels(order, rotation=0, fontsize=NOTE_PT)
    foot(figure, PUBLISHED)
    return figure


def _grid(cells: pd.DataFrame, order: list[str], column: str) -> pd.DataFrame:
    return cells.pivot(index="row", columns="target_qps", values=column).loc[order]


def price_what_if(frame: pd.DataFrame) -> Figure:
    """Cost per token of 4090 tiers as a share of the H100's, a group a price set.

    Parameters
    ----------
    frame : columns label (of the price set), tier, target_qps, cost_share.
    """
    loads = sorted(frame.target_qps.unique())
    labels = list(dict.fromkeys(frame.label))
    places = np.arange(len(labels))
    figure, axes = plt.subplots(1, len(loads), figsize=(7.2, 3.2), sharey=True, squeeze=False)
    for ax, load in zip(axes[0], loads, strict=True):
        part = frame[frame.target_qps == load]
        tiers = _tiers_in(part)
        height = 0.8 / len(tiers)
        for place, tier in enumerate(tiers):
            bars = part[part.tier == tier].set_index("label").cost_share.reindex(labels)
            y = places + (place - (len(tiers) - 1) / 2) * height
            ax.barh(y, bars, height * 0.92, color=COLOURS[tier], label=LABELS[tier])
            for at, share in zip(y, bars, strict=True):
                ax.text(share + 0.02, at, f"{share:.0%}", va="center", fontsize=NOTE_PT, path_effects=RIM)
        ax.axvline(1.0, color=INK, linestyle=":", linewidth=1)
        ax.set(title=f"{load:g} QPS", xlim=(0, frame.cost_share.max() * 1.2))
        ax.xaxis.set_major_locator(FixedLocator([0, 0.5, 1.0, 1.5, 2.0]))
        ax.xaxis.set_major_formatter(PercentFormatter(1.0))
        ax.grid(True, axis="x")
    axes[0][0].set_yticks(places, [textwrap.fill(label, 26) for label in labels])
    axes[0][0].invert_yaxis()
    handles, names = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=len(names))
    foot(
        figure,
        f"{PUBLISHED}, rents from each date's price list",
        "USD per million tokens as a share of one H100 PCIe at the same load (dotted: equal)",
    )
    return figure
