"""SIGTERM and Ctrl-C end training between two updates with all of them kept; the next run goes on bit for bit."""

import asyncio
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import torch

from tests.loops import finished
from tests.train.cipher_base import make_parts, model_of
from tests.train.stages import make_stage
from tests.train.tiny_recipe import GRPO, PRETRAIN, write
from train.base.checkpoint import ASKED, Checkpoints
from train.base.stage import Setting
from train.base.world import World
from train.recipe.recipe import read_recipe
from train.recipe.run import RunOptions, run_recipe
from train.rl.loop import LoopPlan, learn, update_on
from train.rl.overlapped import learn_async
from ttc.cli.cli import main
from ttc.concurrent import Interrupted, StopRequest


@pytest.fixture(autouse=True)
def handlers():
    """What is done at a signal, put back: after a request the next signal would end the tests."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def send(number=signal.SIGTERM):
    os.kill(os.getpid(), number)


PLAN = LoopPlan(steps=4, prompts=2, eval_every=9, save_every=3)


def weights(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def run(parts, *, stop=None, at=None):
    """Train to the end, with a signal in the midst of the second update, or of the third draw."""
    parts = dataclasses.replace(parts, stop=stop or StopRequest())
    draw, updates = parts.sampler.draw, []

    def drawn(missing, step, *rest):
        if at == "draw" and step == 2:
            send()
        return draw(missing, step, *rest)

    parts.sampler.draw = drawn

    async def update(rollouts):
        updates.append(len(rollouts))
        if at == "update" and len(updates) == 2:
            send()
        return update_on(rollouts, PLAN, parts.updater, parts.pad_id)

    async def work():
        with parts.stop.heeded():
            await learn(PLAN, parts, update)

    finished(work(), parts, parts.collector.engine)
    return weights(parts.updater.model)


@pytest.mark.numeric
@pytest.mark.parametrize("at", ["update", "draw"])
def test_a_signal_ends_reinforcement_after_a_whole_update_and_the_next_run_ends_at_the_same_bits(base, tmp_path, at):
    whole = run(make_parts(base, tmp_path / "whole"))
    with pytest.raises(Interrupted, match="2 updates are kept") as raised:
        run(make_parts(base, tmp_path / "cut"), stop=StopRequest(armed=True), at=at)
    assert raised.value.number == signal.SIGTERM
    assert (tmp_path / "cut" / "checkpoints" / ASKED / "step-000002").is_dir()
    again = run(make_parts(base, tmp_path / "cut"))
    assert all(torch.equal(a, b) for a, b in zip(whole, again, strict=True))
    lines = [
        [json.loads(line)["step"] for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("whole", "cut")
    ]
    assert lines == [[1, 2, 3, 4]] * 2
    assert not (tmp_path / "cut" / "checkpoints" / ASKED).exists()  # the next checkpoint took its place


def test_an_interrupt_ends_the_loading_of_models_at_once(tmp_path, monkeypatch):
    stage = make_stage("grpo", task="cipher:split=train", held_out="cipher", steps=1, lr=1e-3)

    def slow(*arguments):
        send(signal.SIGINT)
        time.sleep(2)
        raise AssertionError("it went on")

    monkeypatch.setattr(type(stage), "parts", slow)
    with pytest.raises(KeyboardInterrupt):
        stage.run(Setting(tmp_path, tmp_path, 1, "cpu", 1, print))


@pytest.mark.parametrize("loop", [learn, learn_async])
def test_a_signal_ends_the_measurement_before_the_first_update_at_once(base, tmp_path, loop):
    parts = dataclasses.replace(make_parts(base, tmp_path), stop=StopRequest(armed=True))
    asked, answered, engine = [], [], parts.collector.engine

    async def slow(prompt, *arguments, **settings):
        asked.append(prompt)
        if len(asked) == 1:
            send()
        await asyncio.sleep(5)
        answered.append(prompt)

    engine.generate = slow

    async def work():
        with parts.stop.heeded():
            await loop(PLAN, parts)

    with pytest.raises(Interrupted, match="0 updates are kept"):
        finished(work(), parts, engine)
    assert not answered


def test_an_overlapped_run_keeps_its_updates_too(base, tmp_path):
    parts = dataclasses.replace(make_parts(base, tmp_path), stop=StopRequest(armed=True))
    update = parts.sampler.update

    def updated(rollouts):
        update(rollouts)
        send(signal.SIGINT)

    parts.sampler.update = updated

    async def work():
        with parts.stop.heeded():
            await learn_async(PLAN, parts)

    with pytest.raises(Interrupted, match="1 update is kept"):
        finished(work(), parts, parts.collector.engine)
    assert (tmp_path / "checkpoints" / ASKED / "step-000001").is_dir()


def fitted(folder, base, *, stop=None, log=lambda text: None):
    """The weights of a model that was fine-tuned in `folder`."""
    folder.mkdir(exist_ok=True)
    corpus = "cipher:symbols=8,max_steps=2"
    stage = make_stage("sft", corpus=corpus, corpus_rows=32, steps=6, rows=4, lr=1e-3, eval_every=1)
    stage.run(Setting(folder, base, 1, "cpu", 1, log, stop=stop or StopRequest()))
    return (folder / "model" / "model.safetensors").read_bytes()


@pytest.mark.numeric
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_an_offline_stage_the_same_way(base, tmp_path, number):
    whole = fitted(tmp_path / "whole", base)
    with pytest.raises(Interrupted, match="3 updates of cut are kept") as raised:
        log = lambda text: send(number) if text.startswith("step 3 of") else None  # noqa: E731
        fitted(tmp_path / "cut", base, stop=StopRequest(armed=True), log=log)
    assert raised.value.number == number
    assert fitted(tmp_path / "cut", base) == whole


def pretrained(folder, *, stop=None, log=lambda text: None):
    """The weights of a model that was made from nothing in `folder`."""
    folder.mkdir(exist_ok=True)
    shape = {"hidden": 8, "heads": 1, "kv_heads": 1, "mlp": 8}
    stage = make_stage("pretrain", corpus="cipher:symbols=8,max_steps=2", steps=103, rows=2, **shape)
    stage.run(Setting(folder, None, 1, "cpu", 1, log, stop=stop or StopRequest()))
    return (folder / "model" / "model.safetensors").read_bytes()


@pytest.mark.numeric
def test_a_signal_ends_pretraining_the_same_way(tmp_path):
    whole = pretrained(tmp_path / "whole")
    with pytest.raises(Interrupted, match="100 updates of cut are kept"):
        log = lambda text: send() if text.startswith("pretrain step 100") else None  # noqa: E731
        pretrained(tmp_path / "cut", stop=StopRequest(armed=True), log=log)
    assert pretrained(tmp_path / "cut") == whole


def test_a_signal_after_the_last_update_ends_the_stage_before_it_is_measured(base, tmp_path):
    log = lambda text: send() if text.startswith("step 6 of") else None  # noqa: E731
    with pytest.raises(Interrupted):
        fitted(tmp_path / "cut", base, stop=StopRequest(armed=True), log=log)
    assert not (tmp_path / "cut" / "model").exists()
    assert fitted(tmp_path / "cut", base)


SIGNALLING = """
import os, signal
from collections.abc import Sequence
from train.base.rollout import Rollout
from train.rollouts.rewards import Shaping

