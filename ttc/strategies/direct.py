"""Direct: one sample, returned unchanged.

The baseline of every comparison; at temperature 0 it is greedy decoding. Cost: one completion.
"""

from __future__ import annotations

from dataclasses import replace

from ttc.config.signatures import drawing
from ttc.core import Answer, Problem
from ttc.session.session import Session


@drawing(whole=True)
async def direct(problem: Problem, session: Session, *, temperature: float | None = None) -> Answer:
    """Return a single completion.

    Args:
        problem: the question.
        session: the metered engine.
        temperature: overrides the run's; 0 is greedy.
    """
    sampling = session.sampling if temperature is None else replace(session.sampling, temperature=temperature)
    prompt = session.render()
    (completion,) = await session.generate(prompt, 1, sampling=sampling)
    candidate = session.candidate(prompt, completion)
    return session.answer(candidate, [candidate])
