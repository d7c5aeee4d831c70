"""Tasks in a user's file: problems in rows (`--task capitals.jsonl`), or their description in TOML.

Rows are JSON lines, plain or gzipped, one problem per line; or CSV with a line of names, a JSON array, a parquet file,
or a folder of `save_to_disk`:

    {"id": "p1", "problem": "What is 2+2?", "answer": "4"}

    problem   what is asked, with the instruction of its kind; also called question, prompt or question_stem
    messages  in place of `problem`: sent as they are
    answer    text or number, required; also called answerKey. Of a worked solution the last box counts, or what follows
              the marks of GSM8K (`... #### 4`); of a truth value yes and true, or no and false
    target    in place of `answer`: the same, or what the verifier takes, as {"answer": "2", "alternatives": ["two"]}
    id        default: the row's number
    kind      the same throughout; default: what the answers look like
    choices   a list of options, a table of them by letter, or a list of texts with one of labels; also called options,
              or columns A, B, C, ...; they are asked with their letters. The answer is a letter, a label, one of their
              texts, as a model's may be, or in every row a number, where the file shows what they are counted from

Columns that are called otherwise are named by the task's parameters (`Columns`): `--set task.answer=label`. Other
columns are left out, and never shown to a strategy: a worked solution would tell the answer.

TOML, for rows that have their own fields:

    data = "capitals.jsonl"                        # a file of rows; a path beside this file
    prompt = "What is the capital of {country}?"   # {field} of the row; {{ and }} are braces
    target = "capital"                             # a field of the row, or a table of them (see below)
    verifier = {name = "exact", case_sensitive = true}

Optional: `name` (default: the file's), `system` (a template too), `kind` (of answers; default: the verifier's own, else
math), `id`, `difficulty`, `cluster` (fields of the row), `max_tokens`. A `target` table is for verifiers that take an
object: `target = {numbers = "nums", target = "goal"}` names fields; a value that is no string is taken as it is. A
target of mathematics may be in the form of GSM8K here, too. Fields `choices`, `wrong` and `first` are as in `jsonl`;
the options stand with their letters where the prompt says {choices}, and the target names one of them. Every row is
read when the task loads; what is broken is named by file, line and field. Left out: few-shot examples other than in
the prompt, and rows from the hub.

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
import math
import re
import shlex
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from evals.data.sources import rows_of
from evals.task import CHECKS, INSTRUCTIONS, Item, Task, VerifierSpec, choice_target, has_rows, sample, shuffled
from ttc.answers.grammar import parse
from ttc.answers.kinds import KINDS, extract
from ttc.answers.tokens import Unparsed, chemical, designation, plain
from ttc.config.recipes import load_toml, parse_spec
from ttc.config.registry import VERIFIERS
from ttc.config.signatures import bind, call
from ttc.config.values import above, at_least, build, counted, nearest, why_no_file
from ttc.core import Json, Message, Problem, Sampling, TargetLike
from ttc.errors import ConfigError, RecordError, TTCError
from ttc.verifiers.maths.asked import with_question


# -- a file of rows ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Columns:
    """The columns that hold what is read, where they are not called as we call it; see `jsonl`."""

    question: str | None = None
    answer: str | None = None
    answers: str | None = None
    choices: str | None = None
    wrong: str | None = None
    first: int | None = None
    id: str | None = None
    difficulty: str | None = None
    cluster: str | None = None

    def __post_init__(self) -> None:
        """Refuse the right answer under two names, and what options are not counted from."""
        if self.answer and self.answers:
            raise ConfigError("give either answer, a column of one right answer, or answers, a list of several")
        if self.choices and self.wrong:
            raise ConfigError("give either choices, all options, or wrong, those beside the answer")
        if self.first not in (None, 0, 1):
            raise ConfigError(f"first is what the answers count the options from, 0 or 1, got {self.first}")

    @property
    def heads(self) -> frozenset[str]:
        """The names of the columns, of a path that of its first part."""
        specs = (getattr(self, field.name) for field in fields(self))
        return frozenset(name.partition(".")[0] for spec in specs if isinstance(spec, str) for name in _listed(spec))


def jsonl(
    path: str,
    *,
    kind: str | None = None,
    question: str | None = None,
    answer: str | None = None,
    answers: str | None = None,
    choices: str | None = None,
    wrong: str | None = None,
    first: int | None = None,
    id: str | None = None,
    difficulty: str | None = None,
    cluster: str | None = None,
) -> Task:
    """Problems of a file of rows.

    Args:
        path: the file.
        kind: answer kind where the lines do not say; absent: what the answers look like.
        question: column of what is asked, a text or turns; of several (passage,question) one stands below the other.
        answer: column of the right answer; as a path where it lies in another (reward_model.ground_truth).
        answers: column of a list of right answers, any of which counts.
        choices: column of the options, or one column for each (sol1,sol2).
        wrong: columns of the wrong options; with the answer they are shuffled, the same in every run.
        first: what answers that are numbers count the options from, 0 or 1; absent: as the file shows.
        id: column of names that no two rows share.
        difficulty: column of the difficulty.
        cluster: column of what the rows weigh together with.
    """
    columns = Columns(question, answer, answers, choices, wrong, first, id, difficulty, cluster)
    file = Path(path).expanduser()
    rows = list(rows_of(file, needs=(_ASKED, _ANSWERS) if columns == Columns() else ()))
    _refuse_unnamed(rows, columns, file)
    return rows_task(file.name, rows, columns, kind, {"path": str(path)}, file.name.split(".")[0])


def rows_task(
    name: str,
    rows: Sequence[NumberedRow],
    columns: Columns,
    kind: str | None,
    place: Mapping[str, Json],
    stem: str,
) -> Task:
    """The task of these rows, which came from `place`; `stem` begins the ids of those that have none."""
    ours, note = read_rows(rows, columns, kind)
    is_told = kind is not None or any("kind" in row for row, _, _ in ours)
    looks = "math" if is_told else kind_of_rows([row for row, _, _ in ours])
    items = list(items_of(ours, kind or looks, stem))
    _refuse_twice(items, name)
    common = items[0].problem.kind if items else "math"
    notes = [_note([row for row, _, _ in ours], common, is_told=is_told), note if common == "choice" else ""]
    named = {field.name: getattr(columns, field.name) for field in fields(columns)}
    return Task(
        name=name,
        kind=common,
        load=lambda limit, seed: sample(items, limit),
        sampling=Sampling(max_tokens=1024),
        params={**place, **{name: value for name, value in named.items() if value is not None}},
        note="; ".join(filter(None, notes)),
    )


def _refuse_unnamed(rows: Sequence[NumberedRow], columns: Columns, file: Path) -> None:
    """Refuse a file whose first row is one of problems already and no row of names."""
    names = rows[0][0] if rows else {}
    if names and "sv" in file.name.lower() and columns == Columns() and not READ & {*map(str.lower, names), *names}:
        raise ConfigError(
            f"{file}: its first row names the columns, such as problem and answer, but holds: {', '.join(names)}; put "
            f"a row of names before it, or name those that count: {_settings(names).partition(' (')[0]}"
        )


def _note(rows: Sequence[Mapping[str, Any]], kind: str, *, is_told: bool) -> str:
    """What was inferred from the rows, and which columns were ignored; empty where there is nothing to report."""
    notes = []
    if kind != "math" and not is_told:
        notes.append(f"judging by their form, the answers are of kind {kind} (another: --set task.kind=KIND)")
    golds = [_without_solution(gold) for gold in map(_gold, rows)]
    words = [gold for gold in golds if _is_of_words(gold)] if kind == "math" and not is_told else []
    if words:
        some = f"{len(words)} of {len(rows)} have words in them, such as {words[0][:40]!r}"
        other = "as words: --set task.kind=exact; from another column: --set task.answer=COLUMN"
        notes.append(f"the answers are read as mathematics, but {some} ({other})")
    read = {*_KNOWN, *((*OPTIONS, *COLUMN_LETTERS) if kind == "choice" else ())}
    others = list(dict.fromkeys(name for row in rows for name in row if name not in read))
    if others:
        notes.append(f"never shown to the model: {', '.join(others)}")
    return "; ".join(notes)


def _is_of_words(gold: str) -> bool:
    """Whether there are words in a gold that mathematics cannot read: none of it, or sentences and remarks about it."""
    if not _mathematical(gold):
        return bool(_WORD.search(gold))
    if not _LONG_WORD.search(gold):
        return False
    try:
        parse(plain(gold))
    except (Unparsed, RecursionError):
        return True
    return False


def _refuse_twice(items: Sequence[Item], file: object) -> None:
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
            target = _asked(_without_solution(target) if isinstance(target, str) else target, _last_question(messages))
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
        _put_answer(own, row, columns, where)
        _put_options(own, row, columns, where)
        ours.append((own, where, number))
    letters, _ = _with_letters(ours, columns)
    for (row, where, number), (choice, _, _) in zip(whole, letters, strict=True):
        options = _options(choice, where)
        target = _chosen(_target(choice, where), options, choice, where)
        yield {**row, "choices": "\n".join(_lines(options)), str(spec.target): target}, where, number


def _field(row: Mapping[str, Any], name: str, where: str) -> Any:
    value = _at(row, name)
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
_ASKED = (*QUESTIONS, "messages")
_ANSWERS = ("answer", "target")
_KNOWN = (*FIELDS, *QUESTIONS[1:])
_SPELLING = 0.85
"""From this similarity to a field's name on, a column counts as a misspelling."""
_NEAR = 0.75
"""From this similarity to a missing field's name on, a column is suggested for it."""
_SHORT = 4
"""Names of so few letters are similar to too many others."""
_SOLUTION_END = "####"
_BOX = re.compile(r"\\f?boxed\b")
OPTIONS = ("choices", "options")
"""Possible names of the options' column, where they are not in columns A, B, C, ..."""
LETTERS = string.ascii_uppercase
COLUMN_LETTERS = LETTERS[:10]
"""Names of columns of options; a column called N may hold numbers."""
_ALIASES = {"question_stem": ("question", _ASKED), "answerKey": ("answer", _ANSWERS)}
"""Names in published datasets: our name for each, and the fields that it would double."""
READ = frozenset({*_KNOWN, *OPTIONS, *COLUMN_LETTERS, *_ALIASES})
"""Every column that is read."""
_CONTEXT = ("passage", "context", "article", "body", "story", "paragraph")
"""Columns of a text that the question is about."""
_USUAL: Mapping[str, tuple[str, ...]] = {
    "question": (*QUESTIONS, "messages", "conversations", "query", "input", "instruction", "goal", "ctx", "sentence"),
    "answer": (
        *_ANSWERS, "answer_key", "answer_idx", "correct_answer", "correct_option", "correct", "label", "gold", "cop",
        "expected_answer", "gold_answer", "final_answer", "answer_number", "answers", "answers_spans", "ground_truth",
        "reward_model", "mc1_targets", "expected", "reference", "output", "solution",
    ),
    "choices": (*OPTIONS, "endings", "mc1_targets"),
}  # fmt: skip
"""What the columns of published datasets are called, the likeliest first, in small letters."""
_INSIDE = ("text", "spans", "aliases", "ground_truth", "value", "answer")
"""Where the answers stand in a column that is a table."""
_LETTER = re.compile(rf"\(?([{LETTERS}])\)?")
_ALONE = re.compile(rf"[{COLUMN_LETTERS}]|\([A-Z]\)")
"""What is a letter of a choice though no options are told apart: M may be an answer of its own."""
_WORD = re.compile(r"\A[^$]*[^\W\d_]{2}[^$]*\Z")
"""Words that are neither variables nor formulas."""
_LONG_WORD = re.compile(r"(?<![\\{])\b[^\W\d_]{4,}")
"""Words longer than a variable that are no LaTeX command."""
_PICTURE = re.compile(r"images?(?:_?\d+)?", re.IGNORECASE)
_MATHS = re.compile(r"\d|\\|[=^√π∞+*<>]")

