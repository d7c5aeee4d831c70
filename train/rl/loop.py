"""The loop of reasoning RL: sample, verify, update, push weights, check health.

    prompts <- frontier sampler
    rollouts <- engine (whole groups; groups without a signal are refilled)
    rewards <- verifier and shaping parts
    policy <- one update            (`train.update.update`)
    engine <- policy, parity probed (`train.rollouts.sync`)
    alarms <- health rules          (`train.base.health`)

Every step appends a line of metrics and, when recorded, its rollouts; alarms and held-out outcomes have files of their
own. Updates are pure functions of (weights, optimiser, rollouts), on which `train.replay.replay` relies. A checkpoint
holds all that the next step needs, so N steps, a kill and N more steps give the same bits as 2 N steps, on one CPU,
with the same build of torch and number of threads and an engine in batch-invariant mode. All replaceable parts are
passed in (`Parts`). `train.rl.overlapped` does these at once. Left out: several learners.
"""

from __future__ import annotations

import math
import resource
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, TypeAlias, TypeVar

import torch

from evals.numbers.statistics import Interval, mean_interval, paired_interval
from evals.task import Item
from train.base.checkpoint import Checkpoints
from train.base.health import AlarmFile, Health, act
from train.base.rollout import (
    Collector,
    Rollout,
    RolloutFile,
    by_group,
    check_groups,
    family_means,
    has_signal,
    rollout_metrics,
)
from train.base.stage import time_left
from train.base.world import ALONE, World
from train.measure.measure import HeldOut, accuracy, by_both, unpaired_low
from train.rollouts.frontier import Frontier
from train.rollouts.rewards import Rewarder, close_verifier
from train.rollouts.sync import Syncer
from train.update.batch import rollout_batch
from train.update.terms import RewardBatch, k3
from train.update.update import Updater
from ttc.concurrent import Interrupted, Reminder, StopRequest
from ttc.config.values import counted
from ttc.errors import TrainingError
from ttc.records import LineFile


@dataclass(frozen=True, slots=True)
class LoopPlan:
    """The size of a run: `steps` updates of `prompts` groups each.

    A step with too few groups that carry a signal draws at most `refills` more rounds. Held-out accuracy is measured
    every `eval_every` steps and at the end; a checkpoint is written every `save_every`. `until` ends the run early once
    greedy held-out accuracy reaches it. `max_staleness` is the asynchronous loop's, in rounds.
    """

    steps: int
    prompts: int
    refills: int = 0
    eval_every: int = 10
    save_every: int = 50
    until: float | None = None
    mask_truncated: bool = False
    max_staleness: int = 1


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything that a run is made of.

    `seen` are training problems, drawn uniformly, that are answered like the held-out ones, so that a gap between the
    two is not due to the sampler. `best` keeps the checkpoint of the best held-out accuracy.
    """

    sampler: Frontier
    collector: Collector
    rewarder: Rewarder
    updater: Updater
    syncer: Syncer
    held_out: HeldOut
    seen: HeldOut | None
    health: Health
    checkpoints: Checkpoints
    best: Checkpoints | None
    metrics: LineFile
    rollouts: RolloutFile | None
    pad_id: int
    log: Callable[[str], None]
    alarm_file: AlarmFile | None = None
    held_out_file: LineFile | None = None
    world: World = ALONE
    stop: StopRequest = field(default_factory=StopRequest)
    reminder: Reminder = field(default_factory=Reminder)

    async def close(self) -> None:
        """Close the files and stop the verifiers; the engine is its opener's."""
        for file in (self.metrics, self.rollouts, self.alarm_file, self.held_out_file):
            if file is not None:
                file.close()
        judges = (self.held_out.verifier, self.held_out.beside, self.rewarder)
        for judge in {id(judge): judge for judge in judges if judge is not None}.values():
            await close_verifier(judge, self.log)


