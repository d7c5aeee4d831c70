"""The server's process: uvicorn over the application, on a socket that is bound first, with signals that drain."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace

from serve.http.app import create_app
from serve.operator.config import ServeConfig
from serve.operator.keys import Key
from serve.operator.metrics import configure_tracing, end_tracing
from serve.running.catalogue import Catalogue
from serve.running.quotas import LocalQuotas, Quotas
from serve.running.service import NOTICE_S, InferenceService
from ttc.errors import ConfigError, MissingExtra

_log = logging.getLogger("serve")
KEEP_ALIVE_S = 75
BACKLOG = 2048
SPARE_FILES = 256
"""Open files beside connections of clients and to upstream servers."""


async def serve(
    config: ServeConfig,
    catalogue: Catalogue,
    sock: socket.socket,
    read_again: Callable[[], Sequence[Key]] | None = None,
    quotas: Quotas | None = None,
) -> None:
    """Serve on `sock` (see `bind`) until a signal, then drain; a second signal ends the draining.

    SIGHUP takes new keys over from `read_again`. `quotas` are those of this process where none are given.
    Raises ConfigError for an address that another server took meanwhile, MissingExtra without uvicorn.
    """
    try:
        import uvicorn
    except ImportError as exc:
        raise MissingExtra("uvicorn", "serve") from exc
    from serve.http.door import bounded

    allow_files(config.http.max_connections + config.limits.max_sequences + SPARE_FILES)
    last_spans = configure_tracing()
    quotas = quotas or LocalQuotas()
    service = InferenceService(config, catalogue, quotas)
    app = create_app(config, catalogue, service)
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=5,
            ws="none",
            http=bounded(config.http, config.limits.stall_s, service.metrics.refused),
        )
    )
    await catalogue.prove()
    _listen(sock)
    running = asyncio.create_task(server.serve(sockets=[sock]))
    while not server.started and not running.done():
        await asyncio.sleep(0.01)
    loop = asyncio.get_running_loop()
    ended, hurried = asyncio.Event(), asyncio.Event()

    def end() -> None:
        (hurried if ended.is_set() else ended).set()

    for number in (signal.SIGTERM, signal.SIGINT):  # after uvicorn has set its own, which would not drain
        loop.add_signal_handler(number, end)
    if read_again is not None:
        loop.add_signal_handler(signal.SIGHUP, take_over_keys, service, read_again)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})  # which the command has held back until now
    watching = asyncio.create_task(catalogue.watch(config.limits.health_s))
    address = sock.getsockname()[0]
    if not config.keys and not ipaddress.ip_address(address).is_loopback:
        _log.warning("no keys are set, so whoever reaches %s may use this server", address)
    _log.info("listening on %s", url_of(sock))
    waiting = asyncio.create_task(ended.wait())
    await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    watching.cancel()
    _log.info("shutting down", extra={"running": service.admission.requests, "within_s": config.limits.drain_s})
    await service.drain(hurried, NOTICE_S)
    server.should_exit = True
    await running
    await quotas.close()
    await end_tracing(last_spans)
    _log.info("stopped")


def allow_files(num: int) -> None:
    """Let this process open `num` files: idle connections alone could use up what most systems allow by default."""
    try:
        import resource
    except ImportError:  # Windows, which has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    no_limit = resource.RLIM_INFINITY
    if soft == no_limit or soft >= num:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (num if hard == no_limit else min(num, hard), hard))
    except (OSError, ValueError) as exc:
        _log.warning("the limit of open files stays as it is", extra={"limit": soft, "error": str(exc)})
        return
    if hard != no_limit and hard < num:
        fix = "raise it (ulimit -Hn), or lower http.max_connections"
        _log.warning("this process may open %d files, and %d may be needed: %s", hard, num, fix)


def take_over_keys(service: InferenceService, read_again: Callable[[], Sequence[Key]]) -> None:
    """Check keys against a file that was read again; one that cannot be used changes nothing, and the log says so."""
    try:
        keys = read_again()
        config = replace(service.config, keys=tuple(keys))  # its models stay, and so do their prices
    except ConfigError as exc:
        _log.error("the keys stay as they are", extra={"error": str(exc)})
        return
    if bool(keys) != bool(service.keys):
        _log.error("the keys stay as they are: a server with keys keeps some, one without stays without")
        return
    if config.has_budgets and not service.admission.keeps_money:
        _log.error(
            "the keys stay as they are: the first budget needs a new start, which opens the file of what is spent"
        )
        return
    service.keys.replace(keys)
    _log.info("keys were read again", extra={"keys": [key.name for key in keys]})


def url_of(sock: socket.socket) -> str:
    """Where a socket listens; the colons of an IPv6 address stand in brackets."""
    address, port = sock.getsockname()[:2]
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


def bind(host: str, port: int) -> socket.socket:
    """A socket with its address, which takes no connection yet: an address is checked before a model is loaded.

    Raises:
        ConfigError: it is taken, or none of this machine's.
    """
    if "/" in host or host.startswith("unix:"):
        raise ConfigError(f"--host {host} is no address: give a name or a number; for a unix socket use a proxy")
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if sock.family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)  # `::` is every address, those of IPv4 too
        sock.bind((host, port))
    except OSError as exc:
        sock.close()
        raise _cannot_listen(host, port, exc) from exc
    return sock


def _listen(sock: socket.socket) -> None:
    host, port = sock.getsockname()[:2]
    try:
        sock.listen(BACKLOG)
    except OSError as exc:
        raise _cannot_listen(host, port, exc) from exc
    sock.setblocking(False)


def _cannot_listen(host: str, port: int, exc: OSError) -> ConfigError:
    fix = ": choose another --port, 0 takes a free one" if exc.errno == errno.EADDRINUSE else ""
    return ConfigError(f"cannot listen on {host}:{port}: {exc.strerror or exc}{fix}")
