"""When requests arrive and how long they are: a data file, seeded and hashed, the same for every tier.

vLLM's client replays it as its ``timed_trace`` data set. That draws a prompt's tokens from the ids in
``hash_ids``, so prompts with the same ids are the same prompts.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from hetgpu.errors import DataError
from hetgpu.evidence import metrics
from hetgpu.evidence.files import read_table, write_text
from hetgpu.paths import inside, shown

#: Tokens of a prompt that one id of ``hash_ids`` stands for (vLLM's default).
TOKENS_PER_ID = 16
#: Ids of two prompts never meet: each has this many of its own.
IDS_PER_PROMPT = 100_000


@dataclass(frozen=True)
class Schedule:
    """Requests in the order they arrive.

    Parameters
    ----------
    arrival_s : seconds after the first, never falling; shape ``(n,)``.
    input_tokens, output_tokens : lengths, at least 1; shape ``(n,)``.
    prompt : which prompt each request sends; equal numbers are equal prompts; shape ``(n,)``.
    source : where arrivals and lengths come from, in words.
    token_ids : the prompts' very tokens, where they are a data set's; else they are drawn from ``prompt``.
    """

    arrival_s: np.ndarray
    input_tokens: np.ndarray
    output_tokens: np.ndarray
    prompt: np.ndarray
    source: str
    token_ids: tuple[tuple[int, ...], ...] | None = None

    def __post_init__(self) -> None:
        """Refuse what no client could send."""
        sizes = {len(self.arrival_s), len(self.input_tokens), len(self.output_tokens), len(self.prompt)}
        if len(sizes) != 1 or 0 in sizes:
            raise DataError("schedule", "", f"columns of lengths {sorted(sizes)}", "give every request all four")
        if np.any(np.diff(self.arrival_s) < 0) or self.arrival_s[0] < 0:
            raise DataError("schedule", "arrival_s", "arrivals fall back in time", "sort the requests by arrival")
        if self.input_tokens.min() < 1 or self.output_tokens.min() < 1:
            raise DataError("schedule", "", "a request of no tokens", "give lengths of 1 or more")

    def __len__(self) -> int:
        """How many requests there are."""
        return len(self.arrival_s)

    def lines(self) -> str:
        """The schedule as vLLM's ``timed_trace`` reads it, a JSON object a line."""
        return "".join(json.dumps(self._line(row)) + "\n" for row in range(len(self)))

    def _line(self, row: int) -> dict[str, object]:
        return {
            "timestamp": round(float(self.arrival_s[row]), 6),
            "input_length": int(self.input_tokens[row]),
            "output_length": int(self.output_tokens[row]),
            "hash_ids": self._ids(row),
        }

    def _ids(self, row: int) -> list[int]:
        if self.token_ids is not None:
            return list(self.token_ids[row])
        first = int(self.prompt[row]) * IDS_PER_PROMPT
        return list(range(first, first + -(-int(self.input_tokens[row]) // TOKENS_PER_ID)))

    @property
    def sha256(self) -> str:
        """Hash of the schedule's bytes."""
        return hashlib.sha256(self.lines().encode()).hexdigest()

    @property
    def prompts_sha256(self) -> str:
        """Hash of what is asked, without when: runs with the same one should be answered alike."""
        lines = [[*self._ids(row), int(self.output_tokens[row])] for row in range(len(self))]
        return hashlib.sha256(json.dumps(lines).encode()).hexdigest()

    def write(self, path: Path) -> Path:
        """Write the file that the client replays."""
        return write_text(self.lines(), path)

    def statistics(self) -> dict[str, float]:
        """What the arrivals are like: achieved rate, CV of the gaps (1 for Poisson), index of dispersion.

        Dispersion is variance over mean of the counts in ten equal windows.
        """
        gaps = np.diff(self.arrival_s)
        counts, _ = np.histogram(self.arrival_s, bins=10)
        return {
            "requests": float(len(self)),
            "achieved_req_per_s": float(metrics.ratio(len(self) - 1, self.arrival_s[-1])),
            "gap_cv": float(metrics.ratio(gaps.std(), gaps.mean())) if len(gaps) else float("nan"),
            "dispersion": float(metrics.ratio(counts.var(), counts.mean())),
            "input_tokens": float(self.input_tokens.sum()),
            "output_tokens": float(self.output_tokens.sum()),
        }


@dataclass(frozen=True)
class Prompts:
    """What is asked, in the order it is sent: lengths, and tokens where they come from a data set.

    Parameters
    ----------
    input_tokens, output_tokens : shape ``(n,)``.
    token_ids : as in :class:`Schedule`.
    source : in words.
    """

    input_tokens: np.ndarray
    output_tokens: np.ndarray
    source: str
    token_ids: tuple[tuple[int, ...], ...] | None = None

    def take(self, rows: np.ndarray) -> Prompts:
        """Some of them, in the order of ``rows``."""
        ids = None if self.token_ids is None else tuple(self.token_ids[row] for row in rows)
        return Prompts(self.input_tokens[rows], self.output_tokens[rows], self.source, ids)


def length_model(scale_in: float = 1.0, scale_out: float = 1.0) -> Prompts:
    """The pairs of lengths in ``data/catalog/lengths.csv``, scaled; no tokens of their own."""
    table = read_table(inside("data", "catalog", "lengths.csv"))
    tokens_in = np.maximum(1, np.rint(table.input_tokens.to_numpy() * scale_in)).astype(int)
    tokens_out = np.maximum(1, np.rint(table.output_tokens.to_numpy() * scale_out)).astype(int)
    return Prompts(tokens_in, tokens_out, "the length model")


def paper_schedule(qps: float, n: int = 200, prompts: Prompts | None = None) -> Schedule:
    """The authors' protocol: their very arrivals (seed 42), and the same first ``n`` prompts at every rate.

    Raises
    ------
    DataError : when there are fewer than ``n`` prompts.
    """
    prompts = prompts or length_model()
    if n > len(prompts.input_tokens):
        problem = f"{n} are wanted, {prompts.source} has {len(prompts.input_tokens)}"
        raise DataError("schedule", "prompts", problem, "ask for fewer")
    first = prompts.take(np.arange(n))
    source = f"the authors' seeded arrivals; {prompts.source}"
    arrivals = metrics.arrivals_s(qps, n)
    return Schedule(arrivals, first.input_tokens, first.output_tokens, np.arange(n), source, first.token_ids)


def poisson_schedule(qps: float, n: int, seed: int, prompts: Prompts | None = None) -> Schedule:
    """Poisson arrivals, and lengths drawn with replacement for prompts whose tokens no other request shares.

    The arrivals are not rescaled to end at ``n / qps``. A data set's own prompts are sent once each, in
    an order of the seed's.
    """
    prompts = prompts or length_model()
    gaps = np.random.default_rng(seed).exponential(1.0 / qps, n)
    draw, there = np.random.default_rng(seed + 1), len(prompts.input_tokens)
    drawn = prompts.take(draw.integers(0, there, n) if prompts.token_ids is None else draw.permutation(there)[:n])
    arrivals = np.concatenate([[0.0], np.cumsum(gaps)[:-1]])
    numbers = (seed + 1) * 10_000 + np.arange(n)
    source = f"Poisson, seed {seed}; {prompts.source}"
    return Schedule(arrivals, drawn.input_tokens, drawn.output_tokens, numbers, source, drawn.token_ids)


def trace_schedule(path: Path, qps: float, n: int, skip: int = 0) -> Schedule:
    """``n`` requests of a real trace in the Azure form after ``skip``, its time scaled to a mean rate.

    Raises
    ------
    DataError : when the file lacks TIMESTAMP, ContextTokens or GeneratedTokens.
    """
    frame = read_table(path).iloc[skip : skip + n]
    if missing := sorted({"TIMESTAMP", "ContextTokens", "GeneratedTokens"} - set(frame.columns)):
        raise DataError(shown(path), "line 1", f"column missing: {', '.join(missing)}", "give the Azure form")
    if len(frame) < 2:
        raise DataError(shown(path), "", f"holds {len(frame)} requests after the first {skip}", "ask for fewer")
    seconds = pd.to_datetime(frame.TIMESTAMP).astype("int64").to_numpy() / 1e9
    seconds = seconds - seconds[0]
    scaled = seconds * (len(frame) - 1) / qps / seconds[-1]
    lengths = [np.maximum(1, frame[name].to_numpy(dtype=int)) for name in ("ContextTokens", "GeneratedTokens")]
    return Schedule(
        scaled, lengths[0], lengths[1], skip + np.arange(len(frame)), f"{path.name} scaled to {qps:g} requests/s"
    )
