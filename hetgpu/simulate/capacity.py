"""What a tier sustains: a long, cold, steady load, and the load at which a latency limit is crossed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pandas as pd

from hetgpu.evidence.catalog import Gpu, Model
from hetgpu.evidence.files import read_table
from hetgpu.paths import inside
from hetgpu.simulate.engine import EngineShape, Load, Result, simulate
from hetgpu.simulate.protocol import ENGINES
from hetgpu.simulate.steptime import Constants, kv_tokens, step_costs

#: Requests of a steady run; the first tenth fills the engine and is not counted.
REQUESTS, FILL_SHARE = 2500, 0.1
#: A rate is sustained where the mean TTFT of the run's last quarter is no more than this over its second quarter's.
GROWTH = 2.0


@dataclass(frozen=True)
class Replica:
    """One engine of a tier with a model, cold: no prompt comes twice."""

    gpu: Gpu
    count: int
    model: Model
    constants: Constants

    def run(self, qps: float, seed: int, requests: int = REQUESTS) -> Result:
        """Poisson arrivals and pairs of the length trace, drawn anew with the seed."""
        base, draw = read_table(inside("data", "catalog", "lengths.csv")), np.random.default_rng(seed)
        rows = base.iloc[draw.integers(0, len(base), requests)]
        arrivals = np.cumsum(draw.exponential(1 / qps, requests))
        load = Load(arrivals, rows.input_tokens.to_numpy(), rows.output_tokens.to_numpy())
        return self.serve(load)

    def serve(self, load: Load) -> Result:
        """A load on a fresh engine with vLLM 0.8.5's defaults on this card.

        Raises
        ------
        DataError : when the model does not fit, or a request is larger than the KV cache.
        """
        budget, seqs, _ = ENGINES[self.gpu.gpu]
        capacity = kv_tokens(self.gpu, self.count, self.model, self.constants)
        shape = EngineShape(capacity, budget, seqs, prefix_cache=False)
        return simulate(step_costs(self.gpu, self.count, self.model, self.constants), shape, load)


def ttft_p99_ms(result: Result) -> float:
    """P99 TTFT of the counted part of a run, ms."""
    counted = slice(int(FILL_SHARE * len(result.first_token_s)), None)
    return float(np.percentile((result.first_token_s - result.load.arrival_s)[counted], 99) * 1e3)


def grows(result: Result) -> bool:
    """Whether the queue grows through the run: the rate is more than the engine sustains."""
    quarters = np.array_split(result.first_token_s - result.load.arrival_s, 4)
    return bool(quarters[3].mean() > GROWTH * quarters[1].mean())


def highest_qps(replica: Replica, limit_ms: float, seed: int) -> float:
    """The highest rate whose P99 TTFT is within a limit, by bisection to 1 %; 0 where none is.

    ``limit_ms`` infinite asks for the highest rate that is sustained.
    """

    def holds(qps: float) -> bool:
        result = replica.run(qps, seed)
        return not grows(result) if np.isinf(limit_ms) else ttft_p99_ms(result) <= limit_ms

    low, high = 0.05, 0.1
    if not holds(low):
        return 0.0
    while holds(high):
        low, high = high, 2 * high
    while high / low > 1.01:
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def capacity_table(replicas: dict[str, Replica], limits_ms: list[float], seeds: list[int]) -> pd.DataFrame:
    """The highest rate within each limit, for every replica: mean and range over seeds.

    Returns
    -------
    Columns tier, model, ttft_p99_limit_ms (infinite: what is sustained), qps, qps_low, qps_high, seeds.
    """
    asked = [(tier, limit) for tier in replicas for limit in [*limits_ms, np.inf]]
    # Threads: the kernel lets go of Python's lock.
    with ThreadPoolExecutor() as pool:
        found = list(pool.map(lambda ask: [highest_qps(replicas[ask[0]], ask[1], seed) for seed in seeds], asked))
    rows = [
        (tier, replicas[tier].model.model, limit, float(np.mean(qps)), min(qps), max(qps), len(seeds))
        for (tier, limit), qps in zip(asked, found, strict=True)
    ]
    columns = ["tier", "model", "ttft_p99_limit_ms", "qps", "qps_low", "qps_high", "seeds"]
    return pd.DataFrame(rows, columns=columns)


def split(replica: Replica, replicas: int, qps: float, requests: int, seed: int) -> dict[str, float]:
    """Requests dealt in turn to equal replicas: what all of them serve together.

    Returns
    -------
    ``req_per_s`` over the whole run, drain included (the paper's metric), ``ttft_mean_ms``, ``ttft_p99_ms``.
    """
    base, draw = read_table(inside("data", "catalog", "lengths.csv")), np.random.default_rng(seed)
    rows = base.iloc[draw.integers(0, len(base), requests)]
    arrivals = np.cumsum(draw.exponential(1 / qps, requests))
    ends, ttft_s = [], []
    for number in range(replicas):
        mine = slice(number, None, replicas)
        load = Load(arrivals[mine], rows.input_tokens.to_numpy()[mine], rows.output_tokens.to_numpy()[mine])
        result = replica.serve(load)
        ends.append(result.last_token_s.max())
        ttft_s.append(result.first_token_s - load.arrival_s)
    all_ms = np.concatenate(ttft_s) * 1e3
    return {
        "req_per_s": requests / (max(ends) - arrivals[0]),
        "ttft_mean_ms": float(all_ms.mean()),
        "ttft_p99_ms": float(np.percentile(all_ms, 99)),
    }
