"""Every notebook runs, and gives the outputs that are stored in it."""

import nbformat
import pytest

from hetgpu import notebooks
from hetgpu.paths import inside
from hetgpu.pipeline import declared_parameters

NOTEBOOKS = sorted(inside("notebooks").glob("*.ipynb"))


@pytest.mark.slow
def test_every_notebook_gives_its_stored_outputs(capfd):
    status = notebooks.main([])
    assert status == 0, capfd.readouterr().out[-4000:]


@pytest.mark.slow
def test_a_changed_output_is_noticed(project, monkeypatch):
    for path in (project / "notebooks").glob("*.ipynb"):
        if not path.name.startswith("30-"):
            path.unlink()
    path = next((project / "notebooks").glob("30-*.ipynb"))
    text = path.read_text()
    assert "of 6 printed cells agree" in text
    path.write_text(text.replace("of 6 printed cells agree", "of 7 printed cells agree"))
    assert notebooks.main([]) == 1


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_is_stored_whole(path):
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert notebook.cells[0].cell_type == "markdown", "a notebook begins with prose"
    assert notebook.metadata.kernelspec.name == "python3"
    assert all(cell.execution_count for cell in code), "run `make notebooks`"
    assert not any(output.output_type == "error" for cell in code for output in cell.outputs)
    declared_parameters(notebook, path.name)
