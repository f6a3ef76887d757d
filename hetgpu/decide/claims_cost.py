"""What the records say on the claims about cost.

Every function takes the records and a claim and returns a finding; ratios between tiers are at equal load
(same model, same target QPS), record 1 unless said.
"""

from __future__ import annotations

from itertools import pairwise

import pandas as pd

from hetgpu.decide.claims import Claim, Finding, Mended, Value
from hetgpu.decide.claims_common import ratios, values_at, which
from hetgpu.decide.recordset import (
    H100,
    OCTET,
    PAIR,
    QUAD,
    TABLE2_MODEL,
    Records,
    pareto_front,
)
from hetgpu.evidence import metrics
from hetgpu.evidence.catalog import load_prices


def half_cost(records: Records, claim: Claim) -> Finding:
    """4x 4090 over H100: rent per hour, and cost per token where the throughput share holds (16 QPS)."""
    quantity = next(iter(claim.claimed))
    quad, one = records.run(QUAD, 16), records.run(H100, 16)
    rent = metrics.ratio(quad.usd_per_gpu_hour * quad.gpu_count, one.usd_per_gpu_hour * one.gpu_count)
    per_token = [v for v in ratios(records, QUAD, H100, "usd_per_mtok_total", quantity) if ", 16 QPS" in v.cell]
    values = [Value(quantity, "rent per hour", rent, (quad.run_id, one.run_id)), *per_token]
    text = ", ".join(f"{v.cell.split(',')[0]} {v.value:.2f}" for v in per_token)
    mended = [Mended("per hour of rent; mended: per token at 16 QPS (Qwen-14B)", rent, values_at(per_token, 16), "")]
    return Finding(values, f"per hour of rent ({rent:.2f}); per token at 16 QPS it is {text}", mended)


def lowest_cost(records: Records, claim: Claim) -> Finding:
    """The lowest cost per token in Table 2: of all rows, and of those with P99 TTFT up to 500 ms."""
    quantity = next(iter(claim.claimed))
    rows = pd.DataFrame([records.row(n) for n in sorted(records.table2)])
    rows = rows.assign(n=sorted(records.table2)).reset_index(drop=True)
    any_row = rows.loc[rows.usd_per_mtok_total.idxmin()]
    quick = rows[rows.ttft_p99_ms <= 500]
    quick_row = quick.loc[quick.usd_per_mtok_total.idxmin()]
    values = [
        Value(quantity, f"lowest of all rows (row {any_row.n})", any_row.usd_per_mtok_total, (any_row.run_id,)),
        Value(
            quantity,
            f"lowest with P99 TTFT up to 500 ms (row {quick_row.n})",
            quick_row.usd_per_mtok_total,
            (quick_row.run_id,),
        ),
    ]
    condition = (
        f"among rows with P99 TTFT up to 500 ms (row {quick_row.n}: {quick_row.usd_per_mtok_total:.3f}); "
        f"the lowest of the table is row {any_row.n}: {any_row.usd_per_mtok_total:.3f}"
    )
    row6, row11 = records.row(6), records.row(11)
    mended = [
        Mended(
            "total tokens; mended: output tokens (row 6)",
            row6.usd_per_mtok_total,
            row6.usd_per_mtok_out,
            "USD",
        ),
        Mended(
            "total tokens; mended: output tokens (row 11)",
            row11.usd_per_mtok_total,
            row11.usd_per_mtok_out,
            "USD",
        ),
    ]
    return Finding(values, condition, mended)


