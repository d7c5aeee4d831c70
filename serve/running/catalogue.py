"""What a server serves: loaded models, and presets that name one of them with a strategy.

Models without thinking markers of their own can think too: `[thinking] open = "<think>"`, `close = "</think>"` makes
every served model think whose tokenizer has no such tokens. A request with thought gets the opening marker after the
rendered prompt, one without thought a closed empty block, as Qwen3's own template does; a request that says nothing
gets the template as it is (`ttc.engines.shared.wrapped`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from serve.operator.config import ModelSpec, PresetSpec, ServeConfig, located
from serve.requests.errors import ApiError
from serve.running.admission import FairGate
from serve.running.upstreams import Patience, Upstreams
from ttc.config.values import nearest
from ttc.core import (
    Engine,
    Scorer,
    ToolEngine,
    extras_of,
)
from ttc.engines.shared.wrapped import with_markers
from ttc.session.thinking import QWEN3_HANDOVER
from ttc.toolformats.families import TOOL_FORMATS
from ttc.toolformats.notation import ToolFormat

AUTO = "auto"
_log = logging.getLogger("serve")

CONNECT_S = 5.0


@dataclass(frozen=True, slots=True, eq=False)
class ServedModel:
    """A loaded model: its engine, the gate to it, its scorers by name, and its upstream servers, if any."""

    spec: ModelSpec
    engine: Engine
    gate: FairGate
    scorers: Mapping[str, Scorer]
    forward: Upstreams | None = None

    @property
    def tools(self) -> ToolFormat | None:
        """How it writes calls, if it runs here and can be held to them; None: an upstream server must be asked."""
        engine = self.engine
        if "grammar" not in extras_of(engine.capabilities) or not isinstance(engine, ToolEngine):  # the dear one last
            return None
        return TOOL_FORMATS.get(engine.tool_format)

    @property
    def max_context(self) -> int | None:
        """Most tokens of a prompt and its answer; None if neither the upstream server nor the operator says."""
        said = {"max_context", "tokenizer"} & self.spec.engine.params.keys()
        unknown = self.forward is not None and self.forward.features.max_context is None and not said
        return None if unknown else self.engine.capabilities.max_context

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
            with located(f"models.{spec.name}") if len(config.models) > 1 else contextlib.nullcontext():
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
    def default(self) -> str | None:
        """The model of a request that names none; None: it is refused."""
        return self._config.default if self._config.fills_model else None

    def names(self) -> list[str]:
        """Every name that a request may use."""
        return [*self._models, *self._presets, AUTO]

    def to_json(self) -> dict[str, Any]:
        """The body of GET /v1/models."""
        rows = [self._row(name, model, None) for name, model in self._models.items()]
        rows += [self._row(name, self._models[preset.model], preset) for name, preset in self._presets.items()]
        if self._config.auto or len(self._models) > 1:
            rows.append(self._head(AUTO))
        ends = {"first_id": rows[0]["id"], "last_id": rows[-1]["id"]}  # Anthropic's clients read these three
        return {"object": "list", "data": rows, "has_more": False, **ends}

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
            **self._head(name),
            **({} if model.max_context is None else {"max_model_len": model.max_context}),
            "ttc": about,
        }

    def _head(self, name: str) -> dict[str, Any]:
        """What OpenAI's and Anthropic's clients read of a model."""
        created_at = datetime.fromtimestamp(self._created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        openai = {"object": "model", "created": self._created, "owned_by": "ttc"}
        return {"id": name, **openai, "type": "model", "display_name": name, "created_at": created_at}

    async def prove(self) -> None:
        """Test engines that can enforce a budget themselves, if they can force the hand-over."""
        handover = self._config.thinking.handover
        for model in self._models.values():
            capabilities, test = model.engine.capabilities, getattr(model.engine, "self_test", None)
            words = handover or capabilities.handover or QWEN3_HANDOVER
            marked = capabilities.think_close and capabilities.think_texts is None
            if test is None or not marked or model.engine.encode(words) != capabilities.think_close:
                continue
            report = await test()
            notes = {"model": model.name, "exact": report.exact, "failures": list(report.failures)}
            _log.info("the engine's own thinking cap was tested", extra=notes)

    @property
    def upstreams(self) -> dict[str, Upstreams]:
        """The upstream servers, by the name of their model."""
        return {name: model.forward for name, model in self._models.items() if model.forward is not None}

    @property
    def reachable(self) -> bool:
        """Whether any model can answer: one that runs here, or one with an upstream server that has not failed."""
        pools = self.upstreams
        return len(pools) < len(self._models) or any(servers.num_healthy for servers in pools.values())

    async def watch(self, every_s: float) -> None:
        """Keep checking the health of the upstream servers; until cancelled."""
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
    """The upstream servers of a model of engine `openai`; None for engines that run here."""
    from ttc.engines.openai.engine import RemoteEngine

    if not isinstance(engine, RemoteEngine):
        return None
    from ttc.engines.openai.client import Client
    from ttc.engines.openai.refusals import Access

    key = os.environ.get(str(spec.engine.params.get("api_key_env", "OPENAI_API_KEY")), "").strip()
    clients = {url: Client(url, Access(key, CONNECT_S, math.inf)) for url in engine.urls}
    return Upstreams(clients, engine.features, engine.balancer, patience, engine.estimated)
