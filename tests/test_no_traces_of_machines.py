"""No committed file names a machine's folders, a registry's host or an author's kernel."""

import re
import subprocess

import nbformat
import pytest

from hetgpu.paths import inside, root

PATHS = re.compile(r"(?<![\w<~.])/(?:root|home/\w+|Users/\w+|work|mnt/\w+)/|\b[A-Z]:\\\\?[A-Za-z]")
HOSTS = re.compile(
    r"https?://(?!download\.pytorch\.org)[\w.-]*(?:pypi|pythonhosted|npmjs|debian|registry)[\w.-]*", re.I
)


def tracked():
    listed = subprocess.run(["git", "ls-files"], cwd=root(), capture_output=True, text=True, check=False).stdout.split()
    if not listed:
        pytest.skip("no Git here: nothing says which files are committed")
    return [name for name in listed if not name.startswith("tests/test_") and inside(name).is_file()]


def test_no_file_names_a_machine_or_a_registry():
    found = []
    for name in tracked():
        content = inside(name).read_bytes()
        if b"\0" in content[:8000]:
            continue
        for number, line in enumerate(content.decode("utf-8", errors="replace").splitlines(), start=1):
            if PATHS.search(line) or HOSTS.search(line):
                found.append(f"{name}:{number}: {line[:120]}")
    assert found == []


def test_every_notebook_runs_on_python3():
    for name in tracked():
        if name.endswith(".ipynb") and name.startswith("notebooks/"):
            assert nbformat.read(inside(name), as_version=4).metadata.kernelspec.name == "python3", name


@pytest.mark.parametrize(
    "line", ["open('/home/ann/x.csv')", "C:\\\\Users\\\\ann", "https://pypi.org/simple", "/root/x"]
)
def test_the_patterns_find_what_they_should(line):
    assert PATHS.search(line) or HOSTS.search(line)
