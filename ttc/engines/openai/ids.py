"""The dialect of token ids: `/v1/completions` with ids as prompt and ids in the answer (vLLM, llama.cpp's own server).

With it an endpoint works like an in-process engine: exact continuations, thinking control, log-probabilities, counts
that do not depend on the server's report, and functions rendered by the folder's own template where the server enforces
grammars. Stops are checked here as well, id by id, so a server that misses one costs tokens (charged as `overrun`) but
changes no result.

llama.cpp's server returns the ids of an answer that is not streamed (`__verbose.tokens`); its streams omit a token that
ends within a character. It stops at strings only, so a marker among the stop ids is sent as its text (the text of
another id also occurs within other tokens); where other tokens spell that text, the answer is not finished.

Log-probabilities of given ids (`ScoringEngine`) need vLLM's `prompt_logprobs`. With `prompt_logprobs: k` the server
also returns its k likeliest tokens at every position, which distillation needs of a teacher; servers allow 20 unless
started with a larger `--max-logprobs`. The server computes every token anew (vLLM does not read its prefix cache for
such a request) and must sample one token, which is charged as `overrun`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from ttc.core import ExtraSampling, FinishReason, Message, Prompt, Sampling, Usage, UsageSink
from ttc.engines.openai.client import Chunk
from ttc.engines.openai.engine import Attempts, RemoteTokenEngine
from ttc.engines.openai.wire import (
    VERBOSE,
    Features,
    Outcome,
    Tail,
    as_mapping,
    as_mappings,
    first_choice,
    shared_fields,
)
from ttc.engines.shared.text import Text
from ttc.engines.shared.tokens import StopRule, check_room, check_start
from ttc.errors import EngineError, Unsupported

TOKEN_PREFIX = "token_id:"
MAX_ID = 1 << 31
MOST_BYTES = 4
"""Bytes of a character, and so most tokens that one is split into."""


class IdsDialect:
    """Renders, sends and reads with the tokenizer of a local folder."""

    path = "/completions"

    def __init__(self, text: Text, features: Features, max_context: int) -> None:
        """`max_context` is the server's limit in tokens."""
        self._text, self._features, self._max_context = text, features, max_context
        self._added = frozenset(text.tokenizer.added_tokens_decoder) if features.verbose else frozenset[int]()

    def render(self, messages: Sequence[Message], thinking: bool | None) -> Prompt:
        """Apply the folder's chat template."""
        return self._text.render(messages, thinking)

    def check(self, prompt: Prompt, sampling: Sampling) -> None:
        """Refuse a prompt without ids, and one that does not fit."""
        if not prompt.token_ids:
            raise Unsupported("this endpoint continues token ids: the prompt has none (render it with this engine)")
        check_room(len(prompt.token_ids), sampling.max_tokens, self._max_context)

    def num_prompt(self, prompt: Prompt) -> int | None:
        """Our own count of the prompt."""
        return len(prompt.token_ids or ())

    def body(self, prompt: Prompt, sampling: Sampling, seed: int | None) -> dict[str, Any]:
        """The request body."""
        fields = shared_fields(sampling, seed, self._features)
        fields |= {"prompt": list(prompt.token_ids or ()), "add_special_tokens": False, "return_token_ids": True}
        fields |= {"include_stop_str_in_output": True} if self._features.extras else {}
        if self._features.verbose:
            markers = [self._text.decode([token]) for token in sampling.stop_token_ids if token in self._added]
            fields |= {"return_tokens": True, "stop": [*sampling.stop, *markers], "preserved_tokens": markers}
        if self._features.logprobs and sampling.logprobs:
            fields["logprobs"] = num_logprobs(self._features)
        if isinstance(sampling, ExtraSampling):
            fields |= {} if sampling.grammar is None else {"structured_outputs": {"grammar": sampling.grammar}}
            extras = extras_of_ids(self._features)
            fields |= {name: getattr(sampling, name) for name in _COUNTED if name in extras}
            fields |= {"logit_bias": dict(sampling.logit_bias)} if sampling.logit_bias else {}
        return fields

    def reader(self, prompt: Prompt, sampling: Sampling) -> IdsReader:
        """The reader of its answer."""
        text = self._text
        rule = StopRule(sampling.stop, sampling.stop_token_ids, text.eos_ids, (), text.decode)
        return IdsReader(rule, sampling, text.eos_ids, text.decode, self._features.logprobs and sampling.logprobs)


def extras_of_ids(features: Features) -> tuple[str, ...]:
    """What such a server honours of `ttc.core.ExtraSampling` beside a grammar, and a repetition penalty."""
    if not features.extras:
        return ()
    return ("repetition_penalty",) if features.llama else ("repetition_penalty", *_COUNTED, "logit_bias")


_COUNTED = ("presence_penalty", "frequency_penalty")


def num_logprobs(features: Features) -> int:
    """The value of `logprobs`: for sampled tokens only, which llama.cpp returns together with one likeliest token."""
    return 1 if features.verbose else 0


