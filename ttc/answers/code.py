"""Programs in Python as answers: where one stands in a text, and when two of them are the same.

A program's block is fenced by ``` or ~~~ and may lack its end, as in a text that was stopped there. Blocks tagged as
Python (`python`, pandoc's `{.python}`, knitr's `{python}`) come first, then those without a tag; blocks of another
language (a shell line, an output) are no answer. Without a block, what stands between [BEGIN] and [DONE], or [PYTHON]
and [/PYTHON], is the program, else the whole text, where it is Python. White space at the left of the first line is
kept: a continuation of a given function begins indented. Two programs are in one class when their syntax trees are the
same: comments, quotes and line breaks do not matter, names do. Cost: a parse of at most 64 KiB. Left out: programs
spread over several blocks, and languages other than Python.
"""

from __future__ import annotations

import ast
import re
import warnings
from dataclasses import replace

from ttc.answers.extract import Extraction, Hit, last_match
from ttc.answers.words import hashed

MAX_CODE = 65_536
"""Characters of a program beyond which it is reported as `too_long`."""
# Possessive throughout: no line is read twice.
_FENCE = re.compile(r"^[ \t]{0,3}+(?P<mark>`{3,}+|~{3,}+)[ \t]*+(?P<tag>[^\s`]*+)[^\n`]*+(?:\n|\Z)", re.MULTILINE)
_BRACED = re.compile(r"\{\.?(\w+)[},]?")
"""What pandoc and knitr open a block with: {.python}, {python, echo=FALSE}."""
_PYTHON = ("python", "python3", "py", "py3")


def code_key(final: str) -> str:
    """The voting class of a program: its syntax tree, or its text when it has none."""
    tree = _parsed(final)
    if tree is None:
        return hashed(final.strip())
    try:
        return hashed(ast.dump(tree))
    except RecursionError:
        return hashed(final.strip())


def syntax(source: str) -> ast.Module:
    """Return the syntax tree of a program, without a word on doubtful escapes in it.

    Raises:
        SyntaxError: it is not Python, or too deeply nested for the parser.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(source)
        except (ValueError, RecursionError, MemoryError) as exc:
            raise SyntaxError(str(exc) or "nested too deeply") from exc


def _language(tag: str) -> str:
    """The language that the tag of a block names."""
    braced = _BRACED.fullmatch(tag)
    return (braced[1] if braced else tag).lower()


def last_block(text: str, start: int) -> Hit:
    """The program of the last fenced block that is no mere trial of an earlier one; None without a block."""
    spans_of_tag: dict[str, list[tuple[int, int]]] = {}
    opened: re.Match[str] | None = None
    # In the answer part alone, so that a fence right after the thinking stands at the start of a line.
    body = text[start:]
    for fence in _FENCE.finditer(body):
        if opened is None:
            opened = fence
        elif not fence["tag"] and fence["mark"].startswith(opened["mark"]):
            spans_of_tag.setdefault(_language(opened["tag"]), []).append((opened.end(), fence.start()))
            opened = None
    if opened is not None:
        spans_of_tag.setdefault(_language(opened["tag"]), []).append((opened.end(), len(body)))
    spans = sorted(span for tag in _PYTHON for span in spans_of_tag.get(tag, ())) or spans_of_tag.get("", [])
    if not spans:
        return None
    first, end = _program([(span, body[slice(*span)]) for span in spans[-MAX_BLOCKS:]])
    hit = _code(text, start + first, start + end, "block")
    opening = body[body.rfind("\n", 0, max(first - 1, 0)) + 1 : first]
    margin = opening[: len(opening) - len(opening.lstrip(" \t"))]
    return replace(hit, final=_without_margin(hit.final, margin)) if hit.final and margin else hit


def _without_margin(code: str, margin: str) -> str:
    """A program without the white space before its fence, as in an item of a list, where all lines have it."""
    lines = code.split("\n")
    if not all(line.startswith(margin) for line in lines if line.strip()):
        return code
    return "\n".join(line.removeprefix(margin) for line in lines)


MAX_BLOCKS = 6
"""How many of the last blocks are looked at."""
_TRIES = re.compile(r"test|main\Z", re.IGNORECASE)


def _program(blocks: list[tuple[tuple[int, int], str]]) -> tuple[int, int]:
    """Where the program is: in the last block, unless that only tries what an earlier one defines."""
    span, last = blocks[-1]
    if len(blocks) == 1 or "input(" in last or "stdin" in last:
        return span
    trial = _parsed(last)
    if trial is None or any(not _TRIES.match(name) for name in _definitions(trial)):
        return span
    names = {node.id for node in ast.walk(trial) if isinstance(node, ast.Name)}
    for earlier, code in reversed(blocks[:-1]):
        tree = _parsed(code)
        if tree is not None and names.intersection(_definitions(tree)):
            return earlier
    return span


def _definitions(tree: ast.Module) -> set[str]:
    """The functions and classes that a program defines."""
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}


_BEGIN, _END = re.compile(r"^\[(?:PYTHON|BEGIN)\][ \t]*+$", re.MULTILINE), re.compile(r"\[(?:/PYTHON|DONE)\]|\Z")
"""The marks around a program that prompts for MBPP ask for: [BEGIN] and [DONE], [PYTHON] and [/PYTHON]."""


def marked_code(text: str, start: int) -> Hit:
    """The program between the last marks of a prompt for MBPP; None without them."""
    begin = last_match(_BEGIN, text, start)
    end = _END.search(text, begin.end()) if begin else None
    return _code(text, begin.end(), end.start(), "mark") if begin and end else None


def bare_code(text: str, start: int) -> Hit:
    """The text itself where it is nothing but a program."""
    body = text[start : start + MAX_CODE + 1]
    return _code(text, start, len(text), "bare") if body.strip() and _parsed(body) is not None else None


def _code(text: str, start: int, end: int, method: str) -> Extraction:
    """The program text[start:end] without empty lines around it."""
    inner = text[start:end]
    first = len(inner) - len(inner.lstrip())
    start += inner.rfind("\n", 0, first) + 1
    end = start + len(text[start:end].rstrip())
    if start >= end:
        return Extraction(None, (start, start), method, "empty")
    if end - start > MAX_CODE:
        return Extraction(None, (start, end), method, "too_long")
    return Extraction(text[start:end], (start, end), method)


def _parsed(code: str) -> ast.Module | None:
    """The syntax tree of a program, or of the body of a function; None when it is neither."""
    if len(code) > MAX_CODE:
        return None
    first = code.lstrip("\r\n")[:1]
    try:
        tree = syntax(f"if 1:\n{code}" if first in (" ", "\t") else code)
    except SyntaxError:
        return None
    words = tree.body and all(isinstance(node, ast.Expr) and isinstance(node.value, ast.Name) for node in tree.body)
    return None if words else tree
