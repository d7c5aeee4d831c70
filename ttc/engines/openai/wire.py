"""The request and reply of one draw: fields, the end of a stream, readers of tokens and of text.

A draw with a seed is one request for one choice with our own seed: servers number the seeds of several choices
consecutively, so that draws with neighbouring seeds would coincide. Draws without seeds are the choices of one request
(`n`), in the server's order. The seed is hashed from the run's seed, the path, the draw and the position in the text,
so a continued draw does not repeat the random numbers of its beginning. All sampling parameters are sent, since a
server fills missing ones with the model's own defaults (a top_k of 20, a repetition penalty).

A stream that ends without a finish reason, or with one that reports a server failure, is a transient failure and never
a completion. Finish reasons are read in upper or lower case. Those that do not end an answer (a content filter, a tool
call) and unknown ones become `abort`, with the server's word as the stop reason: not finished, so they cannot win a
vote. Missing choices, null contents and chunks that only carry usage are all valid; contents may be lists of parts, as
Mistral's are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ttc import seeds
from ttc.core import FILTERED, FinishReason, Logprobs, Prices, Prompt, Sampling, ThinkState, join_surrogates
from ttc.engines.openai.client import Chunk
from ttc.engines.shared.balance import Transient
from ttc.engines.shared.tokens import check_seed
from ttc.errors import EngineError
from ttc.session.thinking import CLOSE, OPEN, split_text

SEED_BITS = 53
"""Seeds are sent as JSON numbers, which many servers read as doubles."""
FEWER_SEED_BITS = 31
"""For servers that read a seed as an int32, such as Gemini's."""


@dataclass(frozen=True, slots=True)
class Features:
    """The features that a server was found to support (`ttc.engines.openai.probe`).

    Attributes:
        model: its name.
        max_context: in tokens, where the server reports it.
        ids: accepts and returns token ids.
        logprobs: returns those of sampled tokens.
        scores: returns the log-probabilities of a prompt's ids.
        text: completes plain text.
        prefill: the thinking switches (as `ThinkState`) with which it continues an assistant message unchanged.
        stops: distinguishes a stop string from the end of the sequence.
        extras: accepts the sampling parameters that OpenAI's own API lacks.
        llama: they have llama.cpp's names and values.
        verbose: returns llama.cpp's own answer beside OpenAI's, with the ids of an answer that is not streamed.
        slots: number of requests it processes at once; further ones wait in silence.
        opens: the switches with which its template opens a think block that it does not separate from the answer.
        grammars: enforces a grammar (`ttc.core.ExtraSampling`).
        seeds: accepts a seed.
        seed_bits: number of bits of a seed.
        efforts: uses a reasoning effort, and no switch of the template.
        usage: reports token counts.
        streams: streams answers.
        own_temperature: refuses any other than 1.
        limit_field: its name of max_tokens.
        served: its report about the model (`ttc.core.Served`).
        prices: its prices per token.
    """

    model: str
    max_context: int | None = None
    ids: bool = False
    logprobs: bool = False
    scores: bool = False
    text: bool = False
    prefill: tuple[ThinkState, ...] = ()
    stops: bool = False
    extras: bool = False
    llama: bool = False
    verbose: bool = False
    slots: int | None = None
    opens: tuple[ThinkState, ...] = ()
    grammars: bool = False
    seeds: bool = True
    seed_bits: int = SEED_BITS
    efforts: bool = False
    usage: bool = False
    streams: bool = True
    own_temperature: bool = False
    limit_field: str = "max_tokens"
    served: Mapping[str, str] = field(default_factory=dict)
    prices: Prices | None = None


def seed_of(prompt: Prompt, sampling: Sampling, draw: int, bits: int) -> int | None:
    """The request's seed of `bits` bits; None at temperature 0 without a run seed.

    Raises:
        ConfigError: temperature > 0 without a run seed.
    """
    check_seed(sampling)
    if sampling.seed is None:
        return None
    position = len(prompt.generated_text if prompt.token_ids is None else prompt.generated_ids)
    return seeds.derive(sampling.seed, (*prompt.path, draw), position) >> (64 - bits)


def shared_fields(sampling: Sampling, seed: int | None, features: Features) -> dict[str, Any]:
    """The fields that completions and chat have in common."""
    fields: dict[str, Any] = {
        "model": features.model,
        "temperature": sampling.temperature,
        features.limit_field: sampling.max_tokens,
        "stream": features.streams,
    }
    optional: Mapping[str, Any] = {
        "seed": seed if features.seeds else None,
        "top_p": sampling.top_p if features.extras or sampling.top_p < 1 else None,  # some models refuse even 1
        "stop": list(sampling.stop) or None,
        "stream_options": {"include_usage": True} if features.usage and features.streams else None,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p or None,
    }
    if features.extras:
        fields |= {"min_p": 0.0, "skip_special_tokens": False, "stop_token_ids": list(sampling.stop_token_ids)}
        fields |= _OFF_LLAMA if features.llama else _OFF
    if sampling.repetition_penalty != 1:
        fields |= _penalty(sampling.repetition_penalty, features)
    if features.verbose:
        fields["verbose"] = True
    return fields | {name: value for name, value in optional.items() if value is not None}


