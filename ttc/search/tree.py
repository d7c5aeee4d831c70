"""The tree-search runtime: grows a tree of steps under a policy, with no more synchronisation than the policy needs.

Snell et al. 2024; Beeching et al. 2024. The children of one node are one request to the engine and one to the scorer,
as a request costs the controller more than a draw. Each family of children is a task of its own, so scoring overlaps
generation; subtrees and problems never wait for each other. Within one subtree a level must be complete before
selection, since the policy ranks all of its nodes. Selection reads nodes in path order, so timing has no influence.

Under any budget every child is a request and a task of its own. What each may spend is leased before the first of them
waits, so which one is left out does not depend on the schedule, and finished ones are kept when time runs out.

A `Barrier` in `Growth` makes all subtrees of all problems advance in lock-step (generate all, then score all), for
comparison with other tools. It costs time but no tokens: the trees are the same. Under a token budget the subtrees of a
problem grow one after another, and a level is scored when it is complete: a scorer's price for a text depends on what
it has read before, so the order must not depend on the schedule.

Rules: n candidates live at first; a finished path is kept as a leaf, is never re-expanded, re-scored nor re-weighted,
and its place is not refilled (the live width shrinks by one). A path is cut, not finished, when its tokens or the depth
run out. With `verify_every` g, a child is g steps long and is scored once, at its end (Chen et al. 2025, "Rethinking
Optimal Verification Granularity", arXiv 2505.11730). Cost: n paths of generated tokens plus the pruned steps; each
token scored once. Left out: look-ahead (costs k+1 times for little).

The policy turns the scores of the live nodes into the number of children of each. There are three kinds. A `Policy` is
pure: no randomness, no state, no access to text or targets. A `Resampler` is pure, too, but paths carry weights and it
gets random numbers keyed by the place in the tree. A `Searcher` grows the whole tree itself with `grow` and `ended`.
Nodes arrive in path order, so a tie goes to the earlier path whatever finished first.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias, runtime_checkable

from ttc.choosing.selection import How, aggregate
from ttc.concurrent import gather
from ttc.config.recipes import parse_spec
from ttc.config.registry import POLICIES
from ttc.core import Completion, Path, Prompt, Sampling, Scorer
from ttc.session.session import Session
from ttc.session.thinking import OUT_OF_CALLS, OUT_OF_ROOM

NO_VERDICT = float("-inf")


@dataclass(frozen=True, slots=True)
class Node:
    """A step of the tree: the prompt that ends with it, its score, and how it ended."""

    prompt: Prompt
    completion: Completion
    score: float | None
    num_sampled: int
    """Tokens sampled along the whole path."""
    log_weight: float = 0.0
    """Of the path, under a policy that resamples; fixed once the path has finished."""

    @property
    def finished(self) -> bool:
        """Whether the model ended the path itself."""
        return self.completion.finished

    @property
    def rank(self) -> float:
        """The score for the policy."""
        return NO_VERDICT if self.score is None else self.score


@dataclass(frozen=True, slots=True)
class Course:
    """How a level continues: with `width` paths, guided by the scorer or finished without it."""

    width: int
    guided: bool = True


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
    window: int | None = None
    verify_every: int = 1
    longer_first: int = 0
    """Tokens that the first step of a path may have more than others, so that those end where a cache block does."""
    pace: Callable[[Session, int, int, int, float], Course] | None = None
    """Where a budget may end first: (session, least tokens of a live path, depth, width, seconds a level) -> course."""


@dataclass(frozen=True, slots=True)
class Branch:
    """A node that grows children: their draw numbers, the tokens of its path, and the weight they start with."""

    prompt: Prompt
    draws: range
    num_sampled: int = 0
    log_weight: float = 0.0


Dice: TypeAlias = Callable[[int], float]
"""Uniform number i in [0, 1) of one level of one subtree."""


class Policy(Protocol):
    """Decides how many children each live node gets."""

    def subtrees(self, n: int) -> tuple[int, ...]:
        """Split the width n into independent subtrees; their widths sum to n. By default it is one."""
        return (n,)

    def allocate(self, scores: Sequence[float], width: int) -> list[int]:
        """Children of each live node; they sum to `width` exactly. A node without a verdict scores -inf."""
        ...


def keep_top(scores: Sequence[float], width: int, keep: int) -> list[int]:
    """Give `width` children to the `keep` best nodes, as equally as possible, the better ones first.

    >>> keep_top([0.1, 0.9, 0.5], 5, 2)
    [0, 3, 2]
    """
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))[: max(1, min(keep, width))]
    counts = [0] * len(scores)
    for rank, index in enumerate(order):
        counts[index] = width // len(order) + (rank < width % len(order))
    return counts


@dataclass(frozen=True, slots=True)
class Resampled:
    """Children of each live node, and the log weight that each child of it starts with."""

    counts: tuple[int, ...]
    log_weights: tuple[float, ...]


@runtime_checkable
class Resampler(Protocol):
    """Decides at random, in proportion to weights that paths carry from level to level (sequential Monte Carlo)."""

    def subtrees(self, n: int) -> tuple[int, ...]:
        """As of `Policy`."""
        return (n,)

    def increment(self, score: float) -> float:
        """Log of the factor by which a new step's score (-inf: no verdict) multiplies the weight of its path."""
        ...

    def resample(self, log_weights: Sequence[float], width: int, depth: int, dice: Dice) -> Resampled:
        """Share `width` children among the live nodes after level `depth` (from 1)."""
        ...


