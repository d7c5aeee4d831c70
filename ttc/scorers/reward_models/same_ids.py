"""Reward models that read the generator's own ids: this project's, and any other with the generator's tokenizer.

The folder's config.json says in `ttc_prm` how it is read, or the user does. Three kinds: token classifiers (label),
language models that say a good token or a bad one (token), and better language models, by how likely they find the path
(likelihood). Nothing is tokenised again, and the model sees the generator's own chat template.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from ttc.errors import ConfigError
from ttc.scorers.reward_models.adapters import step_adapters
from ttc.scorers.reward_models.backends import EmbeddedCore
from ttc.scorers.reward_models.embedded import load
from ttc.scorers.reward_models.incremental import IncrementalScorer
from ttc.scorers.reward_models.layouts import SameIds
from ttc.scorers.reward_models.tokens import Tokens

if TYPE_CHECKING:
    from ttc.engines.embedded.model import Body
    from ttc.scorers.reward_models.incremental import Reader

__all__ = ["Kind", "same_ids"]

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


def _label(reading: Reading, body: Body, rest: Mapping[str, Any], tokens: Tokens, where: str) -> Reader:
    from ttc.scorers.reward_models.readers import HeadReader, label_head

    try:
        head = label_head(rest, body.device, reading.positive_label, reading.activation, where)
    except ConfigError as exc:
        raise ConfigError(
            f"{exc}; a public one in a format of its own needs scorer.adapter=NAME ({step_adapters()})"
        ) from exc
    return HeadReader(body, head)


def _token(reading: Reading, body: Body, rest: Mapping[str, Any], tokens: Tokens, where: str) -> Reader:
    from ttc.scorers.reward_models.readers import HeadReader, token_head

    if reading.good is None or reading.bad is None:
        raise ConfigError("prm kind=token needs both good and bad")
    return HeadReader(body, token_head(body, tokens.single("good", reading.good), tokens.single("bad", reading.bad)))


def _likelihood(reading: Reading, body: Body, rest: Mapping[str, Any], tokens: Tokens, where: str) -> Reader:
    from ttc.scorers.reward_models.readers import LikelihoodReader

    if reading.step_tag is not None:
        raise ConfigError("prm kind=likelihood reads no step_tag")
    return LikelihoodReader(body, reading.beta)


_KINDS: Mapping[str, Callable[[Reading, Body, Mapping[str, Any], Tokens, str], Reader]] = MappingProxyType(
    {"label": _label, "token": _token, "likelihood": _likelihood}
)


def _reading(stated: Mapping[str, Any], given: Mapping[str, Any], where: str) -> Reading:
    """What the folder states, overridden by what the user gave."""
    known = {spec.name for spec in fields(Reading)}
    if unknown := set(stated) - known:
        raise ConfigError(f"{where}: config.json ttc_prm has unknown keys {sorted(unknown)} (known: {sorted(known)})")
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
    tokens = Tokens(folder)
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
