"""``hetgpu repro``: recompute everything, then say what a reviewer wants to know.

``dvc repro`` skips what has not changed; this runs every stage, whatever ``dvc.lock`` says, and
compares what came out with what is committed, byte by byte and value by value.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from hetgpu.errors import DataError
from hetgpu.evidence.files import read_yaml
from hetgpu.paths import inside, root
from hetgpu.pipeline import declared_outputs

#: Kinds of output, by where they lie; the first prefix that fits counts.
KINDS = {
    "figures": "figures/",
    "tables": "paper/tables/",
    "summaries": "data/summaries/",
    "report": "paper/report.pdf",
}
VALUES = "paper/values.json"
#: What DVC and kernels say that tells a reviewer nothing.
NOISE = (
    "Updating lock",
    "Generating lock",
    "[IPKernelApp]",
    "To track",
    "To enable",
    "Use `dvc",
    "\tgit add",
    "\tdvc config",
)
REPORT = "paper/report.pdf"


@dataclass
class Comparison:
    """How one kind of output compares with the committed one, by name."""

    same: list[str] = field(default_factory=list)
    differ: list[str] = field(default_factory=list)
    uncommitted: list[str] = field(default_factory=list)

    def line(self, kind: str) -> str:
        """One line for a reader."""
        total = len(self.same) + len(self.differ) + len(self.uncommitted)
        text = f"{kind:<10} {len(self.same)} of {total} the same as committed"
        for word, names in (("different", self.differ), ("not committed", self.uncommitted)):
            if names:
                text += f"; {word}: {', '.join(names[:6])}" + (f" and {len(names) - 6} more" if len(names) > 6 else "")
        return text


def committed(path: str) -> bytes | None:
    """A file as Git's HEAD has it; None where it has none.

    Raises
    ------
    DataError : when the project is no Git clone.
    """
    if not inside(".git").exists():
        raise DataError(root(), "", "is no Git clone: there is nothing to compare with", "clone the repository")
    shown = subprocess.run(["git", "show", f"HEAD:{path}"], cwd=root(), capture_output=True, check=False)
    return shown.stdout if shown.returncode == 0 else None


def compare_files(paths: list[str]) -> dict[str, Comparison]:
    """Every output beside the committed one, byte by byte, by kind."""
    found: dict[str, Comparison] = {}
    for path in paths:
        kind = next((kind for kind, prefix in KINDS.items() if path.startswith(prefix)), None)
        if kind is None:
            continue
        comparison = found.setdefault(kind, Comparison())
        before = committed(path)
        if before is None:
            comparison.uncommitted.append(path)
        elif before == inside(path).read_bytes():
            comparison.same.append(path)
        else:
            comparison.differ.append(path)
    return found


def compare_values() -> Comparison:
    """``values.json`` beside the committed one, name by name."""
    now = json.loads(inside(VALUES).read_text(encoding="utf-8"))
    text = committed(VALUES)
    before = json.loads(text) if text else {}
    comparison = Comparison()
    for name in dict.fromkeys([*now, *before]):
        if name not in before:
            comparison.uncommitted.append(name)
        elif before[name] == now.get(name):
            comparison.same.append(name)
        else:
            comparison.differ.append(name)
    return comparison


def run_pipeline(stages: list[str]) -> None:
    """Run every stage through DVC, a line a stage as it ends.

    Raises
    ------
    SystemExit : with DVC's own status, after its last lines, when a stage fails.
    """
    command = [sys.executable, "-m", "dvc", "repro", "--force", "--no-run-cache"]
    process = subprocess.Popen(command, cwd=root(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None  # because of PIPE
    number, began, lines = 0, time.monotonic(), []
    for line in process.stdout:
        lines.append(line.rstrip())
        if line.startswith("Running stage"):
            number, began = number + 1, time.monotonic()
            print(f"[{number:>2}/{len(stages)}] {line.split(chr(39))[1]:<26}", end="", flush=True)
        elif line.startswith(">"):
            continue
        elif line.strip() and number and not line.startswith(NOISE):
            print(f"{time.monotonic() - began:5.1f} s  {line.strip()}", flush=True)
    if process.wait() != 0:
        print("\n".join(["", "The pipeline stopped. Its last lines:", *lines[-12:]]), file=sys.stderr)
        raise SystemExit(process.returncode)


def main(arguments: list[str]) -> int:
    """Run everything and compare; 1 where an output differs from the committed one."""
    if arguments:
        print("usage: hetgpu repro (no arguments; `dvc repro` is the incremental way)", file=sys.stderr)
        return 2
    stages = list(read_yaml(inside("dvc.yaml"))["stages"])
    began = time.monotonic()
    run_pipeline(stages)
    outputs = [path for stage in stages for path in declared_outputs(stage)]
    comparisons = compare_files(outputs) | {"values": compare_values()}
    print(f"\nRecomputed in {time.monotonic() - began:.0f} s:")
    for kind, comparison in comparisons.items():
        print("  " + comparison.line(kind))
    print(f"The report: {Path(inside(REPORT))}")
    return 1 if any(comparison.differ for comparison in comparisons.values()) else 0
