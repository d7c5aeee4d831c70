"""reasoning-gym as tasks: `reasoning-gym:NAME`, the exact prompt, and what is refused."""

from __future__ import annotations

import importlib.util

import pytest

from evals.experiment import check_golds
from evals.task import load_task
from evals.tasks.reasoning_gym import reasoning_gym
from ttc.config.signatures import bind
from ttc.core import Message
from ttc.errors import ConfigError, UnknownName
from ttc.verifiers.procedural.verifier import procedural

needs_gym = pytest.mark.skipif(importlib.util.find_spec("reasoning_gym") is None, reason="reasoning-gym is missing")
CHAIN_SUM = """\
State the final answer to the following arithmetic problem: 728 - 641 =

Put your final answer, and nothing else, between <answer> and </answer>."""


@needs_gym
def test_the_name_after_the_colon_is_the_task_and_its_prompt_is_fixed() -> None:
    factory = load_task("reasoning-gym:chain-sum")
    bound = bind(factory, {"config": '{"min_terms": 2, "max_terms": 2, "min_digits": 3, "max_digits": 3}'}, supply={})
    task = factory(**bound)
    items = task.items(5, 7)
    assert items[0].problem.messages == (Message("user", CHAIN_SUM),)
    assert (items[0].problem.id, items[0].problem.kind) == ("reasoning-gym-chain_sum-s7-0", "exact")
    assert items[0].target["answer"] == "87"
    assert (task.name, task.check.verifier) == ("reasoning-gym:chain_sum", "procedural")
    assert task.items(2, 7) == items[:2]
    assert task.items(2, 8) != items[:2]
    check_golds(items, procedural(), task)


def test_a_task_says_whether_it_takes_a_name() -> None:
    with pytest.raises(ConfigError, match="task reasoning-gym needs a name: reasoning-gym:NAME"):
        load_task("reasoning-gym")
    with pytest.raises(ConfigError, match="task gsm8k takes nothing after a colon, got 'x'"):
        load_task("gsm8k:x")
    with pytest.raises(UnknownName, match="did you mean 'reasoning_gym'"):
        load_task("reasoning-gum:x")


def test_refused_tasks_and_broken_configurations_are_named() -> None:
    with pytest.raises(ConfigError, match="'simple_integration' is refused: its scorer runs the answer as Python code"):
        reasoning_gym("simple-integration").items(1, 0)
    with pytest.raises(ConfigError, match="config is not JSON"):
        reasoning_gym("gcd", config="{")
    with pytest.raises(ConfigError, match="config must be a JSON object"):
        reasoning_gym("gcd", config="[]")


@needs_gym
def test_unknown_tasks_and_parameters_are_named() -> None:
    with pytest.raises(UnknownName, match="reasoning-gym task 'chain_sums'; did you mean 'chain_sum'"):
        reasoning_gym("chain_sums").items(1, 0)
    with pytest.raises(ConfigError, match=r"reasoning-gym task 'gcd': config: TypeError.*numbers"):
        reasoning_gym("gcd", config='{"numbers": 3}').items(1, 0)
