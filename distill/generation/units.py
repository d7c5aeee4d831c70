"""The unit of work: one answer of one teacher to one prompt, and the key by which it is paid once.

    key = digest(prompt digest, teacher digest, sampling digest without n and max_tokens, number of the sample)
    seed = hash of the key

So the same request is the same unit whenever, in whatever order and by whomever it is made; raising n adds units, and
raising max_tokens makes anew only what it had cut. The problem is asked under its prompt's digest instead of its id:
two problems with one prompt are one unit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace

from distill.spec.digests import name_of
from distill.spec.method import Assignment
from evals.task import Item
from ttc.config.recipes import dump
from ttc.core import Problem, Sampling
from ttc.session.thinking import Thinking

__all__ = ["Unit", "distinct", "prompt_digest", "sampling_digest", "units_of"]


@dataclass(frozen=True, slots=True)
class Unit:
    """What is asked of a teacher. `problem` has no target; its id is the digest of its prompt."""

    key: str
    problem: Problem
    teacher: str
    sampling: Sampling
    thinking: Thinking
    index: int

    @property
    def seed(self) -> int:
        """The seed of the session that makes it."""
        return int(self.key[:15], 16)

    @property
    def max_tokens(self) -> int:
        """The cap of one draw."""
        return self.sampling.max_tokens


def units_of(assignment: Assignment, seed: int) -> Iterator[tuple[Item, Unit]]:
    """The units of an assignment: all first samples, then all second ones, so that a prefix is a fair part."""
    teacher, how = assignment.teacher.digest, sampling_digest(assignment.sampling, assignment.thinking, seed)
    asked = [(item, replace(item.problem, id=prompt_digest(item.problem), meta={})) for item in assignment.items]
    for index in range(assignment.n):
        for item, problem in asked:
            key = name_of([problem.id, teacher, how, index])
            yield item, Unit(key, problem, teacher, assignment.sampling, assignment.thinking, index)


def prompt_digest(problem: Problem) -> str:
    """Digest of what is asked and of how answers to it are read."""
    return name_of([problem.kind, *([message.role, message.content] for message in problem.messages)])


def sampling_digest(sampling: Sampling, thinking: Thinking, seed: int) -> str:
    """Digest of how a draw is made, without the cap on its tokens; `seed` is the job's."""
    kept = {item.name: dump(getattr(sampling, item.name)) for item in fields(Sampling)}
    return name_of({**kept, "max_tokens": None, "seed": seed, "thinking": dump(thinking)})


def distinct(pairs: Iterable[tuple[Item, Unit]]) -> list[Unit]:
    """The units, each once, in their order."""
    return list({unit.key: unit for _, unit in pairs}.values())
