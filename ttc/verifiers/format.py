"""The form of a text: thinking first and closed, one answer where it belongs, a length, JSON of a schema, repetition.

A target is None or anything; only of an object with a "schema" is that JSON schema read, and then the answer part (the
tag's content, the last fence, or all of it) must be JSON that the schema allows; that runs in a killable worker, since
a schema may hold patterns. The score is the share of the required parts that hold, and the verdict is correct when all
do. Left out: natural-language instructions (`instructions`), the language (`language`), what the answer says.

Args:
    thinking: Whether thinking is required, forbidden, or either.
    answer: Where the one answer must be: in a box, a tag, a hash (####) line, any place that is found, or free; of a
        target with a schema only a tag counts.
    min_chars: Fewest characters of the answer part.
    max_chars: Most characters of the answer part.
    max_repetition: Largest share of word n-grams of the answer part that have occurred before; absent: any.
    ngram: Words of such an n-gram.
    timeout_s: Limit of one check against a schema, in seconds that its worker runs.
    allow_truncated: Whether a text that was cut may pass.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

from ttc.answers import extract
from ttc.answers.extract import answer_start, boxes
from ttc.core import Submission, TargetLike, Verdict
from ttc.errors import ConfigError, MissingExtra
from ttc.verifiers.shared.contract import (
    MAX_S,
    PLAIN_LIMITS,
    Canary,
    Card,
    Clock,
    TargetVerifier,
    by_parts,
    jsonable,
    library,
    unfinished,
)
from ttc.verifiers.workers.pool import Pool, text_pool, without_reply

VERSION = "4"
WORKERS = 8
"""Schemas that are checked at once, so that a few slow ones delay nobody; a worker starts when it is needed."""
Thinking: TypeAlias = Literal["required", "forbidden", "either"]
Place: TypeAlias = Literal["box", "tag", "hash", "any", "free"]

_MARKER = re.compile(r"</?think(?:ing)?>", re.IGNORECASE)
_TAG = re.compile(r"<answer>(?:(?!<answer>|</answer>).)*</answer>", re.DOTALL)
_OPENING_TAG = re.compile(r"</?answer>")
_HASH = re.compile(r"^####[ \t]*\S", re.MULTILINE)


def format(
    *,
    thinking: Thinking = "either",
    answer: Place = "box",
    min_chars: int = 0,
    max_chars: int | None = None,
    max_repetition: float | None = None,
    ngram: int = 4,
    timeout_s: float = 1.0,
    allow_truncated: bool = False,
) -> FormatVerifier:
    """Return the verifier of form."""
    if min_chars < 0 or (max_chars is not None and max_chars < min_chars):
        raise ConfigError("format: needs 0 <= min_chars <= max_chars")
    if ngram < 1 or (max_repetition is not None and not 0 <= max_repetition <= 1):
        raise ConfigError("format: needs 0 <= max_repetition <= 1 and ngram >= 1")
    repeats = None if max_repetition is None else (max_repetition, ngram)
    return FormatVerifier(
        thinking, answer, min_chars, max_chars, repeats, text_pool(WORKERS, timeout_s, "schemas"), allow_truncated
    )


class FormatVerifier(TargetVerifier[Any]):
    """Judges the form; see the module."""

    name = "format"

    def read(self, target: TargetLike) -> Any:
        """The schema of a target that has one, else None."""
        schema = target.get("schema") if isinstance(target, Mapping) else None
        if schema is not None and not isinstance(schema, (dict, bool)):
            raise ConfigError(f"target.schema must be a JSON schema, got {schema!r}"[:300])
        jsonable("schema", schema)
        return schema

    def __init__(
        self,
        thinking: Thinking,
        answer: Place,
        min_chars: int,
        max_chars: int | None,
        repeats: tuple[float, int] | None,
        pool: Pool,
        allow_truncated: bool,
    ) -> None:
        self._thinking, self._answer, self._min, self._max = thinking, answer, min_chars, max_chars
        self._workers = pool
        self._repeats, self._pool, self._allow_truncated = repeats, pool, allow_truncated
        settings = [thinking, answer, min_chars, max_chars, *(repeats or ()), "ny"[allow_truncated]]
        self.version = f"format-{VERSION}-{'-'.join(map(str, settings))} {library('jsonschema')}"
        self.card = self._card()

    async def judge(self, goal: Any, submission: Submission, clock: Clock) -> Verdict:
        """Judge the form of `submission`, `goal` being a schema or None; `parts` tells which requirement holds."""
        if reason := unfinished(submission, self._allow_truncated):
            return Verdict("no_answer", reason=reason)
        parts = {name: float(holds) for name, holds in self._parts(submission).items()}
        if goal is not None:
            if self._answer != "tag":
                del parts["answer"]  # JSON stands in no box
            content = json_part(submission.text, tagged=self._answer == "tag")
            reply = await self._pool.run({"call": "validate", "schema": goal, "text": content})
            clock.waited = reply.waited
            if reply.status != "ok":
                return without_reply(reply)
            parts["schema"] = float(reply.data["valid"])
        return by_parts(parts, "all parts hold")

    def check(self, goal: Any) -> None:
        """Raise ConfigError for what is not a JSON schema, MissingExtra without the package that knows."""
        if goal is not None:
            _check_schema(goal)

    def _card(self) -> Card:
        good = _sample(self._answer, self._min)
        if self._max is not None and len(good) > self._max:
            raise ConfigError(f"format: max_chars={self._max} leaves no room for {good[-20:]!r}")
        thought = "hm" if self._thinking == "required" else ""
        return Card(
            self.name,
            self.version,
            inputs='target: none, or {"schema": a JSON schema}; reads thinking and answer part',
            max_s=MAX_S + self._pool.timeout_s,
            limits=PLAIN_LIMITS,
            partial_credit="the share of the required parts that hold, each part in `parts`",
            correct_when="all parts hold",
            weaknesses=(
                "says nothing about the answer: an empty box or a wrong one has the right form",
                "the thinking is only required to be there, not to make sense",
            ),
            canaries=(
                Canary(None, good, "correct", thinking=thought),
                Canary(None, f"<think>hm {good}", "incorrect", thinking=thought),
            ),
        )

    def _parts(self, submission: Submission) -> dict[str, bool]:
        start = answer_start(submission.text)
        body = "" if start is None else submission.text[start:]
        inside = submission.text[:start] if start is not None else submission.text
        thought = submission.thinking.strip() or _MARKER.sub("", inside).strip()
        allowed = {"required": bool(thought), "forbidden": not thought, "either": True}
        parts = {
            "thinking": allowed[self._thinking],
            "closed": start is not None and _MARKER.search(body) is None,
            "answer": _PLACES[self._answer](body),
            "length": self._min <= len(body.strip()) and (self._max is None or len(body.strip()) <= self._max),
        }
        if self._repeats is not None:
            most, size = self._repeats
            parts["repetition"] = repetition(body, size) <= most
        return parts


_SAMPLES: Mapping[str, str] = {
    "box": r"\boxed{4}", "tag": "<answer>4</answer>", "hash": "#### 4", "any": "A: 4", "free": "",
}  # fmt: skip


def _sample(place: Place, min_chars: int) -> str:
    """The shortest text of the form."""
    answer = _SAMPLES[place]
    padding = "." * (min_chars - len(answer))
    return f"{padding}\n{answer}".strip() if padding else answer


_PLACES: Mapping[str, Callable[[str], bool]] = {
    "box": lambda body: len(boxes(body, 0)) == 1,
    "tag": lambda body: len(_OPENING_TAG.findall(body)) == 2 and _TAG.search(body) is not None,
    "hash": lambda body: len(_HASH.findall(body)) == 1,
    "any": lambda body: extract(body, "math").final is not None,
    "free": lambda _body: True,
}

_EAST = "\u3041-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3"
_WORD = re.compile(rf"[{_EAST}]|[^\W{_EAST}]+")
MAX_CHARS = 200_000
"""Characters in which repetition is looked for."""


def repetition(text: str, size: int) -> float:
    """The share of n-grams of `size` words that have occurred before; 0 for a text with fewer words.

    A word is a run of letters and digits; a character of Chinese, Japanese or Korean is a word of its own. At most the
    first MAX_CHARS characters are read.
    """
    words = _WORD.findall(text[:MAX_CHARS].casefold())
    grams = [tuple(words[i : i + size]) for i in range(len(words) - size + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def _check_schema(schema: Any) -> None:
    try:
        import jsonschema
    except ImportError as exc:
        raise MissingExtra("jsonschema", "verify") from exc
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        kind.check_schema(schema)
    except jsonschema.exceptions.SchemaError as exc:
        raise ConfigError(f"target.schema is not a JSON schema: {exc.json_path}: {exc.message}"[:300]) from exc


def json_part(text: str, *, tagged: bool) -> str:
    """What should be JSON: the content of the last <answer> tag where one is asked for, else the last fence, else all.

    The thinking does not count.
    """
    if tagged and (hit := extract(text, "exact")).method == "tag":
        return hit.final or ""
    body = text[answer_start(text) or 0 :]
    pieces = body.split("```")
    return pieces[-2].removeprefix("json").removeprefix("JSON") if len(pieces) > 2 else body
