"""How a part is named in one text: `prm:path/to/model`, `majority:n=8`, `mine.py:vote:n=8`.

    split_specs("direct:temperature=0,tree:n=8,policy=beam")       ["direct:temperature=0", "tree:n=8,policy=beam"]
    parse_spec("tree:n=8,policy=beam")                             ("tree", {"n": "8", "policy": "beam"})
    split_model("prm:path/to/model")                               ("prm", "path/to/model")
    label_of("direct", {"temperature": "0"})                       "direct-greedy"

What stands behind the `=` of a parameter is its value up to the next `KEY=`, whatever signs it holds: addresses, paths,
colons and commas.

Left out: quotes. A value that itself holds `,KEY=` is set with `--set` or in a file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ttc.errors import ConfigError

__all__ = ["label_of", "overrides", "parse_spec", "split_model", "split_specs"]

_KEY = re.compile(r"\s*[A-Za-z_][\w.-]*\s*=")
"""How a parameter begins."""


def split_model(spec: str) -> tuple[str, str | None]:
    """Split `prm:path/to/model`; in `file.py:function` and `file.py:function:model` the function is the name."""
    head, separator, rest = spec.partition(":")
    if head.endswith(".py"):
        function, separator, rest = rest.partition(":")
        head = f"{head}:{function}"
    return head, rest if separator else None


def split_specs(text: str) -> list[str]:
    """Split a comma list of strategies, leaving the commas between the parameters of one strategy."""
    parts: list[str] = []
    for part in text.split(","):
        if parts and _KEY.match(part):
            parts[-1] += f",{part}"
        else:
            parts.append(part.strip())
    return parts


def parse_spec(text: str) -> tuple[str, dict[str, object]]:
    """Return the name in a spec, as it is registered, and the parameters written behind it, still as text."""
    name, *rest = re.split(f":(?={_KEY.pattern})", text, maxsplit=1)
    pairs = re.split(f",(?={_KEY.pattern})", rest[0]) if rest else []
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


def _plain(name: str) -> str:
    """A registered name with its hyphens as underscores; a file's path as it is."""
    return name if "." in name or "/" in name else name.replace("-", "_")


def label_of(name: str, inline: Mapping[str, object]) -> str:
    """Return a short name that tells a strategy from itself with other parameters: `majority-n64`, `direct-greedy`."""
    base = name.rpartition(":")[2]
    rest = sorted((key, value) for key, value in inline.items() if key != "temperature")
    drawn_at = [_temperature(str(inline["temperature"]))] if "temperature" in inline else []
    return "-".join([base, *drawn_at, *(f"{key}{value}" for key, value in rest)])


def _temperature(text: str) -> str:
    try:
        return "greedy" if float(text) == 0 else f"t{text}"
    except ValueError:  # refused by name when it is bound
        return f"t{text}"
