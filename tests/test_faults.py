"""What breaks while measuring, with real processes: a clear message, no half-written run, and the next try works."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import psutil
import pytest

from hetgpu.errors import DataError
from hetgpu.evidence.catalog import load_tiers
from hetgpu.evidence.traces import REQUEST_COLUMNS, find_traces, read_trace, write_trace
from hetgpu.measure.client import ClientError
from hetgpu.measure.engine import Engine, EngineError, EngineSpec, connect
from hetgpu.measure.model import build_tiny_model
from hetgpu.measure.run import Planned, Setting, sweep, sweep_missing
from hetgpu.measure.schedule import paper_schedule

STUB = Path(__file__).parent / "stub_engine.py"


def quiet(text):
    pass


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    pytest.importorskip("vllm", reason="the engine is not installed here")
    return str(build_tiny_model(tmp_path_factory.mktemp("models") / "a"))


@pytest.fixture
def stub(project, tmp_path):
    """The command that starts the stub, and a function that starts it as an engine."""
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} {STUB} "$@"\n')
    script.chmod(0o755)

    def spec(fail=""):
        return EngineSpec("m", command=(str(script),), environment={"STUB_FAIL": fail}, ready_limit_s=20.0)

    return spec


def plan(repeat=0):
    return Planned("paper", 50.0, repeat, paper_schedule(50.0, 4))


def setting(tokenizer, tmp_path):
    return Setting(load_tiers()["cpu-local"], "m", "bf16", tokenizer, tmp_path / "traces")


def gone(pid, within_s):
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.1)
    return False


# -- a full disk -----------------------------------------------------------------------------------


def requests(n):
    """A frame of n requests that does not compress."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({name: rng.random(n) for name in REQUEST_COLUMNS})
    return frame.astype({"endpoint": str, "answer_sha256": str, "request_class": str})


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 64 kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], check=False)
    if mounted.returncode:
        pytest.skip("no right to mount a small file system here (it needs root)")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_is_named_and_leaves_no_run(small_disk):
    with pytest.raises(DataError, match=r"qps4-rep0.*No space left on device.*[Ff]ree"):
        write_trace(small_disk / "t" / "qps4-rep0", {}, requests(20_000), None, None)
    assert list(find_traces(small_disk)) == []
    assert [path for path in small_disk.rglob("*") if path.is_file()] == []
    write_trace(small_disk / "t" / "qps4-rep0", {}, requests(20), None, None)
    assert len(read_trace(small_disk / "t" / "qps4-rep0").requests) == 20


# -- the client, the engine, the URL ---------------------------------------------------------------


@pytest.mark.engine
def test_a_client_that_is_killed_leaves_no_run_and_the_next_sweep_makes_it(stub, tokenizer, tmp_path):
    def kill():
        while not stop.is_set():
            for child in psutil.Process().children():
                # A child of another kind may end between the list and the look.
                with contextlib.suppress(psutil.Error):
                    if "vllm.benchmarks.serve" in " ".join(child.cmdline()):
                        child.kill()
                        return
            time.sleep(0.05)

    stop = threading.Event()
    killer = threading.Thread(target=kill)
    killer.start()
    try:
        with (
            Engine.start(stub(), tmp_path / "e.log", quiet) as engine,
            pytest.raises(ClientError, match="status -9 and left no result"),
        ):
            sweep(engine, setting(tokenizer, tmp_path), [plan()], tmp_path / "c", quiet)
    finally:
        stop.set()
        killer.join()
    assert list(find_traces(tmp_path)) == []
    with Engine.start(stub(), tmp_path / "e.log", quiet) as engine:
        (folder,) = sweep(engine, setting(tokenizer, tmp_path), [plan()], tmp_path / "c", quiet)
    assert read_trace(folder).failed_checks == []


@pytest.mark.engine
def test_a_url_that_stops_answering_between_runs_keeps_the_first_and_the_next_sweep_goes_on(stub, tokenizer, tmp_path):
    said = []
    ours = Engine.start(stub(), tmp_path / "e.log", quiet)
    there = connect(ours.url, "hetgpu", quiet)

    def stop_after_first(plans):
        for planned in plans:
            yield planned
            ours.stop()

    with pytest.raises(EngineError, match=rf"{ours.url} stopped answering"):
        sweep(there, setting(tokenizer, tmp_path), [plan(0), plan(1)], tmp_path / "c", said.append, stop_after_first)
    (first,) = find_traces(tmp_path / "traces")
    assert read_trace(first).failed_checks == []
    with Engine.start(stub(), tmp_path / "e.log", quiet) as engine:
        sweep(engine, setting(tokenizer, tmp_path), [plan(0), plan(1)], tmp_path / "c", said.append)
    assert ["repeat 0" in line for line in said] == [True, False], said


