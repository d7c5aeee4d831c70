"""Measure the claims of distillation; see the package."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging as transformers_logging

from benchmarks.distill.place import Place, cpu_seconds
from benchmarks.machine import commit
from benchmarks.over_seeds import SEEDS
from ttc.errors import TTCError

CLAIMS: Mapping[str, tuple[str, str]] = {
    "chain": ("chain", "measure"),
    "on_policy": ("arms", "measure"),
    "search": ("search", "measure"),
    "modes": ("modes", "measure"),
    "specialists": ("specialists", "measure"),
    "against_rl": ("against_rl", "measure"),
    "self_test": ("self_test", "measure"),
    "used": ("used", "measure"),
    "control": ("arms", "control"),
}


def main() -> None:
    """Measure seed by seed, saving after each claim; a job that one of its gates refuses is a row with the reason."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--only", nargs="+", choices=list(CLAIMS), default=list(CLAIMS))
    parser.add_argument("--out", type=Path, required=True, help="folder of the models; runs are resumed in it")
    parser.add_argument("--save", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers_logging.disable_progress_bar()
    facts = _facts()
    rows: list[dict[str, Any]] = json.loads(options.save.read_text())["rows"] if options.save.is_file() else []
    for seed in options.seeds:
        for name in options.only:
            if any(row["claim"] == name and row["seed"] == seed for row in rows):
                continue
            found = _measured(name, Place((options.out / f"seed{seed}").resolve(), seed, _log))
            rows.append({"claim": name, "seed": seed, **facts, **found})
            print(json.dumps(rows[-1]), flush=True)
            options.save.write_text(json.dumps({"rows": rows}, indent=1) + "\n")


def _measured(name: str, place: Place) -> dict[str, Any]:
    module, function = CLAIMS[name]
    measure: Callable[[Place], dict[str, Any]] = getattr(
        importlib.import_module(f"benchmarks.distill.{module}"), function
    )
    place.folder.mkdir(parents=True, exist_ok=True)
    began = cpu_seconds()
    try:
        found = measure(place)
    except TTCError as exc:  # a gate that refuses on some seed is a result, and the table says so
        found = {"refused": str(exc)}
    return {**found, "claim_cpu_seconds": round(cpu_seconds() - began, 1)}


def _log(text: str) -> None:
    print(f"[{datetime.now(UTC):%H:%M:%S} {cpu_seconds():.0f}s] {text}", file=sys.stderr, flush=True)


def _facts() -> dict[str, str]:
    """Date and commit, stored in every row to distinguish rows of several runs."""
    found = {"commit": commit(), "date": f"{datetime.now(UTC):%Y-%m-%d}"}
    return {**found, "torch": torch.__version__, "python": sys.version.split()[0], "threads": "1"}


if __name__ == "__main__":
    main()
