"""Prefill: the part of prompts that the prefix cache does not hold, in batches of bounded size.

A prompt that shares a long uncached start with one in the batch waits for it and finds it in the cache afterwards. A
recurrent model's state is kept where a second prompt turns out to share a start, for the third. When memory runs out,
only the current batch is lost: a later call with fewer tokens continues from what is cached.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias, TypeVar

import torch

from ttc.core import Usage
from ttc.engines.embedded.core.cache import PrefixTree
from ttc.engines.embedded.core.model import Body
from ttc.engines.embedded.core.pool import PAGE, Segment
from ttc.engines.embedded.core.requests import Job
from ttc.errors import EngineError

T = TypeVar("T")

CHUNK = 1024
"""Most prompt tokens computed between two decoding steps; bounds how long running draws wait."""

_SHARED_START = 32
"""A prompt that shares at least this many uncached tokens with one being computed waits for it."""


@contextlib.contextmanager
def memory_errors() -> Iterator[None]:
    """Turn the out-of-memory errors of torch's allocators into MemoryError."""
    try:
        yield
    except RuntimeError as exc:
        if isinstance(exc, torch.OutOfMemoryError) or "can't allocate memory" in str(exc):
            raise MemoryError(str(exc)) from exc
        raise


def advance(jobs: Sequence[Job], body: Body, tree: PrefixTree, budget: int = CHUNK) -> list[Job]:
    """Compute up to `budget` missing tokens of `jobs`; return the jobs that lack at most their last token.

    Where the body allows it and more than the last token is missing, the last one is computed with the others, and the
    job gets its logits. They are cached with the prompt, so a repeated request samples from the same logits. Elsewhere
    a decoding step feeds the last token, which is an extra step when nothing else runs.
    """
    ready, work = _next_parts(jobs, body, tree, budget)
    return ready + (_compute(work, body, tree) if work else [])


_Work: TypeAlias = "list[tuple[Job, tuple[int, ...]]]"
"""Jobs with the tokens to compute next."""


def _next_parts(jobs: Sequence[Job], body: Body, tree: PrefixTree, budget: int) -> tuple[list[Job], _Work]:
    """Take what the cache holds for each job; return the jobs that are ready, and what to compute for others."""
    ready: list[Job] = []
    work: _Work = []
    for job in jobs:
        if budget <= 0:
            break
        goal = len(job.ids) - 1
        if (known := tree.whole(job.ids)) is not None:
            job.segment, job.logits = known[0], body.logits(known[1])[0]
            ready.append(job)
            continue
        match = tree.find(job.ids[:goal])
        lost = body.pool.stateful and job.segment is not None and job.segment.state is None
        if match.length >= job.length or lost:
            job.segment, job.length = match
        elif job.segment is not None:
            job.segment = job.segment.upto(job.length)
        start = job.length
        if start >= goal:
            ready.append(job)
        elif not any(_common(job.ids, other.ids, goal) >= start + _SHARED_START for other, _ in work):
            fork = tree.fork(job.ids[:goal]) if body.pool.stateful else start
            end = fork if fork >= start + _SHARED_START else goal + body.ends_prompts
            part = job.ids[start : min(end, start + budget)]
            budget -= len(part)
            work.append((job, part))
    return ready, work


def _compute(work: _Work, body: Body, tree: PrefixTree) -> list[Job]:
    """Compute parts of prompts and cache them; return the jobs that are ready."""
    ready: list[Job] = []
    for (job, part), (hidden, segment) in zip(work, body.prefill([(j.segment, p) for j, p in work]), strict=True):
        job.segment, job.length = segment, segment.end
        job.computed += len(part)
        tree.insert(job.ids[: segment.end], segment)
        if segment.end == len(job.ids):
            tree.end(job.ids, hidden[-1:])
            job.logits = body.logits(hidden[-1:])[0]
        if segment.end >= len(job.ids) - 1:
            ready.append(job)
    return ready


Reader: TypeAlias = Callable[[torch.Tensor, torch.Tensor], list[T]]
"""Extracts one value per token from log-probabilities (T, V) and the actual ids (T)."""


def chosen(logprobs: torch.Tensor, ids: torch.Tensor) -> list[float]:
    """The log-probability of each token."""
    values: list[float] = logprobs.gather(1, ids[:, None])[:, 0].tolist()
    return values


def likeliest(k: int) -> Reader[dict[int, float]]:
    """Reader of the `k` likeliest tokens (fewer in a smaller vocabulary) and the actual one."""

    def read(logprobs: torch.Tensor, ids: torch.Tensor) -> list[dict[int, float]]:
        values, others = logprobs.topk(min(k, logprobs.shape[1]), -1)
        rows = zip(ids.tolist(), chosen(logprobs, ids), others.tolist(), values.tolist(), strict=True)
        return [{token: value} | dict(zip(best, bests, strict=True)) for token, value, best, bests in rows]

    return read


def score(ids: tuple[int, ...], start: int, body: Body, tree: PrefixTree, read: Reader[T]) -> tuple[list[T], Usage]:
    """Apply `read` to the predictions of ids[start:] (start >= 1); returns its values and the usage.

    Raises EngineError where memory is too short even for a page of tokens.
    """
    match = tree.find(ids[: start - 1])
    segment, position = match
    values: list[T] = []
    chunk = CHUNK
    while position < len(ids) - 1:
        end = min(position + chunk, len(ids) - 1)
        try:
            with memory_errors():
                part, segment = _score_part(ids, position, end, start, body, segment, read)
        except MemoryError as exc:
            if chunk <= PAGE:
                raise EngineError(f"out of memory for the log-probabilities of {end - position} tokens: {exc}") from exc
            chunk //= 2
            continue
        values += part
        position = end
        tree.insert(ids[:end], segment)
    computed = len(ids) - 1 - match.length
    price = body.dims.model_shape(body.dims.vocab).flops(computed, match.length)
    usage = Usage(prompt=len(ids) - 1, cached=match.length, scored=computed, calls=1, attempts=1, flops=price)
    return values, usage


def _score_part(
    ids: tuple[int, ...], position: int, end: int, start: int, body: Body, segment: Segment | None, read: Reader[T]
) -> tuple[list[T], Segment]:
    """Compute ids[position:end] after `segment`; returns the values of tokens they predict, from `start` on."""
    ((hidden, segment),) = body.extend([(segment, ids[position:end])])
    first = max(start - 1, position)
    if first >= end:
        return [], segment
    logits = body.logits(hidden[first - position :].contiguous()).float()  # (tokens scored, vocab)
    targets = torch.tensor(ids[first + 1 : end + 1], device=logits.device)
    return read(torch.log_softmax(logits, -1), targets), segment


def _common(left: tuple[int, ...], right: tuple[int, ...], limit: int) -> int:
    """Length of the common prefix, at most `limit`."""
    end = min(len(left), len(right), limit)
    if left[:end] == right[:end]:
        return end
    return next(i for i in range(end) if left[i] != right[i])
