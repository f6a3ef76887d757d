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
    """

    arrival_s: np.ndarray
    input_tokens: np.ndarray
    output_tokens: np.ndarray
    prompt: np.ndarray
    source: str

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
        rows = zip(self.arrival_s, self.input_tokens, self.output_tokens, self.prompt, strict=True)
        return "".join(json.dumps(self._line(*row)) + "\n" for row in rows)

    @staticmethod
    def _line(arrival: float, tokens_in: int, tokens_out: int, prompt: int) -> dict[str, object]:
        ids = range(-(-int(tokens_in) // TOKENS_PER_ID))
        return {
            "timestamp": round(float(arrival), 6),
            "input_length": int(tokens_in),
            "output_length": int(tokens_out),
            "hash_ids": [int(prompt) * IDS_PER_PROMPT + number for number in ids],
        }

    @property
    def sha256(self) -> str:
        """Hash of the schedule's bytes."""
        return hashlib.sha256(self.lines().encode()).hexdigest()

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


def length_model(n: int, seed: int, scale_in: float = 1.0, scale_out: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Input and output lengths in tokens, ``n`` of each, drawn jointly from ``data/catalog/lengths.csv``.

    ``seed`` 0 gives the file's first ``n`` pairs in its order; any other draws with replacement.
    """
    table = read_table(inside("data", "catalog", "lengths.csv"))
    in_order = seed == 0 and n <= len(table)
    rows = np.arange(n) if in_order else np.random.default_rng(seed).integers(0, len(table), n)
    picked = table.iloc[rows]
    tokens_in = np.maximum(1, np.rint(picked.input_tokens.to_numpy() * scale_in)).astype(int)
    tokens_out = np.maximum(1, np.rint(picked.output_tokens.to_numpy() * scale_out)).astype(int)
    return tokens_in, tokens_out


def paper_schedule(qps: float, n: int = 200, scale_in: float = 1.0, scale_out: float = 1.0) -> Schedule:
    """The authors' protocol: their very arrivals (seed 42), and the same prompts at every rate."""
    tokens_in, tokens_out = length_model(n, seed=0, scale_in=scale_in, scale_out=scale_out)
    return Schedule(metrics.arrivals_s(qps, n), tokens_in, tokens_out, np.arange(n), "the authors' seeded arrivals")


def poisson_schedule(qps: float, n: int, seed: int, scale_in: float = 1.0, scale_out: float = 1.0) -> Schedule:
    """Poisson arrivals and prompts that no other seed shares; not rescaled to end at ``n / qps``."""
    gaps = np.random.default_rng(seed).exponential(1.0 / qps, n)
    tokens_in, tokens_out = length_model(n, seed + 1, scale_in, scale_out)
    prompts = (seed + 1) * 10_000 + np.arange(n)
    return Schedule(
        np.concatenate([[0.0], np.cumsum(gaps)[:-1]]), tokens_in, tokens_out, prompts, f"Poisson, seed {seed}"
    )


def trace_schedule(path: Path, qps: float, n: int) -> Schedule:
    """The first ``n`` requests of a real trace in the Azure form, its time scaled to a mean rate.

    Raises
    ------
    DataError : when the file lacks TIMESTAMP, ContextTokens or GeneratedTokens.
    """
    frame = read_table(path).head(n)
    if missing := sorted({"TIMESTAMP", "ContextTokens", "GeneratedTokens"} - set(frame.columns)):
        raise DataError(shown(path), "line 1", f"column missing: {', '.join(missing)}", "give the Azure form")
    seconds = pd.to_datetime(frame.TIMESTAMP).astype("int64").to_numpy() / 1e9
    seconds = seconds - seconds[0]
    scaled = seconds * (len(frame) - 1) / qps / seconds[-1]
    lengths = [np.maximum(1, frame[name].to_numpy(dtype=int)) for name in ("ContextTokens", "GeneratedTokens")]
    return Schedule(scaled, lengths[0], lengths[1], np.arange(len(frame)), f"{path.name} scaled to {qps:g} requests/s")
