"""How a response starts and ends: with a phrase, in quotation marks."""

from __future__ import annotations

from ttc.verifiers.instructions.arguments import Arguments, Check


def end_checker(arguments: Arguments) -> Check:
    """The response ends with the phrase, whatever the case; quotation marks around the whole are dropped."""
    phrase = arguments.text("end_phrase").strip().lower()
    return lambda text: text.strip().strip('"').lower().endswith(phrase)


def quotation(_arguments: Arguments) -> Check:
    """The whole response stands in double quotation marks."""
    return lambda text: len(text.strip()) > 1 and text.strip()[0] == text.strip()[-1] == '"'
