r"""Blind reading of answers: extract the final one from a text, and group equal ones for a vote.

    extract(text, kind) -> Extraction      the final answer, its place, the rule that found it, or the reason for none
    key(final, kind) -> str                equal keys are one voting class

Neither sees a target, evaluates text, or raises for any text; both are linear in the text up to a cap. The kinds are
`math`, `number`, `choice`, `exact`, `expression`, `code` and `format`. Cost: tens of microseconds a
text, a fraction of a millisecond a key.
"""

from __future__ import annotations

from ttc.answers.extract import Extraction
from ttc.answers.kinds import KINDS, Kind
from ttc.errors import UnknownName

__all__ = ["KINDS", "Extraction", "Kind", "extract", "key", "kind_of"]


def extract(text: str, kind: str) -> Extraction:
    """Return the final answer of `text`, read as answers of `kind` are. Raises UnknownName for an unknown kind."""
    return kind_of(kind).extract(text)


def key(final: str, kind: str) -> str:
    """Return the voting class of a final answer. Raises UnknownName for an unknown kind."""
    return kind_of(kind).key(final)


def kind_of(kind: str) -> Kind:
    """Return how answers of `kind` are read and grouped. Raises UnknownName for an unknown kind."""
    if kind not in KINDS:
        raise UnknownName("answer kind", kind, KINDS)
    return KINDS[kind]
