"""The README's findings: written from ``paper/values.json`` between two marks, or checked against it."""

from __future__ import annotations

import json
import sys
import textwrap

from hetgpu.errors import DataError
from hetgpu.evidence.files import write_text
from hetgpu.paths import inside

BEGIN, END = "<!-- findings: written by `hetgpu readme` -->", "<!-- end of findings -->"

#: Which findings the README prints, by name in ``values.json``: five, most useful first.
SHOWN = ("finding.1", "finding.3", "finding.4", "finding.5", "finding.6")


def findings_block() -> str:
    """The block between the marks, as Markdown."""
    values = json.loads(inside("paper", "values.json").read_text(encoding="utf-8"))
    wrapped = [textwrap.fill(values[name]["text"], 108, initial_indent="- ", subsequent_indent="  ") for name in SHOWN]
    return "\n".join([BEGIN, *wrapped, END])


def main(arguments: list[str]) -> int:
    """Write the block, or with ``--check`` say whether it stands there already (1 where not).

    Raises
    ------
    DataError : when the README lost its marks.
    """
    path = inside("README.md")
    text = path.read_text(encoding="utf-8")
    if BEGIN not in text or END not in text:
        raise DataError("README.md", "", "the marks of the findings are gone", f"put back {BEGIN} and {END}")
    before, rest = text.split(BEGIN, 1)
    new = before + findings_block() + rest.split(END, 1)[1]
    if "--check" in arguments:
        if new != text:
            print("README.md: its findings are not those of paper/values.json; run `hetgpu readme`", file=sys.stderr)
        return int(new != text)
    write_text(new, path)
    return 0
