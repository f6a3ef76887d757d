"""Every claim's function by the claim's id, and their verdicts."""

from __future__ import annotations

from collections.abc import Callable

from hetgpu.decide.claims import Claim, Finding, load_claims, verdict_row
from hetgpu.decide.claims_cost import (
    cost_cut,
    dollar_throughput,
    half_cost,
    horizontal,
    lowest_cost,
    neocloud_price,
    sweet_spots,
)
from hetgpu.decide.claims_energy import carbon_per_mtok, energy_ratio, green_grid, tokens_per_kwh
from hetgpu.decide.claims_load import (
    consumer_knee,
    consumer_latency,
    four_cards,
    four_nodes,
    h100_knee,
    h100_throughput,
    h100_ttft,
    model_range,
    split_h100,
    throughput_share,
)
from hetgpu.decide.recordset import Records
from hetgpu.errors import DataError


def not_computable(records: Records, claim: Claim) -> Finding:
    """A claim on which the records hold no figure at all."""
    return Finding()


FINDINGS: dict[str, Callable[[Records, Claim], Finding]] = {
    "h100-throughput": h100_throughput,
    "throughput-share": throughput_share,
    "half-cost": half_cost,
    "lowest-cost": lowest_cost,
    "cost-cut": cost_cut,
    "hybrid-saving": not_computable,
    "dollar-throughput": dollar_throughput,
    "h100-ttft": h100_ttft,
    "consumer-latency": consumer_latency,
    "sweet-spots": sweet_spots,
    "model-range": model_range,
    "h100-knee": h100_knee,
    "consumer-knee": consumer_knee,
    "four-cards": four_cards,
    "four-nodes": four_nodes,
    "split-h100": split_h100,
    "horizontal": horizontal,
    "energy-ratio": energy_ratio,
    "tokens-per-kwh": tokens_per_kwh,
    "carbon-per-mtok": carbon_per_mtok,
    "green-grid": green_grid,
    "neocloud-price": neocloud_price,
    "uses": not_computable,
}


def evaluate(records: Records) -> list[dict]:
    """Every claim's verdict, in the order of ``claims.yaml``.

    Raises
    ------
    DataError : for a claim that no function here computes.
    """
    rows = []
    for claim in load_claims():
        if claim.id not in FINDINGS:
            raise DataError(
                "claims.yaml", claim.id, "no function computes it", "add one to FINDINGS in claim_values.py"
            )
        rows.append(verdict_row(claim, FINDINGS[claim.id](records, claim)))
    return rows
