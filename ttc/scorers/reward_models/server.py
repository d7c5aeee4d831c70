"""Reward models on a server: a vLLM server of the model, or any program with a plain JSON interface.

On vLLM (`protocol=vllm`) ids are made here with the model's own tokenizer, so its folder or hub id is needed as well.
Token models at `/v1/completions`, one token at the end of each new step, with the prefix cache:

    vllm serve MODEL --enable-prompt-tokens-details      (else cached tokens are not reported, and count as computed)

Label models in the first of these ways that the server offers (probed once, with a single token):

    spans    vllm serve MODEL --runner pooling --pooler-config '{"tok_pooling_type": "ALL"}'
                 --io-processor-plugin ttc_steps         (`ttc.engines.vllm.steps_plugin`, installed beside vLLM)
    last     vllm serve MODEL --runner pooling --pooler-config '{"task": "classify"}'
    tokens   vllm serve MODEL --runner pooling --pooler-config '{"tok_pooling_type": "ALL"}'

`spans` returns rows for all tokens after the cached part: one request per path, every token computed about once, and
the reply reports the cached tokens. `last` pools the end of a step, one request for each new one; it is available for
token and sequence classifiers, not for Qwen's process reward models, whose code in vLLM has no such pooling. Its reply
does not report cached tokens: they are computed from what was sent before and the server's block size (`/metrics`),
correctly as long as the cache evicts nothing. `tokens` uses no cache, so every call costs the whole path.

Without vLLM (`protocol=steps`), one request per path: `POST base_url/score` with `{"problem_id": str, "messages":
[{"role": str, "content": str}], "steps": [str], "model": str | null}`, answered by `{"scores": [float, one per step],
"scored_tokens": int, newly computed}`; scores are probabilities, higher is better.

The first server is probed before the run. Transient failures are retried (`ttc.engines.shared.balance`); several
servers share the work, each problem stays on one.

Connections belong to an event loop in a thread of their own (`OwnLoop`): a scorer has no `close` and may serve one
event loop after another, while a connection ends with the loop that opened it. They are closed when their owner is
collected, or when the program ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import threading
import urllib.request
import weakref
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from math import exp, tanh
from pathlib import Path
from typing import Any, TypeVar

from ttc.choosing.selection import aggregate
from ttc.concurrent import gather
from ttc.core import Prompt, Score, Usage, UsageSink
from ttc.engines.openai.client import Client
from ttc.engines.openai.refusals import Access, Busy, NotFound
from ttc.engines.openai.sync_client import SyncClient
from ttc.engines.shared.balance import Balancer, Retry
from ttc.engines.shared.shape import Dims, read_config
from ttc.errors import ConfigError, EngineError, PromptTooLong, ScorerError
from ttc.scorers.adapters._base import Adapter
from ttc.scorers.reward_models.backends import OverHttp
from ttc.scorers.reward_models.layouts import ModelInput, OwnText, RewardTokenizer, steps_of
from ttc.scorers.reward_models.recall import Backend, Blocks, RecallScorer

CONNECT_S, SILENCE_S = 10.0, 600.0
"""Seconds to connect, and of silence while connected."""

_CACHE = re.compile(r"^vllm:cache_config_info\{(.*)\}", re.M)


class RewardServer:
    """One or more servers of one model; sends and returns JSON."""

    def __init__(self, options: OverHttp) -> None:
        """Open no connection yet. Raises ConfigError for an invalid address, and for a missing key."""
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
        """The model's name on the server: the user's, else the only one it lists.

        Raises:
            ConfigError: it lists none or several.
            EngineError: no server answers.
        """
        if self._model is None:
            with self._sync_client("/v1") as client:
                names = [str(entry["id"]) for entry in client.get("/models").get("data", [])]
            if len(names) != 1:
                raise ConfigError(f"the reward server lists {names}: set scorer.served_model to one of them")
            self._model = names[0]
        return self._model

    def offers(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The answer to `body` at `path`, a request like those of the run; None when the server refuses it.

        Raises:
            EngineError: no server answers, or it is not ready.
            ConfigError: it refuses the key.
        """
        with self._sync_client("") as client:
            try:
                return client.post(path, body)
            except Busy:
                raise
            except (NotFound, EngineError):
                return None

    def block_size(self) -> int | None:
        """Tokens per block of vLLM's prefix cache, from its metrics; None without one, or if not reported."""
        try:
            with urllib.request.urlopen(f"{self._urls[0]}/metrics", timeout=CONNECT_S) as reply:
                text = reply.read().decode()
        except OSError:
            return None
        labels = dict(re.findall(r'(\w+)="([^"]*)"', match[1])) if (match := _CACHE.search(text)) else {}
        return int(labels["block_size"]) if labels.get("enable_prefix_caching") == "True" else None

    @contextlib.contextmanager
    def _sync_client(self, route: str) -> Iterator[SyncClient]:
        client = SyncClient(f"{self._urls[0]}{route}", self._access)
        try:
            yield client
        finally:
            client.close()

    async def post(self, key: str, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send `body`; requests with one key stay on one server.

        Raises:
            ScorerError: the server failed or refused; the message names it and quotes its error.
        """
        try:
            return await self._loop.run(
                self._balancer.send(key, lambda url: self._client(url).post(path, body), Retry())
            )
        except PromptTooLong:
            raise
        except EngineError as exc:
            raise ScorerError(f"reward server: {exc}") from exc

    def _client(self, url: str) -> Client:
        if url not in self._clients:
            self._clients[url] = Client(url, self._access)
        return self._clients[url]


async def _close_all(clients: Mapping[str, Client]) -> None:
    for client in clients.values():
        await client.close()


def part(reply: Mapping[str, Any], *place: str | int) -> Any:
    """The value at `place` of a reply. Raises ScorerError, showing the reply, when it is missing."""
    value: Any = reply
    try:
        for key in place:
            value = value[key]
    except (KeyError, IndexError, TypeError) as exc:
        where = ".".join(map(str, place))
        raise ScorerError(f"the reward server's answer has no {where}: {json.dumps(reply)[:200]}") from exc
    return value


T = TypeVar("T")


class OwnLoop:
    """Runs coroutines in its thread; `closing` is awaited there at the end. Belongs to `owner`."""

    def __init__(self, owner: object, closing: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """`closing` must not refer to `owner`, which would then never be collected."""
        self._loop = asyncio.new_event_loop()
        thread = threading.Thread(target=self._loop.run_forever, name="ttc-http", daemon=True)
        thread.start()
        weakref.finalize(owner, _stop, self._loop, thread, closing)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work` from another loop; cancelling the await cancels it."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))


def _stop(
    loop: asyncio.AbstractEventLoop, thread: threading.Thread, closing: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    asyncio.run_coroutine_threadsafe(closing(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


PLUGIN_TASK = "plugin"
"""VLLM's name for the task that an IO processor of the server decides on."""


class ServerBackend(Backend):
    """A model on a vLLM server, with a request at the end of every step, one after another."""

    def __init__(
        self, server: RewardServer, adapter: Adapter, folder: Path, block_size: int | None, outputs: int | None = 2
    ) -> None:
        """`outputs` is the number of outputs of the head; None: one for each token of the vocabulary."""
        self._server, self._adapter = server, adapter
        dims = Dims.from_config(read_config(folder))
        self._shape = dims.model_shape(dims.vocab if outputs is None else outputs)
        self.blocks = Blocks(block_size)

    async def read(
        self, problem_id: str, model_input: ModelInput, reads: Sequence[int], on_usage: UsageSink
    ) -> list[float]:
        """See `Backend`; each request finds the previous one in the cache."""
        ends = (list(model_input.ids[: read + 1]) for read in reads)
        return [(await self._ask(problem_id, ids, on_usage))[len(ids) - 1] for ids in ends]

    @abstractmethod
    async def _ask(self, problem_id: str, ids: list[int], on_usage: UsageSink) -> dict[int, float]:
        """The result of one request: probabilities by position, at least that of the last token."""


class CompletionBackend(ServerBackend):
    """A token model at `/v1/completions`."""

    def __init__(self, server: RewardServer, adapter: Adapter, tokens: RewardTokenizer, folder: Path) -> None:
        self._pair = tokens.single("good", adapter.good), tokens.single("bad", adapter.bad)
        super().__init__(server, adapter, folder, server.block_size(), None)

    async def _ask(self, problem_id: str, ids: list[int], on_usage: UsageSink) -> dict[int, float]:
        body = {
            "model": self._server.model(),
            "prompt": ids,
            "max_tokens": 1,
            "temperature": 0,
            "logprobs": 2,
            "logprob_token_ids": list(self._pair),
            "return_tokens_as_token_ids": True,
        }
        reply = await self._server.post(problem_id, "/v1/completions", body)
        self.blocks.send(problem_id, ids)
        details = part(reply, "usage").get("prompt_tokens_details") or {}
        cached = int(details.get("cached_tokens") or 0)
        on_usage(Usage(scored=len(ids) - cached, flops=self._shape.flops(len(ids) - cached, cached)))
        top_logprobs = part(reply, "choices", 0, "logprobs", "top_logprobs", 0)
        try:
            good, bad = (top_logprobs[f"token_id:{token}"] for token in self._pair)
        except KeyError as exc:
            raise ScorerError(f"the reward server did not report the log-probability of {exc}: it is not vLLM") from exc
        return {len(ids) - 1: _sigmoid(good - bad)}


class SpansBackend(ServerBackend):
    """A label model whose server runs our plugin: rows of the tokens after the cached part."""

    @staticmethod
    def offered(server: RewardServer, token: int) -> bool:
        """Whether the server has the plugin."""
        reply = server.offers("/pooling", _spans_body(server, [token]))
        return isinstance(reply, dict) and isinstance(data := reply.get("data"), dict) and "cached" in data

    def cost(self, problem_id: str, ids: Sequence[int], reads: Sequence[int]) -> int:
        """See `Backend`."""
        return self.blocks.from_the_end(problem_id, ids, reads)

    async def read(
        self, problem_id: str, model_input: ModelInput, reads: Sequence[int], on_usage: UsageSink
    ) -> list[float]:
        """See `Backend`; the last one first, whose reply has all that were not cached."""
        values: dict[int, float] = {}
        while missing := [read for read in reads if read not in values]:
            values |= await self._ask(problem_id, list(model_input.ids[: missing[-1] + 1]), on_usage)
        return [values[read] for read in reads]

    async def _ask(self, problem_id: str, ids: list[int], on_usage: UsageSink) -> dict[int, float]:
        reply = await self._server.post(problem_id, "/pooling", _spans_body(self._server, ids))
        self.blocks.send(problem_id, ids)
        rows, cached = part(reply, "data", "rows"), part(reply, "data", "cached")
        if not isinstance(rows, list) or not rows or len(rows) + cached != len(ids):
            raise ScorerError(f"the reward server gave {_count(rows)} rows and {cached} cached for {len(ids)} tokens")
        on_usage(Usage(scored=len(rows), flops=self._shape.flops(len(rows), cached)))
        return {cached + at: _probability(row, self._adapter) for at, row in enumerate(rows)}


class LastBackend(ServerBackend):
    """A classifier at `/classify`, with a request at the end of every step."""

    @staticmethod
    def offered(server: RewardServer, token: int) -> bool:
        """Whether the server pools the last token."""
        reply = server.offers("/classify", _last_body(server, [token]))
        return reply is not None and isinstance(reply.get("data"), list)

    async def _ask(self, problem_id: str, ids: list[int], on_usage: UsageSink) -> dict[int, float]:
        # sent in the meantime, siblings find it: vLLM caches what it has scheduled
        new = self.blocks.send(problem_id, ids)
        reply = await self._server.post(problem_id, "/classify", _last_body(self._server, ids))
        on_usage(Usage(scored=new, flops=self._shape.flops(new, len(ids) - new)))
        return {len(ids) - 1: _probability(part(reply, "data", 0, "probs"), self._adapter)}


class TokensBackend(ServerBackend):
    """A label model at `/pooling`, with rows of every token or of every step tag; nothing is cached."""

    def __init__(self, server: RewardServer, adapter: Adapter, tokens: RewardTokenizer, folder: Path) -> None:
        self._tag = None if adapter.tag is None else tokens.single("step tag", adapter.tag)
        super().__init__(server, adapter, folder, None)

    def cost(self, problem_id: str, ids: Sequence[int], reads: Sequence[int]) -> int:
        """See `Backend`: the whole path."""
        return reads[-1] + 1 if reads else 0

    async def read(
        self, problem_id: str, model_input: ModelInput, reads: Sequence[int], on_usage: UsageSink
    ) -> list[float]:
        """See `Backend`."""
        values = await self._ask(problem_id, list(model_input.ids[: reads[-1] + 1]), on_usage)
        return [values[read] for read in reads]

    async def _ask(self, problem_id: str, ids: list[int], on_usage: UsageSink) -> dict[int, float]:
        body = {"model": self._server.model(), "input": ids, "task": "token_classify"}
        reply = await self._server.post(problem_id, "/pooling", {**body, "use_activation": False})
        on_usage(Usage(scored=len(ids), flops=self._shape.flops(len(ids), 0)))
        rows = part(reply, "data", 0, "data")
        tags = [at for at, token in enumerate(ids) if token == self._tag]
        if not isinstance(rows, list) or len(rows) not in (len(ids), len(tags)):
            raise ScorerError(
                f"the reward server gave {_count(rows)} rows for {len(ids)} tokens with {len(tags)} step tags: "
                'start it with --pooler-config \'{"tok_pooling_type": "ALL"}\''
            )
        places = range(len(ids)) if len(rows) == len(ids) else tags
        return {at: _probability(row, self._adapter) for at, row in zip(places, rows, strict=True)}


def vllm_backend(server: RewardServer, adapter: Adapter, tokens: RewardTokenizer, folder: Path) -> Backend:
    """The cheapest way to read this model that the server offers."""
    if adapter.kind == "token":
        return CompletionBackend(server, adapter, tokens, folder)
    if adapter.vllm != "/classify" and SpansBackend.offered(server, 0):
        return SpansBackend(server, adapter, folder, server.block_size())
    if adapter.vllm == "/classify" or LastBackend.offered(server, 0):
        return LastBackend(server, adapter, folder, server.block_size(), 1 if adapter.outcome else 2)
    return TokensBackend(server, adapter, tokens, folder)


def _spans_body(server: RewardServer, ids: list[int]) -> dict[str, Any]:
    return {"model": server.model(), "task": PLUGIN_TASK, "data": {"ids": ids}}


def _last_body(server: RewardServer, ids: list[int]) -> dict[str, Any]:
    return {"model": server.model(), "input": ids, "use_activation": False}


def _count(rows: object) -> int:
    return len(rows) if isinstance(rows, list) else 0


def _sigmoid(logit: float) -> float:
    return 0.5 * (1.0 + tanh(logit / 2))


def _probability(logits: Sequence[float], adapter: Adapter) -> float:
    """Probability of the positive label; a single output goes through a sigmoid."""
    label = min(adapter.positive_label, len(logits) - 1)
    if len(logits) == 1 or adapter.activation == "sigmoid":
        return _sigmoid(logits[label])
    highest = max(logits)
    weights = [exp(logit - highest) for logit in logits]
    return weights[label] / sum(weights)


def token_scorer(server: RewardServer, folder: Path, adapter: Adapter, step_delimiter: str | None) -> RecallScorer:
    """A reward model on a vLLM server, which is probed now for the model's name and its features."""
    if adapter.vllm is None:
        raise ConfigError(f"vLLM has no code for the head of {adapter.name}: use backend=embedded or protocol=steps")
    tokens = RewardTokenizer(folder)
    layout = OwnText(adapter, tokens, step_delimiter or adapter.step_delimiter)
    server.model()
    return RecallScorer(vllm_backend(server, adapter, tokens, folder), layout, aggregation=adapter.aggregation)


class StepsScorer:
    """A server that takes messages and steps; a path whose steps are known is not requested again."""

    def __init__(self, server: RewardServer, delimiter: str, served_model: str | None) -> None:
        self._server, self._delimiter, self._model = server, delimiter, served_model
        self._known: dict[str, dict[tuple[str, ...], Score]] = {}

    async def score(self, prompts: Sequence[Prompt], on_usage: UsageSink) -> list[Score]:
        """Score every step of each prompt; `value` is the last one's."""
        return await gather(self._score(prompt, on_usage) for prompt in prompts)

    def release(self, problem_id: str) -> None:
        """Drop the scores of a problem."""
        self._known.pop(problem_id, None)

    async def _score(self, prompt: Prompt, on_usage: UsageSink) -> Score:
        steps = tuple(steps_of(prompt, self._delimiter))
        if not steps:
            return Score(None, note="no token generated yet")
        by_steps = self._known.setdefault(prompt.problem_id, {})
        if steps not in by_steps:
            messages = [{"role": message.role, "content": message.content} for message in prompt.messages]
            body = {"problem_id": prompt.problem_id, "messages": messages, "steps": steps, "model": self._model}
            reply = await self._server.post(prompt.problem_id, "/score", body)
            scores, scored = reply.get("scores"), reply.get("scored_tokens")
            if not isinstance(scores, list) or len(scores) != len(steps) or not isinstance(scored, int):
                answer = json.dumps(reply)[:200]
                raise ScorerError(
                    f"the reward server must give {len(steps)} scores and scored_tokens, it gave {answer}"
                )
            on_usage(Usage(scored=scored))
            values = tuple(float(score) for score in scores)
            by_steps[steps] = Score(aggregate(Score(values[-1], values)), values)
        return by_steps[steps]
