"""The nouns: what flows between engines, strategies, scorers and verifiers.

    Problem -> engine.render -> Prompt -> session.generate -> Completion -> (scorer) -> strategy -> Answer
    Problem + target + Answer -> verifier -> Record

All values are frozen. Standard library only: importing this module must cost nothing. A strategy and a scorer see a
`Problem` and `Prompt`s, which hold no target; only a verifier is handed one. What compute costs stands in `ttc.usage`,
what engines, scorers and verifiers must do in `ttc.protocols`; all of it is imported from here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from ttc.errors import ConfigError
from ttc.protocols import (
    Engine,
    LogprobEngine,
    PricedScorer,
    Scorer,
    StreamingEngine,
    Verifier,
    WeightSync,
    WholeAnswerScorer,
)
from ttc.usage import Budget, ModelShape, Price, Usage, UsageSink

__all__ = [
    "Answer",
    "Budget",
    "Candidate",
    "Capabilities",
    "Completion",
    "Enforced",
    "Engine",
    "Event",
    "FinishReason",
    "Json",
    "LogprobEngine",
    "Logprobs",
    "Message",
    "ModelShape",
    "Path",
    "Price",
    "PricedScorer",
    "Problem",
    "Prompt",
    "Record",
    "Sampling",
    "Score",
    "Scorer",
    "Status",
    "StreamingEngine",
    "Submission",
    "Target",
    "ThinkState",
    "Usage",
    "UsageSink",
    "Verdict",
    "Verifier",
    "WeightSync",
    "WholeAnswerScorer",
]

Path: TypeAlias = tuple[int, ...]
Json: TypeAlias = Any
Target: TypeAlias = Any
"""What a verifier compares with: a string, or a JSON object that the verifier of the task understands."""
Logprobs: TypeAlias = tuple[float | None, ...]
"""One number per token; None at tokens that were injected rather than sampled."""
FinishReason: TypeAlias = Literal["stop", "length", "abort"]
ThinkState: TypeAlias = Literal["none", "open", "closed"]
Enforced: TypeAlias = Literal["ids", "native", "none"]
Status: TypeAlias = Literal["correct", "incorrect", "no_answer", "unparseable", "timeout", "limit", "error"]


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation; `role` is system, user or assistant."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Problem:
    """What is asked. There is no target here.

    `kind` names the answer kind (`math`, `choice`, `exact`, ...) by which `ttc.answers` extracts and groups final
    answers; the task binds it. `meta` is for reports (level, subject); strategies must not need it.
    """

    id: str
    messages: tuple[Message, ...]
    kind: str = "math"
    meta: Mapping[str, Json] = field(default_factory=dict)


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
        joined = None if self.token_ids is None else self.token_ids + completion.token_ids[:kept]
        return replace(
            self,
            token_ids=joined,
            text=self.text + completion.text,
            path=completion.path,
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


@dataclass(frozen=True, slots=True)
class Score:
    """A scorer's opinion, higher is better; `value` None means no verdict (never 0).

    `steps` are the scores of the single steps, before aggregation.
    """

    value: float | None
    steps: tuple[float, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One complete path a strategy considered: `text` is the answer part, `final` the extracted short answer."""

    path: Path
    text: str
    thinking: str
    final: str | None
    finish_reason: FinishReason
    num_tokens: int
    score: float | None = None
    logprob: float | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """One entry of the trace. `kind`: generate, score, prune, select, note; `data` is JSON."""

    kind: str
    path: Path
    data: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a strategy returns. `final` None means no answer was found, and such an answer never won a vote.

    `finish_reason` is that of the chosen candidate ("length" is never treated as finished); `stop_cause` says why the
    strategy stopped (done, budget, ...); `enforced` says how the thinking budget was held.
    """

    text: str
    final: str | None
    thinking: str = ""
    finish_reason: FinishReason = "stop"
    candidates: tuple[Candidate, ...] = ()
    usage: Usage = field(default_factory=Usage)
    trace: tuple[Event, ...] = ()
    stop_cause: str = "done"
    enforced: Enforced = "none"
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Submission:
    """What a verifier is given: the answer part, the thinking apart from it, and how the text ended."""

    text: str
    thinking: str = ""
    finish_reason: FinishReason = "stop"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verifier returns. Only `correct` counts as right; timeout, limit and error are not "wrong" but no verdict.

    `score` is partial credit in [0, 1] or None without a verdict; `span` is the extracted answer's place in the text.
    """

    status: Status
    score: float | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""
    extracted: str | None = None
    span: tuple[int, int] | None = None
    version: str = ""
    seconds: float = 0.0

    @property
    def correct(self) -> bool:
        """True only for the status `correct`."""
        return self.status == "correct"


@dataclass(frozen=True, slots=True)
class Record:
    """One row at any stage; JSON lines. `error` is set when the problem failed, and then `answer` may be None.

    `verdicts` are those of `answer.candidates`, in their order: what pass@k and the sub-sampled curves are made of.
    """

    problem: Problem
    target: Target = None
    answer: Answer | None = None
    verdict: Verdict | None = None
    verdicts: tuple[Verdict, ...] = ()
    error: str | None = None
    provenance: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine can honour; a request beyond it is refused before it starts.

    `schedule_invariant`: concurrency, batching and resume points cannot change a draw. `think_open` / `think_close` are
    the ids of the markers (empty when the model has none). `handover` is the sentence the model was trained to answer
    after when its thinking is cut (None: the toolkit's default).
    """

    model: str
    max_context: int
    token_ids: bool = True
    logprobs: bool = False
    schedule_invariant: bool = False
    think_open: tuple[int, ...] = ()
    think_close: tuple[int, ...] = ()
    eos_ids: tuple[int, ...] = ()
    handover: str | None = None
    shape: ModelShape | None = None
    max_concurrency: int = 64
