"""The audit as a list: each assumption of the paper, what the records say of it, and the figures.

Every sentence is made from computed figures; none is typed.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import pandas as pd

from hetgpu.decide.audit import is_multi_consumer, repeat_noise
from hetgpu.decide.compare import cost_shares
from hetgpu.decide.cost import COST_COLUMNS
from hetgpu.decide.recordset import H100, PAIR, QUAD, TABLE2_MODEL, Records
from hetgpu.evidence import metrics
from hetgpu.evidence.catalog import load_gpus
from hetgpu.evidence.records import short_model


@dataclass(frozen=True)
class Item:
    """One assumption: what the paper has it, what the records say, and both as figures where it is a number."""

    id: str
    assumption: str
    finding: str
    as_printed: float | None = None
    mended: float | None = None
    unit: str = ""


def tdp(records: Records, paper_tdp_w: dict[str, float]) -> Item:
    """The PCIe card's TDP."""
    sheet = load_gpus()["H100-PCIe"]
    row13, row6 = records.row(13), records.row(6)
    paper = metrics.ratio(row13.tok_total_per_kwh, row6.tok_total_per_kwh)
    mended = metrics.ratio(row13.tok_total_per_kwh_sheet, row6.tok_total_per_kwh_sheet)
    return Item(
        "tdp",
        f"The H100 80GB PCIe draws {paper_tdp_w['H100-PCIe']:g} W.",
        f"That is the SXM card's TDP; the PCIe card's is {sheet.tdp_w:g} W ({sheet.data_sheet}). Energy per token "
        f"of the H100 halves, and its advantage over 2x RTX 4090 grows from {paper:.1f}x to {mended:.1f}x.",
        paper,
        mended,
        "tokens per kWh, H100 over 2x 4090",
    )


def unequal_loads(records: Records) -> Item:
    """Row 13 is at 16 QPS, row 6 at 4."""
    row13, row6 = records.row(13), records.row(6)
    printed = metrics.ratio(row13.tok_total_per_s, row6.tok_total_per_s)
    equal = {
        qps: metrics.ratio(records.run(H100, qps).tok_total_per_s, records.run(PAIR, qps).tok_total_per_s)
        for qps in (4, 16)
    }
    table3 = metrics.ratio(row13.tok_total_per_kwh, row6.tok_total_per_kwh)
    energy = {
        qps: metrics.ratio(records.run(H100, qps).tok_total_per_kwh, records.run(PAIR, qps).tok_total_per_kwh)
        for qps in (4, 16)
    }
    return Item(
        "unequal-loads",
        "Table 3 sets the H100 at 16 QPS (row 13) beside 2x RTX 4090 at 4 QPS (row 6).",
        f"The H100's throughput is {printed:.2f}x the pair's there, but {equal[4]:.2f}x with both at 4 QPS and "
        f"{equal[16]:.2f}x with both at 16. At the paper's own TDP the energy ratio is {energy[4]:.2f}x at 4 QPS and "
        f"{energy[16]:.2f}x at 16, where Table 3 gives {table3:.2f}x.",
        printed,
        equal[16],
        "tokens/s, H100 over 2x 4090",
    )


def repeats(records: Records) -> Item:
    """Cells that were run twice, of which the paper shows one."""
    apart = repeat_noise(records.runs)
    worst = {
        name: apart[f"{name}_apart"].max() for name in ("ttft_mean_ms", "ttft_p99_ms", "tpot_mean_ms", "duration_s")
    }
    second = [n for n, run in sorted(records.table2.items()) if run.endswith("record2")]
    rows = ", ".join(str(n) for n in second)
    return Item(
        "repeats",
        "Table 2 shows one run a cell and says nothing of repeats.",
        f"{len(apart)} cells were run twice. The two runs lie up to {worst['ttft_mean_ms']:.1%} apart in mean TTFT, "
        f"{worst['ttft_p99_ms']:.1%} in P99 TTFT, {worst['tpot_mean_ms']:.1%} in TPOT and "
        f"{worst['duration_s']:.1%} in "
        f"duration. The H100's rows of Table 2 are record 1, except row {rows}, which is record 2.",
        None,
        worst["ttft_p99_ms"],
        "largest P99 TTFT difference between two runs of a cell",
    )


def drain(records: Records, cells: pd.DataFrame) -> Item:
    """The share of each run that lies after the last arrival."""
    ours = cells.set_index("run_id").drain_share
    at = {n: ours[records.table2[n]] for n in (6, 13, 17)}
    half = int((cells.drain_share > 0.5).sum())
    return Item(
        "drain",
        "Requests over duration is the throughput that a tier sustains.",
        f"The duration includes the drain after the last of {int(records.row(6).num_prompts)} arrivals: "
        f"{at[6]:.0%} of "
        f"row 6, {at[13]:.0%} of row 13 and {at[17]:.0%} of row 17, and over half of it in {half} of "
        f"{len(cells)} runs. "
        f"What is printed at 16 and 32 QPS is mostly how long the last answers take; it is no sustained rate.",
        None,
        at[13],
        "share of row 13's duration that is drain",
    )


