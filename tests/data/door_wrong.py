"""A user's file over the Python door with deliberate mistakes: mypy must find the one of each line marked `wrong`."""

from __future__ import annotations

import ttc

ROWS = [{"question": "What is 12+30*2?", "answer": 72}]


def not_async(problem: ttc.Problem, session: ttc.Session) -> ttc.Answer:
    raise NotImplementedError


async def no_session(problem: ttc.Problem) -> ttc.Answer:
    raise NotImplementedError


async def text_only(problem: ttc.Problem, session: ttc.Session) -> str:
    return problem.id


def wordy(prompt: ttc.Prompt) -> str:
    return prompt.text


def graded(target: str, submission: ttc.Submission) -> str:
    return "right"


def one_sided(target: str) -> bool:
    return bool(target)


ttc.run("1+1", stratgy="majority")  # wrong: misspelt option
ttc.run("1+1", n="8")  # wrong: text for a number
ttc.run(11)  # wrong: a question is a text or a Problem
ttc.run("1+1", strategy=not_async)  # wrong: a strategy is async
ttc.run("1+1", strategy=no_session)  # wrong: a strategy takes a session
ttc.run("1+1", strategy=text_only)  # wrong: a strategy returns an Answer
ttc.run("1+1", scorer=wordy)  # wrong: a score is a number
ttc.run("1+1", scorer=graded)  # wrong: a score function takes a prompt
ttc.run("1+1", budget=2000)  # wrong: a budget is a Budget
ttc.run("1+1", sampling={"temperature": 0})  # wrong: sampling is a Sampling
ttc.run("1+1").answer  # wrong: the field is called final
ttc.run("1+1").usage.token  # wrong: misspelt field
ttc.Budget(token=2000)  # wrong: misspelt field
ttc.Sampling(temperature="cold")  # wrong: text for a number
ttc.evaluate("problems.jsonl")  # wrong: rows, not a file
ttc.evaluate(ROWS, verifier=graded)  # wrong: a verdict is no text
ttc.evaluate(ROWS, verifier=one_sided)  # wrong: a check takes a submission, too
ttc.evaluate(ROWS, strategy=["direct", "majority"])  # wrong: one strategy
ttc.evaluate(ROWS, limit=3)  # wrong: no such option
ttc.evaluate(ROWS).accurracy  # wrong: misspelt field
ttc.evaluate(ROWS)[0].answer.final  # wrong: the answer of a problem that failed is None
ttc.evaluate(ROWS)["final"]  # wrong: problems have numbers
name: str = ttc.evaluate(ROWS).accuracy  # wrong: an interval is no text
ttc.arun("1+1").final  # wrong: not awaited
ttc.aevaluate(ROWS).accuracy  # wrong: not awaited
ttc.Engin  # wrong: misspelt name
