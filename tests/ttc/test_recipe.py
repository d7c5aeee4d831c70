from __future__ import annotations

import argparse
import pathlib
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from ttc.cli.options import add_options, add_recipe_option, option, read_options
from ttc.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Options:
    strategy: tuple[str, ...] = option(("direct",), "which")
    settings: Mapping[str, object] = option({}, "parameters", name="set")
    max_tokens: int | None = option(None, "cap")
    temperature: float | None = option(None, "0 is greedy")
    json: bool = option(False, "one line")


def read(*arguments: str) -> Options:
    parser = argparse.ArgumentParser()
    add_recipe_option(parser)
    add_options(parser, Options)
    return read_options(Options, parser.parse_args(arguments))


def recipe(tmp_path: pathlib.Path, text: str) -> str:
    file = tmp_path / "recipe.toml"
    file.write_text(text)
    return str(file)


def test_keys_are_options_and_the_command_line_comes_after(tmp_path: pathlib.Path) -> None:
    path = recipe(
        tmp_path,
        'strategy = ["tree", "direct"]\nmax_tokens = 5\ntemperature = -0.5\njson = true\n'
        '[set]\nn = 4\nflag = true\nengine = { device = "cuda", shape = [1, 2] }\n',
    )
    options = read("--config", path, "--max-tokens", "7", "--strategy", "auto", "--set", "n=5")
    assert options.strategy == ("tree", "direct", "auto")
    assert options.settings == {"n": "5", "flag": "true", "engine.device": "cuda", "engine.shape": "1,2"}
    assert (options.max_tokens, options.temperature, options.json) == (7, -0.5, True)


def test_without_a_recipe_the_defaults_of_the_schema_hold() -> None:
    assert read("--json") == Options(json=True)
    assert read("--strategy", "a", "--strategy", "b").strategy == ("a", "b")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_token = 5", "unknown key 'max_token'; did you mean 'max-tokens'"),
        ("config = 'other.toml'", "unknown key 'config'"),
        ("json = 1", "json must be true or false, got 1"),
        ("max_tokens = 'many'", "max_tokens must be int | None, got 'many'"),
        ("json = = 1", "line 1"),
    ],
)
def test_a_bad_recipe_is_named(tmp_path: pathlib.Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read("--config", recipe(tmp_path, text))
