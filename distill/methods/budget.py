"""Budget-conditioned distillation: a student that thinks about as long as it is told to, and briefly when it is not.

BARD (2025, arXiv:2511.01470) trains on traces compressed to several budgets. Here every verified trace is assigned to
the budget nearest to its length, within `tolerance`, and the question is followed by that budget; the shortest right
trace of each problem is learnt without a budget. Lengths are ids of the student's own tokenizer inside the think block.
Traces cut to a budget are not used: students trained on them write more after the think block instead. Obedience is
measured: mean thinking length over budget, and accuracy, per budget. Cost: n answers per problem, and as many again per
budget where the teacher is asked to keep it. Left out: rewriting traces; reinforcing fidelity to the budget (`train`'s
shaping parts do that).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from distill.data.pipeline import read_selection
from distill.measure.obedience import Variant, ask_all, measured_items
from distill.methods._stages import BaseMethod, check_teachers
from distill.spec.method import Assignment, DistillJob, Domain, Method
from distill.spec.sample import Sample, TrainingRow, row_of
from distill.spec.spec import JobSpec
from evals.task import Item
from train.base.stage import Setting
from ttc.core import Message
from ttc.engines.shared.text import Text
from ttc.errors import ConfigError
from ttc.session.thinking import Thinking

_ON = Thinking(mode="on")


def budget(
    *,
    budgets: tuple[int, ...],
    instruction: str = " Think for about {budget} tokens.",
    tolerance: float = 0.15,
    per_budget: int = 1,
    shortest: bool = True,
    ask_teacher: bool = False,
) -> Method:
    """Teach lengths of thinking.

    Args:
        budgets: lengths of thinking in tokens, such as [64, 128, 256].
        instruction: what follows the question; {budget} stands for the number.
        tolerance: share by which a trace may miss its budget, and by which the student's mean length may.
        per_budget: most rows per problem and budget, the nearest in length first.
        shortest: also learn the shortest right trace of each problem, without a budget.
        ask_teacher: ask the teacher for each budget too, n answers each.
    """
    if not budgets or any(value < 1 for value in budgets) or len(set(budgets)) < len(budgets):
        raise ConfigError(f"budget.budgets must be different numbers of at least 1, got {list(budgets)}")
    if not 0 < tolerance < 1 or per_budget < 1:
        raise ConfigError(f"budget: needs 0 < tolerance < 1 and per_budget >= 1, got {tolerance} and {per_budget}")
    if "{budget}" not in instruction:
        raise ConfigError(f"budget.instruction must contain {{budget}}, got {instruction!r}")
    return _Budget(tuple(sorted(budgets)), instruction, tolerance, per_budget, shortest, ask_teacher)


@dataclass(frozen=True, slots=True)
class _Budget(BaseMethod):
    budgets: tuple[int, ...]
    instruction: str
    tolerance: float
    per_budget: int
    shortest: bool
    ask_teacher: bool

    def check(self, spec: JobSpec) -> None:
        """See `Method.check`."""
        check_teachers(spec, "budget")
        per_prompt = read_selection(spec.select).per_prompt
        if per_prompt < spec.n:
            raise ConfigError(
                f"budget: selection would keep {per_prompt} of {spec.n} answers to a problem, before their lengths are "
                f"looked at: set select.per_prompt = {spec.n}"
            )

    def about(self, job: DistillJob) -> str:
        """See `Method.about`."""
        sizes = ", ".join(map(str, self.budgets))
        return f"the student learns to think for about {sizes} tokens when told so, and briefly when not"

    def assignments(self, job: DistillJob) -> Sequence[Assignment]:
        """See `Method.assignments`."""
        plain = [job.assign(teacher, domain, thinking=_ON) for teacher, domain in job.pairs()]
        by_budget = [
            job.assign(teacher, self._asking(domain, size), thinking=_ON, label=f"budget-{size}")
            for teacher, domain in job.pairs()
            for size in (self.budgets if self.ask_teacher else ())
        ]
        return plain + by_budget

    def rows(self, samples: Sequence[Sample], job: DistillJob) -> Sequence[TrainingRow]:
        """See `Method.rows`; raises ConfigError, with the lengths found, when none is near a budget."""
        text = Text(job.student)
        lengths = {sample.key: len(text.encode(sample.answer.thinking)) for sample in samples}
        groups: dict[tuple[str, int], list[Sample]] = {}
        for sample in samples:
            size = min(self.budgets, key=lambda size: abs(lengths[sample.key] - size))
            if abs(lengths[sample.key] - size) <= self.tolerance * size:
                groups.setdefault((sample.prompt, size), []).append(sample)
        for size in self.budgets:
            if not any(group == size for _, group in groups):
                ordered = sorted(lengths.values())
                span = f"from {ordered[0]} to {ordered[-1]} tokens" if ordered else "nowhere"
                raise ConfigError(f"budget: no right trace is within {self.tolerance:g} of {size}; they are {span}")
        originals = {f"{d.name}/{item.problem.id}": item for d in job.domains for item in d.items}
        rows = []
        for (prompt, size), group in groups.items():
            nearest = sorted(group, key=lambda sample: (abs(lengths[sample.key] - size), sample.key))
            rows += [self._row(sample, originals[prompt], size) for sample in nearest[: self.per_budget]]
        if self.shortest:
            rows += [self._row(sample, originals[sample.prompt], None) for sample in _shortest(samples, lengths)]
        return rows

    def measure(self, job: DistillJob, model: Path, setting: Setting) -> Mapping[str, float]:
        """See `Method.measure`: length over budget and accuracy per budget; `obedience`, the share of budgets kept."""
        items = measured_items(job)
        if not items:
            return {}
        questions = {
            str(size): [(task, Variant(item, self._told(item, size), _ON)) for task, item in items]
            for size in self.budgets
        }
        numbers: dict[str, float] = {}
        hits = []
        for name, replies in ask_all(model, job, setting, questions).items():
            ratio = sum(reply.num_thinking for reply in replies) / len(replies) / int(name)
            numbers[f"budget_{name}_used"] = ratio
            numbers[f"budget_{name}_accuracy"] = sum(reply.right for reply in replies) / len(replies)
            hits.append(abs(ratio - 1) <= self.tolerance)
        return {"obedience": sum(hits) / len(hits), **numbers}

    def numbers(self, job: DistillJob) -> Sequence[str]:
        """See `Method.numbers`."""
        by_size = [f"budget_{size}_{what}" for size in self.budgets for what in ("used", "accuracy")]
        return ("obedience", *by_size) if measured_items(job) else ()

    def _told(self, item: Item, size: int) -> list[Message]:
        *before, last = item.problem.messages
        return [*before, Message(last.role, last.content + self.instruction.replace("{budget}", str(size)))]

    def _asking(self, domain: Domain, size: int) -> Domain:
        """The domain with the budget behind every question."""
        items = [
            replace(item, problem=replace(item.problem, messages=tuple(self._told(item, size))))
            for item in domain.items
        ]
        return replace(domain, items=items)

    def _row(self, sample: Sample, original: Item, size: int | None) -> TrainingRow:
        messages = original.problem.messages if size is None else tuple(self._told(original, size))
        return replace(row_of(sample), messages=messages, notes={"budget": "none" if size is None else str(size)})


def _shortest(samples: Sequence[Sample], lengths: Mapping[str, int]) -> list[Sample]:
    """The shortest trace of every problem."""
    best: dict[str, Sample] = {}
    for sample in samples:
        other = best.get(sample.prompt)
        if other is None or (lengths[sample.key], sample.key) < (lengths[other.key], other.key):
            best[sample.prompt] = sample
    return list(best.values())
