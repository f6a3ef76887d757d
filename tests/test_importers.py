"""Other tools' files: values against the tools' own figures and against their per-request data."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetgpu.errors import DataError, DataWarning
from hetgpu.evidence.catalog import load_tiers
from hetgpu.evidence.files import read_csv
from hetgpu.evidence.importers import cli, read_results
from hetgpu.evidence.importers._dictionary import LATENCY, flatten, load_dictionary, unknown_names
from hetgpu.evidence.importers._objects import parse_objects
from hetgpu.evidence.importers.tokens import count_output_tokens
from hetgpu.evidence.published import load_published
from hetgpu.evidence.records import COLUMNS, SummaryRow

DATA = Path(__file__).parent / "data"
PEERS, VLLM_2025 = DATA / "peers", DATA / "vllm2025"
VLLM = PEERS / "vllm-bench" / "result.json"
GUIDELLM = PEERS / "guidellm" / "benchmarks.json"
AIPERF = PEERS / "aiperf" / "profile_export_aiperf.json"
INFERENCE_PERF = PEERS / "inference-perf"
CPU = load_tiers()["cpu-local"]
ONE_LOAD = {"vllm": VLLM, "guidellm": GUIDELLM, "aiperf": AIPERF, "inference_perf": INFERENCE_PERF}


def content(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def written(folder: Path, value: dict, name: str = "result.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def only(path: Path, **options) -> SummaryRow:
    """The one row of a file, with no warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        (row,) = read_results(path, tier=CPU, **options)
    return row


def latencies(row: SummaryRow) -> dict[str, float]:
    return {name: value for name, value in row.model_dump().items() if LATENCY.fullmatch(name) and value is not None}


# -- one load, four tools ------------------------------------------------------------------------


@pytest.mark.parametrize("tool", ONE_LOAD)
def test_one_load_has_the_same_counts_in_all_tools(tool: str) -> None:
    row = only(ONE_LOAD[tool])
    assert (row.num_prompts, row.completed, row.failed, row.target_qps) == (40, 40, 0, 8.0)
    assert (row.model, row.tier, row.gpu, row.gpu_count) == ("tiny", "cpu-local", None, 0)
    assert (row.output_tokens, row.output_tokens_counted_by, row.headline) == (2560, "server", True)
    # vLLM's client counts prompts itself, and finds 65 and 66 tokens in some of 64.
    expected = (2568, "client") if tool == "vllm" else (2560, "server")
    assert (row.input_tokens, row.input_tokens_counted_by) == expected
    assert row.run_id.startswith(f"measured/cpu-local/tiny/40-prompts/qps8/{tool}-")
    assert "not recorded" in row.engine
    assert not Path(row.source).is_absolute()
    assert row.tok_out_per_s == pytest.approx(row.output_tokens / row.duration_s)
    assert row.req_per_s == pytest.approx(40 / row.duration_s)


@pytest.mark.parametrize("tool", ONE_LOAD)
def test_definitions_agree_across_tools(tool: str) -> None:
    """With 64 tokens in every answer, e2e = ttft + tpot x 63 holds for the means of every tool."""
    row = only(ONE_LOAD[tool])
    assert row.ttft_mean_ms + row.tpot_mean_ms * 63 == pytest.approx(row.e2e_mean_ms, rel=1e-9)
    # Unit slips would show here: the load is the same, the machine noisy.
    assert 5 < row.tpot_mean_ms < 20
    assert 400 < row.e2e_mean_ms < 900


# -- vLLM ----------------------------------------------------------------------------------------


def test_vllm_032_keeps_the_clients_statistics_and_fills_in_from_the_lists() -> None:
    row, own = only(VLLM), content(VLLM)
    for ours, theirs in (("ttft", "ttft"), ("tpot", "tpot"), ("chunk_gap", "itl")):
        for statistic in ("mean", "median", "std", "p99"):
            assert getattr(row, f"{ours}_{statistic}_ms") == own[f"{statistic}_{theirs}_ms"]
    ttft = np.array(own["ttfts"]) * 1e3
    assert row.ttft_p90_ms == pytest.approx(np.percentile(ttft, 90), rel=1e-12)
    assert row.ttft_max_ms == ttft.max()
    assert row.e2e_p95_ms == pytest.approx(np.percentile(own["latencies"], 95) * 1e3, rel=1e-12)
    assert row.tok_total_per_s == own["total_token_throughput"]


