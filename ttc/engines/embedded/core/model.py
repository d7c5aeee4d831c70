"""The forward pass of the Llama, Qwen2, Qwen3 and SmolLM3 families, and the stable interface for scorers.

A scorer, or any other user of hidden states, needs three names::

    body, rest = load_body(folder, dtype="auto")    # rest: tensors of the folder that are not part of the body
    (hidden, handle), = body.extend([(None, ids)])  # hidden (T, D) after the final norm, and the keys and values
    out = body.extend([(handle, step_a), (handle, step_b)])  # two forks: only the new tokens are computed

A handle is a `ttc.engines.embedded.core.pool.Segment`: it lives as long as something refers to it, and forks share its
memory. `handle.end` is its number of tokens. The items of one `extend` are batched together, and what they share is
read once. `body.dims.model_shape(num_labels).flops(len(new), handle.end)` gives the FLOPs.

`Body` is not thread-safe. Set the number of threads with `torch.set_num_threads` in the thread that calls it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import torch
import torch.nn.functional as F

from ttc.engines.embedded.core.attention import APART, PagedAttention, PrefixAttention, is_step
from ttc.engines.embedded.core.pool import PAGE, STEP_PAGE, PagePool, Segment
from ttc.engines.embedded.core.weights import Weights, check_tied, read_tensors
from ttc.engines.shared.compute import alone, fuses_attention, native, pick_dtype
from ttc.engines.shared.shape import Dims, read_config, rope_tables, supported
from ttc.errors import ConfigError, PromptTooLong

Attend: TypeAlias = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(layer, q (T, heads, D) scaled, k (T, kv heads, D), v (T, kv heads, D)) -> (T, heads * D)."""

MakeAttend: TypeAlias = Callable[[PagePool, Sequence[tuple[Segment, int]]], Attend]
"""Makes the attention of a batch from the segments that new tokens are appended to, and the number for each."""

Parts: TypeAlias = list[tuple[int, slice]]
"""Indices of items, and the slice of each item's new tokens."""

_TOKENS = 1024
"""Most tokens of one batch, which bounds its scratch memory."""


class LayerOps(Protocol):
    """The operations of a layer besides its matrix products, over T tokens at once: in torch, or compiled (`native`).

    In bf16, torch's operations round more often. GPUs and batch-invariant mode use torch's.
    """

    def norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Root-mean-square norm over the last axis of x (T, D), in fp32; weight (D) fp32."""
        ...

    def heads(
        self, qkv: torch.Tensor, weight: torch.Tensor | None, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries (scaled), keys and values (T, heads, D) of one product; rotated (RoPE), after any q/k norm."""
        ...

    def gate(self, both: torch.Tensor) -> torch.Tensor:
        """SiLU of the first half of both (T, 2 I) times the second half."""
        ...


