"""Engines in front of an engine: a subclass of `Wrapped` overrides only what it changes.

Optional protocols (streaming, log-probabilities, new weights) are not passed on: they are found by `isinstance`, so a
wrapper that supports one implements it. `draw_shown` runs one draw for a display of tokens; `with_markers` adds
thinking to a model without markers of its own. Left out there: new weights, and the server's own information.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from ttc.core import (
    Capabilities,
    Completion,
    Engine,
    LogprobEngine,
    Message,
    Path,
    Prompt,
    Sampling,
    SearchAware,
    StreamingEngine,
    TextMarker,
    ToolEngine,
    Tools,
    TopLogprobEngine,
    Usage,
    UsageSink,
)
from ttc.errors import ConfigError, Unsupported
from ttc.session.thinking import default_handover, split


class Wrapped:
    """Forwards everything to `engine` but `close`, which stays with the engine's owner.

    A subclass overrides only what it changes. Optional protocols (streaming, log-probabilities, new weights) are not
    passed on: they are found by `isinstance`, so a wrapper that supports one implements it.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def capabilities(self) -> Capabilities:
        """See `ttc.core.Engine`."""
        return self._engine.capabilities

    def render(self, messages: Sequence[Message], thinking: bool | None) -> Prompt:
        """See `ttc.core.Engine`."""
        return self._engine.render(messages, thinking)

    @property
    def tool_format(self) -> str:
        """See `ttc.core.ToolEngine`; "" where the engine does not implement it."""
        return self._engine.tool_format if isinstance(self._engine, ToolEngine) else ""

    def render_tools(self, messages: Sequence[Message], thinking: bool | None, tools: Tools) -> Prompt:
        """See `ttc.core.ToolEngine`."""
        if not isinstance(self._engine, ToolEngine):
            raise Unsupported(f"{self.capabilities.model} cannot be shown functions")
        return self._engine.render_tools(messages, thinking, tools)

    def encode(self, text: str) -> tuple[int, ...]:
        """See `ttc.core.Engine`."""
        return self._engine.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """See `ttc.core.Engine`."""
        return self._engine.decode(ids)

    async def generate(self, prompt: Prompt, sampling: Sampling, draws: range, on_usage: UsageSink) -> list[Completion]:
        """See `ttc.core.Engine`."""
        return await self._engine.generate(prompt, sampling, draws, on_usage)

    def counters(self) -> Usage:
        """See `ttc.core.Engine`."""
        return self._engine.counters()

    def prune(self, problem_id: str, path: Path) -> None:
        """See `ttc.core.SearchAware`; ignored where the engine does not implement it."""
        if isinstance(self._engine, SearchAware):
            self._engine.prune(problem_id, path)

    def release(self, problem_id: str) -> None:
        """See `ttc.core.SearchAware`; ignored where the engine does not implement it."""
        if isinstance(self._engine, SearchAware):
            self._engine.release(problem_id)

    async def close(self) -> None:
        """Leave the engine open: its owner closes it."""


class DrawDisplay(Protocol):
    """Displays one draw while it is sampled."""

    def sync(self, prompt: Prompt) -> None:
        """Display everything in `prompt` after its rendered part, which is final, including injected text."""
        ...

    def add(self, ids: tuple[int, ...]) -> None:
        """Display new sampled ids."""
        ...


async def draw_shown(
    engine: Engine, prompt: Prompt, sampling: Sampling, draw: int, on_usage: UsageSink, display: DrawDisplay
) -> Completion:
    """Run one draw and display its tokens as they come; if the engine cannot stream, all at once when it is done."""
    display.sync(prompt)
    if isinstance(engine, StreamingEngine):
        return await engine.stream(prompt, sampling, draw, on_usage, display.add)
    (completion,) = await engine.generate(prompt, sampling, range(draw, draw + 1), on_usage)
    display.add(completion.token_ids)
    return completion


class MarkerNames(Protocol):
    """The markers of a thought, and the words that end one early, as in `Thinking`."""

    @property
    def open(self) -> str | None:
        """The text that opens a thought; None where no pair is set."""
        ...

    @property
    def close(self) -> str | None:
        """The text that closes a thought."""
        ...

    @property
    def handover(self) -> str | None:
        """The words inserted after a thought that was cut off; None for the default."""
        ...


