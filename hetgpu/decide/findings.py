"""The findings in a few sentences, each made from computed figures; the README and the report print these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from hetgpu.decide.compare import cheapest_within, on_both
from hetgpu.decide.recordset import H100, PAIR, QUAD, TABLE2_MODEL, Records
from hetgpu.evidence import metrics
from hetgpu.evidence.catalog import load_tiers
from hetgpu.evidence.records import short_model

VERDICTS = ("reproduced", "holds under a condition", "not reproduced", "not testable with the data")


def _tables(checks: dict[int, pd.DataFrame]) -> str:
    cells = sum(len(frame) for frame in checks.values())
    same = sum(int(frame.same.sum()) for frame in checks.values())
    which = "Every one" if same == cells else f"{same}"
    return (
        f"{which} of the {cells} printed cells of Tables 1 to 3 follows from the authors' records to the printed "
        f"digits (Table 3 with its double rounding); one point of Figure 1 is another row's, and one was never run."
    )


def _claims(claims: list[dict[str, Any]]) -> str:
    count = {verdict: sum(row["verdict"] == verdict for row in claims) for verdict in VERDICTS}
    said = ("reproduced", "true under a condition that the report names", "not reproduced", "beyond these data")
    parts = ", ".join(f"{count[verdict]} {words}" for verdict, words in zip(VERDICTS, said, strict=True))
    return f"The paper's {len(claims)} claims, judged by rules fixed beforehand: {parts}."


def _loads(cells: pd.DataFrame) -> str:
    loads = sorted(cells.target_qps)
    return f"{loads[0]:g}" if len(loads) == 1 else ", ".join(f"{q:g}" for q in loads[:-1]) + f" and {loads[-1]:g}"


def _cheapest(records: Records, slo_ms: float = 500.0) -> str:
    both = on_both(records.runs)
    single = both[(both.tier == "1x-rtx-4090") & (both.ttft_p99_ms <= slo_ms)].set_index(["model", "target_qps"])
    h100 = both[both.tier == H100].set_index(["model", "target_qps"])
    tried = int((both.tier == "1x-rtx-4090").sum())
    factor = (h100.usd_per_mtok_total / single.usd_per_mtok_total).dropna()
    labels = {key: tier.label for key, tier in load_tiers().items()}
    best = cheapest_within(both[both.model == TABLE2_MODEL], [slo_ms])
    places = [f"{labels[tier]} at {_loads(cells)} QPS" for tier, cells in best.groupby("tier", sort=False)]
    saved = 1 - metrics.ratio(records.run(QUAD, 16).usd_per_mtok_total, records.run(H100, 16).usd_per_mtok_total)
    return (
        f"Where P99 TTFT may be {slo_ms:g} ms, one RTX 4090 serves the models that fit it in {len(factor)} of "
        f"{tried} "
        f"cells, {factor.min():.1f} to {factor.max():.1f} times cheaper per token than the H100 (May 2025 prices). "
        f"For {short_model(TABLE2_MODEL)} the cheapest tier is {' and '.join(places)}; at 16 QPS 4x RTX 4090 is "
        f"{saved:.0%} cheaper than the H100."
    )


def _tight(records: Records, slo_ms: float = 100.0) -> str:
    both = on_both(records.runs)
    best = cheapest_within(both, [slo_ms])
    met = best.dropna(subset="tier")
    enterprise = int((met.tier == H100).sum())
    several = both[(both.gpu == "RTX-4090") & (both.gpu_count > 1)]
    return (
        f"Where it may be {slo_ms:g} ms, the H100 is the cheapest in {enterprise} of the {len(best)} (model, "
        f"load) cells "
        f"measured on both GPUs, a single 4090 in {len(met) - enterprise}, and nothing holds it in "
        f"{len(best) - len(met)}; several 4090s hold it in {int((several.ttft_p99_ms <= slo_ms).sum())} of their "
        f"{len(several)} cells."
    )


def _energy(records: Records) -> str:
    row13, row6 = records.row(13), records.row(6)
    paper = metrics.ratio(row13.tok_total_per_kwh, row6.tok_total_per_kwh)
    sheet = metrics.ratio(row13.tok_total_per_kwh_sheet, row6.tok_total_per_kwh_sheet)
    per_kwh = "tok_total_per_kwh_sheet"
    equal = {q: metrics.ratio(records.run(H100, q)[per_kwh], records.run(PAIR, q)[per_kwh]) for q in (4, 16)}
    return (
        f"The paper's {paper:.1f}x energy advantage takes the SXM card's TDP for the PCIe card and sets 16 QPS "
        f"beside 4. "
        f"With the data sheet's TDP it is {sheet:.1f}x on the same rows, {equal[4]:.1f}x with both tiers at 4 "
        f"QPS and "
        f"{equal[16]:.1f}x with both at 16 (all at TDP; nothing was metered)."
    )


def _limits(cells: pd.DataFrame, records: Records) -> str:
    drain = cells.set_index("run_id").drain_share[records.table2[13]]
    first = cells[cells.record == 1]
    warm, unknown = (int((first.cache == state).sum()) for state in ("warm", "unidentified"))
    return (
        f"The records cannot tell a steady rate: {drain:.0%} of the run behind row 13 is drain after the last arrival. "
        f"{warm} of {len(first)} cells met a warm prefix cache ({unknown} cannot be told), and "
        f"{int(cells.stalled.sum())} cells on several 4090s stalled for a reason that no record holds."
    )


def _prices(ratios: pd.DataFrame, shares: pd.DataFrame) -> str:
    first, last = ratios.iloc[0], ratios.iloc[-1]
    at = shares[(shares.tier == QUAD) & (shares.target_qps == 16)].set_index("price_set").cost_share
    return (
        f"Prices have moved: an H100 hour cost {first.price_ratio:.1f} 4090 hours in May 2025 and "
        f"{last.price_ratio:.1f} on a list of {last.as_of}. Under that list 4x RTX 4090 at 16 QPS costs "
        f"{at[last.price_set]:.0%} of the H100 per "
        f"token, where the paper's prices give {at[first.price_set]:.0%}."
    )


def findings(
    records: Records,
    cells: pd.DataFrame,
    claims: list[dict[str, Any]],
    checks: dict[int, pd.DataFrame],
    ratios: pd.DataFrame,
    shares: pd.DataFrame,
) -> Sequence[str]:
    """The findings, most important first; all rest on published evidence.

    Parameters
    ----------
    records : runs with costs and energies.
    cells : the audit's measures for every run.
    claims : the verdicts.
    checks : printed against computed cells, by table.
    ratios, shares : price ratios, and Table 2's model under every price set.
    """
    return [
        _tables(checks),
        _claims(claims),
        _cheapest(records),
        _tight(records),
        _energy(records),
        _limits(cells, records),
        _prices(ratios, shares),
    ]
