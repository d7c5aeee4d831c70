"""Samples of a problem: plain draws, or the answers of another strategy that runs once for each.

Composition: an option `of: Strategy | None` makes a strategy one of strategies. The runs share budget and ledger; run i
has a tree of its own below draw i, so its randomness depends only on its place, as a draw's does. A run is one sample:
the candidate that it chose. Cost: n times the inner strategy. If tokens, FLOPs or calls are limited, runs follow one
another, so that each is finished before the next begins. Left out: dividing a budget between the runs.
"""

from __future__ import annotations

import math

from ttc.choosing.selection import fallback
from ttc.concurrent import gather
from ttc.core import Answer, Candidate, Strategy
from ttc.errors import BudgetExceeded, ConfigError, ServerRefused
from ttc.session.session import Session


async def run_inner(session: Session, of: Strategy, index: int, option: str) -> Answer:
    """Run the strategy of `option`, named OWNER.OPTION, as number `index`; no candidates: the budget is spent.

    Raises:
        ConfigError: it returns no candidates, or refuses its own parameters.
    """
    try:
        answer = await session.run(of, index)
    except ServerRefused:
        raise
    except ConfigError as exc:
        raise ConfigError(f"{option}: {exc}") from exc
    if not answer.candidates and not session.exhausted:
        raise ConfigError(
            f"{option}: this strategy returned no candidates to choose from: it ends with "
            "session.answer(chosen, candidates)"
        )
    return answer


async def run_samples(session: Session, of: Strategy, n: int, option: str) -> list[Candidate]:
    """Return what n runs of the strategy of `option` chose, in order; fewer when the budget ends first.

    Raises:
        BudgetExceeded: none of the runs drew anything.
        ConfigError: as `run_inner`.
    """
    answers: list[Answer] = []
    if session.rationed or (session.limited and session.seconds_left == math.inf):
        for index in range(n):
            if answers and session.spent:
                session.narrow()
                break
            answers.append(await run_inner(session, of, index, option))
    else:
        answers = await gather(run_inner(session, of, index, option) for index in range(n))
    samples = [sample for answer in answers if (sample := chosen(answer)) is not None]
    if not samples:
        raise BudgetExceeded(f"{option}: the budget is spent before a run has drawn anything")
    return samples


def chosen(answer: Answer) -> Candidate | None:
    """The candidate that an answer was made of; one to show if it chose none."""
    same = (c for c in answer.candidates if (c.text, c.final) == (answer.text, answer.final))
    return next(same, None) or fallback(answer.candidates)
