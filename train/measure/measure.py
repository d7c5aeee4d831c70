"""Before and after: how a model answers held-out problems, and by how much a stage moved a number.

Held-out problems are the same every time and never trained on; they are answered greedily and sampled.

Every stage measures itself with these functions, so results have the same form in every report: the value before and
after, each with its 95 % interval, and the paired difference with its own.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Hashable, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from evals.numbers.statistics import Interval, mean_interval, paired_interval
from evals.task import Item, Task
from train.base.stage import Setting, last_attempt
from train.registries import make_task, make_verifier
from train.rollouts.rewards import close_verifier, served
from ttc.answers.kinds import kind_of
from ttc.config.recipes import parse_spec
from ttc.config.registry import ENGINES
from ttc.config.signatures import bind
from ttc.config.values import at_least
from ttc.core import (
    Answer,
    Engine,
    FinishReason,
    Problem,
    Sampling,
    Served,
    Strategy,
    Submission,
    Usage,
    Verifier,
    WeightSync,
)
from ttc.records import iterate
from ttc.session.session import Session, Shared
from ttc.session.thinking import Thinking


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Held-out problems, how they are checked, and how they are answered: one completion, or a `strategy`.

    `beside` is a second verifier, such as the one whose verdicts are the training rewards.
    """

    items: Sequence[Item]
    verifier: Verifier
    sampling: Sampling
    seed: int
    thinking: Thinking | None = None
    strategy: Strategy | None = None
    beside: Verifier | None = None
    shared: Shared = field(default_factory=dict, compare=False)


async def accuracy(held_out: HeldOut, engine: Engine, *, greedy: bool = True) -> tuple[list[bool], Usage]:
    """Whether each problem is answered correctly, in order, and what that cost; one draw each."""
    temperature = 0.0 if greedy else held_out.sampling.temperature
    sampling = replace(held_out.sampling, temperature=temperature)
    results = await asyncio.gather(*(_one(item, held_out, engine, sampling) for item in held_out.items))
    return [right for right, _, _ in results], sum((usage for _, _, usage in results), Usage())


async def by_both(held_out: HeldOut, engine: Engine) -> tuple[list[bool], list[bool]]:
    """Whether one sampled answer to each problem is right, and whether the verifier `beside` accepts it."""
    results = await asyncio.gather(*(_one(item, held_out, engine, held_out.sampling) for item in held_out.items))
    return [right for right, _, _ in results], [accepted for _, accepted, _ in results]


async def _one(item: Item, held_out: HeldOut, engine: Engine, sampling: Sampling) -> tuple[bool, bool, Usage]:
    session = Session(
        item.problem,
        engine,
        answers=kind_of(item.problem.kind),
        seed=held_out.seed,
        sampling=sampling,
        thinking=held_out.thinking,
        shared=held_out.shared,
    )
    with closing(session):
        answer = await (held_out.strategy or _complete)(item.problem, session)
        finish: FinishReason = "stop" if answer.finish_reason == "stop" else "length"
        submission = Submission(answer.text, answer.thinking, finish)
        verdict = await held_out.verifier.verify(item.target, submission)
        second = verdict if held_out.beside is None else await held_out.beside.verify(item.target, submission)
    return verdict.correct, second.correct, session.usage


async def _complete(problem: Problem, session: Session) -> Answer:
    """One completion."""
    prompt = session.render()
    (completion,) = await session.generate(prompt, 1)
    candidate = session.candidate(prompt, completion)
    return session.answer(candidate, [candidate])


EXACT = "embedded:dtype=float32,batch_invariant=auto"
"""What measures by default: fp32, and on a CPU the same bits whatever is batched."""


def open_engine(folder: Path, setting: Setting, engine: str = EXACT) -> Engine:
    """The engine of a spec, NAME or NAME:KEY=VALUE,..., on a model folder, the stage's device and number of threads.

    On a GPU its keys and values take a quarter of the free memory by default: a model is trained beside it.
    """
    name, options = parse_spec(engine)
    supply: dict[str, Any] = {"model": str(folder), "device": setting.device, "threads": setting.threads}
    if setting.device.startswith("cuda"):
        import torch  # commands that only tell of a run load none

        supply["kv_bytes"] = torch.cuda.mem_get_info(setting.device)[0] // 4
    supply = {key: value for key, value in supply.items() if key not in options}
    return cast("Engine", ENGINES.create(name, options, supply=supply))


def check_engine(engine: str) -> None:
    """Raise ConfigError for an unknown engine or option."""
    name, options = parse_spec(engine)
    bind(ENGINES.load(name), options, supply={"model": None})


@asynccontextmanager
async def opened(
    folder: Path, task: Task, setting: Setting, engine: str = EXACT
) -> AsyncIterator[tuple[Engine, Verifier]]:
    """`open_engine` on a model folder and the verifier of a task behind a service, both closed at the end.

    Separate servers get the weights of the folder first, since they hold whatever was pushed last.
    """
    backend, verifier = open_engine(folder, setting, engine), served(make_verifier(task))
    try:
        if isinstance(backend, Served) and backend.served and isinstance(backend, WeightSync):
            from train.base.models import load_model
            from train.base.weights import merged_state

            await backend.load_weights(merged_state(load_model(folder, "cpu")))
        yield backend, verifier
    finally:
        await backend.close()
        await close_verifier(verifier, setting.log)


