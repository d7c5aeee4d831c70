"""The base of engines that tokenise here: rendering, stop rules, and checks before anything is sent.

`TokenEngine` is the base of `embedded`, `vllm`, `sglang` and `ray_workers`, and `StreamingTokenEngine` of those of them
that can stream tokens. The checks are also used by `openai`, whose dialects have their own ways to render.

A draw ends (`StopRule`) at end-of-sequence ids, stop ids, and stop strings, also across token boundaries. A stop string
is searched for only when the newest token can complete one, since it contains the string's last character. The search
then decodes as few of the newest tokens as needed, and only tokens of this call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from ttc.core import Capabilities, Completion, Message, Prompt, Sampling, Tools, Usage, UsageSink
from ttc.engines.shared.text import Text
from ttc.errors import ConfigError, PromptTooLong, Unsupported


class StopRule:
    """`watch` holds every id that may end a draw, `final` those that always do; `reason` decides."""

    __slots__ = ("_decode", "_eos", "_ids", "_strings", "_window", "final", "watch")

    def __init__(
        self,
        strings: tuple[str, ...],
        ids: tuple[int, ...],
        eos: tuple[int, ...],
        pieces: Sequence[str],
        decode: Callable[[Sequence[int]], str],
    ) -> None:
        """`pieces` is the text of every id, and may be empty without stop strings.

        A piece that is empty or contains an incomplete character is always watched; for a stop string that ends in a
        space, every piece is: some tokenizers drop the leading space of a piece that is decoded alone.
        """
        self._strings, self._ids, self._eos, self._decode = strings, frozenset(ids), frozenset(eos), decode
        self._window = max((len(s.encode()) for s in strings), default=0) + 4
        last = {s[-1] for s in strings}

        def may_complete(piece: str) -> bool:
            return not piece or "\ufffd" in piece or " " in last or any(char in piece for char in last)

        candidates = (i for i, piece in enumerate(pieces) if may_complete(piece)) if strings else ()
        self.final = self._ids | self._eos
        self.watch = self.final | frozenset(candidates)

    def reason(self, generated: Sequence[int]) -> str | int | None:
        """Why the draw ends after its newest token: "eos", a stop id, a stop string, or None."""
        last = generated[-1]
        if last in self._eos:
            return "eos"
        if last in self._ids:
            return last
        if not self._strings:
            return None
        text = self._decode(generated[-self._window :])
        return next((s for s in self._strings if s in text), None)


OnTokens: TypeAlias = Callable[[tuple[int, ...]], None]
"""Called with the new ids of one draw as they are sampled."""

MAX_RULES = 64
"""Most stop rules that an engine caches: each may hold every id of the vocabulary."""


class TokenEngine:
    """An engine with the tokenizer of a model folder; its capabilities are fixed at its start."""

    def __init__(self, text: Text, capabilities: Capabilities) -> None:
        """`text` is the tokenizer of the model that runs."""
        self._text = text
        self._capabilities = replace(capabilities, recommended=text.recommended)
        self._rules: dict[tuple[tuple[str, ...], tuple[int, ...]], StopRule] = {}
        self._pieces: list[str] = []
        self._total = Usage()

    @property
    def capabilities(self) -> Capabilities:
        """See `ttc.core.Engine`."""
        return self._capabilities

    def render(self, messages: Sequence[Message], thinking: bool | None) -> Prompt:
        """See `ttc.core.Engine`."""
        return self._text.render(messages, thinking)

    @property
    def tool_format(self) -> str:
        """See `ttc.core.ToolEngine`."""
        return self._text.tool_format

    def render_tools(self, messages: Sequence[Message], thinking: bool | None, tools: Tools) -> Prompt:
        """See `ttc.core.ToolEngine`."""
        return self._text.render(messages, thinking, tools)

    def encode(self, text: str) -> tuple[int, ...]:
        """See `ttc.core.Engine`."""
        return self._text.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """See `ttc.core.Engine`."""
        return self._text.decode(ids)

    def counters(self) -> Usage:
        """See `ttc.core.Engine`."""
        return self._total

    def _charge(self, usage: Usage, on_usage: UsageSink) -> None:
        self._total += usage
        on_usage(usage)

    def _check(self, prompt: Prompt, sampling: Sampling) -> tuple[int, ...]:
        """Return the ids to continue, after checking them, the seed and the context."""
        if not prompt.token_ids:
            raise Unsupported("this engine continues token ids: the prompt has none (render it first)")
        check_seed(sampling)
        self._check_room(len(prompt.token_ids), sampling.max_tokens)
        return prompt.token_ids

    def _check_room(self, length: int, wanted: int) -> None:
        check_room(length, wanted, self._capabilities.max_context)

    def _rule(self, sampling: Sampling) -> StopRule:
        """The stop rule of `sampling`, cached, since a stop string is searched for in every token of the vocabulary."""
        name = (sampling.stop, sampling.stop_token_ids)
        if name not in self._rules:
            if sampling.stop and not self._pieces:
                self._pieces = self._text.pieces()
            if len(self._rules) == MAX_RULES:
                del self._rules[next(iter(self._rules))]  # drop the oldest: clients of a server may send ever new ones
            self._rules[name] = StopRule(
                sampling.stop, sampling.stop_token_ids, self._text.eos_ids, self._pieces, self._text.decode
            )
        return self._rules[name]


class StreamingTokenEngine(TokenEngine, ABC):
    """A `TokenEngine` that can stream; `generate` and `stream` draw in the same way."""

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
        """Check, draw and charge; `on_tokens` is given with a single draw only."""


def check_seed(sampling: Sampling) -> None:
    """Raise ConfigError when sampling would be random without a seed."""
    if sampling.temperature > 0 and sampling.seed is None:
        raise ConfigError("sampling.seed is missing: every run with temperature > 0 states one")


def check_room(length: int, wanted: int, limit: int) -> None:
    """Raise PromptTooLong when `wanted` tokens after `length` others exceed the context of `limit`."""
    if length + wanted > limit:
        cure = f"lower sampling.max_tokens to {limit - length}, or " if length < limit else ""
        need = f"{length} prompt tokens + {wanted} requested tokens"
        raise PromptTooLong(f"{need} exceed the context of {limit}: {cure}shorten the prompt")


def check_ids(ids: Sequence[int], vocab: int) -> None:
    """Raise Unsupported for an id outside the model's embedding; a GPU would read other memory for it."""
    worst = min(ids) if min(ids) < 0 else max(ids)
    if not 0 <= worst < vocab:
        raise Unsupported(
            f"token ids must lie in 0..{vocab - 1}, got {worst}: it is another model's, or was added to the tokenizer "
            "without resizing the model's embedding"
        )


def check_start(length: int, start: int) -> None:
    """Raise ConfigError unless `start` is a token, of `length` to score, that has another before it."""
    if not 1 <= start <= length:
        raise ConfigError(f"logprobs: start must lie in 1..{length}, got {start}")
