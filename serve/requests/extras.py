"""Fields that only some engines honour: penalties, the likeliest tokens, isolated prefix caches; refused elsewhere.

With keys, each key has a salt of its own on engines that take one, so that the time a prompt takes does not tell one
key what another has asked. A request may add a salt to that; it cannot take the key's away.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import fields
from typing import Any

from serve.requests.errors import invalid
from serve.requests.keys import ANYONE, Key
from serve.requests.request import ServeRequest
from ttc.core import PENALTIES, ExtraSampling, Sampling, extras_of
from ttc.session.thinking import Thinking

__all__ = ["check_forwarded", "with_extras"]

COUNTED = ("presence_penalty", "frequency_penalty")
"""Penalties that count the tokens of one request to the engine."""
WHOLE = ("direct", "majority", "best_of_n")
"""Strategies whose draws are one request each."""


def with_extras(
    sampling: Sampling, request: ServeRequest, key: Key, model: Any, strategy: str, control: Thinking
) -> Sampling:
    """`sampling` with what `request` asks beyond it of `model` (a `ServedModel`), and the key's salt.

    Raises:
        ApiError: the engine, or the strategy, cannot honour a field; names it.
    """
    wanted: dict[str, Any] = dict(request.sampling.penalties)
    if request.top_logprobs:
        wanted["top_logprobs"] = request.top_logprobs
    known = extras_of(model.engine.capabilities)
    asked = [*wanted, *(["cache_salt"] if request.sampling.cache_salt else [])]
    _check_known(asked, known, model.name)
    _check_counted(wanted, strategy, control)
    if request.top_logprobs and strategy != "direct":
        raise invalid("top_logprobs", f"top_logprobs: strategy {strategy} cannot honour it", "unsupported_parameter")
    if "cache_salt" in known and (request.sampling.cache_salt or key is not ANYONE):
        wanted["cache_salt"] = hashlib.sha256(f"{key.name}\0{request.sampling.cache_salt or ''}".encode()).hexdigest()
    if not wanted:
        return sampling
    return ExtraSampling(**{field.name: getattr(sampling, field.name) for field in fields(Sampling)}, **wanted)


def check_forwarded(request: ServeRequest, name: str) -> None:
    """Refuse what cannot be asked of a server behind: penalties can, and it answers for them."""
    given = {"top_logprobs": request.top_logprobs, "cache_salt": request.sampling.cache_salt}
    _check_known([field for field, value in given.items() if value], PENALTIES, name)


def _check_known(asked: Collection[str], known: Collection[str], model: str) -> None:
    for name in asked:
        if name not in known:
            why = f"{name}: the engine of model {model} does not honour it; leave it out"
            raise invalid(name, why, "unsupported_parameter")


def _check_counted(wanted: Collection[str], strategy: str, control: Thinking) -> None:
    """Refuse penalties whose counts would start anew within a draw."""
    name = next((name for name in COUNTED if name in wanted), None)
    if name is None:
        return
    if strategy not in WHOLE:
        why = f"strategy {strategy} draws an answer in several requests"
    elif control.active:
        why = "a thought under a budget and its answer are several requests (send thinking_budget = 0, or no budget)"
    else:
        return
    raise invalid(name, f"{name} counts the tokens of one request, and {why}", "unsupported_parameter")
