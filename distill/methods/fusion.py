"""Thinking-mode fusion: one student that thinks or not, depending on a flag in the conversation.

Qwen3 technical report 2025 (arXiv:2505.09388), section 4.3. Verified answers with thinking and without are mixed into
one data set for `sft`: a thinking answer follows `/think`, or no flag at all (thinking is the default); an answer
without thinking follows `/no_think` and keeps an empty think block, which the student learns to write, or follows the
template's own switch, which has written it already. Some rows have an earlier turn with another flag, since the last
one holds. Obedience is measured before and after (`distill.measure.obedience`). Cost: n answers per problem and mode.
Left out: general chat data, which [mix] adds; budgets, which emerge, and which the method `budget` trains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from distill.data.dataset import room_of
from distill.measure.obedience import Flags, obedience, obedience_names, two_turns
from distill.methods._stages import BaseMethod, check_teachers
from distill.spec.method import Assignment, DistillJob, Method
from distill.spec.sample import Sample, TrainingRow
from distill.spec.spec import JobSpec
from evals.task import Item
from train.base.stage import Setting
from ttc import seeds
from ttc.engines.shared.text import Text
from ttc.errors import ConfigError
from ttc.session.thinking import Thinking

_MODES: Mapping[str, Thinking] = {"think": Thinking(mode="on"), "no_think": Thinking(mode="off")}


def fusion(
    *,
    thinker: str | None = None,
    answerer: str | None = None,
    answers: Literal["own", "thinking"] = "own",
    thinking_share: float = 0.5,
    unflagged: float = 0.3,
    switched: float = 0.3,
    in_system: float = 0.0,
    turns: float = 0.1,
    think_flag: str = "/think",
    no_think_flag: str = "/no_think",
    gap: str = " ",
) -> Method:
    """Mix answers with and without thinking.

    Args:
        thinker: the teacher that answers with thinking; None is every teacher.
        answerer: the teacher that answers without; None is every teacher.
        answers: own asks for answers without thinking; thinking takes those of the thinking answers, free of charge.
        thinking_share: share of rows with thinking.
        unflagged: share of these that have no flag.
        switched: share of the others that use the template's switch instead of the flag.
        in_system: share of flags that go into a system turn.
        turns: share of rows with an earlier turn, where they fit the student's context.
        think_flag: text that asks for thinking.
        no_think_flag: text that asks for no thinking.
        gap: text between a question and its flag.
    """
    shares = {"unflagged": unflagged, "switched": switched, "in_system": in_system, "turns": turns}
    for name, share in shares.items():
        if not 0 <= share <= 1:
            raise ConfigError(f"fusion.{name} must be in [0, 1], got {share}")
    if not 0 < thinking_share < 1:
        raise ConfigError(f"fusion.thinking_share must be in (0, 1), got {thinking_share}: both modes are needed")
    if not think_flag or not no_think_flag or think_flag in no_think_flag:
        raise ConfigError("fusion: both flags must be non-empty, and think_flag must not be part of no_think_flag")
    return _Fusion(thinker, answerer, answers, thinking_share, shares, Flags(think_flag, no_think_flag, gap))


@dataclass(frozen=True, slots=True)
class _Fusion(BaseMethod):
    thinker: str | None
    answerer: str | None
    answers: str
    thinking_share: float
    shares: Mapping[str, float]
    flags: Flags

    def check(self, spec: JobSpec) -> None:
        """See `Method.check`."""
        check_teachers(spec, "fusion")
        names = [teacher.name for teacher in spec.teachers]
        for field, name in (("thinker", self.thinker), ("answerer", self.answerer)):
            if name is not None and name not in names:
                raise ConfigError(f"fusion.{field}: no teacher {name!r} (known: {', '.join(names)})")

    def about(self, job: DistillJob) -> str:
        """See `Method.about`."""
        share = f"{100 * self.thinking_share:g} % of the rows with thinking"
        return f"the student learns to think after {self.flags.think} and not after {self.flags.no_think}, {share}"

    def assignments(self, job: DistillJob) -> Sequence[Assignment]:
        """See `Method.assignments`."""
        answerers = [("think", self.thinker)] + ([("no_think", self.answerer)] if self.answers == "own" else [])
        return [
            job.assign(teacher, domain, thinking=_MODES[label], label=label)
            for label, name in answerers
            for teacher, domain in job.pairs()
            if name in (None, teacher.name)
        ]

    def rows(self, samples: Sequence[Sample], job: DistillJob) -> Sequence[TrainingRow]:
        """See `Method.rows`; too many of a mode are thinned by the seed. Raises ConfigError where one has none."""
        thinking = [s for s in samples if s.label == "think" and s.answer.thinking.strip()]
        plain = [s for s in samples if s.label == "no_think" and not s.answer.thinking.strip()]
        plain = plain if self.answers == "own" else thinking
        for name, side in (("with", thinking), ("without", plain)):
            if not side:
                raise ConfigError(f"fusion: no answer {name} thinking is left; see the funnel in the report")
        odds = self.thinking_share / (1 - self.thinking_share)
        most = {True: round(len(plain) * odds), False: round(len(thinking) / odds)}
        builder = _Builder(self, job, samples)
        return [
            builder.row(sample, thinks)
            for thinks, side in ((True, thinking), (False, plain))
            for sample in _thinned(side, max(most[thinks], 1), job.spec.seed)
        ]

    def measure(self, job: DistillJob, model: Path, setting: Setting) -> Mapping[str, float]:
        """See `Method.measure`: obedience by case, and accuracy in both modes."""
        return obedience(job, model, setting, self.flags, turns=self.shares["turns"] > 0)

    def numbers(self, job: DistillJob) -> Sequence[str]:
        """See `Method.numbers`."""
        return obedience_names(job, self.flags, turns=self.shares["turns"] > 0)


class _Builder:
    """Makes rows; every random choice has its own key, derived from the sample."""

    def __init__(self, method: _Fusion, job: DistillJob, samples: Sequence[Sample]) -> None:
        self._method, self._seed = method, job.spec.seed
        self._text, self._room = Text(job.student), room_of(job.student)
        self._earlier: Sequence[tuple[Item, str]] = [(sample.item, sample.answer.text) for sample in samples]

    def row(self, sample: Sample, thinks: bool) -> TrainingRow:
        """The row of a sample in one of the modes."""
        flags = self._method.flags
        name = "unflagged" if thinks else "switched"
        bare = self._die(sample, thinks, name)
        switch = bare and not thinks
        flag = None if bare else thinks
        in_system = not bare and self._die(sample, thinks, "in_system")
        row = TrainingRow(
            key=sample.prompt,
            messages=tuple(flags.write(sample.item.problem.messages, flag, in_system=in_system)),
            completion=sample.answer.text,
            thinking=None if switch else sample.answer.thinking if thinks else "",
            mode="off" if switch else "auto",
            parents=(sample.key,),
            notes={"mode": "think" if thinks else "no_think", "flag": "switch" if switch else _told(flag)},
            cluster=sample.item.cluster,
        )
        if not bare and not in_system and self._die(sample, thinks, "turns"):
            return self._with_turn(row, sample, thinks)
        return row

    def _with_turn(self, row: TrainingRow, sample: Sample, thinks: bool) -> TrainingRow:
        """The row after an earlier turn: its flag is the opposite of the last one's, or the only one."""
        item, answer = self._earlier[self._number(sample, thinks, "earlier") % len(self._earlier)]
        alone = self._number(sample, thinks, "alone") % 2 == 0
        first, last = (thinks, None) if alone else (not thinks, thinks)
        messages = two_turns(item, answer, sample.item.problem.messages, self._method.flags, first, last)
        length = len(self._text.render(messages, None).token_ids or ()) + len(self._text.encode(sample.text)) + 8
        if length > self._room:
            return row
        return replace(row, messages=tuple(messages), notes={**row.notes, "turns": "2", "flag": _told(last)})

    def _die(self, sample: Sample, thinks: bool, name: str) -> bool:
        return seeds.uniform(self._number(sample, thinks, name), 0) < self._method.shares[name]

    def _number(self, sample: Sample, thinks: bool, purpose: str) -> int:
        return seeds.derive(self._seed, "fusion", purpose, sample.key, str(thinks))


def _thinned(side: Sequence[Sample], most: int, seed: int) -> list[Sample]:
    """At most `most` of the samples, in their order."""
    order = sorted(side, key=lambda sample: seeds.derive(seed, "fusion", "thin", sample.key))
    keys = {sample.key for sample in order[:most]}
    return [sample for sample in side if sample.key in keys]


def _told(flag: bool | None) -> str:
    return "none" if flag is None else "think" if flag else "no_think"
