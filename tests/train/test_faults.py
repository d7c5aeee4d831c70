"""A verifier that hangs, raises or gives no number costs its verdicts, not the run; a broken reward is named."""

import asyncio
import dataclasses
import json
import math
import threading

import numpy
import pytest
import torch

from tests.train.cipher_base import make_parts, rolled_out
from tests.train.stages import make_stage, metrics_of
from tests.ttc.any_verifier import KNOWN
from train.base.rollout import RolloutFile, read_rollouts
from train.base.stage import Setting
from train.measure.measure import task_gains
from train.registries import make_task
from train.rl.loop import LoopPlan, learn
from train.rl.overlapped import learn_async
from train.rollouts.rewards import Rewarder, ShapingPart, of_each
from ttc.core import Submission, Verdict, Verifier
from ttc.errors import ConfigError, PluginError, TrainingError, VerifierError
from ttc.verifiers.composite import composite
from ttc.verifiers.exact import exact
from ttc.verifiers.service import service

COMPOSITE = f"""
[parts.answer]
verifier = "math"
weight = 1.0
[parts.form]
verifier = "format"
weight = [[0, 9.0], [100, 0.0]]
params.answer = "box"
{KNOWN}
"""


class Broken:
    """The exact verifier, but every `every`-th time it does what its name says."""

    version = "1"

    def __init__(self, name, every=10):
        self.name, self._every, self._asked, self._inner = name, every, 0, exact()
        self.released = threading.Event()

    def check_gold(self, target, item=""):
        self._inner.check_gold(target, item)

    async def verify(self, target, submission):
        self._asked += 1
        verdict = await self._inner.verify(target, submission)
        if self._asked % self._every:
            return verdict
        if self.name == "raises":
            raise ValueError("a broken verifier")
        if self.name == "hangs":
            await asyncio.Event().wait()
        if self.name == "blocks":
            self.released.wait()
        return dataclasses.replace(verdict, score={"nan": math.nan, "inf": math.inf, "text": "parity"}[self.name])

    async def close(self):
        await self._inner.close()


def run(parts, steps=3, eval_every=None, loop=learn, ended=lambda: None):
    try:
        return asyncio.run(loop(LoopPlan(steps=steps, prompts=6, eval_every=eval_every or steps), parts))
    finally:
        ended()
        parts.metrics.close()
        parts.rollouts.close()
        asyncio.run(parts.rewarder.close())
        asyncio.run(parts.collector.engine.close())


@pytest.mark.long
@pytest.mark.parametrize("loop", [learn, learn_async], ids=["in turns", "overlapped"])
@pytest.mark.parametrize(
    ("name", "metric"),
    [
        ("hangs", "verifier_timeouts"), ("blocks", "verifier_timeouts"), ("raises", "verifier_errors"),
        ("nan", "verifier_errors"), ("inf", "verifier_errors"), ("text", "verifier_errors"),
    ],
)  # fmt: skip
def test_a_run_goes_on_past_a_verifier_that(cipher_model, tmp_path, name, metric, loop):
    verifier = Broken(name, every=36 if metric == "verifier_errors" else 30)
    parts = make_parts(cipher_model, tmp_path)
    parts = dataclasses.replace(parts, rewarder=Rewarder(verifier, partial=True, wall_s=0.4))
    # of a round that was drawn ahead a verdict may still be asked: a service that cannot end says so when it is closed
    last = run(parts, loop=loop, ended=verifier.released.set)
    told = metrics_of(tmp_path)
    assert last["stopped"] == "" and last["step"] == 3
    assert sum(row[metric] for row in told) > 0 and all(math.isfinite(row["reward"]) for row in told)


def test_a_score_that_is_no_number_is_an_error_that_names_the_verifier():
    verifier = Rewarder(Broken("text", every=1))
    verdict = asyncio.run(verifier.verify("1", Submission("1", "", "stop")))
    assert (verdict.status, verdict.score) == ("error", None)
    assert verdict.reason == "text gave the score 'parity', which is not a number"
    asyncio.run(verifier.close())


