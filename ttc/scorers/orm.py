"""Outcome reward models: one score for a whole answer.

Cobbe et al. 2021, "Training Verifiers to Solve Math Word Problems". Sequence classifiers, Qwen2.5-Math-RM and RLHFlow's
ORMs are recognised by name or architecture (`ttc/scorers/adapters`), each in its own chat format and by its own
tokenizer. Cost: the problem once, every answer once, in scored tokens; Llama, Mistral, Qwen2 and Qwen3 run in the
embedded core, other sequence classifiers through transformers' own module, which reads the whole conversation for
every answer. `backend=http` asks a vLLM server (`_http.py`); whole conversations are then charged. Meant for whole
answers (best-of-n); in a tree search it sees unfinished ones, which it was not made for.
"""

from __future__ import annotations

from typing import Any, Literal

from ttc.config.signatures import checked_by
from ttc.core import Scorer
from ttc.engines.shared.options import Dtype, check_model, check_place
from ttc.errors import ConfigError
from ttc.identity.reads import BESIDE_WEIGHTS, ModelFolder, reads
from ttc.scorers.reward_models.options import check_options


def _check(model: str | None, **options: Any) -> None:
    check_options(orm, options["backend"], options)
    check_place("orm", options["device"], options["threads"])
    if model is None:
        raise ConfigError("scorer orm needs a model: --scorer orm:PATH")
    check_model(model)


def _reads(*, model: str | None, base_url: str | None, **_: object) -> list[ModelFolder]:
    from ttc.engines.shared.folder import resolve

    if model is None:
        return []
    return [ModelFolder(resolve(model)) if base_url is None else ModelFolder(resolve(model), BESIDE_WEIGHTS)]


@reads(_reads)
@checked_by(_check)
def orm(
    model: str | None = None,
    *,
    backend: Literal["embedded", "http"] = "embedded",
    adapter: str | None = None,
    base_url: str | None = None,
    served_model: str | None = None,
    api_key_env: str | None = None,
    device: str = "auto",
    dtype: Dtype = "auto",
    threads: int = 1,
    max_context: int | None = None,
    batch_invariant: bool = False,
) -> Scorer:
    """Score whole answers with an outcome reward model.

    Args:
        model: a Hugging Face folder or hub id.
        adapter: the format of a public family (see ttc/scorers/adapters), or file.py:function; absent: recognised.
        backend: embedded (in this process) or http (a vLLM server of the model).
        base_url: http: where the server is, without /v1; several separated by commas share the work.
        served_model: http: the model's name on the server; absent: the server's only one.
        api_key_env: http: environment variable that holds the server's key; absent: it needs none.
        device: embedded: auto, cpu or cuda.
        dtype: embedded: auto, bfloat16 or float32.
        threads: embedded: compute threads.
        max_context: embedded: a limit below the model's own.
        batch_invariant: embedded: what is scored together cannot change a single bit of a score on one machine; slower.

    Raises:
        ConfigError: no model, or one that is no outcome reward model.
    """
    from ttc.engines.shared.folder import resolve
    from ttc.engines.shared.shape import read_config, supported
    from ttc.scorers.reward_models.adapters import load_adapter, recognise
    from ttc.scorers.reward_models.embedded import Place, adapted

    folder = resolve(str(model))
    config = read_config(folder)
    if adapter is None:
        family = recognise(str(model), folder, config, outcome=True)
    else:
        family = load_adapter(adapter, config, str(folder), outcome=True)
    if family is None:
        architectures = ", ".join(config.get("architectures") or ()) or config["model_type"]
        raise ConfigError(
            f"{folder} ({architectures}) is no outcome reward model that is known: set scorer.adapter=NAME"
        )
    if base_url is not None:
        from ttc.scorers.reward_models.server import RewardServer
        from ttc.scorers.reward_models.vllm_server import token_scorer

        return token_scorer(RewardServer(base_url, served_model, api_key_env), folder, family, None)
    place = Place(device, dtype, threads, max_context, batch_invariant)
    if supported(config):
        return adapted(folder, family, place, None)
    from ttc.scorers.reward_models.transformers import transformers_scorer

    return transformers_scorer(folder, family, place)
