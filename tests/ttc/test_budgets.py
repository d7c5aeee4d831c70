"""Conformance under budgets: every strategy and every policy, found by the registry, answers whenever it can.

The price of one short answer is what `direct` takes for it. From once that price on, in tokens, calls, FLOPs or
seconds, every strategy has an answer, and its ledger is never over the budget.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import itertools
import selectors
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.oracles.tools import SIGMAS
from tests.ttc import conformance as suite
from tests.ttc.questions import ask
from ttc.config.registry import POLICIES, STRATEGIES
from ttc.config.signatures import options_of
from ttc.core import Answer, Budget, Capabilities, Engine, Path, Problem, Prompt, Sampling, Strategy
from ttc.engines.scripted import ScriptedEngine
from ttc.engines.shared.wrapped import Wrapped
from ttc.engines.simulated import simulated, truth
from ttc.scorers.constant import constant
from ttc.scorers.simulated import simulated as simulated_scorer
from ttc.session.solve import solve
from ttc.session.thinking import Thinking
from ttc.strategies.direct import direct

MULTIPLES = (1, 2, 3, 5, 8, 13)
NEEDS: dict[str, dict[str, Any]] = {
    "auto": {"plan": suite.plan("votes"), "tokens": 120.0},
    "tools": {"instruct": False},  # so that its prompt is the price's
}
"""What a strategy cannot do without, besides a scorer."""
PLAIN = {"no_think_then_think": Thinking(mode="off"), "budget_forcing": Thinking(mode="on")}
"""How the first draw of a strategy is made, where it is not as the model likes."""

SUBJECTS = [name for name in STRATEGIES.names() if name != "tree"] + [f"tree {name}" for name in POLICIES.names()]
REPHRASES = {"aggregate"}
"""Strategies that ask a question of their own, which the simulated reasoner takes for another problem."""
ENGINES: dict[str, Callable[[], ScriptedEngine]] = {
    "scripted": suite.talkative,
    "simulated": lambda: simulated(p=0.8, steps=5),
    "thinking": lambda: simulated(p=0.8, steps=5, hazard=0.4),
}


def strategy_of(subject: str) -> Strategy:
    """The strategy with its defaults; a tree with the policy that the subject names."""
    name, _, policy = subject.partition(" ")
    function = STRATEGIES.load(name)
    needs = dict(NEEDS.get(name, {}))
    parameter = inspect.signature(function).parameters.get("scorer")
    if parameter is not None and parameter.default is inspect.Parameter.empty:
        needs["scorer"] = simulated_scorer(noise=1.0)
    return functools.partial(function, **needs, **({"policy": policy} if policy else {}))


async def solved(
    subject: str, engine: Engine, budget: Budget | None, problem: Problem | None = None, **options: Any
) -> Answer:
    """Solve one problem; `direct` for an empty subject."""
    return await solve(
        problem or suite.problems(1)[0],
        engine=engine,
        strategy=strategy_of(subject) if subject else direct,
        seed=6,
        sampling=Sampling(max_tokens=400),
        budget=budget,
        **options,
    )


def answer_of(*arguments: Any, **options: Any) -> Answer:
    """The same in a loop of its own."""
    return asyncio.run(solved(*arguments, **options))


def price_of(subject: str, engine: Engine) -> Answer:
    """One short answer, of the kind that the strategy draws first."""
    answer = answer_of("", engine, None, thinking=PLAIN.get(subject))
    if answer.final is None:
        pytest.skip("such a draw has no answer at any price")
    return answer


@pytest.mark.long
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("subject", SUBJECTS)
def test_every_strategy_answers_from_the_price_of_one_answer_on_and_is_never_over(subject: str, engine: str) -> None:
    price = price_of(subject, ENGINES[engine]()).usage
    for multiple in MULTIPLES:
        for budget in (
            Budget(tokens=multiple * price.tokens),
            Budget(calls=multiple * price.calls),
            Budget(flops=multiple * price.flops),
            Budget(tokens=multiple * price.tokens, calls=multiple * price.calls),
        ):
            made = ENGINES[engine]()
            answer = answer_of(subject, made, budget)
            assert answer.final is not None, budget
            assert answer.usage.tokens <= (budget.tokens or answer.usage.tokens), budget
            assert answer.usage.calls <= (budget.calls or answer.usage.calls), budget
            assert answer.usage.flops <= (budget.flops or answer.usage.flops), budget
            assert made.counters().generated == answer.usage.generated + answer.usage.overrun


def brief(num_asked: int) -> ScriptedEngine:
    """Ends every thought after 5 tokens; of a long question, each request costs as much as many of those."""

    def script(prompt: Prompt, path: Path, key: int) -> str:
        thought, closed, answer = prompt.generated_text.rpartition("</think>")
        return "\\boxed{7}"[len(answer) :] if closed else "hmm, </think>\\boxed{7}"

    engine = ScriptedEngine(script, thinking=True)
    assert len(engine.render(ask("q" * num_asked).messages, True).token_ids or ()) > num_asked
    return engine


@pytest.mark.parametrize("limits", [{}, {"tokens": 400}, {"calls": 60}])
@pytest.mark.parametrize("subject", ["direct", "majority", "tree beam"])
def test_ends_of_thinking_that_are_suppressed_pass_no_budget(subject: str, limits: dict[str, Any]) -> None:
    """Each is a request, and reads the question anew where the engine keeps nothing."""
    control = Thinking(min_tokens=200)
    engine = brief(300)
    for flops in (3e6, 6e6, 1e7, 2e7, 3e7, 1e8):
        answer = answer_of(subject, engine, Budget(flops=flops, **limits), problem=ask("q" * 300), thinking=control)
        assert answer.usage.flops <= flops and answer.usage.calls <= limits.get("calls", answer.usage.calls)
        assert answer.final is not None or flops < 1e7


@pytest.mark.parametrize("budget", [Budget(flops=1e9), Budget(calls=100), Budget(flops=1e9, calls=100)])
def test_a_budget_that_pays_for_every_suppressed_end_leaves_the_minimum_as_it_is(budget: Budget) -> None:
    control = Thinking(min_tokens=200)
    free, paid = (answer_of("", brief(9), limit, thinking=control) for limit in (None, budget))
    assert (paid.thinking, paid.final, paid.stop_cause) == (free.thinking, "7", "done")


@pytest.mark.parametrize(("calls", "num_waits"), [(2, 0), (3, 1), (4, 2), (8, 3)])
def test_a_thought_is_extended_no_further_than_the_calls_leave_one_for_the_answer(calls: int, num_waits: int) -> None:
    control = Thinking(num_waits=3)
    answer = answer_of("", brief(9), Budget(calls=calls), thinking=control)
    assert (answer.final, answer.thinking.count("Wait")) == ("7", num_waits)
    assert answer.stop_cause == ("done" if num_waits == 3 else "budget")


def test_the_words_that_end_a_thought_for_a_budget_are_paid_for() -> None:
    control = Thinking(num_waits=1)
    for flops in range(100_000, 900_000, 20_000):
        budget = Budget(tokens=70, flops=float(flops))
        assert answer_of("", suite.talkative(), budget, thinking=control).usage.flops <= flops


class Clock:
    """Seconds that pass only while everybody waits."""

    def __init__(self) -> None:
        self.now = 0.0


class Waiting(selectors.DefaultSelector):
    """Lets the clock jump to the next timer."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready and timeout is not None:
            self._clock.now += max(timeout, 0.0)
        return ready


