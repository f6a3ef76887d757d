"""The runner: what it takes for success, and what a stage that fails leaves behind (nothing)."""

import json
import os
import subprocess
import sys

import nbformat
import pytest
from ruamel.yaml import YAML

from hetgpu import pipeline
from hetgpu.errors import DataError
from hetgpu.evidence.files import read_yaml
from hetgpu.paths import inside, output, root

STAGES = read_yaml(inside("dvc.yaml"))["stages"]


def notebook(*cells, tags=()):
    made = nbformat.v4.new_notebook()
    for number, source in enumerate(cells):
        cell = nbformat.v4.new_code_cell(source)
        if number in tags:
            cell.metadata["tags"] = ["parameters"]
        made.cells.append(cell)
    return made


@pytest.fixture
def stage(project):
    """A function that runs a made-up stage in the copy of the project and gives what it published."""

    def run(*cells, tags=(), outs=("data/summaries/made.csv",), params=None, meta=None):
        declared = [{name: {"cache": False}} for name in outs]
        stages = {"made": {"cmd": "x", "outs": declared, "meta": meta or {}}}
        (project / "dvc.yaml").write_text(json.dumps({"stages": stages}))
        (project / "params.yaml").write_text(json.dumps({"made": params or {}}))
        for path in (project / "notebooks").glob("*.ipynb"):
            path.unlink()
        nbformat.write(notebook(*cells, tags=tags), project / "notebooks" / "01-made.ipynb")
        pipeline.clean_notebooks()
        return pipeline.run_stage("made")

    return run


WRITE = "from hetgpu.paths import output\noutput('data', 'summaries', 'made.csv').write_text('a\\n1\\n')"


def test_a_stage_publishes_what_it_declares(stage, project):
    assert stage("x = 1", WRITE) == ["data/summaries/made.csv"]
    assert (project / "data/summaries/made.csv").read_text() == "a\n1\n"
    assert not (project / "build" / "staging" / "made").exists()
    assert "HETGPU_STAGING" not in os.environ


def test_what_is_this_machine_s_own_is_published_undeclared_and_alone_where_the_stage_says_so(stage, project):
    local = WRITE.replace("made.csv", "made.local.csv")
    assert stage(WRITE, local) == ["data/summaries/made.csv"]
    assert (project / "data/summaries/made.local.csv").is_file()
    with pytest.raises(DataError, match="made: declares no outs"):
        stage(local, outs=())
    (project / "data/summaries/made.local.csv").unlink()
    assert stage(local, outs=(), meta={"local": True}) == []
    assert (project / "data/summaries/made.local.csv").is_file()


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ((WRITE, "import sys; sys.exit(0)", "x = 1"), r"cell 2 .*sys\.exit"),
        ((WRITE, "import os; os.kill(os.getpid(), 9)", "x = 1"), "kernel did not finish|did not run to its end"),
        ((WRITE, "1 / 0"), "cell 2 failed: ZeroDivisionError"),
        (("x = 1",), r"made\.csv was declared in dvc\.yaml but not written"),
        ((WRITE.replace("a\\n1\\n", "a\\n"),), r"made\.csv cannot be read back: .*holds no rows"),
        ((WRITE, WRITE.replace("made.csv", "other.csv")), r"does not declare: data/summaries/other\.csv"),
    ],
)
def test_a_stage_that_fails_says_which_cell_and_publishes_nothing(stage, project, cells, message):
    before = project / "data" / "summaries" / "made.csv"
    before.write_text("a\n0\n")
    with pytest.raises(pipeline.StageError, match=message):
        stage(*cells)
    assert before.read_text() == "a\n0\n"
    assert not (project / "data" / "summaries" / "other.csv").exists()


def test_json_that_is_not_strict_is_no_output(stage):
    cell = "from hetgpu.paths import output\noutput('data', 'a.json').write_text('{\"a\": NaN}')"
    with pytest.raises(pipeline.StageError, match="NaN is no strict JSON"):
        stage(cell, outs=("data/a.json",))


def test_parameters_reach_the_notebook_as_yaml_types(stage, project):
    cells = (
        "flag = True\nrate = 1.0\nnames = ['a']",
        WRITE.replace("a\\n1\\n'", "a\\n' + f'{flag!r} {rate!r} {names!r}'"),
    )
    stage(*cells, tags=(0,), params={"flag": False, "rate": 2, "names": ["b"]})
    assert (project / "data/summaries/made.csv").read_text() == "a\nFalse 2 ['b']"


