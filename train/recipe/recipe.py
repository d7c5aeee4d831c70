"""A recipe: a short TOML file of stages, each building on the model of the one before.

    about = "what it does, after which paper, and what deviates from it"

    [[stage]]
    kind = "grpo"                    a function of train/stages or of the entry-point group ttc.stages
    task = "cipher:split=train"      its keywords
    [stage.health.length_drift]      changes of health rules, by name
    threshold = 5.0

    [stage.nano]                     what `--scale nano` sets instead; "" leaves a field out
    steps = 10

    [stage.full]                     the same for every scale of hardware: cpu, 1x24gb, 1x80gb, 8x80gb
    task = "gsm8k:split=train"

    [gates]                          what the model must show to be promoted; see `train.measure.gates`

    [adapt]                          a model without thinking markers gets some, and a prompt form, before all else;
    form = "r1-zero"                 see `train.recipe.adapt`

    [retention]                      measure every stage's model on every stage's held-out task:
    limit = 128                      see `train.measure.retention`

A stage with `only = "nano"` is there at that scale alone: a toy run makes the base model that a real run is given. One
with `only = "toy"` is there where no hardware is named. One with `start = "1-pretrain"` starts from that stage's model
instead of the one before it. If a stage is absent, later ones are renumbered, and its name stands for the model that
the run starts from: `start`.

A scale of hardware sets memory and speed options of a stage by its kind (`scales.toml`): engine, passes, adapters, and
on a `cpu` a few short steps that show that everything runs. A recipe's own table for that scale takes precedence.
Everything is bound and checked before a model is loaded. Packaged recipes are the files in `train/recipes/`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from train.base.stage import Stage
from train.measure.gates import read_gates
from train.measure.retention import Retention, read_retention
from train.registries import STAGES
from ttc.config.recipes import load_toml, merge
from ttc.config.signatures import options_of, parsed
from ttc.config.values import nearest
from ttc.errors import ConfigError, UnknownName

_TOP = {"about", "stage", "gates", "retention", "adapt"}
_FOLDER = Path(__file__).parents[1] / "recipes"
_SCALES = Path(__file__).with_name("scales.toml")
_FULL, _TOY, START, _ALL = "full", "toy", "start", "all"
_STAGE = re.compile(r"[1-9][0-9]*-[a-z_]+")


@dataclass(frozen=True, slots=True)
class RecipeStep:
    """One stage of a recipe: its kind, its fields as given, the bound stage, and whose model it starts from."""

    kind: str
    fields: Mapping[str, Any]
    stage: Stage
    start: str | None = None

    @property
    def digest(self) -> str:
        """Hash of kind and fields: a run folder of other settings is not resumed."""
        settings = [self.kind, self.fields, *((self.start,) if self.start else ())]
        text = json.dumps(settings, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def values(self) -> dict[str, Any]:
        """Its fields by meaning: 3 and the text "3", as from `--set`, are the same number of steps."""
        fields = {name: value for name, value in self.fields.items() if name != "health"}
        return {**self.fields, **parsed(STAGES.load(self.kind), fields, supply={})}


@dataclass(frozen=True, slots=True)
class Recipe:
    """A name, a description, the steps, and the checked tables of gates and retention.

    `adapt` is for a model without thinking markers (`train.recipe.adapt`); None if it is not needed.
    """

    name: str
    about: str
    steps: tuple[RecipeStep, ...]
    gates: Mapping[str, Any] | None = None
    retention: Retention | None = None
    adapt: Mapping[str, Any] | None = None


def packaged() -> dict[str, Path]:
    """The recipes that come with this package, by name."""
    return {path.stem: path for path in sorted(_FOLDER.glob("*.toml"))}


def read_recipe(name: str, *, scale: str | None = None, overrides: Mapping[str, object] | None = None) -> Recipe:
    """Read a packaged recipe or a file.

    Args:
        name: of a packaged recipe, or the path of a TOML file.
        scale: a table in the stages whose fields replace theirs, such as nano.
        overrides: `STAGE.FIELD` (number of the stage from 1, its kind, or `all` that have it) to value; FIELD is
            also health.RULE.FIELD.

    Raises:
        ConfigError: an unknown recipe, kind or field, or a value that does not fit; names it.
    """
    path = packaged().get(name) or Path(name).expanduser()
    if not path.is_file():
        if path.suffix == ".toml":
            raise ConfigError(f"recipe file {name} does not exist")
        raise UnknownName("recipe", name, packaged())
    data = load_toml(path)
    for key in data:
        if key not in _TOP:
            raise UnknownName(f"key of {path.name}", key, _TOP)
    about = data.get("about", "")
    if not isinstance(about, str):
        raise ConfigError(f"{path.name}: about must be a text, got {about!r}")
    tables = data.get("stage", [])
    if not isinstance(tables, list) or not tables:
        raise ConfigError(f"{path.name} has no [[stage]]")
    for number, table in enumerate(tables, start=1):
        _check_table(table, f"{path.name}: stage {number}", "[[stage]]")
        _check_scales(table, f"{path.name}, stage {number}")
    for name in ("retention", "adapt"):
        _check_table(data.get(name, {}), f"{path.name}: {name}", f"[{name}]")
    hardware = scales()
    _check_scale(tables, scale, hardware, path.name)
    tables = _renamed(tables, [_is_there(table, scale, hardware) for table in tables], scale, hardware)
    _override(tables, overrides or {}, path.name)
    steps = tuple(bind_stage(table, f"{path.name}, stage {number}") for number, table in enumerate(tables, start=1))
    if not steps:
        raise ConfigError(f"{path.name} makes its own models, which have no other scale; give --scale nano, or none")
    _check_named(steps, path.name)
    retention_table = None if scale in hardware else data.get("retention")
    retention = None if retention_table is None else read_retention(_scaled(retention_table, scale), path.name)
    gates = None if scale in hardware else _gates(data, scale, path.name)
    return Recipe(path.stem, about, steps, gates, retention, data.get("adapt"))


def _check_table(value: object, name: str, form: str) -> None:
    """Raise ConfigError for a value in place of a table."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} must be a table {form}, got {value!r}")


