"""The OpenAPI document: request bodies are the very schemas that are checked, every error is listed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from serve.http.endpoint import Dialect, Endpoint
from serve.requests.schema import Schema

__all__ = ["complete"]

ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "string"},
            },
        }
    },
}
POST_ERRORS = {
    "400": "The request is malformed, contradicts itself, or asks for what this server or model cannot do.",
    "401": "A key is needed.",
    "404": "No such model.",
    "408": "The body came too slowly.",
    "413": "The body is too large.",
    "429": "Busy, or the key has used what it may; see Retry-After.",
    "503": "The engine is down, or the server is shutting down.",
    "504": "No answer within the server's time limit.",
}
GET_ERRORS = {"401": POST_ERRORS["401"]}


def complete(document: dict[str, Any], endpoints: Sequence[Endpoint], models: Sequence[str]) -> dict[str, Any]:
    """Put the checked schemas, the names of the models and the errors into FastAPI's document."""
    document["components"] = {"securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}}}
    bodies = {endpoint.dialect.path: _naming(endpoint.schema, models) for endpoint in endpoints}
    dialects = {endpoint.dialect.path: endpoint.dialect for endpoint in endpoints}
    for path, methods in document["paths"].items():
        for operation in methods.values():
            operation.pop("parameters", None) if "{" not in path else None
            errors = POST_ERRORS if path in bodies else dict(GET_ERRORS)
            if "{" in path:
                errors["404"] = POST_ERRORS["404"]
            if path == "/ready":
                errors["503"] = "Shutting down."
            dialect = dialects.get(path)
            operation["responses"] = {"200": _ok(path, None if dialect is None else dialect.result)} | {
                status: {"description": text, "content": {"application/json": {"schema": refusal}}}
                for status, text, refusal in _refusals(errors, dialect)
            }
            operation["security"] = [] if path in ("/health", "/ready") else [{"bearer": []}, {}]
            if path in bodies:
                operation["requestBody"] = {
                    "required": True,
                    "content": {"application/json": {"schema": bodies[path]}},
                }
    return document


def _refusals(errors: Mapping[str, str], dialect: Dialect | None) -> list[tuple[str, str, Schema]]:
    """Status, meaning and form of every error, as the dialect has them."""
    if dialect is None:
        return [(status, text, ERROR) for status, text in errors.items()]
    numbers = {str(usual): str(own) for usual, own in dialect.statuses.items()}
    return [(numbers.get(status, status), text, dialect.refusal or ERROR) for status, text in errors.items()]


def _naming(schema: Schema, models: Sequence[str]) -> dict[str, Any]:
    """The schema with the models there are; another name is a 404, not a malformed request."""
    properties = {**schema["properties"], "model": {"type": "string", "enum": list(models)}}
    return {**schema, "properties": properties}


def _ok(path: str, result: Schema | None) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": result or {"type": "object"}}}
    if result is not None:
        content["text/event-stream"] = {"schema": {"type": "object", "properties": {"data": {"type": "string"}}}}
    if path == "/metrics":
        content = {"text/plain; version=0.0.4; charset=utf-8": {"schema": {"type": "string"}}}
    return {"description": "Done.", "content": content}
