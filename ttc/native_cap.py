"""An engine's own cap on thinking, where it was proven exact: asked for, counted again, and cut where it is not held.

Engines force the bare marker, so their cap stands in for continuation only where that is the hand-over. What comes back
is counted on ids like everything else: a thought that is too long is cut by the toolkit, and one that is opened again
in the answer goes on under its control. Cost: one request per draw instead of one more per cut. Left out: draws that
continue a thought, minimum lengths.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Literal, TypeAlias

from ttc.core import Capabilities, Completion, Prompt, Sampling
from ttc.extras import ExtraSampling, extras_of
from ttc.session.think_blocks import split

__all__ = ["Action", "judge_native", "native_sampling"]

Action: TypeAlias = Literal["done", "continue", "handover", "wait"]
"""What comes after a segment of a draw under thinking control."""


def native_sampling(
    prompt: Prompt, sampling: Sampling, cap: int, handover: tuple[int, ...], capabilities: Capabilities
) -> ExtraSampling | None:
    """`sampling` with `cap` for the engine to hold; None where it cannot, and the toolkit does."""
    fresh = prompt.think_state == "open" and not prompt.generated_ids
    if "thinking_cap" not in extras_of(capabilities) or not fresh or handover != capabilities.think_close:
        return None
    known = {field.name: getattr(sampling, field.name) for field in fields(sampling)}
    return ExtraSampling(**{**known, "thinking_cap": cap})


def judge_native(
    segment: Completion, cap: int, capabilities: Capabilities
) -> tuple[int, Action, tuple[int, int] | None]:
    """How many ids to keep of a draw whose thought the engine was to cap, what comes next, and the span it forced."""
    close, ids = capabilities.think_close, segment.token_ids[: len(segment.token_ids) - segment.num_eos]
    parts = split(ids, True, capabilities)
    first = next((at for at in range(len(ids)) if ids[at : at + len(close)] == close), len(ids))
    if first > cap:
        return cap, "handover", None
    forced = (cap, cap + len(close)) if first == cap < len(ids) else None
    if len(parts.thinking) > cap:
        return min(first + len(close), len(ids)), "continue", forced
    return len(segment.token_ids), "done", forced
