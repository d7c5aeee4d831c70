"""The dialect of token ids: `/v1/completions` with ids as prompt and ids in the answer (vLLM, and what follows it).

With it an endpoint is an engine like one in this process: exact continuations, thinking control, log-probabilities,
counts that do not rest on the server's word, and functions shown by the folder's own template, where the server holds
answers to a grammar. Stops are checked here as well, id by id, so a server that overlooks one costs tokens (charged as
`overrun`) but changes no result.

Log-probabilities of given ids (`ScoringEngine`) need vLLM's `prompt_logprobs`. With `prompt_logprobs: k` the server
also gives its k likeliest tokens at every place, which is what distillation asks a teacher; servers allow 20 unless
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
from ttc.engines.openai.wire import Features, Outcome, Tail, as_mapping, first_choice, shared_fields
from ttc.engines.shared.text import Text
from ttc.engines.shared.tokens import StopRule, check_room, check_start
from ttc.errors import EngineError, Unsupported

TOKEN_PREFIX = "token_id:"
MAX_ID = 1 << 31


class IdsDialect:
    """Renders, asks and reads with the tokenizer of a local folder."""

    path = "/completions"

    def __init__(self, text: Text, features: Features, max_context: int) -> None:
        """`max_context` is the server's limit in tokens."""
        self._text, self._features, self._max_context = text, features, max_context

    def render(self, messages: Sequence[Message], thinking: bool | None) -> Prompt:
        """Apply the folder's chat template."""
        return self._text.render(messages, thinking)

    def check(self, prompt: Prompt, sampling: Sampling) -> None:
        """Refuse a prompt without ids, and one that does not fit."""
        if not prompt.token_ids:
            raise Unsupported("this endpoint continues token ids: the prompt has none (render it with this engine)")
        check_room(len(prompt.token_ids), sampling.max_tokens, self._max_context)

    def num_prompt(self, prompt: Prompt) -> int | None:
        """Our own count of the context."""
        return len(prompt.token_ids or ())

    def body(self, prompt: Prompt, sampling: Sampling, seed: int | None) -> dict[str, Any]:
        """The request."""
        fields = shared_fields(sampling, seed, self._features)
        fields |= {"prompt": list(prompt.token_ids or ()), "add_special_tokens": False, "return_token_ids": True}
        fields |= {"include_stop_str_in_output": True} if self._features.extras else {}
        if self._features.logprobs and sampling.logprobs:
            fields["logprobs"] = 0
        if isinstance(sampling, ExtraSampling) and sampling.grammar is not None:
            fields["structured_outputs"] = {"grammar": sampling.grammar}
        return fields

    def reader(self, prompt: Prompt, sampling: Sampling) -> IdsReader:
        """The reader of its answer."""
        text = self._text
        rule = StopRule(sampling.stop, sampling.stop_token_ids, text.eos_ids, (), text.decode)
        return IdsReader(rule, sampling, text.eos_ids, text.decode, self._features.logprobs and sampling.logprobs)


def ids_of(choice: Mapping[str, Any]) -> list[int] | None:
    """The ids of a choice: `token_ids`, or tokens spelled `token_id:17`; None when it has neither.

    Raises:
        ValueError: there is something else in the place of the ids.
    """
    ids = choice.get("token_ids")
    if ids is not None:
        return [_as_id(token) for token in _as_list(ids, "token_ids")]
    tokens = _as_list(as_mapping(choice.get("logprobs"), "logprobs").get("tokens"), "tokens")
    if not tokens or not all(isinstance(token, str) and token.startswith(TOKEN_PREFIX) for token in tokens):
        return None
    return [_as_id(int(token.removeprefix(TOKEN_PREFIX))) for token in tokens]


def _as_id(token: object) -> int:
    if not isinstance(token, int) or not 0 <= token < MAX_ID:
        raise ValueError(f"{token!r} is no token id")
    return token


def _as_list(value: object, name: str) -> Sequence[Any]:
    if value is not None and not isinstance(value, list):
        raise ValueError(f"{name} is no list")
    return value or ()


class IdsReader:
    """Gathers ids and ends the draw at the first stop, whatever the server does."""

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
        """Take a chunk; tokens after the end say that the server runs on, and then there is nothing to wait for."""
        choice = self._tail.add(chunk)
        new, before = ids_of(choice) or [], len(self._ids)
        runs_on = bool(new) and self._end is not None
        for token in new:
            if self._end is None:
                self._take(token)
            else:
                self._num_extra += 1
        count = len(self._ids) - before
        if self._logprobs is not None and new:
            column = as_mapping(choice.get("logprobs"), "logprobs").get("token_logprobs")
            values = _as_list(column, "token_logprobs")
            complete = len(values) == len(new) and all(isinstance(value, int | float) for value in values[:count])
            self._logprobs = self._logprobs + [float(value) for value in values[:count]] if complete else None
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
        if finish == "stop" and self._end is None:
            # The server's own end of sequence, which our tokenizer does not name: its id closes the draw or is added.
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
            EngineError: the server tells fewer, or refuses so many.
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
            async with wires.slots:
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
    """The request that scores `token_ids`, with the `k` likeliest tokens beside each."""
    return {
        "model": model,
        "prompt": list(token_ids),
        "max_tokens": 1,
        "temperature": 0.0,
        "prompt_logprobs": k,
        "add_special_tokens": False,
    }


def prompt_logprobs(answer: Chunk, token_ids: Sequence[int], start: int) -> tuple[float, ...]:
    """Nats of token_ids[start:] in the answer; raises ValueError when they are not all there."""
    entries = _entries(answer, token_ids)
    return tuple(_value(entries[at], token_ids[at]) for at in range(start, len(token_ids)))


def top_entries(answer: Chunk, token_ids: Sequence[int], start: int, k: int) -> tuple[Mapping[int, float], ...]:
    """At each place from `start` the k likeliest tokens and the given one; ValueError when there are fewer."""
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
