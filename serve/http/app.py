"""The application: the dialects, their routes, and the guard in front of all of them."""

from __future__ import annotations

from serve.dialects import chat, completions, messages, messages_reply, responses, responses_reply
from serve.http import routes
from serve.http.endpoint import Dialect, Endpoint
from serve.http.guard import Guard
from serve.http.pages import read_pages
from serve.http.transport import ASGIApp
from serve.operator.config import ServeConfig
from serve.requests.errors import ApiError
from serve.running.catalogue import Catalogue
from serve.running.service import Service

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
    app = routes.new_app(catalogue)
    service = service or Service(config, catalogue)
    endpoints = [Endpoint(dialect, service) for dialect in DIALECTS]
    pages = read_pages()
    routes.add_posts(app, endpoints)
    routes.add_pages(app, pages)
    routes.add_models(app, catalogue)
    routes.add_state(app, service)
    routes.add_refusals(app, REFUSALS)
    routes.document(app, endpoints, catalogue.names())
    return Guard(app, config.keys, frozenset(page.path.encode() for page in pages), REFUSALS)
