"""its_hub 1.2: its own client, its algorithms, and the packaged reward model behind its interface.

Steps have at most `step_tokens` tokens and end at an empty line, as in its own examples. Its interface of reward models
has no paths, so every call scores whole prefixes again.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.peers.answers import key_of
from benchmarks.peers.clients import kit


def reward_model(base: type, job: dict[str, Any], tally: kit.Tally) -> Any:
    """The job's scorer as its_hub's process reward model; its tokens are counted."""
    if job["scorer"] == "constant":

        class Constant(base):
            async def ascore(self, prompt: Any, responses: Any, **_: Any) -> Any:
                return 0.5 if isinstance(responses, str) else [0.5] * len(responses)

            def score(self, prompt: Any, responses: Any, **more: Any) -> Any:
                return asyncio.run(self.ascore(prompt, responses, **more))

        return Constant()
    from ttc.config.registry import SCORERS
    from ttc.core import Message
    from ttc.engines.shared.text import Text

    # user's code
    class RewardModel(base):
        def __init__(self) -> None:
            self.scorer, self.text, self.calls = SCORERS.load("prm")(), Text(Path(job["folder"])), 0

        async def ascore(self, prompt: Any, responses: Any, **_: Any) -> Any:
            alone = isinstance(responses, str)
            question = prompt if isinstance(prompt, str) else prompt[-1].content
            question = re.sub(r"^(user|User): ?", "", question.strip())
            root, prompts, self.calls = self.text.render([Message("user", question)], None), [], self.calls + 1
            for i, text in enumerate([responses] if alone else responses):
                ids = root.token_ids + self.text.encode(text)
                place = {"path": (i,), "problem_id": f"{question}#{self.calls}"}
                prompts.append(dataclasses.replace(root, text=root.text + text, token_ids=ids, logprobs=None, **place))
            scores = await self.scorer.score(prompts, lambda usage: tally.add(scored=usage.scored))
            self.scorer.release(prompts[0].problem_id)
            values = [float((score.steps[-1] if score.steps else score.value) or 0.0) for score in scores]
            return values[0] if alone else values

        def score(self, prompt: Any, responses: Any, **more: Any) -> Any:
            return asyncio.run(self.ascore(prompt, responses, **more))

    # end of user's code

    return RewardModel()


def outcome_model(base: type, prm: Any) -> Any:
    """The same scorer for whole answers."""

    class OutcomeModel(base):
        async def ascore(self, conversations: Any, orchestrator: Any = None, **_: Any) -> Any:
            alone = not isinstance(conversations[0], list)
            asked = [conversations] if alone else conversations
            values = await prm.ascore(asked[0][0].content, [one[-1].content for one in asked])
            return values[0] if alone else values

        def score(self, conversations: Any, **more: Any) -> Any:
            return asyncio.run(self.ascore(conversations, **more))

    return OutcomeModel()


def algorithm(job: dict[str, Any], tally: kit.Tally) -> Any:
    """The algorithm that the job names."""
    from its_hub.api import AbstractOutcomeRewardModel, AbstractProcessRewardModel
    from its_hub.core.algorithms.beam_search import BeamSearch
    from its_hub.core.algorithms.bon import BestOfN
    from its_hub.core.algorithms.particle_gibbs import ParticleFiltering
    from its_hub.core.algorithms.self_consistency import SelfConsistency
    from its_hub.core.lms.step_generation import StepGeneration
    from its_hub.core.orchestrator import LMOrchestrator

    # user's code
    lanes = LMOrchestrator(max_concurrency=256)
    if job["algorithm"] == "majority":
        return SelfConsistency(lambda text: key_of(text, job["thinks"]), orchestrator=lanes)
    prm = reward_model(AbstractProcessRewardModel, job, tally)
    if job["algorithm"] == "best_of_n":
        return BestOfN(outcome_model(AbstractOutcomeRewardModel, prm), orchestrator=lanes)
    steps = StepGeneration(
        job.get("max_steps", 40), "\n\n", stop_token=job.get("stop_token", "boxed"), temperature=job["temperature"]
    )
    return BeamSearch(steps, prm, 4) if job["algorithm"] == "beam" else ParticleFiltering(steps, prm)
    # end of user's code


def prepare(job: dict[str, Any], tally: kit.Tally) -> Callable[[], list[str]]:
    """Make the algorithm."""
    logging.disable(logging.WARNING)
    search = algorithm(job, tally)

    async def run() -> list[str]:
        from its_hub.core.lms.openai_lm import OpenAICompatibleLanguageModel

        # user's code
        model = OpenAICompatibleLanguageModel(
            job["url"] + "/v1", "none", job["model"], temperature=job["temperature"], max_tokens=job["max_tokens"]
        )
        gate = asyncio.Semaphore(job["concurrency"])

        async def solve(question: str) -> str:
            async with gate:
                reply = await search.ainfer(model, question, job["n"], return_response_only=False)
            usage = getattr(reply, "usage", None)
            tally.add(generated=usage.completion_tokens if usage else 0, prompt=usage.prompt_tokens if usage else 0)
            return reply.the_one.get("content") or ""

        # end of user's code

        async def one(question: str) -> str:
            try:
                return await solve(question)
            except Exception as exc:  # whatever a system raises is a failed problem in its row
                return tally.fail(exc)

        texts = await asyncio.gather(*(one(row["question"]) for row in job["problems"]))
        await model.close()
        return texts

    return lambda: asyncio.run(run())


if __name__ == "__main__":
    kit.main(prepare)