def reward() -> Shaping:
    def part(rollouts: Sequence[Rollout], step: int) -> list[float]:
        if step == 1 and not os.path.exists(PLACE):
            open(PLACE, "w").close()
            os.kill(os.getpid(), signal.SIGTERM)
        return [0.0] * len(rollouts)
    return part
"""


def test_the_command_says_what_is_kept_and_how_to_go_on_and_ends_with_143(tmp_path, capfd):
    (tmp_path / "mine.py").write_text(SIGNALLING.replace("PLACE", repr(str(tmp_path / "sent"))))
    grpo = GRPO.replace("steps = 2", "steps = 3")
    text = f'about = "x"\n{PRETRAIN}{grpo}shaping = ["{tmp_path}/mine.py:reward:weight=0.5"]\n'
    words = ["train", "run", write(tmp_path, text), "--out", str(tmp_path / "run"), "--seed", "1"]
    assert main(words) == 143
    last = capfd.readouterr().err.splitlines()[-1]
    # the draw may have been at its end, and then its update is made, too
    told = r"ttc: terminated; ([12]) (?:update is|updates are) kept; continue with: ttc train run .* --seed 1"
    kept = re.fullmatch(told, last)
    assert kept is not None
    assert main(words) == 0
    assert f"resumed at step {kept[1]}" in capfd.readouterr().err


TWICE = """
import asyncio, os, signal, sys, time
from ttc.concurrent import StopRequest

