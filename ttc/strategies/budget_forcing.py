"""Budget forcing: cap the thinking with a hand-over, or extend it by replacing its end with "Wait".

Muennighoff et al. 2025, "s1: Simple test-time scaling"; hand-over sentence as in the Qwen3 report. Cost: one
completion; each cut or suppressed end takes one more request over a cached context. Other strategies do not need this
one: all obey the session's thinking control (`--max-thinking`, `--min-thinking`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from ttc.core import Answer, Problem
from ttc.session.session import Session


async def budget_forcing(
    problem: Problem,
    session: Session,
    *,
    max_thinking: int | None = None,
    min_thinking: int | None = None,
    num_waits: int | None = None,
    wait: str | None = None,
    at_cap: Literal["handover", "stop"] | None = None,
    temperature: float | None = None,
) -> Answer:
    """Return one completion whose thinking was kept between two bounds.

    Args:
        problem: the question.
        session: the metered engine; its thinking control applies where a parameter below is absent.
        max_thinking: most tokens inside the think block; then the hand-over sentence follows. The session's cap holds,
            too (0 where its thinking is off): the smaller counts.
        min_thinking: suppress the end of thinking until this many tokens.
        num_waits: suppress the end of thinking exactly this many times (as far as max_thinking leaves room).
        wait: text put in place of a suppressed end.
        at_cap: what follows a cut: the hand-over and an answer, or stop (hard truncation).
        temperature: overrides the run's; 0 is greedy.
    """
    own = session.thinking
    limit = 0 if own.template is False else own.max_tokens
    caps = [cap for cap in (max_thinking, limit) if cap is not None]
    thinking = replace(
        own,
        mode="on",
        max_tokens=min(caps, default=None),
        min_tokens=own.min_tokens if min_thinking is None else min_thinking,
        num_waits=own.num_waits if num_waits is None else num_waits,
        wait=own.wait if wait is None else wait,
        at_cap=own.at_cap if at_cap is None else at_cap,
    )
    session.check_thinking(thinking)
    thinking.check_length(session.sampling.max_tokens)
    sampling = session.sampling if temperature is None else replace(session.sampling, temperature=temperature)
    prompt = session.render(thinking)
    (completion,) = await session.generate(prompt, 1, sampling=sampling, thinking=thinking)
    candidate = session.candidate(prompt, completion)
    return replace(session.answer(candidate, [candidate]), enforced=session.enforced(thinking))
