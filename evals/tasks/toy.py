"""The toy language (`evals.worlds.toy`), one skill at a time: walks, flags, manners, judging, critique, revision.

Made for training: every answer is decided by patterns over thinking and text (the verifier `regex`), whose partial
credit is the share that holds. What needs a calculator is the task `calculation`. A model must have learnt the
language: `ttc train run tulu3 --scale nano` makes one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from evals.task import Item, Task, VerifierSpec
from evals.worlds.cipher import Cipher, question
from evals.worlds.supply import Split
from evals.worlds.toy import FLAGS, critique, quality, replies, requests, target
from ttc.core import Message, Problem, Sampling, Target

Skill = Literal["walk", "consistent", "flags", "manners", "judge", "critique", "revise", "general"]


@dataclass(frozen=True, slots=True)
class _Ask:
    """A prompt, what its answer must show, and how hard it is."""

    prompt: str
    target: Target
    difficulty: str = ""


def toy(*, skill: Skill = "walk", symbols: int = 64, max_steps: int = 8, key: int = 0, split: Split = "eval") -> Task:
    """Show one skill of the toy language.

    Args:
        skill: walk (right), consistent (right, thought in the first vocabulary), flags (thinks or not as told), manners
            (harmless, helpful, polite), judge, critique, revise, or general (consistent, flags and manners).
        symbols: size of the permutation that is walked.
        max_steps: longest walk.
        key: which secret permutation.
        split: eval (one question in six) or train (the rest).
    """
    secret = Cipher(symbols, max_steps, key)
    return Task(
        name="toy",
        kind="exact",
        load=lambda limit, seed: _items(skill, _SKILLS[skill](secret, split), limit),
        sampling=Sampling(max_tokens=4 + 2 * max_steps, temperature=1.0),
        params={"skill": skill, "symbols": symbols, "max_steps": max_steps, "key": key, "split": split},
        note="needs a model that has learnt the toy language: ttc train run tulu3 --scale nano",
        verifier=VerifierSpec("regex", {"where": "all"}),
    )


def _items(skill: Skill, asks: Iterator[_Ask], limit: int | None) -> Iterator[Item]:
    for ask in itertools.islice(asks, limit):
        problem = Problem(f"toy-{skill}-{ask.prompt.strip()}", (Message("user", ask.prompt),), "exact")
        yield Item(problem, ask.target, difficulty=ask.difficulty or skill)


def _walks(secret: Cipher, split: Split, forbid: tuple[str, ...] = ()) -> Iterator[_Ask]:
    for start, steps in secret.pairs(split):
        patterns = {"require": [f"</think>s{secret.walk(start, steps)[-1]}$"], "forbid": list(forbid)}
        yield _Ask(question(start, steps), patterns, f"walk {steps}")


def _flags(secret: Cipher, split: Split) -> Iterator[_Ask]:
    """Think and be right, or answer at once, by turns; at once only a single step can be known."""
    think, no_think = FLAGS
    for number, (start, steps) in enumerate(secret.pairs(split)):
        end = f"s{secret.walk(start, steps)[-1]}$"
        if number % 2:
            yield _Ask(question(start, steps) + think, {"require": [f"n0</think>{end}"]}, "thought about")
        else:
            at_once = end if steps == 1 else r"s\d+$"
            yield _Ask(question(start, steps) + no_think, {"require": [f"^</think>{at_once}"]}, "at once")


def _manners(secret: Cipher, split: Split) -> Iterator[_Ask]:
    for request in requests(split):
        yield _Ask(request.text, target(request), "harmful" if request.harmful else "harmless")


def _judged(secret: Cipher, split: Split) -> Iterator[_Ask]:
    for request in requests(split):
        every = replies(request)
        pairs = ((a, b) for a, b in itertools.pairwise(every) if quality(request, a) != quality(request, b))
        first, second = next(pairs)
        verdict = "A" if quality(request, first) > quality(request, second) else "B"
        yield _Ask(f"{request.text} A{first.text} B{second.text} judge:", f"^</think> {verdict}$")


def _critiques(secret: Cipher, split: Split) -> Iterator[_Ask]:
    for request in requests(split):
        reply = replies(request)[0]
        yield _Ask(f"{request.text}{reply.text} critique:", f"^</think>{critique(request, reply)}$")


def _revisions(secret: Cipher, split: Split) -> Iterator[_Ask]:
    for request in requests(split):
        reply = replies(request)[0]
        yield _Ask(f"{request.text}{reply.text}{critique(request, reply)} revise:", target(request))


def _general(secret: Cipher, split: Split) -> Iterator[_Ask]:
    """The skills of a general assistant in turn, as long as there are some of each."""
    parts = (_walks(secret, split, ("ж",)), _flags(secret, split), _manners(secret, split))
    yield from itertools.chain.from_iterable(zip(*parts, strict=False))


_SKILLS: Mapping[Skill, Callable[[Cipher, Split], Iterator[_Ask]]] = {
    "walk": _walks,
    "consistent": lambda secret, split: _walks(secret, split, ("ж",)),
    "flags": _flags,
    "manners": _manners,
    "judge": _judged,
    "critique": _critiques,
    "revise": _revisions,
    "general": _general,
}
