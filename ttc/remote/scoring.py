"""Log-probabilities of given ids over `/v1/completions`, where the server has vLLM's `prompt_logprobs`.

The server computes every token anew (vLLM does not read its prefix cache for such a request) and must sample one token,
which is charged as `overrun`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from ttc.core import Usage, UsageSink
from ttc.engines._tokens import check_room, check_start
from ttc.errors import EngineError
from ttc.remote.client import Chunk
from ttc.remote.engine import Tally, TokenEngine
from ttc.remote.reply import first_choice

__all__ = ["ScoringEngine", "prompt_logprobs", "scoring_body"]


class ScoringEngine(TokenEngine):
    """A TokenEngine that is also a LogprobEngine."""

    async def logprobs(self, token_ids: Sequence[int], start: int, on_usage: UsageSink) -> tuple[float, ...]:
        """See `ttc.core.LogprobEngine`; `start` must be at least 1, since the first token has nothing before it."""
        length = len(token_ids)
        check_start(length, start)
        check_room(length, 1, self.capabilities.max_context)
        body, tally = scoring_body(self.features.model, token_ids), Tally()

        async def attempt(url: str) -> tuple[float, ...]:
            tally.attempts += 1
            wires = await self._wires.here()
            async with wires.slots:
                answer = await wires.clients[url].post("/completions", body)
            try:
                return prompt_logprobs(answer, token_ids, start)
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


def scoring_body(model: str, token_ids: Sequence[int]) -> dict[str, Any]:
    """The request that scores `token_ids`."""
    return {
        "model": model,
        "prompt": list(token_ids),
        "max_tokens": 1,
        "temperature": 0.0,
        "prompt_logprobs": 0,
        "add_special_tokens": False,
    }


def prompt_logprobs(answer: Chunk, token_ids: Sequence[int], start: int) -> tuple[float, ...]:
    """Nats of token_ids[start:] in the answer; raises ValueError when they are not all there."""
    found = first_choice(answer).get("prompt_logprobs")
    if not isinstance(found, Sequence) or len(found) != len(token_ids):
        raise ValueError("no log-probabilities of the prompt")
    return tuple(_value(found[at], token_ids[at]) for at in range(start, len(token_ids)))


def _value(entry: Mapping[str, Any] | None, token: int) -> float:
    known = (entry or {}).get(str(token))
    if known is None:
        raise ValueError(f"no log-probability of token {token}")
    return float(known["logprob"])
