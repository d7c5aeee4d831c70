"""SGLang requests and answers, a request in flight, and the interface of its servers (`SGLangServer`).

The two servers are `http` and `local`. A request is never just dropped: when the caller is cancelled, it is aborted in
the engine and its answer awaited, so that the tokens it had decoded are known. This costs at most one decoding step.

Field names are those of version 0.5.23; `POST /generate` and `Engine.async_generate` have the same fields. Token ids go
in and token ids come out; the text of an answer is decoded here and never taken from the server. `sampling_seed` and
the absolute token position key all randomness there, so one seed serves a draw throughout, however often it is
continued. A grammar is sent as `ebnf`, which SGLang's llguidance backend also reads as Lark. Left out: n, beam search,
sessions, adapters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from ttc.core import ExtraSampling, FinishReason, Json, Sampling, Top
from ttc.errors import ConfigError, EngineError, Unsupported

MAX_STOPS = 32
"""Most stop strings that SGLang accepts in one request."""

_NEUTRAL = {"frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0}
"""Sent in every request, so that a server's own `preferred_sampling_params` cannot change the distribution."""

GRAMMARS = "llguidance"
"""The only grammar backend of SGLang that reads the form of `ttc.core.ExtraSampling.grammar`."""

UNKNOWN = "unknown"
"""The version of a server that does not report one."""


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """A server's description: `max_input` tokens fit in a request; `honours_seeds`: sampling is keyed by seeds.

    `holds_grammars`: grammars are enforced.
    """

    model: str
    model_type: str | None
    version: str
    max_input: int
    max_running: int | None
    honours_seeds: bool
    holds_grammars: bool = False

    @classmethod
    def read(cls, model: Mapping[str, Json], server: Mapping[str, Json], where: str) -> ServerInfo:
        """Read `/model_info` and `/server_info` (the in-process engine returns the same). Raises ConfigError."""
        if not model.get("is_generation", True):
            raise ConfigError(f"sglang: {where} serves {model.get('model_path')}, which does not generate text")
        if "max_req_input_len" not in server:
            raise ConfigError(f"sglang: {where} does not answer like SGLang 0.5.23: no max_req_input_len")
        running = server.get("max_running_requests")
        return cls(
            model=str(model.get("model_path") or server.get("model_path")),
            model_type=model.get("model_type"),
            version=str(server.get("version", UNKNOWN)),
            max_input=int(server["max_req_input_len"]),
            max_running=int(running) if running else None,
            honours_seeds=bool(server.get("enable_deterministic_inference")),
            holds_grammars=server.get("grammar_backend") == GRAMMARS,
        )


def draw_body(ids: Sequence[int], sampling: Sampling, key: int) -> dict[str, Json]:
    """The request for one draw whose randomness is keyed by `key` (64 bits; SGLang uses 63 of them)."""
    if len(sampling.stop) > MAX_STOPS:
        raise Unsupported(f"sglang takes at most {MAX_STOPS} stop strings, got {len(sampling.stop)}")
    params: dict[str, Json] = {
        **_NEUTRAL,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": -1 if sampling.top_k is None else sampling.top_k,
        "min_p": sampling.min_p,
        "max_new_tokens": sampling.max_tokens,
        "stop": list(sampling.stop),
        "stop_token_ids": list(sampling.stop_token_ids),
        "no_stop_trim": True,
        "skip_special_tokens": False,
    }
    if sampling.temperature > 0:
        params["sampling_seed"] = key >> 1
    body: dict[str, Json] = {"input_ids": list(ids), "sampling_params": params, "return_logprob": sampling.logprobs}
    if isinstance(sampling, ExtraSampling):
        params |= {} if sampling.grammar is None else {"ebnf": sampling.grammar}
        body |= {"top_logprobs_num": sampling.top_logprobs} if sampling.top_logprobs and sampling.logprobs else {}
    return body


def score_body(ids: Sequence[int], start: int, k: int = 0) -> dict[str, Json]:
    """The request for the log-probabilities of ids[start:], and the `k` likeliest there; nothing is sampled."""
    return {
        "input_ids": list(ids),
        "sampling_params": {"max_new_tokens": 0, "temperature": 0.0},
        "return_logprob": True,
        "top_logprobs_num": k,
        # The token at logprob_start_len itself is returned without a number, since what precedes it is not included.
        "logprob_start_len": start - 1,
    }


