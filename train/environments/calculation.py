"""Two-digit calculations with a calculator at hand, in a toy language (`evals.tasks.calculation`): learn to call it.

Rewarded is the right answer; a call beyond the first and a call that fails cost a little.
"""

from __future__ import annotations

from train.rollouts.environment import Environment


def calculation(*, max_calls: int = 2) -> Environment:
    """Return the environment.

    Args:
        max_calls: most calls of an episode.
    """
    return Environment(
        task="calculation:split=train",
        held_out="calculation:split=eval",
        tools=("calculator",),
        instruct=False,
        max_calls=max_calls,
        shaping=("calls:weight=-0.1", "failed_calls:weight=-0.1"),
    )
