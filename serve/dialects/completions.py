"""`POST /v1/completions`: a raw prompt, continued; no chat template, nothing added, nothing taken off.

A prompt is a text, or a list of one. Thinking budgets hold for models that open their block themselves; there is no
template here that could switch thinking off. Thought goes out as `reasoning`, `text` is the answer.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le, MaxLen, MinLen
from pydantic import BaseModel

from serve.dialects.sse import ChoiceUsage, ChunkStream, body_of, head_of
from serve.requests.body import WHOLE, with_reason
from serve.requests.errors import invalid
from serve.requests.fields import ChoiceFields, ServeRequest, TokenCount, request_of
from serve.running.events import Finish, WholeReply
from ttc.core import Message

DEFAULT_MAX_TOKENS = 16
"""OpenAI's default for this route."""

_Prompt = Annotated[str, MinLen(1)]


class CompletionRequest(ChoiceFields):
    """The body of a completions request."""

    prompt: _Prompt | Annotated[list[_Prompt], MinLen(1), MaxLen(1)] = with_reason(
        "one prompt a request, as text: ask once for each", ...
    )
    max_tokens: TokenCount | None = None
    logprobs: Annotated[int, Ge(0), Le(1), WHOLE] | None = with_reason("only the sampled token's is known")
    echo: Literal[False] | None = with_reason("the prompt is not repeated")
    suffix: None = with_reason("insertion is not supported")


class CompletionChoice(BaseModel):
    """One choice of a reply; `reasoning` where there is any."""

    index: int
    text: str
    logprobs: dict[str, Any] | None
    finish_reason: Literal["stop", "length"]


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
    text = body.prompt if isinstance(body.prompt, str) else body.prompt[0]
    if body.logprobs == 1 and body.stream:
        raise invalid("logprobs", "logprobs must be 0 in a stream of completions")
    request = request_of(body, (Message("user", text),), body.max_tokens or DEFAULT_MAX_TOKENS, "max_tokens")
    return replace(request, text=text, logprobs=body.logprobs is not None)


def reply(body: CompletionRequest, outcome: WholeReply) -> dict[str, Any]:
    """The body of a reply that is not streamed; nothing of the request is repeated in it."""
    choices = [_choice(finish, finish.answer, finish.thinking) for finish in outcome.choices]
    return body_of(outcome, head_of(outcome.started, "cmpl", "text_completion"), choices)


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
    texts = [item.text for item in finish.logprobs]
    offsets = list(accumulate(map(len, texts), initial=0))[:-1]
    return {
        "tokens": texts,
        "token_logprobs": [item.logprob for item in finish.logprobs],
        "top_logprobs": None,
        "text_offset": offsets,
    }


class CompletionEncoder(ChunkStream):
    """Chunks of a completion."""

    prefix, kind = "cmpl", "text_completion"

    def first(self, index: int) -> None:
        """See `ChunkStream`: there is none."""

    def piece(self, index: int, thinking: str, answer: str) -> dict[str, Any]:
        """See `ChunkStream`."""
        thought = {"reasoning": thinking} if thinking else {}
        return {"index": index, "text": answer, "logprobs": None, "finish_reason": None, **thought}

    def end(self, finish: Finish) -> dict[str, Any]:
        """See `ChunkStream`."""
        return _choice(finish, "", "")
