"""From ledger entries to samples: each verdict is asked for once, kept beside its entry, and joined with the question.

A verifier holds the targets; its name and version key its verdicts, so a newer version judges again. Cost: one verdict
per entry and version.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from distill.generation.ledger import AnswerLedger, LedgerEntry, WorkUnit, units_of
from distill.spec.method import Assignment
from distill.spec.sample import Sample
from distill.spec.teacher import name_of
from evals.task import Item, Task
from ttc.config.choices import PartChoice
from ttc.config.recipes import dump, parse_spec
from ttc.config.registry import VERIFIERS
from ttc.core import Answer, Submission, Verdict, Verifier
from ttc.identity.digests import part_contents
from ttc.verifiers.service.service import Service

_PASSING = ("timeout", "error")
"""No verdict yet: asked again at the next run."""


@dataclass(frozen=True, slots=True)
class Gathered:
    """The samples of some assignments, and the errors of units that failed."""

    samples: Sequence[Sample]
    failed: Sequence[str]


def verifier_of(task: Task, override: str | None) -> PartChoice:
    """The verifier of a task, or the one that a spec names instead."""
    if override is not None:
        return PartChoice.of(VERIFIERS, *parse_spec(override))
    return PartChoice.of(VERIFIERS, task.check.verifier, task.check.params)


def verifier_label(choice: PartChoice, verifier: Verifier) -> str:
    """The key of a verifier's verdicts: name, version, and a digest of parameters and files."""
    settings = [dump(choice.params), list(part_contents(choice).values())]
    return f"{verifier.name} {verifier.version} {name_of(settings)}"


async def gather(ledger: AnswerLedger, assignments: Sequence[Assignment], seed: int, override: str | None) -> Gathered:
    """Join units with their entries and verdicts."""
    samples: list[Sample] = []
    failed: list[str] = []
    for assignment in assignments:
        pairs = list(units_of(assignment, seed))
        entries = {unit.key: entry for unit, entry in ledger.entries(unit for _, unit in pairs)}
        there = [(item, unit, entries[unit.key]) for item, unit in pairs if unit.key in entries]
        failed += [entry.error for _, _, entry in there if entry.answer is None]
        answered = [(item, unit, entry, entry.answer) for item, unit, entry in there if entry.answer is not None]
        verdicts = await _judged(ledger, assignment.domain.task, override, answered)
        samples += [
            _sample(assignment, item, unit, answer, verdict)
            for (item, unit, _, answer), verdict in zip(answered, verdicts, strict=True)
        ]
    return Gathered(samples, failed)


async def _judged(
    ledger: AnswerLedger,
    task: Task,
    override: str | None,
    answered: Sequence[tuple[Item, WorkUnit, LedgerEntry, Answer]],
) -> list[Verdict]:
    """A verdict per answer; new ones are stored, unless asking again may change them."""
    if not answered:
        return []
    choice = verifier_of(task, override)
    verifier = Service(choice.create_verifier())
    label = verifier_label(choice, verifier)
    try:
        targets = [name_of([item.target]) for item, *_ in answered]
        verdicts = [ledger.verdict(row[2], label, target) for row, target in zip(answered, targets, strict=True)]
        places = [place for place, verdict in enumerate(verdicts) if verdict is None]
        new = await asyncio.gather(*(_ask(verifier, answered[place][0], answered[place][3]) for place in places))
    finally:
        await verifier.close()
    new_verdicts = dict(zip(places, new, strict=True))
    ledger.add_verdicts(
        [(answered[i][2], label, targets[i], v) for i, v in new_verdicts.items() if v.status not in _PASSING]
    )
    return [verdict or new_verdicts[place] for place, verdict in enumerate(verdicts)]


async def _ask(verifier: Verifier, item: Item, answer: Answer) -> Verdict:
    return await verifier.verify(item.target, Submission(answer.text, answer.thinking, answer.finish_reason))


def _sample(assignment: Assignment, item: Item, unit: WorkUnit, answer: Answer, verdict: Verdict) -> Sample:
    template = assignment.thinking.template
    return Sample(
        key=unit.key,
        item=item,
        domain=assignment.domain.name,
        teacher=assignment.teacher.name,
        index=unit.index,
        seed=unit.seed,
        answer=answer,
        verdict=verdict,
        label=assignment.label,
        mode="auto" if template is None else ("on" if template else "off"),
    )
