"""Rows of any columns in one form: question, answer, options under our names, as problems are read from them.

Published datasets call their columns otherwise, keep options as tables or in several columns, and number answers from 0
or from 1. What a row shows by itself is taken; what a user names (`Columns`) goes before it; what may be meant in two
ways is refused with the setting that decides it. Left out: fields within texts.
"""

from __future__ import annotations

import difflib
import re
import shlex
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

from evals.task import shuffled
from ttc.config.values import counted
from ttc.errors import ConfigError, RecordError

FIELDS = ("id", "problem", "messages", "answer", "target", "kind", "cluster", "difficulty", "meta")
QUESTIONS = ("problem", "question", "prompt")
"""Possible names of the question's column."""
ASKED = (*QUESTIONS, "messages")
ANSWERS = ("answer", "target")
KNOWN = (*FIELDS, *QUESTIONS[1:])
OPTIONS = ("choices", "options")
"""Possible names of the options' column, where they are not in columns A, B, C, ..."""
LETTERS = string.ascii_uppercase
COLUMN_LETTERS = LETTERS[:10]
"""Names of columns of options; a column called N may hold numbers."""
_ALIASES = {"question_stem": ("question", ASKED), "answerKey": ("answer", ANSWERS)}
"""Names in published datasets: our name for each, and the fields that it would double."""
READ = frozenset({*KNOWN, *OPTIONS, *COLUMN_LETTERS, *_ALIASES})
"""Every column that is read."""
_CONTEXT = ("passage", "context", "article", "body", "story", "paragraph")
"""Columns of a text that the question is about."""
USUAL_NAMES: Mapping[str, tuple[str, ...]] = {
    "question": (*QUESTIONS, "messages", "conversations", "query", "input", "instruction", "goal", "ctx", "sentence"),
    "answer": (
        *ANSWERS, "answer_key", "answer_idx", "correct_answer", "correct_option", "correct", "label", "gold", "cop",
        "expected_answer", "gold_answer", "final_answer", "answer_number", "answers", "answers_spans", "ground_truth",
        "reward_model", "mc1_targets", "expected", "reference", "output", "solution",
    ),
    "choices": (*OPTIONS, "endings", "mc1_targets"),
}  # fmt: skip
"""What the columns of published datasets are called, the likeliest first, in small letters."""
_INSIDE = ("text", "spans", "aliases", "ground_truth", "value", "answer")
"""Where the answers stand in a column that is a table."""
_NEAR = 0.75
"""From this similarity to a missing field's name on, a column is suggested for it."""

NumberedRow: TypeAlias = tuple[Mapping[str, Any], str, int]
"""A row, its place ("file, line n"), and its number from 1."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns that hold what is read, where they are not called as we call it; see `evals.tasks.rows`.

    Args:
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
        return frozenset(name.partition(".")[0] for spec in specs if isinstance(spec, str) for name in listed(spec))


def read_rows(
    rows: Sequence[NumberedRow], columns: Columns, kind: str | None = None
) -> tuple[Sequence[NumberedRow], str]:
    """The rows with our names and one form of options and answers, and what is to be told of it.

    Raises:
        RecordError: a column that is named is not there, or holds nothing that can be read.
    """
    ours: list[NumberedRow] = [(_in_our_names(row, columns, where), where, number) for row, where, number in rows]
    return with_letters(ours, columns) if kind in (None, "choice") else (ours, "")


def with_letters(ours: Sequence[NumberedRow], columns: Columns) -> tuple[Sequence[NumberedRow], str]:
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
        if name not in heads and (value is not None or name in ANSWERS or name not in READ)
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
        own = {name: value for name, value in own.items() if name not in ASKED}
        parts = [_value(row, column, where) for column in listed(columns.question)]
        own["question"] = parts[0] if len(parts) == 1 else "\n\n".join(str(part).strip() for part in parts)
    turns = next((name for name in QUESTIONS if isinstance(own.get(name), list)), None)
    if turns is not None and "messages" not in own:
        own["messages"] = own.pop(turns)
    put_answer(own, row, columns, where)
    put_options(own, row, columns, where)
    if columns.question is None:
        _refuse_unshown(own, where)
    return own


def put_answer(own: dict[str, Any], row: Mapping[str, Any], columns: Columns, where: str) -> None:
    """Replace the answer by that of the columns that are named, and what has two spellings by both."""
    column = columns.answer or columns.answers
    if column is not None:
        for name in ANSWERS:
            own.pop(name, None)
        own["answer"] = _value(row, column, where)
    name = next((field for field in ANSWERS if field in own), "")
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


def put_options(own: dict[str, Any], row: Mapping[str, Any], columns: Columns, where: str) -> None:
    """Replace options of any form by a list of their texts, and an answer that names one by its letter."""
    if columns.choices is not None or columns.wrong is not None:
        for name in (*OPTIONS, *COLUMN_LETTERS):
            own.pop(name, None)
    if columns.wrong is not None:
        values = [_value(row, column, where) for column in listed(columns.wrong)]
        wrong = values[0] if len(values) == 1 and isinstance(values[0], list) else values
        right = next((own.pop(name) for name in ANSWERS if own.get(name) is not None), None)
        if right is not None:  # else its lack is told with all that is missing
            _put_shuffled(own, [str(as_text(option)).strip() for option in (right, *wrong)])
        return
    if columns.choices is not None:
        names = listed(columns.choices)
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
    order = shuffled(str(next((own[name] for name in ASKED if name in own), "")), len(options))
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


def listed(spec: str) -> list[str]:
    return [name.strip() for name in spec.split(",") if name.strip()]


def _value(row: Mapping[str, Any], column: str, where: str) -> Any:
    """What stands in a column, or at a path into it."""
    value = at_path(row, column)
    if value is None:
        raise RecordError(f"{where}: no column {column}, or nothing in it (there are: {', '.join(row)})")
    return value


def at_path(row: Mapping[str, Any], column: str) -> Any:
    """What stands in a column, or at a path into it; None where nothing does."""
    if row.get(column) is not None:
        return row[column]
    value: Any = row
    for part in column.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def setting_of(field: str, row: Mapping[str, Any], fallback: str = "") -> str:
    """The option that names the likeliest column of a row for a field; `fallback` where there is none."""
    by_name = {name.lower().replace(" ", "_"): name for name in row}
    near = difflib.get_close_matches(field, by_name, n=1, cutoff=_NEAR) if fallback else []
    column = next((by_name[usual] for usual in (*USUAL_NAMES[field], *near) if usual in by_name), None)
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


def settings_of(data: Mapping[str, Any]) -> str:
    """The options that name every column that is missing."""
    parts = [
        setting_of(field, data, f"--set task.{field}=COLUMN")
        for field, names in (("question", ASKED), ("answer", ANSWERS))
        if not any(name in data for name in names)
    ]
    if not any(name in data for name in (*OPTIONS, "A")):
        parts.append(setting_of("choices", data))
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


def as_text(value: Any) -> Any:
    """A number as text; everything else unchanged."""
    return repr(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
