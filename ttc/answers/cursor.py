"""A cursor over tokens with a depth cap: what the levels of the grammar share."""

from __future__ import annotations

from abc import ABC, abstractmethod

from ttc.answers.nodes import Node
from ttc.answers.tokens import Token, TooLarge, Unparsed

MAX_DEPTH = 40


class Cursor(ABC):
    """Reads tokens one by one; `sum`, `relation`, ... are the levels of precedence that call each other."""

    def __init__(self, found: list[Token]) -> None:
        self.found, self.at, self.depth, self.bars = found, 0, 0, 0

    @property
    def peek(self) -> Token:
        """The next token."""
        return self.found[self.at]

    @property
    def last(self) -> Token:
        """The token before the next one."""
        return self.found[max(self.at - 1, 0)]

    def ahead(self, by: int) -> Token:
        """The token `by` places after the next one."""
        return self.found[min(self.at + by, len(self.found) - 1)]

    def take(self) -> Token:
        """Consume the next token. Raises Unparsed at the end."""
        token = self.peek
        if token.kind == "end":
            raise Unparsed("unexpected end")
        self.at += 1
        return token

    def accept(self, *texts: str) -> bool:
        """Consume the next token if it is one of `texts`."""
        if self.peek.kind not in ("end", "text") and self.peek.text in texts:
            self.at += 1
            return True
        return False

    def expect(self, text: str) -> None:
        """Consume `text`. Raises Unparsed when something else comes."""
        if not self.accept(text):
            raise Unparsed(f"expected {text!r}, found {self.peek.text[:40]!r}")

    def sink(self) -> None:
        """Go one level deeper; the caller comes up again. Raises TooLarge beyond MAX_DEPTH."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise TooLarge(f"nested deeper than {MAX_DEPTH}")

    @abstractmethod
    def relation(self) -> Node:
        """A chain of sides joined by relation signs."""

    @abstractmethod
    def sum(self) -> Node:
        """Terms joined by plus, minus and plus-minus."""

    @abstractmethod
    def signed(self) -> Node:
        """A factor with its signs."""

    @abstractmethod
    def power(self) -> Node:
        """A value with what is attached to it: exponents, factorials, percent signs."""

    @abstractmethod
    def starts_factor(self) -> bool:
        """Whether the next token can begin a factor without a sign before it."""
