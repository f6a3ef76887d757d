"""Finds result numbers typed by hand in the report's source: every one must come from ``values.json``.

What may stand there in digits: years, references to tables, figures and rows, names of hardware,
models and versions, and what the paper itself says, marked ``#quoted[..]``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

#: Digits that are names and no results.
NAMES = re.compile(
    r"""\b(?:19|20)\d\d\b                                         # years
      | \b10\.\d{4,}/[\d.]+                                       # a doi
      | \b(?:Tables?|Figures?|Sections?|[Rr]ows?)[ ~]\d+(?:(?:,[ ]|[ ]and[ ]|[ ]to[ ]|-)\d+)*
      | \b(?:RTX[ ])?[345]090s?\b | \bRTX[ ]PRO[ ]6000\b | \b[HA]\d{3}s?\b | \bL40S\b    # cards
      | \b(?:Qwen|Llama|phi|gemma|QwQ)[\w.-]*\d[\w.]*B?\b | \b\d+(?:\.\d+)?B\b
      | \bvLLM[ ]\d+(?:\.\d+)+\b | \bApache-2\.0\b | \bEU27\b | \bCO2\b | \bP\d{2}\b
      | (?<![\d.])[1248]x(?=[ ](?:RTX|H100|A100|4090))             # counts of cards
    """,
    re.X,
)
NUMBER = re.compile(r"(?<![\w.])[~<>]?\d[\d,. ]*\d*\s?%?")
DIRECTIVE = re.compile(r"#(?:import|let|set|show)\b[^\n]*|//[^\n]*|/\*.*?\*/|@[\w-]+|<[\w-]+>", re.S)
CALL = re.compile(r"#[A-Za-z][\w.-]*")


class Typed(NamedTuple):
    """A number found in prose: line, what stands there, and the line's text."""

    line: int
    number: str
    text: str


def prose_of(source: str) -> str:
    """A Typst source with everything but prose blanked, each line in its place.

    Prose is markup, content in brackets wherever it stands (captions), and strings with a space
    in them (headings of tables). Code, its numbers and its lengths are not.
    """
    kept = [character if character == "\n" else " " for character in source]
    # What we are inside of: "[" is markup, "(" is code, "q" is a quotation of the paper's.
    inside, place = ["["], 0
    while place < len(source):
        character, in_markup = source[place], inside[-1] == "["
        if in_markup and (skipped := DIRECTIVE.match(source, place)):
            place = skipped.end()
        elif in_markup and (call := CALL.match(source, place)):
            place = call.end()
            if place < len(source) and source[place] in "([":
                inside.append("q" if call[0] == "#quoted" else source[place])
                place += 1
        elif not in_markup and character == '"':
            end = source.index('"', place + 1)
            if " " in source[place:end]:
                kept[place : end + 1] = source[place : end + 1]
            place = end + 1
        elif not in_markup and character in "([":
            inside.append(character if inside[-1] != "q" else "q")
            place += 1
        elif character in ")]" and len(inside) > 1 and (character == "]" or not in_markup):
            inside.pop()
            # A call may go on after its arguments: #f(..)[..].
            if source[place + 1 : place + 2] == "[" and character == ")" and inside[-1] == "[":
                inside.append("[")
                place += 1
            place += 1
        else:
            if in_markup:
                kept[place] = character
            place += 1
    return "".join(kept)


def typed_numbers(source: str) -> list[Typed]:
    """Numbers typed in the prose of a Typst source, captions and headings of tables included."""
    prose = NAMES.sub(lambda name: " " * len(name[0]), prose_of(source))
    lines = source.splitlines()
    return [
        Typed(number, match[0].strip(), lines[number - 1].strip())
        for number, line in enumerate(prose.splitlines(), start=1)
        for match in NUMBER.finditer(line)
    ]


def check_report(path: Path) -> list[str]:
    """One message a typed number in a file; empty where all is well."""
    return [f"line {t.line}: {t.number!r} is typed: {t.text}" for t in typed_numbers(path.read_text(encoding="utf-8"))]
