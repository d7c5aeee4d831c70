"""Tasks in a user's file: problems in JSON lines (`--task capitals.jsonl`), or their description in TOML.

JSON lines, plain or gzipped, one problem per line, or CSV with a line of names:

    {"id": "p1", "problem": "What is 2+2?", "answer": "4"}

    problem   what is asked, with the instruction of its kind; also called question or prompt
    messages  in place of `problem`: sent as they are
    answer    text or number, required; of one in the form of GSM8K (`... #### 4`) what follows the marks counts
    target    in place of `answer`: the same, or what the verifier takes, as {"answer": "2", "alternatives": ["two"]}
    id        default: the row's number
    kind      the same throughout; default: what the answers look like
    choices   a list of options, also called options, or columns A, B, C, ...; they are asked with their letters, and
              the answer is a letter or one of their texts, as a model's may be

Other columns are left out, and never shown to a strategy: a worked solution would tell the answer.

TOML, for rows that have their own fields:

    data = "capitals.jsonl"                        # JSON lines, plain or gzipped, or CSV; a path beside this file
    prompt = "What is the capital of {country}?"   # {field} of the row; {{ and }} are braces
    target = "capital"                             # a field of the row, or a table of them (see below)
    verifier = {name = "exact", case_sensitive = true}

Optional: `name` (default: the file's), `system` (a template too), `kind` (of answers; default: the verifier's own, else
math), `id`, `difficulty`, `cluster` (fields of the row), `max_tokens`. A `target` table is for verifiers that take an
object: `target = {numbers = "nums", target = "goal"}` names fields; a value that is no string is taken as it is. A
target of mathematics may be in the form of GSM8K here, too. Every row is read when the task loads; what is broken is
named by file, line and field. Left out: few-shot examples other than in the prompt, and rows from the hub.

A TOML file of tables [parts.NAME] is a mixture of tasks: each row has the verifier, or the learnt reward, of its task.

    [parts.gsm8k]                          a name for curves and targets
    task = "gsm8k:split=train"             any task, NAME or NAME:KEY=VALUE,..., or another file
    share = 0.5                            of all rows; every part says one, or none does and all rows are taken
    [parts.requests]
    task = "prompts"
    share = 0.5
    reward = "learnt"                      what is rewarded: verifier, learnt (a reward model alone), or both
    leave_out = ["choice"]                 answer kinds that are not taken: multiple choice can be guessed
    limit = 5000                           most rows of the part

Balanced shares take no row twice: the part that runs out first decides how many there are. Rows of a part are taken in
an order fixed by their ids. The part's name stands before the ids and is the item's difficulty, so that samplers and
curves (`family/NAME`, `held_out/NAME`) go by part. Left out: shares that change over a run.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from evals.data.sources import rows_of
from evals.task import CHECKS, INSTRUCTIONS, Item, Task, VerifierSpec, choice_target, sample
from ttc.answers.kinds import KINDS
from ttc.answers.tokens import chemical, designation, plain
from ttc.config.recipes import load_toml, parse_spec
from ttc.config.registry import VERIFIERS
from ttc.config.signatures import bind, call
from ttc.config.values import above, at_least, build, nearest, why_no_file
from ttc.core import Json, Message, Problem, Sampling, TargetLike
from ttc.errors import ConfigError, RecordError, TTCError
from ttc.verifiers.maths.asked import with_question


# -- a file of rows ----------------------------------------------------------------------------------------------------
def jsonl(path: str, *, kind: str | None = None) -> Task:
    """Problems of a file of rows.

    Args:
        path: the file.
        kind: answer kind where the lines do not say; absent: what the answers look like.
    """
    file = Path(path).expanduser()
    rows = list(rows_of(file, needs=((*QUESTIONS, "messages"), ("answer", "target"))))
    is_told = kind is not None or any("kind" in row for row, _, _ in rows)
    looks = "math" if is_told else kind_of_rows([row for row, _, _ in rows])
    items = list(items_of(rows, kind or looks, file.name.split(".")[0]))
    _refuse_twice(items, file)
    kinds = {item.problem.kind for item in items}
    common = next(iter(kinds), "math")
    return Task(
        name=file.name,
        kind=common,
        load=lambda limit, seed: sample(items, limit),
        sampling=Sampling(max_tokens=1024),
        params={"path": str(path)},
        note=_note([row for row, _, _ in rows], common, is_told=is_told),
    )


def _note(rows: Sequence[Mapping[str, Any]], kind: str, *, is_told: bool) -> str:
    """What was inferred from the rows, and which columns were ignored; empty where there is nothing to report."""
    notes = []
    if kind != "math" and not is_told:
        notes.append(f"judging by their form, the answers are of kind {kind} (another: --set task.kind=KIND)")
    words = [gold for gold in map(_gold, rows) if not _mathematical(gold) and _WORD.search(gold)]
    if words and kind == "math" and not is_told:
        some = f"{len(words)} of {len(rows)} do not look like it, such as {words[0][:40]!r}"
        notes.append(f"the answers are read as mathematics, but {some} (another: --set task.kind=exact)")
    read = {*_KNOWN, *((*OPTIONS, *LETTERS) if kind == "choice" else ())}
    others = list(dict.fromkeys(name for row in rows for name in row if name not in read))
    if others:
        notes.append(f"never shown to the model: {', '.join(others)}")
    return "; ".join(notes)


def _refuse_twice(items: Sequence[Item], file: Path) -> None:
    """Refuse two problems with the same id, even if a limit would leave one out."""
    numbers: dict[str, int] = {}
    for number, item in enumerate(items, start=1):
        first = numbers.setdefault(item.problem.id, number)
        if first != number:
            raise ConfigError(
                f"{file}: two problems have the id {item.problem.id!r}, number {first} and number {number}; "
                "give each its own, or leave the ids out"
            )


def _refuse_unknown(
    data: Mapping[str, Any], fields: tuple[str, ...], where: object, error: type[TTCError] = RecordError
) -> None:
    for name in data:
        if name not in fields:
            raise error(f"{where}: {name}: no such field{nearest(name, fields)} (known: {', '.join(fields)})")


# -- a task in TOML ----------------------------------------------------------------------------------------------------
TOML_FIELDS = (
    "name", "data", "system", "prompt", "target", "kind", "verifier", "id", "difficulty", "cluster", "max_tokens",
)  # fmt: skip
COLUMNS = ("id", "difficulty", "cluster")
_KIND_OF = {"countdown": "expression", "game24": "expression", "procedural": "exact", "code": "code"}
"""The answer kind of verifiers that are not named after their kind; `format` if they judge the whole text."""
_WHOLE = ("instructions", "language", "format", "regex", "judge", "safety")
_PLACE = re.compile(r"\{\{|\}\}|\{([^{}\s]+)\}|[{}]")


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
    max_tokens: int


def toml_task(path: str) -> Task:
    """Return the task in the TOML file `path`.

    Raises:
        ConfigError: the file cannot be read, or a field is missing, unknown or of the wrong type.
        RecordError: a row of its data lacks a field.
    """
    spec = _read(Path(path).expanduser())
    items = list(_toml_items(spec))
    _refuse_twice(items, spec.data)
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
    _refuse_unknown(table, TOML_FIELDS, file, ConfigError)
    kind = _text(file, table, "kind", "")
    check = _check(file, table.get("verifier"), kind)
    data = file.parent / Path(_text(file, table, "data")).expanduser()
    if not data.is_file():
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
        max_tokens=max_tokens,
    )


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
    for row, where, number in rows_of(spec.data, needs=[(name,) for name in fields]):
        messages = [Message("system", _filled(spec.system, row, where))] if spec.system else []
        messages.append(Message("user", _filled(spec.prompt, row, where)))
        target = _toml_target(spec, row, where)
        if spec.check.verifier == "math":
            target = _asked(_without_solution(target) if isinstance(target, str) else target, _last_question(messages))
        name = _column(spec, row, where, "id") or f"{spec.name}-{number}"
        yield Item(
            Problem(name, tuple(messages), spec.kind),
            target,
            _column(spec, row, where, "cluster") or "",
            _column(spec, row, where, "difficulty"),
        )


def _field(row: Mapping[str, Any], name: str, where: str) -> Any:
    if row.get(name) is None:
        raise RecordError(f"{where}: {name}: is missing{nearest(name, tuple(row))}")
    return row[name]


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


# -- a mixture of tasks ------------------------------------------------------------------------------------------------
RewardedBy: TypeAlias = Literal["both", "verifier", "learnt"]


@dataclass(frozen=True, slots=True)
class MixturePart:
    """One task of a mixture; see the module."""

    task: str
    share: float | None = None
    reward: RewardedBy = "both"
    leave_out: tuple[str, ...] = ()
    limit: int | None = None

    def __post_init__(self) -> None:
        """Refuse shares and limits that take nothing."""
        above("mixture", 0, share=self.share)
        at_least("mixture", 1, limit=self.limit)


def mixture(path: str, *, data: str | None = None) -> Task:
    """Several tasks as one.

    Args:
        path: the TOML file.
        data: folder with local copies of the parts' data sets; absent: the hub.
    """
    tables = load_toml(Path(path).expanduser())
    if set(tables) != {"parts"} or not isinstance(tables["parts"], Mapping) or not tables["parts"]:
        raise ConfigError(f"{path}: a mixture takes tables [parts.NAME], nothing else")
    parts = {name: build(MixturePart, table, where=f"{path}: parts.{name}.") for name, table in tables["parts"].items()}
    if len({part.share is None for part in parts.values()}) > 1:
        raise ConfigError(f"{path}: give every part a share, or none")
    tasks = {name: _named_task(part.task, data) for name, part in parts.items()}

    def load(limit: int | None, seed: int) -> list[Item]:
        return balanced(
            {name: _part_items(name, parts[name], task, seed) for name, task in tasks.items()}, parts, limit
        )

    return Task(
        name=Path(path).name,
        kind=next(iter(tasks.values())).kind,
        load=load,
        sampling=Sampling(max_tokens=max(task.sampling.max_tokens for task in tasks.values())),
        params={"path": path},
        verifier=VerifierSpec("mixture", {"parts": {name: _check_of(task) for name, task in tasks.items()}}),
        procedural=any(task.procedural for task in tasks.values()),
    )


def _named_task(spec: str, data: str | None) -> Task:
    from evals.tasks import TASKS, load_task

    name, options = parse_spec(spec)
    supply = {"data": data} if data is not None and "data" not in options else {}
    task: Task = TASKS.checked(name, call(load_task(name), options, supply=supply))
    return task


def _check_of(task: Task) -> dict[str, Json]:
    return {"verifier": task.check.verifier, "params": dict(task.check.params)}


def _part_items(name: str, part: MixturePart, task: Task, seed: int) -> list[Item]:
    items = [item for item in task.items(part.limit, seed) if item.problem.kind not in part.leave_out]
    if not items:
        raise ConfigError(f"mixture: parts.{name}.leave_out leaves nothing of {part.task}")
    return [_renamed(name, part, item) for item in items]


def _renamed(name: str, part: MixturePart, item: Item) -> Item:
    target: dict[str, Any] = {"part": name, "target": item.target}
    if part.reward != "both":
        target["reward"] = part.reward
    cluster = f"{name}/{item.cluster}" if item.cluster else ""
    return Item(replace(item.problem, id=f"{name}/{item.problem.id}"), target, cluster, name)


def balanced(rows: Mapping[str, Sequence[Item]], parts: Mapping[str, MixturePart], limit: int | None) -> list[Item]:
    """As many rows in the shares of their parts as there are without taking one twice, at most `limit`."""
    shares = {name: part.share for name, part in parts.items() if part.share is not None}
    if not shares:
        return sample([item for items in rows.values() for item in items], limit)
    total = sum(shares.values())
    most = min(len(rows[name]) * total / share for name, share in shares.items())
    most = most if limit is None else min(most, limit)
    return [item for name in rows for item in sample(rows[name], max(int(most * shares[name] / total + 1e-9), 1))]


# -- rows: what is asked, what is right, and what cannot be read -------------------------------------------------------
FIELDS = ("id", "problem", "messages", "answer", "target", "kind", "cluster", "difficulty", "meta")
QUESTIONS = ("problem", "question", "prompt")
"""Possible names of the question's column."""
_KNOWN = (*FIELDS, *QUESTIONS[1:])
_SPELLING = 0.85
"""From this similarity to a field's name on, a column counts as a misspelling."""
_SOLUTION_END = "####"
OPTIONS = ("choices", "options")
"""Possible names of the options' column, where they are not in columns A, B, C, ..."""
LETTERS = "ABCDEFGHIJ"
READ = frozenset({*_KNOWN, *OPTIONS, *LETTERS})
"""Every column that is read."""
_LETTER = re.compile(rf"\(?([{LETTERS}])\)?")
_WORD = re.compile(r"\A[^$]*[^\W\d_]{2}[^$]*\Z")
"""Words that are neither variables nor formulas."""
_PICTURE = re.compile(r"images?(?:_?\d+)?", re.IGNORECASE)
_MATHS = re.compile(r"\d|\\|[=^√π∞+*<>]")

