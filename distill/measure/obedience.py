"""Does a model think when told to, and not think when told not to? Qwen3 calls such a measure ThinkFollow.

    think, no_think      the flag stands behind the question
    default              no flag: it thinks
    switch               the template's own switch is off: no second think block in the answer
    last_flag            an earlier turn says the opposite of the last one, or says it alone; only where turns fit

Every case is asked greedily of the same problems. A reply obeys when it ended by itself and its think block is empty or
not, as asked. `obedience` is the share over all cases; accuracy is given for both modes, where the effect of thinking
shows. Cost: four or five answers per problem, on the embedded engine in its batch-invariant mode. Flags are Qwen3's
(arXiv:2505.09388, section 4.3): `/think` and `/no_think` stand in a user or system turn, the last one holds, none at
all means thinking, and an answer without thinking keeps an empty think block.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from distill.data.dataset import room_of
from distill.generation.judging import verifier_of
from distill.spec.method import DistillJob
from evals.task import Item, Task, gold_text
from train.base.stage import Setting
from train.measure.measure import open_engine
from ttc.answers import kind_of
from ttc.concurrent import gather
from ttc.config.values import counted
from ttc.core import Engine, Message, Sampling, Submission, Verifier
from ttc.engines.shared.text import Text
from ttc.errors import ConfigError
from ttc.session.session import Session
from ttc.session.thinking import CLOSE, OPEN, Thinking


@dataclass(frozen=True, slots=True)
class Flags:
    """How the two flags are written, and what stands between a text and its flag."""

    think: str = "/think"
    no_think: str = "/no_think"
    gap: str = " "

    def of(self, thinks: bool) -> str:
        """The flag that asks for thinking, or for none."""
        return self.think if thinks else self.no_think

    def write(self, messages: Sequence[Message], thinks: bool | None, *, in_system: bool = False) -> list[Message]:
        """The conversation with a flag behind its last turn, or in a system turn; unchanged for None."""
        if thinks is None:
            return list(messages)
        if not in_system:
            *before, last = messages
            return [*before, Message(last.role, f"{last.content}{self.gap}{self.of(thinks)}")]
        if messages[0].role == "system":
            first, *rest = messages
            return [Message("system", f"{first.content}{self.gap}{self.of(thinks)}"), *rest]
        return [Message("system", self.of(thinks)), *messages]

    def read(self, messages: Sequence[Message], default: bool = True) -> bool:
        """Whether the conversation asks for thinking: the last flag in a user or system turn, else `default`."""
        for message in reversed(messages):
            if message.role == "assistant":
                continue
            last = max((self.think, self.no_think), key=message.content.rfind)
            if last in message.content:
                return last == self.think
        return default


@dataclass(frozen=True, slots=True)
class Variant:
    """A variant of a problem: the messages it is asked with, and the thinking switch."""

    item: Item
    messages: Sequence[Message]
    thinking: Thinking


@dataclass(frozen=True, slots=True)
class VariantReply:
    """A reply: thinking and its length in tokens, the answer, whether it ended by itself, whether it was right."""

    thinking: str
    num_thinking: int
    text: str
    finished: bool
    right: bool


def measured_items(job: DistillJob) -> list[tuple[Task, Item]]:
    """The held-out problems of every domain that has some, as many as the spec measures."""
    tasks = [domain.held_out for domain in job.domains if domain.held_out is not None]
    return [(task, item) for task in tasks for item in task.items(job.spec.eval.limit, 0)]


def ask_all(
    model: Path, job: DistillJob, setting: Setting, questions: Mapping[str, Sequence[tuple[Task, Variant]]]
) -> dict[str, list[VariantReply]]:
    """Greedy replies of the model in `model` to each group of questions, in order."""
    return asyncio.run(_ask(model, job, setting, questions))


async def _ask(
    model: Path, job: DistillJob, setting: Setting, questions: Mapping[str, Sequence[tuple[Task, Variant]]]
) -> dict[str, list[VariantReply]]:
    engine = open_engine(model, setting)
    verifiers: dict[str, Verifier] = {}
    try:
        replies: dict[str, list[VariantReply]] = {}
        for name, group in questions.items():
            for task, _ in group:
                if str(task.check) not in verifiers:
                    verifiers[str(task.check)] = verifier_of(task, job.spec.verifier).create_verifier()
            replies[name] = await gather(
                _one(engine, verifiers[str(task.check)], job.spec.sampling_of(task.sampling), question, setting.seed)
                for task, question in group
            )
        return replies
    finally:
        await engine.close()
        for verifier in verifiers.values():
            await verifier.close()


async def _one(engine: Engine, verifier: Verifier, sampling: Sampling, question: Variant, seed: int) -> VariantReply:
    problem = replace(question.item.problem, messages=tuple(question.messages))
    greedy = replace(sampling, temperature=0.0)
    session = Session(
        problem, engine, answers=kind_of(problem.kind), seed=seed, sampling=greedy, thinking=question.thinking
    )
    with closing(session):
        prompt = session.render()
        (completion,) = await session.generate(prompt, 1)
        candidate = session.candidate(prompt, completion)
        submission = Submission(candidate.text, candidate.thinking, candidate.finish_reason)
        verdict = await verifier.verify(question.item.target, submission)
    return VariantReply(
        candidate.thinking, session.usage.thinking, candidate.text, candidate.finish_reason == "stop", verdict.correct
    )


_AUTO, _OFF = Thinking(), Thinking(mode="off")
_CASES = {"think": True, "no_think": False, "default": True, "switch": False}
_MODES = "think", "no_think"
"""The cases whose accuracy is reported."""


def obedience_names(job: DistillJob, flags: Flags, *, turns: bool) -> list[str]:
    """The names of the numbers of `obedience`; earlier turns are tested only where they fit the context.

    Raises:
        ConfigError: a gate bounds what earlier turns show, and none fits.
    """
    items = measured_items(job)
    if not items:
        return []
    cases = list(_CASES)
    if turns:
        needs = [needed for *_, needed in _turns(items, job, job.student, flags)]
        room = room_of(job.student)
        if min(needs) <= room:
            cases.append("last_flag")
        elif _LAST in job.spec.gates["measured"]:
            raise ConfigError(f"gates.measured.{_LAST}: {_unfit(items, job, min(needs) - room)}")
    return ["obedience", *(f"obedience_{name}" for name in cases), *(f"accuracy_{name}" for name in _MODES)]


_LAST = "obedience_last_flag"


def _unfit(items: Sequence[tuple[Task, Item]], job: DistillJob, excess: int) -> str:
    """The error that no problem fits behind an earlier turn, and the fix; the shortest is `excess` tokens too long."""
    most = min(job.spec.sampling_of(task.sampling).max_tokens for task, _ in items) - excess
    fix = f"lower sampling.max_tokens to {most} or less" if most > 0 else "take a student with a longer context"
    room = f"the student's context of {counted(room_of(job.student), 'token')}"
    return f"no held-out problem and its answer fit {room} behind an earlier turn; {fix}, or leave the gate out"


def obedience(job: DistillJob, model: Path, setting: Setting, flags: Flags, *, turns: bool) -> dict[str, float]:
    """Shares in [0, 1] by case, `obedience` over all of them, and accuracies; empty without held-out problems.

    `turns`: test earlier turns too.
    """
    items = measured_items(job)
    if not items:
        return {}
    questions = {name: [(task, _question(item, name, flags)) for task, item in items] for name in _CASES}
    wants: dict[str, list[bool]] = {name: [thinks] * len(items) for name, thinks in _CASES.items()}
    if turns:
        room = room_of(model)
        all_turns = _turns(items, job, model, flags)
        conversations = [(task, item, messages) for task, item, messages, needed in all_turns if needed <= room]
        questions["last_flag"] = [(task, Variant(item, messages, _AUTO)) for task, item, messages in conversations]
        wants["last_flag"] = [flags.read(messages) for _, _, messages in conversations]
    replies = ask_all(model, job, setting, questions)
    obeyed = {name: [_obeys(r, w) for r, w in zip(replies[name], wants[name], strict=True)] for name in replies}
    every = [value for values in obeyed.values() for value in values]
    shares = {f"obedience_{name}": sum(values) / len(values) for name, values in obeyed.items() if values}
    accuracies = {f"accuracy_{name}": _accuracy(replies[name]) for name in _MODES}
    return {"obedience": sum(every) / len(every), **shares, **accuracies}


def two_turns(
    earlier: Item, answer: str, now: Sequence[Message], flags: Flags, first: bool, last: bool | None
) -> list[Message]:
    """A conversation whose first turn has a flag and was answered, and whose last turn has another flag or none."""
    opening = flags.write(earlier.problem.messages, first)
    return [*opening, Message("assistant", answer), *flags.write([m for m in now if m.role != "system"], last)]


def _question(item: Item, case: str, flags: Flags) -> Variant:
    flag = {"think": True, "no_think": False}.get(case)
    return Variant(item, flags.write(item.problem.messages, flag), _OFF if case == "switch" else _AUTO)


def _turns(
    items: Sequence[tuple[Task, Item]], job: DistillJob, model: Path, flags: Flags
) -> Iterator[tuple[Task, Item, list[Message], int]]:
    """Every problem after its neighbour, with the four patterns of flags in turn, and the most tokens it may take."""
    text = Text(model)
    for number, (task, item) in enumerate(items):
        earlier = items[number - 1][1]
        first = number % 2 == 0
        last = None if number % 4 < 2 else not first
        messages = two_turns(
            earlier, gold_text(earlier.target) or str(earlier.target), item.problem.messages, flags, first, last
        )
        length = len(text.render(messages, None).token_ids or ())
        yield task, item, messages, length + job.spec.sampling_of(task.sampling).max_tokens


def _obeys(reply: VariantReply, thinks: bool) -> bool:
    if not reply.finished or OPEN in reply.text or CLOSE in reply.text:
        return False
    return bool(reply.thinking.strip()) == thinks


def _accuracy(replies: Sequence[VariantReply]) -> float:
    return sum(reply.right for reply in replies) / len(replies)
