"""A task of rows with fields of their own, described in a TOML file: `--task capitals.toml`.

    data = "capitals.jsonl"                        # a file of rows; a path beside this file
    prompt = "What is the capital of {country}?"   # {field} of the row; {{ and }} are braces
    target = "capital"                             # a field of the row, or a table of them (see below)
    verifier = {name = "exact", case_sensitive = true}

Optional: `name` (default: the file's), `system` (a template too), `kind` (of answers; default: the verifier's own, else
math), `id`, `difficulty`, `cluster` (fields of the row), `max_tokens`. A `target` table is for verifiers that take an
object: `target = {numbers = "nums", target = "goal"}` names fields; a value that is no string is taken as it is. A
target of mathematics may be in the form of GSM8K here, too. Fields `choices`, `wrong` and `first` are as in `rows`; the
options appear with their letters in place of {choices} in the prompt, and the target names one of them. Every row is
read when the task loads; what is broken is named by file, line and field. Left out: few-shot examples other than in
the prompt, and rows from the hub.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evals.data.sources import rows_of
from evals.task import CHECKS, Item, Task, VerifierSpec, has_rows, sample
from evals.tasks._columns import Columns, NumberedRow, as_text, at_path, put_answer, put_options, with_letters
from evals.tasks._items import (
    chosen_target,
    last_question,
    option_lines,
    options_of,
    refuse_twice,
    refuse_unknown,
    target_of,
    with_last_question,
    without_solution,
)
from ttc.answers.kinds import KINDS
from ttc.config.recipes import load_toml
from ttc.config.registry import VERIFIERS
from ttc.config.signatures import bind
from ttc.config.values import build, nearest, why_no_file
from ttc.core import Json, Message, Problem, Sampling, TargetLike
from ttc.errors import ConfigError, RecordError

TOML_FIELDS = (
    "name", "data", "system", "prompt", "target", "kind", "verifier", "id", "difficulty", "cluster", "max_tokens",
    "choices", "wrong", "first",
)  # fmt: skip
COLUMNS = ("id", "difficulty", "cluster")
_KIND_OF = {"countdown": "expression", "game24": "expression", "procedural": "exact", "code": "code"}
"""The answer kind of verifiers that are not named after their kind; `format` if they judge the whole text."""
_WHOLE = ("instructions", "language", "format", "regex", "judge", "safety")
_PLACE = re.compile(r"\{\{|\}\}|\{([^{}\s](?:[^{}\n]*[^{}\s])?)\}|[{}]")


@dataclass(frozen=True, slots=True)
class _Spec:
    """The checked content of the file."""

    file: Path
    name: str
    data: Path
    prompt: str
    system: str
    target: str | Mapping[str, Json]
    kind: str
    check: VerifierSpec
    columns: Mapping[str, str]
    options: Columns | None
    max_tokens: int


def toml(path: str) -> Task:
    """Return the task in the TOML file `path`.

    Raises:
        ConfigError: the file cannot be read, or a field is missing, unknown or of the wrong type.
        RecordError: a row of its data lacks a field.
    """
    spec = _read(Path(path).expanduser())
    items = list(_toml_items(spec))
    refuse_twice(items, spec.data)
    return Task(
        name=spec.name,
        kind=spec.kind,
        load=lambda limit, seed: sample(items, limit),
        sampling=Sampling(max_tokens=spec.max_tokens),
        params={"path": path},
        verifier=spec.check,
    )


def _read(file: Path) -> _Spec:
    table = load_toml(file)
    refuse_unknown(table, TOML_FIELDS, file, ConfigError)
    options = _options_of(file, table)
    kind = _text(file, table, "kind", "choice" if options and "verifier" not in table else "")
    check = _check(file, table.get("verifier"), kind)
    data = file.parent / Path(_text(file, table, "data")).expanduser()
    if not (data.is_file() or has_rows(data)):
        raise ConfigError(f"{file}: data: {str(data)!r} {why_no_file(data)}; name a file of rows")
    max_tokens = table.get("max_tokens", 1024)
    if not isinstance(max_tokens, int) or isinstance(max_tokens, bool) or max_tokens < 1:
        raise ConfigError(f"{file}: max_tokens: expected a whole number >= 1, got {max_tokens!r}")
    return _Spec(
        file=file,
        name=_text(file, table, "name", file.stem),
        data=data,
        prompt=_template(file, "prompt", _text(file, table, "prompt")),
        system=_template(file, "system", _text(file, table, "system", "")),
        target=_target_fields(file, table.get("target")),
        kind=_kind(file, kind, check),
        check=check,
        columns={name: _text(file, table, name) for name in COLUMNS if name in table},
        options=options,
        max_tokens=max_tokens,
    )


def _options_of(file: Path, table: Mapping[str, Any]) -> Columns | None:
    """Where the options of a choice stand, if it is one; raises ConfigError for a prompt that does not show them."""
    if not {"choices", "wrong"} & table.keys():
        return None
    if "{choices}" not in str(table.get("prompt")):
        raise ConfigError(f"{file}: prompt: say where the options stand, with their letters: {{choices}}")
    named = {name: table[name] for name in ("choices", "wrong", "first") if name in table}
    return build(Columns, {**named, "answer": _text(file, table, "target")}, where=f"{file}: ")


def _text(file: Path, given: Mapping[str, Any], name: str, default: str | None = None) -> str:
    value = given.get(name, default)
    if value is None:
        raise ConfigError(f"{file}: {name}: is missing")
    if not isinstance(value, str) or (not value.strip() and value != default):
        raise ConfigError(f"{file}: {name}: expected a non-empty string, got {value!r}")
    return value


def _check(file: Path, given: object, kind: str) -> VerifierSpec:
    """The verifier with its parameters, bound once so that a wrong one is refused early."""
    if given is None and (kind or "math") in CHECKS:
        return CHECKS[kind or "math"]
    table = {"name": given} if isinstance(given, str) else given
    if not isinstance(table, dict) or not isinstance(table.get("name"), str):
        raise ConfigError(f"{file}: verifier: expected a name, or a table with name and parameters, got {given!r}")
    params = {key: value for key, value in table.items() if key != "name"}
    try:
        bind(VERIFIERS.load(table["name"]), params, supply={})
    except ConfigError as exc:
        raise ConfigError(f"{file}: verifier: {exc}") from exc
    return VerifierSpec(table["name"], params)


def _kind(file: Path, given: str, check: VerifierSpec) -> str:
    """The answer kind: as given, or the verifier's, which may take it as a parameter."""
    verifier = check.verifier
    usual = "format" if verifier in _WHOLE else _KIND_OF.get(verifier, verifier if verifier in KINDS else "math")
    kind = given or str(check.params.get("kind", usual))
    if kind not in KINDS:
        raise ConfigError(f"{file}: kind: {kind!r} is not one of {', '.join(KINDS)}{nearest(kind, tuple(KINDS))}")
    return kind


