"""The run-level planner of `auto`: one token budget for all problems of a run, spent where it gains most.

It works in waves, each over the problems in order. In the first (the pilot), every problem gets the route that the
budget pays for and its first draws. Then, rung by rung of the ladders, problems whose state says that it pays get more
(`ttc.allocation.plan`). After each rung the price of a token is computed again from the budget left and the states
actually met, so what one wave saves, the next can spend. Without a plan the run learns one from itself (explore, then
commit: Lattimore, Szepesvári 2020, chapter 6): after the pilot, an evenly spread part of the problems takes the share
`EXPLORE` of the budget, and their own consensus stands in for the key, which no planner sees.

The total is kept to the token. A wave goes out in chunks of as many problems as the rest pays for at full length, so no
draw is cut before the very end, and which one is cut depends only on the order: any concurrency gives the same run.
Every wave's draws are synced to `waves.jsonl` and its members to `plan.json`, so a killed run continues where it was,
with the same plan. Left out: draws that think longer. All candidates stay in memory.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from evals.allocation.calibrate import CLASSES, LADDER, DrawPool, Pools, by_consensus, fit_route, named
from ttc import records as store
from ttc import seeds
from ttc.allocation.plan import DrawKind, Plan, StoppingPolicy, follow, mix, plan_of, state_of
from ttc.answers import kind_of
from ttc.choosing.selection import Select, choose, fallback, num_unweighed, vote
from ttc.concurrent import gather
from ttc.core import Answer, Budget, Candidate, Event, Problem, Record, Scorer, Usage
from ttc.durable import replace_text
from ttc.errors import ConfigError, TTCError
from ttc.session.solve import charged, spent
from ttc.strategies.auto import draw_wave, kind_without_plan, read_plan

WAVES, PLAN = "waves.jsonl", "plan.json"
CHUNK = 64
EXPLORE = 0.2
"""Share of the budget that a run without a plan learns with."""
DEPTH = 4
"""Explored problems get this many times the samples that an even split would give."""
MIN_EXPLORED = 8
"""With fewer problems to learn from, all problems get the same."""

Draw = Callable[[Problem, DrawKind, range, Budget], Coroutine[Any, Any, Answer]]
"""Makes draws of a kind, given by number, for one problem, within a limit."""


@dataclass(slots=True)
class _Progress:
    """What one problem has so far: the answers of its waves, and how it will be answered."""

    parts: list[Answer]
    select: Select
    route: int = 0
    last: int = -1
    """The last wave in which it got everything it asked for."""
    error: TTCError | None = None

    def add(self, wave: int, answer: Answer) -> int:
        """Take in what a wave gave; return its tokens."""
        self.parts.append(answer)
        self.last = self.last if answer.stop_cause == "budget" else wave
        return answer.usage.tokens

    @property
    def is_cut(self) -> bool:
        """Whether the total ended some of its draws."""
        return any(part.stop_cause == "budget" for part in self.parts)

    @property
    def candidates(self) -> list[Candidate]:
        return [candidate for part in self.parts for candidate in part.candidates]


class Planner:
    """Spends one total over the problems of a run; its folder is the run's."""

    def __init__(
        self,
        folder: Path,
        problems: Sequence[Problem],
        draw: Draw,
        *,
        total: int,
        max_tokens: int,
        kind: DrawKind,
        seed: int,
        plan: Plan | None = None,
        concurrency: int = CHUNK,
        on_spent: Callable[[int], None] = lambda tokens: None,
    ) -> None:
        """`max_tokens` is the longest completion; a run without a `plan` takes draws of `kind`.

        `on_spent` gets the tokens of each wave of a problem.
        """
        if plan is not None and total < plan.first * len(problems):
            raise ConfigError(
                f"auto: budget.tokens {total} does not pay for the first samples of {len(problems)} problems; "
                f"it takes about {plan.first * len(problems):.0f}"
            )
        self._folder, self._problems, self._draw = folder, problems, draw
        self._max_tokens, self._kind, self._seed = max_tokens, kind, seed
        self._plan, self._left, self._total = plan, total, total
        self._slots, self._on_spent = asyncio.Semaphore(concurrency), on_spent
        usual: Select = "weighted" if kind.scored else "majority"
        self._state = {problem.id: _Progress([], usual) for problem in problems}
        self._waves: list[dict[str, Any]] = []
        self._next = 0

    async def run(self) -> None:
        """Spend the total; afterwards `answer` returns what each problem got."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._restore()
        with store.RecordFile(self._folder / WAVES) as journal:
            self._journal = journal
            self._drawn = {(r.provenance["wave"], r.problem.id): r for r in store.read(journal.path)}
            if self._plan is None:
                await self._wave(self._problems, self._kind, range(1))
                going = await self._learn(self._begun())
            else:
                await self._pilot(self._plan)
                going = self._begun()
            if self._plan is not None:
                await self._climb(self._plan, going)

    async def answer(self, problem: Problem) -> Answer:
        """Return what a problem got; raises the error that ended it."""
        progress = self._state[problem.id]
        if progress.error is not None:
            raise progress.error
        if not progress.parts:
            return Answer("", None, finish_reason="length", stop_cause="budget")
        candidates, key = progress.candidates, kind_of(problem.kind).key
        choice = choose(candidates, key, progress.select) or vote(candidates, key) or fallback(candidates)
        unweighed = num_unweighed(candidates, progress.select)
        selected = (
            *([Event("note", (), {"unweighed": unweighed})] if unweighed else []),
            *([] if choice is None else [Event("select", choice.path)]),
        )
        return replace(
            progress.parts[-1],
            text=choice.text if choice else "",
            final=choice.final if choice else None,
            thinking=choice.thinking if choice else "",
            finish_reason=choice.finish_reason if choice else "length",
            candidates=tuple(candidates),
            usage=sum((part.usage for part in progress.parts), Usage()),
            trace=(*(event for part in progress.parts for event in part.trace), *selected),
            stop_cause="budget" if progress.is_cut else f"n={len(candidates)}",
            seconds=sum(part.seconds for part in progress.parts),
        )

    def _begun(self) -> list[Problem]:
        return [problem for problem in self._problems if self._state[problem.id].candidates]

    async def _pilot(self, plan: Plan) -> None:
        """Send every problem on the route that the budget pays for, with the first draws there."""
        mixture = follow(plan, self._total / max(len(self._problems), 1))
        for problem in self._problems:
            self._state[problem.id].route = mixture.pick(self._dice(problem)).route
        for route, members in zip(plan.routes, self._by_route(plan, self._problems), strict=True):
            await self._wave(members, route.kind, range(route.ladder[0]))

    def _by_route(self, plan: Plan, members: Sequence[Problem]) -> list[list[Problem]]:
        """The members on each route, in order."""
        return [[p for p in members if self._state[p.id].route == at] for at in range(len(plan.routes))]

    async def _learn(self, going: Sequence[Problem]) -> list[Problem]:
        """Explore a part of the problems in full and fit the plan to them; return the others.

        Where the budget is too small to learn from, all problems get the same, and none is left.
        """
        pilot_tokens = sum(part.usage.tokens for progress in self._state.values() for part in progress.parts)
        one = max(pilot_tokens / max(len(going), 1), 1.0)
        mean = self._total / max(len(self._problems), 1) / one
        most = max(n for n in LADDER if n <= max(DEPTH * mean, 1))
        number = int(EXPLORE * self._total / (most * one))
        if number < MIN_EXPLORED or most < 2 or number > len(going) // 2:
            await self._wave(going, self._kind, range(1, max(int(mean), 1)))
            return []
        explored_ids = {going[i * len(going) // number].id for i in range(number)}
        explored = [problem for problem in going if problem.id in explored_ids]
        await self._wave(explored, self._kind, range(1, most))
        pools = {problem.id: self._pool(problem) for problem in explored}
        pools = {name: by_consensus(pool) for name, pool in pools.items() if len(pool.draws) == most}
        if not pools:
            return []
        route = fit_route(Pools(self._kind, pools), seed=self._seed)
        self._plan = Plan((route,), Pools(self._kind, pools).spent, {"learned": len(pools)})
        return [problem for problem in going if problem.id not in explored_ids]

    def _pool(self, problem: Problem) -> DrawPool:
        """One problem's draws as a pool; what a wave cost is shared out by length."""
        progress = self._state[problem.id]
        places: dict[int, list[int]] = {}
        tokens: dict[int, float] = {}
        for part in progress.parts:
            length = max(sum(candidate.num_tokens for candidate in part.candidates), 1)
            for candidate in part.candidates:
                draw = candidate.path[0] // self._kind.width
                places.setdefault(draw, []).append(sum(map(len, places.values())))
                tokens[draw] = tokens.get(draw, 0.0) + part.usage.tokens * candidate.num_tokens / length
        candidates = named(progress.candidates, problem.kind)
        draws = tuple(tuple(progress) for progress in places.values())
        return DrawPool(candidates, (False,) * len(candidates), draws, tuple(tokens.values()))

    async def _climb(self, plan: Plan, going: Sequence[Problem]) -> None:
        """Take problems up their ladders, rung by rung, as long as it pays."""
        rate = self._rate(plan, going)
        for rung in range(max(len(route.ladder) for route in plan.routes)):
            states = {problem.id: self._name(plan, rung, problem) for problem in going}
            for name, state in states.items():
                self._state[name].select = plan.routes[self._state[name].route].select(rung, state)
            if not going or self._left <= 0:
                break
            counts = Counter((self._state[name].route, state) for name, state in states.items())

            def spends(policy: StoppingPolicy, rung: int = rung, counts: Counter[tuple[int, str]] = counts) -> float:
                return sum(count * policy.climbs[at].ahead[rung][state] for (at, state), count in counts.items())

            mixture = mix(plan, self._left / rate, spends)
            climbs = {p.id: mixture.pick(self._dice(p)).climbs[self._state[p.id].route] for p in going}
            on = [p for p in going if states[p.id] in climbs[p.id].go[rung]]
            going = []
            for route, members in zip(plan.routes, self._by_route(plan, on), strict=True):
                if rung + 1 < len(route.ladder):
                    going += await self._wave(members, route.kind, range(*route.ladder[rung : rung + 2]))

    def _name(self, plan: Plan, rung: int, problem: Problem) -> str:
        progress = self._state[problem.id]
        route, candidates = plan.routes[progress.route], named(progress.candidates, problem.kind)
        return route.known(rung, state_of(candidates, CLASSES, route.cuts))

    def _rate(self, plan: Plan, going: Sequence[Problem]) -> float:
        """How many times as many tokens these problems take as those that the plan was fitted on."""
        begun = [self._state[problem.id] for problem in going]
        firsts = sum(progress.parts[0].usage.tokens for progress in begun)
        expected = sum(plan.routes[progress.route].first for progress in begun)
        return max(firsts / max(expected, 1.0), 1e-6) if going else 1.0

    def _dice(self, problem: Problem) -> float:
        return seeds.uniform(seeds.derive(self._seed, problem.id, "planner"), 0)

    async def _wave(self, members: Sequence[Problem], kind: DrawKind, draws: range) -> list[Problem]:
        """Make these draws for the members, in order; return the members that got all of them."""
        number, self._next = self._next, self._next + 1
        if not draws:
            return list(members)
        members = self._persisted(number, members, draws)
        queue, longest = list(members), len(draws) * kind.longest(self._max_tokens)
        while queue and self._left > 0:
            size = max(1, min(CHUNK, self._left // longest))
            now, queue = queue[:size], queue[size:]
            # More than the longest draws take: a scorer may also have to read the problem itself.
            limit = Budget(tokens=self._left // len(now))
            self._left -= sum(await gather(self._one(number, problem, kind, draws, limit) for problem in now))
        return [problem for problem in members if self._state[problem.id].last == number]

    async def _one(self, wave: int, problem: Problem, kind: DrawKind, draws: range, limit: Budget) -> int:
        """Draw for one problem, or read what was drawn before the run was killed; return its tokens."""
        progress = self._state[problem.id]
        earlier = self._drawn.get((wave, problem.id))
        if earlier is not None and earlier.answer is not None:
            self._on_spent(earlier.answer.usage.tokens)
            return progress.add(wave, earlier.answer)
        try:
            async with self._slots:
                answer = await self._draw(problem, kind, draws, limit)
        except ConfigError:
            raise
        except TTCError as error:
            usage = spent(error)
            progress.error = charged(error, sum((part.usage for part in progress.parts), usage))
            return usage.tokens
        self._journal.append(Record(problem, answer=answer, provenance={"wave": wave}))
        self._on_spent(answer.usage.tokens)
        return progress.add(wave, answer)

    def _persisted(self, number: int, members: Sequence[Problem], draws: range) -> list[Problem]:
        """The members that a run had chosen before it was killed; else these, written down."""
        if number < len(self._waves):
            members_before = set(self._waves[number]["members"])
            return [problem for problem in self._problems if problem.id in members_before]
        self._waves += [{"start": 0, "end": 0, "members": []} for _ in range(number - len(self._waves))]
        self._waves.append({"start": draws.start, "end": draws.stop, "members": [problem.id for problem in members]})
        self._save()
        return list(members)

    def _save(self) -> None:
        plan = None if self._plan is None else asdict(self._plan)
        replace_text(self._folder / PLAN, json.dumps({"total": self._total, "plan": plan, "waves": self._waves}) + "\n")

    def _restore(self) -> None:
        """Read the plan and the waves of a run that was killed."""
        path = self._folder / PLAN
        if not path.is_file():
            return
        try:
            data: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            self._waves = list(data["waves"])
            if self._plan is not None and data["plan"] is not None:
                self._plan = plan_of(data["plan"])
        except (OSError, ValueError, KeyError, TypeError) as exc:
            raise ConfigError(f"{path} cannot be read ({type(exc).__name__}: {exc}); choose another --out") from exc


async def spend_total(
    folder: Path,
    problems: Sequence[Problem],
    solving: Callable[..., Awaitable[Answer]],
    params: Mapping[str, Any],
    *,
    scorer: Scorer | None,
    max_tokens: int,
    seed: int,
    concurrency: int,
    on_spent: Callable[[int], None],
) -> Callable[[Problem], Awaitable[Answer]]:
    """Spend the `total` of `auto`'s parameters over a run; returns what then answers each problem.

    `solving(problem, strategy=, budget=)` makes the draws of a wave for one problem; `on_spent` gets their tokens.
    """
    plan_path = params.get("plan")
    shape = {name: params.get(name) for name in ("width", "policy")}
    plan = None if plan_path is None else read_plan(plan_path, **shape, scorer=scorer)

    async def draw(problem: Problem, kind: DrawKind, draws: range, limit: Budget) -> Answer:
        wave = partial(draw_wave, start=draws.start, end=draws.stop, kind=kind, scorer=scorer)
        return await solving(problem, strategy=wave, budget=limit)

    planner = Planner(
        folder,
        problems,
        draw,
        total=params["total"],
        max_tokens=max_tokens,
        kind=kind_without_plan(**shape, scorer=scorer),
        seed=seed,
        plan=plan,
        concurrency=concurrency,
        on_spent=on_spent,
    )
    await planner.run()
    return planner.answer
