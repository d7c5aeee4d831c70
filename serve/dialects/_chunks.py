"""What the two OpenAI dialects with choices share: usage, and streams of chunks with one choice each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from annotated_types import Ge
from pydantic import BaseModel

from serve.dialects.sse import DONE, Frame, data, openai_failure
from serve.requests.fields import ChoiceFields, stream_options
from serve.running.events import (
    AnswerDelta,
    Counts,
    Done,
    Failed,
    Finish,
    Outcome,
    Progress,
    ServeEvent,
    Started,
    ThinkingDelta,
)

__all__ = ["ChoiceUsage", "ChunkStream", "Count", "body_of"]

Count = Annotated[int, Ge(0)]


class ChoiceUsage(BaseModel):
    """OpenAI's usage of a reply with choices."""

    prompt_tokens: Count
    completion_tokens: Count
    total_tokens: Count


def _usage_of(counts: Counts) -> dict[str, Any]:
    """OpenAI's usage object."""
    return {
        "prompt_tokens": counts.prompt,
        "completion_tokens": counts.completion,
        "total_tokens": counts.prompt + counts.completion,
        "prompt_tokens_details": {"cached_tokens": counts.cached},
        "completion_tokens_details": {"reasoning_tokens": counts.reasoning},
    }


def body_of(outcome: Outcome, head: Mapping[str, Any], choices: list[dict[str, Any]]) -> dict[str, Any]:
    """The body of a reply that is not streamed."""
    done = outcome.done
    ids = {} if done.prompt_token_ids is None else {"prompt_token_ids": done.prompt_token_ids}
    return {**head, "choices": choices, "usage": _usage_of(done.counts), "ttc": done.ttc, **ids}


class ChunkStream:
    """Events to chunks, in the order in which clients expect them; a dialect says how a choice looks."""

    def __init__(self, body: ChoiceFields) -> None:
        """`body` is the request."""
        self._num_choices, self._usage = body.n or 1, stream_options(body, body.stream_options)
        self._head: Mapping[str, Any] = {}
        self._last: Finish | None = None
        self._frames: dict[tuple[int, bool], Frame] = {}

    def head(self, started: Started) -> Mapping[str, Any]:
        """What every chunk begins with."""
        raise NotImplementedError

    def first(self, index: int) -> dict[str, Any] | None:
        """The choice that opens a stream, if there is one."""
        raise NotImplementedError

    def piece(self, index: int, thinking: str, answer: str) -> dict[str, Any]:
        """The choice of a chunk with new text; both texts may be empty."""
        raise NotImplementedError

    def end(self, finish: Finish) -> dict[str, Any]:
        """The choice of the chunk that ends it."""
        raise NotImplementedError

    def encode(self, event: ServeEvent) -> bytes:
        """The chunks of one event; may be empty."""
        match event:
            case Started():
                self._head = self.head(event)
                opening = [self.first(index) for index in range(self._num_choices)]
                return b"".join(self._chunk(choice) for choice in opening if choice is not None)
            case ThinkingDelta():
                return self._text(event.index, True, event.text)
            case AnswerDelta():
                return self._text(event.index, False, event.text)
            case Progress():
                return self._chunk(self.piece(0, "", ""), ttc=event.data)
            case Finish():
                ended, self._last = self._last, event  # the chunk of the last choice waits for the `ttc` object
                return b"" if ended is None else self._chunk(self.end(ended))
            case Done():
                return self._done(event)
            case Failed():
                return openai_failure(event.error)

    def _done(self, event: Done) -> bytes:
        extra: dict[str, Any] = {"ttc": event.ttc}
        if event.prompt_token_ids is not None:
            extra["prompt_token_ids"] = event.prompt_token_ids
        last = b"" if self._last is None else self._chunk(self.end(self._last), **extra)
        usage = {**self._head, "choices": [], "usage": _usage_of(event.counts)}
        return last + (data(usage) if self._usage else b"") + DONE

    def _text(self, index: int, thinking: bool, text: str) -> bytes:
        """A chunk with new text, which is most of a stream."""
        frame = self._frames.get((index, thinking))
        if frame is None:
            choice = self.piece(index, *((Frame.HOLE, "") if thinking else ("", Frame.HOLE)))
            frame = self._frames[index, thinking] = Frame(self._value(choice))
        return frame.fill(text)

    def _chunk(self, choice: Mapping[str, Any], **extra: Any) -> bytes:
        return data(self._value(choice, **extra))

    def _value(self, choice: Mapping[str, Any], **extra: Any) -> dict[str, Any]:
        usage = {"usage": None} if self._usage else {}
        return {**self._head, "choices": [choice], **usage, **extra}
