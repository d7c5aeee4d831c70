"""Knockout: n answers meet in pairs, round by round; votes and a judge pick each winner; the last answer is returned.

Chen et al. 2024, "Simple and Provable Scaling Laws for the Test-Time Compute of Large Language Models" (arXiv
2411.19477): when the model can solve the problem at all and the judge is better than a coin, failure falls
exponentially in n and in k. The judge is the model itself, asked k times per pair, half of them in each order; or a
`scorer` that scores both (`judge` for another model).

Unlike there, the votes have a say, since a judge that is right in 55 of 100 pairs makes the paper's winner far worse
than the vote. Where one answer has `trust` times the votes of the other, it wins unasked. Else a unanimous judge wins,
and a divided one weighs as much less: votes * trust^(share of verdicts for it - share against it). So `trust=2` is
hardly ever worse than the vote, `trust=1e9` is the paper. A match without a winner is lost by an answer of which the
field holds an equal one; else by that which fewer of all n gave, by the longer, by the later path. So where a judge
only prefers a place, the vote decides.

Cost: n completions, and k short ones for each of up to n - 1 matches; answers in one class do not need to meet. Under a
budget fewer answers enter (`ttc.session.reserve`). An answer without a rival in a round advances and plays first in the
next. An answer without a final loses. Left out: the league form.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias

from ttc.choosing.selection import Key, by_length, class_of_each, fallback
from ttc.concurrent import gather
from ttc.config.signatures import drawing
from ttc.config.values import above, at_least, at_most, finite
from ttc.core import Answer, Candidate, Completion, Message, Path, Problem, Prompt, Scorer
from ttc.scorers.judge import compare, verdict
from ttc.session.reserve import Stages
from ttc.session.session import MAX_SAMPLES, Session, check_n

_POINTS = {"A": 1.0, "B": -1.0}


@drawing(asks=lambda n, k: (k * max(n - 1, 0), 2))
async def knockout(
    problem: Problem, session: Session, *, n: int = 8, k: int = 2, trust: float = 2.0, scorer: Scorer | None = None
) -> Answer:
    """Return the answer that wins its matches.

    Args:
        problem: the question.
        session: the metered engine.
        n: answers that enter.
        k: comparisons of each pair by the model itself.
        trust: a unanimous judge outweighs up to so many times the votes; 1e9: votes only break ties.
        scorer: compares in the model's place; the higher score wins.

    Raises:
        ConfigError: n or k < 1, trust <= 1, or n > 1 at temperature 0.
    """
    check_n("knockout", n, session.sampling)
    at_least("knockout", 1, k=k)
    at_most("knockout", MAX_SAMPLES, k=k)
    above("knockout", 1, trust=trust)
    finite("knockout", trust=trust)
    candidates: list[Candidate] = []
    field: list[Candidate] = []
    stages = Stages(session, session.render(), n, num_questions=lambda num: k * max(num - 1, 0), shown=2, scorer=scorer)
    match = _Match(session, stages, scorer, trust)
    while stage := await stages.draw():
        match.texts |= {candidate.path: whole for candidate, whole in stage}
        candidates += [candidate for candidate, _ in stage]
        field += [candidate for candidate, _ in stage if candidate.final is not None]
        voted = _Votes.of(candidates, session.key)
        while len(field) > 1:
            pairs = list(zip(field[::2], field[1::2], strict=False))
            odds = await match.odds(pairs, voted, stages.times(len(field) - 1, k))
            waiting = field[2 * len(pairs) :]  # an answer without a rival plays first in the next round
            field = waiting + _winners(pairs, odds, waiting, voted)
    return session.answer(field[0] if field else fallback(candidates), candidates)


Pair: TypeAlias = tuple[Candidate, Candidate]


@dataclass(frozen=True, slots=True)
class _Votes:
    """How many of all answers so far are in each class, and the class of each by its path."""

    classes: Mapping[Path, str]
    counts: Counter[str]

    @classmethod
    def of(cls, candidates: Sequence[Candidate], key: Key) -> _Votes:
        classes = class_of_each(candidates, key)
        return cls(classes, Counter(classes.values()))

    def among(self, one: Candidate, field: Sequence[Candidate]) -> int:
        """How many in the field give the same answer."""
        return sum(self.classes[one.path] == self.classes[other.path] for other in field)

    def given(self, one: Candidate) -> int:
        """How many of all gave this answer."""
        return self.counts[self.classes[one.path]]


class _Match:
    """Plays the matches of a round."""

    def __init__(self, session: Session, stages: Stages, scorer: Scorer | None, trust: float) -> None:
        self._session, self._stages, self._scorer, self._trust = session, stages, scorer, trust
        self.texts: dict[Path, Prompt] = {}
        """The whole path of each answer, which a scorer reads."""

    async def odds(self, pairs: Sequence[Pair], voted: _Votes, k: int) -> list[float]:
        """How many to one the first of each pair is to win; 1 for equal answers, and where the judge does not say."""
        odds = {pair: voted.given(pair[0]) / voted.given(pair[1]) for pair in pairs}
        rivals = [pair for pair in pairs if voted.among(pair[0], pair) == 1]
        contests = [pair for pair in rivals if 1 / self._trust < odds[pair] < self._trust]
        for pair, lead in zip(contests, await self._leads(contests, k), strict=True):
            odds[pair] = odds[pair] * self._trust**lead if lead else 1.0
        return [odds[pair] for pair in pairs]

    async def _leads(self, pairs: Sequence[Pair], k: int) -> list[float]:
        """Share of the verdicts for the first of each pair, less that for the second; a scorer is always unanimous."""
        if self._scorer is None:
            return [lead / k for lead in await self._asked(pairs, k)]
        return await gather(self._scored(pair, self._scorer) for pair in pairs)

    async def _scored(self, pair: Pair, scorer: Scorer) -> float:
        one, other = await self._session.score(scorer, [self.texts[candidate.path] for candidate in pair])
        if one.value is None or other.value is None or one.value == other.value:
            return 0.0
        return 1.0 if one.value > other.value else -1.0

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
    pairs: Sequence[Pair], odds: Sequence[float], waiting: Sequence[Candidate], voted: _Votes
) -> list[Candidate]:
    """Who goes on from each match, one after another, so that a class does not lose its last two answers at once."""
    field = [*waiting, *chain.from_iterable(pairs)]

    def rank(one: Candidate) -> tuple[int, ...]:
        return (voted.among(one, field) > 1, -voted.given(one), *by_length(one))

    winners: list[Candidate] = []
    for pair, odd in zip(pairs, odds, strict=True):
        winner = min(pair, key=rank) if odd == 1 else pair[odd < 1]
        winners.append(winner)
        field.remove(pair[winner is pair[0]])
    return winners