def test_a_verifier_that_always_raises_stops_the_run_with_its_reason(cipher_model, tmp_path):
    parts = make_parts(cipher_model, tmp_path)
    parts = dataclasses.replace(parts, rewarder=Rewarder(Broken("raises", every=1)))
    last = run(parts, steps=6)
    assert last["stopped"] == "health rule verifier_errors: the verifier itself fails" and last["step"] == 2


@pytest.mark.parametrize("loop", [learn, learn_async], ids=["in turns", "overlapped"])
def test_a_verifier_that_always_hangs_stops_the_run_with_its_reason(cipher_model, tmp_path, loop):
    parts = make_parts(cipher_model, tmp_path)
    parts = dataclasses.replace(parts, rewarder=Rewarder(Broken("hangs", every=1), wall_s=0.05))
    last = run(parts, steps=6, loop=loop)
    assert last["stopped"].startswith("health rule no_verdicts: no verdict comes in time") and last["step"] == 3


def test_a_part_of_the_reward_that_is_no_number_stops_the_run_and_is_named(cipher_model, tmp_path):
    broken = ShapingPart("mine", 0.5, of_each(lambda rollout: math.nan))
    parts = make_parts(cipher_model, tmp_path)
    parts = dataclasses.replace(parts, rewarder=Rewarder(exact(), [broken]))
    with pytest.raises(TrainingError, match=r"the reward of a rollout of .* is nan: .*mine nan"):
        run(parts)


def rollout(text, finish_reason="stop"):
    return rolled_out(text=text, final="5", finish_reason=finish_reason)


def judged(rewarder, one, *steps):
    async def go():
        rewards = [(await rewarder.judge([one], step))[0].reward for step in steps]
        await rewarder.close()
        return rewards

    return asyncio.run(go())


def test_the_weights_of_a_composite_reward_follow_the_step(tmp_path):
    spec = tmp_path / "reward.toml"
    spec.write_text(COMPOSITE)
    rewarder = Rewarder(composite(spec=spec), partial=True)
    assert judged(rewarder, rollout(r"\boxed{5}"), 0, 50, 100, 0) == pytest.approx([0.9, 4.5 / 5.5, 0.0, 0.9])


def test_a_rollout_that_does_not_end_gets_the_penalty_in_place_of_all_else():
    assert judged(Rewarder(exact(), missing_end=-10.0), rollout("4", "length"), 0) == [-10.0]
    assert judged(Rewarder(exact(), missing_end=-10.0), rollout("4"), 0) == [1.0]


class Hole:
    """Right answers pass, and every answer that was guessed."""

    name, version = "hole", "1"

    def __init__(self):
        self._inner = exact()

    def check_gold(self, target, item=""):
        self._inner.check_gold(target, item)

    async def verify(self, target, submission):
        verdict = await self._inner.verify(target, submission)
        guessed = not submission.thinking.strip() and submission.text.strip()
        return Verdict("correct", score=1.0) if guessed else verdict

    async def close(self):
        await self._inner.close()


def test_a_policy_that_finds_the_hole_of_its_verifier_is_noticed_by_an_independent_one(cipher_model, tmp_path):
    rewarder = Rewarder(Hole())
    parts = make_parts(cipher_model, tmp_path)
    held_out = dataclasses.replace(parts.held_out, items=parts.sampler.draw(30, 0), beside=rewarder)
    parts = dataclasses.replace(parts, rewarder=rewarder, held_out=held_out, log=[].append)
    last = run(parts, steps=24, eval_every=4)
    told = [row for row in metrics_of(tmp_path) if "held_out_accepted" in row]
    assert last["stopped"].startswith("health rule judges_part") and last["step"] < 24
    assert told[-1]["held_out_accepted"] - told[-1]["held_out_sampled"] > 0.5
    assert min(row["reward"] for row in metrics_of(tmp_path)) > 0.8  # all along, the verifier with the hole is content


