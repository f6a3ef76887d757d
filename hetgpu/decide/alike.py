"""Whether two configurations answered alike: a tier that says less looks faster.

Runs that sent the same prompts are compared answer by answer: with greedy sampling the same model
gives the same answer, up to what precision and batching do to the arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

import pandas as pd

from hetgpu.evidence.traces import Trace

COLUMNS = ("run_a", "run_b", "requests", "equal_answers_share", "output_tokens_a", "output_tokens_b", "alike")
#: Fewer equal answers than this is no rounding: it is another model, another sampling, or a fault.
EQUAL_SHARE_FLOOR = 0.5


def _answers(trace: Trace) -> pd.DataFrame:
    done = trace.requests[trace.requests.error.isna()]
    return done.set_index("request")[["answer_sha256", "output_tokens"]]


def alike(traces: Iterable[Trace]) -> pd.DataFrame:
    """Every two runs of different configurations that sent the same prompts, and how alike their answers are.

    A configuration is a tier, model, precision and workload. ``alike`` is false where the answers' totals
    differ, or fewer than :data:`EQUAL_SHARE_FLOOR` of the answers are equal.

    Returns
    -------
    :data:`COLUMNS`, a row a pair; no row where no two runs can be compared.
    """
    groups: dict[str, list[Trace]] = {}
    for trace in traces:
        if digest := trace.run["workload"].get("prompts_sha256"):
            groups.setdefault(f"{digest} {trace.run['workload']['target_qps']}", []).append(trace)
    rows = []
    for group in groups.values():
        for a, b in combinations(group, 2):
            both = _answers(a).merge(_answers(b), left_index=True, right_index=True, how="inner", suffixes=("_a", "_b"))
            equal = float((both.answer_sha256_a == both.answer_sha256_b).mean())
            totals = int(both.output_tokens_a.sum()), int(both.output_tokens_b.sum())
            same = totals[0] == totals[1] and equal >= EQUAL_SHARE_FLOOR
            rows.append((a.run["run_id"], b.run["run_id"], len(both), equal, *totals, same))
    return pd.DataFrame(rows, columns=list(COLUMNS))
