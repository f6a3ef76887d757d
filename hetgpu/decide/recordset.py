"""The published runs with costs and energies joined on, and the cells that claims are made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from hetgpu.errors import DataError
from hetgpu.evidence.records import read_stage_output, short_model

H100, PAIR, QUAD, OCTET = "1x-h100-pcie", "2x-rtx-4090", "4x-rtx-4090", "8x-rtx-4090"
TABLE2_MODEL = "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B"
TOTAL = "tok_total_per_s"


@dataclass(frozen=True)
class Records:
    """The published runs with their costs (one price set) and energies (both TDP bases) joined on.

    ``runs`` has a row a run: summary columns, the cost columns, ``tok_total_per_kwh`` and
    ``gco2_per_mtok_total`` at the paper's TDP, and the same two with ``_sheet`` at the data sheets'.
    ``table2`` maps a printed row of Table 2 to its run_id.
    """

    runs: pd.DataFrame
    table2: dict[int, str]

    def first(self) -> pd.DataFrame:
        """Record 1 of every cell."""
        return self.runs[self.runs.record == 1]

    def row(self, n: int) -> pd.Series:
        """The run behind a row of the printed Table 2."""
        return self.runs.set_index("run_id", drop=False).loc[self.table2[n]]

    def run(self, tier: str, qps: float, model: str = TABLE2_MODEL) -> pd.Series:
        """Record 1 of one cell."""
        first = self.first()
        return first[(first.tier == tier) & (first.target_qps == qps) & (first.model == model)].iloc[0]

    def pairs(self, over: str, under: str) -> Iterator[tuple[str, pd.Series, pd.Series]]:
        """(cell, run on tier ``over``, run on tier ``under``) for every model and rate that ran on both."""
        first = self.first()
        left = first[first.tier == over].set_index(["model", "target_qps"], drop=False)
        right = first[first.tier == under].set_index(["model", "target_qps"], drop=False)
        for key in left.index.intersection(right.index):
            yield f"{short_model(key[0])}, {key[1]:g} QPS", left.loc[key], right.loc[key]


def join_records(runs: pd.DataFrame, costs: pd.DataFrame, energy: pd.DataFrame, table2: dict[int, str]) -> Records:
    """Runs, the costs of one price set and both energies as :class:`Records`.

    Raises
    ------
    DataError : when ``costs`` does not hold exactly one row a run.
    """
    if sorted(costs.run_id) != sorted(runs.run_id):
        raise DataError("costs", "", "not one row a run: is it one price set?", "select a price set first")
    cost_columns = costs.drop(columns=[c for c in costs.columns if c in runs.columns and c != "run_id"])
    joined = runs.merge(cost_columns, on="run_id", validate="one_to_one")
    wanted = ["run_id", "tok_total_per_kwh", "gco2_per_mtok_total"]
    for basis, suffix in (("paper", ""), ("data_sheet", "_sheet")):
        part = energy[energy.tdp_basis == basis][wanted]
        part = part.rename(columns={name: name + suffix for name in wanted[1:]})
        joined = joined.merge(part, on="run_id", validate="one_to_one")
    return Records(joined, table2)


def load_records(price_set: str = "paper-2025-05") -> Records:
    """The :class:`Records` from what the import, cost, energy and table2 stages wrote."""
    runs = read_stage_output("published")
    costs = read_stage_output("costs")
    table2 = read_stage_output("table2_rows")
    return join_records(
        runs,
        costs[costs.price_set == price_set],
        read_stage_output("energy"),
        dict(zip(table2.n, table2.run_id, strict=True)),
    )


def pareto_front(frame: pd.DataFrame, x: str, y: str) -> pd.Series:
    """Which rows no other row beats in both columns (lower is better); boolean, the frame's index."""
    return pd.Series(
        [not ((frame[x] < row[x]) & (frame[y] < row[y])).any() for _, row in frame.iterrows()],
        index=frame.index,
    )