def test_vllm_lists_give_the_summary_by_our_definitions(tmp_path: Path) -> None:
    """Take the summary's statistics away: what we compute from the lists must be what it had said."""
    own = content(VLLM)
    names = [name for name in own if name.endswith("_ms") and not name.startswith("mean_")]
    row = only(written(tmp_path, {name: value for name, value in own.items() if name not in names}))
    for name in names:
        statistic, latency = name.removesuffix("_ms").split("_")
        ours = f"{'chunk_gap' if latency == 'itl' else latency}_{statistic}_ms"
        assert getattr(row, ours) == pytest.approx(own[name], rel=1e-12)


def test_vllm_failed_requests_have_no_latency(tmp_path: Path) -> None:
    own = content(VLLM)
    for name, zero in (("ttfts", 0.0), ("itls", []), ("output_lens", 0), ("errors", "Traceback ...")):
        own[name][5] = zero
    tokens = own["total_output_tokens"] - 64
    own |= {"completed": 39, "failed": 1, "total_output_tokens": tokens}
    for name in ("request_throughput", "output_throughput", "total_token_throughput"):
        del own[name]
    path = written(tmp_path, own)
    with pytest.raises(DataError, match="request_throughput is missing"):
        read_results(path, tier=CPU)
    own["request_throughput"] = 39 / own["duration"]
    own["output_throughput"] = tokens / own["duration"]
    own["total_token_throughput"] = (own["total_input_tokens"] + tokens) / own["duration"]
    row = only(written(tmp_path, own))
    good = np.delete(np.array(own["ttfts"]), 5) * 1e3
    assert row.ttft_p90_ms == pytest.approx(np.percentile(good, 90))
    assert (row.failed, row.reason, row.headline) == (1, "1 of 40 requests failed", True)


@pytest.mark.filterwarnings("error::hetgpu.errors.DataWarning")
def test_vllm_2025_equals_the_published_records() -> None:
    rows = [row for path in sorted(VLLM_2025.glob("*.json")) for row in read_results(path, evidence="published")]
    assert len(rows) == 6
    published = load_published().astype(object)
    published = published.where(published.notna(), None)
    skip = {"run_id", "engine", "workload", "source", "precision", "failed"}
    for row in rows:
        of_cell = (published["recorded_at"] == row.recorded_at) & (published["tier"] == row.tier)
        (record,) = published[of_cell].to_dict("records")
        assert record["model"] == row.model
        mine = row.model_dump()
        assert {name: mine[name] for name in COLUMNS if name not in skip} == {
            name: record[name] for name in COLUMNS if name not in skip
        }
    assert {row.tier for row in rows} == {"1x-h100-pcie", "2x-rtx-4090", "8x-rtx-4090"}
    assert len({row.run_id for row in rows}) == 6


def test_vllm_2025_goodput_has_a_colon() -> None:
    (row,) = read_results(next(VLLM_2025.glob("*8xNVIDIA*")))
    assert row.goodput_req_per_s == 0.29726118332556495
    assert row.goodput_req_per_s < row.req_per_s


def test_vllm_2025_names_its_gpus_and_the_tier_must_agree(tmp_path: Path) -> None:
    path = next(VLLM_2025.glob("*16qps*"))
    tiers = load_tiers()
    assert {row.tier for row in read_results(path, tier=tiers["1x-h100-pcie"])} == {"1x-h100-pcie"}
    for wrong in ("1x-rtx-4090", "2x-h100-pcie", "1x-h100-sxm", "cpu-local"):
        with pytest.raises(DataError, match="object 1: 1x H100-PCIe in the file, which is not tier"):
            read_results(path, tier=tiers[wrong])
    record = parse_objects(path.read_text(encoding="utf-8"), "x")[0]
    with pytest.raises(DataError, match="gpu_name 'NVIDIA-L4' is not in the catalog"):
        read_results(written(tmp_path, record | {"gpu_name": "NVIDIA-L4"}))
    with pytest.raises(DataError, match="3x H100-PCIe fits these tiers: none"):
        read_results(written(tmp_path, record | {"gpu_count": "3"}))


def test_a_file_that_names_no_gpu_needs_a_tier() -> None:
    with pytest.raises(DataError, match=r"the tier must be given.*--tier"):
        read_results(VLLM)