@pytest.mark.parametrize(
    ("group", "message"),
    [
        ({"rate": 1.0, "rates": 2.0}, "unknown: rates"),
        ({}, "missing: rate"),
        ({"rate": "1e-3"}, "rate is '1e-3', a str"),
        ({"rate": True}, "rate is True, a bool"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(group, message):
    with pytest.raises(DataError, match=message):
        pipeline.checked_parameters(group, {"rate": 1.0}, "made")


def test_a_value_derived_in_the_parameters_cell_is_refused():
    with pytest.raises(DataError, match=r"b = a \* 2"):
        pipeline.declared_parameters(notebook("a = 1\nb = a * 2", tags=(0,)), "x.ipynb")


def test_a_notebook_is_cleaned_to_the_same_bytes_however_it_ran():
    fresh, ran = notebook("x = 1", "x"), notebook("x = 1", "x")
    ran.metadata["kernelspec"] = {"name": "conda-env-hetgpu-py", "display_name": "x", "language": "python"}
    for number, cell in enumerate(ran.cells):
        cell.id, cell.execution_count = f"other{number}", number + 7
        cell.outputs = [nbformat.v4.new_output("stream", text="1")]
    assert pipeline.cleaned(fresh) == pipeline.cleaned(ran)
    ran.cells[0].source = "x = 2"
    assert pipeline.cleaned(fresh) != pipeline.cleaned(ran)


def test_an_author_s_kernel_runs_on_python3(cases):
    made = nbformat.reads(pipeline.cleaned(nbformat.read(cases / "kernel.ipynb", as_version=4)), as_version=4)
    assert made.metadata.kernelspec.name == "python3"
    assert made.cells[0].source == "1+1"


def test_a_copy_of_a_removed_notebook_goes(project):
    assert len(pipeline.clean_notebooks()) == len(list((project / "notebooks").glob("*.ipynb")))
    (project / "notebooks" / "30-table1.ipynb").unlink()
    pipeline.clean_notebooks()
    assert not (project / "build" / "notebooks" / "30-table1.ipynb").exists()


LOADER = "from hetgpu.evidence.records import read_stage_output as r; print(len(r('published')))"


def test_a_loader_gives_the_same_from_any_folder(tmp_path):
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HETGPU_")}
    for folder in (root(), root() / "notebooks", tmp_path):
        done = subprocess.run(
            [sys.executable, "-c", LOADER], cwd=folder, env=environment, capture_output=True, text=True
        )
        assert done.stdout.strip() == "130", done.stderr


def test_an_empty_match_raises(project):
    (project / "data" / "summaries" / "published.csv").unlink()
    done = subprocess.run([sys.executable, "-c", LOADER], cwd=project, capture_output=True, text=True)
    assert done.returncode == 1
    assert "published.csv: no such file. Mend: run `make repro`" in done.stderr


def test_a_folder_that_is_no_project_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("HETGPU_ROOT", str(tmp_path))
    with pytest.raises(DataError, match="holds no hetgpu project"):
        root()


def test_outputs_go_in_place_by_hand_and_to_staging_in_a_stage(project, monkeypatch):
    assert output("figures", "a.svg") == project / "figures" / "a.svg"
    monkeypatch.setenv("HETGPU_STAGING", str(project / "build" / "s"))
    assert output("figures", "a.svg") == project / "build" / "s" / "figures" / "a.svg"


# -- the pipeline's own description ----------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in STAGES if name not in ("clean", "report")])
def test_every_stage_has_its_notebook_and_the_same_parameters(name):
    found = list(inside("notebooks").glob(f"[0-9][0-9]-{name}.ipynb"))
    assert len(found) == 1
    declared = pipeline.declared_parameters(nbformat.read(found[0], as_version=4), name)
    assert declared == (read_yaml(inside("params.yaml")).get(name) or {})
    assert f"build/notebooks/{found[0].name}" in STAGES[name]["deps"]
    assert STAGES[name].get("params", []) == ([name] if declared else [])


def test_every_group_of_parameters_has_a_stage():
    assert set(read_yaml(inside("params.yaml"))) <= set(STAGES)


def test_no_stage_depends_on_an_executed_notebook_and_every_output_is_in_git():
    for name, stage in STAGES.items():
        assert not [dep for dep in stage["deps"] if "executed" in dep], name
        assert stage.get("outs") or stage["meta"]["local"], name
        assert all(next(iter(out.values()))["cache"] is False for out in stage.get("outs", [])), name


def test_prices_and_grids_feed_the_cost_and_energy_stages_alone():
    def feeds(path):
        return {name for name, stage in STAGES.items() if path in stage["deps"]}

    assert "import" not in feeds("data/catalog/prices.csv") | feeds("data/catalog/grids.csv")
    assert "energy" not in feeds("data/catalog/prices.csv") | feeds("data/summaries/costs.csv")
    assert "cost" not in feeds("data/catalog/grids.csv") | feeds("data/catalog/gpus.csv")
    assert [name for name, stage in STAGES.items() if "energy" in stage.get("params", [])] == ["energy"]


def test_dvc_yaml_names_each_file_a_notebook_reads():
    for name in STAGES:
        for path in inside("notebooks").glob(f"[0-9][0-9]-{name}.ipynb"):
            text = path.read_text()
            for table in ("published", "costs", "energy", "table2_rows", "price_ratios", "audit_cells"):
                if f'read_stage_output(\\"{table}\\")' in text:
                    assert f"data/summaries/{table}.csv" in STAGES[name]["deps"], (name, table)


def test_the_params_file_is_read_as_dvc_reads_it():
    assert YAML(typ="safe", pure=True).load(inside("params.yaml").read_text()) == read_yaml(inside("params.yaml"))
