"""`POST /v1/completions`: a raw prompt, continued; no chat template, nothing added, nothing taken off.

A prompt is a text or a list of token ids; of several, choice i * n + j is the j-th of prompt i. `echo` repeats the
prompt, with log-probabilities where the engine can score given ids; with `max_tokens: 0` nothing follows it. Thinking
budgets hold for models that open their block themselves; there is no template here that could switch thinking off.
Thought goes out as `reasoning`, `text` is the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le, MaxLen, MinLen
from pydantic import BaseModel, Field

from serve.dialects.sse import ApiDialect, ChoiceUsage, ChunkStream, body_of, head_of
from serve.requests.body import FIRST_FAULT, WHOLE, with_reason
from serve.requests.errors import invalid
from serve.requests.fields import ChoiceFields, ServeRequest, request_of
from serve.running.events import AnswerDelta, Finish, TokenLogprob, WholeReply

DEFAULT_MAX_TOKENS = 16
"""OpenAI's default for this route."""

MAX_PROMPTS = 128
_Text = Annotated[str, MinLen(1)]
_Ids = Annotated[list[Annotated[int, Ge(0), Le(1 << 31), WHOLE]], FIRST_FAULT, MinLen(1)]


class CompletionRequest(ChoiceFields):
    """The body of a completions request."""

    prompt: (
        _Text
        | _Ids
        | Annotated[list[_Text], FIRST_FAULT, MinLen(1), MaxLen(MAX_PROMPTS)]
        | Annotated[list[_Ids], FIRST_FAULT, MinLen(1), MaxLen(MAX_PROMPTS)]
    )
    max_tokens: Annotated[int, Ge(0), Le(1 << 31), WHOLE] | None = Field(
        None, description="0, with echo: the prompt alone is read, and nothing drawn."
    )
    logprobs: Annotated[int, Ge(0), Le(20), WHOLE] | None = Field(
        None, description="This many of the likeliest tokens with each, if the model's engine reports them; 0: none."
    )
    echo: bool | None = None
    suffix: None = with_reason("insertion is not supported")


class CompletionChoice(BaseModel):
    """One choice of a reply; `reasoning` where there is any."""

    index: int
    text: str
    logprobs: dict[str, Any] | None
    finish_reason: Literal["stop", "length", "content_filter"]


class CompletionReply(BaseModel):
    """A reply that is not streamed: what it is sure to have."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: Annotated[list[CompletionChoice], MinLen(1)]
    usage: ChoiceUsage
    ttc: dict[str, Any]


def parse(body: CompletionRequest) -> ServeRequest:
    """Translate a request."""
    if body.echo and body.logprobs is not None and body.stream:
        raise invalid(
            "echo", "echo: a stream does not report log-probabilities of the prompt; leave one of the three out"
        )
    draws = body.max_tokens != 0
    if not (draws or body.echo):
        raise invalid("max_tokens", "max_tokens = 0 asks for nothing: send at least 1, or echo = true for the prompt")
    max_tokens = DEFAULT_MAX_TOKENS if body.max_tokens is None else max(body.max_tokens, 1)
    request = request_of(body, (), max_tokens, "max_tokens")
    return replace(
        request,
        prompts=_prompts(body.prompt),
        logprobs=body.logprobs is not None,
        top_logprobs=body.logprobs or 0,
        top_logprobs_field="logprobs",
        echo=bool(body.echo),
        draws=draws,
    )


def _prompts(prompt: str | list[Any]) -> tuple[str | tuple[int, ...], ...]:
    """Every prompt of a request: a list of numbers is one."""
    if isinstance(prompt, str):
        return (prompt,)
    if isinstance(prompt[0], int):
        return (tuple(prompt),)
    return tuple(one if isinstance(one, str) else tuple(one) for one in prompt)


def reply(body: CompletionRequest, outcome: WholeReply) -> dict[str, Any]:
    """The body of a reply that is not streamed; nothing of the request is repeated in it."""
    choices = [_choice(finish, finish.answer, finish.thinking) for finish in outcome.choices]
    return body_of(outcome, head_of(outcome.started, "cmpl", "text_completion"), choices)


def _choice(finish: Finish, text: str, thinking: str) -> dict[str, Any]:
    choice: dict[str, Any] = {
        "index": finish.index,
        "text": text,
        "logprobs": _logprobs(finish.logprobs),
        "finish_reason": finish.reason,
    }
    if thinking:
        choice["reasoning"] = thinking
    if finish.token_ids is not None:
        choice["token_ids"] = finish.token_ids
    return choice


def _logprobs(tokens: Sequence[TokenLogprob] | None, begin: int = 0) -> dict[str, Any] | None:
    if tokens is None:
        return None
    texts = [item.text for item in tokens]
    offsets = list(accumulate(map(len, texts), initial=begin))[:-1]
    tops = [_entries(item) for item in tokens]
    return {
        "tokens": texts,
        "token_logprobs": [item.logprob for item in tokens],
        "top_logprobs": tops if any(item.top for item in tokens) else None,
        "text_offset": offsets,
    }


def _entries(item: TokenLogprob) -> dict[str, float | None] | None:
    """The likeliest texts in the place of a token, and its own; nothing comes before the first of a prompt."""
    return None if item.logprob is None else {one.text: one.logprob for one in reversed((*item.top, item))}


class CompletionEncoder(ChunkStream):
    """Chunks of a completion."""

    prefix, kind = "cmpl", "text_completion"

    def __init__(self, body: CompletionRequest) -> None:
        """`body` is the request."""
        super().__init__(body)
        self._shown: dict[int, int] = {}

    def first(self, index: int) -> None:
        """See `ChunkStream`: there is none."""

    def piece(self, index: int, thinking: str, answer: str) -> dict[str, Any]:
        """See `ChunkStream`."""
        thought = {"reasoning": thinking} if thinking else {}
        return {"index": index, "text": answer, "logprobs": None, "finish_reason": None, **thought}

    def end(self, finish: Finish) -> dict[str, Any]:
        """See `ChunkStream`."""
        return _choice(replace(finish, logprobs=None), "", "")

    def logprobs(self, event: AnswerDelta) -> dict[str, Any] | None:
        """See `ChunkStream`."""
        begin = self._shown.get(event.index, 0)
        self._shown[event.index] = begin + sum(len(item.text) for item in event.logprobs or ())
        return _logprobs(event.logprobs, begin)


COMPLETIONS = ApiDialect("/v1/completions", CompletionRequest, parse, reply, CompletionEncoder, CompletionReply)