def test_vllm_all_failed_has_no_latencies(tmp_path: Path) -> None:
    own = content(VLLM)
    zeros = {name: 0.0 for name in own if name.endswith("_ms") or "throughput" in name}
    lists = {"ttfts": [0.0] * 40, "itls": [[]] * 40, "output_lens": [0] * 40, "errors": ["refused"] * 40}
    counts = {"completed": 0, "failed": 40, "total_input_tokens": 0, "total_output_tokens": 0}
    row = only(written(tmp_path, own | zeros | lists | counts))
    assert latencies(row) == {}
    assert (row.completed, row.headline, row.reason) == (0, False, "no request completed")


def test_vllm_infinite_rate_is_no_rate(tmp_path: Path) -> None:
    row = only(written(tmp_path, content(VLLM) | {"request_rate": "inf", "max_concurrency": 16}))
    assert (row.target_qps, row.max_concurrency) == (None, 16)
    assert "/qpsnone-c16/" in row.run_id


def test_a_throughput_that_contradicts_its_counts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="object 1: tok_out_per_s is 1000, its own counts"):
        read_results(written(tmp_path, content(VLLM) | {"output_throughput": 1000.0}), tier=CPU)


def test_seconds_under_a_millisecond_name_are_refused(tmp_path: Path) -> None:
    own = content(VLLM)
    own |= {name: value / 1e3 for name, value in own.items() if name.endswith("_ms")}
    with pytest.raises(DataError, match=r"ttft_mean_ms is 0.232135: below 0.5 ms, so in seconds"):
        read_results(written(tmp_path, own), tier=CPU)


# -- GuideLLM ------------------------------------------------------------------------------------


def guidellm_requests() -> dict[str, np.ndarray]:
    requests = content(GUIDELLM)["benchmarks"][0]["requests"]["successful"]
    timings = [request["info"]["timings"] for request in requests]
    columns = {name: [r[name] for r in requests] for name in requests[0] if isinstance(requests[0][name], (int, float))}
    columns |= {
        name: [t[name] for t in timings] for name in ("request_start", "first_token_iteration", "last_token_iteration")
    }
    return {name: np.array(values, dtype=float) for name, values in columns.items()}


def test_guidellm_itl_is_our_tpot_and_its_tpot_is_not() -> None:
    own, metrics = guidellm_requests(), content(GUIDELLM)["benchmarks"][0]["metrics"]
    n, start, first, last = (
        own[name] for name in ("output_tokens", "request_start", "first_token_iteration", "last_token_iteration")
    )
    assert own["inter_token_latency_ms"] == pytest.approx((last - first) * 1e3 / (n - 1))
    assert own["time_per_output_token_ms"] == pytest.approx((last - start) * 1e3 / n)
    stated = metrics["inter_token_latency_ms"]["successful"]
    # It weighs each request by its gaps: 2,520 samples for 40 requests.
    assert stated["count"] == (n - 1).sum() == 2520
    assert stated["mean"] == pytest.approx(np.average(own["inter_token_latency_ms"], weights=n - 1))
    row = only(GUIDELLM)
    assert row.tpot_mean_ms == pytest.approx(stated["mean"])
    assert row.tpot_std_ms == pytest.approx(stated["std_dev"])
    assert row.chunk_gap_mean_ms is None


def test_guidellm_latency_runs_past_the_last_token() -> None:
    own, row = guidellm_requests(), only(GUIDELLM)
    to_last_token = (own["last_token_iteration"] - own["request_start"]) * 1e3
    assert row.e2e_mean_ms == pytest.approx(to_last_token.mean())
    tail = own["request_latency"].mean() * 1e3 - row.e2e_mean_ms
    assert tail == pytest.approx(7.08, abs=0.01)
    # So (e2e - ttft) / (n - 1) with GuideLLM's own e2e is 1.2 % above its ITL.
    by_its_e2e = (own["request_latency"].mean() * 1e3 - row.ttft_mean_ms) / 63
    assert by_its_e2e / row.tpot_mean_ms == pytest.approx(1.0123, abs=1e-4)


def test_guidellm_percentiles_are_nearest_rank() -> None:
    own, metrics = guidellm_requests(), content(GUIDELLM)["benchmarks"][0]["metrics"]
    stated = metrics["time_to_first_token_ms"]["successful"]["percentiles"]
    ttft = own["time_to_first_token_ms"]
    assert stated["p90"] == np.percentile(ttft, 90, method="inverted_cdf")
    assert only(GUIDELLM).ttft_p90_ms == pytest.approx(np.percentile(ttft, 90))


