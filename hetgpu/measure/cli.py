"""``hetgpu measure`` and ``hetgpu campaign``: run a real vLLM, for this machine or for the record."""

from __future__ import annotations

import argparse
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

from hetgpu.decide.cache_effect import agreement
from hetgpu.evidence.files import write_csv
from hetgpu.evidence.records import read_stage_output
from hetgpu.evidence.traces import summaries_of
from hetgpu.measure.client import ClientError
from hetgpu.measure.engine import EngineError
from hetgpu.measure.experiment import Size, run_experiment
from hetgpu.measure.tier import PAPER_PROMPTS, PAPER_RATES_QPS, Request, measure_tier
from hetgpu.paths import inside

#: What `make repro` repeats on the reader's machine: small enough for two cores and four minutes.
QUICK = Size(rates_qps=(6.0, 3.0), prompts=24, repeats=1)
FULL = Size()

CAMPAIGN = ("data", "traces", "measured")
LOCAL = ("data", "traces", "local")


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    made = argparse.ArgumentParser(prog="hetgpu measure", description=__doc__)
    made.add_argument("--full", action="store_true", help="the experiment as large as the campaign's")
    made.add_argument("--tier", help="measure this tier of tiers.yaml by the paper's protocol instead")
    made.add_argument("--model", default="", help="a folder, or a name that vLLM loads (default: the small model)")
    made.add_argument("--precision", default="auto", help="auto, bfloat16, float16; part of the run's key")
    made.add_argument("--url", default="", help="an OpenAI-compatible server that runs already (key: HETGPU_API_KEY)")
    made.add_argument("--served", default="", help="the model's name at that server")
    made.add_argument("--engine-args", default="", help="further arguments of vLLM's server, in one string")
    made.add_argument("--rates", default=",".join(f"{qps:g}" for qps in PAPER_RATES_QPS), help="QPS, in order")
    made.add_argument("--prompts", type=int, default=PAPER_PROMPTS, help="prompts a rate")
    made.add_argument("--repeats", type=int, default=1)
    return made


def _request(given: argparse.Namespace) -> Request:
    rates = tuple(float(part) for part in given.rates.split(","))
    engine = tuple(shlex.split(given.engine_args))
    return Request(
        given.tier, given.model, given.precision, given.url, given.served, engine, rates, given.prompts, given.repeats
    )


def _report(base: Path, folders: list[Path]) -> None:
    runs = summaries_of(base)
    passed = int(runs.headline.sum())
    print(f"{len(folders)} runs in {base.relative_to(inside())}; of all {len(runs)} there {passed} passed every check")
    if base == inside(*LOCAL):
        write_csv(runs, inside("data", "summaries", "measured.local.csv"))


def main(arguments: list[str]) -> int:
    """Measure; 1 where an engine or the client stopped (finished runs stay)."""
    campaign = arguments[:1] == ["campaign"]
    given = parser().parse_args(arguments[1:] if campaign else arguments)
    if find_spec("vllm") is None:
        print("no engine here: vLLM is not installed, so this machine measures nothing (`hetgpu doctor` says more)")
        return 0
    base = inside(*(CAMPAIGN if campaign else LOCAL))
    try:
        if given.tier:
            folders = measure_tier(_request(given), base)
        else:
            folders = run_experiment(base, FULL if campaign or given.full else QUICK)
    except (EngineError, ClientError) as error:
        print(f"hetgpu: {error}\nFinished runs are kept; the same command goes on from there.", file=sys.stderr)
        return 1
    _report(base, folders)
    if not campaign and not given.tier:
        print(agreement(read_stage_output("measured"), summaries_of(base)))
    return 0
