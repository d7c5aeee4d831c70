"""Labels for the steps of a solution, for training and judging process reward models.

A step checker holds the target and says of every step whether the path is right up to and including it: 1, 0, or a
share in between, or None where it cannot tell. `RolloutChecker` estimates by rollouts (Wang et al. 2024,
"Math-Shepherd", arXiv:2312.08935): from each prefix it samples `rollouts` completions and takes the share that the
verifier finds correct; `hard` turns any correct one into a 1. Exact checkers know a domain
(`evals.data.worked_steps`).

Cost of rollouts: steps * rollouts completions, all on the session's ledger (`StepLabels.usage`); a prefix is computed
once per step where the engine caches. Left out: binary search for the first error (OmegaPRM), which labels fewer steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias

from ttc.answers import kind_of
from ttc.concurrent import gather
from ttc.core import Engine, Problem, Prompt, Sampling, Submission, TargetLike, Usage, Verdict, Verifier
from ttc.errors import ConfigError
from ttc.session.session import Session
from ttc.session.thinking import Thinking

STEP_DELIMITER = "\n\n"
Encode: TypeAlias = Callable[[str], tuple[int, ...]]
_UNKNOWN = ("timeout", "limit", "error")
"""Statuses of a rollout that say nothing about its prefix."""


@dataclass(frozen=True, slots=True)
class StepLabels:
    """`labels` has one entry per step: the chance that the path is right so far, None where nothing is known."""

    labels: tuple[float | None, ...]
    version: str
    usage: Usage = field(default_factory=Usage)

    @property
    def first_error(self) -> int | None:
        """Index of the first step that is surely wrong (label 0); None without one."""
        return next((index for index, label in enumerate(self.labels) if label == 0.0), None)


class StepChecker(Protocol):
    """Labels the steps of one solution."""

    name: str
    version: str

    async def check(self, problem: Problem, target: TargetLike, steps: Sequence[str]) -> StepLabels:
        """Label `steps`, texts without delimiters, in order."""
        ...


class RolloutChecker:
    """Estimates labels by completing every prefix; see the module."""

    name = "rollouts"

    def __init__(
        self,
        engine: Engine,
        verifier: Verifier,
        *,
        seed: int,
        rollouts: int = 8,
        hard: bool = False,
        sampling: Sampling | None = None,
        thinking: Thinking | None = None,
        delimiter: str = STEP_DELIMITER,
    ) -> None:
        """Complete with `engine` and judge with `verifier`; both are the caller's to close."""
        self._sampling = sampling or Sampling()
        if rollouts < 1 or (rollouts > 1 and self._sampling.temperature == 0):
            raise ConfigError(f"rollouts must be >= 1, and more than 1 need temperature > 0, got {rollouts}")
        self._engine, self._verifier, self._seed, self._rollouts, self._hard = engine, verifier, seed, rollouts, hard
        self._thinking, self._delimiter = thinking, delimiter
        model = engine.capabilities.model
        self.version = f"rollouts-1 {rollouts} of {model}, {'hard' if hard else 'soft'}, {verifier.version}"

    async def check(self, problem: Problem, target: TargetLike, steps: Sequence[str]) -> StepLabels:
        """Label every step by rollouts from behind it; all prefixes at once."""
        session = Session(
            problem,
            self._engine,
            answers=kind_of(problem.kind),
            seed=self._seed,
            sampling=self._sampling,
            thinking=self._thinking,
        )
        with closing(session):
            prompts = prefixes(session.render(), session.encode, steps, self._delimiter)
            labels = await gather(self._label(session, prompt, target) for prompt in prompts)
        return StepLabels(tuple(labels), self.version, session.usage)

    async def _label(self, session: Session, prompt: Prompt, target: TargetLike) -> float | None:
        completions = await session.generate(prompt, self._rollouts)
        ends = [session.candidate(prompt, completion) for completion in completions]
        pending = (self._verifier.verify(target, Submission(end.text, end.thinking, end.finish_reason)) for end in ends)
        return self._estimate(await gather(pending))

    def _estimate(self, verdicts: Sequence[Verdict]) -> float | None:
        decided = [verdict for verdict in verdicts if verdict.status not in _UNKNOWN]
        if not decided:
            return None
        share = sum(verdict.correct for verdict in decided) / len(decided)
        return float(share > 0) if self._hard else share


def prefixes(root: Prompt, encode: Encode, steps: Sequence[str], delimiter: str = STEP_DELIMITER) -> list[Prompt]:
    """The prompts that end behind each of `steps`; prefix i has path (i,), so its draws have keys of their own."""
    prompts = []
    prompt = root
    for index, step in enumerate(steps):
        text = step + delimiter
        prompt = prompt.extend(encode(text) if root.token_ids is not None else (), text)
        prompts.append(replace(prompt, path=(index,)))
    return prompts
