"""Ask a model folder variants of problems, greedily, and see what it thinks and says: for a method's own numbers.

Cost: one answer per variant, on the embedded engine in its batch-invariant mode.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from distill.generation.judging import verifier_of
from distill.spec.method import Job
from evals.task import Item, Task
from train.base.stage import Setting
from train.measure.measure import open_engine
from ttc.answers import kind_of
from ttc.concurrent import gather
from ttc.core import Engine, Message, Sampling, Submission, Verifier
from ttc.session.session import Session
from ttc.session.thinking import Thinking

__all__ = ["Question", "Reply", "ask_all", "measured_items"]


@dataclass(frozen=True, slots=True)
class Question:
    """A variant of a problem: the messages it is asked with, and the thinking switch."""

    item: Item
    messages: Sequence[Message]
    thinking: Thinking


@dataclass(frozen=True, slots=True)
class Reply:
    """What came: thinking and its length in tokens, the answer, whether it ended itself, whether it was right."""

    thinking: str
    num_thinking: int
    text: str
    finished: bool
    right: bool


def measured_items(job: Job) -> list[tuple[Task, list[Item]]]:
    """The held-out problems of every domain that has some, as many as the spec measures."""
    tasks = [domain.held_out for domain in job.domains if domain.held_out is not None]
    return [(task, task.items(job.spec.eval.limit, 0)) for task in tasks]


def ask_all(
    model: Path, job: Job, setting: Setting, questions: Mapping[str, Sequence[tuple[Task, Question]]]
) -> dict[str, list[Reply]]:
    """Greedy replies of the model in `model` to each group of questions, in order."""
    return asyncio.run(_ask(model, job, setting, questions))


async def _ask(
    model: Path, job: Job, setting: Setting, questions: Mapping[str, Sequence[tuple[Task, Question]]]
) -> dict[str, list[Reply]]:
    engine = open_engine(model, setting)
    verifiers: dict[str, Verifier] = {}
    try:
        found: dict[str, list[Reply]] = {}
        for name, group in questions.items():
            for task, _ in group:
                if str(task.check) not in verifiers:
                    verifiers[str(task.check)] = verifier_of(task, job.spec.verifier).create_verifier()
            found[name] = await gather(
                _one(engine, verifiers[str(task.check)], job.spec.sampling_of(task.sampling), question, setting.seed)
                for task, question in group
            )
        return found
    finally:
        await engine.close()
        for verifier in verifiers.values():
            await verifier.close()


async def _one(engine: Engine, verifier: Verifier, sampling: Sampling, question: Question, seed: int) -> Reply:
    problem = replace(question.item.problem, messages=tuple(question.messages))
    greedy = replace(sampling, temperature=0.0)
    session = Session(
        problem, engine, answers=kind_of(problem.kind), seed=seed, sampling=greedy, thinking=question.thinking
    )
    prompt = session.render()
    (completion,) = await session.generate(prompt, 1)
    candidate = session.candidate(prompt, completion)
    said = Submission(candidate.text, candidate.thinking, candidate.finish_reason)
    verdict = await verifier.verify(question.item.target, said)
    session.close()
    return Reply(
        candidate.thinking, session.usage.thinking, candidate.text, candidate.finish_reason == "stop", verdict.correct
    )
