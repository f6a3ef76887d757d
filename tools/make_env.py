"""Make .venv from the lock files: `make env`, or `python tools/make_env.py`.

Stages: the venv, the base lock, the engine lock (Linux x86-64 only; HETGPU_NO_ENGINE=1 skips it)
and this project itself. Each finished stage is noted in .venv/hetgpu-env.json with the hash of the
file it came from: a second call finds nothing to do, an interrupted one goes on where it stopped.

    --engine-only   add the engine to the environment this Python runs in (conda users)
    --retry         try again an engine that could not be installed before

Standard library alone, and readable by any Python 3.7+ so that the message about the version is seen.
Imports stand where they are used: the call that finds nothing to do is all start-up.
"""

from __future__ import annotations

import os
import sys

PYTHON = (3, 11)
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(ROOT, ".venv")
STAMP = "hetgpu-env.json"
LOG = "make_env.log"
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
#: The file that each stage installs from.
SOURCES = {"base": "requirements.lock", "engine": "requirements-engine.lock", "project": "pyproject.toml"}
#: Disk that a stage takes once installed, with the room that pip needs meanwhile.
NEED_GB = {"base": 2.0, "engine": 4.0, "project": 0.0}


class SetupError(Exception):
    """The environment cannot be made; the text says what to do."""


# What is decided from plain values, so that tests need no venv.


def engine_wanted(system: str, machine: str, environ: dict[str, str]) -> tuple[bool, str]:
    """Whether the engine is to be installed, and if not, why."""
    if environ.get("HETGPU_NO_ENGINE", "") not in ("", "0"):
        return False, "HETGPU_NO_ENGINE is set"
    if not system.startswith("linux") or machine.lower() not in ("x86_64", "amd64"):
        return False, f"vLLM's CPU build exists for linux x86_64, this is {system} {machine}"
    return True, ""


def hashes(root: str) -> dict[str, str]:
    """The content hash of each stage's file."""
    import hashlib

    found = {}
    for stage, name in SOURCES.items():
        with open(os.path.join(root, name), "rb") as file:
            found[stage] = hashlib.sha256(file.read()).hexdigest()
    return found


def read_stamp(venv: str) -> dict[str, str]:
    """What is installed in a venv, by stage; empty where nothing can be trusted.

    A venv holds absolute paths: one that was copied or moved, or whose Python is gone, is not one.
    """
    import json

    try:
        with open(os.path.join(venv, STAMP), encoding="utf-8") as file:
            stamp = json.load(file)
    except (OSError, ValueError):
        return {}
    if not isinstance(stamp, dict) or stamp.get("venv") != venv or not os.path.exists(python_of(venv)):
        return {}
    return stamp


def write_stamp(venv: str, stamp: dict[str, str]) -> None:
    """Write the stamp in one step, so that an interrupt leaves the old one or the new one."""
    import json

    path = os.path.join(venv, STAMP)
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump({**stamp, "venv": venv}, file, indent=1)
    os.replace(path + ".new", path)


def stages_to_run(stamp: dict[str, str], wanted: dict[str, str], engine: bool, retry: bool = False) -> list[str]:
    """The stages to run, in order: those whose file differs from the one they were installed from.

    An engine that could not be installed is not tried at every call, only after its lock has
    changed or when asked to.
    """
    tried = "" if retry else stamp.get("engine_unavailable", "")
    todo = [] if stamp else ["venv"]
    for stage, digest in wanted.items():
        done = (stamp.get(stage, ""), tried) if stage == "engine" else (stamp.get(stage, ""),)
        if digest not in done and (engine or stage != "engine"):
            todo.append(stage)
    return todo


def needed_gb(stages: list[str]) -> float:
    """Free disk that the stages need."""
    return sum(NEED_GB.get(stage, 0.0) for stage in stages)


def names(lock: str) -> set[str]:
    """The packages of a lock."""
    lines = (line.strip() for line in lock.splitlines())
    return {line.split("==")[0].strip().lower() for line in lines if line and not line.startswith("#")}


def dropped(before: str, now: list[str]) -> list[str]:
    """Packages of a lock as it was installed that none of today's locks holds."""
    return sorted(names(before).difference(*map(names, now)))


def pinned(lock: str, package: str) -> str:
    """The line of a lock that pins a package."""
    for line in lock.splitlines():
        if line.split("==")[0].strip().lower() == package:
            return line.strip()
    raise SetupError(f"{package} is not in the lock. Run: make lock")


def torch_message(pin: str) -> str:
    """What a user does about a torch that cannot be had."""
    return (
        f"{pin} was found neither where pip looks nor at {TORCH_CPU_INDEX}.\n"
        "  Everything works but what needs the engine (measuring on this machine's CPU).\n"
        "  To add it: connect to the Internet, or put the wheel in a folder and set PIP_FIND_LINKS to it;\n"
        "  then run: python tools/make_env.py --retry"
    )


def python_of(venv: str) -> str:
    """The Python of a venv."""
    return os.path.join(venv, *(("Scripts", "python.exe") if os.name == "nt" else ("bin", "python")))


