"""The frontier sampler draws what teaches, remembers it, and draws the same again after a resume."""

import collections
import dataclasses
import json

import pytest

from evals.task import Item
from train.base.rollout import Rollout
from train.rollouts.frontier import Frontier
from ttc.core import Message, Problem, Verdict
from ttc.errors import ConfigError

ITEMS = [
    Item(Problem(f"p{i}", (Message("user", str(i)),)), "x", difficulty=("easy", "middle", "hard")[i % 3])
    for i in range(60)
]


def rollouts(name, difficulty, passed, tried):
    return [
        Rollout(
            step=0, group=0, problem_id=name, difficulty=difficulty, target="x", path=(i,), prompt_ids=(), token_ids=(),
            sampled=(), logprobs=(), text="", thinking="", final=None, finish_reason="stop", version=0, seed=0,
            verdict=Verdict("correct" if i < passed else "incorrect"), reward=float(i < passed),
        )
        for i in range(tried)
    ]  # fmt: skip


def trained(**options):
    sampler = Frontier(ITEMS, seed=3, **options)
    for item in ITEMS:
        share = {"easy": 8, "middle": 4, "hard": 0}[item.difficulty]
        sampler.update(rollouts(item.problem.id, item.difficulty, share, 8))
    return sampler


def drawn(sampler, steps=200):
    found = collections.Counter()
    for step in range(steps):
        found.update(item.difficulty for item in sampler.draw(3, step))
    return found


def test_the_frontier_mode_draws_what_is_sometimes_solved():
    counts = drawn(trained(explore=0.0))
    assert counts["middle"] > 3 * max(counts["easy"], counts["hard"])


def test_the_hard_mode_draws_what_is_never_solved_and_the_uniform_mode_everything():
    assert drawn(trained(mode="hard", explore=0.0))["hard"] > 3 * drawn(trained(mode="hard", explore=0.0))["easy"]
    even = drawn(trained(mode="uniform"))
    assert max(even.values()) < 1.4 * min(even.values())


def test_draws_are_different_items_and_leave_out_what_was_excluded():
    sampler = Frontier(ITEMS, seed=1)
    names = [item.problem.id for item in sampler.draw(20, 0, exclude=["p0", "p1"])]
    assert len(set(names)) == 20 and not {"p0", "p1"} & set(names)


def test_a_resumed_sampler_draws_what_it_would_have_drawn():
    first, second = trained(), Frontier(ITEMS, seed=3)
    second.load(json.loads(json.dumps(first.state())))
    assert [i.problem.id for i in first.draw(9, 7)] == [i.problem.id for i in second.draw(9, 7)]


def test_an_item_solved_by_whole_groups_is_retired_until_nothing_is_left():
    sampler = Frontier(ITEMS[:2], seed=0, retire=2)
    for _ in range(2):
        sampler.update(rollouts("p0", "easy", 4, 4))
    assert [item.problem.id for item in sampler.draw(5, 0)] == ["p1"]


def test_the_fresh_mode_asks_every_item_once_with_a_verdict_or_without_and_after_a_resume():
    sampler, asked = Frontier(ITEMS, seed=4, mode="fresh"), []
    for step in range(100):
        items = sampler.draw(7, step)
        if not items:
            break
        asked += [item.problem.id for item in items]
        for item in items:
            found = rollouts(item.problem.id, item.difficulty, 1, 2)
            sampler.update([dataclasses.replace(rollout, reward=None) for rollout in found] if step % 2 else found)
        state, sampler = json.loads(json.dumps(sampler.state())), Frontier(ITEMS, seed=4, mode="fresh")
        sampler.load(state)
    assert len(asked) == len(set(asked)) == len(ITEMS)


def test_rollouts_without_a_verdict_tell_nothing():
    sampler = Frontier(ITEMS, seed=0)
    rate = sampler.rate(ITEMS[0])
    sampler.update([dataclasses.replace(rollout, reward=None) for rollout in rollouts("p0", "easy", 0, 8)])
    assert sampler.rate(ITEMS[0]) == rate


def test_options_out_of_range_are_refused():
    with pytest.raises(ConfigError, match="no items"):
        Frontier([], seed=0)
    with pytest.raises(ConfigError, match="explore"):
        Frontier(ITEMS, seed=0, explore=2.0)
