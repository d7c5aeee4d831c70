"""The latent processes behind the `simulated` engine: states that steps go through, and the text that shows them.

A step is its state's letter, filler, and a blank line; what a path will do is a function of its text and of the key of
its draw, so any continuation of it, by any draw, agrees on what came before.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TypeAlias

from ttc import seeds

DELIMITER = "\n\n"
GOOD, WRONG, DECEPTIVE = "g", "b", "d"
FOUND, SEARCHING = "f", "n"
_STATES = frozenset((GOOD, WRONG, DECEPTIVE, FOUND, SEARCHING))
LEVELS = (0.97, 0.93, 0.86, 0.74, 0.60)
"""Success of one step at levels 1 to 5; over eight steps .78, .56, .30, .09 and .017."""
_LEVEL = re.compile(r"\blevel ([1-5])\b")
_FILLER = "acehijklmopqrstuvwxyz"
_CLOSE = "</think>"
_BOX = "\\boxed{"
_NORMAL = NormalDist()
Following: TypeAlias = Callable[[str, float], str]
"""The next state, from the last one and a uniform number."""


def truth(question: str) -> str:
    """The right answer to `question`; tasks use it as the target, the engine to simulate success."""
    return str(100 + seeds.derive(0, "truth", question) % 900)


@dataclass(frozen=True, slots=True)
class Process:
    """Parameters of a reasoner; see `ttc.engines.simulated.simulated`."""

    p: float | None
    steps: int
    spread: tuple[float, float] | None
    dispersion: float | None
    deceive: float
    repair: float
    attractor: float
    weights: tuple[float, ...]
    mean_step_tokens: int
    cv: float | None
    wrong_longer: float
    hazard: float | None
    forget: float

    def num_steps(self, question: str) -> int:
        """Steps before the answer: `steps`, or 1 + a negative binomial number with that mean and dispersion."""
        if self.dispersion is None or self.steps == 1:
            return self.steps
        dice = random.Random(seeds.derive(0, "steps", question))
        rate = dice.gammavariate(1 / self.dispersion, (self.steps - 1) * self.dispersion)
        count, passed = 0, dice.expovariate(1.0)
        while passed < rate:
            count, passed = count + 1, passed + dice.expovariate(1.0)
        return 1 + count

    def success(self, question: str, num_steps: int) -> float:
        """Chance that one step is right: the engine's, the question's level's, or of the question's own q."""
        if self.spread is not None:
            q = random.Random(seeds.derive(0, "difficulty", question)).betavariate(*self.spread)
            return float(q ** (1 / num_steps))
        level = _LEVEL.search(question)
        return self.p if self.p is not None else LEVELS[int(level[1]) - 1] if level else 0.8

    def reason(self, question: str, said: str, key: int, start: int) -> str:
        """Return what follows `said`: the rest of the steps and the boxed answer."""
        begun = _open_box(said)
        if begun is not None:
            body = said[:begun].removesuffix(DELIMITER)
            return f"{_BOX}{self._answer(question, body, GOOD)}}}"[len(said) - begun :]
        num_steps = self.num_steps(question)
        p = self.success(question, num_steps)
        text = self._steps(said, num_steps, key, start, lambda state, u: self._next(state, u, p))
        body = text[: text.rfind(DELIMITER)]
        return f"{body}{DELIMITER}{_BOX}{self._answer(question, body, GOOD)}}}"[len(said) :]

    def think(self, question: str, said: str, key: int, start: int) -> str:
        """Return what follows `said` for a reasoner that thinks: a search that finds the answer at a hazard.

        After the end of thinking the answer is what was found by then, whatever words came in between.
        """
        thought, closed, after = said.partition(_CLOSE)
        if not closed:
            thought = self._steps(thought, self.num_steps(question), key, start, self._search)
        answer = self._answer(question, thought, FOUND)
        if closed:
            if "}" in after[after.rfind(_BOX) :] and _BOX in after:
                return ""
            begun = _open_box(after)
            return f"{_BOX}{answer}}}"[0 if begun is None else len(after) - begun :]
        return f"{thought}{_CLOSE}{_BOX}{answer}}}"[len(said) :]

    def _answer(self, question: str, body: str, right: str) -> str:
        return truth(question) if last_state(body) == right else self.wrong(question, body)

    def _steps(self, said: str, num_steps: int, key: int, start: int, following: Following) -> str:
        """Complete `said` to `num_steps` whole steps; `following(state, u)` is the next state."""
        count = said.count(DELIMITER)
        if count >= num_steps:
            return said
        begin = said.rfind(DELIMITER) + len(DELIMITER) if count else 0
        pieces, partial = [said[:begin]], said[begin:]
        state = last_state(pieces[0])
        for _ in range(num_steps - count):
            position = start + begin
            following_state = following(state, seeds.uniform(key, position))
            step = self._complete(partial, following_state, key, position)
            pieces.append(step)
            begin, partial = begin + len(step), ""
            state = step[0] if step[0] in _STATES else state
        return "".join(pieces)

    def _next(self, state: str, u: float, p: float) -> str:
        if state in ("", GOOD):
            return GOOD if u < p else DECEPTIVE if u < p + (1 - p) * self.deceive else WRONG
        if state == DECEPTIVE:
            return DECEPTIVE
        return GOOD if u < self.repair else DECEPTIVE if u < self.repair + self.deceive else WRONG

    def _search(self, state: str, u: float) -> str:
        if state == FOUND:
            return SEARCHING if u < self.forget else FOUND
        return FOUND if u < (self.hazard or 0.0) else SEARCHING

    def _complete(self, partial: str, state: str, key: int, position: int) -> str:
        """A whole step that begins with `partial` (a step cut by length keeps its state and what it has)."""
        if partial.endswith("\n"):
            return partial + "\n"
        state = partial[:1] or state
        length = self._length(seeds.uniform(key, position + 1), state)
        tag = seeds.derive(key, "filler", position)
        letters = "".join(_FILLER[(tag >> 5 * i) % len(_FILLER)] for i in range(min(length, 8)))
        whole = state + letters + "." * (length - len(letters))
        return partial + whole[len(partial) :] + DELIMITER

    def _length(self, u: float, state: str) -> int:
        """Characters between the letter and the blank line: uniform, or log-normal with variation `cv`."""
        mean = (self.mean_step_tokens - 3) * (self.wrong_longer if state in (WRONG, DECEPTIVE) else 1.0)
        if self.cv is None:
            return 1 + int(u * 2 * mean)
        sigma = math.sqrt(math.log(1 + self.cv**2))
        z = _NORMAL.inv_cdf(min(max(u, 1e-9), 1 - 1e-9))
        return 1 + min(int(mean * math.exp(sigma * z - sigma**2 / 2)), 20 * self.mean_step_tokens)

    def wrong(self, question: str, body: str) -> str:
        """A wrong answer, chosen by the text of the path: the attractor, or one with Zipf weights."""
        key = seeds.derive(0, "wrong", question, body)
        threshold = seeds.uniform(key, 0) * sum(self.weights)
        if seeds.uniform(key, 1) < self.attractor:
            threshold = 0.0
        for rank, weight in enumerate(self.weights):
            threshold -= weight
            if threshold < 0:
                return str(int(truth(question)) + 1 + rank)
        return str(int(truth(question)) + len(self.weights))


def states(text: str) -> list[str]:
    """The state letters of the steps of `text`, a begun one included."""
    return [step[:1] for step in text.split(DELIMITER) if step]


def last_state(text: str) -> str:
    """The last state letter in `text`; empty before the first step. Injected words are no steps."""
    known = [state for state in states(text) if state in _STATES]
    return known[-1] if known else ""


def _open_box(text: str) -> int | None:
    """Where a box begins that `text` leaves open, or even half written."""
    begun = text.rfind("\\")
    tail = text[begun:]
    return begun if begun >= 0 and "}" not in tail and (_BOX.startswith(tail) or tail.startswith(_BOX)) else None


def zipf(num: int) -> tuple[float, ...]:
    """Weights 1, 1/2, 1/3, ... of the wrong answers."""
    return tuple(1.0 / rank for rank in range(1, num + 1))


def token_confidence(text: str, shift: float, states_before: str, noise: Sequence[float]) -> list[float]:
    """Log-probability of each character: -0.5, less `shift` in steps off track, plus the noise of its step."""
    values: list[float] = []
    for place, step in enumerate((states_before + text).split(DELIMITER)):
        level = -0.5 - (shift if step[:1] in (WRONG, DECEPTIVE, SEARCHING) else 0.0) + noise[place % len(noise)]
        values += [min(level, -1e-3)] * (len(step) + len(DELIMITER))
    return values[len(states_before) : len(states_before) + len(text)]
