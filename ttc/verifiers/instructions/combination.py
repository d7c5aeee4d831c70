"""Combinations: two different responses, and the request repeated before the answer."""

from __future__ import annotations

from ttc.verifiers.instructions.arguments import Arguments, Check

_DIVIDER = "******"


def two_responses(_arguments: Arguments) -> Check:
    """Exactly two different responses with six stars between them; only the first and last part may be empty."""

    def check(text: str) -> bool:
        parts = [part.strip() for part in text.split(_DIVIDER)]
        filled = [part for part in parts if part]
        return all(parts[1:-1]) and len(filled) == 2 and filled[0] != filled[1]

    return check


def repeat_prompt(arguments: Arguments) -> Check:
    """The response begins with the request, word for word, whatever the case."""
    prompt = arguments.text("prompt_to_repeat").strip().lower()
    return lambda text: text.strip().lower().startswith(prompt)
