"""What reading a path costs where a prefix cache of whole blocks stands behind the model, as vLLM's does.

vLLM finds the longest run of whole blocks that it has seen, and always computes at least the last token. So the cost of
a request is known before it is sent, from the paths that were sent before, as long as the cache forgets none of them.
Left out: what other clients have put there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

__all__ = ["Blocks"]


class Blocks:
    """The whole blocks of all paths of a problem that were sent; without a `size` nothing is ever cached."""

    def __init__(self, size: int | None) -> None:
        """`size` is the number of tokens of a block."""
        self._size = size
        self._seen: dict[str, set[int]] = {}

    def cached(self, problem_id: str, ids: Sequence[int]) -> int:
        """Tokens of `ids` that need not be computed."""
        seen, found = self._seen.get(problem_id, ()), 0
        for end, key in self._keys(ids[:-1]):
            if key not in seen:
                break
            found = end
        return found

    def send(self, problem_id: str, ids: Sequence[int]) -> int:
        """Remember `ids`; returns how many of them are computed."""
        new = len(ids) - self.cached(problem_id, ids)
        self._seen.setdefault(problem_id, set()).update(key for _, key in self._keys(ids))
        return new

    def one_by_one(self, problem_id: str, ids: Sequence[int], reads: Sequence[int]) -> int:
        """Tokens that are computed when every one of `reads` (ascending) is a request that ends there."""
        total, before = 0, 0
        for read in reads:
            cached = self.cached(problem_id, ids[: read + 1])
            if self._size is not None:
                cached = max(cached, min(before, read) // self._size * self._size)
            total, before = total + read + 1 - cached, read + 1
        return total

    def from_the_end(self, problem_id: str, ids: Sequence[int], reads: Sequence[int]) -> int:
        """Tokens that are computed when a request tells all of `reads` behind its cached part, the last one first."""
        total, missing = 0, list(reads)
        while missing:
            end = missing[-1] + 1
            cached = self.cached(problem_id, ids[:end])
            total, missing = total + end - cached, [read for read in missing if read < cached]
        return total

    def release(self, problem_id: str) -> None:
        """Forget a problem."""
        self._seen.pop(problem_id, None)

    def _keys(self, ids: Sequence[int]) -> Iterator[tuple[int, int]]:
        """End and key of each whole block; a key stands for all that leads to the block."""
        if self._size is None:
            return
        key = 0
        for end in range(self._size, len(ids) + 1, self._size):
            key = hash((key, *ids[end - self._size : end]))
            yield end, key
