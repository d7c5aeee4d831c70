"""Reads and judges the answers of all systems: the number after the thought."""

from __future__ import annotations

from ttc.answers import extract, key


def key_of(text: str, thinks: bool) -> str | None:
    """The key of the number that a text ends with; None without one, and for a thought that was never closed."""
    if thinks and "</think>" not in text:
        return None
    final = extract(text.rsplit("</think>", 1)[-1], "number").final
    return None if final is None else key(final, "number")


def is_right(text: str, gold: str, thinks: bool) -> bool:
    """Whether the text's number is `gold`."""
    return key_of(text, thinks) is not None and key_of(text, thinks) == key(gold, "number")
