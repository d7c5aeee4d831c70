"""Sample many continuations in one batch: what the reward model is trained on and the report measures.

A plain loop over a transformers model with a KV cache, rows padded on the left; each row draws from its own
uniform stream, so a result does not depend on which rows share its batch beyond bf16 rounding.
Cost: about 5,000 tokens/s for the teacher on one CPU thread. Left out: everything the embedded
engine does better (shared prefixes, continuous batching); this file needs nothing but transformers.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Draw:
    """How to sample: `temperature` 0 is greedy; generation ends at any id of `stop` or at `max_tokens`."""

    max_tokens: int
    temperature: float
    stop: tuple[int, ...]
    seed: int


def sample(
    model: Any, prompts: Sequence[list[int]], draw: Draw, rows: int = 256
) -> list[list[int]]:
    """Return one continuation per prompt, the stop id included when it was reached."""
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    results: list[list[int]] = [[] for _ in prompts]
    for first in range(0, len(order), rows):
        chosen = order[first : first + rows]
        streams = [random.Random(f"nano-draw:{draw.seed}:{i}") for i in chosen]
        for index, ids in zip(
            chosen, _batch(model, [prompts[i] for i in chosen], streams, draw), strict=True
        ):
            results[index] = ids
    return results


@torch.inference_mode()
def _batch(
    model: Any, prompts: list[list[int]], streams: list[random.Random], draw: Draw
) -> list[list[int]]:
    device, width = model.device, max(len(ids) for ids in prompts)
    lengths = torch.tensor([len(ids) for ids in prompts], device=device)
    ids = torch.zeros((len(prompts), width), dtype=torch.long, device=device)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt, device=device)
        mask[row, width - len(prompt) :] = 1
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    alive = list(range(len(prompts)))
    results: list[list[int]] = [[] for _ in prompts]
    ended: set[int] = set()
    cache = None
    for _ in range(draw.max_tokens):
        output = model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        cache = output.past_key_values
        chosen = _choose(output.logits[:, -1].float(), [streams[row] for row in alive], draw)
        for row, token in zip(alive, chosen.tolist(), strict=True):
            results[row].append(token)
        ended.update(row for row in alive if results[row][-1] in draw.stop)
        going = [at for at, row in enumerate(alive) if row not in ended]
        if not going:
            break
        lengths = lengths + 1
        ids, positions = chosen[:, None], (lengths - 1)[:, None]
        mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
        if len(going) <= 0.75 * len(alive):
            keep = torch.tensor(going, device=device)
            cache.batch_select_indices(keep)
            ids, positions, mask, lengths = ids[keep], positions[keep], mask[keep], lengths[keep]
            alive = [alive[at] for at in going]
    return [_until(ids_, draw.stop) for ids_ in results]


def _choose(logits: torch.Tensor, streams: list[random.Random], draw: Draw) -> torch.Tensor:
    """Return one token per row of logits [B, V] by inverting the cumulative distribution."""
    if draw.temperature == 0:
        return logits.argmax(-1)
    cumulative = (logits / draw.temperature).softmax(-1).cumsum(-1)
    points = torch.tensor([[stream.random()] for stream in streams], device=logits.device)
    found = torch.searchsorted(cumulative, points * cumulative[:, -1:])[:, 0]
    return found.clamp(max=logits.shape[-1] - 1)


def _until(ids: list[int], stop: tuple[int, ...]) -> list[int]:
    """Cut after the first stop id: rows that ended go on until their batch is thinned."""
    for at, token in enumerate(ids):
        if token in stop:
            return ids[: at + 1]
    return ids
