"""SGLang: its engine in this process, or its servers over HTTP; token ids in, token ids out.

Zheng et al. 2024, "SGLang: Efficient Execution of Structured Language Model Programs" (radix attention). One request
per draw, so that draws and branches share their prefixes in SGLang's own radix cache; seeds by path, aborts, exact
counts, log-probabilities and new weights in place. Cost: at the start, a few tokens that are on no ledger, to determine
the kind of log-probabilities that are returned. Seeds have an effect only in SGLang's deterministic mode, which costs
speed and, on some attention backends (SGLang 0.5.23: all but fa3, fa4 and triton), the prefix cache;
`deterministic=false` gives up repeatable draws instead. Equality of runs is in distribution, since batching may change
a last bit. Grammars are enforced where SGLang runs with `--grammar-backend llguidance`, as it does in process. Left
out: SGLang's own caps on thinking (see `ttc.session.thinking`), adapters, native beam search.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ttc.config.signatures import options_of
from ttc.config.values import at_least
from ttc.core import Capabilities, Engine, Json, ModelShape, Sampling, with_extra
from ttc.engines.sglang.engine import SGLangEngine
from ttc.engines.sglang.http import HttpAccess, HttpServers, environment_key, parse_urls
from ttc.engines.sglang.local import LocalServer
from ttc.engines.sglang.wire import GRAMMARS, Received, SGLangServer, draw_body, score_body
from ttc.engines.shared.balance import Retry
from ttc.engines.shared.folder import resolve
from ttc.engines.shared.shape import Dims, read_config, supported
from ttc.engines.shared.text import Text
from ttc.errors import ConfigError
from ttc.identity.digests import BESIDE_WEIGHTS, ModelFolder, reads


def _reads(*, model: str | None, base_url: str | None, **_: object) -> list[ModelFolder]:
    if model is None:
        return []
    folder = resolve(model)
    return [ModelFolder(folder) if base_url is None else ModelFolder(folder, BESIDE_WEIGHTS)]


@reads(_reads)
def sglang(
    model: str | None = None,
    *,
    base_url: str | None = None,
    deterministic: bool = True,
    logprobs: bool = True,
    max_context: int | None = None,
    max_requests: int = 512,
    device: str | None = None,
    dtype: str = "auto",
    quantization: str | None = None,
    tp_size: int = 1,
    pp_size: int = 1,
    dp_size: int = 1,
    mem_fraction_static: float | None = None,
    max_total_tokens: int | None = None,
    attention_backend: str | None = None,
    cuda_graph: bool = True,
    overlap_schedule: bool = True,
    api_key_env: str | None = None,
    admin_key_env: str | None = None,
    connect_s: float = 10.0,
    answer_s: float = 600.0,
    max_attempts: int = 6,
    weights_dir: Path | None = None,
) -> Engine:
    """Run a model on SGLang.

    Args:
        model: a model folder or a hub id; with base_url, the folder of its tokenizer (default: the server's model).
        base_url: servers to use instead of an engine in this process: http://HOST:PORT, several separated by commas.
        deterministic: key all sampling by our seeds; a server must run with --enable-deterministic-inference.
        logprobs: report them; false where nothing reads them, which saves SGLang a softmax and a transfer per token.
        max_context: a limit below SGLang's own, in tokens.
        max_requests: most requests at once.
        device: in process: "cuda", "cpu", ...; None lets SGLang choose.
        dtype: in process: "auto", "bfloat16", "float16" or "float32".
        quantization: in process: one of SGLang's methods, such as "fp8".
        tp_size: in process: GPUs that share each layer.
        pp_size: in process: groups of GPUs that share the layers.
        dp_size: in process: copies of the model.
        mem_fraction_static: in process: fraction of a GPU's memory for weights and cache, in (0, 1).
        max_total_tokens: in process: tokens whose keys and values are held; None is as many as that memory holds.
        attention_backend: in process: "triton", "fa3", "flashinfer", "torch_native", ...; None is SGLang's choice.
        cuda_graph: in process: capture the decoding step.
        overlap_schedule: in process: schedule the next step while one runs.
        api_key_env: over HTTP: the environment variable with the server's key.
        admin_key_env: over HTTP: the one with its admin key, if any, which aborts and new weights need.
        connect_s: over HTTP: seconds to wait for a connection.
        answer_s: over HTTP: seconds to wait for an answer, or for the next event of a stream.
        max_attempts: over HTTP: most attempts of one request; only transient failures are retried.
        weights_dir: over HTTP: a folder that the servers can read, too, for new weights (default: the temporary one,
            when they run on this machine).

    Raises:
        MissingExtra: no base_url, and SGLang is not installed.
        ConfigError: an option, the model or a server cannot be used; the message names it and the fix.
    """
    local = {
        "device": device,
        "dtype": dtype,
        "quantization": quantization,
        "tp_size": tp_size,
        "pp_size": pp_size,
        "dp_size": dp_size,
        "mem_fraction_static": mem_fraction_static,
        "max_total_tokens": max_total_tokens,
        "attention_backend": attention_backend,
        "disable_cuda_graph": None if cuda_graph else True,
        "disable_overlap_schedule": None if overlap_schedule else True,
    }
    at_least("sglang", 16, max_context=max_context, max_total_tokens=max_total_tokens)
    at_least("sglang", 1, max_requests=max_requests, max_attempts=max_attempts)
    at_least("sglang", 1, tp_size=tp_size, pp_size=pp_size, dp_size=dp_size)
    at_least("sglang", 0, connect_s=connect_s, answer_s=answer_s)
    if base_url is None:
        remote = {"api_key_env": api_key_env, "admin_key_env": admin_key_env, "weights_dir": weights_dir}
        _refuse(remote, "belongs to a server: set engine.base_url as well")
        return _in_process(model, local, deterministic, logprobs, max_context, max_requests)
    _refuse(local, "is decided where the server at base_url was started")
    wire = HttpAccess(
        urls=parse_urls(base_url),
        key=environment_key(api_key_env),
        admin_key=environment_key(admin_key_env),
        connect_s=connect_s,
        answer_s=answer_s,
        max_requests=max_requests,
        retry=Retry(max_attempts=max_attempts),
        weights_dir=weights_dir,
    )
    return _over_http(model, wire, deterministic, logprobs, max_context)


def _refuse(options: Mapping[str, Any], why: str) -> None:
    """Raise ConfigError for an option that has no effect here."""
    defaults = options_of(sglang)
    for name, value in options.items():
        if value != defaults.get(name):
            raise ConfigError(f"sglang: {name.replace('disable_', '')} {why}")


def _in_process(
    model: str | None,
    options: Mapping[str, Any],
    deterministic: bool,
    logprobs: bool,
    max_context: int | None,
    max_requests: int,
) -> SGLangEngine:
    if model is None:
        raise ConfigError("sglang needs a model: --model FOLDER or a hub id, or engine.base_url of a server")
    fraction = options["mem_fraction_static"]
    if fraction is not None and not 0 < fraction < 1:
        raise ConfigError(f"sglang: mem_fraction_static must lie in (0, 1), got {fraction}")
    folder = resolve(model)
    text = Text(folder)
    server = LocalServer(
        {name: value for name, value in options.items() if value is not None}
        | {
            "model_path": str(folder),
            "context_length": max_context,
            "max_running_requests": max_requests,
            "enable_deterministic_inference": deterministic,
            "grammar_backend": GRAMMARS,
        }
    )
    return _engine(server, text, folder, model, logprobs, max_context, max_requests)


def _over_http(
    model: str | None, wire: HttpAccess, deterministic: bool, logprobs: bool, max_context: int | None
) -> SGLangEngine:
    folders: list[Path] = []
    server = HttpServers(wire, lambda: folders[0])
    if deterministic and not server.info.honours_seeds:
        raise ConfigError(
            f"sglang: the server at {wire.urls[0]} ignores seeds: start it with --enable-deterministic-inference, "
            "or set engine.deterministic=false to accept draws that cannot be repeated"
        )
    try:
        folders.append(resolve(model or server.info.model))
    except ConfigError as exc:
        raise ConfigError(f"sglang needs the tokenizer of what it serves here, too (--model FOLDER): {exc}") from exc
    kind = read_config(folders[0]).get("model_type")
    if server.info.model_type not in (None, kind):
        raise ConfigError(f"sglang: {wire.urls[0]} serves a {server.info.model_type} model, {folders[0]} is {kind}")
    return _engine(server, Text(folders[0]), folders[0], server.info.model, logprobs, max_context, wire.max_requests)


def _engine(
    server: SGLangServer,
    text: Text,
    folder: Path,
    name: str,
    logprobs: bool,
    max_context: int | None,
    max_requests: int,
) -> SGLangEngine:
    info = server.info
    capabilities = Capabilities(
        model=name,
        max_context=min(info.max_input, max_context or info.max_input),
        token_ids=True,
        logprobs=logprobs and all(_logprobs_are_raw(send, text) for send in server.senders),
        certainty=False,
        think_open=text.think_open,
        think_close=text.think_close,
        think_texts=text.think_texts,
        eos_ids=text.eos_ids,
        handover=text.handover,
        shape=_shape(folder),
        max_concurrency=min(max_requests, info.max_running or max_requests),
    )
    extras = {"grammar": info.holds_grammars, "top_logprobs": capabilities.logprobs}
    for name in (name for name, offered in extras.items() if offered):
        capabilities = with_extra(capabilities, name)
    return SGLangEngine(server, text, capabilities)


def _shape(folder: Path) -> ModelShape | None:
    """The shape for FLOPs of the dense families whose config can be read; None otherwise."""
    config = read_config(folder)
    if not supported(config):
        return None
    dims = Dims.from_config(config)
    return dims.model_shape(dims.vocab)


def _logprobs_are_raw(send: Callable[[Mapping[str, Json]], Json], text: Text) -> bool:
    """Whether sampled tokens come with the model's own log-probabilities rather than the sampling temperature's.

    At a temperature of 100 the two differ by whole nats; those of a given prompt are always the model's own.
    """
    ids = text.encode("1")
    draw, read = Received(), Received()
    draw.add(send(draw_body(ids, Sampling(temperature=100.0, max_tokens=4, seed=1, logprobs=True), 1)))
    read.add(send(score_body((*ids, *draw.ids), len(ids))))
    logprobs = read.input_logprobs[-len(draw.ids) :]
    return all(b is not None and abs(a - b) < 0.25 for a, b in zip(draw.logprobs, logprobs, strict=True))