@runtime_checkable
class Searcher(Protocol):
    """Grows a tree in its own order. One instance serves all problems of a run concurrently, so it is stateless."""

    async def search(self, session: Session, root: Prompt, n: int, growth: Growth, first: int = 0) -> list[Node]:
        """Return at most n leaves in path order, cut paths included; the draws of the root begin with `first`."""
        ...


AnyPolicy: TypeAlias = Policy | Resampler | Searcher


@functools.lru_cache(maxsize=64)
def make_policy(spec: str, beam_width: int) -> AnyPolicy:
    """Make the policy that `spec` names: `beam`, `rebase:temperature=0.1`, `particle:scheme=residual,ess=0.5`.

    A policy is stateless, so equal ones are made only once: looking one up costs more than a level of a tree.

    Raises:
        ConfigError: no such policy or parameter, or a value out of range.
    """
    name, params = parse_spec(spec)
    policy: AnyPolicy = POLICIES.create(name, params, supply={"beam_width": beam_width})
    return policy


@dataclass(frozen=True, slots=True)
class _Grown:
    """A child without a score yet; `complete` when it will not grow further."""

    prompt: Prompt
    completion: Completion
    num_sampled: int
    log_weight: float
    num_steps: int
    complete: bool


async def search(
    session: Session,
    root: Prompt,
    policy: Policy | Resampler,
    n: int,
    growth: Growth,
    *,
    islands: int = 1,
    first: int = 0,
) -> list[Node]:
    """Grow `root` to at most n leaves; returns them in path order, cut paths included.

    The width is split evenly into `islands`, each of which the policy searches by itself. The draws of the root are
    numbered from `first`, for a search beside an earlier one of that width.
    """
    widths = policy.subtrees(n // islands) * islands
    starts = [first + sum(widths[:i]) for i in range(len(widths))]
    views = [session.subtree(len(widths), i) if len(widths) > 1 else session for i in range(len(widths))]
    work = (  # created one by one, so that none is left unawaited when the first is cancelled
        _join(view, root, range(start, start + width), policy, growth)
        for view, start, width in zip(views, starts, widths, strict=True)
    )
    subtrees = [await one for one in work] if session.rationed and growth.barrier is None else await gather(work)
    return [leaf for leaves in subtrees for leaf in leaves]


async def _join(session: Session, root: Prompt, draws: range, policy: Policy | Resampler, growth: Growth) -> list[Node]:
    """Grow a subtree as a member of the barrier, where there is one."""
    with growth.barrier.joined() if growth.barrier else contextlib.nullcontext():
        return await _grow_subtree(session, root, draws, policy, growth)


async def _grow_subtree(
    session: Session, root: Prompt, draws: range, policy: Policy | Resampler, growth: Growth
) -> list[Node]:
    """Grow one independent subtree level by level until every path has ended or the budget has."""
    leaves: list[Node] = []
    live: list[Node] = []
    plan = [Branch(root, draws)]
    # Checked once and not at every level: isinstance of a protocol looks at every attribute.
    resampler, share = (
        (policy, _resample(session, policy, draws.start))
        if isinstance(policy, Resampler)
        else (None, _allocate(policy))
    )
    started = session.clock()
    for depth in itertools.count(1):
        children = await _expand(session, plan, growth)
        if not children:
            break
        if resampler is not None:
            children = [replace(c, log_weight=c.log_weight + resampler.increment(c.rank)) for c in children]
        leaves += [child for child in children if ended(child, growth)]
        live = [child for child in children if not ended(child, growth)]
        width = len(draws) - len(leaves)
        if depth == growth.max_depth:  # nothing grows further: paths cut here are leaves, too
            leaves, live = [*leaves, *live], []
        if not live or width <= 0:
            break
        # From here on the level is complete: every live node has its score, so the schedule cannot sway the ranking.
        course = Course(width)
        if growth.pace is not None:
            least = min(node.num_sampled for node in live)
            course = growth.pace(session, least, depth, width, (session.clock() - started) / depth)
        if not course.guided:
            return sorted([*leaves, *await _close(session, live, course.width, growth)], key=_path)
        plan = _branches(session, live, share(live, course.width, depth))
    return sorted(leaves or live, key=_path)


def _branches(session: Session, live: Sequence[Node], shared: Resampled) -> list[Branch]:
    """The next level: the live nodes that get children. The others are pruned."""
    for node, count in zip(live, shared.counts, strict=True):
        if not count:
            session.prune(node.prompt.path)
    return [
        Branch(node.prompt, range(count), node.num_sampled, log_weight)
        for node, count, log_weight in zip(live, shared.counts, shared.log_weights, strict=True)
        if count
    ]


def _path(node: Node) -> Path:
    return node.prompt.path


async def _close(session: Session, live: Sequence[Node], width: int, growth: Growth) -> list[Node]:
    """Finish the best `width` paths in one request each; each keeps its last score."""
    best = sorted(live, key=lambda node: (-node.rank, *node.prompt.path))[:width]
    for node in live:
        if node not in best:
            session.prune(node.prompt.path)
    endings = (_finish_unscored(session, node, growth) for node in best)
    return [await ending for ending in endings] if session.rationed else await gather(endings)


async def _finish_unscored(session: Session, node: Node, growth: Growth) -> Node:
    sampling = replace(growth.sampling, max_tokens=growth.sampling.max_tokens - node.num_sampled)
    completions = await session.generate(node.prompt, range(1), sampling=sampling, least=0)
    if not completions:
        return node
    (completion,) = completions
    num_sampled = node.num_sampled + completion.usage.generated
    return replace(node, prompt=node.prompt.then(completion), completion=completion, num_sampled=num_sampled)


_Share: TypeAlias = "Callable[[Sequence[Node], int, int], Resampled]"
"""Gives children to the live nodes of a level: how many in all, and after which level."""


def _allocate(policy: Policy) -> _Share:
    """Allocate children by the policy's ranking."""

    def share(live: Sequence[Node], width: int, depth: int) -> Resampled:
        counts = policy.allocate([node.rank for node in live], width)
        return Resampled(tuple(counts), (0.0,) * len(counts))

    return share


def _resample(session: Session, policy: Resampler, start: int) -> _Share:
    """Allocate children at random; the random numbers are keyed by the subtree (its first draw) and the level."""

    def share(live: Sequence[Node], width: int, depth: int) -> Resampled:
        dice: Dice = lambda i: session.chance("resample", start, depth, i)  # noqa: E731
        return policy.resample([node.log_weight for node in live], width, depth, dice)

    return share


def beyond_block(start: int, step: int, block: int) -> int:
    """Tokens to add to the first step after `start` tokens, so that steps of `step` end one token into a cache block.

    Then the next step recomputes only that token; if the lengths do not divide each other, the mean over the steps of a
    path is minimal.
    """
    return (1 - start - step) % math.gcd(block, step)


def ended(node: Node, growth: Growth) -> bool:
    """Whether a path cannot grow: it finished, or its tokens have run out."""
    return node.finished or _is_out_of_tokens(node.completion, node.num_sampled, growth)


async def _expand(session: Session, plan: Sequence[Branch], growth: Growth) -> list[Node]:
    """Generate and score every child of the plan at once; results in path order; fewer when the budget ends."""
    if growth.barrier is None and not session.rationed:
        one_by_one = (replace(branch, draws=range(draw, draw + 1)) for branch in plan for draw in branch.draws)
        families = one_by_one if session.limited else plan
        nodes_by_branch = await gather(grow(session, branch, growth) for branch in families)
        return [child for family in nodes_by_branch for child in family]
    births = [(branch, draw) for branch in plan for draw in branch.draws]
    return await _in_step(session, births, growth, growth.barrier)


async def grow(session: Session, branch: Branch, growth: Growth) -> list[Node]:
    """Grow the children of a branch and score them together; fewer when the budget does not cover all."""
    children = await _steps(session, branch, branch.draws, 1, growth)
    if growth.verify_every > 1:
        children = await gather(_finish(session, child, growth) for child in children)
    return await _judge(session, children, growth)


async def _in_step(
    session: Session, births: Sequence[tuple[Branch, int]], growth: Growth, barrier: Barrier | None
) -> list[Node]:
    """All steps, then all scores in path order, each together with every other member of the barrier."""
    first = await gather(_steps(session, branch, range(draw, draw + 1), 1, growth) for branch, draw in births)
    children = [child for family in first for child in family]
    while not all(child.complete for child in children):
        children = await gather(_step(session, child, growth) for child in children)
    if barrier is not None:
        await barrier.wait()
    results = await _judge(session, children, growth)
    if barrier is not None:
        await barrier.wait()
    return results


async def _finish(session: Session, child: _Grown, growth: Growth) -> _Grown:
    while not child.complete:
        child = await _step(session, child, growth)
    return child


async def _step(session: Session, child: _Grown, growth: Growth) -> _Grown:
    """Grow a child by one more step; when the budget ends it is complete."""
    if child.complete:
        return child
    children = await _steps(session, child, range(1), child.num_steps + 1, growth)
    return children[0] if children else replace(child, complete=True)


async def _steps(
    session: Session, parent: Branch | _Grown, draws: range, num_steps: int, growth: Growth
) -> list[_Grown]:
    """Step `num_steps` of every child of a node; fewer when the budget ends, none when nothing could be drawn."""
    left = growth.sampling.max_tokens - parent.num_sampled
    most = growth.max_step_tokens + (0 if parent.num_sampled else growth.longer_first)
    sampling = replace(growth.sampling, stop=growth.stop, max_tokens=min(most, left))
    completions = await session.generate(
        parent.prompt,
        draws,
        sampling=sampling,
        scorer=growth.scorer,
        resumed=num_steps > 1,
        piece=True,
        least=0,
    )
    return [_after(parent, completion, num_steps, growth) for completion in completions]


def _after(parent: Branch | _Grown, completion: Completion, num_steps: int, growth: Growth) -> _Grown:
    """The child that a step makes from the path before it."""
    num_sampled = parent.num_sampled + completion.usage.generated
    return _Grown(
        prompt=parent.prompt.then(completion),
        completion=completion,
        num_sampled=num_sampled,
        log_weight=parent.log_weight,
        num_steps=num_steps,
        complete=completion.finished
        or _is_out_of_tokens(completion, num_sampled, growth)
        or num_steps == growth.verify_every,
    )


def _is_out_of_tokens(completion: Completion, num_sampled: int, growth: Growth) -> bool:
    """Whether a path has sampled all that it may, or a step was cut since calls or the room for its ids ran out."""
    return num_sampled >= growth.sampling.max_tokens or completion.stop_reason in (OUT_OF_CALLS, OUT_OF_ROOM)


async def _judge(session: Session, grown: Sequence[_Grown], growth: Growth) -> list[Node]:
    """Score children together."""
    if not grown:
        return []
    scores = await session.score(growth.scorer, [child.prompt for child in grown])
    values = [aggregate(score, growth.aggregation, growth.window) for score in scores]
    return [
        Node(child.prompt, child.completion, value, child.num_sampled, child.log_weight)
        for child, value in zip(grown, values, strict=True)
    ]


def population_weights(leaves: Sequence[Node]) -> list[float]:
    """Weights of the paths relative to the heaviest; all equal under a policy that does not resample."""
    top = max((leaf.log_weight for leaf in leaves), default=0.0)
    if top == NO_VERDICT:
        return [1.0] * len(leaves)
    return [math.exp(leaf.log_weight - top) for leaf in leaves]


class Barrier:
    """A barrier whose members wait for each other until they leave. For one event loop."""

    def __init__(self) -> None:
        self._members = 0
        self._waiting: list[asyncio.Future[None]] = []

    @contextlib.contextmanager
    def joined(self) -> Iterator[None]:
        """Be a member for a while."""
        self._members += 1
        try:
            yield
        finally:
            self._members -= 1
            self._open_when_complete()

    async def wait(self) -> None:
        """Wait for all other members."""
        arrived: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(arrived)
        self._open_when_complete()
        try:
            await arrived
        finally:
            if arrived in self._waiting:  # cancelled: nothing takes its place
                self._waiting.remove(arrived)

    def _open_when_complete(self) -> None:
        if len(self._waiting) >= self._members:
            waiting, self._waiting = self._waiting, []
            for arrived in waiting:
                if not arrived.done():
                    arrived.set_result(None)
