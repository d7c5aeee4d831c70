"""Special tokens have the same roles for student and teacher.

The map from ids to bytes can be equal while one model takes another token for its beginning, its padding or its think
markers: then prompts and masks differ though every id is known ("Revisiting on-policy distillation", 2026).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distill.preflight import Finding, fine, reads_tokens, refused, skipped, teacher_folders
from distill.spec.method import DistillJob
from train.base.models import load_tokenizer
from ttc.engines.shared.text import Text


def special_tokens(job: DistillJob) -> Finding:
    """Compare the roles."""
    if not reads_tokens(job):
        return skipped()
    ours = _roles(job.student)
    for name, folder in teacher_folders(job).items():
        theirs = _roles(folder)
        for role, token in ours.items():
            if theirs[role] != token:
                return refused(
                    f"{role} is {token!r} to the student and {theirs[role]!r} to {name}",
                    f"set it to one token in tokenizer_config.json of {job.student} and {folder}",
                )
    return fine(f"all have the same {', '.join(ours)}")


def _roles(folder: Path) -> Mapping[str, Any]:
    tokenizer, text = load_tokenizer(folder), Text(folder)
    return {
        "bos_token": tokenizer.bos_token,
        "eos_token": tokenizer.eos_token,
        "unk_token": tokenizer.unk_token,
        "the start of thinking": text.think_open,
        "the end of thinking": text.think_close,
    }