NumberedRow: TypeAlias = tuple[Mapping[str, Any], str, int]
"""A row, its place ("file, line n"), and its number from 1."""


# -- rows of any columns, in our names ---------------------------------------------------------------------------------
def read_rows(
    rows: Sequence[NumberedRow], columns: Columns, kind: str | None = None
) -> tuple[Sequence[NumberedRow], str]:
    """The rows with our names and one form of options and answers, and what is to be told of it.

    Raises:
        RecordError: a column that is named is not there, or holds nothing that can be read.
    """
    ours: list[NumberedRow] = [(_in_our_names(row, columns, where), where, number) for row, where, number in rows]
    return _with_letters(ours, columns) if kind in (None, "choice") else (ours, "")


def _with_letters(ours: Sequence[NumberedRow], columns: Columns) -> tuple[Sequence[NumberedRow], str]:
    """The rows, answers that count the options replaced by letters, and from where they count."""
    first = columns.first if columns.first is not None else _counted_from(ours)
    if first is None:
        return ours, ""
    letters: list[NumberedRow] = [
        ({**row, "answer": _at_number(row, first, where)}, where, number) for row, where, number in ours
    ]
    other = "" if columns.first is not None else f" (from {1 - first}: --set task.first={1 - first})"
    return letters, f"the answers count the options from {first}{other}"


