"""Results of vLLM's benchmark client: the flat form of 2025 and the detailed one of 0.32."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hetgpu.errors import DataError
from hetgpu.evidence import metrics
from hetgpu.evidence.catalog import Tier, load_gpus, load_tiers
from hetgpu.evidence.importers._dictionary import Tool, apply, flatten
from hetgpu.evidence.importers._rows import Context, Draft, finish, tier_of
from hetgpu.evidence.records import SummaryRow


def _gpu_key(device: str, context: Context, where: str) -> str:
    """Our name for a GPU by NVML's, which the files of 2025 write with dashes."""
    for gpu in load_gpus().values():
        if device in {spelling for name in gpu.nvml_names for spelling in (name, name.replace(" ", "-"))}:
            return gpu.gpu
    problem = f"gpu_name {device!r} is not in the catalog"
    raise DataError(context.file, where, problem, "add it to nvml_names in data/catalog/gpus.csv")


def _tier(values: dict[str, Any], context: Context, where: str) -> Tier:
    """The row's tier: by the GPU that the file names, which a given tier must agree with."""
    device, count = values.pop("gpu", None), values.pop("gpu_count", None)
    if device is None:
        return tier_of(context)
    gpu = _gpu_key(str(device), context, where)
    if not str(count).isdigit():
        raise DataError(context.file, where, f"gpu_count is {count!r}", "give a whole number")
    if context.tier is not None:
        if (context.tier.gpu, context.tier.gpu_count) != (gpu, int(count)):
            problem = f"{count}x {gpu} in the file, which is not tier {context.tier.key}"
            raise DataError(context.file, where, problem, "file the run under its own tier, or name none")
        return context.tier
    fits = [tier for tier in load_tiers().values() if (tier.gpu, tier.gpu_count) == (gpu, int(count))]
    if len(fits) != 1:
        keys = ", ".join(tier.key for tier in fits) or "none"
        problem = f"{count}x {gpu} fits these tiers: {keys}"
        raise DataError(context.file, where, problem, "pass --tier KEY, or add the tier to tiers.yaml")
    return fits[0]


def _from_lists(tool: Tool, flat: dict[str, Any], completed: int, context: Context, where: str) -> dict[str, float]:
    """Latency columns from the detailed lists; {} where the file has none.

    Raises
    ------
    DataError : when the lists disagree in length or with ``completed``.
    """
    entries = [tool.per_request_name(name) for name in ("ttft_ms", "chunk_gap_ms", "output_tokens")]
    lists = [flat.get(entry.name) for entry in entries]
    if not all(isinstance(values, list) and values for values in lists):
        return {}
    ttfts, gaps, tokens = (values or [] for values in lists)
    errors = flat.get(tool.per_request_name("error").name) or [""] * len(ttfts)
    if len({len(ttfts), len(gaps), len(tokens), len(errors)}) != 1:
        problem = "ttfts, itls, output_lens and errors differ in length"
        raise DataError(context.file, where, problem, "give the client's original file")
    # A failed request stands in the lists too, with zeros: it has no latency. 2025 lists no errors.
    good = [i for i, error in enumerate(errors) if not error and tokens[i]]
    if len(good) > completed:
        problem = f"{len(good)} requests in the lists succeeded, completed is {completed}"
        raise DataError(context.file, where, problem, "give the client's original file")
    ttft_ms = np.array([ttfts[i] for i in good], dtype=float) * entries[0].factor
    gaps_ms = [np.asarray(gaps[i], dtype=float) * entries[1].factor for i in good]
    e2e_ms = ttft_ms + np.array([gap.sum() for gap in gaps_ms])
    return metrics.request_statistics(ttft_ms, e2e_ms, [tokens[i] for i in good], gaps_ms)


def _draft(tool: Tool, content: dict[str, Any], context: Context, where: str) -> Draft:
    flat = flatten(content)
    values = apply(tool, flat, context.file, where)
    draft = Draft(values, where, _tier(values, context, where))
    rate = values.get("target_qps")
    if rate is not None and not math.isfinite(float(rate)):
        del values["target_qps"]
    values.setdefault("failed", values["num_prompts"] - values["completed"])
    if values["completed"]:
        # The client's own statistics stand; the lists fill what its summary lacks.
        computed = _from_lists(tool, flat, values["completed"], context, where)
        values |= {column: value for column, value in computed.items() if column not in values}
    return draft


def read(objects: list[dict[str, Any]], context: Context, key: str, tool: Tool) -> list[SummaryRow]:
    """One row an object.

    Raises
    ------
    DataError : for a missing name, a GPU the catalog does not know, or one that is not the tier's.
    """
    drafts = [_draft(tool, content, context, f"object {n}") for n, content in enumerate(objects, start=1)]
    return finish(drafts, context, key, tool)
