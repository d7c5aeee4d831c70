"""Cut a plain LaTeX-like answer into tokens: numbers, letters, words, commands, marks.

Linear in the text and capped. A comma between groups of three digits is a thousands separator outside brackets and a
separator of items inside them. Left out: comments, macros, verbatim.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_CHARS = 4096
MAX_TOKENS = 1500


class Unparsed(Exception):
    """The answer is not in the grammar; carries a short reason. Internal: verifiers turn it into a verdict."""


class TooLarge(Unparsed):
    """A size cap of the parser was exceeded."""


class Alternatives(Unparsed):
    """Several answers offered as alternatives ("1 or 4")."""


@dataclass(frozen=True, slots=True)
class Token:
    """`kind` is num, base, word, text, cmd, mark or end; `spaced` says whether white space came before."""

    kind: str
    text: str
    spaced: bool = False


_NUMBER = re.compile(
    r"""(?P<grouped>\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?)
      | (?P<spaced>\d{1,3}(?:\ \d{3})+(?![\d/])(?:\.\d+)?)
      | (?P<science>\d+(?:\.\d*)?[eE][+-]?\d{1,4}(?![\dA-Za-z]))
      | (?P<repeat>\d*\.\d*(?:\\overline|\\dot|\\bar)\ ?\{\d+\})
      | (?P<decimal>\d+\.\d+|\.\d+|\d+\.(?!\.))
      | (?P<integer>\d+)""",
    re.VERBOSE,
)
_TEXT = re.compile(
    r"\\(text|mbox|textrm|textbf|textit|mathrm|mathbf|mathsf|mathit|operatorname\*?|hbox)\s*\{([^{}]*)\}"
)
_STYLED = re.compile(r"\\(?:mathrm|mathbf|mathit|mathsf)\s+([A-Za-z])(?![A-Za-z])")
_COMMAND = re.compile(r"\\(?:[A-Za-z]+|.)", re.DOTALL)
_WORD = re.compile(r"[^\W\d_]+")
_ENVIRONMENT = re.compile(r"\\(begin|end)\s*\{([A-Za-z]+\*?)\}(?:\{[lcr|]*\})?")


def tokens(text: str) -> list[Token]:
    """Return the tokens of `text`, closed by one of kind `end`. Raises Unparsed or TooLarge."""
    if len(text) > MAX_CHARS:
        raise TooLarge(f"more than {MAX_CHARS} characters")
    items: list[Token] = []
    at, depth, spaced = 0, 0, False
    while at < len(text):
        if text[at].isspace():
            at, spaced = at + 1, True
            continue
        token, at = _next(text, at, spaced, nested=depth > 0)
        depth += (token.text in _OPENING) - (token.text in _CLOSING)
        items.append(token)
        spaced = False
        if len(items) > MAX_TOKENS:
            raise TooLarge(f"more than {MAX_TOKENS} tokens")
    return [*items, Token("end", "")]


_OPENING = frozenset({"(", "[", r"\{", r"\langle"})
_CLOSING = frozenset({")", "]", r"\}", r"\rangle"})


def _next(text: str, at: int, spaced: bool, nested: bool) -> tuple[Token, int]:
    char = text[at]
    if char.isdigit() or (char == "." and text[at + 1 : at + 2].isdigit()):
        return _number(text, at, spaced, nested)
    if char == "\\":
        return _command(text, at, spaced)
    if word := _WORD.match(text, at):
        return Token("word", word[0], spaced), word.end()
    return Token("mark", char, spaced), at + 1


def _number(text: str, at: int, spaced: bool, nested: bool) -> tuple[Token, int]:
    match = _NUMBER.match(text, at)
    if match is None:
        raise Unparsed(f"digit {text[at]!r} not understood")
    if nested and match.lastgroup in ("grouped", "spaced"):
        end = at + len(re.split("[, ]", match[0], maxsplit=1)[0])
        return Token("num", text[at:end], spaced), end
    return Token("num", match[0], spaced), match.end()


def _command(text: str, at: int, spaced: bool) -> tuple[Token, int]:
    if match := _TEXT.match(text, at):
        words = match[2].strip()
        styled_letter = len(words) == 1 and match[1] not in ("text", "mbox", "hbox")
        is_word = styled_letter or match[1].startswith("operatorname")
        return Token("word" if is_word else "text", words, spaced), match.end()
    if match := _STYLED.match(text, at):
        return Token("word", match[1], spaced), match.end()
    if match := _ENVIRONMENT.match(text, at):
        return Token("cmd", rf"\{match[1]}{{{match[2]}}}", spaced), match.end()
    match = _COMMAND.match(text, at)
    if match is None:
        raise Unparsed("a lone backslash")
    return Token("cmd", match[0], spaced), match.end()