def with_markers(engine: Engine, names: MarkerNames) -> Engine:
    """`engine`, or, if it takes ids, has no markers, and `names` has a pair: an engine that thinks between those.

    A prompt with thinking gets the opening marker after the rendered text, a prompt without it an empty closed block,
    as in Qwen3's own template; a prompt that leaves thinking open is not changed.

    Raises:
        ConfigError: the hand-over does not close the thought.
    """
    capabilities, opening, closing = engine.capabilities, names.open, names.close
    if opening is None or closing is None or capabilities.think_close or not capabilities.token_ids:
        return engine
    offers = tuple(kind for protocol, kind in _OFFERS if isinstance(engine, protocol))
    marked: MarkedEngine = type("MarkedEngine", (*offers, MarkedEngine), {})(engine, opening, closing)
    words = names.handover or marked.capabilities.handover or ""
    if split(marked.encode(words), True, marked.capabilities).inside:
        raise ConfigError(
            f"thinking.handover: in the tokens of {capabilities.model}, {words!r} does not hold the marker "
            f"{closing!r} as it is written alone; put it on a line of its own"
        )
    return marked


class MarkedEngine(Wrapped):
    """`engine` with thinking markers set by its user; closing it closes the engine."""

    def __init__(self, engine: Engine, opening: str, closing: str) -> None:
        super().__init__(engine)
        self._open, self._close = opening, closing
        self._capabilities = replace(
            engine.capabilities,
            think_open=engine.encode(opening),
            think_close=engine.encode(closing),
            think_texts=text_markers(opening, closing, engine.encode, engine.decode),
            handover=default_handover(closing),
        )

    @property
    def capabilities(self) -> Capabilities:
        """Those of the engine, with the markers."""
        return self._capabilities

    def render(self, messages: Sequence[Message], thinking: bool | None) -> Prompt:
        """Render without a switch, which the template lacks; then open a thought, or add an empty closed one."""
        return self._marked(self._engine.render(messages, None), thinking)

    def render_tools(self, messages: Sequence[Message], thinking: bool | None, tools: Tools) -> Prompt:
        """See `ttc.core.ToolEngine`."""
        return self._marked(super().render_tools(messages, None, tools), thinking)

    def _marked(self, prompt: Prompt, thinking: bool | None) -> Prompt:
        if thinking is None:
            return prompt
        if thinking:
            return replace(_longer(prompt, self.encode, f"{self._open}\n"), think_state="open")
        return replace(_longer(prompt, self.encode, f"{self._open}\n\n{self._close}\n\n"), think_state="closed")

    async def close(self) -> None:
        """Close the engine."""
        await self._engine.close()


class _MarkedStream(MarkedEngine):
    """The same for an engine that streams."""

    async def stream(
        self,
        prompt: Prompt,
        sampling: Sampling,
        draw: int,
        on_usage: UsageSink,
        on_tokens: Callable[[tuple[int, ...]], None],
    ) -> Completion:
        """See `ttc.core.StreamingEngine`."""
        engine = self._engine
        if not isinstance(engine, StreamingEngine):
            raise TypeError(f"{engine.capabilities.model} does not stream")
        return await engine.stream(prompt, sampling, draw, on_usage, on_tokens)


class _MarkedReader(MarkedEngine):
    """The same for an engine that scores given ids."""

    async def logprobs(self, token_ids: Sequence[int], start: int, on_usage: UsageSink) -> tuple[float, ...]:
        """See `ttc.core.LogprobEngine`."""
        engine = self._engine
        if not isinstance(engine, LogprobEngine):
            raise TypeError(f"{engine.capabilities.model} does not score given ids")
        return await engine.logprobs(token_ids, start, on_usage)


class _MarkedTeller(MarkedEngine):
    """The same for an engine that reports the likeliest tokens at given ids."""

    async def top_logprobs(
        self, token_ids: Sequence[int], start: int, k: int, on_usage: UsageSink
    ) -> tuple[Mapping[int, float], ...]:
        """See `ttc.core.TopLogprobEngine`."""
        engine = self._engine
        if not isinstance(engine, TopLogprobEngine):
            raise TypeError(f"{engine.capabilities.model} does not report the likeliest tokens of given ids")
        return await engine.top_logprobs(token_ids, start, k, on_usage)


_OFFERS: Sequence[tuple[type, type[MarkedEngine]]] = (
    (StreamingEngine, _MarkedStream),
    (LogprobEngine, _MarkedReader),
    (TopLogprobEngine, _MarkedTeller),
)
"""The optional protocols that are passed through."""


def _longer(prompt: Prompt, encode: Callable[[str], tuple[int, ...]], text: str) -> Prompt:
    """`prompt` with `text` appended to its rendered part."""
    ids = (*(prompt.token_ids or ()), *encode(text))
    return replace(
        prompt,
        text=prompt.text + text,
        token_ids=ids,
        rendered_len=len(ids),
        rendered_chars=len(prompt.text) + len(text),
    )


def text_markers(
    opening: str, closing: str, encode: Callable[[str], tuple[int, ...]], decode: Callable[[Sequence[int]], str]
) -> tuple[TextMarker, TextMarker] | None:
    """The markers as text; None if each is a single token, which is found by its id."""
    if len(encode(opening)) == 1 == len(encode(closing)):
        return None
    return TextMarker(opening, decode), TextMarker(closing, decode)
