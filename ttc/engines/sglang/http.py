"""SGLang servers over HTTP: one or several of the same model, balanced, retried, aborted; weights through a folder.

Needs no SGLang here. `POST /generate` is streamed only if the caller streams; otherwise the answer comes whole. A
failure that may pass (no connection, 408, 429, 5xx) is retried under a new request id, unless tokens were already
passed on. New weights are written as a model folder that the servers can read (`/update_weights_from_disk`, then
`/flush_cache`): SGLang's other ways need shared memory with the server or pickled tensors over HTTP. The tensors keep
their dtypes; the folder is removed when the server has read it. Left out: servers of different models, mutual TLS.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import ssl
import tempfile
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ttc.core import Json
from ttc.engines.sglang.wire import UNKNOWN, PendingCall, ServerInfo, until_done
from ttc.engines.shared.balance import Balancer, Retry, Transient, is_transient, retry_after_s
from ttc.engines.shared.connections import certificates, open_session, reply_to, timeouts
from ttc.engines.shared.folder import save_weights
from ttc.errors import ConfigError, EngineError, EngineTimeout, PromptTooLong, Unsupported

if TYPE_CHECKING:
    import httpx2
    from aiohttp import ClientResponse

START = "sglang serve --model-path MODEL --enable-deterministic-inference"
_LOCAL = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class HttpAccess:
    """Access to servers: URLs, keys (from the environment, never stored elsewhere), timeouts in seconds.

    `weights_dir` is a folder that the servers can read as well; None is correct if they all run on this machine.
    """

    urls: tuple[str, ...]
    key: str | None = None
    admin_key: str | None = None
    connect_s: float = 10.0
    answer_s: float = 600.0
    max_requests: int = 512
    retry: Retry = field(default_factory=Retry)
    weights_dir: Path | None = None

    def headers(self, admin: bool = False) -> dict[str, str]:
        """The authorization header; management routes need the admin key where there is one."""
        key = (self.admin_key or self.key) if admin else self.key
        return {"Authorization": f"Bearer {key}"} if key else {}

    def __repr__(self) -> str:
        """Omit the keys from logs and errors."""
        return f"Wire({', '.join(self.urls)})"


class HttpServers:
    """Implements `SGLangServer` over HTTP."""

    def __init__(self, wire: HttpAccess, folder: Callable[[], Path]) -> None:
        """Request every server's model. `folder` returns the local model folder, for passing on weights.

        Raises:
            ConfigError: nothing answers, a key is refused, or the servers differ in what they serve.
        """
        self._wire, self._folder, self._tls = wire, folder, certificates(*wire.urls)
        self._balancer = Balancer(wire.urls)
        self._closed = False
        self._clients: tuple[asyncio.AbstractEventLoop, _Clients] | None = None
        infos = [self._ask(url) for url in wire.urls]
        for url, info in zip(wire.urls, infos, strict=True):
            if (info.model, info.honours_seeds) != (infos[0].model, infos[0].honours_seeds):
                raise ConfigError(f"sglang: {url} serves {info.model}, {wire.urls[0]} serves {infos[0].model}")
        self._info = replace(
            infos[0],
            max_input=min(info.max_input for info in infos),
            holds_grammars=all(info.holds_grammars for info in infos),
        )

    @property
    def info(self) -> ServerInfo:
        """See `SGLangServer`; the smallest context of all servers, and grammars where all support them."""
        return self._info

    @property
    def served(self) -> Mapping[str, str]:
        """See `SGLangServer`."""
        version = {} if self._info.version == UNKNOWN else {"SGLang version": self._info.version}
        return {"model root": self._info.model, **version}

    @property
    def senders(self) -> tuple[Callable[[Mapping[str, Json]], Json], ...]:
        """See `SGLangServer`."""
        return tuple(partial(self._post_now, url) for url in self._wire.urls)

    async def send(self, call: PendingCall) -> None:
        """See `SGLangServer`."""
        async with self._here().slots:
            await self._balancer.send(call.key, lambda url: self._attempt(url, call), self._wire.retry)

    async def load_weights(self, state: Mapping[str, Any]) -> None:
        """See `SGLangServer`; raises Unsupported when no folder is known to be shared with the servers."""
        hosts = [urlsplit(url).hostname for url in self._wire.urls]
        if self._wire.weights_dir is None and not all(host in _LOCAL for host in hosts):
            raise Unsupported(
                "sglang: new weights go through a folder that the servers read, too: set engine.weights_dir=FOLDER"
            )
        with handed_over(state, self._folder(), self._wire.weights_dir) as folder:
            for url in self._wire.urls:
                await self._manage(url, "/update_weights_from_disk", {"model_path": str(folder), "flush_cache": True})
                await self._manage(url, "/flush_cache", {})

    async def close(self) -> None:
        """See `SGLangServer`; the servers keep running, and abort requests whose connections close."""
        self._closed = True
        if self._clients is not None and self._clients[0] is asyncio.get_running_loop():
            await self._clients[1].close()
        self._clients = None

    # -- one attempt -------------------------------------------------------------------------------------------------

    async def _attempt(self, url: str, call: PendingCall) -> None:
        if self._closed:
            raise EngineError("the engine was closed")
        call.begin()
        body = {**call.body, "rid": uuid.uuid4().hex, "stream": call.on_ids is not None}
        send = self._streamed if call.on_ids is not None else self._whole
        request = asyncio.ensure_future(translated(url, lambda: send(url, body, call)))
        try:
            await until_done(call, request, lambda: self._abort(url, body["rid"]))
        except Transient as failure:
            if call.on_ids is not None and call.received.ids:
                raise failure.error from failure  # tokens that were passed on cannot be taken back
            raise
        except EngineTimeout:
            with suppress(EngineError):  # a server that does not answer may not accept this either
                await self._abort(url, body["rid"])
            raise

    async def _whole(self, url: str, body: Mapping[str, Json], call: PendingCall) -> None:
        async with await reply_to(self._here().work[url], "POST", url + "/generate", **as_json(body)) as response:
            content = await response.read()
            check(url, response.status, response.headers, content)
        call.take(read_json(url, content))

    async def _streamed(self, url: str, body: Mapping[str, Json], call: PendingCall) -> None:
        async with await reply_to(self._here().work[url], "POST", url + "/generate", **as_json(body)) as response:
            if response.status != 200:
                check(url, response.status, response.headers, await response.read())
            async for line in lines_of(response):
                if line.startswith(b"data:") and (data := line[5:].strip()) != b"[DONE]":
                    event = read_json(url, data)
                    check_event(url, event)
                    call.take(event)
        if call.received.finish is None:
            raise Transient(EngineError(f"sglang at {url} broke off after {len(call.received.ids)} tokens"))

    async def _abort(self, url: str, rid: str) -> None:
        await self._manage(url, "/abort_request", {"rid": rid})

    async def _manage(self, url: str, route: str, body: Mapping[str, Json]) -> None:
        """Call a management route once; raises EngineError when it is refused."""

        async def call() -> None:
            async with await reply_to(self._here().control[url], "POST", url + route, **as_json(body)) as response:
                check(url + route, response.status, response.headers, await response.read())

        try:
            await translated(url, call)
        except Transient as failure:
            raise failure.error from failure

    def _here(self) -> _Clients:
        """The connections of the running event loop; an engine may outlive the loop in which it was first used."""
        loop = asyncio.get_running_loop()
        if self._clients is None or self._clients[0] is not loop:
            self._clients = (loop, _Clients(self._wire, self._tls))
        return self._clients[1]

    # -- before the run ----------------------------------------------------------------------------------------------

    def _ask(self, url: str) -> ServerInfo:
        """Read the model of the server at `url`, and check that requests may be aborted there."""
        answers = self._get(url, "/model_info", "/get_model_info"), self._get(url, "/server_info", "/get_server_info")
        self._fetch("POST", url + "/abort_request", {"rid": uuid.uuid4().hex}, admin=True)
        return ServerInfo.read(*answers, url)

    def _get(self, url: str, *routes: str) -> Mapping[str, Json]:
        """Get the first of `routes` that exists: older servers have only the later ones."""
        for route in routes[:-1]:
            response = self._fetch("GET", url + route, None, missing_is_fine=True)
            if response.status_code != 404:
                return dict(read_json(url, response.content))
        return dict(read_json(url, self._fetch("GET", url + routes[-1], None).content))

    def _post_now(self, url: str, body: Mapping[str, Json]) -> Json:
        return self._fetch("POST", url + "/generate", body).json()

    def _fetch(
        self, method: str, url: str, body: Json, *, admin: bool = False, missing_is_fine: bool = False
    ) -> httpx2.Response:
        """One request outside any event loop; every failure is a ConfigError, since nothing has started yet."""
        import httpx2

        timeout = httpx2.Timeout(self._wire.answer_s, connect=self._wire.connect_s)
        try:
            headers, tls = self._wire.headers(admin), url.startswith("https://") and self._tls
            response = httpx2.request(method, url, json=body, headers=headers, timeout=timeout, verify=tls)
        except (httpx2.HTTPError, httpx2.InvalidURL) as exc:
            text = f"{type(exc).__name__}: {exc}"
            raise ConfigError(f"sglang: no answer from {url} ({text}); start a server with: {START}") from exc
        if not (missing_is_fine and response.status_code == 404):
            try:
                check(url, response.status_code, response.headers, response.content)
            except (EngineError, Transient) as exc:
                raise ConfigError(str(exc)) from exc
        return response


class _Clients:
    """Connections of one event loop: some for work, others for control, so that an abort never queues."""

    def __init__(self, wire: HttpAccess, tls: ssl.SSLContext | bool) -> None:
        self.slots = asyncio.Semaphore(wire.max_requests)
        timeout = timeouts(wire.connect_s, wire.answer_s)
        self.work = {
            url: open_session(url, headers=wire.headers(), limit=0, timeout=timeout, tls=tls) for url in wire.urls
        }
        self.control = {
            url: open_session(url, headers=wire.headers(admin=True), limit=16, timeout=timeout, tls=tls)
            for url in wire.urls
        }

    async def close(self) -> None:
        for session in (*self.work.values(), *self.control.values()):
            await session.close()


def parse_urls(text: str) -> tuple[str, ...]:
    """Split `base_url` at commas; raises ConfigError for an invalid HTTP address."""
    urls = tuple(part.strip().rstrip("/").removesuffix("/v1") for part in text.split(",") if part.strip())
    for url in urls:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"engine.base_url must be http://HOST:PORT, got {url!r}")
    return urls


def environment_key(name: str | None) -> str | None:
    """The key in the environment variable `name`; raises ConfigError when it is not set."""
    if name is None:
        return None
    value = os.environ.get(name)
    if not value:
        raise ConfigError(f"the environment variable {name} holds no key")
    return value


def as_json(body: Mapping[str, Json]) -> dict[str, Any]:
    """Request arguments that send `body`; redirects are not followed, since they mean a wrong address."""
    headers = {"content-type": "application/json"}
    return {"data": json.dumps(dict(body)).encode(), "headers": headers, "allow_redirects": False}


async def lines_of(response: ClientResponse) -> AsyncIterator[bytes]:
    """The lines of a stream, however long: an event may repeat everything before it."""
    rest = b""
    while part := await response.content.readany():
        *whole, rest = (rest + part).split(b"\n")
        for line in whole:
            yield line
    if rest:
        yield rest


async def translated(url: str, work: Callable[[], Awaitable[None]]) -> None:
    """Turn the client library's exceptions into ours."""
    import aiohttp

    try:
        await work()
    except aiohttp.SocketTimeoutError as exc:
        raise EngineTimeout(f"sglang at {url} gave no answer in time: raise engine.answer_s") from exc
    except (aiohttp.ClientError, OSError) as exc:
        raise Transient(EngineError(f"sglang at {url} cannot be reached: {type(exc).__name__}: {exc}")) from exc


