"""Power beside a run: NVML and RAPL sampled on the caller's clock, and the energy of a window.

NVML's energy counter (mJ) exists on data-centre cards only and restarts with the driver; elsewhere
power is integrated; where nothing can be read the energy is missing with a reason, and never 0.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
import pandas as pd

RAPL = Path("/sys/class/powercap")
COLUMNS = (
    "t_s",
    "device",
    "power_w",
    "power_avg_w",
    "energy_counter_j",
    "sm_clock_mhz",
    "mem_clock_mhz",
    "temperature_c",
)
#: Below this share of a window under samples, the energy of the window is not known.
MIN_COVERAGE = 0.9


@dataclass(frozen=True)
class Device:
    """A GPU as NVML tells of it."""

    name: str
    uuid: str
    memory_gb: float | None
    power_cap_w: float | None
    pcie_gen: int | None
    pcie_width: int | None
    driver: str | None


@dataclass(frozen=True)
class Energy:
    """Energy of a window, J, and how it was had; None with a reason where it is not known.

    ``coverage`` is the share of the window that lies between samples.
    """

    energy_j: float | None
    method: Literal["counter", "power_integral"] | None
    reason: str | None
    coverage: float


def _nvml() -> Any | None:
    """The NVML binding, started; None where there is no driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # pynvml raises its own errors for a missing library, and OSError for a broken one
        return None
    return pynvml


def _ask(call: Callable[..., Any], *arguments: Any) -> Any | None:
    """An NVML call's answer; None where this card cannot say."""
    try:
        return call(*arguments)
    except Exception:
        return None


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _scaled(value: Any | None, factor: float) -> float | None:
    return None if value is None else float(value) * factor


def nvml_devices() -> list[Device]:
    """The GPUs that NVML sees, in its order; [] where there is no NVML."""
    nvml = _nvml()
    if nvml is None:
        return []
    found = []
    for index in range(_ask(nvml.nvmlDeviceGetCount) or 0):
        handle = _ask(nvml.nvmlDeviceGetHandleByIndex, index)
        if handle is None:
            continue
        memory = _ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        found.append(
            Device(
                name=_text(_ask(nvml.nvmlDeviceGetName, handle)),
                uuid=_text(_ask(nvml.nvmlDeviceGetUUID, handle)),
                memory_gb=None if memory is None else memory.total / 2**30,
                power_cap_w=_scaled(_ask(nvml.nvmlDeviceGetEnforcedPowerLimit, handle), 1e-3),
                pcie_gen=_ask(nvml.nvmlDeviceGetMaxPcieLinkGeneration, handle),
                pcie_width=_ask(nvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
                driver=_text(_ask(nvml.nvmlSystemGetDriverVersion) or "") or None,
            )
        )
    return found


def _read_gpu(nvml: Any, uuid: str) -> dict[str, float | None]:
    """One sample of a GPU, found by UUID: NVML's order and CUDA's differ.

    Raises
    ------
    Exception : NVML's own, when the card is gone.
    """
    handle = nvml.nvmlDeviceGetHandleByUUID(uuid.encode())
    power = _scaled(nvml.nvmlDeviceGetPowerUsage(handle), 1e-3)
    return {
        "power_w": power,
        "power_avg_w": _field_w(nvml, handle, "NVML_FI_DEV_POWER_AVERAGE"),
        "energy_counter_j": _scaled(_ask(nvml.nvmlDeviceGetTotalEnergyConsumption, handle), 1e-3),
        "sm_clock_mhz": _scaled(_ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM), 1.0),
        "mem_clock_mhz": _scaled(_ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_MEM), 1.0),
        "temperature_c": _scaled(_ask(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU), 1.0),
    }


def _field_w(nvml: Any, handle: Any, name: str) -> float | None:
    field = getattr(nvml, name, None)
    answer = _ask(nvml.nvmlDeviceGetFieldValues, handle, [field]) if field is not None else None
    if not answer or answer[0].nvmlReturn != 0:
        return None
    return float(answer[0].value.uiVal) * 1e-3


def rapl_domains(base: Path = RAPL) -> list[Path]:
    """The CPU packages' energy counters that can be read."""
    return [
        path
        for path in sorted(base.glob("intel-rapl:*"))
        if path.name.count(":") == 1 and _ask((path / "energy_uj").read_text) is not None
    ]


class _Rapl:
    """One RAPL domain's counter, J, unwrapped."""

    def __init__(self, path: Path) -> None:
        self.path, self.turns, self.last_uj = path, 0, 0
        self.range_uj = int((_ask((path / "max_energy_range_uj").read_text) or "0").strip() or 0)

    def read(self) -> dict[str, float | None]:
        now_uj = int((self.path / "energy_uj").read_text())
        if now_uj < self.last_uj:
            self.turns += 1
        self.last_uj = now_uj
        return {"energy_counter_j": (self.turns * self.range_uj + now_uj) * 1e-6}


