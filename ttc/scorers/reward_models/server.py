"""One or more reward servers: JSON out, JSON in, with retries and balancing, and every failure named.

What a server offers is asked of the first one, before the run.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import urllib.request
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from ttc.engines.openai.balance import Balancer
from ttc.engines.openai.client import Access, Busy, Client, Door, NotFound
from ttc.engines.openai.retry import Retry
from ttc.errors import ConfigError, EngineError, PromptTooLong, ScorerError
from ttc.scorers.reward_models.backends import OverHttp
from ttc.scorers.reward_models.own_loop import OwnLoop

__all__ = ["Server", "part"]

CONNECT_S, SILENCE_S = 10.0, 600.0
"""Seconds to connect, and of silence while connected."""

_CACHE = re.compile(r"^vllm:cache_config_info\{(.*)\}", re.M)


class Server:
    """One or more servers of one model; sends JSON, gives JSON back."""

    def __init__(self, options: OverHttp) -> None:
        """Opens nothing yet. Raises ConfigError for an address that is none, and for a key that is not there."""
        urls = [url.strip().rstrip("/").removesuffix("/v1") for url in options.base_url.split(",") if url.strip()]
        for url in urls:
            if not url.startswith(("http://", "https://")):
                raise ConfigError(f"prm base_url must start with http:// or https://, got {url!r}")
        api_key_env = options.api_key_env
        key = "" if api_key_env is None else os.environ.get(api_key_env, "").strip()
        if api_key_env is not None and not key:
            raise ConfigError(f"prm api_key_env: the environment variable {api_key_env} is not set")
        self._access = Access(key, CONNECT_S, SILENCE_S)
        self._balancer, self._urls, self._model = Balancer(urls), urls, options.served_model
        self._clients: dict[str, Client] = {}
        self._loop = OwnLoop(self, partial(_close_all, self._clients))

    def model(self) -> str:
        """The model's name on the server: what the user said, else the only one it lists.

        Raises:
            ConfigError: it lists none or several.
            EngineError: nothing answers there.
        """
        if self._model is None:
            with self._door("/v1") as door:
                names = [str(entry["id"]) for entry in door.get("/models").get("data", [])]
            if len(names) != 1:
                raise ConfigError(f"the reward server lists {names}: set scorer.served_model to one of them")
            self._model = names[0]
        return self._model

    def offers(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """What it answers to `body` at `path`, a request like those of the run; None when it refuses such a one.

        Raises:
            EngineError: nothing answers there, or the server is not ready.
            ConfigError: it does not take the key.
        """
        with self._door("") as door:
            try:
                return door.post(path, body)
            except Busy:
                raise
            except (NotFound, EngineError):
                return None

    def block_size(self) -> int | None:
        """Tokens of a block of vLLM's prefix cache, by its metrics; None where it has none, or does not tell."""
        try:
            with urllib.request.urlopen(f"{self._urls[0]}/metrics", timeout=CONNECT_S) as reply:
                text = reply.read().decode()
        except OSError:
            return None
        told = dict(re.findall(r'(\w+)="([^"]*)"', found[1])) if (found := _CACHE.search(text)) else {}
        return int(told["block_size"]) if told.get("enable_prefix_caching") == "True" else None

    @contextlib.contextmanager
    def _door(self, route: str) -> Iterator[Door]:
        door = Door(f"{self._urls[0]}{route}", self._access)
        try:
            yield door
        finally:
            door.close()

    async def post(self, key: str, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send `body`; requests with one key stay on one server.

        Raises:
            ScorerError: the server failed or refused; names it and says what it said.
        """
        try:
            return await self._loop.run(self._send(key, path, body))
        except PromptTooLong:
            raise
        except EngineError as exc:
            raise ScorerError(f"reward server: {exc}") from exc

    async def _send(self, key: str, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        return await self._balancer.send(key, lambda url: self._client(url).post(path, body), Retry())

    def _client(self, url: str) -> Client:
        if url not in self._clients:
            self._clients[url] = Client(url, self._access)
        return self._clients[url]


async def _close_all(clients: Mapping[str, Client]) -> None:
    for client in clients.values():
        await client.close()


def part(reply: Mapping[str, Any], *place: str | int) -> Any:
    """What stands at `place` of a reply. Raises ScorerError, showing the reply, when there is nothing."""
    found: Any = reply
    try:
        for key in place:
            found = found[key]
    except (KeyError, IndexError, TypeError) as exc:
        where = ".".join(map(str, place))
        raise ScorerError(f"the reward server's answer has no {where}: {json.dumps(reply)[:200]}") from exc
    return found
