"""vLLM's own benchmark client as a subprocess, replaying a schedule against an engine.

It is started through :data:`MAIN`, since vLLM's ``vllm bench`` command needs a distribution called
``vllm``. Its exit status says little (0 where every request failed), so the result is what is read.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hetgpu.errors import DataError
from hetgpu.measure.engine import API_KEY_VARIABLE, Engine
from hetgpu.measure.schedule import Schedule

MAIN = """
import argparse
from vllm.benchmarks.serve import add_cli_args, main
parser = argparse.ArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
#: The same for a schedule that holds its prompts' very tokens: they stand where ids are expanded from.
MAIN_EXACT = (
    """
from vllm.benchmarks.datasets.datasets import TimedTrace
TimedTrace._expand_prompt = lambda self, ids, length, tokenizer: list(ids)
"""
    + MAIN
)
#: Prompts are drawn by Python's ``hash()``: salted, two runs would send other prompts.
ENVIRONMENT = {"PYTHONHASHSEED": "0", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "TQDM_DISABLE": "1"}


class ClientError(RuntimeError):
    """The client ended without a result, or was stopped."""


@dataclass(frozen=True)
class ClientResult:
    """What a run of the client gave.

    Parameters
    ----------
    raw : its own JSON, as it wrote it.
    cpu_share : CPU seconds over wall seconds while the load ran, start-up included; 1.0 is one core.
    started_monotonic_s : ``time.monotonic()`` when the first request was sent (the power samples' clock).
    """

    raw: dict[str, Any]
    cpu_share: float
    started_monotonic_s: float


def command(engine: Engine, tokenizer: str, schedule_file: Path, result: Path, schedule: Schedule) -> list[str]:
    """The client's command line."""
    return [
        sys.executable, "-c", MAIN if schedule.token_ids is None else MAIN_EXACT,
        "--backend", "openai", "--base-url", engine.url, "--endpoint", "/v1/completions",
        "--model", engine.model, "--served-model-name", engine.model, "--tokenizer", tokenizer,
        "--dataset-name", "timed_trace", "--dataset-path", str(schedule_file), "--num-prompts", str(len(schedule)),
        "--temperature", "0", "--disable-tqdm", "--metric-percentiles", "50,90,95,99",
        "--save-result", "--save-detailed",
        "--result-dir", str(result.parent), "--result-filename", result.name,
    ]  # fmt: skip


def run_client(
    engine: Engine,
    tokenizer: str,
    schedule: Schedule,
    folder: Path,
    cores: set[int] | None = None,
    limit_s: float = 3600.0,
) -> ClientResult:
    """Replay a schedule against an engine; blocks until the last answer.

    Parameters
    ----------
    tokenizer : folder or name; its vocabulary is what prompts are drawn from.
    folder : where the schedule and the client's own files are written.
    cores : processors to keep the client on, away from a CPU engine's.

    Raises
    ------
    ClientError : when the client fails, is killed or takes longer than ``limit_s``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    schedule_file, result = schedule.write(folder / "schedule.jsonl"), folder / "client.json"
    result.unlink(missing_ok=True)
    line = command(engine, tokenizer, schedule_file, result, schedule)
    if cores and hasattr(os, "sched_setaffinity"):
        line = ["taskset", "-c", ",".join(map(str, sorted(cores))), *line]
    environment = os.environ | ENVIRONMENT
    if key := os.environ.get(API_KEY_VARIABLE):
        environment |= {"OPENAI_API_KEY": key}
    began = time.monotonic()
    with (folder / "client.log").open("wb") as log:
        process = subprocess.Popen(line, stdout=log, stderr=subprocess.STDOUT, env=environment)
        try:
            usage = _wait(process, limit_s)
        except BaseException:
            process.kill()
            process.wait()
            raise
    took = time.monotonic() - began
    tail = (folder / "client.log").read_text(encoding="utf-8", errors="replace")[-1500:]
    if process.returncode != 0 or not result.is_file():
        raise ClientError(f"the client ended with status {process.returncode} and left no result:\n{tail}")
    raw = json.loads(result.read_text(encoding="utf-8"))
    first_sent = min(raw["start_times"], default=began)
    # The client's clock is perf_counter, which on Linux is the monotonic clock.
    return ClientResult(raw, usage / took, float(first_sent))


def _wait(process: subprocess.Popen[bytes], limit_s: float) -> float:
    """Wait for the client; its CPU seconds, user and system."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return usage.ru_utime + usage.ru_stime
        time.sleep(0.1)
    raise ClientError(f"the client took longer than {limit_s:.0f} s")


def requests_frame(raw: dict[str, Any], schedule: Schedule, endpoint: str) -> pd.DataFrame:
    """The client's detailed result as a row a request, in the schedule's order.

    ``sent_s`` counts from the earliest possible start of the load: the start for which no request
    was sent before its time. ``sent_s - scheduled_s`` is then the client's lag.

    Raises
    ------
    DataError : when the client's lists do not fit the schedule.
    """
    n = len(schedule)
    columns = ("start_times", "ttfts", "itls", "input_lens", "output_lens", "latencies", "errors", "generated_texts")
    if short := [name for name in columns if len(raw.get(name) or ()) != n]:
        problem = f"{', '.join(short)} not of the schedule's {n} requests"
        raise DataError("client.json", "", problem, "use vLLM 0.32's client, or compare its names")
    starts = np.asarray(raw["start_times"], dtype=float)
    sent = starts - (starts - schedule.arrival_s).min()
    errors = [text.strip().splitlines()[-1][:300] if text.strip() else None for text in raw["errors"]]
    failed = np.array([error is not None for error in errors])
    return pd.DataFrame(
        {
            "request": np.arange(n),
            "scheduled_s": schedule.arrival_s,
            "sent_s": sent,
            "ttft_ms": np.where(failed, np.nan, np.asarray(raw["ttfts"], dtype=float) * 1e3),
            "e2e_ms": np.where(failed, np.nan, np.asarray(raw["latencies"], dtype=float) * 1e3),
            "chunk_gaps_ms": [[gap * 1e3 for gap in gaps] for gaps in raw["itls"]],
            "input_tokens": np.asarray(raw["input_lens"], dtype=int),
            "output_tokens": np.asarray(raw["output_lens"], dtype=int),
            "wanted_output_tokens": schedule.output_tokens,
            "request_class": "all",
            "endpoint": endpoint,
            "answer_sha256": [_digest(text) for text in raw["generated_texts"]],
            "error": errors,
        }
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
