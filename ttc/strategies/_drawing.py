"""Samples of the problem's own prompt, drawn bit by bit and scored where there is a scorer.

Draw i is the same whenever it is drawn: its seed and its path are those of a run that draws all at once.
"""

from __future__ import annotations

from ttc.aggregate import aggregate
from ttc.core import Answer, Candidate, Problem, Prompt, Scorer
from ttc.session import Session


class Draws:
    """The candidates so far, in the order of their numbers."""

    def __init__(self, session: Session, scorer: Scorer | None, start: int = 0) -> None:
        """The first candidate will be draw `start`."""
        self._session, self._scorer, self._next = session, scorer, start
        self._prompt: Prompt = session.render()
        self.candidates: list[Candidate] = []

    async def up_to(self, n: int) -> None:
        """Draw until number n is the next one; raises BudgetExceeded when nothing more can be drawn."""
        numbers = range(self._next, n)
        if not numbers:
            return
        drawn = await self._session.generate(self._prompt, numbers, scorer=self._scorer)
        self._next += len(drawn)
        values: list[float | None] = [None] * len(drawn)
        if self._scorer is not None:
            whole = [self._prompt.then(completion) for completion in drawn]
            values = [aggregate(score) for score in await self._session.score(self._scorer, whole)]
        self.candidates += [
            self._session.candidate(self._prompt, completion, value)
            for completion, value in zip(drawn, values, strict=True)
        ]


async def draw_wave(problem: Problem, session: Session, *, start: int, end: int, scorer: Scorer | None) -> Answer:
    """Draw numbers `start` to `end` and choose none of them: one wave of a run-level plan."""
    draws = Draws(session, scorer, start)
    await draws.up_to(end)
    return session.answer(None, draws.candidates, "wave")
