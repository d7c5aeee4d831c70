"""What engines that tokenise here have in common: rendering, stop rules, and the checks before anything is sent.

`TokenEngine` is the base of the engines `embedded`, `vllm`, `sglang` and `ray_workers`, and `StreamingTokenEngine` of
those of them that can show tokens as they come. The checks also serve `openai`, whose dialects render in their own
ways.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from ttc.core import Capabilities, Completion, Message, Prompt, Sampling, UsageSink
from ttc.errors import ConfigError, PromptTooLong, Unsupported

if TYPE_CHECKING:
    from ttc.engines.shared.stops import StopRule
    from ttc.engines.shared.text import Text

__all__ = ["OnTokens", "StreamingTokenEngine", "TokenEngine", "check_room", "check_seed", "check_start"]

OnTokens: TypeAlias = Callable[[tuple[int, ...]], None]
"""Is given the ids of one draw as they are sampled."""


class TokenEngine:
    """An engine over the tokenizer of a model folder; what it can do is decided at its start."""

    def __init__(self, text: Text, capabilities: Capabilities) -> None:
        """`text` is the tokenizer of the model that runs."""
        self._text, self._capabilities = text, capabilities
        self._rules: dict[tuple[tuple[str, ...], tuple[int, ...]], StopRule] = {}
        self._pieces: list[str] = []

    @property
    def capabilities(self) -> Capabilities:
        """See `ttc.core.Engine`."""
        return self._capabilities

    def render(self, messages: Sequence[Message], thinking: bool | None) -> Prompt:
        """See `ttc.core.Engine`."""
        return self._text.render(messages, thinking)

    def encode(self, text: str) -> tuple[int, ...]:
        """See `ttc.core.Engine`."""
        return self._text.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """See `ttc.core.Engine`."""
        return self._text.decode(ids)

    def _check(self, prompt: Prompt, sampling: Sampling) -> tuple[int, ...]:
        """Return the ids to continue, once they, the seed and the context are known to do."""
        if not prompt.token_ids:
            raise Unsupported("this engine continues token ids: the prompt has none (render it first)")
        check_seed(sampling)
        self._check_room(len(prompt.token_ids), sampling.max_tokens)
        return prompt.token_ids

    def _check_room(self, length: int, wanted: int) -> None:
        check_room(length, wanted, self._capabilities.max_context)

    def _rule(self, sampling: Sampling) -> StopRule:
        """When draws under `sampling` end; kept, since a stop string is looked up in every token of the vocabulary."""
        from ttc.engines.shared.stops import make_rule

        name = (sampling.stop, sampling.stop_token_ids)
        if name not in self._rules:
            if sampling.stop and not self._pieces:
                self._pieces = self._text.pieces()
            self._rules[name] = make_rule(
                sampling.stop, sampling.stop_token_ids, self._text.eos_ids, self._pieces, self._text.decode
            )
        return self._rules[name]


class StreamingTokenEngine(TokenEngine, ABC):
    """One that can show the tokens of a draw as they come: `generate` and `stream` are one way to draw."""

    async def generate(self, prompt: Prompt, sampling: Sampling, draws: range, on_usage: UsageSink) -> list[Completion]:
        """See `ttc.core.Engine`."""
        return await self._draws(prompt, sampling, draws, on_usage, None)

    async def stream(
        self, prompt: Prompt, sampling: Sampling, draw: int, on_usage: UsageSink, on_tokens: OnTokens
    ) -> Completion:
        """See `ttc.core.StreamingEngine`."""
        (completion,) = await self._draws(prompt, sampling, range(draw, draw + 1), on_usage, on_tokens)
        return completion

    @abstractmethod
    async def _draws(
        self, prompt: Prompt, sampling: Sampling, draws: range, on_usage: UsageSink, on_tokens: OnTokens | None
    ) -> list[Completion]:
        """Check, draw and charge; `on_tokens` comes with a single draw only."""


def check_seed(sampling: Sampling) -> None:
    """Raise ConfigError when sampling would be random without a seed."""
    if sampling.temperature > 0 and sampling.seed is None:
        raise ConfigError("sampling.seed is missing: every run with temperature > 0 states one")


def check_room(length: int, wanted: int, limit: int) -> None:
    """Raise PromptTooLong when `wanted` tokens after `length` pass the context of `limit`."""
    if length + wanted > limit:
        cure = f"lower sampling.max_tokens to {limit - length}, or " if length < limit else ""
        asked = f"{length} prompt tokens + {wanted} requested tokens"
        raise PromptTooLong(f"{asked} exceed the context of {limit}: {cure}shorten the prompt")


def check_start(length: int, start: int) -> None:
    """Raise ConfigError when `start` is no token that has one before it, of `length` tokens to score."""
    if not 1 <= start <= length:
        raise ConfigError(f"logprobs: start must lie in 1..{length}, got {start}")
