"""Generation stops where the template ends a turn.

A model whose generation_config.json lacks the token with which its template ends a turn does not stop after an answer:
its samples are cut at the limit, and its student inherits that (open-r1 pull requests 604 and 663).
"""

from __future__ import annotations

from distill.data.dataset import turn_end
from distill.preflight import Finding, fine, folders, refused
from distill.spec.method import DistillJob
from ttc.engines.shared.text import Text


def stop_tokens(job: DistillJob) -> Finding:
    """Compare the end of a turn with the stop tokens, for all models that are here."""
    for name, folder in folders(job).items():
        text, end = Text(folder), turn_end(folder)
        if not text.eos_ids:
            fix = f"name eos_token_id in {folder}/generation_config.json"
            return refused(f"{name} names no token that ends a text", fix)
        if end and end[0] not in text.eos_ids:
            ending = text.decode(end[:1])
            return refused(
                f"the template of {name} ends a turn with {ending!r}, and generation does not stop there",
                f"add {end[0]} to eos_token_id in {folder}/generation_config.json",
            )
    return fine("generation stops where templates end a turn")
