"""Where the project is, whatever folder the caller stands in.

papermill runs in the shell's folder, JupyterLab and nbval in the notebook's: a path relative to
either finds nothing in the other, so every path starts from :func:`root`.
"""

from __future__ import annotations

import os
from pathlib import Path

from hetgpu.errors import DataError

#: Files that only the project's top folder holds together.
MARKERS = ("params.yaml", "data/catalog/tiers.yaml")


def _is_root(folder: Path) -> bool:
    return all((folder / marker).is_file() for marker in MARKERS)


def root() -> Path:
    """The project's top folder.

    It is ``$HETGPU_ROOT`` if that is set, else the nearest such folder above the current one, else
    the one this library was installed from (an editable install).

    Raises
    ------
    DataError : when none of them is a hetgpu project.
    """
    named = os.environ.get("HETGPU_ROOT")
    if named:
        if _is_root(Path(named)):
            return Path(named).resolve()
        raise DataError(
            named,
            "HETGPU_ROOT",
            f"holds no hetgpu project ({' and '.join(MARKERS)})",
            "unset HETGPU_ROOT or point it at a clone",
        )
    here = Path.cwd()
    installed = Path(__file__).resolve().parents[1]
    for folder in (here, *here.parents, installed):
        if _is_root(folder):
            return folder.resolve()
    raise DataError(here, "", "is not inside a hetgpu project", "change into a clone, or set HETGPU_ROOT")


def inside(*parts: str) -> Path:
    """A path inside the project, from its parts."""
    return root().joinpath(*parts)


def shown(path: Path | str) -> str:
    """A path as messages print it: relative to the project where it lies inside."""
    path = Path(path).resolve()
    try:
        return path.relative_to(root()).as_posix()
    except (ValueError, DataError):
        return str(path)


def output(*parts: str) -> Path:
    """Where a stage writes a file of its own: in place, or in the runner's staging folder.

    The runner sets ``$HETGPU_STAGING``, checks what was written there and moves it into place only
    when the whole notebook succeeded, so that a failed stage publishes nothing. By hand, in
    JupyterLab, files go straight into place.
    """
    staging = os.environ.get("HETGPU_STAGING")
    base = Path(staging) if staging else root()
    path = base.joinpath(*parts)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