def test_guidellm_without_requests_uses_its_aggregates(tmp_path: Path) -> None:
    whole = content(GUIDELLM)
    benchmark = whole["benchmarks"][0]
    benchmark["requests"]["successful"] = benchmark["requests"]["successful"][:10]
    row = only(written(tmp_path, whole))
    stated = benchmark["metrics"]
    assert row.ttft_p99_ms == stated["time_to_first_token_ms"]["successful"]["percentiles"]["p99"]
    assert row.e2e_mean_ms == pytest.approx(stated["request_latency"]["successful"]["mean"] * 1e3)
    assert row.tpot_mean_ms == pytest.approx(stated["inter_token_latency_ms"]["successful"]["mean"])
    assert "nearest-rank" in row.reason
    stated["output_token_count"]["successful"]["max"] = 65.0
    row = only(written(tmp_path, whole))
    assert row.tpot_mean_ms is None
    assert "weighs requests by their tokens" in row.reason


def test_guidellm_gives_a_row_a_benchmark_and_says_who_counted(tmp_path: Path) -> None:
    whole = content(GUIDELLM)
    second = json.loads(json.dumps(whole["benchmarks"][0]))
    second["config"] |= {"prefer_response_metrics": False, "strategy": {"type_": "concurrent", "streams": 4}}
    whole["benchmarks"].append(second)
    first, other = read_results(written(tmp_path, whole), tier=CPU)
    assert (first.headline, first.output_tokens_counted_by) == (True, "server")
    assert (other.headline, other.output_tokens_counted_by) == (False, "client")
    assert (other.target_qps, other.max_concurrency) == (None, 4)
    assert "counted by the client" in other.reason


# -- AIPerf --------------------------------------------------------------------------------------


def aiperf_records(name: str) -> np.ndarray:
    lines = (AIPERF.parent / "profile_export.jsonl").read_text(encoding="utf-8").splitlines()
    return np.array([json.loads(line)["metrics"][name]["value"] for line in lines], dtype=float)


def test_aiperf_itl_divides_by_its_own_count_and_ours_by_the_servers() -> None:
    e2e, ttft, itl = (aiperf_records(n) for n in ("request_latency", "time_to_first_token", "inter_token_latency"))
    own, served = aiperf_records("output_sequence_length"), aiperf_records("usage_completion_tokens")
    assert (own.mean(), served.mean()) == (75.0, 64.0)
    assert itl == pytest.approx((e2e - ttft) / (own - 1))
    row = only(AIPERF)
    tpot = (e2e - ttft) / (served - 1)
    assert row.tpot_mean_ms == pytest.approx(tpot.mean())
    assert row.tpot_p99_ms == pytest.approx(np.percentile(tpot, 99))
    # 17 % too fast by its own count; for the first request 4.82 ms instead of 6.13.
    assert row.tpot_mean_ms / content(AIPERF)["inter_token_latency"]["avg"] == pytest.approx(1.170, abs=1e-3)
    assert (itl[0], tpot[0]) == (pytest.approx(4.824, abs=1e-3), pytest.approx(6.126, abs=1e-3))


def test_aiperf_records_give_its_aggregates() -> None:
    row, own = only(AIPERF), content(AIPERF)
    pairs = (("ttft", "time_to_first_token"), ("e2e", "request_latency"), ("chunk_gap", "inter_chunk_latency"))
    for ours, theirs in pairs:
        for statistic, key in {"mean": "avg", "median": "p50", "std": "std", "p90": "p90", "p99": "p99"}.items():
            assert getattr(row, f"{ours}_{statistic}_ms") == pytest.approx(own[theirs][key], rel=1e-9)


def test_aiperf_throughput_has_another_denominator() -> None:
    """Its rates divide by end_time - start_time (5.316 s), not by its benchmark_duration (5.072 s)."""
    row, own = only(AIPERF), content(AIPERF)
    assert 40 / own["request_throughput"]["avg"] == pytest.approx(5.316, abs=1e-3)
    assert own["output_token_throughput"]["avg"] * 5.316037 == pytest.approx(3000, rel=1e-6)
    assert row.duration_s == pytest.approx(5.0718, abs=1e-4)
    assert row.req_per_s == pytest.approx(40 / row.duration_s)


