"""Likelihood scorers: the generator's own confidence in a path; no other model, no extra token.

`mean_logprob`: the geometric mean probability of the sampled tokens, exp(mean log p), in (0, 1]. `self_certainty`: mean
KL divergence from uniform to the model's distribution (Kang et al. 2025, "Scalable Best-of-N Selection via
Self-Certainty"), in nats, >= 0. Injected tokens have no log-probability and do not count. Both are computed from what
the engine reported while sampling. Left out: Borda voting over ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from ttc.config.signatures import reads_logprobs
from ttc.core import Engine, Prompt, Score, UsageSink
from ttc.errors import ConfigError


class LikelihoodScorer:
    """See the module docstring."""

    def __init__(self, measure: Literal["mean_logprob", "self_certainty"]) -> None:
        """`measure` selects the value that is averaged."""
        self._measure = measure

    async def score(self, prompts: Sequence[Prompt], on_usage: UsageSink) -> list[Score]:
        """Average over each prompt's sampled tokens; no verdict from an engine without log-probabilities."""
        return [self._score(prompt) for prompt in prompts]

    def _score(self, prompt: Prompt) -> Score:
        column = prompt.certainty if self._measure == "self_certainty" else prompt.logprobs
        values = [value for value in column or () if value is not None]
        if not values:
            return Score(None, note=f"the engine reported no {self._measure} for this path")
        mean = math.fsum(values) / len(values)
        return Score(mean if self._measure == "self_certainty" else math.exp(mean))

    def release(self, problem_id: str) -> None:
        """Do nothing: no state is kept."""


@reads_logprobs
def likelihood(
    *, engine: Engine | None = None, measure: Literal["mean_logprob", "self_certainty"] = "mean_logprob"
) -> LikelihoodScorer:
    """Score a path by its own probability.

    Args:
        engine: the generator's engine, supplied by the command line; checked, not used.
        measure: mean_logprob (geometric mean probability) or self_certainty (KL from uniform, nats).

    Raises:
        ConfigError: a model was named, or the engine reports no log-probabilities.
    """
    if engine is not None and not engine.capabilities.logprobs:
        raise ConfigError(
            f"scorer likelihood needs log-probabilities, which {engine.capabilities.model} does not report; with "
            "engine openai, serve it with vLLM or llama.cpp and set engine.tokenizer=PATH to its tokenizer"
        )
    if measure == "self_certainty" and engine is not None and not engine.capabilities.certainty:
        raise ConfigError(
            f"scorer likelihood: {engine.capabilities.model} reports no self-certainty; set measure=mean_logprob"
        )
    return LikelihoodScorer(measure)
