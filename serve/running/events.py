"""What happens while a request runs: frozen events, which a dialect turns into chunks or gathers into one reply.

    Started, then per choice: ThinkingDelta* AnswerDelta* Finish; then Done

`SearchProgress` may come anywhere before the first Finish.
`RequestFailed` ends a stream instead. The deltas of a choice add up to the texts of its `Finish`, streamed or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from serve.requests.errors import ApiError
from ttc.core import Usage

FinishReason: TypeAlias = Literal["stop", "length", "tool_calls", "content_filter"]


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token and its log-probability in nats, None for the first token of a prompt.

    `top` are the likeliest tokens at its place, if they were requested.
    """

    text: str
    logprob: float | None
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Started:
    """The request runs: its id, the name of the model that answers, the time in seconds since the epoch."""

    id: str
    model: str
    created: int


@dataclass(frozen=True, slots=True)
class ThinkingDelta:
    """New text of a choice's thought."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class AnswerDelta:
    """New text of a choice's answer, with log-probabilities if they were requested."""

    index: int
    text: str
    logprobs: tuple[TokenLogprob, ...] | None = None


@dataclass(frozen=True, slots=True)
class SearchProgress:
    """The progress of a search: JSON, sent as the top-level field `ttc` of a chunk."""

    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Finish:
    """A choice is complete. If thought is hidden, `thinking` is empty, and its ids and log-probabilities are absent."""

    index: int
    reason: FinishReason
    thinking: str
    answer: str
    stop: str | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None
    token_ids: tuple[int, ...] | None = None
    tool_calls: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Tokens read (`prompt`, of them `cached` and `scored`) and written (`completion`, the others are parts of it).

    Of a whole request they are its price: every prompt once, however many draws it had, and what scorers read; every
    token of every draw, hand-overs included, and what judges wrote. `rejected` are those of draws that are not
    returned, their thought included.
    """

    prompt: int = 0
    cached: int = 0
    completion: int = 0
    reasoning: int = 0
    rejected: int = 0
    scored: int = 0
    judged: int = 0

    def __add__(self, other: TokenCounts) -> TokenCounts:
        return TokenCounts(
            self.prompt + other.prompt,
            self.cached + other.cached,
            self.completion + other.completion,
            self.reasoning + other.reasoning,
            self.rejected + other.rejected,
            self.scored + other.scored,
            self.judged + other.judged,
        )

    @classmethod
    def joined(cls, choices: Sequence[TokenCounts]) -> TokenCounts:
        """The sum over choices that share one prompt."""
        total = sum(choices[1:], choices[0])
        return total if len(choices) == 1 else replace(total, prompt=choices[0].prompt, cached=choices[0].cached)

    def returned(self) -> dict[str, int]:
        """What the reply says about the choices that it returns."""
        return {
            "prompt_tokens": self.prompt,
            "cached_tokens": self.cached,
            "completion_tokens": self.completion,
            "reasoning_tokens": self.reasoning,
        }


@dataclass(frozen=True, slots=True)
class Done:
    """All choices are complete: what the request cost, and the `ttc` object of the reply."""

    counts: TokenCounts
    ttc: Mapping[str, Any] = field(default_factory=dict)
    prompt_token_ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """The request ends without an answer."""

    error: ApiError


ServeEvent: TypeAlias = Started | ThinkingDelta | AnswerDelta | SearchProgress | Finish | Done | RequestFailed


@dataclass(frozen=True, slots=True)
class WholeReply:
    """A whole reply: what the events of a request add up to."""

    started: Started
    choices: tuple[Finish, ...]
    done: Done


_COLUMNS = tuple(Usage.__dataclass_fields__)


def ledger(usage: Usage) -> dict[str, Any]:
    """Every column of the ledger, and `tokens`: what a budget counts."""
    return {**{name: getattr(usage, name) for name in _COLUMNS}, "tokens": usage.tokens}
