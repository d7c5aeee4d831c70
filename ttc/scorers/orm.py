"""Outcome reward models: one score for a whole answer.

Cobbe et al. 2021, "Training Verifiers to Solve Math Word Problems". Sequence classifiers, Qwen2.5-Math-RM and RLHFlow's
ORMs are recognised by name or architecture (`ttc/scorers/adapters`), each with its own chat format and tokenizer. Cost:
the problem once, every answer once, in scored tokens; Llama, Mistral, Qwen2 and Qwen3 run in the embedded core, other
sequence classifiers in transformers' own module, which reads the whole conversation for every answer. `backend=http`
uses a vLLM server (`reward_models.server`); whole conversations are then charged. Meant for whole answers (best-of-n);
a tree search gives it unfinished ones, for which it was not trained.
"""

from __future__ import annotations

from typing import TypeAlias

from ttc.config.signatures import checked_by
from ttc.core import Scorer
from ttc.engines.shared.folder import check_model
from ttc.errors import ConfigError
from ttc.identity.digests import BESIDE_WEIGHTS, ROLES, ModelFolder, reads
from ttc.scorers.reward_models.backends import EmbeddedCore, OverHttp

Backend: TypeAlias = EmbeddedCore | OverHttp


def _check(model: str | None) -> None:
    if model is None:
        raise ConfigError("scorer orm needs a model: --scorer orm:PATH")
    check_model(model)


def _reads(*, model: str | None, options: Backend, **_: object) -> list[ModelFolder]:
    from ttc.engines.shared.folder import resolve

    roles = BESIDE_WEIGHTS if isinstance(options, OverHttp) else tuple(ROLES)
    return [] if model is None else [ModelFolder(resolve(model), roles)]


@reads(_reads)
@checked_by(_check)
def orm(
    model: str | None = None,
    options: Backend = EmbeddedCore(),  # noqa: B008  a frozen value
    *,
    adapter: str | None = None,
) -> Scorer:
    """Score whole answers with an outcome reward model.

    Args:
        model: a Hugging Face folder or hub id.
        options: where it computes.
        backend: embedded (in this process) or http (a vLLM server of the model).
        adapter: the format of a public family (see ttc/scorers/adapters), or file.py:function; absent: recognised.

    Raises:
        ConfigError: no model, or one that is not an outcome reward model.
    """
    from ttc.engines.shared.folder import resolve
    from ttc.engines.shared.shape import read_config, supported
    from ttc.scorers.reward_models.adapters import adapter_names, load_adapter, recognise
    from ttc.scorers.reward_models.embedded import adapted

    folder = resolve(str(model))
    config = read_config(folder)
    if adapter is None:
        family = recognise(str(model), folder, config, outcome=True)
    else:
        family = load_adapter(adapter, config, str(folder), outcome=True)
    if family is None:
        name = ", ".join(config.get("architectures") or ()) or config["model_type"]
        raise ConfigError(
            f"{folder} ({name}) is not recognised as a reward model of whole answers: if it is one, name its format, "
            f"--set scorer.adapter=NAME ({adapter_names(outcome=True)})"
        )
    if isinstance(options, OverHttp):
        from ttc.scorers.reward_models.server import RewardServer, token_scorer

        return token_scorer(RewardServer(options), folder, family, None)
    if supported(config):
        return adapted(folder, family, options, None)
    from ttc.scorers.reward_models.transformers import transformers_scorer

    return transformers_scorer(folder, family, options)
