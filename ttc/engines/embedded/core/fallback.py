"""Architectures whose attention is transformers' own, too: the same interface, correct but slower.

What `transformers_body` leaves out, and everything on GPUs without a core of their own: causal language models whose
cache `CacheLayout` knows, with keys and values (caps of scores, sinks, ...), recurrent states (Mamba), or both
(Qwen3.5, LFM2, Granite 4, Nemotron-H, ...). Rows are decoded together, left-padded, at about the speed of `generate`;
prefixes are cached and reused, but every row holds its own copy, and prompts are prefilled one by one. A recurrent
model continues a text only where a state was kept: at the ends of prompts and of draws. Refused with an error are other
caches, models that count padding as positions (found by a short test at the start), and batch-invariant mode. LongRoPE
models are limited to the length beyond which they change the rotation angles of all keys.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from ttc.engines.embedded.core.model import Body
from ttc.engines.embedded.core.pool import PagePool, Segment
from ttc.engines.embedded.core.row_cache import CacheLayout, RowCache, cache_argument, empty_cache
from ttc.engines.embedded.core.transformers_module import (
    FOREIGN,
    TRIED,
    half_width,
    load_state,
    measure,
    pack,
    reads_ahead,
    same,
    words,
)
from ttc.engines.shared.compute import alone
from ttc.engines.shared.shape import Dims
from ttc.errors import ConfigError, PromptTooLong


class FallbackBody(Body):
    """A `Body` around a transformers module. Its "hidden states" are logits, since heads differ between families."""

    ends_prompts = True

    def __init__(self, module: Any, dims: Dims, max_context: int, layout: CacheLayout) -> None:
        self.module, self.dims, self.max_context, self.layout = module, dims, max_context, layout
        self.device, self.dtype = module.device, module.dtype
        self.extends_states = True
        """Whether the module computes several tokens after a state at once; else they are fed one by one."""
        half = half_width(layout.width)
        flat = replace(dims, num_layers=1, num_kv_heads=1, head_dim=half)
        token = 2 * half * layout.dtype.itemsize
        self.pool = PagePool(flat, layout.dtype, self.device, state_tokens=-(-layout.state_bytes // token))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Returns its argument: `extend` and the decoder return logits already."""
        return hidden

    def extend(self, items: Sequence[tuple[Segment | None, Sequence[int]]]) -> list[tuple[torch.Tensor, Segment]]:
        """See `Body.extend`; items are computed one after another."""
        return [self._extend_one(prefix, ids, {}) for prefix, ids in items]

    def prefill(self, items: Sequence[tuple[Segment | None, Sequence[int]]]) -> list[tuple[torch.Tensor, Segment]]:
        """See `Body.prefill`; logits of all tokens of a long prompt would take more memory than its keys."""
        names = inspect.signature(self.module.forward).parameters
        last = {"logits_to_keep": 1} if "logits_to_keep" in names else {}
        return [self._extend_one(prefix, ids, last) for prefix, ids in items]

    def _extend_one(
        self, prefix: Segment | None, ids: Sequence[int], options: Mapping[str, Any]
    ) -> tuple[torch.Tensor, Segment]:
        start = prefix.end if prefix is not None else 0
        if start + len(ids) > self.max_context:
            raise PromptTooLong(f"{start + len(ids)} tokens exceed the context of {self.max_context}")
        cache = self.layout.build([self.read(prefix)])
        size = 1 if start and self.pool.stateful and not self.extends_states else len(ids)
        outputs = [self._compute(cache, start + at, ids[at : at + size], options) for at in range(0, len(ids), size)]
        segment = self.pool.segment(prefix)
        tokens, state = self.layout.row(cache, 0, start + len(ids))
        self.write(segment, RowCache(tokens[start:], state))
        return torch.cat(outputs), segment

    def _compute(self, cache: Any, start: int, ids: Sequence[int], options: Mapping[str, Any]) -> torch.Tensor:
        """Logits (T, vocab) of ids at positions from `start` on."""
        tokens, positions = torch.tensor([list(ids)], device=self.device), torch.arange(start, start + len(ids))
        return self.compute(cache, tokens, {"position_ids": positions[None]}, **options)[0]

    def compute(
        self, cache: Any, ids: torch.Tensor, places: Mapping[str, torch.Tensor], **options: Any
    ) -> torch.Tensor:
        """Logits (rows, T, vocab) of ids (rows, T) after a cache, which grows; a model without keys takes no places."""
        own = {name: tensor.to(self.device) for name, tensor in places.items() if self.layout.width}
        logits: torch.Tensor = self.module(
            input_ids=ids, use_cache=True, **own, **options, **cache_argument(self.module, cache)
        ).logits
        return logits

    def read(self, segment: Segment | None) -> RowCache:
        """What the chain of a segment holds."""
        if segment is None or not segment.end:
            return RowCache(torch.zeros(0, self.layout.width, dtype=self.layout.dtype, device=self.device), None)
        if self.pool.stateful and segment.state is None:
            raise RuntimeError("a recurrent model cannot continue from the middle of a text")
        kv = self.pool.read_chain(segment, 0, segment.end)[0, :, 0]  # (2, T, half)
        return RowCache(kv.transpose(0, 1).flatten(1)[:, : self.layout.width], segment.state)

    def write(self, segment: Segment, row: RowCache) -> None:
        """Append tokens to a segment, and set the state after them."""
        half = half_width(self.layout.width)
        kv = F.pad(row.tokens, (0, 2 * half - self.layout.width)).unflatten(1, (2, half)).transpose(0, 1)
        self.pool.append(segment, kv[None, :, None])
        self.pool.keep(segment, row.state)

    def swap(self, state: Mapping[str, torch.Tensor]) -> None:
        """See `Body.swap`."""
        load_state(self.module, state)


