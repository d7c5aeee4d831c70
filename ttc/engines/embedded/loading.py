"""Load a model folder and start its scheduler, with the body and decoder for its architecture and device."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ttc.engines.embedded.core.batch import BatchLimits, Decoder, default_kv_bytes
from ttc.engines.embedded.core.model import Body, load_body, pick_device
from ttc.engines.embedded.core.paged import PagedDecoder
from ttc.engines.embedded.core.sampler import Rows, sample
from ttc.engines.embedded.core.scheduler import Scheduler
from ttc.engines.shared.compute import native, pick_dtype
from ttc.engines.shared.folder import weight_files
from ttc.engines.shared.shape import Dims, full_attention, read_config
from ttc.engines.shared.text import Text
from ttc.errors import ConfigError

if TYPE_CHECKING:
    from ttc.engines.embedded.gpu.families import DeviceFamily


def load(folder: Path, **options: Any) -> tuple[Text, Scheduler]:
    """Load tokenizer and weights and start the worker; options as in `_Load`."""
    config = read_config(folder)  # reports a missing folder or file before any slow import
    _refuse_non_generative(folder, config)
    _refuse_quantised(folder, config)
    _refuse_pointers(folder)
    text = Text(folder)
    scheduler, begin = _start(_Load(folder, config, text, **options))
    try:
        scheduler.call(partial(_refuse_nan, scheduler.body, folder)).result()
        if begin is not None:
            scheduler.call(partial(begin, scheduler.body)).result()
    except BaseException:  # also on an interrupt: a thread still computing when the process ends would abort it
        scheduler.close()
        raise
    return text, scheduler


@dataclass(frozen=True, slots=True)
class _Load:
    """A folder, what was read from it, and the options of `ttc.engines.embedded.engine.embedded`."""

    folder: Path
    config: Mapping[str, Any]
    text: Text
    device: str
    dtype: str
    threads: int
    max_batch: int
    max_context: int | None
    kv_bytes: int | None
    batch_invariant: bool

    def limits(self, place: torch.device) -> BatchLimits:
        """The limits of a batch on this device."""
        return BatchLimits(self.max_batch, self.kv_bytes or default_kv_bytes(place))


def _start(wanted: _Load) -> tuple[Scheduler, Callable[[Body], None] | None]:
    """Start the worker for a GPU, a CPU, or transformers' own module; returns it and its first action."""
    place = pick_device(wanted.device)
    if place.type == "cuda" and not wanted.batch_invariant:
        from ttc.engines.embedded.gpu.families import architecture

        family = architecture(wanted.config)
        if family is not None:
            return _on_gpu(wanted, place, family), None
    if full_attention(wanted.config, wanted.max_context):
        return _own(wanted, place)
    if wanted.batch_invariant:
        raise ConfigError(
            "batch_invariant=True needs a Llama, Mistral, Qwen2 or Qwen3 model with full attention, "
            f"not {wanted.config['model_type']!r}; batch_invariant=auto enables it only for such models"
        )
    return _through_transformers(wanted, place), None


def _on_gpu(wanted: _Load, place: torch.device, family: DeviceFamily) -> Scheduler:
    from ttc.engines.embedded.gpu.loading import start

    return start(
        wanted.folder,
        family,
        wanted.text.decode,
        device=place,
        dtype=pick_dtype(wanted.dtype, place),
        threads=wanted.threads,
        max_batch=wanted.max_batch,
        max_context=wanted.max_context,
        kv_bytes=wanted.kv_bytes,
    )


def _own(wanted: _Load, place: torch.device) -> tuple[Scheduler, Callable[[Body], None]]:
    dtype = pick_dtype(wanted.dtype, place)
    core = _invariant() if wanted.batch_invariant else _paged(Dims.from_config(wanted.config), dtype, place)
    body, _ = load_body(
        wanted.folder,
        device=wanted.device,
        dtype=wanted.dtype,
        max_context=wanted.max_context,
        head=True,
        **core.options,
    )
    limits = wanted.limits(body.device)
    return Scheduler(body, core.decoder, wanted.text.decode, limits=limits, threads=wanted.threads), core.begin


def _through_transformers(wanted: _Load, place: torch.device) -> Scheduler:
    from ttc.engines.embedded.core.fallback import FallbackDecoder, fallback_body
    from ttc.engines.embedded.core.transformers_body import paged_body
    from ttc.engines.embedded.core.transformers_module import load_module, longest

    folder, family = wanted.folder, str(wanted.config["model_type"])
    module = load_module(folder, wanted.config, place, pick_dtype(wanted.dtype, place))
    most = longest(folder, module.config.get_text_config(), wanted.max_context)
    start = partial(Scheduler, decode_text=wanted.text.decode, limits=wanted.limits(place), threads=wanted.threads)
    kernels = native(place, module.dtype)
    paged = None if kernels is None else paged_body(module, kernels, most, wanted.max_context)
    if kernels is not None and paged is not None:
        return start(paged, partial(PagedDecoder, kernels=kernels))
    return start(fallback_body(module, folder, family, most, wanted.max_context), FallbackDecoder)