@dataclass(slots=True)
class LoopState:
    """Counters that a checkpoint keeps; `stopped` is why the run ends early, `last` the latest value of every metric.

    `best_right` are the held-out outcomes of the best accuracy. `apart` is the smallest excess of held-out answers that
    the training verifier accepted over the other one's, `least_fooled` the problems that only it accepted then;
    `recent` has the latest (length, accuracy) of train rollouts.
    """

    step: int = 0
    best: float = 0.0
    seconds: float = 0.0
    tokens: int = 0
    apart: float = 1.0
    recent: list[tuple[float, float]] = field(default_factory=list)
    best_right: list[float] = field(default_factory=list)
    least_fooled: list[float] = field(default_factory=list)
    stopped: str = ""
    last: dict[str, Any] = field(default_factory=dict)

    def going(self, plan: LoopPlan) -> bool:
        """Whether another step is due."""
        return self.step < plan.steps and not self.stopped


_COUNTERS = ("best", "best_right", "seconds", "tokens", "apart", "least_fooled", "recent", "stopped", "last")
NO_ITEMS = "the sampler has no items left: all are solved, or were asked once; give the task more or harder problems"


async def draw(plan: LoopPlan, parts: Parts, step: int) -> list[Rollout]:
    """Judged rollouts of one step; draws again, up to `refills` times, for groups without a signal.

    Raises:
        TrainingError: every problem is dropped: solved, or asked once.
        ConfigError: a strategy put several prompts into one group.
    """
    rollouts: list[Rollout] = []
    missing = plan.prompts
    for round_ in range(plan.refills + 1):
        items: list[Item] = parts.sampler.draw(missing, step, round_, [rollout.problem_id for rollout in rollouts])
        if not items:
            break
        first, mine = parts.world.share(items)
        # a group may have come back empty, so group numbers are not consecutive
        group = max((rollout.group for rollout in rollouts), default=-1) + 1 + first
        fresh = await parts.collector.collect(mine, step, group, parts.updater.optimiser.taken)
        rollouts += parts.world.gather(await parts.rewarder.judge(fresh, step))
        missing = plan.prompts - sum(map(has_signal, by_group(rollouts).values()))
        if missing <= 0:
            break
    if not rollouts:
        raise TrainingError(NO_ITEMS)
    check_groups(rollouts, parts.collector.engine.decode)
    return rollouts


def update_on(rollouts: Sequence[Rollout], plan: LoopPlan, updater: Updater, pad_id: int) -> dict[str, float]:
    """Train on `rollouts`; groups without a signal count in every mean, and without any signal nothing changes.

    Rows without a signal cost no forward pass (`Updater.learn`) but keep their place in the normaliser: the gradient of
    a batch with one live group in eight is an eighth of that of eight live groups, as published.
    """
    counted = _counted(rollouts, plan)
    if not any(rollout.reward is not None for rollout in counted):
        return {"updated": 0.0}
    batch = rollout_batch(counted, pad_id, mask_truncated=plan.mask_truncated)
    metrics = updater.learn(batch, outcome_of(counted, batch.mask, batch.ids[:, 1:]))
    if "grad_norm" not in metrics:
        return {**metrics, "updated": 0.0}
    return {**metrics, "updated": 1.0}


def _counted(rollouts: Sequence[Rollout], plan: LoopPlan) -> list[Rollout]:
    """The groups that an update averages over: all, or with refills `plan.prompts` of them, those with a signal first.

    Dynamic sampling replaces groups without a signal (DAPO); those that could not be replaced still count.
    """
    groups = list(by_group(rollouts).values())
    if plan.refills:
        groups = sorted(groups, key=lambda group: not has_signal(group))[: plan.prompts]
    return [rollout for group in groups for rollout in group]


_WATCHED = 8
"""Where nothing pulls the policy back to the reference, one of so many rollouts tells how far it has gone."""


