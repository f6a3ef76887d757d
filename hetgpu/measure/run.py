"""One run: engine, schedule, client and power together, written as a trace; and sweeps that resume."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hetgpu.errors import DataError
from hetgpu.evidence.catalog import Tier
from hetgpu.evidence.traces import check_rows, read_trace, write_trace
from hetgpu.measure import checks
from hetgpu.measure.client import requests_frame, run_client
from hetgpu.measure.engine import Engine
from hetgpu.measure.machine import fingerprint, machine_id
from hetgpu.measure.power import RAPL, Sampler, energy_of, idle_w
from hetgpu.measure.schedule import Schedule
from hetgpu.paths import shown

#: Goes over the planned runs and shows how far it is.
Watch = Callable[[Iterable["Planned"]], Iterable["Planned"]]


@dataclass(frozen=True)
class Setting:
    """What all runs of a sweep share.

    Parameters
    ----------
    tier : what is measured; the machine was checked against it.
    model, precision : as they are written in the summary and in the folder's path.
    tokenizer : folder or name that the client draws prompts with.
    base : where the traces go (``data/traces/...``).
    client_cores : processors to keep the client on; None where the engine is not on the CPU.
    here : whether the engine runs on this machine; power is read only then.
    """

    tier: Tier
    model: str
    precision: str
    tokenizer: str
    base: Path
    client_cores: frozenset[int] | None = None
    here: bool = True


@dataclass(frozen=True)
class Planned:
    """One run to make: a schedule under a workload's name, its rate and which repeat it is.

    ``before`` is called with the engine before the run: to empty its prefix cache, say.
    """

    workload: str
    target_qps: float
    repeat: int
    schedule: Schedule
    before: Callable[[Engine], None] | None = None
    notes: str = ""


def folder_of(setting: Setting, plan: Planned, machine: str) -> Path:
    """Where a run's trace goes: ``<tier>/<machine>/<model>/<workload>/qps<q>-rep<r>``."""
    model = setting.model.split("/")[-1]
    name = f"qps{plan.target_qps:g}-rep{plan.repeat}"
    return setting.base / setting.tier.key / machine / f"{model}-{setting.precision}" / plan.workload / name


def check_same(folder: Path, plan: Planned) -> None:
    """Refuse a finished run that is not the planned one, though it has its place.

    Raises
    ------
    DataError : when its schedule is another.
    """
    there = read_trace(folder).run["workload"]["schedule_sha256"]
    if there != plan.schedule.sha256:
        mend = "give this one a label, or remove that run"
        raise DataError(shown(folder), "schedule_sha256", "a run with another schedule is there already", mend)


def warm_up(engine: Engine, tokens: int = 64, requests: int = 4) -> None:
    """A few requests before the clock starts, whose prompts no schedule sends.

    Raises
    ------
    EngineError : when the engine refuses them.
    """
    for number in range(requests):
        # The same token over and over: a schedule's prompts are random, so no prefix is shared.
        engine.complete([3 + number] * tokens, max_tokens=16)


def measure(engine: Engine, setting: Setting, plan: Planned, facts: dict[str, Any], scratch: Path) -> Path:
    """Make one run and write its trace; the trace's folder.

    Raises
    ------
    EngineError, ClientError : when either stops; nothing is written then.
    DataError : when the run is there already.
    """
    if plan.before is not None:
        plan.before(engine)
    before = engine.counters()
    uuids = [gpu["uuid"] for gpu in facts["gpus"]] if setting.here else []
    rapl = RAPL if setting.here else None
    # The engine is loaded and nobody asks it: what a run adds is told from this.
    idle = idle_w(uuids, rapl=rapl)
    started = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    with Sampler(uuids, rapl=rapl) as sampler:
        result = run_client(engine, setting.tokenizer, plan.schedule, scratch, _cores(setting))
    after = engine.counters()
    requests = requests_frame(result.raw, plan.schedule, engine.url if engine.process is None else "local")
    duration_s = float(result.raw["duration"])
    started_s = result.started_monotonic_s
    energy = asdict(energy_of(sampler.frame(), started_s, started_s + duration_s)) | {"idle_w": idle}
    found = [
        *checks.request_checks(requests, duration_s),
        *checks.server_checks(requests, before, after),
        *checks.client_checks(requests, result.cpu_share),
        checks.power_check(energy),
    ]
    folder = folder_of(setting, plan, machine_id(facts))
    run = {
        "run_id": f"measured/{folder.relative_to(setting.base).as_posix()}",
        "evidence": "measured",
        "tier": setting.tier.key,
        "gpu": setting.tier.gpu,
        "gpu_count": setting.tier.gpu_count,
        "model": setting.model,
        "precision": setting.precision,
        "fingerprint": facts,
        "engine_here": setting.here,
        "engine": _engine_facts(engine),
        "workload": _workload_facts(plan),
        "started_utc": started,
        "duration_s": duration_s,
        "client": {"cpu_share": result.cpu_share, "summary": _client_summary(result.raw)},
        "server": {name: after[name] - before.get(name, 0.0) for name in sorted(after) if name in SERVER_COUNTERS},
        "energy": energy,
        "checks": check_rows(found),
    }
    log, engine.log_kept = engine.log_since(engine.log_kept)
    return write_trace(folder, run, requests, sampler.frame(), log)


