"""Other architectures through transformers' own modules: the same interface, correct but slower.

Any causal language model whose cache holds keys and values of the same sizes in every layer runs here (Gemma, Mistral,
Phi, Granite, mixtures of experts, DeepSeek's latent attention, ...). Where a value is smaller than a key, zeros are
kept behind it. Rows are decoded together, left-padded, at about the speed of `generate`; prefixes are cached and
reused, but every row holds its own copy, and prompts are prefilled one by one. Refused with an error are models with a
recurrent state, models that count padding as positions (found by a short test at the start), and batch-invariant mode.
LongRoPE models are limited to the length beyond which they change the rotation angles of all keys.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F

from ttc.core import ModelShape
from ttc.engines.embedded.core.model import Body
from ttc.engines.embedded.core.pool import PagePool, Segment
from ttc.engines.shared.compute import alone, attention_options
from ttc.engines.shared.shape import Dims
from ttc.errors import ConfigError, PromptTooLong

__all__ = ["FallbackBody", "FallbackDecoder", "load_fallback"]

Sizes: TypeAlias = tuple[int, int]
"""Numbers of a key and of a value of one head."""


@dataclass(frozen=True, slots=True)
class _MeasuredDims(Dims):
    """Dimensions of a loaded module, with its actual number of matrix parameters."""

    num_params: int = 0

    def model_shape(self, num_outputs: int) -> ModelShape:
        """See `Dims.model_shape`; the head is already counted."""
        return ModelShape(self.num_params, self.num_layers, self.num_heads * self.head_dim)


class FallbackBody(Body):
    """A `Body` around a transformers module. Its "hidden states" are logits, since heads differ between families."""

    def __init__(self, module: Any, dims: Dims, max_context: int, sizes: Sizes) -> None:
        self.module, self.dims, self.max_context, self.sizes = module, dims, max_context, sizes
        self.device, self.dtype = module.device, module.dtype
        self.pool = PagePool(dims, self.dtype, self.device)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Returns its argument: `extend` and the decoder return logits already."""
        return hidden

    def extend(self, items: Sequence[tuple[Segment | None, Sequence[int]]]) -> list[tuple[torch.Tensor, Segment]]:
        """See `Body.extend`; items are computed one after another."""
        return [self._extend_one(prefix, ids) for prefix, ids in items]

    def _extend_one(self, prefix: Segment | None, ids: Sequence[int]) -> tuple[torch.Tensor, Segment]:
        start = prefix.end if prefix is not None else 0
        if start + len(ids) > self.max_context:
            raise PromptTooLong(f"{start + len(ids)} tokens exceed the context of {self.max_context}")
        kv = None if prefix is None else self.pool.read_chain(prefix, 0, start)[:, :, None]
        cache = new_cache(kv, self.sizes)
        output = self.module(
            input_ids=torch.tensor([list(ids)], device=self.device), use_cache=True, **_behind(self.module, cache)
        )
        segment = self.pool.segment(prefix)
        self.pool.append(segment, read_cache(cache)[:, :, 0, :, start:])
        return output.logits[0], segment

    def swap(self, state: Mapping[str, torch.Tensor]) -> None:
        """See `Body.swap`."""
        missing, unknown = self.module.load_state_dict(dict(state), strict=False)
        missing = [name for name in missing if name != "lm_head.weight"]
        if missing or unknown:
            raise ConfigError(f"the new weights lack {missing[:3]} or hold unknown {list(unknown)[:3]}")


