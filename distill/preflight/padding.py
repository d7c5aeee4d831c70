"""The student's padding is a token of its own.

Where padding is the end of text, every mask by ids takes the stop token out of the loss, and the student never stops
(open-r1 issue 492 and five reports more). Masks of this toolkit come from lengths; those of whoever trains the student
next, or of a trainer that it is handed to, may not.
"""

from __future__ import annotations

from distill.preflight import Finding, fine, refused
from distill.spec.method import DistillJob
from train.base.models import load_tokenizer
from ttc.engines.shared.text import Text


def padding(job: DistillJob) -> Finding:
    """Look at the student's padding."""
    token, text = load_tokenizer(job.student), Text(job.student)
    pad = token.pad_token_id
    where = f"set pad_token in {job.student}/tokenizer_config.json to a token that no text contains"
    if pad is None:
        return refused("the student's tokenizer names no padding", where)
    if pad in text.eos_ids:
        return refused(f"the student pads with {token.pad_token!r}, which also ends its texts", where)
    return fine(f"the student pads with {token.pad_token!r}")
