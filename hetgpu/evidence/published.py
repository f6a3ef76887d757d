"""The authors' 130 published records and the paper's own printed tables, as data.

The records were written by vLLM 0.8.5's benchmark client; its throughputs are kept as published
and recomputed from tokens and duration as a check.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from pydantic import BaseModel, ConfigDict

from hetgpu.errors import DataError
from hetgpu.evidence import metrics
from hetgpu.evidence.catalog import Model, Tier, load_models, load_tiers
from hetgpu.evidence.files import read_csv, read_table, unique
from hetgpu.evidence.records import STATISTICS, SummaryRow, make_row, to_frame
from hetgpu.paths import inside, shown

ENGINE = "vllm 0.8.5"
WORKLOAD = "sharegpt-200"
SOURCE = "IOG-Foundation/llm-inference-benchmarks at 4990a80"

#: Largest relative difference between a published throughput and its own tokens over its duration.
MAX_THROUGHPUT_ERROR = 1e-9


class PublishedRecord(BaseModel):
    """A row of ``data/published/runs.csv``: the names of vLLM's client, ITL being the chunk gap."""

    model_config = ConfigDict(extra="forbid")

    model: str
    gpu: str
    gpu_count: int
    target_qps: float
    record: int
    recorded_at: str
    num_prompts: int
    completed: int
    burstiness: float
    duration_s: float
    input_tokens: int
    output_tokens: int
    request_throughput_per_s: float
    request_goodput_per_s: float
    output_token_throughput_per_s: float
    total_token_throughput_per_s: float
    ttft_mean_ms: float
    ttft_median_ms: float
    ttft_std_ms: float
    ttft_p90_ms: float
    ttft_p95_ms: float
    ttft_p99_ms: float
    ttft_p100_ms: float
    tpot_mean_ms: float
    tpot_median_ms: float
    tpot_std_ms: float
    tpot_p90_ms: float
    tpot_p95_ms: float
    tpot_p99_ms: float
    tpot_p100_ms: float
    itl_mean_ms: float
    itl_median_ms: float
    itl_std_ms: float
    itl_p90_ms: float
    itl_p95_ms: float
    itl_p99_ms: float
    itl_p100_ms: float


def _check_throughputs(record: PublishedRecord, where: str, file: str) -> None:
    ours = metrics.throughputs(record.completed, record.input_tokens, record.output_tokens, record.duration_s)
    pairs = {
        "request_throughput_per_s": ours["req_per_s"],
        "output_token_throughput_per_s": ours["tok_out_per_s"],
        "total_token_throughput_per_s": ours["tok_total_per_s"],
    }
    for name, computed in pairs.items():
        published = getattr(record, name)
        if abs(metrics.signed_error(computed, published)) > MAX_THROUGHPUT_ERROR:
            problem = f"{name} is {published:g}, its own tokens over its duration give {computed:g}"
            raise DataError(file, where, problem, "compare the row with the authors' file")


def _to_summary(
    record: PublishedRecord,
    where: str,
    file: str,
    tiers: dict[tuple[str | None, int], Tier],
    models: dict[str, Model],
) -> SummaryRow:
    tier = tiers.get((record.gpu, record.gpu_count))
    if tier is None or record.model not in models:
        problem = f"{record.gpu_count}x {record.gpu} with {record.model} is not in the catalog"
        raise DataError(file, where, problem, "add the tier to tiers.yaml and the model to models.csv")
    model = models[record.model]
    values = {
        "run_id": f"published/{tier.key}/{model.short_name}/qps{record.target_qps:g}/record{record.record}",
        "evidence": "published",
        "tier": tier.key,
        "precision": model.weight_dtype,
        "engine": ENGINE,
        "workload": WORKLOAD,
        "source": SOURCE,
        "req_per_s": record.request_throughput_per_s,
        "goodput_req_per_s": record.request_goodput_per_s,
        "tok_out_per_s": record.output_token_throughput_per_s,
        "tok_total_per_s": record.total_token_throughput_per_s,
        # vLLM's client takes output counts from the server's usage and counts prompts itself.
        "input_tokens_counted_by": "client",
        "output_tokens_counted_by": "server",
    }
    same = (
        "model gpu gpu_count recorded_at record target_qps num_prompts completed duration_s input_tokens output_tokens"
    )
    values |= {name: getattr(record, name) for name in same.split()}
    for ours, theirs in (("ttft", "ttft"), ("tpot", "tpot"), ("chunk_gap", "itl")):
        for statistic in STATISTICS:
            published = getattr(record, f"{theirs}_{'p100' if statistic == 'max' else statistic}_ms")
            values[f"{ours}_{statistic}_ms"] = published
    return make_row(values, file, where)


def load_published(path: Path | None = None) -> pd.DataFrame:
    """All published records as summary rows, one row a record.

    Raises
    ------
    DataError : for a record that contradicts itself, stands twice, or names a tier or model that
        the catalog does not hold.
    """
    path = path or inside("data", "published", "runs.csv")
    records = read_csv(path, PublishedRecord)
    unique(records, lambda r: (r.model, r.gpu, r.gpu_count, r.target_qps, r.record), shown(path))
    tiers = {(tier.gpu, tier.gpu_count): tier for tier in load_tiers().values()}
    models = load_models()
    rows = []
    for number, record in enumerate(records, start=2):
        where = f"line {number}"
        _check_throughputs(record, where, shown(path))
        rows.append(_to_summary(record, where, shown(path), tiers, models))
    return to_frame(rows)


def load_printed(name: str) -> pd.DataFrame:
    """A table or figure as the paper prints it (``table1``, ``table2``, ``table3``, ``figure1``).

    Cells are text, so that the printed digits are kept.
    """
    path = inside("data", "published", "printed", f"{name}.csv")
    read_table(path)
    return pd.read_csv(path, dtype=str, keep_default_na=False)
