"""What the ledger of a run must equal, and what no strategy may see."""

from __future__ import annotations

import asyncio
import dataclasses
import types
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from evals.loop import evaluate
from evals.numbers.summary import total_usage
from evals.tasks.simulated import simulated as simulated_task
from tests.evals.runs import BoxVerifier
from ttc.config.registry import STRATEGIES
from ttc.core import Answer, Problem, Prompt, Sampling, Score, Scorer, UsageSink
from ttc.engines.scripted import ScriptedEngine
from ttc.engines.simulated import simulated
from ttc.scorers.simulated import simulated as simulated_scorer
from ttc.session.session import Session
from ttc.session.solve import solve

STRATEGY_PARAMS = {
    "direct": {},
    "majority": {"n": 6},
    "best_of_n": {"n": 6},
    "tree": {"n": 8, "beam_width": 2},
    "tree dvts": {"n": 8, "beam_width": 2, "policy": "dvts"},
}


def bound(label: str) -> Any:
    function = STRATEGIES.load(label.split()[0])
    supply = {"scorer": simulated_scorer(noise=1.0)} if label not in ("direct", "majority") else {}
    return partial(function, **STRATEGY_PARAMS[label], **supply)


@pytest.mark.parametrize("label", STRATEGY_PARAMS)
def test_the_sum_of_the_records_equals_the_engines_counters_to_the_token(tmp_path: Path, label: str) -> None:
    items, engine = simulated_task().items(14, 0), simulated(p=0.85, steps=5)
    solver = partial(solve, engine=engine, strategy=bound(label), seed=11, sampling=Sampling())
    records = asyncio.run(evaluate(tmp_path / "run", {}, items, solver, BoxVerifier(), concurrency=5))
    ledger, counters = total_usage(records), engine.counters()
    scored = dataclasses.replace(ledger, scored=0, thinking=0, judged=0)
    assert dataclasses.replace(scored, flops=0.0) == dataclasses.replace(counters, flops=0.0)
    assert scored.flops == pytest.approx(counters.flops)


CANARY = "canary-8c1f2e"


class Nosy(Scorer):
    """A scorer that searches everything it is given."""

    def __init__(self) -> None:
        self.saw: list[bool] = []

    async def score(self, prompts: list[Prompt], on_usage: UsageSink) -> list[Score]:
        self.saw.append(reaches(prompts, CANARY) or reaches(on_usage, CANARY))
        return [Score(0.5) for _ in prompts]


def test_neither_strategies_nor_scorers_can_reach_a_target(tmp_path: Path) -> None:
    scorer = Nosy()
    saw: list[bool] = []

    async def nosy(problem: Problem, session: Session) -> Answer:
        prompt = session.render()
        (completion,) = await session.generate(prompt, 1)
        await session.score(scorer, [prompt.then(completion)])
        saw.append(reaches((problem, session, prompt, completion), CANARY))
        assert reaches((problem, session), problem.messages[0].content), "the search itself must work"
        return session.answer(session.candidate(prompt, completion), [])

    engine = ScriptedEngine(lambda prompt, path, key: "\\boxed{1}")
    items = [dataclasses.replace(item, target=CANARY) for item in simulated_task().items(3, 0)]
    solver = partial(solve, engine=engine, strategy=nosy, seed=0, sampling=Sampling())
    records = asyncio.run(evaluate(tmp_path / "run", {}, items, solver, BoxVerifier(), concurrency=2))
    assert [record.error for record in records] == [None] * 3
    assert saw == scorer.saw == [False] * 3
    assert reaches(items, CANARY)


def reaches(start: object, text: str) -> bool:
    """Whether `text` is in any string that can be reached from `start` by attributes, items or closures."""
    todo, seen = [start], set()
    while todo:
        value = todo.pop()
        if id(value) in seen or isinstance(value, type | types.ModuleType):
            continue
        seen.add(id(value))
        if isinstance(value, str) and text in value:
            return True
        todo += _inside(value)
    return False


def _inside(value: object) -> list[object]:
    if isinstance(value, str | bytes | int | float):
        return []
    if isinstance(value, dict | types.MappingProxyType):
        return [*value.keys(), *value.values()]
    if isinstance(value, list | tuple | set | frozenset):
        return list(value)
    found = list(vars(value).values()) if hasattr(value, "__dict__") else []
    found += [getattr(value, name) for name in getattr(type(value), "__slots__", ()) if hasattr(value, name)]
    if isinstance(value, types.MethodType):
        found.append(value.__self__)
    if isinstance(value, types.FunctionType):
        found += [cell.cell_contents for cell in value.__closure__ or () if _filled(cell)]
    if isinstance(value, partial):
        found += [value.func, value.args, value.keywords]
    return found


def _filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False
