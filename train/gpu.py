"""Train 30 million parameters on one GPU: `python -m train.gpu --out build/gpu-train --results DIR --seed 1`.

Runs the recipe `train/gpu.toml` in pieces: after `--minutes` the run is ended, wherever it is, and the same command
resumes from its last checkpoint; exit status 3 means that there is more to do. Needs torch, transformers and numpy, and
nothing installed: it runs from a bare tree. `--out` keeps checkpoints and models (some GB), `--results` gets the small
files worth keeping, a few hundred kB: metrics, alarms, and at the end per family and level the accuracy before and
after, greedy and sampled, with paired 95 % intervals. `--preset tiny` shows in a minute on a CPU that all of it works.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from evals.tasks.families import FAMILIES, LEVELS
from train.base.models import load_model
from train.base.stage import read_result
from train.base.weights import num_parameters
from train.measure.measure import HeldOut, accuracy, gains
from train.recipe.recipe import read_recipe
from train.recipe.run import RunOptions, run_recipe, stage_folders
from train.registries import make_task, make_verifier
from ttc.config.registry import ENGINES
from ttc.durable import replace_text

MORE = 3
"""Exit status of a piece after which there is more to do."""
_CARRIED = ("metrics.jsonl", "alarms.jsonl", "held_out.jsonl", "done.json")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Preset:
    """The recipe's scale, where it runs, and how many exercises of a family and level are measured."""

    scale: str | None
    device: str
    measured: int


PRESETS = {"gpu": Preset(None, "cuda", 200), "tiny": Preset("tiny", "cpu", 4)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one piece, or all that is left if it fits; returns the exit status."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    preset = PRESETS[options.preset]
    if options.inside:
        _work(options, preset)
        return 0
    options.results.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    command = [sys.executable, "-m", "train.gpu", *(sys.argv[1:] if arguments is None else arguments), "--inside"]
    try:
        status = subprocess.run(command, timeout=60 * options.minutes, check=False).returncode
    except subprocess.TimeoutExpired:  # the child is killed by then
        status = MORE
    _carry(options.out, options.results)
    _log.info("piece of %.0f s ended with status %d", time.monotonic() - began, status)
    return status


def _work(options: argparse.Namespace, preset: Preset) -> None:
    """Train and measure what is still missing."""
    run = options.out / "run"
    torch.set_num_threads(options.threads)
    recipe = read_recipe(str(Path(__file__).with_suffix(".toml")), scale=preset.scale)
    base, trained = run_recipe(recipe, RunOptions(run, options.seed, None, preset.device, options.threads), _log.info)
    before, after = (
        asyncio.run(_answers(Path(result.model), options.out / f"{name}.json", preset, options.seed))
        for name, result in (("before", base), ("after", trained))
    )
    rows: list[dict[str, Any]] = []
    for kind in before:
        first, last = before[kind], after[kind]
        greedy = gains("held_out", first["greedy"], last["greedy"], options.seed)
        sampled_gains = gains("held_out_sampled", first["sampled"], last["sampled"], options.seed)
        rows.append({"kind": kind, **greedy, **sampled_gains})
        _log.info("%s: greedy %.3f -> %.3f", kind, greedy["held_out_before"], greedy["held_out_after"])
    facts = {**_facts(Path(base.model), preset), "seed": options.seed}
    replace_text(options.out / "families.json", json.dumps({**facts, "rows": rows}, indent=1) + "\n")


async def _answers(model: Path, path: Path, preset: Preset, seed: int) -> dict[str, dict[str, list[int]]]:
    """Per family and level 1 or 0 for each exercise, greedy and sampled; `path` keeps what is known already."""
    answers: dict[str, dict[str, list[int]]] = json.loads(path.read_text()) if path.is_file() else {}
    left = [(family, level) for level in LEVELS for family in FAMILIES if f"{family} {level}" not in answers]
    if not left:
        return answers
    engine = ENGINES.load("embedded")(str(model), dtype="float32", device=preset.device)
    try:
        for family, level in left:
            task = make_task(f"families:family={family},level={level}")
            verifier = make_verifier(task)
            held_out = HeldOut(task.items(preset.measured, 0), verifier, task.sampling, seed)
            answered = {
                name: await accuracy(held_out, engine, greedy=name == "greedy") for name in ("greedy", "sampled")
            }
            await verifier.close()
            answers[f"{family} {level}"] = {name: list(map(int, right)) for name, (right, _) in answered.items()}
            replace_text(path, json.dumps(answers))
    finally:
        await engine.close()
    return answers


def _facts(model: Path, preset: Preset) -> dict[str, Any]:
    """Facts about the run and the machine."""
    return {
        "recipe": "train/gpu.toml",
        "parameters": num_parameters(load_model(model, "cpu")),
        "exercises": preset.measured,
        "device": torch.cuda.get_device_name() if preset.device == "cuda" else "cpu",
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def _carry(out: Path, results: Path) -> None:
    """Copy the small files worth keeping."""
    run = out / "run"
    if (out / "families.json").is_file():
        shutil.copy(out / "families.json", results)
    if not (run / "run.json").is_file():
        return
    shutil.copy(run / "run.json", results)
    for folder in stage_folders(run):
        for name in _CARRIED:
            if (folder / name).is_file():
                shutil.copy(folder / name, results / f"{folder.name}-{name}")
        if read_result(folder) is not None:
            _log.info("%s is done", folder.name)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m train.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of checkpoints and models")
    parser.add_argument("--results", type=Path, required=True, help="folder for small results worth keeping")
    parser.add_argument("--seed", type=int, required=True, help="seed of data, weights and rollouts")
    parser.add_argument("--minutes", type=float, default=8.5, help="a piece ends after so long")
    parser.add_argument("--preset", choices=sorted(PRESETS), default="gpu")
    parser.add_argument("--threads", type=int, default=1, help="compute threads on a CPU")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
