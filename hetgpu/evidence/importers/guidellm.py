"""Results of GuideLLM: ``benchmarks.json``, one row a benchmark in it."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np

from hetgpu.errors import DataError
from hetgpu.evidence import metrics
from hetgpu.evidence.importers._dictionary import Tool, apply, flatten, unknown_names, warn_of_unknown
from hetgpu.evidence.importers._rows import Context, Draft, drop, finish, tier_of
from hetgpu.evidence.records import SummaryRow

NO_REQUESTS = "the file lists no requests: percentiles are nearest-rank, e2e runs to the end of the stream"
UNEQUAL = "TPOT left out: GuideLLM weighs requests by their tokens, and answers differ in length"


def _from_requests(tool: Tool, requests: list[dict[str, Any]], context: Context, where: str) -> dict[str, float]:
    """Latency columns from ``requests.successful``; e2e up to the last token, as vLLM has it."""
    names = [tool.per_request_name(column).name for column in ("ttft_ms", "tpot_ms", "output_tokens")]
    for number, request in enumerate(requests, start=1):
        if missing := [name for name in names if request.get(name) is None]:
            place = f"{where}, request {number}"
            raise DataError(context.file, place, f"{', '.join(missing)} is missing", "give the original file")
    unknown = {name for request in requests for name in unknown_names(tool, flatten(request), True)}
    warn_of_unknown(unknown, context.file, f"{where}, requests")
    ttft, tpot, tokens = (np.array([request[name] for request in requests], dtype=float) for name in names)
    return metrics.request_statistics(ttft, metrics.e2e_mean_ms(ttft, tpot, tokens), tokens)


def _draft(tool: Tool, benchmark: dict[str, Any], context: Context, where: str) -> Draft:
    flat = flatten({name: value for name, value in benchmark.items() if name != "requests"})
    values = apply(tool, flat, context.file, where)
    draft = Draft(values, where, tier_of(context))
    if (start := values.get("recorded_at")) is not None:
        moment = dt.datetime.fromtimestamp(float(start), dt.UTC)
        values["recorded_at"] = moment.strftime("%Y%m%dT%H%M%SZ")
    if not flat.get("config.prefer_response_metrics"):
        values |= {"input_tokens_counted_by": "client", "output_tokens_counted_by": "client"}
    if cut_off := flat.get("metrics.request_totals.incomplete"):
        draft.reasons.append(f"{cut_off} requests were cut off at the end")
    requests = (benchmark.get("requests") or {}).get("successful") or []
    if not values["completed"]:
        return draft
    # GuideLLM may keep a sample of the requests only; a sample's percentiles are not the run's.
    if len(requests) == values["completed"]:
        values |= _from_requests(tool, requests, context, where)
        return draft
    draft.reasons.append(NO_REQUESTS)
    count = "metrics.output_token_count.successful"
    if flat.get(f"{count}.min") != flat.get(f"{count}.max"):
        drop(values, "tpot")
        draft.reasons.append(UNEQUAL)
    return draft


def read(objects: list[dict[str, Any]], context: Context, key: str, tool: Tool) -> list[SummaryRow]:
    """One row a benchmark (a rate of a sweep, say).

    Raises
    ------
    DataError : for a file without benchmarks, or a missing name.
    """
    drafts: list[Draft] = []
    for content in objects:
        for benchmark in content["benchmarks"] or []:
            drafts.append(_draft(tool, benchmark, context, f"benchmark {len(drafts) + 1}"))
    if not drafts:
        raise DataError(context.file, "benchmarks", "holds no benchmark", "run GuideLLM to its end")
    return finish(drafts, context, key, tool)
