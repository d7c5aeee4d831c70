"""Each rule fires on the trace of its failure, after its patience and not before, and stays silent on a healthy run."""

import asyncio
import math
from dataclasses import replace

import pytest
import torch

from tests.train.cipher_base import TASK, WALKS, Souring
from tests.train.stages import make_stage, metrics_of
from train.base.checkpoint import Checkpoints
from train.base.health import RULES, Alarm, Health, HealthRule, act, check_finite, configured
from train.base.optimiser import Optimiser, Schedule
from train.base.stage import Setting
from train.offline.epochs import FitFields, fit
from train.rl.loop import LoopPlan, LoopState, evaluate, growth
from ttc.errors import ConfigError, TrainingError, UnknownName

HEALTHY = {
    "signal_share": 0.7, "all_fail": 0.1, "all_pass": 0.1, "entropy": 0.4, "kl": 0.01, "clip_share": 0.02,
    "length": 20.0, "truncated": 0.02, "unique_share": 0.8, "repetition": 0.05, "gap": 0.02, "held_out_drop": 0.0,
    "reward": 0.5,
    "form_gap": 0.3, "chosen_falls": -0.1, "verifier_errors": 0.0, "verifier_timeouts": 0.0, "mismatch": 1e-6,
    "judges_gap": 0.05, "judges_widening": 0.01,
    "length_over_accuracy": 0.05, "not_finite": 0.0, "grad_norm": 0.5, "rollout_share": 0.6,
    "memory_gb": 2.0, "thinking_share": 0.5,
}  # fmt: skip


def feed(metrics, steps, health=None):
    health = health or Health()
    return [alarm for step in range(steps) for alarm in health.check(metrics, step)]


def test_a_healthy_run_raises_no_alarm():
    assert feed(HEALTHY, 200) == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_fires_when_its_metric_was_bad_for_its_patience_and_not_before(rule):
    health = Health([rule])
    base = 5 if rule.relative else 0
    assert feed(HEALTHY, base, health) == []
    limit = rule.threshold * (HEALTHY[rule.metric] if rule.relative else 1)
    bad = {rule.metric: limit + (1 if rule.side == "above" else -limit - 1)}
    assert feed(bad, rule.patience - 1, health) == []
    fired = feed(bad, 1, health)
    assert [alarm.rule.name for alarm in fired] == [rule.name]
    assert rule.name in fired[0].text() and rule.why in fired[0].text()


def test_a_reward_of_penalties_has_no_half_to_fall_to():
    assert feed({"reward": -1.0}, 50) == feed({"reward": 0.0}, 50) == []
    health = Health()
    feed({"reward": 1.0}, 5, health)
    assert [alarm.rule.name for alarm in feed({"reward": -1.0}, 5, health)] == ["reward_falls"]


def test_one_good_step_starts_the_count_anew():
    rule = next(rule for rule in RULES if rule.name == "truncation")
    health = Health([rule])
    feed({"truncated": 0.9}, rule.patience - 1, health)
    feed({"truncated": 0.0}, 1, health)
    assert feed({"truncated": 0.9}, rule.patience - 1, health) == []


def test_a_metric_that_was_not_measured_is_neither_good_nor_bad():
    assert feed({"truncated": math.nan}, 50) == []


def test_state_survives_a_resume():
    rule = next(rule for rule in RULES if rule.name == "truncation")
    first, second = Health([rule]), Health([rule])
    feed({"truncated": 0.9}, rule.patience - 1, first)
    second.load(first.state())
    assert len(feed({"truncated": 0.9}, 1, second)) == 1


def test_a_recipe_changes_single_fields_and_drops_rules():
    rules = {rule.name: rule for rule in configured({"truncation": {"threshold": 0.9, "action": "warn"}})}
    assert (rules["truncation"].threshold, rules["truncation"].action) == (0.9, "warn")
    assert "truncation" not in {rule.name for rule in configured({"truncation": {"enabled": False}})}


def test_unknown_rules_fields_and_actions_are_refused_with_the_nearest():
    with pytest.raises(UnknownName, match="truncation"):
        configured({"truncaton": {}})
    with pytest.raises(UnknownName, match="threshold"):
        configured({"truncation": {"treshold": 1}})
    with pytest.raises(UnknownName, match="warn"):
        configured({"truncation": {"action": "wran"}})
    with pytest.raises(ConfigError, match="must be a number"):
        configured({"truncation": {"threshold": "high"}})


