"""Forms that a program can detect: bullets, highlights, sections, a title, JSON, one of three answers."""

from __future__ import annotations

import json
import re

from ttc.verifiers.instructions.arguments import Arguments, Check

_ANSWERS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
_FENCES = ("```json", "```Json", "```JSON", "```")
_SINGLE = re.compile(r"\*([^\n*]*)\*")
_DOUBLE = re.compile(r"\*\*([^\n*]*)\*\*")
_DASH_LINE = re.compile(r"^[^\S\n]*-", re.MULTILINE)


def number_bullet_lists(arguments: Arguments) -> Check:
    """Exactly so many lines that begin with `*` or `-`."""
    wanted = arguments.count("num_bullets")
    return lambda text: _star_lines(text) + sum(1 for _ in _DASH_LINE.finditer(text)) == wanted


def _star_lines(text: str) -> int:
    """Lines that begin with one star; a star alone on its line takes the next line with it, as in IFEval."""
    lines = text.split("\n")
    count, taken = 0, -1
    for i, line in enumerate(lines):
        bare = line.lstrip()
        if i == taken or not bare.startswith("*") or bare.startswith("**"):
            continue
        if bare != "*":
            count += 1
        elif i + 1 < len(lines):
            count, taken = count + 1, i + 1
    return count


def number_highlighted_sections(arguments: Arguments) -> Check:
    """At least so many `*highlights*` with something in them, on one line each; a double star counts like a single."""
    wanted = arguments.count("num_highlights")
    return lambda text: sum(_filled(pattern, text) for pattern in (_SINGLE, _DOUBLE)) >= wanted


def _filled(pattern: re.Pattern[str], text: str) -> int:
    return sum(1 for match in pattern.finditer(text) if match[1].strip())


def multiple_sections(arguments: Arguments) -> Check:
    """At least so many headings: the word and a number, `Section 2`."""
    heading = re.compile(rf"{re.escape(arguments.text('section_spliter').strip())}\s?\d+")
    wanted = arguments.count("num_sections")
    return lambda text: sum(1 for _ in heading.finditer(text)) >= wanted


def title(_arguments: Arguments) -> Check:
    """A line with a title in double angles that is not blank: <<Ode to Joy>>."""
    return lambda text: any(map(_has_title, text.split("\n")))


def _has_title(line: str) -> bool:
    start, end = line.find("<<"), line.rfind(">>")
    return start >= 0 and end >= start + 3 and bool(line[start:end].lstrip("<").rstrip(">").strip())


def json_format(_arguments: Arguments) -> Check:
    """The whole response is JSON, perhaps in a fence."""

    def check(text: str) -> bool:
        body = text.strip()
        for fence in _FENCES:
            body = body.removeprefix(fence)
        try:
            json.loads(body.removesuffix("```").strip())
        except (ValueError, RecursionError):
            return False
        return True

    return check


def constrained_response(_arguments: Arguments) -> Check:
    """One of the three sentences "My answer is yes / no / maybe." occurs."""
    return lambda text: any(answer in text for answer in _ANSWERS)
