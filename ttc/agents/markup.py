r"""How a call and its result are written in a model's text.

    tags     <calculator>12*3</calculator>  is followed by  <result>36</result>
    hermes   <tool_call>{"name": "calculator", "arguments": {"input": "12*3"}}</tool_call>  ends the turn, and a user
             turn brings  <tool_response>36</tool_response>  (Qwen 2.5 and 3, Hermes)

The text stops at the token that completes the end marker of a call (which may add a character), and nothing is sampled
after it. Result markers that the model writes itself are text: only results appended by this package count. Left out:
several calls in one turn, and the markups of other families (each is an entry of `MARKUPS`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias

from ttc.agents.tool import Tool, ToolFailure

MarkupName: TypeAlias = Literal["tags", "hermes"]


@dataclass(frozen=True, slots=True)
class Call:
    """A call as the model wrote it."""

    tool: str
    argument: str


@dataclass(frozen=True, slots=True)
class Markup:
    """A way of writing: `stops` end a call, `read` takes the turn up to it, `write` gives the text of its result.

    `read(turn)` raises ToolFailure if there is no valid call; `instruct` tells the model how to call.
    """

    stops: tuple[str, ...]
    read: Callable[[str], Call]
    write: Callable[[str], str]
    instruct: str


def _tags(tools: Sequence[Tool]) -> Markup:
    names = [tool.name for tool in tools]

    def read(turn: str) -> Call:
        name = max(names, key=lambda each: turn.rfind(f"</{each}>"))
        _, opened, argument = turn[: turn.rfind(f"</{name}>")].rpartition(f"<{name}>")
        if not opened:
            raise ToolFailure(f"</{name}> without <{name}>")
        return Call(name, argument)

    lines = [f"<{tool.name}>...</{tool.name}>: {tool.about}" for tool in tools]
    head = "You can call tools. Write a call, and its result follows it in <result>...</result>:"
    return Markup(
        stops=tuple(f"</{name}>" for name in names),
        read=read,
        write=lambda result: f"<result>{result}</result>",
        instruct="\n".join([head, *lines]),
    )


def _hermes(tools: Sequence[Tool]) -> Markup:
    def read(turn: str) -> Call:
        _, _, body = turn.rpartition("</tool_call>")[0].rpartition("<tool_call>")
        try:
            call = json.loads(body)
            return Call(str(call["name"]), str(call["arguments"]["input"]))
        except (ValueError, TypeError, KeyError) as exc:
            raise ToolFailure('a call is {"name": NAME, "arguments": {"input": TEXT}} as JSON') from exc

    head = (
        "You can call tools. A call is one line of JSON in tags, and its result follows in the next turn:\n"
        '<tool_call>{"name": NAME, "arguments": {"input": TEXT}}</tool_call>'
    )
    return Markup(
        stops=("</tool_call>",),
        read=read,
        write=lambda result: (
            f"<|im_end|>\n<|im_start|>user\n<tool_response>\n{result}\n</tool_response><|im_end|>\n"
            "<|im_start|>assistant\n"
        ),
        instruct="\n".join([head, *(f"{tool.name}: {tool.about}" for tool in tools)]),
    )


MARKUPS: Mapping[MarkupName, Callable[[Sequence[Tool]], Markup]] = MappingProxyType({"tags": _tags, "hermes": _hermes})
"""From the tools of a run to how they are written."""