class Jumping(asyncio.SelectorEventLoop):
    """An event loop whose time is the clock's."""

    def __init__(self, clock: Clock) -> None:
        self._jumps = clock
        super().__init__(Waiting(clock))

    def time(self) -> float:
        return self._jumps.now


def timed(engine: ScriptedEngine) -> ScriptedEngine:
    """The engine, a second to each request."""

    async def wait(path: tuple[int, ...]) -> None:
        await asyncio.sleep(1.0)

    engine._wait = wait  # type: ignore[method-assign]
    return engine


def answer_in(subject: str, engine: ScriptedEngine, seconds: float | None) -> tuple[Answer, float]:
    """Solve one problem by the jumping clock; the seconds that it took."""
    clock = Clock()
    budget = None if seconds is None else Budget(seconds=seconds)
    with asyncio.Runner(loop_factory=lambda: Jumping(clock)) as runner:
        return runner.run(solved(subject, engine, budget, clock=lambda: clock.now)), clock.now


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("subject", SUBJECTS)
def test_every_strategy_answers_in_the_time_of_one_answer(subject: str, engine: str) -> None:
    """A request takes a second, however long; a strategy that looks at its one growing draw needs several for it."""
    price_of(subject, ENGINES[engine]())
    _, price = answer_in(subject, timed(ENGINES[engine]()), None) if subject == "early_exit" else (None, 1.0)
    for multiple in MULTIPLES:
        answer, took = answer_in(subject, timed(ENGINES[engine]()), multiple * price + 0.01)
        assert answer.final is not None, multiple
        assert took <= multiple * price + 0.02


