"""The configuration that `ttc serve` makes of its options, without a file."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping

from serve.operator.config import Limits, ModelSpec, PresetSpec, ServeConfig, part
from serve.requests.keys import read_keys
from serve.requests.thinking import ThinkingPolicy
from ttc.cli.parts import DEFAULT_ENGINE, DEFAULT_SCORER
from ttc.config.registry import ENGINES, SCORERS
from ttc.config.specs import split_model
from ttc.config.values import build, nearest
from ttc.errors import ConfigError

__all__ = ["from_options"]

PACKAGED = "nano-teacher"
SECTIONS = ("engine", "scorer", "limits", "thinking")
VOTES = {"majority-8": {"strategy": "majority", "n": 8}}
RANKED = {
    "best-of-8": {"strategy": "best_of_n", "n": 8},
    "tree-16": {"strategy": "tree", "n": 16},
}


def from_options(
    model: str | None,
    engine: str | None,
    name: str | None,
    scorer: str | None,
    upstream: str | None,
    sets: Mapping[str, str],
) -> ServeConfig:
    """One model and its presets; the packaged model brings its own scorer.

    Raises:
        ConfigError: an option that cannot be used, or that has no effect.
    """
    sections = _sections(sets)
    if upstream is not None:
        if engine not in (None, "openai"):
            raise ConfigError(f"--upstream is served by the engine openai, not {engine!r}")
        engine = "openai"
        sections["engine"]["base_url"] = upstream
    engine = engine or DEFAULT_ENGINE
    packaged = engine == DEFAULT_ENGINE and model is None
    if scorer is None and packaged:
        scorer = DEFAULT_SCORER
    if scorer is None and sections["scorer"]:
        raise ConfigError("--set scorer.KEY needs --scorer")
    name = name or _name(model, engine, upstream)
    scorers = {}
    if scorer is not None:
        kind, scorer_model = split_model(scorer)
        scorers[kind] = part(SCORERS, kind, scorer_model, sections["scorer"])
    presets = {**VOTES, **(RANKED if scorers else {})}
    return ServeConfig(
        models=(ModelSpec(name, part(ENGINES, engine, model, sections["engine"]), scorers),),
        default=name,
        presets=tuple(
            PresetSpec(f"{name}:{label}", name, str(table["strategy"]), {"n": table["n"]})
            for label, table in presets.items()
        ),
        limits=build(Limits, sections["limits"], where="limits."),
        thinking=build(ThinkingPolicy, sections["thinking"], where="thinking."),
        keys=read_keys({}, "the environment"),
    )


def _sections(sets: Mapping[str, str]) -> dict[str, dict[str, str]]:
    sections: dict[str, dict[str, str]] = {name: {} for name in SECTIONS}
    for key, value in sets.items():
        head, _, rest = key.partition(".")
        if head not in sections or not rest:
            raise ConfigError(f"--set {key}: no part {head!r}{nearest(head, SECTIONS)} (known: {', '.join(SECTIONS)})")
        sections[head][rest] = value
    return sections


def _name(model: str | None, engine: str, upstream: str | None) -> str:
    if model is None:
        return PACKAGED if engine == DEFAULT_ENGINE else "upstream" if upstream else engine
    path = pathlib.Path(model).expanduser()
    return path.resolve().name if path.exists() else model
