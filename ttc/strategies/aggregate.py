"""Aggregate (recursive self-aggregation): a population of answers is combined, k at a time, for several rounds.

Venkatraman et al. 2025, "Recursive Self-Aggregation Unlocks Deep Thinking in Large Language Models" (arXiv 2509.26626).
Each round makes n new answers, each from a prompt that shows k random answers of the previous round and asks for a
better one. The last round votes. Cost: n * (rounds + 1) completions, and n * rounds prompts that hold k answers each
(their thinking left out): no verifier, but the most expensive strategy here. Ties, abstentions: see
`ttc.choosing.selection`.

With `of` the first population consists of the candidates of one run of another strategy, such as the leaves of a tree.
An answer's path is below the first answer that it was shown, which tells its origin. Left out: the training of the
aggregation.
"""

from __future__ import annotations

from collections.abc import Sequence

from ttc.choosing.selection import fallback, vote
from ttc.concurrent import gather
from ttc.config.values import at_least, at_most
from ttc.core import Answer, Candidate, Message, Problem, Strategy
from ttc.session.draws import check_n
from ttc.session.samples import run_inner
from ttc.session.session import Session

_ASK = """Here are {count} attempts at the problem above. Some of them may be wrong. Combine what is right in them, \
correct what is not, and give one solution of your own with its final answer.

{attempts}"""


async def aggregate(
    problem: Problem, session: Session, *, n: int = 8, k: int = 3, rounds: int = 2, of: Strategy | None = None
) -> Answer:
    """Return the majority answer of the last round that gave one.

    Args:
        problem: the question.
        session: the metered engine.
        n: size of the population.
        k: answers that each aggregation is shown.
        rounds: rounds of aggregation; 0 is a plain vote.
        of: the strategy whose candidates are the first population, however many; absent: n draws.

    Raises:
        ConfigError: n < 1, k outside 1..n, rounds < 0, or n > 1 at temperature 0; or what `of` refuses.
    """
    check_n("aggregate", n, session.sampling)
    at_least("aggregate", 1, k=k)
    at_most("aggregate", n, "n", k=k)
    at_least("aggregate", 0, rounds=rounds)
    population = await _first(session, n, of)
    candidates = list(population)
    leader = vote(population, session.key)
    for number in range(rounds):
        if len(population) < (n if number or of is None else 1):
            break
        attempts_of = [_shown(session, population, k, number, place) for place in range(n)]
        free = [session.next_draw(attempts[0].path) for attempts in attempts_of]  # `of` may have drawn there as well
        answers = await gather(
            _improve(session, attempts, free[place] + place) for place, attempts in enumerate(attempts_of)
        )
        population = [candidate for candidate in answers if candidate is not None]
        candidates += population
        leader = vote(population, session.key) or leader
    return session.answer(leader or fallback(candidates), candidates)


async def _first(session: Session, n: int, of: Strategy | None) -> list[Candidate]:
    if of is not None:
        return list((await run_inner(session, of, 0, "aggregate.of")).candidates)
    prompt = session.render()
    return [session.candidate(prompt, completion) for completion in await session.generate(prompt, n)]


def _shown(session: Session, population: Sequence[Candidate], k: int, number: int, place: int) -> list[Candidate]:
    """Draw k members, or all if there are fewer, without replacement, at random by this round and place."""
    pool = sorted(population, key=lambda candidate: candidate.path)
    return [pool.pop(int(session.chance("aggregate", number, place, i) * len(pool))) for i in range(min(k, len(pool)))]


async def _improve(session: Session, attempts: Sequence[Candidate], draw: int) -> Candidate | None:
    """Make one answer out of several, as this draw below the first; None if budget or context leave no room."""
    texts = [f"Attempt {i}:\n{attempt.text.strip()}" for i, attempt in enumerate(attempts, start=1)]
    question = _ASK.format(count=len(texts), attempts="\n\n".join(texts))
    messages = (*session.problem.messages[:-1], _joined(session.problem.messages[-1], question))
    prompt = session.ask(messages, attempts[0].path)
    completions = await session.generate(prompt, range(draw, draw + 1), least=0)
    return session.candidate(prompt, completions[0]) if completions else None


def _joined(message: Message, text: str) -> Message:
    return Message(message.role, f"{message.content}\n\n{text}")
