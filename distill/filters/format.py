"""Keep well-formed answers: not empty, no stray markers, with a final answer and the wanted pattern.

Published pipelines find that these filters matter even where answer filters do not (OpenThoughts3, arXiv 2506.04178;
DeepSeek-R1). Markers of thinking inside the thinking or the answer would teach the student to think twice.
"""

from __future__ import annotations

import re

from distill.data.pipeline import Filter, each, placed
from distill.spec.sample import Sample
from ttc.config.values import at_least, counted
from ttc.errors import ConfigError
from ttc.session.thinking import CLOSE, OPEN


@placed(50, usual=True)
def format(*, final: bool = True, pattern: str | None = None, max_chars: int | None = None) -> Filter:
    """Keep well-formed answers.

    Args:
        final: a final answer must have been found in the text.
        pattern: regular expression that must match in the answer, without its thinking.
        max_chars: longest text, thinking included.
    """
    at_least("filter format", 1, max_chars=max_chars)
    try:
        regex = None if pattern is None else re.compile(pattern)
    except re.error as exc:
        raise ConfigError(f"filter format: pattern {pattern!r} is not a regular expression: {exc}") from exc

    def judge(sample: Sample) -> str | None:
        answer = sample.answer
        if not answer.text.strip():
            return "empty answer"
        marker = next((mark for mark in (OPEN, CLOSE) if mark in answer.text or mark in answer.thinking), None)
        if marker is not None:
            return f"stray marker: {marker}"
        if final and answer.final is None:
            return "no final answer"
        if regex is not None and not regex.search(answer.text):
            return f"pattern missing: {pattern}"
        if max_chars is not None and len(sample.text) > max_chars:
            return f"too long: {counted(len(sample.text), 'character')}"
        return None

    return each(judge)
