"""Teachers answer as their authors recommend, or the job says otherwise.

A reasoning model sampled at another temperature than its generation_config.json states may give worse answers, and all
are paid for. Nothing is refused: for a spec without [sampling], the finding says what to put there.
"""

from __future__ import annotations

from distill.preflight import Finding, fine, teacher_folders
from distill.spec.method import DistillJob
from ttc.core import Capabilities
from ttc.engines.shared.text import Text


def sampling(job: DistillJob) -> Finding:
    """Compare what the authors of each teacher state with how it is drawn."""
    if {"temperature", "top_p", "top_k", "min_p", "repetition_penalty"} & set(job.spec.sampling):
        return fine("answers are drawn as [sampling] says")
    for name, folder in teacher_folders(job).items():
        stated = Text(folder).recommended
        as_stated = Capabilities(name, 0, recommended=stated).as_recommended
        if any(job.sampling(domain) != as_stated(job.sampling(domain)) for domain in job.domains):
            settings = ", ".join(f"{key} = {value:g}" for key, value in stated)
            usual = job.sampling(job.domains[0]).temperature
            return fine(
                f"{name} is drawn at temperature {usual:g}; for what its authors recommend set [sampling] {settings}"
            )
    return fine("answers are drawn as the tasks say")
