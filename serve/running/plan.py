"""From a request to a plan: every check that can be made before a token is spent, and every default filled in.

Precedence is body, then preset, then server. What comes out can run as it is; what cannot run is refused here, by
field, so that a bad request never waits in a queue.

Some fields only some engines honour: penalties, the likeliest tokens, isolated prefix caches. With keys, each key has a
salt of its own on engines that take one, so that the time a prompt takes does not tell one key what another has asked.
A request may add a salt to that; it cannot take the key's away.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import itertools
import json
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from serve.operator.config import PresetSpec, ServeConfig, ServeLimits
from serve.operator.keys import ANYONE, Key
from serve.requests.body import shown
from serve.requests.errors import from_error, invalid, unsupported
from serve.requests.fields import SamplingRequest, ServeRequest
from serve.requests.search import ProgressLevel, ServedStrategies
from serve.requests.thinking import CONFLICT, ThinkingPlan, settle
from serve.requests.tools import AnswerForm, FormReader, check_calls
from serve.running.catalogue import Catalogue, ServedModel
from serve.running.events import ledger
from serve.running.watch import raw_prompt
from ttc.answers import kind_of
from ttc.config.recipes import dump
from ttc.config.values import counted
from ttc.core import (
    PENALTIES,
    Answer,
    AnswerReader,
    Budget,
    Engine,
    ExtraSampling,
    LogprobEngine,
    Message,
    Problem,
    Prompt,
    Sampling,
    ToolEngine,
    ToolMessage,
    TopLogprobEngine,
    Usage,
    extras_of,
)
from ttc.engines.shared.text import LONG_TEXT
from ttc.engines.shared.wrapped import MarkedEngine
from ttc.errors import TTCError
from ttc.session.session import Session
from ttc.session.thinking import Thinking, handover_of

DIRECT = "direct"
FORWARDED_BY = ("direct", "majority")
"""Strategies that a server behind can be asked with (see `serve.running.forward`)."""
SEED_BITS = 53
"""Seeds go back as JSON numbers, which many clients read as doubles."""
TURN_CHARS = 80
"""Characters that take as long to render as a turn by itself does."""
CHARS_OF_TOKEN = 4
"""Of usual text, for what is set aside before a server behind has counted."""


@dataclass(frozen=True, slots=True, eq=False)
class RequestPlan:
    """A request bound to a model, a strategy and limits.

    `sequences` is how many draws it may make, `at_once` how many of them may run together.
    """

    request: ServeRequest
    model: ServedModel
    key: Key
    strategy: str
    params: Mapping[str, Any]
    call: Callable[[Problem, Session], Awaitable[Answer]]
    sampling: Sampling
    settled: ThinkingPlan
    budget: Budget
    seed: int
    answer_kind: str
    answers: AnswerReader
    progress: ProgressLevel
    prompts: tuple[Prompt, ...]
    sequences: int
    at_once: int
    adjusted: Mapping[str, Any] = field(default_factory=dict)
    """What the preset has, or the key's quota or a fallback's context leaves, instead of what was asked, by field."""

    @property
    def direct(self) -> bool:
        """Whether each choice is one draw, which can be streamed as it is sampled."""
        return self.strategy == DIRECT

    @property
    def max_ids(self) -> int | None:
        """Most tokens of a draw, what thinking control puts in included; None where tools add to it."""
        return None if self.strategy in OPEN_ENDED else self.sampling.max_tokens

    @property
    def most_tokens(self) -> int:
        """What it may spend at most: its prompt and its draws, twice over with room for scoring, or its budget."""
        drawn = self.sequences * self.sampling.max_tokens
        whole = (self.budget.tokens or 0) * self.request.num_replies
        return self.num_prompt + (drawn if self.direct else min(2 * drawn, whole))

    @property
    def tells_prompt(self) -> bool:
        """Whether what is scored is its own prompt, for the log-probabilities of an echo, and nothing of a search."""
        return self.direct and self.request.echo and self.request.logprobs

    @property
    def counts_prompt(self) -> bool:
        """Whether the tokens of the prompt are counted here, and not by a server behind."""
        return bool(self.prompts) and self.prompts[0].token_ids is not None

    @property
    def num_prompt(self) -> int:
        """Tokens of its prompts, each once; before a server behind has counted them, as often as it may be asked."""
        if self.counts_prompt:
            return sum(len(prompt.token_ids or ()) for prompt in self.prompts)
        text = json.dumps(self.request.forward, ensure_ascii=False) if self.request.forward else self.prompts[0].text
        return self.sequences * (len(text) // CHARS_OF_TOKEN)

    def within(self, tokens: int | None) -> RequestPlan:
        """The same, held to so many tokens, its prompt included; None changes nothing."""
        if tokens is None:
            return self
        each = max((tokens - self.num_prompt) // self.request.num_replies, 1)
        draws = each if self.direct else max(each // max(self.sequences, 1), 1)
        held = min(self.sampling.max_tokens, draws if self.request.forward else each)
        plan = replace(
            self,
            budget=Budget(tokens=min(each, self.budget.tokens or each)),
            sampling=replace(self.sampling, max_tokens=held),
        )
        return plan.instead_of(self.request.sampling.max_tokens)

    def instead_of(self, asked: int | None) -> RequestPlan:
        """The same, whose reply says where it draws other than `asked` tokens."""
        held = self.sampling.max_tokens
        less = {} if asked is None or held == asked else {"max_tokens": {"asked": asked, "used": held}}
        return replace(self, adjusted={**self.adjusted, **less})

    def report(
        self,
        *,
        final: str | None,
        candidates: Sequence[Mapping[str, Any]],
        chosen: int | None,
        thinking: Mapping[str, Any],
        usage: Usage,
        stop_cause: str | None,
    ) -> dict[str, Any]:
        """The `ttc` object of the reply; see docs/reference/http.md."""
        return {
            "type": "result",
            "model": self.model.name,
            "strategy": self.strategy,
            "parameters": dict(self.params),
            "final": final,
            "candidates": candidates,
            "chosen": chosen,
            "scores": [candidate["score"] for candidate in candidates],
            "thinking": thinking,
            "usage": ledger(usage),
            "seed": self.seed,
            "stop_cause": stop_cause,
            **({"adjusted": self.adjusted} if self.adjusted else {}),
        }


async def make_plan(
    request: ServeRequest, key: Key, catalogue: Catalogue, offers: ServedStrategies, config: ServeConfig
) -> RequestPlan:
    """Check `request` against this server and fill it in; raises ApiError, 400 or 404, naming the field."""
    model, preset = catalogue.find(request.model)
    request = _with_preset(request, preset)
    wish = request.search
    strategy = wish.strategy or (preset.strategy if preset else DIRECT)
    offer = offers[strategy]
    params = {**(preset.params if preset and preset.strategy == strategy else {}), **wish.params}
    scorer = _scorer(request, model, preset, offer.takes_scorer, offer.needs_scorer, strategy)
    arguments = offer.bind(params, scorer)
    width = width_of(offer.function, arguments)
    request, adjusted = _with_temperature(request, preset, width)
    _check_support(request, strategy, offer.parameters.model_fields, width)
    _check_replies(request, config.limits)
    form = request.form if model.tools is not None else None
    if form is not None:
        _check_form(form, request, strategy)
        request = replace(request, forward={})
    if request.prefill is not None:
        request = _begun(request, strategy, model)
    if form is None and not request.forward:
        request = _left_to_server(request, strategy, model)
    total = _total_limit(request, preset, key, config.limits)
    most = _most_tokens(request, config.limits, total.limit if strategy == DIRECT and total.asked is None else None)
    budget = Budget(tokens=max((total.asked or total.limit) // request.num_replies, 1))
    if request.forward:
        _check_forward(request, strategy, model)
        request = _with_default_effort(request, config)
        settled, sampling = _as_it_came(request, model, most)
        sampling = _shared(sampling, budget, width, strategy)
        prompts: tuple[Prompt, ...] = ()
    else:
        settled, sampling, prompts = await _settle(request, model, config, most)
        fill = functools.partial(with_extras, sampling, request, key, model, strategy, settled.control)
        sampling = await asyncio.to_thread(fill) if form is not None and form.held else fill()  # a schema may be large
    kind = wish.answer_kind or (preset and preset.answer_kind) or config.answer_kind
    _check_total(total, request, strategy, sampling)
    plan = RequestPlan(
        request=request,
        model=model,
        key=key,
        strategy=strategy,
        params={name: value for name, value in params.items() if name != "scorer"},
        call=functools.partial(offer.function, **arguments),
        sampling=sampling,
        settled=settled,
        budget=budget,
        seed=secrets.randbits(SEED_BITS) if wish.seed is None else wish.seed,
        answer_kind=kind,
        answers=FormReader(kind) if form is not None and form.held else kind_of(kind),
        progress=wish.progress or "off",
        prompts=prompts,
        sequences=width * request.num_replies,
        at_once=at_once_of(strategy, offer.function, arguments) * request.num_replies,
        adjusted=adjusted,
    )
    return plan.instead_of(request.sampling.max_tokens)


@dataclass(frozen=True, slots=True)
class _TotalLimit:
    """Most tokens of all choices of a request: those asked for, if any, the limit that holds, and whose it is."""

    asked: int | None
    limit: int
    whose: str


def _total_limit(request: ServeRequest, preset: PresetSpec | None, key: Key, limits: ServeLimits) -> _TotalLimit:
    limit = min(limits.max_total_tokens, key.limits.max_total_tokens or limits.max_total_tokens)
    whose = "this server's limit" if limit == limits.max_total_tokens else f"the limit of key {key.name}"
    asked = request.search.max_total_tokens or (preset.max_total_tokens if preset else None)
    return _TotalLimit(asked, limit, whose)


def _check_total(total: _TotalLimit, request: ServeRequest, strategy: str, sampling: Sampling) -> None:
    """Refuse a total, or plain draws without one, above the limit; raises ApiError."""
    limit, whose = total.limit, total.whose
    if total.asked is not None and total.asked > limit:
        raise invalid("ttc.max_total_tokens", f"ttc.max_total_tokens = {total.asked} exceeds {whose} of {limit}")
    num_tokens = request.num_replies * sampling.max_tokens
    if strategy == DIRECT and total.asked is None and num_tokens > limit:
        name = request.sampling.max_tokens_field
        place, what = (name, name) if request.num_replies == 1 else ("n", f"n x {name}")
        raise invalid(place, f"{what} = {num_tokens} exceeds {whose} of {limit} tokens")


async def count_prompt(request: ServeRequest, catalogue: Catalogue, config: ServeConfig) -> int:
    """How many tokens the prompt of `request` has; nothing is sampled, and no prompt is too long.

    Raises:
        ApiError: 404, or 400 where a server behind renders the prompt, which alone can count it.
    """
    model, preset = catalogue.find(request.model)
    request, capabilities = _with_preset(request, preset), model.engine.capabilities
    if not capabilities.token_ids:
        raise unsupported("model", f"model: {model.name} takes messages only, so the server behind it counts tokens")
    if request.form is not None and model.tools is None:
        name = request.form.field
        raise unsupported(name, f"{name}: model {model.name} is not shown it here, so its tokens cannot be counted")
    if request.prefill is not None:
        request = _begun(request, DIRECT, model)
    ends = functools.partial(_ends, model, config)
    most = capabilities.max_context
    settled = settle(request.thinking, config.thinking, capabilities, most, name=model.name, ends=ends)
    (prompt,) = await _render(request, model, settled.control)
    return len(prompt.token_ids or ())


def _with_preset(request: ServeRequest, preset: PresetSpec | None) -> ServeRequest:
    """Take the preset's thinking where the body says nothing of it."""
    wish = request.thinking
    explicit = wish.effort is not None or wish.budget is not None or wish.enabled is not None
    if preset is None or explicit:
        return request
    return replace(request, thinking=replace(wish, effort=preset.reasoning_effort, budget=preset.thinking_budget))


