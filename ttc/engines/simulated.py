"""A reasoning process with known success probabilities, for checking strategies against closed forms and at scale.

A path is on track while no step has failed. Each step succeeds with probability `p` and failure is absorbing; after
`steps` steps comes an answer: the right one if the path is on track, else a wrong one with Zipf weights. Options add
properties of real models: failed paths that look good to the scorer (`deceive`), one frequent wrong answer
(`attractor`), difficulties that vary by question (a level in its text, or `spread`), lengths that vary (`cv`), an
informative confidence (`confidence`), and a thinker that finds the answer at a hazard (`hazard`). The text has the form
of a model's: steps, then a boxed number.

A step is its state's letter, filler, and a blank line. A path's future is a function of its text and of its draw's key,
so any continuation, by any draw, agrees with the text before it. Randomness is keyed by path and position as in every
other engine, so the closed forms of search hold exactly in distribution. Its scorer is `ttc.scorers.simulated`; both
have the presets good, hackable and weak. Left out: caches; a strategy's own questions (refine, aggregate, knockout),
each of which is a separate question here, with its own answer.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from types import MappingProxyType
from typing import Literal, TypeAlias

from ttc import seeds
from ttc.config.values import above, at_least, within
from ttc.core import Completion, Path, Prompt, Sampling, UsageSink
from ttc.engines.scripted import Script, ScriptedEngine

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
    deceive: float
    repair: float
    attractor: float
    weights: tuple[float, ...]
    mean_step_tokens: int
    cv: float | None
    hazard: float | None
    forget: float

    def success(self, question: str) -> float:
        """Probability that one step is right: by the engine's `p`, the question's level, or the question's own draw."""
        if self.spread is not None:
            q = random.Random(seeds.derive(0, "difficulty", question)).betavariate(*self.spread)
            return float(q ** (1 / self.steps))
        level = _LEVEL.search(question)
        return self.p if self.p is not None else LEVELS[int(level[1]) - 1] if level else 0.8

    def reason(self, question: str, said: str, key: int, start: int) -> str:
        """Return what follows `said`: the rest of the steps and the boxed answer."""
        begun = _open_box(said)
        if begun is not None:
            body = said[:begun].removesuffix(DELIMITER)
            return f"{_BOX}{self._answer(question, body, GOOD)}}}"[len(said) - begun :]
        p = self.success(question)
        text = self._steps(said, key, start, lambda state, u: self._next(state, u, p))
        body = text[: text.rfind(DELIMITER)]
        return f"{body}{DELIMITER}{_BOX}{self._answer(question, body, GOOD)}}}"[len(said) :]

    def think(self, question: str, said: str, key: int, start: int) -> str:
        """Return what follows `said` for a reasoner that thinks: a search that finds the answer at a hazard.

        After the end of thinking the answer is the one found by then, whatever text came in between.
        """
        thought, closed, after = said.partition(_CLOSE)
        if not closed:
            thought = self._steps(thought, key, start, self._search)
        answer = self._answer(question, thought, FOUND)
        if closed:
            if "}" in after[after.rfind(_BOX) :] and _BOX in after:
                return ""
            begun = _open_box(after)
            return f"{_BOX}{answer}}}"[0 if begun is None else len(after) - begun :]
        return f"{thought}{_CLOSE}{_BOX}{answer}}}"[len(said) :]

    def _answer(self, question: str, body: str, right: str) -> str:
        return truth(question) if last_state(body) == right else self.wrong(question, body)

    def _steps(self, said: str, key: int, start: int, following: Following) -> str:
        """Complete `said` to `steps` whole steps; `following(state, u)` is the next state."""
        count = said.count(DELIMITER)
        if count >= self.steps:
            return said
        begin = said.rfind(DELIMITER) + len(DELIMITER) if count else 0
        pieces, partial = [said[:begin]], said[begin:]
        state = last_state(pieces[0])
        for _ in range(self.steps - count):
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
        """Complete a step that begins with `partial` (a step cut by length keeps its state and its text)."""
        if partial.endswith("\n"):
            return partial + "\n"
        state = partial[:1] or state
        length = self._length(seeds.uniform(key, position + 1))
        tag = seeds.derive(key, "filler", position)
        letters = "".join(_FILLER[(tag >> 5 * i) % len(_FILLER)] for i in range(min(length, 8)))
        whole = state + letters + "." * (length - len(letters))
        return partial + whole[len(partial) :] + DELIMITER

    def _length(self, u: float) -> int:
        """Characters between the letter and the blank line: uniform, or log-normal with variation `cv`."""
        mean = self.mean_step_tokens - 3
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
    """The state letters of the steps of `text`, including an incomplete one."""
    return [step[:1] for step in text.split(DELIMITER) if step]