def test_aiperf_without_its_records_rebases_the_mean_alone(tmp_path: Path) -> None:
    own = content(AIPERF)
    row, whole = only(written(tmp_path, own)), only(AIPERF)
    assert row.tpot_mean_ms == pytest.approx(whole.tpot_mean_ms)
    assert row.tpot_p99_ms is None
    assert row.chunk_gap_p99_ms == pytest.approx(whole.chunk_gap_p99_ms)
    assert "its mean alone" in row.reason
    own["usage_completion_tokens"]["max"] = 65.0
    row = only(written(tmp_path, own))
    assert row.tpot_mean_ms is None
    assert "answers differ in length" in row.reason


def test_aiperf_without_the_servers_count_is_the_clients(tmp_path: Path) -> None:
    own = {name: value for name, value in content(AIPERF).items() if "usage" not in name}
    path = written(tmp_path, own)
    row = only(path)
    assert (row.output_tokens, row.output_tokens_counted_by, row.headline) == (3000, "client", False)
    assert row.tpot_mean_ms == own["inter_token_latency"]["avg"]
    assert row.reason == "output tokens counted by the client, not by the server"
    allowed = only(path, allow_client_counts=True)
    assert (allowed.headline, allowed.reason) == (True, row.reason)


def test_aiperf_records_of_another_run_are_refused(tmp_path: Path) -> None:
    lines = (AIPERF.parent / "profile_export.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "profile_export.jsonl").write_text("".join(lines[:39]), encoding="utf-8")
    with pytest.raises(DataError, match=r"profile_export.jsonl: 39 completed requests, 40 in the aggregate"):
        read_results(shutil.copy(AIPERF, tmp_path), tier=CPU)


def test_aiperf_unit_that_changed_is_refused(tmp_path: Path) -> None:
    own = content(AIPERF)
    own["request_latency"]["unit"] = "sec"
    with pytest.raises(DataError, match=r"request_latency.avg is in 'sec', 'ms' expected"):
        read_results(written(tmp_path, own), tier=CPU)


def test_aiperf_reads_the_measured_phase(tmp_path: Path) -> None:
    own = content(AIPERF)
    own["input_config"]["phases"].insert(0, {"name": "warmup", "kind": "warmup", "rate": 1.0})
    assert only(written(tmp_path, own)).target_qps == 8.0


# -- inference-perf ------------------------------------------------------------------------------


def test_inference_perf_seconds_become_milliseconds_and_tpot_is_rebased() -> None:
    row = only(INFERENCE_PERF)
    own = content(INFERENCE_PERF / "stage_0_lifecycle_metrics.json")["successes"]
    latency = own["latency"]
    for ours, theirs in (("ttft", "time_to_first_token"), ("e2e", "request_latency")):
        for statistic in ("mean", "median", "p90", "p95", "p99", "max"):
            assert getattr(row, f"{ours}_{statistic}_ms") == pytest.approx(latency[theirs][statistic] * 1e3)
    means = [latency[name]["mean"] * 1e3 for name in ("request_latency", "time_to_first_token")]
    assert row.tpot_mean_ms == pytest.approx((means[0] - means[1]) / 63)
    assert row.tpot_mean_ms / (latency["time_per_output_token"]["mean"] * 1e3) == pytest.approx(1.196, abs=1e-3)
    assert (row.tpot_p99_ms, row.ttft_std_ms, row.chunk_gap_mean_ms) == (None, None, None)
    assert "re-based" in row.reason
    # Its output rate counts 77.25 re-tokenised tokens a request.
    assert own["throughput"]["output_tokens_per_sec"] * row.duration_s / 40 == pytest.approx(77.25)
    assert row.tok_out_per_s * row.duration_s == pytest.approx(2560)


def test_inference_perf_summary_and_stage_are_the_same_run() -> None:
    stage = only(INFERENCE_PERF / "stage_0_lifecycle_metrics.json")
    summary = only(INFERENCE_PERF / "summary_lifecycle_metrics.json")
    assert latencies(stage) == latencies(summary)
    assert (stage.target_qps, summary.target_qps) == (8.0, 8.0)
    assert stage.run_id.endswith("/qps8/inference_perf-inference-perf-stage_0")


def test_inference_perf_tpot_is_taken_where_the_counts_are_one(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(INFERENCE_PERF, folder)
    config = folder / "config.yaml"
    text = config.read_text(encoding="utf-8")
    config.write_text(text.replace("use_server_output_tokens: false", "use_server_output_tokens: true"), "utf-8")
    row = only(folder)
    assert row.tpot_p99_ms == pytest.approx(9.643710555931197)
    assert row.reason is None


def test_inference_perf_without_its_configuration_names_no_model(tmp_path: Path) -> None:
    path = Path(shutil.copy(INFERENCE_PERF / "summary_lifecycle_metrics.json", tmp_path))
    with pytest.raises(DataError, match=r"names no model.*--model"):
        read_results(path, tier=CPU)
    row = only(path, model="tiny")
    assert (row.target_qps, row.tpot_mean_ms) == (None, pytest.approx(8.18474, abs=1e-4))


def test_inference_perf_fallbacks_are_the_clients_counts(tmp_path: Path) -> None:
    own = content(INFERENCE_PERF / "stage_0_lifecycle_metrics.json")
    own["successes"]["client_fallback_requests"]["output"] = 3
    row = only(written(tmp_path, own), model="tiny")
    assert (row.output_tokens_counted_by, row.headline) == ("client", False)


def test_inference_perf_all_failed(tmp_path: Path) -> None:
    own = content(INFERENCE_PERF / "stage_0_lifecycle_metrics.json")
    done = own["successes"]
    done |= {"count": 0, "latency": dict.fromkeys(done["latency"]), "output_len": None}
    done["output_tokens"] = done["prompt_tokens"] = {"total": 0.0}
    own["failures"]["count"] = 40
    row = only(written(tmp_path, own), model="tiny")
    assert latencies(row) == {}
    assert (row.headline, row.reason) == (False, "no request completed")


def test_a_folder_without_reports_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds neither stage_"):
        read_results(tmp_path, tier=CPU)


# -- names, and what is no result ----------------------------------------------------------------


def with_key(path: Path, folder: Path, *keys: str) -> Path:
    """A copy with ``nobody_knows`` at the place of the keys."""
    whole = content(path)
    place = whole
    for key in keys:
        place = place[int(key) if key.isdigit() else key]
    place["nobody_knows"] = 1
    return written(folder, whole)


@pytest.mark.parametrize(
    ("path", "keys", "name"),
    [
        (VLLM, (), "nobody_knows"),
        (GUIDELLM, ("benchmarks", "0", "metrics"), "metrics.nobody_knows"),
        (GUIDELLM, ("benchmarks", "0", "requests", "successful", "3"), "nobody_knows"),
        (AIPERF, (), "nobody_knows"),
        (AIPERF, ("benchmark_duration",), "benchmark_duration.nobody_knows"),
        (INFERENCE_PERF / "stage_0_lifecycle_metrics.json", ("successes", "latency"), "successes.latency.nobody_knows"),
    ],
)
def test_unknown_keys_are_named(tmp_path: Path, path: Path, keys: tuple[str, ...], name: str) -> None:
    with pytest.warns(DataWarning, match=f"unknown keys, not read: {name}$"):
        read_results(with_key(path, tmp_path, *keys), tier=CPU, model="tiny")


def without(value: dict, dotted: str) -> None:
    *way, last = dotted.split(".")
    for key in way:
        value = value[key]
    del value[last]


@pytest.mark.parametrize(
    ("path", "place", "names"),
    [
        (VLLM, "", ["duration", "completed", "mean_ttft_ms", "total_output_tokens"]),
        (GUIDELLM, "benchmark 1", ["duration", "metrics.request_totals.successful"]),
        (AIPERF, "", ["request_count.avg", "benchmark_duration.avg", "request_latency.avg"]),
        (INFERENCE_PERF / "summary_lifecycle_metrics.json", "", ["failures.count", "successes.output_tokens.total"]),
    ],
)
def test_missing_names_are_named(tmp_path: Path, path: Path, place: str, names: list[str]) -> None:
    for name in names:
        whole = content(path)
        without(whole["benchmarks"][0] if place else whole, name)
        with pytest.raises(DataError, match=rf"{place or 'object 1'}: {name} is missing \(our "):
            read_results(written(tmp_path, whole), tier=CPU, model="tiny")


def test_either_of_two_names_is_enough(tmp_path: Path) -> None:
    own = content(AIPERF)
    del own["total_usage_completion_tokens"], own["total_osl"]
    with pytest.raises(DataError, match=r"total_usage_completion_tokens.avg or total_osl.avg is missing"):
        read_results(written(tmp_path, own), tier=CPU)


def test_text_for_a_number_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="object 1: completed is no number: 'many'"):
        read_results(written(tmp_path, content(VLLM) | {"completed": "many"}), tier=CPU)


def test_the_dictionary_maps_to_columns_of_ours_and_says_why_it_leaves_out() -> None:
    for tool in load_dictionary().values():
        names = [entry.name for entry in tool.all_names()]
        assert len(set(names)) == len(names)
        for entry in tool.all_names():
            assert entry.column in COLUMNS
            assert entry.unit != "s" or not entry.column.endswith("_ms") or entry.factor == 1000
        assert all(len(entry.why) > 3 for entry in (*tool.left_out, *tool.per_request_left_out))


@pytest.mark.parametrize(("tool", "path"), [("vllm", VLLM), ("aiperf", AIPERF)])
def test_every_name_of_the_real_files_is_known(tool: str, path: Path) -> None:
    assert unknown_names(load_dictionary()[tool], flatten(content(path))) == []


@pytest.mark.filterwarnings("ignore::hetgpu.errors.DataWarning")
def test_unrecognised_content_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no known tool.*vllm: model_id.*guidellm.*aiperf.*inference_perf"):
        read_results(INFERENCE_PERF / "validation.json", tier=CPU)
    with pytest.raises(DataError, match=r"unknown tool 'wrk'.*vllm"):
        read_results(VLLM, tier=CPU, tool="wrk")
    # Told to be of a tool, it fails on what that tool must have.
    with pytest.raises(DataError, match="model_id is missing"):
        read_results(INFERENCE_PERF / "validation.json", tier=CPU, tool="vllm")


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("guidellm/benchmarks.csv", "benchmarks.json"),
        ("aiperf/profile_export_aiperf.csv", "profile_export_aiperf.json"),
        ("aiperf/profile_export.jsonl", "profile_export_aiperf.json"),
    ],
)
def test_lesser_exports_are_refused_with_the_file_to_give(name: str, instead: str) -> None:
    with pytest.raises(DataError, match=f"Mend: give .*{instead}"):
        read_results(PEERS / name, tier=CPU)


