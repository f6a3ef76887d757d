"""Results of inference-perf: a stage's or the whole run's ``*_lifecycle_metrics.json``.

Its times per output token divide by the client's re-tokenised count unless its configuration says
otherwise (inference-perf's ``reportgen/base.py``: ``effective_output_tokens``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hetgpu.errors import DataError
from hetgpu.evidence.files import read_yaml
from hetgpu.evidence.importers._dictionary import Tool, apply, flatten
from hetgpu.evidence.importers._rows import Context, Draft, drop, finish, rebased_tpot_mean_ms, tier_of
from hetgpu.evidence.records import SummaryRow
from hetgpu.paths import shown

SUMMARY = "summary_lifecycle_metrics.json"
STAGES = "stage_*_lifecycle_metrics.json"
USES_SERVER = "report.request_lifecycle.use_server_output_tokens"
MEAN_ONLY = "TPOT re-based on the server's count from means: its mean alone, the stream's end included"
NO_TPOT = "TPOT left out: over the client's token count, and answers differ in length"


def files_in(folder: Path) -> list[Path]:
    """The files to read of a report folder: its stages, one a rate, else its summary.

    Raises
    ------
    DataError : when the folder holds neither.
    """
    found = sorted(folder.glob(STAGES), key=lambda path: (len(path.name), path.name))
    if not found and (folder / SUMMARY).is_file():
        found = [folder / SUMMARY]
    if not found:
        raise DataError(shown(folder), "", f"holds neither {STAGES} nor {SUMMARY}", "give a report folder")
    return found


def _configuration(folder: Path) -> dict[str, Any]:
    """The run's ``config.yaml``, flat; {} where it is not beside the report."""
    path = folder / "config.yaml"
    return flatten(read_yaml(path)) if path.is_file() else {}


def _same_count(flat: dict[str, Any], config: dict[str, Any]) -> bool:
    """Whether times per output token divide by the server's count."""
    if config.get(USES_SERVER):
        return True
    lengths = [
        {name.rpartition(".")[2]: value for name, value in flat.items() if name.startswith(f"successes.{key}.")}
        for key in ("output_len", "output_tokens")
    ]
    return bool(lengths[0]) and all(lengths[1].get(name) == value for name, value in lengths[0].items())


def _load(values: dict[str, Any], config: dict[str, Any]) -> None:
    """The offered load: a stage file has it, the summary's is the configuration's only stage."""
    if values.get("max_concurrency"):
        values.pop("target_qps", None)
    elif values.get("target_qps") is None and "load.stages.1.rate" not in config:
        values["target_qps"] = config.get("load.stages.0.rate")


def _tpot(draft: Draft, flat: dict[str, Any], config: dict[str, Any]) -> None:
    """TPOT over the server's count, or none."""
    values = draft.values
    if values["output_tokens_counted_by"] == "client" or _same_count(flat, config):
        return
    drop(values, "tpot")
    shortest, longest = (flat.get(f"successes.output_tokens.{end}") for end in ("min", "max"))
    if shortest is None or shortest != longest:
        draft.reasons.append(NO_TPOT)
        return
    values |= rebased_tpot_mean_ms(values, int(shortest))
    draft.reasons.append(MEAN_ONLY)


def _draft(tool: Tool, content: dict[str, Any], config: dict[str, Any], context: Context, where: str) -> Draft:
    flat = flatten(content)
    values = apply(tool, flat, context.file, where)
    draft = Draft(values, where, tier_of(context))
    values.setdefault("model", config.get("server.model_name"))
    _load(values, config)
    for column, side in (("input_tokens", "prompt"), ("output_tokens", "output")):
        fallbacks = flat.get(f"successes.client_fallback_requests.{side}")
        # Where the file does not say how many fell back (older versions), nobody vouches for the server.
        values[f"{column}_counted_by"] = "server" if fallbacks == 0 else "client"
    if values["completed"]:
        _tpot(draft, flat, config)
    return draft


def read(objects: list[dict[str, Any]], folder: Path, context: Context, key: str, tool: Tool) -> list[SummaryRow]:
    """One row a file; model and rate come from ``config.yaml`` beside it where the file lacks them.

    Raises
    ------
    DataError : for a missing name.
    """
    config = _configuration(folder)
    drafts = [_draft(tool, content, config, context, f"object {n}") for n, content in enumerate(objects, start=1)]
    return finish(drafts, context, key, tool)
