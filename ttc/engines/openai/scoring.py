"""Log-probabilities of given ids over `/v1/completions`, where the server has vLLM's `prompt_logprobs`.

With `prompt_logprobs: k` it also tells its k likeliest tokens at every place, which is what distillation asks a
teacher; servers allow 20 unless started with a larger `--max-logprobs`. The server computes every token anew (vLLM does
not read its prefix cache for such a request) and must sample one token, which is charged as `overrun`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from ttc.core import Usage, UsageSink
from ttc.engines.openai.client import Chunk
from ttc.engines.openai.engine import Attempts, RemoteTokenEngine
from ttc.engines.openai.reply import first_choice
from ttc.engines.shared.tokens import check_room, check_start
from ttc.errors import EngineError

__all__ = ["ScoringEngine", "prompt_logprobs", "scoring_body", "top_entries"]

T = TypeVar("T")


class ScoringEngine(RemoteTokenEngine):
    """A TokenEngine that is also a LogprobEngine."""

    async def logprobs(self, token_ids: Sequence[int], start: int, on_usage: UsageSink) -> tuple[float, ...]:
        """See `ttc.core.LogprobEngine`; `start` must be at least 1, since the first token has nothing before it."""
        return await self._scored(token_ids, start, 0, prompt_logprobs, on_usage)

    async def top_logprobs(
        self, token_ids: Sequence[int], start: int, k: int, on_usage: UsageSink
    ) -> tuple[Mapping[int, float], ...]:
        """Id to nats of the k likeliest tokens at the place of each of token_ids[start:]; `start` as in `logprobs`.

        Raises:
            EngineError: the server tells fewer, or refuses so many.
        """

        def read(answer: Chunk, ids: Sequence[int], first: int) -> tuple[Mapping[int, float], ...]:
            return top_entries(answer, ids, first, k)

        return await self._scored(token_ids, start, k, read, on_usage)

    async def _scored(
        self,
        token_ids: Sequence[int],
        start: int,
        k: int,
        read: Callable[[Chunk, Sequence[int], int], T],
        on_usage: UsageSink,
    ) -> T:
        length = len(token_ids)
        check_start(length, start)
        check_room(length, 1, self.capabilities.max_context)
        body, tally = scoring_body(self.features.model, token_ids, k), Attempts()

        async def attempt(url: str) -> T:
            tally.attempts += 1
            wires = await self._wires.here()
            async with wires.slots:
                answer = await wires.clients[url].post("/completions", body)
            try:
                return read(answer, token_ids, start)
            except ValueError as exc:
                raise EngineError(f"{url} did not score the tokens: {exc}") from exc

        key = hashlib.blake2b(repr(tuple(token_ids[:start])).encode(), digest_size=8).hexdigest()
        usage = Usage(prompt=length, calls=1)
        try:
            values = await self._balancer.send(key, attempt, self._retry)
        except BaseException:
            self._ledger.report(usage + Usage(attempts=tally.attempts), on_usage)
            raise
        shape = self.capabilities.shape
        flops = 0.0 if shape is None else shape.flops(length + 1, 0)
        self._ledger.report(usage + Usage(attempts=tally.attempts, overrun=1, flops=flops), on_usage)
        return values


def scoring_body(model: str, token_ids: Sequence[int], k: int = 0) -> dict[str, Any]:
    """The request that scores `token_ids`, with the `k` likeliest tokens beside each."""
    return {
        "model": model,
        "prompt": list(token_ids),
        "max_tokens": 1,
        "temperature": 0.0,
        "prompt_logprobs": k,
        "add_special_tokens": False,
    }


def prompt_logprobs(answer: Chunk, token_ids: Sequence[int], start: int) -> tuple[float, ...]:
    """Nats of token_ids[start:] in the answer; raises ValueError when they are not all there."""
    entries = _entries(answer, token_ids)
    return tuple(_value(entries[at], token_ids[at]) for at in range(start, len(token_ids)))


def top_entries(answer: Chunk, token_ids: Sequence[int], start: int, k: int) -> tuple[Mapping[int, float], ...]:
    """The k likeliest tokens at each place from `start`; raises ValueError when there are fewer."""
    tops: list[Mapping[int, float]] = []
    for entry in _entries(answer, token_ids)[start:]:
        logprobs = {int(token): float(value["logprob"]) for token, value in (entry or {}).items()}
        best = sorted(logprobs.items(), key=lambda pair: (-pair[1], pair[0]))[:k]  # the given token may come on top
        if len(best) < k:
            raise ValueError(f"{len(best)} likeliest tokens where {k} were asked for")
        tops.append(dict(best))
    return tuple(tops)


def _entries(answer: Chunk, token_ids: Sequence[int]) -> Sequence[Mapping[str, Any] | None]:
    entries = first_choice(answer).get("prompt_logprobs")
    if not isinstance(entries, Sequence) or len(entries) != len(token_ids):
        raise ValueError("no log-probabilities of the prompt")
    return entries


def _value(entry: Mapping[str, Any] | None, token: int) -> float:
    value = (entry or {}).get(str(token))
    if value is None:
        raise ValueError(f"no log-probability of token {token}")
    return float(value["logprob"])
