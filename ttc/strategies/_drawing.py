"""Draws of the problem's own prompt, taken bit by bit: plain samples, scored where there is a scorer, or DVTS subtrees.

Draw i is the same whenever it is taken: its seeds and its paths are those of a run that takes all at once. A subtree of
width m grows m samples that are cut down to the best after every step, as `tree` does by its defaults.
"""

from __future__ import annotations

from ttc.aggregate import aggregate
from ttc.core import Answer, Candidate, Problem, Prompt, Scorer
from ttc.errors import BudgetExceeded, ConfigError
from ttc.search.policies.dvts import dvts
from ttc.search.runtime import Growth, search
from ttc.session import Session

STEP, MAX_STEP_TOKENS, MAX_DEPTH = "\n\n", 256, 40


class Draws:
    """The candidates so far, in the order of their draws."""

    def __init__(self, session: Session, scorer: Scorer | None, width: int = 1, start: int = 0) -> None:
        """The first draw will be number `start`; `width` above 1 grows subtrees, which takes a scorer."""
        self._session, self._scorer, self._width, self._next = session, scorer, width, start
        self._prompt: Prompt = session.render()
        self.candidates: list[Candidate] = []

    async def up_to(self, n: int) -> None:
        """Draw until number n is the next one; raises BudgetExceeded when nothing more can be drawn."""
        numbers = range(self._next, n)
        if numbers:
            self.candidates += await (self._samples(numbers) if self._width == 1 else self._subtrees(numbers))

    async def _samples(self, numbers: range) -> list[Candidate]:
        drawn = await self._session.generate(self._prompt, numbers, scorer=self._scorer)
        self._next += len(drawn)
        values: list[float | None] = [None] * len(drawn)
        if self._scorer is not None:
            whole = [self._prompt.then(completion) for completion in drawn]
            values = [aggregate(score) for score in await self._session.score(self._scorer, whole)]
        return [
            self._session.candidate(self._prompt, completion, value)
            for completion, value in zip(drawn, values, strict=True)
        ]

    async def _subtrees(self, numbers: range) -> list[Candidate]:
        if self._scorer is None:
            raise ConfigError(f"auto: subtrees of width {self._width} need a scorer: add --scorer prm:PATH")
        growth = Growth(self._scorer, self._session.sampling, (STEP,), MAX_STEP_TOKENS, MAX_DEPTH, "last")
        policy, first = dvts(beam_width=self._width), numbers.start * self._width
        leaves = await search(self._session, self._prompt, policy, len(numbers) * self._width, growth, first)
        if not leaves:
            raise BudgetExceeded("no step could be drawn")
        self._next = numbers.stop
        return [
            self._session.candidate_at(leaf.prompt, "stop" if leaf.finished else "length", leaf.score, leaf.num_sampled)
            for leaf in leaves
        ]


async def draw_wave(
    problem: Problem, session: Session, *, start: int, end: int, width: int, scorer: Scorer | None
) -> Answer:
    """Take draws `start` to `end` and choose none of them: one wave of a run-level plan."""
    draws = Draws(session, scorer, width, start)
    await draws.up_to(end)
    return session.answer(None, draws.candidates, "wave")
