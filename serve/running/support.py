"""What a strategy, an engine and an upstream server honour: anything else that a request asks is refused by name.

Some fields only some engines honour: penalties, the likeliest tokens, isolated prefix caches. With keys, each key has a
salt of its own on engines that take one, so that the time a prompt takes does not tell one key what another has asked.
A request may add a salt to that; it cannot take the key's away.

An upstream server that takes messages only is asked for plain chats in its own words, since its engine here would have
their tokens only at the end.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import fields, replace
from typing import Any

from serve.operator.config import IGNORABLE
from serve.operator.keys import ANYONE, Key
from serve.requests.errors import invalid, unsupported
from serve.requests.fields import ServeRequest
from serve.requests.search import ServedStrategies, ServedStrategy
from serve.requests.tools import AnswerForm
from serve.running.catalogue import ServedModel
from ttc.config.recipes import dump
from ttc.core import PENALTIES, Engine, ExtraSampling, LogprobEngine, Sampling, TopLogprobEngine, extras_of
from ttc.session.thinking import Thinking

DIRECT = "direct"
FORWARDED_BY = ("direct", "majority")
"""Strategies that work on whole replies of an upstream server (see `serve.running.forward`)."""
COUNTED = ("presence_penalty", "frequency_penalty")
"""Penalties that count tokens within one request to the engine."""


def check_strategy(request: ServeRequest, offer: ServedStrategy, width: int) -> None:
    """Refuse by name the fields that this strategy cannot honour."""
    strategy = offer.name
    if request.num_choices > 1 and strategy != DIRECT:
        raise unsupported(
            "n", f"n must be 1 with strategy {strategy}, which returns one choice; the width of a search is ttc.n"
        )
    if width > 1 and request.sampling.temperature == 0:
        why = f"temperature = 0 makes all {width} draws of strategy {strategy} equal: leave it out, or ask for direct"
        raise invalid("temperature", why)
    if not request.draws and strategy != DIRECT:
        raise unsupported("max_tokens", f"max_tokens = 0 draws nothing, and strategy {strategy} needs draws")
    if request.sampling.stop and "step" in offer.parameters.model_fields:
        raise unsupported(
            "stop", f"stop: strategy {strategy} ends its steps at strings of its own; leave it out, or ask for another"
        )


def check_form(form: AnswerForm, request: ServeRequest, offer: ServedStrategy, offers: ServedStrategies) -> None:
    """Refuse by name what cannot go together with functions or JSON."""
    if form.held and not offer.drawing.whole:
        able = " or ".join(name for name in offers.names if offers[name].drawing.whole)
        why = f"strategy {offer.name} draws an answer in pieces, which no grammar can hold: ask for {able}"
        raise unsupported("ttc.strategy", f"{form.field}: {why}")
    if request.prefill is not None:
        name = request.prefill_field
        raise unsupported(name, f"{name}: an answer with {form.field} cannot be begun: end with a user's message")
    if form.offer and request.logprobs:
        raise unsupported("logprobs", "logprobs cannot be given together with tools: leave one out")


def with_extras(
    sampling: Sampling, request: ServeRequest, key: Key, model: ServedModel, offer: ServedStrategy, control: Thinking
) -> Sampling:
    """`sampling` with what `request` asks beyond it of `model`, and the key's salt.

    Raises:
        ApiError: the engine, or the strategy, cannot honour a field; names it.
    """
    extras: dict[str, Any] = dict(request.sampling.penalties)
    if request.form is not None and model.tools is not None:
        grammar = request.form.grammar(model.tools, model.engine.encode, sampling.stop)
        extras |= {} if grammar is None else {"grammar": grammar}
        if request.form.held:
            sampling = replace(sampling, stop=())  # the grammar ends text at them, and no call and no JSON
    supported = extras_of(model.engine.capabilities)
    if request.top_logprobs and ("top_logprobs" in supported or not request.echo):  # else read with those of the prompt
        extras["top_logprobs"] = request.top_logprobs
    if request.logprobs and not model.engine.capabilities.logprobs:
        raise unsupported("logprobs", f"logprobs: the engine of model {model.name} does not honour it; leave it out")
    if "top_logprobs" in extras and "top_logprobs" not in supported:
        name = request.top_logprobs_field
        why = f"the engine of model {model.name} reports the log-probability of the sampled token only: send 0"
        raise unsupported(name, f"{name}: {why}")
    if request.sampling.logit_bias:
        extras["logit_bias"] = tuple(request.sampling.logit_bias.items())
    if request.verbosity in ("low", "high"):
        name = request.verbosity_field
        why = f"{name}: only an upstream server that takes messages can be told it, with {' or '.join(FORWARDED_BY)}"
        raise unsupported(name, f"{why}; leave it out and say in a message how long to be{_or_ignored(name)}")
    names = [*extras, *(["cache_salt"] if request.sampling.cache_salt else [])]
    _check_known(names, supported, model.name)
    check_ids(model.engine, request.sampling.logit_bias, "logit_bias")
    apart = (
        bool(request.sampling.stop) and bool(model.engine.capabilities.think_close) and control.template is not False
    )
    _check_counted(extras, offer, control, apart=apart)
    if request.return_token_ids and not model.engine.capabilities.token_ids:
        raise unsupported("return_token_ids", f"return_token_ids: {model.name} takes no token ids; leave it out")
    if request.echo and request.logprobs and not isinstance(model.engine, LogprobEngine):
        why = f"the engine of model {model.name} does not report the log-probabilities of a prompt: leave logprobs out"
        raise unsupported("echo", f"echo: {why}")
    if request.echo and request.top_logprobs and not isinstance(model.engine, TopLogprobEngine):
        why = f"the engine of model {model.name} does not report the likeliest tokens of a prompt: with echo send 0"
        raise unsupported("logprobs", f"logprobs: {why}")
    if request.top_logprobs and offer.name != DIRECT:
        name = request.top_logprobs_field
        raise unsupported(name, f"{name}: strategy {offer.name} reports no likeliest tokens; ask for direct, or send 0")
    if "cache_salt" in supported and (request.sampling.cache_salt or key is not ANYONE):
        extras["cache_salt"] = hashlib.sha256(f"{key.name}\0{request.sampling.cache_salt or ''}".encode()).hexdigest()
    if not extras:
        return sampling
    return ExtraSampling(**{field.name: getattr(sampling, field.name) for field in fields(Sampling)} | extras)


def check_ids(engine: Engine, ids: Collection[int], place: str) -> None:
    """Refuse ids that the model's tokenizer does not have: an engine would fail at them."""
    for token in set(ids) - set(engine.capabilities.eos_ids):
        try:
            text = engine.decode((token,))
        except (ValueError, OverflowError, LookupError):
            text = ""
        if not text:
            raise invalid(place, f"{place}: {token} is not the id of a token of this model")


