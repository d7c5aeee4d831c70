"""Recipes: a TOML file plus `key=value` overrides become one frozen, checked dataclass.

    [thinking]                      build(Recipe, merge(load_toml(path), overrides(["n=32"])))
    max_tokens = 256

Keys are the fields of the dataclass; a nested dataclass is a TOML table, which dotted overrides reach into
(`thinking.max_tokens=64`). An unknown key is refused with the nearest known one. Reading a recipe does nothing else:
no network, no model.

Left out: includes, environment variables and interpolation. One file says what a run is.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from ttc.errors import ConfigError

__all__ = [
    "differences",
    "dump",
    "load_toml",
    "merge",
]


def load_toml(path: pathlib.Path) -> dict[str, Any]:
    """Return the tables of a TOML file.

    Raises:
        ConfigError: the file is missing, unreadable or not TOML; names the file and the line.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"recipe {str(path)!r} does not exist") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as exc:
        raise ConfigError(f"recipe {str(path)!r} cannot be read: {exc}") from exc


def merge(values: Mapping[str, Any], dotted: Mapping[str, object]) -> dict[str, Any]:
    """Return `values` with dotted keys laid over it: {"a.b": 1} sets b in table a. Neither argument is changed."""
    merged = {key: merge(value, {}) if isinstance(value, Mapping) else value for key, value in values.items()}
    for key, value in dotted.items():
        head, _, rest = key.partition(".")
        if not rest:
            merged[head] = value
            continue
        table = merged.get(head, {})
        if not isinstance(table, Mapping):
            raise ConfigError(f"{key!r}: {head!r} is a value, not a table")
        merged[head] = merge(table, {rest: value})
    return merged


def differences(there: Any, here: Any, name: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield (dotted name, value there, value here) of every leaf in which two pieces of JSON data differ."""
    if isinstance(there, dict) and isinstance(here, dict):
        for key in sorted(there.keys() | here.keys()):
            yield from differences(there.get(key), here.get(key), f"{name}.{key}" if name else key)
    elif isinstance(there, list) and isinstance(here, list) and len(there) == len(here):
        for index, (first, second) in enumerate(zip(there, here, strict=True)):
            yield from differences(first, second, f"{name}[{index}]")
    elif there != here:
        yield name, json.dumps(there), json.dumps(here)


def dump(value: Any) -> Any:
    """Return `value` as plain JSON data: dataclasses become objects, tuples lists, paths text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: dump(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): dump(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [dump(item) for item in value]
    return str(value) if isinstance(value, pathlib.PurePath) else value
