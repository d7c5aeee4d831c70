"""Reward models on a server: a vLLM server of the model, or any program that speaks plain JSON.

vLLM (`protocol=vllm`): ids are made here with the model's own tokenizer, so its folder or hub id is needed as well. A
token model is asked for one token at the end of each new step, which reads the prefix cache. For a label model the
cheapest way that the server offers is taken: how it must be started for each is told in `_vllm_server.py`.

Plain JSON (`protocol=steps`), one request a path: `POST base_url/score` with
`{"problem_id": str, "messages": [{"role": str, "content": str}], "steps": [str], "model": str | null}`, answered by
`{"scores": [float, one per step], "scored_tokens": int, newly computed}`; scores are probabilities, higher is better.

Transient failures are tried again (`ttc.engines.shared.retry`); several servers share the work, each problem stays on
one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ttc.choosing.aggregate import aggregate
from ttc.concurrent import gather
from ttc.core import Prompt, Score, Usage, UsageSink
from ttc.errors import ConfigError, ScorerError
from ttc.scorers.adapters._base import Adapter
from ttc.scorers.reward_models.layouts import OwnText, steps_of
from ttc.scorers.reward_models.recall import RecallScorer
from ttc.scorers.reward_models.server import Server
from ttc.scorers.reward_models.tokens import Tokens
from ttc.scorers.reward_models.vllm_server import vllm_backend

__all__ = ["StepsScorer", "token_scorer"]


def token_scorer(server: Server, folder: Path, adapter: Adapter, step_delimiter: str | None) -> RecallScorer:
    """A reward model on a vLLM server, which is asked now for the model's name and for what it offers."""
    if adapter.vllm is None:
        raise ConfigError(f"vLLM has no code for the head of {adapter.name}: use backend=embedded or protocol=steps")
    tokens = Tokens(folder)
    layout = OwnText(adapter, tokens, step_delimiter or adapter.step_delimiter)
    server.model()
    return RecallScorer(vllm_backend(server, adapter, tokens, folder), layout, aggregation=adapter.aggregation)


class StepsScorer:
    """A server that takes messages and steps; a path whose steps are known is not asked again."""

    def __init__(self, server: Server, delimiter: str, served_model: str | None) -> None:
        self._server, self._delimiter, self._model = server, delimiter, served_model
        self._known: dict[str, dict[tuple[str, ...], Score]] = {}

    async def score(self, prompts: Sequence[Prompt], on_usage: UsageSink) -> list[Score]:
        """Score every step of each prompt; `value` is the last one's."""
        return await gather(self._score(prompt, on_usage) for prompt in prompts)

    def release(self, problem_id: str) -> None:
        """Forget the scores of a problem."""
        self._known.pop(problem_id, None)

    async def _score(self, prompt: Prompt, on_usage: UsageSink) -> Score:
        steps = tuple(steps_of(prompt, self._delimiter))
        if not steps:
            return Score(None, note="no token generated yet")
        known = self._known.setdefault(prompt.problem_id, {})
        if steps not in known:
            messages = [{"role": message.role, "content": message.content} for message in prompt.messages]
            body = {"problem_id": prompt.problem_id, "messages": messages, "steps": steps, "model": self._model}
            reply = await self._server.post(prompt.problem_id, "/score", body)
            scores, scored = reply.get("scores"), reply.get("scored_tokens")
            if not isinstance(scores, list) or len(scores) != len(steps) or not isinstance(scored, int):
                said = json.dumps(reply)[:200]
                raise ScorerError(f"the reward server must give {len(steps)} scores and scored_tokens, it gave {said}")
            on_usage(Usage(scored=scored))
            values = tuple(float(score) for score in scores)
            known[steps] = Score(aggregate(Score(values[-1], values)), values)
        return known[steps]
