"""How long `make repro` takes without the set-up, beside the same notebooks run bare.

The baseline runs every cleaned notebook once through nbclient in one process: no DVC, no checks, no
publishing. The ratio is what reproducibility costs. Prints one JSON object; nothing is asserted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from hetgpu.paths import root
from hetgpu.pipeline import KERNEL, LOCAL_KERNEL, clean_notebooks


def timed(command: list[str]) -> float:
    """Wall time of a command, s."""
    began = time.monotonic()
    subprocess.run(command, cwd=root(), check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


def bare() -> float:
    """Wall time of the notebooks alone, s; what they write goes to a throw-away folder."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"HETGPU_STAGING": folder, "HETGPU_ROOT": str(root())}
        began = time.monotonic()
        for path in sorted(clean_notebooks()):
            where = {"metadata": {"path": str(Path(folder))}}
            notebook = nbformat.read(path, as_version=4)
            NotebookClient(notebook, kernel_name=KERNEL, resources=where, config=LOCAL_KERNEL).execute()
        took = time.monotonic() - began
        del os.environ["HETGPU_STAGING"]
    return took


def main() -> None:
    """Measure and print."""
    baseline_s = bare()
    repro_s = timed([sys.executable, "-m", "hetgpu", "repro"])
    again_s = timed([sys.executable, "-m", "dvc", "repro"])
    result = {
        "cores": os.cpu_count(),
        "notebooks_bare_s": round(baseline_s, 1),
        "repro_s": round(repro_s, 1),
        "repro_over_bare": round(repro_s / baseline_s, 2),
        "dvc_repro_again_s": round(again_s, 2),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
