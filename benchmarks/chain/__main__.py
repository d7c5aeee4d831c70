"""Run stages of the chain; see the package."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.chain.place import ChainPlace
from benchmarks.chain.side import SIDE
from benchmarks.chain.stages import STAGES, is_done
from ttc.errors import TTCError

KEPT = Path(__file__).parents[1] / "results" / "chain"


def main() -> int:
    """Run one stage, or all that have left no numbers yet, in their order."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage", choices=[*STAGES, *SIDE, "all"])
    parser.add_argument("--base", type=Path, required=True, help="folder of the public model: make build/smollm2/...")
    parser.add_argument("--out", type=Path, required=True, help="folder of models and runs; they are resumed in it")
    parser.add_argument("--kept", type=Path, default=KEPT, help="adapters and numbers")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--part", choices=["dev", "test"], default="dev", help="what evaluations ask")
    parser.add_argument("--limit", type=int, default=300, help="problems of an evaluation")
    parser.add_argument("--cut", action="store_true", help="seconds instead of hours, on any model")
    parser.add_argument("--device", default="cpu", help="where all is computed: cpu or cuda")
    parser.add_argument("--kv-bytes", type=int, help="of an engine's keys and values, where stages share a GPU")
    parser.add_argument("--commit", default="", help="of this code, for the numbers, where git is not at hand")
    named = vars(parser.parse_args())
    stage = named.pop("stage")
    place = ChainPlace(**named)
    names = [name for name in STAGES if not is_done(place, name)] if stage == "all" else [stage]
    try:
        for name in names:
            {**STAGES, **SIDE}[name](place)
    except TTCError as exc:
        print(f"error: {exc}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
