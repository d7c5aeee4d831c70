"""A recipe is a command line in a file: `ttc eval --config recipe.toml`.

    strategy = ["tree", "majority"]         is  --strategy tree --strategy majority
    n = 16                                      --n 16
    [set]
    beam_width = 4                              --set beam_width=4
    engine = { device = "cuda" }                --set engine.device=cuda

What is on the command line as well comes after the recipe: it replaces single options and adds to repeatable ones.
The parser of the command checks both alike; a key that is none of its options is refused with the nearest.

Left out: switching a flag off that a recipe switched on.
"""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from ttc.config.recipes import load_toml
from ttc.config.values import nearest
from ttc.errors import ConfigError

__all__ = ["add_recipe_option", "recipe_arguments"]

OPTION, DEST = "--config", "recipe"


def add_recipe_option(parser: argparse.ArgumentParser) -> None:
    """Add --config to the parser of a command."""
    parser.add_argument(
        OPTION, dest=DEST, metavar="FILE", help="recipe: a TOML file whose keys are options of this command"
    )


def recipe_arguments(arguments: Sequence[str], parser: argparse.ArgumentParser) -> list[str]:
    """Return `arguments` with the options of the recipe they name put behind the command; unchanged without one.

    Raises:
        ConfigError: the file cannot be read, or a key is no option of the command.
    """
    options = parser._option_string_actions
    if OPTION not in options or options[OPTION].dest != DEST:  # a file of another kind, which the command reads itself
        return list(arguments)
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    finder.add_argument(OPTION, nargs="?")
    path = finder.parse_known_args(list(arguments))[0].config
    if path is None:
        return list(arguments)
    flags = {name: action.nargs == 0 for name, action in options.items() if name.startswith("--")}
    for name in (OPTION, "--help"):
        flags.pop(name, None)
    extra = [text for key, value in load_toml(pathlib.Path(path)).items() for text in _option(key, value, flags, path)]
    command = next(i for i, item in enumerate(arguments) if not item.startswith("-"))
    return [*arguments[: command + 1], *extra, *arguments[command + 1 :]]


def _option(key: str, value: Any, flags: Mapping[str, bool], path: str) -> list[str]:
    name = "--" + key.replace("_", "-")
    if name not in flags:
        known = [flag.removeprefix("--") for flag in flags]
        raise ConfigError(f"{path}: unknown key {key!r}{nearest(key, known)} (known: {', '.join(sorted(known))})")
    if flags[name]:
        if not isinstance(value, bool):
            raise ConfigError(f"{path}: {key} must be true or false, got {value!r}")
        return [name] if value else []
    if isinstance(value, Mapping):
        return [f"{name}={pair}" for pair in _pairs(value)]
    return [f"{name}={_text(item)}" for item in (value if isinstance(value, list) else [value])]


def _pairs(table: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Flatten a table to dotted `key=value` texts."""
    found: list[str] = []
    for key, value in table.items():
        nested = isinstance(value, Mapping)
        found += _pairs(value, f"{prefix}{key}.") if nested else [f"{prefix}{key}={_text(value)}"]
    return found


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(_text(item) for item in value) if isinstance(value, list) else str(value)
