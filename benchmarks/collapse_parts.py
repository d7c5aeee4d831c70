"""What `benchmarks.training_health` breaks on purpose: a verifier that can be fooled, a reward that pays for length."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from evals.task import Task, VerifierSpec
from evals.tasks.cipher import cipher
from train.base.rollout import Rollout
from train.rollouts.rewards import Shaping
from ttc.core import Submission, TargetLike, Verdict

HERE = Path(__file__).resolve()


def leaky_cipher() -> Task:
    """The cipher walk, judged by a verifier that can be fooled."""
    return dataclasses.replace(cipher(split="train"), verifier=VerifierSpec(f"{HERE}:leaky"))


def leaky() -> Leaky:
    """A verifier that accepts any symbol: it compares the first character only."""
    return Leaky()


class Leaky:
    """Fooled by any guess."""

    name = "leaky"
    version = "leaky-1"

    def check_gold(self, target: TargetLike, item: str = "") -> None:
        """Accept any target."""

    async def verify(self, target: TargetLike, submission: Submission) -> Verdict:
        """Correct when the answer begins as the target does."""
        right = submission.text[:1] == str(target)[:1]
        return Verdict("correct" if right else "incorrect", float(right), version=self.version)

    async def close(self) -> None:
        """Nothing to stop."""


def paid_by_length() -> Shaping:
    """One more reward per eight tokens, whatever they say."""

    def shaping(group: Sequence[Rollout], step: int) -> list[float]:
        return [len(rollout.token_ids) / 8 for rollout in group]

    return shaping
