"""What every verifier declares: a frozen card of what it takes, how it decides, and what it gets wrong.

A verifier has a `card`, and its `name` and `version` stand on it. The version names everything that may change a
verdict (code, libraries, settings), so a verdict can be traced, remembered and judged again. Canaries are known cases
that hold for the settings at hand: a service runs them before it takes work and refuses to start when one fails.

    class MyVerifier:
        name = "mine"

        def __init__(self) -> None:
            self.version = "mine-1"
            self.card = Card(self.name, self.version, inputs=..., max_s=1.0, limits=..., ...)

Left out: a schema of targets; `check_gold` checks one.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from ttc.core import FinishReason, Status, Submission, Target, Verifier
from ttc.errors import ConfigError

__all__ = ["ALL_OR_NOTHING", "Canary", "Card", "Declared", "card_of"]


ALL_OR_NOTHING = "none: the score is 1 when correct, 0 when incorrect, absent without a verdict"
"""The partial-credit rule of a verifier that gives none."""


@dataclass(frozen=True, slots=True)
class Canary:
    """A known case: `text` held to `target` must get `status`."""

    target: Target
    text: str
    status: Status
    thinking: str = ""
    finish_reason: FinishReason = "stop"

    @property
    def submission(self) -> Submission:
        """What the verifier is given."""
        return Submission(self.text, self.thinking, self.finish_reason)


@dataclass(frozen=True, slots=True)
class Card:
    """A verifier's declaration; every field is required and says something.

    Attributes:
        name: of the verifier, as in the registry.
        version: everything that may change a verdict: code, libraries and settings.
        inputs: what a target is, and which part of a submission is read.
        max_s: seconds of work after which a verdict is there at the latest; waiting for a worker does not count.
        limits: the caps on size, depth, memory and processes, and which status a text beyond them gets.
        partial_credit: what the score between 0 and 1 means.
        correct_when: the binary rule: when the status is correct.
        weaknesses: known wrong verdicts and ways to fool it, one each.
        canaries: known cases under these settings; at least one is correct and one is not.
    """

    name: str
    version: str
    inputs: str
    max_s: float
    limits: str
    partial_credit: str
    correct_when: str
    weaknesses: tuple[str, ...]
    canaries: tuple[Canary, ...]

    def __post_init__(self) -> None:
        """Refuse a card with a field that says nothing."""
        for field in dataclasses.fields(self):
            if not getattr(self, field.name):
                raise ConfigError(f"the card of verifier {self.name!r}: {field.name} is empty")
        if not (math.isfinite(self.max_s) and self.max_s > 0):
            raise ConfigError(f"the card of verifier {self.name!r}: max_s must be > 0, got {self.max_s}")
        statuses = {canary.status == "correct" for canary in self.canaries}
        if statuses != {True, False}:
            raise ConfigError(f"the card of verifier {self.name!r}: canaries must show a correct and another verdict")


@runtime_checkable
class Declared(Protocol):
    """A verifier that has a card; every verifier of this package has."""

    @property
    def card(self) -> Card:
        """What it declares."""
        ...


def card_of(verifier: Verifier) -> Card | None:
    """The verifier's card; None for a verifier from elsewhere that declares none."""
    return verifier.card if isinstance(verifier, Declared) else None


def library(name: str) -> str:
    """`name-1.2.3`, or `no-name` where it is not installed."""
    try:
        return f"{name}-{importlib.metadata.version(name)}"
    except importlib.metadata.PackageNotFoundError:
        return f"no-{name}"