def check(url: str, status: int, headers: Mapping[str, str], content: bytes) -> None:
    """Raise for an error status: Transient when it may pass."""
    if status < 300:
        return
    if status < 400:
        raise EngineError(f"sglang at {url} redirects ({status}): set engine.base_url to the address that it leads to")
    text = _message(content)
    if status in (401, 403):
        raise EngineError(
            f"sglang at {url} refuses the key ({status}): set engine.api_key_env, or engine.admin_key_env "
            "for a server with an admin key"
        )
    if status == 400 and "context length" in text:
        raise PromptTooLong(f"sglang at {url}: {text}")
    error = EngineError(f"sglang at {url} answered {status}: {text}")
    if is_transient(status, headers):
        error.retry_after_s = retry_after_s(headers)
        raise Transient(error, retry_after_s=error.retry_after_s)
    raise error


def check_event(url: str, event: Json) -> None:
    """Raise for an error inside a stream, whose status was sent long before."""
    if isinstance(event, dict) and event.get("error"):
        code = event["error"].get("code") if isinstance(event["error"], dict) else None
        check(url, code if isinstance(code, int) else 400, {}, json.dumps(event).encode())


def _message(content: bytes) -> str:
    """The text of an error body: nested, flat, or not JSON at all; shortened."""
    try:
        body = json.loads(content)
    except ValueError:
        return content.decode("utf-8", "replace")[:300]
    error = body.get("error", body) if isinstance(body, dict) else body
    return str(error.get("message", error) if isinstance(error, dict) else error)[:300]


def read_json(url: str, content: bytes | str) -> Json:
    """Parse the answer of the server at `url`; Transient when it is not JSON."""
    try:
        return json.loads(content)
    except ValueError as exc:
        raise Transient(EngineError(f"sglang at {url} sent what is not JSON: {content[:200]!r}")) from exc


_KEPT = ("*.json", "*.jinja", "*.txt", "*.model")


@contextmanager
def handed_over(state: Mapping[str, Any], source: Path, where: Path | None) -> Iterator[Path]:
    """Yield a model folder under `where` (None: the temporary folder) with `state` and the other files of `source`."""
    with tempfile.TemporaryDirectory(prefix="ttc-weights-", dir=where) as name:
        folder = Path(name)
        for pattern in _KEPT:
            for file in source.glob(pattern):
                if not file.name.endswith(".index.json"):  # it lists the files of the old weights
                    shutil.copy(file, folder / file.name)
        save_weights(state, folder / "model.safetensors")
        folder.chmod(0o755)  # the server may run as another user
        yield folder
