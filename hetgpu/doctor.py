"""What this machine can do: a line a check, with ok, warn or fail, and the mend.

``fail`` is what stops the paper's figures from being reproduced, or an engine that is there and broken;
``warn`` is what can only not be measured here.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from hetgpu.paths import inside, root

Status = Literal["ok", "warn", "fail"]

PYTHON = (3, 11)
#: Importing vLLM's server loads torch and its compiled parts: seconds when warm, a minute from a cold disk.
ENGINE_LIMIT_S = 180
#: The server's own module: ``import vllm`` alone is lazy and passes with broken compiled parts.
ENGINE_PROBE = """
import vllm.entrypoints.openai.api_server
from vllm.platforms import current_platform
print("\\n" + vllm.__version__, current_platform.device_type or "no device")
"""
#: NVML's total is a little below the nominal memory; a card farther off is another model (or a slice of one).
MEMORY_TOLERANCE = 0.1
LOW_DISK_GB, MIN_DISK_GB = 5.0, 1.0


@dataclass(frozen=True)
class Check:
    """One line of the doctor's answer; ``mend`` is empty where there is nothing to do."""

    name: str
    status: Status
    detail: str
    mend: str = ""


@dataclass(frozen=True)
class SeenGpu:
    """A GPU as NVML shows it."""

    name: str
    memory_gib: float
    uuid: str


@dataclass(frozen=True)
class Engine:
    """A vLLM that imports: its version and the device it was built for (``cpu``, ``cuda``)."""

    version: str
    device: str


