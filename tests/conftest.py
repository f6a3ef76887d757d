"""Fixtures that several test files share."""

import shutil
from pathlib import Path

import pytest

from hetgpu.evidence.published import load_published
from hetgpu.notebooks import COPIED
from hetgpu.paths import root

CASES = Path(__file__).parent / "data" / "cases"


@pytest.fixture(scope="session")
def cases():
    """Bad inputs of kinds seen in public; each is synthetic."""
    return CASES


@pytest.fixture(scope="session")
def runs():
    """The published runs."""
    return load_published()


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A writable copy of what the notebooks read and write, which the library takes for the project."""
    source, folder = root(), tmp_path / "project"
    folder.mkdir()
    for name in (*COPIED, "README.md"):
        if (source / name).is_dir():
            shutil.copytree(source / name, folder / name, ignore=shutil.ignore_patterns("traces", ".ipynb_checkpoints"))
        elif (source / name).is_file():
            shutil.copy(source / name, folder / name)
    monkeypatch.setenv("HETGPU_ROOT", str(folder))
    return folder
