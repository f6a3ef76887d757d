"""One definition a metric. Every number the project prints is computed here and nowhere else.

All functions take plain numbers and work elementwise on NumPy arrays and pandas Series of any
shape. Where a ratio's denominator is zero the answer is NaN, written as null with a reason: never
0, never infinity.

Sources named below: *vLLM*, its benchmark client (``vllm.benchmarks.serve``); *paper*, doi
10.1145/3775043.3775047, section 3 (cost) and 4 (energy).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from hetgpu.errors import DataError

SECONDS_PER_HOUR = 3600.0
J_PER_KWH = 3.6e6
TOKENS_PER_MTOK = 1e6

#: Joules in one of each unit that an energy may be given in.
J_PER_UNIT = {"J": 1.0, "mJ": 1e-3, "kJ": 1e3, "Wh": 3600.0, "kWh": J_PER_KWH}


def ratio(numerator: Any, denominator: Any) -> Any:
    """``numerator / denominator``, NaN where the denominator is 0 or missing."""
    bottom = np.asarray(denominator, dtype=float)
    with np.errstate(divide="ignore", invalid="ignore"):
        quotient = np.asarray(numerator, dtype=float) / np.where(bottom == 0, np.nan, bottom)
    return quotient if np.ndim(quotient) else float(quotient)


# -- throughput ----------------------------------------------------------------------------------


def req_per_s(completed: Any, duration_s: Any) -> Any:
    """Completed requests per second, drain included: ``completed / duration_s`` (vLLM)."""
    return ratio(completed, duration_s)


def tok_out_per_s(output_tokens: Any, duration_s: Any) -> Any:
    """Output tokens per second: ``output_tokens / duration_s`` (vLLM)."""
    return ratio(output_tokens, duration_s)


def tok_total_per_s(input_tokens: Any, output_tokens: Any, duration_s: Any) -> Any:
    """Tokens in and out per second: ``(input_tokens + output_tokens) / duration_s`` (vLLM)."""
    return ratio(np.asarray(input_tokens) + np.asarray(output_tokens), duration_s)


def throughputs(completed: Any, input_tokens: Any, output_tokens: Any, duration_s: Any) -> dict[str, Any]:
    """The three throughputs of a run under their columns' names; see the functions of these names."""
    return {
        "req_per_s": req_per_s(completed, duration_s),
        "tok_out_per_s": tok_out_per_s(output_tokens, duration_s),
        "tok_total_per_s": tok_total_per_s(input_tokens, output_tokens, duration_s),
    }


def goodput_req_per_s(good_requests: Any, duration_s: Any) -> Any:
    """Requests that met the SLO, per second: ``good_requests / duration_s`` (vLLM ``--goodput``;
    the authors' SLO is TTFT under 2,000 ms).
    """
    return ratio(good_requests, duration_s)


def tpot_ms(e2e_ms: Any, ttft_ms: Any, output_tokens: Any) -> Any:
    """Time per output token after the first, ms: ``(e2e - ttft) / (output_tokens - 1)`` (vLLM).

    A request of one token has none: NaN.
    """
    return ratio(np.asarray(e2e_ms) - np.asarray(ttft_ms), np.asarray(output_tokens) - 1)


def e2e_mean_ms(ttft_mean_ms: Any, tpot_mean_ms: Any, output_tokens_mean: Any) -> Any:
    """Mean end-to-end latency from means, ms: ``ttft + tpot x (output_tokens - 1)``.

    Exact for one request; over many it neglects the covariance of TPOT and length.
    """
    return np.asarray(ttft_mean_ms) + np.asarray(tpot_mean_ms) * (np.asarray(output_tokens_mean) - 1)


def mean_concurrency(completed: Any, e2e_mean_s: Any, duration_s: Any) -> Any:
    """Requests in flight, on average: ``completed x e2e / duration`` (Little's law)."""
    return ratio(np.asarray(completed) * np.asarray(e2e_mean_s), duration_s)


# -- statistics of a run --------------------------------------------------------------------------


def statistics(prefix: str, values_ms: Any) -> dict[str, float]:
    """Our statistics of a sample, ms, under ``<prefix>_<statistic>_ms``; {} where there is none.

    The deviation divides by N and percentiles interpolate linearly, as vLLM's client has it
    (``vllm.benchmarks.serve``); NaN (a request of one token has no TPOT) is left out.
    """
    sample = np.asarray(values_ms, dtype=float)
    sample = sample[~np.isnan(sample)]
    if sample.size == 0:
        return {}
    numbers = {"mean": sample.mean(), "median": np.median(sample), "std": sample.std(), "max": sample.max()}
    numbers |= {f"p{p}": np.percentile(sample, p) for p in (90, 95, 99)}
    return {f"{prefix}_{name}_ms": float(value) for name, value in numbers.items()}


def request_statistics(
    ttft_ms: Any, e2e_ms: Any, output_tokens: Any, chunk_gaps_ms: Iterable[Any] | None = None
) -> dict[str, float]:
    """All latency columns from per-request values, by the definitions here.

    Parameters
    ----------
    ttft_ms, e2e_ms, output_tokens : shape ``(completed,)``; e2e up to the last token.
    chunk_gaps_ms : a list of gaps a request, or None where the tool does not time chunks.
    """
    columns = statistics("ttft", ttft_ms) | statistics("e2e", e2e_ms)
    columns |= statistics("tpot", tpot_ms(e2e_ms, ttft_ms, output_tokens))
    if chunk_gaps_ms is not None:
        columns |= statistics("chunk_gap", [gap for gaps in chunk_gaps_ms for gap in gaps])
    return columns