def _in_our_names(row: Mapping[str, Any], columns: Columns, where: str) -> dict[str, Any]:
    heads = columns.heads
    own = {
        name: value
        for name, value in row.items()
        if name not in heads and (value is not None or name in _ANSWERS or name not in READ)
    }
    for alias, (name, doubles) in _ALIASES.items():
        if alias in own and not any(own.get(double) is not None for double in doubles):
            own = {**{key: value for key, value in own.items() if key not in doubles}, name: own[alias]}
            del own[alias]
    for name in ("id", "difficulty", "cluster"):
        column = getattr(columns, name)
        if column is not None:
            own[name] = _value(row, column, where)
    if columns.question is not None:
        own = {name: value for name, value in own.items() if name not in _ASKED}
        parts = [_value(row, column, where) for column in _listed(columns.question)]
        own["question"] = parts[0] if len(parts) == 1 else "\n\n".join(str(part).strip() for part in parts)
    turns = next((name for name in QUESTIONS if isinstance(own.get(name), list)), None)
    if turns is not None and "messages" not in own:
        own["messages"] = own.pop(turns)
    _put_answer(own, row, columns, where)
    _put_options(own, row, columns, where)
    if columns.question is None:
        _refuse_unshown(own, where)
    return own


def _put_answer(own: dict[str, Any], row: Mapping[str, Any], columns: Columns, where: str) -> None:
    """Replace the answer by that of the columns that are named, and what has two spellings by both."""
    column = columns.answer or columns.answers
    if column is not None:
        for name in _ANSWERS:
            own.pop(name, None)
        own["answer"] = _value(row, column, where)
    name = next((field for field in _ANSWERS if field in own), "")
    value = own.get(name)
    if columns.answers is not None:
        texts = value if isinstance(value, list) else [value]
        golds = list(dict.fromkeys(str(as_text(text)).strip() for text in texts if text is not None))
        if not all(golds) or not golds:
            raise RecordError(
                f"{where}: {columns.answers}: expected one right answer or more, got {value!r}; leave such rows out"
            )
        del own["answer"]
        own["target"] = {"answer": golds[0], "alternatives": golds[1:]} if golds[1:] else golds[0]
    elif isinstance(value, list) and len(value) == 1:
        own[name] = value[0]
    elif isinstance(value, bool):
        del own[name]
        own["target"] = {"answer": "Yes" if value else "No", "alternatives": [str(value)]}


