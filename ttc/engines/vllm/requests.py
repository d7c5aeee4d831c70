"""The request and reply of a draw: parameters, results, usage, and calls into the caller's event loop.

A driver runs in a thread of its own, so everything that reaches a caller goes through the outbox of its loop, which
wakes the loop once for all results of a vLLM step.

`Counts` holds vLLM's own token counts, against which the ledger is checked. It has the interface of a stat logger
without inheriting from one, so that this file does not import vLLM. Prompt and cached tokens are counted at a request's
first output, generated ones at every output; what the core decodes for a request that was already aborted is counted
neither by vLLM nor by us. Log-probabilities and seeds are requested only where they are used: each costs vLLM a pass
over the vocabulary, or a random number generator, for every token.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from ttc import seeds
from ttc.core import (
    PENALTIES,
    Capabilities,
    Completion,
    ExtraCompletion,
    ExtraSampling,
    FinishReason,
    ModelShape,
    Path,
    Sampling,
    Top,
    Usage,
)
from ttc.errors import EngineError


class Counts:
    """Sums over all requests and all data-parallel ranks; one object serves every rank."""

    def __init__(self) -> None:
        self.prompt = self.cached = self.generated = 0

    def __call__(self, config: Any, engine_index: int = 0) -> Counts:
        """Serve as vLLM's factory of stat loggers."""
        return self

    @property
    def usage(self) -> Usage:
        """The sums; `generated` includes tokens that the ledger counts as overrun."""
        return Usage(prompt=self.prompt, cached=self.cached, generated=self.generated)

    def record(self, scheduler_stats: Any, iteration_stats: Any, **rest: Any) -> None:
        """Add one step of the engine."""
        if iteration_stats is not None:
            self.prompt += iteration_stats.prompt_token_stats.total
            self.cached += iteration_stats.prompt_token_stats.cached_tokens
            self.generated += iteration_stats.num_generation_tokens

    def log(self) -> None:
        """Do nothing: vLLM calls its loggers from time to time to print."""

    def log_engine_initialized(self) -> None:
        """Do nothing."""

    def record_sleep_state(self, is_awake: int, level: int) -> None:
        """Do nothing: sleep mode generates no tokens."""


@dataclass(frozen=True, slots=True)
class RequestResult:
    """One finished or aborted request. `stop` is vLLM's stop reason; `num_cached` prompt tokens were not computed."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    finish: FinishReason
    stop: str | int | None
    num_cached: int
    prompt_logprobs: Any
    tops: tuple[Top, ...] = ()


class LoopCalls:
    """Calls into one event loop, in order, from any thread; one wake-up runs all waiting calls."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: deque[tuple[Callable[..., object], tuple[object, ...]]] = deque()
        self._woken = False

    def post(self, function: Callable[..., object], *arguments: object) -> None:
        """Run `function` in the loop; ignored once the loop is closed."""
        self._calls.append((function, arguments))
        if self._woken:
            return
        self._woken = True
        try:
            self._loop.call_soon_threadsafe(self._run)
        except RuntimeError:
            if not self._loop.is_closed():
                raise

    def _run(self) -> None:
        self._woken = False  # before the queue is read: a later call wakes the loop again
        while self._calls:
            function, arguments = self._calls.popleft()
            function(*arguments)


@dataclass(slots=True, eq=False)
class SequenceRequest:
    """One sequence to sample; `future` belongs to the loop of `outbox`. `params` and `lora` are vLLM's objects."""

    name: str
    ids: list[int]
    params: Any
    lora: Any
    outbox: LoopCalls
    future: asyncio.Future[RequestResult]
    on_tokens: Callable[[tuple[int, ...]], None] | None = None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    tops: list[Top] = field(default_factory=list)
    salt: str | None = None

    @property
    def prompt(self) -> dict[str, Any]:
        """The prompt as vLLM's argument."""
        salt = {} if self.salt is None else {"cache_salt": self.salt}
        return {"type": "token", "prompt_token_ids": self.ids, **salt}

    def take(self, output: Any) -> None:
        """Take one `RequestOutput` of vLLM, a delta or the whole; called in the driver's thread."""
        (part,) = output.outputs
        if part.finish_reason == "error":  # such as keys and values that another machine did not send
            self.fail(EngineError("vllm failed within this request: an internal error"))
            return
        new = tuple(part.token_ids)
        self.token_ids += new
        if part.logprobs is not None:
            self._take_logprobs(part.logprobs)
        if new and self.on_tokens is not None:
            self.outbox.post(self.on_tokens, new)
        if output.finished:
            reply = RequestResult(
                token_ids=tuple(self.token_ids),
                logprobs=tuple(self.logprobs) if self.params.logprobs is not None else None,
                finish=cast("FinishReason", part.finish_reason),
                stop=part.stop_reason,
                num_cached=output.num_cached_tokens or 0,
                prompt_logprobs=output.prompt_logprobs,
                tops=tuple(self.tops),
            )
            self.outbox.post(_resolve, self.future, reply)

    def _take_logprobs(self, flat: Any) -> None:
        """For each position the sampled token comes first, then the likeliest ones if requested."""
        if not self.params.logprobs:
            self.logprobs += flat.logprobs
            return
        for start, end in zip(flat.start_indices, flat.end_indices, strict=True):
            self.logprobs.append(flat.logprobs[start])
            likeliest = zip(flat.token_ids[start + 1 : end], flat.logprobs[start + 1 : end], strict=True)
            self.tops.append(tuple(likeliest))

    def fail(self, error: EngineError) -> None:
        """End the request with an error; may be called in any thread."""
        self.outbox.post(_reject, self.future, error)


