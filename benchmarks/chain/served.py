"""The student of the chain behind `ttc serve`, with its answers judged by the task's verifier."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.served import serving
from evals.tasks.countdown import countdown
from ttc.core import Submission
from ttc.verifiers.countdown import countdown as verifier


def right_replies(model: Path, part: str, count: int, cut: bool) -> dict[str, Any]:
    """How many of the first problems of a part the endpoint answers right, greedily."""
    items = countdown(numbers=3, part=part, form="brief").items(count, 0)  # type: ignore[arg-type]
    texts: list[str] = []
    with serving(model, "--name", "student") as url, httpx2.Client(base_url=url, timeout=120) as client:
        for item in items:
            asked = {
                "model": "student",
                "messages": [{"role": "user", "content": item.problem.messages[0].content}],
                "temperature": 0,
                "max_tokens": 16 if cut else 320,
            }
            reply = client.post("/v1/chat/completions", json=asked).raise_for_status().json()
            texts.append(str(reply["choices"][0]["message"]["content"] or ""))
    judge = verifier()
    verdicts = [
        asyncio.run(judge.verify(item.target, Submission(text))) for item, text in zip(items, texts, strict=True)
    ]
    return {"asked": len(items), "right": sum(verdict.correct for verdict in verdicts), "texts": texts}
