"""How the reply of an upstream server is read: chunks become thought, answer, calls and counts.

A think block at the beginning of the content becomes thought; one that the prompt opened does if the server says that
it opens one (vLLM does); with others it is streamed as answer. Servers spell calls, ends and counts in several ways. A
reply that breaks off is charged in tokens if they are counted, else in chunks.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from serve.running.deltas import overlap
from serve.running.events import FinishReason, TokenCounts
from ttc.answers.kinds import extract, same_form
from ttc.answers.kinds import key as answer_key
from ttc.core import FILTERED, Event, Message, Usage
from ttc.engines.openai.wire import (
    ServerUsage,
    as_mapping,
    as_mappings,
    as_text,
    count_thought,
    finish_of,
    finish_word,
    texts_of,
    usage_of,
)
from ttc.session.thinking import CLOSE, OPEN, split_text

_log = logging.getLogger("serve")
_REASONS: Mapping[str, FinishReason] = {
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    FILTERED: "content_filter",
}
"""Finish reasons of replies that draws here do not have."""


@dataclass(frozen=True, slots=True)
class UpstreamReply:
    """One reply of an upstream server."""

    content: str
    reasoning: str
    tool_calls: tuple[Mapping[str, Any], ...]
    finish: FinishReason
    usage: Usage
    cut_call: str = ""
    stop: str | None = None
    """The stop string that ended it, where the server told."""

    @property
    def counts(self) -> TokenCounts:
        """The upstream server's own counts."""
        usage = self.usage
        return TokenCounts(usage.prompt, usage.cached, usage.generated, usage.thinking)

    def event(self, index: int) -> Event:
        """The event that the progress board gets for it."""
        ends = {"stop_reason": "eos" if self.finish in ("stop", "tool_calls") else None}
        data = {"num_tokens": self.usage.generated, "thinking": False, "injected": False, "text": self.content, **ends}
        return Event("generate", (index,), data)

    def final(self, kind: str) -> str | None:
        """Its calls or its JSON in one spelling, or the final answer of its words; None where it did not end."""
        if self.finish not in ("stop", "tool_calls"):
            return None
        calls = [_spelled(call["function"]) for call in self.tool_calls]
        return "; ".join(sorted(calls)) or same_form(self.content) or extract(self.content, kind).final

    def key(self, final: str | None, kind: str) -> str:
        """Equal keys are one class of a vote; empty when this reply has nothing to vote for."""
        if final is None:
            return ""
        is_form = bool(self.tool_calls) or same_form(self.content) is not None
        return f"form:{final}" if is_form else f"final:{answer_key(final, kind)}"


def counted_usage(
    reply: UpstreamReply, count: Callable[[Sequence[Message], str], Usage] | None, messages: Sequence[Message]
) -> Usage:
    """The usage of a reply, with what the upstream server has not counted."""
    usage = reply.usage
    if count is not None and not (usage.prompt and usage.generated):
        ours = count(messages, reply.reasoning + reply.content)
        usage = replace(usage, prompt=usage.prompt or ours.prompt, generated=usage.generated or ours.generated)
    return _with_thought(replace(reply, usage=usage), count)


def _with_thought(reply: UpstreamReply, count: Callable[[Sequence[Message], str], Usage] | None) -> Usage:
    """The usage of a reply, its thought counted where the upstream server does not count it apart."""

    def counted(text: str) -> int:
        return 0 if count is None else count((), text).generated

    functions = [call["function"] for call in reply.tool_calls]
    said = reply.content + "".join(text for each in functions for text in (each["name"], each["arguments"]))
    usage = reply.usage
    return replace(usage, thinking=count_thought(usage.thinking, usage.generated, reply.reasoning, said, counted))


class ReplyReader:
    """Gathers one reply; `write` gets what is new of its thought and of its answer.

    `inside` says that its prompt had opened a thought, which comes as content.
    """

    def __init__(self, write: Callable[[str, str], None] | None, inside: bool) -> None:
        self._write, self._apart = write, _Apart(inside)
        self._thought: list[str] = []
        self._answer: list[str] = []
        self._calls: dict[int, dict[str, Any]] = {}
        self._counts, self._finish = ServerUsage(), ""
        self._stop: str | None = None
        self._num_parts = 0
        self._refused = False
        self.shown = False

    def add(self, chunk: Mapping[str, Any]) -> None:
        """Take a chunk, or a whole answer; raises ValueError where it has not the shape of one."""
        self._counts = self._counts.then(usage_of(as_mapping(chunk.get("usage"), "usage")))
        for choice in as_mappings(chunk.get("choices"), "choices"):
            message = as_mapping(choice.get("delta") or choice.get("message"), "delta")
            reasoning, content = texts_of(message)
            refusal = as_text(message.get("refusal"), "refusal")  # OpenAI's, in place of an answer held to a form
            self._refused, content = self._refused or bool(refusal), content + refusal
            deltas, finish = as_mappings(message.get("tool_calls"), "tool_calls"), choice.get("finish_reason")
            _gather_calls(self._calls, deltas)
            self._finish = as_text(finish, "finish_reason") or self._finish
            stop = choice.get("stop_reason")  # vLLM's; the id of a token, where one ended it
            self._stop = stop if isinstance(stop, str) else self._stop
            self._num_parts += bool(reasoning or content or deltas)
            thought, answer = self._apart.add(content)
            self._take(reasoning + thought, answer)

    def lost(self, count: Callable[[Sequence[Message], str], Usage] | None, messages: Sequence[Message]) -> Usage:
        """What a reply that broke off cost, none of which is kept: in tokens if they are counted, else in chunks."""
        usage = _usage(self._counts)
        if not usage.generated and count is not None:
            usage = count(messages, "".join([*self._thought, *self._answer, *self._apart.end()]))
        return Usage(prompt=usage.prompt, cached=usage.cached, overrun=usage.generated or self._num_parts, attempts=1)

    def reply(self) -> UpstreamReply:
        """The reply; raises Transient where the server did not end it."""
        word = finish_word(self._finish or None)
        self._take(*self._apart.end())
        reason = "content_filter" if self._refused else _reason(word)
        calls, rest = _whole_calls([self._calls[index] for index in sorted(self._calls)], is_cut=reason == "length")
        if rest and not calls:  # as with models that run here, a call that was cut is text
            self._take("", rest)
            rest = ""
        thought, answer = "".join(self._thought), "".join(self._answer)
        if self._write is None and not thought:  # a block that the prompt had opened
            parts = split_text(answer, False)
            thought, answer = parts.thinking, parts.answer.lstrip() if parts.thinking else parts.answer
        reason = "tool_calls" if calls and reason == "stop" else reason  # some servers say stop of both
        usage, stop = _usage(self._counts), self._stop if reason == "stop" else None
        return UpstreamReply(answer, thought, calls, reason, usage, rest, stop)

    def _take(self, thought: str, answer: str) -> None:
        self._thought.append(thought)
        self._answer.append(answer)
        if self._write is not None and (thought or answer):
            self.shown = True
            self._write(thought, answer)


