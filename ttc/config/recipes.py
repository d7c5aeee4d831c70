"""The notation of a run and its parts: a part in one text, a run as a TOML file plus `key=value` overrides.

    split_specs("direct:temperature=0,tree:n=8,policy=beam")       ["direct:temperature=0", "tree:n=8,policy=beam"]
    parse_spec("tree:n=8,policy=beam")                             ("tree", {"n": "8", "policy": "beam"})
    split_model("prm:path/to/model")                               ("prm", "path/to/model")
    label_of("direct", {"temperature": "0"})                       "direct-greedy"

A parameter's value extends up to the next `KEY=`, so it may hold addresses, paths, colons and commas. A recipe becomes
one frozen, checked dataclass:

    [thinking]                      build(Recipe, merge(load_toml(path), overrides(["n=32"])))
    max_tokens = 256

Keys are the fields of the dataclass; a nested dataclass is a TOML table, which dotted overrides reach into
(`thinking.max_tokens=64`). An unknown key is refused with the nearest known one. Reading a recipe has no other effects:
no network, no model.

Left out: quotes (a value that itself holds `,KEY=` is set with `--set` or in a file); includes, environment variables
and interpolation, so that one file describes a run completely.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from ttc.config.values import KEY, nearest
from ttc.errors import ConfigError

T = TypeVar("T")


def split_model(spec: str) -> tuple[str, str | None]:
    """Split `prm:path/to/model`; in `file.py:function` and `file.py:function:model` the function is the name."""
    head, separator, rest = spec.partition(":")
    if head.endswith(".py") and rest:
        function, separator, rest = rest.partition(":")
        head = f"{head}:{function}"
    return head, rest if separator else None


def user_file(name: str) -> pathlib.Path | None:
    """Return the file of a part that was named `path/to/file.py:function`; None for one that is registered by name."""
    path, separator, _ = name.rpartition(":")
    return pathlib.Path(path).expanduser() if separator and path.endswith(".py") else None


def split_specs(text: str) -> list[str]:
    """Split a comma list of strategies, leaving the commas between the parameters of one strategy."""
    parts: list[str] = []
    for part in text.split(","):
        if parts and KEY.match(part):
            parts[-1] += f",{part}"
        else:
            parts.append(part.strip())
    return parts


def parse_spec(text: str) -> tuple[str, dict[str, object]]:
    """Return the registered name in a spec, and the parameters written after it, still as text."""
    name, *rest = re.split(f":(?={KEY.pattern})", text, maxsplit=1)
    pairs = re.split(f",(?={KEY.pattern})", rest[0]) if rest else []
    return _plain(name), dict(overrides(pairs))


def overrides(pairs: Sequence[str], option: str = "--set") -> dict[str, str]:
    """Split the `key=value` texts of an option; the last of equal keys wins.

    Raises:
        ConfigError: a text without `=` or with an empty key.
    """
    values: dict[str, str] = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key.strip():
            raise ConfigError(f"{option} wants key=value, got {pair!r}")
        values[key.strip().replace("-", "_")] = value.strip()
    return values


def section(settings: Mapping[str, T], part: str) -> dict[str, T]:
    """Return the settings of one part: `beam_width` of `tree.beam_width`."""
    prefix = f"{part}."
    return {key.removeprefix(prefix): value for key, value in settings.items() if key.startswith(prefix)}


def sections(settings: Mapping[str, T], parts: Sequence[str]) -> dict[str, dict[str, T]]:
    """Split settings by part; settings of no part are under "", if that is one of `parts`.

    Raises:
        ConfigError: a setting of another part, with the nearest one.
    """
    tables: dict[str, dict[str, T]] = {part: {} for part in parts}
    for key, value in settings.items():
        part, dot, own = key.partition(".")
        if not dot and "" in tables:
            part, own = "", key
        if part not in tables:
            names = [name for name in parts if name]
            raise ConfigError(f"--set {key}: no part {part!r}{nearest(part, names)} (known: {', '.join(names)})")
        tables[part][own] = value
    return tables


def _plain(name: str) -> str:
    """A registered name with its hyphens as underscores; a file's path as it is."""
    return name if "." in name or "/" in name else name.replace("-", "_")


def label_of(name: str, inline: Mapping[str, object]) -> str:
    """Return a short name for a strategy with its parameters: `majority-n64`, `direct-greedy`."""
    base = name.rpartition(":")[2]
    rest = sorted((key, value) for key, value in inline.items() if key != "temperature")
    drawn_at = [_temperature(str(inline["temperature"]))] if "temperature" in inline else []
    return "-".join([base, *drawn_at, *(f"{key}{value}" for key, value in rest)])


def _temperature(text: str) -> str:
    try:
        return "greedy" if float(text) == 0 else f"t{text}"
    except ValueError:  # refused by name when it is bound
        return f"t{text}"


def load_toml(path: pathlib.Path, what: str = "file") -> dict[str, Any]:
    """Return the tables of a TOML file; `what` is its name in messages.

    Raises:
        ConfigError: the file is missing, unreadable or not TOML; names the file and the line.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise ConfigError(f"{what} {str(path)!r} does not exist") from None
    except IsADirectoryError:
        raise ConfigError(f"{what} {str(path)!r} is a folder; name a TOML file") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as exc:
        raise ConfigError(f"{path} cannot be read: {exc}") from exc


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
    """Yield (dotted name, value there, value here) for every leaf in which two pieces of JSON data differ."""
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
