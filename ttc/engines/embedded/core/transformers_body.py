"""Other architectures with this engine's attention: transformers' modules compute the rest of every layer.

Most models of transformers call their attention by a name (`AttentionInterface`), which the transformers backends of
vLLM and SGLang use, too. Under this engine's name, the new tokens of all rows form one flat text, and the queries, keys
and values of each layer go to the attention of the engine's own families: keys lie in pages and are read once for all
branches that share them, prompts of any lengths are computed together, and no row is padded or copied.

`paged_body` tries a model when it is loaded: on short texts, after a prefix and beside another text, its logits must be
those of transformers' own attention. Cost: a few passes over a few tokens. Left out, and run by `fallback`: caps of
scores, sinks, biases by position, layers that differ in heads, recurrent layers; GPUs, fp16, and CPUs without numba.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface
from transformers.modeling_outputs import BaseModelOutputWithPast

from ttc.engines.embedded.core.model import Attend, Body
from ttc.engines.embedded.core.paged import PagedDecoder
from ttc.engines.embedded.core.pool import SHEET
from ttc.engines.embedded.core.transformers_module import FOREIGN, TRIED, load_state, measure, pack, reads_ahead, same
from ttc.engines.shared.compute import alone
from ttc.engines.shared.shape import Dims

_NAME = "ttc_paged"
_OTHER_KINDS = ("softcap", "s_aux", "position_bias", "head_mask", "indices")
"""Arguments of attention that `Attend` does not compute."""
_LIMITS = re.compile(r"(\w+_)?window(_size)?|(\w+_)?chunk_size")
"""Settings of how far a layer attends."""


class _OtherKindError(ValueError):
    """Attention that is not computed here."""


class _Link:
    """Passes on the queries, keys and values of a module's layers, each of which holds it as `ttc_link`."""

    def __init__(self, attend: Attend, max_context: int) -> None:
        self.attend: Attend | None = attend
        self._max_context = max_context
        self._numbers: dict[int, int] = {}
        """Layers that attend, by their number in the module, numbered as they come."""
        self.windows: dict[int, int | None] = {}
        """The window of each of these layers; None where it is no shorter than the context."""

    def __call__(self, layer: int, q: Any, k: Any, v: Any, scale: float | None, options: Mapping[str, Any]) -> Any:
        """Attention (1, T, heads, D) of q, k, v (1, heads, T, D)."""
        if self.attend is None or any(options.get(name) is not None for name in _OTHER_KINDS):
            raise _OtherKindError(f"layer {layer}")
        (num_heads, num_tokens, head_size), size = q.shape[1:], _stored(max(q.shape[-1], v.shape[-1]))
        scale, width = head_size**-0.5 if scale is None else scale, v.shape[-1]
        q, k, v = (F.pad(part[0].transpose(0, 1), (0, size - part.shape[-1])).contiguous() for part in (q, k, v))
        number, window = self._numbers.setdefault(layer, len(self._numbers)), options.get("sliding_window")
        self.windows[number] = window if window is not None and window < self._max_context else None
        return self.attend(number, q * scale, k, v).view(1, num_tokens, num_heads, size)[..., :width]


