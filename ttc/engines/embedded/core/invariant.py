"""Batch-invariant mode: on one machine, concurrency, batches and resume points cannot change a single bit.

A token's result must be the same whether it is computed in a prefill, in a decoding step, alone or in a batch (He et
al. 2025, "Defeating Nondeterminism in LLM Inference"). Three measures ensure that here: matrix products run on rows
padded to a fixed multiple; attention sums over blocks of keys at fixed absolute positions, one after another, so
neither padding nor the boundary between a cached prefix and new tokens changes the order of any sum; and every row
keeps its whole context in one contiguous tensor. Cost: speed (benchmarks/README.md) and one copy of the prefix per
branch. Left out: equality between processors, builds of torch, dtypes or numbers of threads, whose kernels add in
different orders.

The vendor's matrix kernels must treat all rows alike: `check` measures that at start-up and refuses the mode otherwise.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F

from ttc.engines.embedded.core.model import Body
from ttc.engines.embedded.core.pool import PagePool, Segment
from ttc.errors import EngineError

PAD_ROWS = 16
"""The rows of every matrix product are padded to a multiple of this."""
BLOCK = 64
"""Capacity grows in steps of this many positions."""


def blocked_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """Attention whose sums do not depend on the number of queries, items or padded keys (a multiple of 64).

    q (N, H, T, D), k and v (N, G, S, D), hidden (N, T, S) marks masked keys -> (N, H, T, D).
    """
    num, heads, length, size = q.shape
    groups, keys = k.shape[1], k.shape[2]
    many, rows, blocks = num * groups, heads // groups * length, keys // BLOCK
    flat = _pad(q.reshape(many, rows, size))
    scores = torch.bmm(flat, k.reshape(many, keys, size).transpose(1, 2))[:, :rows].float()
    scores = scores.reshape(num, heads, length, keys).masked_fill_(hidden[:, None], float("-inf"))
    weights = scores.sub_(scores.amax(-1, keepdim=True)).exp_().view(many, rows, blocks, BLOCK)
    mass = _in_order(weights.sum(-1).unbind(2))
    parts = _pad(weights.to(v.dtype).transpose(1, 2)).reshape(many * blocks, -1, BLOCK)
    sums = torch.bmm(parts, v.reshape(many * blocks, BLOCK, size)).view(many, blocks, -1, size)[:, :, :rows].float()
    out = _in_order(sums.unbind(1)) / mass[..., None]
    return out.to(q.dtype).view(num, heads, length, size)


def _pad(x: torch.Tensor) -> torch.Tensor:
    """Round one to three rows (the axis before the last) up to eight: fp32 kernels treat so few rows differently."""
    return x if x.dtype != torch.float32 else F.pad(x, (0, 0, 0, -x.shape[-2] % 8))


def _in_order(terms: Sequence[torch.Tensor]) -> torch.Tensor:
    """Sum one after another, so that zeros at the end change nothing."""
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


class BlockedPrefix:
    """A `MakeAttend`: each item's keys contiguous from position 0 on, attended in fixed blocks."""

    def __init__(self, pool: PagePool, items: Sequence[tuple[Segment, int]]) -> None:
        shelf, num = pool.shelf, len(items)
        dims, device = shelf.dims, shelf.device
        lengths, starts = [count for _, count in items], [segment.end for segment, _ in items]
        span = max(start + count for start, count in zip(starts, lengths, strict=True))
        shape = (2, dims.num_layers, num, dims.num_kv_heads, -(-span // BLOCK) * BLOCK, dims.head_dim)
        self._keys, self._values = torch.zeros(shape, dtype=shelf.dtype, device=device)
        for i, (segment, _) in enumerate(items):
            if segment.end:
                kv = pool.read_chain(segment, 0, segment.end)
                self._keys[:, i, :, : segment.end], self._values[:, i, :, : segment.end] = kv[:, 0], kv[:, 1]
        self._shelf, self._grid = shelf, (num, max(lengths), dims.num_heads, dims.head_dim)
        places = [pool.places(segment, segment.length, count) for segment, count in items]
        self._sheets, self._offsets = (torch.cat(parts) for parts in zip(*places, strict=True))
        self._item = torch.repeat_interleave(torch.arange(num), torch.tensor(lengths)).to(device)
        self._place = torch.cat([torch.arange(length) for length in lengths]).to(device)
        self._position = self._place + torch.tensor(starts, device=device)[self._item]
        reach = torch.tensor(starts)[:, None, None] + torch.arange(max(lengths))[None, :, None]
        self._hidden = (torch.arange(shape[4])[None, None] > reach).to(device)  # (N, T, S)

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """See `Attend`."""
        for sheets, rows, new in ((self._shelf.keys, self._keys, k), (self._shelf.values, self._values, v)):
            rows[layer][self._item, :, self._position] = new
            if sheets is self._shelf.keys:
                sheets[layer][self._sheets, :, :, self._offsets] = new
            else:
                sheets[layer][self._sheets, :, self._offsets] = new
        queries = q.new_zeros(self._grid)
        queries[self._item, self._place] = q
        out = blocked_attention(queries.transpose(1, 2), self._keys[layer], self._values[layer], self._hidden)
        return out.transpose(1, 2)[self._item, self._place].flatten(1)


class InvariantDecoder:
    """A `Decoder` whose steps give the same bits as `Body.extend` with `BlockedPrefix`.

    Every row holds its whole context in one contiguous tensor from position 0 on, which sums in fixed order need: a
    prefix is copied once per row. Keys and values are (layers, rows, kv heads, positions, head size).
    """

    def __init__(self, body: Body) -> None:
        self.body = body
        self.num_rows = 0
        self._segments: list[Segment] = []
        self._lengths: list[int] = []
        self._keys, self._values = self._allocate(4, BLOCK)

    def _allocate(self, rows: int, length: int) -> torch.Tensor:
        dims = self.body.dims
        shape = (2, dims.num_layers, rows, dims.num_kv_heads, length, dims.head_dim)
        return torch.zeros(shape, dtype=self.body.dtype, device=self.body.device)

    def _reserve(self, rows: int, length: int) -> None:
        have_rows, have = self._keys.shape[1], self._keys.shape[3]
        if rows <= have_rows and length <= have:
            return
        rows_before, longest = self.num_rows, max(self._lengths, default=0)
        old_keys, old_values = self._keys, self._values
        blocks = -(-max(length, longest) // BLOCK)
        rows = have_rows if rows <= have_rows else max(rows, 2 * have_rows)
        self._keys, self._values = self._allocate(rows, BLOCK * blocks)
        self._keys[:, :rows_before, :, :longest] = old_keys[:, :rows_before, :, :longest]
        self._values[:, :rows_before, :, :longest] = old_values[:, :rows_before, :, :longest]

    def add(self, segment: Segment) -> int:
        """See `Decoder.add`; copies the prefix."""
        row, end = self.num_rows, segment.end
        self._reserve(row + 1, end + 1)
        if end:
            kv = self.body.pool.read_chain(segment, 0, end)
            self._keys[:, row, :, :end], self._values[:, row, :, :end] = kv[:, 0], kv[:, 1]
        self._segments.append(segment)
        self._lengths.append(end)
        self.num_rows += 1
        return row

    def remove(self, row: int) -> None:
        """See `Decoder.remove`."""
        segment, last = self._segments[row], self.num_rows - 1
        span = slice(segment.end, self._lengths[row])
        self.body.pool.append(segment, torch.stack((self._keys[:, row, :, span], self._values[:, row, :, span]), 1))
        if row != last:
            end = self._lengths[last]
            self._keys[:, row, :, :end] = self._keys[:, last, :, :end]
            self._values[:, row, :, :end] = self._values[:, last, :, :end]
            self._segments[row], self._lengths[row] = self._segments[last], self._lengths[last]
        self._segments.pop()
        self._lengths.pop()
        self.num_rows = last

    def step(self, tokens: Sequence[int]) -> torch.Tensor:
        """See `Decoder.step`."""
        num = self.num_rows
        self._reserve(num, max(self._lengths) + 1)
        device = self.body.device
        span, most = _spans_of(self._lengths)
        place = torch.tensor(self._lengths, device=device)
        index = torch.arange(num, device=device)
        hidden_keys = (torch.arange(span, device=device)[None] > place[:, None])[:, None]
        far = torch.nonzero(place >= most).squeeze(1)
        hidden_far = hidden_keys[far]

        def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            self._keys[layer][index, :, place] = k[:num]
            self._values[layer][index, :, place] = v[:num]
            keys, values = self._keys[layer, :num, :, :span], self._values[layer, :num, :, :span]
            queries = q[:num].unsqueeze(2)
            out = blocked_attention(queries, keys[:, :, :most], values[:, :, :most], hidden_keys[..., :most])
            if most < span:
                out[far] = blocked_attention(queries[far], keys[far], values[far], hidden_far)
            return F.pad(out.view(num, -1), (0, 0, 0, q.shape[0] - num))

        extra = -num % self.body.pad_rows
        ids = torch.as_tensor(tokens, device=device)
        hidden = self.body.forward(F.pad(ids, (0, extra)), F.pad(place, (0, extra)), attend)
        self._lengths = [length + 1 for length in self._lengths]
        return hidden[:num]


def _spans_of(lengths: Sequence[int]) -> tuple[int, int]:
    """Number of keys that the longest row of a step needs, and the number that one call over all rows covers.

    Rows longer than the second are attended once more over the first. Both are multiples of a block, and equal unless a
    few long rows would more than double the work of the others.
    """
    blocks = sorted(length // BLOCK + 1 for length in lengths)
    num, whole = len(blocks), blocks[-1]
    work = {most: num * most + (num - bisect.bisect_right(blocks, most)) * whole for most in sorted(set(blocks))}
    most = min(work, key=work.__getitem__)
    return BLOCK * whole, BLOCK * (most if 2 * work[most] <= num * whole else whole)


def check(body: Body) -> None:
    """Compare the results of rows alone, in a batch and in a prefill, bit by bit.

    Compares logits, or hidden states without a head. Runs the first two layers only, whose matrices have the shapes of
    all others: kernels are chosen by shape.

    Raises:
        EngineError: this machine's kernels are not invariant despite these measures.
    """
    body = _two_layers(body)
    read = body.logits if body.weights.head is not None else _as_it_is
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(body.dims.vocab, (2 * BLOCK + 5,), generator=generator).tolist()
    length = min(len(ids), body.max_context)
    ids = ids[:length]
    ((whole, _),) = body.extend([(None, ids)])
    reference = read(whole)
    for split in (1, min(BLOCK // 2 + 1, length - 1)):  # a tiny model may have a shorter context
        ((head, segment),) = body.extend([(None, ids[:split])])
        others: list[tuple[Segment | None, list[int]]] = [(None, ids[:n]) for n in (3, 17, 40)]
        rest = body.extend([(segment, ids[split:]), *others])
        both = read(torch.cat((head, rest[0][0])))
        if not torch.equal(both, reference):
            raise refusal(body.device)
    decoder = InvariantDecoder(body)
    ((_, trunk),) = body.extend([(None, ids[: length - 4])])
    for _ in range(5):
        decoder.add(body.pool.segment(trunk))
    for position in range(length - 4, length):
        hidden = decoder.step([ids[position]] * 5)
        if not torch.equal(read(hidden[2:3]), reference[position : position + 1]):
            raise refusal(body.device)


def _two_layers(body: Body) -> Body:
    """The first two layers of the model, with a pool of their own."""
    layers = body.weights.layers[:2]
    return Body(
        replace(body.dims, num_layers=len(layers)),
        replace(body.weights, layers=layers),
        max_context=min(body.max_context, 4 * BLOCK),
        attention=body.attention,
        pad_rows=body.pad_rows,
    )


def _as_it_is(hidden: torch.Tensor) -> torch.Tensor:
    return hidden


def refusal(device: torch.device) -> EngineError:
    """The error for a device whose kernels are not invariant, with advice for that device."""
    owner, advice = "the GPU's", "use batch_invariant=auto, which enables it on a CPU only, or device=cpu"
    if device.type == "cpu":
        owner = "this machine's"
        advice = "use dtype='float32' and threads=1, set MKL_CBWR=AVX2,STRICT in the environment, or run without it"
    return EngineError(
        f"batch_invariant=True cannot be honoured: {owner} matrix kernels give other bits for other batch shapes; "
        f"{advice}"
    )