def test_a_roll_back_goes_to_the_best_weights_and_not_to_those_that_failed(tmp_path):
    model = torch.nn.Linear(2, 1, bias=False)
    optimiser = Optimiser(model, Schedule(1e-3, 10))
    best, newest = (Checkpoints(tmp_path / name, lambda text: None) for name in ("best", "newest"))
    for place, value, step in ((best, 1.0, 10), (newest, 2.0, 20)):
        torch.nn.init.constant_(model.weight, value)
        place.save(step, model, optimiser.state(), {})
    rule = HealthRule("worse", "x", "above", 0.0, 1, "roll_back", "it fell")
    act([Alarm(rule, 21, (1.0,))], model, optimiser, [best, newest], lambda text: None)
    assert model.weight.tolist() == [[1.0, 1.0]] and optimiser.scale == 0.5


def test_a_run_that_only_falls_goes_back_to_where_it_started(cipher_model, tmp_path):
    stage = make_stage("grpo", task=WALKS, held_out=TASK, steps=1, lr=1e-3, held_out_limit=4)
    parts = stage.parts(cipher_model, Setting(tmp_path, cipher_model, 1, "cpu", 1, lambda text: None))
    model, optimiser = parts.updater.model, parts.updater.optimiser

    async def work():
        await evaluate(LoopState(), parts, LoopPlan(1, 1))
        before = [weight.detach().clone() for weight in model.parameters()]
        with torch.no_grad():
            model.lm_head.weight.zero_()
        rule = next(rule for rule in RULES if rule.name == "held_out_falls")
        act([Alarm(rule, 20, (0.5,))], model, optimiser, [parts.best, parts.checkpoints], parts.log)
        await parts.close()
        await parts.collector.engine.close()
        return before

    pairs = zip(asyncio.run(work()), model.parameters(), strict=True)
    assert all(torch.equal(before, now) for before, now in pairs) and optimiser.scale == 0.5


@pytest.fixture
def eight(cipher_model, tmp_path):
    """The parts of a stage with 8 held-out problems."""
    stage = make_stage("grpo", task=WALKS, held_out=TASK, steps=1, lr=1e-3, held_out_limit=8)
    parts = stage.parts(cipher_model, Setting(tmp_path, cipher_model, 1, "cpu", 1, lambda text: None))
    assert len(parts.held_out.items) == len(parts.seen.items) == 8
    yield parts
    asyncio.run(parts.close())
    asyncio.run(parts.collector.engine.close())


@pytest.mark.parametrize(
    ("sampled", "seen", "fires"), [(2, 5, False), (3, 7, False), (1, 8, True)], ids=["5 of 8", "7 of 8", "8 of 8"]
)
def test_a_gap_that_so_few_problems_cannot_tell_from_chance_ends_no_run(eight, sampled, seen, fires):
    greedy = 8  # these are measured first
    held_out = replace(eight.held_out, verifier=Souring(greedy + sampled))
    metrics = measured(replace(eight, held_out=held_out, seen=replace(eight.seen, verifier=Souring(seen))))
    assert metrics["gap"] == pytest.approx((seen - sampled) / 8) and metrics["gap"] > 0.25
    assert [alarm.rule.name for alarm in feed(metrics, 2)] == ["train_above_held_out"] * fires


@pytest.mark.parametrize(("before", "after", "fires"), [(5, 3, False), (8, 1, True)])
def test_a_fall_that_so_few_problems_cannot_tell_from_chance_rolls_nothing_back(eight, before, after, fires):
    state = LoopState(best=before / 8, best_right=[float(place < before) for place in range(8)])
    held_out = replace(eight.held_out, verifier=Souring(after))
    metrics = measured(replace(eight, seen=None, held_out=held_out), state)
    assert metrics["held_out_drop"] == (before - after) / 8 > 0.15
    assert [alarm.rule.name for alarm in feed(metrics, 2)] == ["held_out_falls"] * fires


@pytest.mark.parametrize(("accepted", "fires"), [(1, False), (7, True)])
def test_judges_that_part_by_one_problem_end_no_run(eight, accepted, fires):
    held_out = replace(eight.held_out, verifier=Souring(0), beside=Souring(8 + accepted))  # of the greedy ones, too
    state = LoopState(apart=0.0, least_fooled=[0.0] * 8)
    metrics = measured(replace(eight, seen=None, held_out=held_out), state)
    assert metrics["judges_widening"] == accepted / 8 > 0.1
    assert ("judges_part" in [alarm.rule.name for alarm in feed(metrics, 2)]) == fires


def measured(parts, state=None):
    """What `evaluate` measures of these parts."""
    return asyncio.run(evaluate(state or LoopState(), parts, LoopPlan(1, 1)))


