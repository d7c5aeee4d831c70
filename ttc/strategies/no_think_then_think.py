"""No think, then think: sample answers without thinking; only if they disagree, sample with thinking.

Ma et al. 2025, "Reasoning Models Can Be Effective Without Thinking" (arXiv 2504.09858) for the cheap half; escalation
on disagreement as in cascades (Yue et al. 2023, "Large Language Model Cascades with Mixture of Thought", arXiv
2310.03094). Cost: n short completions, and m long ones for the problems that escalate; all are on the ledger. When
thinking gives no answer at all, the cheap vote stands. Where tokens are few, the first thought is ended in time for its
answer, and no further one begins that the rest would not pay for. Ties, abstentions: see `ttc.choosing.selection`.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ttc.choosing.selection import fallback, tally, vote
from ttc.config.values import above, at_most
from ttc.core import Answer, Candidate, Problem
from ttc.errors import ConfigError
from ttc.session.meter import Cost
from ttc.session.session import MAX_SAMPLES, Session, check_n
from ttc.session.thinking import Thinking


async def no_think_then_think(
    problem: Problem, session: Session, *, n: int = 4, m: int = 4, agreement: float = 0.75
) -> Answer:
    """Return the vote of n samples without thinking, or of m with thinking if those did not agree.

    Args:
        problem: the question.
        session: the metered engine.
        n: samples without thinking.
        m: samples with thinking, if they are needed.
        agreement: share of the n that must give one answer; samples without an answer disagree.

    Raises:
        ConfigError: n or m < 1, agreement outside (0, 1], several samples at temperature 0, thinking that is off,
            or a model that is asked the same with thinking and without.
    """
    check_n("no_think_then_think", n, session.sampling)
    check_n("no_think_then_think", m, session.sampling, "m")
    above("no_think_then_think", 0, agreement=agreement)
    at_most("no_think_then_think", 1, agreement=agreement)
    if session.thinking.template is False:
        raise ConfigError(
            "no_think_then_think thinks where its samples disagree, and thinking is off: ask for majority"
        )
    off = Thinking(mode="off")
    on = session.thinking if session.thinking.template else replace(session.thinking, mode="on")
    ids = session.render(off).token_ids
    if ids is not None and ids == session.render(on).token_ids:
        raise ConfigError(
            f"no_think_then_think: {session.capabilities.model} is asked the same with thinking and without, as its "
            "chat template has no switch: ask for majority, or make a copy that thinks: ttc train adapt MODEL --out DIR"
        )
    cheap = await _sample(session, off, range(n))
    votes = tally(cheap, session.key)
    if votes and votes[0] / n >= agreement:
        return session.answer(vote(cheap, session.key), cheap, "agreed")
    careful = await _careful(session, on, m, 1 + max((candidate.num_tokens for candidate in cheap), default=0))
    candidates = [*cheap, *careful]
    leader = vote(careful, session.key) or vote(cheap, session.key) or fallback(candidates)
    return session.answer(leader, candidates, "escalated")


async def _careful(session: Session, on: Thinking, m: int, answer_tokens: int) -> list[Candidate]:
    """Samples with thinking; where the tokens may not be enough, the first leaves some for its answer.

    They are the same ones whatever n is. After the first, only as many follow as the rest pays for.
    """
    numbers = range(MAX_SAMPLES, MAX_SAMPLES + m)
    model, left = session.capabilities, session.pays_for(Cost(tokens=1))
    if left >= m * session.sampling.max_tokens:
        return await _sample(session, on, numbers)
    cap = int(left) - answer_tokens
    if cap < 1:
        session.narrow()
        return []
    is_capped = on.at_cap == "stop" or not (model.think_close and model.token_ids) or cap >= (on.max_tokens or math.inf)
    first = on if is_capped else replace(on, max_tokens=cap, min_tokens=min(on.min_tokens, cap))
    samples = await _sample(session, first, numbers[:1])
    length = max((sample.num_tokens for sample in samples), default=1)
    more = int(min(session.pays_for(Cost(tokens=length)), m - 1))
    if more < m - 1:
        session.narrow()
    return samples + await _sample(session, on, numbers[1 : 1 + more])


async def _sample(session: Session, thinking: Thinking, draws: range) -> list[Candidate]:
    prompt = session.render(thinking)
    completions = await session.generate(prompt, draws, thinking=thinking, least=0)
    return [session.candidate(prompt, completion) for completion in completions]