NumberedRow: TypeAlias = tuple[Mapping[str, Any], str, int]
"""A row, its place ("file, line n"), and its number from 1."""


def items_of(rows: Iterable[NumberedRow], default_kind: str, stem: str) -> Iterator[Item]:
    """Yield the items of `rows`; `stem` begins the ids of those that have none.

    Raises:
        RecordError: a row is broken; names where, and the field.
    """
    common: str | None = None
    right: set[tuple[str, ...]] = set()
    for data, where, number in rows:
        columns = tuple(data)
        if columns not in right:  # most files have the same in every row
            _refuse_published(data, where)
            _refuse_misspelt(data, where)
            right.add(columns)
        _refuse_pictures(data, where)
        kind = optional_text(data, "kind", where) or default_kind
        if kind not in CHECKS:
            raise RecordError(f"{where}: kind: {kind!r} is not one of {', '.join(CHECKS)}")
        common = common or kind
        if kind != common:
            raise RecordError(f"{where}: kind: {kind!r}, but the lines before are {common!r}; split the file by kind")
        meta = data.get("meta", {})
        if not isinstance(meta, dict):
            raise RecordError(f"{where}: meta: expected an object, got {meta!r}")
        name = optional_text(data, "id", where) or f"{stem}-{number}"
        question = _question(data, where)
        target = _target(data, where)
        options = _options(data, where) if kind == "choice" else ()
        if kind != "choice":
            _refuse_unasked(data, kind, where)
        if options and question is not None:
            question, target = _lettered(question, options), _chosen(target, options, data, where)
        messages = _messages(data, question, where, kind)
        if kind in ("math", "number"):
            target = _asked(target, _last_question(messages) if question is None else question)
        yield Item(
            Problem(name, messages, kind, meta),
            target,
            optional_text(data, "cluster", where) or "",
            optional_text(data, "difficulty", where),
        )