class Crowded(Wrapped):
    """An engine as on a CPU."""

    @property
    def capabilities(self) -> Capabilities:
        return replace(self._engine.capabilities, draws_share_time=True)


WIDE = [name for name in STRATEGIES.names() if "n" in options_of(STRATEGIES.load(name))]


@pytest.mark.parametrize("name", WIDE)
def test_a_wide_strategy_answers_in_the_time_of_one_answer_where_draws_slow_each_other_down(name: str) -> None:
    """As on a CPU: a draw alone takes 0.1 s, and one of 64 in one batch 6.4 s."""
    engine, live, strategy = Crowded(suite.talkative()), 0, STRATEGIES.load(name)
    scorer = {"scorer": constant()} if "scorer" in inspect.signature(strategy).parameters else {}

    async def wait(path: tuple[int, ...]) -> None:
        nonlocal live
        live += 1
        for _ in range(10):
            await asyncio.sleep(0.01 * live)
        live -= 1

    engine._engine._wait = wait  # type: ignore[attr-defined]
    clock = Clock()
    work = solve(
        suite.problems(1)[0],
        engine=engine,
        strategy=functools.partial(strategy, n=64, **scorer),
        seed=6,
        sampling=Sampling(max_tokens=400),
        budget=Budget(seconds=0.5),
        clock=lambda: clock.now,
    )
    with asyncio.Runner(loop_factory=lambda: Jumping(clock)) as runner:
        answer = runner.run(work)
    assert answer.final is not None and clock.now < 0.6


TIMED = suite.STRATEGIES | suite.THINKING_STRATEGIES


@pytest.mark.parametrize("name", TIMED)
def test_time_that_ends_within_a_request_ends_the_strategy_and_fails_nothing(name: str) -> None:
    """Requests take different times, so that the clock cuts probes, pieces, steps and whole draws."""
    case = TIMED[name]

    async def wait(path: tuple[int, ...]) -> None:
        await asyncio.sleep(0.2 + 0.37 * (sum(path) % 4))

    for tenths in range(1, 40, 2):
        engine, clock = suite.talkative(), Clock()
        engine._wait = wait  # type: ignore[method-assign]
        work = solve(
            suite.problems(1)[0],
            engine=engine,
            strategy=case.make(),
            seed=6,
            sampling=Sampling(max_tokens=60),
            thinking=case.thinking,
            budget=Budget(seconds=tenths / 10 + 0.01),
            clock=lambda clock=clock: clock.now,
        )
        with asyncio.Runner(loop_factory=lambda clock=clock: Jumping(clock)) as runner:
            answer, counters = runner.run(work), engine.counters()
        usage = answer.usage
        assert counters.generated + counters.overrun == usage.generated + usage.overrun, tenths
        # A thought whose answer the clock has cut is lost as a whole: nothing of it was kept.
        assert usage.generated == sum(event.data["num_tokens"] for event in suite.events_of(answer, "generate")), tenths


@pytest.mark.slow
@pytest.mark.parametrize("subject", [name for name in SUBJECTS if name not in REPHRASES])
def test_accuracy_does_not_fall_with_the_budget(subject: str) -> None:
    """On the simulated reasoner, paired over problems: no step up loses more than chance allows, nor do all of them."""
    problems, engine = 250, simulated(p=0.87, steps=5)
    price = price_of(subject, engine).usage.tokens
    rows: list[list[bool]] = []
    for multiple in MULTIPLES:
        budget = Budget(tokens=int(1.5 * multiple * price))
        answers = [answer_of(subject, engine, budget, ask(f"problem {i}")) for i in range(problems)]
        rows.append([answer.final == truth(f"problem {i}") for i, answer in enumerate(answers)])
    for before, after in (*itertools.pairwise(rows), (rows[0], rows[-1])):
        lost = sum(was and not now for was, now in zip(before, after, strict=True))
        won = sum(now and not was for was, now in zip(before, after, strict=True))
        assert won - lost >= -SIGMAS * max(won + lost, 1) ** 0.5