def _check_scales(table: Mapping[str, Any], where: str) -> None:
    """Refuse a table that sets unknown fields of a stage, even one of another scale."""
    kind = str(table.get("kind"))
    if kind not in STAGES.names():  # told when the stage is made
        return
    known = {"kind", "start", "health", *options_of(STAGES.load(kind))}
    for scale, fields in table.items():
        unknown = sorted(set(fields) - known) if scale != "health" and isinstance(fields, Mapping) else []
        if unknown:
            raise ConfigError(
                f"{where}: [stage.{scale}] is read as what the stage sets at the scale {scale}, and {kind} has no "
                f"field {unknown[0]!r}{nearest(unknown[0], sorted(known))}"
            )


def scales() -> Mapping[str, Any]:
    """What the scales of hardware set, by scale and kind of stage."""
    return load_toml(_SCALES)


def _check_scale(
    tables: Sequence[Mapping[str, Any]], scale: str | None, hardware: Mapping[str, Any], where: str
) -> None:
    """Refuse a scale that the recipe lacks, and a missing one if the recipe's own fields are those of a toy run."""
    listed = ", ".join(hardware)
    own = [scale in table or table.get("only") in (scale, _TOY) for table in tables]
    if scale is not None and scale not in hardware and not any(own):
        raise ConfigError(
            f"{where} has no scale {scale!r}: no stage has a table [stage.{scale}], and the scales of hardware are "
            f"{listed}"
        )
    there = [_is_there(table, scale, hardware) for table in tables]
    if scale is None and not all(there) and any(_FULL in table for table in tables if table.get("only") is None):
        raise ConfigError(f"{where} is written for a toy run and for hardware: give --scale nano, or one of {listed}")


def _is_there(table: Mapping[str, Any], scale: str | None, hardware: Mapping[str, Any]) -> bool:
    """Whether a stage belongs to a scale."""
    only = table.get("only")
    places = only if isinstance(only, list) else [only]
    return only is None or scale in places or (_TOY in places and scale not in hardware)


