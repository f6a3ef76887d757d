"""The report's numbers and its typesetting.

``values.json`` maps a name to its value, unit, printed text, evidence and the file it comes from;
``report.typ`` asks for texts by name and Typst typesets it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from hetgpu.decide.cache_effect import PREFIX as CACHE_PREFIX
from hetgpu.decide.cache_effect import sentence as cache_sentence
from hetgpu.decide.cache_effect import short_sentence as cache_finding
from hetgpu.decide.protocols import sentence as protocols_sentence
from hetgpu.decide.recordset import TABLE2_MODEL
from hetgpu.errors import DataError
from hetgpu.evidence.files import read_table
from hetgpu.evidence.records import read_stage_output
from hetgpu.paths import inside, root, shown
from hetgpu.show.typed import check_report

# -- values --------------------------------------------------------------------------------------


def value(number: Any, text: str, unit: str, source: str, evidence: str = "published") -> dict[str, Any]:
    """One entry of ``values.json``."""
    return {"value": number, "text": text, "unit": unit, "evidence": evidence, "source": source}


def _read_json(*parts: str) -> Any:
    path = inside(*parts)
    if not path.is_file():
        raise DataError(shown(path), "", "no such file", "run `dvc repro` first")
    return json.loads(path.read_text(encoding="utf-8"))


def _table_values() -> Iterator[tuple[str, dict[str, Any]]]:
    for name in ("table1", "table2", "table3"):
        checks = read_table(inside("paper", "tables", f"{name}-check.csv"))
        source = f"paper/tables/{name}-check.csv"
        yield f"{name}.cells", value(len(checks), str(len(checks)), "cells", source)
        same = int(checks.same.sum())
        yield f"{name}.same", value(same, str(same), "cells", source)
        differ = len(checks) - same
        yield f"{name}.differ", value(differ, str(differ), "cells", source)


def _claim_values() -> Iterator[tuple[str, dict[str, Any]]]:
    source = "data/summaries/claims.json"
    rows = _read_json("data", "summaries", "claims.json")
    verdicts = pd.Series([row["verdict"] for row in rows])
    yield "claims.count", value(len(rows), str(len(rows)), "claims", source)
    for name in ("reproduced", "holds under a condition", "not reproduced", "not testable with the data"):
        count = int((verdicts == name).sum())
        yield f"claims.{name.replace(' ', '-')}", value(count, str(count), "claims", source)
    for row in rows:
        yield f"claim.{row['id']}.verdict", value(None, row["verdict"], "", source, row["evidence"] or "none")
        yield f"claim.{row['id']}.condition", value(None, row["condition"] or row["needs"] or "", "", source)
        for place, item in enumerate(row["mended"]):
            for side in ("as_claimed", "mended"):
                yield (
                    f"claim.{row['id']}.{place}.{side}",
                    value(item[side], f"{item[side]:.3g}", item["unit"], source),
                )


def _audit_values() -> Iterator[tuple[str, dict[str, Any]]]:
    source = "data/summaries/audit.json"
    for item in _read_json("data", "summaries", "audit.json"):
        yield f"audit.{item['id']}.assumption", value(None, item["assumption"], "", source)
        yield f"audit.{item['id']}.finding", value(None, item["finding"], "", source)
        for side in ("as_printed", "mended"):
            if item[side] is not None:
                yield (
                    f"audit.{item['id']}.{side}",
                    value(item[side], f"{item[side]:.3g}", item["unit"], source),
                )


def _run_values() -> Iterator[tuple[str, dict[str, Any]]]:
    runs = read_stage_output("published")
    source = "data/summaries/published.csv"
    counts = {"runs": len(runs), "models": runs.model.nunique(), "tiers": runs.tier.nunique()}
    counts["models-on-both"] = int((runs.groupby("model").gpu.nunique() > 1).sum())
    for name, count in counts.items():
        yield f"published.{name}", value(int(count), str(count), name, source)


def _finding_values(sentences: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, sentence in enumerate(sentences, start=1):
        yield f"finding.{number}", value(None, sentence, "", "data/summaries, paper/tables")


def _price_values() -> Iterator[tuple[str, dict[str, Any]]]:
    """Which price sets are old on the reference date: Table 1's footnote."""
    ratios = read_stage_output("price_ratios")
    old = [f"{row.price_set} ({row.age_days} days)" for row in ratios.itertuples() if row.stale]
    date = ratios.reference_date.iloc[0]
    text = f"Old on {date}: {', '.join(old)}." if old else f"No price set is old on {date}."
    yield "prices.age", value(len(old), text, "price sets", "data/summaries/price_ratios.csv")


