"""JSON objects out of a file that may hold several, one a line or glued together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hetgpu.errors import DataError
from hetgpu.paths import shown

#: JSON's own white space; Python's ``str.strip`` takes more.
WHITE = " \t\r\n"


def parse_objects(text: str, file: str) -> list[dict[str, Any]]:
    """Every JSON object of a text, in order; any white space or none between them.

    vLLM's ``--append-result`` and the files of 2025 hold several. NaN and Infinity, which Python's
    writers put into JSON, are read as null.

    Raises
    ------
    DataError : naming the object's number and offset (characters from the start) where the text is
        cut off, is no JSON, or holds something else than objects; also when there are none.
    """
    decoder = json.JSONDecoder(parse_constant=lambda _: None)
    found: list[dict[str, Any]] = []
    position = len(text) - len(text.lstrip(WHITE))
    while position < len(text):
        where = f"object {len(found) + 1}, offset {position}"
        try:
            value, end = decoder.raw_decode(text, position)
        except json.JSONDecodeError as error:
            problem = f"is cut off or no JSON ({error.msg} at offset {error.pos})"
            raise DataError(file, where, problem, "copy the file again, or delete from that offset on") from error
        if not isinstance(value, dict):
            raise DataError(file, where, f"is no JSON object but {value!r:.40}", "give a result file in JSON")
        found.append(value)
        position = end + len(text[end:]) - len(text[end:].lstrip(WHITE))
    if not found:
        raise DataError(file, "", "is empty", "give a result file in JSON")
    return found


def read_objects(path: Path) -> list[dict[str, Any]]:
    """Every JSON object of a file; see :func:`parse_objects`.

    Raises
    ------
    DataError : also when there is no such file or it is no UTF-8 text.
    """
    if not path.is_file():
        raise DataError(shown(path), "", "no such file", "check the path")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(shown(path), f"byte {error.start}", "is no UTF-8 text", "give a result file") from error
    return parse_objects(text, shown(path))
