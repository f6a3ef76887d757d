"""``hetgpu measure`` and ``hetgpu campaign``: run the experiment on this machine, for itself or for the record."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from hetgpu.decide.cache_effect import agreement
from hetgpu.evidence.files import write_csv
from hetgpu.evidence.records import read_stage_output
from hetgpu.evidence.traces import summaries_of
from hetgpu.measure.client import ClientError
from hetgpu.measure.engine import EngineError
from hetgpu.measure.experiment import Size, run_experiment
from hetgpu.paths import inside

#: What `make repro` repeats on the reader's machine: small enough for two cores and four minutes.
QUICK = Size(rates_qps=(6.0, 3.0), prompts=24, repeats=1)
FULL = Size()

CAMPAIGN = ("data", "traces", "measured")
LOCAL = ("data", "traces", "local")


def main(arguments: list[str]) -> int:
    """``campaign`` writes to the committed traces, anything else to this machine's own; 1 where it could not run."""
    campaign = arguments[:1] == ["campaign"]
    size = FULL if campaign or "--full" in arguments else QUICK
    if find_spec("vllm") is None:
        print("no engine here: vLLM is not installed, so this machine measures nothing (`hetgpu doctor` says more)")
        return 0
    base = inside(*(CAMPAIGN if campaign else LOCAL))
    try:
        folders = run_experiment(base, size)
    except (EngineError, ClientError) as error:
        print(f"hetgpu: {error}\nFinished runs are kept; the same command goes on from there.", file=sys.stderr)
        return 1
    runs = summaries_of(base)
    passed = int(runs.headline.sum())
    print(f"{len(folders)} runs in {base.relative_to(inside())}; {passed} passed every error-level check")
    if not campaign:
        write_csv(runs, inside("data", "summaries", "measured.local.csv"))
        print(agreement(read_stage_output("measured"), runs))
    return 0
