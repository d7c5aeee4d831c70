"""This toolkit through its Python API: no seeds, no log-probabilities, as in a command without `--seed`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.peers.clients import kit
from ttc.config.registry import ENGINES, SCORERS, STRATEGIES
from ttc.core import Answer, Message, Problem, Sampling
from ttc.session.solve import solve_all
from ttc.session.thinking import Thinking

STRATEGY = {"beam": "tree", "dvts": "tree", "particle": "tree", "cap": "direct"}


def prepare(job: dict[str, Any], tally: kit.Tally) -> Callable[[], list[str]]:
    """Connect, and load the reward model."""
    # user's code
    url, algorithm = job["url"] + "/v1", job["algorithm"]
    engine: Any = ENGINES.load("openai")(
        job["model"], base_url=url, tokenizer=job["folder"], seeded=False, logprobs=False
    )
    params: dict[str, Any] = {} if algorithm == "cap" else {"n": job["n"]}
    policy = algorithm.removesuffix("_in_step")
    name = STRATEGY.get(policy, policy)
    if name == "tree":
        params |= {"policy": policy, "barrier": policy != algorithm}
    if name in ("tree", "best_of_n"):
        params |= {"scorer": SCORERS.load(job["scorer"])()}
    strategy = partial(STRATEGIES.load(name), **params)
    sampling = Sampling(temperature=job["temperature"], max_tokens=job["max_tokens"])
    thinking = Thinking(max_tokens=job["cap"]) if algorithm == "cap" else None
    problems = [Problem(row["id"], (Message("user", row["question"]),), kind="number") for row in job["problems"]]

    async def solve() -> dict[str, Any]:
        run = solve_all(
            problems, engine=engine, strategy=strategy, seed=0, sampling=sampling, thinking=thinking,
            concurrency=job["concurrency"],
        )  # fmt: skip
        answers = {problem.id: answer async for problem, answer in run}
        await engine.close()
        return answers

    # end of user's code

    def texts() -> list[str]:
        answers = asyncio.run(solve())
        spent = engine.counters()
        tally.add(generated=spent.generated + spent.overrun, prompt=spent.prompt)
        tally.add(retries=spent.attempts - spent.calls)
        tally.reasons.update(engine.failures)
        return [text_of(answers[problem.id], tally) for problem in problems]

    return texts


def text_of(answer: Any, tally: kit.Tally) -> str:
    """The answer behind a closed thought, so that one reader serves all systems."""
    if not isinstance(answer, Answer):
        return tally.fail(answer)
    tally.add(scored=answer.usage.scored)
    return f"</think>{answer.text}"


if __name__ == "__main__":
    kit.main(prepare)
