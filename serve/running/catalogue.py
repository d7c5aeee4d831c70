"""What a server serves: loaded models, and presets that name one of them with a strategy.

Models without thinking markers of their own can think too: `[thinking] open = "<think>"`, `close = "</think>"` makes
every served model think whose tokenizer has no such tokens. A request with thought gets the opening marker after the
rendered prompt, one without thought a closed empty block, as Qwen3's own template does; a request that says nothing
gets the template as it is. The markers may be several tokens: they are matched as their own ids, never as text, and
only in what was generated. Cost: a stop and a continuation wherever the last id of a marker is sampled. Left out: a
close that the model spells in other ids (merged with the character before it): the thought then goes on to its budget,
which holds all the same.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from serve.operator.config import ModelSpec, PresetSpec, ServeConfig
from serve.requests.errors import ApiError
from serve.requests.thinking import ThinkingPolicy
from serve.running.admission import FairGate
from serve.running.upstreams import Patience, Upstreams
from ttc.config.values import nearest
from ttc.core import (
    Capabilities,
    Completion,
    Engine,
    Message,
    Prompt,
    Sampling,
    Scorer,
    StreamingEngine,
    ToolEngine,
    Tools,
    UsageSink,
    extras_of,
)
from ttc.engines.shared.toolformats import TOOL_FORMATS, ToolFormat
from ttc.engines.shared.wrapped import Wrapped
from ttc.errors import ConfigError, Unsupported
from ttc.session.thinking import CLOSE, QWEN3_HANDOVER, split


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
        return self._marked(self._engine.render(messages, None), thinking)

    @property
    def tool_format(self) -> str:
        """See `ttc.core.ToolEngine`."""
        return self._engine.tool_format if isinstance(self._engine, ToolEngine) else ""

    def render_tools(self, messages: Sequence[Message], thinking: bool | None, tools: Tools) -> Prompt:
        """See `ttc.core.ToolEngine`."""
        if not isinstance(self._engine, ToolEngine):
            raise Unsupported(f"{self.capabilities.model} cannot be shown functions")
        return self._marked(self._engine.render_tools(messages, None, tools), thinking)

    def _marked(self, prompt: Prompt, thinking: bool | None) -> Prompt:
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


AUTO = "auto"
_log = logging.getLogger("serve")

IDLE_S = 600.0
CONNECT_S = 5.0


@dataclass(frozen=True, slots=True, eq=False)
class ServedModel:
    """A loaded model: its engine, the gate to it, its scorers by name, and the door to the server behind, if any."""

    spec: ModelSpec
    engine: Engine
    gate: FairGate
    scorers: Mapping[str, Scorer]
    forward: Upstreams | None = None

    @property
    def tools(self) -> ToolFormat | None:
        """How it writes calls, where it runs here and can be held to them; None where a server behind must be asked."""
        engine = self.engine
        if not isinstance(engine, ToolEngine) or "grammar" not in extras_of(engine.capabilities):
            return None
        return TOOL_FORMATS.get(engine.tool_format)

    @property
    def name(self) -> str:
        """The name clients use."""
        return self.spec.name


class Catalogue:
    """Models and presets by name."""

    def __init__(self, config: ServeConfig, models: Mapping[str, ServedModel]) -> None:
        """`models` are the loaded ones of `config`, by name."""
        self._config, self._models = config, models
        self._presets = {preset.name: preset for preset in config.presets}
        self._created = int(time.time())

    @classmethod
    def load(cls, config: ServeConfig) -> Catalogue:
        """Load every model and scorer; raises what their factories raise."""
        loaded = {}
        for spec in config.models:
            engine = spec.engine.create_engine()
            scorers = {name: choice.create_scorer(engine) for name, choice in spec.scorers.items()}
            gate = FairGate(engine.capabilities.max_concurrency, max_wide=config.limits.max_search_draws)
            forward = open_forward(spec, engine, Patience(config.limits.upstream_first_s, config.limits.upstream_gap_s))
            loaded[spec.name] = ServedModel(spec, with_markers(engine, config.thinking), gate, scorers, forward)
        return cls(config, loaded)

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._models.values())

    def find(self, name: str) -> tuple[ServedModel, PresetSpec | None]:
        """The model called `name`, or the preset and its model; raises ApiError, 404, with the nearest name."""
        preset = self._presets.get(name)
        if preset is not None:
            return self._models[preset.model], preset
        if name in self._models:
            return self._models[name], None
        hint = nearest(name, self.names()) if len(name) <= 200 else ""
        raise ApiError(
            404, "model_not_found", f"no model {name[:200]!r}{hint} (GET /v1/models lists them)", param="model"
        )

    @property
    def default(self) -> str:
        """The model of a request that names none."""
        return self._config.default

    def names(self) -> list[str]:
        """Every name that a request may use."""
        return [*self._models, *self._presets, AUTO]

    def to_json(self) -> dict[str, Any]:
        """The body of GET /v1/models."""
        rows = [self._row(name, model, None) for name, model in self._models.items()]
        rows += [self._row(name, self._models[preset.model], preset) for name, preset in self._presets.items()]
        if self._config.auto or len(self._models) > 1:
            rows.append({"id": AUTO, "object": "model", "created": self._created, "owned_by": "ttc"})
        return {"object": "list", "data": rows}

    def row(self, name: str) -> dict[str, Any]:
        """The body of GET /v1/models/NAME; raises ApiError like `find`."""
        rows = {row["id"]: row for row in self.to_json()["data"]}
        if name not in rows:
            self.find(name)
        return dict(rows[name])

    def _row(self, name: str, model: ServedModel, preset: PresetSpec | None) -> dict[str, Any]:
        capabilities, policy = model.engine.capabilities, self._config.thinking
        thinks = bool(capabilities.think_close) or not capabilities.token_ids
        about: dict[str, Any] = {
            "thinking": thinks,
            "exact_budgets": capabilities.token_ids and bool(capabilities.think_close),
            "efforts": policy.efforts_on(capabilities.max_context) if thinks else {},
            "max_thinking_tokens": policy.max_thinking_tokens,
            "scorers": sorted(model.scorers),
        }
        if preset is not None:
            about |= {"model": preset.model, "strategy": preset.strategy, "parameters": dict(preset.params)}
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "ttc",
            "max_model_len": capabilities.max_context,
            "ttc": about,
        }

    async def prove(self) -> None:
        """Let engines that can hold a budget themselves prove it, where the hand-over is one that they can force."""
        handover = self._config.thinking.handover
        for model in self._models.values():
            capabilities, test = model.engine.capabilities, getattr(model.engine, "self_test", None)
            words = handover or capabilities.handover or QWEN3_HANDOVER
            if test is None or not capabilities.think_close or model.engine.encode(words) != capabilities.think_close:
                continue
            report = await test()
            notes = {"model": model.name, "exact": report.exact, "failures": list(report.failures)}
            _log.info("the engine's own thinking cap was tested", extra=notes)

    @property
    def upstreams(self) -> dict[str, Upstreams]:
        """The servers behind, by the name of their model."""
        return {name: model.forward for name, model in self._models.items() if model.forward is not None}

    @property
    def reachable(self) -> bool:
        """Whether any model can answer: one that runs here, or one with a server behind that has not failed."""
        behind = self.upstreams
        return len(behind) < len(self._models) or any(servers.num_healthy for servers in behind.values())

    async def watch(self, every_s: float) -> None:
        """Ask the servers behind how they are, again and again; until cancelled."""
        while self.upstreams:
            await asyncio.sleep(every_s)
            await asyncio.gather(*(servers.check(every_s) for servers in self.upstreams.values()))

    async def close(self) -> None:
        """Close every engine."""
        for model in self._models.values():
            if model.forward is not None:
                await model.forward.close()
            await model.engine.close()


def open_forward(spec: ModelSpec, engine: Engine, patience: Patience | None = None) -> Upstreams | None:
    """The servers behind a model of engine `openai`; None for engines that run here."""
    from ttc.engines.openai.engine import RemoteEngine

    if not isinstance(engine, RemoteEngine):
        return None
    from ttc.engines.openai.client import Access, Client

    key = os.environ.get(str(spec.engine.params.get("api_key_env", "OPENAI_API_KEY")), "").strip()
    clients = {url: Client(url, Access(key, CONNECT_S, IDLE_S)) for url in engine.urls}
    return Upstreams(clients, engine.features, engine.balancer, patience)
