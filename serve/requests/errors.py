"""What a client is told when a request cannot be answered: a status, a string code, a message that names the field.

`ApiError` is the only error that leaves this package. Everything that `ttc` raises is translated here, once; messages
lose the folders they name and are cut, so neither paths nor a flood of input come back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from ttc.errors import (
    BudgetExceeded,
    ConfigError,
    EngineBusy,
    EngineError,
    EngineTimeout,
    PluginError,
    PromptRefused,
    PromptTooLong,
    ScorerError,
    ServerRefused,
    TTCError,
    Unsupported,
)

MAX_MESSAGE = 1000
TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
"""OpenAI's and Anthropic's word for a status; others are by its hundred."""
INSUFFICIENT = "insufficient_quota"
"""OpenAI's word, as code and as type, for a key whose money is spent."""
_TRANSLATION: tuple[tuple[type | tuple[type, ...], int, str, str | None], ...] = (
    (PromptTooLong, 400, "context_length_exceeded", "messages"),
    (PromptRefused, 400, "content_filter", "messages"),
    (ServerRefused, 502, "upstream_misconfigured", None),
    ((ConfigError, Unsupported), 400, "invalid_value", None),
    (BudgetExceeded, 400, "budget_exceeded", "ttc.max_total_tokens"),
    (EngineTimeout, 504, "engine_timeout", None),
    ((EngineError, ScorerError), 503, "engine_unavailable", None),
)
"""What errors of `ttc` become: status, code, field; the first that fits, so special ones stand first."""
_PLACE = re.compile(r"https?://[^\s'\",;)]+|^\S+(?= closed a kept connection)")
_REASON = re.compile(r"(cannot be reached|closed a kept connection): .*?(?= \(gave up after|$)", re.DOTALL)
"""The operating system's words, which name addresses."""
_REFUSED = re.compile(r"answered 4\d\d: (.*)", re.DOTALL)
_NAMES = {
    "thinking.min_tokens": "min_thinking_tokens",
    "thinking.max_tokens": "thinking_budget",
    "budget.tokens": "ttc.max_total_tokens",
    "--max-tokens": "max_tokens",
    "--thinking off": "enable_thinking: false",
    "--thinking auto": "send no field for it",
    "--temperature 1": "temperature: 1",
    "--scorer prm:PATH": "a ttc.scorer of steps",
}
"""What a request calls what has another name elsewhere."""
_NAMED = re.compile("|".join(map(re.escape, _NAMES)) + r"|\bsampling\.(?!grammar\b)(?=[a-z])")
_COMMAND = r"(?<![\w-])--[a-z]|\bttc [a-z]+ [A-Z-]|\b(?:engine|scorer)\.[a-z_]+|\bengine openai\b"
"""An option, a command or a setting, which only the operator can give."""
_ASIDE = re.compile(rf" \([^()]*(?:{_COMMAND})[^()]*\)")
_ADVICE = re.compile(rf"(.*?)(?:: |; |, or | or )(?:(?!: |; | or ).)*?(?:{_COMMAND})", re.DOTALL)
"""What precedes the first advice to the operator."""
_FOLDER = re.compile(r"(?<![\w:/])(?:/[^/\s'\"]+)+/")