def task_gains(
    task: Task, limit: int, before: Path, after: Path, setting: Setting, engine: str = EXACT
) -> dict[str, float]:
    """`gains` of accuracy on a task between two model folders: greedy (`held_out`) and sampled (`held_out_sampled`).

    Samples are drawn at the task's temperature, with equal seeds for both models. Greedy accuracy is nearly all or
    nothing in a small model; sampled accuracy shows what moved.
    """
    items = task.items(limit, 0)
    first, last = (asyncio.run(_answered(task, items, folder, setting, engine)) for folder in (before, after))
    groups = [item.group for item in items]
    greedy = gains("held_out", first[0], last[0], setting.seed, groups)
    return {**greedy, **gains("held_out_sampled", first[1], last[1], setting.seed, groups)}


@dataclass(frozen=True, kw_only=True)
class TaskFields:
    """Fields of a stage on fixed rows that also measures the accuracy on a task, before and after.

    Args:
        held_out: also measure the accuracy on this task, NAME or NAME:KEY=VALUE,...
        held_out_limit: most problems of that task.
        engine: engine that answers it, NAME or NAME:KEY=VALUE,...: in this process, or servers (vllm:base_url=...).
    """

    held_out: str | None = None
    held_out_limit: int = 128
    engine: str = EXACT

    def __post_init__(self) -> None:
        """Refuse an unknown task, and a limit below 1."""
        at_least("held_out", 1, held_out_limit=self.held_out_limit)
        _ = self._task

    @cached_property
    def _task(self) -> Task | None:
        return None if self.held_out is None else make_task(self.held_out)

    def check(self) -> None:
        """Raise ConfigError for an unknown engine or option."""
        check_engine(self.engine)

    def items(self) -> Sequence[Item]:
        """The problems of the task: none of them may be trained on."""
        return [] if self._task is None else self._task.items(self.held_out_limit, 0)

    def tasks(self) -> Mapping[str, tuple[Task, int | None]]:
        """See `train.base.stage.Asking`."""
        return {} if self._task is None else {"held_out": (self._task, self.held_out_limit)}

    def gains(self, before: Path, after: Path, setting: Setting) -> dict[str, float]:
        """`task_gains` between two model folders; empty without a task."""
        if self._task is None:
            return {}
        return task_gains(self._task, self.held_out_limit, before, after, setting, self.engine)


def held_out_gains(path: Path, seed: int, steps: int) -> dict[str, float]:
    """`gains` between the first and the last measurement that a loop wrote to `path`, greedy and sampled.

    The loop ended after `steps` updates: later lines are of a lost attempt.
    """
    rows = [row for row in last_attempt(row for _, row in iterate(path)) if row["step"] <= steps]
    if len(rows) < 2:
        return {}
    numbers: dict[str, float] = {}
    for column, name in (("right", "held_out"), ("sampled", "held_out_sampled")):
        if column in rows[0] and column in rows[-1]:
            numbers |= gains(name, rows[0][column], rows[-1][column], seed, rows[0].get("groups", ()))
    return numbers


async def _answered(
    task: Task, items: Sequence[Item], folder: Path, setting: Setting, engine: str
) -> tuple[list[float], list[float]]:
    """1 or 0 per problem: whether the greedy answer is right, and whether a sampled one is."""
    async with opened(folder, task, setting, engine) as (backend, verifier):
        held_out = HeldOut(items, verifier, task.sampling, setting.seed)
        greedy, _ = await accuracy(held_out, backend)
        samples, _ = await accuracy(held_out, backend, greedy=False)
    return [float(value) for value in greedy], [float(value) for value in samples]


def gains(
    name: str,
    before: Sequence[float],
    after: Sequence[float],
    seed: int,
    clusters: Sequence[Hashable] = (),
    *,
    smooth: bool = False,
) -> dict[str, float]:
    """`NAME_before`, `NAME_after` and `NAME_gain`, each with `_low` and `_high`; the values are shares in [0, 1].

    `smooth` values are likelihoods and the like, without outliers. Empty if nothing was measured.
    """
    if not before:
        return {}
    groups = clusters or range(len(before))
    intervals = {
        f"{name}_before": mean_interval(before, groups, seed=seed, smooth=smooth),
        f"{name}_after": mean_interval(after, groups, seed=seed, smooth=smooth),
        f"{name}_gain": paired_interval(before, after, groups, seed=seed, smooth=smooth),
    }
    flat: dict[str, float] = {}
    for key, interval in intervals.items():
        flat |= {key: interval.value, f"{key}_low": interval.low, f"{key}_high": interval.high}
    return flat


def unpaired_low(first: Interval, second: Interval) -> float:
    """The lower end of `second` - `first`, two means of different problems (Newcombe 1998, squares of both ends)."""
    return second.value - first.value - math.hypot(second.value - second.low, first.high - first.value)