def referenced(rollouts: Sequence[Rollout], updater: Updater, pad_id: int) -> tuple[list[Rollout], dict[str, float]]:
    """The rollouts with the reference's log-probabilities, and `kl_reference`: the sampler's divergence from it.

    By k3 over the sampled tokens, in nats. If no weight pulls the policy back, only every eighth rollout is measured
    and gets them. Unchanged without a reference.
    """
    if not updater.has_reference or not rollouts:
        return list(rollouts), {}
    every = 1 if updater.objective.kl_weight else _WATCHED
    watched = rollouts[::every]
    batch = rollout_batch([replace(rollout, reward=0.0) for rollout in watched], pad_id)
    reference = updater.reference_logprobs(batch)  # (R, T)
    known = batch.mask & ~torch.isnan(batch.engine)
    divergence = float(k3(batch.engine, reference)[known].mean()) if known.any() else math.nan
    rows = list(rollouts)
    for place, (rollout, row) in enumerate(zip(watched, reference.tolist(), strict=True)):
        first = len(rollout.prompt_ids) - 1
        pairs = zip(row[first : first + len(rollout.token_ids)], rollout.sampled, strict=True)
        rows[place * every] = replace(rollout, reference_logprobs=tuple(value if own else None for value, own in pairs))
    return rows, {"kl_reference": divergence}


def outcome_of(rollouts: Sequence[Rollout], mask: torch.Tensor, tokens: torch.Tensor | None = None) -> RewardBatch:
    """Rewards and groups of `rollouts` for an advantage; `mask` and target ids `tokens` (R, T)."""
    rewards = [math.nan if rollout.reward is None else rollout.reward for rollout in rollouts]
    groups, steps = torch.tensor([rollout.group for rollout in rollouts]), torch.full(mask.shape, math.nan)
    for row, rollout in enumerate(rollouts):
        for place, reward in rollout.step_rewards:
            steps[row, len(rollout.prompt_ids) - 1 + place] = reward
    return RewardBatch(torch.tensor(rewards), groups, mask, None if steps.isnan().all() else steps, tokens=tokens)


async def sync(parts: Parts, rollouts: Sequence[Rollout]) -> float:
    """Push the weights and prove on two of the rollouts that they arrived; raises TrainingError if not."""
    await parts.syncer.push()
    return await parts.syncer.probe([(*rollout.prompt_ids, *rollout.token_ids) for rollout in rollouts[:2]])


async def finish(
    plan: LoopPlan, parts: Parts, state: LoopState, rollouts: Sequence[Rollout], numbers: Mapping[str, float]
) -> None:
    """Finish a step: count it, measure, apply the health rules, write. Sets `state.stopped` and `state.last`.

    Raises:
        TrainingError: a loss, a gradient's norm or a weight is not finite; checkpoints are from before that.
    """
    state.step += 1
    state.tokens += sum(len(rollout.token_ids) for rollout in rollouts)
    metrics = {**rollout_metrics(rollouts), **parts.world.agree(numbers), "tokens": float(state.tokens)}
    saves = state.step % plan.save_every == 0 or state.step == plan.steps
    sound = not saves or parts.updater.optimiser.sound()
    metrics["not_finite"] = parts.health.not_finite(metrics, state.step, sound)
    if state.step % plan.eval_every == 0 or state.step == plan.steps:
        metrics.update(await evaluate(state, parts, plan))
        await parts.rewarder.check()
    elif parts.reminder.due():
        parts.log(f"step {state.step} of {plan.steps}: {counted(len(rollouts), 'rollout')}")
    metrics["form_gap"] = metrics["formed"] - metrics["accuracy"]
    metrics.update(growth(state, metrics))
    alarms = parts.health.check(metrics, state.step, rollouts)
    updater = parts.updater
    places = [place for place in (parts.best, parts.checkpoints) if place is not None]
    state.stopped = act(alarms, updater.model, updater.optimiser, places, parts.log, parts.alarm_file)
    if any(alarm.rule.action == "roll_back" for alarm in alarms):
        await parts.syncer.push()  # or the next rollouts would come from the weights just given up
    if plan.until is not None and metrics.get("held_out", 0.0) >= plan.until:
        state.stopped = f"held-out accuracy reached {plan.until:g}"
    state.last |= _finite(metrics)
    _write(metrics, state, rollouts, parts)
    if state.step % plan.save_every == 0 or not state.going(plan):
        parts.checkpoints.save(state.step, parts.updater.model, parts.updater.state(), _counters(state, parts))


