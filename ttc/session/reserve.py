"""Samples that are compared afterwards: under a budget fewer of them, so that the rest pays for comparing them.

A strategy that asks about its samples (which is best, combine them) would spend a small budget on samples alone, and be
a plain vote. So the first sample shows what one costs, and only as many more are drawn as leave the price of the
questions about them. The first question is taken to be as long as a sample, the next ones as those before; what they
leave pays for another stage of samples, which meet the best so far. A budget that covers everything at full length
changes nothing, and one that pays for no question about two samples is spent on samples.

Of a budget in seconds half is for the questions: by then slow samples are cut, if two have finished. Cost: at most the
budget. Left out: how long a question takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, chain
from typing import TypeAlias

from ttc.concurrent import gather
from ttc.core import Candidate, Completion, Prompt, Scorer, Usage
from ttc.session.meter import Cost
from ttc.session.session import Session

SPARE = 0.5
"""Share of a budget in seconds that questions about the samples get."""
Sample: TypeAlias = tuple[Candidate, Prompt]
"""A sample and its whole path."""


class Stages:
    """The samples of one problem, stage by stage, and the questions about them; changed by each call."""

    def __init__(
        self,
        session: Session,
        prompt: Prompt,
        n: int,
        *,
        num_questions: Callable[[int], int],
        shown: int,
        scorer: Scorer | None = None,
    ) -> None:
        """At most n samples of `prompt`, so many of which take `num_questions` draws to compare.

        A question shows up to `shown` samples. A `scorer` compares in its place: the session itself reserves its price.
        """
        self._session, self._prompt, self._n, self._scorer = session, prompt, n, scorer
        self._num_questions, self._shown = num_questions, shown
        self._num_drawn = self._num_answers = self._num_expected = self._num_asked = 0
        """Samples, those with a final, the questions about them if all differed, and those that were asked."""
        self._drawing, self._asking = Usage(), Usage()
        self._assumed = self._question(session.sampling.max_tokens)
        """What a question takes, before any was asked."""

    async def draw(self) -> list[Sample]:
        """Return the next samples, to be compared before the next call; none: there are no more.

        Raises:
            BudgetExceeded: not even one could be drawn.
        """
        if self._num_drawn == self._n:
            return []
        stage = await (self._next() if self._num_drawn else self._first())
        held, new = min(self._num_answers, 1), sum(candidate.final is not None for candidate, _ in stage)
        self._num_expected += self._num_questions(held + new)
        self._num_answers += new
        return stage

    async def ask(self, questions: Sequence[tuple[Prompt, range]]) -> list[list[Completion]]:
        """`ask_each`; what the questions take is what the next ones are expected to."""
        replies = await ask_each(self._session, questions)
        for completion in chain.from_iterable(replies):
            self._num_asked += 1
            self._asking += completion.usage
        return replies

    def times(self, num_questions: int, most: int) -> int:
        """How often, up to `most`, the rest pays for asking each of so many questions; once in any case."""
        return int(max(min(self._session.pays_for(self._price() * num_questions), most), 1))

    async def _first(self) -> list[Sample]:
        session = self._session
        everything = draw_cost(session, self._prompt, session.sampling.max_tokens) * self._n
        everything += self._assumed * self._num_questions(self._n)
        if self._n == 1 or self._scorer is not None or session.pays_for(everything) >= 1:
            stage = await self._sample(self._n)
            self._n = len(stage)
            return stage
        stage = await self._sample(1)
        self._assumed = self._question(self._drawing.generated)
        more = self._num_affordable(sum(candidate.final is not None for candidate, _ in stage))
        if self._shown == 2:  # a first pair shows what a question takes, and has to meet in any case
            more = min(more, 1)
        return stage + await self._sample(more or self._n - 1)

    async def _next(self) -> list[Sample]:
        more = self._num_affordable(1) if self._num_answers else self._n - self._num_drawn
        if not more:
            self._session.narrow()
        return await self._sample(more)

    def _num_affordable(self, num_answers: int) -> int:
        """How many more samples the rest pays for, and for comparing them with the answers that there are.

        One more where it pays for a first question at all.
        """
        sample = _cost_of(self._drawing) * (1 / self._num_drawn)
        question = self._price() * ((self._num_asked + 1) / (self._num_expected + 1))  # equal answers need none
        sizes = range(self._n - self._num_drawn, 0, -1)
        prices = ((size, sample * size + question * self._num_questions(num_answers + size)) for size in sizes)
        most = next((size for size, price in prices if self._session.pays_for(price) >= 1), 0)
        return most or int(not self._num_asked and self._session.pays_for(sample + self._assumed) >= 1)

    async def _sample(self, count: int) -> list[Sample]:
        prompt, numbers = self._prompt, range(self._num_drawn, self._num_drawn + count)
        least = 0 if self._num_drawn else 1
        spare = 0.0 if self._scorer is not None else SPARE
        completions = await self._session.generate(prompt, numbers, scorer=self._scorer, least=least, spare=spare)
        self._num_drawn += len(completions)
        self._drawing = sum((completion.usage for completion in completions), self._drawing)
        return [(self._session.candidate(prompt, one), prompt.then(one)) for one in completions]

    def _price(self) -> Cost:
        """What a question takes, on average."""
        return _cost_of(self._asking) * (1 / self._num_asked) if self._num_asked else self._assumed

    def _question(self, num_tokens: int) -> Cost:
        """What a question takes about samples of so many tokens that is as long as one."""
        return draw_cost(self._session, self._prompt, num_tokens, self._shown)


async def ask_each(session: Session, questions: Sequence[tuple[Prompt, range]]) -> list[list[Completion]]:
    """Draw every question: at once as far as the budget covers them at full length, then the next ones.

    Each holds its full length while it is drawn, so that of many at once only the first might be asked. One that budget
    or context leave no room for has no draws.
    """
    replies: list[list[Completion]] = []
    while len(replies) < len(questions):
        waiting = questions[len(replies) :]
        costs = (draw_cost(session, prompt, session.sampling.max_tokens) * len(draws) for prompt, draws in waiting)
        size = sum(session.pays_for(cost) >= 1 for cost in accumulate(costs))
        wave = waiting[: max(size, 1)]
        replies += await gather(session.generate(prompt, draws, least=0) for prompt, draws in wave)
    return replies


def draw_cost(session: Session, prompt: Prompt, num_tokens: int, shown: int = 0) -> Cost:
    """What a draw of so many tokens takes, after the prompt and so many draws as long."""
    length = len(prompt.token_ids or ()) + shown * num_tokens
    return Cost(num_tokens, session.thinking.calls_each, session.capabilities.flops(length + num_tokens, 0))


def _cost_of(usage: Usage) -> Cost:
    return Cost(usage.tokens, usage.calls, usage.flops)
