"""Turn a server's error replies into our errors: whether waiting may help, the likely cause, and the server's message.

An error that may pass becomes a `Transient`, any other one an error that names the server and quotes its message. The
key is removed from every message, even if the server repeats it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import unescape
from typing import NoReturn

from ttc.engines.shared.balance import Transient, is_transient, retry_after_s
from ttc.errors import EngineBusy, EngineError, PromptRefused, PromptTooLong, ServerRefused

MAX_MESSAGE = 400
_CONTEXT = r"context.?(length|window|size)|maximum context|max_model_len"
_ALSO = (
    r"too many tokens|too long|reduce the length of the messages|max_new_tokens. must be"  # many; Groq; TGI
    r"|exceeds the maximum number of tokens|maximum prompt length|exceeded model token limit"  # Gemini; xAI; Moonshot
    r"|maximum allowed token|maximum supported sequence length"  # NIM; SambaNova
)
_FULL = re.compile(_CONTEXT, re.I)
"""Messages of servers for a full context, also with a 500 or in a stream, where `too long` is about time."""
_TOO_LONG = re.compile(f"{_CONTEXT}|{_ALSO}", re.I)
_IN_CONTEXT = re.compile(r"maximum context", re.I)
_SHARED = re.compile(r"^context size has been exceeded", re.I)
"""llama.cpp's message when its slots, which share one context, together need more of it."""
_FILTERED = re.compile(
    r"content.?filter|content.?(management.)?policy|flagged (as potentially violating|by moderation)|was flagged"
    r"|data.?inspection.?failed|content exists risk",  # Azure and OpenAI; OpenRouter; DashScope; DeepSeek
    re.I,
)
"""Messages of servers whose content filter refuses a prompt."""
_LENGTH = re.compile(
    r"max_(completion_|new_)?tokens.{0,20}(value.{0,20}valid range|must be less than or equal|is too large)"
    r"|maximum allowed number of output tokens|maxOutputTokens value .{0,40}supported range",  # Anthropic; Gemini
    re.I,
)
"""Messages of servers that return no answer as long as was requested; not vLLM's, which is about the context."""
_SWITCH = re.compile(r"reasoning_effort|chat_template_kwargs")
"""Fields that switch thinking."""
_WISH = re.compile(
    r"(?:try again|retry|reset)s?(?: after| in) (?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?) ?(ms|s))?", re.I
)
"""A delay in a message: `Please try again in 1m2.5s.`, which OpenAI and Groq write, `retry in 45.8s` of Gemini."""
_PAGE, _TITLE = re.compile(r"\s*<(!doctype|html)", re.I), re.compile(r"<title[^>]*>([^<]*)<", re.I)
_NO_CREDIT = re.compile(r"insufficient_quota|insufficient balance|credit balance is too low", re.I)
"""The code of OpenAI and others with a 429, and messages of DeepSeek and Anthropic; a 402 says it by itself."""
_CUT_SHORT = re.compile(r"could not finish the message because max_tokens", re.I)
"""OpenAI's message when a model used up its length on hidden thought: an answer that was cut."""


class Busy(EngineError):
    """The server cannot answer at the moment: overloaded, starting, or gone."""


class NotFound(ServerRefused):
    """Status 404: the server has no such route, or no such model."""


class NoCredit(ServerRefused, EngineError):
    """The account of our key is spent. Other servers may answer; to wait for this one rarely helps."""


class ContextShared(EngineError):
    """Concurrent requests together exceed the server's context; fewer at once would fit."""


class CutShort(EngineError):
    """The tokens were used up before the answer began or ended."""


@dataclass(frozen=True, slots=True)
class Access:
    """The key (never printed) and time limits in seconds: to connect, and of silence while connected."""

    key: str = field(repr=False)
    connect_s: float
    idle_s: float

    def hide(self, text: str) -> str:
        """`text` without the key, shortened to a line or two."""
        message = text.replace(self.key, "[key]") if self.key else text
        return message if len(message) <= MAX_MESSAGE else message[:MAX_MESSAGE] + " ..."


