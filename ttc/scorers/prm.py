"""Process-reward models: a score for every step, in process, on vLLM, or on a server.

Lightman et al. 2023, "Let's Verify Step by Step"; Uesato et al. 2022. Each public family has an adapter in
`ttc/scorers/adapters`: they are recognised by name or architecture (or set by `adapter=NAME`), read problem and steps
in their own format with their own tokenizer, and so work with any generator. A model with the generator's tokenizer
needs no adapter: `ttc_prm` in its config.json states how it is read, as a token classifier (label), as a language model
that answers with a good or a bad token (token), or as the likelihood of the path under a better model (likelihood).

Cost, in scored tokens: `embedded` computes each new token of a path once, and the common part of all paths once per
problem (scoring whole prefixes again would cost about 8x more at ten steps). `vllm` uses its prefix cache, so each step
costs its own tokens and those of the last incomplete cache block (up to block size - 1). `http` costs the same if the
server is started for it (`reward_models.server`). Left out: generative reward models that write a critique (see
`judge`), models that need remote code.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

from ttc.config.signatures import checked_by
from ttc.core import Engine, Scorer
from ttc.engines.shared.folder import check_model
from ttc.errors import ConfigError
from ttc.identity.digests import BESIDE_WEIGHTS, ROLES, ModelFolder, reads
from ttc.scorers.adapters._base import Adapter
from ttc.scorers.reward_models.adapters import adapter_names, load_adapter, recognise
from ttc.scorers.reward_models.backends import EmbeddedCore, InVllm, OverHttp, StepsOverHttp
from ttc.scorers.reward_models.embedded import Kind, adapted, same_ids

Backend: TypeAlias = EmbeddedCore | InVllm | StepsOverHttp


def _check(
    model: str | None,
    options: Backend,
    adapter: str | None,
    step_delimiter: str | None,
    engine: Engine | None,
    **rest: Any,
) -> None:
    reading = _reading(**rest)
    if adapter is not None and reading:
        raise ConfigError(f"prm adapter={adapter} already says {', '.join(reading)}: give one or the other")
    if not _is_whole(options):
        check_model(model)
    elif model is not None or adapter is not None or reading:
        raise ConfigError("prm protocol=steps: the server knows its model and how it is read; give neither here")


def _reading(**options: object) -> dict[str, Any]:
    """The given options that determine how a model's scores are read; an adapter determines them, too."""
    return {name: value for name, value in options.items() if value is not None}


def _is_whole(options: Backend) -> bool:
    """Whether the server scores steps itself, so that no model folder is needed here."""
    return isinstance(options, StepsOverHttp) and options.protocol == "steps"


def _reads(*, model: str | None, options: Backend, **_: object) -> list[ModelFolder]:
    if _is_whole(options):
        return []
    return [ModelFolder(_folder(model), BESIDE_WEIGHTS if isinstance(options, OverHttp) else tuple(ROLES))]


def _folder(model: str | None) -> Path:
    from ttc import nano
    from ttc.engines.shared.folder import resolve

    return nano.path("prm") if model is None else resolve(model)


@reads(_reads)
@checked_by(_check)
def prm(
    model: str | None = None,
    options: Backend = EmbeddedCore(),  # noqa: B008  a frozen value
    *,
    adapter: str | None = None,
    kind: Kind | None = None,
    step_delimiter: str | None = None,
    step_tag: str | None = None,
    good: str | None = None,
    bad: str | None = None,
    positive_label: int | None = None,
    beta: float | None = None,
    engine: Engine | None = None,
) -> Scorer:
    """Score steps with a process-reward model.

    Args:
        model: a Hugging Face folder or hub id; absent: the packaged reward model of the nano family.
        options: where it computes.
        backend: embedded (in this process), vllm (in this process, by vLLM) or http (a server).
        adapter: the format of a public family (see ttc/scorers/adapters), or file.py:function; absent: recognised.
        kind: without adapter: label, token or likelihood; absent: what the folder states, else label.
        step_delimiter: text that ends a step; absent: the adapter's or the folder's own.
        step_tag: without adapter: token inserted after a step, where the score is read.
        good: without adapter: token whose probability is the score (kind token), against bad.
        bad: see good.
        positive_label: without adapter: index of the label that means correct.
        beta: without adapter: power of the likelihood.
        engine: the generator's engine, supplied by the command line; without adapter its ids are checked, not used.

    Raises:
        ConfigError: a model, adapter or tokenizer (also the generator's) that do not match; before any scoring.
        MissingExtra: backend=vllm without vLLM.
    """
    if isinstance(options, StepsOverHttp) and options.protocol == "steps":
        from ttc.scorers.reward_models.server import RewardServer, StepsScorer

        return StepsScorer(RewardServer(options), step_delimiter or "\n\n", options.served_model)

    from ttc.engines.shared.shape import read_config

    reading = _reading(kind=kind, step_tag=step_tag, good=good, bad=bad, positive_label=positive_label, beta=beta)
    folder = _folder(model)
    config = read_config(folder)
    family: Adapter | None = None
    if adapter is not None:
        family = load_adapter(adapter, config, str(folder), outcome=False)
    elif "ttc_prm" not in config and not reading:
        family = recognise(model or "", folder, config, outcome=False)
    if family is None and isinstance(options, EmbeddedCore):
        delimiter = {} if step_delimiter is None else {"step_delimiter": step_delimiter}
        return same_ids(folder, config, {**reading, **delimiter}, options, engine)
    if family is None:
        names = adapter_names(outcome=False)
        raise ConfigError(f"prm backend={options.backend} needs adapter=NAME for this model (known: {names})")
    if isinstance(options, EmbeddedCore):
        return adapted(folder, family, options, step_delimiter)
    if isinstance(options, InVllm):
        from ttc.scorers.reward_models.vllm import vllm_scorer

        return vllm_scorer(folder, family, options, step_delimiter)
    from ttc.scorers.reward_models.server import RewardServer, token_scorer

    return token_scorer(RewardServer(options), folder, family, step_delimiter)
