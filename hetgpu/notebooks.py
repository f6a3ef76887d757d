"""The notebooks as a reader meets them: run in place with their outputs kept, tested against those, or as a page.

The first two work in a copy of the project without what this machine measured, so that they touch no
result and give the same outputs everywhere.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nbformat

from hetgpu.evidence.files import write_text
from hetgpu.paths import inside, root
from hetgpu.pipeline import KERNEL, LOCAL_KERNEL, check_ran, cleaned

#: What a notebook reads; the copy holds nothing else.
COPIED = ("data", "figures", "notebooks", "paper", "params.yaml", "dvc.yaml")


NOT_COPIED = (".ipynb_checkpoints", "__pycache__", "local", "*.local.*", "external")
#: The page of this machine's own runs; Git ignores it.
PAGE = ("paper", "this-machine.local.html")
PAGE_NOTEBOOK = "13-this-machine.ipynb"


@contextmanager
def project_copy() -> Iterator[Path]:
    """A throw-away copy of what the notebooks read and write, with ``$HETGPU_ROOT`` on it."""
    with tempfile.TemporaryDirectory(prefix="hetgpu-") as folder:
        for name in COPIED:
            source, target = inside(name), Path(folder, name)
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns(*NOT_COPIED))
            else:
                shutil.copy(source, target)
        before = os.environ.copy()
        os.environ["HETGPU_ROOT"] = folder
        os.environ.pop("MPLBACKEND", None)  # a notebook draws with its own backend, whatever the shell's is
        try:
            yield Path(folder)
        finally:
            os.environ.clear()
            os.environ.update(before)


def execute(path: Path, folder: Path) -> nbformat.NotebookNode:
    """A notebook run from its top in a folder, with its default parameters.

    Raises
    ------
    StageError : naming the cell that failed or did not run.
    """
    from nbclient import NotebookClient

    notebook = nbformat.reads(cleaned(nbformat.read(path, as_version=4)), as_version=4)
    where = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, kernel_name=KERNEL, resources=where, config=LOCAL_KERNEL, timeout=None).execute()
    check_ran(notebook, path.name)
    return notebook


def write_page() -> Path:
    """What this machine measured, as a page to open in a browser.

    Raises
    ------
    StageError : as :func:`execute`.
    """
    from nbconvert import HTMLExporter

    notebook = execute(inside("notebooks", PAGE_NOTEBOOK), root())
    body, _ = HTMLExporter(exclude_input=True).from_notebook_node(notebook)
    return write_text(body, inside(*PAGE))


def write_outputs(names: list[str]) -> None:
    """Run notebooks with their default parameters and keep the outputs in the committed files.

    Raises
    ------
    StageError : naming the cell that failed or did not run; that notebook stays as it was.
    """
    chosen = [path for path in sorted(inside("notebooks").glob("*.ipynb")) if not names or path.name in names]
    originals = root()
    with project_copy() as folder:
        for path in chosen:
            notebook = execute(path, folder / "notebooks")
            for cell in notebook.cells:
                cell.metadata.pop("execution", None)  # when it ran: another diff every time
            write_text(nbformat.writes(notebook) + "\n", originals / "notebooks" / path.name)
            print(path.name)


def test_outputs(arguments: list[str]) -> int:
    """Run nbval over all notebooks: every cell must run, and give the stored output."""
    with project_copy() as folder:
        command = [sys.executable, "-m", "pytest", "--nbval", "-p", "no:cacheprovider", "-q", "-c", os.devnull]
        command += ["--rootdir", str(folder), *arguments, str(folder / "notebooks")]
        return subprocess.run(command, cwd=folder, check=False).returncode


def main(arguments: list[str]) -> int:
    """``--write [NAME.ipynb ...]`` keeps fresh outputs; without it the stored ones are tested."""
    if arguments and arguments[0] == "--write":
        write_outputs(arguments[1:])
        return 0
    return test_outputs(arguments)