def _put_options(own: dict[str, Any], row: Mapping[str, Any], columns: Columns, where: str) -> None:
    """Replace options of any form by a list of their texts, and an answer that names one by its letter."""
    if columns.choices is not None or columns.wrong is not None:
        for name in (*OPTIONS, *COLUMN_LETTERS):
            own.pop(name, None)
    if columns.wrong is not None:
        values = [_value(row, column, where) for column in _listed(columns.wrong)]
        wrong = values[0] if len(values) == 1 and isinstance(values[0], list) else values
        right = next((own.pop(name) for name in _ANSWERS if own.get(name) is not None), None)
        if right is not None:  # else its lack is told with all that is missing
            _put_shuffled(own, [str(as_text(option)).strip() for option in (right, *wrong)])
        return
    if columns.choices is not None:
        names = _listed(columns.choices)
        own["choices"] = _value(row, names[0], where) if len(names) == 1 else [_value(row, n, where) for n in names]
    name = next((option for option in OPTIONS if option in own), "")
    table = own.get(name)
    if isinstance(table, Mapping):
        texts = next((table[key] for key in ("text", "choices") if isinstance(table.get(key), list)), None)
        marks = next((table[key] for key in ("label", "labels") if isinstance(table.get(key), list)), None)
        if texts is None:
            pairs = [(mark, text) for mark, text in table.items() if text is not None]  # tables of all rows alike
            texts, marks = [text for _, text in pairs], [mark for mark, _ in pairs]
        own[name] = texts
        if marks is not None and len(marks) == len(texts):
            _put_labelled(own, name, marks, where)
    if isinstance(own.get(name), list):
        own[name] = _bare(own[name])