def _renamed(
    tables: Sequence[Mapping[str, Any]], there: Sequence[bool], scale: str | None, hardware: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """The fields of the present stages, which refer to each other by their new numbers."""
    names: dict[str, str] = {}
    for place, (table, stays) in enumerate(zip(tables, there, strict=True), start=1):
        names[f"{place}-{table.get('kind')}"] = f"{sum(there[:place])}-{table.get('kind')}" if stays else START
    scaled = [_scaled(table, scale, hardware) for table, stays in zip(tables, there, strict=True) if stays]
    return scaled if all(there) else [_mapped(fields, names) for fields in scaled]


def _mapped(value: Any, names: Mapping[str, str]) -> Any:
    """`value` with stages' names replaced, in lists and tables too."""
    if isinstance(value, Mapping):
        return {key: _mapped(item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [_mapped(item, names) for item in value]
    return names.get(value, value) if isinstance(value, str) else value


def _check_named(steps: Sequence[RecipeStep], where: str) -> None:
    """Refuse a stage that starts from or reads a stage that does not come before it, unless it is an existing file."""
    names: list[str] = []
    for number, step in enumerate(steps, start=1):
        for field, name in (("start", step.start), *_texts(step.fields)):
            stage = (field == "start" and name != START) or _STAGE.fullmatch(str(name))
            if name is None or not stage or name in names or (field != "start" and Path(name).exists()):
                continue
            listed = ", ".join(names) or "none"
            raise ConfigError(
                f"{where}, stage {number}: {field} names {name!r}, which is not an earlier stage "
                f"(known: {listed}){nearest(name, names)}"
            )
        names.append(f"{number}-{step.kind}")


def _texts(fields: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Every text field, or list of texts, without the word that says where ptx takes its rows."""
    for field, value in fields.items():
        for text in value if isinstance(value, list | tuple) else (value,):
            if isinstance(text, str):
                yield field, text.removeprefix("rollouts:")


def _gates(data: Mapping[str, Any], scale: str | None, where: str) -> Mapping[str, Any] | None:
    """The table of gates at this scale, checked; None without one."""
    table = data.get("gates")
    if table is None:
        return None
    if isinstance(table, Mapping):
        table = _scaled(table, scale)
    read_gates(table, where)
    return dict(table)


def _scaled(table: Mapping[str, Any], scale: str | None, hardware: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The stage's fields with those of the chosen scale, "" for none; tables other than `health` are scales."""
    plain = {
        key: value
        for key, value in table.items()
        if key == "health" or (key != "only" and not isinstance(value, Mapping))
    }
    values = dict(plain)
    if scale is not None and hardware and scale in hardware:
        values |= {**table.get(_FULL, {}), **hardware[scale].get(table.get("kind"), {})}
    own = table.get(scale, {}) if scale is not None else {}
    _check_table(own, f"scale {scale}", f"[stage.{scale}]")
    values |= own
    return {key: value for key, value in values.items() if value != ""}


def _override(tables: Sequence[dict[str, Any]], overrides: Mapping[str, object], where: str) -> None:
    for key, value in overrides.items():
        which, dot, field = key.partition(".")
        matches = [
            table
            for i, table in enumerate(tables, start=1)
            if which in (str(i), table.get("kind")) or (which == _ALL and _takes(str(table.get("kind")), field))
        ]
        if not dot or not matches:
            known = "its number, its kind, or all that have the field"
            raise ConfigError(f"--set {key}: write STAGE.FIELD=VALUE with a stage of {where} ({known})")
        for table in matches:
            table.update(merge(table, {field: value}))


def _takes(kind: str, field: str) -> bool:
    """Whether a kind of stage has a field, or the table of a dotted `field`."""
    return field.partition(".")[0] in options_of(STAGES.load(kind))


def bind_stage(table: Mapping[str, Any], where: str) -> RecipeStep:
    """Bind one stage's table, its kind and its fields; raises ConfigError naming `where` and what does not fit."""
    if "kind" not in table:
        raise ConfigError(f"{where}: kind is missing (one of {', '.join(STAGES.names())})")
    kind, start = str(table["kind"]), table.get("start")
    if not isinstance(start, str | None):
        raise ConfigError(f"{where}: start must be the name of an earlier stage, got {start!r}")
    fields = {key: value for key, value in table.items() if key not in ("kind", "start")}
    supply = {"health": fields.pop("health")} if "health" in fields else {}
    try:
        stage: Stage = STAGES.create(kind, fields, supply=supply)
    except ConfigError as exc:
        raise type(exc)(f"{where}: {exc}") if type(exc) is ConfigError else exc from exc
    return RecipeStep(kind, {**fields, **supply}, stage, start)
