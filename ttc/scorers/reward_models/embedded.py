"""Reward models in this process: a body, a head, and the incremental scorer over them.

A public model is read in its own format (`adapted`). One that reads the generator's own ids (`same_ids`) is this
project's, or any other with the generator's tokenizer: nothing is tokenised again, and the model sees the generator's
own chat template. The folder's config.json says in `ttc_prm` how it is read, or the user does. Three kinds: token
classifiers (label), language models that say a good token or a bad one (token), and better language models, by how
likely they find the path (likelihood).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from ttc.errors import ConfigError
from ttc.scorers.adapters._base import Adapter
from ttc.scorers.reward_models.adapters import step_adapters
from ttc.scorers.reward_models.backends import EmbeddedCore
from ttc.scorers.reward_models.incremental import IncrementalScorer, ScoreReader, inference
from ttc.scorers.reward_models.layouts import OwnText, RewardTokenizer, SameIds

if TYPE_CHECKING:
    from ttc.engines.embedded.model import Body

__all__ = ["Kind", "adapted", "load", "same_ids"]


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
    tokens = RewardTokenizer(folder)
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


def _reader(
    folder: Path, adapter: Adapter, body: Body, rest: Mapping[str, Any], tokens: RewardTokenizer
) -> ScoreReader:
    from ttc.scorers.reward_models.readers import HeadReader, label_head, token_head

    if adapter.kind == "token":
        good, bad = tokens.single("good", adapter.good), tokens.single("bad", adapter.bad)
        return HeadReader(body, token_head(body, good, bad))
    try:
        head = label_head(rest, body.device, adapter.positive_label, adapter.activation, str(folder))
    except ConfigError as exc:
        raise ConfigError(f"adapter {adapter.name}: {exc}") from exc
    return HeadReader(body, head)


Kind = Literal["label", "token", "likelihood"]


@dataclass(frozen=True, slots=True)
class Reading:
    """Where and how a model's scores are read: config.json's `ttc_prm`, or the factory's parameters.

    A step ends at `step_delimiter`; `step_tag` is inserted there when the model wants one. `kind` is label (probability
    of label `positive_label`), token (of the token `good` against `bad`) or likelihood (of the path against the model's
    own first choices, to the power `beta`).
    """

    kind: Kind = "label"
    step_delimiter: str = "\n\n"
    step_tag: str | None = None
    good: str | None = None
    bad: str | None = None
    positive_label: int = 1
    activation: str = "softmax"
    beta: float = 1.0


def _label(reading: Reading, body: Body, rest: Mapping[str, Any], tokens: RewardTokenizer, where: str) -> ScoreReader:
    from ttc.scorers.reward_models.readers import HeadReader, label_head

    try:
        head = label_head(rest, body.device, reading.positive_label, reading.activation, where)
    except ConfigError as exc:
        raise ConfigError(
            f"{exc}; a public one in a format of its own needs scorer.adapter=NAME ({step_adapters()})"
        ) from exc
    return HeadReader(body, head)


def _token(reading: Reading, body: Body, rest: Mapping[str, Any], tokens: RewardTokenizer, where: str) -> ScoreReader:
    from ttc.scorers.reward_models.readers import HeadReader, token_head

    if reading.good is None or reading.bad is None:
        raise ConfigError("prm kind=token needs both good and bad")
    return HeadReader(body, token_head(body, tokens.single("good", reading.good), tokens.single("bad", reading.bad)))


def _likelihood(
    reading: Reading, body: Body, rest: Mapping[str, Any], tokens: RewardTokenizer, where: str
) -> ScoreReader:
    from ttc.scorers.reward_models.readers import LikelihoodReader

    if reading.step_tag is not None:
        raise ConfigError("prm kind=likelihood reads no step_tag")
    return LikelihoodReader(body, reading.beta)


_KINDS: Mapping[str, Callable[[Reading, Body, Mapping[str, Any], RewardTokenizer, str], ScoreReader]] = (
    MappingProxyType({"label": _label, "token": _token, "likelihood": _likelihood})
)


def _reading(stated: Mapping[str, Any], given: Mapping[str, Any], where: str) -> Reading:
    """What the folder states, overridden by what the user gave."""
    names = {spec.name for spec in fields(Reading)}
    if unknown := set(stated) - names:
        raise ConfigError(f"{where}: config.json ttc_prm has unknown keys {sorted(unknown)} (known: {sorted(names)})")
    reading = Reading(**{**stated, **given})
    if reading.kind not in _KINDS:
        raise ConfigError(f"prm kind must be one of {sorted(_KINDS)}, got {reading.kind!r}")
    return reading


def same_ids(
    folder: Path, config: Mapping[str, Any], given: Mapping[str, Any], place: EmbeddedCore
) -> IncrementalScorer:
    """The scorer of the model in `folder`; `given` are fields of `Reading` that the user set.

    Raises:
        ConfigError: a field that is none, a token that the tokenizer splits, or a folder without such a head.
    """
    reading = _reading(config.get("ttc_prm", {}), given, str(folder))
    tokens = RewardTokenizer(folder)
    body, rest = load(folder, place, head=reading.kind != "label")
    reader = _KINDS[reading.kind](reading, body, rest, tokens, str(folder))
    tag = None if reading.step_tag is None else tokens.single("step_tag", reading.step_tag)
    return IncrementalScorer(
        body,
        reader,
        SameIds(tokens, body.dims.vocab, reading.step_delimiter, tag),
        shape=body.dims.model_shape(2 if reading.kind == "label" else body.dims.vocab),
        threads=place.threads,
    )
