"""An engine's life and its faults, with real processes and a stub in vLLM's place."""

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from hetgpu.errors import DataError
from hetgpu.measure import watchdog
from hetgpu.measure.engine import SERVER, Engine, EngineError, EngineSpec, connect, free_port, leftovers

STUB = Path(__file__).parent / "stub_engine.py"


@pytest.fixture
def spec(project, tmp_path):
    """How to start the stub: a script that plays the interpreter vLLM lives in."""
    interpreter = tmp_path / "python"
    interpreter.write_text(f'#!/bin/sh\nexec {sys.executable} {STUB} "$@"\n')
    interpreter.chmod(0o755)

    def made(fail="", **more):
        environment = {"STUB_FAIL": fail}
        # The model names the test, so that its processes can be told from others.
        return EngineSpec(
            str(tmp_path / "a-model"),
            command=(str(interpreter), *SERVER),
            environment=environment,
            **({"ready_limit_s": 15.0} | more),
        )

    return made


def quiet(text):
    pass


def gone(pid, within_s):
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.1)
    return False


def test_an_engine_starts_on_loopback_answers_and_is_ended(spec, tmp_path):
    with Engine.start(spec(), tmp_path / "engine.log", quiet) as engine:
        pid = engine.process.pid
        assert engine.url.startswith("http://127.0.0.1:")
        assert engine.version() == "0.0.stub"
        assert engine.counters() == {"vllm:prompt_tokens_total": 0.0, "vllm:generation_tokens_total": 0.0}
        engine.reset_prefix_cache()
        assert os.getpgid(pid) == pid != os.getpgid(0)
    assert gone(pid, 1.0)
    assert leftovers() == []
    assert "loading the stub" in (tmp_path / "engine.log").read_text()


def test_an_engine_that_dies_while_loading_says_what_its_log_says(spec, tmp_path):
    with pytest.raises(EngineError, match=r"ended while loading \(status 1\):(.|\n)*no such model"):
        Engine.start(spec("dies_loading"), tmp_path / "engine.log", quiet)


def test_an_engine_that_never_answers_is_ended_at_the_limit(spec, tmp_path):
    with pytest.raises(EngineError, match="did not answer within 2 s"):
        Engine.start(spec("never_ready", ready_limit_s=2.0), tmp_path / "engine.log", quiet)
    mine = [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(p.info["cmdline"] or [])]
    assert mine == []


def test_a_taken_port_is_named(spec, tmp_path):
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        with pytest.raises(DataError, match=f"port {port}: is taken"):
            Engine.start(spec(port=port), tmp_path / "engine.log", quiet)


def test_a_url_that_does_not_answer_is_named_and_one_that_does_is_left_alone(spec, tmp_path):
    with pytest.raises(EngineError, match="does not answer"):
        connect(f"http://127.0.0.1:{free_port()}", "m", quiet)
    with Engine.start(spec(), tmp_path / "engine.log", quiet) as ours:
        connect(ours.url, "m", quiet).stop()
        assert ours.answers()


def test_counters_of_a_url_that_stopped_answering_are_an_error(spec, tmp_path):
    engine = Engine.start(spec(), tmp_path / "engine.log", quiet)
    foreign = connect(engine.url, "m", quiet)
    engine.stop()
    with pytest.raises(EngineError, match="stopped answering"):
        foreign.counters()


OWNER = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job starts with it ignored
from pathlib import Path
from hetgpu.measure.engine import Engine, EngineSpec
spec = EngineSpec("a-model", command=(sys.argv[1],), ready_limit_s=15.0)
engine = Engine.start(spec, Path(sys.argv[2]), lambda text: None)
print(engine.process.pid, flush=True)
time.sleep(3600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_engine_survives_its_owner_by_10_seconds(spec, tmp_path, number):
    command = [sys.executable, "-c", OWNER, spec().command[0], str(tmp_path / "engine.log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as owner:
        engine = int(owner.stdout.readline())
        assert psutil.pid_exists(engine)
        owner.send_signal(number)
        try:
            owner.wait(10)
        finally:
            owner.kill()
        assert gone(engine, 10.0)


def test_what_an_owner_left_is_named_and_ended_at_the_next_start(spec, tmp_path, project):
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], start_new_session=True)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    marker = project / "build" / "engines" / f"{left.pid}.json"
    marker.parent.mkdir(parents=True)
    content = {"owner": dead.pid, "group": left.pid, "model": "old-model", "url": "http://127.0.0.1:1", "started": 0}
    marker.write_text(json.dumps(content))
    said = []
    with Engine.start(spec(), tmp_path / "engine.log", said.append):
        left.wait(5)
    assert [text for text in said if "old-model" in text and str(dead.pid) in text]
    assert not marker.exists()


def test_a_notebook_s_kernel_that_is_killed_leaves_no_engine(spec, tmp_path, project):
    """Killing papermill kills the kernel's parent; the kernel ends, and the watchdog ends the engine."""
    import nbformat

    made = nbformat.v4.new_notebook()
    pid_file = tmp_path / "pid"
    made.cells.append(
        nbformat.v4.new_code_cell(
            textwrap.dedent(f"""
        import sys, time
        from pathlib import Path
        from hetgpu.measure.engine import Engine, EngineSpec
        spec = EngineSpec("a-model", command={spec().command!r}, ready_limit_s=15.0)
        engine = Engine.start(spec, Path({str(tmp_path / "engine.log")!r}))
        Path({str(pid_file)!r}).write_text(str(engine.process.pid))
        time.sleep(3600)
    """)
        )
    )
    path = tmp_path / "n.ipynb"
    nbformat.write(made, path)
    runner = subprocess.Popen(
        [sys.executable, "-m", "papermill", str(path), str(tmp_path / "out.ipynb"), "-k", "python3"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    deadline = time.monotonic() + 40
    while not (pid_file.exists() and pid_file.read_text()) and time.monotonic() < deadline:
        time.sleep(0.2)
    engine = int(pid_file.read_text())
    runner.kill()
    runner.wait()
    assert gone(engine, 10.0)


def test_the_watchdog_ends_a_group_that_ignores_sigterm():
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", deaf], start_new_session=True, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        watchdog.end_group(process.pid, grace_s=0.5, reap=process.poll)
        assert process.wait(3) == -signal.SIGKILL


def test_an_owner_that_nobody_reaps_is_dead_all_the_same():
    zombie = subprocess.Popen([sys.executable, "-c", ""])
    deadline = time.monotonic() + 10
    while psutil.Process(zombie.pid).status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not watchdog.alive(zombie.pid)
    zombie.wait()
    assert watchdog.alive(os.getpid())


def test_what_warms_an_engine_up_carries_the_key_like_every_call(spec, tmp_path, monkeypatch):
    monkeypatch.setenv("HETGPU_API_KEY", "secret")
    with Engine.start(spec(), tmp_path / "engine.log", quiet) as engine:
        sent = []
        engine._http.event_hooks["request"] = [lambda request: sent.append(request.headers["Authorization"])]
        engine.complete([3, 3, 3], max_tokens=2)
        assert sent == ["Bearer secret"]
        assert engine.counters()["vllm:generation_tokens_total"] == 2.0
    assert "secret" not in (tmp_path / "engine.log").read_text()
