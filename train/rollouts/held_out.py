"""Held-out accuracy during training: the same problems every time, never trained on, greedy and sampled."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from evals.task import Item
from ttc.answers import kind_of
from ttc.core import Answer, Engine, FinishReason, Problem, Sampling, Submission, Usage, Verifier
from ttc.session.session import Session, Shared
from ttc.session.solve import Strategy
from ttc.session.thinking import Thinking

__all__ = ["HeldOut", "accuracy"]


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Which problems, how they are checked, and how they are answered: one completion, or a `strategy`."""

    items: Sequence[Item]
    verifier: Verifier
    sampling: Sampling
    seed: int
    thinking: Thinking | None = None
    strategy: Strategy | None = None
    shared: Shared = field(default_factory=dict, compare=False)


async def accuracy(held_out: HeldOut, engine: Engine, *, greedy: bool = True) -> tuple[list[bool], Usage]:
    """Whether each problem is answered correctly, in order, and what that cost; one draw each."""
    temperature = 0.0 if greedy else held_out.sampling.temperature
    sampling = replace(held_out.sampling, temperature=temperature)
    results = await asyncio.gather(*(_one(item, held_out, engine, sampling) for item in held_out.items))
    return [right for right, _ in results], sum((usage for _, usage in results), Usage())


async def _one(item: Item, held_out: HeldOut, engine: Engine, sampling: Sampling) -> tuple[bool, Usage]:
    session = Session(
        item.problem,
        engine,
        answers=kind_of(item.problem.kind),
        seed=held_out.seed,
        sampling=sampling,
        thinking=held_out.thinking,
        shared=held_out.shared,
    )
    answer = await (held_out.strategy or _complete)(item.problem, session)
    finish: FinishReason = "stop" if answer.finish_reason == "stop" else "length"
    verdict = await held_out.verifier.verify(item.target, Submission(answer.text, answer.thinking, finish))
    session.close()
    return verdict.correct, session.usage


async def _complete(problem: Problem, session: Session) -> Answer:
    """One completion."""
    prompt = session.render()
    (completion,) = await session.generate(prompt, 1)
    candidate = session.candidate(prompt, completion)
    return session.answer(candidate, [candidate])