def _reason(word: str) -> FinishReason:
    """A server's finish reason as ours; an unknown one counts as cut."""
    if word in _REASONS:
        return _REASONS[word]
    if finish_of(word) is None:
        _log.warning("the upstream server ended with an unknown finish reason", extra={"finish_reason": word})
    return "stop" if finish_of(word) == "stop" else "length"


class _Apart:
    """Splits content that begins with a think block, or inside one, into thought and answer while it arrives."""

    def __init__(self, inside: bool) -> None:
        self._held = ""
        self._inside = self._lead = inside
        self._past = False

    def add(self, text: str) -> tuple[str, str]:
        """Take new text; return what is now certain of the thought and of the answer."""
        self._held += text
        begun = self._held.lstrip()
        if not (self._past or self._inside):
            if OPEN.startswith(begun[: len(OPEN)]) and len(begun) < len(OPEN):
                return "", ""
            self._inside = self._lead = begun.startswith(OPEN)
            self._past = not self._inside
            self._held = begun.removeprefix(OPEN) if self._inside else self._held
        thought = self._thought() if self._inside else ""
        return thought, self._rest() if self._past else ""

    def end(self) -> tuple[str, str]:
        """What was still held back."""
        held, self._held = self._held, ""
        return (held, "") if self._inside else ("", held)

    def _thought(self) -> str:
        run, marker, rest = self._taken().partition(CLOSE)
        if marker:
            self._inside, self._past, self._lead, self._held = False, True, True, rest
            return run
        keep = overlap(run, CLOSE)
        self._held = run[len(run) - keep :]
        return run[: len(run) - keep]

    def _rest(self) -> str:
        text, self._held = self._taken(), ""
        return text

    def _taken(self) -> str:
        """What is held, from its first word on at the beginning of a thought and of an answer behind one."""
        text = self._held.lstrip() if self._lead else self._held
        self._lead = self._lead and not text
        return text


def _gather_calls(calls: dict[int, dict[str, Any]], deltas: Sequence[Mapping[str, Any]]) -> None:
    """Add the new part of each call; without an index, a name begins the next call.

    Raises:
        ValueError: it has not the shape of a call.
    """
    for delta in deltas:
        function = as_mapping(delta.get("function"), "function")
        name, arguments = as_text(function.get("name"), "name"), function.get("arguments")
        index = delta.get("index")
        if index is None:
            index = max(calls, default=-1) + bool(name or not calls)
        if not isinstance(index, int):
            raise ValueError("index is no number")
        call = calls.setdefault(index, {"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
        call["id"] = call["id"] or as_text(delta.get("id"), "id")
        call["function"]["name"] += name
        is_whole = isinstance(arguments, Mapping)  # as some servers give them
        call["function"]["arguments"] += json.dumps(arguments) if is_whole else as_text(arguments, "arguments")


def _whole_calls(calls: Sequence[dict[str, Any]], *, is_cut: bool) -> tuple[tuple[dict[str, Any], ...], str]:
    """The whole calls, and the beginning of a last one that the token limit cut.

    Some servers write nothing if there are no arguments.
    """
    last = calls[-1]["function"] if calls and is_cut else None
    if last is not None and not _is_json(last["arguments"]):
        text = f'{{"name": {json.dumps(last["name"])}, "arguments": {last["arguments"]}'
        return _whole_calls(calls[:-1], is_cut=False)[0], text
    functions = [{**call["function"], "arguments": call["function"]["arguments"] or "{}"} for call in calls]
    return tuple({**call, "function": function} for call, function in zip(calls, functions, strict=True)), ""


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _usage(counts: ServerUsage) -> Usage:
    return Usage(
        prompt=counts.prompt or 0,
        cached=min(counts.cached or 0, counts.prompt or 0),
        generated=counts.generated or 0,
        thinking=counts.thinking or 0,
        calls=1,
        attempts=1,
    )


def _spelled(function: Mapping[str, Any]) -> str:
    """A call in one spelling; arguments that are no JSON are text."""
    arguments = function["arguments"]
    value = json.loads(arguments) if _is_json(arguments) else arguments
    return json.dumps({"name": function["name"], "arguments": value}, sort_keys=True, separators=(",", ":"))
