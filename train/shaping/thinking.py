"""A reward for form: 1 when the rollout thinks (or does not), with the block closed and an answer after it.

The format reward of DeepSeek-R1-Zero (arXiv:2501.12948). Form is not accuracy: the health rule
`format_without_accuracy` watches for the two diverging.
"""

from __future__ import annotations

from train.rollouts.rewards import Shaping, of_each


def thinking(*, wanted: bool = True) -> Shaping:
    """1 for a finished rollout whose thinking is there (or absent) as wanted, else 0.

    Args:
        wanted: whether a rollout should think.
    """
    return of_each(lambda r: float(not r.truncated and bool(r.thinking.strip()) == wanted and bool(r.text.strip())))
