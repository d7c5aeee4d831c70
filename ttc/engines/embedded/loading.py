"""From a folder to a running scheduler: which body, which decoder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ttc.engines.embedded.attention import PrefixAttention
from ttc.engines.embedded.batch import BatchLimits, default_kv_bytes
from ttc.engines.embedded.cuda import CudaDecoder
from ttc.engines.embedded.decode import Decoder
from ttc.engines.embedded.fallback import FallbackDecoder, load_fallback
from ttc.engines.embedded.forest import PAGE_SIZES, ForestDecoder
from ttc.engines.embedded.invariant import PAD_ROWS, BlockedPrefix, InvariantDecoder, check
from ttc.engines.embedded.model import Body, load_body, pick_device
from ttc.engines.embedded.pool import PAGE
from ttc.engines.embedded.scheduler import Scheduler
from ttc.engines.embedded.weights import pick_dtype
from ttc.engines.shared.shape import read_config, slides, supported
from ttc.engines.shared.text import Text
from ttc.errors import ConfigError, EngineError

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
    text = Text(folder)
    if not supported(config) or slides(config, max_context):
        if batch_invariant:
            raise ConfigError(
                "batch_invariant=True needs a Llama, Mistral, Qwen2 or Qwen3 model with full attention, "
                f"not {config['model_type']!r}"
            )
        place = pick_device(device)
        other = load_fallback(folder, config, device=place, dtype=pick_dtype(dtype, place), max_context=max_context)
        limits = BatchLimits(max_batch, kv_bytes or default_kv_bytes(place))
        return text, Scheduler(other, FallbackDecoder, text.decode, limits=limits, threads=threads)
    forest = not batch_invariant and pick_device(device).type == "cpu"
    body, _ = load_body(
        folder,
        device=device,
        dtype=dtype,
        max_context=max_context,
        head=True,
        attention=BlockedPrefix if batch_invariant else PrefixAttention,
        pad_rows=PAD_ROWS if batch_invariant else 1,
        page_sizes=PAGE_SIZES if forest else (PAGE,),
    )
    limits = BatchLimits(max_batch, kv_bytes or default_kv_bytes(body.device))
    scheduler = Scheduler(body, _decoder(body, batch_invariant), text.decode, limits=limits, threads=threads)
    if batch_invariant:
        try:
            scheduler.call(lambda: check(body)).result()
        except EngineError:
            scheduler.close()
            raise
    return text, scheduler


def _decoder(body: Body, batch_invariant: bool) -> Callable[[Body], Decoder]:
    if batch_invariant:
        return InvariantDecoder
    return CudaDecoder if body.device.type == "cuda" else ForestDecoder