class TorchOps:
    """`LayerOps` in torch."""

    def __init__(self, dims: Dims) -> None:
        self._dims, self._scale = dims, dims.head_dim**-0.5
        # A tensor, since every Python number in an in-place operation costs four small kernels. It is on the CPU for
        # every device: kernels take its value.
        self._eps = torch.tensor([dims.eps])

    def norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """See `LayerOps.norm`; on a CPU with half as many kernels as torch's own."""
        if x.is_cuda:
            return F.rms_norm(x, x.shape[-1:], None, float(self._eps)).mul_(weight)
        exact = x.float()
        length = torch.linalg.vector_norm(exact, dim=-1, keepdim=True)
        scale = torch.addcmul(self._eps, length, length, value=1.0 / x.shape[-1]).rsqrt_()
        return (exact * scale).mul_(weight).to(x.dtype)

    def heads(
        self, qkv: torch.Tensor, weight: torch.Tensor | None, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """See `LayerOps.heads`."""
        dims = self._dims
        heads = dims.num_heads + dims.num_kv_heads
        qkv = qkv.view(len(qkv), heads + dims.num_kv_heads, dims.head_dim)
        qk, v = qkv[:, :heads], qkv[:, heads:]
        if weight is not None:
            qk = self.norm(qk, weight)
        qk = torch.addcmul(qk * cos.unsqueeze(1), qk.roll(dims.head_dim // 2, -1), sin.unsqueeze(1))
        return qk[:, : dims.num_heads] * self._scale, qk[:, dims.num_heads :], v

    def gate(self, both: torch.Tensor) -> torch.Tensor:
        """See `LayerOps.gate`."""
        size = self._dims.intermediate
        return F.silu(both[:, :size]).mul_(both[:, size:])


class Body:
    """Embedding, layers and final norm, with the head when it was loaded.

    Parameters: `attention` is used by `extend` where no compiled kernel is; `pad_rows` rounds the rows of every matrix
    product up to a multiple (batch-invariant mode; 1 elsewhere); `steps` is for items with a few new tokens each: pages
    are short (`STEP_PAGE`), and a compiled kernel computes the attention of such items where there is one.
    """

    _pads_below: float = math.inf
    """Mean number of new tokens per item below which a batch of different lengths is padded."""
    ends_prompts: bool = False
    """Whether an answer's first token is sampled from the output of `extend` rather than of a decoding step."""
    fuses: bool = True
    """Whether torch's fused attention is used for prompts and shared prefixes; else compiled kernels read in place."""
    _tables: tuple[torch.Tensor, torch.Tensor] | None = None
    windows: tuple[int | None, ...]
    """Per layer, how many of the last tokens a token reads, itself included; None is all. Needs compiled kernels."""
    _in_place: MakeAttend | None = None
    """Attention that reads keys in place, for steps, and for everything unless `fuses`; None without kernels."""

    def __init__(
        self,
        dims: Dims,
        weights: Weights,
        *,
        max_context: int,
        attention: MakeAttend = PrefixAttention,
        pad_rows: int = 1,
        steps: bool = False,
    ) -> None:
        self.weights, self._tables = weights, None
        place = weights.embed.device, weights.embed.dtype
        self._prepare(dims, *place, max_context, attention=attention, pad_rows=pad_rows, steps=steps)

    def _prepare(
        self,
        dims: Dims,
        device: torch.device,
        dtype: torch.dtype,
        max_context: int,
        *,
        attention: MakeAttend = PrefixAttention,
        pad_rows: int = 1,
        steps: bool = False,
        windows: Sequence[int | None] = (),
    ) -> None:
        """Choose the attention and make the pool."""
        self.windows = tuple(windows) or (None,) * dims.num_layers
        self.dims, self.device, self.dtype, self.max_context = dims, device, dtype, max_context
        self.attention, self.pad_rows = attention, pad_rows
        if device.type == "cpu" and attention is PrefixAttention:
            self._pads_below = APART
        # In batch-invariant mode a decoding step feeds the last token of every prompt, so its bits are those of any
        # other step.
        self.ends_prompts = pad_rows == 1
        kernels = native(device, dtype) if pad_rows == 1 else None
        self.pool = PagePool(dims, dtype, device, STEP_PAGE if steps else PAGE, kernels)
        self._ops: LayerOps = TorchOps(dims) if kernels is None else kernels.NativeOps(dims)
        if kernels is not None and kernels.serves(dims.head_dim):
            self.fuses = fuses_attention(dtype) and not any(self.windows)
            if steps or not self.fuses:
                self._in_place = partial(PagedAttention, kernels=kernels, windows=self.windows)

    def place(self) -> contextlib.AbstractContextManager[Any]:
        """A context that makes this body's GPU the current device, to which torch launches kernels."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else contextlib.nullcontext()

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor:
        """Run all layers over T tokens: ids, positions (T,) -> hidden (T, D) after the final norm."""
        weights, ops = self.weights, self._ops
        rotated = self._rotary(positions)
        still = _unturned(*rotated) if self.dims.unrotated else rotated
        x = F.embedding(ids, weights.embed)
        for index, layer in enumerate(weights.layers):
            qkv, turn = layer.qkv(ops.norm(x, layer.norm_in)), still if index in self.dims.unrotated else rotated
            x = layer.out.add_to(x, attend(index, *ops.heads(qkv, layer.qk_norm, *turn)))
            x = layer.down.add_to(x, ops.gate(layer.gate_up(ops.norm(x, layer.norm_mlp))))
        return ops.norm(x, weights.norm)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Apply the head: hidden (T, D) -> (T, vocab) in the model's dtype."""
        if self.weights.head is None:
            raise ConfigError("this model was loaded without its head")
        num = hidden.shape[0]
        extra = -num % self.pad_rows
        return self.weights.head(F.pad(hidden, (0, 0, 0, extra)))[:num] if extra else self.weights.head(hidden)

    def extend(self, items: Sequence[tuple[Segment | None, Sequence[int]]]) -> list[tuple[torch.Tensor, Segment]]:
        """Compute new tokens after cached prefixes, batched.

        Args:
            items: (handle or None, new ids); every item needs at least one new id.

        Returns:
            Per item, in order: hidden states (T, D) of its new tokens after the final norm, and the handle that
            now ends with them.

        Raises:
            ConfigError: an item has no new id.
            PromptTooLong: an item would exceed the context of the model.
            MemoryError: the pool lacks pages for all items; nothing was computed.
        """
        for prefix, ids in items:
            total = (prefix.end if prefix else 0) + len(ids)
            if not ids:
                raise ConfigError("extend: an item has no new token")
            if total > self.max_context:
                raise PromptTooLong(f"{total} tokens exceed the context of {self.max_context}")
        self.pool.check_free(len(ids) for _, ids in items)
        segments = [self.pool.segment(prefix) for prefix, _ in items]
        outputs: list[list[torch.Tensor]] = [[] for _ in items]
        for make_attend, batch in self._plan([(segments[i], len(ids)) for i, (_, ids) in enumerate(items)]):
            parts = [(segments[i], items[i][1][part]) for i, part in batch]
            for (i, _), hidden in zip(batch, self._append(parts, make_attend), strict=True):
                outputs[i].append(hidden)
        return [
            (parts[0] if len(parts) == 1 else torch.cat(parts), segment)
            for parts, segment in zip(outputs, segments, strict=True)
        ]

    def prefill(self, items: Sequence[tuple[Segment | None, Sequence[int]]]) -> list[tuple[torch.Tensor, Segment]]:
        """Like `extend`, where only the last of an item's hidden states is wanted."""
        return self.extend(items)

    def _plan(self, items: Sequence[tuple[Segment, int]]) -> Iterator[tuple[MakeAttend | None, Parts]]:
        """Parts of items to compute together, each batch with its attention; None: this body's default."""
        lengths = [count for _, count in items]
        others = list(range(len(items)))
        if self._in_place is not None:
            paged = [i for i, (segment, count) in enumerate(items) if not self.fuses or is_step(segment.end, count)]
            for batch in _batches([lengths[i] for i in paged], 0):
                yield self._in_place, [(paged[i], part) for i, part in batch]
            others = sorted({*others}.difference(paged))
        for batch in _batches([lengths[i] for i in others], self._pads_below):
            yield None, [(others[i], part) for i, part in batch]

    def _append(
        self, items: Sequence[tuple[Segment, Sequence[int]]], make_attend: MakeAttend | None
    ) -> tuple[torch.Tensor, ...]:
        """Compute new tokens at the end of segments; returns the hidden states (T, D) of each."""
        lengths = [len(ids) for _, ids in items]
        for segment, ids in items:
            self.pool.reserve(segment, len(ids))
        attend = (make_attend or self.attention)(self.pool, [(segment, len(ids)) for segment, ids in items])
        flat = torch.tensor([token for _, ids in items for token in ids], device=self.device)
        spans = [torch.arange(segment.end, segment.end + len(ids)) for segment, ids in items]
        positions = torch.cat(spans).to(self.device)
        num, extra = len(flat), -len(flat) % self.pad_rows

        def padded(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return F.pad(attend(layer, q[:num], k[:num], v[:num]), (0, 0, 0, extra))

        output = self.forward(F.pad(flat, (0, extra)), F.pad(positions, (0, extra)), padded if extra else attend)
        for segment, ids in items:
            segment.length += len(ids)
        return torch.split(output[:num], lengths)

    def _rotary(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self._tables is None:
            cos, sin = rope_tables(self.dims, self.max_context)
            self._tables = cos.to(self.device, self.dtype), sin.to(self.device, self.dtype)
        cos, sin = self._tables
        return cos[positions], sin[positions]

    def swap(self, state: Mapping[str, torch.Tensor]) -> None:
        """Replace all weights by a copy of `state`; earlier handles become stale, and their holders must drop them.

        Without the copy, tensors used as they are would change with the trainer's next step.
        """
        head = self.weights.head is not None
        own = {name: tensor.detach().clone() for name, tensor in state.items()}
        self.weights = Weights.build(own, self.dims, self.dtype, self.device, head, self.pad_rows > 1)


def _unturned(cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Tables of the same shape for layers without rotary positions."""
    return torch.ones_like(cos), torch.zeros_like(sin)


def _batches(lengths: Sequence[int], pads_below: float) -> list[Parts]:
    """Parts of items to compute together, in order.

    The items of a batch have similar lengths, so that padding at most doubles the work. Items whose mean length is too
    large for padding (`pads_below`) share a batch at any lengths, since every batch reads all weights.
    """
    batches: list[Parts] = []
    shortest = tokens = 0
    for i in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        apart = bool(batches) and tokens + lengths[i] >= pads_below * (len(batches[-1]) + 1)
        if batches and (lengths[i] <= 2 * shortest or apart) and tokens + lengths[i] <= _TOKENS:
            batches[-1].append((i, slice(0, lengths[i])))
            tokens += lengths[i]
            continue
        starts = range(0, lengths[i], _TOKENS)
        batches += [[(i, slice(start, min(start + _TOKENS, lengths[i])))] for start in starts]
        shortest, tokens = lengths[i], lengths[i]
    return batches


def load_body(
    folder: str | Path,
    *,
    device: str = "auto",
    dtype: str = "auto",
    max_context: int | None = None,
    head: bool = False,
    attention: MakeAttend = PrefixAttention,
    pad_rows: int = 1,
    steps: bool = False,
) -> tuple[Body, dict[str, torch.Tensor]]:
    """Load a model folder.

    Args:
        folder: holds config.json and safetensors.
        device: "auto" (a GPU when there is one), "cpu", "cuda", ...
        dtype: "auto" (bf16 where the hardware multiplies it, else fp32), "bfloat16" or "float32".
        max_context: a limit below the model's own, in tokens.
        head: also load the language-model head.
        attention: as for `Body`.
        pad_rows: as for `Body`.
        steps: as for `Body`.

    Returns:
        The body, and the folder's remaining tensors under their stored names, such as a scorer's own head.

    Raises:
        ConfigError: files are missing or the architecture is not one of the families above.
    """
    path = Path(folder)
    config = read_config(path)
    if not supported(config):
        raise ConfigError(f"{path}: model_type {config['model_type']!r} is not supported by the torch core")
    dims = Dims.from_config(config)
    place = pick_device(device)
    state = read_tensors(path)
    if head:
        check_tied(state, dims, path)
    weights = alone(lambda: Weights.build(state, dims, pick_dtype(dtype, place), place, head, pad_rows > 1))
    limit = min(max_context or dims.max_context, dims.max_context)
    body = Body(dims, weights, max_context=limit, attention=attention, pad_rows=pad_rows, steps=steps)
    return body, beside_body(state)


def beside_body(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors of a folder that are not part of the body, such as a scorer's own head."""
    return {name: tensor for name, tensor in state.items() if not _is_body(name)}


def pick_device(name: str) -> torch.device:
    """Resolve `auto` to the first GPU or the CPU; raises ConfigError for an unknown or absent device."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device: Any = None
    with contextlib.suppress(RuntimeError):
        device = torch.device(name)
    if device is None or (device.type == "cuda" and not torch.cuda.is_available()):
        raise ConfigError(f"device {name!r} is not available here; use cpu")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        last = torch.cuda.device_count() - 1
        raise ConfigError(f"device {name!r} is not available here: the GPUs are cuda:0 to cuda:{last}")
    return torch.device(device)


def _is_body(name: str) -> bool:
    inner = name.removeprefix("model.")
    return inner.startswith(("layers.", "embed_tokens.")) or inner == "norm.weight"