class FallbackDecoder:
    """A `Decoder` that keeps all rows in one left-padded transformers cache, rebuilt when rows are added or removed."""

    def __init__(self, body: Body) -> None:
        if not isinstance(body, FallbackBody):
            raise ConfigError("FallbackDecoder decodes only a FallbackBody")
        self.body: FallbackBody = body
        self.num_rows = 0
        self._segments: list[Segment] = []
        self._lengths: list[int] = []
        self._kept: list[torch.Tensor | None] = []  # per row (layers, 2, kv heads, length, D), while no cache is built
        self._cache: Any = None

    def add(self, segment: Segment) -> int:
        """See `Decoder.add`."""
        self._spill()
        self._kept.append(self.body.pool.read_chain(segment, 0, segment.end) if segment.end else None)
        self._lengths.append(segment.end)
        self._segments.append(segment)
        self.num_rows += 1
        return self.num_rows - 1

    def remove(self, row: int) -> None:
        """See `Decoder.remove`."""
        self._spill()
        segment, states, last = self._segments[row], self._kept[row], self.num_rows - 1
        if states is not None:
            self.body.pool.append(segment, states[:, :, :, segment.end :])
        self._kept[row], self._lengths[row] = self._kept[last], self._lengths[last]
        self._segments[row] = self._segments[last]
        del self._kept[last], self._lengths[last], self._segments[last]
        self.num_rows = last

    def step(self, tokens: Sequence[int]) -> torch.Tensor:
        """See `Decoder.step`; returns logits (num_rows, vocab)."""
        longest, device = max(self._lengths), self.body.device
        if self._cache is None:
            self._cache = new_cache(self._padded(longest) if longest else None, self.body.sizes)
        real = torch.tensor(self._lengths, device=device)
        mask = torch.arange(longest + 1, device=device)[None] >= (longest - real)[:, None]
        output = self.body.module(
            input_ids=torch.tensor(list(tokens), device=device)[:, None],
            position_ids=real[:, None],
            attention_mask=mask.long(),
            use_cache=True,
            **_behind(self.body.module, self._cache),
        )
        self._lengths = [length + 1 for length in self._lengths]
        logits: torch.Tensor = output.logits[:, -1]
        return logits

    def _padded(self, longest: int) -> torch.Tensor:
        """All rows as (layers, 2, rows, kv heads, longest, D), padded on the left."""
        shape = next(states.shape for states in self._kept if states is not None)
        empty = torch.zeros((*shape[:3], 0, shape[4]), dtype=self.body.dtype, device=self.body.device)
        rows = [empty if states is None else states for states in self._kept]
        return torch.stack([F.pad(row, (0, 0, longest - row.shape[3], 0)) for row in rows], 2)

    def _spill(self) -> None:
        """Move the rows out of the cache."""
        if self._cache is not None:
            whole, self._cache = read_cache(self._cache), None
            longest = max(self._lengths)
            self._kept = [whole[:, :, i, :, longest - length :] for i, length in enumerate(self._lengths)]


def new_cache(kv: torch.Tensor | None, sizes: Sizes) -> Any:
    """A transformers cache holding kv (layers, 2, rows, kv heads, T, D), or nothing."""
    from transformers import DynamicCache

    cache = DynamicCache()
    for layer, (keys, values) in enumerate(kv if kv is not None else ()):
        cache.update(keys[..., : sizes[0]], values[..., : sizes[1]], layer)
    return cache


def _behind(module: Any, cache: Any) -> dict[str, Any]:
    """The cache as the keyword argument that the module expects: `cache` since transformers 5.24."""
    return {"cache" if "cache" in inspect.signature(module.forward).parameters else "past_key_values": cache}


def read_cache(cache: Any) -> torch.Tensor:
    """The cache as (layers, 2, rows, kv heads, T, D), D being the larger of the sizes of a key and of a value."""
    return torch.stack([_stacked(layer.keys, layer.values) for layer in cache.layers])


