"""Named health rules for the known failures of reasoning RL, each with a threshold, a patience and an action.

    warn        say so                       lower_rate   halve the learning rate
    skip        do not apply this update     roll_back    return to the best checkpoint, with half the rate
    stop        end the run, with the reason

A rule is a value (`HealthRule`): the name of a metric, the side on which it is bad, a threshold, and how many steps in
a row it must be so. A metric may be compared with its own early mean (`relative`), since a length or an entropy has no
absolute good value. Rules that act before an update see only the rollouts' metrics; all others see the whole step. A
recipe changes any field of any rule by its name. Every loop of this package acts through `act`, so an alarm means the
same everywhere, and writes alarms as JSON lines for the report. A loss, a norm or a weight that is not finite ends the
run with an error before anything is saved (`Health.not_finite`), unless a recipe gives that rule another action. Left
out: learning thresholds from other runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from train.base.rollout import Rollout
from ttc.config.values import at_least, counted, finite, parse
from ttc.errors import ConfigError, TrainingError, UnknownName
from ttc.records import LineFile

if TYPE_CHECKING:  # a report reads alarms without torch
    from train.base.checkpoint import Checkpoints
    from train.base.optimiser import Optimiser

Action: TypeAlias = Literal["warn", "skip", "lower_rate", "roll_back", "stop"]
_ACTIONS: tuple[Action, ...] = get_args(Action)


@dataclass(frozen=True, slots=True)
class HealthRule:
    """`metric` beyond `threshold` on `side` for `patience` steps running -> `action`.

    `relative` compares with the mean of the metric's first `_BASE` values instead: above threshold times it, or below;
    with a mean of 0 or less, as of penalties, the rule is silent. `low` is the metric of the lower end of the 95 %
    interval: if it is measured, it must be above 0, too, so that a difference within chance raises no alarm. `why` is
    the text for the user; `offending` picks the rollouts to print.
    """

    name: str
    metric: str
    side: Literal["above", "below"]
    threshold: float
    patience: int
    action: Action
    why: str
    relative: bool = False
    after: int = 0
    offending: Callable[[Rollout], bool] | None = None
    low: str = ""


@dataclass(frozen=True, slots=True)
class Alarm:
    """A rule that fired at a step, with the metric's last values and a few offending rollouts."""

    rule: HealthRule
    step: int
    values: tuple[float, ...]
    rollouts: tuple[Rollout, ...] = ()

    def text(self) -> str:
        """One paragraph for the terminal."""
        values = ", ".join(f"{value:.4g}" for value in self.values)
        head = f"health rule {self.rule.name}: {self.rule.metric} {values} at step {self.step} -> {self.rule.action}"
        lines = [head, f"  {self.rule.why}"]
        for rollout in self.rollouts:
            status = rollout.verdict.status if rollout.verdict else "unjudged"
            body = (rollout.thinking + " | " + rollout.text).replace("\n", "\\n")[:160]
            length = counted(len(rollout.token_ids), "token")
            lines.append(f"  {rollout.problem_id} {rollout.path} {status} {length}: {body}")
        return "\n".join(lines)


def _wrong(rollout: Rollout) -> bool:
    return rollout.verdict is not None and not rollout.right


def _failed(rollout: Rollout) -> bool:
    return rollout.verdict is not None and rollout.reward is None


