"""Reward models on a server: a vLLM server of the model, or any program that speaks plain JSON.

vLLM (`protocol=vllm`): ids are made here with the model's own tokenizer, so its folder or hub id is needed as well.
A label model is asked at `/pooling` (started by `vllm serve MODEL --runner pooling`, with step or ALL pooling); vLLM
reads no prefix cache for it and offers no switch over HTTP, so every call costs the whole path. A token model is asked
at `/v1/completions` for one token at the end of each new step, which reads the prefix cache; start the server with
`--enable-prompt-tokens-details`, else the cached part is not told and counts as computed.

Plain JSON (`protocol=steps`), one request a path: `POST base_url/score` with
`{"problem_id": str, "messages": [{"role": str, "content": str}], "steps": [str], "model": str | null}`, answered by
`{"scores": [float, one per step], "scored_tokens": int, newly computed}`; scores are probabilities, higher is better.

Transient failures are tried again (`ttc.remote.retry`); several servers share the work, each problem stays on one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from functools import partial
from math import exp
from pathlib import Path
from typing import Any

from ttc.aggregate import aggregate
from ttc.concurrent import gather
from ttc.core import Prompt, Score, Usage, UsageSink
from ttc.embedded.shape import Dims, read_config
from ttc.errors import ConfigError, EngineError, PromptTooLong, ScorerError
from ttc.remote.balance import Balancer
from ttc.remote.client import Access, Client, Door
from ttc.remote.retry import Retry
from ttc.scorers._layouts import Laid, OwnText, steps_of
from ttc.scorers._own_loop import OwnLoop
from ttc.scorers._recall import RecallScorer
from ttc.scorers._tokens import Tokens
from ttc.scorers.adapters._base import Adapter

__all__ = ["Server", "StepsScorer", "token_scorer"]

CONNECT_S, SILENCE_S = 10.0, 600.0
"""Seconds to connect, and of silence while connected."""


class Server:
    """One or more servers of one model; sends JSON, gives JSON back."""

    def __init__(self, base_url: str, served_model: str | None, api_key_env: str | None) -> None:
        """Opens nothing yet. Raises ConfigError for an address that is none, and for a key that is not there."""
        urls = [url.strip().rstrip("/").removesuffix("/v1") for url in base_url.split(",") if url.strip()]
        for url in urls:
            if not url.startswith(("http://", "https://")):
                raise ConfigError(f"prm base_url must start with http:// or https://, got {url!r}")
        key = "" if api_key_env is None else os.environ.get(api_key_env, "").strip()
        if api_key_env is not None and not key:
            raise ConfigError(f"prm api_key_env: the environment variable {api_key_env} is not set")
        self._access = Access(key, CONNECT_S, SILENCE_S)
        self._balancer, self._urls, self._model = Balancer(urls), urls, served_model
        self._clients: dict[str, Client] = {}
        self._loop = OwnLoop(self, partial(_close_all, self._clients))

    def model(self) -> str:
        """The model's name on the server: what the user said, else the only one it lists.

        Raises:
            ConfigError: it lists none or several.
            EngineError: nothing answers there.
        """
        if self._model is None:
            door = Door(f"{self._urls[0]}/v1", self._access)
            try:
                names = [str(entry["id"]) for entry in door.get("/models").get("data", [])]
            finally:
                door.close()
            if len(names) != 1:
                raise ConfigError(f"the reward server lists {names}: set scorer.served_model to one of them")
            self._model = names[0]
        return self._model

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


class PooledBackend:
    """A label model at `/pooling`."""

    max_context = None

    def __init__(self, server: Server, adapter: Adapter, tokens: Tokens, folder: Path) -> None:
        self._server, self._adapter = server, adapter
        self._tag = None if adapter.tag is None else tokens.single("step tag", adapter.tag)
        self._shape = Dims.from_config(read_config(folder)).model_shape(2)

    async def read(self, problem_id: str, laid: Laid, reads: Sequence[int], on_usage: UsageSink) -> list[float]:
        """See `Backend`."""
        ids = list(laid.ids[: reads[-1] + 1])
        body = {"model": self._server.model(), "input": ids, "task": "token_classify"}
        reply = await self._server.post(problem_id, "/pooling", {**body, "use_activation": False})
        on_usage(Usage(scored=len(ids), flops=self._shape.flops(len(ids), 0)))
        rows = reply["data"][0]["data"]
        tags = [at for at, token in enumerate(ids) if token == self._tag]
        if len(rows) not in (len(ids), len(tags)):
            raise ScorerError(
                f"the reward server gave {len(rows)} rows for {len(ids)} tokens with {len(tags)} step tags: start it "
                'with --pooler-config \'{"tok_pooling_type": "ALL"}\''
            )
        by_position = dict(zip(range(len(ids)) if len(rows) == len(ids) else tags, rows, strict=True))
        return [self._probability(by_position[read]) for read in reads]

    def _probability(self, logits: Sequence[float]) -> float:
        label = min(self._adapter.positive_label, len(logits) - 1)
        if len(logits) == 1 or self._adapter.activation == "sigmoid":
            return 1 / (1 + exp(-logits[label]))
        return 1 / sum(exp(other - logits[label]) for other in logits)


class CompletionBackend:
    """A token model at `/v1/completions`."""

    max_context = None

    def __init__(self, server: Server, adapter: Adapter, tokens: Tokens, folder: Path) -> None:
        self._server = server
        self._pair = tokens.single("good", adapter.good), tokens.single("bad", adapter.bad)
        dims = Dims.from_config(read_config(folder))
        self._shape = dims.model_shape(dims.vocab)

    async def read(self, problem_id: str, laid: Laid, reads: Sequence[int], on_usage: UsageSink) -> list[float]:
        """See `Backend`; one after another, so that each finds the one before in the cache."""
        return [await self._read(problem_id, list(laid.ids[: read + 1]), on_usage) for read in reads]

    async def _read(self, problem_id: str, ids: list[int], on_usage: UsageSink) -> float:
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
        details = reply.get("usage", {}).get("prompt_tokens_details") or {}
        cached = int(details.get("cached_tokens") or 0)
        on_usage(Usage(scored=len(ids) - cached, flops=self._shape.flops(len(ids) - cached, cached)))
        told = reply["choices"][0]["logprobs"]["top_logprobs"][0]
        try:
            good, bad = (told[f"token_id:{token}"] for token in self._pair)
        except KeyError as exc:
            raise ScorerError(f"the reward server did not tell the log-probability of {exc}: it is no vLLM") from exc
        return 1 / (1 + exp(bad - good))


def token_scorer(server: Server, folder: Path, adapter: Adapter, step_delimiter: str | None) -> RecallScorer:
    """A reward model on a vLLM server, which is asked for the model's name now."""
    if not adapter.vllm:
        raise ConfigError(f"vLLM has no code for the head of {adapter.name}: use backend=embedded or protocol=steps")
    tokens = Tokens(folder)
    layout = OwnText(adapter, tokens, step_delimiter or adapter.step_delimiter)
    server.model()
    kind = PooledBackend if adapter.kind == "label" else CompletionBackend
    return RecallScorer(kind(server, adapter, tokens, folder), layout, aggregation=adapter.aggregation)