class ApiError(TTCError):
    """An answer that is an error; `param` names the field at fault, `retry_after_s` says when to come back."""

    def __init__(
        self, status: int, code: str, message: str, *, param: str | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.param, self.retry_after_s = status, code, param, retry_after_s
        self.more: Mapping[str, str] = {}
        """Headers beside those that its status asks for."""

    @property
    def message(self) -> str:
        """The message, at most MAX_MESSAGE characters."""
        text = str(self.args[0])
        return text if len(text) <= MAX_MESSAGE else text[: MAX_MESSAGE - 4] + " ..."

    @property
    def type(self) -> str:
        """OpenAI's `type` for this status."""
        if self.code == INSUFFICIENT:
            return INSUFFICIENT
        return TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")

    def to_json(self) -> dict[str, Any]:
        """The nested error object of OpenAI's API."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    def headers(self) -> Mapping[str, str]:
        """Headers of the reply."""
        headers = dict(self.more)
        if self.retry_after_s is not None:
            headers["retry-after"] = str(max(round(self.retry_after_s), 1))
        if self.status == 504 or self.code == INSUFFICIENT:  # it would only take as long again, or fail again
            headers["x-should-retry"] = "false"
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        return headers


def json_bytes(body: Any) -> bytes:
    """The JSON text of a reply."""
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode("utf-8", "replace")


def invalid(param: str, message: str, code: str = "invalid_value") -> ApiError:
    """A 400 about one field; `message` starts with its name as a rule."""
    return ApiError(400, code, message, param=param)


def unsupported(param: str, message: str) -> ApiError:
    """A 400 about a field that this model or strategy cannot honour."""
    return invalid(param, message, "unsupported_parameter")


def missing(param: str, message: str = "") -> ApiError:
    """A 400 about a missing field; `message` follows its name."""
    return invalid(param, f"{param} is required{message}", "missing_required_parameter")


def agreed(values: Mapping[str, Any], code: str = "invalid_value") -> tuple[str, Any]:
    """The first name and value of one thing under several names, or ("", None); raises ApiError when two differ."""
    values = {name: value for name, value in values.items() if value is not None}
    first = next(iter(values), "")
    for name, value in values.items():
        if value != values[first]:
            text = f"{first} = {values[first]!r} and {name} = {value!r} contradict each other: send one"
            raise invalid(name, text, code)
    return first, values.get(first)


def unavailable(code: str, message: str, retry_after_s: float | None = None) -> ApiError:
    """A 503."""
    return ApiError(503, code, message, retry_after_s=retry_after_s)


def _in_fields(name: re.Match[str]) -> str:
    return _NAMES.get(name[0], "")


def _for_client(text: str) -> str:
    """`text` by the names of a request's fields, without what only the operator of this server can do."""
    text = _NAMED.sub(_in_fields, _ASIDE.sub("", text))
    advice = _ADVICE.match(text)
    return text if advice is None else f"{advice[1]} (this server's operator can change that)"


def from_error(error: BaseException) -> ApiError:
    """Translate an error of `ttc`; anything else is a defect and told as such, without its text."""
    if isinstance(error, ApiError):
        return error
    message = str(error)
    if isinstance(error, EngineError | ScorerError):
        message = _REASON.sub(r"\1", _PLACE.sub("the upstream server", message))
    text = _FOLDER.sub("", message)
    if " answered " not in text:  # in the words of an upstream server
        text = _for_client(text)
    if isinstance(error, ServerRefused):
        text = "the upstream server refuses this server: its operator must look into it"
    refused = _REFUSED.search(text) if type(error) is EngineError else None
    if refused is not None:
        return ApiError(
            400, "upstream_refused", f"the upstream server refuses this request: {_NAMED.sub(_in_fields, refused[1])}"
        )
    if isinstance(error, EngineBusy):
        return ApiError(429, "upstream_busy", "the upstream servers are busy", retry_after_s=error.retry_after_s or 1.0)
    wait_s = error.retry_after_s if isinstance(error, EngineError) else None
    for kinds, status, code, param in _TRANSLATION:
        if isinstance(error, kinds):
            return ApiError(status, code, text, param=param, retry_after_s=wait_s)
    if isinstance(error, PluginError):
        return ApiError(500, "plugin_error", "a strategy, policy or scorer of this server failed; its log says more")
    return ApiError(500, "internal_error", "an error of the server itself; its log says more")


class ErrorDetail(BaseModel):
    """What went wrong; `param` is the field at fault."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorReply(BaseModel):
    """OpenAI's error object."""

    error: ErrorDetail
