"""Knockout: n answers meet in pairs, round by round; a judge picks each winner; the last answer left is returned.

Chen et al. 2024, "Simple and Provable Scaling Laws for the Test-Time Compute of Large Language Models" (arXiv
2411.19477): when the model can solve the problem at all and the judge is better than a coin, failure falls
exponentially in n and in k. The judge is the model itself, asked k times per pair, half of them in each order; or a
`scorer` that scores both (`judge` for another model). Cost: n completions, and k short ones for each of n - 1 matches;
answers in one class do not need to meet. An answer without a rival in a round advances and plays first in the next. A
match without a winner goes to the shorter answer, then to the first path. An answer without a final loses. Left out:
the league form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ttc.answers import same_class
from ttc.choosing.selection import by_length, fallback
from ttc.concurrent import gather
from ttc.config.values import at_least, at_most
from ttc.core import Answer, Candidate, Completion, Message, Path, Problem, Prompt, Scorer
from ttc.scorers.judge import compare, verdict
from ttc.session.draws import MAX_SAMPLES, check_n
from ttc.session.session import Session

_POINTS = {"A": 1.0, "B": -1.0}


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
    prompt = session.render()
    completions = await session.generate(prompt, n, scorer=scorer)
    candidates = [session.candidate(prompt, completion) for completion in completions]
    texts = {c.path: prompt.then(completion) for c, completion in zip(candidates, completions, strict=True)}
    match = _Match(session, k, scorer, texts)
    field = [candidate for candidate in candidates if candidate.final is not None]
    while len(field) > 1:
        pairs = list(zip(field[::2], field[1::2], strict=False))
        winners = await gather(map(match.play, pairs))
        field = field[2 * len(pairs) :] + winners  # an answer without a rival plays first in the next round
    return session.answer(field[0] if field else fallback(candidates), candidates)


class _Match:
    """Plays single matches; matches of one round run at once."""

    def __init__(self, session: Session, k: int, scorer: Scorer | None, texts: Mapping[Path, Prompt]) -> None:
        self._session, self._k, self._scorer, self._texts = session, k, scorer, texts

    async def play(self, pair: Sequence[Candidate]) -> Candidate:
        """Return the winner; a match without enough budget or context is decided like a tie."""
        first, second = pair
        key = self._session.key
        if same_class(key(first.final or ""), key(second.final or "")):
            return min(pair, key=by_length)
        lead = await (self._asked(pair) if self._scorer is None else self._scored(pair, self._scorer))
        return first if lead > 0 else second if lead < 0 else min(pair, key=by_length)

    async def _scored(self, pair: Sequence[Candidate], scorer: Scorer) -> float:
        one, other = await self._session.score(scorer, [self._texts[candidate.path] for candidate in pair])
        return 0.0 if one.value is None or other.value is None else one.value - other.value

    async def _asked(self, pair: Sequence[Candidate]) -> float:
        """Ask k times, the odd ones in the other order.

        The questions are below the first answer's path, at the number of the second one, so that two answers are
        compared by the same draws whatever n is.
        """
        question = compare(self._session.problem.messages, pair[0].text.strip(), pair[1].text.strip())
        votes = await gather(
            self._ask(text, (*pair[0].path, pair[1].path[-1], order), len(range(order, self._k, 2)))
            for order, text in enumerate((question.one, question.other))
            if order < self._k
        )
        return votes[0] - sum(votes[1:])

    async def _ask(self, text: str, path: Path, times: int) -> float:
        """Votes for the answer shown first, minus those for the other."""
        prompt = self._session.ask((Message("user", text),), path)
        completions: list[Completion] = await self._session.generate(prompt, times, least=0)
        letters = (verdict(self._session.split(prompt.then(one)), one.finish_reason) for one in completions)
        return sum(_POINTS.get(letter or "", 0.0) for letter in letters)
