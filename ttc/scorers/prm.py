"""Process-reward models run in process, incremental: each new token of a path is computed once.

Lightman et al. 2023, "Let's Verify Step by Step"; Uesato et al. 2022. Three kinds of model are read: token classifiers
(a label head, one linear layer or two with a ReLU), step-token models (the language-model head at a step, a good token
against a bad one), and likelihoods (of a better language model: how far each token is from its own first choice).
Scores are read at the last token of every step, or at a tag inserted after it.

Cost: each new token of a path once, the rendered prompt once per problem (scoring whole prefixes anew would cost about
8x more at ten steps). Left out: models with another tokenizer or another chat template than the generator's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from ttc.errors import ConfigError
from ttc.scorers._incremental import IncrementalScorer, Tokens, inference

if TYPE_CHECKING:
    from ttc.embedded.model import Body
    from ttc.scorers._incremental import Reader

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
    from ttc.scorers._readers import HeadReader, label_head

    return HeadReader(body, label_head(rest, body, reading.positive_label, reading.activation, where))


def _token(reading: Reading, body: Body, rest: Mapping[str, Any], tokens: Tokens, where: str) -> Reader:
    from ttc.scorers._readers import HeadReader, token_head

    if reading.good is None or reading.bad is None:
        raise ConfigError("prm kind=token needs both good and bad")
    return HeadReader(body, token_head(body, tokens.single("good", reading.good), tokens.single("bad", reading.bad)))


def _likelihood(reading: Reading, body: Body, rest: Mapping[str, Any], tokens: Tokens, where: str) -> Reader:
    from ttc.scorers._readers import LikelihoodReader

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
    reading = Reading(**{**stated, **{name: value for name, value in given.items() if value is not None}})
    if reading.kind not in _KINDS:
        raise ConfigError(f"prm kind must be one of {sorted(_KINDS)}, got {reading.kind!r}")
    return reading


def prm(
    model: str | None = None,
    *,
    device: str = "auto",
    dtype: str = "auto",
    threads: int = 1,
    max_context: int | None = None,
    batch_invariant: bool = False,
    kind: Kind | None = None,
    step_delimiter: str | None = None,
    step_tag: str | None = None,
    good: str | None = None,
    bad: str | None = None,
    positive_label: int | None = None,
    beta: float | None = None,
) -> IncrementalScorer:
    """Score steps with a process-reward model run in process.

    Args:
        model: a Hugging Face folder; absent: the packaged reward model of the nano family.
        device: auto, cpu or cuda.
        dtype: auto, bfloat16 or float32.
        threads: compute threads.
        max_context: a limit below the model's own.
        batch_invariant: what is scored together cannot change a single bit of a score; slower.
        kind: label, token or likelihood; absent: what the folder states, else label.
        step_delimiter: text that ends a step.
        step_tag: token inserted after a step, where the score is read.
        good: token whose probability is the score (step-token models), against bad.
        bad: see good.
        positive_label: index of the label that means correct.
        beta: power of the likelihood.
    """
    from transformers import AutoTokenizer

    from ttc import nano
    from ttc.embedded.folder import resolve
    from ttc.embedded.invariant import PAD_ROWS, blocked_attention, check
    from ttc.embedded.model import load_body, softmax_attention
    from ttc.embedded.shape import read_config

    folder = nano.path("prm") if model is None else resolve(model)
    given = {
        "kind": kind,
        "step_delimiter": step_delimiter,
        "step_tag": step_tag,
        "good": good,
        "bad": bad,
        "positive_label": positive_label,
        "beta": beta,
    }
    reading = _reading(read_config(folder).get("ttc_prm", {}), given, str(folder))
    tokens = Tokens(AutoTokenizer.from_pretrained(str(folder)))
    body, rest = load_body(
        folder,
        device=device,
        dtype=dtype,
        max_context=max_context,
        head=reading.kind != "label",
        kernel=blocked_attention if batch_invariant else softmax_attention,
        pad_rows=PAD_ROWS if batch_invariant else 1,
    )
    if batch_invariant:
        with inference(threads):
            check(body)
    reader = _KINDS[reading.kind](reading, body, rest, tokens, str(folder))
    return IncrementalScorer(
        body,
        reader,
        tokens,
        step_delimiter=reading.step_delimiter,
        step_tag=None if reading.step_tag is None else tokens.single("step_tag", reading.step_tag),
        shape=body.dims.model_shape(2 if reading.kind == "label" else body.dims.vocab),
        threads=threads,
    )