_OFF = {"top_k": -1, "repetition_penalty": 1.0}
_OFF_LLAMA = {"top_k": 0, "repeat_penalty": 1.0}
"""Turn off filters and penalties that a server applies by default; with the names of vLLM and of llama.cpp."""
EXTRA_SETTINGS = ("top_k", "min_p", "repetition_penalty")
"""Settings of `Sampling` that OpenAI's own API does not have."""


def _penalty(factor: float, features: Features) -> Mapping[str, Any]:
    """A repetition penalty over the whole text; llama.cpp's own covers the last 64 tokens only."""
    if not features.llama:
        return {"repetition_penalty": factor}
    return {"repeat_penalty": factor, "repeat_last_n": features.max_context or _LONGEST}


_LONGEST = 1 << 16
"""Tokens that a penalty of llama.cpp covers where the context is not known; some versions take -1 for none."""

VERBOSE = "__verbose"
"""The field of a chunk with llama.cpp's own answer."""

_FINISHES: Mapping[str, FinishReason] = {
    "stop": "stop",
    "eos": "stop",
    "eos_token": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "length": "length",
    "max_tokens": "length",
    "repetition": "length",  # vLLM's detector of degenerate loops: cut, not ended
    FILTERED: "abort",
    "tool_calls": "abort",
    "function_call": "abort",
    **dict.fromkeys(("safety", "recitation", "blocklist", "prohibited_content", "spii", "refusal"), "abort"),  # Gemini
}
_GAVE_UP = frozenset({"abort", "aborted", "cancelled", "error"})


def finish_word(said: str | None) -> str:
    """A server's finish reason in lower case; raises Transient when it did not end the draw."""
    if said is None:
        raise Transient(EngineError("the server closed the stream before the completion had ended"))
    word = said.lower()
    if word in _GAVE_UP:
        raise Transient(EngineError(f"the server gave the request up ({said})"))
    return word


def finish_of(word: str) -> FinishReason | None:
    """Our finish reason for a lower-case one, which Gemini may give a detail (`content_filter: SPII`); else None."""
    return _FINISHES.get(word.partition(":")[0])


@dataclass(frozen=True, slots=True)
class ServerUsage:
    """The token counts a server reports for one request; None where it reports none."""

    prompt: int | None = None
    generated: int | None = None
    cached: int | None = None
    thinking: int | None = None

    def then(self, later: ServerUsage) -> ServerUsage:
        """Update with a `later` report on the same request; its nulls and zeros are placeholders."""

        def latest(before: int | None, now: int | None) -> int | None:
            return now if now or before is None else before

        return ServerUsage(
            prompt=latest(self.prompt, later.prompt),
            generated=latest(self.generated, later.generated),
            cached=latest(self.cached, later.cached),
            thinking=latest(self.thinking, later.thinking),
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """A draw as read from the wire. `num_streamed` tokens arrived; those beyond `num_generated` were not kept.

    `stop_reason` of an aborted draw is the server's word for its end. `num_thinking` of `num_generated` tokens are
    thought, for text without ids.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_reason: str | int | None
    logprobs: Logprobs | None
    num_generated: int
    num_streamed: int
    server: ServerUsage
    num_thinking: int = 0


class Reader(Protocol):
    """Collects one stream."""

    @property
    def num_streamed(self) -> int:
        """Tokens that arrived so far.

        For text without a tokenizer: the number of chunks, of at least one token each, or the server's latest count.
        """
        ...

    def add(self, chunk: Chunk) -> tuple[bool, tuple[int, ...]]:
        """Take a chunk; returns whether to stop reading, and the new ids that belong to the draw.

        Raises:
            ValueError: the chunk is malformed.
        """
        ...

    def result(self) -> Outcome:
        """The draw; raises Transient when the stream broke off."""
        ...


def first_choice(chunk: Chunk) -> Mapping[str, Any]:
    """The choice of a chunk; empty for a chunk without one. Requests never ask for more than one.

    Raises:
        ValueError: the chunk is malformed.
    """
    choices = chunk.get("choices") or [{}]
    if not isinstance(choices, Sequence):
        raise ValueError("choices is no list")
    return as_mapping(choices[0], "choice")


def as_mapping(value: object, name: str) -> Mapping[str, Any]:
    """`value`, which may be null; raises ValueError when it is not an object."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} is no object")
    return value


