"""An evaluation: one task and one engine, several strategies (arms), a resumable run folder for each.

The arms run one after the other, so that each has its own honest seconds; the engine batches across the problems of an
arm. Golds are checked against themselves, and run folders against their configurations and contents, before the engine
is loaded.

`contents` of run.json says by digest what an evaluation was made of: models, user files, plans and problems.

    {"weights of model nano": "9f2c...", "strategy file mine.py": "77ab...", "problems of task arithmetic": "d01e..."}

The names are for people: an error about a folder that holds another run uses them. A model behind a server is recorded
by the digests of what is read here, usually its tokenizer; what the server says of the model is recorded as `served`.
Cost: each weight file once, about a second per gigabyte, then remembered; the task's problems once. Left out: what a
reward server says of itself; the versions of torch and of engines in this process.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import ttc
from evals.loop import Solve, evaluate
from evals.numbers.summary import put_summary, summarise, with_dollars
from evals.run_folder import CONTENTS, COUNTED, SERVED, check_folder, held, is_whole, stored_config
from evals.task import Item, Task, problems_digest
from ttc.cli.rehearsal import rehearse
from ttc.config.choices import PartChoice, StrategyChoice
from ttc.config.recipes import dump
from ttc.core import (
    Answer,
    Budget,
    Capabilities,
    Engine,
    Priced,
    Prices,
    Problem,
    Record,
    Retrying,
    Sampling,
    Scorer,
    Served,
    Strategy,
    Verifier,
)
from ttc.engines.shared.wrapped import with_markers
from ttc.errors import ConfigError
from ttc.identity.digests import file_digest, named, part_contents, source_digests, strategy_contents
from ttc.session.meter import COUNTING
from ttc.session.session import Shared
from ttc.session.solve import fit_to_context, solve
from ttc.session.thinking import Thinking
from ttc.verifiers.service.service import Service


@dataclass(frozen=True, slots=True)
class Arm:
    """One strategy of an evaluation and its run folder; a `baseline` was added for comparison."""

    choice: StrategyChoice
    folder: Path
    baseline: bool = False


@dataclass(frozen=True, slots=True)
class Experiment:
    """Everything that decides the outcome, checked and not yet loaded.

    `fit`: `sampling.max_tokens` is the task's default and not the user's choice, so it is lowered where a problem's
    prompt leaves less of the model's context. `problems_seed`: None where the task's problems do not depend on one.
    `task_file`: the user's file that defines the task, if one does. `prices`: the user's; None: the server's.
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
    problems_seed: int | None = None
    task_file: Path | None = None
    prices: Prices | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """What one arm gave: its summary entry and its records."""

    arm: Arm
    entry: Mapping[str, Any]
    records: Sequence[Record]


TotalSpender: TypeAlias = Callable[..., Awaitable[Solve]]
"""Spends the total of a strategy over all problems of a run: `evals.allocation.planner.spend_total`."""


class Watcher(Protocol):
    """Observes the progress of an evaluation."""

    def loaded(self, capabilities: Capabilities) -> None:
        """The model is there, and nothing has been drawn."""
        ...

    def resumed(self, arm: Arm, count: int) -> None:
        """`count` problems of `arm` were found finished."""
        ...

    def spent(self, arm: Arm, tokens: int) -> None:
        """So many tokens more of the total that `arm` spends over all problems are gone."""
        ...

    def add(self, arm: Arm, record: Record) -> None:
        """One more problem of `arm` is finished."""
        ...

    def failed(self, failures: Mapping[str, int]) -> None:
        """How many attempts at requests failed by the end, by reason (`ttc.core.Retrying`)."""
        ...


