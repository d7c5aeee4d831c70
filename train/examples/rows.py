"""Rows of a file or of a published data set: what was asked, and answers of several shapes.

A file is JSON lines, or a table by its ending: CSV, TSV, JSON or parquet (`evals.task.ROWS`). A line:

    {"prompt": "2+3", "completion": "5"}                          or "messages": [{"role": .., "content": ..}, ..]
    {"prompt": "2+3", "completion": "5", "thinking": "two and three", "mode": "on"}

Prompt and completion may be lists of turns, too, as TRL has them. Read as they are, too: rows of Alpaca (`instruction`,
`input`, `output`), and of ShareGPT (`conversations` of turns with `from` and `value`), both also with `system`; and
records of `ttc eval`, whose right candidates are completions, and right ones with wrong ones pairs (cut ones neither).
Other columns are named after the file: `mine.jsonl:prompt=question,completion=reply`. Instead of a file, rows of a
published data set may be named (`evals.data.sources.NamedRows`).

Text parts of a content are joined. Functions that may be called (`tools`), calls (`tool_calls`) and results (role tool)
go through the chat template. Other roles are system, user, assistant, and developer, which is the system. A thought at
the start of an answer, or in a field of its own, is put apart. Left out: images.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from evals.data.sources import NamedRows, with_input
from evals.data.sources import rows_of as table_rows
from evals.task import has_rows
from ttc.config.values import nearest, why_no_file
from ttc.core import Message, Prompt, ToolCall, ToolMessage, Tools, half_character
from ttc.engines.shared.text import Text
from ttc.errors import ConfigError, RecordError
from ttc.records import iterate
from ttc.session.thinking import CLOSE, OPEN, split_text

MODES: Mapping[str, bool | None] = {"auto": None, "on": True, "off": False}


def rows_of(path: Path, fields: set[str]) -> Iterable[tuple[str, dict[str, Any]]]:
    """Yield (place for messages, object) of a file whose rows may have a prompt, a mode and `fields`.

    A field that is null is left out: tables are exported with every column in every row.

    Raises:
        ConfigError: no such file or data set.
        RecordError: a line that is no object, has another field, or text that no tokenizer reads.
    """
    named = NamedRows.of(str(path))
    if named is not None:
        rows = ((f"{path}, line {number}", _as_ours(row)) for number, row in enumerate(named.rows(), start=1))
    elif not path.is_file():
        raise ConfigError(f"{path} {why_no_file(path)}; expected a file of rows, such as JSON lines")
    elif has_rows(path) and path.suffix != ".jsonl":
        rows = ((where, dict(row)) for row, where, _ in table_rows(path))
    else:
        _refuse_list(path)
        rows = ((f"{path}, line {number}", row) for number, row in iterate(path, whole=True))
    for where, row in rows:
        for one in [row] if named is not None or not isinstance(row, dict) else _under_our_names(row, fields):
            fuller = {k: v for k, v in one.items() if v is not None} if isinstance(one, dict) else one
            check_fields(fuller, fields, where)
            yield where, _from_turns(fuller, where)


def _refuse_list(path: Path) -> None:
    """Raise RecordError for a file that is one JSON list, which may be spread over many lines."""
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        first = next((line.lstrip() for line in file if line.strip()), "")
    if first.startswith("["):
        raise RecordError(f"{path}, line 1: {_LISTED}")


_LISTED = "a JSON list, not an object; write one row a line (JSON lines), or call the file .json"
_UNREAD = ("image", "images", "audio", "audios", "video", "videos")
"""Columns of data sets for models that see or hear."""
_NAMES = ("id", "cluster")
"""Names of a row: its own, and that of all variants of it."""


def check_fields(row: Any, fields: set[str], where: str) -> None:
    """Raise RecordError for a row that is no object, has another field, no name as its id, or unreadable text."""
    allowed = {"prompt", "messages", "tools", "mode", *_NAMES} | fields
    if isinstance(row, list):
        raise RecordError(f"{where}: {_LISTED}")
    if not isinstance(row, dict):
        raise RecordError(f"{where}: not a JSON object")
    for name in row:
        if name in _UNREAD:
            raise RecordError(f"{where}: {name}: only text is learnt, no images, sound or films; leave these rows out")
        if name not in allowed:
            raise RecordError(
                f"{where}: unknown field {name!r} (known: {', '.join(sorted(allowed))}); leave it out, or name the "
                "columns to read after the file: FILE:prompt=COLUMN,.."
            )
        if name in _NAMES and (isinstance(row[name], bool) or not isinstance(row[name], str | int | float | None)):
            raise RecordError(f"{where}: {name} must be a text or a number, got {_short(row[name])}")
        if half_character(json.dumps(row[name], ensure_ascii=False)) is not None:
            raise RecordError(f"{where}: {name} contains half of a character (a lone surrogate); write all of it")


def is_marked(path: Path) -> bool:
    """Whether the first row of a file has a label instead of a pair; raises like `rows_of`."""
    fields = {"completion", "thinking", "label", "weight", "chosen", "chosen_thinking", "rejected", "rejected_thinking"}
    return any("label" in row for _, row in zip(range(1), (row for _, row in rows_of(path, fields)), strict=False))


def read_prompt(row: Mapping[str, Any], text: Text, where: str) -> tuple[str, Prompt]:
    """The name of a row's prompt (its cluster, or its text whatever its mode), and its rendered form."""
    messages, mode, tools = read_turns(row, where)
    rendered = text.render(messages, mode, tools)
    if not rendered.token_ids:
        raise RecordError(f"{where}: the prompt has no tokens in the model's chat template: there is nothing to answer")
    if row.get("cluster") not in (None, ""):
        return f"cluster {row['cluster']}", rendered
    plain = rendered if mode is None else text.render(messages, None, tools)
    return hashlib.sha256(plain.text.encode("utf-8", "replace")).hexdigest()[:16], rendered


