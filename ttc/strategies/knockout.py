"""Knockout: n answers meet in pairs, round by round; a judge picks each winner; the last answer left is returned.

Chen et al. 2024, "Simple and Provable Scaling Laws for the Test-Time Compute of Large Language Models" (arXiv
2411.19477): when the model can solve the problem at all and the judge is better than a coin, failure falls
exponentially in n and in k. The judge is the model itself, asked k times per pair, half of them in each order; or a
`scorer` that scores both (`judge` for another model). Cost: n completions, and k short ones for each of n - 1 matches;
answers in one class do not need to meet. Under a budget fewer answers enter (`ttc.session.reserve`). An answer without
a rival in a round advances and plays first in the next. A match without a winner (the paper: either) is lost by an
answer of which the field holds an equal one; else by that which fewer of all n gave, by the longer, by the later path.
So where a judge only prefers a place, the vote decides. An answer without a final loses. Left out: the league form; a
judge hardly better than a coin, which decides matches and is worse than the vote.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TypeAlias

from ttc.answers import same_class
from ttc.choosing.selection import by_length, fallback
from ttc.concurrent import gather
from ttc.config.signatures import drawing
from ttc.config.values import at_least, at_most
from ttc.core import Answer, Candidate, Completion, Message, Path, Problem, Prompt, Scorer
from ttc.scorers.judge import compare, verdict
from ttc.session.reserve import Stages
from ttc.session.session import MAX_SAMPLES, Session, check_n

_POINTS = {"A": 1.0, "B": -1.0}


@drawing(asks=lambda n, k: (k * max(n - 1, 0), 2))
async def knockout(
    problem: Problem, session: Session, *, n: int = 8, k: int = 2, scorer: Scorer | None = None
) -> Answer:
    """Return the answer that wins its matches.

    Args:
        problem: the question.
        session: the metered engine.
        n: answers that enter.
        k: comparisons of each pair by the model itself.
        scorer: compares in the model's place; the higher score wins.

    Raises:
        ConfigError: n or k < 1, or n > 1 at temperature 0.
    """
    check_n("knockout", n, session.sampling)
    at_least("knockout", 1, k=k)
    at_most("knockout", MAX_SAMPLES, k=k)
    candidates: list[Candidate] = []
    field: list[Candidate] = []
    stages = Stages(session, session.render(), n, num_questions=lambda num: k * max(num - 1, 0), shown=2, scorer=scorer)
    match = _Match(session, stages, scorer)
    while stage := await stages.draw():
        match.texts |= {candidate.path: whole for candidate, whole in stage}
        candidates += [candidate for candidate, _ in stage]
        field += [candidate for candidate, _ in stage if candidate.final is not None]
        while len(field) > 1:
            pairs = list(zip(field[::2], field[1::2], strict=False))
            leads = await match.leads(pairs, stages.times(len(field) - 1, k))
            waiting = field[2 * len(pairs) :]  # an answer without a rival plays first in the next round
            field = waiting + _winners(session, pairs, leads, waiting, candidates)
    return session.answer(field[0] if field else fallback(candidates), candidates)


Pair: TypeAlias = tuple[Candidate, Candidate]


class _Match:
    """Plays the matches of a round."""

    def __init__(self, session: Session, stages: Stages, scorer: Scorer | None) -> None:
        self._session, self._stages, self._scorer = session, stages, scorer
        self.texts: dict[Path, Prompt] = {}
        """The whole path of each answer, which a scorer reads."""

    async def leads(self, pairs: Sequence[Pair], k: int) -> list[float]:
        """By how much the first of each pair leads; 0 for equal answers, and without enough budget or context."""
        key = self._session.key
        rivals = [pair for pair in pairs if not same_class(key(pair[0].final or ""), key(pair[1].final or ""))]
        leads = dict(zip(rivals, await self._leads(rivals, k), strict=True))
        return [leads.get(pair, 0.0) for pair in pairs]

    async def _leads(self, pairs: Sequence[Pair], k: int) -> list[float]:
        """By how much the first of each pair leads."""
        if self._scorer is None:
            return await self._asked(pairs, k)
        return await gather(self._scored(pair, self._scorer) for pair in pairs)

    async def _scored(self, pair: Pair, scorer: Scorer) -> float:
        one, other = await self._session.score(scorer, [self.texts[candidate.path] for candidate in pair])
        return 0.0 if one.value is None or other.value is None else one.value - other.value

    async def _asked(self, pairs: Sequence[Pair], k: int) -> list[float]:
        """Ask k times about each, the odd ones in the other order.

        The questions are below the first answer's path, at the number of the second one, so that two answers are
        compared by the same draws whatever n is.
        """
        orders = range(min(k, 2))
        questions = [
            (self._question(pair, order), range(len(range(order, k, 2)))) for pair in pairs for order in orders
        ]
        replies = await self._stages.ask(questions)
        votes = [self._votes(prompt, reply) for (prompt, _), reply in zip(questions, replies, strict=True)]
        return [votes[at] - sum(votes[at + 1 : at + len(orders)]) for at in range(0, len(votes), len(orders))]

    def _question(self, pair: Pair, order: int) -> Prompt:
        first, second = pair
        question = compare(self._session.problem.messages, first.text.strip(), second.text.strip())
        text = (question.one, question.other)[order]
        return self._session.ask((Message("user", text),), (*first.path, second.path[-1], order))

    def _votes(self, prompt: Prompt, completions: Sequence[Completion]) -> float:
        """Votes for the answer shown first, minus those for the other."""
        letters = (verdict(self._session.split(prompt.then(one)), one.finish_reason) for one in completions)
        return sum(_POINTS.get(letter or "", 0.0) for letter in letters)


def _winners(
    session: Session,
    pairs: Sequence[Pair],
    leads: Sequence[float],
    waiting: Sequence[Candidate],
    voters: Sequence[Candidate],
) -> list[Candidate]:
    """Who goes on from each match, one after another, so that a class does not lose its last two answers at once."""
    field = [*waiting, *chain.from_iterable(pairs)]

    def count(one: Candidate, among: Sequence[Candidate]) -> int:
        finals = (other.final for other in among if other.final is not None)
        return sum(same_class(session.key(one.final or ""), session.key(final)) for final in finals)

    def rank(one: Candidate) -> tuple[int, ...]:
        return (count(one, field) > 1, -count(one, voters), *by_length(one))

    winners: list[Candidate] = []
    for pair, lead in zip(pairs, leads, strict=True):
        winner = pair[lead < 0] if lead else min(pair, key=rank)
        winners.append(winner)
        field.remove(pair[winner is pair[0]])
    return winners
