"""Results of AIPerf: ``profile_export_aiperf.json``, with ``profile_export.jsonl`` beside it.

AIPerf counts output tokens by re-tokenising the text; the server's usage stands beside that count
in both files, and every time per token is taken over it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hetgpu.errors import DataError
from hetgpu.evidence import metrics
from hetgpu.evidence.importers._dictionary import Tool, apply, flatten, unknown_names, warn_of_unknown
from hetgpu.evidence.importers._objects import read_objects
from hetgpu.evidence.importers._rows import (
    Context,
    Draft,
    drop,
    finish,
    rebased_tpot_mean_ms,
    tier_of,
)
from hetgpu.evidence.importers.tokens import TokenCount, count_output_tokens
from hetgpu.evidence.records import SummaryRow
from hetgpu.paths import shown

PER_REQUEST_FILE = "profile_export.jsonl"
MEAN_ONLY = "TPOT re-based on the server's count from means (no profile_export.jsonl): its mean alone"
NO_TPOT = "TPOT left out: over AIPerf's own token count, and answers differ in length (give profile_export.jsonl)"


def _completed(path: Path) -> list[dict[str, Any]]:
    """Flat records of the requests that completed in the measured phase."""
    records = [flatten(record) for record in read_objects(path)]
    return [
        record
        for record in records
        if record.get("metadata.benchmark_phase", "profiling") == "profiling"
        and record.get("metrics.request_latency.value") is not None
        and not any(name.split(".")[0] == "error" and record[name] for name in record)
    ]


def _count(tool: Tool, record: dict[str, Any]) -> TokenCount:
    served = record.get(tool.per_request_name("output_tokens").name)
    client = record.get(tool.per_request_name("client_output_tokens").name)
    return count_output_tokens(None if served is None else {"completion_tokens": served}, client, None)


def _from_records(tool: Tool, path: Path, completed: int) -> dict[str, Any]:
    """Latency columns and token totals from the JSONL.

    Raises
    ------
    DataError : when it is not the aggregate's own (another number of requests).
    """
    records = _completed(path)
    if len(records) != completed:
        problem = f"{len(records)} completed requests, {completed} in the aggregate beside it"
        raise DataError(shown(path), "", problem, "put the run's own file there, or take it away")
    warn_of_unknown({n for record in records for n in unknown_names(tool, record, True)}, shown(path), "requests")
    counts = [_count(tool, record) for record in records]
    ttft, e2e = (
        np.array([record[tool.per_request_name(column).name] for record in records], dtype=float)
        for column in ("ttft_ms", "e2e_ms")
    )
    gaps = [record.get(tool.per_request_name("chunk_gap_ms").name) or [] for record in records]
    by_server = all(count.counted_by == "server" for count in counts)
    columns: dict[str, Any] = metrics.request_statistics(ttft, e2e, [count.tokens for count in counts], gaps)
    return columns | {
        "output_tokens": sum(count.tokens for count in counts),
        "output_tokens_counted_by": "server" if by_server else "client",
    }


def _rebase(draft: Draft, flat: dict[str, Any]) -> None:
    """Without the JSONL: TPOT over the server's count from the means, or none."""
    values = draft.values
    if values["output_tokens_counted_by"] == "client":
        return
    drop(values, "tpot")
    shortest, longest = (flat.get(f"usage_completion_tokens.{end}") for end in ("min", "max"))
    if shortest is None or shortest != longest:
        draft.reasons.append(NO_TPOT)
        return
    values |= rebased_tpot_mean_ms(values, int(shortest))
    draft.reasons.append(MEAN_ONLY)


def _draft(tool: Tool, content: dict[str, Any], folder: Path, context: Context, where: str) -> Draft:
    phases = content.get("input_config", {}).get("phases")
    if isinstance(phases, list):
        # The dictionary reads phase 0; a warm-up may stand before the measured one.
        phases.sort(key=lambda phase: phase.get("kind", "profiling") != "profiling")
    flat = flatten(content)
    values = apply(tool, flat, context.file, where)
    draft = Draft(values, where, tier_of(context))
    for column, theirs in (("input_tokens", "prompt"), ("output_tokens", "completion")):
        served = flat.get(f"total_usage_{theirs}_tokens.avg") is not None
        values[f"{column}_counted_by"] = "server" if served else "client"
    values.setdefault("failed", 0)
    values["num_prompts"] = int(values["completed"] + values["failed"]) or None
    if flat.get("was_cancelled") or flat.get("is_complete") is False:
        draft.reasons.append("AIPerf was stopped before its end")
    if not values["completed"]:
        return draft
    beside = folder / PER_REQUEST_FILE
    if beside.is_file():
        values |= _from_records(tool, beside, int(values["completed"]))
    else:
        _rebase(draft, flat)
    return draft


def read(objects: list[dict[str, Any]], folder: Path, context: Context, key: str, tool: Tool) -> list[SummaryRow]:
    """One row a file.

    Raises
    ------
    DataError : for a missing name, a unit that changed, or a JSONL of another run beside it.
    """
    drafts = [_draft(tool, content, folder, context, f"object {n}") for n, content in enumerate(objects, start=1)]
    return finish(drafts, context, key, tool)
