"""vLLM servers outside this process: draws are spread over them, new weights pushed to each, every draw checked.

Each server has an OpenAI-compatible engine of token ids (`ttc.engines.openai`); a problem's draws stay on one server,
which has their prefix cached, and move when it fails. New weights are written once to a file that the servers can read,
and loaded as by an in-process engine (`ttc.engines.vllm.weights`, called through vLLM's own route to its workers); then
the prefix cache is emptied and the server's `weight_version` set to the name of the push. A restarted server has its
first weights and no such name. So its name is read after every draw: a server that was killed and restarted takes part
only after it has loaded the newest push.

Cost: a file of the weights per push; a short request per draw; log-probabilities are computed by every server, since
they prove that a push succeeded. Left out: weights through NCCL or shared memory of GPUs (vLLM's `/update_weights`),
which needs a process group with the trainer; streaming.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from ttc.concurrent import gather
from ttc.core import Capabilities, Completion, Engine, Message, Prompt, Sampling, Usage, UsageSink
from ttc.engines.openai.factory import openai
from ttc.engines.openai.ids import ScoringEngine
from ttc.engines.openai.probe import Unreachable
from ttc.engines.openai.refusals import NotFound
from ttc.engines.shared.balance import Balancer, Retry, Transient
from ttc.engines.shared.folder import save_weights
from ttc.engines.vllm.options import WORKER_EXTENSION
from ttc.errors import ConfigError, EngineBusy, EngineError, EngineTimeout

START = f"VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --worker-extension-cls {WORKER_EXTENSION}"
_HEAD = 0.05
"""Largest difference of a repacked head, relative to the largest logit; bf16 rounding stays below 0.02."""
_SAME = 0.03
"""Servers whose log-probabilities differ by more than this on average (nats) hold different weights, in bf16 too."""
_RESETS = 20
_PAUSE_S = 0.5


def vllm_servers(
    urls: Sequence[str], folder: Path, *, weights_dir: Path | None, wait_s: float, options: Mapping[str, Any]
) -> Engine:
    """Connect to the servers of the model whose tokenizer is in `folder`; servers that do not answer may join later.

    Args:
        urls: their addresses, which end in /v1.
        folder: model folder.
        weights_dir: a folder that the servers can read, too; None is the temporary one.
        wait_s: seconds to wait for a first server to answer.
        options: of the openai engine.

    Raises:
        ConfigError: none answers, or one does not accept and return token ids with log-probabilities.
    """

    def connect(url: str) -> ScoringEngine:
        engine = openai(base_url=url, tokenizer=str(folder), attempts=1, **options)
        if not isinstance(engine, ScoringEngine):
            raise ConfigError(f"{url} takes no token ids, or does not score them: is it vLLM? Start it with: {START}")
        return engine

    return VllmServers(_answering(urls, connect, wait_s), tuple(urls), connect, weights_dir)


def _answering(urls: Sequence[str], connect: Callable[[str], ScoringEngine], wait_s: float) -> dict[str, ScoringEngine]:
    """The servers that answer, once there is at least one."""
    deadline = time.monotonic() + wait_s
    while True:
        engines: dict[str, ScoringEngine] = {}
        for url in urls:
            try:
                engines[url] = connect(url)
            except Unreachable as exc:
                cause = exc
        if engines:
            return engines
        if time.monotonic() > deadline:
            raise ConfigError(
                f"no vLLM server answers at {', '.join(urls)} within {wait_s:g} s ({cause}). Start one ({START}) and "
                "run the same command again: it resumes from the newest checkpoint"
            ) from cause
        time.sleep(_PAUSE_S)


class VllmServers:
    """Implements Engine, LogprobEngine, WeightSync and Served over servers of one model."""

    def __init__(
        self,
        engines: dict[str, ScoringEngine],
        urls: tuple[str, ...],
        connect: Callable[[str], ScoringEngine],
        weights_dir: Path | None,
    ) -> None:
        """`engines` are those of the `urls` that answer; `connect` tries the others again at the next push."""
        self._engines, self._urls, self._connect, self._weights_dir = engines, urls, connect, weights_dir
        self._balancer = Balancer(urls)
        self._retry = Retry(max_attempts=2 * len(urls) + 1, max_total_s=20.0)
        self._holding, self._version = set(engines), ""
        self._live = 0

    @property
    def _any(self) -> ScoringEngine:
        return next(iter(self._engines.values()))

    @property
    def capabilities(self) -> Capabilities:
        """See `ttc.core.Engine`."""
        return self._any.capabilities

    @property
    def served(self) -> Mapping[str, str]:
        """See `ttc.core.Served`."""
        return self._any.served

    @property
    def holding(self) -> frozenset[str]:
        """The servers that hold the newest weights, as far as is known."""
        return frozenset(self._holding)

    def render(self, messages: Sequence[Message], thinking: bool | None) -> Prompt:
        """See `ttc.core.Engine`."""
        return self._any.render(messages, thinking)

    def encode(self, text: str) -> tuple[int, ...]:
        """See `ttc.core.Engine`."""
        return self._any.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """See `ttc.core.Engine`."""
        return self._any.decode(ids)

    def counters(self) -> Usage:
        """See `ttc.core.Engine`: the sum over all servers."""
        return sum((engine.counters() for engine in self._engines.values()), Usage())

    async def generate(self, prompt: Prompt, sampling: Sampling, draws: range, on_usage: UsageSink) -> list[Completion]:
        """See `ttc.core.Engine`; a draw whose server fails, or was restarted, is drawn on another."""
        return await gather(self._draw(prompt, sampling, draw, on_usage) for draw in draws)

    async def _draw(self, prompt: Prompt, sampling: Sampling, draw: int, on_usage: UsageSink) -> Completion:
        async def attempt(url: str) -> Completion:
            if not self._holding:
                raise EngineError(f"no vLLM server is left of {', '.join(self._urls)}")
            if url not in self._holding:
                raise Transient(EngineError(f"{url} does not hold the newest weights"))
            try:
                (completion,) = await self._engines[url].generate(prompt, sampling, range(draw, draw + 1), on_usage)
                await self._prove(url)
            except (EngineError, Transient) as exc:
                raise _passing(exc) from exc
            return completion

        self._live += 1
        try:
            return await self._balancer.send(prompt.problem_id or prompt.text, attempt, self._retry)
        finally:
            self._live -= 1

    async def _prove(self, url: str) -> None:
        """Raise Transient, and leave out `url` until the next push, unless it holds the newest one."""
        if not self._version:
            return
        answer = await self._engines[url].beside(url, "/weight_info")
        if answer.get("weight_version") != self._version:
            self._holding.discard(url)
            raise Transient(EngineError(f"{url} was started again and does not hold the newest weights"))

    async def logprobs(self, token_ids: Sequence[int], start: int, on_usage: UsageSink) -> tuple[float, ...]:
        """See `ttc.core.LogprobEngine`; computed by every server that holds the newest weights.

        Raises:
            EngineError: a server fails, or two differ, and so hold different weights.
        """
        urls = sorted(self._holding)
        rows = await gather(self._engines[url].logprobs(token_ids, start, on_usage) for url in urls)
        for url, row in zip(urls, rows, strict=True):
            gap = fmean(abs(a - b) for a, b in zip(row, rows[0], strict=True)) if row else 0.0
            if not gap <= _SAME:
                raise EngineError(f"{url} and {urls[0]} hold different weights: they differ by {gap:.3g} nats")
        return rows[0]

    async def load_weights(self, state: Mapping[str, Any]) -> None:
        """See `ttc.core.WeightSync`; a server that cannot be reached is left out until the next push.

        Raises:
            EngineError: draws are running, or no server loaded the weights.
            ConfigError: a server was not started with support for new weights.
        """
        if self._live:
            raise EngineError(f"{self._live} requests are running: weights can only be replaced in idle servers")
        version = uuid.uuid4().hex
        with tempfile.TemporaryDirectory(prefix="ttc-weights-", dir=self._weights_dir) as name:
            folder = Path(name)
            await asyncio.to_thread(save_weights, state, folder / "model.safetensors")
            folder.chmod(0o755)  # the servers may run as other users
            failures = await gather(self._pushed(url, folder, version) for url in self._urls)
        self._holding = {url for url, failure in zip(self._urls, failures, strict=True) if failure is None}
        self._version = version
        for url, failure in zip(self._urls, failures, strict=True):
            self._balancer.note(url, well=failure is None)
        if not self._holding:
            raise EngineError(f"no vLLM server took the new weights: {failures[0]}")

    async def _pushed(self, url: str, folder: Path, version: str) -> EngineError | None:
        """Push the weights in `folder` to one server; returns the reason if it is left out."""
        try:
            if url not in self._engines:
                self._engines[url] = await asyncio.to_thread(self._connect, url)
            await self._replace(url, folder, version)
        except Unreachable as exc:
            return EngineError(str(exc))
        except (NotFound, Transient) as exc:
            if isinstance(exc, NotFound) or exc.status is not None:
                raise ConfigError(f"{url} takes no weights ({exc}): start it with {START}") from exc
            return exc.error
        return None

    async def _replace(self, url: str, folder: Path, version: str) -> None:
        ask = self._engines[url].beside
        answer = await ask(url, "/collective_rpc", {"method": "ttc_load_weights", "kwargs": {"path": str(folder)}})
        worst = max(float(number) for number in answer["results"])
        if not worst <= _HEAD:
            raise EngineError(
                f"{url}: head and embedding of the new weights differ by {worst:.3f} of the largest logit"
            )
        for _ in range(_RESETS):  # draws of a cancelled caller may end a moment later
            if (await ask(url, "/reset_prefix_cache", {})).get("success"):
                break
            await asyncio.sleep(_PAUSE_S)
        else:
            raise EngineError(f"{url} keeps keys and values of the old weights: requests are running there")
        await ask(url, "/update_weight_version", {"new_version": version})

    async def close(self) -> None:
        """See `ttc.core.Engine`; the servers keep running."""
        for engine in self._engines.values():
            await engine.close()


def _passing(exc: EngineError | Transient) -> Exception:
    """Errors that another server may not have, as Transient; others unchanged."""
    if isinstance(exc, EngineBusy | EngineTimeout) or type(exc) is EngineError:
        return Transient(EngineError(str(exc)))
    return exc
