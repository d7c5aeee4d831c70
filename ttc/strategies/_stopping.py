"""When a vote is decided: two posteriors on "the leader is the majority", and unanimity of a window.

All are functions of the sizes of the answer classes (the largest first) or of the last answers; no randomness.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def beta_posterior(counts: Sequence[float]) -> float:
    """Return the chance that the leader beats the runner-up: 1 - I_1/2(a + 1, b + 1), other classes ignored.

    For whole counts the incomplete beta function is a binomial tail, so this is exact.

    >>> beta_posterior([4])
    0.96875
    """
    a, b = _leaders(counts)
    return float(sum(math.comb(a + b + 1, i) for i in range(a + 1)) / 2 ** (a + b + 1))


def dirichlet_posterior(counts: Sequence[float], num_nodes: int = 400) -> float:
    """Return the chance that the leader's share is the largest under a Dirichlet(counts + 1) posterior.

    With two classes it is `beta_posterior`; a lone class has an unseen rival. Shares are ratios of independent Gamma
    variables, so it is the integral of the leader's density times the others' distribution functions (Simpson's rule).
    """
    sizes = [round(count) for count in counts]
    if len(sizes) < 3:
        return beta_posterior(counts)
    leader, *others = sizes
    width = (leader + 1 + 12 * math.sqrt(leader + 1)) / num_nodes
    values = []
    for node in range(num_nodes + 1):
        x = node * width
        density = math.exp(leader * math.log(x) - x - math.lgamma(leader + 1)) if x else float(leader == 0)
        values.append(density * math.prod(_gamma_below(x, other + 1) for other in others))
    return width / 3 * (values[0] + values[-1] + 4 * sum(values[1:-1:2]) + 2 * sum(values[2:-1:2]))


def _gamma_below(x: float, shape: int) -> float:
    """P(Gamma(shape) <= x) for a whole shape: one minus a Poisson sum."""
    term = total = math.exp(-x)
    for i in range(1, shape):
        term *= x / i
        total += term
    return max(1.0 - total, 0.0)


def unanimous(keys: Sequence[str | None], window: int) -> bool:
    """Whether the last `window` answers are one and the same; an abstention agrees with nothing."""
    last = keys[-window:]
    return len(last) == window and last[0] is not None and len(set(last)) == 1


def _leaders(counts: Sequence[float]) -> tuple[int, int]:
    sizes = [round(count) for count in counts]
    return sizes[0] if sizes else 0, sizes[1] if len(sizes) > 1 else 0
