"""Bare requests without any system: one of `n` choices for a problem, and a vote by the toolkit's own reader.

With the algorithm `cap`, one choice under vLLM's own `thinking_token_budget`.
"""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Callable
from typing import Any

from benchmarks.peers.answers import key_of
from benchmarks.peers.clients import kit


def prepare(job: dict[str, Any], tally: kit.Tally) -> Callable[[], list[str]]:
    """A client of the official SDK with its usual pool."""
    import openai

    capped = job["algorithm"] == "cap"
    # user's code
    client = openai.AsyncOpenAI(base_url=job["url"] + "/v1", api_key="none", timeout=600)
    gate, n = asyncio.Semaphore(job["concurrency"]), 1 if capped else job["n"]

    async def solve(question: str) -> str:
        async with gate:
            reply = await client.chat.completions.create(
                model=job["model"],
                messages=[{"role": "user", "content": question}],
                n=n,
                temperature=job["temperature"],
                max_tokens=job["max_tokens"],
                extra_body={"thinking_token_budget": job["cap"]} if capped else None,
            )
        texts = [choice.message.content or "" for choice in reply.choices]
        votes = collections.Counter(key for key in (key_of(text, job["thinks"]) for text in texts) if key is not None)
        tally.add(generated=reply.usage.completion_tokens, prompt=reply.usage.prompt_tokens)
        return (
            next((text for text in texts if key_of(text, job["thinks"]) == votes.most_common(1)[0][0]), "")
            if votes
            else ""
        )

    # end of user's code

    async def one(question: str) -> str:
        try:
            return await solve(question)
        except openai.OpenAIError as exc:
            return tally.fail(exc)

    async def run() -> list[str]:
        return await asyncio.gather(*(one(row["question"]) for row in job["problems"]))

    return lambda: asyncio.run(run())


if __name__ == "__main__":
    kit.main(prepare)
