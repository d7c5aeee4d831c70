"""An evaluation: one task and one engine, several strategies (arms), a resumable run folder for each.

The arms run one after the other, so that each has its own honest seconds; the engine batches across the problems of an
arm. Golds are checked against themselves and run folders against their configurations before the engine is loaded.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import ttc
from evals.run import check_folder, evaluate
from evals.summary import summarise, write_summary
from evals.task import Item, Task
from ttc.config import dump
from ttc.core import Answer, Budget, Engine, Problem, Record, Sampling, Scorer, Verifier
from ttc.options import PartChoice, StrategyChoice, fit_to_context
from ttc.session import Shared
from ttc.solve import Strategy, solve
from ttc.thinking import Thinking
from ttc.verifiers.service import Service

__all__ = ["Arm", "Experiment", "Result", "Watcher", "all_params", "arm_config", "check_golds", "execute"]


@dataclass(frozen=True, slots=True)
class Arm:
    """One strategy of an evaluation and its run folder; a `baseline` was added for comparison."""

    choice: StrategyChoice
    folder: Path
    baseline: bool = False


@dataclass(frozen=True, slots=True)
class Experiment:
    """Everything that decides the outcome, checked and not yet loaded.

    `fit`: nobody asked for `sampling.max_tokens`, it is the task's, and where a problem's prompt leaves less of the
    model's context, it is lowered to what is left.
    """

    task: Task
    items: Sequence[Item]
    engine: PartChoice
    scorer: PartChoice | None
    verifier: PartChoice
    sampling: Sampling
    fit: bool
    thinking: Thinking
    budget: Budget | None
    seed: int
    limit: int | None
    arms: Sequence[Arm]


@dataclass(frozen=True, slots=True)
class Result:
    """What one arm gave: its summary entry and its records."""

    arm: Arm
    entry: Mapping[str, Any]
    records: Sequence[Record]


class Watcher(Protocol):
    """Who is told how an evaluation goes on."""

    def resumed(self, arm: Arm, count: int) -> None:
        """`count` problems of `arm` were found finished."""
        ...

    def add(self, arm: Arm, record: Record) -> None:
        """One more problem of `arm` is finished."""
        ...


def arm_config(experiment: Experiment, arm: Arm) -> dict[str, Any]:
    """Return what run.json holds: whatever may change a result, and nothing else (not the concurrency)."""
    scorer = experiment.scorer if arm.choice.takes_scorer else None
    return {
        "task": experiment.task.name,
        "task_params": dump(experiment.task.params),
        "level": experiment.task.params.get("level"),
        "limit": experiment.limit,
        "strategy": arm.choice.name,
        "params": all_params(arm.choice),
        "engine": experiment.engine.name,
        "engine_params": dump(experiment.engine.params),
        "model": experiment.engine.model,
        "scorer": scorer.label if scorer else None,
        "scorer_params": dump(scorer.params) if scorer else {},
        "verifier": experiment.verifier.name,
        "verifier_params": dump(experiment.verifier.params),
        "sampling": dump(experiment.sampling),
        "fit": experiment.fit,
        "thinking": dump(experiment.thinking),
        "budget": dump(experiment.budget),
        "seed": experiment.seed,
        "version": ttc.__version__,
    }


async def execute(
    experiment: Experiment,
    *,
    concurrency: int,
    retry_errors: bool = False,
    watcher: Watcher,
) -> list[Result]:
    """Run all arms and return their results in order; cancelling leaves every folder resumable.

    Raises:
        ConfigError: a gold that does not verify, a folder that holds another run, or a part that cannot be made.
        TTCError: the engine or the verifier is broken.
    """
    for arm in experiment.arms:
        check_folder(arm.folder, arm_config(experiment, arm))
    async with AsyncExitStack() as stack:
        # One that hangs or raises costs its verdict, not the run. Golds stand in for its known cases.
        verifier = Service(experiment.verifier.create_verifier())
        stack.push_async_callback(verifier.close)
        check_golds(experiment.items, verifier, experiment.task)
        engine = experiment.engine.create_engine()
        stack.push_async_callback(engine.close)
        scorer = experiment.scorer.create_scorer(engine) if experiment.scorer else None
        return [
            await _run_arm(
                experiment,
                arm,
                engine,
                scorer,
                verifier,
                concurrency=concurrency,
                retry_errors=retry_errors,
                watcher=watcher,
            )
            for arm in experiment.arms
        ]


async def _run_arm(
    experiment: Experiment,
    arm: Arm,
    engine: Engine,
    scorer: Scorer | None,
    verifier: Verifier,
    *,
    concurrency: int,
    retry_errors: bool,
    watcher: Watcher,
) -> Result:
    config = arm_config(experiment, arm)
    strategy = arm.choice.bind(scorer if arm.choice.takes_scorer else None)
    records = await evaluate(
        arm.folder,
        config,
        experiment.items,
        partial(_solve, experiment=experiment, engine=engine, strategy=strategy, shared={}),
        verifier,
        concurrency=concurrency,
        retry_errors=retry_errors,
        on_kept=partial(watcher.resumed, arm),
        on_record=partial(watcher.add, arm),
    )
    model = experiment.engine.model or engine.capabilities.model
    entry = {**summarise(records, config), "model": model, "records": "."}
    write_summary(arm.folder, [entry])
    return Result(arm, entry, records)


async def _solve(
    problem: Problem, *, experiment: Experiment, engine: Engine, strategy: Strategy, shared: Shared
) -> Answer:
    sampling = experiment.sampling
    return await solve(
        problem,
        engine=engine,
        strategy=strategy,
        seed=experiment.seed,
        sampling=fit_to_context(sampling, engine, problem, experiment.thinking) if experiment.fit else sampling,
        thinking=experiment.thinking,
        budget=experiment.budget,
        shared=shared,
    )


def check_golds(items: Sequence[Item], verifier: Verifier, task: Task) -> None:
    """Refuse targets that do not verify against themselves; raises ConfigError naming the first of them."""
    for item in items:
        verifier.check_gold(item.target, f"task {task.name}: problem {item.problem.id!r}")


def all_params(choice: StrategyChoice) -> dict[str, Any]:
    """Return the strategy's parameters with the defaults of its signature filled in."""
    keywords = [p for p in inspect.signature(choice.function).parameters.values() if p.kind is p.KEYWORD_ONLY]
    defaults = {p.name: p.default for p in keywords if p.default is not p.empty and p.name != "scorer"}
    plain = {**defaults, **choice.params}
    return {name: dump(value) for name, value in plain.items()}
