"""Work in an event loop of its own, after which what it used is closed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Any

from ttc.core import Submission, TargetLike, Verdict, Verifier


def finished(work: Awaitable[Any], *parts: Any) -> Any:
    """The result of `work`, after which `parts` (engines, verifiers, ...) are closed in the same loop."""

    async def go() -> Any:
        try:
            return await work
        finally:
            for part in parts:
                await part.close()

    return asyncio.run(go())


def verdicts(verifier: Verifier, pairs: Iterable[tuple[TargetLike, str | Submission]]) -> list[Verdict]:
    """The verdicts of pairs of target and text (or submission), one after the other; closes the verifier."""

    async def judge() -> list[Verdict]:
        return [
            await verifier.verify(target, item if isinstance(item, Submission) else Submission(item))
            for target, item in pairs
        ]

    judged: list[Verdict] = finished(judge(), verifier)
    return judged
