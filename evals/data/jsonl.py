"""A task in a file: `--task path/to/file.jsonl`, one problem per line, plain or gzipped.

    {"id": "p1", "problem": "What is 2+2?", "answer": "4"}
    {"messages": [{"role": "user", "content": "..."}], "target": {"answer": "4"}, "kind": "math", "cluster": "c7"}

`problem` is asked with the instruction of its kind; `messages` are sent as they are. `answer` (text or number) or
`target` (what the verifier takes) is required; `id` defaults to the line's number; `kind` must be the same throughout.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from evals.data.sources import json_lines
from evals.task import BOXED, CHECKS, Item, Task, sample
from ttc.config.values import nearest
from ttc.core import Message, Problem, Sampling, Target
from ttc.errors import RecordError

FIELDS = ("id", "problem", "messages", "answer", "target", "kind", "cluster", "difficulty", "meta")
INSTRUCTIONS: Mapping[str, str] = {
    "math": BOXED,
    "number": BOXED,
    "choice": "Please reason step by step, and put the letter of your choice within \\boxed{}.",
    "exact": BOXED,
    "format": "",
    "expression": "Please reason step by step, and put the expression within \\boxed{}.",
    "code": "Please put the whole program into one fenced block of Python.",
}


def jsonl(path: str, *, kind: str | None = None) -> Task:
    """Problems of a JSON-lines file.

    Args:
        path: the file.
        kind: answer kind where the lines do not say; absent: math.
    """
    file = Path(path).expanduser()
    items = list(_items(file, kind or "math"))
    kinds = {item.problem.kind for item in items}
    return Task(
        name=file.name,
        kind=next(iter(kinds), "math"),
        load=lambda limit, seed: sample(items, limit),
        sampling=Sampling(max_tokens=1024),
        params={"path": str(path)},
    )


def _items(file: Path, default_kind: str) -> Iterator[Item]:
    common: str | None = None
    for data, where, number in json_lines(file):
        _refuse_unknown(data, where)
        kind = _optional(data, "kind", where) or default_kind
        if kind not in CHECKS:
            raise RecordError(f"{where}: kind: {kind!r} is not one of {', '.join(CHECKS)}")
        common = common or kind
        if kind != common:
            raise RecordError(f"{where}: kind: {kind!r}, but the lines before are {common!r}; split the file by kind")
        meta = data.get("meta", {})
        if not isinstance(meta, dict):
            raise RecordError(f"{where}: meta: expected an object, got {meta!r}")
        name = _optional(data, "id", where) or f"{file.name.split('.')[0]}-{number}"
        problem = Problem(name, _messages(data, where, kind), kind, meta)
        yield Item(
            problem,
            _target(data, where),
            _optional(data, "cluster", where) or "",
            _optional(data, "difficulty", where),
        )


def _refuse_unknown(data: Mapping[str, Any], where: str) -> None:
    for name in data:
        if name not in FIELDS:
            raise RecordError(f"{where}: {name}: no such field{nearest(name, FIELDS)} (known: {', '.join(FIELDS)})")


def _optional(data: Mapping[str, Any], name: str, where: str) -> str | None:
    """Return a text field, or None when absent; whole numbers are written out."""
    value = data.get(name)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if value is not None and (not isinstance(value, str) or not value):
        raise RecordError(f"{where}: {name}: expected a non-empty string, got {value!r}")
    return value


def _messages(data: Mapping[str, Any], where: str, kind: str) -> tuple[Message, ...]:
    if ("problem" in data) == ("messages" in data):
        raise RecordError(f"{where}: problem: give either problem or messages")
    if "problem" in data:
        text = _optional(data, "problem", where)
        if text is None:
            raise RecordError(f"{where}: problem: expected a non-empty string, got null")
        return (Message("user", f"{text}\n\n{INSTRUCTIONS[kind]}".rstrip()),)
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


def _target(data: Mapping[str, Any], where: str) -> Target:
    if ("answer" in data) == ("target" in data):
        raise RecordError(f"{where}: answer: give either answer or target")
    if "target" in data:
        target = data["target"]
        if target is None:
            raise RecordError(f"{where}: target: must not be null")
        return target
    answer = data["answer"]
    if isinstance(answer, int | float) and not isinstance(answer, bool):
        return repr(answer)
    if not isinstance(answer, str) or not answer.strip():
        raise RecordError(f"{where}: answer: expected a non-empty string or a number, got {answer!r}")
    return answer