# -- several objects in a file -------------------------------------------------------------------


@given(
    st.lists(
        st.dictionaries(st.text(max_size=4), st.one_of(st.integers(), st.text(max_size=4))), min_size=1, max_size=5
    ),
    st.lists(st.text(alphabet=" \t\r\n", max_size=3), min_size=6, max_size=6),
)
def test_objects_come_back_whatever_stands_between(objects: list[dict], gaps: list[str]) -> None:
    text = gaps[5] + "".join(json.dumps(value) + gap for value, gap in zip(objects, gaps[:5], strict=False))
    assert parse_objects(text, "x") == objects


@given(st.lists(st.just({"a": {"b": [1, 2]}}), min_size=0, max_size=3), st.integers(min_value=1, max_value=18))
def test_a_cut_is_found_where_it_is(whole: list[dict], kept: int) -> None:
    before = "".join(json.dumps(value) + "\n" for value in whole)
    with pytest.raises(DataError, match=rf"object {len(whole) + 1}, offset {len(before)}: is cut off"):
        parse_objects(before + json.dumps({"a": {"b": [1, 2]}})[:kept], "x")


def test_a_file_cut_off_in_its_second_record_is_refused(tmp_path: Path) -> None:
    text = next(VLLM_2025.glob("*32qps*")).read_text(encoding="utf-8")
    start = text.index("{", 1)
    path = tmp_path / "cut.json"
    path.write_text(text[:-40], encoding="utf-8")
    with pytest.raises(DataError, match=rf"object 2, offset {start}: is cut off"):
        read_results(path)


