"""Punctuation: no comma. Only the comma of ASCII counts, as in IFEval."""

from __future__ import annotations

from ttc.verifiers.instructions.arguments import Arguments, Check


def no_comma(_arguments: Arguments) -> Check:
    """No comma occurs."""
    return lambda text: "," not in text
