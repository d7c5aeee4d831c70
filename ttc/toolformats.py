"""The formats in which model families write function calls, and in which functions are presented to them.

hermes   <tool_call>{"name": ..., "arguments": {...}}</tool_call>, one block a call: Qwen2.5, Qwen3, Hermes, SmolLM3
mistral  [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]: Mistral and Mixtral
llama3   {"name": ..., "parameters": {...}}, the whole answer, several separated by "; ": Llama 3.1 and later, which may
         write <|python_tag|> before it
json     {"name": ..., "arguments": {...}}, likewise: templates that present functions in some other way
plain    as hermes: templates that present no functions

A chat template that presents functions determines the format. For one that does not, functions are presented in the
Hermes format: in the system message, with calls and results as text of the turns
(https://github.com/NousResearch/Hermes-Function-Calling). Calls need not have been written under a grammar: a block
that is not JSON is read as text. Left out: calls in XML or Python (Qwen3-Coder, the small Llama 3.2 models with
`<|python_tag|>` code), for which a request with tools is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ttc.core import Message, ToolCall, ToolMessage

__all__ = ["PLAIN", "TOOL_FORMATS", "ToolFormat", "plain_turns", "shows_tools", "texts_of", "tool_format_of", "turn_of"]


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """`opening` and `closing` enclose a call (or all of them if `listed`); `between` separates calls.

    `arguments` is the field with the arguments. Without an opening the calls are the whole answer, after `prefix` where
    the model writes that.
    """

    opening: str
    closing: str
    between: str = ""
    arguments: str = "arguments"
    listed: bool = False
    prefix: str = ""

    @property
    def trigger(self) -> str:
        """The text that starts a call; "" where only a brace does."""
        return self.opening.strip()

    def read(self, text: str) -> tuple[str, tuple[ToolCall, ...]]:
        """Split an answer into the text before the calls, and the calls; all is text if no call can be parsed.

        If the last call was cut off, the calls before it are returned; `cut` returns the rest.
        """
        before, calls, _ = self._parts(text)
        return before, calls

    def cut(self, text: str) -> str:
        """The incomplete last call after others; "" where all calls are complete."""
        return self._parts(text)[2]

    def _parts(self, text: str) -> tuple[str, tuple[ToolCall, ...], str]:
        start = text.find(self.trigger) if self.trigger else len(text) - len(text.lstrip())
        if start < 0:
            return text, (), ""
        calls, rest = self._calls(text[start:].strip().removeprefix(self.prefix).lstrip())
        return (text[:start] if text[:start].strip() else "", calls, rest) if calls else (text, (), "")

    def _calls(self, text: str) -> tuple[tuple[ToolCall, ...], str]:
        """Parse `text`, which must consist of calls only: every complete call, and what was cut off; else none."""
        calls: list[ToolCall] = []
        rest = text
        while rest:
            if not rest.startswith(self.trigger):
                return _before_cut(calls, rest, self.trigger.startswith(rest))
            start = _blank(rest, len(self.trigger))
            try:
                value, end = _DECODER.raw_decode(rest, start)
            except RecursionError:
                return (), ""
            except json.JSONDecodeError as exc:
                if self.listed and rest.startswith("[", start):
                    return self._items(rest[start + 1 :])
                return _before_cut(calls, rest, _is_cut(rest, exc))
            parts = [self._call(part) for part in (value if self.listed and isinstance(value, list) else [value])]
            closing, behind = self.closing.strip(), rest[end:].lstrip()
            if None in parts or not behind.startswith(closing):
                return _before_cut(calls, rest, None not in parts and closing.startswith(behind))
            calls += [part for part in parts if part is not None]
            rest = behind[len(closing) :].lstrip().removeprefix(self.between.strip() or "\n").lstrip()
        return tuple(calls), ""

    def _items(self, text: str) -> tuple[tuple[ToolCall, ...], str]:
        """The complete calls of a list that does not end, and what was cut off."""
        calls: list[ToolCall] = []
        rest = text.lstrip()
        while rest:
            try:
                value, end = _DECODER.raw_decode(rest)
            except json.JSONDecodeError as exc:
                return _before_cut(calls, rest, _is_cut(rest, exc))
            call = self._call(value)
            rest = rest[end:].lstrip()
            if call is None or not (not rest or rest.startswith(",")):
                return (), ""
            calls.append(call)
            rest = rest[1:].lstrip()
        return tuple(calls), ""

    def _call(self, value: Any) -> ToolCall | None:
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            return None
        arguments: Any = next(
            (value[name] for name in (self.arguments, "arguments", "parameters") if name in value), {}
        )
        arguments = _object_in(arguments) if isinstance(arguments, str) else arguments
        if not isinstance(arguments, dict):
            return None
        return ToolCall(value["name"], json.dumps(arguments, ensure_ascii=False))


_DECODER = json.JSONDecoder(strict=False)
"""Models write programs with plain line ends in a string."""


def _object_in(text: str) -> object:
    """The JSON in a text, as which some models write arguments; None where it is none."""
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError):
        return None


def _before_cut(calls: Sequence[ToolCall], rest: str, is_cut: bool) -> tuple[tuple[ToolCall, ...], str]:
    """`calls` and the incomplete one after them; none where what follows is not the start of a call."""
    return (tuple(calls), rest) if is_cut else ((), "")


def _is_cut(text: str, fault: json.JSONDecodeError) -> bool:
    """Whether JSON is invalid only because `text` ends too early."""
    tail = text[fault.pos :].rstrip()
    return (
        fault.msg.startswith("Unterminated string")
        or any(word.startswith(tail) for word in ("true", "false", "null", "-"))
        or ("escape" in fault.msg and len(tail) < _ESCAPE)
    )


_ESCAPE = len("\\u1234")


def _blank(text: str, start: int) -> int:
    """The first index from `start` on that is not white space."""
    return len(text) - len(text[start:].lstrip())


PLAIN = "plain"
"""The format of templates that present no functions."""
_HERMES = ToolFormat("<tool_call>\n", "\n</tool_call>", "\n")
TOOL_FORMATS: Mapping[str, ToolFormat] = {
    "hermes": _HERMES,
    "mistral": ToolFormat("[TOOL_CALLS]", "", listed=True),
    "llama3": ToolFormat("", "", "; ", "parameters", prefix="<|python_tag|>"),
    "json": ToolFormat("", "", "; "),
    PLAIN: _HERMES,
}

_SIGNS = (("<function=", ""), ("[TOOL_CALLS]", "mistral"), ("<tool_call>", "hermes"), ('"parameters":', "llama3"))
"""Text that identifies a template's format of calls; the first match decides."""