@pytest.mark.parametrize(
    ("text", "problem"), [("", "is empty"), (" \n", "is empty"), ("[1]", "no JSON object"), ("run_id,a\n", "no JSON")]
)
def test_what_holds_no_object_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "odd.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=problem):
        read_results(path, tier=CPU)


def test_appended_results_are_rows_with_names_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "appended.json"
    path.write_text(VLLM.read_text(encoding="utf-8").strip() * 2, encoding="utf-8")
    rows = read_results(path, tier=CPU)
    assert [row.record for row in rows] == [1, 2]
    assert rows[1].run_id == rows[0].run_id + "-2"


def test_nan_becomes_null(tmp_path: Path) -> None:
    text = VLLM.read_text(encoding="utf-8").replace('"request_goodput": null', '"request_goodput": NaN')
    assert "NaN" in text
    path = tmp_path / "nan.json"
    path.write_text(text, encoding="utf-8")
    assert only(path).goodput_req_per_s is None


# -- who counted ---------------------------------------------------------------------------------


def test_the_servers_usage_counts_and_a_longer_client_count_is_flagged() -> None:
    """Row a of the public case: 14,382 by the client where 8,192 was the limit."""
    count = count_output_tokens({"completion_tokens": 8192}, 14382, 8192)
    assert (count.tokens, count.counted_by, count.headline()) == (8192, "server", True)
    assert count.flags == ("client counted 14382, over max_tokens 8192",)
    assert 14382 / count.tokens == pytest.approx(1.76, abs=0.01)


