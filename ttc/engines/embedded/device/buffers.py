"""The static buffers of the step: everything whose address a captured graph holds, except weights and keys.

Cost: a few hundred bytes a row and the activations of one layer; logits, masks and presence are the large ones (256
rows of a vocabulary of 152k in bf16: 78 MB, 5 MB and 5 MB). `first(rows)` are views of the leading rows: a bucket in
the same memory.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch

from ttc.engines.embedded.device.rows import FIELDS
from ttc.engines.embedded.device.shape import StepWeights

BLOCK = 2048
"""Vocabulary entries that one program of the sampler reads."""
WARPS = 8
"""Warps of a program of the sampler."""
NUM_STATS = 6
"""Statistics per block: scaled maximum, its mass, the first index of the maximum; raw maximum, mass and sum."""


@dataclass(frozen=True, slots=True)
class StepBuffers:
    """Rows are the first axis, except for `turn` and `output`.

    `output` (ahead, rows, 3) holds a token or -1, and the bits of its log-probability and self-certainty.
    """

    inputs: torch.Tensor  # int32: records from the host
    state: torch.Tensor  # int32 (rows, 4): ticket, token, position, ended; written by the device only
    positions: torch.Tensor  # int32: of the fed token, -1 for a row that is not running
    slots: torch.Tensor  # int32: page * PAGE + offset for its keys, or -1
    turn: torch.Tensor  # int32 (2): the running step of the block, and the next
    masks: torch.Tensor  # int32 (masks, words): bit v % 32 of word v // 32 allows token v; a record names its mask
    presence: torch.Tensor  # int32 (rows, words): the tokens in a row's text, likewise; kept under a penalty only
    output: torch.Tensor
    x: torch.Tensor  # the residual stream
    normed: torch.Tensor
    branch: torch.Tensor  # a product that is normed before the addition
    qkv: torch.Tensor
    q: torch.Tensor  # (rows, heads, head size)
    gate_up: torch.Tensor
    active: torch.Tensor
    logits: torch.Tensor
    stats: torch.Tensor  # fp32 (rows, NUM_STATS, blocks)

    @classmethod
    def allocate(cls, weights: StepWeights, rows: int, width: int, ahead: int) -> StepBuffers:
        """Zeroed buffers for `rows` rows with up to `width` pages each and `ahead` tokens a block."""
        dims, dtype, device = weights.dims, weights.embed.dtype, weights.embed.device
        heads = dims.num_heads + 2 * dims.num_kv_heads

        def ints(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        def floats(*shape: int) -> torch.Tensor:
            return torch.zeros(rows, *shape, dtype=dtype, device=device)

        return cls(
            inputs=ints(rows, FIELDS + width),
            state=ints(rows, 4),
            positions=ints(rows),
            slots=ints(rows),
            turn=ints(2),
            masks=ints(rows, -(-dims.vocab // 32)),
            presence=ints(rows, -(-dims.vocab // 32)),
            output=ints(ahead, rows, 3),
            x=floats(dims.hidden),
            normed=floats(dims.hidden),
            branch=floats(dims.hidden),
            qkv=floats(heads * dims.head_dim),
            q=floats(dims.num_heads, dims.head_dim),
            gate_up=floats(2 * dims.intermediate),
            active=floats(dims.intermediate),
            logits=floats(dims.vocab),
            stats=torch.zeros(rows, NUM_STATS, -(-dims.vocab // BLOCK), device=device),
        )

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All buffers."""
        return tuple(getattr(self, item.name) for item in fields(self))

    @property
    def block(self) -> int:
        """Vocabulary entries per column of `stats`: BLOCK, or fewer for a small vocabulary."""
        return 1 << (-(-self.logits.shape[1] // self.stats.shape[2]) - 1).bit_length()

    @property
    def lasting(self) -> tuple[torch.Tensor, ...]:
        """The buffers that carry state from one step to the next."""
        return self.inputs, self.state, self.turn, self.presence, self.output

    def first(self, rows: int) -> StepBuffers:
        """Views of the leading rows; masks are not cut, since a waiting row may still refer to any of them."""
        whole = {"turn", "output", "masks"}
        views = {item.name: getattr(self, item.name)[:rows] for item in fields(self) if item.name not in whole}
        return replace(self, **views)
