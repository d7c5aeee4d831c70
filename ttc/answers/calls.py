"""Answers that are calls of functions, or JSON, in one spelling, by which draws vote."""

from __future__ import annotations

import json
import re

__all__ = ["same_form"]

_MARKS = re.compile(r"</?tool_call>|\[TOOL_CALLS\]")


def same_form(text: str) -> str | None:
    """The JSON values of `text` with their keys in order, or its words; None where there are none.

    Order among several calls does not matter.
    """
    words = text.strip()
    values = _values(_MARKS.sub(" ", words))
    if not values:
        return words or None
    return "; ".join(sorted(json.dumps(value, sort_keys=True, separators=(",", ":")) for value in values))


def _values(text: str) -> list[object]:
    """The JSON objects and lists that `text` consists of; empty where it holds anything else."""
    values: list[object] = []
    rest = text.strip(" \n\t;")
    while rest:
        if rest[0] not in "{[":
            return []
        try:
            value, end = json.JSONDecoder().raw_decode(rest)
        except (ValueError, RecursionError):
            return []
        values += value if isinstance(value, list) else [value]
        rest = rest[end:].strip(" \n\t;")
    return values
