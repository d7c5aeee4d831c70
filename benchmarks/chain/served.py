"""The student of the chain behind `ttc serve`, with its answers judged by the task's verifier."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from benchmarks.served import greedy_texts
from evals.tasks.countdown import countdown
from ttc.core import Submission
from ttc.verifiers.countdown import countdown as verifier


def right_replies(model: Path, part: str, count: int, cut: bool) -> dict[str, Any]:
    """How many of the first problems of a part the endpoint answers right, greedily."""
    items = countdown(numbers=3, part=part, form="brief").items(count, 0)  # type: ignore[arg-type]
    texts = greedy_texts(model, items, 16 if cut else 320)
    judge = verifier()
    verdicts = [
        asyncio.run(judge.verify(item.target, Submission(text))) for item, text in zip(items, texts, strict=True)
    ]
    return {"asked": len(items), "right": sum(verdict.correct for verdict in verdicts), "texts": texts}
