"""The loop of reasoning RL, synchronous: sample, verify, update, push weights, check health.

    prompts <- frontier sampler
    rollouts <- engine (whole groups; groups without a signal are refilled)
    rewards <- verifier and shaping parts
    policy <- one update            (`train.update`)
    engine <- policy, parity probed (`train.sync`)
    alarms <- health rules          (`train.health`)

Every step appends a line of metrics and, when recorded, its rollouts; alarms and held-out outcomes have files of their
own. A checkpoint holds all that the next step needs, so N steps, a kill and N more are the same bits as 2 N steps on a
CPU. Everything that can be swapped comes in as an argument (`Parts`). Left out: several learners; overlap of rollouts
and updates is `train.asynchronous`.
"""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from evals.task import Item
from train.act import act
from train.alarm_file import AlarmFile
from train.batch import rollout_batch
from train.checkpoint import Checkpoints
from train.frontier import Frontier
from train.health import Alarm, Health
from train.held_out import HeldOut, accuracy
from train.metrics import by_group, has_signal, rollout_metrics
from train.outcome import Outcome
from train.rewards import Rewarder
from train.rollout import Collector, Rollout
from train.rollout_file import RolloutFile
from train.sync import Syncer
from train.update import Updater, weighted
from ttc.errors import TrainingError
from ttc.records import LineFile

__all__ = ["Parts", "Plan", "learn", "outcome_of", "update_on"]


@dataclass(frozen=True, slots=True)
class Plan:
    """How long and how wide: `steps` updates of `prompts` groups each.

    A step with too few groups that carry a signal draws at most `refills` more rounds. Held-out accuracy is measured
    every `eval_every` steps and at the end; a checkpoint is written every `save_every`. `until` ends the run early once
    greedy held-out accuracy reaches it.
    """

    steps: int
    prompts: int
    refills: int = 0
    eval_every: int = 10
    save_every: int = 50
    until: float | None = None
    mask_truncated: bool = False


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything that a run is made of."""

    sampler: Frontier
    collector: Collector
    rewarder: Rewarder
    updater: Updater
    syncer: Syncer
    held_out: HeldOut
    health: Health
    checkpoints: Checkpoints
    metrics: LineFile
    rollouts: RolloutFile | None
    pad_id: int
    log: Callable[[str], None]
    alarms: list[Alarm] = field(default_factory=list)
    alarm_file: AlarmFile | None = None
    held_out_file: LineFile | None = None


@dataclass(slots=True)
class _State:
    """Counters that a checkpoint keeps."""

    step: int = 0
    best: float = 0.0
    seconds: float = 0.0
    tokens: int = 0


async def learn(plan: Plan, parts: Parts) -> dict[str, Any]:
    """Run until `plan.steps`, `plan.until` or a rule's stop; returns the last metrics with `stopped` (a reason or "").

    Raises:
        TrainingError: the parity probe failed.
    """
    state = _resume(parts)
    await parts.syncer.push()
    last: dict[str, Any] = await _evaluate(state, parts) if state.step == 0 else {}
    stopped = ""
    while state.step < plan.steps and not stopped:
        began = time.perf_counter()
        rollouts = await _rollouts(plan, parts, state.step)
        sampled = time.perf_counter()
        metrics = rollout_metrics(rollouts)
        metrics.update(update_on(rollouts, plan, parts.updater, parts.pad_id))
        updated = time.perf_counter()
        await parts.syncer.push()
        parity = await parts.syncer.probe([(*r.prompt_ids, *r.token_ids) for r in rollouts[:2]])
        parts.sampler.update(rollouts)
        state.step += 1
        state.tokens += sum(len(rollout.token_ids) for rollout in rollouts)
        state.seconds += time.perf_counter() - began
        metrics.update(_costs(began, sampled, updated, rollouts), parity=parity.mean, tokens=float(state.tokens))
        if state.step % plan.eval_every == 0 or state.step == plan.steps:
            metrics.update(await _evaluate(state, parts))
            metrics["gap"] = metrics["accuracy"] - metrics["held_out"]
        metrics["form_gap"] = metrics["formed"] - metrics["accuracy"]
        stopped = _act(parts.health.check(metrics, state.step, rollouts), parts)
        _write(metrics, state, rollouts, parts)
        last = {**last, **metrics}
        if plan.until is not None and metrics.get("held_out", 0.0) >= plan.until:
            stopped = f"held-out accuracy reached {plan.until:g}"
        if state.step % plan.save_every == 0 or state.step == plan.steps or stopped:
            _save(state, parts)
    return {**last, "step": state.step, "seconds": state.seconds, "stopped": stopped}


async def _rollouts(plan: Plan, parts: Parts, step: int) -> list[Rollout]:
    """Judged rollouts of one step; draws again, up to `refills` times, for groups without a signal."""
    found: list[Rollout] = []
    wanted = plan.prompts
    for round_ in range(plan.refills + 1):
        items: list[Item] = parts.sampler.draw(wanted, step, round_, [rollout.problem_id for rollout in found])
        if not items:
            break
        drawn = await parts.collector.collect(items, step, len(by_group(found)), parts.updater.optimiser.taken)
        found += await parts.rewarder.judge(drawn, step)
        wanted = plan.prompts - sum(map(has_signal, by_group(found).values()))
        if wanted <= 0:
            break
    if not found:
        raise TrainingError("the sampler has no items left: all are solved; stop here or raise the difficulty")
    return found


def update_on(rollouts: Sequence[Rollout], plan: Plan, updater: Updater, pad_id: int) -> dict[str, float]:
    """Train on the groups of `rollouts` that carry a signal; a step without any changes nothing."""
    kept = [rollout for group in by_group(rollouts).values() if has_signal(group) for rollout in group]
    if not kept:
        return {"updated": 0.0}
    batch = rollout_batch(kept, pad_id, mask_truncated=plan.mask_truncated)
    found = updater.step(weighted(batch, updater.objective, outcome_of(kept, batch.mask)))
    return {**found, "updated": 1.0, "not_finite": float(not math.isfinite(found["grad_norm"]))}


def outcome_of(rollouts: Sequence[Rollout], mask: torch.Tensor) -> Outcome:
    """Rewards and groups of `rollouts` for an advantage; `mask` (R, T)."""
    rewards = [math.nan if rollout.reward is None else rollout.reward for rollout in rollouts]
    return Outcome(torch.tensor(rewards), torch.tensor([rollout.group for rollout in rollouts]), mask)


async def _evaluate(state: _State, parts: Parts) -> dict[str, float]:
    right, _ = await accuracy(parts.held_out, parts.collector.engine)
    if parts.held_out_file is not None:
        parts.held_out_file.write({"step": state.step, "right": list(map(int, right))})
    value = sum(right) / len(right)
    drop, state.best = state.best - value, max(state.best, value)
    parts.log(f"step {state.step}: held-out accuracy {value:.3f} (greedy, {len(right)} problems)")
    return {"held_out": value, "held_out_drop": drop}


def _costs(began: float, sampled: float, updated: float, rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Seconds and tokens per second of both halves, and memory."""
    tokens = sum(len(rollout.token_ids) for rollout in rollouts)
    rollout_s, update_s = sampled - began, updated - sampled
    gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)
    if torch.cuda.is_available():
        gib = torch.cuda.max_memory_allocated() / (1 << 30)
    return {
        "rollout_s": rollout_s,
        "update_s": update_s,
        "sync_s": time.perf_counter() - updated,
        "rollout_tok_s": tokens / rollout_s,
        "update_tok_s": tokens / update_s,
        "rollout_share": rollout_s / (rollout_s + update_s),
        "memory_gb": gib,
    }


