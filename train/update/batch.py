"""A batch of the common update rule: ids, three weights per token, and how it is cut.

    loss = sum over tokens of   pg * policy-gradient term   (GRPO, PPO, RLOO, ...)
                              + ce * -log p(token)          (SFT, rejection sampling, thinking fusion)
                              + kl * divergence estimate    (a reference or a teacher)

The weights carry the normaliser, computed once from the mask of the whole batch, so the losses of micro-batches add up:
the result does not depend on how the batch is cut, on padding, or on the number of devices.

    token       mean over all tokens: long rollouts count more (DAPO)
    sequence    mean per rollout, then over rollouts: a long rollout's tokens count less (GRPO)
    constant    sum divided by rollouts x most tokens: no length bias (Dr. GRPO)
    rollout     sum per rollout, mean over rollouts (Kimi k1.5; the likelihood of whole sequences)

Mini-batches (an optimiser step each) and micro-batches (a forward pass each) are pure functions of the batch's lengths
and a number, so that every process of a run, and a resumed one, cuts in the same way. Masks come from lengths, never
from a padding id: a policy may sample that id. Shapes: R rows, L ids padded on the right, T = L - 1 target tokens.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias

import torch

from train.base.rollout import Rollout
from train.base.world import World
from ttc.errors import ConfigError
from ttc.seeds import derive


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Tensors of one update; every field has R rows.

    `ids` (R, L); `mask` (R, T) True at trained tokens; `advantages`, `pg`, `ce`, `kl` (R, T); `engine` (R, T) the
    sampling engine's log-probabilities, NaN where unknown; `reference` (R, T) those of the reference, all 0 where
    they are not known.
    """

    ids: torch.Tensor
    mask: torch.Tensor
    advantages: torch.Tensor
    pg: torch.Tensor
    ce: torch.Tensor
    kl: torch.Tensor
    engine: torch.Tensor
    reference: torch.Tensor

    def __len__(self) -> int:
        return self.ids.shape[0]

    def rows(self, index: torch.Tensor) -> TokenBatch:
        """The rows of `index`, cut to their longest."""
        tensors = {field.name: getattr(self, field.name)[index] for field in fields(self)}
        width = (tensors["mask"].any(0).nonzero().max().item() + 1) if tensors["mask"].any() else 1
        narrow = {
            name: tensor[:, : width + 1] if name == "ids" else tensor[:, :width] for name, tensor in tensors.items()
        }
        return TokenBatch(**narrow)

    def to(self, device: Any) -> TokenBatch:
        """The batch on another device."""
        return TokenBatch(**{field.name: getattr(self, field.name).to(device) for field in fields(self)})


def rollout_batch(rollouts: Sequence[Rollout], pad_id: int, *, mask_truncated: bool = False) -> TokenBatch:
    """Lay rollouts out; all weights 0 yet. Trained tokens are the sampled ones of rollouts that have a reward.

    With `mask_truncated` a rollout that was cut is not trained on (DAPO's overlong filtering); its reward still counts
    in the means of its group.
    """
    rows = [(*rollout.prompt_ids, *rollout.token_ids) for rollout in rollouts]
    ids = pad(rows, pad_id)  # (R, L)
    width = ids.shape[1] - 1
    mask = torch.zeros(len(rows), width, dtype=torch.bool)
    engine = torch.full((len(rows), width), float("nan"))
    reference = torch.zeros(len(rows), width)
    for i, rollout in enumerate(rollouts):
        first = len(rollout.prompt_ids) - 1  # target t is ids[t + 1], so the first sampled id is one place earlier
        span = slice(first, first + len(rollout.token_ids))
        if rollout.reward is not None and not (mask_truncated and rollout.truncated):
            mask[i, span] = torch.tensor(rollout.sampled, dtype=torch.bool)
        engine[i, span] = torch.tensor([float("nan") if value is None else value for value in rollout.logprobs])
        if rollout.reference_logprobs:
            reference[i, span] = torch.tensor([value or 0.0 for value in rollout.reference_logprobs])
    zero = torch.zeros(len(rows), width)
    return TokenBatch(ids, mask, zero, zero, zero, zero, engine, reference)


