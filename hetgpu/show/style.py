"""The house style: one colour and one marker per tier everywhere, legible in grey and in print."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from hetgpu.evidence.files import write_csv
from hetgpu.paths import output

#: Blue for H100, orange to brown for 4090 by count: safe for colour-blind readers, and told apart
#: in grey by lightness within a family and by marker between them.
COLOURS = {
    "1x-h100-pcie": "#0B4F8A",
    "2x-h100-pcie": "#6BAED6",
    "1x-rtx-4090": "#FDB863",
    "2x-rtx-4090": "#E66101",
    "4x-rtx-4090": "#A03B00",
    "8x-rtx-4090": "#4D1D00",
    "cpu-local": "#7F7F7F",
}
MARKERS = {
    "1x-h100-pcie": "o",
    "2x-h100-pcie": "p",
    "1x-rtx-4090": "^",
    "2x-rtx-4090": "s",
    "4x-rtx-4090": "D",
    "8x-rtx-4090": "v",
    "cpu-local": "*",
}
LABELS = {
    "1x-h100-pcie": "1x H100 PCIe",
    "2x-h100-pcie": "2x H100 PCIe",
    "1x-rtx-4090": "1x RTX 4090",
    "2x-rtx-4090": "2x RTX 4090",
    "4x-rtx-4090": "4x RTX 4090",
    "8x-rtx-4090": "8x RTX 4090",
    "cpu-local": "this CPU",
}
#: Tiers in the order that legends and panels list them.
TIER_ORDER = list(COLOURS)

INK, FAINT = "#222222", "#8A8A8A"

#: Size of type at the size a reader sees the figure, pt.
FONT_PT = 8.5


@contextmanager
def house_style() -> Iterator[None]:
    """Matplotlib settings of every figure; the same bytes on every run."""
    settings: dict[str, Any] = {
        "figure.dpi": 110,
        "savefig.dpi": 200,
        "font.family": "DejaVu Sans",
        "font.size": FONT_PT,
        "axes.titlesize": FONT_PT + 0.5,
        "axes.labelsize": FONT_PT,
        "xtick.labelsize": FONT_PT - 1,
        "ytick.labelsize": FONT_PT - 1,
        "legend.fontsize": FONT_PT - 0.5,
        "legend.frameon": False,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": FAINT,
        "grid.color": "#DDDDDD",
        "grid.linewidth": 0.6,
        "lines.linewidth": 1.4,
        "lines.markersize": 5,
        "figure.constrained_layout.use": True,
        "svg.hashsalt": "hetgpu",
        "svg.fonttype": "path",
    }
    with sns.axes_style("ticks"), mpl.rc_context(settings):  # type: ignore[arg-type]
        yield


def save_figure(figure: Figure, name: str, data: pd.DataFrame) -> list[Path]:
    """Write ``figures/<name>`` as SVG and PNG, and the plotted data beside them as CSV.

    Returns
    -------
    The three paths.
    """
    svg, png, table = (output("figures", f"{name}.{kind}") for kind in ("svg", "png", "csv"))
    with mpl.rc_context({"svg.hashsalt": "hetgpu"}):
        figure.savefig(svg, metadata={"Date": None, "Creator": None})
    figure.savefig(png, metadata={"Software": None}, dpi=200)
    write_csv(data, table)
    return [svg, png, table]


#: Heights of what stands under a figure: the evidence note, and a label that all panels share; inches.
NOTE_INCHES, LABEL_INCHES = 0.17, 0.2


def foot(figure: Figure, evidence: str, label: str = "") -> None:
    """What stands under a figure: what all panels have on their x axis, and the kind of evidence shown.

    The layout is told to keep clear of it (Matplotlib's own ``supxlabel`` and an outside legend
    would collide).
    """
    height = figure.get_figheight()
    strip = (NOTE_INCHES + (LABEL_INCHES if label else 0.0)) / height
    engine = figure.get_layout_engine()
    if isinstance(engine, ConstrainedLayoutEngine):
        engine.set(rect=(0, strip, 1, 1 - strip))
    if label:
        figure.text(0.5, NOTE_INCHES / height, label, ha="center", va="bottom", fontsize=FONT_PT)
    figure.text(0.995, 0.006, evidence, ha="right", va="bottom", fontsize=FONT_PT - 2, color=FAINT)