def _stacked(keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    size = max(keys.shape[-1], values.shape[-1])
    return torch.stack([F.pad(part, (0, size - part.shape[-1])) for part in (keys, values)])


def _try(module: Any, device: torch.device) -> tuple[torch.Tensor, Sizes]:
    """The keys and values of three test tokens, and their sizes."""
    with torch.inference_mode():
        cache = new_cache(None, (0, 0))
        module(input_ids=torch.tensor([[1, 2, 3]], device=device), use_cache=True, **_behind(module, cache))
        sizes = {(layer.keys.shape[-1], layer.values.shape[-1]) for layer in cache.layers}
        if len(sizes) != 1:
            raise ValueError("the layers' keys and values are of different sizes")
        return read_cache(cache), sizes.pop()


MAX_WORDS = 300
"""Most characters quoted from an error of transformers."""

_FOREIGN = (AssertionError, AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)
"""What a model's own code raises where it cannot compute something."""
_TRIED = 8
_ROUNDING, _COARSE_ROUNDING = 0.0003, 0.1
"""Relative to the norm of the logits, in fp32 and in 16 bits: rounding stays far below, and wrong positions or
attention far above, except where tokens hardly look at each other."""


def _reads_alike(body: FallbackBody) -> bool:
    """Whether a token after cached keys, in a row beside a longer one, gets the logits of one pass over the whole text.

    It does not where a model attends to later tokens, or where it derives positions from the cache length, padding
    included.
    """
    ids = list(range(1, _TRIED + 1))
    with torch.inference_mode():
        whole = body.module(input_ids=torch.tensor([ids], device=body.device), use_cache=False).logits[0, -1].float()
        decoder = FallbackDecoder(body)
        for prefix in (ids[:-1] * 2, ids[:-1]):
            ((_, segment),) = body.extend([(None, prefix)])
            decoder.add(segment)
        own = decoder.step([1, ids[-1]])[1].float()
    most = _ROUNDING if body.dtype == torch.float32 else _COARSE_ROUNDING
    return not bool((own - whole).norm() > most * (whole - whole.mean()).norm())  # NaN counts as alike


def _steady(text: Any) -> int | None:
    """The text length up to which a token's keys depend only on the text before it; None: always.

    LongRoPE uses other angles for longer texts, so keys computed in a shorter text, or beside a longer one in a batch,
    would belong to another model.
    """
    rope = getattr(text, "rope_parameters", None) or {}
    parts = [rope, *(part for part in rope.values() if isinstance(part, Mapping))]
    name = "original_max_position_embeddings"
    lengths = [part.get(name) or getattr(text, name, None) for part in parts if part.get("rope_type") == "longrope"]
    return min((int(length) for length in lengths if length), default=None)


def load_fallback(
    folder: Path, config: Mapping[str, Any], *, device: torch.device, dtype: torch.dtype, max_context: int | None
) -> FallbackBody:
    """Load any causal language model folder through transformers.

    Raises:
        ConfigError: transformers cannot load it, some weights are missing, its cache is not plain keys and
            values, or its results depend on the lengths of other rows.
    """
    from transformers import AutoModelForCausalLM

    load = AutoModelForCausalLM.from_pretrained
    try:
        options = attention_options(folder)
        module, report = alone(lambda: load(str(folder), dtype=dtype, output_loading_info=True, **options))
    except Exception as exc:  # safetensors and huggingface_hub raise bare exceptions
        words = shorten(str(exc), MAX_WORDS, placeholder=" ...")  # some errors list every known architecture
        raise ConfigError(f"{folder}: transformers cannot load a {config['model_type']} model here: {words}") from exc
    if missing := sorted(report["missing_keys"]):  # transformers initialises them at random and only warns
        raise ConfigError(f"{folder}: the weights hold no tensor {missing[0]}: the folder is incomplete")
    module = alone(lambda: module.to(device).eval())
    try:
        kv, sizes = alone(lambda: _try(module, device))
        if kv.shape[4] != 3:
            raise ValueError("no key per token")
    except _FOREIGN as exc:
        raise ConfigError(
            f"{folder}: a {config['model_type']} model does not cache plain keys and values, so the embedded engine "
            "cannot branch it: use --engine vllm"
        ) from exc
    dims = _measure(module, kv, _longest(folder, module.config.get_text_config(), max_context))
    body = FallbackBody(module, dims, min(max_context or dims.max_context, dims.max_context), sizes)
    try:
        is_alike = dims.max_context <= 2 * _TRIED or alone(lambda: _reads_alike(body))
    except _FOREIGN as exc:  # ProphetNet and XLM check that positions and masks are those of texts of one length
        words = shorten(str(exc), MAX_WORDS, placeholder=" ...") or type(exc).__name__
        raise ConfigError(
            f"{folder}: a {config['model_type']} model cannot decode texts of different lengths together, as the "
            f"embedded engine does ({words}): use --engine vllm"
        ) from exc
    if not is_alike:
        raise ConfigError(
            f"{folder}: a {config['model_type']} model attends to later tokens, or counts padding as positions, so "
            "the embedded engine cannot decode texts of different lengths together: use --engine vllm"
        )
    return body


def _longest(folder: Path, text: Any, max_context: int | None) -> int:
    """The longest text that can be read; warns if that is shorter than the model's own limit and the requested one."""
    most = int(getattr(text, "max_position_embeddings", 2048))
    steady = _steady(text)
    if steady is not None and steady < min(max_context or most, most):
        warnings.warn(
            f"{folder}: beyond {steady} tokens this model rotates all of its keys by other angles, cached ones "
            f"included, so the embedded engine reads at most {steady} tokens; for up to {most} use --engine vllm",
            RuntimeWarning,
            stacklevel=3,
        )
    return most if steady is None else min(steady, most)


def _measure(module: Any, kv: torch.Tensor, max_context: int) -> _MeasuredDims:
    """Model dimensions from the config and from the keys and values `kv` of three tokens."""
    text = module.config.get_text_config()
    matrices = sum(p.numel() for name, p in module.named_parameters() if p.ndim > 1 and "embed" not in name)
    head = 0 if any("lm_head" in name for name, _ in module.named_parameters()) else text.vocab_size * text.hidden_size
    return _MeasuredDims(
        hidden=text.hidden_size,
        num_layers=kv.shape[0],
        num_heads=text.num_attention_heads,
        num_kv_heads=kv.shape[3],
        head_dim=kv.shape[5],
        intermediate=getattr(text, "intermediate_size", 0),
        vocab=text.vocab_size,
        eps=0.0,
        tied=head > 0,
        qk_norm=False,
        max_context=max_context,
        rope_theta=0.0,
        rope={},
        num_params=matrices + head,
    )