@pytest.mark.engine
def test_a_model_that_does_not_load_is_told_with_the_log_s_last_lines(stub, tokenizer, tmp_path):
    start = lambda: Engine.start(stub("dies_loading"), tmp_path / "e.log", quiet)  # noqa: E731
    with pytest.raises(EngineError, match="no such model"):
        sweep_missing(start, setting(tokenizer, tmp_path), [plan()], tmp_path / "c", quiet)
    assert list(find_traces(tmp_path)) == []


# -- DVC -------------------------------------------------------------------------------------------


@pytest.fixture
def pipeline(stub, project, tmp_path):
    """The copy of the project with one stage, whose notebook starts an engine and waits."""
    shutil.rmtree(project / "notebooks")
    (project / "notebooks").mkdir()
    made = nbformat.v4.new_notebook()
    source = f"""
        import time
        from pathlib import Path
        from hetgpu.measure.engine import Engine, EngineSpec
        from hetgpu.paths import output
        with Engine.start(EngineSpec("m", command={stub().command!r}), Path({str(tmp_path / "e.log")!r})) as engine:
            Path({str(tmp_path / "pid")!r}).write_text(str(engine.process.pid))
            while Path({str(tmp_path / "wait")!r}).exists():
                time.sleep(0.1)
        output("data", "summaries", "slow.csv").write_text("a\\n1\\n")
    """
    made.cells.append(nbformat.v4.new_code_cell(textwrap.dedent(source)))
    nbformat.write(made, project / "notebooks" / "01-slow.ipynb")
    python = sys.executable
    stages = {
        "clean": {"cmd": f"{python} -m hetgpu clean", "deps": ["notebooks"], "outs": ["build/notebooks"]},
        "slow": {
            "cmd": f"{python} -m hetgpu stage slow",
            "deps": ["build/notebooks/01-slow.ipynb"],
            "outs": [{"data/summaries/slow.csv": {"cache": False}}],
        },
    }
    (project / "dvc.yaml").write_text(json.dumps({"stages": stages}))
    (project / "dvc.lock").unlink(missing_ok=True)
    (tmp_path / "wait").touch()
    environment = os.environ | {"HETGPU_ROOT": str(project), "DVC_NO_ANALYTICS": "1"}
    environment.pop("MPLBACKEND", None)
    dvc = [python, "-m", "dvc"]
    subprocess.run([*dvc, "init", "--no-scm", "-f", "-q"], cwd=project, env=environment, check=True)

    def repro():
        return subprocess.Popen(
            [*dvc, "repro", "slow"], cwd=project, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    yield repro
    (tmp_path / "wait").unlink(missing_ok=True)


def engine_pid(tmp_path, within_s=60):
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if (tmp_path / "pid").exists() and (text := (tmp_path / "pid").read_text()):
            return int(text)
        time.sleep(0.1)
    pytest.fail("the stage started no engine")


def test_no_engine_survives_a_killed_dvc_by_10_seconds_and_the_next_repro_succeeds(pipeline, project, tmp_path):
    run = pipeline()
    engine = engine_pid(tmp_path)
    run.kill()
    run.wait()
    assert gone(engine, 10.0)
    assert not (project / "data" / "summaries" / "slow.csv").exists()
    (tmp_path / "wait").unlink()
    again = pipeline()
    told, _ = again.communicate(timeout=90)
    assert again.returncode == 0, told
    assert (project / "data" / "summaries" / "slow.csv").read_text() == "a\n1\n"


def test_of_two_repros_at_once_one_says_so_and_the_other_ends_well(pipeline, project, tmp_path):
    first = pipeline()
    engine_pid(tmp_path)
    second = pipeline()
    told, _ = second.communicate(timeout=90)
    assert second.returncode != 0
    assert "Unable to acquire lock" in told or "is busy" in told, told
    (tmp_path / "wait").unlink()
    assert first.wait(90) == 0
    again = pipeline()
    told, _ = again.communicate(timeout=90)
    assert (again.returncode, "didn't change" in told or "up to date" in told) == (0, True), told
    assert (project / "data" / "summaries" / "slow.csv").read_text() == "a\n1\n"
