"""How wrong the simulator is where it was not fitted: other rates, other models, another card, another machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from hetgpu.simulate.calibrate import FITTED_QPS, ONE_CARD_MODELS_B, Fit, fit_constants, predictions
from hetgpu.simulate.protocol import METRICS, Pair
from hetgpu.simulate.steptime import Constants

ERRORS = tuple(f"{metric}_error_pct" for metric in METRICS)
#: Groups of cells as their errors are reported.
GROUPS = (
    "1x H100 PCIe, models to 14B",
    "1x RTX 4090",
    "H100 PCIe, 32B to 70B",
    "several RTX 4090s, no merged chunks",
    "several RTX 4090s, merged chunks",
)


def with_groups(cells: pd.DataFrame, parameters_b: dict[str, float]) -> pd.DataFrame:
    """Cells of :func:`hetgpu.simulate.calibrate.predictions` with their group; ``parameters_b`` by model."""
    small = cells.model.map(parameters_b) < ONE_CARD_MODELS_B
    h100 = cells.gpu == "H100-PCIe"
    several = cells.gpu_count > 1
    which = np.select([h100 & small, h100, ~several, ~cells.stalled.astype(bool)], [0, 2, 1, 3], default=4)
    return cells.assign(group=[GROUPS[number] for number in which])


def interpolated(cells: pd.DataFrame) -> pd.DataFrame:
    """The same cells, each held-out figure read off a line between its fitted neighbours (logs of rate and figure).

    What a model has to beat: it knows the cell's own tier and model at three other rates.
    """
    made = cells[cells.held_out].copy()
    for metric in METRICS:
        fitted = cells[~cells.held_out].set_index(["gpu", "gpu_count", "model", "target_qps"])[f"{metric}_published"]
        values = []
        for row in made.itertuples():
            line = [fitted[(row.gpu, row.gpu_count, row.model, qps)] for qps in FITTED_QPS]
            values.append(np.exp(np.interp(np.log(row.target_qps), np.log(FITTED_QPS), np.log(line))))
        made[f"{metric}_error_pct"] = 100 * (np.array(values) / made[f"{metric}_published"] - 1)
    return made


def medians(cells: pd.DataFrame) -> pd.DataFrame:
    """Median of the absolute errors by group, in per cent, with the number of cells behind each."""
    found = cells.groupby("group")[list(ERRORS)].agg(lambda errors: errors.abs().median())
    return found.assign(cells=cells.groupby("group").size()).reindex([g for g in GROUPS if g in found.index])


def models_held_out(fit: Fit) -> pd.DataFrame:
    """Every cell of a model on one card, predicted by constants fitted without that model.

    The model's longest answers stay as inferred: they are the workload's, not the engine's.

    Returns
    -------
    As :func:`hetgpu.simulate.calibrate.predictions`.
    """
    found = []
    for gpu, constants in fit.constants.items():
        pairs = [p for p in fit.pairs if p.gpu.gpu == gpu and p.count == 1 and p.model.parameters_b < ONE_CARD_MODELS_B]
        for pair in pairs:
            others = fit_constants([other for other in pairs if other is not pair], constants)
            found.append(predictions([pair], {gpu: others}))
    return pd.concat(found, ignore_index=True)


def transferred(pairs: Sequence[Pair], constants: dict[str, Constants], taken_from: str) -> pd.DataFrame:
    """One GPU's cells by another GPU's constants: what a data sheet alone would have said.

    Memory beside weights and KV stays the GPU's own: it follows from the engine's settings.
    """
    lent = {
        gpu: replace(constants[taken_from], overhead_gb=own.overhead_gb, several_overhead_gb=own.several_overhead_gb)
        for gpu, own in constants.items()
        if gpu != taken_from
    }
    return predictions([pair for pair in pairs if pair.gpu.gpu in lent and pair.count == 1], lent)
