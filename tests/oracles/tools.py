"""What the oracles share: many problems on the simulated engine, and how far chance may go."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

from tests.ttc.questions import ask
from ttc.core import Answer, Budget, Candidate, Sampling
from ttc.engines.scripted import ScriptedEngine, replies
from ttc.engines.simulated import simulated, truth
from ttc.session.solve import solve

SIGMAS = 4


def answers(strategy: Any, runs: int, *, seed: int = 5, jitter: int | None = None, **engine: Any) -> list[Answer]:
    """Solve so many simulated problems, all in flight at once."""
    made = simulated(jitter=jitter, **engine)

    async def go() -> list[Answer]:
        work = (solve(ask(f"problem {i}"), engine=made, strategy=strategy, seed=seed) for i in range(runs))
        return list(await asyncio.gather(*work))

    return asyncio.run(go())


def accuracy(strategy: Any, runs: int, **engine: Any) -> float:
    """Share of right answers."""
    found = answers(strategy, runs, **engine)
    return sum(answer.final == truth(f"problem {i}") for i, answer in enumerate(found)) / runs


def say(options: Sequence[str], strategy: Any, kind: str = "math", **options_of_solve: Any) -> Answer:
    """Solve one problem whose draw i says option i."""
    engine = ScriptedEngine(replies({"q": list(options)}))
    return asyncio.run(solve(ask("q", kind), engine=engine, strategy=strategy, seed=0, **options_of_solve))


def near(measured: float, expected: float, runs: int) -> bool:
    """Whether a share agrees with its law."""
    return abs(measured - expected) <= SIGMAS * math.sqrt(max(expected * (1 - expected), 1 / runs) / runs)


def ballots(
    finals: Sequence[str | None], scores: Sequence[float | None] = (), lengths: Sequence[int] = ()
) -> list[Candidate]:
    """Candidates that are nothing but their final answer, score and length."""
    return [
        Candidate(
            path=(i,),
            text="",
            thinking="",
            final=final,
            finish_reason="stop" if final is not None else "length",
            num_tokens=lengths[i] if lengths else 10,
            score=scores[i] if scores else None,
        )
        for i, final in enumerate(finals)
    ]


__all__ = ["Budget", "Sampling", "accuracy", "answers", "ballots", "near", "say"]
