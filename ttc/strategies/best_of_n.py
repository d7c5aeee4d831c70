"""Best-of-n: draw n completions and let a scorer choose.

Cobbe et al. 2021, "Training Verifiers to Solve Math Word Problems" (argmax); the other rules: see
`ttc.choosing.selection`. Cost: n completions and n scored completions. Argmax over-optimises a scorer that can be
fooled: on closed answers the weighted form is the safer one, on open answers the pessimistic one.
"""

from __future__ import annotations

from ttc.choosing.selection import How, Select, aggregate, check_beta, check_window, choose, fallback, vote
from ttc.core import Answer, Problem, Scorer
from ttc.session.draws import check_n
from ttc.session.session import Session


async def best_of_n(
    problem: Problem,
    session: Session,
    *,
    scorer: Scorer,
    n: int = 16,
    select: Select = "argmax",
    beta: float = 0.1,
    aggregation: How = "last",
    window: int | None = None,
) -> Answer:
    """Return the completion that the rule selects by its score, or by the scores of its answer class.

    A candidate without a final answer or without a score cannot be chosen while another can; where none has a score,
    they vote.

    Args:
        problem: what is asked.
        session: the metered engine.
        scorer: ranks complete paths; higher is better.
        n: number of samples.
        select: argmax takes the best path; weighted sums scores over equal answers; majority ignores them; pessimistic
            and soft draw a path by its score.
        beta: how far pessimistic and soft trust the scorer, in its units; small tends to argmax.
        aggregation: how step scores become one: last, min, prod or mean.
        window: only so many of the last steps count; absent: all.

    Raises:
        ConfigError: n < 1, n > 1 at temperature 0, beta <= 0, or window < 1.
    """
    check_n("best_of_n", n, session.sampling)
    check_beta(beta)
    check_window(window)
    prompt = session.render()
    completions = await session.generate(prompt, n, scorer=scorer)
    scores = await session.score(scorer, [prompt.then(completion) for completion in completions])
    candidates = [
        session.candidate(prompt, completion, aggregate(score, aggregation, window))
        for completion, score in zip(completions, scores, strict=True)
    ]
    best = choose(candidates, session.key, select, beta=beta, u=session.chance("select"))
    return session.answer(best or vote(candidates, session.key) or fallback(candidates), candidates)
