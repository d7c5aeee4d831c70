"""When a draw ends: end-of-sequence ids, stop ids and stop strings across token boundaries.

A stop string is looked for only when the newest token could complete one: it must bring the string's last character.
The search then decodes just enough of the newest tokens, and only tokens of this call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

__all__ = ["StopRule", "make_rule"]


class StopRule:
    """`watch` holds every id that may end a draw; `reason` decides."""

    __slots__ = ("_decode", "_eos", "_ids", "_strings", "_window", "watch")

    def __init__(
        self,
        strings: tuple[str, ...],
        ids: frozenset[int],
        eos: frozenset[int],
        candidates: frozenset[int],
        decode: Callable[[Sequence[int]], str],
    ) -> None:
        self._strings, self._ids, self._eos, self._decode = strings, ids, eos, decode
        self._window = max((len(s.encode()) for s in strings), default=0) + 4
        self.watch = ids | eos | candidates

    def reason(self, generated: Sequence[int]) -> str | int | None:
        """Why the draw ends after its newest token: "eos", a stop id, a stop string, or None."""
        last = generated[-1]
        if last in self._eos:
            return "eos"
        if last in self._ids:
            return last
        if not self._strings:
            return None
        text = self._decode(generated[-self._window :])
        return next((s for s in self._strings if s in text), None)


def make_rule(
    strings: tuple[str, ...],
    ids: tuple[int, ...],
    eos: tuple[int, ...],
    pieces: Sequence[str],
    decode: Callable[[Sequence[int]], str],
) -> StopRule:
    """Build the rule; `pieces` is the text of every id and may be empty when there are no stop strings.

    A piece that is empty or holds an incomplete character is always a candidate, and every piece is one for a stop
    string that ends in a space: some tokenizers drop the leading space of a piece that is decoded on its own.
    """
    last = {s[-1] for s in strings}

    def may_complete(piece: str) -> bool:
        return not piece or "\ufffd" in piece or " " in last or any(char in piece for char in last)

    candidates = frozenset(i for i, piece in enumerate(pieces) if may_complete(piece)) if strings else frozenset()
    return StopRule(strings, frozenset(ids), frozenset(eos), candidates, decode)
