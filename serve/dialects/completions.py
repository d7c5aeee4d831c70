"""`POST /v1/completions`: a raw prompt, continued; no chat template, nothing added, nothing taken off.

A prompt is a text, or a list of one. Thinking budgets hold for models that open their block themselves; there is no
template here that could switch thinking off. Thought goes out as `reasoning`, `text` is the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from serve.dialects._chunks import USAGE, ChunkStream, body_of
from serve.requests.errors import invalid
from serve.requests.fields import SHARED, max_tokens_of, sampling_of
from serve.requests.request import ServeRequest
from serve.requests.schema import Schema, nullable
from serve.requests.search import read_search
from serve.requests.thinking import read_thinking
from serve.running.events import Finish, Outcome, Started
from ttc.core import Message

__all__ = ["RESULT", "Stream", "parse", "reply", "schema"]

DEFAULT_MAX_TOKENS = 16
"""OpenAI's default for this route."""
_PROMPT: Schema = {"type": "string", "minLength": 1}


RESULT: Schema = {
    "type": "object",
    "required": ["id", "object", "created", "model", "choices", "usage", "ttc"],
    "properties": {
        "object": {"const": "text_completion"},
        "usage": USAGE,
        "choices": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["index", "text", "logprobs", "finish_reason"],
                "properties": {"text": {"type": "string"}, "finish_reason": {"enum": ["stop", "length"]}},
            },
        },
    },
}
"""What a reply is sure to have."""


def schema(ttc: Schema) -> dict[str, Any]:
    """The schema of a request; `ttc` is that of the search object."""
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["model", "prompt"],
        "properties": {
            "prompt": {
                "anyOf": [_PROMPT, {"type": "array", "minItems": 1, "maxItems": 1, "items": _PROMPT}],
                "x-reason": "one prompt a request, as text: ask once for each",
            },
            **SHARED,
            "max_tokens": nullable({"type": "integer", "minimum": 1, "maximum": 1 << 31}),
            "logprobs": nullable(
                {"type": "integer", "minimum": 0, "maximum": 1, "x-reason": "only the sampled token's is known"}
            ),
            "echo": nullable({"type": "boolean", "enum": [False], "x-reason": "the prompt is not repeated"}),
            "suffix": {"type": "null", "x-reason": "insertion is not supported"},
            "ttc": nullable(ttc),
        },
    }


def parse(body: Mapping[str, Any]) -> ServeRequest:
    """Translate a checked body."""
    seed, prompt = body.get("seed"), body["prompt"]
    text = prompt if isinstance(prompt, str) else prompt[0]
    max_tokens, name = max_tokens_of(body, ("max_tokens",))
    if body.get("logprobs") == 1 and body.get("stream"):
        raise invalid("logprobs", "logprobs must be 0 in a stream of completions")
    return ServeRequest(
        model=body["model"],
        messages=(Message("user", text),),
        text=text,
        num_choices=body.get("n") or 1,
        stream=bool(body.get("stream")),
        sampling=sampling_of(body, max_tokens or DEFAULT_MAX_TOKENS, name),
        thinking=read_thinking(body),
        search=read_search(body.get("ttc"), None if seed is None else abs(seed)),
        logprobs=body.get("logprobs") is not None,
        return_token_ids=bool(body.get("return_token_ids")),
    )


def reply(request: Mapping[str, Any], outcome: Outcome) -> dict[str, Any]:
    """The body of a reply that is not streamed; nothing of the checked `request` is repeated in it."""
    choices = [_choice(finish, finish.answer, finish.thinking) for finish in outcome.choices]
    return body_of(outcome, _head(outcome.started), choices)


def _head(started: Started) -> dict[str, Any]:
    return {
        "id": f"cmpl-{started.id}",
        "object": "text_completion",
        "created": started.created,
        "model": started.model,
    }


def _choice(finish: Finish, text: str, thinking: str) -> dict[str, Any]:
    choice: dict[str, Any] = {
        "index": finish.index,
        "text": text,
        "logprobs": _logprobs(finish),
        "finish_reason": finish.reason,
    }
    if thinking:
        choice["reasoning"] = thinking
    if finish.token_ids is not None:
        choice["token_ids"] = finish.token_ids
    return choice


def _logprobs(finish: Finish) -> dict[str, Any] | None:
    if finish.logprobs is None:
        return None
    offsets, at = [], 0
    for item in finish.logprobs:
        offsets.append(at)
        at += len(item.text)
    return {
        "tokens": [item.text for item in finish.logprobs],
        "token_logprobs": [item.logprob for item in finish.logprobs],
        "top_logprobs": None,
        "text_offset": offsets,
    }


class Stream(ChunkStream):
    """Chunks of a completion."""

    def head(self, started: Started) -> Mapping[str, Any]:
        """See `ChunkStream`."""
        return _head(started)

    def first(self, index: int) -> None:
        """See `ChunkStream`: there is none."""

    def piece(self, index: int, thinking: str, answer: str) -> dict[str, Any]:
        """See `ChunkStream`."""
        thought = {"reasoning": thinking} if thinking else {}
        return {"index": index, "text": answer, "logprobs": None, "finish_reason": None, **thought}

    def end(self, finish: Finish) -> dict[str, Any]:
        """See `ChunkStream`."""
        return _choice(finish, "", "")
