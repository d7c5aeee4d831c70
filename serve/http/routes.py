"""The routes as FastAPI has them: the one file that imports it, and only inside functions."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from serve.http.endpoint import Endpoint
from serve.http.openapi import complete
from serve.http.pages import HEADERS, Page
from serve.http.transport import ASGIApp, Receive, Scope, Send
from serve.requests.errors import ApiError
from serve.running.catalogue import Catalogue
from serve.running.service import Service
from ttc import __version__
from ttc.errors import MissingExtra

if TYPE_CHECKING:
    from fastapi import FastAPI, Request

__all__ = ["add_models", "add_pages", "add_posts", "add_refusals", "add_state", "document", "new_app"]


def new_app(catalogue: Catalogue) -> FastAPI:
    """An application without routes, which closes the models when it ends.

    Raises:
        MissingExtra: FastAPI is not installed.
    """
    try:
        from fastapi import FastAPI
    except ImportError as exc:
        raise MissingExtra("fastapi", "serve") from exc

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await catalogue.close()

    return FastAPI(title="ttc serve", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)


def add_posts(app: FastAPI, endpoints: Sequence[Endpoint]) -> None:
    """One POST route for each dialect."""
    from fastapi import Response

    class Raw(Response):
        """A response that another ASGI application sends."""

        def __init__(self, inner: ASGIApp) -> None:
            super().__init__()
            self._inner = inner

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            await self._inner(scope, receive, send)

    def route(endpoint: Endpoint) -> Callable[..., Any]:
        async def post() -> Any:
            return Raw(endpoint)

        return post

    for endpoint in endpoints:
        path = endpoint.dialect.path
        app.add_api_route(path, route(endpoint), methods=["POST"], response_model=None, summary=path)


def add_pages(app: FastAPI, pages: Sequence[Page]) -> None:
    """The files of the playground."""
    from fastapi import Response

    def static(page: Page) -> Callable[..., Any]:
        async def get() -> Any:
            return Response(page.content, media_type=page.media_type, headers=dict(HEADERS))

        return get

    for page in pages:
        app.add_api_route(page.path, static(page), methods=["GET", "HEAD"], include_in_schema=False)


def add_models(app: FastAPI, catalogue: Catalogue) -> None:
    """What can be asked."""

    @app.get("/v1/models", summary="Models and presets")
    async def models() -> dict[str, Any]:
        return catalogue.to_json()

    @app.get("/v1/models/{name:path}", summary="One model or preset")
    async def model(name: str) -> dict[str, Any]:
        return catalogue.row(name)


def add_state(app: FastAPI, service: Service) -> None:
    """How the server is."""
    from fastapi import Response
    from fastapi.responses import JSONResponse

    started = time.time()

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


def add_refusals(app: FastAPI, bodies: Mapping[str, Callable[[ApiError], Any]]) -> None:
    """Errors in the form of the path they were asked on; elsewhere in OpenAI's."""
    from fastapi.responses import JSONResponse
    from starlette.exceptions import HTTPException

    @app.exception_handler(ApiError)
    async def refused(request: Request, error: ApiError) -> JSONResponse:
        return JSONResponse(error.to_json(), error.status, dict(error.headers()))

    @app.exception_handler(HTTPException)
    async def not_routed(request: Request, exc: HTTPException) -> JSONResponse:
        code = {404: "not_found", 405: "method_not_allowed"}.get(exc.status_code, "http_error")
        allowed = dict(exc.headers or {}).get("Allow")
        fix = f"send {allowed}" if allowed else "GET /openapi.json lists what there is"
        error = ApiError(exc.status_code, code, f"{request.method} {request.url.path[:200]}: {exc.detail}; {fix}")
        told: Callable[[ApiError], Any] = bodies.get(request.url.path, ApiError.to_json)
        return JSONResponse(told(error), error.status, dict(exc.headers or {}))


def document(app: FastAPI, endpoints: Sequence[Endpoint], models: Sequence[str]) -> None:
    """Let the OpenAPI document show what is really checked; it is made when it is first asked for."""
    plain = app.openapi
    made: dict[str, Any] = {}

    def openapi() -> dict[str, Any]:
        if not made:
            made.update(complete(plain(), endpoints, models))
        return made

    app.openapi = openapi  # type: ignore[method-assign]