def as_mappings(value: object, name: str) -> list[Mapping[str, Any]]:
    """The objects of a list, which may be null; raises ValueError when `value` is something else."""
    if value is not None and not isinstance(value, list):
        raise ValueError(f"{name} is no list")
    return [as_mapping(row, name) for row in value or ()]


def texts_of(message: Mapping[str, Any]) -> tuple[str, str]:
    """The thought and the answer of a delta or a whole message, from its reasoning fields and its content.

    A content that is a list of parts is joined; parts of type `thinking` are thought.

    Raises:
        ValueError: the message is malformed.
    """
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    rows = [as_mapping(part, "a part of content") for part in parts]
    thought = [as_text(message.get("reasoning_content") or message.get("reasoning"), "reasoning")]
    thought += [_thought_of(row.get("thinking")) for row in rows]
    return "".join(thought), "".join(as_text(row.get("text"), "content") for row in rows)


def _thought_of(value: object) -> str:
    """The thought in a part of type `thinking`: a text, or a list of parts."""
    if not isinstance(value, list):
        return as_text(value, "thinking")
    return "".join(as_text(as_mapping(part, "a part of thinking").get("text"), "thinking") for part in value)


def as_text(value: object, name: str) -> str:
    """`value`, which may be null; raises ValueError when it is not a text."""
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{name} is no text")
    return value or ""


def _as_count(value: object) -> int | None:
    """A token count, which some gateways write as 7.0; anything else counts as not reported."""
    whole = int(value) if isinstance(value, float) and value.is_integer() else value
    return whole if isinstance(whole, int) and not isinstance(whole, bool) and whole >= 0 else None


def outcomes(answer: Chunk, most: int, reader: Callable[[], Reader]) -> list[Outcome]:
    """The choices of a whole answer by index, at least one and at most `most`; the usage is that of the request.

    Raises:
        ValueError: the answer is malformed.
        Transient: the server did not end a choice.
    """
    choices = answer.get("choices")
    if not isinstance(choices, Sequence) or not choices:
        raise ValueError("no choices")
    rows = [as_mapping(choice, "choice") for choice in choices]
    results = []
    for row in sorted(rows, key=lambda row: int(row.get("index") or 0))[:most]:
        gathered = reader()
        gathered.add({"choices": [row], "usage": answer.get("usage")})
        results.append(gathered.result())
    return results


def cut_short(reader: Reader, limit: int) -> Outcome:
    """The draw where the server reports that `limit` tokens were used up; if none arrived, all were hidden thought."""
    counts = {"completion_tokens": limit, "completion_tokens_details": {"reasoning_tokens": limit}}
    reader.add({"choices": [{"finish_reason": "length"}], "usage": None if reader.num_streamed else counts})
    return reader.result()


class Tail:
    """The end of a stream: finish reason, stop reason, usage."""

    def __init__(self) -> None:
        self.finish: str | None = None
        self.stop: str | int | None = None
        self.server = ServerUsage()

    def add(self, chunk: Chunk) -> Mapping[str, Any]:
        """Record what ends a draw; returns the chunk's choice."""
        choice = first_choice(chunk)
        if choice.get("finish_reason"):  # some servers send an empty one with every chunk, which ends nothing
            self.finish, stop = str(choice["finish_reason"]), choice.get("stop_reason")
            self.stop = stop if isinstance(stop, str | int) else self.stop
        native = as_mapping(chunk.get(VERBOSE), VERBOSE)
        if native.get("stop_type") == "word":
            self.stop = as_text(native.get("stopping_word"), "stopping_word")
        if native.get("stop_type") == "eos" and native.get("tokens"):
            self.stop = native["tokens"][-1]
        if isinstance(chunk.get("usage"), Mapping):
            counts = usage_of(chunk["usage"])
            # All zeros are a placeholder; part of the counts may be one.
            self.server = self.server.then(counts) if counts.prompt or counts.generated else self.server
        return choice

    def reason(self) -> FinishReason:
        """Our finish reason; raises Transient when the server did not end the draw."""
        return finish_of(finish_word(self.finish)) or "abort"