def _template(file: Path, name: str, text: str) -> str:
    for match in _PLACE.finditer(text):
        if match[0] in ("{", "}"):
            raise ConfigError(f"{file}: {name}: a single {match[0]!r} at character {match.start()}; write it twice")
    return text


def _target_fields(file: Path, given: object) -> str | Mapping[str, Json]:
    if given and (isinstance(given, dict) or (isinstance(given, str) and given.strip())):
        return given
    raise ConfigError(f"{file}: target: expected the name of a field, or a table of them, got {given!r}")


def _toml_items(spec: _Spec) -> Iterator[Item]:
    fields = [name for name in _PLACE.findall(spec.prompt) if name]
    fields += [spec.target] if isinstance(spec.target, str) else []
    rows: Iterable[NumberedRow] = rows_of(spec.data, needs=[(name,) for name in fields if name != "choices"])
    if spec.options is not None:
        rows = _with_options(spec, spec.options, rows)
    for row, where, number in rows:
        messages = [Message("system", _filled(spec.system, row, where))] if spec.system else []
        messages.append(Message("user", _filled(spec.prompt, row, where)))
        target = _toml_target(spec, row, where)
        if spec.check.verifier == "math":
            gold = without_solution(target) if isinstance(target, str) else target
            target = with_last_question(gold, last_question(messages))
        name = _column(spec, row, where, "id") or f"{spec.name}-{number}"
        yield Item(
            Problem(name, tuple(messages), spec.kind),
            target,
            _column(spec, row, where, "cluster") or "",
            _column(spec, row, where, "difficulty"),
        )


def _with_options(spec: _Spec, columns: Columns, rows: Iterable[NumberedRow]) -> Iterator[NumberedRow]:
    """The rows with their options as lines with letters, and as target the letter of the right one with its text."""
    ours: list[NumberedRow] = []
    whole = list(rows)
    for row, where, number in whole:
        own = {**row, "question": _filled(spec.prompt, {**row, "choices": " "}, where)}  # decides how they are shuffled
        put_answer(own, row, columns, where)
        put_options(own, row, columns, where)
        ours.append((own, where, number))
    letters, _ = with_letters(ours, columns)
    for (row, where, number), (choice, _, _) in zip(whole, letters, strict=True):
        options = options_of(choice, where)
        target = chosen_target(target_of(choice, where), options, choice, where)
        yield {**row, "choices": "\n".join(option_lines(options)), str(spec.target): target}, where, number


def _field(row: Mapping[str, Any], name: str, where: str) -> Any:
    value = at_path(row, name)
    if value is None:
        raise RecordError(f"{where}: {name}: is missing{nearest(name, tuple(row))}")
    return value


def _filled(template: str, row: Mapping[str, Any], where: str) -> str:
    """The template with its fields; a list is written with commas between its items."""

    def value(match: re.Match[str]) -> str:
        if match[1] is None:
            return match[0][0]
        content = _field(row, match[1], where)
        return ", ".join(map(str, content)) if isinstance(content, list) else str(content)

    return _PLACE.sub(value, template)


def _column(spec: _Spec, row: Mapping[str, Any], where: str, column: str) -> str | None:
    return str(_field(row, spec.columns[column], where)) if column in spec.columns else None


def _toml_target(spec: _Spec, row: Mapping[str, Any], where: str) -> TargetLike:
    if isinstance(spec.target, str):
        return as_text(_field(row, spec.target, where))
    return {key: _field(row, value, where) if isinstance(value, str) else value for key, value in spec.target.items()}
