"""Every mechanism of every recipe acts, and an option that does nothing is found."""

import dataclasses

import pytest

from benchmarks.mechanism_fields import mechanisms
from benchmarks.mechanisms import Workshop, rows_of, shrunk
from benchmarks.recipes import read
from train.recipe.recipe import bind_stage, packaged
from ttc.errors import ConfigError

UPDATES = 3
"""Measured updates of each stage, as in the table of benchmarks."""
QUICK = ["cipher-grpo"]
SLOW = {
    "calculation": ["async-agentic"],
    "cipher": ["ttrl", "tree-rl", "math-shepherd"],
    "arithmetic": ["arithmetic-grpo"],
}
TOY = [name for name in packaged() if name not in {"nano", *QUICK, *(one for names in SLOW.values() for one in names)}]


def check_that_all_act(names, workshop, updates=UPDATES):
    rows = [row for name in names for row in rows_of(shrunk(read(name)), workshop, updates)]
    assert {row.recipe for row in rows} == set(names)
    assert {(row.recipe, row.mechanism) for row in rows if not row.acts} == set()


@pytest.mark.long
def test_taking_any_mechanism_of_a_small_recipe_away_changes_the_update(workshop):
    check_that_all_act(QUICK, workshop, updates=2)


@pytest.mark.slow  # minutes of a core
@pytest.mark.parametrize("names", [*SLOW.values(), TOY], ids=[*SLOW, "toy"])
def test_taking_any_mechanism_of_a_recipe_away_changes_the_update(names, workshop):
    check_that_all_act(names, workshop)


@pytest.mark.long
@pytest.mark.parametrize(
    ("planted", "inert", "updates"),
    [
        (
            {
                "minibatches": 1,
                "loss": "ppo:clip_low=0.2,clip_high=0.28",
                "kl_weight": 1e-9,
                "shaping": ["repetition:weight=0,n=4", "length:weight=0.1,start=900,warmup=10"],
                "retire": 50,
            },
            {"ppo: clip", "ppo: clip-higher", "kl_weight", "reward repetition", "reward length", "retire"},
            1,
        ),
        (
            {"loss": "ppo:dual_clip=50", "reference_every": 900, "kl_weight": 0.5},
            {"ppo: dual clip", "reference_every"},
            2,  # the clip, which acts, may reach no token in one
        ),
    ],
    ids=["one step per batch", "bounds out of reach"],
)
def test_a_planted_option_that_does_nothing_is_found(planted, inert, updates, workshop):
    recipe = shrunk(read("cipher-grpo"))
    step = recipe.steps[1]
    changed = bind_stage({**step.fields, **planted, "kind": step.kind}, "planted")
    name = "planted " + " ".join(sorted(inert)).replace(":", "")
    rows = rows_of(dataclasses.replace(recipe, name=name, steps=(recipe.steps[0], changed)), workshop, updates)
    assert {row.mechanism for row in rows if not row.acts} == inert


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    return Workshop(tmp_path_factory.mktemp("workshop"))


def test_a_field_that_nobody_can_take_away_is_refused_rather_than_passed_over():
    with pytest.raises(ConfigError, match=r"grpo\.novelty: no removal of it is defined"):
        mechanisms("grpo", {"novelty": 3})
    with pytest.raises(ConfigError, match=r"loss 'mine\.py:loss'"):
        mechanisms("grpo", {"loss": "mine.py:loss"})


def test_sizes_of_a_run_are_no_mechanisms_and_defaults_are():
    names = [one.name for one in mechanisms("grpo", {"task": "x", "held_out": "y", "steps": 3, "lr": 1.0})]
    assert names == ["ppo: clip", "group: scale", "group: spread", "normaliser token", "sampler"]
