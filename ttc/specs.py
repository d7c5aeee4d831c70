"""How a choice is written on one line: `tree,majority:n=64,temperature=1`, `prm:path/to/model`, `mine.py:function`.

A strategy is NAME or NAME:KEY=VALUE,...; an engine or a scorer is NAME or NAME:MODEL. In both, NAME may be the place of
a function in a file.
"""

from __future__ import annotations

from collections.abc import Mapping

from ttc.config.config import overrides

__all__ = ["label_of", "parse_spec", "split_model", "split_specs"]


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
        if parts and "=" in part and ":" not in part:
            parts[-1] += f",{part}"
        else:
            parts.append(part.strip())
    return parts


def parse_spec(text: str) -> tuple[str, dict[str, object]]:
    """Return the name of a strategy and the parameters written behind it, still as text."""
    name, separator, rest = text.rpartition(":")
    if not separator or "=" not in rest:
        return _plain(text), {}
    return _plain(name), dict(overrides(rest.split(",")))


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