def _with_default_effort(request: ServeRequest, config: ServeConfig) -> ServeRequest:
    """A request to a server behind with the operator's level of effort, where it says nothing of thought."""
    wish, effort = request.thinking, config.thinking.default_effort
    is_explicit = wish.effort is not None or wish.budget is not None or wish.enabled is not None
    return request if is_explicit or effort is None else replace(request, thinking=replace(wish, effort=effort))


def _with_temperature(
    request: ServeRequest, preset: PresetSpec | None, width: int
) -> tuple[ServeRequest, Mapping[str, Any]]:
    """The preset's temperature where none is said, and instead of a 0 that would make all its draws equal."""
    asked = request.sampling.temperature
    if preset is None or not (asked is None or (asked == 0 and width > 1 and not request.search.strategy)):
        return request, {}
    own = preset.temperature
    used = Sampling().temperature if own is None else own
    sampling = replace(request.sampling, temperature=own if asked is None else used)
    adjusted = {} if asked is None else {"temperature": {"asked": asked, "used": used}}
    return replace(request, sampling=sampling), adjusted


def _scorer(
    request: ServeRequest, model: ServedModel, preset: PresetSpec | None, takes: bool, needs: bool, strategy: str
) -> object | None:
    name = request.search.scorer or (preset.scorer if preset else None)
    if request.search.scorer is not None and not takes:
        raise unsupported("ttc.scorer", f"ttc.scorer: strategy {strategy} takes no scorer; leave it out")
    if name is None and needs and model.scorers:
        name = next(iter(model.scorers))
    if name is not None and takes:
        if name not in model.scorers:
            names = ", ".join(sorted(model.scorers)) or "none"
            raise invalid("ttc.scorer", f"ttc.scorer: model {model.name} has no scorer {name!r} (known: {names})")
        return model.scorers[name]
    if needs:
        why = f"strategy {strategy} needs a scorer, and model {model.name} has none here (ttc serve --scorer NAME)"
        raise invalid("ttc.strategy", why)
    return None


