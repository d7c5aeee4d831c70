"""The files of a chain: its models, rebuilt from adapters where they are missing, and the results kept in git."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.machine import commit
from train.base.adapters import merge_adapter
from train.recipe.adapt import Adaptation, adapted
from ttc.errors import ConfigError

RECIPES = Path(__file__).parent
START = "start"
BASES: Mapping[str, str] = {
    "sft": START, "prm": "sft", "grpo": "sft", "grpo-second": "sft", "distil-search": START, "distil-teacher": START,
    "distil-search-second": "sft", "side-start": START, "side-judge": "side-start",
}  # fmt: skip
"""The model that each stage's adapter was trained from."""


@dataclass(frozen=True, slots=True)
class ChainPlace:
    """One chain: the public model, a folder for large files, a folder for results, and the number of problems.

    `part` and `limit` are the problems of evaluations; with `cut` every stage takes seconds, on any model.
    `kv_bytes` is what an engine may take for keys and values where several stages share a GPU; `commit` is that of the
    code where git cannot report it.
    """

    base: Path
    out: Path
    kept: Path
    seed: int
    part: str
    limit: int
    cut: bool = False
    device: str = "cpu"
    kv_bytes: int | None = None
    commit: str = ""

    def model(self, name: str) -> Path:
        """The folder of a model of the chain, merged from what is kept where it is not here yet."""
        folder = self.out / "models" / f"{name}-{self.seed}"
        if name == START:
            return adapted(self.base, self.out / "models" / START, Adaptation())
        if not folder.is_dir():
            adapter = self.adapter(name)
            if not adapter.is_dir():
                raise ConfigError(f"{adapter} is not there: run the stage {name} first")
            merge_adapter(self.model(BASES[name]), adapter, folder)
        return folder

    def adapter(self, name: str) -> Path:
        """Where a stage's adapter is kept."""
        return self.kept / "adapters" / f"{name}-{self.seed}"

    def keep(self, name: str, adapter: Path) -> str:
        """Keep a stage's adapter, and make its model anew from it; returns the digest of the model's weights."""
        target = self.adapter(name)
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(adapter, target)
        folder = self.out / "models" / f"{name}-{self.seed}"
        shutil.rmtree(folder, ignore_errors=True)
        return merge_adapter(self.model(BASES[name]), target, folder)

    def ttc(self, *arguments: str | Path) -> tuple[str, float]:
        """Run a command of the toolkit; returns what it printed and the seconds it took. Its errors go through."""
        began = time.perf_counter()
        print("ttc", *arguments, file=sys.stderr, flush=True)
        done = subprocess.run(
            [sys.executable, "-m", "ttc", *map(str, arguments)], stdout=subprocess.PIPE, text=True, check=False
        )
        if done.returncode not in (0, 3):  # 3: a gate or a health rule says no, which is a result
            raise ConfigError(f"ttc {arguments[0]} {arguments[1]} ended with {done.returncode}; see above")
        return done.stdout, time.perf_counter() - began

    def write(self, name: str, row: Mapping[str, Any]) -> None:
        """Keep a stage's numbers, with the code and the machine that they were made by."""
        self.kept.mkdir(parents=True, exist_ok=True)
        path = self.kept / f"{name}-{self.seed}.json"
        path.write_text(written({"stage": name, "seed": self.seed, **self._facts(), **row}) + "\n")
        print(f"wrote {path}", file=sys.stderr, flush=True)

    def arms(self, name: str) -> dict[str, Any]:
        """The saved arms of a stage that have the current number of problems."""
        path = self.kept / f"{name}-{self.seed}.json"
        arms = json.loads(path.read_text())["arms"] if path.is_file() else {}
        return {key: arm for key, arm in arms.items() if len(arm["problems"]) == self.limit}

    def _facts(self) -> dict[str, Any]:
        import torch

        machine = {"torch": torch.__version__, "cpus": os.cpu_count(), "threads": os.environ.get("OMP_NUM_THREADS", "")}
        if self.device != "cpu":
            machine["device"] = torch.cuda.get_device_name(self.device)
        return {"commit": self.commit or commit(), "date": f"{datetime.now(UTC):%Y-%m-%d}", **machine}


def written(value: object, indent: str = "") -> str:
    """JSON with a line for every key and none for the items of lists, of which there are thousands."""
    if not isinstance(value, Mapping):
        return json.dumps(value)
    deeper = indent + " "
    lines = [f"{deeper}{json.dumps(key)}: {written(item, deeper)}" for key, item in value.items()]
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}" if lines else "{}"
