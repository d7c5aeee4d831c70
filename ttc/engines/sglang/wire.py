"""SGLang's words: a generation request, what comes back of it, and what a server says of itself.

Read off SGLang 0.5.23; `POST /generate` and `Engine.async_generate` take and give the same fields. Token ids go in and
token ids come out; the text of an answer is decoded here and never taken from the server. `sampling_seed` and the
absolute token position key all randomness there, so one seed serves a draw for its whole life, in however many pieces.
Left out: n, beam search, grammars, sessions, adapters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ttc.core import FinishReason, Json, Sampling
from ttc.errors import ConfigError, EngineError, Unsupported

__all__ = ["MAX_STOPS", "UNKNOWN", "Received", "ServerInfo", "draw_body", "ending", "score_body"]

MAX_STOPS = 32
"""Stop strings that SGLang takes in one request."""

_NEUTRAL = {"min_p": 0.0, "frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0}
"""Stated in every request, so that a server's own `preferred_sampling_params` cannot change the distribution."""


UNKNOWN = "unknown"
"""The version of a server that does not tell its own."""


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What a server says of itself: `max_input` tokens fit a request; `honours_seeds`: sampling is keyed by them."""

    model: str
    model_type: str | None
    version: str
    max_input: int
    max_running: int | None
    honours_seeds: bool

    @classmethod
    def read(cls, model: Mapping[str, Json], server: Mapping[str, Json], where: str) -> ServerInfo:
        """Read `/model_info` and `/server_info` (the in-process engine gives the same). Raises ConfigError."""
        if not model.get("is_generation", True):
            raise ConfigError(f"sglang: {where} serves {model.get('model_path')}, which does not generate text")
        if "max_req_input_len" not in server:
            raise ConfigError(f"sglang: {where} does not answer like SGLang 0.5.23: no max_req_input_len")
        running = server.get("max_running_requests")
        return cls(
            model=str(model.get("model_path") or server.get("model_path")),
            model_type=model.get("model_type"),
            version=str(server.get("version", UNKNOWN)),
            max_input=int(server["max_req_input_len"]),
            max_running=int(running) if running else None,
            honours_seeds=bool(server.get("enable_deterministic_inference")),
        )


def draw_body(ids: Sequence[int], sampling: Sampling, key: int) -> dict[str, Json]:
    """The request for one draw whose randomness is keyed by `key` (64 bits; SGLang takes 63 of them)."""
    if len(sampling.stop) > MAX_STOPS:
        raise Unsupported(f"sglang takes at most {MAX_STOPS} stop strings, got {len(sampling.stop)}")
    params: dict[str, Json] = {
        **_NEUTRAL,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": -1 if sampling.top_k is None else sampling.top_k,
        "max_new_tokens": sampling.max_tokens,
        "stop": list(sampling.stop),
        "stop_token_ids": list(sampling.stop_token_ids),
        "no_stop_trim": True,
        "skip_special_tokens": False,
    }
    if sampling.temperature > 0:
        params["sampling_seed"] = key >> 1
    return {"input_ids": list(ids), "sampling_params": params, "return_logprob": sampling.logprobs}


def score_body(ids: Sequence[int], start: int) -> dict[str, Json]:
    """The request for the log-probabilities of ids[start:]; nothing is sampled."""
    return {
        "input_ids": list(ids),
        "sampling_params": {"max_new_tokens": 0, "temperature": 0.0},
        "return_logprob": True,
        # The token at logprob_start_len itself comes back without a number: what precedes it was not asked for.
        "logprob_start_len": start - 1,
    }


@dataclass(slots=True)
class Received:
    """What has come back of one request so far."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    input_logprobs: list[float | None] = field(default_factory=list)
    finish: Mapping[str, Json] | None = None
    prompt: int | None = None
    cached: int = 0

    def add(self, raw: Json) -> tuple[int, ...]:
        """Take in an answer, or one event of a stream (cumulative or not); return the ids that are new.

        Raises:
            EngineError: it is not an answer, or tokens got lost on the way.
        """
        meta = raw.get("meta_info") if isinstance(raw, dict) else None
        if meta is None or not isinstance(raw.get("output_ids"), list):
            raise EngineError(f"sglang gave no answer but {str(raw)[:200]}")
        ids: list[int] = raw["output_ids"]
        total = int(meta.get("completion_tokens", len(ids)))
        new = _tail(ids, len(self.ids), total)
        self.ids += new
        pairs: list[Any] = meta.get("output_token_logprobs") or []
        if pairs and total:
            self.logprobs += [float(pair[0]) for pair in _tail(pairs, len(self.logprobs), total)]
        if meta.get("input_token_logprobs"):
            self.input_logprobs = [pair[0] for pair in meta["input_token_logprobs"]]
        self.finish = meta.get("finish_reason") or self.finish
        self.prompt = meta.get("prompt_tokens", self.prompt)
        self.cached = int(meta.get("cached_tokens") or self.cached)
        return tuple(new)

    def check(self, num_prompt: int) -> None:
        """Raise EngineError unless the request ended and the server read exactly the prompt that was sent."""
        if self.finish is None:
            raise EngineError(f"sglang broke off after {len(self.ids)} tokens without a finish_reason")
        if self.finish.get("type") == "abort":
            raise EngineError(f"sglang aborted the request: {self.finish.get('message', 'no reason given')}")
        if self.prompt != num_prompt:
            raise EngineError(f"sglang read {self.prompt} of {num_prompt} prompt tokens: its ledger and ours differ")


def _tail(items: list[Any], have: int, total: int) -> list[Any]:
    """The items after the first `have` of `total`; a stream repeats all of them or gives only the new ones."""
    missing = total - have
    if missing < 0 or (have and missing > len(items)) or (not have and total > len(items)):
        raise EngineError(f"sglang counts {total} tokens and sent {len(items)} after {have}: some got lost")
    if missing == 0:
        return []
    return items[have:total] if len(items) >= total else items[-missing:]


def ending(
    finish: Mapping[str, Json], ids: Sequence[int], sampling: Sampling, eos_ids: Sequence[int]
) -> tuple[FinishReason, str | int | None]:
    """Finish and stop reason in our terms. Raises EngineError for anything SGLang 0.5.23 does not say."""
    kind = finish.get("type")
    if kind not in _ENDINGS:
        raise EngineError(f"sglang ended a request with the unknown finish_reason {kind!r}")
    return _ENDINGS[kind](finish, ids, sampling, eos_ids)


def _length(*_: Any) -> tuple[FinishReason, None]:
    return "length", None


def _stop(
    finish: Mapping[str, Json], ids: Sequence[int], sampling: Sampling, eos_ids: Sequence[int]
) -> tuple[FinishReason, str | int]:
    matched = finish.get("matched")
    if isinstance(matched, str) and matched in sampling.stop:
        return "stop", matched
    if isinstance(matched, int) and ids and ids[-1] == matched:
        asked = matched in sampling.stop_token_ids and matched not in eos_ids
        # A token nobody asked for is one that the server's own configuration counts as an end of sequence.
        return "stop", matched if asked else "eos"
    raise EngineError(f"sglang stopped at {matched!r}, which was not asked for (NaN in the logits says so too)")


_ENDINGS: dict[Any, Callable[..., tuple[FinishReason, str | int | None]]] = {"length": _length, "stop": _stop}