# What touches the machine.


def read(path: str) -> str:
    """A text file's content."""
    with open(path, encoding="utf-8") as file:
        return file.read()


def _is_311(command: list[str]) -> bool:
    import subprocess

    try:
        answer = subprocess.run(
            [*command, "-c", "import sys; print(*sys.version_info[:2])"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=20,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return False
    return answer.returncode == 0 and answer.stdout.split() == [b"3", b"11"]


def find_python() -> list[str]:
    """A command that runs Python 3.11."""
    import glob

    pyenv = os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv")
    of_pyenv = sorted(glob.glob(os.path.join(pyenv, "versions", "3.11.*", "bin", "python")))
    for command in [["python3.11"], ["py", "-3.11"], *([path] for path in of_pyenv)]:
        if _is_311(command):
            return command
    raise SetupError(
        "Python 3.11 is needed and was not found; this is {}.{}.\n"
        "  Install it (python.org, `apt install python3.11-venv`, `brew install python@3.11`,\n"
        "  `pyenv install 3.11`, or conda with environment.yml), or name it:\n"
        "  make env PYTHON=/path/to/python3.11".format(*sys.version_info)
    )


def _clean_environ() -> dict[str, str]:
    """The environment for pip: none of the caller's Python settings, and nothing asked of the user."""
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONHOME", "PYTHONPATH")}
    return {**kept, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PIP_USER": "0"}


class Installer:
    """Runs pip for one environment, its output in a log and a line a stage on the screen."""

    def __init__(self, python: str, log: str, kept: str = "") -> None:
        #: The folder that keeps the locks as they were installed; none for a user's own environment.
        self.python, self.log, self.kept = python, log, kept

    def run(self, command: list[str], label: str, total: int = 0) -> bool:
        """Run a command; True when it succeeded."""
        import subprocess
        import time

        start, seen, live = time.monotonic(), 0, sys.stdout.isatty()
        if not live:
            print(f"  {label} ...", flush=True)
        with open(self.log, "a", encoding="utf-8") as log:
            log.write("\n$ {}\n".format(" ".join(command)))
            process = subprocess.Popen(
                command, cwd=ROOT, env=_clean_environ(), stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", errors="replace",
            )  # fmt: skip
            try:
                assert process.stdout is not None
                for line in process.stdout:
                    log.write(line)
                    seen += line.startswith(("Collecting ", "Requirement already satisfied"))
                    if live and total:
                        unpacking = line.startswith("Installing ")
                        state = "unpacking" if unpacking else f"{min(seen, total)} of {total}"
                        print(f"\r  {label}: {state}   ", end="", flush=True)
            finally:
                if process.poll() is None:
                    process.terminate()
                process.wait()
        word, took = "done" if process.returncode == 0 else "failed", time.monotonic() - start
        back, rest = ("\r", " " * 12) if live else ("", "")  # over the line that counted
        print(f"{back}  {label}: {word} in {took:.0f} s{rest}", flush=True)
        return process.returncode == 0

    def pip(self, arguments: list[str], label: str, total: int = 0) -> bool:
        """Run `pip install --no-deps` in the environment."""
        command = [self.python, "-m", "pip", "install", "--no-deps", "--progress-bar", "off", *arguments]
        return self.run(command, label, total)

    def lock(self, stage: str) -> bool:
        """Install a lock file, and take out what its last version had and no lock has now.

        A package left over would make this environment another one than a fresh one.
        """
        name = SOURCES[stage]
        text = read(os.path.join(ROOT, name))
        count = len(names(text))
        if not self.pip(["-r", name], f"{stage}: {count} packages of {name}", count):
            return False
        if self.kept:
            kept = os.path.join(self.kept, name)
            now = [read(os.path.join(ROOT, SOURCES[each])) for each in ("base", "engine")]
            gone = dropped(read(kept) if os.path.exists(kept) else "", now)
            if gone:
                self.run([self.python, "-m", "pip", "uninstall", "-y", *gone], f"{stage}: without {', '.join(gone)}")
            with open(kept, "w", encoding="utf-8") as file:
                file.write(text)
        return True

    def engine(self) -> str:
        """Install torch's CPU build and the engine lock; the text of what went wrong, "" if nothing did."""
        pin = pinned(read(os.path.join(ROOT, SOURCES["engine"])), "torch")
        # What pip finds as it is configured (a wheel at hand, a mirror) before a download of 200 MB.
        found = self.pip([pin], f"engine: {pin}") or self.pip(
            ["--index-url", TORCH_CPU_INDEX, pin], f"engine: {pin} from PyTorch's CPU index"
        )
        if not found:
            return torch_message(pin)
        if not self.lock("engine"):
            return (
                f"the engine lock could not be installed ({self.log} says why).\n"
                "  Everything works but what needs the engine. To try again: python tools/make_env.py --retry"
            )
        return ""


def check_disk(stages: list[str]) -> None:
    """Raise where the disk is too full for the stages."""
    import shutil

    free, need = shutil.disk_usage(ROOT).free / 1e9, needed_gb(stages)
    if free < need:
        hint = " (without the engine, HETGPU_NO_ENGINE=1, 2 GB are enough)" if "engine" in stages else ""
        raise SetupError(f"{need:.0f} GB of free disk are needed in {ROOT}, {free:.1f} GB are there{hint}.")


def mend_torn(venv: str) -> None:
    """Take out what an interrupted pip left half unpacked.

    pip writes INSTALLER near the end; without it a package is torn, and pip would take it for whole.
    """
    import glob
    import shutil

    for library in ("lib/python3.11", "Lib"):
        for metadata in glob.glob(os.path.join(venv, library, "site-packages", "*.dist-info")):
            if not os.path.exists(os.path.join(metadata, "INSTALLER")):
                shutil.rmtree(metadata)


def make_venv() -> None:
    """A fresh .venv, or the half-made one of an interrupted call."""
    import shutil
    import subprocess

    begun = os.path.join(VENV, "hetgpu-begun")
    try:
        with open(begun, encoding="utf-8") as file:
            ours = file.read() == VENV
    except OSError:
        ours = False
    if ours and _is_311([python_of(VENV)]):
        return
    if os.path.islink(VENV):
        os.unlink(VENV)
    elif os.path.isdir(VENV):
        shutil.rmtree(VENV)
    made = subprocess.run(
        [sys.executable, "-m", "venv", VENV], env=_clean_environ(),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", errors="replace",
    )  # fmt: skip
    if made.returncode != 0:
        raise SetupError(
            f"`python -m venv` failed:\n{made.stdout}\n  On Debian and Ubuntu: apt install python3.11-venv"
        )
    with open(begun, "w", encoding="utf-8") as file:
        file.write(VENV)


def make_env(retry: bool) -> int:
    """Make or complete .venv; 0 when it is there, with or without the engine."""
    import platform

    engine, why_not = engine_wanted(sys.platform, platform.machine(), dict(os.environ))
    stamp, wanted = read_stamp(VENV), hashes(ROOT)
    todo = stages_to_run(stamp, wanted, engine, retry)
    if not todo:
        if engine and stamp.get("engine") != wanted["engine"]:
            print(".venv is ready, without the engine. To try again: python tools/make_env.py --retry")
        return 0
    if sys.version_info[:2] != PYTHON:
        import subprocess

        return subprocess.run([*find_python(), os.path.abspath(__file__), *sys.argv[1:]]).returncode
    check_disk(todo)
    print("making .venv (once, minutes) ..." if "venv" in todo else "bringing .venv up to date ...", flush=True)
    if "venv" in todo:
        make_venv()
    mend_torn(VENV)
    installer = Installer(python_of(VENV), os.path.join(VENV, LOG), VENV)
    if "base" in todo:
        if not installer.lock("base"):
            raise SetupError(f"the base lock could not be installed. The end of {installer.log} says why.")
        stamp["base"] = wanted["base"]
        write_stamp(VENV, stamp)
    if "project" in todo:
        # The build tool comes from the lock, so nothing is fetched for it.
        if not installer.pip(["--no-build-isolation", "-e", "."], "project: hetgpu"):
            raise SetupError(f"hetgpu itself could not be installed. The end of {installer.log} says why.")
        stamp["project"] = wanted["project"]
        write_stamp(VENV, stamp)
    if "engine" in todo:
        problem = installer.engine()
        stamp["engine_unavailable" if problem else "engine"] = wanted["engine"]
        stamp.pop("engine" if problem else "engine_unavailable", None)
        write_stamp(VENV, stamp)
        if problem:
            print(f"  no engine: {problem}")
    elif not engine:
        print(f"  no engine: {why_not}; everything else works")
    print(".venv is ready", flush=True)
    return 0


def add_engine() -> int:
    """Install the engine lock into the environment that this Python runs in."""
    import platform
    import tempfile

    if sys.version_info[:2] != PYTHON:
        raise SetupError("run this with the Python 3.11 of the active environment.")
    if sys.prefix == sys.base_prefix and "CONDA_PREFIX" not in os.environ:
        raise SetupError("no environment is active: activate the conda environment, or use `make env`.")
    engine, why_not = engine_wanted(sys.platform, platform.machine(), dict(os.environ))
    if not engine:
        raise SetupError(f"no engine: {why_not}.")
    check_disk(["engine"])
    handle, log = tempfile.mkstemp(prefix="hetgpu-engine-", suffix=".log")
    os.close(handle)
    problem = Installer(sys.executable, log).engine()
    if problem:
        raise SetupError(f"no engine: {problem}")
    os.unlink(log)
    return 0


def main(arguments: list[str]) -> int:
    """The command line; 0 when the environment is ready."""
    known = ("--engine-only", "--retry")
    if [a for a in arguments if a not in known]:
        print(__doc__)
        return 0 if arguments in (["-h"], ["--help"]) else 2
    try:
        return add_engine() if "--engine-only" in arguments else make_env("--retry" in arguments)
    except SetupError as error:
        print(f"make_env: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nmake_env: interrupted; the next call goes on from here.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
