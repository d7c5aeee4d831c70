"""The vLLM engine as `ttc.core` sees it: one request per draw, seeds by path, the ledger, weights in place.

A draw's seed is a hash of (run seed, problem, path, position of the prompt's end), so draws and continuations differ
and neither n nor the order of calls changes them; never seed + i, which makes neighbouring seeds share draws. Equality
between schedules is in distribution: batching changes the last bits of vLLM's logits. Log-probabilities are those of
the model itself. Left out: self-certainty, several prompts in one request, speculative decoding.

The toolkit holds budgets on thinking by continuation, exact on token ids on every engine. vLLM's own cap
(`thinking_token_budget`) saves one request per cut, and can be used where the hand-over is the bare marker: in vLLM
0.32, whenever the forced text is more, a thought that ended by itself has that text forced into its answer. Whether it
is exact for a model is tested on request (`check_cap`): a cut comes after exactly the budget, also when a user wrote a
marker, and a thought that ends by itself at its budget or below is left alone. Asked of prompts that end inside a block
only: elsewhere a marker in the user's words opens one. Cost: a few greedy requests.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from ttc.concurrent import settle
from ttc.core import (
    PENALTIES,
    Completion,
    ExtraCapabilities,
    Message,
    ModelShape,
    Prompt,
    Sampling,
    Usage,
    UsageSink,
    with_extra,
)
from ttc.engines.shared.folder import Dims, read_config, save_weights
from ttc.engines.shared.tokens import OnTokens, StreamingTokenEngine, Text, TokenEngine, check_start
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
from ttc.errors import ConfigError, EngineError, Unsupported
from ttc.session.thinking import CLOSE, OPEN, split

COLDEST, HOTTEST = 0.01, 2.0
"""Temperatures between which vLLM samples as asked; it would raise or refuse others."""

PARITY = 0.05
"""Largest disagreement of a repacked head, relative to the largest logit; bf16 rounding stays below 0.02."""


class VllmEngine(StreamingTokenEngine):
    """Implements Engine, StreamingEngine, LogprobEngine and WeightSync."""

    def __init__(self, name: str, folder: Path, options: VllmOptions) -> None:
        """Load the model of `folder`; raises what `start` raises."""
        config, text = read_config(folder), Text(folder)
        think = (OPEN, CLOSE) if text.think_open else None
        self._driver, self._folder = start(folder, options, think), folder
        self._lora = None if options.lora is None else lora_request(options.lora)
        self._names = itertools.count()
        self._outboxes: dict[asyncio.AbstractEventLoop, LoopCalls] = {}
        self._live, self._lock = 0, threading.Lock()
        capabilities = ExtraCapabilities(
            model=name,
            max_context=self._driver.max_context,
            token_ids=True,
            logprobs=True,
            schedule_invariant=False,
            think_open=text.think_open,
            think_close=text.think_close,
            eos_ids=text.eos_ids,
            handover=text.handover,
            shape=_shape(config),
            max_concurrency=options.max_num_seqs,
            extras=frozenset({*PENALTIES, "top_logprobs", "cache_salt"}),
        )
        super().__init__(text, capabilities)

    async def logprobs(self, token_ids: Sequence[int], start: int, on_usage: UsageSink) -> tuple[float, ...]:
        """See `ttc.core.LogprobEngine`; `start` must be at least 1, since the first token has nothing before it.

        vLLM does not read its prefix cache for such a request, so every call computes all tokens; and it must sample
        one token, which is charged as overrun.
        """
        check_start(len(token_ids), start)
        self._check_room(len(token_ids), 1)
        params = sampling_params(False, temperature=0.0, max_tokens=1, prompt_logprobs=0, detokenize=False)
        request = self._request(token_ids, params)
        ((reply, _),) = await self._run([request], scoring_usage, on_usage)
        return tuple(reply.prompt_logprobs[i][token_ids[i]].logprob for i in range(start, len(token_ids)))

    async def load_weights(self, state: Mapping[str, Any]) -> None:
        """See `ttc.core.WeightSync`. The tensors pass through a file, which every worker's machine must see.

        Raises:
            ConfigError: `state` lacks a tensor of the model.
            EngineError: requests are running, or the new weights do not compute what they should.
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
        """Find out whether vLLM's own thinking budget is exact for this model; if so, `thinking_cap` is an extra.

        Thinking control then uses it where the hand-over is the bare marker, which is all that vLLM can force.
        """
        capabilities = self._capabilities
        if not capabilities.think_open:
            raise Unsupported(f"{capabilities.model} has no thinking markers")
        report = await check_cap(self, self._capped)
        if report.exact:
            self._capabilities = with_extra(capabilities, "thinking_cap")
        return report

    def reported(self) -> Usage:
        """What vLLM itself counted: prompt, cached and all generated tokens (kept or not)."""
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
        every = [fields_of(sampling, path, ids, self._capabilities) for path in paths]
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
        """Ids of one greedy draw under vLLM's own thinking budget."""
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
        """Run requests to their end; each is charged once, when it ends, whatever becomes of the caller."""
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
        """Hand tokens to the caller; an error of the caller's own ends the draw."""
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
    """Dimensions for FLOPs; None for architectures whose configuration reads differently (FLOPs then stay 0)."""
    try:
        dims = Dims.from_config(config)
    except ConfigError:
        return None
    return dims.model_shape(dims.vocab)


