"""Tiers against each other: who is cheapest within an SLO, and what a price list does to the answer."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from hetgpu.errors import DataError
from hetgpu.evidence import metrics
from hetgpu.evidence.records import model_size_b

#: The columns that join a run with what was computed from it.
JOIN = "run_id"


def with_costs(runs: pd.DataFrame, costs: pd.DataFrame, price_set: str) -> pd.DataFrame:
    """Runs with the costs of one price set joined on, one row a run.

    Raises
    ------
    DataError : when the costs do not hold that price set.
    """
    chosen = costs[costs.price_set == price_set]
    if chosen.empty:
        known = ", ".join(sorted(costs.price_set.unique()))
        raise DataError("params.yaml", "price_set", f"no costs under {price_set!r}", f"use one of {known}")
    new = [JOIN, *(column for column in chosen.columns if column not in runs.columns)]
    return runs.merge(chosen[new], on=JOIN, validate="one_to_one")


def on_both(runs: pd.DataFrame, gpus: Sequence[str] = ("H100-PCIe", "RTX-4090")) -> pd.DataFrame:
    """Record 1 of the models that ran on every one of ``gpus``, smallest model first."""
    sets = runs.groupby("model").gpu.agg(set)
    both = [model for model, found in sets.items() if set(gpus) <= found]
    rows = runs[runs.model.isin(both) & (runs.record == 1)].assign(size_b=lambda f: f.model.map(model_size_b))
    return rows.sort_values(["size_b", "model", "gpu", "gpu_count", "target_qps"]).drop(columns="size_b")


def cheapest_within(frame: pd.DataFrame, slos_ms: Sequence[float]) -> pd.DataFrame:
    """The cheapest tier that holds each P99 TTFT, for every model and load.

    Parameters
    ----------
    frame : runs with costs (record 1), columns model, tier, target_qps, ttft_p99_ms, usd_per_mtok_total.
    slos_ms : P99 TTFT, ms.

    Returns
    -------
    One row a (SLO, model, load): ``slo_ms``, model, target_qps, ``tier``, ``usd_per_mtok_total``,
    ``run_id``; the last three null, with ``reason``, where no tier in the records holds it.
    """
    rows = []
    for slo in slos_ms:
        for (model, load), group in frame.groupby(["model", "target_qps"], sort=False):
            met = group[(group.ttft_p99_ms <= slo) & group.usd_per_mtok_total.notna()]
            row = {"slo_ms": slo, "model": model, "target_qps": load, "evidence": "published"}
            if met.empty:
                row |= {
                    "tier": None,
                    "usd_per_mtok_total": None,
                    "run_id": None,
                    "reason": "no tier in the records meets it",
                }
            else:
                best = met.loc[met.usd_per_mtok_total.idxmin()]
                row |= {
                    "tier": best.tier,
                    "usd_per_mtok_total": best.usd_per_mtok_total,
                    "run_id": best.run_id,
                    "reason": None,
                }
            rows.append(row)
    return pd.DataFrame(rows).sort_values(["slo_ms", "model", "target_qps"], key=_keep_order).reset_index(drop=True)


def _keep_order(column: pd.Series) -> pd.Series:
    """Models stay in the order they came in; the other columns sort by value."""
    if column.name != "model":
        return column
    return column.map({model: place for place, model in enumerate(dict.fromkeys(column))})


def cost_shares(
    runs: pd.DataFrame, costs: pd.DataFrame, base: str, tiers: Sequence[str], loads: Sequence[float]
) -> pd.DataFrame:
    """Cost per token of ``tiers`` over that of ``base`` at equal load, for one model under every price set.

    Returns
    -------
    Columns price_set, tier, target_qps, ``usd_per_mtok_total``, ``base_usd_per_mtok_total``,
    ``cost_share``.
    """
    rows = []
    for price_set in dict.fromkeys(costs.price_set):
        priced = with_costs(runs[runs.record == 1], costs, price_set).set_index(["tier", "target_qps"])
        for tier in tiers:
            for load in loads:
                usd, base_usd = (priced.loc[(t, load), "usd_per_mtok_total"] for t in (tier, base))
                rows.append((price_set, tier, load, usd, base_usd, metrics.ratio(usd, base_usd)))
    names = ["price_set", "tier", "target_qps", "usd_per_mtok_total", "base_usd_per_mtok_total", "cost_share"]
    return pd.DataFrame(rows, columns=names)