def _act(alarms: Sequence[Alarm], parts: Parts) -> str:
    """Carry out what the rules say; returns why the run must stop, or nothing."""
    parts.alarms.extend(alarms)
    updater = parts.updater
    return act(alarms, updater.model, updater.optimiser, parts.checkpoints, parts.log, parts.alarm_file)


def _write(metrics: dict[str, float], state: _State, rollouts: Sequence[Rollout], parts: Parts) -> None:
    plain = {name: value for name, value in metrics.items() if math.isfinite(value)}
    parts.metrics.write({"step": state.step, "seconds": round(state.seconds, 3), **plain}, sync=False)
    if parts.rollouts is not None:
        parts.rollouts.append(rollouts)


def _save(state: _State, parts: Parts) -> None:
    kept = {
        "sampler": parts.sampler.state(),
        "health": parts.health.state(),
        "best": state.best,
        "seconds": state.seconds,
        "tokens": state.tokens,
    }
    parts.checkpoints.save(state.step, parts.updater.model, parts.updater.optimiser.state(), kept)


def _resume(parts: Parts) -> _State:
    found = parts.checkpoints.load(parts.updater.model)
    if found is None:
        return _State()
    optimiser, state = found
    parts.updater.optimiser.load(optimiser)
    parts.sampler.load(state["sampler"])
    parts.health.load(state["health"])
    parts.log(f"resumed at step {state['step']}")
    return _State(state["step"], state["best"], state["seconds"], state["tokens"])
