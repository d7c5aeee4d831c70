"""The vLLM engine with the protocols of `ttc.core`: one request per draw, seeds by path, the ledger, new weights.

A draw's seed is a hash of (run seed, problem, path, position of the prompt's end), so draws and continuations differ
and neither n nor the order of calls changes them; never seed + i, with which neighbouring seeds share draws. Equality
between schedules is in distribution: batching changes the last bits of vLLM's logits. Log-probabilities are those of
the model, without sampling parameters. Left out: self-certainty, several prompts in one request, speculative decoding.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ttc.concurrent import settle
from ttc.core import (
    PENALTIES,
    Completion,
    ExtraCapabilities,
    ModelShape,
    Prompt,
    Sampling,
    Usage,
    UsageSink,
    with_extra,
)
from ttc.engines.shared.folder import save_weights, weight_files
from ttc.engines.shared.shape import Dims, read_config
from ttc.engines.shared.text import Text
from ttc.engines.shared.tokens import OnTokens, StreamingTokenEngine, check_start
from ttc.engines.vllm.options import VllmOptions
from ttc.engines.vllm.requests import (
    LoopCalls,
    RequestResult,
    SequenceRequest,
    budget_of,
    completion_of,
    draw_usage,
    fields_of,
    salt_of,
    scoring_usage,
)
from ttc.engines.vllm.start import lora_request, sampling_params, start
from ttc.engines.vllm.thinking_cap import CapReport, check_cap
from ttc.errors import ConfigError, EngineError, Unsupported

COLDEST, HOTTEST = 0.01, 2.0
"""Range of temperatures that vLLM uses unchanged; it would raise or refuse others."""

PARITY = 0.05
"""Largest difference of a repacked head, relative to the largest logit; bf16 rounding stays below 0.02."""


class VllmEngine(StreamingTokenEngine):
    """Implements Engine, StreamingEngine, TopLogprobEngine, LogprobEngine and WeightSync."""

    def __init__(self, name: str, folder: Path, options: VllmOptions) -> None:
        """Load the model of `folder`; raises what `start` raises."""
        config, text = read_config(folder), Text(folder)
        think = text.markers if text.think_texts is None else None
        self._driver, self._folder = start(folder, options, think), folder
        self._lora = None if options.lora is None else lora_request(options.lora)
        self._names = itertools.count()
        self._outboxes: dict[asyncio.AbstractEventLoop, LoopCalls] = {}
        self._live, self._lock, self._seeded = 0, threading.Lock(), options.seeded
        capabilities = ExtraCapabilities(
            model=name,
            max_context=self._driver.max_context,
            token_ids=True,
            logprobs=options.logprobs,
            certainty=False,
            schedule_invariant=False,
            think_open=text.think_open,
            think_close=text.think_close,
            think_texts=text.think_texts,
            eos_ids=text.eos_ids,
            handover=text.handover,
            shape=_shape(config),
            max_concurrency=options.max_num_seqs * options.data_parallel_size,
            cache_block=self._driver.cache_block,
            extras=frozenset({*PENALTIES, "logit_bias", "top_logprobs", "cache_salt", "grammar"}),
        )
        super().__init__(text, capabilities)

    async def logprobs(self, token_ids: Sequence[int], start: int, on_usage: UsageSink) -> tuple[float, ...]:
        """See `ttc.core.LogprobEngine`; `start` must be at least 1, since the first token has nothing before it.

        vLLM does not read its prefix cache for such a request, so every call computes all tokens; and it must sample
        one token, which is charged as overrun.
        """
        entries = await self._score(token_ids, start, 0, on_usage)
        return tuple(entry[token].logprob for entry, token in zip(entries, token_ids[start:], strict=True))

    async def top_logprobs(
        self, token_ids: Sequence[int], start: int, k: int, on_usage: UsageSink
    ) -> tuple[Mapping[int, float], ...]:
        """See `ttc.core.TopLogprobEngine`; `start`, and what it costs, as in `logprobs`."""
        entries = await self._score(token_ids, start, k, on_usage)
        return tuple({token: told.logprob for token, told in entry.items()} for entry in entries)

    async def _score(self, token_ids: Sequence[int], start: int, k: int, on_usage: UsageSink) -> Sequence[Any]:
        """The entries of vLLM for token_ids[start:]: the `k` likeliest tokens at each position, and the given one."""
        check_start(len(token_ids), start)
        self._check_room(len(token_ids), 1)
        params = sampling_params(False, temperature=0.0, max_tokens=1, prompt_logprobs=k, detokenize=False)
        request = self._request(token_ids, params)
        ((reply, _),) = await self._run([request], scoring_usage, on_usage)
        entries: Sequence[Any] = reply.prompt_logprobs[start:]
        return entries

    async def load_weights(self, state: Mapping[str, Any]) -> None:
        """See `ttc.core.WeightSync`. The tensors pass through a file that all workers' machines must be able to read.

        Raises:
            ConfigError: `state` lacks a tensor of the model.
            EngineError: requests are running, or the check of the new weights fails.
        """
        if self._live:
            raise EngineError(f"{self._live} requests are running: weights can only be replaced in an idle engine")
        if self._lora is not None:
            raise Unsupported("vllm: weights cannot be replaced under a LoRA adapter")
        _check_names(state, self._folder)
        with tempfile.TemporaryDirectory(prefix="ttc-weights-") as folder:
            await asyncio.to_thread(save_weights, state, Path(folder) / "model.safetensors")
            disagreements = await self._driver.call_workers("ttc_load_weights", {"path": folder})
        if not await self._driver.reset_prefix_cache():
            raise EngineError("vllm kept keys and values of the old weights: close the engine and start another")
        worst = max(disagreements)
        if not worst <= PARITY:
            raise EngineError(
                f"the replaced weights disagree with themselves: head and embedding differ by {worst:.3f} of the "
                "largest logit; close the engine and start another"
            )

    async def self_test(self) -> CapReport:
        """Test whether vLLM's own thinking budget is exact for this model; if so, `thinking_cap` becomes an extra.

        Thinking control then uses it where the hand-over is the bare marker, which is all that vLLM can force.
        """
        capabilities = self._capabilities
        if not capabilities.think_open or capabilities.think_texts is not None:
            raise Unsupported(f"{capabilities.model} has no thinking markers of one token each")
        report = await check_cap(self, self._capped)
        if report.exact:
            self._capabilities = with_extra(capabilities, "thinking_cap")
        return report

    def reported(self) -> Usage:
        """The counts of vLLM itself: prompt, cached and all generated tokens, including discarded ones."""
        return self._driver.counts.usage

    async def close(self) -> None:
        """See `ttc.core.Engine`; may be called twice."""
        await asyncio.get_running_loop().run_in_executor(None, self._driver.close)

    # -- one draw, one request ---------------------------------------------------------------------------------------

    async def _draws(
        self, prompt: Prompt, sampling: Sampling, draws: range, on_usage: UsageSink, on_tokens: OnTokens | None
    ) -> list[Completion]:
        ids = self._check(prompt, sampling)
        _check_temperature(sampling)
        paths = [(*prompt.path, draw) for draw in draws]
        stream = on_tokens is not None
        own = sampling if self._seeded else replace(sampling, seed=None)
        every = [fields_of(own, path, ids, self._capabilities) for path in paths]
        requests = [self._request(ids, sampling_params(stream, **fields), salt_of(sampling)) for fields in every]
        failures: list[Exception] = []
        if on_tokens is not None:
            requests[0].on_tokens = partial(self._feed, requests[0], on_tokens, failures)
        replies = await self._run(requests, draw_usage, on_usage)
        if failures:
            raise failures[0]
        return [
            completion_of(path, sampling, reply, usage, self._capabilities.eos_ids, self.decode)
            for path, (reply, usage) in zip(paths, replies, strict=True)
        ]

    async def _capped(self, prompt: Prompt, max_tokens: int, cap: int | None) -> tuple[int, ...]:
        """Ids of one greedy draw with vLLM's own thinking budget."""
        ids = prompt.token_ids or ()
        self._check_room(len(ids), max_tokens)
        params = sampling_params(
            False,
            temperature=0.0,
            max_tokens=max_tokens,
            stop_token_ids=list(self._capabilities.eos_ids),
            thinking_token_budget=budget_of(cap, ids, self._capabilities),
            detokenize=False,
        )
        ((reply, _),) = await self._run([self._request(ids, params)], draw_usage, lambda usage: None)
        return reply.token_ids

    def _request(self, ids: Sequence[int], params: Any, salt: str | None = None) -> SequenceRequest:
        loop = asyncio.get_running_loop()
        if loop not in self._outboxes:
            self._outboxes = {loop_of: box for loop_of, box in self._outboxes.items() if not loop_of.is_closed()}
            self._outboxes[loop] = LoopCalls(loop)
        name, box = f"ttc-{next(self._names)}", self._outboxes[loop]
        return SequenceRequest(name, list(ids), params, self._lora, box, loop.create_future(), salt=salt)

    async def _run(
        self,
        requests: Sequence[SequenceRequest],
        price: Callable[[ModelShape | None, int, RequestResult], Usage],
        on_usage: UsageSink,
    ) -> list[tuple[RequestResult, Usage]]:
        """Run requests to their end; each is charged once, when it ends, even if the caller was cancelled."""
        if not requests:
            return []
        usages: dict[str, Usage] = {}
        shape = self._capabilities.shape

        def account(request: SequenceRequest, future: asyncio.Future[RequestResult]) -> None:
            failed = future.exception() is not None
            usage = Usage(calls=1, attempts=1) if failed else price(shape, len(request.ids), future.result())
            usages[request.name] = usage
            with self._lock:
                self._live -= 1
                self._total += usage
            on_usage(usage)

        for request in requests:
            request.future.add_done_callback(partial(account, request))
        with self._lock:
            self._live += len(requests)
        self._driver.submit(requests)
        futures = [request.future for request in requests]
        try:
            await asyncio.wait(futures)
        except asyncio.CancelledError:
            self._driver.abort(requests)
            await settle(futures)
            raise
        return [(request.future.result(), usages[request.name]) for request in requests]

    def _feed(
        self, request: SequenceRequest, on_tokens: OnTokens, failures: list[Exception], ids: tuple[int, ...]
    ) -> None:
        """Pass tokens to the caller; an exception of the caller's callback ends the draw."""
        if failures:
            return
        try:
            on_tokens(ids)
        except Exception as exc:
            failures.append(exc)
            self._driver.abort([request])


def _check_temperature(sampling: Sampling) -> None:
    if sampling.temperature and not COLDEST <= sampling.temperature <= HOTTEST:
        raise ConfigError(
            f"vllm samples at temperature 0 or {COLDEST} to {HOTTEST}, got sampling.temperature {sampling.temperature}"
        )


def _shape(config: Mapping[str, Any]) -> ModelShape | None:
    """Dimensions for FLOPs; None for architectures with other fields in their config (FLOPs then stay 0)."""
    try:
        dims = Dims.from_config(config)
    except ConfigError:
        return None
    return dims.model_shape(dims.vocab)


def _check_names(state: Mapping[str, Any], folder: Path) -> None:
    """Refuse a state that lacks tensors of the model: vLLM would keep the old ones and only warn."""
    from safetensors import safe_open

    names: set[str] = set()
    for file in weight_files(folder):
        with safe_open(str(file), framework="pt") as tensors:
            names |= set(tensors.keys())
    missing = sorted(names - state.keys())
    if missing:
        raise ConfigError(f"the new weights lack {len(missing)} tensors of the model, the first is {missing[0]!r}")
