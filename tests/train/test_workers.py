"""Rollouts in processes of their own: the same run as in one process, also when a worker is killed in the middle."""

import asyncio
import dataclasses
import os
import signal

import pytest

from tests.train.cipher_base import make_parts
from train.base.rollout import Collector
from train.rl.loop import LoopPlan, learn
from train.rl.overlapped import learn_async
from train.rollouts.sync import Revived, Syncer, revived
from ttc.core import Message, Sampling, Usage
from ttc.engines.embedded.engine import embedded
from ttc.engines.scripted import ScriptedEngine
from ttc.errors import EngineError, PromptTooLong

PLAN = LoopPlan(steps=3, prompts=4, eval_every=3)


def over(parts, engine):
    """The parts with rollouts from `engine`; the one they had is closed."""
    asyncio.run(parts.collector.engine.close())
    old = parts.collector
    collector = Collector(
        engine, strategy=old._strategy, sampling=old._sampling, thinking=old._thinking, seed=old._seed
    )
    return dataclasses.replace(parts, collector=collector, syncer=Syncer(engine, parts.updater.model, limit=1e-3))


def local(model):
    return embedded(str(model), dtype="float32", device="cpu", batch_invariant=True, processes=1)


def outcome(loop, parts, plan=PLAN, *, close=True):
    async def go():
        try:
            await loop(plan, parts)
        finally:
            if close:
                await parts.collector.engine.close()

    asyncio.run(go())
    parts.metrics.close()
    parts.rollouts.close()
    return {name: tensor.clone() for name, tensor in parts.updater.model.state_dict().items()}


def same(first, second):
    return all(first[name].equal(tensor) for name, tensor in second.items())


@pytest.fixture(scope="module")
def alone(cipher_model, tmp_path_factory):
    """The weights that a run in this process ends with; only read."""
    return outcome(learn, make_parts(cipher_model, tmp_path_factory.mktemp("alone")))


@pytest.mark.long
def test_a_worker_process_gives_the_run_of_one_process_bit_for_bit(cipher_model, tmp_path, alone):
    worker = local(cipher_model)  # of both runs: a run pushes the weights that it starts with
    assert same(alone, outcome(learn, over(make_parts(cipher_model, tmp_path / "two"), worker), close=False))
    one_ahead = LoopPlan(steps=3, prompts=4, eval_every=3, max_staleness=0)
    queued = over(make_parts(cipher_model, tmp_path / "three"), worker)
    assert same(alone, outcome(learn_async, queued, one_ahead))


def kill_at_step_1(parts, kill):
    """Kill a worker of the engine that there is now, before the rollouts of step 1 are judged."""
    judge, revived_engine = parts.rewarder.judge, parts.collector.engine
    first = revived_engine._engine

    async def kill_then_judge(rollouts, step):
        if step == 1 and revived_engine._engine is first:
            kill()
        return await judge(rollouts, step)

    parts.rewarder.judge = kill_then_judge


@pytest.mark.long
def test_the_work_of_a_killed_worker_is_drawn_again(cipher_model, tmp_path, alone):
    said = []
    engine = revived(lambda: local(cipher_model), said.append)
    assert isinstance(engine, Revived)
    first = engine._engine
    parts = over(make_parts(cipher_model, tmp_path / "two"), engine)
    kill_at_step_1(parts, lambda: os.kill(first._replicas[0]._process.pid, signal.SIGKILL))
    assert same(alone, outcome(learn, parts))
    assert len(said) == 1 and "exit code -9" in said[0]


def test_an_engine_that_keeps_dying_is_given_up_and_a_bad_request_is_no_death():
    class Ill(ScriptedEngine):
        async def logprobs(self, token_ids, start, on_usage):
            return ()

        async def load_weights(self, state):
            self.weights = state

        async def generate(self, prompt, sampling, draws, on_usage):
            raise EngineError("gone")

    made = []

    def make():
        made.append(Ill(lambda prompt, path, key: "1", max_context=8))
        return made[-1]

    engine = revived(make, lambda text: None)
    prompt = engine.render([Message("user", "hello")], None)
    with pytest.raises(EngineError, match="gone"):
        asyncio.run(engine.generate(prompt, Sampling(seed=1), range(1), lambda usage: None))
    assert len(made) == 6 and engine.counters() == Usage()

    class Strict(Ill):
        async def generate(self, prompt, sampling, draws, on_usage):
            raise PromptTooLong("too long")

    engine = revived(lambda: Strict(lambda prompt, path, key: "1"), lambda text: None)
    with pytest.raises(PromptTooLong):
        asyncio.run(engine.generate(prompt, Sampling(seed=1), range(1), lambda usage: None))


def test_an_engine_that_takes_no_weights_is_left_as_it_is():
    engine = ScriptedEngine(lambda prompt, path, key: "1")
    assert revived(lambda: engine, lambda text: None) is engine


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_ray_actors_give_the_run_of_one_process_bit_for_bit(cipher_model, tmp_path, alone):
    ray = pytest.importorskip("ray", reason="needs ray")
    from ttc.engines.ray_workers.engine import ray_workers

    def make():
        options = {"dtype": "float32", "device": "cpu", "batch_invariant": True, "workers": 2, "cpus": 0.5}
        return ray_workers(str(cipher_model), **options)

    engine = revived(make, lambda text: None)
    first = engine._engine
    parts = over(make_parts(cipher_model, tmp_path / "two"), engine)
    kill_at_step_1(parts, lambda: ray.kill(first._actors[0]))
    assert same(alone, outcome(learn, parts))
    assert first.num_lost == 1  # an actor heals by itself: the engine stays
