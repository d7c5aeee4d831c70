"""First finished (short-m@k): start k draws, keep the m shortest that finish, cancel the rest, and vote.

Hassid et al. 2025, "Don't Overthink it. Preferring Shorter Thinking Chains for Improved LLM Reasoning" (arXiv
2505.17813). "First" means fewest tokens, then path, never wall time: all draws grow by `chunk` tokens a round, and the
round after which m have finished is the last. Cost: at most n times the length of the m-th shortest, rounded up to a
chunk; a smaller chunk cancels sooner and asks more often. Ties of the vote go to the shortest. Left out: cancelling
within a round, which would make the ledger depend on the schedule.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ttc.choosing.selection import by_length, fallback, vote
from ttc.config.values import at_least, at_most
from ttc.core import Answer, Problem
from ttc.session.growing import Draw, begin, check_pieces, grow_all
from ttc.session.session import Session, check_n


async def first_finished(problem: Problem, session: Session, *, n: int = 8, m: int = 3, chunk: int = 64) -> Answer:
    """Return the majority answer of the m draws that finish with the fewest tokens.

    Args:
        problem: the question.
        session: the metered engine.
        n: draws that are started (k in the paper).
        m: draws that are waited for.
        chunk: tokens that every draw grows by in a round.

    Raises:
        ConfigError: a bad n or chunk, m outside 1..n, n > 1 at temperature 0, or an engine without token ids.
    """
    check_n("first_finished", n, session.sampling)
    check_pieces("first_finished", session, chunk)
    at_least("first_finished", 1, m=m)
    at_most("first_finished", n, "n", m=m)
    prompt = session.render()
    draws = await begin(session, prompt, n, chunk)
    while _num_first(draws) < m and not all(draw.ended for draw in draws):
        draws = await grow_all(session, draws, chunk)
    candidates = [draw.candidate(session) for draw in draws]
    first = sorted((c for c, d in zip(candidates, draws, strict=True) if d.finished), key=by_length)[:m]
    cancelled = [draw for draw in draws if not draw.ended]
    for draw in cancelled:
        session.prune(draw.whole.path)
    leader = vote(first, session.key) or fallback(first or candidates)
    return session.answer(leader, candidates, f"{m} finished" if cancelled else "done")


def _num_first(draws: Sequence[Draw]) -> int:
    """Finished draws that are no longer than any growing one: under a budget, one draw runs ahead of the others."""
    shortest = min((draw.num_sampled for draw in draws if not draw.ended), default=math.inf)
    return sum(draw.finished and draw.num_sampled <= shortest for draw in draws)
