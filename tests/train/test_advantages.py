"""Advantages against numbers worked out by hand, and what may not change them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.train.stages import make_stage
from train.advantages.batch import batch
from train.advantages.gae import gae
from train.advantages.group import group
from train.advantages.leave_one_out import leave_one_out
from train.advantages.reinforce_pp import reinforce_pp
from train.advantages.steps import steps
from train.advantages.tree import tree
from train.registries import ADVANTAGES
from train.update.terms import RewardBatch, across_prompts
from ttc.errors import ConfigError

pytestmark = pytest.mark.numeric

NAN = float("nan")


def outcome(rewards, groups, length=3, **more):
    mask = torch.ones(len(rewards), length, dtype=torch.bool)
    return RewardBatch(torch.tensor(rewards), torch.tensor(groups), more.pop("mask", mask), **more)


def rows(advantage, given_outcome):
    return advantage(given_outcome)[:, 0].tolist()


def test_group_advantages_equal_those_worked_out_by_hand():
    found = rows(group(eps=0.0), outcome([1.0, 0.0, 0.0, 1.0, 0.0], [7, 7, 7, 9, 9]))
    std = (2 / 9) ** 0.5
    hand = [2 / 3 / std, -1 / 3 / std, -1 / 3 / std, 1.0, -1.0]
    assert torch.allclose(torch.tensor(found), torch.tensor(hand), atol=1e-6)
    assert rows(group(), outcome([0.0, 1.0, 0.0, 0.5], [0] * 4)) == pytest.approx(
        [-0.905, 1.508, -0.905, 0.302], abs=1e-3
    )


def test_the_samples_spread_is_larger_than_the_populations_by_the_root_of_n_over_n_minus_one():
    rewards = outcome([0.0, 1.0, 0.0, 0.5], [0] * 4)
    for name in ("group", "batch", "reinforce_pp"):
        narrow = torch.tensor(rows(ADVANTAGES.load(name)(spread="sample", eps=0.0), rewards))
        wide = torch.tensor(rows(ADVANTAGES.load(name)(eps=0.0), rewards))
        assert torch.allclose(narrow, wide * (3 / 4) ** 0.5, atol=1e-6)


def test_without_scaling_the_group_advantage_is_the_difference_from_the_mean():
    assert rows(group(scale="none"), outcome([3.0, 1.0], [0, 0])) == [1.0, -1.0]


def test_equal_rewards_give_exactly_zero_in_every_group_method():
    same = outcome([0.1] * 3 + [0.7] * 7, [0] * 3 + [1] * 7)
    for make in (group(), group(eps=0.0), group(scale="none"), leave_one_out()):
        assert make(same).abs().max() == 0
    assert reinforce_pp()(same).abs().max() == 0


def test_leave_one_out_is_the_group_difference_times_g_over_g_minus_one():
    rewards = outcome([1.0, 0.0, 0.5, 0.25], [0, 0, 0, 0])
    expected = torch.tensor(rows(group(scale="none"), rewards)) * 4 / 3
    assert torch.allclose(torch.tensor(rows(leave_one_out(), rewards)), expected, atol=1e-6)
    assert abs(rows(leave_one_out(), rewards)[0] - (1.0 - 0.75 / 3)) < 1e-6


def test_a_rollout_without_a_verdict_gets_nothing_and_moves_no_mean():
    found = rows(group(scale="none"), outcome([1.0, NAN, 0.0], [0, 0, 0]))
    assert found == [0.5, 0.0, -0.5]
    for name in ("group", "batch", "leave_one_out", "reinforce_pp"):
        values = ADVANTAGES.load(name)()(outcome([1.0, NAN, 0.0], [0, 0, 0]))
        assert torch.isfinite(values).all() and values[1].abs().max() == 0


def test_a_rollout_alone_in_its_group_gets_zero():
    assert rows(group(), outcome([1.0, 0.0], [0, 1])) == [0.0, 0.0]
    assert rows(leave_one_out(), outcome([1.0, 0.0], [0, 1])) == [0.0, 0.0]


def test_batch_advantages_have_mean_zero_and_unit_spread():
    found = torch.tensor(rows(batch(eps=0.0), outcome([1.0, 0.0, 0.0, 4.0], [0, 0, 1, 1])))
    assert abs(found.mean()) < 1e-6 and abs(found.std(correction=0) - 1) < 1e-6


def test_reinforce_pp_takes_the_group_off_first_and_normalises_over_the_batch():
    found = torch.tensor(rows(reinforce_pp(eps=0.0), outcome([1.0, 0.0, 10.0, 9.0], [0, 0, 1, 1])))
    assert torch.allclose(found, torch.tensor([1.0, -1.0, 1.0, -1.0]), atol=1e-6)


@given(st.permutations(range(6)))
def test_shuffling_rows_changes_no_rollouts_advantage(order):
    rewards, groups = [0.0, 1.0, 0.5, 1.0, 1.0, 0.0], [0, 0, 0, 1, 1, 1]
    for name in ("group", "batch", "leave_one_out", "reinforce_pp"):
        make = ADVANTAGES.load(name)()
        plain = torch.tensor(rows(make, outcome(rewards, groups)))
        mixed = torch.tensor(rows(make, outcome([rewards[i] for i in order], [groups[i] for i in order])))
        assert torch.allclose(mixed, plain[list(order)], atol=1e-6)


def test_nothing_outside_the_mask_gets_an_advantage():
    mask = torch.tensor([[True, False, True], [False, True, True]])
    for name in ("group", "batch", "leave_one_out", "reinforce_pp"):
        assert (ADVANTAGES.load(name)()(outcome([1.0, 0.0], [0, 0], mask=mask))[~mask] == 0).all()


def test_process_rewards_count_for_every_token_up_to_the_end_of_their_step():
    step_rewards = torch.tensor([[NAN, 1.0, NAN, 0.0], [NAN, NAN, NAN, 0.0]])
    given_outcome = RewardBatch(
        torch.tensor([1.0, 0.0]), torch.tensor([0, 0]), torch.ones(2, 4, dtype=torch.bool), steps=step_rewards
    )
    mean, std = 1 / 3, (2 / 9) ** 0.5
    good, bad = (1 - mean) / std, (0 - mean) / std
    found = steps(eps=0.0)(given_outcome)
    expected = torch.tensor([[good + bad, good + bad, bad, bad], [bad, bad, bad, bad]])
    assert torch.allclose(found, expected, atol=1e-6)


def test_equal_process_rewards_teach_nothing_however_they_round():
    for value in (0.1, 0.3, 0.7):
        given_outcome = RewardBatch(
            torch.ones(3), torch.zeros(3, dtype=torch.long), torch.ones(3, 7, dtype=torch.bool),
            steps=torch.full((3, 7), value),
        )  # fmt: skip
        assert (steps()(given_outcome) == 0).all(), value


def test_the_reward_of_the_whole_rollout_may_be_added_to_those_of_its_steps():
    step_rewards = torch.tensor([[NAN, 1.0, NAN, 0.0], [NAN, NAN, NAN, 0.0]])
    mask = torch.ones(2, 4, dtype=torch.bool)
    both = RewardBatch(torch.tensor([1.0, 0.0]), torch.tensor([0, 0]), mask, steps=step_rewards)
    expected = steps()(both) + 0.5 * ADVANTAGES.load("group")()(both)
    assert torch.allclose(steps(outcome=0.5)(both), expected, atol=1e-6)


def test_gae_with_lambda_one_is_reward_minus_value_and_with_zero_the_one_step_error():
    values = torch.tensor([[0.2, 0.5, 0.9]])
    given_outcome = RewardBatch(
        torch.tensor([1.0]), torch.tensor([0]), torch.ones(1, 3, dtype=torch.bool), values=values
    )
    assert torch.allclose(gae(lam=1.0)(given_outcome), 1.0 - values, atol=1e-6)
    assert torch.allclose(gae(lam=0.0)(given_outcome), torch.tensor([[0.3, 0.4, 0.1]]), atol=1e-6)


def test_gae_skips_tokens_that_were_injected():
    values = torch.tensor([[0.2, 9.0, 0.9]])
    mask = torch.tensor([[True, False, True]])
    found = gae(lam=0.0)(RewardBatch(torch.tensor([1.0]), torch.tensor([0]), mask, values=values))
    assert torch.allclose(found, torch.tensor([[0.7, 0.0, 0.1]]), atol=1e-6)


def test_a_token_is_worth_what_its_node_gains_on_the_whole_tree_and_on_the_node_before():
    # 5 is shared by all; 6 by the first three, of which the first two go on with 7
    tokens = torch.tensor([[5, 6, 7, 1], [5, 6, 7, 2], [5, 6, 8, 8], [5, 9, 9, 9]])
    batch = outcome([1.0, 0.0, 1.0, 0.0], [3] * 4, 4, tokens=tokens)
    # V: root 1/2; 6 is 2/3 of 3; 7 is 1/2 of 2; the leaves 1, 0, 1, 0
    hand = torch.tensor([
        [0.0, 2 * (1 / 6), 0.0 - 1 / 6, 0.5 + 0.5],
        [0.0, 2 * (1 / 6), 0.0 - 1 / 6, -0.5 - 0.5],
        [0.0, 2 * (1 / 6), 0.5 + 1 / 3, 0.5 + 1 / 3],
        [0.0, -0.5 - 0.5, -1.0, -1.0],
    ])  # fmt: skip
    through = torch.tensor([[4, 3, 2, 1], [4, 3, 2, 1], [4, 3, 1, 1], [4, 1, 1, 1]])
    assert torch.allclose(tree(by_leaves=False)(batch), hand, atol=1e-6)
    assert torch.allclose(tree()(batch), hand / through.sqrt(), atol=1e-6)
    value = torch.tensor([[0, 1 / 6, 0, 0.5], [0, 1 / 6, 0, -0.5], [0, 1 / 6, 0.5, 0.5], [0, -0.5, -0.5, -0.5]])
    assert torch.allclose(tree(local=0.0, by_leaves=False)(batch), value, atol=1e-6)


def test_rollouts_that_share_nothing_get_twice_the_unscaled_group_advantage_and_other_groups_are_other_trees():
    tokens = torch.tensor([[5, 6], [7, 6], [5, 6], [7, 7]])
    batch = outcome([1.0, 0.0, 1.0, NAN], [0, 0, 1, 1], 2, tokens=tokens)
    assert torch.allclose(tree()(batch)[:2], 2 * group(scale="none")(batch)[:2])
    assert tree()(batch)[2:].abs().max() == 0
    with pytest.raises(ConfigError, match="needs the token ids"):
        tree()(outcome([1.0, 0.0], [0, 0]))


@pytest.mark.parametrize(
    ("advantage", "compares"),
    [
        (batch(), True),
        (reinforce_pp(baseline="none"), True),
        (reinforce_pp(), False),
        (group(), False),
        (group(scale="batch"), False),
        (leave_one_out(), False),
        (steps(outcome=1.0), False),
        (tree(), False),
    ],
)
def test_one_rollout_a_prompt_is_for_advantages_that_compare_prompts(advantage, compares):
    assert across_prompts(advantage) is compares


def test_a_stage_with_one_rollout_a_prompt_is_refused_where_nothing_compares_it():
    fields = {"task": "cipher:split=train", "held_out": "cipher", "steps": 1, "lr": 1e-3}
    make_stage("grpo", **fields, n=1, advantage="reinforce_pp:baseline=none")
    for own, words in (
        ({"n": 1}, r"n must be at least 2, got 1: .* batch and reinforce_pp:baseline=none compare those of all"),
        ({"n": 1, "advantage": "batch", "refills": 1}, "refills needs n of at least 2"),
        ({"advantage": "gae"}, "advantage gae needs a value head, which only stages of kind ppo have"),
    ):
        with pytest.raises(ConfigError, match=words):
            make_stage("grpo", **fields, **own)
