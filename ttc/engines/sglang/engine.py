"""The SGLang engine over a `SGLangServer` (HTTP or in process): draws with our seeds, stops, ledger and cancellation.

One request per draw. The server's own counts are checked against the ids it sent (`wire`), so its count and our ledger
are equal. SGLang searches for a stop string in a window of its newest tokens, as many as its own encoding of the string
has, plus one; a string that was sampled in more tokens is missed. Draws are therefore checked again here and cut at the
first token that completes a stop string; tokens after it are charged as `overrun`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ttc import seeds
from ttc.concurrent import gather
from ttc.core import Capabilities, Completion, ExtraCompletion, FinishReason, Prompt, Sampling, Top, Usage, UsageSink
from ttc.engines.sglang.wire import PendingCall, SGLangServer, draw_body, ending, score_body
from ttc.engines.shared.text import Text
from ttc.engines.shared.tokens import OnTokens, StreamingTokenEngine, check_start
from ttc.errors import EngineError, Unsupported


class SGLangEngine(StreamingTokenEngine):
    """Implements Engine, StreamingEngine, TopLogprobEngine, LogprobEngine and WeightSync.

    Raises EngineError when the server is gone.
    """

    def __init__(self, server: SGLangServer, text: Text, capabilities: Capabilities) -> None:
        """`text` is the tokenizer of the model that `server` serves."""
        super().__init__(text, capabilities)
        self._capabilities = self._capabilities.without_settings("repetition_penalty")
        self._server = server
        self._live = 0

    @property
    def served(self) -> Mapping[str, str]:
        """See `ttc.core.Served`; nothing for an engine in this process."""
        return self._server.served

    async def logprobs(self, token_ids: Sequence[int], start: int, on_usage: UsageSink) -> tuple[float, ...]:
        """See `ttc.core.LogprobEngine`; `start` must be at least 1. SGLang computes everything from there anew."""
        return (await self._score(token_ids, start, 0, on_usage))[0]

    async def top_logprobs(
        self, token_ids: Sequence[int], start: int, k: int, on_usage: UsageSink
    ) -> tuple[Mapping[int, float], ...]:
        """See `ttc.core.TopLogprobEngine`; `start`, and what it costs, as in `logprobs`."""
        values, tops = await self._score(token_ids, start, k, on_usage)
        rows = zip(tops, token_ids[start:], values, strict=True)
        return tuple(dict(top) | {token: value} for top, token, value in rows)

    async def _score(
        self, token_ids: Sequence[int], start: int, k: int, on_usage: UsageSink
    ) -> tuple[tuple[float, ...], Sequence[Top]]:
        """Log-probabilities of token_ids[start:] in nats, and with `k` the likeliest tokens at each position."""
        check_start(len(token_ids), start)
        self._check_room(len(token_ids), 0)
        count = len(token_ids) - start
        if not count:
            return (), ()
        call = PendingCall(score_body(token_ids, start, k), key="")
        try:
            await self._send(call, len(token_ids))
        finally:
            usage = self._usage(call, len(token_ids), 0)
            self._charge(replace(usage, scored=usage.prompt - usage.cached), on_usage)
        logprobs = tuple(value for value in call.received.input_logprobs[-count:] if value is not None)
        tops = call.received.input_tops[-count:]
        if len(logprobs) != count or (k and (len(tops) != count or not all(tops))):
            raise EngineError(f"sglang gave {len(logprobs)} log-probabilities for {count} tokens")
        return logprobs, tops

    async def load_weights(self, state: Mapping[str, Any]) -> None:
        """See `ttc.core.WeightSync`; raises EngineError while requests run."""
        if self._live:
            raise EngineError(f"weights can be replaced only while the engine is idle: {self._live} requests run")
        await self._server.load_weights(state)

    async def close(self) -> None:
        """See `ttc.core.Engine`; may be called twice."""
        await self._server.close()

    # -- one draw ----------------------------------------------------------------------------------------------------

    async def _draws(
        self, prompt: Prompt, sampling: Sampling, draws: range, on_usage: UsageSink, on_tokens: OnTokens | None
    ) -> list[Completion]:
        """Draw all at once; a stream also passes on tokens after a stop string that SGLang noticed late."""
        self._check(prompt, sampling)
        return await gather(self._draw(prompt, sampling, draw, on_usage, on_tokens) for draw in draws)

    async def _draw(
        self, prompt: Prompt, sampling: Sampling, draw: int, on_usage: UsageSink, on_tokens: OnTokens | None
    ) -> Completion:
        ids, path = prompt.token_ids or (), (*prompt.path, draw)
        # The key has no position: SGLang adds the absolute one, so a continued draw uses the same random numbers.
        body = draw_body(ids, sampling, seeds.derive(sampling.seed or 0, path))
        call = PendingCall(body, key=prompt.problem_id or str(prompt.path[:1]), on_ids=on_tokens)
        length = 0
        try:
            await self._send(call, len(ids))
            length, finish, reason = self._end(call, sampling)
        finally:
            usage = self._usage(call, len(ids), length)
            self._charge(usage, on_usage)
        tokens = tuple(call.received.ids[:length])
        columns: dict[str, Any] = {
            "path": path,
            "text": self.decode(tokens[:-1] if reason == "eos" else tokens),
            "token_ids": tokens,
            "finish_reason": finish,
            "stop_reason": reason,
            "logprobs": tuple(call.received.logprobs[:length]) if sampling.logprobs else None,
            "usage": usage,
        }
        tops = tuple(call.received.tops[:length])
        return ExtraCompletion(**columns, top_logprobs=tops) if tops else Completion(**columns)

    async def _send(self, call: PendingCall, num_prompt: int) -> None:
        self._live += 1
        try:
            await self._server.send(call)
            call.received.check(num_prompt)
        finally:
            self._live -= 1

    def _end(self, call: PendingCall, sampling: Sampling) -> tuple[int, FinishReason, str | int | None]:
        """How many ids are kept, and how the draw ended."""
        ids, rule = call.received.ids, self._rule(sampling)
        if sampling.logprobs and len(call.received.logprobs) != len(ids):
            raise EngineError(f"sglang gave {len(call.received.logprobs)} log-probabilities for {len(ids)} tokens")
        for count in range(1, len(ids) + 1):
            reason = rule.reason(ids[:count]) if ids[count - 1] in rule.watch else None
            if reason is not None:
                return count, "stop", reason
        return len(ids), *ending(call.received.finish or {}, ids, sampling, self._capabilities.eos_ids)

    # -- the ledger --------------------------------------------------------------------------------------------------

    def _usage(self, call: PendingCall, num_prompt: int, kept: int) -> Usage:
        """The usage of a request of which `kept` ids are kept; a prompt that was never read costs nothing."""
        received, flops = call.received, self._capabilities.flops
        read = num_prompt if received.prompt is not None else 0
        # a request that was swapped out and in again counts its own tokens as cached, too
        cached, count = min(received.cached, read), len(received.ids)
        return Usage(
            prompt=read,
            cached=cached,
            generated=kept,
            overrun=count - kept + call.lost,
            calls=1,
            attempts=call.attempts,
            flops=flops(read - cached, cached) + flops(max(count - 1, 0), read) if read else 0.0,
        )

    # -- checks before anything is sent ------------------------------------------------------------------------------

    def _check(self, prompt: Prompt, sampling: Sampling) -> tuple[int, ...]:
        if sampling.logprobs and not self._capabilities.logprobs:
            raise Unsupported(
                "sglang reports log-probabilities at the sampling temperature: "
                "start the server with SGLANG_RETURN_ORIGINAL_LOGPROB=1"
            )
        if sampling.repetition_penalty != 1:
            raise Unsupported(
                "sglang applies a repetition penalty to the tokens of one request, not to the whole text: "
                "leave repetition_penalty at 1, or use --engine vllm or embedded"
            )
        return super()._check(prompt, sampling)
