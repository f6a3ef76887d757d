"""A tier measured as asked: by the paper's protocol (the authors' order of rates, their arrivals) or by a schedule.

The engine is ours, started on this machine, or one that answers at a URL. The machine is held against
the tier before anything starts: a run under a wrong name is worse than none.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hetgpu.errors import DataError
from hetgpu.evidence.catalog import Tier, load_models, load_tiers
from hetgpu.evidence.files import problems
from hetgpu.measure.engine import SERVED_NAME, Engine, EngineSpec, connect, log_path, precision_arguments
from hetgpu.measure.experiment import Size, cpu_spec, schedule_plans, tiny_model
from hetgpu.measure.machine import check_tier, fingerprint
from hetgpu.measure.model import weights_precision
from hetgpu.measure.prompts import sharegpt
from hetgpu.measure.run import Planned, Setting, Watch, sweep_missing
from hetgpu.measure.schedule import Prompts, length_model, paper_schedule, trace_schedule
from hetgpu.paths import inside

#: The authors' rates in the order they ran them, and their prompts a rate.
PAPER_RATES_QPS = (32.0, 16.0, 8.0, 4.0, 1.0)
PAPER_PROMPTS = 200


class Request(BaseModel):
    """What to measure: an entry of ``measure-tier.wanted`` in ``params.yaml``, or the command's options.

    Parameters
    ----------
    tier : a key of ``tiers.yaml``.
    model : a folder or a name that vLLM loads; the small model where empty.
    precision : a key of ``engine.PRECISIONS``; part of the run's key.
    protocol : ``paper``, or ``schedule`` (fresh arrivals and prompts for every rate and repeat).
    requests : a ShareGPT file (``.json``) or a trace in the Azure form (``.csv``); the length model where empty.
    url, served : an engine that answers already, and the model's name at it.
    same_machine : that the URL is served by this machine, whose power is then read and whose cards are checked.
    engine : the command that starts vLLM's server, where it is not this environment's.
    arguments : further arguments of vLLM's server, as in a shell.
    label : tells variants apart (other arguments, say); part of the run's key.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    tier: str
    model: str = ""
    precision: str = "auto"
    protocol: Literal["paper", "schedule"] = "paper"
    requests: str = ""
    url: str = ""
    served: str = ""
    same_machine: bool = False
    engine: str = ""
    arguments: str = ""
    label: str = ""
    rates_qps: tuple[float, ...] = Field(PAPER_RATES_QPS, min_length=1)
    prompts: int = Field(PAPER_PROMPTS, ge=2)
    repeats: int = Field(1, ge=1)

    @property
    def workload(self) -> str:
        """The runs' workload: the protocol, and what differs from its standard form."""
        parts: list[str] = [self.protocol]
        if self.protocol == "schedule" or self.prompts != PAPER_PROMPTS:
            parts.append(str(self.prompts))
        if self.requests:
            parts.append(Path(self.requests).stem)
        return "-".join([*parts, *([self.label] if self.label else [])])

    @property
    def here(self) -> bool:
        """Whether the engine runs on this machine."""
        return not self.url or self.same_machine


def requests_from(entries: Sequence[Mapping[str, Any]], source: str = "params.yaml") -> list[Request]:
    """Requests from plain mappings.

    Raises
    ------
    DataError : naming the entry and each field that cannot be.
    """
    found = []
    for number, entry in enumerate(entries, start=1):
        try:
            found.append(Request.model_validate(entry))
        except ValidationError as error:
            known = ", ".join(Request.model_fields)
            raise DataError(source, f"entry {number}", problems(error), f"known: {known}") from error
    return found


def tier_of(request: Request) -> Tier:
    """The tier, checked against this machine; behind a URL the machine is the user's word.

    Raises
    ------
    DataError : for an unknown tier, or a machine that is none of it.
    """
    tiers = load_tiers()
    if request.tier not in tiers:
        raise DataError("tier", request.tier, "is not in tiers.yaml", f"use one of {', '.join(tiers)}, or add it")
    if request.here:
        check_tier(tiers[request.tier], fingerprint())
    return tiers[request.tier]


def precision_of(request: Request, model: str) -> str:
    """A configuration's precision: as asked, or for ``auto`` the weights' own, where catalog or folder tell."""
    precision_arguments(request.precision)
    if request.precision != "auto":
        return request.precision
    known = load_models()
    return known[model].weight_dtype if model in known else weights_precision(Path(model)) or "auto"


def spec_of(request: Request, tier: Tier, model: str) -> EngineSpec:
    """How vLLM is started for a tier: one tensor-parallel rank a GPU, or the CPU backend on one core."""
    # A data set's prompts come again at the next rate: the schedule protocol must not meet them in the cache.
    cold = ("--no-enable-prefix-caching",) if request.protocol == "schedule" else ()
    arguments = (*cold, *shlex.split(request.arguments))
    command = {"command": tuple(shlex.split(request.engine))} if request.engine else {}
    if tier.gpu is None:
        spec = cpu_spec(Path(model), arguments, request.precision)
    else:
        parallel = ("--tensor-parallel-size", str(tier.gpu_count))
        spec = EngineSpec(model, request.precision, (*parallel, *arguments))
    return spec if not command else EngineSpec(**{**vars(spec), **command})


def _prompts(request: Request, model: str) -> Prompts:
    if not request.requests:
        return length_model()
    return sharegpt(inside(request.requests), model, request.prompts)


def plans(request: Request, model: str = "") -> list[Planned]:
    """The runs: every repeat goes through all rates in order; the paper's protocol with the same prompts each time."""
    rates, n = request.rates_qps, request.prompts
    where = "" if request.here else "at a URL, the machine as the user names it"
    if request.requests.endswith(".csv"):
        path = inside(request.requests)
        made = [
            Planned("", qps, repeat, trace_schedule(path, qps, n, skip=(repeat * len(rates) + number) * n))
            for repeat in range(request.repeats)
            for number, qps in enumerate(rates)
        ]
    elif request.protocol == "schedule":
        made = schedule_plans(Size(rates, n, request.repeats), _prompts(request, model))
    else:
        prompts = _prompts(request, model)
        made = [
            Planned("", qps, repeat, paper_schedule(qps, n, prompts))
            for repeat in range(request.repeats)
            for qps in rates
        ]
    return [Planned(request.workload, plan.target_qps, plan.repeat, plan.schedule, notes=where) for plan in made]


def measure_tier(request: Request, base: Path, say: Callable[[str], None] = print, watch: Watch = iter) -> list[Path]:
    """Measure a tier; runs that are there already are not made again.

    Parameters
    ----------
    watch : goes over the runs and shows how far it is: ``tqdm`` in a notebook.

    Returns
    -------
    The runs' folders.

    Raises
    ------
    DataError : when the machine is not the tier, or a run of another schedule stands where one is to go.
    EngineError, ClientError : when either stops; finished runs stay.
    """
    tier = tier_of(request)
    model = request.model or str(tiny_model())
    cores = frozenset({1}) if tier.gpu is None and request.here else None
    name = Path(model).name if Path(model).is_dir() else model
    setting = Setting(tier, name, precision_of(request, model), model, base, cores, request.here)
    if request.url:
        start = partial(connect, request.url, request.served or SERVED_NAME, say)
    else:
        start = partial(Engine.start, spec_of(request, tier, model), log_path(f"tier-{tier.key}"), say)
    return sweep_missing(start, setting, plans(request, model), inside("build", "client"), say, watch)