async def work():
    await asyncio.sleep(60)

async def all_of_it(stop):
    with stop.heeded():
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.{second})
        await stop.cut(work())

asyncio.run(all_of_it(StopRequest(armed=True, apart_s=float(sys.argv[1]))))
"""


@pytest.mark.parametrize(("second", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_the_second_signal_ends_the_process_at_once(second, code):
    done = subprocess.run(
        [sys.executable, "-c", TWICE.format(second=second), "0"], capture_output=True, text=True, check=False
    )
    assert done.returncode == code and done.stderr.endswith("ttc: ended at once\n")


def test_a_signal_that_a_launcher_hands_on_is_the_first_one_again():
    done = subprocess.run(
        [sys.executable, "-c", TWICE.format(second="SIGTERM"), "30"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and "ttc.concurrent.Interrupted" in done.stderr


def test_a_request_that_nobody_armed_leaves_signals_as_they_are():
    before = signal.getsignal(signal.SIGTERM)
    with StopRequest().heeded():
        assert signal.getsignal(signal.SIGTERM) is before


def test_an_alarm_goes_back_to_the_same_checkpoint_whether_or_not_a_signal_came(tmp_path):
    places = Checkpoints(tmp_path, print)
    places.save(5, model_of(5.0), {}, {})
    places.keep(7, model_of(7.0), {}, {})
    loaded, resumed = model_of(0.0), model_of(0.0)
    assert places.load(loaded)[1]["step"] == 5 and places.resume(resumed)[1]["step"] == 7
    assert loaded.weight[0, 0] == 5 and resumed.weight[0, 0] == 7
    places.save(10, model_of(10.0), {}, {})
    assert places.resume(resumed)[1]["step"] == 10 and not (tmp_path / ASKED).exists()


def test_a_damaged_checkpoint_that_a_signal_asked_for_is_named_and_the_one_before_it_used(tmp_path):
    told = []
    places = Checkpoints(tmp_path, told.append)
    places.save(5, model_of(5.0), {}, {})
    places.keep(7, model_of(7.0), {}, {})
    (tmp_path / ASKED / "step-000007" / "model.safetensors").write_bytes(b"cut")
    assert places.resume(model_of(0.0))[1]["step"] == 5
    assert "step-000007 is not whole: model.safetensors" in told[0]


def test_a_stage_that_is_not_split_is_alone_though_the_run_has_several_processes(tmp_path, monkeypatch):
    recipe = read_recipe(write(tmp_path, f'about = "x"\n{PRETRAIN}'))
    (tmp_path / "run").mkdir()
    monkeypatch.setattr(World, "agree", lambda self, value: value)
    monkeypatch.setattr(World, "wait", lambda self: None)
    (step,) = recipe.steps
    worlds = []

    class Watched:
        def check(self, has_model):
            pass

        def run(self, setting):
            worlds.append(setting.world.size)
            return step.stage.run(setting)

    watched = dataclasses.replace(recipe, steps=(dataclasses.replace(step, stage=Watched()),))
    run_recipe(watched, RunOptions(tmp_path / "run", 1, None, "cpu", 1, World(0, 2)), lambda text: None)
    assert worlds == [1]