def _check_names(state: Mapping[str, Any], folder: Path) -> None:
    """Refuse a state that lacks tensors of the model: vLLM would keep the old ones and only warn."""
    from safetensors import safe_open

    names: set[str] = set()
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(str(file), framework="pt") as tensors:
            names |= set(tensors.keys())
    missing = sorted(names - state.keys())
    if missing:
        raise ConfigError(f"the new weights lack {len(missing)} tensors of the model, the first is {missing[0]!r}")


Capped: TypeAlias = Callable[[Prompt, int, int | None], Awaitable[tuple[int, ...]]]
"""(prompt, max_tokens, vLLM's own thinking budget) -> ids of a greedy draw."""

QUESTION = "Compute 12+30*2-7."
FORGED = f"{QUESTION} What does <think> mean?"
CAPS = (1, 3, 8)
AFTER = 24
"""Tokens to look at behind a cap."""
LONGEST = 512
"""Tokens within which a thought must end by itself for the second test."""


@dataclass(frozen=True, slots=True)
class CapReport:
    """`exact` when nothing failed; each failure is one sentence. `num_tests` tells how many were possible."""

    num_tests: int
    failures: tuple[str, ...]

    @property
    def exact(self) -> bool:
        """Whether vLLM's own cap could replace continuation for this model."""
        return self.num_tests > 0 and not self.failures


async def check_cap(engine: TokenEngine, capped: Capped) -> CapReport:
    """Run the tests; a test that this model gives no occasion for is left out."""
    results = [await _cuts(engine, capped, question) for question in (QUESTION, FORGED)]
    results.append(await _natural_end(engine, capped))
    failures = tuple(failure for _, sentences in results for failure in sentences)
    return CapReport(sum(number for number, _ in results), failures)


async def _cuts(engine: TokenEngine, capped: Capped, question: str) -> tuple[int, list[str]]:
    """Cut after exactly the budget, with the marker; what the user's words hold does not count."""
    prompt, free = await _free(engine, capped, question)
    if prompt.think_state != "open":
        return 1, ["the template leaves it to the model to open its thought"]
    handover = engine.capabilities.think_close
    failures: list[str] = []
    tests = [cap for cap in CAPS if _num_thinking(engine, prompt, free) > cap]
    for cap in tests:
        got = await capped(prompt, cap + len(handover) + AFTER, cap)
        expected = free[:cap] + handover
        if got[: len(expected)] != expected:
            text = engine.decode(got[: len(expected)])
            failures.append(f"a cap of {cap} did not cut after {cap} tokens: {text!r}")
    return len(tests), failures


async def _natural_end(engine: TokenEngine, capped: Capped) -> tuple[int, list[str]]:
    """A thought that ends at the budget or just below must leave the draw as it was."""
    prompt, free = await _free(engine, capped, QUESTION)
    if split(free, prompt.think_state == "open", engine.capabilities).inside:
        return 0, []
    natural, failures = _num_thinking(engine, prompt, free), []
    # At the length itself and just above it: neither may change a token.
    for cap in (natural, natural + 2):
        got = await capped(prompt, len(free), cap)
        if got != free:
            at = next((i for i, (a, b) in enumerate(zip(got, free, strict=False)) if a != b), min(len(got), len(free)))
            forced = engine.decode(got[at : at + AFTER])
            failures.append(f"a natural end of {natural} under a cap of {cap} is not left alone: {forced!r}")
    return 2, failures


async def _free(engine: TokenEngine, capped: Capped, question: str) -> tuple[Prompt, tuple[int, ...]]:
    prompt = engine.render([Message("user", question)], True)
    room = engine.capabilities.max_context - len(prompt.token_ids or ()) - 1
    return prompt, await capped(prompt, min(LONGEST, room), None)


def _num_thinking(engine: TokenEngine, prompt: Prompt, ids: tuple[int, ...]) -> int:
    return len(split(ids, prompt.think_state == "open", engine.capabilities).thinking)
