"""What is asked for one draw: one request, one choice, our own seed.

`n` is never used: servers number the seeds of its choices one after the other, so that draws of neighbouring seeds
would coincide. The seed is hashed from the run's seed, the path, the draw and the position in the text, so a continued
draw does not replay the numbers of its beginning. Sampling parameters are all stated, since a server fills gaps with
the model's own defaults (a top_k of 20, a repetition penalty).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ttc import seeds
from ttc.core import Prompt, Sampling, ThinkState
from ttc.engines.shared.tokens import check_seed

__all__ = ["Features", "seed_of", "shared_fields"]

SEED_BITS = 53
"""Seeds travel as JSON numbers, which many servers read as doubles."""


@dataclass(frozen=True, slots=True)
class Features:
    """What a server was found to honour (`ttc.engines.openai.probe`).

    `ids`: takes and gives token ids; `scores`: gives the log-probabilities of a prompt's ids; `text`: completes plain
    text; `prefill`: the thinking switches (as `ThinkState`) under which it continues an assistant message just as it
    stood; `stops`: tells a stop string from the end of the sequence; `extras`: accepts the sampling parameters that
    OpenAI's own API has not; `seeds`: accepts a seed; `usage`: reports token counts in streams; `limit_field`: what it
    calls max_tokens; `served`: what it says of its model (`ttc.core.Served`).
    """

    model: str
    max_context: int | None = None
    ids: bool = False
    logprobs: bool = False
    scores: bool = False
    text: bool = False
    prefill: tuple[ThinkState, ...] = ()
    stops: bool = False
    extras: bool = False
    seeds: bool = True
    usage: bool = False
    limit_field: str = "max_tokens"
    served: Mapping[str, str] = field(default_factory=dict)


def seed_of(prompt: Prompt, sampling: Sampling, draw: int) -> int | None:
    """The request's seed; None at temperature 0 without a run seed.

    Raises:
        ConfigError: temperature > 0 without a run seed.
    """
    check_seed(sampling)
    if sampling.seed is None:
        return None
    position = len(prompt.generated_text if prompt.token_ids is None else prompt.generated_ids)
    return seeds.derive(sampling.seed, (*prompt.path, draw), position) >> (64 - SEED_BITS)


def shared_fields(sampling: Sampling, seed: int | None, features: Features) -> dict[str, Any]:
    """The fields that completions and chat have in common."""
    fields: dict[str, Any] = {
        "model": features.model,
        "temperature": sampling.temperature,
        features.limit_field: sampling.max_tokens,
        "stream": True,
    }
    optional: Mapping[str, Any] = {
        "seed": seed if features.seeds else None,
        "top_p": sampling.top_p if features.extras or sampling.top_p < 1 else None,  # some models refuse even 1
        "stop": list(sampling.stop) or None,
        "stream_options": {"include_usage": True} if features.usage else None,
        "top_k": sampling.top_k,
    }
    if features.extras:
        fields |= {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "skip_special_tokens": False}
        fields |= {"stop_token_ids": list(sampling.stop_token_ids)}
    return fields | {name: value for name, value in optional.items() if value is not None}