def ids_of(chunk: Chunk) -> list[int] | None:
    """The ids of a chunk: `token_ids` of its choice, llama.cpp's `tokens`, or tokens written `token_id:17`; or None.

    Raises:
        ValueError: the value is not a list of ids.
    """
    choice = first_choice(chunk)
    ids = choice.get("token_ids", as_mapping(chunk.get(VERBOSE), VERBOSE).get("tokens"))
    if ids is not None:
        return [_as_id(token) for token in _as_list(ids, "token_ids")]
    tokens = _as_list(as_mapping(choice.get("logprobs"), "logprobs").get("tokens"), "tokens")
    if not tokens or not all(isinstance(token, str) and token.startswith(TOKEN_PREFIX) for token in tokens):
        return None
    return [_as_id(int(token.removeprefix(TOKEN_PREFIX))) for token in tokens]


def logprobs_of(
    choice: Mapping[str, Any], ids: Sequence[int], decode: Callable[[Sequence[int]], str]
) -> list[float | None] | None:
    """The log-probabilities of `ids` in a choice; None if they are incomplete.

    llama.cpp omits those of a token that ends within a character, and of the last tokens where they completed a stop
    string: only those are None.

    Raises:
        ValueError: the value is not a list of numbers.
    """
    column = as_mapping(choice.get("logprobs"), "logprobs")
    rows = as_mappings(column.get("content"), "content")
    values = [row.get("logprob") for row in rows] or _as_list(column.get("token_logprobs"), "token_logprobs")
    places = list(range(len(ids)))
    if rows and len(rows) < len(ids):
        places = [at for at in places if not decode(ids[max(at - MOST_BYTES + 1, 0) : at + 1]).endswith("\ufffd")]
    is_known = [ids[at] for at in places][: len(rows)] == [row.get("id") for row in rows] if rows else True
    is_whole = is_known and (bool(rows) or len(values) == len(ids))
    if not is_whole or not all(isinstance(value, int | float) for value in values):
        return None
    values_at = dict(zip(places, map(float, values), strict=False))
    return [values_at.get(at) for at in range(len(ids))]


def _as_id(token: object) -> int:
    if not isinstance(token, int) or not 0 <= token < MAX_ID:
        raise ValueError(f"{token!r} is no token id")
    return token


def _as_list(value: object, name: str) -> Sequence[Any]:
    if value is not None and not isinstance(value, list):
        raise ValueError(f"{name} is no list")
    return value or ()


class IdsReader:
    """Collects ids and ends the draw at the first stop, whether or not the server does."""

    def __init__(
        self,
        rule: StopRule,
        sampling: Sampling,
        eos_ids: tuple[int, ...],
        decode: Callable[[Sequence[int]], str],
        logprobs: bool,
    ) -> None:
        self._rule, self._max_tokens, self._eos_ids, self._decode = rule, sampling.max_tokens, eos_ids, decode
        self._ids: list[int] = []
        self._logprobs: list[float | None] | None = [] if logprobs else None
        self._end: tuple[FinishReason, str | int | None] | None = None
        self._num_extra, self._tail = 0, Tail()

    @property
    def num_streamed(self) -> int:
        """See `ttc.engines.openai.wire.Reader`."""
        return len(self._ids) + self._num_extra

    def add(self, chunk: Chunk) -> tuple[bool, tuple[int, ...]]:
        """Take a chunk; tokens after the end mean that the server missed the stop, so reading can end."""
        choice = self._tail.add(chunk)
        new, before = ids_of(chunk) or [], len(self._ids)
        runs_on = bool(new) and self._end is not None
        for token in new:
            if self._end is None:
                self._take(token)
            else:
                self._num_extra += 1
        count = len(self._ids) - before
        if self._logprobs is not None and new:
            values = logprobs_of(choice, new, self._decode)
            if choice.get("logprobs") is None and isinstance(self._tail.stop, str):
                values = [None] * len(new)  # llama.cpp omits them where all of its tokens may belong to the stop string
            self._logprobs = None if values is None else self._logprobs + values[:count]
        return runs_on, tuple(self._ids[before:])

    def _take(self, token: int) -> None:
        self._ids.append(token)
        reason = self._rule.reason(self._ids)
        if reason is not None:
            self._end = ("stop", reason)
        elif len(self._ids) >= self._max_tokens:
            self._end = ("length", None)

    def result(self) -> Outcome:
        """See `ttc.engines.openai.wire.Reader`."""
        finish, stop = self._end or (self._tail.reason(), None)
        if finish == "abort":
            stop = self._tail.finish
        ids, logprobs = tuple(self._ids), self._logprobs
        if finish == "stop" and self._end is None and isinstance(self._tail.stop, str):
            # The text spells the end marker with other ids: a server that matches text only has stopped too early.
            finish, stop = "abort", self._tail.stop
        if finish == "stop" and self._end is None:
            # The server's own end of sequence, unknown to our tokenizer: its id ends the draw or is added.
            stop = "eos"
            if not ids or self._tail.stop != ids[-1]:
                ids += self._eos_ids[:1]
                logprobs = None if logprobs is None else [*logprobs, None]
        return Outcome(
            text=self._decode(ids[:-1] if stop == "eos" else ids),
            token_ids=ids,
            finish_reason=finish,
            stop_reason=stop,
            logprobs=None if logprobs is None else tuple(logprobs),
            num_generated=len(ids),
            num_streamed=len(ids) + self._num_extra,
            server=self._tail.server,
        )