def refuse(
    url: str, access: Access, status: int, said: str, headers: Mapping[str, str], exc: Exception | None = None
) -> NoReturn:
    """Raise the error for an answer with `status`; `said` is the server's message, `exc` the cause if any.

    Raises:
        Transient: the error may pass.
        EngineError: it will not; ServerRefused for a wrong key or URL, NoCredit for a spent account, PromptTooLong when
            the context is exceeded, PromptRefused by a filter, CutShort when the requested length ran out.
    """
    text = f"{url} answered {status}: {access.hide(_without_page(said))}"
    cause = None if access.key and access.key in f"{exc} {said}" else exc
    if _CUT_SHORT.search(said):
        raise CutShort(text) from cause
    if status == 500 and _SHARED.search(said):
        raise Transient(ContextShared(text), status=status) from cause
    if status == 500 and _FULL.search(said):
        raise PromptTooLong(text) from cause
    if status == 402 or _NO_CREDIT.search(said):
        raise NoCredit(f"{text}; the account of this key has no credit left") from cause
    if is_transient(status, headers):
        error = EngineBusy(text) if status == 429 else EngineError(text)
        wish_s = retry_after_s(headers)
        error.retry_after_s = wished_s(said) if wish_s is None and status == 429 else wish_s
        raise Transient(error, retry_after_s=error.retry_after_s, status=status) from cause
    if status in (400, 403, 422) and _FILTERED.search(said):
        raise PromptRefused(text) from cause
    if status in (401, 403):
        where = "the environment variable OPENAI_API_KEY, or the one that engine.api_key_env names"
        raise ServerRefused(f"{text}; check the key in {where}") from cause
    if status == 404:
        raise NotFound(f"{text}; check engine.base_url (it ends in /v1 as a rule) and --model") from cause
    if _LENGTH.search(said) and not _IN_CONTEXT.search(said):
        raise EngineError(f"{text}; give a smaller --max-tokens") from cause
    if _TOO_LONG.search(said):
        raise PromptTooLong(text) from cause
    if _SWITCH.search(said):
        raise EngineError(f"{text}; leave its thinking as it is: --thinking auto") from cause
    raise EngineError(text) from cause


def _without_page(said: str) -> str:
    """A message; of a page, which gateways send, only its title."""
    if not _PAGE.match(said):
        return said
    title = _TITLE.search(said)
    return " ".join(unescape(title[1]).split()) if title else "a page without a title"


def wished_s(said: str) -> float | None:
    """The delay in seconds that a message asks for; None without one. Gemini sends no header that says it."""
    match = _WISH.search(said)
    if match is None or not any(match.groups()):
        return None
    hours, minutes, number, unit = match.groups()
    return 3600 * int(hours or 0) + 60 * int(minutes or 0) + float(number or 0) / (1000 if unit == "ms" else 1)


def status_of(code: object) -> int:
    """The status of an error in a stream; without one, a server error."""
    text = str(code)
    return int(text) if text.isdecimal() and 400 <= int(text) < 600 else 500


def words_of(body: object, otherwise: str) -> str:
    """The message in an error body, from the nested, flat, listed or bare shapes that servers use."""
    body = body[0] if isinstance(body, list) and body else body
    if isinstance(body, str) and body:
        return body
    if isinstance(body, Mapping):
        inner = body.get("error", body)
        if isinstance(inner, Mapping):
            code = f" ({inner['code']})" if _named(inner.get("code")) else ""
            return f"{inner.get('message', inner)}{code}{_beside(inner)}"
        return str(inner)
    return otherwise


def _beside(error: Mapping[str, object]) -> str:
    """What stands beside a message: the words of OpenRouter's provider, and the delay that Gemini asks for."""
    metadata, details = error.get("metadata"), error.get("details")
    raw = metadata.get("raw") if isinstance(metadata, Mapping) else None
    rows = [row for row in details if isinstance(row, Mapping)] if isinstance(details, list) else []
    delay = next((row["retryDelay"] for row in rows if isinstance(row.get("retryDelay"), str)), None)
    is_told = delay is None or "retry in" in str(error.get("message"))
    return (f": {raw}" if isinstance(raw, str) else "") + ("" if is_told else f" Please retry in {delay}.")


def _named(code: object) -> bool:
    return isinstance(code, str) and not code.isdecimal()
