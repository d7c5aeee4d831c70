r"""Blind reading of answers: extract the final one from a text, and group equal ones for a vote.

    extract(text, kind) -> Extraction      the final answer, its place, the rule that found it, or the reason for none
    key(final, kind) -> str                equal keys are one voting class
    classes(keys) -> dict                  the class of each key in a vote, where 5 may join 5 m

These never see a target, evaluate text or raise for any text; they are linear in the text up to a cap. The kinds are
those of `ttc.answers.kinds`. Cost: tens of microseconds a text, a fraction of a millisecond a key.
"""

from __future__ import annotations

from ttc.answers.extract import Extraction
from ttc.answers.keys import classes, same_class
from ttc.answers.kinds import KINDS, Kind, extract, key, kind_of, same_form

__all__ = ["KINDS", "Extraction", "Kind", "classes", "extract", "key", "kind_of", "same_class", "same_form"]
