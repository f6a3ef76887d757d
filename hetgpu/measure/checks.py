"""The checks that every run stores: what would make its figures something else than the engine's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from hetgpu.evidence import metrics
from hetgpu.evidence.traces import Check

#: Gaps below this came from one read of the socket, s: the client was starved, or tokens were merged.
NEAR_ZERO_GAP_MS = 0.05
NEAR_ZERO_SHARE = 0.05
STALL_RATIO = 1.015
#: The client's lag may be this share of the TTFT it reports.
LAG_SHARE = 0.1
CLIENT_CPU_SHARE = 0.9


def request_checks(requests: pd.DataFrame, duration_s: float) -> list[Check]:
    """Every request accounted for, at the length asked for, in a duration that can be."""
    failed = requests.error.notna()
    first = requests.error[failed].iloc[0] if failed.any() else ""
    told = f"{len(requests)} sent, {int((~failed).sum())} finished, {int(failed.sum())} failed"
    wrong = int((requests.output_tokens != requests.wanted_output_tokens)[~failed].sum())
    last = float(requests.scheduled_s.max())
    return [
        Check("every_request_finished", "error", not failed.any(), f"{told} {first}".strip()),
        Check("answers_as_long_as_asked", "error", wrong == 0, f"{wrong} answers of another length"),
        Check("duration_plausible", "error", duration_s >= last, f"{duration_s:.2f} s; last arrival at {last:.2f} s"),
    ]


def server_checks(requests: pd.DataFrame, before: dict[str, float], after: dict[str, float]) -> list[Check]:
    """The server's own counts against the client's: tokens equal, TTFT within what the network may add."""
    done = requests[requests.error.isna()]

    def grown(name: str) -> float:
        return after.get(f"vllm:{name}", np.nan) - before.get(f"vllm:{name}", np.nan)

    told, same = [], True
    pairs = {"prompt_tokens_total": done.input_tokens.sum(), "generation_tokens_total": done.output_tokens.sum()}
    for name, ours in pairs.items():
        told.append(f"{name} {grown(name):.0f}, client {ours}")
        same &= grown(name) == ours
    if np.isnan(grown("prompt_tokens_total")):
        return [Check("server_token_counts", "warning", False, "the server tells no token counts")]
    mean_ms = metrics.ratio(grown("time_to_first_token_seconds_sum"), grown("time_to_first_token_seconds_count")) * 1e3
    apart_ms = done.ttft_ms.mean() - mean_ms
    hits = metrics.ratio(grown("prefix_cache_hits_total"), grown("prefix_cache_queries_total"))
    return [
        Check("server_token_counts", "error", bool(same), "; ".join(told)),
        Check("server_ttft", "info", apart_ms >= 0, f"client's mean TTFT is {apart_ms:.2f} ms over the server's"),
        Check("prefix_cache_hit_share", "info", True, f"{hits:.3f}" if not np.isnan(hits) else "no cache"),
    ]


def client_checks(requests: pd.DataFrame, cpu_share: float) -> list[Check]:
    """Whether the client kept up: its lag against the TTFT it reports, its CPU, near-zero gaps, merged chunks."""
    done = requests[requests.error.isna()]
    lag_ms = ((requests.sent_s - requests.scheduled_s) * 1e3).quantile(0.95)
    allowed_ms = LAG_SHARE * done.ttft_ms.mean()
    gaps = np.concatenate([np.asarray(g, dtype=float) for g in done.chunk_gaps_ms]) if len(done) else np.array([])
    if not len(gaps):
        gaps = np.array([np.nan])
    tpot = np.nanmean(metrics.tpot_ms(done.e2e_ms, done.ttft_ms, done.output_tokens)) if len(done) else np.nan
    stall = metrics.stall_ratio(gaps.mean(), tpot)
    near_zero = float((gaps < NEAR_ZERO_GAP_MS).mean())
    return [
        Check("client_lag", "warning", bool(lag_ms <= allowed_ms), f"P95 {lag_ms:.2f} ms; allowed {allowed_ms:.2f}"),
        Check("client_cpu", "warning", cpu_share < CLIENT_CPU_SHARE, f"{cpu_share:.2f} of a core"),
        Check("chunks_merged", "warning", bool(stall <= STALL_RATIO), f"mean chunk gap over mean TPOT {stall:.3f}"),
        Check(
            "chunks_at_once",
            "warning",
            near_zero <= NEAR_ZERO_SHARE,
            f"{near_zero:.3f} of gaps under {NEAR_ZERO_GAP_MS} ms; largest gap {gaps.max():.0f} ms",
        ),
    ]


def power_check(energy: dict[str, Any]) -> Check:
    """Whether power was read over the whole run."""
    if energy["method"] is None:
        return Check("power", "info", False, energy["reason"] or "unavailable")
    return Check("power", "warning", energy["coverage"] >= 0.9, f"{energy['method']}, {energy['coverage']:.2f} covered")
