"""``hetgpu import FILE...``: other tools' results as rows, printed, and on request kept in a CSV."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

from hetgpu.errors import DataError, DataWarning
from hetgpu.evidence.catalog import Tier, load_tiers
from hetgpu.evidence.files import read_csv, write_csv
from hetgpu.evidence.importers import read_results
from hetgpu.evidence.importers._dictionary import load_dictionary
from hetgpu.evidence.records import SummaryRow, to_frame
from hetgpu.paths import shown

KEY_FIGURES = ("req_per_s", "tok_out_per_s", "ttft_p99_ms", "tpot_mean_ms", "e2e_mean_ms")


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    made = argparse.ArgumentParser(prog="hetgpu import", description=__doc__)
    made.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a result file, or inference-perf's folder")
    made.add_argument("--tier", metavar="KEY", help="where it ran: a key of data/catalog/tiers.yaml")
    made.add_argument("--model", metavar="NAME", help="instead of the name in the file")
    made.add_argument("--precision", metavar="P", help="of the weights: bf16, fp8, ...")
    made.add_argument("--workload", metavar="NAME", help="what was asked of the model: sharegpt-200, ...")
    made.add_argument("--evidence", choices=("measured", "simulated", "published"), default="measured")
    made.add_argument("--tool", choices=sorted(load_dictionary()), help="instead of telling it by the content")
    made.add_argument("--allow-client-counts", action="store_true", help="let rows with client's counts into tables")
    made.add_argument("--out", type=Path, metavar="CSV", help="add the rows to this table (made where it is not)")
    return made


def _tier(key: str | None) -> Tier | None:
    if key is None:
        return None
    tiers = load_tiers()
    if key not in tiers:
        raise DataError("--tier", key, "is no tier", f"use one of {', '.join(tiers)}")
    return tiers[key]


def line(row: SummaryRow) -> str:
    """One row in one line: name, tier, who counted, key figures with units, and doubts."""
    figures = [
        f"{name}={value:.4g}" if (value := getattr(row, name)) is not None else f"{name}=-" for name in KEY_FIGURES
    ]
    parts = [row.run_id, row.tier, f"output counted by {row.output_tokens_counted_by}", *figures]
    if not row.headline:
        parts.append("not for headline tables")
    if row.reason:
        parts.append(f"({row.reason})")
    return "  ".join(parts)


def _cells(row: SummaryRow) -> dict[str, str]:
    """A row as the CSV holds it, so that one read back compares equal with the one written."""
    return {name: f"{v:.10g}" if isinstance(v, float) else str(v) for name, v in row.model_dump().items()}


def merged(old: Iterable[SummaryRow], new: Iterable[SummaryRow], file: str) -> list[SummaryRow]:
    """Both sets of rows by ``run_id``, each once, in order of first sight.

    Raises
    ------
    DataError : when two rows of one ``run_id`` differ; it names the columns.
    """
    rows: dict[str, SummaryRow] = {}
    for row in (*old, *new):
        known = rows.setdefault(row.run_id, row)
        before, after = _cells(known), _cells(row)
        if differing := [name for name in before if before[name] != after[name]]:
            changes = ", ".join(f"{name} {before[name]} / {after[name]}" for name in differing[:5])
            mend = "import to another file, or give another --workload"
            raise DataError(file, row.run_id, f"stands there already and differs: {changes}", mend)
    return list(rows.values())


def _run(arguments: argparse.Namespace) -> list[SummaryRow]:
    tier = _tier(arguments.tier)
    rows: list[SummaryRow] = []
    for file in arguments.files:
        rows += read_results(
            file,
            tier=tier,
            evidence=arguments.evidence,
            model=arguments.model,
            precision=arguments.precision,
            workload=arguments.workload,
            tool=arguments.tool,
            allow_client_counts=arguments.allow_client_counts,
        )
    if arguments.out is not None:
        old = read_csv(arguments.out, SummaryRow) if arguments.out.is_file() else []
        write_csv(to_frame(merged(old, rows, shown(arguments.out))), arguments.out)
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Import files: a line a row on stdout, warnings on stderr; 0, or 2 for input that cannot be used."""
    arguments = parser().parse_args(argv)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DataWarning)
        try:
            rows, error = _run(arguments), None
        except DataError as problem:
            rows, error = [], problem
    for warning in caught:
        print(f"warning: {warning.message}", file=sys.stderr)
    if error is not None:
        print(f"hetgpu import: {error}", file=sys.stderr)
        return 2
    for row in rows:
        print(line(row))
    if arguments.out is not None:
        print(f"{len(rows)} rows imported into {shown(arguments.out)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