def shows_tools(template: str | None) -> bool:
    """Whether a chat template presents functions itself."""
    return "tools" in (template or "")


def tool_format_of(template: str) -> str:
    """The name of a chat template's format of calls; "" if it is not supported here."""
    if not shows_tools(template):
        return PLAIN
    return next((name for sign, name in _SIGNS if sign in template), "json")


def texts_of(message: Message) -> list[str]:
    """All texts in a message."""
    calls = message.calls if isinstance(message, ToolMessage) else ()
    return [message.content, *(text for call in calls for text in (call.name, call.arguments))]


def turn_of(message: Message, spell: Callable[[str], str] = str) -> dict[str, Any]:
    """`message` as chat templates expect it, with `spell` applied to every text and arguments as objects."""
    turn: dict[str, Any] = {"role": message.role, "content": spell(message.content)}
    if not isinstance(message, ToolMessage):
        return turn
    if message.calls:
        turn["tool_calls"] = [_function(call, spell) for call in message.calls]
    if message.call_id:
        turn["tool_call_id"] = message.call_id
    return turn


def _function(call: ToolCall, spell: Callable[[str], str]) -> dict[str, Any]:
    function = {"name": spell(call.name), "arguments": json.loads(spell(call.arguments))}
    return {"id": call.id, "type": "function", "function": function}


_OFFER = """You are a function calling AI model. You are provided with function signatures within <tools></tools> XML \
tags. You may call one or more functions to assist with the user query. Don't make assumptions about what values to \
plug into functions.
<tools>
{tools}
</tools>
For each function call return a json object with function name and arguments within <tool_call></tool_call> XML tags \
as follows:
<tool_call>
{{"name": <function-name>, "arguments": <args-dict>}}
</tool_call>"""


def plain_turns(turns: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """`turns` for a template without functions: calls and results become text, in the Hermes format."""
    plain: list[dict[str, Any]] = []
    for before, turn in zip([{"role": ""}, *turns], turns, strict=False):
        if turn["role"] == before["role"] == "tool":  # templates expect alternating speakers
            plain[-1]["content"] += "\n" + _plain_turn(turn)["content"]
        else:
            plain.append(_plain_turn(turn))
    if not tools:
        return plain
    offer = _OFFER.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    if plain and plain[0]["role"] == "system":
        return [{"role": "system", "content": f"{plain[0]['content']}\n\n{offer}"}, *plain[1:]]
    return [{"role": "system", "content": offer}, *plain]


def _plain_turn(turn: Mapping[str, Any]) -> dict[str, Any]:
    if turn["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{turn['content']}\n</tool_response>"}
    calls = [json.dumps(call["function"], ensure_ascii=False) for call in turn.get("tool_calls", ())]
    blocks = [f"<tool_call>\n{call}\n</tool_call>" for call in calls]
    return {"role": turn["role"], "content": "\n".join([*([turn["content"]] if turn["content"] else []), *blocks])}