def read_gpus() -> tuple[list[SeenGpu], str]:
    """The GPUs that NVML shows, and where there are none, why."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return [], str(error)
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        seen = [
            SeenGpu(
                str(pynvml.nvmlDeviceGetName(handle)),
                pynvml.nvmlDeviceGetMemoryInfo(handle).total / 2**30,
                str(pynvml.nvmlDeviceGetUUID(handle)),
            )
            for handle in handles
        ]
    except pynvml.NVMLError as error:
        return [], str(error)
    finally:
        pynvml.nvmlShutdown()
    return seen, "" if seen else "the driver is there and shows no GPU"


def check_python(version: tuple[int, ...] = sys.version_info[:3]) -> Check:
    """The Python that the locks are made for."""
    text = ".".join(map(str, version))
    if version[:2] == PYTHON:
        return Check("python", "ok", text)
    return Check("python", "fail", f"{text}, the locks are for 3.11", "make env, then .venv/bin/python")


def check_packages(lock: Path, installed: Callable[[str], str] = importlib.metadata.version) -> Check:
    """Whether the packages of the base lock are there, in its versions."""
    from packaging.requirements import Requirement

    missing, other, count = [], [], 0
    for line in lock.read_text(encoding="utf-8").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        pin = Requirement(line)
        if pin.marker is not None and not pin.marker.evaluate():
            continue
        count += 1
        try:
            if not pin.specifier.contains(found := installed(pin.name), prereleases=True):
                other.append(f"{pin.name} {found} ({pin.specifier})")
        except importlib.metadata.PackageNotFoundError:
            missing.append(pin.name)
    if missing:
        return Check("packages", "fail", f"{len(missing)} of {count} missing: {_few(missing)}", "make env")
    if other:
        detail = f"{len(other)} of {count} in another version than the lock's: {_few(other)}"
        return Check("packages", "warn", detail, "make env, or figures may differ in bytes")
    return Check("packages", "ok", f"{count} as in {lock.name}")


def _few(names: list[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def probe_engine() -> tuple[Engine | None, str]:
    """Import vLLM's server in its own process: the engine, or what went wrong ("" if none is there)."""
    if importlib.util.find_spec("vllm") is None:
        return None, ""
    try:
        ran = subprocess.run(
            [sys.executable, "-c", ENGINE_PROBE],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ENGINE_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, f"no answer within {ENGINE_LIMIT_S} s"
    lines = ran.stdout.strip().splitlines()
    if ran.returncode != 0 or not lines:
        said = ran.stderr.strip().splitlines()
        return None, said[-1][:200] if said else f"exit status {ran.returncode}"
    version, _, device = lines[-1].partition(" ")
    return Engine(version, device), ""


def check_engine(engine: Engine | None, problem: str) -> Check:
    """Whether a vLLM is here and imports."""
    if engine is not None:
        return Check("engine", "ok", f"vLLM {engine.version} for {engine.device} imports")
    if problem:
        mend = "delete .venv and run make env; HETGPU_NO_ENGINE=1 make env does without it"
        return Check("engine", "fail", f"vLLM is installed and does not import: {problem}", mend)
    mend = "Linux x86-64: python tools/make_env.py --retry; elsewhere measure against a vLLM at a URL"
    return Check("engine", "warn", "no vLLM in this environment: an engine of ours cannot be started", mend)


def check_gpus(gpus: list[SeenGpu], reason: str) -> Check:
    """The GPUs, by NVML."""
    if gpus:
        text = "; ".join(f"{gpu.name}, {gpu.memory_gib:.0f} GiB, {gpu.uuid}" for gpu in gpus)
        return Check("gpus", "ok", text)
    mend = "none needed for the paper's figures; on a machine with an NVIDIA GPU install its driver"
    return Check("gpus", "warn", f"none through NVML ({reason})", mend)


def gpu_tiers(gpus: list[SeenGpu]) -> tuple[list[str], list[str]]:
    """The catalog's GPU tiers that these GPUs make up, and the names that the catalog does not know."""
    from hetgpu.evidence.catalog import load_gpus, load_tiers

    known = load_gpus()
    count: dict[str, int] = {}
    strangers = []
    for seen in gpus:
        keys = [
            key
            for key, gpu in known.items()
            if seen.name in gpu.nvml_names and abs(seen.memory_gib - gpu.memory_gb) <= MEMORY_TOLERANCE * gpu.memory_gb
        ]
        strangers += [] if keys else [f"{seen.name} with {seen.memory_gib:.0f} GiB"]
        for key in keys:
            count[key] = count.get(key, 0) + 1
    tiers = load_tiers().values()
    return [t.key for t in tiers if t.gpu and count.get(t.gpu, 0) >= t.gpu_count], strangers


def check_tiers(gpus: list[SeenGpu], engine: Engine | None) -> Check:
    """The catalog's tiers that a run on this machine may carry."""
    tiers, strangers = gpu_tiers(gpus)
    device = engine.device if engine else ""
    here = list(tiers) if device == "cuda" else []
    parts, mends = [], []
    if device == "cpu":
        here.append("cpu-local")
    if here:
        parts.append(f"can be measured here: {', '.join(here)}")
    if tiers and device != "cuda":
        parts.append(f"the GPUs make up {', '.join(tiers)}, the engine here does not use them")
        mends.append("measure with a vLLM for CUDA: the extra [gpu] in its own environment, or a URL")
    if strangers:
        parts.append(f"not in the catalog: {', '.join(sorted(set(strangers)))}")
        mends.append("add the card to data/catalog/gpus.csv and its tier to tiers.yaml")
    if not parts:
        parts.append("none can be measured here")
        mends.append("see engine and gpus above; the published records need neither")
    return Check("tiers", "warn" if mends else "ok", "; ".join(parts), "; ".join(mends))


def check_disk(free_gb: float) -> Check:
    """Room for runs and results."""
    detail = f"{free_gb:.1f} GB free"
    if free_gb < MIN_DISK_GB:
        return Check("disk", "fail", detail, "free some: results take 0.1 GB, a run's traces more")
    if free_gb < LOW_DISK_GB:
        return Check("disk", "warn", detail, "enough for the figures, little for measured runs")
    return Check("disk", "ok", detail)


def check_port() -> Check:
    """A free port on the loopback address, where an engine of ours listens."""
    try:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            return Check("port", "ok", f"127.0.0.1:{listener.getsockname()[1]} is free")
    except OSError as error:
        return Check("port", "warn", f"no port on 127.0.0.1: {error}", "none can be started; a URL may do")


def check_git(folder: Path) -> Check:
    """Git, and a clone: dvc wants both."""
    git = shutil.which("git")
    if git is None:
        return Check("git", "fail", "not found", "install git")
    version = subprocess.run([git, "--version"], capture_output=True, text=True, check=False).stdout.strip()
    inside_tree = subprocess.run([git, "-C", str(folder), "rev-parse"], capture_output=True, check=False)
    if inside_tree.returncode != 0:
        return Check("git", "fail", f"{version}, but {folder.name} is no clone", "git clone it, or git init")
    return Check("git", "ok", version)


def check_writable(folder: Path) -> Check:
    """Whether results can be written."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return Check("writable", "ok", "the project's folder can be written")
    except OSError as error:
        return Check("writable", "fail", f"cannot write: {error.strerror}", "clone it where you may write")


def _safely(name: str, check: Callable[[], Check]) -> Check:
    """A check that breaks is an answer too, and the others still run."""
    try:
        return check()
    except Exception as error:
        return Check(name, "fail", f"{type(error).__name__}: {error}", "make env, if packages are not ok")


def _gpus_or_reason() -> tuple[list[SeenGpu], str]:
    try:
        return read_gpus()
    except Exception as error:  # pynvml is missing, or the driver answers what it does not know
        return [], f"{type(error).__name__}: {error}"


def run_checks() -> list[Check]:
    """All checks, in the order a reader wants them."""
    engine, problem = probe_engine()
    gpus, reason = _gpus_or_reason()
    checks: list[tuple[str, Callable[[], Check]]] = [
        ("python", check_python),
        ("packages", lambda: check_packages(inside("requirements.lock"))),
        ("engine", lambda: check_engine(engine, problem)),
        ("gpus", lambda: check_gpus(gpus, reason)),
        ("tiers", lambda: check_tiers(gpus, engine)),
        ("disk", lambda: check_disk(shutil.disk_usage(root()).free / 1e9)),
        ("port", check_port),
        ("git", lambda: check_git(root())),
        ("writable", lambda: check_writable(root())),
    ]
    return [_safely(name, check) for name, check in checks]


def as_text(checks: list[Check]) -> str:
    """The checks, a line each, the mend after an arrow."""
    return "\n".join(f"{c.status:<5} {c.name:<9} {c.detail}" + (f"  -> {c.mend}" if c.mend else "") for c in checks)


def main(argv: list[str]) -> int:
    """``hetgpu doctor [--json]``: 1 if any check failed, 2 for arguments it does not know."""
    if set(argv) - {"--json"}:
        print("usage: hetgpu doctor [--json]", file=sys.stderr)
        return 2
    checks = run_checks()
    print(json.dumps([asdict(c) for c in checks], indent=1) if argv else as_text(checks))
    return 1 if any(c.status == "fail" for c in checks) else 0
