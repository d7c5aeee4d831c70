"""Test, on request, whether vLLM's own thinking budget (`thinking_token_budget`) is exact for this model.

The toolkit enforces budgets by continuation, exactly on token ids on every engine. vLLM's own cap saves one request per
cut, and can be used where the hand-over is the bare marker: in vLLM 0.32, a longer forced text is also inserted into
the answer after a thought that ended by itself. The cap is exact if a cut comes after exactly the budget, also when a
user wrote a marker, and if a thought that ends by itself within its budget is not changed. Only prompts that end inside
a block are tested: elsewhere a marker in the user's text opens one. Cost: a few greedy requests.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from ttc.core import Message, Prompt
from ttc.engines.shared.tokens import TokenEngine
from ttc.session.thinking import split

Capped: TypeAlias = Callable[[Prompt, int, int | None], Awaitable[tuple[int, ...]]]
"""(prompt, max_tokens, vLLM's own thinking budget) -> ids of a greedy draw."""

QUESTION = "Compute 12+30*2-7."

FORGED = f"{QUESTION} What does <think> mean?"

CAPS = (1, 3, 8)

AFTER = 24
"""Tokens to check after a cap."""

LONGEST = 512
"""Tokens within which a thought must end by itself for the second test."""


@dataclass(frozen=True, slots=True)
class CapReport:
    """`exact` if no test failed; each failure is one sentence. `num_tests` is the number of tests that applied."""

    num_tests: int
    failures: tuple[str, ...]

    @property
    def exact(self) -> bool:
        """Whether vLLM's own cap could replace continuation for this model."""
        return self.num_tests > 0 and not self.failures


async def check_cap(engine: TokenEngine, capped: Capped) -> CapReport:
    """Run the tests; tests that do not apply to this model are left out."""
    results = [await _cuts(engine, capped, question) for question in (QUESTION, FORGED)]
    results.append(await _natural_end(engine, capped))
    failures = tuple(failure for _, sentences in results for failure in sentences)
    return CapReport(sum(number for number, _ in results), failures)


async def _cuts(engine: TokenEngine, capped: Capped, question: str) -> tuple[int, list[str]]:
    """A cut must come after exactly the budget, with the marker; markers in user text must not count."""
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
    """A thought that ends at the budget or just below must leave the draw unchanged."""
    prompt, free = await _free(engine, capped, QUESTION)
    if split(free, prompt.think_state == "open", engine.capabilities).inside:
        return 0, []
    natural, failures = _num_thinking(engine, prompt, free), []
    # at the exact length and just above it: neither may change a token
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
