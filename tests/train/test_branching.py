"""Groups whose rollouts share beginnings: how many there are, what they share, and that an update learns from them."""

import itertools
from functools import partial

import pytest

from tests.loops import finished
from tests.train.cipher_base import make_parts, two_updates
from tests.train.stages import make_stage
from train.base.rollout import branching_draws, by_group, read_rollouts
from ttc.errors import ConfigError


@pytest.fixture(scope="module")
def groups(cipher_model, tmp_path_factory):
    parts = make_parts(cipher_model, tmp_path_factory.mktemp("parts"))
    collector = parts.collector
    collector._strategy = partial(branching_draws, n=6, every=2)

    return list(by_group(finished(collector.collect(parts.sampler.draw(12, 0), 0), parts, collector.engine)).values())


def test_a_group_has_its_number_of_rollouts_each_whole_and_none_longer_than_the_limit(groups):
    assert [len(group) for group in groups] == [6] * 12
    for rollout in (one for group in groups for one in group):
        assert 0 < len(rollout.token_ids) <= 14 and len(rollout.logprobs) == len(rollout.token_ids)
        assert all(rollout.sampled) and None not in rollout.logprobs
        assert rollout.truncated == (len(rollout.token_ids) == 14 and rollout.finish_reason == "length")
    assert all(len({one.path for one in group}) == 6 for group in groups)


def paths_of(pair):
    return [one.path for one in pair]


def test_rollouts_share_the_segments_above_the_place_where_they_part(groups):
    pairs = [pair for group in groups for pair in itertools.combinations(group, 2)]
    depths = [next(n for n, (a, b) in enumerate(zip(*paths, strict=False)) if a != b) for paths in map(paths_of, pairs)]
    for (one, other), depth in zip(pairs, depths, strict=True):
        shared = 2 * depth  # segments of two tokens
        assert one.token_ids[:shared] == other.token_ids[:shared]
        assert one.logprobs[:shared] == other.logprobs[:shared]
    assert sum(map(bool, depths)) > 20


def test_a_run_with_branches_and_their_advantages_learns_and_is_recorded(cipher_model, tmp_path):
    run = two_updates(tmp_path, cipher_model, 'branch_every = 2\nadvantage = "tree"\n')
    rollouts = list(read_rollouts(run / "1-grpo" / "rollouts.jsonl"))
    assert len(rollouts) == 2 * 8 * 4
    group = by_group([one for one in rollouts if one.step == 0])[0]
    assert len({one.token_ids[:2] for one in group}) <= 2


def test_a_strategy_and_branches_exclude_each_other():
    fields = {"task": "cipher:split=train", "held_out": "cipher", "branch_every": 4, "strategy": "majority:n=4"}
    with pytest.raises(ConfigError, match="set one of them"):
        make_stage("grpo", steps=1, lr=1e-3, **fields)