def pad(rows: Sequence[Sequence[int]], pad_id: int) -> torch.Tensor:
    """Right-pad rows of ids: (R, longest)."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *([pad_id] * (longest - len(row)))] for row in rows], dtype=torch.long)


def rows_at(step: int, rows: int, num_rows: int, seed: int) -> list[int]:
    """The rows of update `step` (from 0): `rows` numbers below `num_rows`, every row once per epoch."""
    numbers: list[int] = []
    for place in range(step * rows, (step + 1) * rows):
        epoch, index = divmod(place, num_rows)
        if not numbers or index == 0:
            order = list(range(num_rows))
            random.Random(derive(seed, "epoch", epoch)).shuffle(order)
        numbers.append(order[index])
    return numbers


def shuffled(num_rows: int, parts: int, number: int) -> list[torch.Tensor]:
    """Row numbers in `parts` mini-batches, mixed by a generator that depends on `number` alone; in order when one.

    Their sizes differ by one row at most; fewer rows than `parts` give a mini-batch each.
    """
    if parts == 1:
        return [torch.arange(num_rows)]
    maker = torch.Generator().manual_seed(number)
    return list(torch.randperm(num_rows, generator=maker).tensor_split(min(parts, max(num_rows, 1))))


def pass_tokens(micro_tokens: int | None, device: torch.device) -> int:
    """Padded tokens of one pass: `micro_tokens`, or what a type of device usually takes."""
    return micro_tokens if micro_tokens is not None else 2048 if device.type == "cpu" else 16_384


_PASS = {"cpu": 100, "cuda": 2048}
"""Tokens that take as long as a pass does beside its own: on a CPU 70 of SmolLM2 and 120 of the packaged model were
measured; on a GPU, where launches are dear for small models and cheap for large ones, it is an estimate."""
_ABOVE = 10**6
"""The same for every padded token above the bound: cuts go before memory."""


def micro_batches(
    mask: torch.Tensor, index: torch.Tensor, most: int, least: int = 1, kin: torch.Tensor | None = None
) -> Iterator[torch.Tensor]:
    """Cut `index` so that rows x longest row stays within `most` tokens, at the least cost of passes plus padding.

    Args:
        mask: (R, T) True at the tokens that are asked for.
        index: numbers of rows.
        most: padded tokens of one part; a single row may be longer.
        least: rows of every part, when there are so many.
        kin: (R,) numbers of families, whose rows stay together where they fit; families of like length lie together.
    """
    index = index.to(mask.device)
    if not len(index):
        return
    places = torch.arange(1, mask.shape[1] + 1, device=mask.device)
    lengths = mask.long().mul(places).amax(1)[index]  # place of the last True of each row, from 1
    order = torch.argsort(lengths, stable=True)
    blocks = (
        [[place] for place in order.tolist()] if kin is None else _families(lengths, order, kin.to(mask.device)[index])
    )
    rows = torch.tensor([row for block in blocks for row in block], device=index.device)
    inside = [number > 0 for block in blocks for number in range(len(block))]
    for start, end in _cheapest(lengths[rows].tolist(), inside, most, least, _PASS.get(mask.device.type, 2048) * least):
        yield index[rows[start:end]]


def _cheapest(
    lengths: Sequence[int], inside: Sequence[bool], most: int, least: int, each: int
) -> Iterator[tuple[int, int]]:
    """Cut rows in this order where the sum of `each` per part and of padded tokens is least, by dynamic programming.

    A cut `inside` a family, whose beginning is then computed twice, costs as much as a full part; a token above `most`
    costs more than any number of cuts.
    """
    num = len(lengths)
    fewest, cuts = min(least, num), [each + most * within for within in inside]
    costs, starts = [0.0, *[math.inf] * num], [0] * (num + 1)
    for end in range(1, num + 1):
        longest, lowest = 0, math.inf
        for start in range(end - 1, -1, -1):  # of all pairs: without calls, for it runs before every pass
            if lengths[start] > longest:
                longest = lengths[start]
            size = (end - start) * longest
            if size > most and end - start >= 2 * least:
                break  # two parts of it have enough rows each
            if end - start < fewest:
                continue
            cost = costs[start] + cuts[start] + size
            if size > most:
                cost += _ABOVE * (size - most)
            if cost < lowest:
                lowest, starts[end] = cost, start
        costs[end] = lowest
    ends = [num]
    while ends[-1]:
        ends.append(starts[ends[-1]])
    yield from itertools.pairwise(reversed(ends))


def _families(lengths: torch.Tensor, order: torch.Tensor, numbers: torch.Tensor) -> list[list[int]]:
    """Places by family, each in the given order; families by their longest row."""
    members: dict[int, list[int]] = {}
    for place in order.tolist():
        members.setdefault(int(numbers[place]), []).append(place)
    return sorted(members.values(), key=lambda places: int(lengths[places[-1]]))


def shared(
    mask: torch.Tensor, index: torch.Tensor, most: int, world: World, kin: torch.Tensor | None = None
) -> Iterator[torch.Tensor]:
    """This process's rows of every micro-batch, which is cut for all of them: so all have equally many parts.

    Unless there are fewer rows than processes, of which the last then get none. Families stay in a process.
    """
    for part in micro_batches(mask, index, most * world.size, world.size, kin):
        mine = part[world.rank :: world.size] if kin is None else part.tensor_split(world.size)[world.rank]
        if len(mine):
            yield mine


Normaliser: TypeAlias = Literal["token", "sequence", "constant", "rollout"]

NORMALISERS: Mapping[str, Callable[[torch.Tensor, int, int], torch.Tensor]] = {
    "token": lambda mask, rows, most: mask / mask.sum().clamp(min=1),
    "sequence": lambda mask, rows, most: mask / (mask.sum(1, keepdim=True).clamp(min=1) * max(rows, 1)),
    "constant": lambda mask, rows, most: mask / (max(rows, 1) * most),
    "rollout": lambda mask, rows, most: mask / max(rows, 1),
}
"""(mask (R, T), rows, most tokens of one) -> weights (R, T); see the module."""


def token_weights(mask: torch.Tensor, how: Normaliser, max_tokens: int, rows: int | None = None) -> torch.Tensor:
    """Return the weight of every token: mask (R, T) -> (R, T).

    Args:
        mask: True at tokens that are trained on.
        how: see the module.
        max_tokens: the cap of a rollout, for `constant`.
        rows: rollouts that the mean is over, where some of R take no part; None is R.

    Raises:
        ConfigError: max_tokens < 1.
    """
    if max_tokens < 1:
        raise ConfigError(f"max_tokens must be at least 1, got {max_tokens}")
    return NORMALISERS[how](mask.float(), mask.shape[0] if rows is None else rows, max_tokens)
