"""Another tree of this project as a peer of the red team: PYTHONPATH=TREE python ttc_peer.py. Given the gold alone."""

import asyncio
import json
import sys

from ttc.core import Submission
from ttc.verifiers.choice import choice
from ttc.verifiers.math import math


async def main():
    """Judge the lines of stdin."""
    verifiers = {"math": math(), "number": math(kind="number"), "choice": choice()}
    for line in sys.stdin:
        pair = json.loads(line)
        verdict = await verifiers[pair["verifier"]].verify(pair["gold"], Submission(pair["text"]))
        print(json.dumps({"correct": verdict.correct, "status": verdict.status}), flush=True)
    for verifier in verifiers.values():
        await verifier.close()


if __name__ == "__main__":
    asyncio.run(main())