def width_of(function: Callable[..., Any], arguments: Mapping[str, Any]) -> int:
    """How many draws one choice may have."""
    width = _values(function, arguments).get("n", 1)
    return width if isinstance(width, int) and width >= 1 else 1


def at_once_of(strategy: str, function: Callable[..., Any], arguments: Mapping[str, Any]) -> int:
    """How many draws of one choice may run together: all of them, but of a strategy that draws in waves."""
    width, wave = width_of(function, arguments), _WAVES.get(strategy)
    return width if wave is None else min(width, wave(_values(function, arguments)))


def _values(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a strategy is called with, its defaults included."""
    return {**(getattr(function, "__kwdefaults__", None) or {}), **arguments}


def _wave_of_adaptive(values: Mapping[str, Any]) -> int:
    return max(int(values["window" if values["rule"] == "window" else "wave"]), 1)


_WAVES: Mapping[str, Callable[[Mapping[str, Any]], int]] = {"adaptive": _wave_of_adaptive}
"""How many draws a wave has, of strategies that see one wave before they draw the next."""


def _check_support(request: ServeRequest, strategy: str, parameters: Mapping[str, Any], width: int) -> None:
    """Refuse by name the fields that this strategy cannot honour."""
    if request.num_choices > 1 and strategy != DIRECT:
        raise unsupported(
            "n", f"n must be 1 with strategy {strategy}, which returns one choice; the width of a search is ttc.n"
        )
    if width > 1 and request.sampling.temperature == 0:
        why = f"temperature = 0 makes all {width} draws of strategy {strategy} equal: leave it out, or ask for direct"
        raise invalid("temperature", why)
    if not request.draws and strategy != DIRECT:
        raise unsupported("max_tokens", f"max_tokens = 0 draws nothing, and strategy {strategy} needs draws")
    if request.sampling.stop and "step" in parameters:
        raise unsupported(
            "stop", f"stop: strategy {strategy} ends its steps at strings of its own; leave it out, or ask for another"
        )


def _check_replies(request: ServeRequest, limits: ServeLimits) -> None:
    """Refuse more replies than this server gives to one request; raises ApiError."""
    if request.num_replies > limits.max_choices:
        name, what = ("prompt", "prompts x n") if len(request.prompts) > 1 else ("n", "n")
        number = shown(request.num_replies)
        raise invalid(name, f"{what} must be at most {limits.max_choices}, this server's limit, got {number}")


def _left_to_server(request: ServeRequest, strategy: str, model: ServedModel) -> ServeRequest:
    """The request, with its messages to be forwarded where a plain chat is best left to a server behind."""
    if not _streams_behind(request, model):
        return request
    # An engine of messages takes stop strings for steps of a search, and knows no penalties and no levels of effort.
    wish, sampling = request.thinking, request.sampling
    has_level = wish.effort not in (None, "none")
    if strategy == DIRECT or (strategy in FORWARDED_BY and (sampling.stop or sampling.penalties or has_level)):
        return replace(request, forward={"messages": [dump(message) for message in request.messages]})
    if has_level:
        level = f"{wish.effort_field} = {wish.effort!r}"
        why = f"{level}: strategy {strategy} does not tell the server behind {model.name}"
        fix = f"ask for {' or '.join(FORWARDED_BY)}, or send enable_thinking = true"
        raise unsupported(wish.effort_field, f"{why}: {fix}")
    return request


def passes_effort(strategy: str, model: ServedModel) -> bool:
    """Whether a level of effort has a meaning with `strategy`: in tokens, or to the server behind."""
    return model.engine.capabilities.token_ids or model.forward is None or strategy in FORWARDED_BY


def _streams_behind(request: ServeRequest, model: ServedModel) -> bool:
    """Whether a plain chat is best left to a server behind: an engine without ids has its tokens only at the end."""
    wish = request.thinking
    counted = wish.budget not in (None, 0) or wish.min_tokens > 0 or request.logprobs or request.return_token_ids
    return model.forward is not None and not model.engine.capabilities.token_ids and not request.raw and not counted


def _begun(request: ServeRequest, strategy: str, model: ServedModel) -> ServeRequest:
    """The request without thought, since its answer has begun; raises ApiError where none can be begun."""
    name, capabilities, wish = request.prefill_field, model.engine.capabilities, request.thinking
    why = f"{name}: the last message must be the user's; an answer cannot be begun for the model"
    if request.forward or not capabilities.token_ids:
        raise unsupported(name, f"{why}, since {model.name} takes messages only")
    if strategy != DIRECT:
        raise unsupported(name, f"{why} with strategy {strategy}, only with direct")
    asked = wish.enabled or wish.budget not in (None, 0) or wish.effort not in (None, "none") or wish.min_tokens
    if asked:
        raise invalid(name, f"{name}: an answer that has begun leaves no room for thought: send one", CONFLICT)
    if not capabilities.think_close:
        return request
    return replace(request, thinking=replace(wish, enabled=False, effort=None, budget=None))


def _most_tokens(request: ServeRequest, limits: ServeLimits, total: int | None) -> int:
    """The most tokens of a choice where none are said; raises ApiError for more of them than this server draws.

    `total` are those that all choices may have, where nothing else holds them to it.
    """
    wish = request.sampling
    if wish.max_tokens is not None and wish.max_tokens > limits.max_tokens:
        name = wish.max_tokens_field
        raise invalid(name, f"{name} = {wish.max_tokens} exceeds this server's limit of {limits.max_tokens}")
    most = min(limits.default_max_tokens, limits.max_tokens)
    return most if total is None else max(min(most, total // request.num_replies), 1)


def _as_it_came(request: ServeRequest, model: ServedModel, most: int) -> tuple[ThinkingPlan, Sampling]:
    """What a server behind is asked, `most` tokens by default; it renders, counts and thinks by itself.

    Half of its context is the most that is asked for by default, since the length of the prompt is not known here.
    """
    wish = request.sampling
    half = max(model.engine.capabilities.max_context // 2, 1)
    max_tokens = wish.max_tokens or min(most, half)
    return ThinkingPlan(Thinking()), _sampling(wish, max_tokens, model)


def _shared(sampling: Sampling, budget: Budget, width: int, strategy: str) -> Sampling:
    """`sampling` where each draw has its share of the budget, since a server behind is asked for all of them at once.

    Raises:
        ApiError: there is not a token for each.
    """
    each = (budget.tokens or 0) // width
    if each < 1:
        why = f"does not pay for {counted(width, 'draw')} of strategy {strategy}: raise it"
        raise invalid("ttc.max_total_tokens", f"ttc.max_total_tokens = {budget.tokens} {why}", "budget_exceeded")
    return replace(sampling, max_tokens=min(sampling.max_tokens, each))


def _sampling(wish: SamplingRequest, max_tokens: int, model: ServedModel) -> Sampling:
    """How to draw; where nothing is said, as the model's authors recommend.

    A server behind that takes only its own temperature is asked for that.
    """
    usual = model.engine.capabilities.as_recommended(Sampling(max_tokens=max_tokens, stop=wish.stop))
    if model.forward is not None and model.forward.features.own_temperature:
        usual = replace(usual, temperature=1.0)
    return replace(
        usual,
        temperature=usual.temperature if wish.temperature is None else wish.temperature,
        top_p=usual.top_p if wish.top_p is None else wish.top_p,
        top_k=usual.top_k if wish.top_k is None else wish.top_k or None,
        min_p=usual.min_p if wish.min_p is None else wish.min_p,
        repetition_penalty=usual.repetition_penalty if wish.repetition_penalty is None else wish.repetition_penalty,
    )


async def _settle(
    request: ServeRequest, model: ServedModel, config: ServeConfig, most: int
) -> tuple[ThinkingPlan, Sampling, tuple[Prompt, ...]]:
    """The thinking control, the sampling and the rendered prompts, which depend on each other through max_tokens.

    `most` are the tokens of a choice where none are said.
    """
    wish, capabilities = request.sampling, model.engine.capabilities

    def settled_for(max_tokens: int, *, opened: bool) -> ThinkingPlan:
        return settle(
            request.thinking,
            config.thinking,
            capabilities,
            max_tokens,
            raw=request.raw,
            opened=opened,
            name=model.name,
            length_field=wish.max_tokens_field,
            ends=ends,
        )

    ends = functools.partial(_ends, model, config)

    draft = settled_for(wish.max_tokens or most, opened=False)
    prompts = await _render(request, model, draft.control)
    opened = prompts[0].think_state == "open"
    length = max(len(prompt.token_ids or ()) for prompt in prompts)  # without ids the server behind counts, and refuses
    longest = capabilities.max_context
    room = longest - length
    place = "prompt" if request.raw else "messages"
    if room < 1:  # in words that clients look for, since the code is lost in some of their errors
        raise invalid(
            place,
            f"{place} has {length} tokens, the prompt is too long: {length} tokens > {longest} maximum ({model.name}'s "
            f"maximum context length is {longest} tokens): shorten it by {1 - room} or more",
            "context_length_exceeded",
        )
    if wish.max_tokens is not None and wish.max_tokens > room:
        name = wish.max_tokens_field
        raise invalid(
            name,
            f"input length and `{name}` exceed context limit: {length} + {wish.max_tokens} > {longest}, the maximum "
            f"context length of {model.name}: at most {room} is possible",
            "context_length_exceeded",
        )
    max_tokens = wish.max_tokens or min(most, room)
    settled = settled_for(max_tokens, opened=opened)
    return settled, _sampling(wish, max_tokens, model), prompts


async def _render(request: ServeRequest, model: ServedModel, thinking: Thinking) -> tuple[Prompt, ...]:
    """The prompts as the strategy will see them; long ones are rendered in a thread."""
    engine = model.engine

    def render() -> tuple[Prompt, ...]:
        if request.form is not None and model.tools is not None:
            return (shown_tools(engine, request.messages, thinking, request.form),)
        if not request.raw:
            prompt = engine.render(request.messages, thinking.template)
            return (prompt if request.prefill is None else _go_on(engine, prompt, request),)
        if not engine.capabilities.token_ids:
            raise invalid("model", f"model: {model.name} takes messages only, use /v1/chat/completions")
        for raw in request.prompts:
            _check_ids(engine, raw)
        return tuple(raw_prompt(engine, raw) for raw in request.prompts)

    try:
        return await asyncio.to_thread(render) if _is_long(request) else render()
    except TTCError as exc:
        error = from_error(exc)
        error.param = error.param or ("prompt" if request.raw else "messages")
        raise error from exc


def _is_long(request: ServeRequest) -> bool:
    """Whether a prompt is longer than LONG_TEXT; nothing beyond that is looked at."""
    form = request.form
    calls = (call for message in request.messages if isinstance(message, ToolMessage) for call in message.calls)
    lengths = itertools.chain(
        (len(message.content) + TURN_CHARS for message in request.messages),
        map(len, request.prompts),
        (len(call.arguments) for call in calls),
        (len(str(tool)) for tool in (form.offer if form is not None else ())),
    )
    return any(total > LONG_TEXT for total in itertools.accumulate(lengths))


def shown_tools(engine: Engine, messages: Sequence[Message], thinking: Thinking, form: AnswerForm) -> Prompt:
    """The prompt with its functions.

    Where the model may think, its thought is begun here: one that it opened itself would be held to the grammar. Marks
    that the operator named are for requests that ask for thought.
    """
    if not isinstance(engine, ToolEngine):
        raise TypeError(f"{engine.capabilities.model} cannot be shown functions")
    check_calls(messages)
    prompt = engine.render_tools(messages, thinking.template, form.offer)
    capabilities = engine.capabilities
    silent = thinking.template is False or (thinking.template is None and isinstance(engine, MarkedEngine))
    if not form.held or silent or prompt.think_state != "none" or not capabilities.think_open:
        return prompt
    words = engine.decode(capabilities.think_open) + "\n"
    opened = prompt.extend(engine.encode(words), words)
    ids, text = opened.token_ids or (), opened.text
    return replace(
        opened, rendered_len=len(ids), rendered_chars=len(text), logprobs=(), certainty=(), think_state="open"
    )


def _check_form(form: AnswerForm, request: ServeRequest, strategy: str) -> None:
    """Refuse by name what cannot go together with functions or JSON."""
    if form.held and strategy not in WHOLE:
        able = f"{', '.join(WHOLE[:-1])} or {WHOLE[-1]}"
        why = f"strategy {strategy} draws an answer in pieces, which no grammar can hold: ask for {able}"
        raise unsupported("ttc.strategy", f"{form.field}: {why}")
    if request.prefill is not None:
        name = request.prefill_field
        raise unsupported(name, f"{name}: an answer with {form.field} cannot be begun: end with a user's message")
    if form.offer and request.logprobs:
        raise unsupported("logprobs", "logprobs cannot be given together with tools: leave one out")


def _check_ids(engine: Engine, raw: str | tuple[int, ...]) -> None:
    """Refuse ids that the model's tokenizer does not have: an engine would fail at them."""
    for token in () if isinstance(raw, str) else set(raw):
        try:
            text = engine.decode((token,))
        except (ValueError, OverflowError, LookupError):
            text = ""
        if not text:
            raise invalid("prompt", f"prompt: {token} is not the id of a token of this model")


def _go_on(engine: Engine, prompt: Prompt, request: ServeRequest) -> Prompt:
    """`prompt` with the beginning of the answer as part of what was rendered."""
    if prompt.think_state == "open":
        name = request.prefill_field
        why = f"{name}: the last message must be the user's; this model's template opens a thought before any answer"
        raise unsupported(name, why)
    words = request.prefill or ""
    longer = prompt.extend(engine.encode(words), words)
    return replace(
        longer, rendered_len=len(longer.token_ids or ()), rendered_chars=len(longer.text), logprobs=(), certainty=()
    )


def _ends(model: ServedModel, config: ServeConfig) -> tuple[int, ...]:
    """The lengths of what may end a thought: the hand-over, the bare marker; none where thought cannot be counted."""
    capabilities = model.engine.capabilities
    if not (capabilities.token_ids and capabilities.think_close):
        return ()
    words = handover_of(Thinking(handover=config.thinking.handover), capabilities)
    return len(model.engine.encode(words)), len(capabilities.think_close)


COUNTED = ("presence_penalty", "frequency_penalty")
"""Penalties that count the tokens of one request to the engine."""
OPEN_ENDED = ("tools",)
"""Strategies whose replies hold what tools have written, which max_tokens does not count."""
WHOLE = ("direct", "majority", "adaptive", "best_of_n")
"""Strategies whose draws are one request each."""


def with_extras(
    sampling: Sampling, request: ServeRequest, key: Key, model: Any, strategy: str, control: Thinking
) -> Sampling:
    """`sampling` with what `request` asks beyond it of `model` (a `ServedModel`), and the key's salt.

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
    if "top_logprobs" in extras and "top_logprobs" not in supported:
        name = request.top_logprobs_field
        why = f"the engine of model {model.name} reports the log-probability of the sampled token only: send 0"
        raise unsupported(name, f"{name}: {why}")
    names = [*extras, *(["cache_salt"] if request.sampling.cache_salt else [])]
    _check_known(names, supported, model.name)
    apart = (
        bool(request.sampling.stop) and bool(model.engine.capabilities.think_close) and control.template is not False
    )
    _check_counted(extras, strategy, control, apart=apart)
    if request.logprobs and not model.engine.capabilities.logprobs:
        raise unsupported("logprobs", f"logprobs: the engine of model {model.name} does not honour it; leave it out")
    if request.return_token_ids and not model.engine.capabilities.token_ids:
        raise unsupported("return_token_ids", f"return_token_ids: {model.name} takes no token ids; leave it out")
    if request.echo and request.logprobs and not isinstance(model.engine, LogprobEngine):
        why = f"the engine of model {model.name} does not report the log-probabilities of a prompt: leave logprobs out"
        raise unsupported("echo", f"echo: {why}")
    if request.echo and request.top_logprobs and not isinstance(model.engine, TopLogprobEngine):
        why = f"the engine of model {model.name} does not report the likeliest tokens of a prompt: with echo send 0"
        raise unsupported("logprobs", f"logprobs: {why}")
    if request.top_logprobs and strategy != "direct":
        name = request.top_logprobs_field
        raise unsupported(name, f"{name}: strategy {strategy} reports no likeliest tokens; ask for direct, or send 0")
    if "cache_salt" in supported and (request.sampling.cache_salt or key is not ANYONE):
        extras["cache_salt"] = hashlib.sha256(f"{key.name}\0{request.sampling.cache_salt or ''}".encode()).hexdigest()
    if not extras:
        return sampling
    return ExtraSampling(**{field.name: getattr(sampling, field.name) for field in fields(Sampling)} | extras)


def _check_forward(request: ServeRequest, strategy: str, model: ServedModel) -> None:
    """Refuse by name what cannot go together with fields that are passed through."""
    name = model.name
    field = next(iter(request.forward)) if request.form is None else request.form.field
    if model.forward is None:
        why = (
            f"{field}: the engine of model {name} holds no answer to a form (embedded, vllm and sglang do, for chat "
            "templates that write calls in JSON), and there is no server behind it (--upstream); leave it out"
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
    _check_behind(request, name)
    for on, other in ((request.logprobs, "logprobs"), (request.return_token_ids, "return_token_ids")):
        if on:
            raise unsupported(other, f"{other} cannot be given together with {field}: leave one out")


def _check_behind(request: ServeRequest, name: str) -> None:
    """Refuse what cannot be asked of a server behind: penalties can, and it answers for them."""
    values = {"top_logprobs": request.top_logprobs, "cache_salt": request.sampling.cache_salt}
    _check_known([field for field, value in values.items() if value], PENALTIES, name)


def _check_known(names: Collection[str], supported: Collection[str], model: str) -> None:
    for name in names:
        if name not in supported:
            why = f"{name}: the engine of model {model} does not honour it; leave it out"
            raise unsupported(name, why)


def _check_counted(extras: Collection[str], strategy: str, control: Thinking, *, apart: bool) -> None:
    """Refuse penalties whose counts would start anew within a draw; `apart`: stops part the thought from the answer."""
    name = next((name for name in COUNTED if name in extras), None)
    if name is None:
        return
    if strategy not in WHOLE:
        why = f"strategy {strategy} draws an answer in several requests"
    elif control.active:
        why = "a thought under a budget and its answer are several requests (send thinking_budget = 0)"
    elif apart:
        why = "a thought and an answer with stop strings are two requests (leave stop out, or send thinking_budget = 0)"
    else:
        return
    raise unsupported(name, f"{name} counts the tokens of one request, and {why}")
