"""A tokenizer of characters, shared by the two engines without a model: one id per character, markers as single ids."""

from __future__ import annotations

import re
from collections.abc import Sequence

THINK_OPEN, THINK_CLOSE, EOS = 0x110000, 0x110001, 0x110002
_MARKERS = {"<think>": THINK_OPEN, "</think>": THINK_CLOSE, "<eos>": EOS}
_TEXTS = {value: text for text, value in _MARKERS.items()}
_PIECES = re.compile("|".join(map(re.escape, _MARKERS)) + "|.", re.DOTALL)


def encode(text: str) -> tuple[int, ...]:
    """Ids of `text`: code points, and one id per marker."""
    if "<" not in text:
        return tuple(map(ord, text))
    return tuple(_MARKERS.get(piece) or ord(piece) for piece in _PIECES.findall(text))


def decode(ids: Sequence[int]) -> str:
    """Text of `ids`; inverse of `encode`."""
    if not ids or max(ids) < THINK_OPEN:
        return "".join(map(chr, ids))
    return "".join(_TEXTS.get(i) or chr(i) for i in ids)


def first_stop(ids: Sequence[int], stop: Sequence[str], stop_ids: Sequence[int]) -> tuple[int, str | int] | None:
    """Number of ids up to and including the first stop in `ids`, and what stopped it; None without a stop."""
    longest = max(map(len, stop), default=0)
    for count, token in enumerate(ids, start=1):
        if token == EOS:
            return count, "eos"
        if token in stop_ids:
            return count, token
        if longest:
            tail = decode(ids[max(0, count - longest) : count])
            for string in stop:
                if tail.endswith(string):
                    return count, string
    return None