def usage_of(usage: Mapping[str, Any]) -> ServerUsage:
    """The counts in a `usage` object; invalid ones count as not reported, unless they follow from the total.

    Gemini and xAI exclude hidden thought from `completion_tokens`: it is the excess of the total over both parts.

    Raises:
        ValueError: its details are not objects.
    """
    prompt_details = as_mapping(usage.get("prompt_tokens_details"), "prompt_tokens_details")
    details = as_mapping(usage.get("completion_tokens_details"), "completion_tokens_details")
    prompt, generated = _as_count(usage.get("prompt_tokens")), _as_count(usage.get("completion_tokens"))
    total, thinking = _as_count(usage.get("total_tokens")), _as_count(details.get("reasoning_tokens"))
    if generated is None and prompt is not None and total:
        generated = max(total - prompt, 0)
    if prompt is None and generated is not None and total:
        prompt = max(total - generated, 0)
    if prompt is not None and generated is not None and (hidden := (total or 0) - prompt - generated) > 0:
        generated += hidden
        thinking = thinking or hidden
    return ServerUsage(
        prompt=prompt, generated=generated, cached=_as_count(prompt_details.get("cached_tokens")), thinking=thinking
    )


def count_thought(
    told: int | None, generated: int, thought: str, answer: str, count: Callable[[str], int] | None
) -> int:
    """The number of the `generated` tokens of a text that are thought.

    It is the server's count; if that is missing, or 0 for a thought that is there, the result of `count` on the text;
    without `count`, an estimate by the thought's share of the characters.
    """
    if told or not thought:
        return min(told or 0, generated)
    counted = 0 if count is None else count(thought)
    return min(counted or round(generated * len(thought) / len(thought + answer)), generated)


class TextReader:
    """Collects text, from `choice.text` or from a chat delta; reasoning fields become a think block.

    `inside` means that the prompt left a think block open, so that the text continues within it. The end-of-sequence
    text that some servers leave at the end is dropped. A `refusal` is the text of an answer that ended as by a filter.
    `count` counts the tokens of a text, None without a tokenizer.
    """

    def __init__(
        self, stops: Sequence[str], eos_texts: Sequence[str], inside: bool, count: Callable[[str], int] | None
    ) -> None:
        self._stops, self._eos_texts, self._inside, self._count = tuple(stops), eos_texts, inside, count
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._chunks, self._tail, self._refused = 0, Tail(), False

    @property
    def num_streamed(self) -> int:
        """See `Reader`."""
        if self._count is None:
            return max(self._chunks, self._tail.server.generated or 0)
        return sum(self._count(join_surrogates("".join(parts))) for parts in (self._content, self._reasoning))

    def add(self, chunk: Chunk) -> tuple[bool, tuple[int, ...]]:
        """See `Reader`; the server alone decides where the text ends."""
        choice = self._tail.add(chunk)
        delta = as_mapping(choice.get("delta") or choice.get("message"), "delta")
        reasoning, content = texts_of(delta)
        content = as_text(choice.get("text"), "text") or content
        refusal = as_text(delta.get("refusal"), "refusal")
        self._refused, content = self._refused or bool(refusal), content + refusal
        self._content.append(content)
        self._reasoning.append(reasoning)
        self._chunks += bool(content or reasoning)
        return False, ()

    def result(self) -> Outcome:
        """See `Reader`."""
        reason, content = self._tail.reason(), join_surrogates("".join(self._content))
        stop = self._tail.finish if reason == "abort" else None
        if self._refused and reason == "stop":
            reason, stop = "abort", FILTERED
        if reason == "stop":
            stop = self._stop(content)
            content += stop if stop != "eos" and stop not in content else ""  # most servers remove it
            eos = next((text for text in self._eos_texts if content.endswith(text)), "")
            content = content.removesuffix(eos) if stop == "eos" else content
        server = self._tail.server
        num = server.generated or self.num_streamed
        text = _joined(join_surrogates("".join(self._reasoning)), content, self._inside)
        parts = split_text(text, self._inside)
        return Outcome(
            text=text,
            token_ids=(),
            finish_reason=reason,
            stop_reason=stop,
            logprobs=None,
            num_generated=num,
            num_streamed=num,
            server=server,
            num_thinking=count_thought(server.thinking, num, parts.thinking, parts.answer, self._count),
        )

    def _stop(self, content: str) -> str:
        """The stop string that ended the text, as the server reports it or as the text ends."""
        if self._tail.stop in self._stops:
            return str(self._tail.stop)
        return next((stop for stop in self._stops if stop in content), "eos")


def _joined(reasoning: str, content: str, inside: bool) -> str:
    """One text with the thinking between markers, as a template would render it."""
    if not reasoning and CLOSE not in content:
        return f"{CLOSE}{content}" if inside and content else content
    if reasoning:
        body = f"{reasoning}{CLOSE}{content}" if content else reasoning
    else:
        words = content.lstrip()
        body = words.removeprefix(OPEN) if inside and words.startswith(OPEN) else content
    return body if inside or not reasoning else OPEN + body
