"""Tree search guided by a process-reward scorer, on the barrier-free runtime of `ttc.search`.

Snell et al. 2024 (beam), Beeching et al. 2024 (DVTS); `policy` picks the allocation. Cost: n live paths, so about n
completions of generated tokens (pruned steps included), and as many newly scored tokens with an incremental scorer.
The answer is a score-weighted vote over the finished leaves; cut leaves abstain.
"""

from __future__ import annotations

from typing import Literal

from ttc.aggregate import How
from ttc.core import Answer, Problem, Scorer
from ttc.errors import ConfigError
from ttc.registry import POLICIES, bind
from ttc.search.barrier import Barrier
from ttc.search.runtime import Growth, search
from ttc.selection import choose
from ttc.session import Session
from ttc.strategies.majority import check_n
from ttc.voting import fallback


async def tree(
    problem: Problem,
    session: Session,
    *,
    scorer: Scorer,
    n: int = 16,
    policy: str = "dvts",
    beam_width: int = 4,
    step: str = "\n\n",
    max_step_tokens: int = 256,
    max_depth: int = 40,
    aggregation: How = "last",
    select: Literal["weighted", "argmax", "majority"] = "weighted",
    barrier: bool = False,
) -> Answer:
    """Search over steps and return the answer that the leaves agree on.

    Args:
        problem: what is asked.
        session: the metered engine.
        scorer: scores unfinished and finished paths; higher is better.
        n: live candidate paths.
        policy: how the width is shared among live nodes (`ttc list policies`).
        beam_width: children of each kept node (m).
        step: text that ends a step.
        max_step_tokens: a longer step is ended there.
        max_depth: most steps of a path.
        aggregation: how step scores become one: last, min, prod or mean.
        select: weighted sums scores over equal answers, argmax takes the best leaf, majority ignores scores.
        barrier: all problems of the run advance one level together, as other tools do; slower, the same trees.

    Raises:
        ConfigError: a bad n, beam_width, step or policy.
    """
    check_n(n, session)
    if not step or max_step_tokens < 1 or max_depth < 1:
        raise ConfigError("tree needs a non-empty step, max_step_tokens >= 1 and max_depth >= 1")
    factory = POLICIES.load(policy)
    together = session.shared(Barrier) if barrier else None
    growth = Growth(scorer, session.sampling, (step,), max_step_tokens, max_depth, aggregation, together)
    allocation = factory(**bind(factory, {}, supply={"beam_width": beam_width}))
    leaves = await search(session, session.render(), allocation, n, growth)
    candidates = [
        session.candidate_at(leaf.prompt, "stop" if leaf.finished else "length", leaf.score, leaf.num_sampled)
        for leaf in leaves
    ]
    chosen = choose(candidates, problem.kind, select) or fallback(candidates)
    return session.answer(chosen, candidates)
