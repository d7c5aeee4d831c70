"""The dialect of token ids: `/v1/completions` with ids as prompt and ids in the answer (vLLM, and what follows it).

With it an endpoint is an engine like one in this process: exact continuations, thinking control, log-probabilities,
counts that do not rest on the server's word. Stops are checked here as well, id by id, so a server that overlooks one
costs tokens (charged as `overrun`) but changes no result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ttc.core import FinishReason, Message, Prompt, Sampling
from ttc.engines.openai.client import Chunk
from ttc.engines.openai.reply import Outcome, Tail, as_mapping
from ttc.engines.openai.request import Features, shared_fields
from ttc.engines.shared.text import Text
from ttc.engines.shared.tokens import StopRule, check_room, make_rule
from ttc.errors import Unsupported

__all__ = ["IdsDialect", "ids_of"]

TOKEN_PREFIX = "token_id:"
MAX_ID = 1 << 31


class IdsDialect:
    """Renders, asks and reads with the tokenizer of a local folder."""

    path = "/completions"

    def __init__(self, text: Text, features: Features, max_context: int) -> None:
        """`max_context` is the server's limit in tokens."""
        self._text, self._features, self._max_context = text, features, max_context

    def render(self, messages: Sequence[Message], thinking: bool | None) -> Prompt:
        """Apply the folder's chat template."""
        return self._text.render(messages, thinking)

    def check(self, prompt: Prompt, sampling: Sampling) -> None:
        """Refuse a prompt without ids, and one that does not fit."""
        if not prompt.token_ids:
            raise Unsupported("this endpoint continues token ids: the prompt has none (render it with this engine)")
        check_room(len(prompt.token_ids), sampling.max_tokens, self._max_context)

    def num_prompt(self, prompt: Prompt) -> int | None:
        """Our own count of the context."""
        return len(prompt.token_ids or ())

    def body(self, prompt: Prompt, sampling: Sampling, seed: int | None) -> dict[str, Any]:
        """The request."""
        fields = shared_fields(sampling, seed, self._features)
        fields |= {"prompt": list(prompt.token_ids or ()), "add_special_tokens": False, "return_token_ids": True}
        fields |= {"include_stop_str_in_output": True} if self._features.extras else {}
        if self._features.logprobs and sampling.logprobs:
            fields["logprobs"] = 0
        return fields

    def reader(self, prompt: Prompt, sampling: Sampling) -> IdsReader:
        """The reader of its answer."""
        text = self._text
        rule = make_rule(sampling.stop, sampling.stop_token_ids, text.eos_ids, (), text.decode)
        return IdsReader(rule, sampling, text.eos_ids, text.decode, self._features.logprobs and sampling.logprobs)


def ids_of(choice: Mapping[str, Any]) -> list[int] | None:
    """The ids of a choice: `token_ids`, or tokens spelled `token_id:17`; None when it has neither.

    Raises:
        ValueError: there is something else in the place of the ids.
    """
    ids = choice.get("token_ids")
    if ids is not None:
        return [_as_id(token) for token in _as_list(ids, "token_ids")]
    tokens = _as_list(as_mapping(choice.get("logprobs"), "logprobs").get("tokens"), "tokens")
    if not tokens or not all(isinstance(token, str) and token.startswith(TOKEN_PREFIX) for token in tokens):
        return None
    return [_as_id(int(token.removeprefix(TOKEN_PREFIX))) for token in tokens]


def _as_id(token: object) -> int:
    if not isinstance(token, int) or not 0 <= token < MAX_ID:
        raise ValueError(f"{token!r} is no token id")
    return token


def _as_list(value: object, name: str) -> Sequence[Any]:
    if value is not None and not isinstance(value, list):
        raise ValueError(f"{name} is no list")
    return value or ()


class IdsReader:
    """Gathers ids and ends the draw at the first stop, whatever the server does."""

    def __init__(
        self,
        rule: StopRule,
        sampling: Sampling,
        eos_ids: tuple[int, ...],
        decode: Callable[[Sequence[int]], str],
        logprobs: bool,
    ) -> None:
        self._rule, self._max_tokens, self._eos_ids, self._decode = rule, sampling.max_tokens, eos_ids, decode
        self._ids: list[int] = []
        self._logprobs: list[float | None] | None = [] if logprobs else None
        self._end: tuple[FinishReason, str | int | None] | None = None
        self._num_extra, self._tail = 0, Tail()

    @property
    def num_streamed(self) -> int:
        """See `ttc.engines.openai.reply.Reader`."""
        return len(self._ids) + self._num_extra

    def add(self, chunk: Chunk) -> tuple[bool, tuple[int, ...]]:
        """Take a chunk; tokens after the end say that the server runs on, and then there is nothing to wait for."""
        choice = self._tail.add(chunk)
        new, before = ids_of(choice) or [], len(self._ids)
        runs_on = bool(new) and self._end is not None
        for token in new:
            if self._end is None:
                self._take(token)
            else:
                self._num_extra += 1
        count = len(self._ids) - before
        if self._logprobs is not None and new:
            column = as_mapping(choice.get("logprobs"), "logprobs").get("token_logprobs")
            values = _as_list(column, "token_logprobs")
            complete = len(values) == len(new) and all(isinstance(value, int | float) for value in values[:count])
            self._logprobs = self._logprobs + [float(value) for value in values[:count]] if complete else None
        return runs_on, tuple(self._ids[before:])

    def _take(self, token: int) -> None:
        self._ids.append(token)
        reason = self._rule.reason(self._ids)
        if reason is not None:
            self._end = ("stop", reason)
        elif len(self._ids) >= self._max_tokens:
            self._end = ("length", None)

    def result(self) -> Outcome:
        """See `ttc.engines.openai.reply.Reader`."""
        finish, stop = self._end or (self._tail.reason(), None)
        ids, logprobs = tuple(self._ids), self._logprobs
        if finish == "stop" and self._end is None:
            # The server's own end of sequence, which our tokenizer does not name: its id closes the draw or is added.
            stop = "eos"
            if not ids or self._tail.stop != ids[-1]:
                ids += self._eos_ids[:1]
                logprobs = None if logprobs is None else [*logprobs, None]
        return Outcome(
            text=self._decode(ids[:-1] if stop == "eos" else ids),
            token_ids=ids,
            finish_reason=finish,
            stop_reason=stop,
            logprobs=None if logprobs is None else tuple(logprobs),
            num_generated=len(ids),
            num_streamed=len(ids) + self._num_extra,
            server=self._tail.server,
        )