class Sampler:
    """Samples every device in a thread while the context lasts.

    Parameters
    ----------
    uuids : GPUs to sample; all that NVML sees where None.
    hz : samples a second and device.
    rapl : where the CPU's counters lie; None leaves them out.

    ``events`` holds (t_s, device, what) for a device that fell off; the others go on.
    """

    def __init__(self, uuids: list[str] | None = None, hz: float = 10.0, rapl: Path | None = RAPL) -> None:
        self.hz, self.events, self.rows = hz, list[tuple[float, str, str]](), list[dict[str, Any]]()
        nvml = _nvml()
        wanted = uuids if uuids is not None else [device.uuid for device in nvml_devices()]
        self._readers: dict[str, Callable[[], dict[str, float | None]]] = {}
        if nvml is not None:
            self._readers |= {uuid: lambda uuid=uuid: _read_gpu(nvml, uuid) for uuid in wanted}  # type: ignore[misc]
        self._readers |= {f"rapl:{path.name}": _Rapl(path).read for path in (rapl_domains(rapl) if rapl else [])}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def devices(self) -> list[str]:
        """What is sampled now."""
        return list(self._readers)

    def _run(self) -> None:
        due = time.monotonic()
        while self._readers and not self._stop.is_set():
            for device, read in list(self._readers.items()):
                try:
                    self.rows.append({"t_s": time.monotonic(), "device": device, **read()})
                except Exception as error:
                    self.events.append((time.monotonic(), device, str(error)))
                    del self._readers[device]
            due += 1.0 / self.hz
            self._stop.wait(max(0.0, due - time.monotonic()))

    def __enter__(self) -> Self:
        """Start sampling."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop sampling."""
        self._stop.set()
        self._thread.join(timeout=5.0)

    def frame(self) -> pd.DataFrame:
        """The samples: :data:`COLUMNS`, a row a sample, NaN where a device does not tell."""
        frame = pd.DataFrame(self.rows, columns=list(COLUMNS))
        numbers = [name for name in COLUMNS if name != "device"]
        return frame.astype(dict.fromkeys(numbers, "float64") | {"device": "str"})


def idle_w(uuids: list[str] | None = None, seconds: float = 2.0, rapl: Path | None = RAPL) -> float | None:
    """Mean power of all devices together while nothing runs, W; None where no device tells."""
    with Sampler(uuids, rapl=rapl) as sampler:
        if not sampler.devices:
            return None
        began = time.monotonic()
        time.sleep(seconds)
        ended = time.monotonic()
    energy = energy_of(sampler.frame(), began, ended).energy_j
    return None if energy is None else energy / (ended - began)


def _counter_j(samples: pd.DataFrame, start_s: float, end_s: float) -> tuple[float | None, str | None]:
    """The counter's growth over a window, interpolated to its edges; None with a reason where it restarted."""
    known = samples.dropna(subset="energy_counter_j")
    if len(known) < 2:
        return None, "no energy counter"
    counter = known.energy_counter_j.to_numpy()
    if np.any(np.diff(counter) < 0):
        return None, "the energy counter restarted"
    edges = np.interp([start_s, end_s], known.t_s, counter)
    return float(edges[1] - edges[0]), None


def _integral_j(samples: pd.DataFrame, start_s: float, end_s: float) -> float | None:
    """Power integrated over a window by trapezoids, interpolated to its edges."""
    known = samples.dropna(subset="power_w")
    if len(known) < 2:
        return None
    inner = known[(known.t_s > start_s) & (known.t_s < end_s)].t_s.to_numpy()
    times = np.concatenate([[start_s], inner, [end_s]])
    return float(np.trapezoid(np.interp(times, known.t_s, known.power_w), times))


def _of_device(samples: pd.DataFrame, start_s: float, end_s: float) -> Energy:
    covered = min(end_s, samples.t_s.max()) - max(start_s, samples.t_s.min())
    coverage = float(np.clip(covered / (end_s - start_s), 0.0, 1.0))
    if coverage < MIN_COVERAGE:
        return Energy(None, None, f"samples cover {coverage:.2f} of the window", coverage)
    joules, reason = _counter_j(samples, start_s, end_s)
    if joules is not None:
        return Energy(joules, "counter", None, coverage)
    joules = _integral_j(samples, start_s, end_s)
    if joules is not None:
        return Energy(joules, "power_integral", reason, coverage)
    return Energy(None, None, reason, coverage)


def energy_of(frame: pd.DataFrame, start_s: float, end_s: float) -> Energy:
    """Energy of all sampled devices over a window of the samples' clock.

    The counter where it never fell, else power integrated; one device that is not known makes the
    sum unknown.

    Parameters
    ----------
    frame : from :meth:`Sampler.frame`.
    """
    if frame.empty:
        return Energy(None, None, "unavailable", 0.0)
    parts = [_of_device(samples, start_s, end_s) for _, samples in frame.groupby("device", sort=False)]
    coverage = min(part.coverage for part in parts)
    reason = "; ".join(dict.fromkeys(part.reason for part in parts if part.reason)) or None
    if any(part.energy_j is None for part in parts):
        return Energy(None, None, reason, coverage)
    integrated = any(part.method == "power_integral" for part in parts)
    total = sum(part.energy_j or 0.0 for part in parts)
    return Energy(total, "power_integral" if integrated else "counter", reason, coverage)