def _refuse_nan(body: Body, folder: Path) -> None:
    """Raise ConfigError where the logits of a short text are NaN, which would make every draw repeat one token."""
    ids = range(min(_TRIED, body.max_context, body.dims.vocab))
    ((hidden, _),) = body.extend([(None, list(ids))])
    if body.logits(hidden).isnan().any():
        raise ConfigError(
            f"{folder}: the model's logits are NaN in {str(body.dtype).removeprefix('torch.')}: its weights are "
            "damaged, or too large for float16 (engine.dtype=bfloat16 or float32)"
        )


_TRIED = 8


@dataclass(frozen=True, slots=True)
class _Core:
    """A decoder, what `load_body` needs for it, and the worker's first action."""

    decoder: Callable[[Body], Decoder]
    options: Mapping[str, Any]
    begin: Callable[[Body], None]


def _paged(dims: Dims, dtype: torch.dtype, device: torch.device) -> _Core:
    kernels = native(device, dtype)
    if kernels is None or not kernels.serves(dims.head_dim):
        core = _invariant()
        return replace(core, begin=partial(_warm_up, core.decoder))
    decoder = partial(PagedDecoder, kernels=kernels)
    return _Core(decoder, {}, partial(_warm_up, decoder))


def _warm_up(make_decoder: Callable[[Body], Decoder], body: Body) -> None:
    """Compute a prompt and a token, so that compilation does not delay or distort the first request.

    On a machine's first use, numba compiles for some seconds; later it loads the result from disk.
    """
    ((_, start),) = body.extend([(None, (0, 0))])
    decoder = make_decoder(body)
    for _ in range(2):
        decoder.add(body.pool.segment(start))
    logits = body.logits(decoder.step([0, 0]))
    off, numbers = np.zeros(2, np.float32), np.zeros(2, np.uint64)
    rows = Rows(1 - off, 1 - off, np.zeros(2, np.int64), off, numbers, numbers, wants_logprobs=True)
    sample(logits, rows)
    for row in (1, 0):
        decoder.remove(row)


def _invariant() -> _Core:
    from ttc.engines.embedded.core.invariant import PAD_ROWS, BlockedPrefix, InvariantDecoder, check

    return _Core(InvariantDecoder, {"attention": BlockedPrefix, "pad_rows": PAD_ROWS}, check)


_ENCODERS = (
    "albert bert big_bird camembert convbert deberta deberta-v2 distilbert electra ernie esm eurobert flaubert fnet "
    "funnel ibert jina_bert layoutlm longformer luke megatron-bert mobilebert modernbert mpnet mra neobert nomic_bert "
    "nystromformer rembert roberta roberta-prelayernorm roformer squeezebert xlm-roberta xlm-roberta-xl xmod yoso"
)
"""Encoder model types: transformers turns them into a language model by adding a randomly initialised head."""
_OTHER_USES = {
    "ForMaskedLM": "fills gaps in a text",
    "ForPreTraining": "fills gaps in a text",
    "ForQuestionAnswering": "marks parts of a text",
    "ForMultipleChoice": "compares texts",
    "ForSequenceClassification": "scores whole texts (--scorer orm:FOLDER)",
    "ForTokenClassification": "scores the steps of a text (--scorer prm:FOLDER)",
}
"""What models are for, by the suffix of their architecture's name."""
_BIDIRECTIONAL: Mapping[str, Sequence[Any]] = {"is_causal": [False], "use_bidirectional_attention": [True, "all"]}
"""Fields of config.json, with values that mark embedding models derived from generative ones."""


def _refuse_non_generative(folder: Path, config: Mapping[str, Any]) -> None:
    """Raise ConfigError where the model does not generate text: encoders, and other heads."""
    for field, values in _BIDIRECTIONAL.items():
        if config.get(field) in values:
            raise ConfigError(
                f"{folder}: config.json says {field}={json.dumps(config[field])}: the model attends in both "
                "directions and does not generate text: name a causal language model"
            )
    names = [str(name) for name in config.get("architectures") or ()]
    uses = [use for name in names for ending, use in _OTHER_USES.items() if name.endswith(ending)]
    kind = config.get("model_type")
    encodes = kind in _ENCODERS.split() and not any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in names)
    if config.get("is_decoder") or not (encodes or (uses and len(uses) == len(names))):
        return
    use = uses[0] if uses else "encodes a whole text"
    raise ConfigError(
        f"{folder}: a model of type {kind!r} ({', '.join(names) or 'no architecture named'}) {use} and does not "
        "generate text: name a causal language model (config.json: architectures ending in ForCausalLM)"
    )


_POINTER = b"version https://git-lfs"


def _refuse_pointers(folder: Path) -> None:
    """Raise ConfigError where the weights are Git LFS pointers."""
    for file in filter(Path.is_file, weight_files(folder)):
        with file.open("rb") as stream:
            if stream.read(len(_POINTER)) == _POINTER:
                raise ConfigError(f"{file} is a Git LFS pointer, not the weights: run `git lfs pull` in {folder}")


def _refuse_quantised(folder: Path, config: Mapping[str, Any]) -> None:
    """Raise ConfigError where the weights are quantised."""
    scheme = config.get("quantization_config")
    if scheme:
        method = scheme.get("quant_method", "unknown") if isinstance(scheme, Mapping) else scheme
        raise ConfigError(
            f"{folder}: the weights are quantised ({method}), which the embedded engine does not run: use the model's "
            "bf16 folder, or --engine vllm or --engine sglang"
        )
