"""Majority (self-consistency): draw n completions and return the most frequent final answer.

Wang et al. 2022, "Self-Consistency Improves Chain of Thought Reasoning in Language Models". Cost: n completions, no
scorer; the prompt is computed once where the engine caches prefixes. Abstentions never win. A tie goes to the class
with the shortest path, then to the first in path order (`ttc.choosing.selection`). With `of` the voters are n runs of
another strategy: a vote over trees.
"""

from __future__ import annotations

from ttc.choosing.selection import fallback, vote
from ttc.config.signatures import drawing
from ttc.core import Answer, Candidate, Problem, Strategy
from ttc.session.samples import run_samples
from ttc.session.session import Session, check_n


@drawing(whole=True)
async def majority(problem: Problem, session: Session, *, n: int = 16, of: Strategy | None = None) -> Answer:
    """Return the answer of the largest equivalence class among n samples.

    Args:
        problem: the question.
        session: the metered engine.
        n: number of samples.
        of: the strategy that makes each sample; absent: a draw.

    Raises:
        ConfigError: n < 1, or n > 1 at temperature 0, where all draws are equal; or what `of` refuses.
    """
    check_n("majority", n, session.sampling)
    candidates = await (_draws(session, n) if of is None else run_samples(session, of, n, "majority.of"))
    leader = vote(candidates, session.key) or fallback(candidates)
    return session.answer(leader, candidates)


async def _draws(session: Session, n: int) -> list[Candidate]:
    prompt = session.render()
    return [session.candidate(prompt, completion) for completion in await session.generate(prompt, n)]