def _put_labelled(own: dict[str, Any], name: str, labels: Sequence[Any], where: str) -> None:
    """Replace a label that is the answer by its letter; shuffle where labels mark the right one, since it is first."""
    if "answer" not in own and "target" not in own and set(labels) <= {0, 1}:
        if sum(labels) != 1:
            raise RecordError(f"{where}: {name}: {sum(labels)} options are marked as right, and not one")
        place = labels.index(1)
        options = [str(option).strip() for option in own.pop(name)]
        _put_shuffled(own, [options[place], *options[:place], *options[place + 1 :]])
        return
    gold = str(as_text(own.get("answer"))).strip()
    marks = [str(as_text(label)).strip() for label in labels]
    if marks.count(gold) == 1 and marks.index(gold) < len(LETTERS):
        own["answer"] = f"({LETTERS[marks.index(gold)]})"


def _put_shuffled(own: dict[str, Any], options: Sequence[str]) -> None:
    """Put options whose first is right in an order that the question decides."""
    order = shuffled(str(next((own[name] for name in _ASKED if name in own), "")), len(options))
    own["choices"] = [options[number] for number in order]
    own["answer"] = f"({LETTERS[order.index(0)]})" if len(options) <= len(LETTERS) else options[0]


def _bare(options: Sequence[Any]) -> list[Any]:
    """The options without their letters, where each begins with its own: `A)21`."""
    patterns = [re.compile(rf"\s*(?:\({letter}\)|{letter}[).:])\s*") for letter in LETTERS[: len(options)]]
    matches = [pattern.match(text) for pattern, text in zip(patterns, options, strict=False) if isinstance(text, str)]
    if len(matches) != len(options) or not all(matches):
        return list(options)
    return [match.string[match.end() :] or match.string for match in matches if match]


def _counted_from(rows: Sequence[NumberedRow]) -> int | None:
    """What answers that are numbers count their options from; None where they are letters or texts.

    Raises:
        RecordError: they are numbers, and nothing shows from where they count.
    """
    pairs = []
    for row, _, _ in rows:
        options: list[Any] = next((row[name] for name in OPTIONS if isinstance(row.get(name), list)), [])
        number = _whole(row.get("answer", row.get("target")))
        if number is None or len(options) < 2:  # columns A, B, C may be of something else
            return None
        pairs.append((number, [str(as_text(option)).strip() for option in options]))
    if not pairs or all(options.count(str(number)) == 1 for number, options in pairs):
        return None
    firsts = [first for first in (0, 1) if all(first <= number < first + len(options) for number, options in pairs)]
    if len(firsts) == 2:
        _, where, _ = rows[0]
        raise RecordError(
            f"{where}: answer: the {counted(len(rows), 'answer')} may count the options from 0 or from 1: say which by "
            "--set task.first=0 or --set task.first=1"
        )
    return firsts[0] if firsts else None


