"""Tables for readers: numbers stay numbers until the last step, which is here."""

from __future__ import annotations

import pandas as pd

from hetgpu.errors import DataError
from hetgpu.evidence import metrics
from hetgpu.evidence.catalog import Price
from hetgpu.evidence.records import short_model
from hetgpu.show.style import LABELS, TIER_ORDER


def like_printed(value: float, printed: str) -> str:
    """A number with as many decimals as a printed one has: ``like_printed(1.2808, "1.281")`` is ``1.281``.

    >>> like_printed(192.1668, "192.17")
    '192.17'
    """
    decimals = len(printed.split(".")[1]) if "." in printed else 0
    return f"{value:.{decimals}f}"


def compare_with_printed(printed: pd.DataFrame, computed: pd.DataFrame, key: str) -> pd.DataFrame:
    """Every printed cell beside ours, to the printed digits.

    Parameters
    ----------
    printed : the printed table, cells as text.
    computed : the same rows and columns as numbers.
    key : the column that names a row in both.

    Returns
    -------
    One row a cell: ``row``, ``column``, ``printed``, ``computed`` (text at the printed digits),
    ``value`` (unrounded), ``same``.

    Raises
    ------
    DataError : when a printed row or column is not computed.
    """
    ours = computed.set_index(computed[key].astype(str))
    cells = []
    for _, line in printed.iterrows():
        if line[key] not in ours.index:
            raise DataError("printed table", f"row {line[key]}", "is not computed", "check the records")
        for column in printed.columns.drop(key):
            if column not in ours.columns:
                raise DataError("printed table", column, "is not computed", "add the column")
            value = ours.at[line[key], column]
            text = like_printed(value, line[column]) if isinstance(value, float) else str(value)
            cells.append((line[key], column, line[column], text, value, text == line[column]))
    return pd.DataFrame(cells, columns=["row", "column", "printed", "computed", "value", "same"])


def marked(checks: pd.DataFrame) -> pd.DataFrame:
    """The computed cells as a table, a cell that differs showing the printed one in brackets."""
    text = checks.computed.where(checks.same, checks.computed + " (printed " + checks.printed + ")")
    rows = list(dict.fromkeys(checks.row))
    columns = list(dict.fromkeys(checks.column))
    return checks.assign(text=text).pivot(index="row", columns="column", values="text").loc[rows, columns].reset_index()


def formatted(frame: pd.DataFrame, digits: dict[str, int]) -> pd.DataFrame:
    """A table as text: each column of ``digits`` with that many decimals, a missing value as "n/a"."""
    text = frame.copy()
    for column, places in digits.items():
        text[column] = [("n/a" if pd.isna(v) else f"{v:,.{places}f}".replace(",", " ")) for v in frame[column]]
    return text


