"""What the user has: an endpoint, probed by the engine `openai`; a model folder, read without loading it; or the toy.

Cost: of an endpoint some 50 tokens; of a model in this process its configuration and tokenizer. Reward models are
looked for in the cache of the hub, and never downloaded here.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ttc.config.choices import DEFAULT_ENGINE, DEFAULT_SCORER, ENDPOINT, PartChoice
from ttc.config.registry import ENGINES
from ttc.core import Prices
from ttc.errors import ConfigError, MissingExtra

if TYPE_CHECKING:
    from ttc.engines.openai.engine import RemoteEngine
    from ttc.engines.openai.wire import Features

GIB = 2**30
REWARD_MODELS: Mapping[str, float] = {
    "Qwen/Qwen2.5-Math-PRM-7B": 14.2,
    "Skywork/Skywork-o1-Open-PRM-Qwen-2.5-7B": 14.2,
    "RLHFlow/Llama3.1-8B-PRM-Deepseek-Data": 15.0,
    "peiyi9979/math-shepherd-mistral-7b-prm": 14.2,
    "Skywork/Skywork-o1-Open-PRM-Qwen-2.5-1.5B": 3.1,
}
"""Process reward models that the scorer `prm` reads, the best for mathematics first, and their weights in GB (bf16)."""


@dataclass(frozen=True, slots=True)
class Discovery:
    """What was found.

    Attributes:
        engine: what the model runs on.
        model: its folder, hub id or name; None for the packaged one.
        name: what reports call it.
        facts: (name, text) in the order in which they are printed.
        continues: it can continue a text and tells a stop string from an end, so a search by steps can run.
        settings: what the engine needs beside its model.
        scorer: a reward model that is here and fits.
        prices: what the server says its tokens cost.
        temperature: the only one that the model takes; None where it takes any.
    """

    engine: str
    model: str | None
    name: str
    facts: tuple[tuple[str, str], ...]
    continues: bool
    settings: Mapping[str, object]
    scorer: str | None = None
    prices: Prices | None = None
    temperature: float | None = None

    @property
    def packaged(self) -> bool:
        """Whether it is the toy that comes with the package."""
        return self.engine == DEFAULT_ENGINE and self.model is None


def look(
    engine: str | None, model: str | None, base_url: str | None, api_key_env: str | None, prices: Prices | None
) -> Discovery:
    """Find out what is there; `prices` are the user's own.

    Raises:
        ConfigError: nothing is, or it refuses; says what to do.
        EngineError: the endpoint is too busy to be asked.
    """
    if engine == ENDPOINT or (engine is None and (base_url or (model is not None and _is_hosted(model)))):
        return _endpoint(model, base_url, api_key_env, prices)
    if base_url or api_key_env:
        raise ConfigError(f"--base-url and --api-key-env belong to an endpoint: leave out --engine {engine}")
    return _local(engine or DEFAULT_ENGINE, model)


def _is_hosted(model: str) -> bool:
    """Whether the name can only be a hosted model's (`gpt-4o-mini`): no folder, no hub id, and there is a key."""
    has_key = bool(os.environ.get("OPENAI_API_KEY") or os.environ.get("OPENAI_BASE_URL"))
    return has_key and "/" not in model and not Path(model).expanduser().exists()


def _endpoint(model: str | None, base_url: str | None, api_key_env: str | None, prices: Prices | None) -> Discovery:
    given = {"base_url": base_url, "api_key_env": api_key_env}
    settings: dict[str, object] = {name: value for name, value in given.items() if value is not None}
    probed = _probed(settings, model)
    folder, missing = probed.features.served.get("model root"), None
    if folder and Path(folder).is_dir() and (Path(folder) / "tokenizer.json").is_file():
        with_tokenizer = {**settings, "tokenizer": folder}
        try:
            settings, probed = with_tokenizer, _probed(with_tokenizer, model)
        except MissingExtra as exc:  # the light core measures whole answers there all the same
            missing = exc
    features = probed.features
    steps = features.ids or (features.stops and (features.text or bool(features.prefill)))
    scorer = _reward_model() if steps else None
    facts = (
        ("endpoint", f"{', '.join(probed.urls)}, model {features.model}"),
        ("token ids", _ids_text(features, settings, folder, missing)),
        ("continues", "yes, searches step by step can run" if steps else "no: it gives whole answers only"),
        ("log-probs", "yes" if features.ids and features.logprobs else "no"),
        ("context", f"{features.max_context:,} tokens" if features.max_context else "unknown"),
        *((("temperature", "only its own, 1: everything is drawn at that"),) if features.own_temperature else ()),
        ("prices", _prices_text(features.prices, prices)),
        *_reward_facts(scorer, steps),
    )
    own = 1.0 if features.own_temperature else None
    return Discovery(ENDPOINT, model, features.model, facts, steps, settings, scorer, features.prices, own)


