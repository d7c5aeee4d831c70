from __future__ import annotations

import argparse
import pathlib

import pytest

from ttc.cli.recipe import add_recipe_option, recipe_arguments
from ttc.errors import ConfigError


@pytest.fixture
def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    add_recipe_option(parser)
    parser.add_argument("--strategy", action="append")
    parser.add_argument("--set", action="append")
    parser.add_argument("--max-tokens", type=int)
    parser.add_argument("--temperature", type=float)
    parser.add_argument("--json", action="store_true")
    return parser


def recipe(tmp_path: pathlib.Path, text: str) -> str:
    file = tmp_path / "recipe.toml"
    file.write_text(text)
    return str(file)


def test_keys_become_options_behind_the_command(tmp_path: pathlib.Path, parser: argparse.ArgumentParser) -> None:
    path = recipe(
        tmp_path,
        'strategy = ["tree", "direct"]\nmax_tokens = 5\ntemperature = -0.5\njson = true\n'
        '[set]\nn = 4\nflag = true\nengine = { device = "cuda", shape = [1, 2] }\n',
    )
    arguments = recipe_arguments(["eval", "--config", path, "--max-tokens", "7"], parser)
    assert arguments[0] == "eval"
    args = parser.parse_args(arguments[1:])
    assert args.strategy == ["tree", "direct"]
    assert args.set == ["n=4", "flag=true", "engine.device=cuda", "engine.shape=1,2"]
    assert (args.max_tokens, args.temperature, args.json) == (7, -0.5, True)


def test_without_a_recipe_nothing_changes(parser: argparse.ArgumentParser) -> None:
    assert recipe_arguments(["eval", "--json"], parser) == ["eval", "--json"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_token = 5", "unknown key 'max_token'; did you mean 'max-tokens'"),
        ("config = 'other.toml'", "unknown key 'config'"),
        ("json = 1", "json must be true or false, got 1"),
        ("json = = 1", "line 1"),
    ],
)
def test_a_bad_recipe_is_named(
    tmp_path: pathlib.Path, parser: argparse.ArgumentParser, text: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        recipe_arguments(["eval", "--config", recipe(tmp_path, text)], parser)


def test_a_file_that_a_command_reads_itself_is_no_recipe(tmp_path: pathlib.Path) -> None:
    own = argparse.ArgumentParser()
    own.add_argument("--config")
    given = ["serve", "--config", recipe(tmp_path, "[models.m]\nengine = 'simulated'\n")]
    assert recipe_arguments(given, own) == given
