"""Loading the dictionary of other tools' names, and reading a file's values by it."""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from hetgpu.errors import DataError, DataWarning
from hetgpu.evidence.files import parse_row, read_yaml
from hetgpu.evidence.records import LATENCIES, CountedBy
from hetgpu.paths import shown

PATH = Path(__file__).with_name("dictionary.yaml")
#: Columns whose values are text, or may be (vLLM writes "inf" for a rate); all others are numbers.
TEXT = {"recorded_at", "model", "gpu", "gpu_count", "target_qps"}
LATENCY = re.compile(rf"({'|'.join(LATENCIES)})_\w+_ms")


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Name(_Part):
    """One name of a tool: its path in the file, our column, and ``value x factor = ours``."""

    name: str
    column: str
    factor: float = 1
    unit: str | None = None
    required: bool = False
    formula: str | None = None


class Family(_Part):
    """Names that differ in the statistic alone."""

    name: str
    column: str
    factor: float = 1
    unit: str | None = None
    required: list[str] = []
    formula: str | None = None


class LeftOut(_Part):
    """A pattern of names that are read by nobody, and why."""

    name: str
    why: str


class Counter(_Part):
    """Who counts the tokens, and how."""

    counted_by: CountedBy
    how: str


class Tokens(_Part):
    """Who counts a tool's tokens in and out, where its file does not say otherwise."""

    input: Counter
    output: Counter


class Tool(_Part):
    """One tool's part of the dictionary."""

    title: str
    versions: list[str]
    engine: str
    recognised_by: list[str]
    tokens: Tokens
    statistics: dict[str, str]
    names: list[Name]
    families: list[Family]
    per_request: list[Name]
    per_request_left_out: list[LeftOut] = []
    left_out: list[LeftOut]

    def all_names(self) -> list[Name]:
        """The tool's names, families spelled out, in the order of the dictionary."""
        spelled = list(self.names)
        for family in self.families:
            for ours, theirs in self.statistics.items():
                spelled.append(
                    Name(
                        name=family.name.format(stat=theirs),
                        column=family.column.format(stat=ours),
                        factor=family.factor,
                        unit=family.unit,
                        required=ours in family.required,
                        formula=family.formula,
                    )
                )
        return spelled

    def per_request_name(self, column: str) -> Name:
        """The tool's name for a per-request quantity of ours."""
        return next(entry for entry in self.per_request if entry.column == column)


@functools.cache
def load_dictionary() -> dict[str, Tool]:
    """All tools by key (``vllm``, ``guidellm``, ``aiperf``, ``inference_perf``).

    Raises
    ------
    DataError : naming the tool and the field, where the dictionary itself is malformed.
    """
    return {key: parse_row(Tool, value, shown(PATH), key) for key, value in read_yaml(PATH)["tools"].items()}


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Leaves by path: ``{"a": {"b": 1}}`` gives ``{"a.b": 1}``.

    Lists of objects are entered by number (``a.0.b``); other lists, and what is empty, are leaves.
    """
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        items = enumerate(value)
    leaves: dict[str, Any] = {}
    for key, item in items:
        leaves |= flatten(item, f"{prefix}.{key}" if prefix else str(key))
    return leaves or {prefix: value}


def unknown_names(tool: Tool, flat: Mapping[str, Any], per_request: bool = False) -> list[str]:
    """Names of a file (or of one request) that the dictionary neither reads nor knowingly leaves out."""
    read = {entry.name for entry in tool.per_request}
    patterns = tool.per_request_left_out if per_request else tool.left_out
    if not per_request:
        read |= {entry.name for entry in tool.all_names()}
    # A null where an object was expected (no successes: no latencies) is nothing new.
    empty = {name for name in flat if flat[name] is None and any(r.startswith(f"{name}.") for r in read)}
    rest = set(flat) - read - empty
    return sorted(name for name in rest if not any(fnmatchcase(name, entry.name) for entry in patterns))


def warn_of_unknown(names: Iterable[str], file: str, where: str) -> None:
    """Warn, in one line, of names that the dictionary does not know."""
    if listed := ", ".join(sorted(names)):
        warnings.warn(f"{file}: {where}: unknown keys, not read: {listed}", DataWarning, stacklevel=3)


def _converted(entry: Name, flat: Mapping[str, Any], file: str, where: str) -> Any:
    value = flat[entry.name]
    stated = flat.get(f"{entry.name.rpartition('.')[0]}.unit")
    if entry.unit and stated and stated != entry.unit:
        problem = f"{entry.name} is in {stated!r}, {entry.unit!r} expected"
        raise DataError(file, where, problem, f"correct the unit in {PATH.name} if the tool changed it")
    if entry.column in TEXT:
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise DataError(file, where, f"{entry.name} is no number: {value!r:.40}", "correct the file")
    return value if entry.factor == 1 else value * entry.factor


def apply(tool: Tool, flat: Mapping[str, Any], file: str, where: str) -> dict[str, Any]:
    """Our columns from a file's leaves; a column that the file does not give is absent.

    Where nothing completed, latencies are absent too: what tools write there (vLLM: 0.0) is none.

    Raises
    ------
    DataError : naming a required name that is missing, a wrong unit, or what is no number.

    Warns
    -----
    DataWarning : listing the names that the dictionary does not know.
    """
    warn_of_unknown(unknown_names(tool, flat), file, where)
    values: dict[str, Any] = {}
    wanted: dict[str, list[str]] = {}
    for entry in tool.all_names():
        if entry.required:
            wanted.setdefault(entry.column, []).append(entry.name)
        if flat.get(entry.name) is not None and entry.column not in values:
            values[entry.column] = _converted(entry, flat, file, where)
    if values.get("completed") == 0:
        values = {column: value for column, value in values.items() if not LATENCY.fullmatch(column)}
        wanted = {column: names for column, names in wanted.items() if not LATENCY.fullmatch(column)}
    for column, names in wanted.items():
        if column not in values:
            problem = f"{' or '.join(names)} is missing (our {column})"
            raise DataError(file, where, problem, f"give a whole file of {tool.title}")
    return values