_WINDOW = 10
"""Steps of each half over which growth of length and of accuracy are compared."""


def growth(state: LoopState, metrics: Mapping[str, float]) -> dict[str, float]:
    """`length_over_accuracy`: log growth of length minus that of accuracy, between the two halves of the latest steps.

    Empty until there are enough steps. An accuracy of 0 counts as a hundredth.
    """
    state.recent = [*state.recent, (metrics["length"], metrics["accuracy"])][-2 * _WINDOW :]
    if len(state.recent) < 2 * _WINDOW:
        return {}
    early, late = state.recent[:_WINDOW], state.recent[_WINDOW:]
    length, right = ([fmean(row[column] for row in half) for half in (early, late)] for column in (0, 1))
    gained = math.log(max(right[1], 0.01) / max(right[0], 0.01))
    return {"length_over_accuracy": math.log(max(length[1], 1.0) / max(length[0], 1.0)) - gained}


async def evaluate(state: LoopState, parts: Parts, plan: LoopPlan) -> dict[str, float]:
    """Held-out accuracy, greedy (`held_out`) and of one sample each, and how far the greedy one is below its best.

    Also the sampled accuracy on training problems and its `gap`, and, with a second verifier, what that accepts, and
    the lower ends of the intervals (`_low`) that health rules use. The weights of the best measurement are kept,
    including the start's: a run that only gets worse goes back to those.
    """
    engine, world, began = parts.collector.engine, parts.world, time.perf_counter()
    held_out = replace(parts.held_out, items=world.share(parts.held_out.items)[1])
    greedy, _ = await accuracy(held_out, engine)
    one, second = await by_both(held_out, engine)
    right, samples, accepted = world.gather(greedy), world.gather(one), world.gather(second)
    groups, seed = [item.group for item in parts.held_out.items], parts.held_out.seed
    if parts.held_out_file is not None:
        outcomes = {"right": list(map(int, right)), "sampled": list(map(int, samples))}
        variants = {"groups": groups} if len(set(groups)) < len(groups) else {}
        parts.held_out_file.write({"step": state.step, **outcomes, **variants})
    value, sampled_value = sum(right) / len(right), sum(samples) / len(samples)
    if value >= state.best and parts.best is not None:
        parts.best.save(state.step, parts.updater.model, parts.updater.state(), {}, until=parts.checkpoints.newest)
    drop, fall = state.best - value, {}
    if drop <= 0:
        state.best, state.best_right = value, list(map(float, right))
    elif state.best_right:
        fall = {"held_out_drop_low": paired_interval(right, state.best_right, groups, seed=seed).low}
    text = f"held-out accuracy {value:.3f} greedy, {sampled_value:.3f} sampled"
    left = _time_left(plan, state, time.perf_counter() - began)
    parts.log(f"step {state.step} of {plan.steps}: {text} ({counted(len(right), 'problem')}){left}")
    metrics = {"held_out": value, "held_out_sampled": sampled_value, "held_out_drop": drop, **fall}
    families = [item.difficulty or "" for item in parts.held_out.items]
    metrics |= family_means("held_out", zip(families, map(float, samples), strict=True))
    if parts.held_out.beside is not None:
        share = sum(accepted) / len(accepted)
        fooled = [float(passed and not true) for passed, true in zip(accepted, samples, strict=True)]
        metrics |= {"held_out_accepted": share, **_apart(state, share - sampled_value, fooled, groups, seed)}
    return {**metrics, **await _seen(parts, mean_interval(samples, groups, seed=seed))}


def _time_left(plan: LoopPlan, state: LoopState, evaluation_s: float) -> str:
    """The remaining time at the pace so far, measurements included; unknown before the first step."""
    due = plan.steps - state.step
    if not state.step or not due:
        return ""
    return time_left(due * state.seconds / state.step + math.ceil(due / plan.eval_every) * evaluation_s)


