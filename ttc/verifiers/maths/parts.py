r"""Answers to several parts: (a) 5, (b) 12 as a list of values, and several boxes or alternatives as one answer.

A label is a letter, a Roman numeral or a digit, in brackets or before one; labels count only in their order from the
first one on. Left out: parts inside parts.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import zip_longest

from ttc.answers.extract import LISTED, Extraction, answer_start, boxes
from ttc.answers.nodes import duration, unnamed
from ttc.answers.plain import plain
from ttc.answers.shapes import shape_of

_PART = re.compile(
    r"(?<![\w)}])(?:\\(?:text|textbf|mathrm|mathbf)\s?\{(?:\s*and\b)?)?[ *]*"
    r"(?:\((?P<label>[a-h]|i{1,3}|iv|v|[1-8])|(?<![(,\w])(?P<bare>[a-h]|i{1,3}|iv|v))\)[ *:]*\}?:?"
)
"""The label of a part: `(a)`, `b)`, `\\textbf{(ii)}`."""
_SERIES = (tuple("abcdefgh"), ("i", "ii", "iii", "iv", "v"), tuple("12345678"))
_AROUND_PART = (
    r"(?:[\s,;:*]|\\(?:q?quad|displaystyle)(?![A-Za-z])|\\\\|\\[,;:! ()\[\]]"
    r"|\\text\s?\{\s*(?:and|[,;])?\s*\}|\band\b)"
)
_AT_ENDS = re.compile(rf"\A{_AROUND_PART}++|{_AROUND_PART}++\Z")
MAX_LABELLED = 1000
"""Characters of a text that is read as several parts."""


def labelled(text: str) -> tuple[str, ...]:
    """The values of (a) 5, (b) 12, in the order of their labels; nothing where a text is anything else."""
    text = text.strip()
    if text.startswith("\\(") and text.endswith("\\)"):
        text = text[2:-2]
    marks = list(_PART.finditer(text)) if len(text) <= MAX_LABELLED else []
    if len(marks) < 2 or _AT_ENDS.sub("", text[: marks[0].start()]).strip("${") or not _in_series(marks):
        return ()
    values = [_AT_ENDS.sub("", section) for section in _between(text, marks)]
    return tuple(map(_balanced, values)) if all(values) else ()


def _balanced(value: str) -> str:
    """A part without the end of a formula or of a brace that began before it."""
    value = value.strip("$ ") if value.count("$") % 2 else value
    return value.removesuffix("}") if value.count("}") > value.count("{") else value


def _in_series(marks: list[re.Match[str]]) -> bool:
    labels = tuple(mark["label"] or mark["bare"] for mark in marks)
    return any(labels == series[: len(labels)] for series in _SERIES)


def _between(text: str, marks: list[re.Match[str]]) -> list[str]:
    """What stands behind each mark, up to the next one."""
    return [text[mark.end() : after.start() if after else None] for mark, after in zip_longest(marks, marks[1:])]


_PART_OF_TEXT = re.compile(rf"^[ \t#*>|-]*+(?:[Pp]art\s)?{_PART.pattern}", re.MULTILINE)
"""A label that begins a line, or a row of a table."""


def answers_of_parts(text: str, final: str, number: int, extract: Callable[[str], Extraction]) -> tuple[str, ...]:
    """The answers to so many parts: in one box, in a part of the text each, in a box each; nothing where fewer are.

    `final` is the answer of the whole text, and `extract` finds that of a part of it.
    """
    if len(parts := labelled(final)) == number:
        return parts
    start = answer_start(text) or 0
    marks = list(_PART_OF_TEXT.finditer(text, start))[-number:]
    if len(marks) == number and _in_series(marks):
        return tuple(extract(section.strip("| \n")).final or "" for section in _between(text, marks))
    if not final and len(parts := labelled(text[start:])) == number:
        return parts
    boxed = [text[box.start : box.end] for box in boxes(text, start)]
    values = boxed if len(boxed) == number else LISTED.split(final)
    return tuple(values) if len(values) == number else ()


# -- several values as one answer --------------------------------------------------------------------------------------
def whole_of(gold: str, parts: tuple[str, ...], in_order: bool) -> str | None:
    """Parts as one answer of the gold's kind: a set, a tuple where they are `in_order`, a time; None where none is.

    Raises TooLarge.
    """
    contents = ", ".join(parts)
    node, is_time = shape_of(plain(gold)), _is_time(contents)
    if node is None:
        return None
    node = unnamed(node)
    if node.op in ("quantity", "duration"):
        return contents if is_time else None
    if len(node.args) != len(parts):
        return None
    return contents if node.op == "set" else f"({contents})" if node.op == "tuple" and in_order else None


def _is_time(text: str) -> bool:
    """Whether a list is one time in several units."""
    node = shape_of(plain(text))
    return node is not None and node.op == "set" and duration(node.args) is not None
