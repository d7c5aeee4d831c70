"""The attention of models that are trained: torch's fused kernel, in fp32 on a CPU whose bf16 kernel is the slower one.

Without AMX, torch's attention in bf16 takes 2.6 times as long for the gradient as in fp32 (AMD EPYC with avx512_bf16,
8 rows of 179 tokens of SmolLM2), so under autocast queries, keys and values go up to fp32 there, which also rounds
less: a step of training takes 13 % less time. Memory: the three in fp32, kept for the gradient.
"""

from __future__ import annotations

from typing import Any

import torch

_UPCAST = "ttc_fp32"
MASKED = ("sdpa", _UPCAST)
"""Names of attention that takes a mask of ours and writes no scores out."""


def pick_attention(device: str) -> str:
    """The name that transformers knows the attention by that is fastest for training on a type of device."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    if torch.device(device).type != "cpu" or torch.cpu.get_capabilities().get("amx_tile"):
        return "sdpa"
    AttentionInterface.register(_UPCAST, _upcast)
    AttentionMaskInterface.register(_UPCAST, sdpa_mask)
    return _UPCAST


def _upcast(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any, **options: Any
) -> tuple[torch.Tensor, None]:
    """`sdpa` on queries, keys and values in fp32: (B, heads, T, D) -> (B, T, heads, D) in the type of the queries."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    mask = attention_mask
    if mask is not None and mask.is_floating_point():
        mask = mask.float()
    with torch.autocast(query.device.type, enabled=False):
        states, _ = sdpa_attention_forward(module, query.float(), key.float(), value.float(), mask, **options)
    return states.to(query.dtype), None
