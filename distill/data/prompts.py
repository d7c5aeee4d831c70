"""Which problems are asked: duplicates, measured ones, and prompts that tell their answer go before anything is spent.

Two detectors (`evals.data.decontamination`): equal texts, and a shared run of n words. What every prompt of a task
shares, such as an instruction, is set aside first, since a run of words that all prompts have tells nothing. Every
dropped problem keeps its reason with the matched text. Left out: paraphrases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evals.data.decontamination import answer_leaks, normalised, overlaps, own_texts, prompt_text
from evals.task import Item


@dataclass(frozen=True, slots=True)
class Prompts:
    """The problems that stay, and the dropped ones: (id, reason), the reason as in `distill.data.pipeline`."""

    items: Sequence[Item]
    dropped: Sequence[tuple[str, str]]


def clean_prompts(items: Sequence[Item], measured: Sequence[Sequence[Item]], *, n: int = 13) -> Prompts:
    """Drop problems that should not be asked.

    Args:
        items: the training problems of one domain.
        measured: the problems of every task that something is measured on, task by task.
        n: words of a shared run that count as the same text.
    """
    reasons: dict[int, str] = {}
    for held_out in measured:
        texts = own_texts([*items, *held_out])
        for overlap in overlaps(texts[: len(items)], texts[len(items) :], n=n):
            name = held_out[overlap.held_out].problem.id
            reasons.setdefault(overlap.train, f"measured ({overlap.how}): {name}: {overlap.shared[:80]}")
    leaks = {leak.problem_id: leak.shared for leak in answer_leaks(items)}
    first: dict[str, str] = {}
    for place, item in enumerate(items):
        same = first.setdefault(normalised(prompt_text(item)), item.problem.id)
        if same != item.problem.id:
            reasons.setdefault(place, f"duplicate: {same}")
        if item.problem.id in leaks:
            reasons.setdefault(place, f"tells its answer: {leaks[item.problem.id][:80]}")
    left = [item for place, item in enumerate(items) if place not in reasons]
    return Prompts(left, [(items[place].problem.id, reasons[place]) for place in sorted(reasons)])
