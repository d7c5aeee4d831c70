"""What was asked, whatever dialect it came in: one request, checked for form but not yet for this server.

A dialect builds a `ServeRequest`; `serve.running.plan` turns it into a `RequestPlan` for one model, or refuses it. None
means that the client did not say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from ttc.core import Message

ProgressLevel: TypeAlias = Literal["off", "summary", "full"]


@dataclass(frozen=True, slots=True)
class SamplingRequest:
    """How to draw. `max_tokens_field` is what the dialect calls max_tokens, for messages.

    `penalties` holds those that are not neutral, by their names in `ttc.core.PENALTIES`.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    max_tokens_field: str = "max_tokens"
    penalties: Mapping[str, float] = field(default_factory=dict)
    cache_salt: str | None = None


@dataclass(frozen=True, slots=True)
class ThinkingRequest:
    """How to think (see `serve.requests.thinking`). `budget` -1 is unlimited; `show` returns the thought.

    `budget_field` and `effort_field` are the names the client used, for messages.
    """

    enabled: bool | None = None
    effort: str | None = None
    budget: int | None = None
    min_tokens: int = 0
    show: bool = True
    budget_field: str = "thinking_budget"
    effort_field: str = "reasoning_effort"


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """The `ttc` object: a strategy with its parameters and limits."""

    strategy: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    max_total_tokens: int | None = None
    scorer: str | None = None
    seed: int | None = None
    answer_kind: str | None = None
    progress: ProgressLevel | None = None
    return_candidates: bool = False


@dataclass(frozen=True, slots=True)
class ServeRequest:
    """One request: a conversation, or a raw prompt (`text`, no chat template), which is then the one message too.

    `forward` is the body as a chat-completions server would take it, for what only such a server can do (tools, JSON
    schemas); empty where nothing of the kind was asked.
    """

    model: str
    messages: tuple[Message, ...] = ()
    text: str | None = None
    num_choices: int = 1
    stream: bool = False
    sampling: SamplingRequest = field(default_factory=SamplingRequest)
    thinking: ThinkingRequest = field(default_factory=ThinkingRequest)
    search: SearchRequest = field(default_factory=SearchRequest)
    logprobs: bool = False
    top_logprobs: int = 0
    return_token_ids: bool = False
    forward: Mapping[str, Any] = field(default_factory=dict)