T = TypeVar("T")


class ScoringEngine(RemoteTokenEngine):
    """A TokenEngine that is also a LogprobEngine and a TopLogprobEngine."""

    async def logprobs(self, token_ids: Sequence[int], start: int, on_usage: UsageSink) -> tuple[float, ...]:
        """See `ttc.core.LogprobEngine`; `start` must be at least 1, since the first token has nothing before it."""
        return await self._scored(token_ids, start, 0, prompt_logprobs, on_usage)

    async def top_logprobs(
        self, token_ids: Sequence[int], start: int, k: int, on_usage: UsageSink
    ) -> tuple[Mapping[int, float], ...]:
        """See `ttc.core.TopLogprobEngine`; `start` as in `logprobs`.

        Raises:
            EngineError: the server returns fewer than `k`, or refuses so many.
        """

        def read(answer: Chunk, ids: Sequence[int], first: int) -> tuple[Mapping[int, float], ...]:
            return top_entries(answer, ids, first, k)

        return await self._scored(token_ids, start, k, read, on_usage)

    async def _scored(
        self,
        token_ids: Sequence[int],
        start: int,
        k: int,
        read: Callable[[Chunk, Sequence[int], int], T],
        on_usage: UsageSink,
    ) -> T:
        length = len(token_ids)
        check_start(length, start)
        check_room(length, 1, self.capabilities.max_context)
        body, tally = scoring_body(self.features.model, token_ids, k), Attempts()

        async def attempt(url: str) -> T:
            tally.attempts += 1
            wires = await self._wires.here()
            async with wires.slot():
                answer = await wires.clients[url].post("/completions", body)
            try:
                return read(answer, token_ids, start)
            except ValueError as exc:
                raise EngineError(f"{url} did not score the tokens: {exc}") from exc

        key = hashlib.blake2b(repr(tuple(token_ids[:start])).encode(), digest_size=8).hexdigest()
        usage = Usage(prompt=length, calls=1)
        try:
            values = await self._balancer.send(key, attempt, self._retry)
        except BaseException:
            self._ledger.report(usage + Usage(attempts=tally.attempts), on_usage)
            raise
        flops = self.capabilities.flops(length + 1, 0)
        self._ledger.report(usage + Usage(attempts=tally.attempts, overrun=1, flops=flops), on_usage)
        return values


def scoring_body(model: str, token_ids: Sequence[int], k: int = 0) -> dict[str, Any]:
    """The request that scores `token_ids`, with the `k` likeliest tokens at each position."""
    return {
        "model": model,
        "prompt": list(token_ids),
        "max_tokens": 1,
        "temperature": 0.0,
        "prompt_logprobs": k,
        "add_special_tokens": False,
    }


def prompt_logprobs(answer: Chunk, token_ids: Sequence[int], start: int) -> tuple[float, ...]:
    """Log-probabilities of token_ids[start:] in the answer, in nats; raises ValueError when incomplete."""
    entries = _entries(answer, token_ids)
    return tuple(_value(entries[at], token_ids[at]) for at in range(start, len(token_ids)))


def top_entries(answer: Chunk, token_ids: Sequence[int], start: int, k: int) -> tuple[Mapping[int, float], ...]:
    """For each position from `start` the k likeliest tokens and the given one; ValueError when there are fewer."""
    tops: list[Mapping[int, float]] = []
    for entry, token in zip(_entries(answer, token_ids)[start:], token_ids[start:], strict=True):
        logprobs = {int(other): float(value["logprob"]) for other, value in (entry or {}).items()}
        if len(logprobs) < k:
            raise ValueError(f"{len(logprobs)} likeliest tokens where {k} were asked for")
        tops.append(logprobs | {token: _value(entry, token)})
    return tuple(tops)


def _entries(answer: Chunk, token_ids: Sequence[int]) -> Sequence[Mapping[str, Any] | None]:
    entries = first_choice(answer).get("prompt_logprobs")
    if not isinstance(entries, Sequence) or len(entries) != len(token_ids):
        raise ValueError("no log-probabilities of the prompt")
    return entries


def _value(entry: Mapping[str, Any] | None, token: int) -> float:
    value = (entry or {}).get(str(token))
    if value is None:
        raise ValueError(f"no log-probability of token {token}")
    return float(value["logprob"])
