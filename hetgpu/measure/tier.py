"""A tier measured by the paper's protocol: the authors' order of rates, their arrivals, one server.

The engine is ours, started on this machine, or one that answers at a URL. The machine is held against
the tier before anything starts: a run under a wrong name is worse than none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hetgpu.errors import DataError
from hetgpu.evidence.catalog import Tier, load_tiers
from hetgpu.measure.engine import Engine, EngineSpec, connect, log_path
from hetgpu.measure.experiment import cpu_spec, tiny_model
from hetgpu.measure.machine import check_tier, fingerprint
from hetgpu.measure.run import Planned, Setting, sweep_missing
from hetgpu.measure.schedule import paper_schedule
from hetgpu.paths import inside

#: The authors' rates in the order they ran them, and their prompts a rate.
PAPER_RATES_QPS = (32.0, 16.0, 8.0, 4.0, 1.0)
PAPER_PROMPTS = 200


@dataclass(frozen=True)
class Request:
    """What to measure.

    Parameters
    ----------
    tier : a key of ``tiers.yaml``.
    model : a folder or a name that vLLM loads; the small model where empty.
    precision : ``auto``, ``bfloat16``, ``float16``; a quantised checkpoint brings its own. Part of the run's key.
    url : an engine that answers there already; ``served`` is then the model's name at that server.
    arguments : further arguments of vLLM's server.
    """

    tier: str
    model: str = ""
    precision: str = "auto"
    url: str = ""
    served: str = ""
    arguments: tuple[str, ...] = ()
    rates_qps: tuple[float, ...] = PAPER_RATES_QPS
    prompts: int = PAPER_PROMPTS
    repeats: int = 1


def tier_of(request: Request) -> Tier:
    """The tier, checked against this machine; behind a URL the machine is the user's word.

    Raises
    ------
    DataError : for an unknown tier, or a machine that is none of it.
    """
    tiers = load_tiers()
    if request.tier not in tiers:
        raise DataError("tier", request.tier, "is not in tiers.yaml", f"use one of {', '.join(tiers)}, or add it")
    if not request.url:
        check_tier(tiers[request.tier], fingerprint())
    return tiers[request.tier]


def spec_of(request: Request, tier: Tier, model: str) -> EngineSpec:
    """How vLLM is started for a tier: one tensor-parallel rank a GPU, or the CPU backend on one core."""
    if tier.gpu is None:
        return cpu_spec(Path(model), request.arguments)
    parallel = ("--tensor-parallel-size", str(tier.gpu_count))
    return EngineSpec(model, request.precision, (*parallel, *request.arguments))


def plans(request: Request) -> list[Planned]:
    """The paper's protocol: every repeat goes through all rates in order, with the same prompts."""
    where = "at a URL, the machine as the user names it" if request.url else ""
    return [
        Planned("paper", qps, repeat, paper_schedule(qps, request.prompts), notes=where)
        for repeat in range(request.repeats)
        for qps in request.rates_qps
    ]


def measure_tier(request: Request, base: Path, say: Callable[[str], None] = print) -> list[Path]:
    """Measure a tier; runs that are there already are not made again.

    Returns
    -------
    The runs' folders.

    Raises
    ------
    DataError : when the machine is not the tier.
    EngineError, ClientError : when either stops; finished runs stay.
    """
    tier = tier_of(request)
    model = request.model or str(tiny_model())
    cores = frozenset({1}) if tier.gpu is None and not request.url else None
    setting = Setting(tier, Path(model).name if Path(model).is_dir() else model, request.precision, model, base, cores)
    if request.url:
        start = partial(connect, request.url, request.served or model, say)
    else:
        start = partial(Engine.start, spec_of(request, tier, model), log_path(f"tier-{tier.key}"), say)
    return sweep_missing(start, setting, plans(request), inside("build", "client"), say)
