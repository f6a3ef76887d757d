"""What several claims' functions share: ratios of two tiers at equal load, and words for the cells that hold."""

from __future__ import annotations

from hetgpu.decide.claims import Claim, Value, holds
from hetgpu.decide.recordset import (
    TABLE2_MODEL,
    Records,
)
from hetgpu.evidence import metrics
from hetgpu.evidence.catalog import load_tiers
from hetgpu.evidence.records import short_model


def ratios(records: Records, over: str, under: str, column: str, quantity: str) -> list[Value]:
    """One column on tier ``over`` divided by the same on tier ``under``, for every cell that ran on both."""
    label = {key: tier.label for key, tier in load_tiers().items()}
    return [
        Value(
            quantity,
            f"{cell}, {label[over]} over {label[under]}",
            metrics.ratio(a[column], b[column]),
            (a.run_id, b.run_id),
        )
        for cell, a, b in records.pairs(over, under)
    ]


def which(claim: Claim, values: list[Value]) -> str:
    """The cells that hold, a model with its loads after the other: ``Qwen-14B at 1, 32 QPS``."""
    held = [value for value in values if holds(claim, value)]
    loads: dict[str, list[str]] = {}
    for value in held:
        model, load = value.cell.split(", ")[:2]
        loads.setdefault(model, []).append(load.removesuffix(" QPS"))
    cells = "; ".join(f"{model} at {', '.join(found)} QPS" for model, found in loads.items())
    low, high = min(value.value for value in values), max(value.value for value in values)
    return f"{cells or 'nowhere'}; all cells lie in {low:.3g}-{high:.3g}"


def values_at(values: list[Value], qps: float, model: str = TABLE2_MODEL) -> float:
    """The value of Table 2's model at one rate."""
    return next(v.value for v in values if v.cell.startswith(f"{short_model(model)}, {qps:g} QPS"))
