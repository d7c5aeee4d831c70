"""A user's file over the Python door, without a mistake: mypy --strict has nothing to say."""

from __future__ import annotations

import asyncio

import ttc

ROWS: list[dict[str, object]] = [
    {"question": "What is 12+30*2?", "answer": 72},
    {"question": "What is 3*4?", "answer": "12"},
]


class Table:
    """What any data frame has."""

    def to_dict(self, orient: str) -> list[dict[str, object]]:
        return [dict(row) for row in ROWS]


async def first(
    problem: ttc.Problem, session: ttc.Session, *, n: int = 2, scorer: ttc.Scorer | None = None
) -> ttc.Answer:
    prompt = session.render()
    candidates = [session.candidate(prompt, completion) for completion in await session.generate(prompt, n)]
    return session.answer(candidates[0], candidates)


def shorter(prompt: ttc.Prompt) -> float:
    return -float(len(prompt.generated_text))


async def later(prompt: ttc.Prompt) -> float | None:
    return None if not prompt.text else 1.0


def same(target: str, submission: ttc.Submission) -> bool:
    return target in submission.text


def reward(target: str, submission: ttc.Submission) -> float:
    return 1.0 if target in submission.text else 0.5


async def main() -> float:
    answer: ttc.Answer = await ttc.arun("12+30*2", strategy=first, n=2, scorer=later, engine="simulated", seed=1)
    result = await ttc.aevaluate(Table(), strategy="best_of_n", n=4, scorer=shorter, engine="simulated", seed=1)
    return answer.seconds + result.accuracy.value


answer = ttc.run("12+30*2", strategy="majority", n=8, engine="simulated", budget=ttc.Budget(tokens=2000))
result = ttc.evaluate(ROWS, strategy=first, verifier=same, engine="simulated", sampling=ttc.Sampling(max_tokens=64))
rewarded = ttc.evaluate(ROWS, verifier=reward, engine="simulated", seed=1, params={"temperature": 0.5})
low: float = result.accuracy.low
total: int = result.usage.tokens + answer.usage.tokens
texts: list[str] = [problem.question for problem in result if problem.correct]
rows: list[dict[str, object]] = result.to_rows()
part: tuple[ttc.EvaluatedProblem, ...] = result[:1]
frame = result.to_frame()
value: float = asyncio.run(main())
