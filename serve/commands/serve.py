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
import pathlib
import signal
import sys
from typing import Any

from ttc.cli.process import keep_little
from ttc.concurrent import new_event_loop
from ttc.config.recipes import overrides
from ttc.errors import ConfigError, MissingExtra


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
    for package in ("fastapi", "uvicorn"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(package, "serve")
    from serve.http.log import configure_logs
    from serve.http.process import bind, serve
    from serve.operator.config import from_options, load_config
    from serve.running.catalogue import Catalogue
    from serve.running.service import check_presets
    from serve.running.shared_quotas import find_quotas

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
    if any(spec.engine.name == "embedded" for spec in config.models):
        keep_little()
    check_presets(config, {spec.name: tuple(spec.scorers) for spec in config.models})
    if args.config is not None:  # a request for new keys that comes meanwhile waits; it would end this process
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    sock = bind(args.host, args.port)
    configure_logs(sys.stderr)
    logging.getLogger("serve").info("loading %s", ", ".join(spec.name for spec in config.models))
    with sock, asyncio.Runner(loop_factory=new_event_loop) as runner:
        again = None if args.config is None else lambda: load_config(pathlib.Path(args.config)).keys
        spend_file = config.spend_file if config.has_budgets else None
        quotas = runner.run(find_quotas(config.limits.request_timeout_s, spend_file))  # before models are loaded
        runner.run(serve(config, Catalogue.load(config), sock, again, quotas))
    return 0