def test_a_clients_count_stays_out_of_headline_tables() -> None:
    """Row b of the public case: no usage."""
    count = count_output_tokens(None, 516, 900)
    assert (count.tokens, count.counted_by) == (516, "client")
    assert (count.headline(), count.headline(allow_client_counts=True)) == (False, True)
    assert count.flags == ("output tokens counted by the client, not by the server",)


def test_uncounted_tokens_are_an_error() -> None:
    with pytest.raises(DataError, match="counted neither"):
        count_output_tokens({}, None, 10)
    assert count_output_tokens({"completion_tokens": 0}, 3, None).tokens == 0


# -- the command ---------------------------------------------------------------------------------


def test_cli_prints_a_line_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([str(path) for path in sorted(VLLM_2025.glob("*.json"))]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    assert lines[0].startswith("measured/1x-h100-pcie/DeepSeek-R1-Distill-Qwen-14B/200-prompts/qps16/vllm-2025")
    assert all("output counted by server" in line and "ttft_p99_ms=" in line for line in lines)


def test_cli_round_trip_and_merge(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "rows.csv"
    common = ["--tier", "cpu-local", "--precision", "bf16", "--workload", "random-64-64", "--out", str(out)]
    assert cli.main([str(VLLM), *common]) == 0
    first = out.read_bytes()
    assert cli.main([str(VLLM), *common]) == 0
    assert out.read_bytes() == first
    assert cli.main([str(GUIDELLM), str(AIPERF), str(INFERENCE_PERF), *common]) == 0
    rows = read_csv(out, SummaryRow)
    assert [row.run_id.split("/")[-1].split("-")[0] for row in rows] == list(ONE_LOAD)
    assert {(row.precision, row.workload) for row in rows} == {("bf16", "random-64-64")}
    for row, path in zip(rows, ONE_LOAD.values(), strict=True):
        assert latencies(row) == pytest.approx(latencies(only(path)), rel=1e-9)
    # The same run with another value is no repeat.
    changed = content(VLLM) | {"median_ttft_ms": 99.0}
    assert cli.main([str(written(tmp_path, changed)), *common]) == 2
    assert "stands there already and differs: ttft_median_ms 100.4708195 / 99" in capsys.readouterr().err
    assert len(read_csv(out, SummaryRow)) == 4


def test_cli_refuses_another_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "other.csv"
    out.write_text("a,b\n1,2\n", encoding="utf-8")
    assert cli.main([str(VLLM), "--tier", "cpu-local", "--out", str(out)]) == 2
    assert "column missing" in capsys.readouterr().err
    assert out.read_text(encoding="utf-8") == "a,b\n1,2\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([str(VLLM)], "the tier must be given"),
        ([str(VLLM), "--tier", "9x-tpu"], "--tier: 9x-tpu: is no tier"),
        (["no-such.json", "--tier", "cpu-local"], "no such file"),
        ([str(GUIDELLM.with_suffix(".csv")), "--tier", "cpu-local"], "give the JSON file"),
    ],
)
def test_cli_says_what_is_wrong(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == 2
    assert message in capsys.readouterr().err


def test_cli_prints_warnings_and_doubts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = {name: value for name, value in content(AIPERF).items() if "usage" not in name} | {"nobody_knows": 1}
    path = str(written(tmp_path, own))
    assert cli.main([path, "--tier", "cpu-local"]) == 0
    captured = capsys.readouterr()
    assert "not for headline tables" in captured.out
    assert "unknown keys, not read: nobody_knows" in captured.err
    assert cli.main([path, "--tier", "cpu-local", "--allow-client-counts"]) == 0
    assert "not for headline tables" not in capsys.readouterr().out
