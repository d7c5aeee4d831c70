"""One request and its outcome: messages, the prompt they are rendered to, how to draw, and the completion of a draw.

A prompt is also a place in a search tree: a completion makes its child. Standard library only. Import these from
`ttc.core`, with the other nouns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from ttc.errors import ConfigError
from ttc.usage import Usage

__all__ = ["Completion", "FinishReason", "Logprobs", "Message", "Path", "Prompt", "Sampling", "ThinkState"]

Path: TypeAlias = tuple[int, ...]
Logprobs: TypeAlias = tuple[float | None, ...]
"""One number per token; None at tokens that were injected rather than sampled."""
FinishReason: TypeAlias = Literal["stop", "length", "abort"]
ThinkState: TypeAlias = Literal["none", "open", "closed"]


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation; `role` is system, user or assistant."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """Rendered input: a place in the tree and the exact tokens that lead to it.

    `path` addresses the node: the root is (), draw i of a prompt lives at prompt.path + (i,). Everything after
    `rendered_len` ids (`rendered_chars` characters) was generated or injected; thinking control reads only that part,
    so markers in user text are inert. `token_ids` is None on engines that take only text or messages. `logprobs` and
    `certainty` align with `generated_ids` (see `Completion`); `num_waits` counts suppressed ends of thinking so far.
    """

    text: str
    token_ids: tuple[int, ...] | None
    path: Path = ()
    rendered_len: int = 0
    rendered_chars: int = 0
    think_state: ThinkState = "none"
    messages: tuple[Message, ...] = ()
    problem_id: str = ""
    logprobs: Logprobs | None = ()
    certainty: Logprobs | None = ()
    num_waits: int = 0

    @property
    def generated_ids(self) -> tuple[int, ...]:
        """Ids after the rendered part; empty when the engine has no ids."""
        return () if self.token_ids is None else self.token_ids[self.rendered_len :]

    @property
    def generated_text(self) -> str:
        """Text after the rendered part."""
        return self.text[self.rendered_chars :]

    def then(self, completion: Completion) -> Prompt:
        """Return the child prompt that continues after `completion`, at the completion's own path.

        The one rule on terminators: an end-of-sequence token is dropped, everything else that was sampled stays
        (a step delimiter belongs to its step).
        """
        kept = len(completion.token_ids) - completion.num_eos
        return Prompt(  # not `replace`, which takes three times as long: this is done once for every step of a search
            text=self.text + completion.text,
            token_ids=None if self.token_ids is None else self.token_ids + completion.token_ids[:kept],
            path=completion.path,
            rendered_len=self.rendered_len,
            rendered_chars=self.rendered_chars,
            think_state=self.think_state,
            messages=self.messages,
            problem_id=self.problem_id,
            logprobs=_join(self.logprobs, completion.logprobs, kept),
            certainty=_join(self.certainty, completion.certainty, kept),
            num_waits=self.num_waits + completion.num_waits,
        )

    def extend(self, ids: Sequence[int], text: str) -> Prompt:
        """Return the same node with `ids` (and their `text`) appended: injected text, or the same draw resumed.

        The appended ids have no log-probabilities, like injected tokens.
        """
        joined = None if self.token_ids is None else (*self.token_ids, *ids)
        unknown = (None,) * len(ids)
        return replace(
            self,
            token_ids=joined,
            text=self.text + text,
            logprobs=_join(self.logprobs, unknown, len(unknown)),
            certainty=_join(self.certainty, unknown, len(unknown)),
        )


def _join(before: Logprobs | None, new: Logprobs | None, kept: int) -> Logprobs | None:
    return None if before is None or new is None else before + new[:kept]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to draw. `temperature` 0 is greedy; `max_tokens` caps the sampled tokens of one draw (injected excluded).

    A completion stops at the first token after which its text contains a `stop` string, or at one of
    `stop_token_ids`, or at the model's end of sequence; `stop` strings stay in the completion. `seed` keys the
    randomness together with the path and the token position; None only where temperature is 0.
    """

    temperature: float = 0.8
    top_p: float = 1.0
    top_k: int | None = None
    max_tokens: int = 1024
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None
    logprobs: bool = False

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        checks = [
            (math.isfinite(self.temperature) and self.temperature >= 0, "temperature", "a number >= 0"),
            (0 < self.top_p <= 1, "top_p", "in (0, 1]"),
            (self.top_k is None or self.top_k >= 1, "top_k", "None or >= 1"),
            (self.max_tokens >= 1, "max_tokens", ">= 1"),
            (all(self.stop), "stop", "non-empty strings"),
        ]
        for ok, name, rule in checks:
            if not ok:
                raise ConfigError(f"sampling.{name} must be {rule}, got {getattr(self, name)!r}")


@dataclass(frozen=True, slots=True)
class Completion:
    """One sampled continuation.

    `token_ids` is everything appended to the prompt, the terminator included; `text` is what those ids decode to
    without the end-of-sequence token. `injected` are half-open index spans of `token_ids` that were put there by
    thinking control rather than sampled. `logprobs` are nats of the sampled tokens under the model itself
    (temperature 1, before top-p / top-k); `certainty` is the per-token self-certainty KL(uniform || model) in nats.
    Both align with `token_ids` (None at injected positions). `num_waits` counts the ends of thinking that were
    suppressed. `stop_reason` is "eos", the stop string, the stop token id, or None.
    """

    path: Path
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_reason: str | int | None = None
    logprobs: Logprobs | None = None
    certainty: Logprobs | None = None
    injected: tuple[tuple[int, int], ...] = ()
    num_waits: int = 0
    usage: Usage = field(default_factory=Usage)

    @property
    def num_eos(self) -> int:
        """1 when the last id is an end-of-sequence token, else 0."""
        return int(self.stop_reason == "eos")

    @property
    def finished(self) -> bool:
        """Whether the model ended the text itself; a cut by length is not an end."""
        return self.finish_reason == "stop" and self.stop_reason == "eos"
