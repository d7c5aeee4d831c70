"""Prompts and answers fit every model's context.

Too short a context silently cuts answers, or fails after hours at the longest prompt.
"""

from __future__ import annotations

from pathlib import Path

from distill.preflight import Finding, fine, folders, refused
from distill.spec.method import DistillJob
from evals.data.decontamination import prompt_text
from train.base.models import load_tokenizer
from ttc.engines.shared.shape import positions, read_config
from ttc.engines.shared.text import Text

_LONGEST = 8
"""Prompts per domain that are rendered: those with the most characters."""


def context(job: DistillJob) -> Finding:
    """Compare the longest prompts plus the cap of answers with the models' contexts."""
    smallest = None
    for name, folder in folders(job).items():
        room = _room(folder)
        for domain in job.domains:
            longest = sorted(domain.items, key=lambda item: -len(prompt_text(item)))[:_LONGEST]
            text, cap = Text(folder), job.sampling(domain).max_tokens
            sizes = [len(text.render(i.problem.messages, job.spec.thinking.template).token_ids or ()) for i in longest]
            if max(sizes) + cap > room:
                return refused(
                    f"{name} holds {room} tokens; a prompt of {domain.name} takes {max(sizes)}, its answer up to {cap}",
                    f"set sampling.max_tokens to {max(room - max(sizes), 1)} or less, or take a model that holds more",
                )
            spare = room - max(sizes) - cap
            smallest = spare if smallest is None else min(smallest, spare)
    return fine(f"prompts and answers fit, with {smallest} tokens to spare")


def _room(folder: Path) -> int:
    """The smaller limit of weights and tokenizer; a folder without a config holds only a tokenizer."""
    sizes = [int(load_tokenizer(folder).model_max_length)]
    if (folder / "config.json").is_file():
        config = read_config(folder)
        sizes += [positions(config)] if "max_position_embeddings" in config else []
    return min(sizes)
