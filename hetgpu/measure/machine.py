"""What machine this is: the fingerprint that a run carries and that its tier is held against."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from hetgpu.errors import DataError
from hetgpu.evidence.catalog import Tier, load_gpus
from hetgpu.evidence.records import fingerprint_problem
from hetgpu.measure.power import nvml_devices


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def fingerprint() -> dict[str, Any]:
    """CPU, memory, system and GPUs (name, UUID, memory, power cap, link, driver), as plain values."""
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "gpus": [asdict(device) for device in nvml_devices()],
    }


def machine_id(facts: dict[str, Any]) -> str:
    """A short hash of a fingerprint: two machines without a GPU are two machines all the same."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:8]


def check_tier(tier: Tier, facts: dict[str, Any]) -> None:
    """Refuse to measure a tier on a machine that is none.

    Raises
    ------
    DataError : when the GPUs seen through NVML are not the tier's, by name and count; and for a
        CPU tier on any machine where it would be served by a GPU.
    """
    gpus = facts["gpus"]
    if tier.gpu is None:
        return
    gpu = load_gpus()[tier.gpu]
    if not gpus:
        raise DataError("machine", tier.key, f"no GPU is seen here, so this is no {tier.gpu}", "measure cpu-local")
    for device in gpus:
        if problem := fingerprint_problem(tier, gpu, "cuda", device["name"]):
            raise DataError("machine", tier.key, problem, "name the tier that this machine is")
    if len(gpus) < tier.gpu_count:
        problem = f"{len(gpus)} GPUs are seen, the tier has {tier.gpu_count}"
        raise DataError("machine", tier.key, problem, "name the tier that this machine is")
