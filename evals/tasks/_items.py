"""Items of rows in our names (`evals.tasks._columns`).

A row says what is asked, what is right and which options there are; what cannot be read is refused with its place and
field. Left out: pictures.
"""

from __future__ import annotations

import difflib
import math
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evals.task import CHECKS, INSTRUCTIONS, Item, choice_target
from evals.tasks._columns import (
    ANSWERS,
    ASKED,
    COLUMN_LETTERS,
    FIELDS,
    KNOWN,
    LETTERS,
    OPTIONS,
    USUAL_NAMES,
    NumberedRow,
    as_text,
    setting_of,
    settings_of,
)
from ttc.answers.kinds import extract
from ttc.answers.plain import plain
from ttc.answers.words import chemical, designation
from ttc.config.values import nearest
from ttc.core import Message, Problem, TargetLike
from ttc.errors import ConfigError, RecordError, TTCError
from ttc.verifiers.maths.asked import with_question

_SPELLING = 0.85
"""From this similarity to a field's name on, a column counts as a misspelling."""
_SHORT = 4
"""Names of so few letters are similar to too many others."""
_SOLUTION_END = "####"
_BOX = re.compile(r"\\f?boxed\b")
_LETTER = re.compile(rf"\(?([{LETTERS}])\)?")
_ALONE = re.compile(rf"[{COLUMN_LETTERS}]|\([A-Z]\)")
"""What is a letter of a choice though no options are told apart: M may be an answer of its own."""
WORD = re.compile(r"\A[^$]*[^\W\d_]{2}[^$]*\Z")
"""Words that are neither variables nor formulas."""
_PICTURE = re.compile(r"images?(?:_?\d+)?", re.IGNORECASE)
_MATHS = re.compile(r"\d|\\|[=^√π∞+*<>]")


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
        target = target_of(data, where)
        options = options_of(data, where) if kind == "choice" else ()
        if kind != "choice":
            _refuse_unasked(data, kind, where)
        if options and question is not None:
            question, target = _lettered(question, options), chosen_target(target, options, data, where)
        messages = _messages(data, question, where, kind)
        if kind in ("math", "number"):
            target = with_last_question(target, last_question(messages) if question is None else question)
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
        golds.append(gold_of(row))
    if listed and all(map(_offers, listed, golds)):
        return "choice"
    if golds and all(_ALONE.fullmatch(gold.strip()) for gold in golds):
        return "choice"
    num_words = sum(bool(WORD.search(gold)) and not is_mathematical(gold) for gold in golds)
    is_exact = golds and (2 * num_words > len(golds) or not any(map(is_mathematical, golds)))
    return "exact" if is_exact else "math"


def gold_of(row: Mapping[str, Any]) -> str:
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


def is_mathematical(gold: str) -> bool:
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
    if all(sum(name in data for name in names) == 1 for names in (ASKED, ANSWERS)):
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
    usual = {name for names in USUAL_NAMES.values() for name in names}
    for name in data:
        if name in KNOWN or len(name) <= _SHORT or name.lower().replace(" ", "_") in usual:
            continue
        if difflib.get_close_matches(name, FIELDS, n=1, cutoff=_SPELLING):
            raise RecordError(f"{where}: {name}: no such field{nearest(name, FIELDS)} (known: {', '.join(KNOWN)})")
    for field, names in (("question", ASKED), ("answer", ANSWERS)):
        there = [name for name in names if name in data]
        if not there:
            raise RecordError(f"{where}: {names[0]}: there is none; name its column: {settings_of(data)}")
        if there[1:]:
            raise RecordError(
                f"{where}: {names[0]}: {', '.join(there[:-1])} and {there[-1]} are both there: "
                f"--set task.{field}={there[0]} takes that one"
            )


def _refuse_unasked(data: Mapping[str, Any], kind: str, where: str) -> None:
    """Refuse a letter as answer where the rows are of another kind, as its options would not be shown."""
    name = next((name for name in OPTIONS if isinstance(data.get(name), list)), None)
    letter = _LETTER.fullmatch(gold_of(data).strip())
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
    name = next(name for name in ASKED if name in data)
    return None if name == "messages" else optional_text(data, name, where)


def options_of(data: Mapping[str, Any], where: str) -> list[str]:
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
    return "\n".join([question.rstrip(), "", *option_lines(options)])


def option_lines(options: Sequence[str]) -> list[str]:
    return [f"({letter}) {option}" for letter, option in zip(LETTERS, options, strict=False)]


def chosen_target(target: TargetLike, options: Sequence[str], data: Mapping[str, Any], where: str) -> TargetLike:
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


def last_question(messages: Sequence[Message]) -> str:
    """The user's last turn up to its last question mark; instructions on how to answer follow it."""
    text = next((message.content for message in reversed(messages) if message.role == "user"), "")
    return text[: text.rfind("?") + 1] or text


def with_last_question(target: TargetLike, question: str) -> TargetLike:
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


def target_of(data: Mapping[str, Any], where: str) -> TargetLike:
    name = next(name for name in ANSWERS if name in data)
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
    return without_solution(value)


def without_solution(answer: str) -> str:
    """Of a worked solution what its last box holds, or what follows the marks of GSM8K; any other answer as it is."""
    if _BOX.search(answer):
        return extract(answer, "math").final or answer
    return answer.rpartition(_SOLUTION_END)[2].strip() if _SOLUTION_END in answer else answer


def _elsewhere(data: Mapping[str, Any], name: str) -> str:
    """How to name what holds the answer, where the column called so holds nothing, or several that are right."""
    value = data[name]
    if isinstance(value, list) and value:
        return f"; where any of them is right, --set task.answers={name} takes them all"
    others = {name: value} if isinstance(value, Mapping) else {n: v for n, v in data.items() if n not in ANSWERS}
    setting = setting_of("answer", others)
    return f"; {setting} reads it" if setting else ""


def refuse_twice(items: Sequence[Item], file: object) -> None:
    """Refuse two problems with the same id, even if a limit would leave one out."""
    numbers: dict[str, int] = {}
    for number, item in enumerate(items, start=1):
        first = numbers.setdefault(item.problem.id, number)
        if first != number:
            raise ConfigError(
                f"{file}: two problems have the id {item.problem.id!r}, number {first} and number {number}; "
                "give each its own, or leave the ids out"
            )


def refuse_unknown(
    data: Mapping[str, Any], fields: tuple[str, ...], where: object, error: type[TTCError] = RecordError
) -> None:
    for name in data:
        if name not in fields:
            raise error(f"{where}: {name}: no such field{nearest(name, fields)} (known: {', '.join(fields)})")