def cost_cut(records: Records, claim: Claim) -> Finding:
    """Share of the H100's cost per token that each 4090 cluster saves at equal load; and each at its cheapest."""
    quantity = next(iter(claim.claimed))
    values = []
    for tier in (PAIR, QUAD, OCTET):
        shares = ratios(records, tier, H100, "usd_per_mtok_total", quantity)
        values += [Value(quantity, share.cell, 1.0 - share.value, share.runs) for share in shares]
    top = max(values, key=lambda v: v.value)
    first = records.first()
    cheapest = first[first.model == TABLE2_MODEL].groupby("tier").usd_per_mtok_total.min()
    at_best = 1.0 - metrics.ratio(cheapest[PAIR], cheapest[H100])
    condition = f"the largest saving is {top.value:.0%} ({top.cell}), where neither tier is loaded"
    ours = values_at(values, 1)
    mended = [
        Mended("both at 1 QPS; mended: both at 16 QPS (Qwen-14B, 2x 4090)", ours, values_at(values, 16), ""),
        Mended("both at 1 QPS; mended: each tier at its cheapest rate (Qwen-14B, 2x 4090)", ours, at_best, ""),
    ]
    return Finding(values, condition, mended)


def dollar_throughput(records: Records, claim: Claim) -> Finding:
    """Tokens per USD of 2x 4090 over one H100 at equal load."""
    values = ratios(records, PAIR, H100, "tok_total_per_usd", next(iter(claim.claimed)))
    return Finding(values, which(claim, values))


def sweet_spots(records: Records, claim: Claim) -> Finding:
    """Whether rows 6, 11 and 13 are on Table 2's front of cost per token and P99 TTFT."""
    quantity = next(iter(claim.claimed))
    numbers = sorted(records.table2)
    rows = pd.DataFrame([records.row(n) for n in numbers]).set_axis(numbers)
    front = pareto_front(rows, "usd_per_mtok_total", "ttft_p99_ms")
    values = [Value(quantity, f"row {n}", float(front[n]), (rows.run_id[n],)) for n in (6, 11, 13)]
    notes = []
    for n in (6, 11, 13):
        better = rows[(rows.usd_per_mtok_total < rows.usd_per_mtok_total[n]) & (rows.ttft_p99_ms < rows.ttft_p99_ms[n])]
        if len(better):
            m = better.usd_per_mtok_total.idxmin()
            notes.append(
                f"row {n} ({rows.usd_per_mtok_total[n]:.3f} USD, {rows.ttft_p99_ms[n]:.0f} ms) is beaten by row {m} "
                f"({rows.usd_per_mtok_total[m]:.3f} USD, {rows.ttft_p99_ms[m]:.0f} ms)"
            )
    on = ", ".join(f"row {v.cell.split()[1]}" for v in values if v.value)
    return Finding(values, f"on the front: {on or 'none'}; {'; '.join(notes) or 'none is beaten'}")


def neocloud_price(records: Records, claim: Claim) -> Finding:
    """Alternative over hyperscaler price of each H100 in the paper's Table 1."""
    quantity = next(iter(claim.claimed))
    may = [price for price in load_prices() if price.as_of == "2025-05"]
    cheap = {price.gpu: price.usd_per_gpu_hour for price in may if price.provider.startswith("alternative")}
    values = [
        Value(quantity, f"{p.gpu}, {p.sku}", metrics.ratio(cheap[p.gpu], p.usd_per_gpu_hour))
        for p in may
        if p.provider == "hyperscalers"
    ]
    return Finding(values, "; ".join(f"{v.cell}: {v.value:.0%}" for v in values))


def horizontal(records: Records, claim: Claim) -> Finding:
    """USD per token of n cards over 2n cards at equal load."""
    quantity = next(iter(claim.claimed))
    values = []
    for fewer, more in pairwise(("1x-rtx-4090", PAIR, QUAD, OCTET)):
        values += ratios(records, fewer, more, "usd_per_mtok_total", quantity)
    quicker = sum(
        a.ttft_p99_ms < b.ttft_p99_ms
        for fewer, more in pairwise(("1x-rtx-4090", PAIR, QUAD, OCTET))
        for _, a, b in records.pairs(fewer, more)
    )
    low, high = min(v.value for v in values), max(v.value for v in values)
    text = f"half the cards cost {low:.2f}-{high:.2f} as much per token, and their P99 TTFT is lower in {quicker} cells"
    return Finding(values, text)