class FallbackDecoder:
    """A `Decoder` that keeps all rows in one left-padded transformers cache, rebuilt when rows are added."""

    def __init__(self, body: Body) -> None:
        if not isinstance(body, FallbackBody):
            raise ConfigError("FallbackDecoder decodes only a FallbackBody")
        self.body: FallbackBody = body
        self.num_rows = 0
        self._segments: list[Segment] = []
        self._lengths: list[int] = []
        self._kept: list[RowCache] = []  # while no cache is built
        self._cache: Any = None
        self._longest = self._num_cached = 0  # positions and rows of the cache, with padding and removed rows
        self._places: list[int] = []  # of each row in the cache

    def add(self, segment: Segment) -> int:
        """See `Decoder.add`."""
        if self._cache is not None:
            self._kept = [self._row(row) for row in range(self.num_rows)]
            self._cache = None
        self._kept.append(self.body.read(segment))
        self._lengths.append(segment.end)
        self._segments.append(segment)
        self.num_rows += 1
        return self.num_rows - 1

    def _row(self, row: int) -> RowCache:
        if self._cache is None:
            return self._kept[row]
        return self.body.layout.row(self._cache, self._places[row], self._lengths[row])

    def remove(self, row: int) -> None:
        """See `Decoder.remove`."""
        segment = self._segments[row]
        if self._lengths[row] > segment.end:
            tokens, state = self._row(row)
            self.body.write(segment, RowCache(tokens[segment.end :], state))
        self.num_rows -= 1
        rows: list[Any] = [self._lengths, self._segments, self._places if self._cache is not None else self._kept]
        for column in rows:
            column[row] = column[-1]
            del column[-1]

    def step(self, tokens: Sequence[int]) -> torch.Tensor:
        """See `Decoder.step`; returns logits (num_rows, vocab)."""
        self._build()
        real = torch.tensor(self._lengths)
        mask = torch.arange(self._longest + 1)[None] >= (self._longest - real)[:, None]
        logits = self.body.compute(
            self._cache,
            torch.tensor(list(tokens), device=self.body.device)[:, None],
            {"position_ids": real[:, None], "attention_mask": mask.long()},
        )
        self._lengths = [length + 1 for length in self._lengths]
        self._longest += 1
        return logits[:, -1]

    def _build(self) -> None:
        """Bring the rows into a cache in their order, without those that were removed."""
        if self._cache is None:
            self._cache, self._kept = self.body.layout.build(self._kept), []
            self._longest = max(self._lengths)
        elif self._places != list(range(self._num_cached)):
            self._cache.reorder_cache(torch.tensor(self._places, device=self.body.device))
        self._num_cached, self._places = self.num_rows, list(range(self.num_rows))


def _try(module: Any) -> CacheLayout:
    """The layout of the module's cache, seen on test tokens."""
    with torch.inference_mode():
        cache = empty_cache(module.config)
        ids = torch.tensor([[1, 2, 3]], device=module.device)
        module(input_ids=ids, use_cache=True, **cache_argument(module, cache))
        return CacheLayout(module.config, cache, 3)


def _reads_alike(body: FallbackBody) -> bool:
    """Whether tokens after cached ones, in a row beside a longer one, get the logits of one pass over the whole text.

    They do not where a model attends to later tokens, or where it derives positions from the cache length, padding
    included. Some recurrent models ignore their state where several tokens follow it: these are fed one by one.
    """
    ids = list(range(1, TRIED + 1))
    with torch.inference_mode():
        whole = body.module(input_ids=torch.tensor([ids], device=body.device), use_cache=False).logits[0, -2:].float()
        ((_, start),) = body.extend([(None, ids[:-3])])
        ((before, segment),) = body.extend([(start, ids[-3:-1])])
        if body.pool.stateful and not same(before[-1].float(), whole[0], body.dtype):
            body.extends_states = False
            ((_, segment),) = body.extend([(start, ids[-3:-1])])
        ((_, longer),) = body.extend([(None, ids[:-1] * 2)])
        decoder = FallbackDecoder(body)
        for row in (longer, segment):
            decoder.add(row)
        return same(decoder.step([1, ids[-1]])[1].float(), whole[1], body.dtype) and not reads_ahead(body.module)


def fallback_body(module: Any, folder: Path, family: str, most: int, max_context: int | None) -> FallbackBody:
    """A body for a loaded module of a family, whose longest text is `most`.

    Raises:
        ConfigError: its cache is of an unknown kind, or its results depend on the lengths of other rows.
    """
    try:
        layout = alone(lambda: _try(module))
    except FOREIGN as exc:
        raise ConfigError(
            f"{folder}: a {family} model keeps a cache of its own kind, so the embedded engine cannot "
            f"branch it ({words(exc)}): use --engine vllm"
        ) from exc
    layers, heads, size = layout.num_attending, layout.num_heads, layout.head_dim
    dims = measure(module, num_layers=layers, num_kv_heads=heads, head_dim=size, width=layout.width, max_context=most)
    body = FallbackBody(module, dims, min(max_context or dims.max_context, dims.max_context), layout)
    try:
        is_alike = dims.max_context <= 2 * TRIED or alone(lambda: _reads_alike(body))
    except FOREIGN as exc:  # ProphetNet and XLM check that positions and masks are those of texts of one length
        raise ConfigError(
            f"{folder}: a {family} model cannot decode texts of different lengths together, as the "
            f"embedded engine does ({words(exc)}): use --engine vllm"
        ) from exc
    if not is_alike:
        raise ConfigError(
            f"{folder}: a {family} model attends to later tokens, or counts padding as positions, so "
            "the embedded engine cannot decode texts of different lengths together: use --engine vllm"
        )
    alone(lambda: pack(module))
    return body