def _apart(state: LoopState, apart: float, fooled: list[float], groups: Sequence[str], seed: int) -> dict[str, float]:
    """By how much the training verifier accepts more than the other one, now and above its minimum.

    `fooled`: for each problem, whether only the training verifier accepts.
    """
    if apart <= state.apart:
        state.apart, state.least_fooled = apart, fooled
    widening = {"judges_gap": apart, "judges_widening": apart - state.apart}
    if not state.least_fooled:  # of an older checkpoint
        return widening
    return {**widening, "judges_widening_low": paired_interval(state.least_fooled, fooled, groups, seed=seed).low}


async def _seen(parts: Parts, held_out: Interval) -> dict[str, float]:
    """Sampled accuracy on training problems, and its excess over that on held-out ones."""
    if parts.seen is None:
        return {}
    seen = replace(parts.seen, items=parts.world.share(parts.seen.items)[1])
    right = parts.world.gather((await accuracy(seen, parts.collector.engine, greedy=False))[0])
    value = mean_interval(right, [item.group for item in parts.seen.items], seed=seen.seed)
    return {"seen_sampled": value.value, "gap": value.value - held_out.value, "gap_low": unpaired_low(held_out, value)}


def resume(parts: Parts) -> LoopState:
    """Load the newest checkpoint into the parts, if there is one; rollouts of later steps are drawn again."""
    checkpoint = parts.checkpoints.resume(parts.updater.model)
    optimiser, state = ({}, {"step": 0}) if checkpoint is None else checkpoint
    if parts.rollouts is not None:
        parts.rollouts.go_on_from(state["step"])
    if parts.best is not None:
        parts.best.drop_after(state["step"])
    if checkpoint is None:
        return LoopState()
    parts.updater.load(optimiser)
    parts.sampler.load(state["sampler"])
    parts.health.load(state["health"])
    parts.log(f"resumed at step {state['step']}")
    counters = {name: state[name] for name in _COUNTERS if name in state}  # older checkpoints lack the last two
    return LoopState(state["step"], **counters)


T = TypeVar("T")

SHORTEST_S = 1e-3
"""No half of a step that computes anything is shorter; an update without a signal is."""


def step_costs(
    rollouts: Sequence[Rollout], learnt: float, rollout_s: float, update_s: float, sync_s: float
) -> dict[str, float]:
    """Seconds and tokens per second of the halves of a step, and memory; a half in which nothing ran has no rate.

    Rollouts count all tokens drawn and judged; the update counts the `learnt` ones once.
    """
    tokens = sum(len(rollout.token_ids) for rollout in rollouts)
    halves = ("rollout", tokens, rollout_s), ("update", learnt, update_s)
    return {
        **{"rollout_s": rollout_s, "update_s": update_s, "sync_s": sync_s},
        **{f"{half}_tok_s": num / spent_s for half, num, spent_s in halves if num and spent_s >= SHORTEST_S},
        "rollout_share": rollout_s / max(rollout_s + update_s, 1e-9),
        "memory_gb": _peak_gib(),
    }