def stalls(cells: pd.DataFrame) -> Item:
    """Cells whose tokens came in merged chunks."""
    several = cells[is_multi_consumer(cells)]
    flagged = several[several.stalled]
    top = flagged.loc[flagged.stall_ratio.idxmax()]
    highest = several.target_qps.max()
    at_highest = several[several.target_qps == highest].stall_ratio
    return Item(
        "stalls",
        "TTFT on several RTX 4090s is the GPUs'.",
        f"In {len(flagged)} of {len(several)} cells on several 4090s the mean chunk gap exceeds the mean TPOT (up to "
        f"{top.stall_ratio:.1f}x: {short_model(top.model)} on {top.tier} at {top.target_qps:g} QPS): tokens arrived "
        f"merged, so the stream was held up between the GPUs and the client, and TTFT with it; by what, no record "
        f"says. The sign sees merging in the server only. It cannot see a starved client, which stamps merged chunks "
        f"one by one, nor anything at {highest:g} QPS, where queueing stretches TPOT and the ratio is "
        f"{at_highest.min():.2f}-{at_highest.max():.2f} whatever happened.",
        None,
        float(len(flagged)),
        f"flagged cells of {len(several)}",
    )


def warm_cache(records: Records, cells: pd.DataFrame) -> Item:
    """Cells that met the prompts of an earlier rate in the prefix cache."""
    first = cells[cells.record == 1]
    count = first.cache.value_counts()
    of = cells.set_index("run_id").cache
    row13, row6 = of[records.table2[13]], of[records.table2[6]]
    sign = cells.set_index("run_id").prefill_interruption_ratio
    return Item(
        "warm-cache",
        "Each rate met an engine that had not seen its prompts.",
        f"One server answered the same {int(records.row(6).num_prompts)} prompts at all five rates, 32 QPS "
        f"first, with "
        f"vLLM's prefix cache on. By P99 over median chunk gap, {count.get('warm', 0)} of {len(first)} cells "
        f"ran against a warm cache, "
        f"{count.get('cold', 0)} against a cold one, and {count.get('unidentified', 0)} (several 4090s) cannot "
        f"be told. "
        f"Row 13 is {row13} ({sign[records.table2[13]]:.2f}), row 6 is {row6} ({sign[records.table2[6]]:.2f}): the "
        f"H100's TTFT in Table 2 owes something to prompts that needed no prefill.",
        None,
        float(count.get("warm", 0)),
        f"warm cells of {len(first)}",
    )


def figure1(records: Records, printed: pd.DataFrame) -> Item:
    """The printed Figure 1 against the records."""
    drawn = printed[printed.series == PAIR].iloc[0]
    diamond = printed[printed.note.str.contains("diamond")].iloc[0]
    row18, row19 = records.row(18), records.row(19)
    product = 4 * records.row(6).req_per_s
    return Item(
        "figure1",
        f"Figure 1 draws 2x RTX 4090 at 32 QPS at {drawn.req_per_s} req/s and {drawn.label_usd_per_mtok} USD.",
        f"Those are row 19's figures (4x RTX 4090: {row19.req_per_s:.2f} req/s, {row19.usd_per_mtok_total:.3f} USD); "
        f"the pair's are row 18's: {row18.req_per_s:.2f} req/s, {row18.usd_per_mtok_total:.3f} USD. The diamond of "
        f"four nodes was not run: four times one node at 4 QPS is {product:.2f} req/s; it is drawn at "
        f"{diamond.req_per_s}.",
        float(drawn.req_per_s),
        float(row18.req_per_s),
        "req/s of 2x 4090 at 32 QPS",
    )


def denominator(records: Records) -> Item:
    """A price per total token beside an API's price per output token."""
    row6 = records.row(6)
    return Item(
        "denominator",
        "USD per million tokens can be set beside an API's price.",
        f"The denominator counts tokens in and out. Row 6 costs {row6.usd_per_mtok_total:.3f} USD per million "
        f"of both, "
        f"{row6.usd_per_mtok_out:.3f} per million out and {row6.usd_per_mtok_in:.3f} per million in; an API's "
        f"price list "
        f"counts output and input apart.",
        row6.usd_per_mtok_total,
        row6.usd_per_mtok_out,
        "USD per million tokens, total and output, row 6",
    )


def prices(ratios: pd.DataFrame, shares: pd.DataFrame) -> Item:
    """The price ratio since May 2025."""
    first, spot = ratios.iloc[0], ratios.iloc[-1]
    at = shares[(shares.tier == QUAD) & (shares.target_qps == 16)].set_index("price_set").cost_share
    return Item(
        "prices",
        f"An H100 PCIe costs as much as {first.price_ratio:g} RTX 4090s.",
        f"So it was in May 2025. At RunPod in March 2026 an H100 hour costs {spot.price_ratio:.1f} of a 4090's, "
        f"on demand "
        f"and spot alike. 4x RTX 4090 at 16 QPS (Qwen-14B) then costs {at[spot.price_set]:.0%} of the H100 per "
        f"token; "
        f"under the paper's prices {at[first.price_set]:.0%}.",
        first.price_ratio,
        spot.price_ratio,
        "H100 over 4090, USD per hour",
    )


def all_items(
    records: Records,
    cells: pd.DataFrame,
    printed_figure1: pd.DataFrame,
    ratios: pd.DataFrame,
    costs: pd.DataFrame,
    paper_tdp_w: dict[str, float],
) -> list[Item]:
    """Every item, in the order a reader wants them.

    Parameters
    ----------
    cells : the audit's measures for every run.
    ratios, costs : price ratios and costs under every price set.
    """
    ours = records.runs[records.runs.model == TABLE2_MODEL]
    shares = cost_shares(ours.drop(columns=COST_COLUMNS), costs, H100, [QUAD], [16.0])
    return [
        tdp(records, paper_tdp_w),
        unequal_loads(records),
        drain(records, cells),
        warm_cache(records, cells),
        stalls(cells),
        repeats(records),
        figure1(records, printed_figure1),
        denominator(records),
        prices(ratios, shares),
    ]


def as_rows(items: list[Item]) -> list[dict]:
    """The items as plain rows, each with its evidence."""
    return [asdict(item) | {"evidence": "published"} for item in items]