@dataclass(slots=True)
class Received:
    """The part of an answer received so far."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    tops: list[Top] = field(default_factory=list)
    input_logprobs: list[float | None] = field(default_factory=list)
    input_tops: list[Top] = field(default_factory=list)
    finish: Mapping[str, Json] | None = None
    prompt: int | None = None
    cached: int = 0

    def add(self, raw: Json) -> tuple[int, ...]:
        """Add an answer, or one event of a stream (cumulative or not); returns the new ids.

        Raises:
            EngineError: it is not an answer, or tokens were lost on the way.
        """
        meta = raw.get("meta_info") if isinstance(raw, dict) else None
        if meta is None or not isinstance(raw.get("output_ids"), list):
            raise EngineError(f"sglang gave no answer but {str(raw)[:200]}")
        ids: list[int] = raw["output_ids"]
        total = int(meta.get("completion_tokens", len(ids)))
        new = _tail(ids, len(self.ids), total)
        self.ids += new
        pairs: list[Any] = meta.get("output_token_logprobs") or []
        if pairs and total:
            self.logprobs += [float(pair[0]) for pair in _tail(pairs, len(self.logprobs), total)]
        tops: list[Any] = meta.get("output_top_logprobs") or []
        if tops and total:
            self.tops += map(_top, _tail(tops, len(self.tops), total))
        if meta.get("input_token_logprobs"):
            self.input_logprobs = [pair[0] for pair in meta["input_token_logprobs"]]
            self.input_tops = [_top(entry or []) for entry in meta.get("input_top_logprobs") or []]
        self.finish = meta.get("finish_reason") or self.finish
        self.prompt = meta.get("prompt_tokens", self.prompt)
        self.cached = int(meta.get("cached_tokens") or self.cached)
        return tuple(new)

    def check(self, num_prompt: int) -> None:
        """Raise EngineError unless the request has ended and the server read exactly the prompt that was sent."""
        if self.finish is None:
            raise EngineError(f"sglang broke off after {len(self.ids)} tokens without a finish_reason")
        if self.finish.get("type") == "abort":
            raise EngineError(f"sglang aborted the request: {self.finish.get('message', 'no reason given')}")
        if self.prompt != num_prompt:
            raise EngineError(f"sglang read {self.prompt} of {num_prompt} prompt tokens: its ledger and ours differ")


def _top(entry: Sequence[Sequence[Any]]) -> Top:
    """The likeliest tokens at one position, which SGLang returns as (logprob, id, text), the likeliest first."""
    return tuple((int(token), float(logprob)) for logprob, token, _ in entry)


def _tail(items: list[Any], have: int, total: int) -> list[Any]:
    """The items after the first `have` of `total`; a stream repeats all of them or sends only new ones."""
    missing = total - have
    if missing < 0 or (have and missing > len(items)) or (not have and total > len(items)):
        raise EngineError(f"sglang counts {total} tokens and sent {len(items)} after {have}: some got lost")
    if missing == 0:
        return []
    return items[have:total] if len(items) >= total else items[-missing:]


def ending(
    finish: Mapping[str, Json], ids: Sequence[int], sampling: Sampling, eos_ids: Sequence[int]
) -> tuple[FinishReason, str | int | None]:
    """Our finish and stop reason. Raises EngineError for one that SGLang 0.5.23 does not have."""
    kind, matched = finish.get("type"), finish.get("matched")
    if kind == "length":
        return "length", None
    if kind != "stop":
        raise EngineError(f"sglang ended a request with the unknown finish_reason {kind!r}")
    if isinstance(matched, str) and matched in sampling.stop:
        return "stop", matched
    if isinstance(matched, int) and ids and ids[-1] == matched:
        if isinstance(sampling, ExtraSampling) and sampling.grammar is not None and matched not in eos_ids:
            return "stop", matched if matched in sampling.stop_token_ids else None  # the last token of the grammar
        is_stop_id = matched in sampling.stop_token_ids and matched not in eos_ids
        # any other token is an end of sequence in the server's own configuration
        return "stop", matched if is_stop_id else "eos"
    raise EngineError(f"sglang stopped at {matched!r}, which was not asked for (NaN in the logits says so too)")


ABORT_AGAIN_S = 0.25
ABORT_LIMIT_S = 15.0


@dataclass(slots=True, eq=False)
class PendingCall:
    """One request; `received` belongs to the current attempt, `lost` counts tokens of failed attempts.

    `key` identifies requests with a common prefix (its problem); `on_ids` is called with new ids as they come, which
    makes the request a streamed one.
    """

    body: Mapping[str, Json]
    key: str
    on_ids: Callable[[tuple[int, ...]], None] | None = None
    received: Received = field(default_factory=Received)
    attempts: int = 0
    lost: int = 0

    def begin(self) -> None:
        """Start a new attempt; tokens received by the previous one are lost."""
        self.lost += len(self.received.ids)
        self.received = Received()
        self.attempts += 1

    def take(self, raw: Json) -> None:
        """Add an answer or an event of a stream."""
        new = self.received.add(raw)
        if new and self.on_ids is not None:
            self.on_ids(new)


class SGLangServer(Protocol):
    """Where requests go: one or several HTTP servers, or the engine in this process."""

    @property
    def info(self) -> ServerInfo:
        """Its description at the start."""
        ...

    @property
    def served(self) -> Mapping[str, str]:
        """See `ttc.core.Served`; empty where the weights are read in this process."""
        ...

    @property
    def senders(self) -> tuple[Callable[[Mapping[str, Json]], Json], ...]:
        """For each server, a function that sends one request and waits for its answer, outside any event loop."""
        ...

    async def send(self, call: PendingCall) -> None:
        """Run `call` to its end, which fills `call.received`; when cancelled, abort it and record what it had.

        Raises:
            EngineError: it failed, after any retries.
        """
        ...

    async def load_weights(self, state: Mapping[str, Any]) -> None:
        """Replace the weights by `state` (Hugging Face names) and drop the prefix cache."""
        ...

    async def close(self) -> None:
        """Release it; may be called twice."""
        ...


async def until_done(call: PendingCall, request: asyncio.Future[None], abort: Callable[[], Awaitable[None]]) -> None:
    """Await `request`; when cancelled, call `abort` and wait until the engine has answered, then propagate."""
    try:
        await asyncio.shield(request)
    except asyncio.CancelledError:
        call.on_ids = None
        await _settle(request, abort)
        raise


async def _settle(request: asyncio.Future[None], abort: Callable[[], Awaitable[None]]) -> None:
    """Abort until the answer is there: the first abort may overtake the request and have nothing to abort."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + ABORT_LIMIT_S
    while not request.done() and loop.time() < deadline:
        try:
            with suppress(EngineError):  # an unreachable server also ends the request
                await abort()
            await asyncio.wait({request}, timeout=ABORT_AGAIN_S)
        except asyncio.CancelledError:  # cancelled again: still return only once the tokens are known
            continue
    request.cancel()
    if request.done() and not request.cancelled():
        request.exception()  # retrieved only: the cancelled caller does not need the reason
