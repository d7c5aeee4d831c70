"""Tree search guided by a process-reward scorer, on the barrier-free runtime of `ttc.search`.

Snell et al. 2024 (beam), Beeching et al. 2024 (DVTS); `policy` picks the allocation (`ttc list policies`). Cost: n live
paths, so about n completions of generated tokens (pruned steps included), and as many newly scored tokens with an
incremental scorer. The answer is a score-weighted vote over the finished leaves; cut leaves abstain.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, TypeAlias

from ttc.choosing.selection import How, check_window, fallback, vote
from ttc.config.values import at_least
from ttc.core import Answer, Problem, Scorer, WholeAnswerScorer
from ttc.errors import ConfigError
from ttc.search.anytime import find_leaves
from ttc.search.tree import (
    Barrier,
    Growth,
    Node,
    Searcher,
    beyond_block,
    make_policy,
    population_weights,
    search,
)
from ttc.session.session import Session, check_n

Boundary: TypeAlias = Literal["text", "tokens", "sentence"]


async def tree(
    problem: Problem,
    session: Session,
    *,
    scorer: Scorer,
    n: int = 16,
    policy: str = "dvts",
    beam_width: int = 4,
    islands: int = 1,
    boundary: Boundary = "text",
    step: str = "\n\n",
    max_step_tokens: int = 256,
    max_depth: int = 40,
    verify_every: int = 1,
    aggregation: How = "last",
    window: int | None = None,
    select: Literal["weighted", "argmax", "majority", "population"] = "weighted",
    barrier: bool = False,
) -> Answer:
    """Search over steps and return the answer that the leaves agree on.

    Args:
        problem: the question.
        session: the metered engine.
        scorer: scores unfinished and finished paths; higher is better.
        n: live candidate paths.
        policy: how the width is shared among live nodes, with its parameters: beam, particle:scheme=residual,ess=0.5.
        beam_width: children of each kept node (m).
        islands: independent searches, each of an equal part of n, that vote together.
        boundary: what ends a step: the text `step`, the end of a sentence or a line, or only `max_step_tokens`.
        step: text that ends a step.
        max_step_tokens: a longer step is ended there; with boundary=tokens the first one may have a few more (less than
        a block of the engine's prefix cache), so that the others end with a block.
        max_depth: most steps of a path (of levels, with verify_every above 1).
        verify_every: steps that a path grows by between two looks of the scorer.
        aggregation: how step scores become one: last, min, prod or mean.
        window: only this many of the last steps count; absent: all.
        select: weighted sums scores over equal answers, argmax takes the best leaf, majority ignores scores,
            population votes by the weights of a policy that resamples.
        barrier: all problems of the run advance level by level together, as in other tools; slower, with the same
        trees.

    Raises:
        ConfigError: a bad n, beam_width, islands, step, window or policy, stop strings, or a scorer of whole answers.
    """
    check_n("tree", n, session.sampling)
    growth = growth_of(
        session,
        scorer,
        boundary=boundary,
        step=step,
        max_step_tokens=max_step_tokens,
        max_depth=max_depth,
        verify_every=verify_every,
        aggregation=aggregation,
        window=window,
        barrier=barrier,
    )
    allocation = make_policy(policy, beam_width)
    at_least("tree", 1, islands=islands)
    if n % islands:
        raise ConfigError(f"tree: islands must divide n, got islands={islands} and n={n}")
    if islands > 1 and isinstance(allocation, Searcher):
        raise ConfigError(f"tree: islands={islands} needs a policy that grows level by level, got policy={policy}")
    root = session.render()

    async def run(growth: Growth, width: int, first: int) -> list[Node]:
        if isinstance(allocation, Searcher):
            return await allocation.search(session, root, width, growth, first)
        parts = max(part for part in range(1, islands + 1) if not width % part)
        return await search(session, root, allocation, width, growth, islands=parts, first=first)

    leaves = await find_leaves(session, root, n, growth, run)
    candidates = [
        session.candidate_at(leaf.prompt, "stop" if leaf.finished else "length", leaf.score, leaf.num_sampled)
        for leaf in leaves
    ]
    if select == "population":
        weight_of = {leaf.prompt.path: weight for leaf, weight in zip(leaves, population_weights(leaves), strict=True)}
        best = vote(candidates, session.key, lambda candidate: weight_of[candidate.path])
    else:
        best = session.choose(candidates, select)
    return session.answer(best or vote(candidates, session.key) or fallback(candidates), candidates)


def growth_of(
    session: Session,
    scorer: Scorer,
    *,
    boundary: Boundary,
    step: str,
    max_step_tokens: int,
    max_depth: int,
    verify_every: int,
    aggregation: How,
    window: int | None,
    barrier: bool,
) -> Growth:
    """Return how steps are made, from the parameters of `tree`; raises ConfigError for an impossible value."""
    check_window(window)
    if isinstance(scorer, WholeAnswerScorer) and scorer.whole_answers:
        raise ConfigError(
            "tree needs a scorer of steps, this one judges whole answers: use --scorer prm:PATH, or best_of_n with it"
        )
    at_least("tree", 1, max_step_tokens=max_step_tokens, max_depth=max_depth, verify_every=verify_every)
    if not step:
        raise ConfigError("tree: step must not be empty: it is the text that ends a step")
    if session.sampling.stop or session.sampling.stop_token_ids:
        raise ConfigError("tree ends its steps at strings of its own: leave out sampling.stop and stop_token_ids")
    longer = 0
    if boundary == "tokens":
        start = len(session.render().token_ids or ())
        longer = beyond_block(start, max_step_tokens, session.capabilities.cache_block)
    return Growth(
        scorer=scorer,
        sampling=session.sampling,
        stop=(step,) if boundary == "text" else _STOPS[boundary],
        max_step_tokens=max_step_tokens,
        max_depth=max_depth,
        aggregation=aggregation,
        barrier=session.shared(Barrier) if barrier else None,
        window=window,
        verify_every=verify_every,
        longer_first=longer,
    )


_STOPS: Mapping[Boundary, tuple[str, ...]] = MappingProxyType({"tokens": (), "sentence": (". ", "? ", "! ", "\n")})
"""Four at most: endpoints take no more."""
