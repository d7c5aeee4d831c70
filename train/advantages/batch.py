"""REINFORCE with the batch's mean as its baseline, divided by the batch's spread.

Williams 1992. Unlike a group's mean, the batch's mean does not depend on how hard a prompt is: easy prompts are pushed
and hard ones held back. Left out: a moving baseline.
"""

from __future__ import annotations

from train.advantages.reinforce_pp import reinforce_pp
from train.update.terms import Advantage, Spread, check_eps


def batch(*, spread: Spread = "population", eps: float = 1e-6) -> Advantage:
    """Reward minus the batch's mean, divided by the batch's spread.

    Args:
        spread: population divides the sum of squares by n, sample by n - 1.
        eps: added to the spread.
    """
    check_eps("batch", eps)
    return reinforce_pp(baseline="none", spread=spread, eps=eps)
