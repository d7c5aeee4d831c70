"""Loading a reward model into this process: body, head, and the incremental scorer over them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttc.errors import ConfigError
from ttc.scorers.adapters._base import Adapter
from ttc.scorers.reward_models.backends import EmbeddedCore
from ttc.scorers.reward_models.incremental import IncrementalScorer, Reader, inference
from ttc.scorers.reward_models.layouts import OwnText
from ttc.scorers.reward_models.tokens import Tokens

if TYPE_CHECKING:
    from ttc.engines.embedded.model import Body

__all__ = ["adapted", "load"]


def load(folder: Path, place: EmbeddedCore, *, head: bool) -> tuple[Body, dict[str, Any]]:
    """Load the body (with its language-model head on demand) and the folder's other tensors.

    Raises:
        ConfigError: the folder cannot be read, or its architecture is not one the embedded core runs.
    """
    from ttc.engines.embedded.invariant import PAD_ROWS, blocked_attention, check
    from ttc.engines.embedded.model import load_body, softmax_attention

    body, rest = load_body(
        folder,
        device=place.device,
        dtype=place.dtype,
        max_context=place.max_context,
        head=head,
        kernel=blocked_attention if place.batch_invariant else softmax_attention,
        pad_rows=PAD_ROWS if place.batch_invariant else 1,
    )
    if place.batch_invariant:
        with inference(place.threads):
            check(body)
    return body, rest


def adapted(folder: Path, adapter: Adapter, place: EmbeddedCore, step_delimiter: str | None) -> IncrementalScorer:
    """The scorer of a public reward model, in its own format."""
    tokens = Tokens(folder)
    layout = OwnText(adapter, tokens, step_delimiter or adapter.step_delimiter)
    body, rest = load(folder, place, head=adapter.kind == "token")
    num_outputs = 2 if adapter.kind == "label" else body.dims.vocab
    return IncrementalScorer(
        body,
        _reader(folder, adapter, body, rest, tokens),
        layout,
        shape=body.dims.model_shape(num_outputs),
        threads=place.threads,
        aggregation=adapter.aggregation,
    )


def _reader(folder: Path, adapter: Adapter, body: Body, rest: Mapping[str, Any], tokens: Tokens) -> Reader:
    from ttc.scorers.reward_models.readers import HeadReader, label_head, token_head

    if adapter.kind == "token":
        good, bad = tokens.single("good", adapter.good), tokens.single("bad", adapter.bad)
        return HeadReader(body, token_head(body, good, bad))
    try:
        head = label_head(rest, body.device, adapter.positive_label, adapter.activation, str(folder))
    except ConfigError as exc:
        raise ConfigError(f"adapter {adapter.name}: {exc}") from exc
    return HeadReader(body, head)
