"""Computing prompts: what the prefix cache does not hold already, in batches of bounded size.

Prompts that share a long uncomputed start with one in the batch wait for it and find it in the cache afterwards. Where
memory runs out, nothing is lost but the batch: whoever calls again with fewer tokens goes on behind what there is.
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

__all__ = ["CHUNK", "Reader", "advance", "chosen", "likeliest", "memory_errors", "score"]

T = TypeVar("T")

CHUNK = 1024
"""Most prompt tokens computed between two decoding steps: bounds how long running draws wait."""

_SHARED_START = 32
"""A prompt that shares at least this many uncached tokens with one being computed waits for it."""


@contextlib.contextmanager
def memory_errors() -> Iterator[None]:
    """Raise MemoryError where memory has run out, which torch's allocators say in ways of their own."""
    try:
        yield
    except RuntimeError as exc:
        if isinstance(exc, torch.OutOfMemoryError) or "can't allocate memory" in str(exc):
            raise MemoryError(str(exc)) from exc
        raise


def advance(jobs: Sequence[Job], body: Body, tree: PrefixTree, budget: int = CHUNK) -> list[Job]:
    """Compute up to `budget` missing tokens of `jobs`; return those of which at most the last token is missing.

    The last token comes with the others where more than it is missing and the body allows it, and the job gets its
    logits. They are kept with the prompt: whoever asks for it again draws from the very same. Elsewhere a decoding step
    is to feed the last token, which costs a step of its own where nothing else runs.
    """
    ready, work = _next_parts(jobs, body, tree, budget)
    return ready + (_compute(work, body, tree) if work else [])


_Work: TypeAlias = "list[tuple[Job, tuple[int, ...]]]"
"""Jobs with the tokens that are computed next."""


def _next_parts(jobs: Sequence[Job], body: Body, tree: PrefixTree, budget: int) -> tuple[list[Job], _Work]:
    """Give jobs what the cache holds of them; return those that miss no more, and what to compute of others."""
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
        if match.length >= job.length:
            job.segment, job.length = match
        elif job.segment is not None:
            job.segment = job.segment.upto(job.length)
        start = job.length
        if start >= goal:
            ready.append(job)
        elif not any(_common(job.ids, other.ids, goal) >= start + _SHARED_START for other, _ in work):
            part = job.ids[start : min(goal + body.ends_prompts, start + budget)]
            budget -= len(part)
            work.append((job, part))
    return ready, work


def _compute(work: _Work, body: Body, tree: PrefixTree) -> list[Job]:
    """Compute parts of prompts and keep them in the cache; return the jobs that miss no more."""
    ready: list[Job] = []
    for (job, part), (hidden, segment) in zip(work, body.extend([(j.segment, p) for j, p in work]), strict=True):
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
"""What is read of each of several tokens, from log-probabilities (T, V) and the ids that came (T)."""


def chosen(logprobs: torch.Tensor, ids: torch.Tensor) -> list[float]:
    """Reads the log-probability of each token."""
    values: list[float] = logprobs.gather(1, ids[:, None])[:, 0].tolist()
    return values


def likeliest(k: int) -> Reader[dict[int, float]]:
    """Reads the `k` likeliest tokens, fewer in a smaller vocabulary, and the one that came."""

    def read(logprobs: torch.Tensor, ids: torch.Tensor) -> list[dict[int, float]]:
        values, others = logprobs.topk(min(k, logprobs.shape[1]), -1)
        rows = zip(ids.tolist(), chosen(logprobs, ids), others.tolist(), values.tolist(), strict=True)
        return [{token: value} | dict(zip(best, bests, strict=True)) for token, value, best, bests in rows]

    return read


def score(ids: tuple[int, ...], start: int, body: Body, tree: PrefixTree, read: Reader[T]) -> tuple[list[T], Usage]:
    """What `read` tells of each of ids[start:] (start >= 1) given what precedes it, and what computing that cost.

    Raises EngineError where there is no memory for a page of tokens.
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
    """Compute ids[position:end] behind `segment`: what is read of those from `start` on that they predict."""
    ((hidden, segment),) = body.extend([(segment, ids[position:end])])
    first = max(start - 1, position)
    if first >= end:
        return [], segment
    logits = body.logits(hidden[first - position :].contiguous()).float()  # (tokens scored, vocab)
    targets = torch.tensor(ids[first + 1 : end + 1], device=logits.device)
    return read(torch.log_softmax(logits, -1), targets), segment


def _common(left: tuple[int, ...], right: tuple[int, ...], limit: int) -> int:
    """Length of the common start, at most `limit`."""
    end = min(len(left), len(right), limit)
    if left[:end] == right[:end]:
        return end
    return next(i for i in range(end) if left[i] != right[i])
