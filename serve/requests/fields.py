"""What dialects share: their fields, and the one request that each of them becomes.

A field that would change the answer and cannot be honoured is never ignored: it accepts only the value that means
nothing (`best_of: null`), and other values are refused with the reason.

A `ServeRequest` has been checked for form, but not for this server; `serve.running.plan` turns it into a `RequestPlan`
for one model, or refuses it. None means that the client did not say.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le, MaxLen, MinLen
from pydantic import Field

from serve.requests.body import FIRST_FAULT, WHOLE, RequestBody, shown, with_reason
from serve.requests.errors import agreed, invalid
from serve.requests.search import ANY_SEED, MAX_SEED, SearchFields, SearchRequest, read_search
from serve.requests.thinking import ThinkingFields, ThinkingRequest, read_thinking
from serve.requests.tools import AnswerForm
from ttc.core import Message, ToolMessage

TokenCount = Annotated[int, Ge(1), Le(1 << 31), WHOLE]
StopText = Annotated[str, MinLen(1), MaxLen(256)]
Verbosity = Literal["low", "medium", "high"]
MAX_STOPS = 64
"""OpenAI takes four; servers of one's own take any number, and harnesses send five and more."""
MAX_BIASES = 300
"""As in OpenAI's API: each costs every step of every draw a little."""
_Penalty = Annotated[float, Ge(-2), Le(2)]
_Bias = Annotated[float, Ge(-100), Le(100)]
MAX_TEMPERATURE = 2
_SOME = "Refused by models whose engine does not honour it."
_UNHEARD = "the operator may have it ignored: http.ignore"
_NEUTRAL = {"presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0}


class StreamOptions(RequestBody):
    """Options of a stream."""

    include_obfuscation: bool | None = None


class ChoiceStreamOptions(StreamOptions):
    """The same, where usage is a chunk of its own."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = Field(
        None, description="vLLM's, usage with every chunk: here it comes once, at the end, as with include_usage."
    )


class CommonFields(ThinkingFields):
    """Fields of every dialect."""

    model: Annotated[str, MaxLen(512)]
    temperature: Annotated[float, Ge(0), Le(MAX_TEMPERATURE)] | None = None
    top_p: Annotated[float, Ge(1e-6), Le(1)] | None = Field(None, description="In (0, 1].")
    top_k: Annotated[int, Ge(-1), Le(1 << 20), WHOLE] | None = Field(None, description="0 and -1 are off.")
    stream: bool | None = None
    seed: Annotated[int, Ge(ANY_SEED), Le(MAX_SEED), WHOLE] | None = Field(None, description="-1 is none, as in vLLM.")
    ttc: SearchFields | None = None


class OpenAIFields(CommonFields):
    """Fields of OpenAI's dialects."""

    stop: StopText | Annotated[list[StopText], FIRST_FAULT, MaxLen(MAX_STOPS)] | None = None
    frequency_penalty: _Penalty | None = Field(None, description=_SOME)
    presence_penalty: _Penalty | None = Field(None, description=_SOME)
    # Of OpenAI's API, without effect here.
    user: str | None = None
    store: bool | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    verbosity: Verbosity | None = Field(None, description="Passed on to upstream servers that take messages.")


_NONE = Annotated[list[Any], MaxLen(0)]
_BY_SCHEMA = "send the schema as response_format: {type: json_schema, json_schema: {name, schema}}"
_FREE = "no answer is held to it: response_format takes a JSON schema"
_ENDS = "the model ends its text itself, or stop does"


class OtherServersFields(OpenAIFields):
    """What clients of vLLM and SGLang send as a matter of course: of each the value that changes nothing here."""

    skip_special_tokens: Literal[True] | None = with_reason("special tokens are never part of a text here")
    spaces_between_special_tokens: bool | None = Field(None, description="No effect: no text has special tokens.")
    add_special_tokens: Literal[False] | None = with_reason("nothing is added to a prompt here but its chat template")
    min_tokens: Annotated[int, Ge(0), Le(0), WHOLE] | None = with_reason(f"{_ENDS}; thought has min_thinking_tokens")
    stop_token_ids: _NONE | None = with_reason(_ENDS)
    include_stop_str_in_output: Literal[False] | None = with_reason("a stop string is not part of the text")
    use_beam_search: Literal[False] | None = with_reason("ttc: {strategy: 'tree', policy: 'beam'} searches")
    length_penalty: Annotated[float, Ge(1), Le(1)] | None = with_reason("it is of vLLM's beam search")
    bad_words: _NONE | None = with_reason("no words can be kept out of an answer")
    allowed_token_ids: None = with_reason("no tokens can be kept out of an answer")
    logits_processors: None = with_reason("code is never taken from a request")
    guided_json: None = with_reason(_BY_SCHEMA)
    structured_outputs: None = with_reason(_BY_SCHEMA)
    guided_choice: None = with_reason("response_format takes a JSON schema, and that an enum")
    guided_regex: None = with_reason(_FREE)
    guided_grammar: None = with_reason(_FREE)
    regex: None = with_reason(_FREE)
    ebnf: None = with_reason(_FREE)
    prompt_logprobs: None = with_reason("completions with echo tell those of a prompt")
    return_tokens_as_token_ids: Literal[False] | None = with_reason("send return_token_ids")
    truncate_prompt_tokens: None = with_reason("a prompt that is too long is refused, not cut")
    separate_reasoning: Literal[True] | None = with_reason("thought is never part of the answer here")
    stream_reasoning: Literal[True] | None = with_reason("include_reasoning = false leaves thought out")
    priority: Annotated[int, Ge(0), Le(0), WHOLE] | None = with_reason("all requests have the same")
    request_id: str | None = Field(None, description="No effect: the header x-request-id names a request.")
    rid: str | None = Field(None, description="Like request_id.")
    extra_body: None = with_reason("an argument of OpenAI's library: send what is in it at the top of the body")


class ChoiceFields(OtherServersFields):
    """Fields of OpenAI's dialects that have choices."""

    n: Annotated[int, Ge(1), WHOLE] | None = Field(None, description="At most this server's limits.max_choices.")
    stream_options: ChoiceStreamOptions | None = None
    return_token_ids: bool | None = Field(None, description="Return the ids of prompt and completion.")
    repetition_penalty: Annotated[float, Ge(0.01), Le(10)] | None = Field(None, description=_SOME)
    repeat_penalty: Annotated[float, Ge(0.01), Le(10)] | None = Field(None, description="Like repetition_penalty.")
    ignore_eos: Literal[False] | None = with_reason(f"the model ends its text itself; {_UNHEARD}")
    keep_alive: None = with_reason(f"models stay loaded here; {_UNHEARD}")
    cache_salt: StopText | None = Field(None, description=_SOME)
    min_p: Annotated[float, Ge(0), Le(1)] | None = Field(
        None, description="Least share of the likeliest token's probability; 0 is off."
    )
    logit_bias: Annotated[dict[str, _Bias], MaxLen(MAX_BIASES)] | None = Field(
        None, description=f"Added to the logits of tokens, by their ids in the model's vocabulary. {_SOME}"
    )
    best_of: None = with_reason("best-of-n is ttc: {strategy: 'best_of_n', n: ...}")


@dataclass(frozen=True, slots=True)
class SamplingRequest:
    """How to draw. `max_tokens_field` is what the dialect calls max_tokens, for messages; `top_k` 0 is no limit.

    `repetition_penalty` is what the request states, 1 included, which overrides a recommended one; `penalties` holds
    those that are not neutral, by their names in `ttc.core.PENALTIES`; `logit_bias` is by token id.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    max_tokens_field: str = "max_tokens"
    penalties: Mapping[str, float] = field(default_factory=dict)
    cache_salt: str | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ServeRequest:
    """One request: a conversation, or raw prompts (no chat template; texts or ids), each with choices of its own.

    `prefill` is the beginning of the answer, which the model continues. Names that end in `_field` are fields of the
    body, for messages. `echo` repeats a raw prompt before its continuation; without `draws` there is none. `verbosity`
    is how long the answer should be, which only upstream servers can be told. `forward` is the body for a
    chat-completions server, for what a model here may be unable to do (tools, JSON schemas); `form` says the same for a
    model that can. Both are empty if nothing of the kind was requested.
    """

    model: str
    messages: tuple[Message, ...] = ()
    prompts: tuple[str | tuple[int, ...], ...] = ()
    prefill: str | None = None
    prefill_field: str = "messages"
    echo: bool = False
    draws: bool = True
    num_choices: int = 1
    stream: bool = False
    sampling: SamplingRequest = field(default_factory=SamplingRequest)
    thinking: ThinkingRequest = field(default_factory=ThinkingRequest)
    search: SearchRequest = field(default_factory=SearchRequest)
    logprobs: bool = False
    top_logprobs: int = 0
    top_logprobs_field: str = "top_logprobs"
    return_token_ids: bool = False
    verbosity: Verbosity | None = None
    verbosity_field: str = "verbosity"
    forward: Mapping[str, Any] = field(default_factory=dict)
    form: AnswerForm | None = None

    @property
    def raw(self) -> bool:
        """Whether its prompts have no chat template."""
        return bool(self.prompts)

    @property
    def num_replies(self) -> int:
        """Choices of all its prompts."""
        return self.num_choices * max(len(self.prompts), 1)


def begun(messages: tuple[Message, ...], field_of: str) -> tuple[tuple[Message, ...], str | None, str]:
    """The conversation without an answer that the client has begun, that beginning, and the name of its field.

    A turn with calls is whole, and no beginning.

    Raises:
        ApiError: there is nothing that the answer could be to.
    """
    last = messages[-1] if messages else None
    if last is None or last.role != "assistant" or (isinstance(last, ToolMessage) and last.calls):
        return messages, None, field_of
    if len(messages) == 1:
        raise invalid(
            field_of, f"{field_of}: there is no question before the answer to continue; put a user's message before it"
        )
    return messages[:-1], last.content, field_of


def request_of(
    body: OpenAIFields, messages: tuple[Message, ...], max_tokens: int | None, max_tokens_field: str
) -> ServeRequest:
    """The request of a body: what OpenAI's dialects say alike."""
    stop = body.stop or ()
    penalties = {name: getattr(body, name, None) for name in _NEUTRAL}
    several = body if isinstance(body, ChoiceFields) else None
    if several is not None:
        names = ("repetition_penalty", "repeat_penalty")
        penalties["repetition_penalty"] = agreed({name: getattr(several, name) for name in names})[1]
    sampling = SamplingRequest(
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=top_k_of(body),
        min_p=None if several is None else several.min_p,
        repetition_penalty=penalties.get("repetition_penalty"),
        max_tokens=max_tokens,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        max_tokens_field=max_tokens_field,
        penalties={name: value for name, value in penalties.items() if value not in (None, _NEUTRAL[name])},
        cache_salt=None if several is None else several.cache_salt,
        logit_bias={} if several is None else _biases(several.logit_bias or {}),
    )
    return ServeRequest(
        model=body.model,
        messages=messages,
        num_choices=(several and several.n) or 1,
        stream=bool(body.stream),
        sampling=sampling,
        thinking=read_thinking(body),
        search=read_search(body.ttc, body.seed),
        return_token_ids=bool(several and several.return_token_ids),
        verbosity=body.verbosity,
    )


def _biases(biases: Mapping[str, float]) -> dict[int, float]:
    """The biases by token id, without those of 0; raises ApiError for a name that is no id."""
    for name in biases:
        if not re.fullmatch(r"0|[1-9][0-9]{0,9}", name):
            raise invalid("logit_bias", f"logit_bias: {shown(name)} is not the id of a token (an integer, as a string)")
    return {int(name): value for name, value in biases.items() if value}


def top_k_of(body: CommonFields) -> int | None:
    """The likeliest tokens to draw from; 0 is no such limit, None says nothing."""
    return None if body.top_k is None else max(body.top_k, 0)


def max_tokens_of(body: RequestBody, names: tuple[str, ...]) -> tuple[int | None, str]:
    """The cap on tokens under any of its names, and the one used; refuses two that differ."""
    name, cap = agreed({name: getattr(body, name) for name in names})
    return cap, name or names[0]


def stream_options(body: CommonFields, options: StreamOptions | None) -> bool:
    """Whether a usage chunk is asked for; refuses options of a stream where there is none."""
    if options is not None and options.model_fields_set and not body.stream:
        raise invalid("stream_options", "stream_options needs stream = true")
    return isinstance(options, ChoiceStreamOptions) and bool(options.include_usage or options.continuous_usage_stats)


def text_of(content: Any) -> str:
    """The text of a message's content: a string, or text parts put together."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.text for part in content)
