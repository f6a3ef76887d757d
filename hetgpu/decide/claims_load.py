"""What the records say on the claims about throughput, latency and scaling.

Every function takes the records and a claim and returns a finding; ratios between tiers are at equal load
(same model, same target QPS), record 1 unless said.
"""

from __future__ import annotations

from hetgpu.decide.claims import Claim, Finding, Mended, Value
from hetgpu.decide.claims_common import ratios, values_at, which
from hetgpu.decide.recordset import (
    H100,
    OCTET,
    PAIR,
    QUAD,
    TABLE2_MODEL,
    TOTAL,
    Records,
)
from hetgpu.evidence import metrics
from hetgpu.evidence.catalog import load_models, load_tiers
from hetgpu.evidence.records import short_model


def h100_throughput(records: Records, claim: Claim) -> Finding:
    """Tokens/s of one H100 over each 4090 tier at equal load."""
    quantity = next(iter(claim.claimed))
    values = []
    for tier in ("1x-rtx-4090", PAIR, QUAD, OCTET):
        values += ratios(records, H100, tier, TOTAL, quantity)
    top = max(values, key=lambda value: value.value)
    at16 = [
        min((v for v in values if v.cell.startswith(f"{name}, 16 QPS")), key=lambda v: v.value)
        for name in dict.fromkeys(v.cell.split(",")[0] for v in values)
    ]
    text = ", ".join(f"{v.cell.split(',')[0]} {v.value:.2f}x" for v in at16)
    condition = f"the largest is {top.value:.2f}x ({top.cell}). Against the best 4090 tier at 16 QPS: {text}"
    return Finding(values, condition)


def throughput_share(records: Records, claim: Claim) -> Finding:
    """Tokens/s of 4x 4090 over one H100 at equal load."""
    values = ratios(records, QUAD, H100, TOTAL, next(iter(claim.claimed)))
    row11, row13 = records.row(11), records.row(13)
    unequal = metrics.ratio(row11[TOTAL], row13[TOTAL])
    mended = [
        Mended(
            "row 11 (8 QPS) beside row 13 (16 QPS); mended: both at 16 QPS",
            unequal,
            values_at(values, 16),
            "",
        )
    ]
    return Finding(values, which(claim, values), mended)


def h100_ttft(records: Records, claim: Claim) -> Finding:
    """P99 TTFT of every run on one H100."""
    quantity = next(iter(claim.claimed))
    runs = records.runs[records.runs.tier == H100]
    values = [
        Value(
            quantity,
            f"{short_model(r.model)}, {r.target_qps:g} QPS, record {r.record}",
            r.ttft_p99_ms,
            (r.run_id,),
        )
        for r in runs.itertuples()
    ]
    size = runs.model.map(lambda name: load_models()[name].parameters_b)
    small, large = runs[size < 20], runs[size >= 20]
    to16, at32 = small[small.target_qps <= 16], small[small.target_qps == 32]
    over = to16[to16.ttft_p99_ms >= claim.claimed[quantity][0]]
    straddle = ", ".join(f"{short_model(r.model)} record {r.record} {r.ttft_p99_ms:.1f} ms" for r in over.itertuples())
    condition = (
        f"models up to 14B and up to 16 QPS (at most {to16.ttft_p99_ms.max():.1f} ms; over 55 but within the noise: "
        f"{straddle or 'none'}); at 32 QPS {at32.ttft_p99_ms.min():.0f}-{at32.ttft_p99_ms.max():.0f} ms, "
        f"with 32B models {large.ttft_p99_ms.min():.0f} ms and more"
    )
    return Finding(values, condition)


def consumer_latency(records: Records, claim: Claim) -> Finding:
    """P99 TTFT of every run on 4090 tiers."""
    quantity = next(iter(claim.claimed))
    runs = records.runs[records.runs.gpu == "RTX-4090"]
    values = [
        Value(quantity, f"{short_model(r.model)}, {r.target_qps:g} QPS, {r.tier}", r.ttft_p99_ms, (r.run_id,))
        for r in runs.itertuples()
    ]
    parts, labels = [], {key: tier.label for key, tier in load_tiers().items()}
    for tier, group in runs.groupby("tier"):
        met = group[group.ttft_p99_ms < claim.claimed[quantity][0] * (1 + claim.tolerance)]
        parts.append(f"{labels[tier]} in {len(met)} of {len(group)} cells")
    pair = records.first()
    best = pair[(pair.tier == PAIR) & (pair.model == TABLE2_MODEL)].ttft_p99_ms.min()
    return Finding(values, f"{'; '.join(parts)}. Qwen-14B on 2x 4090 never: {best:.0f} ms at best")


