"""The tree-search runtime: grows a tree of steps under a policy, without barriers that the mathematics does not need.

Snell et al. 2024; Beeching et al. 2024. Each child is generated and scored as a task of its own, so scoring overlaps
generation; subtrees never wait for each other, problems neither. Within one subtree a level must be complete before
it is selected, since the policy ranks all of its nodes. Selection reads nodes in path order and never sees timing.

A `barrier` in `Growth` puts all subtrees of all problems in step, for comparison: generate all, then score all.

Rules: n candidates live at first; a finished path is kept as a leaf, is never re-expanded nor re-scored, and its place
is not refilled (the live width shrinks by one). A path is cut, not finished, when its tokens or the depth run out.
Cost: n paths of generated tokens plus the pruned steps; one scored step per generated step.
Left out: look-ahead (costs k+1 times for little), re-weighting of finished paths.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ttc.aggregate import How, aggregate
from ttc.concurrent import gather
from ttc.core import Completion, Prompt, Sampling, Scorer
from ttc.errors import BudgetExceeded
from ttc.search.barrier import Barrier
from ttc.search.policy import Policy
from ttc.session import Session

NO_VERDICT = float("-inf")


@dataclass(frozen=True, slots=True)
class Node:
    """A step of the tree: the prompt that ends with it, its score, and how it ended."""

    prompt: Prompt
    completion: Completion
    score: float | None
    num_sampled: int
    """Tokens sampled along the whole path."""

    @property
    def finished(self) -> bool:
        """Whether the model ended the path itself."""
        return self.completion.finished

    @property
    def rank(self) -> float:
        """The score for the policy."""
        return NO_VERDICT if self.score is None else self.score


@dataclass(frozen=True, slots=True)
class Growth:
    """How steps are made: where one ends, how long a step and a path may be, how deep, how scores aggregate."""

    scorer: Scorer
    sampling: Sampling
    stop: tuple[str, ...]
    max_step_tokens: int
    max_depth: int
    aggregation: How
    barrier: Barrier | None = None


async def search(session: Session, root: Prompt, policy: Policy, n: int, growth: Growth) -> list[Node]:
    """Grow `root` to at most n leaves; returns them in path order, cut paths included."""
    widths = policy.subtrees(n)
    starts = [sum(widths[:i]) for i in range(len(widths))]
    views = [session.subtree(len(widths)) if len(widths) > 1 else session for _ in widths]
    subtrees: list[list[Node]] = await gather(
        _join(view, root, range(start, start + width), policy, growth)
        for view, start, width in zip(views, starts, widths, strict=True)
    )
    return [leaf for leaves in subtrees for leaf in leaves]


async def _join(session: Session, root: Prompt, draws: range, policy: Policy, growth: Growth) -> list[Node]:
    """Grow a subtree as a member of the barrier, where there is one."""
    with growth.barrier.joined() if growth.barrier else contextlib.nullcontext():
        return await _grow_subtree(session, root, draws, policy, growth)


async def _grow_subtree(session: Session, root: Prompt, draws: range, policy: Policy, growth: Growth) -> list[Node]:
    """Grow one independent subtree level by level until every path has ended or the budget has."""
    leaves: list[Node] = []
    live: list[Node] = []
    plan: list[tuple[Prompt, range, int]] = [(root, draws, 0)]
    for _ in range(growth.max_depth):
        try:
            children = await _expand(session, plan, growth)
        except BudgetExceeded:
            break
        leaves += [child for child in children if _ended(child, growth)]
        live = [child for child in children if not _ended(child, growth)]
        width = len(draws) - len(leaves)
        if not live or width <= 0:
            break
        counts = policy.allocate([node.rank for node in live], width)
        for node, count in zip(live, counts, strict=True):
            if not count:
                session.note("prune", node.prompt.path)
        plan = [
            (node.prompt, range(count), node.num_sampled) for node, count in zip(live, counts, strict=True) if count
        ]
    else:
        leaves += live
        live = []
    return sorted(leaves or live, key=lambda node: node.prompt.path)


def _ended(node: Node, growth: Growth) -> bool:
    return node.finished or node.num_sampled >= growth.sampling.max_tokens


async def _expand(session: Session, plan: Sequence[tuple[Prompt, range, int]], growth: Growth) -> list[Node]:
    """Generate and score every child of the plan at once; results in path order.

    When the budget ends for some children, those that were drawn are kept; none at all raises.
    """
    births = [(parent, draw, sampled) for parent, draws, sampled in plan for draw in draws]
    if growth.barrier is None:
        results = await gather(_child(session, *birth, growth) for birth in births)
    else:
        results = await _in_step(session, births, growth, growth.barrier)
    children = [child for child in results if child is not None]
    if not children:
        raise BudgetExceeded("no step could be drawn")
    return children


async def _child(session: Session, parent: Prompt, draw: int, num_sampled: int, growth: Growth) -> Node | None:
    """One step, scored as soon as it is there."""
    completion = await _step(session, parent, draw, num_sampled, growth)
    return None if completion is None else await _judge(session, parent, completion, num_sampled, growth)


async def _in_step(
    session: Session, births: Sequence[tuple[Prompt, int, int]], growth: Growth, barrier: Barrier
) -> list[Node | None]:
    """All steps, then all scores, each together with every other member of the barrier."""
    steps = await gather(_step(session, *birth, growth) for birth in births)
    await barrier.wait()
    results = await gather(
        _judge(session, parent, step, sampled, growth)
        for (parent, _, sampled), step in zip(births, steps, strict=True)
        if step is not None
    )
    await barrier.wait()
    return results


async def _step(session: Session, parent: Prompt, draw: int, num_sampled: int, growth: Growth) -> Completion | None:
    sampling = replace(
        growth.sampling,
        stop=growth.stop,
        max_tokens=min(growth.max_step_tokens, growth.sampling.max_tokens - num_sampled),
    )
    try:
        draws = range(draw, draw + 1)
        (completion,) = await session.generate(parent, draws, sampling=sampling, scorer=growth.scorer)
    except BudgetExceeded:
        return None
    return completion


async def _judge(
    session: Session, parent: Prompt, completion: Completion, num_sampled: int, growth: Growth
) -> Node | None:
    prompt = parent.then(completion)
    try:
        (score,) = await session.score(growth.scorer, [prompt])
    except BudgetExceeded:
        return None
    return Node(
        prompt=prompt,
        completion=completion,
        score=aggregate(score, growth.aggregation),
        num_sampled=num_sampled + completion.usage.generated,
    )
