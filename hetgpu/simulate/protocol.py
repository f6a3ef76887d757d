"""The authors' protocol, simulated as it was run: one engine, their rates in their order, the same 200 prompts.

Their prompts' lengths are not in the records. 200 pairs inferred from them (``data/catalog/lengths.csv``)
are scaled to each model's own token totals, exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from hetgpu.evidence import metrics
from hetgpu.evidence.catalog import Gpu, Model, load_gpus, load_models
from hetgpu.evidence.files import read_table
from hetgpu.paths import inside
from hetgpu.simulate.engine import EngineShape, Load, Result, simulate_in_turn
from hetgpu.simulate.steptime import Constants, kv_tokens, step_costs

#: The authors' order of rates.
RATES_QPS = (32.0, 16.0, 8.0, 4.0, 1.0)
PROMPTS = 200
#: vLLM 0.8.5's defaults by card: tokens a step, sequences at once, and memory beside weights and KV (GiB),
#: most of which is what its profiling run of a full step takes.
ENGINES = {"H100-PCIe": (8192, 1024, 3.0), "RTX-4090": (2048, 256, 1.0)}
#: Their client ended no run before it had slept out its last gap, at this over the rate (s).
CLIENT_END_S = 189.1
METRICS = ("ttft_mean_ms", "ttft_p99_ms", "tpot_mean_ms", "duration_s")


def scaled_to(lengths: np.ndarray, total: int) -> np.ndarray:
    """Whole lengths of at least 1 in proportion to ``lengths`` whose sum is ``total`` (largest remainders)."""
    wanted = lengths * (total / lengths.sum())
    whole = np.maximum(1, np.floor(wanted)).astype(np.int64)
    order = np.argsort(whole - wanted, kind="stable")
    short = int(total - whole.sum())
    while short:
        step = 1 if short > 0 else -1
        places = order[: abs(short)] if short > 0 else np.flatnonzero(whole > 1)[: abs(short)]
        whole[places] += step
        short = int(total - whole.sum())
    return whole


def answers_to(lengths: np.ndarray, total: int, longest: float = 1.0) -> np.ndarray:
    """Answers' lengths with a total: long ones keep ``longest`` of their length, short ones give way.

    A model that says less ends its short answers sooner; all of them scaled alike would end the run
    too soon, since a run's duration is its longest answers'.
    """
    top = lengths.max()
    low, high = -3.0, 8.0
    for _ in range(60):
        power = (low + high) / 2
        said = longest * lengths * (lengths / top) ** power
        low, high = (power, high) if said.sum() > total else (low, power)
    return scaled_to(said, total)


@dataclass(frozen=True, eq=False)
class Pair:
    """A tier and a model in the records, and how the authors' protocol asked it.

    Parameters
    ----------
    runs : its published rows by ``target_qps``.
    stalled : the rates whose tokens came in merged chunks; no engine model explains their TTFT.
    longest : see :func:`answers_to`.
    cached : whether a rate met the prompts of the one before in the prefix cache.
    """

    gpu: Gpu
    count: int
    model: Model
    runs: pd.DataFrame
    stalled: frozenset[float]
    longest: float = 1.0
    cached: bool = True

    @property
    def name(self) -> str:
        """Tier and model."""
        return f"{self.count}x {self.gpu.gpu} {self.model.model}"

    @cached_property
    def loads(self) -> list[Load]:
        """One prompt to try the server, as their client does, then the rates in order."""
        base = read_table(inside("data", "catalog", "lengths.csv"))
        tokens_in = scaled_to(base.input_tokens.to_numpy(float), int(self.runs.input_tokens.median()))
        total = int(self.runs.output_tokens.median())
        tokens_out = answers_to(base.output_tokens.to_numpy(float), total, self.longest)
        ids = np.arange(PROMPTS)
        first = Load(np.zeros(1), tokens_in[:1], tokens_out[:1], ids[:1])
        return [first, *(Load(metrics.arrivals_s(qps, PROMPTS), tokens_in, tokens_out, ids) for qps in RATES_QPS)]

    def shape(self, constants: Constants) -> EngineShape:
        """The engine that served it: vLLM 0.8.5's defaults on this card, with what KV fits."""
        budget, seqs, _ = ENGINES[self.gpu.gpu]
        return EngineShape(kv_tokens(self.gpu, self.count, self.model, constants), budget, seqs, self.cached)

    def simulate(self, constants: Constants) -> dict[float, Result]:
        """The protocol's runs by rate.

        Raises
        ------
        DataError : when the model does not fit the cards.
        """
        costs = step_costs(self.gpu, self.count, self.model, constants)
        results = simulate_in_turn(costs, self.shape(constants), self.loads)
        return dict(zip(RATES_QPS, results[1:], strict=True))


def cell(result: Result, qps: float) -> tuple[float, float, float, float]:
    """:data:`METRICS` of a simulated run by the authors' protocol."""
    load = result.load
    ttft_ms = (result.first_token_s - load.arrival_s) * 1e3
    many = load.output_tokens > 1
    tpot_ms = (result.last_token_s - result.first_token_s)[many] / (load.output_tokens[many] - 1) * 1e3
    duration_s = max(result.last_token_s.max(), CLIENT_END_S / qps)
    return float(ttft_ms.mean()), float(np.percentile(ttft_ms, 99)), float(tpot_ms.mean()), float(duration_s)


def published_pairs(runs: pd.DataFrame, audit: pd.DataFrame) -> list[Pair]:
    """Every (tier, model) of the published records with all five rates, first record of each.

    Parameters
    ----------
    runs, audit : what the stages ``import`` and ``audit`` wrote.
    """
    gpus, models = load_gpus(), load_models()
    stalled = dict(zip(audit.run_id, audit.stalled, strict=True))
    found = []
    for (gpu, count, model), group in runs[runs.record == 1].groupby(["gpu", "gpu_count", "model"]):
        rows = group.assign(target_qps=group.target_qps.astype(float)).set_index("target_qps")
        if set(RATES_QPS) <= set(rows.index):
            merged = frozenset(qps for qps in RATES_QPS if stalled[rows.run_id[qps]])
            found.append(Pair(gpus[gpu], int(count), models[model], rows.loc[list(RATES_QPS)], merged))
    return found
