"""Reading and writing tables so that nothing is guessed and nothing half-written is read.

Rows are read as text and typed by a pydantic model: a zone called ``NA`` stays a zone, a missing
field is named with its line, and an unknown column is an error and no silent loss.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError

from hetgpu.errors import DataError
from hetgpu.paths import shown

Row = TypeVar("Row", bound=BaseModel)

#: Significant digits kept in files. Enough for every use here, few enough to be the same on every CPU.
DIGITS = 10


def _columns(model: type[BaseModel]) -> tuple[set[str], set[str]]:
    """(all names a file may use, names it must have) of a row model."""
    allowed, required = set(), set()
    for name, field in model.model_fields.items():
        allowed |= {name} | ({field.alias} if field.alias else set())
        if field.is_required():
            required.add(name)
    return allowed, required


def _check_header(path: Path, header: list[str], model: type[BaseModel]) -> None:
    allowed, required = _columns(model)
    aliases = {f.alias: name for name, f in model.model_fields.items() if f.alias}
    found = {aliases.get(column, column) for column in header}
    if missing := sorted(required - found):
        raise DataError(shown(path), "line 1", f"column missing: {', '.join(missing)}", "add the column")
    if unknown := sorted(set(header) - allowed):
        raise DataError(
            shown(path),
            "line 1",
            f"unknown column: {', '.join(unknown)}",
            f"remove it or use one of {', '.join(sorted(allowed))}",
        )
    if len(set(header)) != len(header):
        raise DataError(shown(path), "line 1", "a column stands twice", "keep one of the two")


def problems(error: ValidationError) -> str:
    """A pydantic error in one line: each field, the value found, and what was expected."""
    parts = []
    for item in error.errors():
        field = ".".join(str(part) for part in item["loc"]) or "row"
        message = item["msg"].removeprefix("Value error, ")
        shows_value = item["loc"] and not isinstance(item["input"], dict)
        parts.append(f"{field}: {message}" + (f" (found {item['input']!r})" if shows_value else ""))
    return "; ".join(parts)


def parse_row(model: type[Row], values: Mapping[str, Any], file: Path | str, where: str) -> Row:
    """One typed row; empty text counts as missing.

    Raises
    ------
    DataError : naming file, row and fields, when a value has the wrong type or breaks a rule.
    """
    given = {key: value for key, value in values.items() if value not in ("", None)}
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise DataError(file, where, problems(error), "correct the row") from error


def _text(path: Path) -> str:
    """A file's text as it stands, line ends and all; a byte order mark goes."""
    if not path.is_file():
        raise DataError(shown(path), "", "no such file", "check the path")
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(shown(path), f"byte {error.start}", "is no UTF-8 text", "save it as UTF-8") from error


def read_csv(path: Path, model: type[Row]) -> list[Row]:
    """All rows of a CSV file, typed by ``model``; columns in any order.

    Raises
    ------
    DataError : for a missing file, no rows, a wrong header, a row with too many or too few
        fields, or a value that ``model`` refuses; it names the file, the line and the mend.
    """
    reader = csv.reader(io.StringIO(_text(path), newline=""))
    header = [name.strip() for name in next(reader, [])]
    _check_header(path, header, model)
    rows = []
    for fields in reader:
        if not fields:
            continue
        where = f"line {reader.line_num}"
        if len(fields) != len(header):
            problem = f"{len(header)} fields expected ({', '.join(header)}), {len(fields)} found: {fields}"
            raise DataError(shown(path), where, problem, "end each row with a line break")
        values = dict(zip(header, (field.strip() for field in fields), strict=True))
        rows.append(parse_row(model, values, shown(path), where))
    if not rows:
        raise DataError(shown(path), "", "holds no rows", "check that it is the file you meant")
    return rows


def read_yaml(path: Path) -> Any:
    """A YAML 1.2 file (as DVC reads it: ``1e-3`` is a number, ``no`` is text).

    Raises
    ------
    DataError : for a missing file or a syntax error, with its line.
    """
    text = _text(path)
    try:
        return YAML(typ="safe", pure=True).load(text)
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else "?"
        raise DataError(shown(path), f"line {line}", str(error.problem), "correct the YAML") from error


def read_yaml_rows(path: Path, model: type[Row], key: str, name: str) -> list[Row]:
    """The list under ``key`` of a YAML file, typed by ``model``; ``name`` is the field that names a row."""
    content = read_yaml(path)
    if not isinstance(content, Mapping) or not content.get(key):
        raise DataError(shown(path), "", f"holds no list '{key}'", f"put the rows under '{key}:'")
    rows = []
    for number, entry in enumerate(content[key], start=1):
        label = entry.get(name) if isinstance(entry, Mapping) else None
        where = f"entry {number}" + (f" ({label})" if label else "")
        if not isinstance(entry, Mapping):
            raise DataError(shown(path), where, f"is no mapping: {entry!r}", "write it as key: value pairs")
        rows.append(parse_row(model, entry, shown(path), where))
    return rows


def unique(rows: Iterable[Row], key: Callable[[Row], Any], file: Path | str) -> None:
    """Refuse two rows with one key.

    Raises
    ------
    DataError : naming the key that stands twice and both rows' numbers.
    """
    seen: dict[Any, int] = {}
    for number, row in enumerate(rows, start=1):
        value = key(row)
        if value in seen:
            problem = f"{value} stands in rows {seen[value]} and {number}"
            raise DataError(file, f"row {number}", problem, "keep one of the two")
        seen[value] = number


def _rounded(value: Any) -> Any:
    """``value`` with floats at :data:`DIGITS` significant digits, NaN as None, for strict JSON."""
    if isinstance(value, Mapping):
        return {str(key): _rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float):
        if math.isnan(value):
            return None
        return float(f"{value:.{DIGITS}g}")
    return value


def write_text(text: str, path: Path) -> Path:
    """Write beside and rename, so that a reader sees the old file or the new one, never half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
        Path(beside).chmod(0o644)
        Path(beside).replace(path)
    except BaseException:
        Path(beside).unlink(missing_ok=True)
        raise
    return path


def write_json(content: Any, path: Path) -> Path:
    """Strict JSON (no NaN), keys in the order given, the same bytes for the same content."""
    return write_text(json.dumps(_rounded(content), indent=1, allow_nan=False, ensure_ascii=False) + "\n", path)


def write_csv(frame: pd.DataFrame, path: Path) -> Path:
    """A table as CSV with :data:`DIGITS` significant digits and an empty field for a missing value."""
    if frame.empty:
        raise DataError(shown(path), "", "would be written with no rows", "check the stage that feeds it")
    return write_text(frame.to_csv(index=False, float_format=f"%.{DIGITS}g", lineterminator="\n"), path)


def read_table(path: Path) -> pd.DataFrame:
    """A CSV that a stage of ours wrote, as a DataFrame; only an empty field is missing, ``NA`` is text.

    Raises
    ------
    DataError : when the file is not there or holds no rows.
    """
    if not path.is_file():
        raise DataError(shown(path), "", "no such file", "run `make repro` (or `dvc repro`) first")
    frame = pd.read_csv(path, keep_default_na=False, na_values=[""])
    if frame.empty:
        raise DataError(shown(path), "", "holds no rows", "run `make repro` again")
    return frame
