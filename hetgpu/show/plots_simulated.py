"""Figures of the simulator: what it says against what was seen, and what it says of loads nobody ran."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from hetgpu.show.plots import plain_log
from hetgpu.show.style import COLOURS, FAINT, LABELS, MARKERS, foot

PANELS = {
    "ttft_mean_ms": "mean TTFT, ms",
    "ttft_p99_ms": "P99 TTFT, ms",
    "tpot_mean_ms": "mean TPOT, ms",
    "duration_s": "duration, s",
}


def _tier(row: pd.Series) -> str:
    return f"{row.gpu_count}x-{str(row.gpu).lower()}"


def against_published(cells: pd.DataFrame, evidence: str) -> Figure:
    """Simulated over published, a mark a cell: filled where held out, hollow where fitted, grey where chunks merged.

    Parameters
    ----------
    cells : from :func:`hetgpu.simulate.calibrate.predictions`.
    evidence : the note under the figure.
    """
    figure, axes = plt.subplots(1, 4, figsize=(7.2, 2.7))
    tiers = cells.apply(_tier, axis=1)
    for ax, (metric, label) in zip(axes, PANELS.items(), strict=True):
        seen, said = cells[f"{metric}_published"], cells[f"{metric}_simulated"]
        ends = [min(seen.min(), said.min()) * 0.8, max(seen.max(), said.max()) * 1.25]
        ax.plot(ends, ends, color=FAINT, linewidth=0.8)
        for tier in [tier for tier in COLOURS if (tiers == tier).any()]:
            for held in (False, True):
                part = (tiers == tier) & (cells.held_out == held)
                edge = [FAINT if stalled else COLOURS[tier] for stalled in cells.stalled[part]]
                fill = ["none" if stalled or not held else COLOURS[tier] for stalled in cells.stalled[part]]
                name = LABELS[tier] if held else None
                ax.scatter(said[part], seen[part], s=14, marker=MARKERS[tier], c=fill, edgecolors=edge, label=name)
        ax.set(xscale="log", yscale="log", xlim=ends, ylim=ends, title=label)
    axes[0].set_ylabel("published")
    handles, names = axes[0].get_legend_handles_labels()
    for handle, tier in zip(handles, [tier for tier in COLOURS if (tiers == tier).any()], strict=True):
        handle.set_facecolor(COLOURS[tier])
        handle.set_edgecolor(COLOURS[tier])
    figure.legend(handles, names, loc="outside upper center", ncols=len(names), columnspacing=0.8, handletextpad=0.1)
    foot(figure, evidence, "simulated (filled: held out of the fit; grey: merged chunks)")
    return figure


def capacity(table: pd.DataFrame, evidence: str) -> Figure:
    """The load that each tier holds, by P99 TTFT limit; bars are the range over seeds.

    Parameters
    ----------
    table : from :func:`hetgpu.simulate.capacity.capacity_table`, one model's rows.
    evidence : the note under the figure.
    """
    finite = table[table.ttft_p99_limit_ms < 1e9]
    figure, ax = plt.subplots(figsize=(7.2, 3.2))
    for tier in [tier for tier in COLOURS if (finite.tier == tier).any()]:
        part = finite[(finite.tier == tier) & (finite.qps > 0)].sort_values("ttft_p99_limit_ms")
        spread = [part.qps - part.qps_low, part.qps_high - part.qps]
        look: dict[str, Any] = {"color": COLOURS[tier], "marker": MARKERS[tier], "label": LABELS[tier], "capsize": 2.5}
        ax.errorbar(part.ttft_p99_limit_ms, part.qps, yerr=spread, **look)
    ax.set(xscale="log", yscale="log", ylabel="highest load that holds it, requests/s")
    plain_log(ax.xaxis, sorted(finite.ttft_p99_limit_ms.unique()))
    plain_log(ax.yaxis, [1, 2, 5, 10, 20, 50])
    ax.grid(True)
    figure.legend(loc="outside upper center", ncols=6)
    foot(figure, evidence, "P99 TTFT limit, ms")
    return figure
