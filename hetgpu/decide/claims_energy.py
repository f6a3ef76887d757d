"""What the records say on the claims about energy and carbon.

Every function takes the records and a claim and returns a finding; ratios between tiers are at equal load
(same model, same target QPS), record 1 unless said.
"""

from __future__ import annotations

from hetgpu.decide.claims import Claim, Finding, Mended, Value
from hetgpu.decide.recordset import (
    H100,
    PAIR,
    Records,
)
from hetgpu.evidence import metrics
from hetgpu.evidence.catalog import find_grid, load_gpus, load_grids


def _table3(records: Records, claim: Claim, column: str, scale: float) -> tuple[list[Value], list[Mended], list[float]]:
    values, mended, sheet = [], [], []
    for quantity, n in zip(claim.claimed, (13, 6), strict=True):
        run = records.row(n)
        at_paper, at_sheet = run[column] / scale, run[f"{column}_sheet"] / scale
        values += [Value(quantity, f"row {n}, paper's TDP", at_paper, (run.run_id,))]
        values += [Value(quantity, f"row {n}, data sheet's TDP", at_sheet, (run.run_id,))]
        mended.append(
            Mended(
                f"paper's TDP; mended: the data sheet's (row {n})",
                at_paper,
                at_sheet,
                quantity.split(", ")[1],
            )
        )
        sheet.append(at_sheet)
    return values, mended, sheet


def energy_ratio(records: Records, claim: Claim) -> Finding:
    """Tokens per kWh, row 13 over row 6: paper's TDP, data sheet's, and both tiers at 4 and 16 QPS."""
    quantity = next(iter(claim.claimed))
    row13, row6 = records.row(13), records.row(6)
    runs = (row13.run_id, row6.run_id)
    paper = metrics.ratio(row13.tok_total_per_kwh, row6.tok_total_per_kwh)
    sheet = metrics.ratio(row13.tok_total_per_kwh_sheet, row6.tok_total_per_kwh_sheet)
    values = [
        Value(quantity, "rows 13 and 6, paper's TDP (700 W)", paper, runs),
        Value(quantity, "rows 13 and 6, data sheet's TDP", sheet, runs),
    ]
    mended = [Mended("H100 PCIe at 700 W; mended: the data sheet's TDP", paper, sheet, "x")]
    for qps in (4, 16):
        high, low = records.run(H100, qps), records.run(PAIR, qps)
        equal = metrics.ratio(high.tok_total_per_kwh_sheet, low.tok_total_per_kwh_sheet)
        values.append(Value(quantity, f"both at {qps} QPS, data sheet's TDP", equal, (high.run_id, low.run_id)))
        mended.append(
            Mended(f"16 QPS beside 4 QPS; mended: both at {qps} QPS and the data sheet's TDP", paper, equal, "x")
        )
    tdp = load_gpus()["H100-PCIe"].tdp_w
    condition = f"with 700 W, the SXM card's TDP, for the H100 PCIe and 16 QPS beside 4; with {tdp:g} W: {sheet:.1f}x"
    return Finding(values, condition, mended)


def tokens_per_kwh(records: Records, claim: Claim) -> Finding:
    """Rows 13 and 6, M tokens per kWh, at the paper's and the data sheets' TDP."""
    values, mended, sheet = _table3(records, claim, "tok_total_per_kwh", 1e6)
    return Finding(values, f"at the paper's TDP; at the data sheets': {sheet[0]:.1f} and {sheet[1]:.1f} M", mended)


def carbon_per_mtok(records: Records, claim: Claim) -> Finding:
    """Rows 13 and 6, g CO2 per million tokens, at the paper's and the data sheets' TDP."""
    values, mended, sheet = _table3(records, claim, "gco2_per_mtok_total", 1.0)
    return Finding(values, f"at the paper's TDP; at the data sheets': {sheet[0]:.1f} and {sheet[1]:.1f} g", mended)


def green_grid(records: Records, claim: Claim) -> Finding:
    """The gap between rows 6 and 13 on France's grid over that on EU27's: in grams and as a ratio."""
    quantity = next(iter(claim.claimed))
    grids = load_grids()
    home, green = (find_grid(zone, grids).gco2_per_kwh for zone in ("EU27", "FRA"))
    row13, row6 = records.row(13), records.row(6)
    grams = [[intensity * 1e6 / row.tok_total_per_kwh for row in (row13, row6)] for intensity in (home, green)]
    difference = [pair[1] - pair[0] for pair in grams]
    ratios = [pair[1] / pair[0] for pair in grams]
    runs = (row13.run_id, row6.run_id)
    values = [
        Value(quantity, "difference in grams, FRA over EU27", metrics.ratio(difference[1], difference[0]), runs),
        Value(quantity, "ratio, FRA over EU27", metrics.ratio(ratios[1], ratios[0]), runs),
    ]
    condition = (
        f"in grams ({difference[0]:.1f} g per million tokens on EU27, {difference[1]:.1f} on FRA); the ratio between "
        f"the tiers is {ratios[0]:.1f} on any grid. Embodied carbon is not in the records"
    )
    return Finding(values, condition)
