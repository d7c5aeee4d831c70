"""The majority of a group as its label: what it pays, and that no key is in it."""

import asyncio

import pytest

from tests.train.cipher_base import rolled_out
from train.rl.policy_stage import RewardFields
from train.rollouts.rewards import Rewarder, shaping_part
from ttc.errors import ConfigError
from ttc.verifiers.exact import exact


def rollout(final, group=0, finish_reason="stop", target="4"):
    named = {"group": group, "problem_id": f"p{group}", "target": target, "finish_reason": finish_reason}
    return rolled_out(text=final or "", final=final, **named)


def rewards(rollouts):
    async def go():
        rewarder = Rewarder(exact(), [shaping_part("majority:weight=1")], verifier_weight=0)
        judged = await rewarder.judge(rollouts, 0)
        await rewarder.close()
        return judged

    return asyncio.run(go())


def test_the_commonest_answer_of_each_group_is_paid_right_or_wrong():
    judged = rewards([rollout(answer) for answer in ("7", "4", "7")] + [rollout(a, 1) for a in ("4", "4", "9")])
    assert [one.reward for one in judged] == [1.0, 0.0, 1.0, 1.0, 1.0, 0.0]
    assert [one.right for one in judged] == [False, True, False, True, True, False]


def test_another_key_changes_no_reward():
    answers = ("7", "4", "7", None)
    told = [[one.reward for one in rewards([rollout(a, target=key) for a in answers])] for key in ("4", "7", "0")]
    assert told[0] == told[1] == told[2] == [1.0, 0.0, 1.0, 0.0]


def test_cut_rollouts_and_those_without_an_answer_have_no_vote_and_of_several_labels_it_is_the_first():
    assert [one.reward for one in rewards([rollout("7", finish_reason="length"), rollout("7", finish_reason="length"),
                                           rollout("4")])] == [0.0, 0.0, 1.0]  # fmt: skip
    assert [one.reward for one in rewards([rollout("9"), rollout("4")])] == [1.0, 0.0]
    assert [one.reward for one in rewards([rollout(None), rollout(None)])] == [0.0, 0.0]


def test_a_verifier_of_weight_zero_needs_another_reward():
    RewardFields(verifier_weight=0, shaping=("majority:weight=1",)).check("grpo")
    with pytest.raises(ConfigError, match="verifier_weight must be above 0, or 0 with a reward_model or a shaping"):
        RewardFields(verifier_weight=0).check("grpo")
