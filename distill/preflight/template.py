"""Student and teacher render the job's prompts alike.

A teacher that is shown another prompt than the student judges answers to another question (tinker-cookbook issues 796
and 797: 0.29 nats per token of bias, from its own README). Rendered are the first problem of every domain and a
conversation of two turns.
"""

from __future__ import annotations

from collections.abc import Iterator

from distill.preflight import Finding, fine, reads_tokens, refused, skipped, teacher_folders
from distill.spec.method import DistillJob
from ttc.core import Message
from ttc.engines.shared.text import Text
from ttc.errors import ConfigError


def template(job: DistillJob) -> Finding:
    """Compare the rendered prompts; the student's template must be there in any case."""
    student, thinking = Text(job.student), job.spec.thinking.template
    try:
        ours = [student.render(messages, thinking).text for messages in _asked(job)]
    except ConfigError as exc:
        return refused(str(exc), f"put a chat_template.jinja into {job.student}, the teacher's own if need be")
    if not reads_tokens(job):
        return skipped()
    for name, folder in teacher_folders(job).items():
        try:
            theirs = [Text(folder).render(messages, thinking).text for messages in _asked(job)]
        except ConfigError as exc:
            return refused(f"{name}: {exc}", f"copy chat_template.jinja of {job.student} into {folder}")
        for first, second in zip(ours, theirs, strict=True):
            if first != second:
                at = next((i for i, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]), 0)
                return refused(
                    f"the student is shown {first[max(at - 20, 0) : at + 30]!r} where {name} is shown "
                    f"{second[max(at - 20, 0) : at + 30]!r}",
                    f"copy chat_template.jinja of {folder} into {job.student}, and teach it by imitation first",
                )
    return fine("all render the prompts alike")


def _asked(job: DistillJob) -> Iterator[tuple[Message, ...]]:
    for domain in job.domains:
        yield domain.items[0].problem.messages
    first = job.domains[0].items[0].problem.messages
    yield (*first, Message("assistant", "7"), *(message for message in first if message.role != "system"))
