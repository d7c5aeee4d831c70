"""Student and teacher end a text with the same tokens.

A base student whose end of text differs from its teacher's is taught to never stop: lengths explode and the run
collapses within dozens of steps (ms-swift issue 9526, its own example).
"""

from __future__ import annotations

from distill.preflight import Finding, fine, reads_tokens, refused, skipped, teacher_folders
from distill.spec.method import DistillJob
from ttc.engines.shared.text import Text


def end_of_text(job: DistillJob) -> Finding:
    """Compare the declared end-of-text tokens."""
    if not reads_tokens(job):
        return skipped()
    ours = _ends(Text(job.student))
    for name, folder in teacher_folders(job).items():
        theirs = _ends(Text(folder))
        if theirs != ours:
            return refused(
                f"the student ends a text with {_told(ours)}, {name} with {_told(theirs)}",
                f"set eos_token_id in generation_config.json and eos_token in tokenizer_config.json of {job.student} "
                "to the teacher's, and teach the student to end so by imitation first (method = rejection)",
            )
    return fine(f"all end a text with {_told(ours)}")


def _ends(text: Text) -> frozenset[str]:
    return frozenset(text.decode([token]) for token in text.eos_ids)


def _told(ends: frozenset[str]) -> str:
    return " or ".join(sorted(ends)) or "nothing"
