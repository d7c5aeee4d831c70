"""The adapter of a model: named by the user, or recognised by the model's name or the architecture in config.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ttc.config.plugins import PluginShape
from ttc.config.registry import Registry
from ttc.errors import ConfigError
from ttc.scorers.adapters._base import Adapter

ADAPTERS = Registry(
    "adapter",
    "ttc.scorers.adapters",
    "ttc.adapters",
    PluginShape(("ttc.scorers.adapters._base:Adapter",), has_options=False),
)


def load_adapter(name: str, config: Mapping[str, Any] | None, where: str, *, outcome: bool) -> Adapter:
    """Return the adapter called `name`, checked against the model's config if there is one.

    Raises:
        ConfigError: no such adapter, one for another family, or one for whole answers where step scores are needed.
    """
    adapter = _adapter(name)
    if adapter.outcome != outcome:
        what, use = ("whole answers", "orm") if adapter.outcome else ("steps", "prm")
        raise ConfigError(f"adapter {name} scores {what}: use --scorer {use}")
    family = None if config is None else config.get("model_type")
    if family is not None and family not in adapter.families:
        raise ConfigError(f"adapter {name} reads {' and '.join(adapter.families)} models, {where} is {family!r}")
    return adapter


def recognise(model: str, folder: Path, config: Mapping[str, Any], *, outcome: bool) -> Adapter | None:
    """Return the adapter that recognises this model by its name, else by its architecture; None if none does."""
    own_names = _names(model, folder, config)
    adapters = [_adapter(name) for name in ADAPTERS.names()]
    serving = [a for a in adapters if a.outcome == outcome and config.get("model_type") in a.families]
    for adapter in serving:
        if any(part in name for part in adapter.names for name in own_names):
            return adapter
    architectures = set(config.get("architectures") or ())
    return next((adapter for adapter in serving if architectures.intersection(adapter.architectures)), None)


def adapter_names(*, outcome: bool) -> str:
    """The names of all adapters that score whole answers (`outcome`) or steps, for error messages."""
    return ", ".join(name for name in ADAPTERS.names() if _adapter(name).outcome == outcome)


def _adapter(name: str) -> Adapter:
    adapter: Adapter = ADAPTERS.create(name, {}, supply={})
    return adapter


def _names(model: str, folder: Path, config: Mapping[str, Any]) -> list[str]:
    """The names of the model: its spec's last part, its folder, and its repository in a hub cache."""
    cached = [part for part in folder.parts if part.startswith("models--")]
    own_name = str(config.get("_name_or_path") or "")
    return [name.lower() for name in (model.rstrip("/").rpartition("/")[2], folder.name, *cached, own_name)]
