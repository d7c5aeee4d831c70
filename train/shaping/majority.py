"""TTRL's reward: agreement with the most frequent answer of the group, so that no answer key is needed.

Zuo et al. 2025, "TTRL: Test-Time Reinforcement Learning" (arXiv:2504.16084), section 2.2: the majority of the sampled
answers is the estimated label, and a rollout that has it gets 1, any other 0. With `verifier_weight = 0` it is the
whole reward; verdicts are then logged and decide nothing. A wrong majority is reinforced just the same, so this helps
where the right answer is the most frequent. Extracted answers are compared character by character. Left out: voting
over more samples than are learnt from (the paper's 64 and 32).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from train.base.rollout import Rollout
from train.rollouts.rewards import Shaping


def majority() -> Shaping:
    """1 for the commonest answer of the group, 0 for any other; a cut rollout, or one without an answer, has no vote.

    Of several most frequent ones the first drawn counts.
    """
    return _agreement


def _agreement(group: Sequence[Rollout], step: int) -> list[float]:
    answers = [None if rollout.truncated else rollout.final for rollout in group]
    votes = Counter(answer for answer in answers if answer is not None)
    label = max(votes, key=lambda answer: votes[answer], default=None)
    return [float(label is not None and answer == label) for answer in answers]
