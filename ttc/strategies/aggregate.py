"""Aggregate (recursive self-aggregation): a population of answers is combined, k at a time, for several rounds.

Venkatraman et al. 2025, "Recursive Self-Aggregation Unlocks Deep Thinking in Large Language Models" (arXiv 2509.26626).
Each round makes n new answers, each from a prompt that shows k random answers of the previous round and asks for a
better one. The last round votes; of classes that are equal there, the one that more answers of all rounds gave wins.
Cost: n * (rounds + 1) completions, and n * rounds prompts that hold k answers each (their thinking left out): no
verifier, but the most expensive strategy here; under a budget fewer answers and rounds. Ties, abstentions: see
`ttc.choosing.selection`.

With `of` the first population consists of the candidates of one run of another strategy, such as the leaves of a tree.
An answer's path is below the first answer that it was shown, which tells its origin. Left out: the training of the
aggregation.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from ttc.choosing.selection import fallback, vote
from ttc.config.signatures import drawing
from ttc.config.values import at_least, at_most
from ttc.core import Answer, Candidate, Message, Problem, Prompt, Strategy
from ttc.session.meter import Cost
from ttc.session.reserve import SPARE, ask_each, draw_cost
from ttc.session.samples import run_inner
from ttc.session.session import Session, check_n

_ASK = """Here are {count} attempts at the problem above. Some of them may be wrong. Combine what is right in them, \
correct what is not, and give one solution of your own with its final answer.

{attempts}"""


@drawing(asks=lambda n, k, rounds: (n * rounds, k))
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
    if of is None:
        population, width, num_sure = await _first(session, n, k, rounds)
    else:
        population, width, num_sure = await _candidates_of(session, of), n, rounds
    candidates = list(population)
    leader = vote(population, session.key)
    for number in range(rounds):
        if len(population) < (width if number or of is None else 1):
            break
        if number >= num_sure and session.pays_for(_combining(session, population, k) * width) < 1:
            session.narrow()
            break
        attempts_of = [_shown(session, population, k, number, place) for place in range(width)]
        free = [session.next_draw(attempts[0].path) for attempts in attempts_of]  # `of` may have drawn there as well
        draws = [range(start + place, start + place + 1) for place, start in enumerate(free)]
        population = await _improve(session, list(zip(attempts_of, draws, strict=True)))
        candidates += population
        leader = _leader(session, population, candidates) or leader
    return session.answer(leader or fallback(candidates), candidates)


def _leader(session: Session, population: Sequence[Candidate], candidates: Sequence[Candidate]) -> Candidate | None:
    """The vote of a round; of classes that are equal there, the one that more answers of all rounds gave."""
    paths, share = {candidate.path for candidate in population}, 1 / (len(candidates) + 1)
    if all(candidate.final is None for candidate in population):
        return None
    return vote(candidates, session.key, lambda candidate: (candidate.path in paths) + share)


async def _candidates_of(session: Session, of: Strategy) -> list[Candidate]:
    return list((await run_inner(session, of, 0, "aggregate.of")).candidates)


async def _first(session: Session, n: int, k: int, rounds: int) -> tuple[list[Candidate], int, int]:
    """The first population, the size of each, and for how many rounds the rest of the budget is sure to be enough.

    Under a budget the first sample shows what one costs. Rounds go before width, as long as an aggregation is shown k
    answers; a budget for less is spent on samples.
    """
    prompt, longest = session.render(), session.sampling.max_tokens
    everything = draw_cost(session, prompt, longest) + draw_cost(session, prompt, longest, k) * rounds
    if session.pays_for(everything * n) >= 1:
        spare = SPARE if rounds else 0.0
        completions, num_sure = await session.generate(prompt, n, spare=spare), rounds
        width = n if len(completions) < k else len(completions)  # slow ones may have been cut
    else:
        completions = await session.generate(prompt, 1)
        length = max(completions[0].usage.generated, 1)
        sample, combining = draw_cost(session, prompt, length), draw_cost(session, prompt, length, k)
        plans = product(range(rounds, 0, -1), range(n, k - 1, -1))
        costs = ((sample * (width - 1) + combining * (width * num), num, width) for num, width in plans)
        num_sure, width = next(((num, width) for cost, num, width in costs if session.pays_for(cost) >= 1), (0, n))
        if width < n:
            session.narrow()
        completions += await session.generate(prompt, range(1, width), least=0)
    return [session.candidate(prompt, completion) for completion in completions], width, num_sure


def _combining(session: Session, population: Sequence[Candidate], k: int) -> Cost:
    """What one aggregation takes that is as long as the answers that it is shown."""
    return draw_cost(session, session.render(), max(candidate.num_tokens for candidate in population), k)


def _shown(session: Session, population: Sequence[Candidate], k: int, number: int, place: int) -> list[Candidate]:
    """Draw k members, or all if there are fewer, without replacement, at random by this round and place."""
    pool = sorted(population, key=lambda candidate: candidate.path)
    return [pool.pop(int(session.chance("aggregate", number, place, i) * len(pool))) for i in range(min(k, len(pool)))]


async def _improve(session: Session, places: Sequence[tuple[Sequence[Candidate], range]]) -> list[Candidate]:
    """Make one answer out of several at each place, as that draw below the first; none where there is no room."""
    questions = [(_question(session, attempts), draws) for attempts, draws in places]
    replies = await ask_each(session, questions)
    return [
        session.candidate(prompt, completion)
        for (prompt, _), reply in zip(questions, replies, strict=True)
        for completion in reply
    ]


def _question(session: Session, attempts: Sequence[Candidate]) -> Prompt:
    texts = [f"Attempt {i}:\n{attempt.text.strip()}" for i, attempt in enumerate(attempts, start=1)]
    question = _ASK.format(count=len(texts), attempts="\n\n".join(texts))
    messages = (*session.problem.messages[:-1], _joined(session.problem.messages[-1], question))
    return session.ask(messages, attempts[0].path)


def _joined(message: Message, text: str) -> Message:
    return Message(message.role, f"{message.content}\n\n{text}")
