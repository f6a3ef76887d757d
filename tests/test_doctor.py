"""The doctor's lines: each state, its mend, and that a broken check stops no other."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pynvml
import pytest

from hetgpu import doctor
from hetgpu.doctor import Check, Engine, SeenGpu

H100 = SeenGpu("NVIDIA H100 PCIe", 79.6, "GPU-1")
RTX = SeenGpu("NVIDIA GeForce RTX 4090", 24.0, "GPU-2")
CPU, CUDA = Engine("0.32.0", "cpu"), Engine("0.32.0", "cuda")


def test_python() -> None:
    assert doctor.check_python((3, 11, 7)).status == "ok"
    wrong = doctor.check_python((3, 12, 1))
    assert (wrong.status, wrong.mend[:8]) == ("fail", "make env")


def test_packages(tmp_path: Path) -> None:
    lock = tmp_path / "requirements.lock"
    lock.write_text("# made\na==1\nb==2\nc==3 ; sys_platform == 'nowhere'\n", encoding="utf-8")

    def installed(versions: dict[str, str]) -> Check:
        def version(name: str) -> str:
            if name not in versions:
                raise importlib.metadata.PackageNotFoundError(name)
            return versions[name]

        return doctor.check_packages(lock, version)

    assert installed({"a": "1", "b": "2"}) == Check("packages", "ok", "2 as in requirements.lock")
    other = installed({"a": "1", "b": "2.1"})
    assert other.status == "warn"
    assert "b 2.1 (==2)" in other.detail
    missing = installed({"a": "1"})
    assert missing.status == "fail"
    assert "1 of 2 missing: b" in missing.detail


def test_long_lists_are_cut() -> None:
    assert doctor._few(list("abcdef")) == "a, b, c, d and 2 more"


def test_engine_states() -> None:
    assert doctor.check_engine(CPU, "").detail == "vLLM 0.32.0 for cpu imports"
    assert doctor.check_engine(None, "").status == "warn"
    broken = doctor.check_engine(None, "ImportError: libtorch.so")
    assert broken.status == "fail"
    assert "libtorch.so" in broken.detail


def probe_with(code: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Engine | None, str]:
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(doctor, "ENGINE_PROBE", code)
    return doctor.probe_engine()


def test_engine_probe_reads_the_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, problem = probe_with("print('noise of an import'); print('0.32.0 cpu')", monkeypatch)
    assert (engine, problem) == (CPU, "")


def test_engine_probe_says_why_an_import_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, problem = probe_with("raise ImportError('no libtorch')", monkeypatch)
    assert engine is None
    assert problem == "ImportError: no libtorch"


def test_engine_probe_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "ENGINE_LIMIT_S", 0.2)
    assert probe_with("import time; time.sleep(30)", monkeypatch) == (None, "no answer within 0.2 s")


def test_engine_probe_of_a_killed_process(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, problem = probe_with("import os; os.kill(os.getpid(), 9)", monkeypatch)
    assert engine is None
    assert problem == "exit status -9"


def test_no_engine_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(subprocess, "run", None)
    assert doctor.probe_engine() == (None, "")


def test_gpus_are_listed_with_memory_and_uuid() -> None:
    check = doctor.check_gpus([H100, RTX], "")
    assert check.status == "ok"
    assert "NVIDIA H100 PCIe, 80 GiB, GPU-1" in check.detail
    assert "GPU-2" in check.detail


def test_no_gpu_is_a_warning_with_the_reason() -> None:
    check = doctor.check_gpus([], "NVML Shared Library Not Found")
    assert check.status == "warn"
    assert "NVML Shared Library Not Found" in check.detail


def fake_nvml(monkeypatch: pytest.MonkeyPatch, names: list[str]) -> list[str]:
    """A pynvml with these cards; the list it answers with fills when NVML is shut down."""
    memory, closed = namedtuple("Memory", "total"), []
    answers = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: closed.append("closed"),
        "nvmlDeviceGetCount": lambda: len(names),
        "nvmlDeviceGetHandleByIndex": lambda i: i,
        "nvmlDeviceGetName": lambda i: names[i],
        "nvmlDeviceGetMemoryInfo": lambda i: memory(24 * 2**30),
        "nvmlDeviceGetUUID": lambda i: f"GPU-{i}",
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)
    return closed


def test_nvml_is_read_and_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = fake_nvml(monkeypatch, [RTX.name, RTX.name])
    seen, reason = doctor.read_gpus()
    assert seen == [SeenGpu(RTX.name, 24.0, "GPU-0"), SeenGpu(RTX.name, 24.0, "GPU-1")]
    assert (reason, closed) == ("", ["closed"])


def test_driver_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvml(monkeypatch, [])
    assert doctor.read_gpus() == ([], "the driver is there and shows no GPU")


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", absent)
    seen, reason = doctor.read_gpus()
    assert seen == []
    assert "Not Found" in reason


def test_tiers_by_name_count_and_memory() -> None:
    assert doctor.gpu_tiers([H100]) == (["1x-h100-pcie"], [])
    assert doctor.gpu_tiers([RTX, RTX, RTX])[0] == ["1x-rtx-4090", "2x-rtx-4090"]
    slice_of_one = SeenGpu(H100.name, 20.0, "MIG-1")
    assert doctor.gpu_tiers([slice_of_one]) == ([], ["NVIDIA H100 PCIe with 20 GiB"])


def test_cpu_engine_measures_the_cpu_tier_and_no_gpu_tier() -> None:
    assert doctor.check_tiers([], CPU) == Check("tiers", "ok", "can be measured here: cpu-local")
    both = doctor.check_tiers([RTX], CPU)
    assert both.status == "warn"
    assert both.detail.startswith("can be measured here: cpu-local;")
    assert "1x-rtx-4090" in both.detail
    assert "[gpu]" in both.mend


def test_cuda_engine_measures_the_gpu_tiers_alone() -> None:
    check = doctor.check_tiers([RTX, RTX], CUDA)
    assert check == Check("tiers", "ok", "can be measured here: 1x-rtx-4090, 2x-rtx-4090")


def test_unknown_card_is_named() -> None:
    check = doctor.check_tiers([SeenGpu("NVIDIA L4", 22.5, "GPU-3")], CUDA)
    assert check.status == "warn"
    assert "NVIDIA L4" in check.detail
    assert "gpus.csv" in check.mend


def test_nothing_to_measure_with() -> None:
    assert doctor.check_tiers([], None).status == "warn"


@pytest.mark.parametrize(("free_gb", "status"), [(80, "ok"), (3, "warn"), (0.2, "fail")])
def test_disk(free_gb: float, status: str) -> None:
    assert doctor.check_disk(free_gb).status == status


def test_port_and_writable(tmp_path: Path) -> None:
    assert doctor.check_port().status == "ok"
    assert doctor.check_writable(tmp_path).status == "ok"
    assert doctor.check_writable(tmp_path / "absent").status == "fail"


def test_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert "no clone" in doctor.check_git(tmp_path).detail
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    assert doctor.check_git(tmp_path).status == "ok"
    monkeypatch.setenv("PATH", "")
    assert doctor.check_git(tmp_path) == Check("git", "fail", "not found", "install git")


@pytest.fixture
def healthy(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(doctor, "probe_engine", lambda: (CPU, ""))
    monkeypatch.setattr(doctor, "read_gpus", lambda: ([], "no driver"))
    monkeypatch.setattr(doctor, "check_git", lambda folder: Check("git", "ok", "git"))
    monkeypatch.setattr(doctor, "check_packages", lambda lock: Check("packages", "ok", "all"))
    return monkeypatch


def test_order_and_exit_status(healthy: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main([]) == 0
    names = [line.split()[1] for line in capsys.readouterr().out.splitlines()]
    assert names == ["python", "packages", "engine", "gpus", "tiers", "disk", "port", "git", "writable"]


def test_a_failed_check_is_exit_status_1(healthy: pytest.MonkeyPatch) -> None:
    healthy.setattr(doctor, "probe_engine", lambda: (None, "ImportError"))
    assert doctor.main([]) == 1


def test_json(healthy: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main(["--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows[3] == {"name": "gpus", "status": "warn", "detail": rows[3]["detail"], "mend": rows[3]["mend"]}


def test_unknown_argument(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main(["--yaml"]) == 2
    assert "usage" in capsys.readouterr().err


def test_a_check_that_breaks_stops_no_other(healthy: pytest.MonkeyPatch) -> None:
    def broken(gpus: object, engine: object) -> Check:
        raise ValueError("tiers.yaml: bad row")

    healthy.setattr(doctor, "check_tiers", broken)
    checks = {check.name: check for check in doctor.run_checks()}
    assert checks["tiers"].status == "fail"
    assert "bad row" in checks["tiers"].detail
    assert checks["writable"].status == "ok"


@pytest.mark.skipif(sys.platform == "win32", reason="make is for Unix")
def test_the_command_line_reaches_the_doctor() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "hetgpu", "doctor", "--help-me"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 2
    assert "hetgpu doctor [--json]" in ran.stderr
