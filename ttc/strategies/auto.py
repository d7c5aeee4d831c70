"""Auto: look at a few samples, then spend what a calibrated plan says this kind of problem deserves.

Damani et al. 2024, "Learning How Hard to Think" (arXiv 2410.04707); Snell et al. 2024. The plan is made once by
`ttc calibrate` from a recorded run. `tokens` is what a problem may take on average over all problems: easy and hopeless
ones leave theirs to those where more samples help. Which problem gets the last share is drawn by its own dice, so no
problem waits for another. Cost: the pilot for all, and on average `tokens` if the problems are like the calibration's;
the calibration's own cost stands in the plan. A limit for every single problem is `--budget tokens=`.
Left out: arms that search or think longer; learning while it runs.
"""

from __future__ import annotations

from ttc.aggregate import aggregate
from ttc.allocation import allocate, kind_of, load_plan, share_of
from ttc.core import Answer, Candidate, Problem, Prompt, Scorer
from ttc.errors import BudgetExceeded, ConfigError
from ttc.selection import choose
from ttc.session import Session
from ttc.strategies.majority import check_n
from ttc.voting import fallback


async def auto(problem: Problem, session: Session, *, plan: str, tokens: float, scorer: Scorer | None = None) -> Answer:
    """Return the answer of the arm that the plan gives to problems with such a pilot.

    Args:
        problem: what is asked.
        session: the metered engine.
        plan: file that `ttc calibrate` wrote.
        tokens: mean tokens a problem, the pilot's among them.
        scorer: the one that the plan was calibrated with, if any.

    Raises:
        ConfigError: no such plan, a scorer too many or missing, tokens below the pilot's, or temperature 0.
    """
    made = load_plan(plan)
    if made.scored != (scorer is not None):
        raise ConfigError(f"auto: plan {plan!r} was calibrated {'with' if made.scored else 'without'} a scorer")
    check_n(made.pilot, session, "pilot")
    shares = allocate(made.kinds, tokens)
    draws = _Draws(session, scorer)
    try:
        await draws.up_to(made.pilot)
        name = kind_of(draws.candidates, problem.kind, made.cuts)
        share = share_of(shares, name)
        arm = share.more if session.chance("auto") < share.fraction else share.arm
        session.note("note", (), pilot=name, select=arm.select, n=arm.n)
        await draws.up_to(arm.n)
    except BudgetExceeded:
        arm = next(iter(shares.values())).arm
    chosen = choose(draws.candidates, problem.kind, arm.select) or fallback(draws.candidates)
    return session.answer(chosen, draws.candidates, f"n={len(draws.candidates)}")


class _Draws:
    """Samples of the problem's own prompt, scored where there is a scorer."""

    def __init__(self, session: Session, scorer: Scorer | None) -> None:
        self._session, self._scorer = session, scorer
        self._prompt: Prompt = session.render()
        self.candidates: list[Candidate] = []

    async def up_to(self, n: int) -> None:
        """Draw until there are n."""
        numbers = range(len(self.candidates), n)
        if not numbers:
            return
        drawn = await self._session.generate(self._prompt, numbers, scorer=self._scorer)
        values: list[float | None] = [None] * len(drawn)
        if self._scorer is not None:
            whole = [self._prompt.then(completion) for completion in drawn]
            values = [aggregate(score) for score in await self._session.score(self._scorer, whole)]
        self.candidates += [
            self._session.candidate(self._prompt, completion, value)
            for completion, value in zip(drawn, values, strict=True)
        ]
