"""Verdicts of the verifier `procedural` on every task of reasoning-gym: its own answers, and adversarial ones.

    python -m benchmarks.procedural_audit --out FILE.json [--count 5] [--task NAME ...]

For each available task, `count` problems are made; their stored answers must be correct, and the same answers hedged
("7 or 5"), wrapped ("x 7") or replaced by nonsense or code must not be. It also reports how often the package's own
scorer gives the full score to the hedged and the wrapped ones (not called where that scorer runs answers as code).
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ttc.core import Submission
from ttc.verifiers.procedural.methods import OURS, REFUSED, THEIRS
from ttc.verifiers.procedural.verifier import Drawn, gym_pool, problems, procedural

SEED = 7
FORMS = {
    "own": "{}",
    "hedged": "{} or 5",
    "wrapped": "x {}",
    "nonsense": "nonsense",
    "code": "__import__('os').getcwd()",
}


def main() -> None:
    """Judge, print one line per task, and save the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--count", type=int, default=5)
    parser.add_argument("--task", nargs="*")
    args = parser.parse_args()
    from reasoning_gym.factory import DATASETS

    names = args.task or [name for name in sorted(DATASETS) if name not in REFUSED]
    pool = gym_pool()
    made = {name: list(problems(name, seed=SEED, count=args.count, pool=pool)) for name in names}
    pool.close()
    judged = asyncio.run(_judged(made))
    tasks = {name: {"method": _method(name), **judged[name], **_package(name, made[name])} for name in names}
    methods = Counter(task["method"] for task in tasks.values())
    result = {
        "reasoning_gym": importlib.metadata.version("reasoning-gym"),
        "problems_per_task": args.count,
        "tasks": len(tasks),
        "methods": dict(methods),
        "refused": dict(REFUSED),
        "own_answers_correct": sum(task["own"] for task in tasks.values()),
        "others_correct": {form: sum(task[form] for task in tasks.values()) for form in FORMS if form != "own"},
        "package_gives_full_score": {
            form: sum(task[f"package_{form}"] or 0 for task in tasks.values()) for form in ("hedged", "wrapped")
        },
        "by_task": tasks,
    }
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({name: value for name, value in result.items() if name != "by_task"}, indent=1))


async def _judged(made: dict[str, list[Drawn]]) -> dict[str, dict[str, int]]:
    verifier = procedural()
    found: dict[str, dict[str, int]] = {}
    try:
        for name, drawn in made.items():
            found[name] = dict.fromkeys(FORMS, 0)
            for form, template in FORMS.items():
                for one in drawn:
                    text = f"<answer>{template.format(one.target['answer'])}</answer>"
                    found[name][form] += (await verifier.verify(one.target, Submission(text))).correct
    finally:
        await verifier.close()
    return found


def _method(name: str) -> str:
    return "ours" if name in OURS else "theirs, guarded" if name in THEIRS else "the stored answer"


def _package(name: str, drawn: Sequence[Drawn]) -> dict[str, int | None]:
    """How many hedged and wrapped answers get the full score from the package; None where it would run them."""
    if name in OURS:
        return {"package_hedged": None, "package_wrapped": None}
    import reasoning_gym

    dataset: Any = reasoning_gym.create_dataset(name, seed=drawn[0].target["seed"], size=10_000)
    counts: dict[str, int | None] = {}
    for form in ("hedged", "wrapped"):
        answers = [(FORMS[form].format(one.target["answer"]), dataset[one.target["index"]]) for one in drawn]
        counts[f"package_{form}"] = sum(_full(dataset, answer, entry) for answer, entry in answers)
    return counts


def _full(dataset: Any, answer: str, entry: Any) -> bool:
    try:
        return bool(dataset.score_answer(answer, entry) >= 1.0)
    except Exception:
        # Its scorers fail in many ways on odd text, which is no full score.
        return False


if __name__ == "__main__":
    main()
