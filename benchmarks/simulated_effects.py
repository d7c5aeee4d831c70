"""Ten effects of test-time compute on the simulated reasoner, each with its intervals.

    python -m benchmarks.simulated_effects --json benchmarks/results/simulated_effects.json
    python -m benchmarks.simulated_effects --table benchmarks/results/simulated_effects.json     prints it

Every run goes through the toolkit's own strategies, engine and scorer; nothing is computed separately. Problems are
shared by all runs of a level, so differences are paired, with 95 % intervals over problems. `expected` is a closed form
where there is one. An effect `holds` if the lower bound of each of its differences is above 0, or each of its closed
forms lies in its interval widened to three standard errors.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.effects.adaptive_saves import adaptive_saves
from benchmarks.effects.common import SEED, stamp
from benchmarks.effects.coverage_laws import coverage_laws
from benchmarks.effects.dvts_beats_beam import dvts_beats_beam
from benchmarks.effects.majority_inverts import majority_inverts
from benchmarks.effects.no_universal_winner import no_universal_winner
from benchmarks.effects.over_optimisation import over_optimisation
from benchmarks.effects.particles_scale import particles_scale
from benchmarks.effects.sampling_beats_maximising import sampling_beats_maximising
from benchmarks.effects.search_beats_sampling import search_beats_sampling
from benchmarks.effects.verifier_ceiling import verifier_ceiling

EFFECTS = (
    majority_inverts,
    over_optimisation,
    dvts_beats_beam,
    search_beats_sampling,
    sampling_beats_maximising,
    no_universal_winner,
    coverage_laws,
    verifier_ceiling,
    adaptive_saves,
    particles_scale,
)


def table(result: dict[str, Any]) -> Iterator[str]:
    """The effects of a saved result, in Markdown: what is claimed, and the claim that is nearest to failing."""
    yield "| effect | claims | the claim closest to failing (95 %) |"
    yield "|---|---|---|"
    for effect in result["effects"]:
        least = min(effect["claims"], key=lambda claim: (claim["holds"], _slack(claim)))
        points = f"{least['value']:.3f} ({least['low']:.3f} to {least['high']:.3f})"
        holds = sum(claim["holds"] for claim in effect["claims"])
        yield f"| {effect['effect']} | {holds} of {len(effect['claims'])} hold | {least['claim']}: {points} |"


def _slack(claim: dict[str, Any]) -> float:
    """How far a difference is above 0, in widths of its interval; closed forms come after all differences."""
    difference = " > " in claim["claim"]
    return claim["low"] / max(claim["high"] - claim["low"], 1e-9) if difference else float("inf")


def main() -> None:
    """Run all effects and print, or save, what was seen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=120, help="problems per run (some effects take multiples)")
    parser.add_argument("--only", nargs="*", default=[], help="names of effects, all without")
    parser.add_argument("--json", type=Path, help="where to save the result")
    parser.add_argument("--table", type=Path, help="print the table of a saved result and run nothing")
    args = parser.parse_args()
    if args.table:
        print("\n".join(table(json.loads(args.table.read_text(encoding="utf-8")))))
        return
    results = []
    for make in EFFECTS:
        if args.only and make.__name__ not in args.only:
            continue
        started = time.process_time()
        result = {**make(args.problems).to_json(), "cpu_seconds": round(time.process_time() - started, 1)}
        results.append(result)
        print(f"{'holds' if result['holds'] else 'FAILS'}  {result['effect']}  ({result['cpu_seconds']} s)", flush=True)
        for row in result["runs"]:
            wanted = "" if row["expected"] is None else f"  (closed form {row['expected']:.3f})"
            print(f"    {row['run']:45s} {row['accuracy']:.3f} ({row['low']:.3f} to {row['high']:.3f}){wanted}")
        for claim in result["claims"]:
            if not claim["holds"]:
                print(f"    NOT: {claim['claim']}: {claim['value']:.3f} ({claim['low']:.3f} to {claim['high']:.3f})")
        if args.json:
            saved = {**stamp(), "problems": args.problems, "seed": SEED, "effects": results}
            args.json.write_text(json.dumps(saved, indent=1, allow_nan=True).replace("NaN", "null") + "\n")


if __name__ == "__main__":
    main()