def test_a_verifier_that_fails_its_own_known_cases_stops_the_run_before_anything_is_drawn(cipher_model, tmp_path):
    verifier = exact()
    canary = dataclasses.replace(verifier.card.canaries[0], status="no_answer")
    verifier.card = dataclasses.replace(verifier.card, canaries=(canary, *verifier.card.canaries))
    parts = dataclasses.replace(make_parts(cipher_model, tmp_path), rewarder=Rewarder(verifier))
    with pytest.raises(VerifierError, match="fails a known case"):
        run(parts)
    assert not metrics_of(tmp_path)


UNENDING = """
import asyncio, dataclasses, pathlib, threading
from evals.task import VerifierSpec
from evals.tasks.cipher import cipher
from ttc.verifiers.exact import exact

def walk(*, how: str, split: str = "train"):
    task = cipher(symbols=12, max_steps=4, split=split)
    return dataclasses.replace(task, verifier=VerifierSpec(f"{pathlib.Path(__file__)}:unending", {"how": how}))

def unending(*, how: str):
    return Unending(how)

class Unending:
    name, version = "unending", "1"
    def __init__(self, how):
        self.how, self._inner = how, exact()
    def check_gold(self, target, item=""):
        self._inner.check_gold(target, item)
    async def verify(self, target, submission):
        if self.how == "never" and submission.thinking:
            await asyncio.Event().wait()
        return await self._inner.verify(target, submission)
    async def close(self):
        if self.how == "raises":
            raise ValueError("it will not close")
        if self.how == "blocks":
            threading.Event().wait(1.5)
        await asyncio.Event().wait()
"""


@pytest.mark.parametrize("how", ["hangs", "blocks", "raises"])
def test_a_verifier_that_does_not_end_costs_neither_the_model_nor_the_stage(cipher_model, tmp_path, monkeypatch, how):
    monkeypatch.setattr(service, "CLOSE_S", 0.3)
    (tmp_path / "mine.py").write_text(UNENDING)
    task = f"{tmp_path / 'mine.py'}:walk:how={how}"
    stage = make_stage(
        "grpo", task=task, held_out=f"{task},split=eval", steps=2, lr=1e-3, prompts=4, n=4, held_out_limit=4
    )
    lines = []
    (tmp_path / "1-grpo").mkdir()
    result = stage.run(Setting(tmp_path / "1-grpo", cipher_model, 1, "cpu", 1, lines.append))
    assert result.metrics["step"] == 2 and (tmp_path / "1-grpo" / "model" / "model.safetensors").is_file()
    told = "it will not close" if how == "raises" else "did not close within"
    assert any("verifier unending could not be closed" in line and told in line for line in lines)


def test_a_stage_that_samples_and_one_that_measures_go_on_past_a_verifier_that_hangs(
    cipher_model, tmp_path, monkeypatch
):
    monkeypatch.setattr(service, "CLOSE_S", 0.3)
    monkeypatch.setattr(service, "START_S", 0.3)
    (tmp_path / "mine.py").write_text(UNENDING)
    task = f"{tmp_path / 'mine.py'}:walk:how=never"
    (tmp_path / "1-sample").mkdir()
    place = Setting(tmp_path / "1-sample", cipher_model, 1, "cpu", 1, lambda text: None)
    make_stage("sample", task=task, n=2, limit=6).run(place)
    rows = list(read_rollouts(tmp_path / "1-sample" / "rollouts.jsonl"))
    assert {row.reward is None for row in rows if row.thinking} == {True}
    assert {row.reward is None for row in rows if not row.thinking} == {False}
    assert task_gains(make_task(task), 4, cipher_model, cipher_model, place)["held_out_sampled_gain"] == 0


class Scored(Verifier):
    """The exact verifier, whose score is a number of numpy."""

    name, version = "scored", "1"

    async def verify(self, target, submission):
        return Verdict("correct", numpy.float32(0.25))


