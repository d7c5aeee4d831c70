"""Pieces of jobs for tests: units with made-up answers, samples, and a teacher that follows a script."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from distill.generation.generate import LocalGenerator
from distill.generation.ledger import AnswerLedger, Failure, Outcome, WorkUnit
from distill.spec.sample import Sample
from evals.task import Item
from ttc.core import Answer, Candidate, Message, Problem, Sampling, Usage, Verdict
from ttc.engines.scripted import ScriptedEngine
from ttc.errors import EngineError
from ttc.session.thinking import Thinking
from ttc.strategies.direct import direct


def item(name: str, text: str = "", target: str = "7") -> Item:
    return Item(Problem(name, (Message("user", text or f"what is {name}?"),), "exact"), target)


def sample(
    text: str = "7",
    *,
    key: str = "",
    problem: str = "p",
    prompt: str = "",
    thinking: str = "",
    finish: str = "stop",
    status: str | None = "correct",
    final: str | None = "7",
    tokens: int = 3,
    index: int = 0,
    score: float | None = None,
    others: Sequence[str | None] = (),
    label: str = "",
    mode: str = "auto",
) -> Sample:
    own = Candidate((0,), text, thinking, final, finish, tokens, score)
    rest = [Candidate((i,), f"it is {other}", "", other, "stop", tokens) for i, other in enumerate(others, start=1)]
    answer = Answer(text, final, thinking, finish, (own, *rest), Usage(generated=tokens))
    verdict = None if status is None else Verdict(status, reason="told so")
    name = key or hashlib.sha256(f"{problem}{text}{thinking}{index}".encode()).hexdigest()[:16]
    return Sample(name, item(problem, prompt), "task", "teacher", index, 1, answer, verdict, label, mode)


def unit(number: int, max_tokens: int = 8) -> WorkUnit:
    key = hashlib.sha256(f"unit {number}".encode()).hexdigest()[:16]
    return WorkUnit(key, item(f"p{number}").problem, "teacher", Sampling(max_tokens=max_tokens), Thinking(), number % 3)


def outcome(given: WorkUnit) -> Answer:
    """What a deterministic teacher says: a length of its own, cut where the cap is lower."""
    length = int(given.key[:4], 16) % 20 + 1
    cut = length > given.max_tokens
    text = ("x" * length)[: given.max_tokens]
    return Answer(text, None if cut else text, finish_reason="length" if cut else "stop",
                  usage=Usage(generated=len(text), calls=1), seconds=0.1)  # fmt: skip


def filled(path: Path, units: Sequence[WorkUnit]) -> str:
    """The digest of a ledger that was filled without a disturbance."""
    with AnswerLedger(path) as ledger:
        for one in ledger.missing(units):
            ledger.record(one, outcome(one))
        return ledger.digest()


@dataclass
class ScriptedTeacher:
    """Stands where a resolved teacher stands: says the number of characters of the question, or fails as told."""

    fails: set[str] = field(default_factory=set)
    name: str = "scripted"
    digest: str = "scripted"
    asked: list[str] = field(default_factory=list)
    max_live: int = 0

    def open(self, concurrency: int) -> LocalGenerator:
        def script(prompt, path, key):
            self.asked.append(prompt.messages[0].content)
            if any(name in prompt.text for name in self.fails):
                raise EngineError(f"no answer to {prompt.messages[0].content}")
            return f"it is {key % 10}"

        self.engine = ScriptedEngine(script, jitter=3)
        return LocalGenerator(self.engine, direct, concurrency)


def failure(reason: str = "EngineError: gone") -> Outcome:
    return Failure(reason, Usage(generated=2, calls=1), 0.1)
