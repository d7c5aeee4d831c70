"""Adaptive: draw until the vote is decided, at most n times.

Aggarwal et al. 2023, "Let's Sample Step by Step: Adaptive-Consistency" (rules beta and dirichlet, arXiv 2305.11860); Li
et al. 2024, "Escape Sky-high Cost: Early-stopping Self-Consistency" (rule window, arXiv 2401.10480). Cost: between one
wave and n completions; the more a problem's answers agree, the fewer. `wave` draws are made together: one is cheapest
in tokens, more are faster. Early stopping can lock in a wrong early leader: compare with `majority`. Ties, abstentions:
see `ttc.choosing.selection`. Left out: the paper's cap on the number of classes (Dirichlet rule).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, TypeAlias

from ttc.answers import classes
from ttc.choosing.selection import Key, fallback, tally, vote
from ttc.config.signatures import drawing
from ttc.config.values import at_least
from ttc.core import Answer, Candidate, Problem
from ttc.errors import ConfigError
from ttc.session.session import Session, check_n

Rule: TypeAlias = Literal["beta", "dirichlet", "window"]


def _wave(rule: Rule, window: int, wave: int) -> int:
    """How many samples are drawn between two looks."""
    return window if rule == "window" else wave


@drawing(whole=True, wave=_wave)
async def adaptive(
    problem: Problem,
    session: Session,
    *,
    n: int = 40,
    rule: Rule = "beta",
    threshold: float = 0.95,
    window: int = 5,
    wave: int = 1,
) -> Answer:
    """Return the majority answer of as many samples as it takes to be sure of it.

    Args:
        problem: the question.
        session: the metered engine.
        n: most samples.
        rule: beta and dirichlet stop when the leader is the majority with probability `threshold`, against the
            runner-up or against all classes; window stops when one whole window agrees.
        threshold: probability at which beta and dirichlet stop.
        window: answers that must agree, for the rule of that name, which draws as many at a time.
        wave: samples drawn together between two looks, for the other rules.

    Raises:
        ConfigError: a bad n, wave or window, a threshold outside (0.5, 1), or n > 1 at temperature 0.
    """
    check_n("adaptive", n, session.sampling)
    at_least("adaptive", 1, wave=wave, window=window)
    if not 0.5 < threshold < 1:
        raise ConfigError(f"adaptive: threshold must be in (0.5, 1), got {threshold}")
    prompt = session.render()
    candidates: list[Candidate] = []
    size = _wave(rule, window, wave)
    while len(candidates) < n:
        numbers = range(len(candidates), min(len(candidates) + size, n))
        completions = await session.generate(prompt, numbers, least=0)
        candidates += [session.candidate(prompt, completion) for completion in completions]
        if len(completions) < len(numbers) or _DECIDED[rule](candidates, session.key, threshold, window):
            break
    leader = vote(candidates, session.key) or fallback(candidates)
    return session.answer(leader, candidates, "decided" if len(candidates) < n else "done")


_DECIDED: Mapping[Rule, Callable[[Sequence[Candidate], Key, float, int], bool]] = MappingProxyType(
    {
        "beta": lambda candidates, key, threshold, _: beta_posterior(tally(candidates, key)) >= threshold,
        "dirichlet": lambda candidates, key, threshold, _: dirichlet_posterior(tally(candidates, key)) >= threshold,
        "window": lambda candidates, key, _, window: unanimous(
            [None if c.final is None else key(c.final) for c in candidates], window
        ),
    }
)


def beta_posterior(counts: Sequence[float]) -> float:
    """Return the chance that the leader beats the runner-up: 1 - I_1/2(a + 1, b + 1), other classes ignored.

    For whole counts the incomplete beta function is a binomial tail, so this is exact.

    >>> beta_posterior([4])
    0.96875
    """
    a, b = [*map(round, counts[:2]), 0, 0][:2]
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
    """Whether the last `window` answers are equal; an abstention agrees with nothing."""
    last = keys[-window:]
    names = [key for key in last if key is not None]
    return len(names) == window and len({*classes(names).values()}) == 1
