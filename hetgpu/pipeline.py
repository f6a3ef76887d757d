"""The project's one runner of notebooks: cleans them, runs one as a DVC stage, publishes its outputs.

papermill alone is not enough: it takes a cell that calls ``sys.exit(0)`` for success, reads
``1e-3`` as text, and lets a misspelt parameter pass with a warning. Here a stage has succeeded
only if every code cell ran and every output that ``dvc.yaml`` declares is there and can be read.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode
from traitlets.config import Config

from hetgpu.errors import DataError
from hetgpu.evidence.files import read_table, read_yaml, write_text
from hetgpu.measure import watchdog
from hetgpu.paths import inside, root, shown

KERNEL = "python3"
CLEANED = ("build", "notebooks")
EXECUTED = ("build", "executed")
STAGING = ("build", "staging")

#: The kernel's port is encrypted: ipykernel warns where anyone on the machine could listen.
LOCAL_KERNEL = Config({"KernelManager": {"transport_encryption": "auto"}})

#: How a file of each kind begins.
MAGIC = {".png": b"\x89PNG", ".pdf": b"%PDF", ".svg": b"<?xml"}


class StageError(RuntimeError):
    """A stage that did not succeed; its outputs were not published."""


# -- cleaning ------------------------------------------------------------------------------------


def cleaned(notebook: NotebookNode) -> str:
    """A notebook's text without what running it leaves behind: the same bytes however often it ran.

    Outputs, counts and ids go; the kernel becomes ``python3``, whatever the author's was called.
    """
    cells = []
    for number, cell in enumerate(notebook.cells):
        kept: dict[str, Any] = {"cell_type": cell.cell_type, "id": f"c{number:03d}", "metadata": {}}
        if tags := cell.metadata.get("tags"):
            kept["metadata"]["tags"] = list(tags)
        kept["source"] = cell.source
        if cell.cell_type == "code":
            kept |= {"execution_count": None, "outputs": []}
        cells.append(kept)
    metadata = {"kernelspec": {"name": KERNEL, "display_name": "Python 3", "language": "python"}}
    content = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(content, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def clean_notebooks() -> list[Path]:
    """Write a cleaned copy of every notebook to ``build/notebooks``; copies of removed ones go.

    Raises
    ------
    DataError : when there is no notebook, or one cannot be read.
    """
    sources = sorted(inside("notebooks").glob("*.ipynb"))
    if not sources:
        raise DataError("notebooks", "", "holds no notebook", "check out the project again")
    folder = inside(*CLEANED)
    written = []
    for source in sources:
        try:
            notebook = nbformat.read(source, as_version=4)
        except Exception as error:
            raise DataError(shown(source), "", f"is no notebook: {error}", "restore it from Git") from error
        written.append(write_text(cleaned(notebook), folder / source.name))
    for left in set(folder.glob("*.ipynb")) - set(written):
        left.unlink()
    return written


# -- parameters ----------------------------------------------------------------------------------


def declared_parameters(notebook: NotebookNode, name: str) -> dict[str, Any]:
    """The names and default values in the cell tagged ``parameters``; empty where there is none.

    Raises
    ------
    DataError : when the cell holds anything but ``name = literal``: a value derived there would
        keep its default.
    """
    tagged = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    if not tagged:
        return {}
    found = {}
    for node in ast.parse(tagged[0].source).body:
        try:
            if not (isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)):
                raise ValueError
            found[node.targets[0].id] = ast.literal_eval(node.value)
        except ValueError:
            problem = f"is no plain assignment of a literal: {ast.unparse(node)}"
            raise DataError(name, "parameters cell", problem, "move it to the next cell") from None
    return found


def _same_type(given: Any, default: Any) -> bool:
    if isinstance(default, float):
        return isinstance(given, (int, float)) and not isinstance(given, bool)
    return type(given) is type(default)


def checked_parameters(group: Mapping[str, Any], declared: Mapping[str, Any], stage: str) -> dict[str, Any]:
    """A stage's group of ``params.yaml``, checked against its notebook's parameters cell.

    Raises
    ------
    DataError : for a name that only one of the two holds, or a value of another type.
    """
    where = f"group {stage}"
    if unknown := sorted(set(group) - set(declared)):
        raise DataError(
            "params.yaml", where, f"unknown: {', '.join(unknown)}", f"known: {', '.join(declared) or 'none'}"
        )
    if missing := sorted(set(declared) - set(group)):
        raise DataError("params.yaml", where, f"missing: {', '.join(missing)}", "add them")
    for name, value in group.items():
        if not _same_type(value, declared[name]):
            problem = f"{name} is {value!r}, a {type(value).__name__}; the notebook has {declared[name]!r}"
            raise DataError("params.yaml", where, problem, f"give a {type(declared[name]).__name__}")
    return dict(group)


# -- running -------------------------------------------------------------------------------------


def declared_outputs(stage: str) -> list[str]:
    """The files that ``dvc.yaml`` says a stage writes, relative to the root.

    A stage with ``meta: {local: true}`` may declare none: what a machine measured is its own, and no
    output of the project's.

    Raises
    ------
    DataError : for a stage that ``dvc.yaml`` does not hold, or one that declares nothing.
    """
    stages = read_yaml(inside("dvc.yaml"))["stages"]
    if stage not in stages:
        raise DataError("dvc.yaml", stage, "no such stage", f"use one of {', '.join(stages)}")
    outs = stages[stage].get("outs", [])
    if not outs and not stages[stage].get("meta", {}).get("local"):
        raise DataError("dvc.yaml", stage, "declares no outs", "declare what it writes")
    return [next(iter(out)) if isinstance(out, Mapping) else out for out in outs]


def find_notebook(stage: str) -> Path:
    """The cleaned notebook of a stage: ``build/notebooks/NN-<stage>.ipynb``."""
    found = sorted(inside(*CLEANED).glob(f"[0-9][0-9]-{stage}.ipynb"))
    if len(found) != 1:
        problem = f"{len(found)} notebooks called NN-{stage}.ipynb"
        raise DataError("/".join(CLEANED), stage, problem, "run `dvc repro clean`, and keep one of that name")
    return found[0]


def check_ran(notebook: NotebookNode, stage: str) -> None:
    """Refuse an executed notebook in which a code cell failed or never ran.

    Raises
    ------
    StageError : naming the cell by number and first line.
    """
    for number, cell in enumerate(notebook.cells, start=1):
        if cell.cell_type != "code" or not cell.source.strip():
            continue
        status = cell.metadata.get("papermill", {}).get("status")
        failed = any(output.output_type == "error" for output in cell.outputs)
        if cell.execution_count is None or failed or status not in (None, "completed"):
            first = cell.source.strip().splitlines()[0]
            why = "failed" if failed else "did not run to its end (was there a sys.exit, or a killed kernel?)"
            raise StageError(f"{stage}: cell {number} {why}: {first}")


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no strict JSON")


def check_output(path: Path, name: str, stage: str) -> None:
    """Refuse an output that is missing, empty or cannot be read back.

    Raises
    ------
    StageError : naming the output.
    """
    if not path.is_file() or path.stat().st_size == 0:
        raise StageError(f"{stage}: {name} was declared in dvc.yaml but not written")
    try:
        if path.suffix == ".csv":
            read_table(path)
        elif path.suffix == ".json":
            json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
        elif path.suffix in MAGIC and not path.read_bytes().startswith(MAGIC[path.suffix]):
            raise ValueError(f"does not begin like a {path.suffix} file")
    except (ValueError, DataError) as error:
        raise StageError(f"{stage}: {name} cannot be read back: {error}") from error


def _publish(staging: Path, stage: str) -> list[str]:
    declared = declared_outputs(stage)
    for name in declared:
        check_output(staging / name, name, stage)
    extra = {p.relative_to(staging).as_posix() for p in staging.rglob("*") if p.is_file()} - set(declared)
    local = sorted(name for name in extra if ".local." in name)
    if extra := extra - set(local):
        raise StageError(f"{stage}: wrote what dvc.yaml does not declare: {', '.join(sorted(extra))}")
    for name in [*declared, *local]:
        target = inside(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        (staging / name).replace(target)
    return declared


def run_stage(stage: str) -> list[str]:
    """Run a stage's notebook with its group of ``params.yaml`` and publish what it wrote.

    The executed notebook is kept in ``build/executed`` whatever happens. Outputs are written to a
    staging folder and moved into place only when all went well.

    Returns
    -------
    The published files, relative to the root.

    Raises
    ------
    StageError : when a cell failed or did not run, or an output is missing; nothing is published.
    DataError : when the parameters do not fit the notebook.
    """
    source = find_notebook(stage)
    notebook = nbformat.read(source, as_version=4)
    group = read_yaml(inside("params.yaml")).get(stage) or {}
    parameters = checked_parameters(group, declared_parameters(notebook, source.name), stage)
    import papermill as pm  # a second to import, which the cleaner need not pay

    staging = inside(*STAGING, stage)
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    executed = inside(*EXECUTED, source.name)
    executed.parent.mkdir(parents=True, exist_ok=True)
    executed.unlink(missing_ok=True)
    watchdog.end_with("dvc")
    os.environ |= {"HETGPU_ROOT": str(root()), "HETGPU_STAGING": str(staging)}
    started = time.monotonic()
    try:
        result = pm.execute_notebook(
            str(source),
            str(executed),
            parameters,
            kernel_name=KERNEL,
            cwd=str(root()),
            progress_bar=False,
            config=LOCAL_KERNEL,
        )
        check_ran(result, stage)
        published = _publish(staging, stage)
    except pm.PapermillExecutionError as error:
        raise StageError(f"{stage}: cell {error.exec_count} failed: {error.ename}: {error.evalue}") from error
    except (StageError, DataError):
        raise
    except Exception as error:
        if executed.is_file():
            check_ran(nbformat.read(executed, as_version=4), stage)  # names the cell at which the kernel died
        raise StageError(f"{stage}: the kernel did not finish: {type(error).__name__}: {error}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        del os.environ["HETGPU_STAGING"]
    print(f"{stage}: {len(published)} files in {time.monotonic() - started:.1f} s")
    return published
