"""Calls and results as the model's own chat template writes them: its functions, its roles, its markers.

The template shows each tool as a function with one text argument, `input`. The model ends its turn after its calls, one
or several; their results follow as turns of role `tool`, rendered by the template. To know what it writes between the
end of the model's turn and its next one, a conversation of one call is rendered that ends with the results, and all
from the end of the calling turn on is appended. Calls are read in the format of `ttc.toolformats` that this template
has; for one without functions they are texts in the Hermes format. Cost: two renderings a turn with calls, and as many
a problem. Left out: calls held to a grammar, as the endpoint holds them; what a template drops of earlier turns
(thoughts) stays here.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ttc.agents.markup import Call, without_markers
from ttc.agents.tool import Tool, ToolFailure
from ttc.core import Message, Prompt, ToolCall, ToolMessage
from ttc.errors import ConfigError
from ttc.session.session import Session
from ttc.toolformats.families import TOOL_FORMATS

_PARAMETERS = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}


@dataclass(frozen=True, slots=True)
class TemplateMarkup:
    """See `ttc.agents.markup.Markup`."""

    tools: tuple[Tool, ...]
    stops: tuple[str, ...] = ()

    def doubt(self, session: Session) -> str:
        """Why the calls of the model's own template cannot be used; "" where they can."""
        if session.tool_format not in TOOL_FORMATS:
            model = session.capabilities.model
            return f"{model} has no chat template, or one that writes calls in a form that cannot be read"
        try:
            self.write(session, ("0",))
        except ConfigError as exc:
            return str(exc)
        return ""

    def ask(self, session: Session, *, instruct: bool) -> Prompt:
        """See `Markup`."""
        return session.ask(session.problem.messages, session.root, self._functions() if instruct else ())

    def read(self, session: Session, turn: str) -> tuple[Call, ...]:
        """See `Markup`; what a thought contains is no call, but for the end of a turn whose thought never ends.

        Qwen3.5 and others begin calls without ending their thought; vLLM and SGLang read them so, too.
        """
        form = TOOL_FORMATS[session.tool_format]
        answer = turn[max((turn.rfind(end) + len(end) for end in _ends(session) if end in turn), default=0) :]
        _, calls = form.read(answer, self._functions())
        names = {tool.name for tool in self.tools}
        if not calls and form.begins(answer, names):
            raise ToolFailure(f"a call is {form.shape}, and nothing follows it")
        if not form.trigger and not all(call.name in names for call in calls):
            return ()  # an answer in JSON
        return tuple(_call(call) for call in calls)

    def write(self, session: Session, results: Sequence[str]) -> tuple[tuple[int, ...], str]:
        """See `Markup`."""
        ids, other = (self._rendered(session, results, more) for more in ("", "0"))
        ends = frozenset(session.capabilities.eos_ids)
        same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(ids, other, strict=False))
        # The renderings part within the first result, so the last end before that is the end of the calling turn.
        places = [place for place, (token, _) in enumerate(same) if token in ends]
        if not places:
            raise ConfigError(
                f"the chat template of {session.capabilities.model} ends no turn with a token of {sorted(ends)}, the "
                "model's ends of sequence, so no result can follow a call"
            )
        return ids[places[-1] :], session.decode(ids[places[-1] :])

    def _functions(self) -> tuple[dict[str, Any], ...]:
        return tuple(_function(tool.name, tool.about) for tool in self.tools)

    def _rendered(self, session: Session, results: Sequence[str], more: str) -> tuple[int, ...]:
        """Ids of a conversation that ends with `results`, `more` added to the first."""
        numbers = [_number(at) for at in range(len(results))]
        calls = tuple(ToolCall(self.tools[0].name, json.dumps({"input": "0"}), number) for number in numbers)
        first, *others = (without_markers(session, result) for result in results)
        texts = [first + more, *others]
        turns = [ToolMessage("tool", text, (), number) for text, number in zip(texts, numbers, strict=True)]

        def rendered(shown: tuple[ToolCall, ...]) -> tuple[int, ...]:
            messages = (Message("user", "?"), ToolMessage("assistant", "", shown), *turns)
            return session.ask(messages, session.root, self._functions()).token_ids or ()

        try:
            return rendered(calls)
        except ConfigError:  # Llama's template refuses several calls in a turn, which its models write all the same
            return rendered(calls[:1])


def _function(name: str, about: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": about, "parameters": _PARAMETERS}}


def _number(at: int) -> str:
    """The id of a call; Mistral's template wants nine characters."""
    return f"call{at:05d}"


def _ends(session: Session) -> tuple[str, ...]:
    """What ends a thought; nothing for a model without one."""
    marks, close = session.capabilities.think_texts, session.capabilities.think_close
    return marks[1].texts if marks else (session.decode(close),) if close else ()


def _call(call: ToolCall) -> Call:
    arguments = json.loads(call.arguments)
    values = [value for value in arguments.values() if isinstance(value, str | int | float)]
    if len(values) != 1 or len(arguments) != 1:
        raise ToolFailure(f'{call.name} takes {{"input": TEXT}}, got {call.arguments}')
    return Call(call.name, str(values[0]))
