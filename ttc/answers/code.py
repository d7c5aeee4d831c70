"""Programs as answers: the last Python block of the answer part, or the part itself when it is nothing but Python.

A block is fenced by ``` or ~~~ and may lack its end, as a text does that was stopped there. Blocks tagged as Python
come first, then those without a tag; blocks of another language (a shell line, an output) are no answer. White space at
the left of the first line is kept: a continuation of a given function begins indented. Two programs are in one voting
class when their syntax trees are the same: comments, quotes and line breaks do not matter, names do.
Cost: a parse of at most 64 KiB. Left out: programs spread over several blocks, and languages other than Python.
"""

from __future__ import annotations

import ast
import re
import warnings

from ttc.answers.canonical import hashed
from ttc.answers.extract import Extraction, Hit, cascade

MAX_CODE = 65_536
"""Characters of a program beyond which it is reported as `too_long`."""
# Possessive throughout: no line is read twice.
_FENCE = re.compile(r"^[ \t]{0,3}+(?P<mark>`{3,}+|~{3,}+)[ \t]*+(?P<tag>[^\s`]*+)[^\n`]*+(?:\n|\Z)", re.MULTILINE)
_PYTHON = ("python", "python3", "py", "py3")


def extract_code(text: str) -> Extraction:
    """Return the program in `text`."""
    return cascade(text, (_last_block, _bare_code))


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


def _last_block(text: str, start: int) -> Hit:
    last_of_tag: dict[str, tuple[int, int]] = {}
    opened: re.Match[str] | None = None
    # In the answer part alone, so that a fence right after the thinking stands at the start of a line.
    body = text[start:]
    for fence in _FENCE.finditer(body):
        if opened is None:
            opened = fence
        elif not fence["tag"] and fence["mark"].startswith(opened["mark"]):
            last_of_tag[opened["tag"].lower()] = (opened.end(), fence.start())
            opened = None
    if opened is not None:
        last_of_tag[opened["tag"].lower()] = (opened.end(), len(body))
    blocks = [last_of_tag[tag] for tag in _PYTHON if tag in last_of_tag]
    span = max(blocks) if blocks else last_of_tag.get("")
    return None if span is None else _code(text, start + span[0], start + span[1], "block")


def _bare_code(text: str, start: int) -> Hit:
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
