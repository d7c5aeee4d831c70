"""The process: uvicorn over the application, signals that drain, logs.

A log is one JSON object a line; what was asked and answered is never in it.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import signal
import socket
import sys
import time
from typing import TextIO

from serve.http.app import create_app
from serve.operator.config import ServeConfig
from serve.operator.metrics import configure_tracing
from serve.running.catalogue import Catalogue
from serve.running.service import InferenceService
from ttc.errors import ConfigError, MissingExtra

KEEP_ALIVE_S = 75
BACKLOG = 2048


async def serve(config: ServeConfig, catalogue: Catalogue, host: str, port: int) -> None:
    """Serve until a signal, then drain; raises ConfigError for a bad address, MissingExtra without uvicorn."""
    try:
        import uvicorn
    except ImportError as exc:
        raise MissingExtra("uvicorn", "serve") from exc
    configure_tracing()
    service = InferenceService(config, catalogue)
    app = create_app(config, catalogue, service)
    configure_logs(sys.stderr)
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=5,
            ws="none",
        )
    )
    await catalogue.prove()
    sock = _listen(host, port)
    running = asyncio.create_task(server.serve(sockets=[sock]))
    while not server.started and not running.done():
        await asyncio.sleep(0.01)
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):  # after uvicorn has set its own, which would not drain
        loop.add_signal_handler(number, ended.set)
    address, bound = sock.getsockname()[:2]
    if not config.keys and not ipaddress.ip_address(address).is_loopback:
        sys.stderr.write(f"warning: no keys are set, so whoever reaches {address} may use this server\n")
    sys.stderr.write(f"listening on http://{address}:{bound}\n")
    sys.stderr.flush()
    waiting = asyncio.create_task(ended.wait())
    await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    await service.drain()
    server.should_exit = True
    await running


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as exc:
        raise ConfigError(f"cannot listen on {host}:{port}: {exc.strerror or exc}") from exc
    sock.setblocking(False)
    return sock


_STANDARD = frozenset(logging.LogRecord("", 0, "", 0, "", (), None).__dict__) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """A record as one line of JSON, its extra fields as they are; line breaks in values cannot forge a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {key: value for key, value in record.__dict__.items() if key not in _STANDARD}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True, default=str)


def configure_logs(stream: TextIO) -> None:
    """Write the logs of this package and of uvicorn to `stream`."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    for name, level in (("serve", logging.INFO), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)