def _peak_gib() -> float:
    """The peak memory so far, of the GPU if there is one, in GiB; systems report it in KiB, macOS in bytes."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / (1 << 30)
    unit = 1 if sys.platform == "darwin" else 1 << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / (1 << 30)


def _finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """Metrics as JSON can hold them; a number that was not measured is NaN."""
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def _write(metrics: Mapping[str, float], state: LoopState, rollouts: Sequence[Rollout], parts: Parts) -> None:
    parts.metrics.write({"step": state.step, "seconds": round(state.seconds, 3), **_finite(metrics)}, sync=False)
    if parts.rollouts is not None:
        parts.rollouts.append(rollouts)


def _counters(state: LoopState, parts: Parts) -> dict[str, Any]:
    counters = {name: getattr(state, name) for name in _COUNTERS}
    return counters | {"sampler": parts.sampler.state(), "health": parts.health.state()}


def leaving(state: LoopState, parts: Parts) -> Interrupted:
    """Save what was learnt and return the exception for the requested end."""
    parts.checkpoints.keep(state.step, parts.updater.model, parts.updater.state(), _counters(state, parts))
    return parts.stop.interrupted(f"{counted(state.step, 'update')} {'is' if state.step == 1 else 'are'} kept")


Learn: TypeAlias = Callable[[Sequence[Rollout]], Awaitable[Mapping[str, float]]]
"""Update the policy on the rollouts of a step; returns metrics, `updated` among them."""


async def learn(plan: LoopPlan, parts: Parts, update: Learn | None = None) -> dict[str, Any]:
    """Run until `plan.steps`, `plan.until` or a rule's stop; returns the last metrics with `stopped` (a reason or "").

    `update` replaces reinforcement learning on the rewards, by a teacher's supervision, say.

    Raises:
        TrainingError: the parity probe failed, or no problem is left.
        Interrupted: a signal asked for an end; the updates until then are kept, what was being drawn is not.
    """
    state = resume(parts)
    await parts.syncer.push()
    await parts.rewarder.check()
    if state.step == 0:
        state.last = await measured_first(state, parts, plan)
    while state.going(plan):
        began = time.perf_counter()
        rollouts = await _drawn(plan, parts, state)
        rollouts_end = time.perf_counter()
        rollouts, apart = referenced(rollouts, parts.updater, parts.pad_id)
        numbers = await update(rollouts) if update else update_on(rollouts, plan, parts.updater, parts.pad_id)
        updated = time.perf_counter()
        parity = await sync(parts, rollouts)
        parts.sampler.update(rollouts)
        ended = time.perf_counter()
        state.seconds += ended - began
        learnt = numbers.get("tokens_learnt", 0.0)
        costs = step_costs(rollouts, learnt, rollouts_end - began, updated - rollouts_end, ended - updated)
        await finish(plan, parts, state, rollouts, {**numbers, **apart, "parity": parity, **costs})
    return ending(plan, parts, state)


def ending(plan: LoopPlan, parts: Parts, state: LoopState) -> dict[str, Any]:
    """What a run returns; says so, and why, if the weights never moved."""
    last = state.last
    if state.step and "grad_norm" not in last:  # of any step: not even of one that was rolled back
        reasons = {
            "every rollout was cut, and cut ones are not learnt from: raise max_tokens, or mask_truncated = false": (
                plan.mask_truncated and last.get("truncated") == 1
            ),
            "every rollout was cut before its end, and rewards did not differ: raise max_tokens": (
                last.get("truncated") == 1 and last.get("signal_share") == 0
            ),
            "no rollout got a verdict: repair the verifier": "reward" not in last,
            "no group had rewards that differ: take problems that are sometimes solved, or raise n": (
                last.get("signal_share") == 0
            ),
        }
        why = next((reason for reason, holds in reasons.items() if holds), "no rollout gave a gradient")
        parts.log(f"nothing was learnt in {counted(state.step, 'step')}: {why}")
    return {**last, "step": state.step, "seconds": state.seconds, "stopped": state.stopped}


async def measured_first(state: LoopState, parts: Parts, plan: LoopPlan) -> dict[str, float]:
    """`evaluate` before the first update; a signal ends it at once, as nothing would be lost."""
    return await _ended(evaluate(state, parts, plan), state, parts)


async def _drawn(plan: LoopPlan, parts: Parts, state: LoopState) -> list[Rollout]:
    """The result of `draw`; raises Interrupted if a signal asked for an end. Several processes draw to the end."""
    if parts.world.any(parts.stop.asked):
        raise leaving(state, parts)
    return await _ended(draw(plan, parts, state.step), state, parts)


async def _ended(work: Coroutine[Any, Any, T], state: LoopState, parts: Parts) -> T:
    """The result of some work; raises Interrupted if a signal asked for an end, which cuts it in a single process."""
    result = await (parts.stop.cut(work) if parts.world.size == 1 else work)
    if result is None:
        raise leaving(state, parts)
    return result