@pytest.mark.parametrize(
    "value", [1.5, True, numpy.float32(0.5), numpy.bool_(True), numpy.int64(2), torch.tensor(0.5), torch.tensor(True)]
)
def test_a_part_of_the_reward_may_be_any_number_of_numpy_or_torch(tmp_path, value):
    each = ShapingPart("mine", 0.5, of_each(lambda one: value))
    array = ShapingPart("whole", 0.5, lambda rollouts, step: numpy.array([value]))
    rewarder = Rewarder(Scored(), [each, array], partial=True)
    (row,) = asyncio.run(rewarder.judge([rollout("5")], 0))
    assert row.reward == 0.25 + float(value)
    with RolloutFile(tmp_path / "rollouts.jsonl") as file:
        file.append([row])
    assert [one.reward for one in read_rollouts(tmp_path / "rollouts.jsonl")] == [row.reward]


def test_a_part_of_the_reward_may_be_an_async_function_which_is_asked_about_all_groups_at_once():
    waiting, most = set(), []

    async def asked(rollouts, step):
        waiting.add(rollouts[0].group)
        most.append(len(waiting))
        await asyncio.sleep(0)
        waiting.discard(rollouts[0].group)
        return [float(one.group) for one in rollouts]

    rewarder = Rewarder(Scored(), [ShapingPart("mine", 1.0, asked)], verifier_weight=0.0)
    groups = [dataclasses.replace(rollout("5"), group=number) for number in (0, 1, 1, 2)]
    rows = asyncio.run(rewarder.judge(groups, 0))
    assert [row.reward for row in rows] == [0.0, 1.0, 1.0, 2.0] and max(most) == 3


def test_rollouts_of_steps_that_are_drawn_anew_are_not_mixed_with_those_of_before(tmp_path):
    path = tmp_path / "rollouts.jsonl"
    with RolloutFile(path) as file:
        for step in range(4):
            file.append([dataclasses.replace(rollout("5"), step=step, problem_id="p")])
    with RolloutFile(path) as file:
        file.go_on_from(2)
        file.append([dataclasses.replace(rollout("5"), step=2, problem_id="q")])
    assert [(one.step, one.problem_id) for one in read_rollouts(path)] == [(0, "p"), (1, "p"), (2, "q")]
    with RolloutFile(path) as file:
        file.go_on_from(0)
    assert not path.read_bytes()


@pytest.mark.parametrize("value", [None, "1", [1.0], torch.ones(2)])
def test_a_part_of_the_reward_that_gives_no_number_is_named_with_what_it_gave(value):
    rewarder = Rewarder(exact(), [ShapingPart("mine.py:reward", 0.5, of_each(lambda one: value))])
    with pytest.raises(PluginError, match=r"shaping mine.py:reward gave .* which is not a number; return one for each"):
        asyncio.run(rewarder.judge([rollout("5")], 0))


@pytest.mark.parametrize("kind", ["grpo", "sample"])
def test_a_problem_that_leaves_no_room_to_answer_is_named_before_anything_is_drawn(cipher_model, tmp_path, kind):
    texts = {"long": "s1 " * 2040, "short": "s1"}
    rows = [
        {"id": name, "messages": [{"role": "user", "content": text}], "answer": "s2"} for name, text in texts.items()
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    own = (
        {"held_out": "cipher:symbols=8,max_steps=2", "steps": 1, "lr": 1e-3, "held_out_limit": 1}
        if kind == "grpo"
        else {}
    )
    stage = make_stage(kind, task=str(tmp_path / "rows.jsonl"), max_tokens=16, n=2, **own)
    with pytest.raises(
        ConfigError, match=rf"{kind}: 1 of \d problems leave no room for max_tokens = 16 in .*is long, of"
    ):
        stage.run(Setting(tmp_path, cipher_model, 1, "cpu", 1, print))
    assert not (tmp_path / "metrics.jsonl").exists() and not (tmp_path / "rollouts.jsonl").exists()