def model_range(records: Records, claim: Claim) -> Finding:
    """The largest model of each tier's GPU."""
    quantity = next(iter(claim.claimed))
    models = load_models()
    values, largest = [], {}
    for gpu, group in records.runs.groupby("gpu"):
        name = max(group.model.unique(), key=lambda model: models[model].parameters_b)
        largest[gpu] = name
        values.append(Value(quantity, str(gpu), models[name].parameters_b, tuple(group[group.model == name].run_id)))
    return Finding(values, "; ".join(f"{gpu}: up to {short_model(name)}" for gpu, name in largest.items()))


def _knee(records: Records, claim: Claim, tier: str, knee_qps: float) -> tuple[list[Value], str]:
    at_knee, plateau = claim.claimed
    label = load_tiers()[tier].label
    cells = [(at_knee, knee_qps), (plateau, 16), (plateau, 32)]
    values = []
    for quantity, qps in cells:
        run = records.run(tier, qps)
        values.append(Value(quantity, f"{label}, {qps:g} QPS", run.req_per_s, (run.run_id,)))
    return values, "; ".join(f"{v.cell}: {v.value:.2f}" for v in values)


def h100_knee(records: Records, claim: Claim) -> Finding:
    """Achieved req/s of the H100 at 8, 16 and 32 QPS; and what the drain takes at 8 QPS."""
    values, text = _knee(records, claim, H100, 8)
    run = records.run(H100, 8)
    window = float(metrics.arrivals_s(8, int(run.num_prompts))[-1])
    ideal = metrics.req_per_s(run.num_prompts - 1, window)
    mended = [
        Mended(
            "requests over the whole run; mended: the rate offered while requests arrived (8 QPS)",
            run.req_per_s,
            ideal,
            "req/s",
        )
    ]
    return Finding(values, text, mended)


def consumer_knee(records: Records, claim: Claim) -> Finding:
    """Achieved req/s of 2x 4090 at 4, 16 and 32 QPS; the printed figures beside those of 4x 4090."""
    values, text = _knee(records, claim, PAIR, 4)
    quad = records.run(QUAD, 4)
    mended = [Mended("2x 4090 at 4 QPS; for comparison 4x 4090", values[0].value, quad.req_per_s, "req/s")]
    return Finding(values, text, mended)


def four_cards(records: Records, claim: Claim) -> Finding:
    """Tokens/s that 4x 4090 adds over 2x at equal load."""
    quantity = next(iter(claim.claimed))
    values = [Value(quantity, v.cell, v.value - 1.0, v.runs) for v in ratios(records, QUAD, PAIR, TOTAL, quantity)]
    top = max(values, key=lambda v: v.value)
    return Finding(values, f"{which(claim, values)}; at most {top.value:+.0%} ({top.cell})")


def four_nodes(records: Records, claim: Claim) -> Finding:
    """The arithmetic behind the drawn diamond: one node at 4 QPS, times four."""
    node, one = records.run(PAIR, 4), records.run(H100, 16)
    product = 4 * node.req_per_s
    mended = [
        Mended("text: ~12 req/s; one node at 4 QPS times four", 12.0, product, "req/s"),
        Mended(
            "text: ~1.5x the H100; that product over the H100 at 16 QPS",
            1.5,
            metrics.ratio(product, one.req_per_s),
            "x",
        ),
    ]
    return Finding(mended=mended)


def split_h100(records: Records, claim: Claim) -> Finding:
    """What one H100's two records at 32 QPS say of its tail."""
    runs = records.runs
    at32 = runs[(runs.tier == H100) & (runs.model == TABLE2_MODEL) & (runs.target_qps == 32)].ttft_p99_ms
    half = records.run(H100, 16).ttft_p99_ms
    return Finding(
        mended=[Mended("one H100 at 32 QPS; half that load on it (16 QPS), P99 TTFT", at32.max(), half, "ms")]
    )