def _probed(settings: Mapping[str, object], model: str | None) -> RemoteEngine:
    from ttc.engines.openai.engine import RemoteEngine

    engine = PartChoice.of(ENGINES, ENDPOINT, settings, model).create_engine()
    asyncio.run(engine.close())
    if not isinstance(engine, RemoteEngine):
        raise ConfigError(f"engine {ENDPOINT} made a {type(engine).__name__}, which cannot be asked what it found")
    return engine


def _ids_text(
    features: Features, settings: Mapping[str, object], root: str | None, missing: MissingExtra | None
) -> str:
    if missing is not None:
        return f"perhaps, with its tokenizer: {missing}"
    if features.ids:
        return f"yes, by the tokenizer in {settings['tokenizer']}: thinking budgets are exact"
    if features.verbose:
        return "yes, once the folder of the model's tokenizer is named: --set engine.tokenizer=PATH of ttc eval"
    return f"perhaps, with --set engine.tokenizer={root}" if root else "no"


def _prices_text(servers: Prices | None, own: Prices | None) -> str:
    prices, source = (servers, "as the server says") if own is None else (own, "as you say")
    if prices is None:
        return "unknown; set --price-in and --price-out, in dollars per million tokens"
    return f"${prices.prompt:g} in, ${prices.generated:g} out per million tokens, {source}"


def _local(engine: str, model: str | None) -> Discovery:
    from ttc.engines.shared.folder import generator_folder
    from ttc.engines.shared.shape import read_config
    from ttc.engines.shared.text import Text

    PartChoice.of(ENGINES, engine, {}, model)  # refuses a name that is none
    folder = generator_folder(model)
    config, text = read_config(folder), Text(folder)
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    packaged = engine == DEFAULT_ENGINE and model is None
    scorer = DEFAULT_SCORER if packaged else _reward_model()
    kind = (config.get("architectures") or [config.get("model_type", "unknown")])[0]
    thinks = f"yes, between {text.markers[0]} and {text.markers[1]}" if text.markers else "no markers for it"
    facts = (
        ("model", f"{'the packaged toy' if packaged else folder}: {kind}, {size / 1e9:.2g} GB of weights"),
        ("engine", f"{engine}, in this process"),
        ("memory", _memory_text(size)),
        ("token ids", "yes: exact budgets, searches step by step can run"),
        ("thinks", thinks),
        *((("reward model", "the packaged one"),) if packaged else _reward_facts(scorer, True)),
    )
    return Discovery(engine, model, folder.name, facts, True, {}, scorer)


def _memory_text(size: int) -> str:
    """What is free where the model will run, and whether its weights fit."""
    room = _room()
    if room is None:
        return "not known here"
    fits = "the weights fit" if size < 0.9 * room.free else "too little for the weights: take a smaller model"
    return f"{room.free / GIB:.1f} GiB free {f'on {room.gpu}' if room.gpu else 'in memory, no GPU'}; {fits}"


@dataclass(frozen=True, slots=True)
class _Room:
    """Bytes free on the first GPU; without a GPU, in this machine's memory."""

    free: int
    gpu: str | None


def _room() -> _Room | None:
    """None where it cannot be read."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    from ttc.engines.shared.compute import free_memory

    if torch.cuda.is_available():
        return _Room(torch.cuda.mem_get_info(0)[0], torch.cuda.get_device_name(0))
    free = free_memory()
    return None if free is None else _Room(free, None)


def _reward_model() -> str | None:
    """The best reward model in the hub's cache that fits beside a generator on this machine's GPU, as `prm:ID`."""
    here = [name for name in REWARD_MODELS if _is_fetched(name)]
    room = _room() if here else None
    if room is None or room.gpu is None:
        return None
    return next((f"prm:{name}" for name in here if REWARD_MODELS[name] * 1e9 < room.free / 2), None)


def _is_fetched(name: str) -> bool:
    """Whether the hub's cache holds a model; without the hub's library there is no cache."""
    try:
        from huggingface_hub import try_to_load_from_cache
    except ModuleNotFoundError:
        return False
    return isinstance(try_to_load_from_cache(name, "config.json"), str)


def _reward_facts(scorer: str | None, steps: bool) -> tuple[tuple[str, str], ...]:
    if scorer is not None:
        return (("reward model", f"{scorer.partition(':')[2]}, which is here and fits"),)
    if not steps:
        return (("reward model", "none is needed: without steps there is nothing to guide"),)
    name, size = next(iter(REWARD_MODELS.items()))
    return (("reward model", f"none is here; {name} ({size:.0f} GB, on a GPU) is one for mathematics"),)
