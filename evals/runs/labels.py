"""What a run is called, by one rule for tables, reports and comparisons: whatever decided it stands in its name.

    direct, greedy            direct            majority N=16, t=0.5            tree N=16, beam_width=4

The strategy, its number of samples, then every setting that is not its default, the temperature first (0 is greedy; the
usual one is the task's). Two runs of one name in one list also say where they differ (model, seed, thinking, ...), and
are numbered where they do not. Runs recorded before settings were kept show at least that they were greedy.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from types import MappingProxyType
from typing import Any

from ttc.config.choices import StrategyChoice
from ttc.config.recipes import dump

__all__ = ["labels", "settings_of"]

_APART = ("engine", "model", "scorer", "seed", "problems_seed", "version")
"""What tells runs of one name apart, beside the tables of their options."""
_TABLES = MappingProxyType(
    {"params": "", "sampling": "", "budget": "budget.", "engine_params": "engine.", "scorer_params": "scorer."}
)
_SAID_APART = ("n", "temperature", "seed")
"""What is in these tables and already said: the samples, the temperature that was drawn at, the run's seed."""


def settings_of(choice: StrategyChoice, temperature: float, usual: float | None) -> dict[str, Any]:
    """Return the settings of a strategy that are not its defaults, as JSON; its number of samples is not among them.

    Args:
        choice: the strategy with its parameters.
        temperature: the run's, which the strategy may override.
        usual: the temperature that needs no saying, the task's; None where each is said.
    """
    parameters = inspect.signature(choice.function).parameters
    changed = {
        name: dump(value)
        for name, value in choice.params.items()
        if name not in ("n", "scorer", "temperature") and value != parameters[name].default
    }
    own = choice.params.get("temperature")
    drawn_at = temperature if own is None else own
    return ({} if drawn_at == usual else {"temperature": drawn_at}) | changed


def labels(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a name for each summary entry, no two alike within a task and level."""
    names = [_name(entry) for entry in entries]
    kinds = [(entry.get("task"), entry.get("level"), name) for entry, name in zip(entries, names, strict=True)]
    longer: list[str] = []
    for entry, name, kind in zip(entries, names, kinds, strict=True):
        rivals = [other for other, rival in zip(entries, kinds, strict=True) if rival == kind]
        longer.append(", ".join([name, *_differences(entry, rivals)]))
    full = list(zip(kinds, longer, strict=True))
    return [
        f"{label} #{full[: i + 1].count(item)}" if full.count(item) > 1 else label
        for i, (item, label) in enumerate(zip(full, longer, strict=True))
    ]


def _name(entry: Mapping[str, Any]) -> str:
    n, strategy = entry.get("n"), str(entry.get("strategy", "?"))
    head = f"{strategy} N={n}" if isinstance(n, int) and n > 1 else strategy
    return ", ".join([head, *(_said(name, value) for name, value in _settings(entry).items())])


def _settings(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    settings = entry.get("settings")
    if isinstance(settings, Mapping):
        return settings
    temperature = _temperature(entry)
    return {"temperature": temperature} if temperature == 0 else {}


def _said(name: str, value: Any) -> str:
    if name == "temperature":
        return "greedy" if value == 0 else f"t={value:g}"
    values = value if isinstance(value, list) else [value]
    return f"{name}={','.join(map(_short, values))}"


def _short(value: Any) -> str:
    """A value in a name; of a file its own name, since the whole path would be longer than the table is wide."""
    text = str(value)
    return PurePath(text).name if isinstance(value, str) and PurePath(text).suffix and "/" in text else text


def _differences(entry: Mapping[str, Any], rivals: Sequence[Mapping[str, Any]]) -> list[str]:
    """What tells an entry from others of its name; one that has no value for it is silent."""
    mine, all_of = _identity(entry), [_identity(rival) for rival in rivals]
    apart = [key for key in mine if len({json.dumps(other.get(key), default=str) for other in all_of}) > 1]
    return [_said(key, mine[key]) for key in apart if mine[key] is not None]


def _identity(entry: Mapping[str, Any]) -> dict[str, Any]:
    identity = {name: entry[name] for name in _APART if name in entry} | {"temperature": _temperature(entry)}
    for table, prefix in _TABLES.items():
        values = entry.get(table) or {}
        identity |= {f"{prefix}{name}": value for name, value in values.items() if name not in _SAID_APART}
    thinking = entry.get("thinking") or {}
    return identity | {"thinking" if name == "mode" else f"thinking.{name}": value for name, value in thinking.items()}


def _temperature(entry: Mapping[str, Any]) -> float | None:
    """The temperature that was drawn at: the strategy's own, else the run's."""
    own = (entry.get("params") or {}).get("temperature")
    return entry.get("temperature") if own is None else own
