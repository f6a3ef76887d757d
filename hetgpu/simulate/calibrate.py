"""The fit: a few constants a GPU from the published cells, the authors' protocol simulated as it was run.

Rates 1, 8 and 32 are fitted, 4 and 16 held out. One card's constants come from the models that fit one
card; what several cards add (the start and the rate of an all-reduce) is fitted to those tiers alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from hetgpu.simulate.protocol import ENGINES, METRICS, Pair, cell
from hetgpu.simulate.steptime import Constants

FITTED_QPS, HELD_OUT_QPS = (1.0, 8.0, 32.0), (4.0, 16.0)
#: What each metric's log error weighs: P99 rests on two requests, duration is known best.
WEIGHTS = np.array([1.0, 0.5, 1.5, 2.0])
#: In cells with merged chunks TTFT is dropped and TPOT halved.
STALLED_WEIGHTS = np.array([0.0, 0.0, 0.5, 1.0])
#: Log errors beyond this count less than by their square.
ROBUST_SCALE = 0.05
#: Constant -> lowest, start, highest.
LIMITS = {
    "bandwidth_share": (0.4, 0.85, 1.0),
    "kv_share": (0.1, 0.6, 1.0),
    "flop_share": (0.1, 0.55, 1.0),
    "host_s": (1e-6, 1.5e-3, 2e-2),
    "per_layer_s": (1e-6, 2e-5, 3e-4),
    "seq_s": (1e-6, 2e-5, 1e-3),
    "mixed_s": (1e-6, 1e-3, 2e-2),
    "api_s": (1e-4, 4e-3, 5e-2),
    "floor_s": (1e-3, 6e-3, 3e-2),
    "knee": (1.0, 2.0, 8.0),
    "batch_loss": (1e-4, 0.05, 0.5),
    "allreduce_s": (1e-6, 3e-5, 1e-3),
    "link_gb_per_s": (0.2, 10.0, 60.0),
}
ONE_CARD = tuple(LIMITS)[:11]
LINK = ("allreduce_s", "link_gb_per_s")
#: Starts of a fit: host floors (s) and knees. The best of all is kept.
STARTS = tuple((floor, knee) for floor in (2e-3, 9e-3) for knee in (1.5, 3.0))
#: Memory of several cards' buffers that is tried, GiB a card.
SEVERAL_OVERHEAD_GB = (0.0, 0.4, 0.8, 1.2)
#: Longest answers tried for a model, as shares of the length trace's.
LONGEST = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1)
#: Models of more parameters (billions) do not enter one card's constants.
ONE_CARD_MODELS_B = 16.0


@dataclass(frozen=True)
class Fit:
    """Constants by GPU, each model's longest answers, and the pairs that carry them."""

    constants: dict[str, Constants]
    pairs: list[Pair]


def start_constants(gpu: str) -> Constants:
    """Where a GPU's fit starts."""
    return Constants(**{name: limits[1] for name, limits in LIMITS.items()}, overhead_gb=ENGINES[gpu][2])


def log_errors(pair: Pair, constants: Constants, qps: Sequence[float]) -> np.ndarray:
    """Weighted log of simulated over published, shape ``(len(qps), 4)``."""
    results = pair.simulate(constants)
    rows = []
    for rate in qps:
        seen = pair.runs.loc[rate, list(METRICS)].to_numpy(dtype=float)
        weights = WEIGHTS * STALLED_WEIGHTS if rate in pair.stalled else WEIGHTS
        rows.append(np.log(np.array(cell(results[rate], rate)) / seen) * weights)
    return np.array(rows)


def robust(errors: np.ndarray) -> float:
    """The soft L1 cost of weighted log errors, what the fit makes least."""
    return float(2 * (np.sqrt(1 + (errors / ROBUST_SCALE) ** 2) - 1).sum())


def cost(pairs: Sequence[Pair], constants: Constants) -> float:
    """:func:`robust` of the pairs' fitted rates."""
    return sum(robust(log_errors(pair, constants, FITTED_QPS)) for pair in pairs)


def fit_constants(pairs: Sequence[Pair], start: Constants, names: Sequence[str] = ONE_CARD) -> Constants:
    """Robust least squares over the pairs' fitted rates, in the logs of the named constants; the others stay.

    Source: SciPy's trust region reflective with a soft L1 loss.
    """
    low, high = (np.array([LIMITS[name][end] for name in names]) for end in (0, 2))
    began = np.clip([getattr(start, name) for name in names], low * 1.001, high * 0.999)

    def constants(x: np.ndarray) -> Constants:
        return replace(start, **dict(zip(names, (began * np.exp(x - 1)).tolist(), strict=True)))

    def errors(x: np.ndarray) -> np.ndarray:
        made = constants(x)
        return np.concatenate([log_errors(pair, made, FITTED_QPS).ravel() for pair in pairs])

    # Logs over the start, plus one, so that the relative step below is two per cent of the constant: the
    # simulation is a staircase at smaller ones.
    bounds = (1 + np.log(low / began), 1 + np.log(high / began))
    how = {"loss": "soft_l1", "f_scale": ROBUST_SCALE, "diff_step": 0.02, "max_nfev": 40}
    return constants(least_squares(errors, np.ones(len(names)), bounds=bounds, **how).x)


def fit_one_card(pairs: Sequence[Pair], start: Constants) -> Constants:
    """The best of :func:`fit_constants` from ``start`` and from every floor and knee of :data:`STARTS`."""
    starts = [start, *(replace(start, floor_s=floor, knee=knee) for floor, knee in STARTS)]
    # Threads: the kernel lets go of Python's lock. The order of the answers is that of the starts.
    with ThreadPoolExecutor() as pool:
        found = list(pool.map(lambda one: fit_constants(pairs, one), starts))
    return min(found, key=lambda one: cost(pairs, one))