#: Counters of the server that a run keeps, as their growth over it.
SERVER_COUNTERS = {
    f"vllm:{name}"
    for name in (
        "prompt_tokens_total",
        "generation_tokens_total",
        "prefix_cache_queries_total",
        "prefix_cache_hits_total",
        "num_preemptions_total",
        "request_success_total",
        "time_to_first_token_seconds_sum",
        "time_to_first_token_seconds_count",
    )
}


def _cores(setting: Setting) -> set[int] | None:
    return set(setting.client_cores) if setting.client_cores else None


def _engine_facts(engine: Engine) -> dict[str, Any]:
    version = engine.version()
    hidden = [part if not part.startswith("/") else Path(part).name for part in engine.arguments]
    return {"name_and_version": f"vllm {version}" if version else "version not told", "arguments": hidden}


def _workload_facts(plan: Planned) -> dict[str, Any]:
    return {
        "name": plan.workload,
        "target_qps": plan.target_qps,
        "repeat": plan.repeat,
        "source": plan.schedule.source,
        "schedule_sha256": plan.schedule.sha256,
        "prompts_sha256": plan.schedule.prompts_sha256,
        "statistics": plan.schedule.statistics(),
        "notes": plan.notes,
    }


def _client_summary(raw: dict[str, Any]) -> dict[str, Any]:
    """The client's own figures (numbers only): what ours are compared with."""
    return {
        name: value for name, value in raw.items() if isinstance(value, (int, float)) and not isinstance(value, bool)
    }


def sweep(
    engine: Engine,
    setting: Setting,
    plans: Iterable[Planned],
    scratch: Path,
    say: Callable[[str], None] = print,
    watch: Watch = iter,
) -> list[Path]:
    """Make every planned run that is not there yet, in order; a half-done sweep goes on where it stopped.

    Parameters
    ----------
    watch : goes over the plans and shows how far it is: ``tqdm`` in a notebook.

    Returns
    -------
    The folders of all planned runs, made now or before.
    """
    facts = fingerprint()
    machine = machine_id(facts)
    folders, warm = [], False
    for plan in watch(plans):
        folder = folder_of(setting, plan, machine)
        if not folder.exists():
            if not warm:
                warm_up(engine)
                warm = True
            began = time.monotonic()
            measure(engine, setting, plan, facts, scratch)
            say(f"{plan.workload} {plan.target_qps:g} QPS, repeat {plan.repeat}: {time.monotonic() - began:.0f} s")
        folders.append(folder)
    return folders


def sweep_missing(
    start: Callable[[], Engine],
    setting: Setting,
    plans: Sequence[Planned],
    scratch: Path,
    say: Callable[[str], None] = print,
    watch: Watch = iter,
) -> list[Path]:
    """:func:`sweep` with an engine that ``start`` gives and that is ended here; none where no run is missing.

    Raises
    ------
    EngineError, ClientError : when either stops; finished runs stay, and the next call goes on from there.
    """
    machine = machine_id(fingerprint())
    folders = [folder_of(setting, plan, machine) for plan in plans]
    for folder, plan in zip(folders, plans, strict=True):
        if folder.exists():
            check_same(folder, plan)
    if missing := sum(not folder.exists() for folder in folders):
        say(f"{missing} of {len(folders)} runs to make")
        with start() as engine:
            sweep(engine, setting, plans, scratch, say, watch)
    return folders
