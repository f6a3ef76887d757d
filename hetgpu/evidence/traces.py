"""A run's folder: written beside and renamed when complete, never changed, checked when read.

``run.json`` says what ran and holds the hashes of the other files; ``requests.parquet`` has a row a
request; ``power.parquet`` a row a sample, absent where nothing could be read; ``server.log``.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from hetgpu.errors import DataError
from hetgpu.evidence import metrics
from hetgpu.evidence.files import write_json, write_text
from hetgpu.evidence.records import SummaryRow, make_row, to_frame
from hetgpu.paths import root, shown

SCHEMA_VERSION = 1
#: Where runs lie: the campaign, committed, and this machine's own, which Git ignores.
CAMPAIGN, LOCAL = ("data", "traces", "measured"), ("data", "traces", "local")
LOCAL_SUMMARY = ("data", "summaries", "measured.local.csv")
RUN, REQUESTS, POWER, LOG = "run.json", "requests.parquet", "power.parquet", "server.log"

#: Columns of ``requests.parquet``. Times in seconds from the client's start of the load, latencies in ms.
REQUEST_COLUMNS = {
    "request": "int64",
    "scheduled_s": "float64",
    "sent_s": "float64",
    "ttft_ms": "float64",
    "e2e_ms": "float64",
    "chunk_gaps_ms": "object",
    "input_tokens": "int64",
    "output_tokens": "int64",
    "wanted_output_tokens": "int64",
    "request_class": "object",
    "endpoint": "object",
    "answer_sha256": "object",
    "error": "object",
}

Severity = Literal["error", "warning", "info"]


@dataclass(frozen=True)
class Check:
    """One check of a run, stored with it: an error keeps the run out of headline tables."""

    name: str
    severity: Severity
    passed: bool
    detail: str


@dataclass(frozen=True)
class Trace:
    """A run as read back. ``requests`` has :data:`REQUEST_COLUMNS`; ``power`` is None where none was read."""

    folder: Path
    run: dict[str, Any]
    requests: pd.DataFrame
    power: pd.DataFrame | None

    @property
    def failed_checks(self) -> list[dict[str, Any]]:
        """The error-level checks that the run did not pass."""
        return [check for check in self.run["checks"] if check["severity"] == "error" and not check["passed"]]


def without_paths(text: str) -> str:
    """A log without this machine's folders, so that a run can be published."""
    for folder, name in ((root(), "<project>"), (Path.home(), "~"), (Path(tempfile.gettempdir()), "<tmp>")):
        text = text.replace(str(folder), name)
    return text


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_trace(
    folder: Path, run: dict[str, Any], requests: pd.DataFrame, power: pd.DataFrame | None, log: str | None
) -> Path:
    """Write a run's folder whole: beside its place, then renamed.

    Raises
    ------
    DataError : when the folder is there already (a run is never overwritten), or a column is missing.
    """
    if folder.exists():
        raise DataError(shown(folder), "", "this run is there already", "remove it to measure again (`make remeasure`)")
    if missing := [name for name in REQUEST_COLUMNS if name not in requests.columns]:
        raise DataError(shown(folder), REQUESTS, f"column missing: {', '.join(missing)}", "give every request all")
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as beside:
            place = Path(beside) / folder.name
            place.mkdir()
            _write_files(place, run, requests, power, log)
            place.rename(folder)
    except OSError as error:
        mend = "free some space and measure again; finished runs are kept"
        raise DataError(shown(folder), "", f"could not be written: {error}", mend) from error
    return folder


def _write_files(
    place: Path, run: dict[str, Any], requests: pd.DataFrame, power: pd.DataFrame | None, log: str | None
) -> None:
    requests[list(REQUEST_COLUMNS)].to_parquet(place / REQUESTS, index=False)
    if power is not None and len(power):
        power.to_parquet(place / POWER, index=False)
    if log:
        write_text(without_paths(log), place / LOG)
    hashes = {path.name: _sha256(path) for path in sorted(place.iterdir())}
    write_json({"schema_version": SCHEMA_VERSION, **run, "files_sha256": hashes}, place / RUN)


