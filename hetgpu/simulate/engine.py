"""One vLLM-V1 engine, simulated: continuous batching, chunked prefill, KV blocks, preemption, prefix cache.

What is left out: blocks shared by equal prompts that run at the same time (a prompt is found in the
cache once it has finished), and answers found there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from hetgpu.errors import DataError
from hetgpu.simulate import kernel
from hetgpu.simulate.steptime import StepCosts


@dataclass(frozen=True)
class EngineShape:
    """What limits the scheduler.

    Parameters
    ----------
    kv_tokens : capacity of the KV cache; whole blocks of it count.
    token_budget : tokens a step (``max_num_batched_tokens``). max_seqs : sequences at once (``max_num_seqs``).
    """

    kv_tokens: int
    token_budget: int = 2048
    max_seqs: int = 256
    prefix_cache: bool = True
    block_tokens: int = 16

    def __post_init__(self) -> None:
        """Refuse a scheduler that could not take a step."""
        if self.max_seqs > self.token_budget or self.max_seqs < 1:
            problem = f"{self.max_seqs} sequences with a budget of {self.token_budget} tokens a step"
            raise DataError(
                "engine", "max_seqs", problem, "a sequence that decodes takes a token: give a larger budget"
            )

    def array(self) -> np.ndarray:
        """The limits in the kernel's order."""
        blocks = self.kv_tokens // self.block_tokens
        return np.array(
            [blocks, self.block_tokens, self.token_budget, self.max_seqs, self.prefix_cache], dtype=np.int64
        )


@dataclass(frozen=True)
class Load:
    """Requests in order of arrival; equal ``prompt`` numbers are equal prompts. Arrays of shape ``(n,)``."""

    arrival_s: np.ndarray
    input_tokens: np.ndarray
    output_tokens: np.ndarray
    prompt: np.ndarray | None = None

    def check(self, shape: EngineShape) -> None:
        """Refuse what no engine of this shape could serve.

        Raises
        ------
        DataError : naming the request.
        """
        arrays = (self.arrival_s, self.input_tokens, self.output_tokens)
        if len({len(array) for array in arrays}) != 1 or not len(self.arrival_s):
            sizes = [len(array) for array in arrays]
            raise DataError("load", "", f"columns of lengths {sizes}", "give every request all three")
        if not np.isfinite(self.arrival_s).all() or (np.diff(self.arrival_s) < 0).any():
            raise DataError("load", "arrival_s", "arrivals fall back in time or are not finite", "sort them")
        if min(self.input_tokens.min(), self.output_tokens.min()) < 1:
            number = int(np.argmin(np.minimum(self.input_tokens, self.output_tokens)))
            raise DataError("load", f"request {number}", "has no tokens to read or to write", "give 1 or more")
        total = self.input_tokens + self.output_tokens
        fits = shape.kv_tokens // shape.block_tokens * shape.block_tokens
        if total.max() > fits:
            problem = f"needs {total.max()} tokens of KV, the engine has room for {fits}"
            raise DataError("load", f"request {int(total.argmax())}", problem, f"ask for at most {fits} in and out")


@dataclass(frozen=True)
class Result:
    """What the client would have seen, absolute seconds, shape ``(n,)``; and what the engine did."""

    load: Load
    first_token_s: np.ndarray
    last_token_s: np.ndarray
    steps: int
    preemptions: int
    hit_tokens: int
    peak_blocks: int

    def requests(self) -> pd.DataFrame:
        """A row a request, in the columns that measured runs have (no chunk times)."""
        return pd.DataFrame(
            {
                "scheduled_s": self.load.arrival_s,
                "sent_s": self.load.arrival_s,
                "ttft_ms": (self.first_token_s - self.load.arrival_s) * 1e3,
                "e2e_ms": (self.last_token_s - self.load.arrival_s) * 1e3,
                "input_tokens": self.load.input_tokens,
                "output_tokens": self.load.output_tokens,
            }
        )


