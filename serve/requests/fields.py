"""Fields that the OpenAI dialects share: sampling, what is accepted without effect, what is refused with a reason.

A field that would change the answer and cannot be honoured is never ignored: it is described with the one value that
means nothing (`frequency_penalty: 0`), and refused with the reason otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from serve.requests.errors import invalid
from serve.requests.request import SamplingWish
from serve.requests.schema import Schema, described, nullable
from serve.requests.search import MAX_SEED
from serve.requests.thinking import FIELDS as THINKING

__all__ = ["IGNORED", "SHARED", "max_tokens_of", "sampling_of", "stream_options", "text_of"]

MAX_STOP = 4
_SOME = "Refused by models whose engine does not honour it."
_NEUTRAL: Mapping[str, float] = MappingProxyType(
    {"presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0}
)
_TEXT: Schema = {"type": "string"}


def _only(value: float, reason: str) -> dict[str, Any]:
    return nullable({"type": "number", "minimum": value, "maximum": value, "x-reason": reason})


def _absent(reason: str) -> dict[str, Any]:
    return {"type": "null", "x-reason": reason}


IGNORED: Mapping[str, Schema] = MappingProxyType(
    {
        "user": nullable(_TEXT),
        "store": nullable({"type": "boolean"}),
        "metadata": nullable({"type": "object"}),
        "service_tier": nullable(_TEXT),
        "safety_identifier": nullable(_TEXT),
        "prompt_cache_key": nullable(_TEXT),
        "prompt_cache_retention": nullable(_TEXT),
        "verbosity": nullable({"type": "string", "enum": ["low", "medium", "high"]}),
    }
)
"""Fields of OpenAI's schema that have no effect here."""

SHARED: Mapping[str, Schema] = MappingProxyType(
    {
        "model": {"type": "string", "maxLength": 512},
        "temperature": nullable({"type": "number", "minimum": 0, "maximum": 2}),
        "top_p": described(nullable({"type": "number", "minimum": 1e-6, "maximum": 1}), "In (0, 1]."),
        "top_k": described(nullable({"type": "integer", "minimum": -1, "maximum": 1 << 20}), "0 and -1 are off."),
        "n": described(nullable({"type": "integer", "minimum": 1}), "At most this server's limits.max_choices."),
        "seed": nullable({"type": "integer", "minimum": -MAX_SEED, "maximum": MAX_SEED}),
        "stop": {
            "anyOf": [
                {"type": "null"},
                {"type": "string", "minLength": 1, "maxLength": 256},
                {
                    "type": "array",
                    "maxItems": MAX_STOP,
                    "items": {"type": "string", "minLength": 1, "maxLength": 256},
                },
            ]
        },
        "stream": nullable({"type": "boolean"}),
        "stream_options": nullable(
            {
                "type": "object",
                "additionalProperties": False,
                "properties": {
                    "include_usage": nullable({"type": "boolean"}),
                    "include_obfuscation": nullable({"type": "boolean"}),
                },
            }
        ),
        "return_token_ids": described(nullable({"type": "boolean"}), "Return the ids of prompt and completion."),
        "frequency_penalty": described(nullable({"type": "number", "minimum": -2, "maximum": 2}), _SOME),
        "presence_penalty": described(nullable({"type": "number", "minimum": -2, "maximum": 2}), _SOME),
        "repetition_penalty": described(nullable({"type": "number", "minimum": 0.01, "maximum": 10}), _SOME),
        "cache_salt": described(nullable({"type": "string", "minLength": 1, "maxLength": 256}), _SOME),
        "min_p": _only(0, "min_p is not supported, use top_p or top_k"),
        "logit_bias": {
            "anyOf": [
                {"type": "null"},
                {"type": "object", "additionalProperties": False, "x-reason": "biases are not supported"},
            ]
        },
        "best_of": _absent("best-of-n is ttc: {strategy: 'best_of_n', n: ...}"),
        **THINKING,
        **IGNORED,
    }
)


def sampling_of(body: Mapping[str, Any], max_tokens: int | None, max_tokens_field: str) -> SamplingWish:
    """The sampling fields of a checked body."""
    stop = body.get("stop") or ()
    top_k = body.get("top_k")
    return SamplingWish(
        temperature=body.get("temperature"),
        top_p=body.get("top_p"),
        top_k=top_k if top_k is not None and top_k > 0 else None,
        max_tokens=max_tokens,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        max_tokens_field=max_tokens_field,
        penalties={
            name: float(body[name])
            for name, neutral in _NEUTRAL.items()
            if body.get(name) is not None and body[name] != neutral
        },
        cache_salt=body.get("cache_salt"),
    )


def max_tokens_of(body: Mapping[str, Any], names: tuple[str, ...]) -> tuple[int | None, str]:
    """The cap on tokens under any of its names, and the one used; refuses two that differ."""
    given = {name: body[name] for name in names if body.get(name) is not None}
    if len(set(given.values())) > 1:
        first, second = list(given)[:2]
        raise invalid(
            second, f"{first} = {given[first]} and {second} = {given[second]} contradict each other: send one"
        )
    return next(iter(given.values()), None), next(iter(given), names[0])


def stream_options(body: Mapping[str, Any]) -> bool:
    """Whether a usage chunk is asked for; refuses options of a stream where there is none."""
    options = body.get("stream_options")
    if options and not body.get("stream"):
        raise invalid("stream_options", "stream_options needs stream = true")
    return bool((options or {}).get("include_usage"))


def text_of(content: Any) -> str:
    """The text of a message's content: a string, or text parts put together."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part["text"] for part in content)