class StepsScorer:
    """A server that takes messages and steps; a path whose steps are known is not asked again."""

    def __init__(self, server: Server, delimiter: str, served_model: str | None) -> None:
        self._server, self._delimiter, self._model = server, delimiter, served_model
        self._known: dict[str, dict[tuple[str, ...], Score]] = {}

    async def score(self, prompts: Sequence[Prompt], on_usage: UsageSink) -> list[Score]:
        """Score every step of each prompt; `value` is the last one's."""
        return await gather(self._score(prompt, on_usage) for prompt in prompts)

    def release(self, problem_id: str) -> None:
        """Forget the scores of a problem."""
        self._known.pop(problem_id, None)

    async def _score(self, prompt: Prompt, on_usage: UsageSink) -> Score:
        steps = tuple(steps_of(prompt, self._delimiter))
        if not steps:
            return Score(None, note="no token generated yet")
        known = self._known.setdefault(prompt.problem_id, {})
        if steps not in known:
            messages = [{"role": message.role, "content": message.content} for message in prompt.messages]
            body = {"problem_id": prompt.problem_id, "messages": messages, "steps": steps, "model": self._model}
            reply = await self._server.post(prompt.problem_id, "/score", body)
            scores, scored = reply.get("scores"), reply.get("scored_tokens")
            if not isinstance(scores, list) or len(scores) != len(steps) or not isinstance(scored, int):
                said = json.dumps(reply)[:200]
                raise ScorerError(f"the reward server must give {len(steps)} scores and scored_tokens, it gave {said}")
            on_usage(Usage(scored=scored))
            values = tuple(float(score) for score in scores)
            known[steps] = Score(aggregate(Score(values[-1], values)), values)
        return known[steps]
