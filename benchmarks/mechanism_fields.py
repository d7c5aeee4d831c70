"""The parts of a stage beyond plain REINFORCE or plain imitation, and how each is removed.

A mechanism is a group of fields with values under which it does nothing: a clip too wide to be reached, a weight of 0,
a single update per batch. They are read from the stage's own fields, defaults included, so a recipe's new line is a
mechanism at once, and a field without a known way to remove it is refused: an untested option can be inert for years.
Fields that size a run (steps, rates, problems) are not mechanisms. `benchmarks.mechanism_activity` measures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from train.registries import ADVANTAGES, LOSSES, PREFERENCES, STAGES
from ttc.config.recipes import parse_spec
from ttc.config.registry import Registry
from ttc.config.signatures import options_of, parsed
from ttc.errors import ConfigError

Level: TypeAlias = Literal["update", "reward", "draw", "start", "first"]
"""What must be done again without it: the update; rewards too; rollouts too; all from the start; the first update."""

_WIDE = 1e9
_NONE = 1e-12


@dataclass(frozen=True, slots=True)
class Mechanism:
    """A part of a stage: its name, the fields that remove it (None leaves one out), and what must then be redone."""

    name: str
    without: Mapping[str, Any]
    level: Level = "update"


SIZES = frozenset(
    ("task", "held_out", "steps", "prompts", "n", "lr", "max_tokens", "engine", "train_limit", "held_out_limit",
     "eval_every", "save_every", "until", "record", "health", "environment", "rows", "held_out_share", "decay", "data",
     "rollouts", "value_lr", "leave_out_above", "verifier_weight", "verifier_s", "judge", "reward_how", "reward_weight",
     "critique_ask", "critique_approves", "critiques", "critique_tokens", "critique_weight",
     "ptx_rows", "ptx_weight", "kl_estimator", "reference", "per_problem", "max_staleness",
     "correction_how", "correction_cap")
)  # fmt: skip
"""Fields that say how much and of what, or that belong to the mechanism beside them."""

Spec: TypeAlias = Mapping[str, Any]
_LOSS_PARTS: Mapping[str, Mapping[str, Callable[[Spec], Spec | None]]] = {
    "ppo": {
        "clip": lambda of: {"clip_low": 1.0, "clip_high": _WIDE} if of["clip_high"] < _WIDE else None,
        "clip-higher": lambda of: {"clip_high": of["clip_low"]} if of["clip_high"] != of["clip_low"] else None,
        "dual clip": lambda of: {"dual_clip": None} if of["dual_clip"] is not None else None,
    },
    "gspo": {"clip": lambda of: {"clip_low": 1.0, "clip_high": _WIDE}},
    "cispo": {"cap": lambda of: {"cap": _WIDE}},
    "squared": {"tau": lambda of: {"tau": _NONE}},
    "reinforce": {},
}
_ADVANTAGE_PARTS: Mapping[str, Mapping[str, Callable[[Spec], Spec | None]]] = {
    "group": {
        "scale": lambda of: {"scale": "group" if of["scale"] == "none" else "none"},
        "spread": lambda of: {"spread": "sample"} if of["scale"] != "none" else None,
    },
    "steps": {"outcome": lambda of: {"outcome": 0.0} if of["outcome"] else None},
    "tree": {
        "local": lambda of: {"local": 0.0} if of["local"] else None,
        "leaves": lambda of: {"by_leaves": False} if of["by_leaves"] else None,
    },
    "batch": {},
    "leave_one_out": {},
    "reinforce_pp": {"baseline": lambda of: {"baseline": "none"} if of["baseline"] == "group" else None},
}
_PAIR_PARTS: Mapping[str, Mapping[str, Callable[[Spec], Spec | None]]] = {
    "dpo": {"per token": lambda of: {"per_token": False} if of["per_token"] else None}
}
_OPTIONS: Mapping[str, frozenset[str]] = {
    "ppo": frozenset({"clip_low", "clip_high", "dual_clip"}),
    "gspo": frozenset({"clip_low", "clip_high"}),
    "cispo": frozenset({"cap"}),
    "squared": frozenset({"tau"}),
    "reinforce": frozenset(),
    "group": frozenset({"scale", "spread", "eps"}),
    "steps": frozenset({"outcome", "spread", "eps"}),
    "tree": frozenset({"local", "by_leaves"}),
    "batch": frozenset({"spread", "eps"}),
    "leave_one_out": frozenset(),
    "reinforce_pp": frozenset({"baseline", "spread", "eps"}),
    "dpo": frozenset({"beta", "per_token", "label_smoothing"}),
}
"""The options that these parts are about; another one is refused until somebody says how it is taken away."""

_FIELDS: Mapping[str, tuple[Level, Callable[[Any], bool], Spec]] = {
    "kl_weight": ("update", bool, {"kl_weight": 0.0, "reference": None, "reference_every": None}),
    "kl_in": ("update", lambda value: value == "reward", {"kl_in": "loss"}),
    "reference_every": ("update", bool, {"reference_every": None}),
    "correction": (
        "update",
        lambda value: value != "none",
        {"correction": "none", "correction_how": "truncate", "correction_cap": 2.0},
    ),
    "mask_truncated": ("update", bool, {"mask_truncated": False}),
    "ptx": ("update", bool, {"ptx": None}),
    "lam": ("update", lambda value: value != 1, {"lam": 1.0}),
    "gamma": ("update", lambda value: value != 1, {"gamma": 1.0}),
    "value_clip": ("update", bool, {"value_clip": None}),
    "clip": ("update", lambda value: value < 1, {"clip": 1.0}),
    "entropy_weight": ("update", bool, {"entropy_weight": 0.0}),
    "missing_end": ("reward", lambda value: value is not None, {"missing_end": None}),
    "partial_credit": ("reward", bool, {"partial_credit": False}),
    "process_reward": ("reward", bool, {"process_reward": None, "advantage": "group"}),
    "reward_model": ("reward", bool, {"reward_model": (), "verifier_weight": 1.0, "critic": None}),
    "verifier_lm": ("reward", bool, {"verifier_lm": None, "verifier_weight": 1.0}),
    "sampler": ("draw", lambda value: value != "uniform", {"sampler": "uniform"}),
    "refills": ("draw", bool, {"refills": 0}),
    "retire": ("draw", bool, {"retire": None}),
    "leave_out": ("draw", bool, {"leave_out": None, "leave_out_above": 0}),
    "thinking": ("draw", lambda value: value != "auto", {"thinking": "auto"}),
    "max_thinking": ("draw", bool, {"max_thinking": None}),
    "strategy": ("draw", bool, {"strategy": None}),
    "branch_every": ("draw", bool, {"branch_every": None}),
    "asynchronous": ("draw", bool, {"asynchronous": False}),
    "critic": ("start", lambda value: value not in ("copy", "head"), {"critic": "copy"}),
    "warmup": ("first", bool, {"warmup": 0}),
    "likelihood": ("update", bool, {"likelihood": 0.0}),
}
"""Field -> what is done again, whether this value of it is a mechanism, and the fields without it."""

_SCHEDULE: Mapping[str, Any] = {"start": 0, "warmup": 1}
"""Options of a part of the reward that make it come later, with what leaves them out."""


def mechanisms(kind: str, fields: Mapping[str, Any]) -> list[Mechanism]:
    """The mechanisms of a stage of this kind with these fields, in the order in which a stage names them.

    Raises:
        ConfigError: a field or an option is set that nothing here knows how to take away.
    """
    values = {**options_of(STAGES.load(kind)), **fields}
    return [
        *_passes(values),
        *_parts("loss", _registry(kind), _PAIR_PARTS if kind == "preference" else _LOSS_PARTS, values),
        *_parts("advantage", ADVANTAGES, _ADVANTAGE_PARTS, values),
        *_normaliser(values),
        *_shaping(values),
        *_plain(kind, fields, values),
    ]


def _registry(kind: str) -> Registry:
    return PREFERENCES if kind == "preference" else LOSSES


def _passes(values: Spec) -> Iterator[Mechanism]:
    """Several updates of one batch."""
    if values.get("epochs", 1) * values.get("minibatches", 1) > 1:
        yield Mechanism("several updates", {"epochs": 1, "minibatches": 1})


def _parts(
    field: str, registry: Registry, table: Mapping[str, Mapping[str, Callable[[Spec], Spec | None]]], values: Spec
) -> Iterator[Mechanism]:
    """The options of a part that is named with them on one line, `NAME:KEY=VALUE,...`."""
    if field not in values:
        return
    name, options = parse_spec(values[field])
    if name not in table:
        raise ConfigError(f"{field} {name!r}: no removal of its mechanisms is defined; add one to {__name__}")
    factory = registry.load(name)
    full = {**options_of(factory), **parsed(factory, options, supply={})}
    unknown = set(options) - _OPTIONS[name]
    if unknown:
        raise ConfigError(f"{field} {name!r}: no removal of {sorted(unknown)[0]} is defined; add one to {__name__}")
    for part, without in table[name].items():
        changed = without(full)
        if changed is not None:
            kept = {key: value for key, value in {**options, **changed}.items() if value is not None}
            yield Mechanism(f"{name}: {part}", {field: _spec(name, kept)})


def _spec(name: str, options: Spec) -> str:
    listed = ",".join(f"{key}={str(value).lower()}" for key, value in options.items())
    return f"{name}:{listed}" if listed else name


def _normaliser(values: Spec) -> Iterator[Mechanism]:
    """Another reduction: over sequences, or per token in its place; `constant` and `token` differ by a factor."""
    if "normaliser" in values:
        other = "token" if values["normaliser"] == "sequence" else "sequence"
        yield Mechanism(f"normaliser {values['normaliser']}", {"normaliser": other})


def _shaping(values: Spec) -> Iterator[Mechanism]:
    """Every part of the reward, and the schedule of one that comes later."""
    specs = tuple(values.get("shaping") or ())
    for place, spec in enumerate(specs):
        name, options = parse_spec(spec)
        rest = specs[:place] + specs[place + 1 :]
        yield Mechanism(f"reward {name}", {"shaping": rest or None, **_paid(values, rest)}, "reward")
        if set(options) & set(_SCHEDULE):
            at_once = _spec(name, {**options, **_SCHEDULE})
            yield Mechanism(f"schedule of {name}", {"shaping": (*specs[:place], at_once, *rest[place:])}, "reward")


def _paid(values: Spec, shaping: tuple[Any, ...]) -> Spec:
    """Verdicts, if nothing else would give a reward."""
    others = values.get("reward_model") or values.get("verifier_lm") or shaping
    unpaid = values.get("verifier_weight") == 0 and not others
    return {"verifier_weight": 1.0} if unpaid else {}


def _plain(kind: str, fields: Spec, values: Spec) -> Iterator[Mechanism]:
    """Independent fields; one that only matters beside another is handled with that."""
    handled = {"loss", "advantage", "normaliser", "shaping", "epochs", "minibatches"}
    for name in fields:
        if name not in handled and name not in SIZES and name not in _FIELDS:
            raise ConfigError(f"{kind}.{name}: no removal of it is defined; add one to {__name__}")
    for name, (level, acts, without) in _FIELDS.items():
        if name not in values or not acts(values[name]) or not _applies(name, values):
            continue
        yield Mechanism(name, {key: value for key, value in without.items() if key in values}, level)


def _applies(name: str, values: Spec) -> bool:
    """Whether a field can matter: the fields that it needs are set."""
    needs: Mapping[str, bool] = {
        "kl_in": bool(values.get("kl_weight")),
        # with rollouts of the very weights that are trained, engine and trainer agree to rounding
        "correction": bool(values.get("asynchronous")),
    }
    return needs.get(name, True)
