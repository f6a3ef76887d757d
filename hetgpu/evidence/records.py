"""The summary row: one benchmark run, whatever its evidence and whatever tool wrote it.

Published, measured and simulated runs meet here with the very same columns.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, Self

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from hetgpu.errors import DataError
from hetgpu.evidence import metrics
from hetgpu.evidence.catalog import Gpu, Tier
from hetgpu.evidence.files import problems, read_csv, read_table, unique
from hetgpu.paths import inside, shown

Evidence = Literal["published", "measured", "simulated"]
CountedBy = Literal["server", "client"]

STATISTICS = ("mean", "median", "std", "p90", "p95", "p99", "max")
LATENCIES = ("ttft", "tpot", "chunk_gap", "e2e")

#: No engine of today answers in less; a value below is in another unit (or of no engine).
FLOOR_MS = {"ttft_mean_ms": 0.5, "tpot_mean_ms": 0.1}
#: A closed loop of C clients keeps about C requests in flight; far less betrays a wrong unit.
CLOSED_LOOP_MIN_SHARE = 0.02


class SummaryRow(BaseModel):
    """One run. ``None`` means not recorded; ``reason`` says why where it matters.

    Latencies in ms. ``ttft`` counts from the actual send. ``chunk_gap`` is the gap between chunks
    of the stream, which vLLM's client calls ITL. Token counts say who made them.
    """

    model_config = ConfigDict(extra="forbid")

    run_id: str
    evidence: Evidence
    tier: str
    gpu: str | None = None
    gpu_count: int = Field(ge=0)
    model: str
    precision: str | None = None
    engine: str
    workload: str
    source: str
    recorded_at: str | None = None
    record: int = Field(default=1, ge=1)
    target_qps: float | None = Field(default=None, gt=0)
    max_concurrency: int | None = Field(default=None, gt=0)
    num_prompts: int | None = Field(default=None, gt=0)
    completed: int = Field(ge=0)
    failed: int | None = Field(default=None, ge=0)
    duration_s: float = Field(gt=0)
    input_tokens: int | None = Field(default=None, ge=0)
    output_tokens: int | None = Field(default=None, ge=0)
    input_tokens_counted_by: CountedBy | None = None
    output_tokens_counted_by: CountedBy | None = None
    req_per_s: float | None = None
    goodput_req_per_s: float | None = None
    tok_out_per_s: float | None = None
    tok_total_per_s: float | None = None
    ttft_mean_ms: float | None = None
    ttft_median_ms: float | None = None
    ttft_std_ms: float | None = None
    ttft_p90_ms: float | None = None
    ttft_p95_ms: float | None = None
    ttft_p99_ms: float | None = None
    ttft_max_ms: float | None = None
    tpot_mean_ms: float | None = None
    tpot_median_ms: float | None = None
    tpot_std_ms: float | None = None
    tpot_p90_ms: float | None = None
    tpot_p95_ms: float | None = None
    tpot_p99_ms: float | None = None
    tpot_max_ms: float | None = None
    chunk_gap_mean_ms: float | None = None
    chunk_gap_median_ms: float | None = None
    chunk_gap_std_ms: float | None = None
    chunk_gap_p90_ms: float | None = None
    chunk_gap_p95_ms: float | None = None
    chunk_gap_p99_ms: float | None = None
    chunk_gap_max_ms: float | None = None
    e2e_mean_ms: float | None = None
    e2e_median_ms: float | None = None
    e2e_std_ms: float | None = None
    e2e_p90_ms: float | None = None
    e2e_p95_ms: float | None = None
    e2e_p99_ms: float | None = None
    e2e_max_ms: float | None = None
    energy_j: float | None = Field(default=None, gt=0)
    energy_method: Literal["counter", "power_integral"] | None = None
    headline: bool = True
    reason: str | None = None

    @model_validator(mode="after")
    def _units_are_plausible(self) -> Self:
        for problem in unit_problems(self):
            raise ValueError(problem)
        return self


COLUMNS = list(SummaryRow.model_fields)


def _e2e_mean_ms(row: SummaryRow) -> float | None:
    if row.e2e_mean_ms is not None:
        return row.e2e_mean_ms
    if row.ttft_mean_ms is None or row.tpot_mean_ms is None or not row.output_tokens or not row.completed:
        return None
    per_request = row.output_tokens / row.completed
    return float(metrics.e2e_mean_ms(row.ttft_mean_ms, row.tpot_mean_ms, per_request))


def unit_problems(row: SummaryRow) -> list[str]:
    """What in a row can only be a unit mistaken: a latency in seconds under an ``_ms`` name, say.

    The number of requests in flight tells (Little's law): it cannot exceed the requests there
    were, and a closed loop of C clients keeps near C. Nothing is ever rescaled.
    """
    found = []
    for column, floor in FLOOR_MS.items():
        value = getattr(row, column)
        if value is not None and value < floor:
            found.append(f"{column} is {value:g}: below {floor:g} ms, so in seconds? Give it in ms")
    e2e_ms = _e2e_mean_ms(row)
    if e2e_ms is None or row.completed == 0:
        return found
    in_flight = float(metrics.mean_concurrency(row.completed, e2e_ms / 1e3, row.duration_s))
    as_seconds = in_flight * 1e3
    # Where a rate is set, max_concurrency is only a cap, and says nothing of what is in flight.
    loop = row.max_concurrency if row.target_qps is None else None
    if loop and in_flight < CLOSED_LOOP_MIN_SHARE * loop:
        found.append(
            f"{in_flight:.3g} requests in flight for max_concurrency {loop}; read as seconds "
            f"it is {as_seconds:.3g}. Give the latencies in ms"
        )
    if in_flight > row.completed * 1.05:
        found.append(f"{in_flight:.3g} requests in flight of {row.completed} in all: latencies are too large for ms")
    return found


def fingerprint_problem(tier: Tier, gpu: Gpu | None, backend: str, device_name: str | None) -> str | None:
    """Why a run on this device is no run of that tier, or None when it is one.

    Parameters
    ----------
    backend : ``cuda`` or ``cpu``, as the engine says.
    device_name : what NVML calls the device; None on a CPU.
    """
    if tier.gpu is None:
        return None if backend == "cpu" else f"a {backend} run is no run of the CPU tier {tier.key}"
    if backend == "cpu" or not device_name:
        return f"a CPU run never counts as {tier.key}"
    if gpu is None or device_name not in gpu.nvml_names:
        known = ", ".join(gpu.nvml_names) if gpu else "no known name"
        return f"device {device_name!r} is no {tier.gpu} ({known})"
    return None


def to_frame(rows: Iterable[SummaryRow]) -> pd.DataFrame:
    """Rows as a DataFrame with all of :data:`COLUMNS`, one row a run, in the order given."""
    return pd.DataFrame([row.model_dump() for row in rows], columns=COLUMNS)


def check_tiers(rows: Iterable[SummaryRow], tiers: dict[str, Tier], file: Path | str) -> None:
    """Refuse a row whose tier the catalog does not know, or whose GPU is not its tier's.

    Raises
    ------
    DataError : naming the row.
    """
    for row in rows:
        tier = tiers.get(row.tier)
        if tier is None:
            raise DataError(file, row.run_id, f"unknown tier {row.tier!r}", "add it to data/catalog/tiers.yaml")
        if (row.gpu, row.gpu_count) != (tier.gpu, tier.gpu_count):
            problem = f"{row.gpu_count}x {row.gpu} under tier {row.tier}, which is {tier.gpu_count}x {tier.gpu}"
            raise DataError(file, row.run_id, problem, "file the run under its own tier")


def read_summaries(path: Path, tiers: dict[str, Tier]) -> pd.DataFrame:
    """A CSV of summary rows, every one checked.

    Raises
    ------
    DataError : naming file, row and mend.
    """
    rows = read_csv(path, SummaryRow)
    unique(rows, lambda row: row.run_id, shown(path))
    check_tiers(rows, tiers, shown(path))
    return to_frame(rows)


def short_model(model: str) -> str:
    """A model's name as labels print it: without its owner and the distillation it shares with others."""
    name = model.split("/")[-1].removeprefix("DeepSeek-R1-Distill-").removeprefix("Meta-")
    return name.removesuffix("-HF-FP8-dynamic")


def model_size_b(model: str) -> float:
    """Billions of parameters as a model's name says them, to sort by; infinite where it says none."""
    found = re.search(r"(\d+(?:\.\d+)?)b\b", model.lower())
    return float(found[1]) if found else math.inf


def read_stage_output(name: str) -> pd.DataFrame:
    """A table that an earlier stage wrote to ``data/summaries/``, as a DataFrame."""
    return read_table(inside("data", "summaries", f"{name}.csv"))


def make_row(values: dict[str, Any], file: Path | str, where: str) -> SummaryRow:
    """A checked row from plain values.

    Raises
    ------
    DataError : naming file, row and fields.
    """
    try:
        return SummaryRow.model_validate(values)
    except ValidationError as error:
        raise DataError(file, where, problems(error), "correct the input; nothing is rescaled") from error