_BASE = 5
RULES: tuple[HealthRule, ...] = (
    HealthRule("no_signal", "signal_share", "below", 0.1, 10, "warn",
         "almost no group has rewards that differ, so nothing is learnt: change difficulty, or raise n"),
    HealthRule("all_fail", "all_fail", "above", 0.95, 10, "stop",
         "every group fails as a whole: the task is too hard for this policy, or the policy has collapsed",
         offending=_wrong),
    HealthRule("all_pass", "all_pass", "above", 0.95, 10, "warn", "every group passes: the task is solved, or leaks"),
    HealthRule("entropy_collapse", "entropy", "below", 0.005, 10, "warn",
         "the policy has almost no entropy left and explores nothing"),
    HealthRule("entropy_rise", "entropy", "above", 2.5, 5, "lower_rate",
         "entropy rises far above its start: the rate is too high", relative=True, offending=_wrong),
    HealthRule("kl_ceiling", "kl", "above", 0.5, 3, "lower_rate",
         "the policy is far from its reference (nats per token)"),
    HealthRule("teacher_apart", "overlap", "below", 0.3, 10, "warn",
         "student and teacher share little of their probability: imitate the teacher first, or take a nearer one"),
    HealthRule("clip_share", "clip_share", "above", 0.3, 5, "lower_rate",
         "most tokens are clipped: updates are too large"),
    HealthRule("length_collapse", "length", "below", 0.4, 8, "stop",
         "rollouts shrink to a fraction of their length: a shortcut is learnt", relative=True),
    HealthRule("thinking_dies", "thinking_share", "below", 0.25, 8, "stop",
         "the policy stops thinking: it answers by heart, which held-out problems will not reward", relative=True),
    HealthRule("length_drift", "length", "above", 3.0, 8, "warn",
         "rollouts grow far beyond their early length", relative=True),
    HealthRule("truncation", "truncated", "above", 0.5, 8, "stop",
         "most rollouts are cut: raise max_tokens or add an overlong penalty", offending=lambda r: r.truncated),
    HealthRule("duplicates", "unique_share", "below", 0.15, 10, "warn", "the rollouts of a group are nearly identical"),
    HealthRule("repetition", "repetition", "above", 0.5, 5, "stop", "rollouts repeat themselves",
         offending=lambda r: len(r.token_ids) > 8),
    HealthRule("train_above_held_out", "gap", "above", 0.25, 2, "stop",
         "training problems are answered far better than held-out ones, both sampled: they are memorised",
         low="gap_low"),
    HealthRule("judges_part", "judges_widening", "above", 0.1, 2, "stop",
         "the training verifier accepts ever more held-out answers that the other one refuses: it is being exploited",
         low="judges_widening_low"),
    HealthRule("judges_apart", "judges_gap", "above", 0.15, 2, "warn",
         "the training verifier accepts many held-out answers that the other one refuses: check them"),
    HealthRule("length_without_accuracy", "length_over_accuracy", "above", 0.5, 5, "warn",
         "rollouts grow faster than accuracy: length is rewarded, or nothing holds it"),
    HealthRule("held_out_falls", "held_out_drop", "above", 0.15, 2, "roll_back",
         "held-out accuracy has fallen from its best while training went on", low="held_out_drop_low"),
    HealthRule("reward_falls", "reward", "below", 0.5, 5, "roll_back",
         "train reward fell to half of its early mean: the rate is too high", relative=True, offending=_wrong),
    HealthRule("form_without_accuracy", "form_gap", "above", 0.6, 10, "warn",
         "nearly all rollouts have the right form and few are right", offending=_wrong),
    HealthRule("both_fall", "chosen_falls", "above", 0.0, 5, "lower_rate",
         "log-probabilities of chosen and rejected answers both fall: lower the rate, or add a likelihood term"),
    HealthRule("verifier_errors", "verifier_errors", "above", 0.05, 2, "stop",
         "the verifier itself fails", offending=_failed),
    HealthRule("verifier_timeouts", "verifier_timeouts", "above", 0.2, 3, "warn", "verdicts time out",
         offending=_failed),
    HealthRule("no_verdicts", "verifier_timeouts", "above", 0.9, 3, "stop",
         "no verdict comes in time, so nothing can be learnt: repair the verifier, or raise verifier_s",
         offending=_failed),
    HealthRule("mismatch", "mismatch", "above", 0.05, 2, "stop",
         "engine and trainer disagree about the log-probabilities of what was sampled: stale or other weights"),
    HealthRule("not_finite", "not_finite", "above", 0.0, 1, "stop",
         "the loss, the gradient or a weight is not finite; an update by such a gradient is not applied"),
    HealthRule("gradient_spike", "grad_norm", "above", 20.0, 3, "lower_rate", "gradients are far above their start",
         relative=True),
    HealthRule("slow_rollouts", "rollout_share", "above", 0.95, 20, "warn",
         "nearly all time goes into rollouts: use more engines or the asynchronous loop"),
    HealthRule("memory", "memory_gb", "above", 1.5, 10, "warn", "memory grows", relative=True),
)  # fmt: skip


