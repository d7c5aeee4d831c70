"""Best-of-n: draw n completions and let a scorer choose.

Cobbe et al. 2021, "Training Verifiers to Solve Math Word Problems" (argmax); Li et al. 2022 (weighted: scores are
summed over equal final answers). Cost: n completions and n scored completions. Over-optimises a scorer that can be
fooled: the weighted form is the safer one on closed answers.
"""

from __future__ import annotations

from typing import Literal

from ttc.aggregate import How, aggregate
from ttc.core import Answer, Candidate, Problem, Scorer
from ttc.session import Session
from ttc.strategies.majority import check_n
from ttc.voting import fallback, vote


async def best_of_n(
    problem: Problem,
    session: Session,
    *,
    scorer: Scorer,
    n: int = 16,
    select: Literal["argmax", "weighted"] = "argmax",
    aggregation: How = "last",
) -> Answer:
    """Return the completion the scorer ranks first, or the answer with the largest sum of scores.

    A candidate without a final answer or without a score cannot be chosen while another can.

    Args:
        problem: what is asked.
        session: the metered engine.
        scorer: ranks complete paths; higher is better.
        n: number of samples.
        select: argmax takes the best path, weighted sums scores over equal answers.
        aggregation: how step scores become one: last, min, prod or mean.

    Raises:
        ConfigError: n < 1, or n > 1 at temperature 0.
    """
    check_n(n, session)
    prompt = session.render()
    completions = await session.generate(prompt, n, scorer=scorer)
    scores = await session.score(scorer, [prompt.then(completion) for completion in completions])
    candidates = [
        session.candidate(prompt, completion, aggregate(score, aggregation))
        for completion, score in zip(completions, scores, strict=True)
    ]
    chosen = choose(candidates, problem.kind, select) or fallback(candidates)
    return session.answer(chosen, candidates)


def choose(
    candidates: list[Candidate], kind: str, select: Literal["argmax", "weighted", "majority"]
) -> Candidate | None:
    """Select among closed paths; None when none has both a final answer and what the rule needs."""
    if select == "weighted":
        return vote(candidates, kind, lambda candidate: candidate.score)
    if select == "majority":
        return vote(candidates, kind)
    scored = [c for c in candidates if c.final is not None and c.score is not None]
    return min(scored, key=lambda c: (-(c.score or 0.0), c.num_tokens, c.path), default=None)
