"""The campaign's experiments: the prefix cache under the authors' protocol, that protocol beside ours, and precisions.

The paper's five rates ran from the highest to the lowest against one server with the same prompts.
Three arms tell what that does: ``on`` as the authors ran it, ``off``, and ``emptied`` before each rate.
Repeats send other prompts, so that only the arms differ in what the cache has seen.

The *schedule* protocol runs the same rates with arrivals and prompts of their own, drawn anew for every
rate and repeat. The same prompts in a second precision say whether two configurations answer alike.
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
from hetgpu.measure.schedule import Prompts, Schedule, length_model, paper_schedule, poisson_schedule
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


#: The schedule protocol's size in the campaign: more prompts a rate, since its arrivals differ between repeats.
SCHEDULE = Size(prompts=100)
#: Answers are compared on these rates, one repeat: with greedy sampling it is the same answer or it is not.
ANSWERS = Size(rates_qps=(3.0, 1.5), repeats=1)
ANSWER_PRECISIONS = ("bf16", "fp32")


def schedule_plans(size: Size, prompts: Prompts | None = None) -> list[Planned]:
    """The schedule protocol's runs: no prompt is sent twice, so the cache is cold whatever its state."""
    prompts = prompts or length_model(size.scale_in, size.scale_out)
    return [
        Planned("schedule", qps, repeat, poisson_schedule(qps, size.prompts, 1 + repeat * 100 + number, prompts))
        for repeat in range(size.repeats)
        for number, qps in enumerate(size.rates_qps)
    ]


def _schedule(size: Size, qps: float, arm: int, repeat: int) -> Schedule:
    """The authors' arrivals and the same lengths; prompts that no other arm or repeat sends."""
    schedule = paper_schedule(qps, size.prompts, length_model(size.scale_in, size.scale_out))
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


def cpu_spec(model: Path, arguments: Sequence[str], precision: str = "bf16") -> EngineSpec:
    """A vLLM CPU backend on one core, so that the client has the other."""
    environment = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "0"}
    return EngineSpec(str(model), precision, ("--max-model-len", "2048", *arguments), environment)


def tiny_model() -> Path:
    """The small model's folder, built where it is not there yet."""
    return build_tiny_model(inside("build", "models", "tiny-llama-25m"))


def _setting(model: Path, precision: str, base: Path) -> Setting:
    return Setting(load_tiers()["cpu-local"], model.name, precision, str(model), base, frozenset({1}))


def _sweep(
    base: Path, plans: list[Planned], say: Callable[[str], None], arguments: Sequence[str] = (), precision: str = "bf16"
) -> list[Path]:
    """Runs on one engine of ``cpu-local``, started where one of them is missing."""
    model = tiny_model()
    start = partial(Engine.start, cpu_spec(model, arguments, precision), log_path("campaign"), say)
    return sweep_missing(start, _setting(model, precision, base), plans, inside("build", "client"), say)


def run_experiment(base: Path, size: Size, say: Callable[[str], None] = print) -> list[Path]:
    """Run all arms of the prefix-cache experiment on ``cpu-local``; what is there already is not run again.

    Returns
    -------
    The runs' folders.

    Raises
    ------
    EngineError, ClientError : when either stops; finished runs stay, and the next call goes on from there.
    """
    plans: dict[tuple[str, ...], list[Planned]] = {}
    for arm, (arguments, _) in ARMS.items():
        plans.setdefault(arguments, []).extend(plans_of(size, arm))
    # Arms whose engines are started alike share one: loading takes longer than a run.
    return [folder for arguments, wanted in plans.items() for folder in _sweep(base, wanted, say, arguments)]


def run_campaign(base: Path, say: Callable[[str], None] = print) -> list[Path]:
    """The campaign: :func:`run_experiment`, the schedule protocol, and the same prompts in two precisions.

    Raises
    ------
    EngineError, ClientError : as :func:`run_experiment`.
    """
    folders = run_experiment(base, Size(), say)
    folders += _sweep(base, schedule_plans(SCHEDULE), say)
    for precision in ANSWER_PRECISIONS:
        answers = [replace(plan, workload="paper-answers") for plan in plans_of(ANSWERS, "off")]
        folders += _sweep(base, answers, say, ARMS["off"][0], precision)
    return folders
