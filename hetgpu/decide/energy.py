"""Energy and carbon of runs at the GPUs' TDP, under the paper's TDP figures and the data sheets'."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from hetgpu.decide.cost import KEYS
from hetgpu.evidence import metrics
from hetgpu.evidence.catalog import Grid, load_gpus

BASES = ("paper", "data_sheet")


def energy_of_runs(runs: pd.DataFrame, tdp_w: Mapping[str, float], basis: str, grid: Grid) -> pd.DataFrame:
    """Every run's energy and carbon at TDP.

    Parameters
    ----------
    runs : summary rows.
    tdp_w : TDP per GPU key, W.
    basis : what that TDP rests on, ``paper`` or ``data_sheet``.
    grid : where the energy comes from.

    Returns
    -------
    One row a run: keys, ``tdp_basis``, ``tdp_w``, ``energy_tdp_j``, ``tok_total_per_kwh``,
    ``j_per_tok_out``, ``grid`` (and what it stands in for), ``gco2_per_kwh``, ``gco2_per_mtok_total``,
    ``energy_reason``.
    """
    energy = runs[KEYS].copy()
    tokens = runs.input_tokens + runs.output_tokens
    energy["tdp_basis"] = basis
    energy["tdp_w"] = runs.gpu.map(dict(tdp_w)).astype(float)
    joules = metrics.energy_at_tdp_j(energy.tdp_w, runs.gpu_count, runs.duration_s)
    energy["energy_tdp_j"] = joules
    energy["tok_total_per_kwh"] = metrics.tok_total_per_kwh(tokens, joules)
    energy["j_per_tok_out"] = metrics.j_per_tok(joules, runs.output_tokens)
    energy["grid"] = grid.zone if grid.fallback_for is None else f"{grid.zone} for {grid.fallback_for}"
    energy["gco2_per_kwh"] = grid.gco2_per_kwh
    energy["gco2_per_mtok_total"] = metrics.gco2_per_mtok(joules, tokens, grid.gco2_per_kwh)
    energy["energy_reason"] = None
    energy.loc[energy.tdp_w.isna(), "energy_reason"] = f"no TDP of this GPU ({basis})"
    return energy


def energy_both(runs: pd.DataFrame, paper_tdp_w: Mapping[str, float], grid: Grid) -> pd.DataFrame:
    """:func:`energy_of_runs` at the paper's TDP and at the data sheets', one below the other."""
    sheets = {key: gpu.tdp_w for key, gpu in load_gpus().items()}
    return pd.concat(
        [energy_of_runs(runs, paper_tdp_w, "paper", grid), energy_of_runs(runs, sheets, "data_sheet", grid)],
        ignore_index=True,
    )
