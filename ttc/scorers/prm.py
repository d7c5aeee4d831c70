"""Process-reward models: a score for every step, in process, on vLLM, or on a server.

Lightman et al. 2023, "Let's Verify Step by Step"; Uesato et al. 2022. The public families are described one a file in
`ttc/scorers/adapters`: they are recognised by name or architecture (`adapter=NAME` says it), read problem and steps in
their own format through their own tokenizer, and so work beside any generator. A model with the generator's tokenizer
needs no adapter: its config.json says in `ttc_prm` how it is read, as a token classifier (label), as a language model
that says a good token or a bad one (token), or as the likelihood of the path under a better model (likelihood).

Cost, in scored tokens: `embedded` computes each new token of a path once, what all paths share once per problem
(scoring whole prefixes anew would cost about 8x more at ten steps). `vllm` reads its prefix cache, so each step costs
its own tokens and what its last cache block lacks (up to block size - 1). `http`: see `_http.py`. Left out: generative
reward models that write a critique (`judge` does), models that need remote code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from ttc.core import Scorer
from ttc.errors import ConfigError
from ttc.scorers._adapters import ADAPTERS, load_adapter, recognise
from ttc.scorers._embedded import Place, adapted, load
from ttc.scorers._incremental import IncrementalScorer
from ttc.scorers._layouts import SameIds
from ttc.scorers._tokens import Tokens
from ttc.scorers.adapters._base import Adapter

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

    try:
        head = label_head(rest, body.device, reading.positive_label, reading.activation, where)
    except ConfigError as exc:
        raise ConfigError(f"{exc}; a public one in a format of its own needs scorer.adapter=NAME ({_names()})") from exc
    return HeadReader(body, head)


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
    reading = Reading(**{**stated, **given})
    if reading.kind not in _KINDS:
        raise ConfigError(f"prm kind must be one of {sorted(_KINDS)}, got {reading.kind!r}")
    return reading


def prm(
    model: str | None = None,
    *,
    backend: Literal["embedded", "vllm", "http"] = "embedded",
    adapter: str | None = None,
    base_url: str | None = None,
    protocol: Literal["vllm", "steps"] = "vllm",
    served_model: str | None = None,
    api_key_env: str | None = None,
    device: str = "auto",
    dtype: str = "auto",
    threads: int = 1,
    max_context: int | None = None,
    gpu_memory_utilization: float = 0.4,
    kv_cache_bytes: int | None = None,
    batch_invariant: bool = False,
    kind: Kind | None = None,
    step_delimiter: str | None = None,
    step_tag: str | None = None,
    good: str | None = None,
    bad: str | None = None,
    positive_label: int | None = None,
    beta: float | None = None,
) -> Scorer:
    """Score steps with a process-reward model.

    Args:
        model: a Hugging Face folder or hub id; absent: the packaged reward model of the nano family.
        backend: embedded (in this process), vllm (in this process, by vLLM) or http (a server).
        adapter: the format of a public family (see ttc/scorers/adapters), or file.py:function; absent: recognised.
        base_url: http: where the server is, without /v1; several separated by commas share the work.
        protocol: http: vllm (a vLLM server of the model) or steps (plain JSON: messages and steps in, scores out).
        served_model: http: the model's name on the server; absent: the server's only one.
        api_key_env: http: environment variable that holds the server's key; absent: it needs none.
        device: embedded: auto, cpu or cuda.
        dtype: auto, bfloat16 or float32.
        threads: embedded: compute threads.
        max_context: a limit below the model's own.
        gpu_memory_utilization: vllm: share of the GPU's memory it may take.
        kv_cache_bytes: vllm: memory of its cache; absent: by gpu_memory_utilization, and 1 GiB on a CPU.
        batch_invariant: embedded: what is scored together cannot change a single bit of a score; slower.
        kind: without adapter: label, token or likelihood; absent: what the folder states, else label.
        step_delimiter: text that ends a step; absent: the adapter's or the folder's own.
        step_tag: without adapter: token inserted after a step, where the score is read.
        good: without adapter: token whose probability is the score (kind token), against bad.
        bad: see good.
        positive_label: without adapter: index of the label that means correct.
        beta: without adapter: power of the likelihood.

    Raises:
        ConfigError: a model, adapter or tokenizer that do not fit together; before any scoring.
        MissingExtra: backend=vllm without vLLM.
    """
    own = {
        "kind": kind,
        "step_tag": step_tag,
        "good": good,
        "bad": bad,
        "positive_label": positive_label,
        "beta": beta,
    }
    given = {name: value for name, value in own.items() if value is not None}
    if adapter is not None and given:
        raise ConfigError(f"prm adapter={adapter} already says {', '.join(given)}: give one or the other")
    if (base_url is not None) != (backend == "http"):
        raise ConfigError("prm backend=http needs base_url, and no other backend takes it")
    if base_url is not None and protocol == "steps":
        from ttc.scorers._http import Server, StepsScorer

        return StepsScorer(Server(base_url, served_model, api_key_env), step_delimiter or "\n\n", served_model)

    from ttc import nano
    from ttc.embedded.folder import resolve
    from ttc.embedded.shape import read_config

    folder = nano.path("prm") if model is None else resolve(model)
    config = read_config(folder)
    chosen: Adapter | None = None
    if adapter is not None:
        chosen = load_adapter(adapter, config, str(folder), outcome=False)
    elif "ttc_prm" not in config and not given:
        chosen = recognise(model or "", folder, config, outcome=False)
    place = Place(device, dtype, threads, max_context, batch_invariant)
    if backend != "embedded":
        if chosen is None:
            raise ConfigError(f"prm backend={backend} needs adapter=NAME for this model (known: {_names()})")
        if backend == "vllm":
            from ttc.scorers._vllm import vllm_scorer

            return vllm_scorer(folder, chosen, place, step_delimiter, gpu_memory_utilization, kv_cache_bytes)
        from ttc.scorers._http import Server, token_scorer

        return token_scorer(Server(base_url or "", served_model, api_key_env), folder, chosen, step_delimiter)
    if chosen is not None:
        return adapted(folder, chosen, place, step_delimiter)
    delimiter = {} if step_delimiter is None else {"step_delimiter": step_delimiter}
    return _same_ids(folder, _reading(config.get("ttc_prm", {}), {**given, **delimiter}, str(folder)), place)


def _same_ids(folder: Path, reading: Reading, place: Place) -> IncrementalScorer:
    """The scorer of a model that reads the generator's own ids."""
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


def _names() -> str:
    return ", ".join(name for name in ADAPTERS.names() if not ADAPTERS.load(name)().outcome)
