"""Knockout: n answers meet in pairs, round by round; a judge says who goes on; the last one is returned.

Chen et al. 2024, "Simple and Provable Scaling Laws for the Test-Time Compute of Large Language Models" (arXiv
2411.19477): when the model can solve the problem at all and the judge is better than a coin, failure falls
exponentially in n and in k. The judge is the model itself, asked k times a pair, half of them in each order; or a
`scorer` that judges both (`judge` for another model). Cost: n completions, and k short ones for each of n - 1 matches;
answers in one class do not need to meet. Who has no rival in a round goes on, and begins the next. A match without a
winner goes to the shorter answer, then to the first path. An answer without a final loses. Left out: the league form.
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
        problem: what is asked.
        session: the metered engine.
        n: answers that enter.
        k: comparisons of each pair by the model itself.
        scorer: compares in the model's place; the higher score of the two goes on.

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
    match = _Match(session, n, k, scorer, texts)
    field = [candidate for candidate in candidates if candidate.final is not None]
    matches = 0
    while len(field) > 1:
        pairs = list(zip(field[::2], field[1::2], strict=False))
        questions = [await match.questions(pair, matches + i) for i, pair in enumerate(pairs)]
        winners = await gather(match.play(pair, prompts) for pair, prompts in zip(pairs, questions, strict=True))
        matches += len(pairs)
        field = field[2 * len(pairs) :] + winners  # who had no rival is the first to have one
    return session.answer(field[0] if field else fallback(candidates), candidates)


class _Match:
    """Plays single matches; matches of one round run at once."""

    def __init__(self, session: Session, n: int, k: int, scorer: Scorer | None, texts: Mapping[Path, Prompt]) -> None:
        self._session, self._n, self._k, self._scorer, self._texts = session, n, k, scorer, texts

    async def questions(self, pair: Sequence[Candidate], number: int) -> list[Prompt]:
        """What the model is asked of a pair, in either order; the questions live beside the draws, at n + number."""
        if self._scorer is not None or self._are_one(pair):
            return []
        question = compare(self._session.problem.messages, pair[0].text.strip(), pair[1].text.strip())
        texts, place = (question.one, question.other)[: self._k], (*self._session.root, self._n + number)
        return [await self._session.ask((Message("user", text),), (*place, i)) for i, text in enumerate(texts)]

    async def play(self, pair: Sequence[Candidate], prompts: Sequence[Prompt]) -> Candidate:
        """Return the winner; a match that budget or context have no room for is decided like a draw."""
        first, second = pair
        if self._are_one(pair):
            return min(pair, key=by_length)
        lead = await (self._asked(prompts) if self._scorer is None else self._scored(pair, self._scorer))
        return first if lead > 0 else second if lead < 0 else min(pair, key=by_length)

    def _are_one(self, pair: Sequence[Candidate]) -> bool:
        """Whether two answers are in one class, so that they need not meet."""
        one, other = (self._session.key(candidate.final or "") for candidate in pair)
        return same_class(one, other)

    async def _scored(self, pair: Sequence[Candidate], scorer: Scorer) -> float:
        one, other = await self._session.score(scorer, [self._texts[candidate.path] for candidate in pair])
        return 0.0 if one.value is None or other.value is None else one.value - other.value

    async def _asked(self, prompts: Sequence[Prompt]) -> float:
        """Ask k times, the odd ones in the other order."""
        votes = await gather(self._ask(prompt, len(range(order, self._k, 2))) for order, prompt in enumerate(prompts))
        return votes[0] - sum(votes[1:])

    async def _ask(self, prompt: Prompt, times: int) -> float:
        """Votes for the answer shown first, less those for the other."""
        completions: list[Completion] = await self._session.generate(prompt, times, least=0)
        letters = (verdict(self._session.split(prompt.then(one)), one.finish_reason) for one in completions)
        return sum(_POINTS.get(letter or "", 0.0) for letter in letters)