class Engine:
    """A replica whose state lasts: requests are pushed in order of arrival, and time is advanced.

    Parameters
    ----------
    room : requests that can be pushed between two :meth:`restart` calls.
    prompts : how many different prompts there are; their numbers are below it.
    """

    def __init__(self, costs: StepCosts, shape: EngineShape, room: int, prompts: int) -> None:
        self.costs, self.shape = costs, shape
        self._cost, self._shape = costs.array(), shape.array()
        self._chunks = np.zeros(shape.max_seqs + 1, dtype=np.int64)
        self._state = _empty(self._shape, room, prompts)

    def push(self, arrival_s: float, input_tokens: int, output_tokens: int, prompt: int) -> int:
        """A request arrives; its place among the results."""
        s = self._state
        place = int(s.count[kernel.PUSHED])
        s.times[place] = arrival_s + self.costs.api_s, np.nan, np.nan
        s.requests[place] = _row(input_tokens, output_tokens, prompt)
        s.count[kernel.PUSHED] += 1
        return place

    def push_all(self, load: Load, prompt: np.ndarray) -> None:
        """Every request of a load at once."""
        s, n = self._state, len(load.arrival_s)
        s.times[:n, kernel.AVAIL] = load.arrival_s + self.costs.api_s
        s.requests[:n] = -1
        s.requests[:n, [kernel.PROMPT, kernel.NEED]] = load.input_tokens[:, None]
        s.requests[:n, [kernel.ANSWER, kernel.LEFT]] = load.output_tokens[:, None]
        s.requests[:n, kernel.KEY] = prompt
        s.requests[:n, kernel.COMPUTED] = 0
        s.count[kernel.PUSHED] = n

    def advance(self, until_s: float = np.inf) -> None:
        """Make every step that starts before ``until_s``; the clock may pass it by the step's end."""
        kernel.advance(self._state, self._shape, self._cost, until_s, self._chunks)

    def restart(self) -> None:
        """Time begins anew with no request; the prefix cache keeps what it holds.

        Raises
        ------
        DataError : when requests are still in flight.
        """
        s = self._state
        if s.count[kernel.DONE] < s.count[kernel.PUSHED]:
            raise DataError("engine", "restart", "requests are in flight", "advance to the end first")
        kept = {name: s.count[name] for name in (kernel.CACHED, kernel.LRU_HEAD, kernel.LRU_TAIL, kernel.LRU_FREE)}
        s.count[:] = 0
        s.count[[kernel.WAIT_HEAD, kernel.WAIT_TAIL, kernel.RUN_TAIL]] = -1
        for name, number in kept.items():
            s.count[name] = number
        s.clock[0] = 0.0
        s.phase[:] = 0

    def __getitem__(self, counter: int) -> int:
        """A counter of the kernel's (``kernel.WAITING``, ``kernel.RUNNING``, ``kernel.USED`` and so on)."""
        return int(self._state.count[counter])

    @property
    def clock_s(self) -> float:
        """When the last step ended."""
        return float(self._state.clock[0])

    def result(self, load: Load) -> Result:
        """What became of the requests pushed."""
        n, s = len(load.arrival_s), self._state
        counts = (self[name] for name in (kernel.STEPS, kernel.PREEMPTIONS, kernel.HITS, kernel.PEAK))
        return Result(load, s.times[:n, kernel.FIRST].copy(), s.times[:n, kernel.LAST].copy(), *counts)


def _empty(shape: np.ndarray, room: int, prompts: int) -> kernel.Arrays:
    def ids(n: int) -> np.ndarray:
        return np.full(n, -1, dtype=np.int32)

    blocks, seqs = int(shape[kernel.CAPACITY]), int(shape[kernel.MAX_SEQS])
    count = np.zeros(kernel.COUNTERS, dtype=np.int64)
    count[[kernel.WAIT_HEAD, kernel.WAIT_TAIL, kernel.RUN_TAIL, kernel.LRU_HEAD, kernel.LRU_TAIL]] = -1
    entries = np.full((blocks + 4, 4), -1, dtype=np.int32)
    entries[:, kernel.E_NEXT] = np.arange(1, blocks + 5)
    return kernel.Arrays(
        np.zeros(1), count, np.empty((room, 12), dtype=np.int32), np.full((room, 3), np.nan), ids(seqs + 1),
        ids(seqs + 1), np.zeros(int(shape[kernel.BLOCK]), dtype=np.int64), ids(prompts), entries,
    )  # fmt: skip


def _row(input_tokens: int, output_tokens: int, prompt: int) -> tuple[int, ...]:
    """A request's row as the kernel begins with it."""
    return input_tokens, output_tokens, prompt, input_tokens, 0, output_tokens, 0, 0, -1, -1, -1, -1


def simulate(costs: StepCosts, shape: EngineShape, load: Load) -> Result:
    """Serve a load on a fresh engine, to its last answer; the same bytes for the same input.

    Raises
    ------
    DataError : for a load that cannot be served.
    """
    return simulate_in_turn(costs, shape, [load])[0]


def simulate_in_turn(costs: StepCosts, shape: EngineShape, loads: list[Load]) -> list[Result]:
    """Serve loads one after another on one engine, whose prefix cache keeps what it holds.

    Raises
    ------
    DataError : for a load that cannot be served.
    """
    for load in loads:
        load.check(shape)
    given = [np.arange(len(load.arrival_s)) if load.prompt is None else load.prompt for load in loads]
    _, numbers = np.unique(np.concatenate(given), return_inverse=True)
    ends = np.cumsum([len(part) for part in given])
    engine = Engine(costs, shape, max(len(part) for part in given), int(numbers.max()) + 1)
    results = []
    for load, prompt in zip(loads, np.split(numbers, ends[:-1]), strict=True):
        engine.restart()
        engine.push_all(load, prompt)
        engine.advance()
        results.append(engine.result(load))
    return results