# -- cost ----------------------------------------------------------------------------------------


def usd_per_run(usd_per_gpu_hour: Any, gpu_count: Any, duration_s: Any) -> Any:
    """Rent of the tier over the run, USD: ``price x GPUs x duration / 3600`` (paper)."""
    return np.asarray(usd_per_gpu_hour) * np.asarray(gpu_count) * np.asarray(duration_s) / SECONDS_PER_HOUR


def usd_per_mtok(usd: Any, tokens: Any) -> Any:
    """USD per million of ``tokens``: ``usd / tokens x 1e6`` (paper).

    The paper's denominator is tokens in *and* out (``usd_per_mtok_total``); an API's price list
    counts output tokens (``usd_per_mtok_out``) and input tokens (``usd_per_mtok_in``) apart. Each
    of the three names the whole rent over its own tokens; they do not add up.
    """
    return ratio(np.asarray(usd) * TOKENS_PER_MTOK, tokens)


def tok_total_per_usd(tok_total_per_s: Any, usd_per_gpu_hour: Any, gpu_count: Any) -> Any:
    """Throughput per dollar: tokens in and out that one USD of rent buys,
    ``tok_total_per_s x 3600 / (price x GPUs)``; the inverse of USD per token.
    """
    return ratio(np.asarray(tok_total_per_s) * SECONDS_PER_HOUR, np.asarray(usd_per_gpu_hour) * np.asarray(gpu_count))


# -- energy and carbon ---------------------------------------------------------------------------


def energy_j(amount: float, unit: str | None) -> float:
    """An energy in joules, from an amount and its unit (J, mJ, kJ, Wh, kWh).

    Raises
    ------
    DataError : when the unit is missing or unknown.
    """
    if not unit or unit not in J_PER_UNIT:
        problem = "unit missing" if not unit else f"unknown unit {unit!r}"
        raise DataError("energy", "unit", problem, f"give one of {', '.join(J_PER_UNIT)}")
    return amount * J_PER_UNIT[unit]


def energy_at_tdp_j(tdp_w: Any, gpu_count: Any, duration_s: Any) -> Any:
    """Energy if every GPU drew its TDP throughout, J: ``tdp x GPUs x duration`` (paper).

    A ceiling of the GPUs' own draw; host, cooling and idle time are not in it.
    """
    return np.asarray(tdp_w) * np.asarray(gpu_count) * np.asarray(duration_s)


def tok_total_per_kwh(tokens: Any, energy_j: Any) -> Any:
    """Tokens in and out per kWh: ``tokens / (energy / 3.6e6)`` (paper)."""
    return ratio(np.asarray(tokens) * J_PER_KWH, energy_j)


def j_per_tok(energy_j: Any, tokens: Any) -> Any:
    """Joules per token of whichever tokens are given."""
    return ratio(energy_j, tokens)


def gco2_per_mtok(energy_j: Any, tokens: Any, gco2_per_kwh: Any) -> Any:
    """Grams of CO2 per million tokens: ``kWh x intensity / tokens x 1e6`` (paper)."""
    return ratio(np.asarray(energy_j) / J_PER_KWH * np.asarray(gco2_per_kwh) * TOKENS_PER_MTOK, tokens)


# -- audit ---------------------------------------------------------------------------------------


def arrivals_s(qps: float, num_requests: int, seed: int = 42) -> np.ndarray:
    """When the authors' client sent each request, s after the first; shape ``(num_requests,)``.

    vLLM 0.8.5's client seeds NumPy and draws gaps ``gamma(1, 1/qps)``, the first request at 0.
    """
    gaps = np.random.RandomState(seed).gamma(1.0, 1.0 / qps, num_requests)
    return np.concatenate([[0.0], np.cumsum(gaps)[:-1]])


def drain_share(duration_s: Any, last_arrival_s: Any) -> Any:
    """Share of a run's duration that lies after the last arrival: ``1 - last_arrival / duration``.

    In the drain no request arrives and the batch empties, so requests over duration falls below
    what the engine sustains.
    """
    return 1.0 - ratio(last_arrival_s, duration_s)


def stall_ratio(chunk_gap_mean_ms: Any, tpot_mean_ms: Any) -> Any:
    """Mean chunk gap over mean TPOT: 1 when each token comes in its own chunk.

    Above 1, tokens came merged. The mean of gaps weighs long answers more than the mean of
    per-request TPOT does, so under load it falls *below* 1 and can hide merging; and a client that
    starves stamps chunks separately, which this ratio does not see at all.
    """
    return ratio(chunk_gap_mean_ms, tpot_mean_ms)


def prefill_interruption_ratio(chunk_gap_p99_ms: Any, chunk_gap_median_ms: Any) -> Any:
    """P99 over median chunk gap: near 1 where no prefill ever stretched a decode step.

    At low rates that is the mark of a warm prefix cache: prompts that need no prefill interrupt
    nobody.
    """
    return ratio(chunk_gap_p99_ms, chunk_gap_median_ms)


def signed_error(computed: Any, reference: Any) -> Any:
    """Relative difference ``computed / reference - 1``."""
    return ratio(computed, reference) - 1.0