def kind_of_rows(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the answer kind that these rows look like: as they say, else by their answers.

    Single letters, and rows that all have options, are a choice; numbers, formulas and unclear answers are math; words,
    dates and codes are exact.
    """
    listed = list(rows)
    golds: list[str] = []
    for row in listed:
        if row.get("kind"):
            return str(row["kind"])
        golds.append(_gold(row))
    if listed and all(map(_offers, listed, golds)):
        return "choice"
    if golds and all(_LETTER.fullmatch(gold.strip()) for gold in golds):
        return "choice"
    return "math" if not golds or any(map(_mathematical, golds)) else "exact"


def _gold(row: Mapping[str, Any]) -> str:
    """The first right answer of a row as text."""
    gold = row.get("answer", row.get("target"))
    return str(gold.get("answer", "")) if isinstance(gold, Mapping) else str(gold)


def _offers(row: Mapping[str, Any], gold: str) -> bool:
    """Whether a row has a list of options, or columns of options of which its gold names one."""
    if any(name in row for name in OPTIONS):
        return True
    columns = [str(row[letter]) for letter in LETTERS if row.get(letter) is not None]
    match = _LETTER.fullmatch(gold.strip())
    return len(columns) > 1 and (gold in columns if match is None else row.get(match[1]) is not None)


def _mathematical(gold: str) -> bool:
    """Whether a gold has digits or mathematical signs, other than those of a date, a telephone number or a code."""
    text = plain(gold)
    return bool(_MATHS.search(gold)) and (not designation(text) or bool(chemical(text)))


_PUBLISHED: Mapping[str, frozenset[str]] = {
    "humaneval": frozenset({"prompt", "entry_point", "test"}), "mbpp": frozenset({"code", "test_list"}),
    "livecodebench": frozenset({"question_content", "public_test_cases"}),
    "ifeval": frozenset({"prompt", "instruction_id_list"}), "svamp": frozenset({"body", "question", "equation"}),
    "countdown": frozenset({"nums", "target"}), "countdown or --task game24": frozenset({"numbers", "target"}),
}  # fmt: skip
"""Columns that identify published datasets, whose golds differ from ours in form."""


def _refuse_published(data: Mapping[str, Any], where: str) -> None:
    """Refuse a row of a published dataset that a named task reads, if a field is missing or occurs twice."""
    if all(sum(name in data for name in names) == 1 for names in ((*QUESTIONS, "messages"), ("answer", "target"))):
        return
    names = {name.lower() for name in data}
    for task, columns in _PUBLISHED.items():
        if columns <= names:
            raise RecordError(
                f"{where}: {', '.join(sorted(columns))}: these are columns of a published dataset, which is no task "
                f"of questions and answers: --task {task} reads it, with --data the folder that holds the file"
            )


def _refuse_misspelt(data: Mapping[str, Any], where: str) -> None:
    """Refuse a column that is nearly a field; where a field is missing, any column that is not a field."""
    needs = ((*QUESTIONS, "messages"), ("answer", "target"))
    lacks = [name for names in needs if not any(name in data for name in names) for name in names]
    for name in data:
        if name in _KNOWN:
            continue
        near = nearest(name, lacks)
        if near or difflib.get_close_matches(name, FIELDS, n=1, cutoff=_SPELLING):
            raise RecordError(
                f"{where}: {name}: no such field{near or nearest(name, FIELDS)} (known: {', '.join(_KNOWN)})"
            )


def _refuse_unasked(data: Mapping[str, Any], kind: str, where: str) -> None:
    """Refuse a letter as answer where the rows are of another kind, as its options would not be shown."""
    name = next((name for name in OPTIONS if isinstance(data.get(name), list)), None)
    letter = _LETTER.fullmatch(_gold(data).strip())
    if name and letter and LETTERS.index(letter[1]) < len(data[name]):
        raise RecordError(
            f"{where}: {name}: options that would not be shown, as the rows are read as {kind}: "
            "put the rows with options into a file of their own"
        )


def _refuse_pictures(data: Mapping[str, Any], where: str) -> None:
    """Refuse a row with a picture: without it, the question would be another one."""
    pictures = {name: value for name, value in data.items() if _PICTURE.fullmatch(name) and value is not None}
    name = next((name for name, value in pictures.items() if not isinstance(value, str | list) or value), None)
    if name is not None:
        raise RecordError(
            f"{where}: {name}: pictures cannot be asked about; leave out the rows that need one, "
            "or the column where none does"
        )


def optional_text(data: Mapping[str, Any], name: str, where: str) -> str | None:
    """Return a text field, or None when absent; whole numbers are written out."""
    value = data.get(name)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if value is not None and (not isinstance(value, str) or not value.strip()):
        raise RecordError(f"{where}: {name}: expected a non-empty string, got {value!r}")
    return value


def _question(data: Mapping[str, Any], where: str) -> str | None:
    """The text of the question; None for a row of messages."""
    names = [name for name in (*QUESTIONS, "messages") if name in data]
    if len(names) != 1:
        listed = f"{', '.join(names[:-1])} and {names[-1]} are both there: " if names else ""
        raise RecordError(f"{where}: problem: {listed}give either problem or messages (problem: or question, prompt)")
    if names == ["messages"]:
        return None
    text = optional_text(data, names[0], where)
    if text is None:
        raise RecordError(f"{where}: {names[0]}: expected a non-empty string, got null")
    return text


def _options(data: Mapping[str, Any], where: str) -> list[str]:
    """The options of a row in the order of their letters; none where it has none."""
    name = next((name for name in OPTIONS if name in data), None)
    letters = [letter for letter in LETTERS if data.get(letter) is not None]
    if name is None and len(letters) < 2:
        return []
    if name is None and letters != list(LETTERS[: len(letters)]):
        raise RecordError(f"{where}: options in the columns {', '.join(letters)}: fill them from A on, without a gap")
    listed = data[name] if name else [data[letter] for letter in letters]
    options = [as_text(option) for option in listed] if isinstance(listed, list) else []
    if not 2 <= len(options) <= len(LETTERS) or not all(isinstance(text, str) and text.strip() for text in options):
        raise RecordError(f"{where}: {name or 'A'}: expected a list of 2 to {len(LETTERS)} texts, got {listed!r}")
    return options


def _lettered(question: str, options: Sequence[str]) -> str:
    """The question with its options; unchanged where it already lists all of them with their letters."""
    pairs = list(zip(LETTERS, options, strict=False))
    if all(re.search(rf"\b{letter}\W{{1,3}}{re.escape(option)}", question) for letter, option in pairs):
        return question
    lines = [f"({letter}) {option}" for letter, option in pairs]
    return "\n".join([question.rstrip(), "", *lines])


def _chosen(target: TargetLike, options: Sequence[str], data: Mapping[str, Any], where: str) -> TargetLike:
    """The letter and the text of the right option; the target is one of the two."""
    if not isinstance(target, str):
        return target
    letter = _letter(target, options, data, where)
    return choice_target(letter, options[LETTERS.index(letter)].strip(), options)


def _letter(target: str, options: Sequence[str], data: Mapping[str, Any], where: str) -> str:
    """The letter that a target is, or whose option it is; an ambiguous one is refused."""
    letters, text = LETTERS[: len(options)], target.strip()
    match = _LETTER.fullmatch(text)
    letter = match[1] if match is not None and match[1] in letters else None
    places = [place for place, option in zip(letters, options, strict=True) if option.strip() == text]
    if letter is not None:
        if text == letter and places and places != [letter]:
            raise RecordError(
                f"{where}: answer: {text!r} is a letter and the text of option {places[0]}: write ({text}) for the "
                f"letter, ({places[0]}) for the text"
            )
        return letter
    by_index = _indexed(data, options, letters)
    if len(places) != 1 or by_index not in ("", places[0]):
        hint = f"; as an index from 0 it would be {by_index}" if by_index else ""
        readings = f"; as the text of an option it would be {places[0]}" if places and by_index else ""
        raise RecordError(
            f"{where}: answer: expected a letter from A to {letters[-1]} or one option, got {target!r}{readings}{hint}"
        )
    return places[0]


def _indexed(data: Mapping[str, Any], options: Sequence[str], letters: str) -> str:
    """The letter of a numeric answer read as an index of text options; empty where it is none."""
    answer = data.get("answer", data.get("target"))
    listed = next((data[name] for name in OPTIONS if name in data), [data.get(letter) for letter in letters])
    is_index = isinstance(answer, int) and all(isinstance(option, str) for option in listed)
    return letters[answer] if is_index and 0 <= answer < len(options) else ""


def _messages(data: Mapping[str, Any], question: str | None, where: str, kind: str) -> tuple[Message, ...]:
    if question is not None:
        return (Message("user", f"{question}\n\n{INSTRUCTIONS[kind]}".rstrip()),)
    messages = data["messages"]
    if not isinstance(messages, list) or not messages:
        raise RecordError(f"{where}: messages: expected a non-empty list")
    turns = tuple(_message(message, f"{where}: messages[{i}]") for i, message in enumerate(messages))
    if turns[-1].role == "assistant":
        raise RecordError(
            f"{where}: messages: the last turn is the assistant's, so nothing is asked; end with the user's turn"
        )
    return turns


def _last_question(messages: Sequence[Message]) -> str:
    """The user's last turn up to its last question mark; instructions on how to answer follow it."""
    text = next((message.content for message in reversed(messages) if message.role == "user"), "")
    return text[: text.rfind("?") + 1] or text


def _asked(target: TargetLike, question: str) -> TargetLike:
    """The target with the question, if the question affects which form an answer must have."""
    if isinstance(target, str):
        return with_question(target, question)
    if not isinstance(target, Mapping) or "question" in target:
        return target
    others = target.get("alternatives")
    texts = [target.get("answer"), *(others if isinstance(others, list) else [])]
    golds = [with_question(str(text), question) for text in texts if text is not None]
    words = next((gold.question for gold in golds if gold.question), "")
    return {**target, "question": words} if words else target


def _message(value: Any, where: str) -> Message:
    if not isinstance(value, dict) or set(value) != {"role", "content"}:
        raise RecordError(f"{where}: expected an object with role and content")
    if isinstance(value["content"], list):
        raise RecordError(f"{where}: content: expected text, got a list of parts; pictures cannot be asked about")
    if value["role"] not in ("system", "user", "assistant") or not isinstance(value["content"], str):
        raise RecordError(f"{where}: role must be system, user or assistant, and content a string")
    return Message(value["role"], value["content"])


def _target(data: Mapping[str, Any], where: str) -> TargetLike:
    if ("answer" in data) == ("target" in data):
        raise RecordError(f"{where}: answer: give either answer or target")
    name = "answer" if "answer" in data else "target"
    if isinstance(data[name], float) and not math.isfinite(data[name]):
        raise RecordError(f"{where}: {name}: {data[name]} is no number to hold an answer to")
    value = as_text(data[name])
    if name == "target" and not isinstance(value, str | None):
        verified: TargetLike = value
        return verified
    if not isinstance(value, str) or not value.strip():
        raise RecordError(f"{where}: {name}: expected a non-empty string or a number, got {value!r}{_several(value)}")
    return _without_solution(value)


def _without_solution(answer: str) -> str:
    """What follows the marks of GSM8K; the answer as it is without them."""
    return answer.rpartition(_SOLUTION_END)[2].strip() if _SOLUTION_END in answer else answer


def _several(value: object) -> str:
    """The hint for a value of the wrong type: a list means several right answers, a truth value a word."""
    if isinstance(value, bool):
        return f'; write the word that is the answer, "{"Yes" if value else "No"}" or "{value}"'
    if not isinstance(value, list) or not value:
        return ""
    target = json.dumps({"answer": value[0], "alternatives": value[1:]}, ensure_ascii=False)
    return f'; several right answers are written "target": {target}'


def as_text(value: Any) -> Any:
    """A number as text; everything else unchanged."""
    return repr(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
