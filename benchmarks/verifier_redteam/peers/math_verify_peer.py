"""math-verify as a peer of the red team; run by the python of an environment with math-verify. Imports nothing of ours.

The gold is parsed in `$..$` and the answer from the whole text, as its authors do; its alarms (5 s) are left on.
"""

import json
import logging
import sys

from math_verify import parse, verify

logging.disable(logging.CRITICAL)


def correct(gold, text):
    """Whether math-verify accepts the text."""
    try:
        return bool(verify(parse(f"${gold}$"), parse(text)))
    except Exception:  # a peer's own failure is not an acceptance
        return False


for line in sys.stdin:
    pair = json.loads(line)
    print(json.dumps({"correct": correct(pair["gold"], pair["text"])}), flush=True)