class Driver(Protocol):
    """Runs vLLM; every method may be called from any thread."""

    max_context: int
    cache_block: int
    counts: Counts

    def submit(self, requests: Sequence[SequenceRequest]) -> None:
        """Start requests; each one's future is resolved exactly once, also when vLLM fails."""
        ...

    def abort(self, requests: Sequence[SequenceRequest]) -> None:
        """End requests early; each still gets a reply, with the tokens sampled so far."""
        ...

    async def call_workers(self, method: str, arguments: Mapping[str, Any]) -> list[Any]:
        """Call a method of `weights.WeightLoader` in every worker."""
        ...

    async def reset_prefix_cache(self) -> bool:
        """Drop all cached keys and values; False when requests still use them."""
        ...

    def close(self) -> None:
        """End vLLM; running requests fail."""
        ...


def _resolve(future: asyncio.Future[RequestResult], reply: RequestResult) -> None:
    if not future.done():
        future.set_result(reply)


def _reject(future: asyncio.Future[RequestResult], error: EngineError) -> None:
    if not future.done():
        future.set_exception(error)


def fields_of(sampling: Sampling, path: Path, ids: Sequence[int], capabilities: Capabilities) -> dict[str, Any]:
    """Keyword arguments for the draw at `path` whose prompt is `ids`."""
    is_random = sampling.seed is not None and sampling.temperature > 0
    fields: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or 0,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "max_tokens": sampling.max_tokens,
        "seed": seeds.derive(sampling.seed or 0, path, len(ids)) >> 1 if is_random else None,
        "stop": list(sampling.stop),
        "stop_token_ids": [*sampling.stop_token_ids, *capabilities.eos_ids],
        "logprobs": 0 if sampling.logprobs else None,
        "detokenize": bool(sampling.stop),
    }
    if not isinstance(sampling, ExtraSampling):
        return fields
    fields |= {name: getattr(sampling, name) for name in PENALTIES}
    fields["thinking_token_budget"] = budget_of(sampling.thinking_cap, ids, capabilities)
    fields["grammar"] = sampling.grammar
    fields["logit_bias"] = dict(sampling.logit_bias) or None
    if sampling.top_logprobs and sampling.logprobs:
        fields["logprobs"] = sampling.top_logprobs
    return fields


def budget_of(cap: int | None, ids: Sequence[int], capabilities: Capabilities) -> int | None:
    """Budget in vLLM's terms for `cap` more tokens of thought after `ids`: it counts from the marker in the prompt."""
    if cap is None:
        return None
    marker = capabilities.think_open[-1:]
    begun = next((at for at, token in enumerate(reversed(ids)) if (token,) == marker), 0)
    return cap + begun


def salt_of(sampling: Sampling) -> str | None:
    """A cache salt: draws with different salts share no cached prefix."""
    return sampling.cache_salt if isinstance(sampling, ExtraSampling) else None


def completion_of(
    path: Path,
    sampling: Sampling,
    reply: RequestResult,
    usage: Usage,
    eos_ids: Sequence[int],
    decode: Callable[[Sequence[int]], str],
) -> Completion:
    """The draw at `path`; its text excludes the end-of-sequence token, its ids include it."""
    ids, reason = reply.token_ids, None
    if reply.finish == "stop":
        reason = _stop_reason(ids[-1], sampling, reply.stop, eos_ids)
    columns: dict[str, Any] = {
        "path": path,
        "text": decode(ids[:-1] if reason == "eos" else ids),
        "token_ids": ids,
        "finish_reason": reply.finish,
        "stop_reason": reason,
        "logprobs": reply.logprobs,
        "usage": usage,
    }
    return ExtraCompletion(**columns, top_logprobs=reply.tops) if reply.tops else Completion(**columns)


def _stop_reason(last: int, sampling: Sampling, reported: str | int | None, eos_ids: Sequence[int]) -> str | int | None:
    """An end of sequence takes precedence over a stop id, and that over a stop string completed by the same token."""
    if last in eos_ids:
        return "eos"
    return last if last in sampling.stop_token_ids else reported


def draw_usage(shape: ModelShape | None, length: int, reply: RequestResult) -> Usage:
    """The usage of one draw after `length` tokens; its prompt counts once its first token has arrived.

    vLLM's own counts, which the ledger's columns add up to, do the same.
    """
    count = len(reply.token_ids)
    if not count:
        return Usage(calls=1, attempts=1)
    complete = reply.finish != "abort"
    return Usage(
        prompt=length,
        cached=reply.num_cached,
        generated=count if complete else 0,
        overrun=0 if complete else count,
        calls=1,
        attempts=1,
        flops=_flops(shape, length - reply.num_cached, reply.num_cached) + _flops(shape, count - 1, length),
    )


def scoring_usage(shape: ModelShape | None, length: int, reply: RequestResult) -> Usage:
    """The usage of a request for log-probabilities: all tokens are computed anew, whichever part was requested."""
    count = len(reply.token_ids)
    if not count:
        return Usage(calls=1, attempts=1)
    return Usage(prompt=length, scored=length, overrun=count, calls=1, attempts=1, flops=_flops(shape, length, 0))


def _flops(shape: ModelShape | None, new: int, before: int) -> float:
    """FLOPs, or 0 for an architecture with unknown dimensions."""
    return shape.flops(new, before) if shape is not None and new > 0 else 0.0
