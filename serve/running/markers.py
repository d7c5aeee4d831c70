"""Thinking for models without markers of their own: the operator names a pair, and the chat template gets a wrapper.

`[thinking] open = "<think>"`, `close = "</think>"` makes every served model think whose tokenizer has no such tokens. A
request with thought gets the opening marker after the rendered prompt, one without thought a closed empty block, as
Qwen3's own template does; a request that says nothing gets the template as it is. The markers may be several tokens:
they are matched as their own ids, never as text, and only in what was generated. Cost: a stop and a continuation
wherever the last id of a marker is sampled. Left out: a close that the model spells in other ids (merged with the
character before it): the thought then goes on to its budget, which holds all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from serve.requests.thinking import ThinkingPolicy
from ttc.core import (
    Capabilities,
    Completion,
    Engine,
    Message,
    Prompt,
    Sampling,
    StreamingEngine,
    UsageSink,
)
from ttc.engines.shared.tokens import Wrapped
from ttc.errors import ConfigError
from ttc.session.thinking import CLOSE, QWEN3_HANDOVER, split

__all__ = ["MarkedEngine", "with_markers"]


def with_markers(engine: Engine, policy: ThinkingPolicy) -> Engine:
    """`engine`, or where it takes ids, has no markers, and the operator names a pair: one that thinks between those.

    Raises:
        ConfigError: the hand-over, in the ids of this model, does not close the thought.
    """
    capabilities = engine.capabilities
    if policy.open is None or policy.close is None or capabilities.think_close or not capabilities.token_ids:
        return engine
    kind = _MarkedStream if isinstance(engine, StreamingEngine) else MarkedEngine
    marked = kind(engine, policy.open, policy.close)
    handover = policy.handover or marked.capabilities.handover or ""
    if split(marked.encode(handover), True, marked.capabilities).inside:
        raise ConfigError(
            f"thinking.handover: in the tokens of {capabilities.model}, {handover!r} does not hold the marker "
            f"{policy.close!r} as it is written alone; put it on a line of its own"
        )
    return marked


class MarkedEngine(Wrapped):
    """`engine` with thinking markers that the operator names; whoever closes it closes the engine."""

    def __init__(self, engine: Engine, opening: str, closing: str) -> None:
        super().__init__(engine)
        self._open, self._close = opening, closing
        self._capabilities = replace(
            engine.capabilities,
            think_open=engine.encode(opening),
            think_close=engine.encode(closing),
            handover=QWEN3_HANDOVER.replace(CLOSE, closing),
        )

    @property
    def capabilities(self) -> Capabilities:
        """Those of the engine, and the markers."""
        return self._capabilities

    def render(self, messages: Sequence[Message], thinking: bool | None) -> Prompt:
        """Render without a switch, which the template does not have; then open a thought, or close an empty one."""
        prompt = self._engine.render(messages, None)
        if thinking is None:
            return prompt
        if thinking:
            return replace(_wrapped(prompt, self.encode, f"{self._open}\n"), think_state="open")
        return replace(_wrapped(prompt, self.encode, f"{self._open}\n\n{self._close}\n\n"), think_state="closed")

    async def close(self) -> None:
        """Close the engine."""
        await self._engine.close()


class _MarkedStream(MarkedEngine):
    """The same for an engine that hands over tokens while it samples."""

    async def stream(
        self,
        prompt: Prompt,
        sampling: Sampling,
        draw: int,
        on_usage: UsageSink,
        on_tokens: Callable[[tuple[int, ...]], None],
    ) -> Completion:
        """Stream as the engine does."""
        engine = self._engine
        if not isinstance(engine, StreamingEngine):
            raise TypeError(f"{engine.capabilities.model} does not stream")
        return await engine.stream(prompt, sampling, draw, on_usage, on_tokens)


def _wrapped(prompt: Prompt, encode: Callable[[str], tuple[int, ...]], text: str) -> Prompt:
    """`prompt` with `text` as part of what was rendered."""
    ids = (*(prompt.token_ids or ()), *encode(text))
    return replace(
        prompt,
        text=prompt.text + text,
        token_ids=ids,
        rendered_len=len(ids),
        rendered_chars=len(prompt.text) + len(text),
    )
