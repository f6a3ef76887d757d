"""``hetgpu measure`` and ``hetgpu campaign``: run a real vLLM, for this machine or for the record."""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hetgpu.decide.cache_effect import agreement
from hetgpu.evidence.files import write_csv
from hetgpu.evidence.records import read_stage_output
from hetgpu.evidence.traces import CAMPAIGN, LOCAL, LOCAL_SUMMARY, summaries_of
from hetgpu.measure.client import ClientError
from hetgpu.measure.engine import PRECISIONS, EngineError
from hetgpu.measure.experiment import Size, run_campaign, run_experiment
from hetgpu.measure.tier import PAPER_PROMPTS, PAPER_RATES_QPS, measure_tier, requests_from
from hetgpu.paths import inside, shown

#: What `make repro` repeats on the reader's machine: small enough for two cores and four minutes.
QUICK = Size(rates_qps=(6.0, 3.0), prompts=24, repeats=1)


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    made = argparse.ArgumentParser(prog="hetgpu measure", description=__doc__)
    made.add_argument("--full", action="store_true", help="the prefix-cache experiment as large as the campaign's")
    made.add_argument("--tier", help="measure this tier of tiers.yaml instead")
    made.add_argument("--model", default="", help="a folder, or a name that vLLM loads (default: the small model)")
    made.add_argument("--precision", default="auto", choices=PRECISIONS, help="part of the run's key")
    made.add_argument("--protocol", default="paper", choices=("paper", "schedule"))
    made.add_argument("--requests", default="", help="a ShareGPT file, or a trace in the Azure form (.csv)")
    made.add_argument("--url", default="", help="an OpenAI-compatible server that runs already (key: HETGPU_API_KEY)")
    made.add_argument("--served", default="", help="the model's name at that server")
    made.add_argument("--same-machine", action="store_true", help="that server runs on this machine")
    made.add_argument("--engine", default="", help="the command that starts vLLM's server, if it is not ours")
    made.add_argument("--arguments", default="", help="further arguments of vLLM's server, in one string")
    made.add_argument("--label", default="", help="tells variants of a configuration apart")
    made.add_argument("--rates-qps", default=",".join(f"{qps:g}" for qps in PAPER_RATES_QPS), help="in order")
    made.add_argument("--prompts", type=int, default=PAPER_PROMPTS, help="prompts a rate")
    made.add_argument("--repeats", type=int, default=1)
    return made


def _entry(given: argparse.Namespace) -> dict[str, Any]:
    entry = {name: value for name, value in vars(given).items() if name != "full"}
    return entry | {"rates_qps": tuple(part for part in given.rates_qps.split(","))}


def report(base: Path) -> None:
    """Say what there is in ``base``; this machine's runs also get their summary and their page."""
    from hetgpu.notebooks import write_page

    runs = summaries_of(base)
    print(f"{len(runs)} runs in {shown(base)}, of which {int(runs.headline.sum())} passed every check")
    if base == inside(*LOCAL):
        write_csv(runs, inside(*LOCAL_SUMMARY))
        print(f"this machine's page: {shown(write_page())}")


def main(arguments: list[str]) -> int:
    """Measure; 1 where an engine or the client stopped (finished runs stay)."""
    campaign = arguments[:1] == ["campaign"]
    given = parser().parse_args(arguments[1:] if campaign else arguments)
    if find_spec("vllm") is None:
        print("no engine here: vLLM is not installed, so this machine measures nothing (`hetgpu doctor` says more)")
        return 0
    base = inside(*(CAMPAIGN if campaign else LOCAL))
    try:
        if campaign:
            run_campaign(base)
        elif given.tier:
            measure_tier(requests_from([_entry(given)], "hetgpu measure")[0], base)
        else:
            run_experiment(base, Size() if given.full else QUICK)
            print(agreement(read_stage_output("measured"), summaries_of(base)))
    except (EngineError, ClientError) as error:
        print(f"hetgpu: {error}\nFinished runs are kept; the same command goes on from there.", file=sys.stderr)
        return 1
    report(base)
    return 0
