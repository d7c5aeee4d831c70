"""The options of a command: a dataclass is their schema, and the command line, help and recipes are derived from it.

    @dataclass(frozen=True, kw_only=True)
    class EvalOptions(SamplingOptions, EngineOptions):
        limit: str = option("100", "problems, or all (default: 100)", metavar="N")

    add_options(parser, EvalOptions)                    --limit N, and those of the bases
    read_options(EvalOptions, args)                     EvalOptions(limit="100", ...), once and frozen
    command_line(EvalOptions(limit="20"))               ["--limit", "20"], the way back

A recipe is a TOML file whose keys are options: `ttc eval --config recipe.toml`.

    strategy = ["tree", "majority"]         is  --strategy tree --strategy majority
    n = 16                                      --n 16
    [set]
    beam_width = 4                              --set beam_width=4
    engine = { device = "cuda" }                --set engine.device=cuda

The command line replaces single options of a recipe and adds to repeatable ones. Left out: switching off a flag that a
recipe switched on.
"""

from __future__ import annotations

import argparse
import dataclasses
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from ttc.config.recipes import load_toml, overrides
from ttc.config.values import nearest, parse
from ttc.errors import ConfigError

T = TypeVar("T")
_RECIPE = "recipe"


def option(
    default: Any, text: str, *, metavar: str | None = None, group: str | None = None, name: str | None = None
) -> Any:
    """Return a field of an options class with its help `text`, to which the default is added.

    `name` is what a user writes, if it differs from the field's name.

    A flag is a bool, a repeatable option a tuple, and repeatable KEY=VALUE pairs are a Mapping.
    """
    about = {"help": text, "metavar": metavar, "group": group, "name": name}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=dict, metadata=about)
    return dataclasses.field(default=default, metadata=about)


def add_options(parser: argparse.ArgumentParser, kind: type) -> None:
    """Put the options of an options class on a parser, in groups; fields without `option` are the command's own."""
    hints = typing.get_type_hints(kind)
    groups: dict[str, Any] = {}
    for name, field in _options(kind).items():
        title = field.metadata["group"]
        if title is not None and title not in groups:
            groups[title] = parser.add_argument_group(title)
        target = parser if title is None else groups[title]
        about = {"dest": field.name, "help": field.metadata["help"] + _default_text(field.default)}
        if hints[field.name] is bool:
            target.add_argument(f"--{name}", action="store_true", **about)
            continue
        action = "append" if _is_repeatable(hints[field.name]) else "store"
        target.add_argument(f"--{name}", action=action, metavar=field.metadata["metavar"], **about)


def _default_text(default: Any) -> str:
    """The default of an option, as text, where it has one."""
    if isinstance(default, bool) or default in (None, (), dataclasses.MISSING):
        return ""
    return f" (default: {', '.join(default) if isinstance(default, tuple) else default})"


def add_recipe_option(parser: argparse.ArgumentParser) -> None:
    """Add --config to the parser of a command."""
    parser.add_argument(
        "--config", dest=_RECIPE, metavar="FILE", help="a TOML file whose keys are options of this command"
    )


def read_options(kind: type[T], args: argparse.Namespace) -> T:
    """Return the options from the command line and the recipe it names, with defaults for all others.

    Raises:
        ConfigError: the recipe cannot be read, one of its keys is no option, or a value does not fit.
    """
    hints = typing.get_type_hints(kind)
    recipe = getattr(args, _RECIPE, None)
    values = {} if recipe is None else _recipe_values(kind, recipe, hints)
    names = {field.name: name for name, field in _options(kind).items()}
    for field in dataclasses.fields(typing.cast("Any", kind)):
        value = getattr(args, field.name, None)
        if value is None or value is False:
            continue
        if typing.get_origin(hints[field.name]) is tuple:
            value = (*values.get(field.name, ()), *value)
        elif _is_repeatable(hints[field.name]):
            value = {**values.get(field.name, {}), **overrides(value, f"--{names[field.name]}")}
        elif field.name in names:
            value = _read(f"--{names[field.name]}", value, hints[field.name])
        values[field.name] = value
    return kind(**values)


def command_line(options: Any) -> list[str]:
    """Return the arguments that `read_options` reads as `options`; defaults are left out."""
    arguments: list[str] = []
    for name, field in _options(type(options)).items():
        value = getattr(options, field.name)
        usual = field.default if field.default is not dataclasses.MISSING else {}
        if value == usual:
            continue
        if isinstance(value, bool):
            arguments.append(f"--{name}")
        elif isinstance(value, Mapping):
            arguments += [word for key, item in value.items() for word in (f"--{name}", f"{key}={_text(item)}")]
        elif isinstance(value, tuple):
            arguments += [word for item in value for word in (f"--{name}", str(item))]
        else:
            arguments += [f"--{name}", str(value)]
    return arguments


def _options(kind: type) -> dict[str, dataclasses.Field[Any]]:
    """The fields that are options, by what a user writes."""
    fields = dataclasses.fields(typing.cast("Any", kind))
    return {field.metadata["name"] or field.name.replace("_", "-"): field for field in fields if field.metadata}


def _is_repeatable(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (tuple, Mapping)


def _read(name: str, text: str, annotation: Any) -> Any:
    """Read an option; a text option is taken literally: `--baseline none` is a value."""
    return text if str in (annotation, *typing.get_args(annotation)) else parse(name, text, annotation)


def _recipe_values(kind: type, path: str, hints: Mapping[str, Any]) -> dict[str, Any]:
    options = _options(kind)
    values: dict[str, Any] = {}
    for key, value in load_toml(Path(path), "--config").items():
        field = options.get(key.replace("_", "-"))
        if field is None:
            names = ", ".join(sorted(options))
            raise ConfigError(f"{path}: unknown key {key!r}{nearest(key, list(options))} (known: {names})")
        annotation = hints[field.name]
        if annotation is bool and not isinstance(value, bool):
            raise ConfigError(f"{path}: {key} must be true or false, got {value!r}")
        if typing.get_origin(annotation) is Mapping:
            values[field.name] = _pairs(value) if isinstance(value, Mapping) else overrides(_texts(value))
        elif typing.get_origin(annotation) is tuple:
            values[field.name] = tuple(_texts(value))
        else:
            values[field.name] = _read(f"{path}: {key}", _text(value), annotation)
    return values


def _pairs(table: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Flatten a table to dotted keys, hyphens as underscores."""
    pairs: dict[str, str] = {}
    for key, value in table.items():
        name = prefix + key.replace("-", "_")
        pairs |= _pairs(value, f"{name}.") if isinstance(value, Mapping) else {name: _text(value)}
    return pairs


def _texts(value: Any) -> list[str]:
    return [_text(item) for item in (value if isinstance(value, list) else [value])]


def _text(value: Any) -> str:
    """A value of a recipe as written on the command line."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(_text(item) for item in value) if isinstance(value, list) else str(value)
