"""Process-reward models: a score for every step, in process, on vLLM, or on a server.

Lightman et al. 2023, "Let's Verify Step by Step"; Uesato et al. 2022. The public families are described one a file in
`ttc/scorers/adapters`: they are recognised by name or architecture (`adapter=NAME` says it), read problem and steps in
their own format through their own tokenizer, and so work beside any generator. A model with the generator's tokenizer
needs no adapter: its config.json says in `ttc_prm` how it is read, as a token classifier (label), as a language model
that says a good token or a bad one (token), or as the likelihood of the path under a better model (likelihood).

Cost, in scored tokens: `embedded` computes each new token of a path once, what all paths share once per problem
(scoring whole prefixes anew would cost about 8x more at ten steps). `vllm` reads its prefix cache, so each step costs
its own tokens and what its last cache block lacks (up to block size - 1). `http` costs the same where the server is
started for it (`_vllm_server.py`). Left out: generative reward models that write a critique (`judge` does), models that
need remote code.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from ttc.config.signatures import checked_by
from ttc.core import Scorer
from ttc.engines.shared.options import Dtype, check_model, check_place
from ttc.errors import ConfigError
from ttc.identity.reads import BESIDE_WEIGHTS, ModelFolder, reads
from ttc.scorers.adapters._base import Adapter
from ttc.scorers.reward_models.adapters import load_adapter, recognise, step_adapters
from ttc.scorers.reward_models.embedded import Kind, Place, adapted, same_ids
from ttc.scorers.reward_models.options import check_options

_READING = ("kind", "step_tag", "good", "bad", "positive_label", "beta")
"""Options that say how a model's scores are read; an adapter says it too."""


def _check(model: str | None, **options: Any) -> None:
    check_options(prm, options["backend"], options)
    check_place("prm", options["device"], options["threads"])
    adapter, reading = options["adapter"], [name for name in _READING if options[name] is not None]
    if adapter is not None and reading:
        raise ConfigError(f"prm adapter={adapter} already says {', '.join(reading)}: give one or the other")
    if options["base_url"] is None or options["protocol"] != "steps":
        check_model(model)
    elif model is not None or adapter is not None or reading:
        raise ConfigError("prm protocol=steps: the server knows its model and how it is read; give neither here")


def _reads(*, model: str | None, base_url: str | None, protocol: str, **_: object) -> list[ModelFolder]:
    if base_url is not None and protocol == "steps":
        return []
    return [ModelFolder(_folder(model)) if base_url is None else ModelFolder(_folder(model), BESIDE_WEIGHTS)]


def _folder(model: str | None) -> Path:
    from ttc import nano
    from ttc.engines.shared.folder import resolve

    return nano.path("prm") if model is None else resolve(model)


@reads(_reads)
@checked_by(_check)
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
    dtype: Dtype = "auto",
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
        dtype: embedded, vllm: auto, bfloat16 or float32.
        threads: embedded, vllm: compute threads.
        max_context: embedded, vllm: a limit below the model's own.
        gpu_memory_utilization: vllm: share of the GPU's memory it may take.
        kv_cache_bytes: vllm: memory of its cache; absent: what gpu_memory_utilization leaves, 2 GiB on a CPU.
        batch_invariant: embedded: what is scored together cannot change a single bit of a score on one machine; slower.
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
    own = (kind, step_tag, good, bad, positive_label, beta)
    overrides = {name: value for name, value in zip(_READING, own, strict=True) if value is not None}
    if base_url is not None and protocol == "steps":
        from ttc.scorers.reward_models.server import RewardServer
        from ttc.scorers.reward_models.vllm_server import StepsScorer

        return StepsScorer(RewardServer(base_url, served_model, api_key_env), step_delimiter or "\n\n", served_model)

    from ttc.engines.shared.shape import read_config

    folder = _folder(model)
    config = read_config(folder)
    family: Adapter | None = None
    if adapter is not None:
        family = load_adapter(adapter, config, str(folder), outcome=False)
    elif "ttc_prm" not in config and not overrides:
        family = recognise(model or "", folder, config, outcome=False)
    place = Place(device, dtype, threads, max_context, batch_invariant)
    if family is None and backend == "embedded":
        delimiter = {} if step_delimiter is None else {"step_delimiter": step_delimiter}
        return same_ids(folder, config, {**overrides, **delimiter}, place)
    if family is None:
        raise ConfigError(f"prm backend={backend} needs adapter=NAME for this model (known: {step_adapters()})")
    if backend == "embedded":
        return adapted(folder, family, place, step_delimiter)
    if backend == "vllm":
        from ttc.scorers.reward_models.vllm import vllm_scorer

        return vllm_scorer(folder, family, place, step_delimiter, gpu_memory_utilization, kv_cache_bytes)
    from ttc.scorers.reward_models.server import RewardServer
    from ttc.scorers.reward_models.vllm_server import token_scorer

    return token_scorer(RewardServer(base_url or "", served_model, api_key_env), folder, family, step_delimiter)
