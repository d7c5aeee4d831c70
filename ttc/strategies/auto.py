"""Auto: draw a few samples, look, and go on as long as a calibrated plan says that it pays.

Damani et al. 2024, "Learning How Hard to Think" (arXiv 2410.04707); Snell et al. 2024; how it decides: `ttc.planning`.
Easy and hopeless problems leave their tokens to those where more samples help. Two ways to spend:

    tokens=MEAN           what a problem may take on average; every problem decides by itself, by the plan alone
    --budget tokens=TOTAL in `ttc eval`: what the whole run may take, to the token. Waves over all problems, in problem
                          order; after each the rest is shared out anew among those that would gain most
                          (`evals.planner`). Without a plan the run learns one from its own first problems, blindly.

The plan is made once by `ttc calibrate` from a recorded run; what that cost stands in it. Cost: what was asked for.
A draw is a sample or, where the plan was calibrated on a tree search, a subtree of it. Left out: draws that think
longer.
"""

from __future__ import annotations

from ttc.core import Answer, Problem, Scorer
from ttc.errors import BudgetExceeded, ConfigError
from ttc.planning import Mixture, Plan, follow, load_plan, state_of
from ttc.selection import choose
from ttc.session import Session
from ttc.strategies._drawing import Draws
from ttc.strategies.majority import check_n
from ttc.voting import fallback


async def auto(
    problem: Problem,
    session: Session,
    *,
    plan: str | None = None,
    tokens: float | None = None,
    total: int | None = None,
    width: int | None = None,
    scorer: Scorer | None = None,
) -> Answer:
    """Return the answer of as many samples as the plan gives to problems that look like this one.

    Args:
        problem: what is asked.
        session: the metered engine.
        plan: file that `ttc calibrate` wrote; only a run with a `total` can do without.
        tokens: mean tokens a problem.
        total: tokens of the whole run (`ttc eval` takes them from --budget tokens); of this problem where it is alone.
        width: of a draw: 1 is a plain sample, more a subtree; for a run without a plan, which else takes samples.
        scorer: the one that the plan was calibrated with, if any.

    Raises:
        ConfigError: no plan, neither tokens nor total, a scorer too many or missing, too few tokens, or temperature 0.
    """
    mean = tokens if tokens is not None else total
    if plan is None or mean is None:
        raise ConfigError(
            "auto needs plan=FILE (make one: ttc calibrate RUN) and tokens=MEAN; a whole run can do without both: "
            "ttc eval --strategy auto --budget tokens=TOTAL"
        )
    prepared = session.shared(_Prepared)
    if (plan, mean) not in prepared:
        made = load_plan(plan)
        prepared[plan, mean] = made, follow(made, mean)
    made, mixture = prepared[plan, mean]
    check_scorer(made, scorer)
    if width not in (None, made.width):
        raise ConfigError(f"auto: width {width} is not that of the plan, {made.width}")
    check_n(made.ladder[-1], session, "the plan's number of samples")
    policy = mixture.pick(session.chance("auto"))
    draws = Draws(session, scorer, made.width)
    rung, name = 0, next(iter(made.rungs[0]))
    for rung, n in enumerate(made.ladder):
        try:
            await draws.up_to(n)
        except BudgetExceeded:
            break
        name = made.known(rung, state_of(draws.candidates, problem.kind, made.cuts))
        if session.exhausted or name not in policy.go[rung]:
            break
    select = made.select(rung, name)
    session.note("note", (), state=name, select=select, n=len(draws.candidates))
    chosen = choose(draws.candidates, problem.kind, select) or fallback(draws.candidates)
    return session.answer(chosen, draws.candidates, f"n={len(draws.candidates)}")


class _Prepared(dict[tuple[str, float], tuple[Plan, Mixture]]):
    """Plans that were read and solved, for all problems of a run."""


def check_scorer(plan: Plan, scorer: Scorer | None) -> None:
    """Refuse a scorer that the plan does not know, or the lack of the one that it was made with."""
    if plan.scored != (scorer is not None):
        raise ConfigError(f"auto: the plan was calibrated {'with' if plan.scored else 'without'} a scorer")