def price_table(prices: list[Price], printed: pd.DataFrame, as_of: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Table 1 from the price list, and its cells beside the printed ones.

    A price that is a range shows its ends; a GPU that nobody offers shows ``n/a``.
    """
    rows, checks = [], []
    columns = {"alternative_usd_per_gpu_hour": "alternative", "hyperscaler_usd_per_gpu_hour": "hyperscalers"}
    for line in printed.itertuples():
        row = {"gpu": line.gpu}
        for column, provider in columns.items():
            met = [p for p in prices if p.gpu == line.gpu and p.as_of == as_of and p.provider.startswith(provider)]
            ends = sorted({p.usd_per_gpu_hour for p in met})
            row[column] = "-".join(f"{usd:.2f}" for usd in ends) or "n/a"
            text = getattr(line, column)
            checks.append((line.gpu, column, text, row[column], row[column], text == row[column]))
        rows.append(row | {"evidence": "published"})
    names = ["row", "column", "printed", "computed", "value", "same"]
    return pd.DataFrame(rows), pd.DataFrame(checks, columns=names)


def table2_columns(runs: pd.DataFrame) -> pd.DataFrame:
    """Runs under the printed Table 2's column names; ``n`` is the printed row."""
    return pd.DataFrame(
        {
            "n": runs.n,
            "qps": runs.target_qps.map("{:g}".format),
            "gpus": runs.gpu_count,
            "gpu": runs.gpu,
            "duration_s": runs.duration_s,
            "usd_per_run": runs.usd_per_run,
            "usd_per_mtok_total": runs.usd_per_mtok_total,
            "tok_s": runs.tok_total_per_s,
            "req_s": runs.req_per_s,
            "ttft_mean_ms": runs.ttft_mean_ms,
            "ttft_median_ms": runs.ttft_median_ms,
            "ttft_p90_ms": runs.ttft_p90_ms,
            "ttft_p99_ms": runs.ttft_p99_ms,
        }
    )


def _as_the_paper_rounds(tok_per_s: float, kw: float, gco2_per_kwh: float) -> dict[str, str]:
    """Table 3's cells with the paper's double rounding: each step starts from the printed figure."""
    mtok_per_h = round(tok_per_s * metrics.SECONDS_PER_HOUR / 1e6, 1)
    # 10.8 / 0.7 = 15.43 prints as 15.4, and 242 / 15.4 = 15.71 as 15.7: hence the differences.
    mtok_per_kwh = round(mtok_per_h / kw, 1)
    return {
        "tok_total_per_s": f"{tok_per_s:.2f}",
        "tok_per_h": f"{mtok_per_h:.1f} M",
        "kwh_per_h": f"{kw:.1f}",
        "tok_per_kwh": f"{mtok_per_kwh:.1f} M",
        "gco2_per_mtok": f"{gco2_per_kwh / mtok_per_kwh:.1f}",
    }


def energy_table(
    runs: pd.DataFrame, energy: pd.DataFrame, rows: pd.DataFrame, printed: pd.DataFrame, gco2_per_kwh: float
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Table 3 three ways (as the paper rounds, unrounded, at the data sheets' TDP), and its cells beside the printed.

    Parameters
    ----------
    runs, energy : what the import and energy stages wrote.
    rows : which run stands behind each row of Table 2.
    printed : the printed Table 3, cells as text.
    """
    run_of = dict(zip(rows.n, rows.run_id, strict=True))
    runs, energy = runs.set_index("run_id"), energy.set_index(["run_id", "tdp_basis"])
    table, checks = [], []
    for line in printed.itertuples():
        run_id = run_of[int(line.table2_row)]
        run = runs.loc[run_id]
        for basis, how in (
            ("paper", "as printed (rounded twice)"),
            ("paper", "unrounded"),
            ("data_sheet", "data sheet's TDP"),
        ):
            at = energy.loc[(run_id, basis)]
            kw = at.tdp_w * run.gpu_count / 1e3
            if how.startswith("as printed"):
                cells = _as_the_paper_rounds(run.tok_total_per_s, kw, gco2_per_kwh)
                for column, text in cells.items():
                    told = getattr(line, column)
                    checks.append((line.tier, column, told, text, text, told == text))
            else:
                cells = {
                    "tok_total_per_s": f"{run.tok_total_per_s:.2f}",
                    "tok_per_h": f"{run.tok_total_per_s * metrics.SECONDS_PER_HOUR / 1e6:.2f} M",
                    "kwh_per_h": f"{kw:.2f}",
                    "tok_per_kwh": f"{at.tok_total_per_kwh / 1e6:.2f} M",
                    "gco2_per_mtok": f"{at.gco2_per_mtok_total:.2f}",
                }
            table.append(
                {
                    "tier": LABELS[line.tier],
                    "row": line.table2_row,
                    "how": how,
                    **cells,
                    "evidence": "published",
                }
            )
    names = ["row", "column", "printed", "computed", "value", "same"]
    return pd.DataFrame(table), pd.DataFrame(checks, columns=names)


def models_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Table 2's form for every run, models in alphabetical order, as numbers."""
    order = {tier: place for place, tier in enumerate(TIER_ORDER)}
    runs = runs.assign(name=runs.model.map(short_model), place=runs.tier.map(order))
    runs = runs.sort_values(["name", "target_qps", "place", "record"])
    columns = {
        "name": "model",
        "target_qps": "target_qps",
        "tier": "tier",
        "record": "record",
        "duration_s": "duration_s",
        "usd_per_run": "usd_per_run",
        "usd_per_mtok_total": "usd_per_mtok_total",
        "usd_per_mtok_out": "usd_per_mtok_out",
        "tok_total_per_s": "tok_total_per_s",
        "req_per_s": "req_per_s",
        "ttft_mean_ms": "ttft_mean_ms",
        "ttft_median_ms": "ttft_median_ms",
        "ttft_p90_ms": "ttft_p90_ms",
        "ttft_p99_ms": "ttft_p99_ms",
        "tpot_mean_ms": "tpot_mean_ms",
        "evidence": "evidence",
    }
    return runs[list(columns)].rename(columns=columns).reset_index(drop=True)


def figure1_data(runs: pd.DataFrame, printed: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """What Figure 1 plots from the records, and what the printed figure draws otherwise.

    Returns
    -------
    (all plotted rows with ``evidence`` = ``published`` or ``drawn in the paper``; the drawn points
    with the texts and offsets their labels take).
    """
    drawn = ["1x-h100-pcie", "2x-rtx-4090"]
    columns = ["evidence", "tier", "target_qps", "req_per_s", "usd_per_mtok_total", "run_id"]
    ours = runs[runs.tier.isin(drawn) & (runs.record == 1)][columns].sort_values(["tier", "target_qps"])
    points = printed[printed.note.str.startswith(("drawn", "the diamond"))].copy()
    points["target_qps"] = points.target_qps.astype(float)
    points["req_per_s"] = points.req_per_s.astype(float)
    nodes = points.series.str.startswith("4 nodes")
    points["label"] = [
        '"4 nodes": never run' if is_nodes else f"labelled {label}: row 19's"
        for is_nodes, label in zip(nodes, points.label_usd_per_mtok, strict=True)
    ]
    points["offset"] = [(-8, 6) if is_nodes else (0, 9) for is_nodes in nodes]
    points["align"] = ["right" if is_nodes else "center" for is_nodes in nodes]
    theirs = points[["series", "target_qps", "req_per_s"]].rename(columns={"series": "tier"})
    theirs = theirs.assign(evidence="drawn in the paper", usd_per_mtok_total=pd.to_numeric(points.label_usd_per_mtok))
    return pd.concat([ours, theirs], ignore_index=True)[columns], points
