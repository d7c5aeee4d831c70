"""A group answers one prompt: group ids that mix prompts are refused by name before anything is trained."""

import dataclasses
import json

import pytest
import torch

from tests.train.cipher_base import make_parts, ran, rolled_out, two_updates
from train.base.rollout import Collector, check_groups, group_draws
from train.base.stage import Setting
from train.examples.pairs import PairSource
from train.replay.replay import replay_step
from train.rl.loop import LoopPlan, draw, learn
from train.rl.overlapped import learn_async
from ttc.core import Message
from ttc.errors import BudgetExceeded, ConfigError


def rollout(group, problem, prompt, step=5):
    return rolled_out(step=step, group=group, problem_id=problem, prompt_ids=prompt, token_ids=(7, 1), reward=1.0)


def decode(ids):
    return "".join(map(chr, ids))


def ids(text):
    return tuple(map(ord, text))


SYSTEM = "You are a helpful assistant. Reason step by step. "


def test_the_refusal_names_the_group_both_prompts_and_the_fix():
    one, other = ids(f"{SYSTEM}How many apples are left?"), ids(f"{SYSTEM}How many pears are green?")
    rows = [rollout(1, "a", one), rollout(2, "a", one), rollout(2, "b", other)]
    with pytest.raises(ConfigError) as found:
        check_groups(rows, decode)
    told = str(found.value)
    assert "group 2 of step 5 mixes prompts" in told and "give each prompt a group id of its own" in told
    assert "apples are left?' (problem a)" in told and "pears are green?' (problem b)" in told


def test_groups_of_one_prompt_each_and_equal_numbers_of_other_steps_are_fine():
    check_groups([rollout(1, "a", (5,)), rollout(1, "a", (5,)), rollout(2, "b", (6,))], decode)
    check_groups([rollout(1, "a", (5,)), rollout(1, "b", (6,), step=6)], decode)


def with_strategy(parts, strategy):
    old = parts.collector
    collector = Collector(parts.collector.engine, strategy=strategy, sampling=old._sampling, thinking=None, seed=0)
    return dataclasses.replace(parts, collector=collector)


async def two_prompts(problem, session):
    """Draw from the problem and from another question of the strategy's own."""
    first = session.render()
    other = session.ask([Message("user", problem.messages[-1].content[::-1])], (9,))
    drawn = [(prompt, each) for prompt in (first, other) for each in await session.generate(prompt, 2)]
    return session.answer(None, [session.candidate(prompt, each) for prompt, each in drawn])


@pytest.mark.parametrize("loop", [learn, learn_async])
def test_a_strategy_that_mixes_prompts_is_refused_before_any_update(cipher_model, tmp_path, loop):
    parts = with_strategy(make_parts(cipher_model, tmp_path), two_prompts)
    before = [parameter.detach().clone() for parameter in parts.updater.model.parameters()]

    with pytest.raises(ConfigError, match="group 0 of step 0 mixes prompts"):
        ran(loop(LoopPlan(steps=1, prompts=2), parts), parts)
    after = parts.updater.model.parameters()
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_a_group_that_came_back_empty_gives_its_number_to_no_other_prompt(cipher_model, tmp_path):
    parts = make_parts(cipher_model, tmp_path)
    barren = parts.sampler.draw(3, 0)[0].problem.id

    async def strategy(problem, session):
        if problem.id.partition("@")[0] == barren:
            raise BudgetExceeded("nothing could be drawn")
        return await group_draws(problem, session, n=2)

    parts = with_strategy(parts, strategy)
    found = ran(draw(LoopPlan(steps=1, prompts=3, refills=3), parts, 0), parts)
    prompts = {(each.group, each.prompt_ids) for each in found}
    assert len(prompts) == len({group for group, _ in prompts}) > 2


def test_recorded_groups_that_mix_prompts_are_not_replayed(cipher_model, tmp_path):
    folder = two_updates(tmp_path, cipher_model)
    path = folder / "1-grpo" / "rollouts.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps({**row, "group": row["group"] // 2}) + "\n" for row in rows))
    with pytest.raises(ConfigError, match=r"group 0 of step 0 mixes prompts.*\(problem .*\) and .*\(problem "):
        list(replay_step(folder, 0, model=cipher_model))


def test_pairs_of_two_prompts_under_one_problem_are_refused(cipher_model, tmp_path):
    folder = two_updates(tmp_path, cipher_model)
    path = folder / "1-grpo" / "rollouts.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps({**row, "problem_id": "same"}) + "\n" for row in rows))
    setting = Setting(tmp_path, cipher_model, 1, "cpu", 1, lambda text: None)
    with pytest.raises(ConfigError, match="problem same mixes prompts"):
        PairSource(None, str(path), None).load(setting, cipher_model, 1)
