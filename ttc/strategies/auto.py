"""Auto: draw a little, look, and go on as long as a calibrated plan says that it pays.

Damani et al. 2024, "Learning How Hard to Think" (arXiv 2410.04707); Snell et al. 2024; how it decides:
`ttc.allocation.policy`. Easy and hopeless problems leave their tokens to those where more samples help. Two ways to
spend:

    tokens=MEAN           what a problem may take on average; every problem decides by itself, by the plan alone
    --budget tokens=TOTAL in `ttc eval`: what the whole run may take, to the token. Waves over all problems, in problem
                          order; after each the rest is shared out anew among those that would gain most
                          (`evals.allocation.planner`). Without a plan the run learns one from its own first problems,
                          blindly.

The plan is made once by `ttc calibrate` from recorded runs; what that cost stands in it. Its routes are the ways of
drawing that it has seen: the greedy answer, plain samples, independent islands of a tree search; the budget picks the
route, what was drawn so far decides how far to go on it. Cost: what was asked for. Left out: draws that think longer.
"""

from __future__ import annotations

from ttc.allocation.policy import Mixture, follow, state_of
from ttc.allocation.table import DrawKind, Plan, load_plan
from ttc.choosing.selection import choose
from ttc.choosing.voting import fallback
from ttc.core import Answer, Problem, Scorer
from ttc.errors import ConfigError
from ttc.session.draws import check_n
from ttc.session.session import Session
from ttc.strategies._drawing import Draws


async def auto(
    problem: Problem,
    session: Session,
    *,
    plan: str | None = None,
    tokens: float | None = None,
    total: int | None = None,
    width: int | None = None,
    policy: str | None = None,
    scorer: Scorer | None = None,
) -> Answer:
    """Return the answer of as many draws as the plan gives to problems that look like this one.

    Args:
        problem: what is asked.
        session: the metered engine.
        plan: file that `ttc calibrate` wrote; only a run with a `total` can do without.
        tokens: mean tokens a problem.
        total: tokens of the whole run (`ttc eval` takes them from --budget tokens); of this problem where it is alone.
        width: without a plan: paths of a draw; absent or 1, plain samples, else islands of a tree search.
        policy: without a plan: how an island shares its width among its nodes, as of `tree`; absent: dvts.
        scorer: the one that the plan was calibrated with, if any.

    Raises:
        ConfigError: no plan, neither tokens nor total, a scorer too many or missing, too few tokens, temperature 0, or
            width or policy beside a plan.
    """
    mean = tokens if tokens is not None else total
    if plan is None or mean is None:
        raise ConfigError(
            "auto needs plan=FILE (make one: ttc calibrate RUN) and tokens=MEAN; a whole run can do without both: "
            "ttc eval --strategy auto --budget tokens=TOTAL"
        )
    prepared = session.shared(_Prepared)
    if (plan, mean) not in prepared:
        read = read_plan(plan, width=width, policy=policy, scorer=scorer)
        prepared[plan, mean] = read, follow(read, mean)
    table, mixture = prepared[plan, mean]
    choice = mixture.pick(session.chance("auto"))
    route, go = table.routes[choice.route], choice.climbs[choice.route].go
    for each in table.routes:
        check_n("auto", each.ladder[-1], session.sampling, "the plan's number of samples")
    draws = Draws(session, scorer, route.kind)
    rung, name = 0, next(iter(route.rungs[0]))
    for rung, n in enumerate(route.ladder):
        await draws.up_to(n)
        name = route.known(rung, state_of(draws.candidates, session.key, route.cuts))
        if session.exhausted or name not in go[rung]:
            break
    select = route.select(rung, name)
    session.note("note", (), route=choice.route, state=name, select=select, n=len(draws.candidates))
    best = choose(draws.candidates, session.key, select) or fallback(draws.candidates)
    return session.answer(best, draws.candidates, f"n={len(draws.candidates)}")


class _Prepared(dict[tuple[str, float], tuple[Plan, Mixture]]):
    """Plans that were read and solved, for all problems of a run."""


def read_plan(path: str, *, width: int | None, policy: str | None, scorer: Scorer | None) -> Plan:
    """Read the plan of a run; raises ConfigError where the other parameters of `auto` do not go with it."""
    if width is not None or policy is not None:
        raise ConfigError("auto: width and policy are for runs without a plan; a plan knows its own")
    plan = load_plan(path)
    if plan.scored != (scorer is not None):
        raise ConfigError(f"auto: the plan was calibrated {'with' if plan.scored else 'without'} a scorer")
    return plan


def kind_without_plan(width: int | None, policy: str | None, scorer: Scorer | None) -> DrawKind:
    """What a run without a plan draws; raises ConfigError for a width or a policy that cannot be."""
    if width is not None and width < 1:
        raise ConfigError(f"auto: width must be >= 1, got {width}")
    if width in (None, 1) and policy is not None:
        raise ConfigError(f"auto: policy={policy} takes a width above 1")
    search = {} if width in (None, 1) else {"policy": policy or "dvts", "beam_width": width}
    return DrawKind(width=width or 1, scored=scorer is not None, search=search)
