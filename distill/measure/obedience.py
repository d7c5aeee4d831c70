"""Does a model think when it is told to, and not when it is told not to? Qwen3 calls such a measure ThinkFollow.

    think, no_think      the flag stands behind the question
    default              no flag: it thinks
    switch               the template's own switch is off: no second think block in the answer
    last_flag            an earlier turn says the opposite of the last one, or says it alone; only where turns fit

Every case is asked greedily of the same problems. A reply obeys when it ended itself and its think block is empty or
not, as was asked. `obedience` is the share over all cases; accuracy in both modes is told beside it, since a model that
thinks only where it is told shows it there. Cost: four or five answers per problem.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from distill.measure.asking import Question, Reply, ask_all, measured_items
from distill.spec.flags import Flags
from distill.spec.method import Job
from evals.task import Item, Task
from train.base.models import load_tokenizer
from train.base.stage import Setting
from ttc.core import Message
from ttc.engines.shared.text import Text
from ttc.session.thinking import CLOSE, OPEN, Thinking

__all__ = ["obedience", "two_turns"]

_AUTO, _OFF = Thinking(), Thinking(mode="off")


def obedience(job: Job, model: Path, setting: Setting, flags: Flags, *, turns: bool) -> dict[str, float]:
    """Shares in [0, 1] by case, `obedience` over all of them, and accuracies; empty without held-out problems.

    `turns`: ask about earlier turns too.
    """
    items = [(task, item) for task, found in measured_items(job) for item in found]
    if not items:
        return {}
    cases = {"think": True, "no_think": False, "default": True, "switch": False}
    questions = {name: [(task, _question(item, name, flags)) for task, item in items] for name in cases}
    wants: dict[str, list[bool]] = {name: [wanted] * len(items) for name, wanted in cases.items()}
    if turns:
        asked = _turns(items, model, flags)
        questions["last_flag"] = [(task, Question(item, messages, _AUTO)) for task, item, messages in asked]
        wants["last_flag"] = [flags.holding(messages) for _, _, messages in asked]
    replies = ask_all(model, job, setting, questions)
    obeyed = {name: [_obeys(r, w) for r, w in zip(replies[name], wants[name], strict=True)] for name in replies}
    every = [value for values in obeyed.values() for value in values]
    shares = {f"obedience_{name}": sum(values) / len(values) for name, values in obeyed.items() if values}
    accuracies = {f"accuracy_{name}": _accuracy(replies[name]) for name in ("think", "no_think")}
    return {"obedience": sum(every) / len(every), **shares, **accuracies}


def two_turns(
    earlier: Item, answer: str, now: Sequence[Message], flags: Flags, first: bool, last: bool | None
) -> list[Message]:
    """A conversation whose first turn has a flag and was answered, and whose last turn has another flag or none."""
    asked = flags.asked(earlier.problem.messages, first)
    return [*asked, Message("assistant", answer), *flags.asked([m for m in now if m.role != "system"], last)]


def _question(item: Item, case: str, flags: Flags) -> Question:
    flag = {"think": True, "no_think": False}.get(case)
    return Question(item, flags.asked(item.problem.messages, flag), _OFF if case == "switch" else _AUTO)


def _turns(items: Sequence[tuple[Task, Item]], model: Path, flags: Flags) -> list[tuple[Task, Item, list[Message]]]:
    """Every problem after its neighbour, the four ways of flags in turn; those that fit the model's context."""
    text, room = Text(model), int(load_tokenizer(model).model_max_length)
    found = []
    for number, (task, item) in enumerate(items):
        earlier = items[number - 1][1]
        first = number % 2 == 0
        last = None if number % 4 < 2 else not first
        messages = two_turns(earlier, str(earlier.target), item.problem.messages, flags, first, last)
        length = len(text.render(messages, None).token_ids or ())
        if length + task.sampling.max_tokens <= room:
            found.append((task, item, messages))
    return found


def _obeys(reply: Reply, thinks: bool) -> bool:
    if not reply.finished or OPEN in reply.text or CLOSE in reply.text:
        return False
    return bool(reply.thinking.strip()) == thinks


def _accuracy(replies: Sequence[Reply]) -> float:
    return sum(reply.right for reply in replies) / len(replies)
