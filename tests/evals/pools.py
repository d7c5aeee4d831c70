"""Records with known pools, for tests of summaries and comparisons."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ttc.core import Answer, Candidate, FinishReason, Message, Path, Problem, Record, Usage, Verdict

TOKENS = 10
SCORED = 12
FLOPS = 1e6


def make_record(
    name: str,
    finals: Sequence[str | None],
    *,
    chosen: int | None = 0,
    target: str = "1",
    scores: Sequence[float | None] | None = None,
    paths: Sequence[Path] | None = None,
    cut: bool = False,
    cluster: str | None = None,
    session: int = 1,
    at_s: float = 1.0,
    difficulty: str | None = None,
) -> Record:
    """A problem whose candidates gave `finals`; each draw cost TOKENS, SCORED when scored, and FLOPS."""
    draws = [
        Candidate(
            path=paths[i] if paths else (i,),
            text="" if final is None else f"\\boxed{{{final}}}",
            thinking="",
            final=final,
            finish_reason="stop" if final is not None else "length",
            num_tokens=TOKENS,
            score=scores[i] if scores else None,
        )
        for i, final in enumerate(finals)
    ]
    verdicts = tuple(Verdict("correct" if final == target else "incorrect") for final in finals)
    best = None if chosen is None else draws[chosen]
    reason: FinishReason = "length" if cut or best is None else "stop"
    answer = Answer(
        text=best.text if best else "",
        final=best.final if best else None,
        finish_reason=reason,
        candidates=tuple(draws),
        usage=Usage(
            generated=TOKENS * len(draws),
            scored=SCORED * len(draws) if scores else 0,
            calls=len(draws),
            flops=FLOPS * len(draws),
        ),
    )
    return Record(
        problem=Problem(name, (Message("user", name),), "number"),
        target=target,
        answer=answer,
        verdict=verdicts[chosen] if chosen is not None else Verdict("no_answer"),
        verdicts=verdicts,
        provenance={"cluster": cluster or name, "session": session, "at_s": at_s, "difficulty": difficulty},
    )


def failed(name: str) -> Record:
    """A problem that failed."""
    return Record(
        Problem(name, (Message("user", name),), "number"),
        target="1",
        error="PromptTooLong: 5",
        provenance={"session": 1, "at_s": 0.5},
    )


def mcnemar(only_first: int, only_second: int) -> float:
    """The exact two-sided p-value when so many problems were solved by one run and not by the other."""
    num = only_first + only_second
    tail = sum(math.comb(num, i) for i in range(min(only_first, only_second) + 1))
    return min(1.0, 2 * tail / (1 << num))