def last_state(text: str) -> str:
    """The last state letter in `text`; empty before the first step. Injected text is not a step."""
    letters = [state for state in states(text) if state in _STATES]
    return letters[-1] if letters else ""


def _open_box(text: str) -> int | None:
    """Where an unclosed box begins in `text`, including a partly written one."""
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


Preset: TypeAlias = Literal["good", "hackable", "weak"]
_DECEIVE = MappingProxyType({"good": 0.0, "hackable": 0.03, "weak": 0.01})


class SimulatedEngine(ScriptedEngine):
    """A scripted engine whose log-probabilities indicate, with noise, whether a path is on track."""

    def __init__(self, script: Script, *, thinking: bool, jitter: int | None, confidence: float) -> None:
        """`confidence` is how much lower, in nats, the log-probability of a step off track is."""
        super().__init__(script, thinking=thinking, jitter=jitter)
        self._confidence = confidence

    async def generate(self, prompt: Prompt, sampling: Sampling, draws: range, on_usage: UsageSink) -> list[Completion]:
        """Continue by the process; see `ttc.core.Engine.generate`."""
        completions = await super().generate(prompt, sampling, draws, on_usage)
        if not self._confidence:
            return completions
        return [self._shifted(prompt, sampling, completion) for completion in completions]

    def _shifted(self, prompt: Prompt, sampling: Sampling, completion: Completion) -> Completion:
        key = seeds.derive(sampling.seed or 0, "confidence", completion.path[: len(prompt.path) + 1])
        before = prompt.generated_text
        steps = min((before + completion.text).count(DELIMITER) + 1, 64)  # later steps reuse the noise of earlier ones
        noise = [0.2 * (seeds.uniform(key, i) + seeds.uniform(key, i + 1000) - 1) for i in range(steps)]
        values = token_confidence(completion.text, self._confidence, before, noise)
        ids = len(completion.token_ids)
        return replace(completion, logprobs=tuple((values + [-0.5] * ids)[:ids]))


def simulated(
    *,
    p: float | None = None,
    steps: int = 8,
    preset: Preset = "good",
    spread: tuple[float, float] | None = None,
    deceive: float | None = None,
    repair: float = 0.0,
    attractor: float = 0.0,
    num_wrong: int = 20,
    mean_step_tokens: int = 12,
    cv: float | None = None,
    confidence: float = 0.0,
    hazard: float | None = None,
    forget: float = 0.0,
    jitter: int | None = None,
) -> ScriptedEngine:
    """Simulate a reasoner.

    Args:
        p: probability that a step is right; absent: by the level that the question names, else 0.8.
        steps: number of steps before the answer.
        preset: good, hackable or weak: how likely paths off track are to deceive the scorer (0, 0.03, 0.01 a step).
        spread: a, b: each question's success probability is drawn once from Beta(a, b).
        deceive: overrides the preset.
        repair: probability that a step brings a path back on track.
        attractor: share of the most frequent wrong answer among wrong answers.
        num_wrong: number of distinct wrong answers (Zipf weights).
        mean_step_tokens: mean length of a step in tokens.
        cv: lengths are log-normal with this coefficient of variation; absent: uniform.
        confidence: nats by which log-probabilities are lower off track; 0 is uninformative.
        hazard: makes it think, and is the probability that a step of thinking finds the answer.
        forget: probability that a step of thinking loses the answer it had found.
        jitter: seed of a random schedule, which must not change any result.
    """
    h = _DECEIVE[preset] if deceive is None else deceive
    within("simulated", 0, 1, p=p, deceive=h, repair=repair, attractor=attractor, hazard=hazard, forget=forget)
    within("simulated", 0, 1, **{"repair + deceive": repair + h})
    at_least("simulated", 1, steps=steps, num_wrong=num_wrong)
    at_least("simulated", 3, mean_step_tokens=mean_step_tokens)
    above("simulated", 0, cv=cv)
    above("simulated", 0, spread=None if spread is None else min(spread))
    process = Process(
        p=p,
        steps=steps,
        spread=spread,
        deceive=h,
        repair=repair,
        attractor=attractor,
        weights=zipf(num_wrong),
        mean_step_tokens=mean_step_tokens,
        cv=cv,
        hazard=hazard,
        forget=forget,
    )
    follow = process.reason if hazard is None else process.think

    def script(prompt: Prompt, path: Path, key: int) -> str:
        return follow(prompt.messages[-1].content, prompt.generated_text, key, prompt.rendered_len)

    return SimulatedEngine(script, thinking=hazard is not None, jitter=jitter, confidence=confidence)
