"""Every mechanism of every recipe acts, and an option that does nothing is found."""

import dataclasses

import pytest

from benchmarks.mechanisms import Workshop, rows_of, shrunk
from benchmarks.recipes import read
from train.recipe.recipe import bind_stage, packaged
from train.replay.mechanisms import mechanisms
from ttc.errors import ConfigError

UPDATES = 2
"""Measured updates of each stage; the table in benchmarks has three."""
OTHERS = {
    "calculation": ["async-agentic"],
    "cipher": ["cipher-grpo", "math-shepherd"],
    "arithmetic": ["arithmetic-grpo"],
}
OPEN = {("dapo", "ppo: clip-higher")}
"""Found inert and not mended yet: on policies this small no token's ratio ends between both bounds."""
TOY = [name for name in packaged() if name not in {"nano", *(one for names in OTHERS.values() for one in names)}]


@pytest.mark.slow  # minutes of a core
@pytest.mark.parametrize("names", [*OTHERS.values(), TOY], ids=[*OTHERS, "toy"])
def test_taking_any_mechanism_of_a_recipe_away_changes_the_update(names, tmp_path):
    workshop = Workshop(tmp_path)
    rows = [row for name in names for row in rows_of(shrunk(read(name)), workshop, UPDATES)]
    assert {row.recipe for row in rows} == set(names)
    assert {(row.recipe, row.mechanism) for row in rows if not row.acts} <= OPEN


@pytest.mark.slow
@pytest.mark.parametrize(
    ("planted", "inert"),
    [
        ({"minibatches": 1, "loss": "ppo:clip_low=0.2,clip_high=0.28"}, {"ppo: clip", "ppo: clip-higher"}),
        ({"loss": "ppo:dual_clip=50"}, {"ppo: dual clip"}),
        ({"kl_weight": 1e-9}, {"kl_weight"}),
        ({"shaping": ["repetition:weight=0,n=4"]}, {"reward repetition"}),
        ({"shaping": ["length:weight=0.1,start=900,warmup=10"]}, {"reward length"}),
        ({"retire": 50}, {"retire"}),
    ],
)
def test_a_planted_option_that_does_nothing_is_found(planted, inert, workshop):
    recipe = shrunk(read("cipher-grpo"))
    step = recipe.steps[1]
    changed = bind_stage({**step.fields, **planted, "kind": step.kind}, "planted")
    name = "planted " + " ".join(sorted(inert)).replace(":", "")
    rows = rows_of(dataclasses.replace(recipe, name=name, steps=(recipe.steps[0], changed)), workshop, UPDATES)
    assert inert <= {row.mechanism for row in rows if not row.acts}


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    return Workshop(tmp_path_factory.mktemp("workshop"))


def test_a_field_that_nobody_can_take_away_is_refused_rather_than_passed_over():
    with pytest.raises(ConfigError, match=r"grpo\.novelty: nobody has said how it is taken away"):
        mechanisms("grpo", {"novelty": 3})
    with pytest.raises(ConfigError, match=r"loss 'mine\.py:loss'"):
        mechanisms("grpo", {"loss": "mine.py:loss"})


def test_sizes_of_a_run_are_no_mechanisms_and_defaults_are():
    names = [one.name for one in mechanisms("grpo", {"task": "x", "held_out": "y", "steps": 3, "lr": 1.0})]
    assert names == ["ppo: clip", "group: scale", "group: spread", "normaliser token", "sampler"]
