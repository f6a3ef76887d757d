"""Summary rows: units that cannot be, runs under a wrong tier, and the published records."""

import csv
import json

import pytest

from hetgpu.decide.audit import audit_cells
from hetgpu.decide.cost import COST_COLUMNS
from hetgpu.errors import DataError
from hetgpu.evidence import published, records
from hetgpu.evidence.catalog import load_gpus, load_tiers
from hetgpu.evidence.files import write_csv

UNITS = ("_s", "_ms", "_j", "_w", "_mhz", "_qps", "_per_s", "_per_hour", "_per_gpu_hour", "_per_run", "_per_kwh")
UNITS += ("_per_usd", "_per_mtok_total", "_per_mtok_out", "_per_mtok_in", "_per_tok_out", "_tokens", "_share", "_ratio")
#: Names, counts and flags: what has no unit.
NO_QUANTITY = {
    *("run_id", "evidence", "tier", "gpu", "gpu_count", "model", "precision", "engine", "workload", "source"),
    *("recorded_at", "record", "max_concurrency", "num_prompts", "completed", "failed", "input_tokens_counted_by"),
    *("output_tokens_counted_by", "energy_method", "headline", "reason", "stalled", "cache"),
}


def row(**changes):
    values = {"run_id": "r", "evidence": "measured", "tier": "1x-rtx-4090", "gpu": "RTX-4090", "gpu_count": 1}
    values |= {"model": "m", "engine": "e", "workload": "w", "source": "s", "completed": 64, "duration_s": 120.0}
    return values | changes


def test_seconds_under_a_ms_name_are_refused_with_row_and_reason(cases):
    with (cases / "seconds_as_ms.csv").open(newline="") as stream:
        case = next(csv.DictReader(stream))
    given = {"max_concurrency": int(case["max_concurrency"]), "completed": int(case["completed"])}
    given |= {"duration_s": float(case["duration_s"]), "e2e_mean_ms": float(case["mean_e2e_ms"])}
    with pytest.raises(DataError, match=r"runs\.csv: c1: .*0\.00789 requests in flight.*read as seconds it is 7\.89"):
        records.make_row(row(**given), "runs.csv", "c1")
    as_ms = {"e2e_mean_ms": 14_800.0}
    assert records.make_row(row(**(given | as_ms)), "runs.csv", "c1").e2e_mean_ms == 14_800.0


def test_a_tpot_in_seconds_and_too_many_in_flight_are_refused():
    with pytest.raises(DataError, match=r"tpot_mean_ms is 0\.0488: below 0\.1 ms, so in seconds"):
        records.make_row(row(tpot_mean_ms=0.0488), "f", "r")
    with pytest.raises(DataError, match="latencies are too large for ms"):
        records.make_row(row(e2e_mean_ms=1e7), "f", "r")


def test_a_cap_on_concurrency_beside_a_rate_says_nothing_of_units():
    given = row(max_concurrency=1000, target_qps=8.0, e2e_mean_ms=400.0)
    assert records.make_row(given, "f", "r").max_concurrency == 1000


def test_a_run_on_a_cpu_or_another_card_never_counts_as_a_tier(cases):
    tier, gpu = load_tiers()["1x-h100-sxm"], load_gpus()["H100-SXM"]
    for line in (cases / "fingerprint.jsonl").read_text().splitlines():
        case = json.loads(line)
        assert records.fingerprint_problem(tier, gpu, case["backend"], case["device_name"]), case["run_id"]
    assert records.fingerprint_problem(tier, gpu, "cuda", gpu.nvml_names[0]) is None
    cpu = load_tiers()["cpu-local"]
    assert records.fingerprint_problem(cpu, None, "cpu", None) is None
    assert "no run of the CPU tier" in records.fingerprint_problem(cpu, None, "cuda", "NVIDIA L4")


def test_a_row_under_a_wrong_tier_is_refused_at_load(tmp_path):
    wrong = records.make_row(row(tier="1x-h100-pcie"), "f", "r")
    path = write_csv(records.to_frame([wrong]), tmp_path / "a.csv")
    with pytest.raises(DataError, match="1x RTX-4090 under tier 1x-h100-pcie"):
        records.read_summaries(path, load_tiers())
    unknown = records.make_row(row(tier="9x-rtx-4090"), "f", "r")
    with pytest.raises(DataError, match="unknown tier '9x-rtx-4090'"):
        records.check_tiers([unknown], load_tiers(), "f")


def test_a_cpu_row_survives_its_csv(tmp_path):
    cpu = records.make_row(row(tier="cpu-local", gpu=None, gpu_count=0), "f", "r")
    path = write_csv(records.to_frame([cpu]), tmp_path / "a.csv")
    assert records.read_summaries(path, load_tiers()).gpu.isna().all()


def test_all_130_records_are_published_runs(runs):
    assert len(runs) == 130
    assert set(runs.evidence) == {"published"}
    assert runs.run_id.is_unique
    assert not runs.tier.str.startswith("cpu").any()
    assert runs.model.nunique() == 13


def test_a_record_that_contradicts_itself_or_stands_twice_is_refused(project):
    path = project / "data" / "published" / "runs.csv"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines, lines[1]]) + "\n")
    with pytest.raises(DataError, match="stands in rows 1 and 131"):
        published.load_published()
    path.write_text("\n".join([lines[0], lines[1].replace("201.6871514969971", "101.6871514969971")]) + "\n")
    with pytest.raises(DataError, match=r"line 2: request_throughput_per_s is 0\.99.*give 1\.96"):
        published.load_published()


def test_every_quantity_s_name_ends_in_its_unit(runs):
    rules = {"stall_above": 1.015, "judge_at_qps": 4, "warm_below": 1.5, "cold_above": 2, "first_qps": 32}
    columns = {*records.COLUMNS, *COST_COLUMNS, *audit_cells(runs, rules).columns} - NO_QUANTITY
    assert [name for name in sorted(columns) if not name.endswith(UNITS)] == []


def test_names_of_models_as_labels_print_them():
    assert records.short_model("deepseek-ai/DeepSeek-R1-Distill-Qwen-14B") == "Qwen-14B"
    assert records.model_size_b("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B") == 1.5
    assert records.model_size_b("microsoft/phi-4") == float("inf")


def test_no_run_ends_before_the_client_had_sent_all(runs):
    slept_s = 189.097 / runs.target_qps
    assert (runs.duration_s > slept_s).all()
    # The slowest rate ends just after it: the arrivals are the authors'.
    assert (runs.duration_s / slept_s).min() < 1.002
