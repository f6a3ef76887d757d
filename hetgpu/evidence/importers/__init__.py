"""Other tools' result files as summary rows, by way of one dictionary (``dictionary.yaml``).

What a tool defines otherwise is converted where its file allows it, else left null with a reason;
who counted the tokens is kept.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from hetgpu.errors import DataError
from hetgpu.evidence.catalog import Tier
from hetgpu.evidence.files import unique
from hetgpu.evidence.importers import aiperf, guidellm, inference_perf, vllm_bench
from hetgpu.evidence.importers._dictionary import Tool, load_dictionary
from hetgpu.evidence.importers._objects import read_objects
from hetgpu.evidence.importers._rows import Context
from hetgpu.evidence.records import Evidence, SummaryRow
from hetgpu.paths import shown

__all__ = ["detect_tool", "read_results"]


def _holds(content: dict[str, Any], name: str) -> bool:
    value: Any = content
    for part in name.split("."):
        if not isinstance(value, dict) or part not in value:
            return False
        value = value[part]
    return True


def detect_tool(objects: list[dict[str, Any]], file: str) -> str:
    """The dictionary's key of the tool that wrote these objects, by the names they hold.

    Raises
    ------
    DataError : when none of the tools' marks are there; it says what was looked for.
    """
    tools = load_dictionary()
    for key, tool in tools.items():
        if all(_holds(objects[0], name) for name in tool.recognised_by):
            return key
    if _holds(objects[0], "metadata.x_request_id") and "metrics" in objects[0]:
        problem = "is AIPerf's per-request export, which has no run in it"
        raise DataError(file, "", problem, "give profile_export_aiperf.json beside it; this one is read along")
    looked = "; ".join(f"{key}: {', '.join(tool.recognised_by)}" for key, tool in tools.items())
    problem = f"is of no known tool (looked for {looked})"
    raise DataError(file, "object 1", problem, "give a result file of one of these, or pass --tool NAME")


def _refuse_csv(path: Path) -> None:
    if path.suffix.lower() != ".csv":
        return
    start = path.read_text(encoding="utf-8-sig", errors="replace")[:4096] if path.is_file() else ""
    instead = "profile_export_aiperf.json" if start.startswith("Metric,") else "benchmarks.json"
    mend = f"give the JSON file of the same run: {instead}"
    raise DataError(shown(path), "", "a CSV export has rounded figures and no requests", mend)


def _tool(name: str | None, objects: list[dict[str, Any]], file: str) -> tuple[str, Tool]:
    tools = load_dictionary()
    if name is not None and name not in tools:
        raise DataError(file, "", f"unknown tool {name!r}", f"use one of {', '.join(tools)}")
    key = name or detect_tool(objects, file)
    return key, tools[key]


def _read_file(path: Path, tool: str | None, context: Context) -> list[SummaryRow]:
    _refuse_csv(path)
    objects = read_objects(path)
    context = replace(context, file=shown(path), source=path.name, label=path.stem)
    key, entry = _tool(tool, objects, context.file)
    if key == "vllm":
        return vllm_bench.read(objects, context, key, entry)
    if key == "guidellm":
        return guidellm.read(objects, context, key, entry)
    if key == "aiperf":
        return aiperf.read(objects, path.parent, context, key, entry)
    # Its files have the same names in every run: the folder's tells runs apart.
    context = replace(context, label=f"{path.resolve().parent.name}-{path.stem.removesuffix('_lifecycle_metrics')}")
    return inference_perf.read(objects, path.parent, context, key, entry)


def read_results(
    path: Path | str,
    *,
    tier: Tier | None = None,
    evidence: Evidence = "measured",
    model: str | None = None,
    precision: str | None = None,
    workload: str | None = None,
    tool: str | None = None,
    allow_client_counts: bool = False,
) -> list[SummaryRow]:
    """The runs of another tool's result file as summary rows, one a run.

    Parameters
    ----------
    path : a file of vLLM's benchmark client, GuideLLM, AIPerf or inference-perf, or a folder of
        the last; the tool is told by the content.
    tier : where it ran. May be None where the file names its GPUs (vLLM, 2025), and must agree then.
    evidence : what kind of evidence the rows are.
    model, precision, workload : for the columns of that name; the model is the file's where None.
    tool : a key of the dictionary, where the content shall not decide.
    allow_client_counts : let rows whose output tokens a client counted into headline tables.

    Raises
    ------
    DataError : for content of no known tool, a file that is cut off, a required name missing, a
        wrong tier, or values that contradict themselves.

    Warns
    -----
    DataWarning : naming the keys that the dictionary does not know.
    """
    path = Path(path)
    context = Context(str(path), "", "", tier, evidence, model, precision, workload, allow_client_counts)
    files = inference_perf.files_in(path) if path.is_dir() else [path]
    rows = [row for file in files for row in _read_file(file, tool, context)]
    unique(rows, lambda row: row.run_id, shown(path))
    return rows