def _check_counted(extras: Collection[str], offer: ServedStrategy, control: Thinking, *, apart: bool) -> None:
    """Refuse penalties whose counts would start anew within a draw; `apart`: thought and answer are two requests."""
    name = next((name for name in COUNTED if name in extras), None)
    if name is None:
        return
    if not offer.drawing.whole:
        why = f"strategy {offer.name} draws an answer in several requests"
    elif control.active:
        why = "a thought under a budget and its answer are several requests (send thinking_budget = 0)"
    elif apart:
        why = "a thought and an answer with stop strings are two requests (leave stop out, or send thinking_budget = 0)"
    else:
        return
    raise unsupported(name, f"{name} counts the tokens of one request, and {why}")


def _check_known(names: Collection[str], supported: Collection[str], model: str) -> None:
    for name in names:
        if name not in supported:
            why = f"{name}: the engine of model {model} does not honour it; leave it out"
            raise unsupported(name, f"{why}{_or_ignored(name)}")


def _or_ignored(name: str) -> str:
    """What an operator can do about a field that is refused."""
    return ", or let the operator have it ignored: http.ignore" if name in IGNORABLE else ""


def left_to_upstream(request: ServeRequest, strategy: str, model: ServedModel) -> ServeRequest:
    """The request, with its messages to be forwarded if a plain chat is best left to an upstream server."""
    if not _goes_upstream(request, model):
        return request
    # An engine of messages takes stop strings for steps of a search, and knows no penalties and no levels of effort.
    wish, sampling = request.thinking, request.sampling
    has_level = wish.effort not in (None, "none")
    passes = (sampling.stop, sampling.penalties, sampling.logit_bias, request.verbosity, has_level)
    if strategy == DIRECT or (strategy in FORWARDED_BY and any(passes)):
        return replace(request, forward={"messages": [dump(message) for message in request.messages]})
    if has_level:
        level = f"{wish.effort_field} = {wish.effort!r}"
        why = f"{level}: strategy {strategy} does not tell the upstream server of {model.name}"
        fix = f"ask for {' or '.join(FORWARDED_BY)}, or send enable_thinking = true"
        raise unsupported(wish.effort_field, f"{why}: {fix}")
    return request


def _goes_upstream(request: ServeRequest, model: ServedModel) -> bool:
    """Whether a plain chat is best left to an upstream server: an engine without ids has its tokens only at the end."""
    wish = request.thinking
    counted = wish.budget not in (None, 0) or wish.min_tokens > 0 or request.logprobs or request.return_token_ids
    return model.forward is not None and not model.engine.capabilities.token_ids and not request.raw and not counted


def passes_effort(strategy: str, model: ServedModel) -> bool:
    """Whether a level of effort has a meaning with `strategy`: in tokens, or to the upstream server."""
    return model.engine.capabilities.token_ids or model.forward is None or strategy in FORWARDED_BY


def check_forward(request: ServeRequest, strategy: str, model: ServedModel) -> None:
    """Refuse by name what cannot go together with fields that are passed through."""
    name = model.name
    field = next(iter(request.forward)) if request.form is None else request.form.field
    if model.forward is None:
        why = (
            f"{field}: the engine of model {name} holds no answer to a form (embedded, vllm and sglang do, for chat "
            "templates that write calls in JSON), and it has no upstream server; leave it out"
        )
        raise unsupported(field, why)
    wish = request.thinking
    if wish.budget not in (None, 0) or wish.min_tokens:
        counted = wish.budget_field if wish.budget is not None else "min_thinking_tokens"
        if not model.engine.capabilities.token_ids:
            why = f"{counted}: {name} takes no token ids, so its thinking cannot be counted: leave it out"
            raise unsupported(counted, why)
        raise unsupported(counted, f"{counted} cannot be held together with {field}: leave one out")
    if strategy not in FORWARDED_BY:
        able_ones = " or ".join(FORWARDED_BY)
        raise unsupported("ttc.strategy", f"strategy {strategy} cannot honour {field}: ask for {able_ones}")
    _check_passed(request, name)
    for on, other in ((request.logprobs, "logprobs"), (request.return_token_ids, "return_token_ids")):
        if on:
            raise unsupported(other, f"{other} cannot be given together with {field}: leave one out")


def _check_passed(request: ServeRequest, name: str) -> None:
    """Refuse what cannot be asked of an upstream server; penalties can be, and are its own affair."""
    values = {"top_logprobs": request.top_logprobs, "cache_salt": request.sampling.cache_salt}
    _check_known([field for field, value in values.items() if value], PENALTIES, name)
