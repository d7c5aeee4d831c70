"""What the conformance suites share: every engine and every strategy, how to make them small, how to compare runs."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ttc.config import registry
from ttc.core import Answer, Engine, Event, Message, Problem, Sampling, Scorer, Usage
from ttc.engines.scripted import ScriptedEngine
from ttc.engines.simulated import simulated
from ttc.errors import ConfigError
from ttc.scorers.constant import constant
from ttc.scorers.likelihood import likelihood
from ttc.scorers.prm import prm
from ttc.scorers.reward_models.backends import EmbeddedCore
from ttc.scorers.simulated import simulated as simulated_scorer
from ttc.session.solve import solve
from ttc.session.thinking import Thinking
from ttc.strategies.adaptive import adaptive
from ttc.strategies.aggregate import aggregate
from ttc.strategies.auto import auto
from ttc.strategies.best_of_n import best_of_n
from ttc.strategies.budget_forcing import budget_forcing
from ttc.strategies.confidence import confidence
from ttc.strategies.early_exit import early_exit
from ttc.strategies.first_finished import first_finished
from ttc.strategies.genselect import genselect
from ttc.strategies.knockout import knockout
from ttc.strategies.majority import majority
from ttc.strategies.refine import refine
from ttc.strategies.tree import tree


def talkative(jitter: int | None = None) -> ScriptedEngine:
    """A scripted thinker whose words depend on the draw: steps, an end of thinking, an answer."""
    from ttc import seeds

    def script(prompt, path, key):
        said = prompt.generated_text
        root = seeds.derive(0, prompt.messages[-1].content, path[0])
        thought = "".join(f"{root >> i & 7} and so on\n\n" for i in range(2 + root % 3))
        whole = f"{thought}</think>The answer is \\boxed{{{root % 3}}}."
        if whole.startswith(said):
            return whole[len(said) :]
        return f"\\boxed{{{root % 3}}}." if "</think>" in said else f"hm {root % 5}</think>\\boxed{{{root % 3}}}"

    return ScriptedEngine(script, thinking=True, jitter=jitter)


def embedded(jitter: int | None = None) -> Engine:
    """The packaged teacher in batch-invariant mode."""
    from ttc.engines.embedded.engine import embedded as make

    return make(batch_invariant=True)


ENGINES: dict[str, Callable[[int | None], Engine]] = {
    "scripted": talkative,
    "simulated": lambda jitter: simulated(p=0.8, steps=3, jitter=jitter),
    "embedded": embedded,
}

FEW_TOKENS = 24
"""Of an answer, where each costs a model's time: enough for a thought, several steps and a cut."""


@dataclass(frozen=True)
class Case:
    """A strategy with its parameters and the thinking control it runs under."""

    make: Callable[[], Callable[..., Any]]
    thinking: Thinking = Thinking()


def noisy_tree(**params: Any) -> Callable[..., Any]:
    """A small tree under a noisy scorer."""
    small = {"scorer": simulated_scorer(noise=1.0), "n": 6, "beam_width": 2, "max_depth": 12}
    return partial(tree, **{**small, **params})


def plan(name: str) -> str:
    """A plan of `auto` by hand: votes over 2, 3 or 5 samples; or greedy, alone or before islands of particles."""
    return str(Path(__file__).parent / "plans" / f"{name}.json")


SMALL: dict[str, Any] = {
    "n": 4,
    "m": 2,
    "k": 2,
    "rounds": 2,
    "agreement": 1.0,
    "beam_width": 2,
    "max_depth": 12,
    "chunk": 8,
    "repeats": 2,
    "probe_tokens": 6,
    "warmup": 2,
    "wave": 2,
    "group": 6,
    "max_thinking": 14,
    "plan": plan("votes"),
    "tokens": 120.0,
}
"""What makes a strategy small, by the names of its parameters; any other parameter keeps its default."""


def small(strategy: Callable[..., Any]) -> Callable[..., Any]:
    """A strategy with small parameters, and a noisy scorer where it cannot do without one."""
    parameters = inspect.signature(strategy).parameters
    params = {name: value for name, value in SMALL.items() if name in parameters}
    if "scorer" in parameters and parameters["scorer"].default is inspect.Parameter.empty:
        params["scorer"] = simulated_scorer(noise=1.0)
    return partial(strategy, **params)


