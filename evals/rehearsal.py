"""Ask every strategy of an evaluation once, up to its first request, so that what it refuses costs no token.

A strategy checks its parameters against the engine, the scorer and the budget itself, before it draws (n below 1, a
plan that is missing, a tool that does not exist). Without this the arms before it would have run by then.
"""

from __future__ import annotations

from ttc.core import Budget, Completion, Engine, Problem, Prompt, Sampling, UsageSink
from ttc.solve import Strategy, solve
from ttc.thinking import Thinking
from ttc.wrapped import Wrapped

__all__ = ["rehearse"]


class _Reached(Exception):
    """A strategy came to its first request."""


class _Mute(Wrapped):
    """An engine that answers nothing."""

    async def generate(self, prompt: Prompt, sampling: Sampling, draws: range, on_usage: UsageSink) -> list[Completion]:
        """Stop the strategy here."""
        raise _Reached


async def rehearse(
    problem: Problem,
    engine: Engine,
    strategy: Strategy,
    *,
    seed: int,
    sampling: Sampling,
    thinking: Thinking,
    budget: Budget | None,
) -> None:
    """Run `strategy` on `problem` up to its first request; raises what it raises before that."""
    try:
        await solve(
            problem,
            engine=_Mute(engine),
            strategy=strategy,
            seed=seed,
            sampling=sampling,
            thinking=thinking,
            budget=budget,
        )
    except _Reached:
        return
