"""From a tool's values to summary rows: statistics of requests, throughputs, flags, names."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hetgpu.errors import DataError
from hetgpu.evidence import metrics
from hetgpu.evidence.catalog import Tier, load_models
from hetgpu.evidence.importers._dictionary import Tool
from hetgpu.evidence.importers.tokens import CLIENT_COUNTED
from hetgpu.evidence.records import Evidence, SummaryRow, make_row

#: Largest relative difference between a tool's throughput and its own counts over its duration.
MAX_THROUGHPUT_ERROR = 1e-6


@dataclass(frozen=True)
class Context:
    """What the file does not say of its rows: who imports what, as what."""

    file: str  #: as messages show it
    source: str  #: as the row's column keeps it
    label: str  #: names the file in a run_id where it has no date
    tier: Tier | None
    evidence: Evidence = "measured"
    model: str | None = None
    precision: str | None = None
    workload: str | None = None
    allow_client_counts: bool = False


@dataclass
class Draft:
    """A row in the making: columns, where it stands in the file, and its doubts."""

    values: dict[str, Any]
    where: str
    tier: Tier
    reasons: list[str] = field(default_factory=list)


def rebased_tpot_mean_ms(values: dict[str, Any], tokens_each: int) -> dict[str, float]:
    """Mean TPOT over the server's count where every answer has the same length; else not defined.

    ``mean((e2e - ttft) / (n - 1)) = (mean e2e - mean ttft) / (n - 1)`` for one n.
    """
    tpot = metrics.tpot_ms(values["e2e_mean_ms"], values["ttft_mean_ms"], tokens_each)
    return {} if np.isnan(tpot) else {"tpot_mean_ms": float(tpot)}


def drop(values: dict[str, Any], prefix: str) -> None:
    """Take all statistics of one latency out."""
    for column in [name for name in values if name.startswith(f"{prefix}_")]:
        del values[column]


def tier_of(context: Context) -> Tier:
    """The tier that the caller named.

    Raises
    ------
    DataError : when none was named and the file does not tell.
    """
    if context.tier is None:
        problem = "the file names no GPU, so the tier must be given"
        raise DataError(context.file, "", problem, "pass --tier KEY, one of data/catalog/tiers.yaml")
    return context.tier


def _throughputs(values: dict[str, Any], context: Context, where: str) -> dict[str, float]:
    """Ours from counts and duration; a tool's own that contradicts them is refused."""
    ours = metrics.throughputs(
        values["completed"], values["input_tokens"], values["output_tokens"], values["duration_s"]
    )
    for column, computed in ours.items():
        stated = values.get(column)
        if stated is not None and abs(stated - computed) > MAX_THROUGHPUT_ERROR * max(abs(computed), 1.0):
            problem = f"{column} is {stated:g}, its own counts over its duration give {computed:g}"
            raise DataError(context.file, where, problem, "compare with the tool's original file")
    return ours


def _flag(draft: Draft, context: Context) -> bool:
    """Add what is doubtful to the reasons; whether the row may stand in a headline table."""
    values = draft.values
    headline = True
    if values["completed"] == 0:
        draft.reasons.insert(0, "no request completed")
        headline = False
    elif values.get("failed"):
        draft.reasons.append(f"{values['failed']:g} of {values.get('num_prompts')} requests failed")
    if values["output_tokens_counted_by"] == "client" and values["completed"]:
        draft.reasons.append(CLIENT_COUNTED)
        headline = headline and context.allow_client_counts
    return headline


def _load_name(values: dict[str, Any]) -> str:
    if values.get("target_qps") is not None:
        return f"qps{values['target_qps']:g}"
    concurrency = values.get("max_concurrency")
    return f"qpsnone-c{concurrency}" if concurrency else "qpsnone"


def _named(draft: Draft, context: Context, tool: str) -> dict[str, Any]:
    """Identity columns: who, where, what; run_id still without its number."""
    values = draft.values
    model = context.model or values.get("model")
    if not model:
        raise DataError(context.file, draft.where, "names no model", "pass --model NAME")
    known = load_models().get(model)
    short = known.short_name if known else model.rstrip("/").rsplit("/", 1)[-1]
    workload = context.workload or f"{values.get('num_prompts') or values['completed']}-prompts"
    stamp = str(values.get("recorded_at") or context.label).replace("/", "-").replace(":", "")
    place = f"{context.evidence}/{draft.tier.key}/{short}/{workload}"
    return {
        "run_id": f"{place}/{_load_name(values)}/{tool}-{stamp}",
        "evidence": context.evidence,
        "tier": draft.tier.key,
        "gpu": draft.tier.gpu,
        "gpu_count": draft.tier.gpu_count,
        "model": model,
        "precision": context.precision,
        "workload": workload,
        "source": context.source,
    }


def finish(drafts: list[Draft], context: Context, key: str, tool: Tool) -> list[SummaryRow]:
    """Checked rows from drafts: throughputs, flags, identity, and names unique within the file.

    ``record`` numbers repeats of one cell (tier, model, load) in the order of the file.

    Raises
    ------
    DataError : when a row contradicts itself or breaks a rule of :class:`SummaryRow`.
    """
    rows, names, cells = [], Counter[str](), Counter[tuple[Any, ...]]()
    for draft in drafts:
        values = draft.values
        values.setdefault("output_tokens_counted_by", tool.tokens.output.counted_by)
        values.setdefault("input_tokens_counted_by", tool.tokens.input.counted_by)
        values |= {
            column: value
            for column, value in _throughputs(values, context, draft.where).items()
            if values.get(column) is None
        }
        values |= _named(draft, context, key) | {"engine": tool.engine, "headline": _flag(draft, context)}
        values["reason"] = "; ".join(draft.reasons) or None
        names[values["run_id"]] += 1
        if (number := names[values["run_id"]]) > 1:
            values["run_id"] += f"-{number}"
        cell = (values["tier"], values["model"], values.get("target_qps"), values.get("max_concurrency"))
        cells[cell] += 1
        values["record"] = cells[cell]
        rows.append(make_row(values, context.file, draft.where))
    return rows
