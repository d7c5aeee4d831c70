"""The nouns: what flows between engines, strategies, scorers and verifiers.

    Problem -> engine.render -> Prompt -> session.generate -> Completion -> (scorer) -> strategy -> Answer
    Problem + target + Answer -> verifier -> Record

All values are frozen. Standard library only: importing this module must cost nothing. A strategy and a scorer see a
`Problem` and `Prompt`s, which hold no target; only a verifier is handed one. A request and its outcome stand in
`ttc.prompts`, what compute costs in `ttc.usage`, what engines, scorers and verifiers must do in `ttc.protocols`; all of
it is imported from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from ttc.prompts import Completion, FinishReason, Logprobs, Message, Path, Prompt, Sampling, ThinkState
from ttc.protocols import (
    Engine,
    LogprobEngine,
    PricedScorer,
    Scorer,
    Served,
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
    "Served",
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

Json: TypeAlias = Any
Target: TypeAlias = Any
"""What a verifier compares with: a string, or a JSON object that the verifier of the task understands."""
Enforced: TypeAlias = Literal["ids", "native", "none"]
Status: TypeAlias = Literal["correct", "incorrect", "no_answer", "unparseable", "timeout", "limit", "error"]


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
