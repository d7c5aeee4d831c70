"""Problems from rows as people have them: lines of a file, or dictionaries in Python.

    {"question": "What is 2+2?", "answer": 4}
    {"id": "p1", "problem": "What is 2+2?", "target": {"answer": "4"}, "kind": "math", "cluster": "c7"}
    {"messages": [{"role": "user", "content": "..."}], "answer": "4"}

`problem`, which may also be called `question` or `prompt`, is asked with the instruction of its kind; `messages` are
sent as they are. `answer` (text or number) or `target` (the same, or what the verifier takes) is required; of an answer
in the form of GSM8K (`... #### 4`) what follows the marks counts. `id` defaults to the row's number; `kind` must be the
same throughout. Other columns are left out, and never shown to a strategy: a worked solution would tell the answer.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from evals.task import CHECKS, INSTRUCTIONS, Item
from ttc.config.values import nearest
from ttc.core import Message, Problem, TargetLike
from ttc.errors import RecordError
from ttc.verifiers.maths.asked import with_question

FIELDS = ("id", "problem", "messages", "answer", "target", "kind", "cluster", "difficulty", "meta")
QUESTIONS = ("problem", "question", "prompt")
"""What the column of the question may be called."""
_KNOWN = (*FIELDS, *QUESTIONS[1:])
_SPELLING = 0.85
"""So alike must a column and a field be for the column to be a slip of the pen."""
_SOLUTION_END = "####"
_LETTER = re.compile(r"\(?[A-J]\)?")
_MATHS = re.compile(r"\d|\\|[=^√π∞]")

NumberedRow: TypeAlias = tuple[Mapping[str, Any], str, int]
"""A row, where it stands ("file, line n"), and its number from 1."""


def items_of(rows: Iterable[NumberedRow], default_kind: str, stem: str) -> Iterator[Item]:
    """Yield the items of `rows`; `stem` begins the ids of those that have none.

    Raises:
        RecordError: a row is broken; names where, and the field.
    """
    common: str | None = None
    for data, where, number in rows:
        _refuse_misspelt(data, where)
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
        if kind in ("math", "number") and isinstance(target, str) and question is not None:
            target = with_question(target, question)  # which decides what form an answer must have
        yield Item(
            Problem(name, _messages(data, question, where, kind), kind, meta),
            target,
            optional_text(data, "cluster", where) or "",
            optional_text(data, "difficulty", where),
        )


def kind_of_rows(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the answer kind that these rows look like: as they say, else by their answers.

    Single letters are a choice; numbers, formulas and what cannot be told are math; words alone are exact.
    """
    golds: list[str] = []
    for row in rows:
        if row.get("kind"):
            return str(row["kind"])
        gold = row.get("answer", row.get("target"))
        golds.append(str(gold.get("answer", "")) if isinstance(gold, Mapping) else str(gold))
    if golds and all(_LETTER.fullmatch(gold.strip()) for gold in golds):
        return "choice"
    return "math" if not golds or any(_MATHS.search(gold) for gold in golds) else "exact"


def _refuse_misspelt(data: Mapping[str, Any], where: str) -> None:
    """Refuse a column that is nearly a field, or any that is not one where a field is missing."""
    lacks = not any(name in data for name in (*QUESTIONS, "messages")) or not ("answer" in data or "target" in data)
    for name in data:
        if name in _KNOWN:
            continue
        near = nearest(name, FIELDS) if lacks else ""
        if near or difflib.get_close_matches(name, FIELDS, n=1, cutoff=_SPELLING):
            raise RecordError(
                f"{where}: {name}: no such field{near or nearest(name, FIELDS)} (known: {', '.join(_KNOWN)})"
            )


def optional_text(data: Mapping[str, Any], name: str, where: str) -> str | None:
    """Return a text field, or None when absent; whole numbers are written out."""
    value = data.get(name)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if value is not None and (not isinstance(value, str) or not value):
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


def _messages(data: Mapping[str, Any], question: str | None, where: str, kind: str) -> tuple[Message, ...]:
    if question is not None:
        return (Message("user", f"{question}\n\n{INSTRUCTIONS[kind]}".rstrip()),)
    messages = data["messages"]
    if not isinstance(messages, list) or not messages:
        raise RecordError(f"{where}: messages: expected a non-empty list")
    return tuple(_message(message, f"{where}: messages[{i}]") for i, message in enumerate(messages))


def _message(value: Any, where: str) -> Message:
    if not isinstance(value, dict) or set(value) != {"role", "content"}:
        raise RecordError(f"{where}: expected an object with role and content")
    if value["role"] not in ("system", "user", "assistant") or not isinstance(value["content"], str):
        raise RecordError(f"{where}: role must be system, user or assistant, and content a string")
    return Message(value["role"], value["content"])


def _target(data: Mapping[str, Any], where: str) -> TargetLike:
    if ("answer" in data) == ("target" in data):
        raise RecordError(f"{where}: answer: give either answer or target")
    name = "answer" if "answer" in data else "target"
    value = as_text(data[name])
    if name == "target" and not isinstance(value, str | None):
        verified: TargetLike = value
        return verified
    if not isinstance(value, str) or not value.strip():
        raise RecordError(f"{where}: {name}: expected a non-empty string or a number, got {value!r}")
    return value.rpartition(_SOLUTION_END)[2].strip() if _SOLUTION_END in value else value


def as_text(value: Any) -> Any:
    """A number as text; everything else as it is."""
    return repr(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