def is_remote(path: Path) -> bool:
    """Whether rows are those of a published data set that has no local copy."""
    rows = NamedRows.of(str(path))
    return rows is not None and rows.file() is None


_ANSWERS = {"completion": "thinking", "chosen": "chosen_thinking", "rejected": "rejected_thinking"}
"""Fields that hold an answer, and those of the thoughts before it."""


def _from_turns(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Convert a row whose prompt or answers are lists of turns, as in TRL, to our form; raises RecordError."""
    fields = dict(row)
    if _as_turns(fields.get("prompt")) and "messages" not in fields:
        fields["messages"] = fields.pop("prompt")
    prompt = fields.get("prompt")
    question = fields.get("messages") if prompt is None else [{"role": "user", "content": prompt}]
    for name, thought in _ANSWERS.items():
        turns = _as_turns(fields.get(name))
        if not turns:
            continue
        *before, last = turns
        if question is None and before:
            question = fields["messages"] = before
        if before and before != question:
            raise RecordError(f"{where}: the turns of {name} before its last one are not the prompt")
        if last["role"] != "assistant" or not isinstance(last.get("content"), str):
            raise RecordError(f"{where}: the last turn of {name} must be the assistant's, with a text as its content")
        fields[name], inside = thought_of(_with_thought(last))
        fields |= {} if inside is None else {thought: inside}
    return fields


def _as_turns(value: Any) -> list[Any]:
    """`value` if it is a list of turns, else None."""
    turns = value if isinstance(value, list) else []
    return turns if all(isinstance(turn, Mapping) and "role" in turn for turn in turns) else []


_ROLES = {"human": "user", "gpt": "assistant"}
"""Names of roles in data sets that have `from` and `value`."""
_COLUMNS = {"instruction": "prompt", "output": "completion", "conversations": "messages"}
"""Columns of Alpaca and ShareGPT by our names of fields."""

_RECORD = {"problem", "answer", "verdicts"}
"""What a record of `ttc eval` has."""


def _under_our_names(row: Mapping[str, Any], fields: set[str]) -> list[dict[str, Any]]:
    """The rows of a line: of a record its candidates, by their verdicts; else the line itself."""
    if not row.keys() >= _RECORD:
        return [_renamed(row)]
    kinds: dict[str, dict[str, Any]] = {"correct": {}, "incorrect": {}}
    for candidate, verdict in zip((row["answer"] or {}).get("candidates", ()), row["verdicts"] or (), strict=False):
        kind = kinds.get(str((verdict or {}).get("status")))
        if kind is not None and candidate["finish_reason"] == "stop":
            kind.setdefault(candidate["text"], candidate)  # each text once
    question, (right, wrong) = row["problem"]["messages"], (kind.values() for kind in kinds.values())
    if "chosen" in fields:
        pairs = zip(right, wrong, strict=False)
        return [{"messages": question, **_spoken("chosen", a), **_spoken("rejected", b)} for a, b in pairs]
    return [{"messages": question, **_spoken("completion", one)} for one in right]


def _spoken(name: str, candidate: Mapping[str, Any]) -> dict[str, Any]:
    return {name: candidate["text"], _ANSWERS[name]: candidate["thinking"] or None}


def _renamed(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of Alpaca or ShareGPT under our names; any other as it is."""
    fields = {name if _COLUMNS.get(name, name) in row else _COLUMNS[name]: value for name, value in row.items()}
    if fields.keys() == row.keys():
        return fields
    if "prompt" in fields and isinstance(fields.get("input"), str | None):
        fields["prompt"] = with_input(fields["prompt"], fields.pop("input", None))
    if isinstance(fields.get("messages"), list):
        fields["messages"] = [_turn(turn) if isinstance(turn, Mapping) else turn for turn in fields["messages"]]
    if isinstance(fields.get("system"), str | None):
        system = fields.pop("system", None)
        turns = fields.get("messages") or [{"role": "user", "content": fields.get("prompt")}]
        fields |= {"messages": [{"role": "system", "content": system}, *turns], "prompt": None} if system else {}
    return fields


def _as_ours(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of a published data set in our form: turns have a role, an answer is its last turn, its thought apart."""
    fields = dict(row)
    if "messages" in fields:
        fields["messages"] = [_turn(turn) if isinstance(turn, Mapping) else turn for turn in fields["messages"]]
    for name, thought in _ANSWERS.items():
        if isinstance(fields.get(name), list):
            last = _turn(fields[name][-1])
            fields[name] = last if {"tool_calls", "tool_call_id"} & last.keys() else _with_thought(last)
        if isinstance(fields.get(name), str) and fields.get(thought) is None:
            fields[name], inside = thought_of(fields[name])
            fields |= {} if inside is None else {thought: inside}
    return fields


def _turn(turn: Mapping[str, Any]) -> dict[str, Any]:
    """A turn without columns that are not text."""
    role = str(turn.get("role") or turn.get("from"))
    own = {name: turn[name] for name in ("tool_calls", "tool_call_id") if turn.get(name)}
    own |= {name: turn[name] for name in (*_THOUGHTS, "weight") if turn.get(name) is not None}
    content = turn.get("content") or turn.get("value") or ""
    return {"role": _ROLES.get(role, role), "content": content, **own}


_THOUGHTS = ("reasoning_content", "reasoning", "thinking")
"""Fields of an assistant's turn that hold its thought apart, as servers answer and templates read it."""


def _with_thought(turn: Mapping[str, Any]) -> Any:
    """The content of a turn, behind its thought where that stands apart, in the form of DeepSeek-R1 and Qwen3."""
    thought = next((turn[name] for name in _THOUGHTS if isinstance(turn.get(name), str) and turn[name].strip()), None)
    content = turn.get("content")
    if thought is None or not (content is None or isinstance(content, str)):
        return content
    return f"{OPEN}\n{thought.strip()}\n{CLOSE}\n\n{(content or '').lstrip()}"


def thought_of(text: str) -> tuple[str, str | None]:
    """An answer without the thought at its start, and that thought."""
    if not text.lstrip().startswith(OPEN) or CLOSE not in text:
        return text, None
    parts = split_text(text.lstrip(), False)
    return parts.answer, parts.thinking


def read_answer(row: Mapping[str, Any], where: str) -> tuple[str, str | None]:
    """A row's answer, and the thought before it; raises RecordError, also for an empty answer."""
    answer, thinking = row.get("completion"), row.get("thinking")
    if not isinstance(answer, str) or not (thinking is None or isinstance(thinking, str)):
        name, value = ("thinking", thinking) if isinstance(answer, str) else ("completion", answer)
        raise RecordError(f"{where}: {name} must be a text, got {_short(value)}")
    if not answer.strip():
        raise RecordError(f"{where}: the answer is empty and would teach the model to say nothing; leave the row out")
    return answer, thinking


def read_weight(row: Mapping[str, Any], where: str) -> float:
    """The weight of a row, 1 by default."""
    weight = row.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 < weight < math.inf:
        raise RecordError(f"{where}: weight must be a number above 0 and finite, got {weight!r}")
    return float(weight)


def read_turns(row: Mapping[str, Any], where: str) -> tuple[tuple[Message, ...], bool | None, Tools]:
    """A row's request: its turns, whether thinking is asked for, and the functions that may be called.

    Raises:
        RecordError: names `where`, and the field that is broken.
    """
    mode = row.get("mode", "auto")
    if not isinstance(mode, str) or mode not in MODES:
        raise RecordError(f"{where}: mode must be one of {', '.join(MODES)}, got {mode!r}")
    if ("prompt" in row) == ("messages" in row):
        raise RecordError(f"{where}: needs either prompt or messages")
    if "messages" not in row:
        return (Message("user", _content(row["prompt"], f"{where}: prompt")),), MODES[mode], _tools(row, where)
    turns = row["messages"]
    if not isinstance(turns, list) or not turns:
        raise RecordError(f"{where}: messages must be a list of one turn or more, got {_short(turns)}")
    messages = tuple(_message(turn, f"{where}: messages[{at}]") for at, turn in enumerate(turns))
    return messages, MODES[mode], _tools(row, where)


_TURN = ("role", "content", "name", "tool_calls", "tool_call_id", "weight", *_THOUGHTS)
"""What a message may have; `name` decides nothing, and `weight` whether and how much a turn is learnt."""

_SPEAKERS = ("system", "user", "assistant", "tool")
"""The roles that chat templates know: of a turn of another one, some write nothing."""

_OURS = {"developer": "system"}
"""Roles that the server takes for others, too."""


def _message(turn: Any, where: str) -> Message:
    if not isinstance(turn, Mapping) or not isinstance(turn.get("role"), str):
        raise RecordError(f"{where}: a message needs role and content as text, got {_short(turn)}")
    role = _OURS.get(turn["role"], turn["role"])
    if role not in _SPEAKERS:
        spoken = (*_SPEAKERS, *_OURS)
        raise RecordError(
            f"{where}: role must be one of {', '.join(spoken)}, got {turn['role']!r}{nearest(turn['role'], spoken)}"
        )
    for name, value in turn.items():
        if name not in _TURN and value is not None:
            raise RecordError(f"{where}: unknown field {name!r} of a message (known: {', '.join(_TURN)})")
    calls, call_id = turn.get("tool_calls") or (), turn.get("tool_call_id") or ""
    silent = bool(calls) and turn.get("content") is None
    words = _with_thought(turn) if role == "assistant" else turn.get("content")
    content = "" if silent and words is None else _content(words, f"{where}: role and content are needed: content")
    if not isinstance(call_id, str) or not isinstance(calls, (list, tuple)):
        raise RecordError(f"{where}: tool_calls must be a list, and tool_call_id a text")
    if not calls and not call_id:
        return Message(role, content)
    if calls and role != "assistant":
        raise RecordError(f"{where}: tool_calls are the assistant's, and its role is {turn['role']!r}")
    own = tuple(_call(call, f"{where}: tool_calls[{number}]") for number, call in enumerate(calls))
    return ToolMessage(role, content, own, call_id)


def _content(value: Any, where: str) -> str:
    """A text, or the joined text parts of a list."""
    parts = value if isinstance(value, list) else [{"type": "text", "text": value}]
    texts = [part.get("text") for part in parts if isinstance(part, Mapping) and part.get("type") == "text"]
    words = [text for text in texts if isinstance(text, str)]
    if len(words) < len(parts):
        raise RecordError(f"{where} must be a text, or a list of parts of type text, got {_short(value)}")
    return "".join(words)


def _call(call: Any, where: str) -> ToolCall:
    """A call of a function, whose arguments are an object or its JSON text."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RecordError(f"{where}: needs function.name and function.arguments, got {_short(call)}")
    arguments = function.get("arguments", {})
    try:
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError as exc:
        raise RecordError(f"{where}: function.arguments is not JSON ({exc})") from exc
    if not isinstance(arguments, dict):
        raise RecordError(f"{where}: function.arguments must be an object or its JSON text, got {_short(arguments)}")
    return ToolCall(function["name"], json.dumps(arguments, ensure_ascii=False), str(call.get("id") or ""))


def _tools(row: Mapping[str, Any], where: str) -> Tools:
    tools = row.get("tools") or []
    functions = [tool.get("function") for tool in tools if isinstance(tool, Mapping)] if isinstance(tools, list) else []
    named = [one for one in functions if isinstance(one, Mapping) and isinstance(one.get("name"), str)]
    if not isinstance(tools, list) or len(named) < len(tools):
        raise RecordError(f'{where}: tools must be a list of {{"type": "function", "function": {{"name": ..}}}}')
    return tools


def _short(value: Any) -> str:
    """A value, shortened for a message."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