def _whole(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    return int(value) if re.fullmatch(r"\d{1,2}", str(value).strip()) else None


def _at_number(row: Mapping[str, Any], first: int, where: str) -> str:
    """The letter of the option that an answer counts to."""
    number = _whole(row.get("answer", row.get("target")))
    place = -1 if number is None else number - first
    options = next((row[name] for name in OPTIONS if isinstance(row.get(name), list)), None)
    options = options or [row[letter] for letter in COLUMN_LETTERS if row.get(letter) is not None]
    if not 0 <= place < min(len(options), len(LETTERS)):
        raise RecordError(
            f"{where}: answer: expected a number from {first} to {first + len(options) - 1} (task.first is {first}), "
            f"got {row.get('answer', row.get('target'))!r}"
        )
    return f"({LETTERS[place]})"


def _listed(spec: str) -> list[str]:
    return [name.strip() for name in spec.split(",") if name.strip()]


def _value(row: Mapping[str, Any], column: str, where: str) -> Any:
    """What stands in a column, or at a path into it."""
    value = _at(row, column)
    if value is None:
        raise RecordError(f"{where}: no column {column}, or nothing in it (there are: {', '.join(row)})")
    return value


def _at(row: Mapping[str, Any], column: str) -> Any:
    """What stands in a column, or at a path into it; None where nothing does."""
    if row.get(column) is not None:
        return row[column]
    value: Any = row
    for part in column.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _setting(field: str, row: Mapping[str, Any], fallback: str = "") -> str:
    """The option that names the likeliest column of a row for a field; `fallback` where there is none."""
    by_name = {name.lower().replace(" ", "_"): name for name in row}
    near = difflib.get_close_matches(field, by_name, n=1, cutoff=_NEAR) if fallback else []
    column = next((by_name[usual] for usual in (*_USUAL[field], *near) if usual in by_name), None)
    if column is None:
        return fallback
    value, option, path = row[column], field, column
    inner = next((name for name in _INSIDE if isinstance(value, Mapping) and value.get(name)), None)
    if field == "answer" and inner is not None:
        path, value = f"{column}.{inner}", value[inner]
    if field == "answer" and isinstance(value, list) and len(value) > 1:
        option = "answers"
    about = next((name for name, text in row.items() if name.lower() in _CONTEXT and isinstance(text, str)), None)
    if field == "question" and about is not None:
        path = f"{about},{column}"
    setting = f"task.{option}={path}"
    return f"--set {shlex.quote(setting)}"


def _settings(data: Mapping[str, Any]) -> str:
    """The options that name every column that is missing."""
    parts = [
        _setting(field, data, f"--set task.{field}=COLUMN")
        for field, names in (("question", _ASKED), ("answer", _ANSWERS))
        if not any(name in data for name in names)
    ]
    if not any(name in data for name in (*OPTIONS, "A")):
        parts.append(_setting("choices", data))
    if "mc1_targets" in parts[-1]:  # its marks say which is right
        parts = [part for part in parts if not part.startswith("--set task.answer")]
    hint = f" (there are: {', '.join(data)})" if any("COLUMN" in part for part in parts) else ""
    return " ".join(filter(None, parts)) + hint


def _refuse_unshown(own: Mapping[str, Any], where: str) -> None:
    """Refuse a question beside the text that it is about, which would not be shown."""
    column = next((name for name in QUESTIONS if isinstance(own.get(name), str)), None)
    if column is None:
        return
    for name, value in own.items():
        if name.lower() in _CONTEXT and isinstance(value, str) and value.strip() and value.strip() not in own[column]:
            raise RecordError(
                f"{where}: {name}: the question may be about this text: --set task.question={name},{column} shows it, "
                f"--set task.question={column} leaves it out"
            )


# -- items -------------------------------------------------------------------------------------------------------------
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
    dates and codes are exact, and so are all answers if most are words.
    """
    listed = list(rows)
    golds: list[str] = []
    for row in listed:
        if row.get("kind"):
            return str(row["kind"])
        golds.append(_gold(row))
    if listed and all(map(_offers, listed, golds)):
        return "choice"
    if golds and all(_ALONE.fullmatch(gold.strip()) for gold in golds):
        return "choice"
    num_words = sum(bool(_WORD.search(gold)) and not _mathematical(gold) for gold in golds)
    is_exact = golds and (2 * num_words > len(golds) or not any(map(_mathematical, golds)))
    return "exact" if is_exact else "math"


def _gold(row: Mapping[str, Any]) -> str:
    """The first right answer of a row as text."""
    gold = row.get("answer", row.get("target"))
    return str(gold.get("answer", "")) if isinstance(gold, Mapping) else str(gold)


def _offers(row: Mapping[str, Any], gold: str) -> bool:
    """Whether a row has a list of options, or columns of options of which its gold names one."""
    if any(name in row for name in OPTIONS):
        return True
    columns = [str(row[letter]) for letter in COLUMN_LETTERS if row.get(letter) is not None]
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
    "countdown --set task.split=train": frozenset({"nums", "target"}),
    "game24, or --task countdown --set task.split=test,": frozenset({"numbers", "target"}),
    "gpqa": frozenset({"question", "correct answer", "incorrect answer 1"}),
    "olympiadbench": frozenset({"question", "final_answer", "is_multiple_answer"}),
}  # fmt: skip
"""Columns that identify published datasets, whose golds differ from ours in form."""


def _refuse_published(data: Mapping[str, Any], where: str) -> None:
    """Refuse a row of a published dataset that a named task reads, if a field is missing or occurs twice."""
    if all(sum(name in data for name in names) == 1 for names in (_ASKED, _ANSWERS)):
        return
    names, file = {name.lower() for name in data}, Path(where.rpartition(", ")[0])
    option = f" --data {shlex.quote(str(file))}" if file.is_file() else ""
    for task, columns in _PUBLISHED.items():
        if columns <= names:
            raise RecordError(
                f"{where}: {', '.join(sorted(columns))}: these are columns of a published dataset, which is no task "
                f"of questions and answers: --task {task}{option} reads it"
            )


def _refuse_misspelt(data: Mapping[str, Any], where: str) -> None:
    """Refuse a column that is nearly a field, and a row without a question or an answer, with how to name it."""
    usual = {name for names in _USUAL.values() for name in names}
    for name in data:
        if name in _KNOWN or len(name) <= _SHORT or name.lower().replace(" ", "_") in usual:
            continue
        if difflib.get_close_matches(name, FIELDS, n=1, cutoff=_SPELLING):
            raise RecordError(f"{where}: {name}: no such field{nearest(name, FIELDS)} (known: {', '.join(_KNOWN)})")
    for field, names in (("question", _ASKED), ("answer", _ANSWERS)):
        there = [name for name in names if name in data]
        if not there:
            raise RecordError(f"{where}: {names[0]}: there is none; name its column: {_settings(data)}")
        if there[1:]:
            raise RecordError(
                f"{where}: {names[0]}: {', '.join(there[:-1])} and {there[-1]} are both there: "
                f"--set task.{field}={there[0]} takes that one"
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
    value = as_text(data.get(name))
    if value is not None and (not isinstance(value, str) or not value.strip()):
        raise RecordError(f"{where}: {name}: expected a non-empty string, got {value!r}")
    return value


def _question(data: Mapping[str, Any], where: str) -> str | None:
    """The text of the question; None for a row of messages."""
    name = next(name for name in _ASKED if name in data)
    return None if name == "messages" else optional_text(data, name, where)


def _options(data: Mapping[str, Any], where: str) -> list[str]:
    """The options of a row in the order of their letters; none where it has none."""
    name = next((name for name in OPTIONS if name in data), None)
    letters = [letter for letter in COLUMN_LETTERS if data.get(letter) is not None]
    if name is None and len(letters) < 2:
        return []
    if name is None and letters != list(LETTERS[: len(letters)]):
        raise RecordError(f"{where}: options in the columns {', '.join(letters)}: fill them from A on, without a gap")
    listed = data[name] if name else [data[letter] for letter in letters]
    options = [as_text(option) for option in listed] if isinstance(listed, list) else []
    if not 2 <= len(options) <= len(LETTERS) or not all(isinstance(text, str) and text.strip() for text in options):
        hint = "; lists need JSON lines or parquet" if isinstance(listed, str) and listed.lstrip()[:1] in "[{" else ""
        raise RecordError(f"{where}: {name or 'A'}: expected a list of 2 to {len(LETTERS)} texts, got {listed!r}{hint}")
    return options


def _lettered(question: str, options: Sequence[str]) -> str:
    """The question with its options; unchanged where it already lists all of them with their letters."""
    pairs = list(zip(LETTERS, options, strict=False))
    if all(re.search(rf"\b{letter}\W{{1,3}}{re.escape(option)}", question) for letter, option in pairs):
        return question
    return "\n".join([question.rstrip(), "", *_lines(options)])


def _lines(options: Sequence[str]) -> list[str]:
    return [f"({letter}) {option}" for letter, option in zip(LETTERS, options, strict=False)]


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
    by_number = letters[int(text)] if re.fullmatch(r"\d{1,2}", text) and int(text) < len(options) else ""
    is_whole = isinstance(data.get("answer", data.get("target")), int)
    if len(places) != 1 or (is_whole and by_number not in ("", places[0])):
        hint = f"; counted from 0 it would be {by_number}: --set task.first=0" if by_number else ""
        readings = f"; as the text of an option it would be {places[0]}" if places and by_number else ""
        raise RecordError(
            f"{where}: answer: expected a letter from A to {letters[-1]} or one option, got {target!r}{readings}{hint}"
        )
    return places[0]


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


_ROLES = {"human": "user", "gpt": "assistant"}
"""Who speaks in conversations of `from` and `value`, as ShareGPT's have them."""


def _message(value: Any, where: str) -> Message:
    if isinstance(value, dict) and set(value) == {"from", "value"}:
        value = {"role": _ROLES.get(value["from"], value["from"]), "content": value["value"]}
    if not isinstance(value, dict) or set(value) != {"role", "content"}:
        raise RecordError(f"{where}: expected an object with role and content")
    if isinstance(value["content"], list):
        raise RecordError(f"{where}: content: expected text, got a list of parts; pictures cannot be asked about")
    if value["role"] not in ("system", "user", "assistant") or not isinstance(value["content"], str):
        raise RecordError(f"{where}: role must be system, user or assistant, and content a string")
    return Message(value["role"], value["content"])


def _target(data: Mapping[str, Any], where: str) -> TargetLike:
    name = next(name for name in _ANSWERS if name in data)
    if isinstance(data[name], float) and not math.isfinite(data[name]):
        raise RecordError(f"{where}: {name}: {data[name]} is no number to hold an answer to")
    value = as_text(data[name])
    if name == "target" and not isinstance(value, str | None):
        verified: TargetLike = value
        return verified
    if not isinstance(value, str) or not value.strip():
        raise RecordError(
            f"{where}: {name}: expected a non-empty string or a number, got {value!r}{_elsewhere(data, name)}"
        )
    return _without_solution(value)


def _without_solution(answer: str) -> str:
    """Of a worked solution what its last box holds, or what follows the marks of GSM8K; any other answer as it is."""
    if _BOX.search(answer):
        return extract(answer, "math").final or answer
    return answer.rpartition(_SOLUTION_END)[2].strip() if _SOLUTION_END in answer else answer


def _elsewhere(data: Mapping[str, Any], name: str) -> str:
    """How to name what holds the answer, where the column called so holds nothing, or several that are right."""
    value = data[name]
    if isinstance(value, list) and value:
        return f"; where any of them is right, --set task.answers={name} takes them all"
    others = {name: value} if isinstance(value, Mapping) else {n: v for n, v in data.items() if n not in _ANSWERS}
    setting = _setting("answer", others)
    return f"; {setting} reads it" if setting else ""


def as_text(value: Any) -> Any:
    """A number as text; everything else unchanged."""
    return repr(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
