"""Draw rollouts of the current model on a task and judge them, for rejection sampling and on-policy pairs.

The model passes through unchanged; `rollouts.jsonl` holds every draw with its ids, log-probabilities and verdict. The
held-out metric is the accuracy of the draws, with its interval over problems. Cost: n completions per problem.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from evals.numbers.statistics import mean_interval
from evals.task import Task
from train.base.rollout import Collector, Rollout, write_rollouts
from train.base.stage import Setting, Stage, StageResult, check_model, model_of, pass_through
from train.examples.examples import check_room
from train.measure.measure import EXACT, check_engine, opened
from train.registries import make_task
from train.rollouts.rewards import Rewarder
from ttc.config.values import at_least, counted
from ttc.session.thinking import Thinking


def sample(
    *,
    task: str,
    n: int = 8,
    limit: int | None = None,
    max_tokens: int | None = None,
    thinking: Literal["auto", "on", "off"] = "auto",
    max_thinking: int | None = None,
    partial_credit: bool = False,
    round: int = 0,
    engine: str = EXACT,
) -> Stage:
    """Draw and judge rollouts.

    Args:
        task: the problems, NAME or NAME:KEY=VALUE,...
        n: rollouts per problem.
        limit: most problems.
        max_tokens: cap of a rollout; None is the task's.
        thinking: on asks for it, off forbids it, auto leaves it to the model.
        max_thinking: most thinking tokens of a rollout.
        partial_credit: take the verifier's score as the reward instead of right or wrong.
        round: number of the round; another round makes new draws.
        engine: engine that samples, NAME or NAME:KEY=VALUE,...: in this process, or servers (vllm:base_url=...).
    """
    at_least("sample", 1, n=n, limit=limit, max_tokens=max_tokens)
    at_least("sample", 0, round=round)
    mode = Thinking(mode=thinking, max_tokens=max_thinking)
    return _Sample(make_task(task), n, limit, max_tokens, mode, partial_credit, round, engine)


@dataclass(frozen=True, slots=True)
class _Sample:
    task: Task
    n: int
    limit: int | None
    max_tokens: int | None
    thinking: Thinking
    partial_credit: bool
    round: int
    engine: str

    def check(self, has_model: bool) -> None:
        check_model("sample", has_model)
        check_engine(self.engine)
        self.task.items(self.limit, 0)

    def tasks(self) -> Mapping[str, tuple[Task, int | None]]:
        return {"task": (self.task, self.limit)}

    def run(self, setting: Setting) -> StageResult:
        """See `Stage.run`; an interrupted one begins again."""
        source = model_of("sample", setting)
        rollouts = asyncio.run(self._draw(source, setting))
        write_rollouts(setting.folder / "rollouts.jsonl", rollouts)
        right = [float(rollout.right) for rollout in rollouts]
        rate = mean_interval(right, [r.key for r in rollouts], seed=setting.seed)
        setting.log(f"sampled {counted(len(rollouts), 'rollout')}, {100 * rate.value:.1f} % right")
        numbers = {"accuracy": rate.value, "accuracy_low": rate.low, "accuracy_high": rate.high}
        return StageResult(pass_through(setting), {**numbers, "rollouts": float(len(rollouts))})

    async def _draw(self, source: Path, setting: Setting) -> list[Rollout]:
        cap = self.max_tokens or self.task.sampling.max_tokens
        check_room("sample", self.task.items(self.limit, 0), source, self.thinking.template, cap)
        async with opened(source, self.task, setting, self.engine) as (engine, verifier):
            collector = Collector.plain(engine, self.n, cap, setting.seed, self.thinking)
            rollouts = await collector.collect(self.task.items(self.limit, 0), self.round)
            return await Rewarder(verifier, partial=self.partial_credit).judge(rollouts, self.round)
