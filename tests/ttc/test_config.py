from __future__ import annotations

import pathlib
from dataclasses import dataclass, field

import pytest

from ttc.config.recipes import dump, load_toml, merge, overrides, parse_spec, split_specs, user_file
from ttc.config.values import build
from ttc.errors import ConfigError


@dataclass(frozen=True)
class Inner:
    max_tokens: int | None = None
    mode: str = "auto"


@dataclass(frozen=True)
class Outer:
    name: str
    n: int = 16
    inner: Inner = field(default_factory=Inner)


def test_a_recipe_with_overrides_becomes_a_frozen_value(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text('name = "a"\nn = 4\n[inner]\nmax_tokens = 10\nmode = "on"\n')
    values = merge(load_toml(path), overrides(["n=32", "inner.max-tokens=64", "n = 33"]))
    assert build(Outer, values) == Outer("a", 33, Inner(64, "on"))


def test_merging_changes_neither_argument() -> None:
    base = {"inner": {"mode": "on"}}
    assert merge(base, {"inner.mode": "off"}) == {"inner": {"mode": "off"}}
    assert base == {"inner": {"mode": "on"}}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"name": "a", "num": 3}, "unknown key 'num'; did you mean 'n"),
        ({"name": "a", "inner": {"max_token": 3}}, "unknown key 'inner.max_token'; did you mean 'max_tokens'"),
        ({"name": "a", "n": "many"}, "n must be int, got 'many'"),
        ({"name": "a", "inner": 3}, "inner cannot be set from text"),
        ({"n": 3}, "key 'name' is required"),
    ],
)
def test_a_bad_key_or_value_is_named(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(Outer, values)


@pytest.mark.parametrize("text", ["n", "=3", " =3"])
def test_an_override_without_key_or_value_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--set wants key=value"):
        overrides([text])


def test_a_dotted_override_of_a_plain_value_is_refused() -> None:
    with pytest.raises(ConfigError, match="'n' is a value, not a table"):
        merge({"n": 3}, {"n.x": 1})


def test_a_missing_or_broken_recipe_is_named(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.toml' does not exist"):
        load_toml(tmp_path / "absent.toml")
    (tmp_path / "broken.toml").write_text("n = = 3\n")
    with pytest.raises(ConfigError, match=r"broken\.toml.*line 1"):
        load_toml(tmp_path / "broken.toml")


def test_a_dumped_value_is_plain_data() -> None:
    value = Outer("a", 1, Inner(None, "on"))
    assert dump({"x": (value, pathlib.Path("a/b"))}) == {
        "x": [{"name": "a", "n": 1, "inner": {"max_tokens": None, "mode": "on"}}, "a/b"]
    }


@pytest.mark.parametrize(
    ("text", "name", "params"),
    [
        ("sglang:base_url=http://host:1/v1", "sglang", {"base_url": "http://host:1/v1"}),
        (
            "openai:base_url=http://a:1,http://b:2,attempts=3",
            "openai",
            {"base_url": "http://a:1,http://b:2", "attempts": "3"},
        ),
        ("tools:environment=shop.py:Shop,turns=4", "tools", {"environment": "shop.py:Shop", "turns": "4"}),
        ("mine.py:vote:n=8", "mine.py:vote", {"n": "8"}),
        ("best-of-n", "best_of_n", {}),
    ],
)
def test_the_value_in_a_spec_may_hold_colons_and_commas(text: str, name: str, params: dict[str, str]) -> None:
    assert parse_spec(text) == (name, params)


def test_a_comma_list_of_specs_is_split_between_strategies_only() -> None:
    text = "direct:temperature=0,tree:n=8,policy=particle:scheme=residual,mine.py:vote"
    assert split_specs(text) == ["direct:temperature=0", "tree:n=8,policy=particle:scheme=residual", "mine.py:vote"]


def test_a_part_is_a_users_file_only_where_it_names_one() -> None:
    assert user_file("mine/second.py:vote") == pathlib.Path("mine/second.py")
    assert user_file("majority") is None
    assert user_file("prm:some/folder") is None
