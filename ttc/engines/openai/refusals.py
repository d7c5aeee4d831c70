"""A server's refusals as our errors: whether waiting may help, whose fault it is, and what the server said.

A refusal that may pass becomes a `Transient`, every other one an error that names the server and repeats its words. The
key is taken out of every message, also when a server repeats it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
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
"""How servers say that a context is full, also with a 500 or in a stream, where `too long` is about time."""
_TOO_LONG = re.compile(f"{_CONTEXT}|{_ALSO}", re.I)
_SHARED = re.compile(r"^context size has been exceeded", re.I)
"""How llama.cpp says that its slots, which share one context, need more of it together."""
_FILTERED = re.compile(
    r"content.?filter|content.?(management.)?policy|flagged (as potentially violating|by moderation)|was flagged"
    r"|data.?inspection.?failed|content exists risk",  # Azure and OpenAI; OpenRouter; DashScope; DeepSeek
    re.I,
)
"""How the filters of servers say that they refuse a prompt."""
_CUT_SHORT = re.compile(r"could not finish the message because max_tokens", re.I)
"""How OpenAI says that a model spent all of its length on thought that it does not show: an answer that was cut."""


class Busy(EngineError):
    """The server cannot answer at this moment: overloaded, starting, or gone."""


class NotFound(ServerRefused):
    """404: the server has no such route, or no such model."""


class ContextShared(EngineError):
    """What a server works on does not fit into its context together; fewer requests at once would."""


class CutShort(EngineError):
    """The tokens were spent before the answer began or ended."""


@dataclass(frozen=True, slots=True)
class Access:
    """The key (never printed) and the time limits: seconds to connect, and of silence while connected."""

    key: str = field(repr=False)
    connect_s: float
    idle_s: float

    def hide(self, text: str) -> str:
        """`text` without the key, and not longer than a line or two."""
        message = text.replace(self.key, "[key]") if self.key else text
        return message if len(message) <= MAX_MESSAGE else message[:MAX_MESSAGE] + " ..."


def refuse(
    url: str, access: Access, status: int, said: str, headers: Mapping[str, str], exc: Exception | None = None
) -> NoReturn:
    """Raise what an answer of `status` means; `said` is the server's own words, `exc` the cause where there is one.

    Raises:
        Transient: it may pass.
        EngineError: it does not; ServerRefused for a wrong key or URL, PromptTooLong when it is the context,
            PromptRefused when it is a filter, CutShort when the length that was asked for ran out.
    """
    text = f"{url} answered {status}: {access.hide(said)}"
    cause = None if access.key and access.key in f"{exc} {said}" else exc
    if _CUT_SHORT.search(said):
        raise CutShort(text) from cause
    if status == 500 and _SHARED.search(said):
        raise Transient(ContextShared(text), status=status) from cause
    if status == 500 and _FULL.search(said):
        raise PromptTooLong(text) from cause
    if is_transient(status, headers):
        error = EngineBusy(text) if status == 429 else EngineError(text)
        error.retry_after_s = retry_after_s(headers)
        raise Transient(error, retry_after_s=error.retry_after_s, status=status) from cause
    if status in (400, 403, 422) and _FILTERED.search(said):
        raise PromptRefused(text) from cause
    if status in (401, 403):
        raise ServerRefused(f"{text}; check the key in the environment (engine.api_key_env)") from cause
    if status == 404:
        raise NotFound(f"{text}; check engine.base_url (it ends in /v1 as a rule) and --model") from cause
    if _TOO_LONG.search(said):
        raise PromptTooLong(text) from cause
    raise EngineError(text) from cause


def status_of(code: object) -> int:
    """The status that an error in a stream carries; without one the server is at fault."""
    text = str(code)
    return int(text) if text.isdecimal() and 400 <= int(text) < 600 else 500


def words_of(body: object, otherwise: str) -> str:
    """What a server said with an error, from the nested, flat, listed or bare shapes that servers use."""
    body = body[0] if isinstance(body, list) and body else body
    if isinstance(body, str) and body:
        return body
    if isinstance(body, Mapping):
        inner = body.get("error", body)
        if isinstance(inner, Mapping):
            return f"{inner.get('message', inner)}" + (f" ({inner['code']})" if _named(inner.get("code")) else "")
        return str(inner)
    return otherwise


def _named(code: object) -> bool:
    return isinstance(code, str) and not code.isdecimal()
