"""The openai engine: any OpenAI-compatible endpoint, one or several servers of one model.

The endpoint's features are probed once at the start (`ttc.engines.openai.probe`). With a local tokenizer and a server
that accepts and returns token ids (vLLM, llama.cpp's own), every strategy and exact thinking control work as on an
in-process engine. With a tokenizer and plain completions, search works on text. With neither, strategies of whole
answers work through messages (`direct`, `majority`, `best_of_n`), and unsupported requests are refused before they are
sent. A server that accepts ids and enforces grammars (vLLM, with `auto` or `guidance` as its structured outputs'
backend) supports functions, too. Cost: the endpoint's, and a few requests of 4 tokens for the probe at every start, on
no run's ledger. Left out: images, functions over messages (the endpoint passes those through), servers of different
models in one engine.

Recommended for vLLM: `vllm serve MODEL --enable-prompt-tokens-details` (then cached tokens are counted); its CPU build
0.32 also needs `--block-size 32 --no-enable-chunked-prefill`, since chunked prefill with seeds crashes it.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ttc.config.values import above, at_least
from ttc.core import Capabilities, Engine, with_extra
from ttc.errors import ConfigError, ServerRefused
from ttc.identity.digests import BESIDE_WEIGHTS, ModelFolder, reads

if TYPE_CHECKING:
    from ttc.core import ModelShape
    from ttc.engines.openai.engine import Connection, RemoteEngine
    from ttc.engines.openai.refusals import Access
    from ttc.engines.openai.wire import Features
    from ttc.engines.shared.balance import Retry
    from ttc.engines.shared.text import Text

OFFICIAL = "https://api.openai.com/v1"
UNKNOWN_CONTEXT = 1 << 20
KEY = "OPENAI_API_KEY"
_NO_TOKENIZER = ("off", "none")
"""Values that turn the local tokenizer off; where settings are written as text, `none` also unsets a setting."""


def _reads(*, model: str | None, tokenizer: str | None, **_: object) -> list[ModelFolder]:
    folder = _folder(model, tokenizer)
    return [] if folder is None else [ModelFolder(folder, BESIDE_WEIGHTS, owner=f"model {tokenizer or model}")]


@reads(_reads)
def openai(
    model: str | None = None,
    *,
    base_url: str | None = None,
    tokenizer: str | None = None,
    api_key_env: str = KEY,
    max_context: int | None = None,
    seeded: bool = True,
    logprobs: bool = True,
    max_in_flight: int = 256,
    max_concurrency: int = 64,
    attempts: int = 6,
    retry_s: float = 60.0,
    connect_s: float = 5.0,
    idle_s: float = 600.0,
    silent_again: bool = True,
) -> Engine:
    """Connect to a server and probe its features.

    Args:
        model: the model's name on the server; may be absent where it serves only one.
        base_url: address of the API, http://127.0.0.1:8000/v1; several servers of the same model separated by commas.
            Absent: the environment's OPENAI_BASE_URL, else OpenAI's own.
        tokenizer: folder or hub id of the model's tokenizer and chat template, which makes exact token control
            possible. Absent: the model where it is a folder; "off": messages only.
        api_key_env: environment variable with the key; the key itself is never stored.
        max_context: a limit below the server's own, in tokens.
        seeded: send every draw with a seed of its own, which makes draws reproducible where the server uses seeds.
            False is faster: no seeds, and on a server that accepts token ids, the draws of a prompt in one request.
            Commands without --seed choose False.
        logprobs: request the log-probabilities of sampled tokens. Commands without --seed choose False where no
            strategy and no scorer reads them.
        max_in_flight: most requests at once; further ones wait here. llama.cpp's server gets as many as it has slots.
        max_concurrency: most problems at once, where the caller sets no number; two per slot of llama.cpp's server.
        attempts: most attempts of one request, including the first; only transient failures are retried. A server that
            is too busy (429) and names no delay is asked again for retry_s, unless this is 1.
        retry_s: no attempt starts later than this after the first failure, in seconds.
        connect_s: seconds to wait for a connection.
        idle_s: seconds of silence after which a request has failed.
        silent_again: retry on a server that was silent for this long, since a lost connection looks the same. False:
            retry on other servers only.

    Raises:
        ConfigError: no server answers, the key, model or tokenizer is wrong, or an option is out of range.
        EngineError: the server answers, but is too busy to be probed.
    """
    from ttc.engines.openai.engine import Connection
    from ttc.engines.openai.refusals import Access
    from ttc.engines.shared.balance import Retry

    at_least("openai", 1, max_in_flight=max_in_flight, max_concurrency=max_concurrency, attempts=attempts)
    at_least("openai", 2, max_context=max_context)
    at_least("openai", 0, retry_s=retry_s)
    above("openai", 0, connect_s=connect_s, idle_s=idle_s)
    urls = _urls(base_url or os.environ.get("OPENAI_BASE_URL") or OFFICIAL)
    access = Access(_key(api_key_env, urls), connect_s, idle_s)
    retry = Retry(attempts, retry_s, silent_again=silent_again)
    local = _local(model, tokenizer)
    features = _find_out(urls, access, retry, model, local)
    if seeded and not features.seeds:
        warnings.warn(
            f"{features.model}: the server refuses the field seed: runs are not reproducible, not even with --seed",
            RuntimeWarning,
            stacklevel=2,
        )
    features = replace(features, seeds=features.seeds and seeded, logprobs=features.logprobs and logprobs)
    # further ones would wait there in silence, and problems would lose their cached prefixes
    if features.slots is not None:
        num_slots = features.slots * len(urls)
        max_in_flight, max_concurrency = min(max_in_flight, num_slots), min(max_concurrency, 2 * num_slots)
    context = features.max_context or (local.max_context if local else None) or UNKNOWN_CONTEXT
    capabilities = Capabilities(
        model=features.model,
        max_context=min(context, max_context or context),
        token_ids=False,
        certainty=False,
        max_concurrency=max_concurrency,
    )
    connection = Connection(urls, access, retry, max_in_flight)
    return _engine(features, capabilities, connection, local)


@dataclass(frozen=True, slots=True)
class _Local:
    """The local folder's tokenizer, model shape and context, as far as available."""

    text: Text
    shape: ModelShape | None
    max_context: int | None


