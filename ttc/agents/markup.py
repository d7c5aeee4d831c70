r"""How calls and their results are written in a model's text.

    tags      <calculator>12*3</calculator>  is followed by  <result>36</result>
    hermes    <tool_call>{"name": "calculator", "arguments": {"input": "12*3"}}</tool_call>  ends the turn, and a user
              turn brings  <tool_response>36</tool_response>  (Qwen 2.5 and 3, Hermes)
    template  as the model's own chat template writes them (`ttc.agents.template`)
    auto      template where the model's own chat template shows functions and its calls can be read here, else tags

In the first two the text stops at the token that completes the end marker of a call (which may add a character), and
nothing is sampled after it. Result markers that the model writes itself are text: only results appended by this package
count. Left out: several calls in one turn of the first two.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal, Protocol, TypeAlias

from ttc.agents.tool import Tool, ToolFailure
from ttc.core import Message, Prompt
from ttc.errors import ConfigError
from ttc.session.session import Session
from ttc.toolformats.families import PLAIN

MarkupName: TypeAlias = Literal["auto", "tags", "hermes", "template"]


@dataclass(frozen=True, slots=True)
class Call:
    """A call as the model wrote it."""

    tool: str
    argument: str


class Markup(Protocol):
    """A way of writing calls and results, for the tools of one run."""

    @property
    def stops(self) -> tuple[str, ...]:
        """Strings that end a call; none where a call ends with the model's turn."""
        ...

    def ask(self, session: Session, *, instruct: bool) -> Prompt:
        """Render the problem; `instruct` tells the model what it can call."""
        ...

    def read(self, session: Session, turn: str) -> tuple[Call, ...]:
        """Return the calls at the end of `turn`, none where it has none; raises ToolFailure for an invalid one."""
        ...

    def write(self, session: Session, results: Sequence[str]) -> tuple[tuple[int, ...], str]:
        """Return the results of a turn's calls as ids and text, in which no control token or marker has an effect."""
        ...


@dataclass(frozen=True, slots=True)
class TextMarkup:
    """Calls that end at one of `stops`; `call_of` reads the text up to it, `result_of` encloses a result."""

    stops: tuple[str, ...]
    call_of: Callable[[str], Call]
    result_of: Callable[[str], str]
    instruction: str

    def ask(self, session: Session, *, instruct: bool) -> Prompt:
        """See `Markup`; the instruction is a system message, or begins the first turn where there can be none."""
        if not instruct:
            return session.render()
        first, *others = session.problem.messages
        whole = replace(first, content=f"{self.instruction}\n\n{first.content}")
        if first.role == "system":
            return session.ask((whole, *others), session.root)
        try:
            return session.ask((Message("system", self.instruction), first, *others), session.root)
        except ConfigError:  # templates without system messages, such as Gemma's
            return session.ask((whole, *others), session.root)

    def read(self, session: Session, turn: str) -> tuple[Call, ...]:
        """See `Markup`; `turn` ends with a stop."""
        return (self.call_of(turn),)

    def write(self, session: Session, results: Sequence[str]) -> tuple[tuple[int, ...], str]:
        """See `Markup`: control tokens become plain characters."""
        result = without_markers(session, *results)
        text = self.result_of(result)
        if session.encode_plain(result) == session.encode(result):
            return session.encode(text), text
        head, _, tail = self.result_of("\0").partition("\0")
        return session.encode(head) + session.encode_plain(result) + session.encode(tail), text


def without_markers(session: Session, result: str) -> str:
    """`result` with the thinking markers that are several tokens long broken by a space."""
    for text in (text for mark in session.capabilities.think_texts or () for text in mark.texts):
        result = result.replace(text, f"{text[:1]} {text[1:]}")
    return result


def _tags(tools: Sequence[Tool]) -> Markup:
    names = [tool.name for tool in tools]

    def call_of(turn: str) -> Call:
        name = max(names, key=lambda each: turn.rfind(f"</{each}>"))
        _, opened, argument = turn[: turn.rfind(f"</{name}>")].rpartition(f"<{name}>")
        if not opened:
            raise ToolFailure(f"</{name}> without <{name}>")
        return Call(name, argument)

    lines = [f"<{tool.name}>...</{tool.name}>: {tool.about}" for tool in tools]
    head = "You can call tools. Write a call, and its result follows it in <result>...</result>:"
    return TextMarkup(
        stops=tuple(f"</{name}>" for name in names),
        call_of=call_of,
        result_of=lambda result: f"<result>{result}</result>",
        instruction="\n".join([head, *lines]),
    )


def _hermes(tools: Sequence[Tool]) -> Markup:
    def call_of(turn: str) -> Call:
        _, _, body = turn.rpartition("</tool_call>")[0].rpartition("<tool_call>")
        try:
            call = json.loads(body, strict=False)  # a program may have plain line ends
            return Call(str(call["name"]), str(call["arguments"]["input"]))
        except (ValueError, TypeError, KeyError) as exc:
            raise ToolFailure('a call is {"name": NAME, "arguments": {"input": TEXT}} as JSON') from exc

    head = (
        "You can call tools. A call is one line of JSON in tags, and its result follows in the next turn:\n"
        '<tool_call>{"name": NAME, "arguments": {"input": TEXT}}</tool_call>'
    )
    return TextMarkup(
        stops=("</tool_call>",),
        call_of=call_of,
        result_of=lambda result: (
            f"<|im_end|>\n<|im_start|>user\n<tool_response>\n{result}\n</tool_response><|im_end|>\n"
            "<|im_start|>assistant\n"
        ),
        instruction="\n".join([head, *(f"{tool.name}: {tool.about}" for tool in tools)]),
    )


def markup_for(session: Session, tools: Sequence[Tool], name: MarkupName) -> Markup:
    """The markup called `name`; what `auto` chose, and the format of `template`, stand in the trace.

    Raises:
        ConfigError: `template`, where the model's chat template writes calls in a form that cannot be read.
    """
    if name in MARKUPS:
        return MARKUPS[name](tools)
    from ttc.agents.template import TemplateMarkup

    template = TemplateMarkup(tuple(tools))
    shows_none = name == "auto" and session.tool_format in ("", PLAIN)
    doubt = "" if shows_none else template.doubt(session)
    if doubt and name == "template":
        raise ConfigError(f"markup=template: {doubt}: use markup=tags or markup=hermes")
    if shows_none or doubt:
        session.note("setting", session.root, markup="tags")
        return _tags(tools)
    session.note("setting", session.root, markup="template", calls=session.tool_format)
    return template


MARKUPS: Mapping[str, Callable[[Sequence[Tool]], Markup]] = MappingProxyType({"tags": _tags, "hermes": _hermes})
"""The markups that are the same for all models."""
