"""What transformers' cache holds of one row: numbers per token, and a state where a model is recurrent.

Families keep different things: keys and values of one size or of a size per layer, an indexer's keys, states of
convolutions and of linear attention (Mamba, Gu & Dao 2023, arXiv 2312.00752; gated DeltaNet, Yang et al. 2024, arXiv
2412.06464) in some layers or in all. A `CacheLayout`, read off the cache of a few tokens, takes a cache of several rows
apart and builds one again, so that rows may come, go and branch. What a layer keeps per token is stored for all tokens,
windows included; a state exists only after the last token. Cost: one copy of the row each way.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import reduce
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

_PER_TOKEN = ("keys", "values", "indexer_keys")
"""What a layer of transformers' cache may hold per token."""


class RowState:
    """The states of a row's layers after its last token, in the order of `CacheLayout`."""

    __slots__ = ("__weakref__", "tensors")

    def __init__(self, tensors: tuple[torch.Tensor, ...]) -> None:
        self.tensors = tensors


class RowCache(NamedTuple):
    """A row: `tokens` (T, width); `state` None before the first token, and for models that are not recurrent."""

    tokens: torch.Tensor
    state: RowState | None


class _Part(NamedTuple):
    """What a layer keeps per token under a name: heads, and numbers of each."""

    layer: int
    name: str
    heads: int
    size: int
    dtype: torch.dtype


class _State(NamedTuple):
    """A state of a layer: `conv_states` or `recurrent_states`, and which of them."""

    layer: int
    name: str
    number: int


class CacheLayout:
    """Where a model's cache keeps what; made from a cache of one row of a few tokens.

    Raises ValueError where the cache is empty, or where a layer keeps something for other tokens than these.
    """

    def __init__(self, config: Any, cache: Any, num_tokens: int) -> None:
        self._config = config
        self._parts = [part for layer in range(len(cache.layers)) for part in _parts(cache.layers[layer], layer)]
        self._states = [state for layer in range(len(cache.layers)) for state in _states(cache.layers[layer], layer)]
        if not self._parts and not self._states:
            raise ValueError("the cache is empty")
        if any(_kept(cache, part).shape[2] != num_tokens for part in self._parts):
            raise ValueError("a layer does not keep something for each token")
        self.num_attending = len({part.layer for part in self._parts})
        self.num_heads = max((part.heads for part in self._parts), default=0)
        self.head_dim = max((part.size for part in self._parts), default=0)
        self._sizes = [part.heads * part.size for part in self._parts]
        self.width = sum(self._sizes)
        """Numbers per token of a row."""
        self.dtype = _widest([part.dtype for part in self._parts])
        self._blank = [torch.zeros_like(_state_of(cache, state)[0]) for state in self._states]
        self.state_bytes = sum(state.numel() * state.element_size() for state in self._blank)

    def build(self, rows: Sequence[RowCache]) -> Any:
        """A transformers cache of rows, padded on the left."""
        cache, longest = empty_cache(self._config), max(len(row.tokens) for row in rows)
        if not longest:
            return cache
        tokens = torch.stack([F.pad(row.tokens, (0, 0, longest - len(row.tokens), 0)) for row in rows])
        for layer, parts in self._per_layer(tokens).items():
            cache.update(parts["keys"], parts["values"], layer)
            if "indexer_keys" in parts:
                cache.layers[layer].update_indexer(parts["indexer_keys"].squeeze(1))
        for at, (state, blank) in enumerate(zip(self._states, self._blank, strict=True)):
            stacked = torch.stack([blank if row.state is None else row.state.tensors[at] for row in rows])
            update = getattr(cache.layers[state.layer], f"update_{state.name.removesuffix('s')}")
            update(stacked, state_idx=state.number)
        return cache

    def _per_layer(self, tokens: torch.Tensor) -> dict[int, dict[str, torch.Tensor]]:
        """What each layer keeps of tokens (rows, T, width), each (rows, heads, T, size)."""
        layers: dict[int, dict[str, torch.Tensor]] = {}
        for part, piece in zip(self._parts, tokens.split(self._sizes, -1) if self._sizes else (), strict=True):
            heads = piece.unflatten(-1, (part.heads, part.size)).transpose(1, 2)
            layers.setdefault(part.layer, {})[part.name] = heads.to(part.dtype)
        return layers

    def row(self, cache: Any, row: int, length: int) -> RowCache:
        """A copy of one row of a cache that is padded on the left; `length` is without the padding."""
        parts = [_kept(cache, part)[row] for part in self._parts]  # (heads, longest, size)
        own = [part[:, part.shape[1] - length :].transpose(0, 1).flatten(1).to(self.dtype) for part in parts]
        states = tuple(_state_of(cache, state)[row].clone() for state in self._states)
        tokens = torch.cat(own, -1) if own else torch.zeros(length, 0, device=states[0].device)
        return RowCache(tokens, RowState(states) if states else None)


def _parts(layer: Any, index: int) -> list[_Part]:
    fields = [(name, getattr(layer, name, None)) for name in _PER_TOKEN]
    parts = [(name, _numbers(tensor)) for name, tensor in fields if tensor is not None]
    return [_Part(index, name, tensor.shape[1], tensor.shape[3], tensor.dtype) for name, tensor in parts]


def _widest(dtypes: Sequence[torch.dtype]) -> torch.dtype:
    return reduce(torch.promote_types, dtypes) if dtypes else torch.float32


def _states(layer: Any, index: int) -> list[_State]:
    fields = [(name, getattr(layer, name, None) or {}) for name in ("conv_states", "recurrent_states")]
    return [_State(index, name, at) for name, states in fields for at, state in states.items() if state is not None]


def _kept(cache: Any, part: _Part) -> torch.Tensor:
    return _numbers(getattr(cache.layers[part.layer], part.name))


def _state_of(cache: Any, state: _State) -> torch.Tensor:
    tensor: torch.Tensor = getattr(cache.layers[state.layer], state.name)[state.number]
    return tensor


def _numbers(tensor: torch.Tensor) -> torch.Tensor:
    """As (rows, heads, T, numbers)."""
    return tensor if tensor.dim() == 4 else tensor.unsqueeze(1)


def empty_cache(config: Any) -> Any:
    """A cache whose layers keep all tokens, also those outside of a window, since rows of a batch differ in length."""
    from transformers import DynamicCache, cache_utils

    cache = DynamicCache(config=config)
    whole = cache_utils.LinearAttentionAndFullAttentionLayer, cache_utils.DynamicLayer
    for index, layer in enumerate(cache.layers):
        if getattr(layer, "is_sliding", False):
            states = getattr(layer, "number_of_states", None)
            cache.layers[index] = whole[1]() if states is None else whole[0](number_of_states=states)
    return cache


def cache_argument(module: Any, cache: Any) -> dict[str, Any]:
    """The cache under the name that the module expects: `cache` since transformers 5.24, `cache_params` in Mamba."""
    known = inspect.signature(module.forward).parameters
    return {next((name for name in ("cache", "cache_params") if name in known), "past_key_values"): cache}