def _stored(size: int) -> int:
    """The size of stored keys and values: zeros are appended to those of other sizes, which changes no score."""
    return -(-size // SHEET) * SHEET


def _attention(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any, scaling: float | None = None, **options: Any
) -> tuple[torch.Tensor, None]:
    """What transformers calls in every layer."""
    return module.ttc_link(module.layer_idx, query, key, value, scaling, options), None


class _Probe:
    """Attention over one text, which notes heads, key heads and head size of every layer."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, int, int]] = []

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if layer != len(self.shapes):
            raise _OtherKindError(f"layer {layer} attends twice")
        self.shapes.append((q.shape[1], k.shape[1], k.shape[2]))
        q, k, v = (part.transpose(0, 1)[None] for part in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0, enable_gqa=True)
        return out[0].transpose(0, 1).flatten(1)


class _HiddenStates(BaseModelOutputWithPast):  # type: ignore[misc]
    """Hidden states as the output of a decoder."""

    def __getattr__(self, name: str) -> None:
        """What only losses and images need, such as `router_logits`, is absent."""


class _PassThrough(torch.nn.Module):
    """Stands in for a decoder whose hidden states are already computed."""

    def forward(self, *_: Any, inputs_embeds: torch.Tensor, **__: Any) -> _HiddenStates:
        """Return the hidden states, given as embeddings."""
        return _HiddenStates(last_hidden_state=inputs_embeds)


class TransformersBody(Body):
    """A `Body` around the modules of a causal language model of transformers."""

    def __init__(self, module: Any, link: _Link, dims: Dims, max_context: int) -> None:
        self._module, self._decoder, self._link = module, module.get_decoder(), link
        self._head = _head_of(module)
        self._prepare(dims, module.device, module.dtype, max_context, windows=tuple(link.windows.values()))

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor:
        """See `Body.forward`."""
        self._link.attend = attend
        output = self._decoder(input_ids=ids[None], position_ids=positions[None], use_cache=False)
        self._link.attend = None  # a decoder's refers to this body: without the cycle, weights are freed at once
        hidden: torch.Tensor = output.last_hidden_state[0]
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `Body.logits`."""
        logits: torch.Tensor = self._head(inputs_embeds=hidden[None], use_cache=False).logits[0]
        return logits

    def pack(self) -> None:
        """Store the matrices for the CPU (`transformers_module.pack`)."""
        pack(self._module)
        self._head = _head_of(self._module)

    def swap(self, state: Mapping[str, torch.Tensor]) -> None:
        """See `Body.swap`."""
        load_state(self._module, state)


def _head_of(module: Any) -> Any:
    """The module from hidden states on: with whatever a family does to the logits after its head (scales, caps)."""
    head = copy.copy(module)
    head._modules = {**module._modules, module.base_model_prefix: _PassThrough()}
    return head


def paged_body(module: Any, kernels: ModuleType, most: int, max_context: int | None) -> TransformersBody | None:
    """A body for a loaded module, whose longest text is `most`; None if its attention is not computed here.

    The module is then as it was.
    """
    decoder, limit = module.get_decoder(), min(max_context or most, most)
    adapts = getattr(decoder, "_can_set_attn_implementation", lambda: False)
    if limit <= 2 * TRIED or not adapts():
        return None
    before = decoder.config._attn_implementation
    try:
        body = alone(lambda: _try(module, kernels, limit))
    except FOREIGN:  # a family's own code under an attention without masks; that ours works is tested by family
        body = None
    if body is None:
        decoder.set_attn_implementation(before)
    else:
        alone(body.pack)
    return body


def _num_windows(config: Any, num_layers: int, max_context: int) -> int | None:
    """How many layers have a window shorter than the context, as a configuration says; None: they attend otherwise."""
    kinds = list(getattr(config, "layer_types", None) or ())
    limits = [value for name, value in vars(config).items() if _LIMITS.fullmatch(name) and isinstance(value, int)]
    if not {*kinds} <= {"full_attention", "sliding_attention"}:
        return None
    if not any(0 < limit < max_context for limit in limits):
        return 0
    return kinds.count("sliding_attention") if kinds else num_layers


@torch.inference_mode()
def _try(module: Any, kernels: ModuleType, max_context: int) -> TransformersBody | None:
    """The body, if its logits are those of the module as it was."""
    if reads_ahead(module):
        return None
    ids = torch.arange(1, TRIED + 1)[None]
    whole = module(input_ids=ids, use_cache=False).logits[0].float()
    AttentionInterface.register(_NAME, _attention)
    decoder, probe = module.get_decoder(), _Probe()
    decoder.set_attn_implementation(_NAME)
    link = _Link(probe, max_context)
    for part in decoder.modules():
        if hasattr(part, "layer_idx"):
            part.ttc_link = link
    decoder(input_ids=ids, position_ids=ids - 1, use_cache=False)
    if len(set(probe.shapes)) != 1 or not kernels.serves(probe.shapes[0][2]):
        return None
    if sum(map(bool, link.windows.values())) != _num_windows(decoder.config, len(probe.shapes), max_context):
        return None
    (num_layers, (_, heads, size)) = len(probe.shapes), probe.shapes[0]
    width = 2 * num_layers * heads * size
    dims = measure(
        module, num_layers=num_layers, num_kv_heads=heads, head_dim=size, width=width, max_context=max_context
    )
    body = TransformersBody(module, link, dims, max_context)
    return body if _agrees(body, kernels, ids[0].tolist(), whole) else None


def _agrees(body: TransformersBody, kernels: ModuleType, ids: list[int], whole: torch.Tensor) -> bool:
    """Whether a prompt beside a longer one, what continues it, and a decoding step get the logits of one pass."""
    (start, prefix), _ = body.extend([(None, ids[:-3]), (None, ids[::-1] * 2)])
    (_, _), (more, segment) = body.extend([(None, ids[:2]), (prefix, ids[-3:-1])])
    decoder = PagedDecoder(body, kernels)
    for row in (prefix, segment):
        decoder.add(body.pool.segment(row))
    own = torch.cat([body.logits(hidden) for hidden in (start, more, decoder.step([0, ids[-1]])[1:])])
    return same(own.float(), whole, body.dtype)