def fitted(folder, losses, health=None, grow=0.0):
    """Run the loop of offline stages over updates with these losses, each of which lets the one weight grow."""
    model = torch.nn.Linear(1, 1, bias=False)
    optimiser = Optimiser(model, Schedule(1e-3, 10))

    def update(rows):
        loss = model.weight.sum() * losses[optimiser.taken]
        loss.backward()
        norm = optimiser.step()
        with torch.no_grad():
            model.weight.mul_(1 + grow)
        return {"loss": float(loss.detach()), "grad_norm": norm}

    folder.mkdir(exist_ok=True)
    setting = Setting(folder, None, 1, "cpu", 1, lambda text: None)
    course = FitFields(steps=len(losses), lr=1e-3, save_every=2, health=health)
    return fit(model, optimiser, 4, update, lambda: {"held_out_accuracy": 0.5}, course, setting)


def test_a_loss_or_a_weight_that_is_not_finite_ends_an_offline_stage_with_an_error_and_keeps_what_was_good(tmp_path):
    with pytest.raises(TrainingError, match=r"step 4: loss is nan, grad_norm is nan.*lower lr"):
        fitted(tmp_path / "loss", [1.0, 1.0, 1.0, math.nan])
    assert [place.name for place in (tmp_path / "loss" / "checkpoints").iterdir()] == ["step-000002"]
    with pytest.raises(TrainingError, match="step 2: weights are not finite"):
        fitted(tmp_path / "weight", [1.0, 1.0], grow=1e30)
    assert not (tmp_path / "weight" / "checkpoints").exists()


def test_a_stage_without_health_rules_is_not_told_to_set_one():
    check_finite({"loss": 1.0, "grad_norm": 2.0}, 1)
    with pytest.raises(TrainingError, match=r"step 3: loss is inf.*clip_norm$"):
        check_finite({"loss": math.inf, "grad_norm": 2.0}, 3)


def test_a_recipe_may_go_on_without_the_update_that_is_not_finite_and_hears_of_it(tmp_path):
    last, stopped = fitted(tmp_path / "run", [1.0, math.nan], {"not_finite": {"action": "skip"}})
    assert not stopped and all(map(math.isfinite, last.values()))
    rows = metrics_of(tmp_path / "run")
    assert [row.get("not_finite") for row in rows] == [None, 0.0, 1.0]
    assert "not_finite" in (tmp_path / "run" / "alarms.jsonl").read_text()


def test_length_that_grows_without_accuracy_raises_an_alarm_and_length_that_pays_does_not():
    for accuracy, fires in ((lambda step: 0.3, True), (lambda step: 0.2 * 1.06**step, False)):
        state, health, alarms = LoopState(), Health(RULES), []
        for step in range(40):
            metrics = growth(state, {"length": 10 * 1.06**step, "accuracy": accuracy(step)})
            alarms += health.check(metrics, step)
        assert ("length_without_accuracy" in {alarm.rule.name for alarm in alarms}) == fires


@pytest.mark.parametrize("judge", [None, "exact"])
def test_training_and_held_out_answers_are_compared_by_one_verifier(cipher_model, tmp_path, judge):
    stage = make_stage("grpo", task=WALKS, held_out=TASK, steps=1, lr=1e-3, judge=judge)
    parts = stage.parts(cipher_model, Setting(tmp_path, cipher_model, 1, "cpu", 1, lambda text: None))
    asyncio.run(parts.close())
    asyncio.run(parts.collector.engine.close())
    if judge is None:
        assert parts.held_out.beside is None and parts.seen.verifier is parts.rewarder
    else:
        assert parts.held_out.beside is parts.rewarder and parts.seen.verifier is parts.held_out.verifier


def test_more_prompts_an_update_than_the_task_has_problems_are_told(cipher_model, tmp_path):
    lines = []
    stage = make_stage("grpo", task=WALKS, held_out=TASK, steps=1, lr=1e-3, prompts=4, train_limit=3)
    parts = stage.parts(cipher_model, Setting(tmp_path, cipher_model, 1, "cpu", 1, lines.append))
    asyncio.run(parts.close())
    asyncio.run(parts.collector.engine.close())
    assert "prompts=4, but the task has only 3 problems: no update has more" in lines


def test_a_stage_that_a_rule_stopped_stays_stopped_when_it_is_killed_before_its_result_is_written(tmp_path):
    health = {"gradient_spike": {"threshold": 0.0, "patience": 1, "action": "stop"}}
    losses = [1.0] * 12
    first = fitted(tmp_path, losses, health)
    steps = (tmp_path / "metrics.jsonl").read_text()
    assert first[1].startswith("health rule gradient_spike") and len(steps.splitlines()) < 12
    assert fitted(tmp_path, losses, health) == first
    assert (tmp_path / "metrics.jsonl").read_text() == steps


def test_a_stage_that_is_killed_after_its_last_step_reports_what_it_had_measured(tmp_path):
    assert fitted(tmp_path, [1.0, 2.0]) == fitted(tmp_path, [1.0, 2.0])