def _measured_values() -> Iterator[tuple[str, dict[str, Any]]]:
    runs = read_stage_output("measured")
    source = "data/summaries/measured.csv"
    yield "measured.runs", value(len(runs), str(len(runs)), "runs", source, "measured")
    yield "measured.engine", value(None, runs.engine.iloc[0], "", source, "measured")
    prompts = int(runs[runs.workload.str.startswith(CACHE_PREFIX)].num_prompts.max())
    yield "measured.prompts", value(prompts, str(prompts), "prompts", source, "measured")
    kept = int(runs.headline.sum())
    yield "measured.headline", value(kept, str(kept), "runs", source, "measured")
    yield "measured.finding", value(None, cache_finding(runs), "", source, "measured")
    yield "measured.prefix-cache", value(None, cache_sentence(runs), "", source, "measured")
    table = read_table(inside("figures", "figure-protocols.csv"))
    source = "figures/figure-protocols.csv"
    yield "measured.protocols", value(None, protocols_sentence(table), "", source, "measured")
    answers = read_stage_output("answers")
    equal, source = float(answers.equal_answers_share.mean()), "data/summaries/answers.csv"
    yield "measured.equal-answers", value(equal, f"{equal:.2f}", "of answers", source, "measured")


def _simulated_values() -> Iterator[tuple[str, dict[str, Any]]]:
    cells = read_stage_output("predictions")
    yield "simulated.cells", value(len(cells), str(len(cells)), "cells", "data/summaries/predictions.csv", "simulated")
    source = "data/summaries/machine_errors.csv"
    for row in read_stage_output("machine_errors").itertuples():
        name = f"simulated.error.{row.machine.replace(' ', '-')}.{row.fitted_on.replace(' ', '-')}"
        errors = (row.ttft_mean_ms_error_pct, row.tpot_mean_ms_error_pct, row.duration_s_error_pct)
        text = f"{errors[0]:.0f}% in mean TTFT, {errors[1]:.0f}% in TPOT and {errors[2]:.0f}% in duration"
        yield name, value(errors[0], text, "% of mean TTFT", source, "simulated")
    source = "data/summaries/fleets.csv"
    for (fleet, requests), rows in read_stage_output("fleets").groupby(["fleet", "requests"]):
        name = f"simulated.{'four-nodes' if '4090' in fleet else 'two-h100'}.{requests}"
        low, high = rows.req_per_s.min(), rows.req_per_s.max()
        text = f"{low:.1f} to {high:.1f}" if round(low, 1) < round(high, 1) else f"{low:.1f}"
        yield name, value(float(rows.req_per_s.mean()), text, "requests/s", source, "simulated")
    table = read_stage_output("capacity")
    mine = table[(table.model == TABLE2_MODEL) & (table.what == "sustained")].set_index("tier").qps
    for tier, qps in mine.items():
        name, source = f"simulated.sustained.{tier}", "data/summaries/capacity.csv"
        yield name, value(float(qps), f"{qps:.1f}", "requests/s", source, "simulated")


def collect_values(sentences: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Every number and computed sentence of the report by name.

    Parameters
    ----------
    sentences : the findings, from :mod:`hetgpu.decide.findings`.

    Raises
    ------
    DataError : when a stage's output is missing, or a name would stand for two values.
    """
    values: dict[str, dict[str, Any]] = {}
    parts = [_run_values(), _price_values(), _table_values(), _claim_values(), _audit_values()]
    parts += [_measured_values(), _simulated_values()]
    for part in (_finding_values(sentences), *parts):
        for name, entry in part:
            if name in values:
                raise DataError("values.json", name, "stands for two values", "rename one")
            values[name] = entry
    return values


# -- typesetting ---------------------------------------------------------------------------------


def make_report() -> Path:
    """Typeset ``paper/report.typ`` to ``paper/report.pdf``; the same bytes for the same inputs.

    Raises
    ------
    DataError : when a result number is typed in the source, or Typst refuses it.
    """
    import typst

    source, target = inside("paper", "report.typ"), inside("paper", "report.pdf")
    if typed := check_report(source):
        raise DataError(shown(source), "", "; ".join(typed), "take every result from values.json")
    try:
        # Typst's own fonts only: a system's fonts would change the pages from machine to machine.
        pdf = typst.compile(str(source), root=str(root()), ignore_system_fonts=True)
    except typst.TypstError as error:
        raise DataError(shown(source), "", str(error), "correct the Typst source") from error
    beside = target.with_suffix(".pdf.part")
    beside.write_bytes(pdf)
    beside.replace(target)
    return target
