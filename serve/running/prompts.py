"""The prompts of a request: messages and functions rendered for its model, with its thinking settled.

How long thought may be depends on `max_tokens`, that on the room that the prompts leave in the context, and the prompts
on whether the model may think; `settle_prompts` decides all three. Long prompts are rendered in a thread.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Sequence
from dataclasses import replace

from serve.operator.config import ServeConfig
from serve.requests.errors import from_error, invalid, unsupported
from serve.requests.fields import SamplingRequest, ServeRequest
from serve.requests.thinking import CONFLICT, ThinkingPlan, settle
from serve.requests.tools import AnswerForm, check_calls
from serve.running.catalogue import ServedModel
from serve.running.support import DIRECT, check_ids
from serve.running.watch import raw_prompt
from ttc.core import Engine, Message, Prompt, Sampling, ToolEngine, ToolMessage
from ttc.engines.shared.text import LONG_TEXT
from ttc.engines.shared.wrapped import MarkedEngine
from ttc.errors import TTCError
from ttc.session.thinking import Thinking, handover_of

TURN_CHARS = 80
"""A turn takes as long to render as so many characters."""


async def settle_prompts(
    request: ServeRequest, model: ServedModel, config: ServeConfig, most: int
) -> tuple[ThinkingPlan, Sampling, tuple[Prompt, ...]]:
    """The thinking control, the sampling and the rendered prompts, which depend on each other through max_tokens.

    `most` is the number of tokens of a choice if the request has none.
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
    length = max(len(prompt.token_ids or ()) for prompt in prompts)  # without ids the upstream server counts
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
    return settled, sampling_of(wish, max_tokens, model), prompts


def sampling_of(wish: SamplingRequest, max_tokens: int, model: ServedModel) -> Sampling:
    """How to draw; where nothing is said, as the model's authors recommend.

    An upstream server that takes only its own temperature is asked for that.
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


def for_prefill(request: ServeRequest, strategy: str, model: ServedModel) -> ServeRequest:
    """The request without thought, since its answer has begun; raises ApiError if the model cannot continue one."""
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


def _ends(model: ServedModel, config: ServeConfig) -> tuple[int, ...]:
    """Lengths of what may end a thought: the hand-over and the bare marker; none if thought cannot be counted."""
    capabilities = model.engine.capabilities
    if not (capabilities.token_ids and capabilities.think_close):
        return ()
    words = handover_of(Thinking(handover=config.thinking.handover), capabilities)
    return len(model.engine.encode(words)), len(capabilities.think_close)


async def num_prompt_tokens(request: ServeRequest, model: ServedModel, config: ServeConfig) -> int:
    """How many tokens the prompt of `request` has, however many the context holds."""
    capabilities, ends = model.engine.capabilities, functools.partial(_ends, model, config)
    most = capabilities.max_context
    settled = settle(request.thinking, config.thinking, capabilities, most, name=model.name, ends=ends)
    (prompt,) = await _render(request, model, settled.control)
    return len(prompt.token_ids or ())


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
            check_ids(engine, () if isinstance(raw, str) else raw, "prompt")
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

    If the model may think, its thought is opened here: the grammar would hold one that it opened itself. With markers
    of the operator's, only requests for thought open one.
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
