"""A vLLM to measure: one that we start and end, or any OpenAI-compatible server that answers at a URL.

A started engine runs in a process group of its own, on loopback, with a watchdog that ends the group
when the owner dies, even by SIGKILL. Its marker in ``build/engines`` names what an earlier owner left.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from hetgpu.errors import DataError
from hetgpu.measure import watchdog
from hetgpu.paths import inside

#: vLLM's ``vllm`` command looks for a distribution of that name, which its CPU build is not.
SERVER = ("-m", "vllm.entrypoints.openai.api_server")
SERVED_NAME = "hetgpu"
#: Environment of every engine: nothing is fetched, nothing is reported, the cache can be reset.
QUIET = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_SERVER_DEV_MODE": "1"}
API_KEY_VARIABLE = "HETGPU_API_KEY"
#: A configuration's precision -> vLLM's arguments. ``awq`` and ``gptq`` want a checkpoint of that kind.
PRECISIONS: dict[str, tuple[str, ...]] = {
    "auto": (),
    "bf16": ("--dtype", "bfloat16"),
    "fp16": ("--dtype", "float16"),
    "fp32": ("--dtype", "float32"),
    "fp8": ("--quantization", "fp8"),
    "awq": ("--quantization", "awq"),
    "gptq": ("--quantization", "gptq"),
}


class EngineError(RuntimeError):
    """An engine that did not start, or stopped answering; the message says what its log says."""


@dataclass(frozen=True)
class EngineSpec:
    """What to serve and how.

    Parameters
    ----------
    model : a folder, or a name that vLLM can load.
    precision : a key of :data:`PRECISIONS`.
    arguments : further arguments of vLLM's server (``--tensor-parallel-size 2``, ``--load-format dummy``).
    environment : variables for the engine's process.
    command : what starts vLLM's OpenAI server; ours unless it lives in an environment or a container of its own
        (``/opt/vllm/bin/python -m vllm.entrypoints.openai.api_server``, ``docker run --rm --init ...``).
    ready_limit_s : how long loading may take.
    port : a fixed port; a free one where None.
    """

    model: str
    precision: str = "auto"
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    command: tuple[str, ...] = (sys.executable, *SERVER)
    ready_limit_s: float = 600.0
    port: int | None = None


def precision_arguments(precision: str) -> tuple[str, ...]:
    """What vLLM is told for a precision.

    Raises
    ------
    DataError : for one that is not known.
    """
    if precision not in PRECISIONS:
        raise DataError("precision", precision, "is not known", f"use one of {', '.join(PRECISIONS)}")
    return PRECISIONS[precision]


def free_port() -> int:
    """A loopback port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def port_taken(port: int) -> bool:
    """Whether something listens on a loopback port."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _markers() -> Path:
    return inside("build", "engines")


def leftovers() -> list[dict[str, Any]]:
    """Engines that an earlier owner of ours left running: model, url, group, started."""
    found = []
    for path in sorted(_markers().glob("*.json")) if _markers().is_dir() else []:
        marker = json.loads(path.read_text(encoding="utf-8"))
        if not watchdog.group_alive(marker["group"]):
            path.unlink(missing_ok=True)
        elif not watchdog.alive(marker["owner"]):
            found.append(marker | {"marker": str(path)})
    return found


def end_leftovers(say: Callable[[str], None] = print) -> int:
    """Name and end what :func:`leftovers` finds; how many there were."""
    found = leftovers()
    for marker in found:
        say(f"ending an engine left by process {marker['owner']}: {marker['model']} at {marker['url']}")
        watchdog.end_group(marker["group"])
        Path(marker["marker"]).unlink(missing_ok=True)
    return len(found)


class Engine:
    """A server that answers at :attr:`url`; a context manager that ends it if it is ours."""

    def __init__(self, url: str, model: str = SERVED_NAME) -> None:
        self.url, self.model = url.rstrip("/"), model
        self.process: subprocess.Popen[bytes] | None = None
        self.log: Path | None = None
        self.arguments: Sequence[str] = ()
        #: Bytes of the log that earlier runs' folders hold.
        self.log_kept = 0
        key = os.environ.get(API_KEY_VARIABLE)
        self._http = httpx.Client(headers={"Authorization": f"Bearer {key}"} if key else {}, timeout=10.0)

    @classmethod
    def start(cls, spec: EngineSpec, log: Path, say: Callable[[str], None] = print) -> Self:
        """Start vLLM on loopback and wait until it answers.

        Raises
        ------
        DataError : when the wanted port is taken.
        EngineError : when it ends or does not answer within the limit, with its log's last lines;
            nothing is left running.
        """
        end_leftovers(say)
        port = spec.port or free_port()
        if port_taken(port):
            raise DataError("engine", f"port {port}", "is taken", "leave the port out, or end what listens there")
        engine = cls(f"http://127.0.0.1:{port}")
        engine.log = log
        options = ["--model", spec.model, "--served-model-name", SERVED_NAME, "--host", "127.0.0.1"]
        options += ["--port", str(port), *spec.arguments, *precision_arguments(spec.precision)]
        command = [*spec.command, *options]
        engine.arguments = options
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as stream:
            environment = os.environ | QUIET | dict(spec.environment)
            engine.process = subprocess.Popen(
                command, stdout=stream, stderr=subprocess.STDOUT, env=environment, start_new_session=True
            )
        engine._guard(spec)
        try:
            engine._wait_ready(spec.ready_limit_s, say)
        except BaseException:
            engine.stop()
            raise
        return engine

    def _guard(self, spec: EngineSpec) -> None:
        """Start the watchdog and leave the marker."""
        assert self.process is not None  # set by start
        group = self.process.pid
        subprocess.Popen(
            [sys.executable, "-S", str(Path(watchdog.__file__)), str(os.getpid()), str(group)],
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        marker = {"owner": os.getpid(), "group": group, "model": spec.model, "url": self.url, "started": time.time()}
        _markers().mkdir(parents=True, exist_ok=True)
        self._marker = _markers() / f"{group}.json"
        self._marker.write_text(json.dumps(marker), encoding="utf-8")

    def _wait_ready(self, limit_s: float, say: Callable[[str], None]) -> None:
        began, told = time.monotonic(), 0.0
        while (waited := time.monotonic() - began) < limit_s:
            if self.process is not None and self.process.poll() is not None:
                raise EngineError(f"the engine ended while loading (status {self.process.returncode}):\n{self.tail()}")
            if self.answers():
                say(f"engine ready after {waited:.0f} s at {self.url}")
                return
            if waited - told >= 10:
                told = waited
                say(f"loading for {waited:.0f} s: {self.tail(1).split('] ')[-1].strip()[:90]}")
            time.sleep(0.25)
        raise EngineError(f"the engine did not answer within {limit_s:.0f} s:\n{self.tail()}")

    def tail(self, lines: int = 12) -> str:
        """The last lines of the engine's log."""
        if self.log is None or not self.log.is_file():
            return "(no log)"
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])

    def log_since(self, offset: int) -> tuple[str | None, int]:
        """What the log gained since an offset in bytes, and the offset of its end; None where there is no log."""
        if self.log is None or not self.log.is_file():
            return None, 0
        content = self.log.read_bytes()
        return content[offset:].decode("utf-8", errors="replace"), len(content)

    def answers(self) -> bool:
        """Whether ``/health`` says so now."""
        try:
            return self._http.get(f"{self.url}/health", timeout=2.0).status_code == 200
        except httpx.HTTPError:
            return False

    def version(self) -> str | None:
        """The engine's version, as it says; None where it has no ``/version``."""
        try:
            answer = self._http.get(f"{self.url}/version")
            return str(answer.json()["version"]) if answer.status_code == 200 else None
        except (httpx.HTTPError, KeyError, ValueError):
            return None

    def counters(self) -> dict[str, float]:
        """The engine's Prometheus counters and gauges by name, summed over labels; {} where it has none.

        Raises
        ------
        EngineError : when the engine no longer answers.
        """
        from prometheus_client.parser import text_string_to_metric_families

        try:
            answer = self._http.get(f"{self.url}/metrics")
        except httpx.HTTPError as error:
            raise EngineError(f"{self.url} stopped answering: {error}\n{self.tail()}") from error
        if answer.status_code != 200:
            return {}
        found: dict[str, float] = {}
        for family in text_string_to_metric_families(answer.text):
            for sample in family.samples:
                if not sample.name.endswith(("_bucket", "_created")):
                    found[sample.name] = found.get(sample.name, 0.0) + sample.value
        return found

    def complete(self, prompt: list[int], max_tokens: int) -> None:
        """One completion of exactly ``max_tokens``, its answer thrown away.

        Raises
        ------
        EngineError : when the server refuses it.
        """
        body = {"model": self.model, "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True}
        try:
            self._http.post(f"{self.url}/v1/completions", json=body, timeout=120.0).raise_for_status()
        except httpx.HTTPError as error:
            raise EngineError(f"{self.url} did not complete a prompt: {error}\n{self.tail()}") from error

    def reset_prefix_cache(self) -> None:
        """Empty the prefix cache by vLLM's own call.

        Raises
        ------
        EngineError : when the server has no such call.
        """
        answer = self._http.post(f"{self.url}/reset_prefix_cache")
        if answer.status_code != 200:
            raise EngineError(f"{self.url} cannot reset its prefix cache (status {answer.status_code})")

    def stop(self) -> None:
        """End the engine if we started it; what answers at a foreign URL is left alone."""
        if self.process is not None:
            watchdog.end_group(self.process.pid, reap=self.process.poll)
            self.process.wait()
            self._marker.unlink(missing_ok=True)
            self.process = None
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def connect(url: str, model: str, say: Callable[[str], None] = print) -> Engine:
    """An OpenAI-compatible server that runs already.

    Raises
    ------
    EngineError : when it answers neither ``/health`` nor ``/v1/models``.
    """
    engine = Engine(url, model)
    try:
        ready = engine.answers() or engine._http.get(f"{engine.url}/v1/models").status_code == 200
    except httpx.HTTPError as error:
        raise EngineError(f"{url} does not answer: {error}") from error
    if not ready:
        raise EngineError(f"{url} answers, but neither /health nor /v1/models: is it an OpenAI-compatible server?")
    say(f"engine at {engine.url}, version {engine.version() or 'not told'}")
    return engine


def log_path(name: str) -> Path:
    """Where an engine's log goes until its run's folder takes it."""
    path = inside("build", "engines", f"{name}.log")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
