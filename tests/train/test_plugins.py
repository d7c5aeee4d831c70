"""Losses, advantages, rewards and stages of the user's own: held to their shape, and told as theirs when they fail."""

import re

import pytest

from tests.train.tiny_recipe import GRPO, PRETRAIN, write
from train.recipe.recipe import read_recipe
from ttc.cli.cli import main
from ttc.errors import ConfigError

MISTAKES = """
def number():
    return 3

def one_argument():
    return lambda logprobs: logprobs

def raises():
    def loss(logprobs, old, advantages, mask):
        return logprobs[:, 10**6]
    return loss

def bare():
    return lambda logprobs, old, advantages, mask: logprobs

def averaged():
    from train.update.terms import PerToken
    return lambda logprobs, old, advantages, mask: PerToken((logprobs * advantages).mean(), mask)

def of_rows():
    return lambda outcome: outcome.rewards

def lost():
    return lambda outcome: None

def short():
    return lambda group, step: []

def spread():
    return lambda group, step: [float(place) for place in range(len(group))]

def no_run():
    class Mine:
        def check(self, has_model):
            pass
    return Mine()
"""


@pytest.fixture
def mine(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(MISTAKES)
    return file


@pytest.mark.parametrize(
    ("field", "function", "message"),
    [
        ("loss = '{}'", "number", "loss {} made a value of type int, not a Loss: return a function of (Tensor, Tensor"),
        ("loss = '{}'", "one_argument", "loss {} made a value of type function, not a Loss: return a function of (Ten"),
        ("advantage = '{}'", "number", "advantage {} made a value of type int, not a Advantage: return a func"),
        ("shaping = ['{}:weight=1']", "one_argument", "shaping {} made a value of type function, not a Shaping"),
        ("strategy = '{}'", "number", "strategy {} is not an async function"),
    ],
)
def test_a_part_of_another_shape_is_refused_before_anything_is_loaded(tmp_path, mine, field, function, message):
    name = f"{mine}:{function}"
    recipe = write(tmp_path, PRETRAIN + GRPO + field.format(name) + "\n")
    with pytest.raises(ConfigError, match=re.escape(message.format(name))):
        read_recipe(recipe).steps[1].stage.check(True)


def test_a_stage_without_a_method_is_refused_by_the_method(tmp_path, mine):
    recipe = write(tmp_path, f"[[stage]]\nkind = '{mine}:no_run'\n")
    with pytest.raises(ConfigError, match=r"not a Stage: it lacks def run\(self, setting\)"):
        read_recipe(recipe)


@pytest.mark.parametrize(
    ("field", "function", "fault"),
    [
        ("loss = '{}'", "raises", "loss {} raised IndexError: "),
        ("loss = '{}'", "bare", "loss {} returned Tensor; return a PerToken"),
        ("loss = '{}'", "averaged", "loss {} returned a tensor of shape (); return one of ("),
        ("advantage = '{}'", "lost", "advantage {} returned None; return a Tensor"),
        ("advantage = '{}'", "of_rows", "advantage {} returned a tensor of shape ("),
        ("shaping = ['{}:weight=1']", "short", "shaping {} returned 0 values for 2; return one for each, in order"),
    ],
)
def test_a_part_that_fails_is_told_as_the_users_own(tmp_path, mine, capsys, field, function, fault):
    name = f"{mine}:{function}"
    signal = "" if "shaping" in field else f"shaping = ['{mine}:spread:weight=1']\n"
    recipe = write(tmp_path, PRETRAIN + GRPO + signal + field.format(name) + "\n")
    assert main(["train", "run", recipe, "--seed", "1", "--out", str(tmp_path / "run")]) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith(f"ttc: error: {fault.format(name)}")
    if function == "raises":
        assert told.endswith("(mine.py, line 10)")


def test_the_values_of_a_strategy_are_refused_when_the_recipe_is_read(tmp_path):
    recipe = write(tmp_path, PRETRAIN + GRPO + "strategy = 'first_finished:n=2'\n")
    with pytest.raises(ConfigError, match="first_finished: m must be at most n=2, got 3: lower it or raise n"):
        read_recipe(recipe)
