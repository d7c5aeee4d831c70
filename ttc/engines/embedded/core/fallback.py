"""Other architectures through transformers' own modules: the same interface, correct but slower.

Causal language models whose cache `CacheLayout` knows run here: keys and values (Gemma, Mistral, Phi, Granite, mixtures
of experts, DeepSeek's latent attention, ...), recurrent states (Mamba), and both (Qwen3.5, LFM2, Granite 4, Nemotron-H,
...). Rows are decoded together, left-padded, at about the speed of `generate`; prefixes are cached and reused, but
every row holds its own copy, and prompts are prefilled one by one. A recurrent model continues a text only where a
state was kept: at the ends of prompts and of draws. Refused with an error are other caches, models that count padding
as positions (found by a short test at the start), and batch-invariant mode. LongRoPE models are limited to the length
beyond which they change the rotation angles of all keys.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch
import torch.nn.functional as F

from ttc.core import ModelShape
from ttc.engines.embedded.core.model import Body
from ttc.engines.embedded.core.pool import PagePool, Segment
from ttc.engines.embedded.core.row_cache import CacheLayout, RowCache, cache_argument, empty_cache
from ttc.engines.shared.compute import alone, attention_options
from ttc.engines.shared.shape import Dims
from ttc.errors import ConfigError, PromptTooLong

__all__ = ["FallbackBody", "FallbackDecoder", "load_fallback"]


@dataclass(frozen=True, slots=True)
class _MeasuredDims(Dims):
    """Dimensions of a loaded module, with its actual number of matrix parameters, and the width of its cache."""

    num_params: int = 0
    width: int = 0

    def kv_bytes(self, itemsize: int) -> int:
        """See `Dims.kv_bytes`."""
        return 2 * _half(self.width) * itemsize

    def model_shape(self, num_outputs: int) -> ModelShape:
        """See `Dims.model_shape`; the head is already counted."""
        return ModelShape(self.num_params, self.num_layers, self.num_heads * self.head_dim)


def _half(width: int) -> int:
    """The pool stores a token's numbers as a key and a value of one head: how many each holds."""
    return max(-(-width // 2), 1)


class FallbackBody(Body):
    """A `Body` around a transformers module. Its "hidden states" are logits, since heads differ between families."""

    ends_prompts = True

    def __init__(self, module: Any, dims: Dims, max_context: int, layout: CacheLayout) -> None:
        self.module, self.dims, self.max_context, self.layout = module, dims, max_context, layout
        self.device, self.dtype = module.device, module.dtype
        self.extends_states = True
        """Whether the module computes several tokens after a state at once; else they are fed one by one."""
        half = _half(layout.width)
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
        half = _half(self.layout.width)
        kv = F.pad(row.tokens, (0, 2 * half - self.layout.width)).unflatten(1, (2, half)).transpose(0, 1)
        self.pool.append(segment, kv[None, :, None])
        self.pool.keep(segment, row.state)

    def swap(self, state: Mapping[str, torch.Tensor]) -> None:
        """See `Body.swap`."""
        missing, unknown = self.module.load_state_dict(dict(state), strict=False)
        missing = [name for name in missing if name != "lm_head.weight"]
        if missing or unknown:
            raise ConfigError(f"the new weights lack {missing[:3]} or hold unknown {list(unknown)[:3]}")


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


def _try(module: Any, device: torch.device) -> CacheLayout:
    """The layout of the module's cache, seen on test tokens."""
    with torch.inference_mode():
        cache = empty_cache(module.config)
        ids = torch.tensor([[1, 2, 3]], device=device)
        module(input_ids=ids, use_cache=True, **cache_argument(module, cache))
        return CacheLayout(module.config, cache, 3)


MAX_WORDS = 300
"""Most characters quoted from an error of transformers."""

_FOREIGN = (AssertionError, AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)
"""What a model's own code raises where it cannot compute something."""
_TRIED = 8
_ROUNDING, _COARSE_ROUNDING = 0.0003, 0.1
"""Relative to the norm of the logits, in fp32 and in 16 bits: rounding stays far below, and wrong positions or
attention far above, except where tokens hardly look at each other."""


def _reads_alike(body: FallbackBody) -> bool:
    """Whether tokens after cached ones, in a row beside a longer one, get the logits of one pass over the whole text.

    They do not where a model attends to later tokens, or where it derives positions from the cache length, padding
    included. Some recurrent models ignore their state where several tokens follow it: these are fed one by one.
    """
    ids = list(range(1, _TRIED + 1))
    with torch.inference_mode():
        whole = body.module(input_ids=torch.tensor([ids], device=body.device), use_cache=False).logits[0, -2:].float()
        ((_, start),) = body.extend([(None, ids[:-3])])
        ((before, segment),) = body.extend([(start, ids[-3:-1])])
        if body.pool.stateful and not _same(before[-1].float(), whole[0], body.dtype):
            body.extends_states = False
            ((_, segment),) = body.extend([(start, ids[-3:-1])])
        ((_, longer),) = body.extend([(None, ids[:-1] * 2)])
        decoder = FallbackDecoder(body)
        for row in (longer, segment):
            decoder.add(row)
        return _same(decoder.step([1, ids[-1]])[1].float(), whole[1], body.dtype)


def _same(own: torch.Tensor, whole: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether logits differ by rounding only; NaN counts as rounding."""
    most = _ROUNDING if dtype == torch.float32 else _COARSE_ROUNDING
    return not bool((own - whole).norm() > most * (whole - whole.mean()).norm())


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
    """Load any causal language model folder through transformers, or the text part of one that also reads images.

    Raises:
        ConfigError: transformers cannot load it, some weights are missing, its cache is of an unknown kind, or
            its results depend on the lengths of other rows.
    """
    try:
        load, options = _model_class(str(config["model_type"])).from_pretrained, attention_options(folder)
        module, report = alone(lambda: load(str(folder), dtype=dtype, output_loading_info=True, **options))
    except Exception as exc:  # safetensors and huggingface_hub raise bare exceptions
        raise ConfigError(
            f"{folder}: transformers cannot load a {config['model_type']} model here: {_words(exc)}"
        ) from exc
    if missing := sorted(report["missing_keys"]):  # transformers initialises them at random and only warns
        raise ConfigError(f"{folder}: the weights hold no tensor {missing[0]}: the folder is incomplete")
    module = alone(lambda: module.to(device).eval())
    try:
        layout = alone(lambda: _try(module, device))
    except _FOREIGN as exc:
        raise ConfigError(
            f"{folder}: a {config['model_type']} model keeps a cache of its own kind, so the embedded engine cannot "
            f"branch it ({_words(exc)}): use --engine vllm"
        ) from exc
    dims = _measure(module, layout, _longest(folder, module.config.get_text_config(), max_context))
    body = FallbackBody(module, dims, min(max_context or dims.max_context, dims.max_context), layout)
    try:
        is_alike = dims.max_context <= 2 * _TRIED or alone(lambda: _reads_alike(body))
    except _FOREIGN as exc:  # ProphetNet and XLM check that positions and masks are those of texts of one length
        raise ConfigError(
            f"{folder}: a {config['model_type']} model cannot decode texts of different lengths together, as the "
            f"embedded engine does ({_words(exc)}): use --engine vllm"
        ) from exc
    if not is_alike:
        raise ConfigError(
            f"{folder}: a {config['model_type']} model attends to later tokens, or counts padding as positions, so "
            "the embedded engine cannot decode texts of different lengths together: use --engine vllm"
        )
    return body


def _words(error: Exception) -> str:
    """What an error of transformers says: some list every known architecture, and some say nothing."""
    return shorten(str(error), MAX_WORDS, placeholder=" ...") or type(error).__name__


def _model_class(family: str) -> Any:
    """Transformers' class of a family: one that also reads images where there is none for text alone."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    )

    sees = family in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES and family not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    return AutoModelForImageTextToText if sees else AutoModelForCausalLM


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


def _measure(module: Any, layout: CacheLayout, max_context: int) -> _MeasuredDims:
    """Model dimensions from the config and from the layout of the cache; only layers that attend count as layers."""
    text, decoder = module.config.get_text_config(), module.get_decoder()
    tables = {id(part.weight) for part in decoder.modules() if isinstance(part, torch.nn.Embedding)}
    matrices = sum(p.numel() for p in decoder.parameters() if p.ndim > 1 and id(p) not in tables)
    return _MeasuredDims(
        hidden=text.hidden_size,
        num_layers=layout.num_attending,
        num_heads=getattr(text, "num_attention_heads", 0),
        num_kv_heads=layout.num_heads,
        head_dim=layout.head_dim,
        intermediate=getattr(text, "intermediate_size", 0),
        vocab=text.vocab_size,
        eps=0.0,
        tied=not any("lm_head" in name for name, _ in module.named_parameters()),
        qk_norm=False,
        max_context=max_context,
        rope_theta=0.0,
        rope={},
        num_params=matrices + text.vocab_size * text.hidden_size,
        width=layout.width,
    )
