"""The simulator on machines that are not the paper's: a public trace of another GPU, and measured runs of our own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from hetgpu.errors import DataError
from hetgpu.evidence.catalog import Gpu, Model
from hetgpu.evidence.traces import Trace
from hetgpu.paths import shown
from hetgpu.simulate.calibrate import ROBUST_SCALE, WEIGHTS
from hetgpu.simulate.engine import EngineShape, Load, Result, simulate
from hetgpu.simulate.protocol import METRICS
from hetgpu.simulate.steptime import Constants, StepCosts, kv_tokens, step_costs

#: A load and what was seen of it: :data:`hetgpu.simulate.protocol.METRICS`.
Seen = tuple[Load, np.ndarray]
#: Where the fit of a machine's own step costs starts; for a CPU, where reading and multiplying do not overlap.
CPU_START = StepCosts(
    5e-3, per_seq_s=3e-4, per_kv_token_s=2e-7, compute_s=4e-4, mixed_s=2e-3, per_pair_s=1e-8, api_s=3e-3
)
CPU_NAMES = ("base_s", "per_seq_s", "per_kv_token_s", "compute_s", "mixed_s", "per_pair_s", "api_s")
#: vLLM's CPU backend: blocks of 128 tokens; the campaign's engine had one GiB for KV.
CPU_SHAPE = EngineShape(130_000, 2048, 256, prefix_cache=False, block_tokens=128)


def _figures(ttft_s: np.ndarray, last_s: np.ndarray, load: Load) -> np.ndarray:
    """:data:`METRICS` from times since each request's arrival (TTFT) and since the first arrival (last token), s."""
    many = load.output_tokens > 1
    decode_s = last_s - load.arrival_s - ttft_s
    tpot_s = decode_s[many] / (load.output_tokens[many] - 1)
    return np.array([ttft_s.mean() * 1e3, np.percentile(ttft_s, 99) * 1e3, tpot_s.mean() * 1e3, last_s.max()])


def figures(result: Result) -> np.ndarray:
    """:data:`METRICS` of a simulated run, whose duration ends with its last token."""
    return _figures(result.first_token_s - result.load.arrival_s, result.last_token_s, result.load)


def seen_in(trace: Trace) -> Seen:
    """A measured run's load, by real send times, and its figures."""
    done = trace.requests[trace.requests.error.isna()].sort_values("sent_s")
    arrival = (done.sent_s - done.sent_s.min()).to_numpy()
    load = Load(arrival, done.input_tokens.to_numpy(), done.output_tokens.to_numpy())
    return load, _figures(done.ttft_ms.to_numpy() / 1e3, arrival + done.e2e_ms.to_numpy() / 1e3, load)


def read_public_trace(path: Path) -> Seen:
    """A trace in LLMServingSim's form: a JSON object a request, TTFT counted from the queue.

    Raises
    ------
    DataError : when a line is none.
    """
    try:
        rows = pd.DataFrame([json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()])
        rows = rows.sort_values("queued_ts")
        arrival = (rows.queued_ts - rows.queued_ts.min()).to_numpy()
        load = Load(arrival, rows.input_toks.to_numpy(), rows.output_toks.to_numpy())
        ttft_s = (rows.first_token_ts - rows.queued_ts).to_numpy()
        return load, _figures(ttft_s, arrival + (rows.last_token_ts - rows.queued_ts).to_numpy(), load)
    except (ValueError, KeyError, AttributeError) as error:
        raise DataError(shown(path), "", f"is no such trace: {error}", "restore it from Git") from error


def errors_pct(result: Result, seen: np.ndarray) -> dict[str, float]:
    """Signed errors of :data:`METRICS`, per cent of what was seen."""
    return {f"{m}_error_pct": float(e) for m, e in zip(METRICS, 100 * (figures(result) / seen - 1), strict=True)}


def on_card(seen: Seen, gpu: Gpu, model: Model, constants: Constants, budget: int, seqs: int) -> dict[str, float]:
    """The errors of a public trace on a card that nothing was fitted to, by another card's constants."""
    load, figures_seen = seen
    shape = EngineShape(kv_tokens(gpu, 1, model, constants), budget, seqs)
    return errors_pct(simulate(step_costs(gpu, 1, model, constants), shape, load), figures_seen)


def fit_step_costs(runs: Sequence[Seen], shape: EngineShape = CPU_SHAPE, start: StepCosts = CPU_START) -> StepCosts:
    """A machine's own step costs from its measured runs, without a data sheet: robust, as the GPUs' fit is."""

    def costs(x: np.ndarray) -> StepCosts:
        scaled = {name: getattr(start, name) * np.exp(v - 1) for name, v in zip(CPU_NAMES, x, strict=True)}
        return replace(start, **scaled)

    def errors(x: np.ndarray) -> np.ndarray:
        made = costs(x)
        logs = [np.log(figures(simulate(made, shape, load)) / seen) * WEIGHTS for load, seen in runs]
        return np.concatenate(logs)

    x = np.ones(len(CPU_NAMES))
    # Far from the answer every error is large, and a robust loss would hardly feel them: plain squares come first.
    for loss in ({"loss": "linear"}, {"loss": "soft_l1", "f_scale": ROBUST_SCALE}):
        x = least_squares(errors, x, bounds=(-6.0, 5.0), diff_step=0.02, max_nfev=60, **loss).x
    return costs(x)