def case_of(spec: str) -> Case:
    """The case of a strategy by its registered name or by path.py:function: a new one needs no line here."""
    return Case(partial(small, registry.STRATEGIES.load(spec)))


VARIANTS: dict[str, Case] = {
    "best_of_n by likelihood": Case(lambda: partial(best_of_n, scorer=likelihood(), n=4)),
    "best_of_n weighted": Case(lambda: partial(best_of_n, scorer=constant(), n=4, select="weighted")),
    "best_of_n pessimistic": Case(lambda: partial(best_of_n, scorer=likelihood(), n=4, select="pessimistic")),
    "adaptive one by one": Case(lambda: partial(adaptive, n=6)),
    "adaptive in windows": Case(lambda: partial(adaptive, n=6, rule="window", window=2)),
    "auto on two routes": Case(
        lambda: partial(auto, plan=plan("routes"), tokens=200.0, scorer=simulated_scorer(noise=1.0))
    ),
    "confidence in waves": Case(lambda: partial(confidence, n=6, warmup=2, wave=2, keep=0.6, group=6, chunk=9)),
    "genselect in groups": Case(lambda: partial(genselect, n=5, k=2, group=2)),
    "knockout by a scorer": Case(lambda: partial(knockout, n=4, scorer=likelihood())),
    "early_exit when confident": Case(lambda: partial(early_exit, rule="confidence", threshold=0.5, chunk=11)),
    "refine by a scorer": Case(
        lambda: partial(refine, feedback="scorer", threshold=0.99, scorer=simulated_scorer(noise=1.0))
    ),
    "tree dvts": Case(lambda: noisy_tree(policy="dvts")),
    "tree dvts in threes": Case(lambda: noisy_tree(beam_width=3)),
    "tree rebase in sentences": Case(lambda: noisy_tree(policy="rebase", boundary="sentence", window=2)),
    "tree islands": Case(lambda: noisy_tree(policy="particle", islands=2)),
    "tree particle": Case(lambda: noisy_tree(policy="particle:scheme=multinomial", select="population")),
    "tree particle residual, every second step": Case(
        lambda: noisy_tree(policy="particle:scheme=residual,ess=0.7", verify_every=2)
    ),
    "tree entropic by tokens": Case(lambda: noisy_tree(policy="entropic", boundary="tokens", max_step_tokens=9)),
    "tree puct": Case(lambda: noisy_tree(policy="puct", n=4)),
}
"""Further ways to run some of them."""
COMPOSITIONS: dict[str, Case] = {
    "best_of_n of refine": Case(
        lambda: partial(best_of_n, n=3, scorer=simulated_scorer(noise=1.0), of=partial(refine, rounds=1))
    ),
    "majority of trees": Case(lambda: partial(majority, n=3, of=noisy_tree(n=4))),
    "aggregate of a tree": Case(lambda: partial(aggregate, n=4, k=2, rounds=2, of=noisy_tree(n=4))),
    "majority of best_of_n of knockout": Case(
        lambda: partial(majority, n=2, of=partial(best_of_n, n=2, scorer=likelihood(), of=partial(knockout, n=2, k=2)))
    ),
}
"""Strategies of strategies."""
EVERY_INNER: dict[str, Case] = {
    f"majority of {name}": Case(lambda name=name: partial(majority, n=2, of=case_of(name).make()))
    for name in registry.STRATEGIES.names()
}
"""Every strategy as the voter of another: where a draw costs next to nothing."""
VARIANTS |= COMPOSITIONS
STRATEGIES: dict[str, Case] = {name: case_of(name) for name in registry.STRATEGIES.names()} | VARIANTS
THINKING_STRATEGIES: dict[str, Case] = {
    "budget_forcing with a wait": Case(lambda: partial(budget_forcing, num_waits=1)),
    "first_finished under a cap": Case(lambda: partial(first_finished, n=4, m=2, chunk=5), Thinking(max_tokens=14)),
    "early_exit under a cap": Case(lambda: partial(early_exit, chunk=5, repeats=2), Thinking(max_tokens=14)),
    "majority under a cap": Case(lambda: partial(majority, n=4), Thinking(max_tokens=14)),
    "tree under a cap": Case(
        lambda: partial(tree, scorer=simulated_scorer(noise=1.0), n=4, beam_width=2, max_depth=12),
        Thinking(max_tokens=14),
    ),
    "tree that must think longer": Case(
        lambda: partial(tree, scorer=constant(), n=4, beam_width=2, max_depth=12), Thinking(num_waits=1)
    ),
}