def arm_config(
    experiment: Experiment,
    arm: Arm,
    contents: Mapping[str, str] | None = None,
    served: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return what run.json holds: everything that may change a result, and nothing else (not the concurrency).

    `contents` are the digests of what decides it, `served` is what a server says of its model; None: not known yet.
    """
    scorer = experiment.scorer if arm.choice.takes_scorer else None
    return {
        "task": experiment.task.name,
        "task_params": dump(experiment.task.params),
        "level": experiment.task.params.get("level"),
        "limit": experiment.limit,
        "strategy": arm.choice.name,
        "params": arm.choice.all_params(),
        "settings": settings_of(arm.choice, experiment.sampling.temperature, experiment.task.sampling.temperature),
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
        "budget": dump(limits(experiment, arm)),
        "seed": experiment.seed,
        "problems_seed": experiment.problems_seed,
        "version": ttc.__version__,
        COUNTED: COUNTING,
        CONTENTS: contents,
        SERVED: served,
    }


def settings_of(choice: StrategyChoice, temperature: float, usual: float | None) -> dict[str, Any]:
    """Return the settings of a strategy that are not its defaults, as JSON; its number of samples is not among them.

    Args:
        choice: the strategy with its parameters.
        temperature: the run's, which the strategy may override.
        usual: the task's temperature, which is left out; None where every temperature is stated.
    """
    parameters = inspect.signature(choice.function).parameters
    changed = {
        name: dump(value)
        for name, value in choice.params.items()
        if name not in ("n", "scorer", "temperature") and value != parameters[name].default
    }
    own = choice.params.get("temperature")
    drawn_at = temperature if own is None else own
    for option, inner in choice.inner.items():
        n = {f"{option}.n": inner.params["n"]} if "n" in inner.params else {}
        inside = settings_of(inner, drawn_at, drawn_at)
        changed |= {option: inner.name, **n, **{f"{option}.{name}": value for name, value in inside.items()}}
    return ({} if drawn_at == usual else {"temperature": drawn_at}) | changed


async def execute(
    experiment: Experiment,
    *,
    concurrency: int | None = None,
    retry_errors: bool = False,
    watcher: Watcher,
    spend_total: TotalSpender | None,
) -> list[Result]:
    """Run all arms and return their results in order; cancelling leaves every folder resumable.

    `concurrency` is of problems; None follows the engine (`problems_in_flight`). `spend_total` spends the total of a
    strategy that has one; without it the total is each problem's own.

    Raises:
        ConfigError: a gold that does not verify, a folder that holds another run, a part that cannot be made, or a
            parameter that a strategy refuses; all before any token is spent.
        TTCError: the engine or the verifier is broken.
    """
    arms = experiment.arms
    _checked_configs(experiment, [None] * len(arms))
    async with AsyncExitStack() as stack:
        # A verifier that hangs or raises costs its verdict, not the run. Golds stand in for its known cases.
        verifier = Service(experiment.verifier.create_verifier())
        stack.push_async_callback(verifier.close)
        check_golds(experiment.items, verifier, experiment.task)
        shared = _shared_contents(experiment)
        contents = [{**shared, **_arm_contents(experiment, arm)} for arm in arms]
        _checked_configs(experiment, contents)
        loaded = experiment.engine.create_engine()
        stack.push_async_callback(loaded.close)
        configs = _checked_configs(experiment, contents, loaded.served if isinstance(loaded, Served) else {})
        engine = with_markers(loaded, experiment.thinking)
        _check_length(experiment, engine)
        watcher.loaded(engine.capabilities)
        scorer = experiment.scorer.create_scorer(engine) if experiment.scorer else None
        running = _Running(
            experiment, loaded, engine, scorer, verifier, concurrency, retry_errors, watcher, spend_total
        )
        for arm in arms:
            if not running.spends_total(arm):  # else its planner asks
                await running.rehearse(arm)
        results = [await running.run(arm, config) for arm, config in zip(arms, configs, strict=True)]
        if isinstance(loaded, Retrying):
            watcher.failed(loaded.failures)
        return results


def _checked_configs(
    experiment: Experiment,
    contents: Sequence[Mapping[str, str] | None],
    served: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """The content of each arm's run.json, as far as it is known; refuses folders that hold other runs."""
    configs = [arm_config(experiment, arm, own, served) for arm, own in zip(experiment.arms, contents, strict=True)]
    for arm, config in zip(experiment.arms, configs, strict=True):
        check_folder(arm.folder, config, experiment.items)
    return configs


def _shared_contents(experiment: Experiment) -> dict[str, str]:
    """What all arms share: engine, verifier, the task's own file and its problems; loads no model.

    Raises:
        ConfigError: a folder or file cannot be read, or a model is not here and cannot be fetched.
    """
    file = experiment.task_file
    digests = {} if file is None else source_digests(file) if file.suffix == ".py" else {file.name: file_digest(file)}
    return {
        **part_contents(experiment.engine),
        **part_contents(experiment.verifier),
        **named(digests, before="task file "),
        f"problems of task {experiment.task.name}": problems_digest(experiment.items),
    }


def _arm_contents(experiment: Experiment, arm: Arm) -> dict[str, str]:
    """What an arm adds: its strategy's files, and its scorer's. Raises like `_shared_contents`."""
    scorer = experiment.scorer if arm.choice.takes_scorer else None
    return {**strategy_contents(arm.choice), **({} if scorer is None else part_contents(scorer))}


def _check_length(experiment: Experiment, engine: Engine) -> None:
    """Refuse a length that exceeds the context; a default length is fitted to each prompt instead."""
    length, context = experiment.sampling.max_tokens, engine.capabilities.max_context
    if not experiment.fit and length > context:
        raise ConfigError(f"--max-tokens {length} exceeds the context of {engine.capabilities.model}: {context} tokens")


@dataclass(frozen=True, slots=True)
class _Running:
    """An experiment whose parts are loaded."""

    experiment: Experiment
    loaded: Engine
    engine: Engine
    scorer: Scorer | None
    verifier: Verifier
    concurrency: int | None
    retry_errors: bool
    watcher: Watcher
    spend_total: TotalSpender | None

    def spends_total(self, arm: Arm) -> bool:
        """Whether a planner spends the total of this arm."""
        return self.spend_total is not None and arm.choice.params.get("total") is not None

    def strategy(self, arm: Arm) -> Strategy:
        return arm.choice.bind(self.scorer if arm.choice.takes_scorer else None)

    def fitted(self, problem: Problem) -> Sampling:
        if not self.experiment.fit:
            return self.experiment.sampling
        return fit_to_context(self.experiment.sampling, self.engine, problem, self.experiment.thinking)

    async def rehearse(self, arm: Arm) -> None:
        """Let a strategy refuse what it must before any arm spends a token."""
        experiment, problem = self.experiment, self.experiment.items[0].problem
        await rehearse(
            problem,
            self.engine,
            self.strategy(arm),
            seed=experiment.seed,
            sampling=self.fitted(problem),
            thinking=experiment.thinking,
            budget=experiment.budget,
            scorer=self.scorer if arm.choice.takes_scorer else None,
        )

    async def solve(self, problem: Problem, *, strategy: Strategy, budget: Budget | None, shared: Shared) -> Answer:
        return await solve(
            problem,
            engine=self.engine,
            strategy=strategy,
            seed=self.experiment.seed,
            sampling=self.fitted(problem),
            thinking=self.experiment.thinking,
            budget=budget,
            shared=shared,
        )

    async def run(self, arm: Arm, config: Mapping[str, Any]) -> Result:
        experiment, solving, started = self.experiment, partial(self.solve, shared={}), time.monotonic()
        concurrency = self.concurrency or problems_in_flight(self.engine, arm.choice)
        solver: Solve = partial(solving, strategy=self.strategy(arm), budget=experiment.budget)
        if (
            self.spend_total is not None
            and self.spends_total(arm)
            and not is_whole(arm.folder, experiment.items, retry_errors=self.retry_errors)
        ):  # the planner would ask the failed problems of a run that is only read again
            with held(arm.folder, config):
                solver = await self.spend_total(
                    arm.folder,
                    [item.problem for item in experiment.items],
                    solving,
                    arm.choice.params,
                    scorer=self.scorer if arm.choice.takes_scorer else None,
                    max_tokens=experiment.sampling.max_tokens,
                    seed=experiment.seed,
                    concurrency=concurrency,
                    on_spent=partial(self.watcher.spent, arm),
                )
        records = await evaluate(
            arm.folder,
            config,
            experiment.items,
            solver,
            self.verifier,
            concurrency=concurrency,
            retry_errors=self.retry_errors,
            started=started,
            on_kept=partial(self.watcher.resumed, arm),
            on_record=partial(self.watcher.add, arm),
        )
        model = experiment.engine.model or self.engine.capabilities.model
        prices = experiment.prices or (self.loaded.prices if isinstance(self.loaded, Priced) else None)
        counting = (stored_config(arm.folder) or config).get(COUNTED)  # an older run that only had to be read
        summary = summarise(records, {**config, COUNTED: counting})
        entry = with_dollars({**summary, "model": model, "records": "."}, prices)
        put_summary(arm.folder, entry)
        return Result(arm, entry, records)


def limits(experiment: Experiment, arm: Arm) -> Budget | None:
    """Return the limits of a single problem: those of the run, unless its tokens are a total that a planner spends."""
    budget = experiment.budget
    if arm.choice.params.get("total") is None or budget is None:
        return budget
    if any((budget.flops, budget.seconds, budget.calls)):
        raise ConfigError(f"{arm.choice.name} spends a total of tokens; it takes no other --budget")
    return None


_WAITING = 2
"""Draws in flight for each one that runs: a search may be waiting for its scorer."""
_FEWEST = 64


def problems_in_flight(engine: Engine, choice: StrategyChoice) -> int:
    """Return how many problems keep an engine busy: enough for twice the draws that it runs at once, at least 64."""
    n = choice.all_params().get("n")
    width = n if isinstance(n, int) and n > 0 else 1
    return max(_FEWEST, -(-_WAITING * engine.capabilities.max_concurrency // width))


def check_golds(items: Sequence[Item], verifier: Verifier, task: Task) -> None:
    """Refuse targets that do not verify against themselves; raises ConfigError naming the first of them."""
    for item in items:
        verifier.check_gold(item.target, f"task {task.name}: problem {item.problem.id!r}")
