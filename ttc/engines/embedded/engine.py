"""The embedded engine: torch in this process, on a CPU or a GPU; a GPU also needs triton.

Runs any Hugging Face folder of the Llama, Qwen2, Qwen3, Mistral and SmolLM3 families with its own decode core, and on a
GPU also Gemma 3 (text): continuous batching, prefix keys and values shared by all draws and branches, counter-based
randomness. Other architectures run through transformers' own module: correct, but without the speed of shared prefixes.
Cost: one worker thread; bf16 weights plus the caches; with `processes`, all of it once per process or GPU
(`ttc.engines.embedded.replicas`). Left out, and better served by vLLM or SGLang: tensor parallelism, mixtures of
experts, quantised weights, speculative decoding.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from ttc import seeds
from ttc.concurrent import settle
from ttc.config.signatures import checked_by
from ttc.config.values import Dtype, at_least, at_most, check_place
from ttc.core import (
    Completion,
    Engine,
    ExtraCapabilities,
    ExtraSampling,
    Path,
    Prompt,
    Sampling,
    Usage,
    UsageSink,
)
from ttc.engines.shared.folder import check_model, generator_folder, reads_generator
from ttc.engines.shared.tokens import OnTokens, StreamingTokenEngine, check_ids, check_start
from ttc.identity.digests import reads

if TYPE_CHECKING:
    from ttc.engines.embedded.core.guide import Guide, Guides
    from ttc.engines.embedded.core.prefill import Reader
    from ttc.engines.embedded.core.scheduler import Scheduler
    from ttc.engines.shared.text import Text

T = TypeVar("T")

MAX_PROCESSES = 1024


def _check(
    model: str | None,
    device: str,
    threads: int,
    max_batch: int,
    max_context: int | None,
    kv_bytes: int | None,
    processes: int | None,
) -> None:
    check_place("embedded", device, threads)
    at_least("embedded", 1, max_batch=max_batch, processes=processes, kv_bytes=kv_bytes)
    at_least("embedded", 2, max_context=max_context)
    at_most("embedded", MAX_PROCESSES, processes=processes)
    check_model(model)


@reads(reads_generator)
@checked_by(_check)
def embedded(
    model: str | None = None,
    *,
    device: str = "auto",
    dtype: Dtype = "auto",
    threads: int = 1,
    max_batch: int = 256,
    max_context: int | None = None,
    kv_bytes: int | None = None,
    batch_invariant: bool | Literal["auto"] = False,
    processes: int | None = None,
) -> Engine:
    """Load a model into this process, or into several others.

    Args:
        model: a model folder or a hub id; None is the packaged teacher.
        device: "auto" (a GPU when there is one), "cpu", "cuda" or "cuda:1".
        dtype: "auto" (bf16 where the hardware multiplies it, else fp16 on a GPU and fp32 on a CPU), "bfloat16",
            "float16" (GPUs only) or "float32".
        threads: compute threads on a CPU; more than 1 only helps on an otherwise idle machine.
        max_batch: most sequences decoded at once; `kv_bytes` may allow fewer.
        max_context: a limit below the model's own, in tokens.
        kv_bytes: memory for keys and values, both of running draws and of cached prefixes; None is a quarter of free
            memory on a CPU, and four fifths of what weights and scratch memory leave on a GPU. Draws beyond it wait.
        batch_invariant: results do not depend, bit for bit, on concurrency, batching or resume points (on one machine
            with one number of threads); slower, and on a CPU only. "auto" turns it on there for models that run on
            this engine's own core.
        processes: number of processes to decode in, each with `threads` threads and its share of the memory; on a CPU
            with idle cores faster than more threads; on GPUs one process each. None decodes in this process.

    Raises:
        ConfigError: the folder, a file in it, or an option cannot be used.
    """
    from ttc.engines.embedded.core.model import pick_device
    from ttc.engines.shared.shape import full_attention, read_config

    folder = generator_folder(model)
    invariant = (
        pick_device(device).type == "cpu" and full_attention(read_config(folder), max_context)
        if batch_invariant == "auto"
        else batch_invariant
    )
    options: dict[str, Any] = {
        "device": device,
        "dtype": dtype,
        "threads": threads,
        "max_batch": max_batch,
        "max_context": max_context,
        "kv_bytes": kv_bytes,
        "batch_invariant": invariant,
    }
    if processes is not None:
        from ttc.engines.embedded.replicas import start

        return start(folder, model, options, processes)

    from ttc.engines.embedded.loading import load

    text, scheduler = load(folder, **options)
    return EmbeddedEngine(model or "nano-teacher", text, scheduler, max_batch, invariant)


def _extras(scheduler: Scheduler) -> frozenset[str]:
    return scheduler.extras | ({"grammar"} if importlib.util.find_spec("llguidance") else set())


class EmbeddedEngine(StreamingTokenEngine):
    """Implements Engine, StreamingEngine, TopLogprobEngine, LogprobEngine and WeightSync with one scheduler."""

    def __init__(self, name: str, text: Text, scheduler: Scheduler, max_batch: int, invariant: bool) -> None:
        dims = scheduler.body.dims
        capabilities = ExtraCapabilities(
            model=name,
            max_context=scheduler.body.max_context,
            token_ids=True,
            logprobs=True,
            schedule_invariant=invariant,
            think_open=text.think_open,
            think_close=text.think_close,
            think_texts=text.think_texts,
            eos_ids=text.eos_ids,
            handover=text.handover,
            shape=dims.model_shape(dims.vocab),
            max_concurrency=max_batch,
            draws_share_time=scheduler.body.device.type == "cpu",
            extras=_extras(scheduler),
        )
        super().__init__(text, capabilities)
        self._scheduler = scheduler
        self._guides: Guides | None = None

    async def logprobs(self, token_ids: Sequence[int], start: int, on_usage: UsageSink) -> tuple[float, ...]:
        """See `ttc.core.LogprobEngine`; `start` must be at least 1, since the first token has nothing before it."""
        from ttc.engines.embedded.core.prefill import chosen

        return await self._score(token_ids, start, chosen, on_usage)

    async def top_logprobs(
        self, token_ids: Sequence[int], start: int, k: int, on_usage: UsageSink
    ) -> tuple[Mapping[int, float], ...]:
        """See `ttc.core.TopLogprobEngine`; `start` as in `logprobs`."""
        from ttc.engines.embedded.core.prefill import likeliest

        return await self._score(token_ids, start, likeliest(k), on_usage)

    async def _score(self, token_ids: Sequence[int], start: int, read: Reader[T], on_usage: UsageSink) -> tuple[T, ...]:
        check_start(len(token_ids), start)
        self._check_room(len(token_ids), 0)
        check_ids(token_ids, self._scheduler.body.dims.vocab)
        ids = tuple(token_ids)
        future = asyncio.wrap_future(self._scheduler.call(lambda: self._scheduler.score(ids, start, read)))
        try:
            values, usage = await asyncio.shield(future)
        except asyncio.CancelledError:
            await settle([future])
            if not future.exception():
                on_usage(future.result()[1])
            raise
        on_usage(usage)
        return tuple(values)

    async def load_weights(self, state: Mapping[str, Any]) -> None:
        """See `ttc.core.WeightSync`; raises EngineError while requests run."""
        await asyncio.shield(asyncio.wrap_future(self._scheduler.call(lambda: self._scheduler.swap(state))))

    def prune(self, problem_id: str, path: Path) -> None:
        """See `ttc.core.SearchAware`."""
        self._scheduler.prune(problem_id, path)

    def release(self, problem_id: str) -> None:
        """See `ttc.core.SearchAware`."""
        self._scheduler.release(problem_id)

    def counters(self) -> Usage:
        """See `ttc.core.Engine`."""
        return self._scheduler.counters()

    async def close(self) -> None:
        """See `ttc.core.Engine`; may be called twice."""
        await asyncio.get_running_loop().run_in_executor(None, self._scheduler.close)

    async def _draws(
        self, prompt: Prompt, sampling: Sampling, draws: range, on_usage: UsageSink, on_tokens: OnTokens | None
    ) -> list[Completion]:
        from ttc.engines.embedded.core.requests import GenerateRequest

        ids = self._check(prompt, sampling)
        if not prompt.path:  # ids of a continuation were sampled or encoded here, and need no check
            check_ids(ids, self._scheduler.body.dims.vocab)
        if not draws:
            return []
        loop = asyncio.get_running_loop()
        seed = sampling.seed or 0
        request = GenerateRequest(
            ids=ids,
            problem_id=prompt.problem_id,
            path=prompt.path,
            sampling=sampling,
            draws=draws,
            keys=seeds.derive_draws(seed, prompt.path, draws),
            rule=self._rule(sampling),
            loop=loop,
            future=loop.create_future(),
            on_usage=on_usage,
            on_tokens=on_tokens,
            make_guide=await self._guide_of(sampling),
        )
        self._scheduler.submit(request)
        try:
            return await asyncio.shield(request.future)
        except asyncio.CancelledError:
            self._scheduler.abort(request)
            await settle([request.future])
            raise

    async def _guide_of(self, sampling: Sampling) -> Callable[[], Guide] | None:
        """A factory of guides, one per draw; None where `sampling` has no grammar."""
        if not isinstance(sampling, ExtraSampling) or sampling.grammar is None:
            return None
        from ttc.engines.embedded.core.guide import Guides

        if self._guides is None:  # reading the vocabulary takes seconds: not in the event loop
            self._guides = await asyncio.to_thread(Guides, self._text, self._scheduler.body.dims.vocab)
        return await asyncio.to_thread(self._guides.follow, sampling.grammar)  # a large schema takes a second
