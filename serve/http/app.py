"""The application: POST routes, what a server says of itself, the playground, the guard in front.

The playground's files need no key, since they hold nothing; what the page then asks for does. Everything comes from
this server, no file is built, nothing is loaded from elsewhere, and text cannot become markup
(`require-trusted-types-for`).
"""

from __future__ import annotations

import importlib.resources
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from serve.dialects.chat import CHAT
from serve.dialects.completions import COMPLETIONS
from serve.dialects.messages import COUNT, MESSAGES
from serve.dialects.responses import RESPONSES
from serve.http.guard import AccessGuard
from serve.http.posts import NOTES, ASGIApp, Receive, Scope, Send, add_posts
from serve.operator.config import ServeConfig
from serve.requests.errors import ApiError, ErrorReply, from_error, json_bytes
from serve.running.catalogue import Catalogue
from serve.running.quotas import STANDING_HEADERS
from serve.running.service import InferenceService
from ttc import __version__
from ttc.errors import MissingExtra

if TYPE_CHECKING:
    from fastapi import FastAPI, Request, Response

DIALECTS = (CHAT, COMPLETIONS, RESPONSES, MESSAGES, COUNT)
_BY_PATH = {dialect.path: dialect for dialect in DIALECTS}


def create_app(config: ServeConfig, catalogue: Catalogue, service: InferenceService | None = None) -> ASGIApp:
    """The ASGI application that serves the loaded models of `catalogue`; raises MissingExtra without FastAPI."""
    try:
        from fastapi import FastAPI
    except ImportError as exc:
        raise MissingExtra("fastapi", "serve") from exc

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await catalogue.close()

    app = FastAPI(title="ttc serve", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    service = service or InferenceService(config, catalogue)
    add_posts(app, service, DIALECTS)
    pages = read_pages()
    _add_pages(app, pages)
    _add_models(app, catalogue)
    _add_state(app, service)
    _add_refusals(app, service)
    refusals = {dialect.path: dialect.refuse for dialect in DIALECTS}
    open_paths = frozenset(page.path.encode() for page in pages)
    leaving, count = (lambda: service.leaving), service.metrics.refused
    guard = AccessGuard(app, service.keys, open_paths, refusals, config.http, leaving, count)
    return _shared_with(guard, config.http.cors_origins, None if config.keys else _LOOPBACK)


_LOOPBACK = r"[a-z][a-z0-9+.-]*://(localhost|([a-z0-9-]+\.)+localhost|127(\.\d+){3}|\[::1\])(:\d+)?"
"""The pages that a server without keys answers unasked (`serve.http.guard`)."""


def _shared_with(app: ASGIApp, origins: Sequence[str], others: str | None) -> ASGIApp:
    """Let pages of these origins, and of those that match `others`, use `app`; a preflight (OPTIONS) needs no key."""
    if not origins and others is None:
        return app
    from starlette.middleware.cors import CORSMiddleware

    shared: Any = CORSMiddleware(
        app=app,
        allow_origins=list(origins),
        allow_origin_regex=others,
        allow_private_network=True,  # who is named here may ask, wherever this server stands
        allow_methods=["GET", "POST"],
        allow_headers=["*"],
        expose_headers=["x-request-id", "request-id", "retry-after", "x-ttc-ignored", *STANDING_HEADERS],
        max_age=600,
    )

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await shared(scope, receive, send)

    return answer


def _add_pages(app: FastAPI, pages: Sequence[Page]) -> None:
    """The files of the playground."""
    from fastapi import Response

    def static(page: Page) -> Callable[..., Any]:
        async def get() -> Any:
            return Response(page.content, media_type=page.media_type, headers=HEADERS)

        return get

    for page in pages:
        app.add_api_route(page.path, static(page), methods=["GET", "HEAD"], include_in_schema=False)


_KEYED: dict[int | str, dict[str, Any]] = {401: {"model": ErrorReply, "description": "A key is needed."}}
_NAMED: dict[int | str, dict[str, Any]] = {
    **_KEYED,
    404: {"model": ErrorReply, "description": "No such model."},
    "4XX": {"model": ErrorReply, "description": "Any other refusal."},
}
"""What routes refuse, for the OpenAPI document."""


def _add_models(app: FastAPI, catalogue: Catalogue) -> None:
    """What can be asked."""
    from fastapi import Security
    from fastapi.security import HTTPBearer

    key = [Security(HTTPBearer(auto_error=False))]  # for the document; the guard checks it

    async def models() -> dict[str, Any]:
        return catalogue.to_json()

    async def model(name: str) -> dict[str, Any]:
        return catalogue.row(name)

    _add_read(app, "/v1/models", models, summary="Models and presets", responses=_KEYED, dependencies=key)
    _add_read(app, "/v1/models/{name:path}", model, summary="One model or preset", responses=_NAMED, dependencies=key)


def _add_read(app: FastAPI, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
    """Add a route for GET, and for HEAD, which many probes send."""
    app.add_api_route(path, endpoint, methods=["GET"], **options)
    app.add_api_route(path, endpoint, methods=["HEAD"], **{**options, "include_in_schema": False})


def _add_state(app: FastAPI, service: InferenceService) -> None:
    """How the server is."""
    from fastapi import Response, Security
    from fastapi.responses import PlainTextResponse
    from fastapi.security import HTTPBearer

    key = [Security(HTTPBearer(auto_error=False))]
    started = time.time()

    async def health() -> dict[str, str]:
        return {"status": "ok"}

    _add_read(app, "/health", health, summary="The process lives")

    async def ready(response: Response) -> dict[str, Any]:
        reachable, upstreams = service.catalogue.reachable, service.catalogue.upstreams
        response.status_code = 503 if service.leaving or not reachable else 200
        status = "draining" if service.leaving else "ready" if reachable else "no upstream server answers"
        pools = {name: {"servers": len(servers), "healthy": servers.num_healthy} for name, servers in upstreams.items()}
        return {"status": status, **({"upstreams": pools} if pools else {})}

    ready.__annotations__["response"] = Response
    drains: dict[int | str, dict[str, Any]] = {503: {"description": "Shutting down, or no upstream server answers."}}
    _add_read(app, "/ready", ready, summary="Models are loaded and requests are taken", responses=drains)

    async def metrics() -> Any:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")

    keyed: dict[str, Any] = {"responses": _KEYED, "dependencies": key}
    _add_read(app, "/metrics", metrics, summary="Prometheus metrics", response_class=PlainTextResponse, **keyed)

    async def version() -> dict[str, Any]:
        return {
            "version": __version__,
            "uptime_s": round(time.time() - started, 1),
            "strategies": service.offers.to_json(),
        }

    _add_read(app, "/version", version, summary="Version, strategies and their parameters", **keyed)


def _add_refusals(app: FastAPI, service: InferenceService) -> None:
    """Errors in the form of the path they were asked on; elsewhere in OpenAI's."""
    from fastapi import Response
    from starlette.exceptions import HTTPException

    def refused(request: Request, error: ApiError, headers: Mapping[str, str]) -> Response:
        dialect = _BY_PATH.get(request.scope["path"])
        status = error.status if dialect is None else dialect.status(error.status)
        body = error.to_json() if dialect is None else dialect.refuse(error)
        return Response(json_bytes(body), status, dict(headers), "application/json")

    @app.exception_handler(ApiError)
    async def api_error(request: Request, error: ApiError) -> Response:
        notes = request.scope[NOTES]
        if request.scope["path"] in _BY_PATH:
            notes["error"] = error.code
            if "outcome" not in notes:
                service.metrics.refused(error.code, error.status)
        return refused(request, error, error.headers())

    @app.exception_handler(Exception)
    async def failed(request: Request, exc: Exception) -> Response:
        return refused(request, from_error(exc), {})  # what comes here is raised on, to the guard, which logs it

    @app.exception_handler(HTTPException)
    async def not_routed(request: Request, exc: HTTPException) -> Response:
        code = {404: "not_found", 405: "method_not_allowed"}.get(exc.status_code, "http_error")
        request.scope[NOTES]["error"] = code
        allowed = dict(exc.headers or {}).get("Allow")
        fix = f"send {allowed}" if allowed else _route_near(request.url.path)
        text = f"{request.method} {request.url.path[:200]}: {exc.detail}; {fix}"
        return refused(request, ApiError(exc.status_code, code, text), exc.headers or {})


def _route_near(path: str) -> str:
    """The route that was probably meant by `path`: most often a base URL has a /v1 too many, or none."""
    near = next((route for route in (*_BY_PATH, "/v1/models") if route == f"/v1{path}" or path.endswith(route)), None)
    return "GET /openapi.json lists what there is" if near is None else f"did you mean {near}?"


TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
}
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class Page:
    """One file and where it is served."""

    path: str
    media_type: str
    content: bytes


def read_pages() -> tuple[Page, ...]:
    """Read the files of the playground; `index.html` is served at `/`, the others below `/playground/`."""
    folder = importlib.resources.files("serve") / "playground"
    pages = []
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        media_type = TYPES.get(PurePath(file.name).suffix)
        if media_type is not None:
            path = "/" if file.name == "index.html" else f"/playground/{file.name}"
            pages.append(Page(path, media_type, file.read_bytes()))
    return tuple(pages)
