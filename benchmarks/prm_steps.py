"""Process reward models on labelled steps, and the agreement of labels by rollouts with exact ones.

    python -m benchmarks.prm_steps --data bigbench_mistake.jsonl.gz [--save FILE.json]

`embedded`: paths of the packaged model on held-out arithmetic, every step labelled exactly, scored by the packaged
reward model; the threshold is fitted on half of the problems. `bigbench_mistake`: all rows unchanged, in domains
(brackets, sorting, shuffles) for which the packaged reward model was never trained: a lower bound, not a claim.
`rollouts`: labels of embedded paths by 8 completions per step against the exact ones. One thread; no figure depends on
time.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from evals.data.steps import read_labelled
from evals.numbers.step_metrics import Judged, ranking
from ttc.cli.cli import main as ttc

PROBLEMS, DRAWS = 250, 4
ROLLOUT_PROBLEMS, ROLLOUTS = 20, 8


def told(*arguments: str) -> dict[str, Any]:
    """What a `ttc steps eval` prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = ttc(["steps", "eval", *arguments, "--threshold", "fit", "--json"])
    if code:
        raise SystemExit(code)
    return json.loads(out.getvalue())  # type: ignore[no-any-return]


def rollouts() -> dict[str, Any]:
    """Exact labels and shares of rollouts, step by step."""
    common = ["--data", "arithmetic", "--limit", str(ROLLOUT_PROBLEMS), "--n", "2"]
    with tempfile.TemporaryDirectory() as folder:
        files = {name: Path(folder) / f"{name}.jsonl" for name in ("exact", "rollouts")}
        for name, file in files.items():
            ttc(["steps", "label", *common, "--checker", name, "--rollouts", str(ROLLOUTS), "--out", str(file)])
        exact, shares = (read_labelled(file) for file in files.values())
    pairs = [
        (right, share)
        for one, other in zip(exact, shares, strict=True)
        for right, share in zip(one.labels, other.labels, strict=True)
        if right is not None and share is not None
    ]
    hard = sum((share > 0) == (right > 0) for right, share in pairs)
    judged = [Judged("steps", "steps", tuple(right for right, _ in pairs), tuple(share for _, share in pairs))]
    return {
        "solutions": len(exact),
        "steps": len(pairs),
        "rollouts_per_step": ROLLOUTS,
        "hard_agreement": hard / len(pairs),
        "auc_of_shares": ranking(judged),
        "mean_share_where_right": _mean([share for right, share in pairs if right]),
        "mean_share_where_wrong": _mean([share for right, share in pairs if not right]),
    }


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="FILE")
    parser.add_argument("--limit", type=int, default=None, help="rows of bigbench_mistake (default: all)")
    parser.add_argument("--save", type=Path, metavar="FILE.json")
    args = parser.parse_args()
    limit = [] if args.limit is None else ["--limit", str(args.limit)]
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "embedded": lambda: told("--data", "arithmetic", "--limit", str(PROBLEMS), "--n", str(DRAWS)),
        "rollouts": rollouts,
        "bigbench_mistake": lambda: told("--data", str(args.data), *limit),
    }
    found: dict[str, Any] = {}
    for name, part in parts.items():
        found[name] = part()
        print(json.dumps({name: found[name]}, indent=1), flush=True)
        if args.save:
            args.save.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