def fit_several(pairs: Sequence[Pair], start: Constants) -> tuple[Constants, list[Pair]]:
    """What several cards add: an all-reduce's start and rate, and their buffers' memory; and the pairs' cache state.

    On several H100s the records show a warm cache where it fits; on several 4090s its sign is confounded
    with merged chunks, so each count of cards takes the state, warm or off, that its fitted cells like better.
    """
    tried = []
    for overhead in SEVERAL_OVERHEAD_GB:
        found, mine = replace(start, several_overhead_gb=overhead), list(pairs)
        for _ in range(2):
            found = fit_constants(mine, found, LINK)
            mine = _with_cache_state(mine, found)
        tried.append((cost(mine, found), found, mine))
    _, best, mine = min(tried, key=lambda one: one[0])
    return best, mine


def _with_cache_state(pairs: Sequence[Pair], constants: Constants) -> list[Pair]:
    if pairs[0].gpu.gpu != "RTX-4090":
        return list(pairs)
    chosen: list[Pair] = []
    for count in sorted({pair.count for pair in pairs}):
        states = [[replace(p, cached=cached) for p in pairs if p.count == count] for cached in (True, False)]
        costs = [cost(mine, constants) for mine in states]
        chosen += states[int(np.argmin(costs))]
    return chosen


def with_longest(pairs: Sequence[Pair], constants: dict[str, Constants]) -> list[Pair]:
    """The pairs, each model's longest answers chosen by its fitted cells on one card of any GPU."""
    chosen: dict[str, float] = {}
    for model in {pair.model.model for pair in pairs}:
        mine = [pair for pair in pairs if pair.model.model == model]
        fewest = min(pair.count for pair in mine)
        tried = [
            sum(
                cost([replace(pair, longest=longest)], constants[pair.gpu.gpu]) for pair in mine if pair.count == fewest
            )
            for longest in LONGEST
        ]
        chosen[model] = LONGEST[int(np.argmin(tried))]
    return [replace(pair, longest=chosen[pair.model.model]) for pair in pairs]


def calibrate(pairs: Sequence[Pair], rounds: int = 2) -> Fit:
    """All constants: one card's, what several cards add, the models' longest answers; and all again.

    Deterministic; a few minutes on two cores.
    """
    pairs = list(pairs)
    constants = {gpu: start_constants(gpu) for gpu in ENGINES}
    for turn in range(rounds):
        # Where the best start is found once, the next round goes on from there.
        fit_card = fit_one_card if turn == 0 else fit_constants
        for gpu in ENGINES:
            mine = [p for p in pairs if p.gpu.gpu == gpu and p.count == 1 and p.model.parameters_b < ONE_CARD_MODELS_B]
            constants[gpu] = fit_card(mine, constants[gpu])
            several = [pair for pair in pairs if pair.gpu.gpu == gpu and pair.count > 1]
            if several:
                constants[gpu], fitted = fit_several(several, constants[gpu])
                pairs = [pair for pair in pairs if pair not in several] + fitted
        pairs = with_longest(pairs, constants)
    return Fit(constants, sorted(pairs, key=lambda pair: (pair.gpu.gpu, pair.count, pair.model.model)))


def predictions(pairs: Sequence[Pair], constants: dict[str, Constants]) -> pd.DataFrame:
    """Every published cell beside its simulated one: a row a cell, none left out.

    Returns
    -------
    Columns gpu, gpu_count, model, target_qps, held_out, stalled; per metric the published figure, the
    simulated one and the signed error in per cent; hit_tokens, preemptions.
    """
    rows = []
    for pair in pairs:
        for qps, result in pair.simulate(constants[pair.gpu.gpu]).items():
            row = {"gpu": pair.gpu.gpu, "gpu_count": pair.count, "model": pair.model.model, "target_qps": qps}
            row |= {"held_out": qps in HELD_OUT_QPS, "stalled": qps in pair.stalled}
            for metric, simulated in zip(METRICS, cell(result, qps), strict=True):
                seen = float(pair.runs.loc[qps, metric])
                row |= {f"{metric}_published": seen, f"{metric}_simulated": simulated}
                row[f"{metric}_error_pct"] = 100 * (simulated / seen - 1)
            rows.append(row | {"hit_tokens": result.hit_tokens, "preemptions": result.preemptions})
    return pd.DataFrame(rows)


def workload_table(fit: Fit) -> pd.DataFrame:
    """What was inferred of the workload: each pair's longest answers and whether its cache was warm."""
    rows = [(pair.gpu.gpu, pair.count, pair.model.model, pair.longest, pair.cached) for pair in fit.pairs]
    return pd.DataFrame(rows, columns=["gpu", "gpu_count", "model", "longest_share", "cached"])


def constants_table(fit: Fit) -> pd.DataFrame:
    """The fitted constants as the committed file has them: gpu, constant, value."""
    rows = [(gpu, name, value) for gpu, found in fit.constants.items() for name, value in asdict(found).items()]
    return pd.DataFrame(rows, columns=["gpu", "constant", "value"])


def read_constants(table: pd.DataFrame) -> dict[str, Constants]:
    """Constants by GPU, back from :func:`constants_table`."""
    return {
        str(gpu): Constants(**dict(zip(rows.constant, rows.value.astype(float), strict=True)))
        for gpu, rows in table.groupby("gpu")
    }