def _engine(
    features: Features, capabilities: Capabilities, connection: Connection, local: _Local | None
) -> RemoteEngine:
    """The engine for the most capable dialect of the endpoint."""
    from ttc.engines.openai.chat import ChatDialect, PlainDialect
    from ttc.engines.openai.engine import RemoteEngine, RemoteTokenEngine
    from ttc.engines.openai.ids import IdsDialect, ScoringEngine, extras_of_ids
    from ttc.engines.openai.wire import EXTRA_SETTINGS

    if local is None:
        return RemoteEngine(ChatDialect(features), features, capabilities, connection, None)
    text = local.text
    capabilities = replace(capabilities, shape=local.shape, recommended=text.recommended)
    if not features.extras:
        capabilities = capabilities.without_settings(*EXTRA_SETTINGS)
    if features.ids:
        capabilities = replace(
            capabilities,
            token_ids=True,
            logprobs=features.logprobs,
            think_open=text.think_open,
            think_close=text.think_close,
            think_texts=text.think_texts,
            eos_ids=text.eos_ids,
            handover=text.handover,
        )
        for name in (*(("grammar",) if features.grammars else ()), *extras_of_ids(features)):
            capabilities = with_extra(capabilities, name)
        make = ScoringEngine if features.scores else RemoteTokenEngine
        return make(IdsDialect(text, features, capabilities.max_context), features, capabilities, connection, text)
    dialect = PlainDialect(text, features) if features.text else ChatDialect(features, text)
    return RemoteEngine(dialect, features, capabilities, connection, text)


def _urls(given: str) -> tuple[str, ...]:
    """The servers of a comma-separated list; raises ConfigError for an invalid address, or one with a secret."""
    urls = tuple(url.strip().rstrip("/") for url in given.split(",") if url.strip())
    for url in urls:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"engine.base_url must look like http://127.0.0.1:8000/v1, got {url!r}")
        if parts.query.startswith("api-version="):
            raise ConfigError(
                f"engine.base_url of {parts.hostname} holds an api-version: name Azure's address without one, "
                f"https://{parts.hostname}/openai/v1, and the deployment with --model"
            )
        if parts.path.endswith("/completions"):
            address = url.removesuffix("/completions").removesuffix("/chat")
            raise ConfigError(f"engine.base_url is the address of the whole API, {address}, and not {url}")
        if parts.username or parts.password or parts.query:
            raise ConfigError(
                f"engine.base_url of {parts.hostname} must hold no user, password or query, since it is written into "
                f"records: put the key into {KEY}"
            )
    return urls


def _key(name: str, urls: tuple[str, ...]) -> str:
    """The key; required only if its variable was named or a server is official, since local servers need none."""
    key = os.environ.get(name, "").strip()
    if not key and (name != KEY or OFFICIAL in urls):
        raise ConfigError(
            f"no key: set the environment variable {name}, or engine.base_url (of a judge scorer.base_url) to a server "
            "that needs none"
        )
    return key


def _folder(model: str | None, tokenizer: str | None) -> Path | None:
    """The folder of the model's tokenizer, if one was named."""
    from ttc.engines.shared.folder import resolve

    if tokenizer in _NO_TOKENIZER or (tokenizer is None and not (model and Path(model).expanduser().is_dir())):
        return None
    return resolve(tokenizer or model or "")


def _local(model: str | None, tokenizer: str | None) -> _Local | None:
    """The local folder, if there is one; raises ConfigError when its tokenizer cannot be used."""
    from ttc.engines.shared.shape import Dims, read_config, supported
    from ttc.engines.shared.text import Text

    folder = _folder(model, tokenizer)
    if folder is None:
        return None
    text = Text(folder)
    if not text.eos_ids:
        raise ConfigError(f"{folder} names no end-of-sequence token (generation_config.json: eos_token_id)")
    config = read_config(folder) if (folder / "config.json").is_file() else None
    if config is None or not supported(config):
        return _Local(text, None, None)
    dims = Dims.from_config(config)
    return _Local(text, dims.model_shape(dims.vocab), dims.max_context)


def _find_out(urls: tuple[str, ...], access: Access, retry: Retry, model: str | None, local: _Local | None) -> Features:
    """Probe the first server that answers; the others must serve the same model, or be out of use for now."""
    from ttc.engines.openai.probe import Unreachable, probe, served_model
    from ttc.engines.openai.sync_client import SyncClient

    features: Features | None = None
    unusable: list[ConfigError] = []
    for url in urls:
        client = SyncClient(url, access, retry)
        try:
            listed = served_model(client, url, features.model if features else model)
            if features is None:
                features = probe(client, listed, local.text if local else None)
        except (Unreachable, ServerRefused) as exc:
            unusable.append(exc)
        finally:
            client.close()
    if features is None:
        raise unusable[0]
    for failure in unusable:
        warnings.warn(f"{failure}; going on without it until it answers", RuntimeWarning, stacklevel=3)
    return features
