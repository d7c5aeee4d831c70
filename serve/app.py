"""The application: FastAPI routes over the service, and the OpenAPI document of what the service really checks."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from serve.catalogue import Catalogue
from serve.config import ServeConfig
from serve.dialects import chat, completions, messages, messages_reply, responses, responses_reply
from serve.endpoint import Dialect, Endpoint
from serve.errors import ApiError
from serve.guard import Guard
from serve.openapi import complete
from serve.pages import HEADERS, Page, read_pages
from serve.service import Service
from serve.transport import ASGIApp, Receive, Scope, Send
from ttc.errors import MissingExtra

__all__ = ["DIALECTS", "create_app"]

DIALECTS = (
    Dialect(
        "/v1/chat/completions",
        chat.schema,
        chat.parse,
        chat.reply,
        chat.Stream,
        ApiError.to_json,
        chat.RESULT,
    ),
    Dialect(
        "/v1/completions",
        completions.schema,
        completions.parse,
        completions.reply,
        completions.Stream,
        ApiError.to_json,
        completions.RESULT,
    ),
    Dialect(
        "/v1/responses",
        responses.schema,
        responses.parse,
        responses_reply.reply,
        responses_reply.Stream,
        responses_reply.refusal,
        responses_reply.RESULT,
    ),
    Dialect(
        "/v1/messages",
        messages.schema,
        messages.parse,
        messages_reply.reply,
        messages_reply.Stream,
        messages_reply.refusal,
        messages_reply.RESULT,
        messages_reply.STATUSES,
        messages_reply.REFUSAL,
        messages_reply.PING,
    ),
)
REFUSALS = {dialect.path: dialect.error for dialect in DIALECTS}


def create_app(config: ServeConfig, catalogue: Catalogue, service: Service | None = None) -> ASGIApp:
    """Return the ASGI application that serves the loaded models of `catalogue`.

    Raises:
        MissingExtra: FastAPI is not installed.
    """
    try:
        from fastapi import FastAPI, Request, Response
        from fastapi.responses import JSONResponse
        from starlette.exceptions import HTTPException
    except ImportError as exc:
        raise MissingExtra("fastapi", "serve") from exc
    from ttc import __version__

    service = service or Service(config, catalogue)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await catalogue.close()

    class Raw(Response):
        """A response that another ASGI application sends."""

        def __init__(self, inner: ASGIApp) -> None:
            super().__init__()
            self._inner = inner

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            await self._inner(scope, receive, send)

    app = FastAPI(title="ttc serve", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    started = time.time()

    def route(endpoint: Endpoint) -> Callable[..., Any]:
        async def post() -> Any:
            return Raw(endpoint)

        return post

    endpoints = [Endpoint(dialect, service) for dialect in DIALECTS]
    for endpoint in endpoints:
        path = endpoint.dialect.path
        app.add_api_route(path, route(endpoint), methods=["POST"], response_model=None, summary=path)

    def static(page: Page) -> Callable[..., Any]:
        async def get() -> Any:
            return Response(page.content, media_type=page.media_type, headers=dict(HEADERS))

        return get

    pages = read_pages()
    for page in pages:
        app.add_api_route(page.path, static(page), methods=["GET", "HEAD"], include_in_schema=False)

    @app.get("/v1/models", summary="Models and presets")
    async def models() -> dict[str, Any]:
        return catalogue.to_json()

    @app.get("/v1/models/{name:path}", summary="One model or preset")
    async def model(name: str) -> dict[str, Any]:
        return catalogue.row(name)

    @app.get("/health", summary="The process lives")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/ready", response_model=None, summary="Models are loaded and requests are taken")
    async def ready() -> Any:
        status = "draining" if service.draining else "ready"
        return JSONResponse({"status": status}, 503 if service.draining else 200)

    @app.get("/metrics", response_model=None, summary="Prometheus metrics")
    async def metrics() -> Any:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")

    @app.get("/version", summary="Version, strategies and their parameters")
    async def version() -> dict[str, Any]:
        return {
            "version": __version__,
            "uptime_s": round(time.time() - started, 1),
            "strategies": service.offers.to_json(),
        }

    @app.exception_handler(ApiError)
    async def refused(request: Request, error: ApiError) -> JSONResponse:
        return JSONResponse(error.to_json(), error.status, dict(error.headers()))

    @app.exception_handler(HTTPException)
    async def not_routed(request: Request, exc: HTTPException) -> JSONResponse:
        code = {404: "not_found", 405: "method_not_allowed"}.get(exc.status_code, "http_error")
        error = ApiError(exc.status_code, code, f"{request.method} {request.url.path[:200]}: {exc.detail}")
        told: Callable[[ApiError], Any] = REFUSALS.get(request.url.path, ApiError.to_json)
        return JSONResponse(told(error), error.status, dict(exc.headers or {}))

    plain = app.openapi
    document: dict[str, Any] = {}

    def openapi() -> dict[str, Any]:
        if not document:
            document.update(complete(plain(), endpoints, catalogue.names()))
        return document

    app.openapi = openapi  # type: ignore[method-assign]
    return Guard(app, config.keys, frozenset(page.path.encode() for page in pages), REFUSALS)