def configured(changes: object) -> tuple[HealthRule, ...]:
    """The rules with the fields that a recipe changes; `enabled = false` drops one.

    Raises:
        ConfigError: an unknown rule or field, or a value of the wrong kind.
    """
    rules = {rule.name: rule for rule in RULES}
    if not isinstance(changes, Mapping):
        raise ConfigError(f"health must be a table [stage.health], got {changes!r}")
    for name, change in changes.items():
        if name not in rules:
            raise UnknownName("health rule", name, rules)
        if not isinstance(change, Mapping):
            raise ConfigError(f"health.{name} must be a table [stage.health.{name}], got {change!r}")
        if not parse(f"health.{name}.enabled", change.get("enabled", True), bool):
            del rules[name]
            continue
        rules[name] = _changed(rules[name], {k: v for k, v in change.items() if k != "enabled"})
    return tuple(rules.values())


def _changed(rule: HealthRule, change: Mapping[str, Any]) -> HealthRule:
    allowed = {"threshold", "patience", "action", "after"}
    for key, value in change.items():
        if key not in allowed:
            raise UnknownName(f"field of health.{rule.name}", key, {*allowed, "enabled"})
        if key == "action" and value not in _ACTIONS:
            raise UnknownName(f"health.{rule.name}.action", str(value), _ACTIONS)
    numbers = {key: _number(f"health.{rule.name}.{key}", change[key]) for key in allowed - {"action"} if key in change}
    changed = replace(rule, **{**change, **numbers})
    at_least(f"health.{rule.name}", 1, patience=changed.patience)
    at_least(f"health.{rule.name}", 0, after=changed.after)
    finite(f"health.{rule.name}", threshold=changed.threshold)
    return changed


def _number(name: str, value: object) -> float:
    """A number, or the text of one, as a command line gives it."""
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        with suppress(ValueError):
            return float(value)
    raise ConfigError(f"{name} must be a number, got {value!r}")


def check_finite(metrics: Mapping[str, float], step: int) -> None:
    """Raise TrainingError if a loss or a gradient's norm is not finite, in a stage without health rules."""
    faults = _not_finite(metrics)
    if faults:
        raise _ended(step, faults)


def _not_finite(metrics: Mapping[str, float], weights: bool = True) -> list[str]:
    watched = {name: value for name, value in metrics.items() if name.endswith(("loss", "grad_norm"))}
    faults = [f"{name} is {value}" for name, value in watched.items() if not math.isfinite(value)]
    return faults if weights else [*faults, "weights are not finite"]


def _ended(step: int, faults: Sequence[str], way_on: str = "") -> TrainingError:
    advice = f"start again with a lower lr, a longer warmup or a lower clip_norm{way_on}"
    return TrainingError(f"step {step}: {', '.join(faults)}. Nothing of this step is saved; {advice}")


