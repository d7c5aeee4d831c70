"""Draws of the problem's own prompt, taken bit by bit: plain samples, scored where there is a scorer, or islands.

Draw i is the same whenever it is taken: its seeds and its paths are those of a run that takes all at once. An island of
width m is a search of its own (`tree` with these parameters): m samples that are cut down to the better ones after
every step. Where the greedy answer opens, it is draw 0.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ttc.allocation.table import DrawKind
from ttc.choosing.selection import aggregate
from ttc.core import Answer, Candidate, Problem, Prompt, Sampling, Scorer
from ttc.errors import ConfigError
from ttc.search.tree import Searcher, make_policy, search
from ttc.session.session import Session
from ttc.strategies.tree import growth_of, tree


class Draws:
    """The candidates so far, in the order of their draws."""

    def __init__(self, session: Session, scorer: Scorer | None, kind: DrawKind, start: int = 0) -> None:
        """The first draw will be number `start`; a kind that is not scored leaves the scorer alone."""
        if kind.scored and scorer is None:
            raise ConfigError("auto: the plan was calibrated with a scorer: add --scorer prm:PATH")
        self._session, self._kind, self._next = session, kind, start
        self._scorer = scorer if kind.scored else None
        self._prompt: Prompt = session.render()
        self.candidates: list[Candidate] = []

    async def up_to(self, n: int) -> None:
        """Draw until number n is the next one, or until the budget ends."""
        numbers = range(self._next, n)
        if self._kind.greedy and numbers and not numbers.start:
            self.candidates += await self._samples(range(1), replace(self._session.sampling, temperature=0.0))
            numbers = range(1, n)
        if numbers:
            plain = not self._kind.search
            self.candidates += await (self._samples(numbers) if plain else self._islands(numbers, self._scorer))

    async def _samples(self, numbers: range, sampling: Sampling | None = None) -> list[Candidate]:
        completions = await self._session.generate(
            self._prompt, numbers, sampling=sampling, scorer=self._scorer, least=0
        )
        self._next += len(completions)
        values: list[float | None] = [None] * len(completions)
        if self._scorer is not None:
            whole = [self._prompt.then(completion) for completion in completions]
            values = [aggregate(score) for score in await self._session.score(self._scorer, whole)]
        return [
            self._session.candidate(self._prompt, completion, value)
            for completion, value in zip(completions, values, strict=True)
        ]

    async def _islands(self, numbers: range, scorer: Scorer | None) -> list[Candidate]:
        width, params = self._kind.width, dict(self._kind.search)
        policy = make_policy(params.pop("policy"), params.pop("beam_width"))
        if scorer is None or isinstance(policy, Searcher):
            raise ConfigError("auto: islands need a scorer and a policy that grows level by level")
        growth, first = growth_of(self._session, scorer, **_complete(params)), numbers.start * width
        leaves = await search(
            self._session, self._prompt, policy, len(numbers) * width, growth, islands=len(numbers), first=first
        )
        self._next = numbers.stop if leaves else numbers.start
        return [
            self._session.candidate_at(leaf.prompt, "stop" if leaf.finished else "length", leaf.score, leaf.num_sampled)
            for leaf in leaves
        ]


def _complete(params: Mapping[str, Any]) -> dict[str, Any]:
    """The options of `growth_of`: those of a plan, the others as `tree` has them by default."""
    defaults = inspect.signature(tree).parameters
    names = [name for name in inspect.signature(growth_of).parameters if name not in ("session", "scorer")]
    return {**{name: defaults[name].default for name in names}, **params}


async def draw_wave(
    problem: Problem, session: Session, *, start: int, end: int, kind: DrawKind, scorer: Scorer | None
) -> Answer:
    """Take draws `start` to `end` and choose none of them: one wave of a run-level plan."""
    draws = Draws(session, scorer, kind, start)
    await draws.up_to(end)
    return session.answer(None, draws.candidates, "wave")
