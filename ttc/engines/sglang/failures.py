"""What SGLang's servers, and the way to them, say when they fail: translated into this toolkit's errors."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping

from ttc.core import Json
from ttc.engines.shared.retry import Transient, is_transient, wish_s
from ttc.errors import EngineError, EngineTimeout, PromptTooLong

__all__ = ["check", "check_event", "read_json", "translated"]


async def translated(url: str, work: Callable[[], Awaitable[None]]) -> None:
    """Turn the client library's exceptions into ours."""
    import httpx2

    try:
        await work()
    except httpx2.ReadTimeout as exc:
        raise EngineTimeout(f"sglang at {url} gave no answer in time: raise engine.answer_s") from exc
    except (httpx2.HTTPError, httpx2.InvalidURL) as exc:
        raise Transient(EngineError(f"sglang at {url} cannot be reached: {type(exc).__name__}: {exc}")) from exc


def check(url: str, status: int, headers: Mapping[str, str], content: bytes) -> None:
    """Raise for a status that is no success: Transient when it may pass."""
    if status < 400:
        return
    text = _message(content)
    if status in (401, 403):
        raise EngineError(
            f"sglang at {url} refuses the key ({status}): set engine.api_key_env, or engine.admin_key_env "
            "for a server with an admin key"
        )
    if status == 400 and "context length" in text:
        raise PromptTooLong(f"sglang at {url}: {text}")
    error = EngineError(f"sglang at {url} answered {status}: {text}")
    if is_transient(status, headers):
        raise Transient(error, wish_s=wish_s(headers))
    raise error


def check_event(url: str, event: Json) -> None:
    """Raise for an error inside a stream, whose status was long sent."""
    if isinstance(event, dict) and event.get("error"):
        code = event["error"].get("code") if isinstance(event["error"], dict) else None
        check(url, code if isinstance(code, int) else 400, {}, json.dumps(event).encode())


def _message(content: bytes) -> str:
    """The text of an error body: nested, flat, or not JSON at all; shortened."""
    try:
        body = json.loads(content)
    except ValueError:
        return content.decode("utf-8", "replace")[:300]
    error = body.get("error", body) if isinstance(body, dict) else body
    return str(error.get("message", error) if isinstance(error, dict) else error)[:300]


def read_json(url: str, content: bytes | str) -> Json:
    """The answer of the server at `url`; Transient when it is not JSON."""
    try:
        return json.loads(content)
    except ValueError as exc:
        raise Transient(EngineError(f"sglang at {url} sent what is not JSON: {content[:200]!r}")) from exc
