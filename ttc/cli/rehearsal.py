"""Run a strategy up to its first request, so that its refusals cost no token, and mostly no model either.

A strategy checks its parameters against the engine, the scorer and the budget itself, before it draws (n below 1, a
plan that is missing, a tool that does not exist). `rehearse` lets it do so on the engine at hand. `refuse_early` does
it before any is loaded, on the shipped fake, which refuses nothing: what is refused there is refused for its own
values. Only the toolkit's own strategies are run early; a user's may do more than check.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from ttc.config.choices import StrategyChoice
from ttc.config.plugins import is_own, leaf
from ttc.core import (
    Budget,
    Completion,
    Engine,
    Message,
    PricedScorer,
    Problem,
    Prompt,
    Sampling,
    Score,
    Scorer,
    Strategy,
    UsageSink,
)
from ttc.engines.scripted import ScriptedEngine
from ttc.engines.shared.wrapped import Wrapped
from ttc.session.solve import solve
from ttc.session.thinking import Thinking

_QUESTION = Problem("rehearsal", (Message("user", "1+1"),))


class _Reached(BaseException):
    """A strategy reached its first request; not an Exception, so that none of its own handlers catches it."""


class _Mute(Wrapped):
    """An engine that answers nothing."""

    def __init__(self, engine: Engine, scorer: object) -> None:
        super().__init__(engine)
        self._scorer = scorer

    async def generate(self, prompt: Prompt, sampling: Sampling, draws: range, on_usage: UsageSink) -> list[Completion]:
        """Stop the strategy here; a reward model whose template refuses the question reports that later."""
        if isinstance(self._scorer, PricedScorer):
            self._scorer.price(prompt)
        raise _Reached


class _Blind:
    """A scorer that scores nothing."""

    async def score(self, prompts: Sequence[Prompt], on_usage: UsageSink) -> list[Score]:
        """Stop the strategy here."""
        raise _Reached

    def release(self, problem_id: str) -> None:
        """Nothing is kept."""


async def rehearse(
    problem: Problem,
    engine: Engine,
    strategy: Strategy,
    *,
    seed: int,
    sampling: Sampling,
    thinking: Thinking,
    budget: Budget | None,
    scorer: Scorer | None = None,
) -> None:
    """Run `strategy` on `problem` up to its first request; raises what it, or the price of `scorer`, raises."""
    try:
        await solve(
            problem,
            engine=_Mute(engine, scorer),
            strategy=strategy,
            seed=seed,
            sampling=sampling,
            thinking=thinking,
            budget=budget,
        )
    except (_Reached, BaseExceptionGroup) as reached:  # a group, if it asked in a task group of its own
        if not isinstance(leaf(reached), _Reached):
            raise


def refuse_early(
    choices: Iterable[StrategyChoice], *, has_scorer: bool, sampling: Sampling, thinking: Thinking
) -> None:
    """Let each of the toolkit's own strategies refuse its values, before an engine or a scorer is loaded.

    `has_scorer`: one was chosen for the strategies that take one. Not for use inside a running event loop.

    Raises:
        ConfigError: a value that the strategy refuses on any engine.
    """
    engine = ScriptedEngine(lambda prompt, path, key: "")
    for choice in choices:
        if all(is_own(function) for function in choice.functions):
            strategy = choice.bind(_Blind() if has_scorer and choice.takes_scorer else None)
            asyncio.run(
                rehearse(_QUESTION, engine, strategy, seed=0, sampling=sampling, thinking=thinking, budget=None)
            )