def exact_prm() -> Scorer:
    return prm(None, EmbeddedCore(batch_invariant=True))


PRM_STRATEGIES: dict[str, Case] = {
    "tree by the reward model": Case(lambda: partial(tree, scorer=exact_prm(), n=6, beam_width=3)),
    "best_of_n by the reward model": Case(lambda: partial(best_of_n, scorer=exact_prm(), n=4)),
}
EXTRA: dict[str, dict[str, Case]] = {
    "scripted": THINKING_STRATEGIES | EVERY_INNER,
    "simulated": {},
    "embedded": THINKING_STRATEGIES | PRM_STRATEGIES,
}


def cases(engine: str) -> dict[str, Case]:
    """Every strategy; those that need thinking where the engine thinks, the reward model where it reads the tokens."""
    thinks = "majority under a cap" in EXTRA[engine]
    return {name: case for name, case in STRATEGIES.items() if thinks or not needs_thinking(name)} | EXTRA[engine]


@functools.cache
def needs_thinking(name: str) -> bool:
    """Whether a strategy refuses an engine that does not think."""
    try:
        asyncio.run(solve_in_order(ENGINES["simulated"](None), STRATEGIES[name], problems(1), 1))
    except ConfigError as refusal:
        assert "think" in str(refusal), refusal
        return True
    return False


def problems(number: int) -> list[Problem]:
    """Small sums; the embedded teacher knows such questions."""
    return [
        Problem(id=f"p{i}", messages=(Message("user", f"Compute {i + 3}+{2 * i + 1}-{i}."),), kind="math")
        for i in range(number)
    ]


def logical(usage: Usage) -> Usage:
    """The columns that must not depend on the schedule."""
    return replace(usage, cached=0, flops=0.0)


def essence(answer: Answer) -> tuple[Any, ...]:
    """All of an answer but wall time and the cached / computed split."""
    events = tuple((event.kind, event.path, repr(sorted(event.data.items()))) for event in answer.trace)
    return replace(answer, seconds=0.0, usage=logical(answer.usage), trace=()), events


async def solve_in_order(
    engine: Engine, case: Case, order: Sequence[Problem], concurrency: int, max_tokens: int = 48
) -> dict[str, Answer]:
    """Solve problems in the given order with so many in flight."""
    limit = asyncio.Semaphore(concurrency)
    strategy = case.make()

    async def one(problem: Problem) -> tuple[str, Answer]:
        async with limit:
            return problem.id, await solve(
                problem,
                engine=engine,
                strategy=strategy,
                seed=11,
                sampling=Sampling(max_tokens=max_tokens),
                thinking=case.thinking,
            )

    return dict(await asyncio.gather(*(one(problem) for problem in order)))


def events_of(answer: Answer, kind: str) -> list[Event]:
    """Events of one kind."""
    return [event for event in answer.trace if event.kind == kind]


@dataclass(frozen=True)
class Together:
    """What several strategies answered that ran side by side, and what went wrong in one of them, by their names."""

    outcomes: dict[str, dict[str, Answer] | BaseException]

    def of(self, name: str) -> dict[str, Answer]:
        """The answers of one strategy by the ids of their problems; raises what it raised."""
        outcome = self.outcomes[name]
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def answers(self) -> list[Answer]:
        """All of all strategies."""
        return [answer for name in self.outcomes for answer in self.of(name).values()]


def counted(engine: Engine) -> tuple[Engine, list[Usage]]:
    """A view of an engine, and what the engine reports to those who use the view."""
    view, reports = copy.copy(engine), list[Usage]()

    def counting(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            *others, on_usage = arguments

            def report(usage: Usage) -> None:
                reports.append(usage)
                on_usage(usage)

            return method(*others, report)

        return call

    for name in ("generate", "logprobs"):
        setattr(view, name, counting(getattr(engine, name)))
    return view, reports


async def side_by_side(engines: Mapping[str, Engine], order: Sequence[Problem], concurrency: int) -> Together:
    """Run the strategies of these names at once, each over its engine: a batch costs little more than a draw."""
    known = cases("embedded")
    runs = (solve_in_order(engine, known[name], order, concurrency, FEW_TOKENS) for name, engine in engines.items())
    return Together(dict(zip(engines, await asyncio.gather(*runs, return_exceptions=True), strict=True)))
