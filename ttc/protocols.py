"""The protocols: what an engine, a scorer and a verifier must do, in terms of the nouns of `ttc.core`.

An engine needs `Engine` only; each of the small optional ones is found by `isinstance` and adds one thing: tokens as
they are sampled, log-probabilities of given ids, new weights in place. Import them from `ttc.core`, with the nouns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:  # ttc.core hands these protocols on, so it is imported first
    from ttc.core import (
        Capabilities,
        Completion,
        Message,
        Price,
        Prompt,
        Sampling,
        Score,
        Submission,
        Target,
        Usage,
        UsageSink,
        Verdict,
    )

__all__ = [
    "Engine",
    "LogprobEngine",
    "PricedScorer",
    "Scorer",
    "Served",
    "StreamingEngine",
    "Verifier",
    "WeightSync",
    "WholeAnswerScorer",
]


class Engine(Protocol):
    """The narrow seam between strategies and models."""

    @property
    def capabilities(self) -> Capabilities:
        """What this engine can honour."""
        ...

    def render(self, messages: Sequence[Message], thinking: bool | None) -> Prompt:
        """Apply the chat template; thinking None is the template's default. Raises ConfigError without a template."""
        ...

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of `text`, without any special token added."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, special tokens included."""
        ...

    async def generate(self, prompt: Prompt, sampling: Sampling, draws: range, on_usage: UsageSink) -> list[Completion]:
        """Continue `prompt` once per draw number; completion d has path prompt.path + (d,).

        `on_usage` is called once per draw when it ends, also when the awaiting task is cancelled: then the draw is
        aborted in the engine, its tokens are reported as `overrun`, and CancelledError propagates.
        """
        ...

    def counters(self) -> Usage:
        """Totals since the engine started; the sum of all `on_usage` reports equals them to the token."""
        ...

    async def close(self) -> None:
        """Free the model; aborts what is running."""
        ...


@runtime_checkable
class StreamingEngine(Protocol):
    """An engine that hands over tokens while it samples."""

    async def stream(
        self,
        prompt: Prompt,
        sampling: Sampling,
        draw: int,
        on_usage: UsageSink,
        on_tokens: Callable[[tuple[int, ...]], None],
    ) -> Completion:
        """Like `generate` for one draw; calls `on_tokens` in the event loop with each new run of ids."""
        ...


@runtime_checkable
class LogprobEngine(Protocol):
    """An engine that can score given ids (teacher log-probabilities)."""

    async def logprobs(self, token_ids: Sequence[int], start: int, on_usage: UsageSink) -> tuple[float, ...]:
        """Log-probability (nats, temperature 1) of token_ids[start:], each given everything before it."""
        ...


@runtime_checkable
class WeightSync(Protocol):
    """An engine whose weights can be replaced in place while it is idle."""

    async def load_weights(self, state: Mapping[str, Any]) -> None:
        """Replace the weights by `state` (Hugging Face names) and drop every cached key and value."""
        ...


@runtime_checkable
class Served(Protocol):
    """An engine whose model is behind a server, so that its weights cannot be seen from here."""

    @property
    def served(self) -> Mapping[str, str]:
        """What the server says of its model by name ("model id", "vLLM version"); what it does not say is absent."""
        ...


class Scorer(Protocol):
    """Blind: sees prompts, never a target. Keeps its own caches by (problem id, token ids)."""

    async def score(self, prompts: Sequence[Prompt], on_usage: UsageSink) -> list[Score]:
        """Score the generated part of each prompt; reports newly computed tokens as `scored`."""
        ...

    def release(self, problem_id: str) -> None:
        """Free what is cached for a problem."""
        ...


@runtime_checkable
class PricedScorer(Protocol):
    """A scorer that can say beforehand what it may cost, so that a token budget holds to the token."""

    def price(self, prompt: Prompt) -> Price:
        """`fixed`: tokens that scoring `prompt` itself takes now; `per_token`: an estimate for what is drawn after it.

        The estimate sizes a lease. When the draw is there its own price counts, and must not be exceeded.
        """
        ...


@runtime_checkable
class WholeAnswerScorer(Protocol):
    """A scorer that says whether it judges whole answers only: then it cannot guide what grows step by step."""

    @property
    def whole_answers(self) -> bool:
        """True where an unfinished path has no score that means anything."""
        ...


class Verifier(Protocol):
    """Holds the target; stateless. Never raises for hostile text: that is a verdict."""

    name: str
    version: str

    def check_gold(self, target: Target, item: str = "") -> None:
        """Raise ConfigError, naming `item`, when `target` could never be met: it does not verify against itself."""
        ...

    async def verify(self, target: Target, submission: Submission) -> Verdict:
        """Compare `submission` with `target`."""
        ...

    async def close(self) -> None:
        """Stop its workers."""
        ...
