"""Every printed cell of Tables 1 to 3, to the printed digits, from the records and the catalog alone."""

import pytest

from hetgpu.decide.audit import record_of_printed_rows
from hetgpu.decide.compare import with_costs
from hetgpu.decide.cost import price_all
from hetgpu.decide.energy import energy_both
from hetgpu.decide.recordset import TABLE2_MODEL
from hetgpu.evidence.catalog import find_grid, load_grids, load_prices
from hetgpu.evidence.published import load_printed, load_published
from hetgpu.show.tables import compare_with_printed, energy_table, price_table, table2_columns

RUNS = load_published()
COSTS = price_all(RUNS, ["paper-2025-05"])
PRINTED2 = load_printed("table2")
ROWS = record_of_printed_rows(PRINTED2, RUNS[RUNS.model == TABLE2_MODEL])
PRICED = with_costs(RUNS, COSTS, "paper-2025-05")
TDP_W = {"H100-PCIe": 700.0, "RTX-4090": 450.0}
ENERGY = energy_both(RUNS, TDP_W, find_grid("EU27", load_grids()))


def cells(frame):
    return [pytest.param(cell, id=f"row {cell.row}, {cell.column}") for cell in frame.itertuples()]


CHECKS1 = price_table(load_prices(), load_printed("table1"), "2025-05")[1]
CHECKS2 = compare_with_printed(PRINTED2, table2_columns(ROWS.merge(PRICED, on="run_id")), "n")
TABLE3, CHECKS3 = energy_table(RUNS, ENERGY, ROWS, load_printed("table3"), 242.0)


@pytest.mark.parametrize("cell", cells(CHECKS1))
def test_table_1(cell):
    assert cell.computed == cell.printed, f"Table 1, {cell.row}, {cell.column}: the paper and its records disagree"


@pytest.mark.parametrize("cell", cells(CHECKS2))
def test_table_2(cell):
    assert cell.computed == cell.printed, f"Table 2, row {cell.row}, {cell.column}: the paper and its records disagree"


@pytest.mark.parametrize("cell", cells(CHECKS3))
def test_table_3_with_the_paper_s_double_rounding(cell):
    assert cell.computed == cell.printed, f"Table 3, {cell.row}, {cell.column}: not the paper's double rounding"


def test_every_cell_is_there():
    assert (len(CHECKS1), len(CHECKS2), len(CHECKS3)) == (6, 20 * 12, 2 * 5)


def test_table_3_unrounded_is_what_the_double_rounding_hides():
    h100 = ENERGY[(ENERGY.run_id == ROWS.run_id[12]) & (ENERGY.tdp_basis == "paper")].iloc[0]
    assert h100.tok_total_per_kwh / 1e6 == pytest.approx(15.49, abs=0.005)
    assert h100.gco2_per_mtok_total == pytest.approx(15.63, abs=0.005)
    unrounded = TABLE3[(TABLE3.how == "unrounded") & (TABLE3.row == "13")].iloc[0]
    assert (unrounded.tok_per_kwh, unrounded.gco2_per_mtok) == ("15.49 M", "15.63")


def test_row_17_is_record_2_and_every_other_row_record_1():
    assert ROWS[ROWS.record == 2].n.tolist() == [17]
    assert ROWS.run_id.notna().all()


def test_a_cell_that_differs_is_named():
    changed = PRINTED2.copy()
    changed.loc[5, "usd_per_mtok_total"] = "0.112"
    checks = compare_with_printed(changed, table2_columns(ROWS.merge(PRICED, on="run_id")), "n")
    differ = checks[~checks.same]
    assert differ[["row", "column", "printed", "computed"]].values.tolist() == [
        ["6", "usd_per_mtok_total", "0.112", "0.111"]
    ]


def test_figure_1_draws_row_19_under_row_18_s_name():
    drawn = load_printed("figure1").iloc[0]
    by_row = ROWS.merge(PRICED, on="run_id").set_index("n")
    assert (drawn.series, drawn.target_qps) == ("2x-rtx-4090", "32")
    assert drawn.label_usd_per_mtok == f"{by_row.usd_per_mtok_total[19]:.3f}" != f"{by_row.usd_per_mtok_total[18]:.3f}"
    assert (
        abs(float(drawn.req_per_s) - by_row.req_per_s[19]) < 0.01 < abs(float(drawn.req_per_s) - by_row.req_per_s[18])
    )
