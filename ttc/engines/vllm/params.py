"""From a draw's `Sampling` to the fields of vLLM's `SamplingParams`.

Log-probabilities and seeds are asked for only where somebody needs them: each costs vLLM a pass over the vocabulary, or
a generator of random numbers, for every token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ttc import seeds
from ttc.core import PENALTIES, Capabilities, ExtraSampling, Path, Sampling

__all__ = ["budget_of", "fields_of", "salt_of"]


def fields_of(sampling: Sampling, path: Path, ids: Sequence[int], capabilities: Capabilities) -> dict[str, Any]:
    """Keyword arguments for the draw at `path` whose prompt is `ids`."""
    sampled = sampling.seed is not None and sampling.temperature > 0
    fields: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or 0,
        "max_tokens": sampling.max_tokens,
        "seed": seeds.derive(sampling.seed or 0, path, len(ids)) >> 1 if sampled else None,
        "stop": list(sampling.stop),
        "stop_token_ids": [*sampling.stop_token_ids, *capabilities.eos_ids],
        "logprobs": 0 if sampling.logprobs else None,
        "detokenize": bool(sampling.stop),
    }
    if not isinstance(sampling, ExtraSampling):
        return fields
    fields |= {name: getattr(sampling, name) for name in PENALTIES}
    fields["thinking_token_budget"] = budget_of(sampling.thinking_cap, ids, capabilities)
    if sampling.top_logprobs and sampling.logprobs:
        fields["logprobs"] = sampling.top_logprobs
    return fields


def budget_of(cap: int | None, ids: Sequence[int], capabilities: Capabilities) -> int | None:
    """Budget in vLLM's words for `cap` more tokens of thought after `ids`: it counts from the marker in the prompt."""
    if cap is None:
        return None
    marker = capabilities.think_open[-1:]
    begun = next((at for at, token in enumerate(reversed(ids)) if (token,) == marker), 0)
    return cap + begun


def salt_of(sampling: Sampling) -> str | None:
    """Draws with another salt share no cached prefix."""
    return sampling.cache_salt if isinstance(sampling, ExtraSampling) else None
