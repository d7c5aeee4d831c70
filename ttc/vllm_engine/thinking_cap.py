"""Is vLLM's own thinking budget (`thinking_token_budget`) exact for this model? A test on request, not a default.

The toolkit holds budgets by continuation, exact on token ids on every engine. vLLM's own cap would save one request per
cut. It is exact when three things hold: a cut comes after exactly the budget; a thought that ends by itself is left
alone, with no hand-over forced into the answer afterwards; a marker that a user wrote opens nothing. In vLLM 0.32 the
second fails whenever the forced text is more than the bare marker, so continuation stays. Cost: a few greedy requests.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from ttc.core import Message, Prompt
from ttc.thinking import QWEN3_HANDOVER, split

if TYPE_CHECKING:
    from ttc.vllm_engine.engine import VllmEngine

__all__ = ["CapReport", "check_cap"]

Capped: TypeAlias = Callable[[Prompt, int, int | None], Awaitable[tuple[int, ...]]]
"""(prompt, max_tokens, vLLM's own thinking budget) -> ids of a greedy draw."""

QUESTION = "Compute 12+30*2-7."
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


async def check_cap(engine: VllmEngine, capped: Capped) -> CapReport:
    """Run the three tests; a test that this model gives no occasion for is left out."""
    results = [await _cuts(engine, capped), await _natural_end(engine, capped), await _users_marker(engine, capped)]
    failures = tuple(failure for _, found in results for failure in found)
    return CapReport(sum(number for number, _ in results), failures)


async def _cuts(engine: VllmEngine, capped: Capped) -> tuple[int, list[str]]:
    """Cut after exactly the budget, then the hand-over."""
    prompt, free = await _free(engine, capped)
    handover = engine.encode(engine.capabilities.handover or QWEN3_HANDOVER)
    failures: list[str] = []
    tests = [cap for cap in CAPS if _num_thinking(engine, prompt, free) > cap]
    for cap in tests:
        got = await capped(prompt, cap + len(handover) + AFTER, cap)
        wanted = free[:cap] + handover
        if got[: len(wanted)] != wanted:
            text = engine.decode(got[: len(wanted)])
            failures.append(f"a cap of {cap} did not cut after {cap} tokens: {text!r}")
    return len(tests), failures


async def _natural_end(engine: VllmEngine, capped: Capped) -> tuple[int, list[str]]:
    """A thought that ends just below the budget must leave the draw as it was."""
    prompt, free = await _free(engine, capped)
    if split(free, prompt.think_state == "open", engine.capabilities).inside:
        return 0, []
    cap = _num_thinking(engine, prompt, free) + 2
    got = await capped(prompt, len(free), cap)
    if got == free:
        return 1, []
    at = next((i for i, (a, b) in enumerate(zip(got, free, strict=False)) if a != b), min(len(got), len(free)))
    return 1, [f"a natural end below the cap was not left alone: {engine.decode(got[at : at + AFTER])!r} was forced"]


async def _users_marker(engine: VllmEngine, capped: Capped) -> tuple[int, list[str]]:
    """A marker inside the user's words must not count as an open block."""
    prompt = engine.render([Message("user", f"{QUESTION} What does <think> mean?")], False)
    free = await capped(prompt, AFTER, None)
    got = await capped(prompt, AFTER, 2)
    return 1, [] if got == free else ["a <think> in the user's words was taken for an open block"]


async def _free(engine: VllmEngine, capped: Capped) -> tuple[Prompt, tuple[int, ...]]:
    prompt = engine.render([Message("user", QUESTION)], True)
    room = engine.capabilities.max_context - len(prompt.token_ids or ()) - 1
    return prompt, await capped(prompt, min(LONGEST, room), None)


def _num_thinking(engine: VllmEngine, prompt: Prompt, ids: tuple[int, ...]) -> int:
    return len(split(ids, prompt.think_state == "open", engine.capabilities).thinking)
