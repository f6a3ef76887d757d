"""The paper's claims judged by rule.

``data/catalog/claims.yaml`` holds each claim's figure and rule, fixed beforehand. The functions in
:mod:`hetgpu.decide.claim_values` compute values from the records; this module only judges them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

import pandas as pd
from pydantic import Field, model_validator

from hetgpu.errors import DataError
from hetgpu.evidence.catalog import Fact
from hetgpu.evidence.files import read_yaml_rows, unique
from hetgpu.paths import inside, shown

Verdict = Literal["reproduced", "holds under a condition", "not reproduced", "not testable with the data"]


class Claim(Fact):
    """A claim and its rule; see the head of ``claims.yaml``."""

    id: str
    where: str
    claim: str
    kind: Literal["equals", "within", "below", "up_to", "untestable"]
    claimed: dict[str, list[float]] = Field(default_factory=dict)
    tolerance: float = Field(default=0.0, ge=0, lt=1)
    tolerance_from: str = ""
    limits: str | None = None
    needs: str | None = None

    @model_validator(mode="after")
    def _rule_is_whole(self) -> Self:
        size = 2 if self.kind == "within" else 1
        if self.kind == "untestable":
            if not self.needs:
                raise ValueError("an untestable claim says what it needs")
        elif not self.claimed or any(len(figures) != size for figures in self.claimed.values()):
            raise ValueError(f"kind {self.kind} takes {size} claimed figure(s) a quantity")
        elif not self.tolerance_from:
            raise ValueError("say where the tolerance comes from")
        return self


@dataclass(frozen=True)
class Value:
    """A computed value: of which claimed quantity, in which cell, from which runs."""

    quantity: str
    cell: str
    value: float
    runs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Mended:
    """What becomes of a value when an assumption of the paper's is mended."""

    assumption: str
    as_claimed: float
    mended: float
    unit: str


@dataclass(frozen=True)
class Finding:
    """What the records say on a claim: values to judge, and what a reader should know beside them."""

    values: list[Value] = field(default_factory=list)
    #: In which part the claim holds, in words made from the values.
    condition: str = ""
    mended: list[Mended] = field(default_factory=list)


def load_claims(path: Path | None = None) -> list[Claim]:
    """All claims, in the order of the file.

    Raises
    ------
    DataError : for a rule that is not whole or an id that stands twice.
    """
    path = path or inside("data", "catalog", "claims.yaml")
    claims = read_yaml_rows(path, Claim, "claims", "id")
    unique(claims, lambda claim: claim.id, shown(path))
    return claims


def holds(claim: Claim, value: Value) -> bool:
    """Whether one value meets the claim's rule, its tolerance included."""
    figures, slack = claim.claimed[value.quantity], claim.tolerance
    if claim.kind == "equals":
        return abs(value.value - figures[0]) <= slack * abs(figures[0])
    if claim.kind == "within":
        return figures[0] * (1 - slack) <= value.value <= figures[1] * (1 + slack)
    if claim.kind == "up_to":
        return value.value <= figures[0] * (1 + slack)
    return value.value < figures[0] * (1 + slack)


def judge(claim: Claim, finding: Finding) -> Verdict:
    """The verdict that the claim's rule gives on the values found.

    Raises
    ------
    DataError : when there is nothing to judge.
    """
    if claim.kind == "untestable":
        return "not testable with the data"
    if not finding.values:
        raise DataError("claims.yaml", claim.id, "no value was computed for it", "check the tiers in the records")
    met = [holds(claim, value) for value in finding.values]
    if claim.kind == "up_to" and all(met):
        figure = next(iter(claim.claimed.values()))[0]
        if max(value.value for value in finding.values) < figure * (1 - claim.tolerance):
            return "not reproduced"
    if not any(met):
        return "not reproduced"
    return "reproduced" if all(met) and not claim.limits else "holds under a condition"


def verdict_row(claim: Claim, finding: Finding) -> dict[str, Any]:
    """One claim's whole record, as it is written to ``claims.json``."""
    values = [asdict(value) | {"holds": holds(claim, value)} for value in finding.values]
    parts = [part for part in (finding.condition, claim.limits) if part]
    return {
        "id": claim.id,
        "where": claim.where,
        "claim": claim.claim,
        "kind": claim.kind,
        "claimed": claim.claimed,
        "tolerance": claim.tolerance,
        "tolerance_from": claim.tolerance_from,
        "verdict": judge(claim, finding),
        "condition": "; ".join(parts) or None,
        "needs": claim.needs,
        "evidence": "published" if values or finding.mended else None,
        "values": values,
        "value_min": min((value.value for value in finding.values), default=None),
        "value_max": max((value.value for value in finding.values), default=None),
        "cells_that_hold": sum(value["holds"] for value in values),
        "cells": len(values),
        "mended": [asdict(item) for item in finding.mended],
    }


def verdict_table(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """The verdicts as a table, one row a claim, without the cells behind them."""
    columns = [
        "id",
        "where",
        "claim",
        "verdict",
        "condition",
        "needs",
        "value_min",
        "value_max",
        "cells_that_hold",
        "cells",
        "evidence",
    ]
    return pd.DataFrame([{name: row[name] for name in columns} for row in rows])
