"""How families of models write calls of functions, and how they are shown the functions.

hermes   <tool_call>{"name": ..., "arguments": {...}}</tool_call>, one block a call: Qwen2.5, Qwen3, Hermes, SmolLM3
mistral  [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]: Mistral and Mixtral
llama3   {"name": ..., "parameters": {...}}, the whole answer, several parted by "; ": Llama 3.1 and later
json     {"name": ..., "arguments": {...}}, likewise: templates that show functions in some other way

A chat template that shows functions decides by its own text. One that does not gets them as Hermes's models do: the
functions in the system message, calls and results as text of the turns (https://github.com/NousResearch/Hermes-Function-Calling).
What is read need not have been written under a grammar: a block that is no JSON is text. Left out: calls in XML or
Python (Qwen3-Coder, Llama 3.2's small ones with `<|python_tag|>` code), for which a request with tools is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ttc.core import Message, ToolCall, ToolMessage

__all__ = ["TOOL_FORMATS", "ToolFormat", "plain_turns", "shows_tools", "texts_of", "tool_format_of", "turn_of"]


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """`opening` and `closing` stand around a call (around all of them where they are `listed`), `between` parts two.

    `arguments` is the field with the arguments. Without an opening the calls are the whole answer.
    """

    opening: str
    closing: str
    between: str = ""
    arguments: str = "arguments"
    listed: bool = False

    @property
    def trigger(self) -> str:
        """The text that begins a call; "" where nothing but a brace does."""
        return self.opening.strip()

    def read(self, text: str) -> tuple[str, tuple[ToolCall, ...]]:
        """The text before the calls, and the calls; all is text where there are none that can be read."""
        start = text.find(self.trigger) if self.trigger else len(text) - len(text.lstrip())
        if start < 0:
            return text, ()
        calls = self._calls(text[start:])
        return (text[:start] if text[:start].strip() else "", calls) if calls else (text, ())

    def _calls(self, text: str) -> tuple[ToolCall, ...]:
        """Every call of `text`, which is nothing but calls; empty where it is something else."""
        calls: list[ToolCall] = []
        rest = text.strip()
        while rest:
            if not rest.startswith(self.trigger):
                return ()
            try:
                value, end = json.JSONDecoder().raw_decode(rest, _blank(rest, len(self.trigger)))
            except (ValueError, RecursionError):
                return ()
            parts = [self._call(part) for part in (value if self.listed and isinstance(value, list) else [value])]
            closing = self.closing.strip()
            rest = rest[end:].lstrip()
            if None in parts or not rest.startswith(closing):
                return ()
            calls += [part for part in parts if part is not None]
            rest = rest[len(closing) :].lstrip().removeprefix(self.between.strip() or "\n").lstrip()
        return tuple(calls)

    def _call(self, value: Any) -> ToolCall | None:
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            return None
        arguments: Any = next(
            (value[name] for name in (self.arguments, "arguments", "parameters") if name in value), {}
        )
        if not isinstance(arguments, dict):
            return None
        return ToolCall(value["name"], json.dumps(arguments, ensure_ascii=False))


def _blank(text: str, start: int) -> int:
    """The first place from `start` on that is no white space."""
    return len(text) - len(text[start:].lstrip())


TOOL_FORMATS: Mapping[str, ToolFormat] = {
    "hermes": ToolFormat("<tool_call>\n", "\n</tool_call>", "\n"),
    "mistral": ToolFormat("[TOOL_CALLS]", "", listed=True),
    "llama3": ToolFormat("", "", "; ", "parameters"),
    "json": ToolFormat("", "", "; "),
}

_SIGNS = (("<function=", ""), ("[TOOL_CALLS]", "mistral"), ("<tool_call>", "hermes"), ('"parameters":', "llama3"))
"""What a template says of the form of calls, the first that it holds."""


def shows_tools(template: str | None) -> bool:
    """Whether a chat template shows functions itself."""
    return "tools" in (template or "")


def tool_format_of(template: str) -> str:
    """The name of the form that a chat template asks for; "" where it is not read here."""
    if not shows_tools(template):
        return "hermes"
    return next((name for sign, name in _SIGNS if sign in template), "json")


def texts_of(message: Message) -> list[str]:
    """Every text that a message holds."""
    calls = message.calls if isinstance(message, ToolMessage) else ()
    return [message.content, *(text for call in calls for text in (call.name, call.arguments))]


def turn_of(message: Message, spell: Callable[[str], str] = str) -> dict[str, Any]:
    """`message` as chat templates take it, every text as `spell` has it; arguments are objects there."""
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
    """`turns` for a template that knows no functions: what concerns them is text, as Hermes's models were taught."""
    plain: list[dict[str, Any]] = []
    for before, turn in zip([{"role": ""}, *turns], turns, strict=False):
        if turn["role"] == before["role"] == "tool":  # templates want the turns of two speakers
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
