"""The prefix-cache experiment: the authors' order of rates against one server, with the cache on, off, and emptied.

The paper's five rates ran from the highest to the lowest against one server with the same prompts.
Three arms tell what that does: ``on`` as the authors ran it, ``off``, and ``emptied`` before each rate.
Repeats send other prompts, so that only the arms differ in what the cache has seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from hetgpu.evidence.catalog import load_tiers
from hetgpu.measure.engine import Engine, EngineSpec, log_path
from hetgpu.measure.model import build_tiny_model
from hetgpu.measure.run import Planned, Setting, sweep_missing
from hetgpu.measure.schedule import Schedule, paper_schedule
from hetgpu.paths import inside

#: Arm -> (arguments of the engine, whether its cache is emptied before each rate).
ARMS: dict[str, tuple[tuple[str, ...], bool]] = {
    "on": ((), False),
    "off": (("--no-enable-prefix-caching",), False),
    "emptied": ((), True),
}


@dataclass(frozen=True)
class Size:
    """How large the experiment is: rates in the order they run, prompts a rate, repeats, lengths.

    Lengths are the length model's times ``scale_in`` and ``scale_out``: vLLM's CPU backend caches
    blocks of 128 tokens, so prompts are made longer and answers shorter than the paper's.
    """

    rates_qps: tuple[float, ...] = (6.0, 3.0, 1.5)
    prompts: int = 40
    repeats: int = 4
    scale_in: float = 2.0
    scale_out: float = 0.25


def _schedule(size: Size, qps: float, arm: int, repeat: int) -> Schedule:
    """The authors' arrivals and the same lengths; prompts that no other arm or repeat sends."""
    schedule = paper_schedule(qps, size.prompts, size.scale_in, size.scale_out)
    return replace(schedule, prompt=schedule.prompt + (1 + 100 * arm + repeat) * 1000)


def plans_of(size: Size, arm: str) -> list[Planned]:
    """The runs of one arm: every repeat goes through all rates in order."""
    number, emptied = list(ARMS).index(arm), ARMS[arm][1]
    before: Callable[[Engine], None] | None = Engine.reset_prefix_cache if emptied else None
    return [
        Planned(f"paper-cache-{arm}", qps, repeat, _schedule(size, qps, number, repeat), before, f"prefix cache {arm}")
        for repeat in range(size.repeats)
        for qps in size.rates_qps
    ]


def cpu_spec(model: Path, arguments: Sequence[str]) -> EngineSpec:
    """A vLLM CPU backend on one core, so that the client has the other."""
    environment = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "0"}
    return EngineSpec(str(model), "bfloat16", ("--max-model-len", "2048", *arguments), environment)


def tiny_model() -> Path:
    """The small model's folder, built where it is not there yet."""
    return build_tiny_model(inside("build", "models", "tiny-llama-25m"))


def run_experiment(base: Path, size: Size, say: Callable[[str], None] = print) -> list[Path]:
    """Run all arms on ``cpu-local``, one engine an arm; what is there already is not run again.

    Returns
    -------
    The runs' folders.

    Raises
    ------
    EngineError, ClientError : when either stops; finished runs stay, and the next call goes on from there.
    """
    model = tiny_model()
    setting = Setting(load_tiers()["cpu-local"], model.name, "bf16", str(model), base, frozenset({1}))
    plans: dict[tuple[str, ...], list[Planned]] = {}
    for arm, (arguments, _) in ARMS.items():
        plans.setdefault(arguments, []).extend(plans_of(size, arm))
    folders = []
    # Arms whose engines are started alike share one: loading takes longer than a run.
    for arguments, wanted in plans.items():
        spec = cpu_spec(model, arguments)
        start = partial(Engine.start, spec, log_path("cache"), say)
        folders += sweep_missing(start, setting, wanted, inside("build", "client"), say)
    return folders
