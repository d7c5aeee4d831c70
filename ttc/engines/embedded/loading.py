"""From a folder to a running scheduler: which body, which decoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

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

__all__ = ["load"]


def load(
    folder: Path,
    *,
    device: str,
    dtype: str,
    threads: int,
    max_batch: int,
    max_context: int | None,
    kv_bytes: int | None,
    batch_invariant: bool,
) -> tuple[Text, Scheduler]:
    """Load tokenizer and weights and start the worker; arguments as in `ttc.engines.embedded.engine.embedded`."""
    config = read_config(folder)  # names a missing folder or file before anything slow is imported
    _refuse_what_writes_nothing(folder, config)
    _refuse_quantised(folder, config)
    _refuse_pointers(folder)
    text = Text(folder)
    scheduler, begin = _start(
        folder, config, text, device, dtype, threads, max_batch, max_context, kv_bytes, batch_invariant
    )
    try:
        scheduler.call(partial(_check_numbers, scheduler.body, folder)).result()
        if begin is not None:
            scheduler.call(partial(begin, scheduler.body)).result()
    except BaseException:  # an interrupt too: a thread that computes at the end of the process aborts it
        scheduler.close()
        raise
    return text, scheduler


def _start(
    folder: Path,
    config: Mapping[str, Any],
    text: Text,
    device: str,
    dtype: str,
    threads: int,
    max_batch: int,
    max_context: int | None,
    kv_bytes: int | None,
    batch_invariant: bool,
) -> tuple[Scheduler, Callable[[Body], None] | None]:
    """The worker, and what it does first."""
    place = pick_device(device)
    if place.type == "cuda" and not batch_invariant:
        from ttc.engines.embedded.gpu.families import architecture
        from ttc.engines.embedded.gpu.loading import start

        family = architecture(config)
        if family is not None:
            return start(
                folder,
                family,
                text.decode,
                device=place,
                dtype=pick_dtype(dtype, place),
                threads=threads,
                max_batch=max_batch,
                max_context=max_context,
                kv_bytes=kv_bytes,
            ), None
    if not full_attention(config, max_context):
        if batch_invariant:
            raise ConfigError(
                "batch_invariant=True needs a Llama, Mistral, Qwen2 or Qwen3 model with full attention, "
                f"not {config['model_type']!r}; batch_invariant=auto asks for it only where the model has it"
            )
        from ttc.engines.embedded.core.fallback import FallbackDecoder, load_fallback

        other = load_fallback(folder, config, device=place, dtype=pick_dtype(dtype, place), max_context=max_context)
        limits = BatchLimits(max_batch, kv_bytes or default_kv_bytes(place))
        return Scheduler(other, FallbackDecoder, text.decode, limits=limits, threads=threads), None
    core = _invariant() if batch_invariant else _paged(Dims.from_config(config), pick_dtype(dtype, place), place)
    body, _ = load_body(folder, device=device, dtype=dtype, max_context=max_context, head=True, **core.options)
    limits = BatchLimits(max_batch, kv_bytes or default_kv_bytes(body.device))
    return Scheduler(body, core.decoder, text.decode, limits=limits, threads=threads), core.begin


def _check_numbers(body: Body, folder: Path) -> None:
    """Raise ConfigError where a short text gets no numbers, of which every draw would be one token again and again."""
    ids = range(min(_TRIED, body.max_context, body.dims.vocab))
    ((hidden, _),) = body.extend([(None, list(ids))])
    if body.logits(hidden).isnan().any():
        raise ConfigError(
            f"{folder}: the model gives no numbers (NaN) in {str(body.dtype).removeprefix('torch.')}: its weights are "
            "broken, or too large for float16 (engine.dtype=bfloat16 or float32)"
        )


_TRIED = 8


@dataclass(frozen=True, slots=True)
class _Core:
    """A decoder, what `load_body` needs for it, and what its worker does first."""

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
    """Compute a prompt and a token, before anybody waits for one or is timed: the first use on a machine compiles.

    That takes numba some seconds; what it has compiled it reads from the disk later on.
    """
    ((_, start),) = body.extend([(None, (0, 0))])
    decoder = make_decoder(body)
    for _ in range(2):
        decoder.add(body.pool.segment(start))
    logits, ones = body.logits(decoder.step([0, 0])), np.ones(2)
    temperature, top_p, zeros = ones.astype(np.float32), ones.astype(np.float32), np.zeros(2, np.uint64)
    sample(logits, Rows(temperature, top_p, np.zeros(2, np.int64), zeros, zeros, wants_logprobs=True))
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
"""Model types that read a whole text at once; transformers makes a language model of them by a head of noise."""
_NO_WRITERS = {
    "ForMaskedLM": "fills gaps of a text",
    "ForPreTraining": "fills gaps of a text",
    "ForQuestionAnswering": "marks places of a text",
    "ForMultipleChoice": "compares texts",
    "ForSequenceClassification": "scores whole texts (--scorer orm:FOLDER)",
    "ForTokenClassification": "scores the steps of a text (--scorer prm:FOLDER)",
}
"""What models are for whose architecture ends so."""


def _refuse_what_writes_nothing(folder: Path, config: Mapping[str, Any]) -> None:
    """Raise ConfigError where the model goes on with no text: encoders, and heads for something else."""
    names = [str(name) for name in config.get("architectures") or ()]
    uses = [use for name in names for ending, use in _NO_WRITERS.items() if name.endswith(ending)]
    kind = config.get("model_type")
    encodes = kind in _ENCODERS.split() and not any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in names)
    if config.get("is_decoder") or not (encodes or (uses and len(uses) == len(names))):
        return
    use = uses[0] if uses else "reads a text as a whole"
    raise ConfigError(
        f"{folder}: a model of type {kind!r} ({', '.join(names) or 'no architecture named'}) {use} and continues none, "
        "so it cannot answer: name a causal language model (config.json: architectures ending in ForCausalLM)"
    )


_POINTER = b"version https://git-lfs"


def _refuse_pointers(folder: Path) -> None:
    """Raise ConfigError where Git has left out the weights."""
    for file in filter(Path.is_file, weight_files(folder)):
        with file.open("rb") as stream:
            if stream.read(len(_POINTER)) == _POINTER:
                raise ConfigError(f"{file} only says where Git LFS has the weights: run `git lfs pull` in {folder}")


def _refuse_quantised(folder: Path, config: Mapping[str, Any]) -> None:
    """Raise ConfigError where the weights are not plain numbers."""
    scheme = config.get("quantization_config")
    if scheme:
        method = scheme.get("quant_method", "unknown") if isinstance(scheme, Mapping) else scheme
        raise ConfigError(
            f"{folder}: the weights are quantised ({method}), which the embedded engine does not run: use the model's "
            "bf16 folder, or --engine vllm or --engine sglang"
        )
