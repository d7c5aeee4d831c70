"""Plain functions as scorers and verifiers, so that one line of logic needs no class.

    ttc.run(question, strategy="best_of_n", n=8, scorer=lambda prompt: -len(prompt.generated_text))
    ttc.evaluate(rows, verifier=lambda target, submission: target in submission.text)

A score function sees a prompt with the path taken and returns a number, higher is better, or None for no verdict. A
check function sees the target and a submission; it returns True or False, a reward in [0, 1] as partial credit (1 is
correct), a `Verdict`, or None for no verdict. Both may be async. A cut submission has no answer and is not shown to it.
Their exceptions pass through unchanged; `ttc.evaluate` turns one into a verdict `error` once a verdict was given.

Cost: none beside the function's own. Left out: prices of score functions (their tokens, if any, are not on the ledger),
known cases of check functions.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias, cast

from ttc.core import Prompt, Score, Scorer, Submission, TargetLike, UsageSink, Verdict, Verifier
from ttc.errors import ConfigError, PluginError

Number: TypeAlias = float | None
Judgement: TypeAlias = bool | float | Verdict | None
ScoreFunction: TypeAlias = Callable[[Prompt], Number | Awaitable[Number]]
CheckFunction: TypeAlias = Callable[[Any, Submission], Judgement | Awaitable[Judgement]]


def as_scorer(scorer: Scorer | ScoreFunction) -> Scorer:
    """Return a scorer unchanged, and a function as a scorer; raises ConfigError if it does not take a prompt."""
    if hasattr(scorer, "score"):
        return cast("Scorer", scorer)
    _check_call("scorer", scorer, "prompt", "def score(prompt: ttc.Prompt) -> float | None")
    return FunctionScorer(scorer)


def as_verifier(verifier: Verifier | CheckFunction) -> Verifier:
    """Return a verifier unchanged, and a function as a verifier; raises ConfigError if its arguments do not fit."""
    if hasattr(verifier, "verify"):
        return cast("Verifier", verifier)
    written = "def check(target, submission: ttc.Submission) -> bool | float | None"
    _check_call("verifier", verifier, "target, submission", written)
    return FunctionVerifier(verifier)


class FunctionScorer:
    """A score function as a scorer."""

    def __init__(self, function: ScoreFunction) -> None:
        self._function, self._name = function, _name(function)

    async def score(self, prompts: Sequence[Prompt], on_usage: UsageSink) -> list[Score]:
        """Ask the function for each prompt, in order."""
        return [self._read(await _awaited(self._function(prompt))) for prompt in prompts]

    def release(self, problem_id: str) -> None:
        """Nothing is kept."""

    def _read(self, value: object) -> Score:
        if value is None:
            return Score(None, note=f"{self._name} gave no score")
        if not isinstance(value, int | float):
            raise PluginError(f"scorer {self._name} returned {type(value).__name__}; return a number, or None")
        return Score(float(value)) if math.isfinite(value) else Score(None, note=f"{value} is not a finite score")


class FunctionVerifier:
    """A check function as a verifier."""

    version = "function"

    def __init__(self, function: CheckFunction) -> None:
        self.name = _name(function)
        self._function = function

    def check_gold(self, target: TargetLike, item: str = "") -> None:
        """Any target is fine: only the function reads it."""

    async def verify(self, target: TargetLike, submission: Submission) -> Verdict:
        """Ask the function, unless the submission was cut."""
        if submission.finish_reason != "stop":
            return Verdict("no_answer", reason="truncated", version=self.version)
        return self._read(await _awaited(self._function(target, submission)))

    async def close(self) -> None:
        """Nothing runs."""

    def _read(self, value: object) -> Verdict:
        if isinstance(value, Verdict):
            return value
        if value is None:
            return Verdict("error", reason=f"{self.name} gave no verdict", version=self.version)
        if not isinstance(value, int | float) or not 0 <= value <= 1:
            raise PluginError(
                f"verifier {self.name} returned {value!r}; return True, False, a number in [0, 1], a Verdict, or None"
            )
        return Verdict("correct" if value == 1 else "incorrect", float(value), version=self.version)


async def _awaited(value: Any) -> object:
    """A function's result, awaited if need be; a number of numpy or torch as a Python number."""
    outcome = await value if inspect.isawaitable(value) else value
    return outcome.item() if getattr(outcome, "ndim", None) == 0 and hasattr(outcome, "item") else outcome


def _check_call(kind: str, function: object, arguments: str, written: str) -> None:
    if not callable(function):
        raise ConfigError(f"{kind}: a {type(function).__name__} is neither a name, a {kind} nor a function: {written}")
    if inspect.isclass(function):
        raise ConfigError(f"{kind} {function.__name__} is a class: give an object of it")
    try:
        inspect.signature(function).bind(*arguments.split(", "))
    except TypeError:
        raise ConfigError(f"{kind} {_name(function)} is given {arguments}: write {written}") from None
    except ValueError:  # written in C, without a readable signature
        return


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))
