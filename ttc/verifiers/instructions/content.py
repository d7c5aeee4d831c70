"""Content that a program can detect: placeholders in brackets and a postscript."""

from __future__ import annotations

import re

from ttc.verifiers.instructions.arguments import Arguments, Check

_MARKERS = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}
"""The two markers of IFEval, which may be written with spaces; any other one is literal."""


def number_placeholders(arguments: Arguments) -> Check:
    """At least so many [placeholders], each on one line."""
    wanted = arguments.count("num_placeholders")
    return lambda text: sum(map(_placeholders, text.split("\n"))) >= wanted


def _placeholders(line: str) -> int:
    count, at = 0, line.find("[")
    while at >= 0 and (end := line.find("]", at)) >= 0:
        count, at = count + 1, line.find("[", end)
    return count


def postscript(arguments: Arguments) -> Check:
    """The marker of a postscript occurs, whatever its case."""
    marker = arguments.text("postscript_marker").strip()
    pattern = re.compile(_MARKERS.get(marker, re.escape(marker.lower())))
    return lambda text: pattern.search(text.lower()) is not None
