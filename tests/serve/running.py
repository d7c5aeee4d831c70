"""A real server on a loopback port, in a thread of the test process, over an engine of the test's choice."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx2
import uvicorn

from serve.http.app import create_app
from serve.http.door import bounded
from serve.operator.config import ModelSpec, PresetSpec, ServeConfig, ServeLimits
from serve.operator.keys import Key
from serve.requests.thinking import ThinkingPolicy
from serve.running.admission import FairGate
from serve.running.catalogue import Catalogue, ServedModel
from serve.running.quotas import Quotas
from serve.running.service import InferenceService
from ttc.config.choices import PartChoice
from ttc.core import Engine, Scorer
from ttc.engines.scripted import ScriptedEngine, replies


@dataclass(frozen=True, slots=True)
class Running:
    """Where the server listens, and what runs in it."""

    url: str
    service: InferenceService
    engine: Engine
    loop: asyncio.AbstractEventLoop

    def client(self, **options: Any) -> httpx2.Client:
        """An HTTP client of it."""
        # The address is plain HTTP: no certificates need be read.
        return httpx2.Client(base_url=self.url, timeout=120, verify=False, **options)

    def ask(self, body: Mapping[str, Any], path: str = "/v1/chat/completions", **headers: str) -> httpx2.Response:
        """Post one request."""
        with self.client() as client:
            return client.post(path, json=dict(body), headers=headers)


def spec(name: str = "m", engine_params: Mapping[str, Any] | None = None, **options: Any) -> ModelSpec:
    """A model that the test loads itself."""
    return ModelSpec(name, PartChoice("engine", "scripted", None, lambda: None, engine_params or {}), **options)


def served(engine: Engine, name: str = "m", scorers: Mapping[str, Scorer] | None = None, **options: Any) -> ServedModel:
    """A loaded model around `engine`."""
    gate = FairGate(engine.capabilities.max_concurrency)
    return ServedModel(spec(name, **options), engine, gate, scorers or {})


@contextlib.contextmanager
def running(
    *models: ServedModel,
    presets: Sequence[PresetSpec] = (),
    limits: ServeLimits | None = None,
    thinking: ThinkingPolicy | None = None,
    keys: Sequence[Key] = (),
    quotas: Quotas | None = None,
    **options: Any,
) -> Iterator[Running]:
    """Serve `models`, the first of them by default, until the block ends."""
    config = ServeConfig(
        models=tuple(model.spec for model in models),
        default=models[0].name,
        presets=tuple(presets),
        limits=limits or ServeLimits(),
        thinking=thinking or ThinkingPolicy(),
        keys=tuple(keys),
        **options,
    )
    catalogue = Catalogue(config, {model.name: model for model in models})
    service = InferenceService(config, catalogue, quotas)
    app = create_app(config, catalogue, service)
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            ws="none",
            timeout_graceful_shutdown=3,
            http=bounded(config.http, config.limits.stall_s, service.metrics.refused),
        )
    )
    sock = socket.create_server(("127.0.0.1", 0))
    sock.setblocking(False)
    loops: list[asyncio.AbstractEventLoop] = []
    up = threading.Event()

    async def main() -> None:
        loops.append(asyncio.get_running_loop())
        up.set()
        await server.serve(sockets=[sock])

    thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    thread.start()
    up.wait(10)
    while not server.started and thread.is_alive():
        threading.Event().wait(0.005)
    try:
        host, port = sock.getsockname()
        yield Running(f"http://{host}:{port}", service, models[0].engine, loops[0])
    finally:
        if quotas is not None:
            asyncio.run_coroutine_threadsafe(quotas.close(), loops[0]).result(10)
        server.should_exit = True
        thread.join(20)
        sock.close()
        assert not thread.is_alive()


def scripted(table: Mapping[str, Sequence[str]] | None = None, **options: Any) -> ScriptedEngine:
    """An engine that answers by a table; `hi` is always in it."""
    return ScriptedEngine(replies({"hi": ["hello there"], **(table or {})}), **options)


def chat(text: str = "hi", **fields: Any) -> dict[str, Any]:
    """The body of a chat request to the model `m`."""
    return {"model": "m", "messages": [{"role": "user", "content": text}], **fields}
