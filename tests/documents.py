"""The documentation as its reader types it: fenced blocks, the comments that say what cannot run here, and commands.

A block is what stands between two fences. Its language says what is done with it: `bash` is typed, `python` is run, a
block with a title is a file that the next blocks read, `text` is a screen. A comment before a block says that it cannot
run where the tests run, and why:

    <!-- parsed: needs a GPU -->          commands are read by the real parsers, and bound as far as no model is needed
    <!-- typed: installs packages -->     it is looked at: what it names must be there
    <!-- slow: trains two models -->      it is run by `pytest -m slow`, and parsed otherwise
    <!-- parsed all: takes hours -->      of every block of the page

Left out: blocks inside lists or quotes, shells other than what these pages use.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PATTERNS = "README.md", "*/README.md", "ttc/strategies/README.md", "docs/**/*.md", "CONTRIBUTING.md", "SECURITY.md"
LANGUAGES = {"bash", "python", "toml", "json", "csv", "text"}
KINDS = "parsed", "typed", "slow"
_MARK = re.compile(rf"<!-- ({'|'.join(KINDS)})( all)?: (.+) -->")
_FENCE = re.compile(r"```(\w*)(?: title=\"([^\"]+)\")?\s*")
_ASSIGNMENT = re.compile(r"([A-Z][A-Z0-9_]*)=(.*)")


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block: where it stands, what it is, and whether something keeps it from running here."""

    page: str
    line: int
    language: str
    title: str | None
    text: str
    mark: str | None
    reason: str

    @property
    def place(self) -> str:
        """Where to look when it fails."""
        return f"{self.page}:{self.line}"


@dataclass(frozen=True, slots=True)
class Typed:
    """One command of a block: the variables before it, its words, and the file that is its input."""

    place: str
    variables: tuple[tuple[str, str], ...]
    words: tuple[str, ...]
    stdin: str | None


def pages() -> list[Path]:
    """Every page that is tested."""
    return sorted({path for pattern in PATTERNS for path in ROOT.glob(pattern)})


def blocks(page: Path) -> list[Block]:
    """The blocks of a page, in order.

    Raises:
        ValueError: a block of a language that nobody tests, or without one; a mark that stands before no block.
    """
    name = str(page.relative_to(ROOT))
    return list(_blocks(name, page.read_text(encoding="utf-8").split("\n")))


def _blocks(name: str, lines: Sequence[str]) -> Iterator[Block]:
    of_page = next((m for m in map(_MARK.fullmatch, lines) if m is not None and m[2]), None)
    mark: re.Match[str] | None = None
    number = 0
    while number < len(lines):
        line = lines[number]
        found = _MARK.fullmatch(line)
        if found is not None and not found[2]:
            mark = found
        elif line.startswith("```"):
            fence = _FENCE.fullmatch(line)
            if fence is None or fence[1] not in LANGUAGES:
                raise ValueError(f"{name}:{number + 1}: {line!r}: a block says its language, one of {LANGUAGES}")
            end = lines.index("```", number + 1)
            held = mark or of_page
            kind, reason = (None, "") if held is None else (held[1], held[3])
            text = "\n".join(lines[number + 1 : end]) + "\n"
            yield Block(name, number + 1, fence[1], fence[2], text, kind, reason)
            number, mark = end, None
        elif mark is not None:
            raise ValueError(f"{name}:{number + 1}: a mark stands right before the block that it is about")
        number += 1


def commands(block: Block) -> list[Typed]:
    """The commands of a block that is typed into a shell."""
    return [typed for line, text in _logical(block) for typed in _commands(f"{block.page}:{line}", text)]


def _logical(block: Block) -> Iterator[tuple[int, str]]:
    """Lines with those that they go on with: after a backslash, or inside quotes."""
    pending, first = "", block.line + 1
    for number, line in enumerate(block.text.splitlines(), start=block.line + 1):
        first = number if not pending else first
        pending += line.removesuffix("\\") + (" " if line.endswith("\\") else "\n")
        if line.endswith("\\") or not _is_closed(pending):
            continue
        if pending.strip():
            yield first, pending
        pending = ""
    if pending.strip():
        raise ValueError(f"{block.place}: the block ends inside a command: {pending!r}")


def _is_closed(text: str) -> bool:
    try:
        shlex.split(text, comments=True)
    except ValueError:
        return False
    return True


def _commands(place: str, text: str) -> Iterator[Typed]:
    words = shlex.split(text, comments=True)
    while words:
        end = next((at for at, word in enumerate(words) if word in ("&&", "&")), len(words))
        if end:
            yield _command(place, words[:end])
        words = words[end + 1 :]


def _command(place: str, words: Sequence[str]) -> Typed:
    variables, rest = [], list(words)
    if rest[0] == "export":
        rest = rest[1:]
    while rest and (found := _ASSIGNMENT.fullmatch(rest[0])) is not None:
        variables.append((found[1], found[2]))
        rest = rest[1:]
    stdin = rest[rest.index("<") + 1] if "<" in rest else None
    return Typed(place, tuple(variables), tuple(rest if stdin is None else rest[: rest.index("<")]), stdin)
