"""Verifiers whose workers start once for all tests of a file: one for each choice of options."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from ttc.core import Submission, TargetLike, Verdict, Verifier


class KeptVerifiers:
    """Judges pairs of target and text (or submission) by verifiers that `make` makes; the file closes them."""

    def __init__(self, make: Callable[..., Verifier]) -> None:
        self._make = make
        self._by_options: dict[str, Verifier] = {}

    def judge(self, pairs: Sequence[tuple[TargetLike, str | Submission]], **options: Any) -> list[Verdict]:
        """Verdicts one after the other."""
        name = repr(options)
        if name not in self._by_options:
            self._by_options[name] = self._make(**options)
        verifier = self._by_options[name]

        async def main() -> list[Verdict]:
            return [
                await verifier.verify(target, item if isinstance(item, Submission) else Submission(item))
                for target, item in pairs
            ]

        return asyncio.run(main())

    def close(self) -> None:
        """End all workers."""
        while self._by_options:
            asyncio.run(self._by_options.popitem()[1].close())

    def ended(self) -> Any:
        """A fixture after which no worker stays behind, for the file that assigns it to a name."""

        @pytest.fixture(scope="module", autouse=True)
        def ended() -> Iterator[None]:
            yield
            self.close()

        return ended
