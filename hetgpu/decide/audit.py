"""The paper's assumptions held against its own records, cell by cell.

A *cell* is one run: (tier, model, target QPS, record).
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from hetgpu.decide.cost import KEYS
from hetgpu.evidence import metrics

#: Seed of the authors' client; it fixes when each request arrived.
AUTHORS_SEED = 42


def is_multi_consumer(runs: pd.DataFrame) -> pd.Series:
    """Which rows ran on several consumer cards, where the signs below are confounded; boolean."""
    return (runs.gpu == "RTX-4090") & (runs.gpu_count > 1)


def last_arrival_s(runs: pd.DataFrame) -> np.ndarray:
    """When the last request of each run arrived, s after the first; shape ``(len(runs),)``."""
    pairs = zip(runs.target_qps, runs.num_prompts, strict=True)
    return np.array([metrics.arrivals_s(qps, int(n), AUTHORS_SEED)[-1] for qps, n in pairs])


def cache_state(
    cells: pd.DataFrame, at_qps: float, warm_below: float, cold_above: float, first_qps: float
) -> pd.Series:
    """Whether each run met a warm prefix cache: ``warm``, ``cold`` or ``unidentified``.

    One server served all rates of a (tier, model) pair, so the pair is judged by its run at
    ``at_qps``: P99 over median chunk gap below ``warm_below`` is warm, above ``cold_above`` cold.
    The run at ``first_qps`` came first and met an empty cache in any case. On several 4090s merged
    chunks give the same sign: unidentified.
    """
    judged = cells[(cells.target_qps == at_qps) & (cells.record == 1)]
    sign = judged.set_index(["tier", "model"]).prefill_interruption_ratio
    of_pair = pd.MultiIndex.from_frame(cells[["tier", "model"]]).map(sign.to_dict()).to_numpy(dtype=float)
    state = np.select([of_pair < warm_below, of_pair > cold_above], ["warm", "cold"], "unidentified")
    state = np.where(cells.target_qps == first_qps, "cold", state)
    state = np.where(is_multi_consumer(cells) & (cells.target_qps != first_qps), "unidentified", state)
    return pd.Series(state, index=cells.index)


def audit_cells(runs: pd.DataFrame, rules: dict[str, float]) -> pd.DataFrame:
    """The audit's measures for every run.

    Parameters
    ----------
    runs : published summary rows.
    rules : ``stall_above``, ``warm_below``, ``cold_above``, ``judge_at_qps``, ``first_qps``.

    Returns
    -------
    One row a run: keys, ``last_arrival_s``, ``duration_s``, ``drain_share``, ``stall_ratio``,
    ``stalled``, ``prefill_interruption_ratio``, ``cache``, ``ttft_p99_ms``.
    """
    cells = runs[[*KEYS, "duration_s", "ttft_p99_ms"]].copy()
    cells["last_arrival_s"] = last_arrival_s(runs)
    cells["drain_share"] = metrics.drain_share(runs.duration_s, cells.last_arrival_s)
    cells["stall_ratio"] = metrics.stall_ratio(runs.chunk_gap_mean_ms, runs.tpot_mean_ms)
    cells["stalled"] = is_multi_consumer(runs) & (cells.stall_ratio > rules["stall_above"])
    cells["prefill_interruption_ratio"] = metrics.prefill_interruption_ratio(
        runs.chunk_gap_p99_ms, runs.chunk_gap_median_ms
    )
    cells["cache"] = cache_state(
        cells, rules["judge_at_qps"], rules["warm_below"], rules["cold_above"], rules["first_qps"]
    )
    return cells


def repeat_noise(runs: pd.DataFrame) -> pd.DataFrame:
    """How far two runs of one cell lie apart.

    Returns
    -------
    One row a repeated cell: tier, model, target_qps, and for TTFT mean, TTFT P99, TPOT mean and
    duration the absolute relative difference of record 2 from record 1.
    """
    columns = ["ttft_mean_ms", "ttft_p99_ms", "tpot_mean_ms", "duration_s"]
    cell = ["tier", "model", "target_qps"]
    first = runs[runs.record == 1].set_index(cell)[columns]
    second = runs[runs.record == 2].set_index(cell)[columns]
    both = second.index.intersection(first.index)
    apart = (second.loc[both] / first.loc[both] - 1.0).abs()
    return apart.add_suffix("_apart").reset_index()


def record_of_printed_rows(printed: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Which record each row of the printed Table 2 was taken from.

    Parameters
    ----------
    printed : the printed table, cells as text.
    runs : published summary rows of the table's model.

    Returns
    -------
    Columns ``n`` (the printed row), ``run_id``, ``record``, ``records_there_are``; a row is matched
    by its printed duration, tokens/s and TTFT; ``run_id`` is null where no record matches.
    """
    rows = []
    for row in printed.itertuples():
        same = runs[(runs.gpu == row.gpu) & (runs.gpu_count == int(row.gpus)) & (runs.target_qps == float(row.qps))]
        hits = same[
            (same.duration_s.map("{:.2f}".format) == row.duration_s)
            & (same.tok_total_per_s.map("{:.2f}".format) == row.tok_s)
            & (same.ttft_mean_ms.map("{:.2f}".format) == row.ttft_mean_ms)
        ]
        hit = hits.iloc[0] if len(hits) else None
        rows.append(
            {
                "n": int(row.n),
                "run_id": None if hit is None else hit.run_id,
                "record": None if hit is None else int(hit.record),
                "records_there_are": len(same),
            }
        )
    return pd.DataFrame(rows)
