"""Shared fields: a factory that takes them as one value is called, bound and listed as if it had written them out."""

from dataclasses import dataclass

import pytest

from train.base.fields import Fields, flattened
from train.recipe.recipe import bind_stage
from train.registries import STAGES
from ttc.config.signatures import bind, describe
from ttc.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Size(Fields):
    """How large.

    Args:
        width: across.
        height: upwards, which
            may be nothing.
    """

    width: int
    height: float | None = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Flat(Size):
    """Hardly upwards."""

    height: float | None = 0.5


@flattened
def box(*, name: str, size: Flat, lid: bool = False) -> tuple[str, Flat, bool]:
    """Make a box.

    Args:
        name: what stands on it.
        width: across the lid.
        lid: whether there is one.
    """
    return name, size, lid


def test_fields_stand_in_the_signature_with_their_defaults_and_their_words() -> None:
    found = {parameter.name: parameter for parameter in describe("box", "box", box).parameters}
    assert list(found) == ["name", "width", "height", "lid"]
    assert found["width"].required and found["width"].type == "int" and found["width"].doc == "across the lid."
    assert found["height"].default == 0.5 and found["height"].type == "float | None"
    assert found["height"].doc == "upwards, which may be nothing."


def test_text_is_parsed_by_the_type_of_a_shared_field_and_comes_as_one_value() -> None:
    given = bind(box, {"name": "a", "width": "3", "height": "none"}, supply={})
    assert box(**given) == ("a", Flat(width=3, height=None), False)
    assert box(name="a", width=3, lid=True) == ("a", Flat(width=3), True)
    assert Flat(width=3).given() == {"width": 3, "height": 0.5}


def test_a_shared_field_is_missed_and_misspelt_by_its_own_name() -> None:
    with pytest.raises(ConfigError, match="box needs 'width'"):
        bind(box, {"name": "a"}, supply={})
    with pytest.raises(ConfigError, match="did you mean 'width'"):
        bind(box, {"name": "a", "widht": 3}, supply={})
    with pytest.raises(TypeError, match="depth"):
        box(name="a", width=3, depth=1)


def test_two_fields_of_one_name_are_refused_when_the_module_is_read() -> None:
    def twice(*, width: str, size: Size) -> None: ...

    with pytest.raises(ValueError, match="width"):
        flattened(twice)


@pytest.mark.parametrize(
    ("kind", "defaults"),
    [
        ("sft", {"eval_every": 50, "save_every": 100, "decay": True, "rows": 32}),
        ("preference", {"eval_every": 20, "save_every": 50, "decay": False}),
        ("reward_model", {"decay": True, "held_out_share": 0.1}),
        ("grpo", {"prompts": 16, "n": 8, "sampler": "frontier", "kl_weight": 0.0, "mask_truncated": False}),
        ("ppo", {"prompts": 128, "n": 1, "sampler": "uniform", "kl_weight": 0.05}),
        ("agent", {"n": 8, "asynchronous": True, "normaliser": "constant"}),
        ("on_policy", {"n": 4, "sampler": "uniform", "mask_truncated": True, "decay": False}),
    ],
)
def test_kinds_keep_their_own_defaults(kind: str, defaults: dict[str, object]) -> None:
    found = {parameter.name: parameter.default for parameter in STAGES.describe(kind).parameters}
    assert defaults.items() <= found.items()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": 0}, "rows"),
        ({"lr": 0.0}, "lr"),
        ({"held_out_share": 1}, "held_out_share"),
        ({"health": {"truncaton": {}}}, "truncation"),
    ],
)
def test_a_course_that_cannot_be_is_refused_when_its_stage_is_bound(change: dict[str, object], message: str) -> None:
    table = {"kind": "sft", "data": "x.jsonl", "steps": 1, "lr": 1e-3, **change}
    with pytest.raises(ConfigError, match=message):
        bind_stage(table, "recipe, stage 1")
