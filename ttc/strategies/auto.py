"""Auto: draw a little, look, and continue as long as a calibrated plan says that it pays.

Damani et al. 2024, "Learning How Hard to Think" (arXiv 2410.04707); Snell et al. 2024; how it decides:
`ttc.allocation.plan`. Easy and hopeless problems leave their tokens to those where more samples help. There are two
ways to spend:

    tokens=MEAN           what a problem may take on average; every problem decides by itself, by the plan alone
    --budget tokens=TOTAL in `ttc eval`: what the whole run may take, to the token. Waves over all problems, in problem
                          order; after each the rest is divided again among those that would gain most
                          (`evals.allocation.planner`). Without a plan the run learns one from its own first problems,
                          blindly.

The plan is made once by `ttc calibrate` from recorded runs and states its own cost. Its routes are the ways of drawing
that it has seen: the greedy answer, plain samples, independent islands of a tree search. The budget picks the route;
the draws so far decide how far to go on it. Cost: the budget. Left out: draws that think longer.

Draw i is the same whenever it is made: its seeds and paths are those of a run that makes all at once. An island of
width m is a separate search (`tree` with these parameters): m samples that are reduced to the better ones after every
step. A greedy answer that comes first is draw 0.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ttc.allocation.plan import DrawKind, Mixture, Plan, follow, load_plan, state_of
from ttc.choosing.selection import aggregate, fallback, vote
from ttc.core import Answer, Candidate, Problem, Prompt, Sampling, Scorer
from ttc.errors import ConfigError
from ttc.search.tree import Searcher, make_policy, search
from ttc.session.session import Session, check_n
from ttc.strategies.tree import growth_of, tree


async def auto(
    problem: Problem,
    session: Session,
    *,
    plan: str | None = None,
    tokens: float | None = None,
    total: int | None = None,
    width: int | None = None,
    policy: str | None = None,
    scorer: Scorer | None = None,
) -> Answer:
    """Return the answer of as many draws as the plan gives to problems like this one.

    Args:
        problem: the question.
        session: the metered engine.
        plan: file that `ttc calibrate` wrote; only a run with a `total` can do without.
        tokens: mean tokens a problem.
        total: tokens of the whole run (`ttc eval` takes them from --budget tokens); of this problem where it is alone.
        width: without a plan: paths of a draw; absent or 1, plain samples, else islands of a tree search.
        policy: without a plan: how an island shares its width among its nodes, as of `tree`; absent: dvts.
        scorer: the one that the plan was calibrated with, if any.

    Raises:
        ConfigError: no plan, neither tokens nor total, a scorer too many or missing, too few tokens, temperature 0, or
            width or policy beside a plan.
    """
    mean = tokens if tokens is not None else total
    if plan is None or mean is None:
        raise ConfigError(
            "auto needs plan=FILE (make one: ttc calibrate RUN) and tokens=MEAN; a whole run can do without both: "
            "ttc eval --strategy auto --budget tokens=TOTAL"
        )
    prepared = session.shared(_Prepared)
    if (plan, mean) not in prepared:
        read = read_plan(plan, width=width, policy=policy, scorer=scorer)
        prepared[plan, mean] = read, follow(read, mean)
    table, mixture = prepared[plan, mean]
    choice = mixture.pick(session.chance("auto"))
    route, go = table.routes[choice.route], choice.climbs[choice.route].go
    for each in table.routes:
        check_n("auto", each.ladder[-1], session.sampling, "the plan's number of samples")
    draws = Draws(session, scorer, route.kind)
    rung, name = 0, next(iter(route.rungs[0]))
    for rung, n in enumerate(route.ladder):
        await draws.up_to(n)
        name = route.known(rung, state_of(draws.candidates, session.key, route.cuts))
        if session.exhausted or name not in go[rung]:
            break
    select = route.select(rung, name)
    session.note("note", session.root, route=choice.route, state=name, select=select, n=len(draws.candidates))
    best = session.choose(draws.candidates, select) or vote(draws.candidates, session.key)
    return session.answer(best or fallback(draws.candidates), draws.candidates, f"n={len(draws.candidates)}")


class _Prepared(dict[tuple[str, float], tuple[Plan, Mixture]]):
    """Plans read and solved, for all problems of a run."""


def read_plan(path: str, *, width: int | None, policy: str | None, scorer: Scorer | None) -> Plan:
    """Read the plan of a run; raises ConfigError if other parameters of `auto` do not fit it."""
    if width is not None or policy is not None:
        raise ConfigError("auto: width and policy are for runs without a plan; a plan knows its own")
    plan = load_plan(path)
    if plan.scored != (scorer is not None):
        raise ConfigError(f"auto: the plan was calibrated {'with' if plan.scored else 'without'} a scorer")
    return plan


def kind_without_plan(width: int | None, policy: str | None, scorer: Scorer | None) -> DrawKind:
    """What a run without a plan draws; raises ConfigError for an impossible width or policy."""
    if width is not None and width < 1:
        raise ConfigError(f"auto: width must be >= 1, got {width}")
    if width in (None, 1) and policy is not None:
        raise ConfigError(f"auto: policy={policy} takes a width above 1")
    search = {} if width in (None, 1) else {"policy": policy or "dvts", "beam_width": width}
    return DrawKind(width=width or 1, scored=scorer is not None, search=search)


class Draws:
    """The candidates so far, in the order of their draws."""

    def __init__(self, session: Session, scorer: Scorer | None, kind: DrawKind, start: int = 0) -> None:
        """The first draw will be number `start`; a kind that is not scored does not use the scorer."""
        if kind.scored and scorer is None:
            raise ConfigError("auto: the plan was calibrated with a scorer: add --scorer prm:PATH")
        self._session, self._kind, self._next = session, kind, start
        self._scorer = scorer if kind.scored else None
        self._prompt: Prompt = session.render()
        self.candidates: list[Candidate] = []

    async def up_to(self, n: int) -> None:
        """Draw until the next number is n, or until the budget ends."""
        numbers = range(self._next, n)
        if self._kind.greedy and numbers and not numbers.start:
            self.candidates += await self._samples(range(1), replace(self._session.sampling, temperature=0.0))
            numbers = range(1, n)
        if numbers:
            plain = not self._kind.search
            self.candidates += await (self._samples(numbers) if plain else self._islands(numbers, self._scorer))

    async def _samples(self, numbers: range, sampling: Sampling | None = None) -> list[Candidate]:
        completions = await self._session.generate(
            self._prompt, numbers, sampling=sampling, scorer=self._scorer, least=0
        )
        self._next += len(completions)
        values: list[float | None] = [None] * len(completions)
        if self._scorer is not None:
            whole = [self._prompt.then(completion) for completion in completions]
            values = [aggregate(score) for score in await self._session.score(self._scorer, whole)]
        return [
            self._session.candidate(self._prompt, completion, value)
            for completion, value in zip(completions, values, strict=True)
        ]

    async def _islands(self, numbers: range, scorer: Scorer | None) -> list[Candidate]:
        width, params = self._kind.width, dict(self._kind.search)
        policy = make_policy(params.pop("policy"), params.pop("beam_width"))
        if scorer is None or isinstance(policy, Searcher):
            raise ConfigError("auto: islands need a scorer and a policy that grows level by level")
        growth, first = growth_of(self._session, scorer, **_complete(params)), numbers.start * width
        leaves = await search(
            self._session, self._prompt, policy, len(numbers) * width, growth, islands=len(numbers), first=first
        )
        self._next = numbers.stop if leaves else numbers.start
        return [
            self._session.candidate_at(leaf.prompt, "stop" if leaf.finished else "length", leaf.score, leaf.num_sampled)
            for leaf in leaves
        ]


def _complete(params: Mapping[str, Any]) -> dict[str, Any]:
    """The options of `growth_of`: those of a plan, with the defaults of `tree` for the rest."""
    defaults = inspect.signature(tree).parameters
    names = [name for name in inspect.signature(growth_of).parameters if name not in ("session", "scorer")]
    return {**{name: defaults[name].default for name in names}, **params}


async def draw_wave(
    problem: Problem, session: Session, *, start: int, end: int, kind: DrawKind, scorer: Scorer | None
) -> Answer:
    """Make draws `start` to `end` without choosing among them: one wave of a run-level plan."""
    draws = Draws(session, scorer, kind, start)
    await draws.up_to(end)
    return session.answer(None, draws.candidates, "wave")
