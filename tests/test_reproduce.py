"""A clone reproduces the committed bytes, and `dvc repro` re-runs what a change touches and nothing else."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from hetgpu import reproduce
from hetgpu.evidence.files import read_yaml
from hetgpu.paths import inside, root

pytestmark = pytest.mark.slow


def run(command, folder):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HETGPU_")}
    environment |= {"PYTHONPATH": str(folder), "DVC_NO_ANALYTICS": "1", "PYTHONHASHSEED": "0", "MPLBACKEND": "Agg"}
    environment["PATH"] = str(Path(sys.executable).parent) + os.pathsep + environment["PATH"]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    return done.returncode, done.stdout + done.stderr


def repro(folder):
    """The stages that `dvc repro` ran."""
    status, text = run([sys.executable, "-m", "dvc", "repro"], folder)
    assert status == 0, text[-3000:]
    return re.findall(r"Running stage '([\w-]+)'", text)


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A clone of the committed state."""
    folder = tmp_path_factory.mktemp("clone") / "hetgpu"
    subprocess.run(["git", "clone", "-q", str(root()), str(folder)], check=True)
    return folder


@pytest.fixture
def changed(clone):
    """The clone, put back as committed (results and lock too) after the test."""
    yield clone
    subprocess.run(["git", "checkout", "-q", "."], cwd=clone, check=True)


def test_a_fresh_clone_re_runs_the_cleaner_and_nothing_else(clone):
    assert repro(clone) == ["clean"]
    assert repro(clone) == []
    assert subprocess.run(["git", "status", "--porcelain"], cwd=clone, capture_output=True).stdout == b""


def test_a_notebook_that_was_run_and_saved_re_runs_the_cleaner_and_nothing_else(changed):
    path = changed / "notebooks" / "31-table2.ipynb"
    notebook = nbformat.read(path, as_version=4)
    for number, cell in enumerate(notebook.cells):
        cell.id = f"saved-{number}"
        if cell.cell_type == "code":
            cell.execution_count = 40 + number
            cell.outputs = []
    notebook.metadata["kernelspec"]["display_name"] = "Python 3 (ipykernel)"
    nbformat.write(notebook, path)
    assert repro(changed) == ["clean"]


def test_a_changed_price_re_runs_the_cost_stages_and_no_import_nor_energy(changed):
    path = changed / "data" / "catalog" / "prices.csv"
    before = path.read_text()
    path.write_text(before.replace("1 GPU,2.00,USD", "1 GPU,2.10,USD"))
    assert path.read_text() != before
    ran = repro(changed)
    assert {"cost", "table1", "table2", "figure1", "claims", "values", "report"} <= set(ran)
    assert not {"import", "energy", "figure-latency-load", "clean"} & set(ran)


def test_a_changed_tdp_re_runs_the_energy_stages_and_no_cost(changed):
    path = changed / "params.yaml"
    path.write_text(path.read_text().replace("H100-PCIe: 700.0", "H100-PCIe: 690.0"))
    ran = repro(changed)
    assert {"energy", "table3", "claims"} <= set(ran)
    assert not {"import", "cost", "table1", "table2", "figure1", "figure-winners"} & set(ran)


def test_a_clone_reproduces_the_committed_bytes(clone):
    status, text = run([sys.executable, "-m", "hetgpu", "repro"], clone)
    assert status == 0, text[-3000:]
    stages = len(read_yaml(inside("dvc.yaml"))["stages"])
    assert f"[{stages}/{stages}] report" in text
    for kind in ("summaries", "tables", "figures", "values", "report"):
        same, total = re.search(rf"{kind} +(\d+) of (\d+) the same as committed", text).groups()
        assert same == total != "0"
    assert "report.pdf" in text.splitlines()[-1]


def test_what_differs_from_the_committed_bytes_is_named(changed, monkeypatch):
    monkeypatch.setenv("HETGPU_ROOT", str(changed))
    table = changed / "paper" / "tables" / "table1.csv"
    table.write_text(table.read_text().replace("2.50", "2.60"))
    values = changed / "paper" / "values.json"
    content = json.loads(values.read_text())
    content["table1.cells"]["value"] = 7
    content["a.new.one"] = {"value": 1}
    values.write_text(json.dumps(content))
    files = reproduce.compare_files(["paper/tables/table1.csv", "paper/tables/table3.csv"])
    assert files["tables"].differ == ["paper/tables/table1.csv"]
    assert files["tables"].same == ["paper/tables/table3.csv"]
    found = reproduce.compare_values()
    assert (found.differ, found.uncommitted) == (["table1.cells"], ["a.new.one"])
    assert "different: table1.cells" in found.line("values")