def read_trace(folder: Path) -> Trace:
    """Read a run's folder and check it against its own hashes.

    Raises
    ------
    DataError : for a missing or changed file, or a schema that this version does not read.
    """
    path = folder / RUN
    if not path.is_file():
        raise DataError(shown(folder), RUN, "no such file: not a run, or one that was never finished", "measure again")
    run = json.loads(path.read_text(encoding="utf-8"))
    if run.get("schema_version") != SCHEMA_VERSION:
        problem = f"schema version {run.get('schema_version')!r}; this hetgpu reads {SCHEMA_VERSION}"
        raise DataError(shown(path), "schema_version", problem, "use the hetgpu that wrote it")
    for name, digest in run["files_sha256"].items():
        if not (folder / name).is_file() or _sha256(folder / name) != digest:
            raise DataError(shown(folder), name, "is missing or was changed after the run", "restore it from Git")
    power = pd.read_parquet(folder / POWER) if POWER in run["files_sha256"] else None
    return Trace(folder, run, pd.read_parquet(folder / REQUESTS), power)


def find_traces(base: Path) -> Iterator[Path]:
    """The folders of all finished runs below ``base``, in order of their paths; half-written ones are hidden."""
    for path in sorted(base.rglob(RUN)):
        if not any(part.startswith(".") for part in path.relative_to(base).parts):
            yield path.parent


def summarise(trace: Trace) -> SummaryRow:
    """A run's summary row, by the one definition of each metric.

    Latencies are over finished requests; throughputs over the client's duration, the drain included.
    A run that failed an error-level check is kept, with ``headline`` false and the reason.
    """
    run, requests = trace.run, trace.requests
    done = requests[requests.error.isna()]
    seconds, tokens_in, tokens_out = run["duration_s"], int(done.input_tokens.sum()), int(done.output_tokens.sum())
    values: dict[str, Any] = {
        "run_id": run["run_id"],
        "evidence": run["evidence"],
        "tier": run["tier"],
        "gpu": run["gpu"],
        "gpu_count": run["gpu_count"],
        "model": run["model"],
        "precision": run["precision"],
        "engine": run["engine"]["name_and_version"],
        "workload": run["workload"]["name"],
        "source": "a run of ours",
        "recorded_at": run["started_utc"],
        "record": run["workload"]["repeat"] + 1,
        "target_qps": run["workload"]["target_qps"],
        "num_prompts": len(requests),
        "completed": len(done),
        "failed": len(requests) - len(done),
        "duration_s": seconds,
        "input_tokens": tokens_in,
        "output_tokens": tokens_out,
        "input_tokens_counted_by": "client",
        "output_tokens_counted_by": "server",
        "energy_j": run["energy"]["energy_j"],
        "energy_method": run["energy"]["method"],
    }
    if len(done):
        values |= metrics.request_statistics(done.ttft_ms, done.e2e_ms, done.output_tokens, done.chunk_gaps_ms)
        values |= metrics.throughputs(len(done), tokens_in, tokens_out, seconds)
    if failed := trace.failed_checks:
        values |= {"headline": False, "reason": "; ".join(f"{check['name']}: {check['detail']}" for check in failed)}
    return make_row(values, shown(trace.folder), RUN)


def summaries_of(base: Path) -> pd.DataFrame:
    """The summary rows of all finished runs below ``base``, one row a run, in order of their paths.

    Raises
    ------
    DataError : when there is none.
    """
    rows = [summarise(read_trace(folder)) for folder in find_traces(base)]
    if not rows:
        raise DataError(shown(base), "", "holds no run", "measure first (`make measure`, or `make campaign`)")
    return to_frame(rows)


def check_rows(checks: list[Check]) -> list[dict[str, Any]]:
    """Checks as plain rows for ``run.json``."""
    return [asdict(check) for check in checks]
