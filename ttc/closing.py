"""Closing a path: what a strategy may know of it once it grows no more.

Thinking is told from the answer, and the final answer is extracted without a target. A path that was cut, or that ends
inside its thinking, has no final answer, whatever its text holds: truncated is not finished.
"""

from __future__ import annotations

from ttc import answers
from ttc.core import Candidate, Engine, Prompt
from ttc.session.thinking import split_prompt, split_text

__all__ = ["close_path"]


def close_path(
    whole: Prompt, engine: Engine, kind: str, finish_reason: str, score: float | None = None, num_tokens: int = 0
) -> Candidate:
    """Return the candidate of the path that `whole` ends; `num_tokens` is its length where there are no ids.

    `kind` is the answer kind of the problem.
    """
    text, thinking, inside = _split(whole, engine)
    complete = finish_reason == "stop" and not inside
    known = [value for value in whole.logprobs or () if value is not None]
    return Candidate(
        path=whole.path,
        text=text,
        thinking=thinking,
        final=answers.extract(text, kind).final if complete else None,
        finish_reason="stop" if finish_reason == "stop" else "length",
        num_tokens=num_tokens if whole.token_ids is None else len(whole.generated_ids),
        score=score,
        logprob=sum(known) if known else None,
    )


def _split(whole: Prompt, engine: Engine) -> tuple[str, str, bool]:
    """Answer text, thinking text, and whether the path ends inside its thinking."""
    if whole.token_ids is None:
        plain = split_text(whole.generated_text, whole.think_state == "open")
        return plain.answer, plain.thinking, plain.inside
    parts = split_prompt(whole, engine.capabilities)
    return engine.decode(parts.answer), engine.decode(parts.thinking), parts.inside
