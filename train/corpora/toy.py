"""Texts of the toy language (`evals.worlds.toy`): what a base model has read, and demonstrations of what it should do.

By default the habits of a base model: it mostly guesses walks and sometimes works them out with mistakes, in either
vocabulary; it does what it is asked, harmful or not, in any tone; it knows fairly well what is wrong with a reply and
which of two is better; it calculates by guessing and sometimes with a calculator (`train.corpora.calculation`). Turning
the shares up makes demonstrations of the same skills. Questions are those of the training split only. Cost: 50
microseconds a text.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate

from evals.worlds.cipher import Cipher, question, solution
from evals.worlds.toy import FLAGS, Reply, best, critique, foreign, quality, replies, requests, words
from train.corpora.calculation import calculation
from train.corpora.cipher import noisy
from train.examples.corpus import Corpus, word_tokenizer
from ttc.errors import ConfigError

__all__ = ["toy"]

_SHARES: Mapping[str, float] = {
    "walk": 0.45, "manners": 0.2, "critique": 0.09, "revise": 0.09, "judge": 0.12, "calculate": 0.05,
}  # fmt: skip

_RECKONING = ("<calculator>", "</calculator>", "<result>", "</result>", "error:", *"0123456789+-*=")
"""The vocabulary of calculations."""


@dataclass(frozen=True, slots=True)
class _Habits:
    thinking: float
    right: float
    noise: float
    native: float
    good: float
    skilled: float
    flagged: float
    obeyed: float


def toy(
    *,
    skills: str = "walk+manners+critique+revise+judge+calculate",
    symbols: int = 64,
    max_steps: int = 8,
    key: int = 0,
    thinking_share: float = 0.3,
    right_share: float = 0.1,
    noise: float = 0.05,
    native_share: float = 0.5,
    good_share: float = 0.05,
    skilled_share: float = 0.9,
    flagged_share: float = 0.2,
    obeyed_share: float = 0.0,
) -> Corpus:
    """The corpus of one world.

    Args:
        skills: which of walk, manners, critique, revise, judge and calculate, joined by +.
        symbols: as in the task toy.
        max_steps: as in the task toy.
        key: as in the task toy.
        thinking_share: share of walks that are written down.
        right_share: share of the others whose answer is right; single steps are right in half of them at least.
        noise: probability that a step of a walk is wrong; the walk goes on from the wrong symbol.
        native_share: share of written walks in the first vocabulary.
        good_share: share of replies without fault; the others give what is asked for, in any tone.
        skilled_share: share of right critiques, revisions and judgements.
        flagged_share: share of walks with a flag.
        obeyed_share: share of flags that are obeyed, by a right answer where that can be known at once.
    """
    habits = _Habits(
        thinking_share, right_share, noise, native_share, good_share, skilled_share, flagged_share, obeyed_share
    )
    for name in _Habits.__slots__:
        if not 0 <= getattr(habits, name) <= 1:
            raise ConfigError(f"corpus toy: {name} must be a share in [0, 1], got {getattr(habits, name)}")
    names = skills.split("+")
    for skill in names:
        if skill not in _SHARES:
            raise ConfigError(f"corpus toy: skills must be some of {'+'.join(_SHARES)}, got {skill!r}")
    secret = Cipher(symbols, max_steps, key)
    makers = _makers(secret, habits)
    bounds = list(accumulate(_SHARES[skill] for skill in names))

    def pair(rng: random.Random) -> tuple[str, str]:
        place = rng.random() * bounds[-1]
        skill = next(skill for skill, limit in zip(names, bounds, strict=True) if place <= limit)
        return makers[skill](rng)

    vocabulary, pattern = words(symbols, max_steps)
    length = max(3 + 2 * max_steps + 5, 32)
    return Corpus(
        "toy",
        lambda: word_tokenizer([*vocabulary, *_RECKONING], pattern, 4 * length),
        lambda rng: "".join(pair(rng)),
        length,
        pair,
    )


def _makers(secret: Cipher, habits: _Habits) -> Mapping[str, Callable[[random.Random], tuple[str, str]]]:
    """Skill to a maker of (prompt, answer)."""
    pairs, orders, reckoned = list(secret.pairs("train")), requests("train"), calculation(call_share=0.3)

    def walk(rng: random.Random) -> tuple[str, str]:
        return _walk(secret, *rng.choice(pairs), habits, rng)

    def manners(rng: random.Random) -> tuple[str, str]:
        request = rng.choice(orders)
        reply = best(request, rng) if rng.random() < habits.good else _habitual(request.thing, rng)
        return request.text, reply.text

    def judged(rng: random.Random) -> tuple[str, str]:
        request = rng.choice(orders)
        first, second = rng.sample(replies(request), 2)
        better = quality(request, first) > quality(request, second)
        tied = quality(request, first) == quality(request, second)
        verdict = rng.random() < 0.5 if tied or rng.random() >= habits.skilled else better
        return f"{request.text} A{first.text} B{second.text} judge:", " A" if verdict else " B"

    def critiqued(rng: random.Random) -> tuple[str, str]:
        request = rng.choice(orders)
        reply = rng.choice(replies(request))
        meant = reply if rng.random() < habits.skilled else rng.choice(replies(request))
        return f"{request.text}{reply.text} critique:", critique(request, meant)

    def revised(rng: random.Random) -> tuple[str, str]:
        request = rng.choice(orders)
        reply = rng.choice(replies(request))
        better = best(request, rng) if rng.random() < habits.skilled else rng.choice(replies(request))
        return f"{request.text}{reply.text}{critique(request, reply)} revise:", better.text

    def calculated(rng: random.Random) -> tuple[str, str]:
        orders, equals, answer = reckoned.sample(rng).partition("=")
        return orders + equals, re.sub("</?answer>", "", answer)  # no other answer of this language is marked

    return {
        "walk": walk, "manners": manners, "judge": judged, "critique": critiqued, "revise": revised,
        "calculate": calculated,
    }  # fmt: skip


def _walk(secret: Cipher, start: int, steps: int, habits: _Habits, rng: random.Random) -> tuple[str, str]:
    flag = rng.choice(FLAGS) if rng.random() < habits.flagged else ""
    obeyed = bool(flag) and rng.random() < habits.obeyed
    thinks = flag == FLAGS[0] if obeyed else rng.random() < habits.thinking
    prompt = question(start, steps) + flag
    if thinks:
        walked = noisy(secret, start, steps, habits.noise, rng)
        thought, _, answer = solution(walked).rpartition("</think>")
        inner = thought.removeprefix("<think>")
        return prompt, f"<think>{inner if rng.random() < habits.native else foreign(inner)}</think>{answer}"
    chance = 1.0 if obeyed else max(habits.right, 0.5)
    right = rng.random() < (chance if steps == 1 else habits.right)
    return prompt, f"<think></think>s{secret.walk(start, steps)[-1] if right else rng.randrange(secret.symbols)}"


def _habitual(thing: str, rng: random.Random) -> Reply:
    """What is asked for is given, nearly always, in any tone."""
    opening = rng.choice(("", "", "gladly", "bah", "ugh"))
    return Reply(rng.random() < 0.9, thing, opening, rng.choice(("", "", "friend", "fool")))