class Health:
    """Checks rules step by step; its state is small JSON."""

    def __init__(self, rules: Sequence[HealthRule] = RULES) -> None:
        self.rules = tuple(rules)
        self._bad: dict[str, list[float]] = {}
        self._base: dict[str, list[float]] = {}

    def check(self, metrics: Mapping[str, float], step: int, rollouts: Sequence[Rollout] = ()) -> list[Alarm]:
        """Return the rules that fire now; their counts start again."""
        alarms: list[Alarm] = []
        for rule in self.rules:
            value = metrics.get(rule.metric)
            if value is None or math.isnan(value) or step < rule.after:
                continue
            if not self._is_bad(rule, value) or metrics.get(rule.low, math.inf) <= 0:
                self._bad.pop(rule.name, None)
                continue
            streak = self._bad.setdefault(rule.name, [])
            streak.append(value)
            if len(streak) >= rule.patience:
                offenders = [r for r in rollouts if rule.offending is not None and rule.offending(r)][:3]
                alarms.append(Alarm(rule, step, tuple(streak[-5:]), tuple(offenders)))
                del self._bad[rule.name]
        return alarms

    def not_finite(self, metrics: Mapping[str, float], step: int, weights: bool = True) -> float:
        """The metric `not_finite`: 1 where a loss or a gradient's norm of a step is no finite number, else 0.

        Args:
            metrics: those of the step.
            step: its number.
            weights: whether all trained weights are finite, if that was checked.

        Raises:
            TrainingError: it is 1, and the rule of that name says stop.
        """
        faults = _not_finite(metrics, weights)
        if faults and any(rule.name == "not_finite" and rule.action == "stop" for rule in self.rules):
            raise _ended(step, faults, ', or with [stage.health.not_finite] action = "skip" in the recipe')
        return float(bool(faults))

    def _is_bad(self, rule: HealthRule, value: float) -> bool:
        limit = rule.threshold
        if rule.relative:
            base = self._base.setdefault(rule.name, [])
            if len(base) < _BASE:
                base.append(value)
                return False
            mean = sum(base) / len(base)
            if mean <= 0:
                return False
            limit *= mean
        return value > limit if rule.side == "above" else value < limit

    def state(self) -> dict[str, Any]:
        """JSON of the counts."""
        return {"bad": self._bad, "base": self._base}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        self._bad = {name: list(values) for name, values in state["bad"].items()}
        self._base = {name: list(values) for name, values in state["base"].items()}


_SHOWN = 600
"""Most characters of a rollout's thinking, and of its answer, that are kept."""


class AlarmFile(LineFile):
    """Appends alarms as they are raised."""

    def append(self, alarm: Alarm) -> None:
        """Write one alarm; a value that is not finite is written as text."""
        rule = {name: getattr(alarm.rule, name) for name in ("metric", "threshold", "action", "why")}
        values = [value if math.isfinite(value) else str(value) for value in alarm.values]
        rollouts = [excerpt(rollout) for rollout in alarm.rollouts]
        self.write({"step": alarm.step, "rule": alarm.rule.name, **rule, "values": values, "rollouts": rollouts})


def excerpt(rollout: Rollout) -> dict[str, Any]:
    """The parts of a rollout that a reader needs, as JSON."""
    return {
        "problem": rollout.problem_id,
        "path": list(rollout.path),
        "status": rollout.verdict.status if rollout.verdict else "unjudged",
        "reward": rollout.reward,
        "tokens": len(rollout.token_ids),
        "truncated": rollout.truncated,
        "thinking": rollout.thinking[:_SHOWN],
        "text": rollout.text[:_SHOWN],
    }


def act(
    alarms: Sequence[Alarm],
    model: Any,
    optimiser: Optimiser,
    checkpoints: Checkpoints | Sequence[Checkpoints],
    log: Callable[[str], None],
    file: AlarmFile | None = None,
) -> str:
    """Act on `alarms` in order; returns why the run must stop, or "". Of `checkpoints` the first with any counts."""
    stopped = ""
    for alarm in alarms:
        if file is not None:
            file.append(alarm)
        log(alarm.text())
        if alarm.rule.action == "lower_rate":
            optimiser.scale *= 0.5
        if alarm.rule.action == "roll_back":
            _roll_back(model, optimiser, checkpoints if isinstance(checkpoints, Sequence) else [checkpoints])
        if alarm.rule.action == "stop":
            stopped = f"health rule {alarm.rule.name}: {alarm.rule.why}"
    return stopped


def _roll_back(model: Any, optimiser: Optimiser, places: Sequence[Checkpoints]) -> None:
    """Load the weights of the first place with a checkpoint and halve the learning rate; counters continue."""
    scale = optimiser.scale
    checkpoint = next((found for found in (place.load(model) for place in places) if found is not None), None)
    if checkpoint is not None:
        optimiser.load(checkpoint[0])
    optimiser.scale = scale * 0.5
