"""A student whose padding token is its end of text does no harm here.

Where padding is the end of text, every mask by ids takes the stop token out of the loss, and the student never stops
(open-r1 issue 492 and five reports more). Masks of this toolkit come from lengths, so this is no failure; the finding
warns anyone who later trains the student with masks by ids.
"""

from __future__ import annotations

from distill.preflight import Finding, fine
from distill.spec.method import DistillJob
from train.base.models import load_tokenizer
from ttc.engines.shared.text import Text


def padding(job: DistillJob) -> Finding:
    """Look at the student's padding."""
    token, text = load_tokenizer(job.student), Text(job.student)
    pad = token.pad_token_id
    if pad in text.eos_ids:
        return fine(f"the student pads with {token.pad_token!r}, which also ends its texts; masks here go by lengths")
    return fine(f"the student pads with {token.pad_token!r}")
