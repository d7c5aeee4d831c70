"""From a reply of vLLM's to a completion, and to what it costs on the ledger."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ttc.core import Completion, ExtraCompletion, ModelShape, Path, Sampling, Usage
from ttc.engines.vllm.requests import Reply

__all__ = ["completion_of", "draw_usage", "scoring_usage"]


def completion_of(
    path: Path,
    sampling: Sampling,
    reply: Reply,
    usage: Usage,
    eos_ids: Sequence[int],
    decode: Callable[[Sequence[int]], str],
) -> Completion:
    """The draw at `path`; its text leaves the end of sequence out, its ids do not."""
    ids, reason = reply.token_ids, None
    if reply.finish == "stop":
        reason = _stop_reason(ids[-1], sampling, reply.stop, eos_ids)
    told: dict[str, Any] = {
        "path": path,
        "text": decode(ids[:-1] if reason == "eos" else ids),
        "token_ids": ids,
        "finish_reason": reply.finish,
        "stop_reason": reason,
        "logprobs": reply.logprobs,
        "usage": usage,
    }
    return ExtraCompletion(**told, top_logprobs=reply.tops) if reply.tops else Completion(**told)


def _stop_reason(last: int, sampling: Sampling, reported: str | int | None, eos_ids: Sequence[int]) -> str | int | None:
    """An end of sequence wins over a stop id, and that over a stop string which the same token completes."""
    if last in eos_ids:
        return "eos"
    return last if last in sampling.stop_token_ids else reported


def draw_usage(shape: ModelShape | None, length: int, reply: Reply) -> Usage:
    """The ledger's view of one draw after `length` tokens; a prompt counts once its first token is there.

    So it does in vLLM's own counts, which the ledger's columns add up to.
    """
    count = len(reply.token_ids)
    if not count:
        return Usage(calls=1, attempts=1)
    kept = reply.finish != "abort"
    return Usage(
        prompt=length,
        cached=reply.num_cached,
        generated=count if kept else 0,
        overrun=0 if kept else count,
        calls=1,
        attempts=1,
        flops=_flops(shape, length - reply.num_cached, reply.num_cached) + _flops(shape, count - 1, length),
    )


def scoring_usage(shape: ModelShape | None, length: int, reply: Reply) -> Usage:
    """The ledger's view of a request for log-probabilities: all is computed anew, whatever part was asked for."""
    count = len(reply.token_ids)
    if not count:
        return Usage(calls=1, attempts=1)
    return Usage(prompt=length, scored=length, overrun=count, calls=1, attempts=1, flops=_flops(shape, length, 0))


def _flops(shape: ModelShape | None, new: int, before: int) -> float:
    """0 for an architecture whose dimensions are not known."""
    return shape.flops(new, before) if shape is not None and new > 0 else 0.0
