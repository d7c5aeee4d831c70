"""Outcome reward models of families that the embedded core does not run, through transformers' own module.

Nothing is cached between calls: every answer is read with its whole conversation, and costs all of its tokens. Waiting
work is computed one after another in a worker thread. Only code that ships with transformers is run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ttc.core import ModelShape, Usage, UsageSink
from ttc.errors import ConfigError
from ttc.scorers.adapters._base import Adapter
from ttc.scorers.reward_models.backends import EmbeddedCore
from ttc.scorers.reward_models.batching import Batcher, WorkItem
from ttc.scorers.reward_models.embedded import inference
from ttc.scorers.reward_models.layouts import ModelInput, OwnText, RewardTokenizer
from ttc.scorers.reward_models.recall import Backend, Blocks, RecallScorer


class TransformersBackend(Backend):
    """A sequence classifier of transformers; reads only the end of a conversation."""

    def __init__(self, model: Any, adapter: Adapter, place: EmbeddedCore) -> None:
        self._model, self._adapter, self._threads = model, adapter, place.threads
        config = model.config.get_text_config()
        config.pad_token_id = None  # else a conversation that ends with this token is read before it
        limit = int(getattr(config, "max_position_embeddings", 2048))
        self.max_context = min(place.max_context or limit, limit)
        weights = sum(parameter.numel() for parameter in model.parameters() if parameter.dim() == 2)
        embedding = model.get_input_embeddings().weight.numel()
        heads = config.num_attention_heads
        width = heads * int(getattr(config, "head_dim", None) or config.hidden_size // heads)
        self._shape = ModelShape(weights - embedding, config.num_hidden_layers, width)
        self.blocks = Blocks(None)
        self._batcher: Batcher[tuple[int, ...], float] = Batcher("orm", self._compute)

    def cost(self, problem_id: str, ids: Sequence[int], reads: Sequence[int]) -> int:
        """See `Backend`: the whole conversation."""
        return len(ids) if reads else 0

    async def read(
        self, problem_id: str, model_input: ModelInput, reads: Sequence[int], on_usage: UsageSink
    ) -> list[float]:
        """See `Backend`."""
        return await self._batcher.submit([model_input.ids], on_usage)

    def _compute(self, batch: list[WorkItem[tuple[int, ...], float]]) -> None:
        import torch

        from ttc.scorers.reward_models.embedded import probability

        with inference(self._threads):
            for job in batch:
                logits = self._model(torch.tensor([job.item], device=self._model.device)).logits.float()
                value = probability(logits, self._adapter.positive_label, self._adapter.activation)
                job.report(Usage(scored=len(job.item), flops=self._shape.flops(len(job.item), 0)))
                job.finish(float(value[0]))


def transformers_scorer(folder: Path, adapter: Adapter, place: EmbeddedCore) -> RecallScorer:
    """Load a sequence classifier.

    Raises:
        ConfigError: the folder holds none, not all of its weights, or an option of the embedded core was asked for.
    """
    from transformers import AutoModelForSequenceClassification

    from ttc.engines.embedded.core.model import pick_device
    from ttc.engines.shared.compute import pick_dtype

    if place.batch_invariant:
        raise ConfigError(f"batch_invariant=True needs a Llama, Mistral, Qwen2 or Qwen3 model, not {folder}")
    if adapter.name != "sequence_rm":
        raise ConfigError(f"adapter {adapter.name} needs a model that the embedded core runs, not {folder}")
    layout = OwnText(adapter, RewardTokenizer(folder), adapter.step_delimiter)
    device = pick_device(place.device)
    load, dtype = AutoModelForSequenceClassification.from_pretrained, pick_dtype(place.dtype, device)
    try:
        with _without_table():
            model, report = load(str(folder), dtype=dtype, output_loading_info=True)
    except (OSError, ValueError) as exc:
        raise ConfigError(f"transformers cannot load {folder} as a sequence classifier: {exc}") from exc
    if report["missing_keys"]:
        names = ", ".join(sorted(report["missing_keys"])[:4])
        raise ConfigError(f"{folder} is not a reward model: it has no weights for {names}, which would be random")
    backend = TransformersBackend(model.to(device).eval(), adapter, place)
    return RecallScorer(backend, layout, aggregation=adapter.aggregation)


@contextmanager
def _without_table() -> Iterator[None]:
    """Keep transformers from printing which weights it loaded; the relevant part is in the report that it returns."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
