"""The asynchronous loop learns the same, keeps to its staleness, and waits for nobody that others need not wait for."""

import asyncio
import dataclasses
import time

import pytest

from tests.train.cipher_base import gained, make_parts, ran
from tests.train.stages import metrics_of
from train.base.rollout import read_rollouts
from train.rl.loop import LoopPlan, learn
from train.rl.overlapped import learn_async
from train.rollouts.rewards import Rewarder
from ttc.errors import ConfigError
from ttc.verifiers.exact import exact
from ttc.verifiers.service.service import Service


class Slow:
    """A verifier that takes its time."""

    name, version = "slow", "slow-1"

    def __init__(self, seconds):
        self._seconds, self._inner = seconds, exact()

    def check_gold(self, target, item=""):
        self._inner.check_gold(target, item)

    async def verify(self, target, submission):
        await asyncio.sleep(self._seconds)
        return await self._inner.verify(target, submission)

    async def close(self):
        await self._inner.close()


@pytest.mark.slow
def test_it_learns_what_the_synchronous_loop_learns_within_the_stated_staleness(cipher_model, tmp_path):
    parts = make_parts(cipher_model, tmp_path)
    ran(learn_async(LoopPlan(steps=24, prompts=12, eval_every=12, max_staleness=2), parts), parts)
    told = metrics_of(tmp_path)
    assert gained(told, "accuracy") > 0.3 and gained(told, "thinking_share") > 0.3
    assert max(row["staleness"] for row in told) <= 2 and any(row["staleness"] > 0 for row in told)
    assert max(row["parity"] for row in told) < 1e-4


def test_staleness_counts_rounds_whatever_the_number_of_minibatches(cipher_model, tmp_path):
    parts = make_parts(cipher_model, tmp_path)
    parts.updater._minibatches = 4
    ran(learn_async(LoopPlan(steps=6, prompts=4, eval_every=6, max_staleness=1), parts), parts)
    told = metrics_of(tmp_path)
    assert [row["step"] for row in told] == [1, 2, 3, 4, 5, 6]
    assert max(row["staleness"] for row in told) == 1 and parts.updater.optimiser.taken > 6


@pytest.mark.long
def test_a_slow_verifier_is_waited_for_less_than_by_the_synchronous_loop(cipher_model, tmp_path):
    seconds = {}
    for name, loop in (("sync", learn), ("async", learn_async)):
        parts = make_parts(cipher_model, tmp_path / name)
        parts = dataclasses.replace(parts, rewarder=Rewarder(Service(Slow(0.6), memory=0, concurrency=64)))
        began = time.perf_counter()
        ran(loop(LoopPlan(steps=6, prompts=4, eval_every=6, max_staleness=2), parts), parts)
        seconds[name] = time.perf_counter() - began
    assert seconds["async"] < 0.85 * seconds["sync"]


def test_an_actor_that_dies_ends_the_run_with_its_error(cipher_model, tmp_path):
    from train.rollouts.frontier import Frontier
    from ttc.errors import TrainingError

    parts = make_parts(cipher_model, tmp_path)
    items = parts.sampler.draw(1, 0)
    parts = dataclasses.replace(parts, sampler=Frontier(items, seed=0, retire=1))
    parts.sampler.load({"items": {items[0].problem.id: [4.0, 4.0, 1]}, "difficulties": {}})
    with pytest.raises(TrainingError, match="no items left"):
        ran(learn_async(LoopPlan(steps=2, prompts=1), parts), parts)


def test_what_it_cannot_do_is_refused(cipher_model, tmp_path):
    parts = make_parts(cipher_model, tmp_path)
    with pytest.raises(ConfigError, match="refills"):
        asyncio.run(learn_async(LoopPlan(steps=1, prompts=1, refills=1), parts))
    with pytest.raises(ConfigError, match="max_staleness"):
        ran(learn_async(LoopPlan(steps=1, prompts=1, max_staleness=-1), parts), parts)


def test_with_no_staleness_allowed_it_is_the_synchronous_loop_bit_for_bit(cipher_model, tmp_path):
    found = {}
    for name, loop in (("sync", learn), ("async", learn_async)):
        parts = make_parts(cipher_model, tmp_path / name)
        ran(loop(LoopPlan(steps=4, prompts=4, eval_every=2, max_staleness=0), parts), parts)
        told = metrics_of(tmp_path / name)
        weights = {key: tensor.clone() for key, tensor in parts.updater.model.state_dict().items()}
        found[name] = [(row["loss"], row["grad_norm"], row["reward"]) for row in told], weights
        assert all(row.get("staleness", 0) == 0 for row in told)
    assert found["sync"][0] == found["async"][0]
    assert all(found["sync"][1][key].equal(tensor) for key, tensor in found["async"][1].items())


def test_rounds_on_their_way_are_held_back_rather_than_thrown_away(cipher_model, tmp_path):
    parts = make_parts(cipher_model, tmp_path)
    parts = dataclasses.replace(parts, rewarder=Rewarder(Slow(0.1)))
    ran(learn_async(LoopPlan(steps=8, prompts=2, eval_every=8, max_staleness=1), parts), parts)
    assert max(row["staleness"] for row in metrics_of(tmp_path)) == 1
    drawn = {rollout.step for rollout in read_rollouts(tmp_path / "rollouts.jsonl")}
    assert drawn == set(range(8))
