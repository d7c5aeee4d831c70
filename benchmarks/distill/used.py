"""The student of the chain in use: measured by `ttc eval`, and behind `ttc serve`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.distill.place import Place
from benchmarks.distill.stock import rejection_student
from benchmarks.served import greedy_texts
from evals.tasks.chain import chain

LIMIT = 200


def measure(place: Place) -> dict[str, Any]:
    """Accuracy by `ttc eval`, greedily, and whether the served model answers the first problems alike."""
    model, command = rejection_student(place), (sys.executable, "-m", "ttc")
    out = place.folder / "used"
    asked = [*command, "eval", "--model", str(model), "--task", "chain", "--strategy", "direct", "--baseline", "none"]
    asked += ["--temperature", "0", "--limit", str(LIMIT), "--out", str(out), "--json"]
    done = subprocess.run(asked, capture_output=True, text=True, check=True)
    summary = json.loads(done.stdout.splitlines()[-1])
    return {"ttc_eval": summary["accuracy"], "ttc_serve": _served(model)}


def _served(model: Path) -> dict[str, int]:
    """How many of the first problems the endpoint answers, and answers right."""
    items = chain(count=20).items(None, 0)
    texts = greedy_texts(model, items, 60)
    return {"asked": len(items), "right": sum(text == item.target for text, item in zip(texts, items, strict=True))}
