"""Best-of-n: draw n completions and let a scorer choose.

Cobbe et al. 2021, "Training Verifiers to Solve Math Word Problems" (argmax); the other rules: see
`ttc.choosing.selection`. Cost: n completions and n scored completions. Argmax over-optimises a scorer that can be
fooled: for closed answers the weighted rule is safer, for open answers the pessimistic one. With `of` it chooses among
n runs of another strategy, whose answers are scored as answers to the problem itself: the best of n refined answers,
say.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from ttc.choosing.selection import How, Select, aggregate, check_beta, check_window, fallback, vote
from ttc.config.signatures import drawing
from ttc.core import Answer, Candidate, Problem, Score, Scorer, Strategy
from ttc.session.samples import run_samples
from ttc.session.session import Session, check_n

_Rate: TypeAlias = Callable[[Score], float | None]


@drawing(whole=True)
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
    of: Strategy | None = None,
) -> Answer:
    """Return the completion that the rule selects by its score, or by the scores of its answer class.

    A candidate without a final answer or a score is only chosen if no other can be; without any score, they vote.

    Args:
        problem: the question.
        session: the metered engine.
        scorer: ranks complete paths; higher is better.
        n: number of samples.
        select: argmax takes the best path; weighted sums scores over equal answers; majority ignores them; pessimistic
            and soft draw a path by its score.
        beta: how far pessimistic and soft trust the scorer, in its units; small tends to argmax.
        aggregation: how step scores become one: last, min, prod or mean.
        window: only this many of the last steps count; absent: all.
        of: the strategy that makes each sample; absent: a draw.

    Raises:
        ConfigError: n < 1, n > 1 at temperature 0, beta <= 0, or window < 1; or what `of` refuses.
    """
    check_n("best_of_n", n, session.sampling)
    check_beta(beta)
    check_window(window)
    rate = partial(aggregate, how=aggregation, window=window)
    scored = _scored_draws(session, scorer, n, rate) if of is None else _scored_runs(session, scorer, n, rate, of)
    candidates = await scored
    best = session.choose(candidates, select, beta=beta, u=session.chance("select"))
    return session.answer(best or vote(candidates, session.key) or fallback(candidates), candidates)


async def _scored_draws(session: Session, scorer: Scorer, n: int, rate: _Rate) -> list[Candidate]:
    prompt = session.render()
    completions = await session.generate(prompt, n, scorer=scorer)
    scores = await session.score(scorer, [prompt.then(completion) for completion in completions])
    pairs = zip(completions, scores, strict=True)
    return [session.candidate(prompt, completion, rate(score)) for completion, score in pairs]


async def _scored_runs(session: Session, scorer: Scorer, n: int, rate: _Rate, of: Strategy) -> list[Candidate]:
    samples = await run_samples(session, of, n, "best_of_n.of")
    scores = await session.score(scorer, [session.answering(sample) for sample in samples])
    return [replace(sample, score=rate(score)) for sample, score in zip(samples, scores, strict=True)]
