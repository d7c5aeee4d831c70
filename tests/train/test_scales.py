"""Every recipe runs on a model of Qwen2.5's form at the scale of a processor, from local copies of its data sets."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from evals.data.sources import DATA
from tests import qwen_like
from train.commands.train import register
from train.recipe.recipe import packaged, read_recipe, scales
from ttc.errors import ConfigError

OWN = {"nano": "makes its own models"}
"""Recipes that start from nothing at every scale."""
ALL_WRONG = {"arithmetic-grpo"}
"""Recipes of a task of their own, whose answers this model never gives."""
RECIPES = sorted(packaged().keys() - OWN.keys())


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    qwen_like.answering(folder / "model")
    qwen_like.data(folder / "data")
    return folder


def command(*words: str) -> int:
    """`ttc train WORDS` in this process."""
    import argparse

    parser = argparse.ArgumentParser()
    register(parser.add_subparsers())
    args = parser.parse_args(["train", *words])
    return int(args.run(args))


def run(home: Path, recipe: str, out: Path, *more: str) -> int:
    return command(
        "run", recipe, "--model", str(home / "model"), "--scale", "cpu", "--seed", "1", "--out", str(out), *more
    )


@pytest.mark.long
@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_runs_at_the_scale_of_a_processor(
    home: Path, tmp_path: Path, recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DATA, str(home / "data"))
    assert run(home, recipe, tmp_path / "run", "--set", "all.steps=2") == 0
    made = json.loads((tmp_path / "run" / "run.json").read_text())
    kinds = [stage["kind"] for stage in made["stages"]]
    for number, kind in enumerate(kinds, start=1):
        assert (tmp_path / "run" / f"{number}-{kind}" / "done.json").is_file()
    learners = {"grpo", "ppo", "agent"} & set(kinds)
    updates = [row for kind in learners for row in rows(tmp_path / "run", kind) if "grad_norm" in row]
    assert bool(updates) == bool(learners and recipe not in ALL_WRONG), "rewards differed, so something was learnt"
    from ttc.engines.shared.text import Text

    text = Text(tmp_path / "run" / "model")
    needed = read_recipe(recipe, scale="cpu").adapt is not None
    assert (text.markers is not None) == needed


def rows(run_folder: Path, kind: str) -> list[dict[str, Any]]:
    files = sorted(run_folder.glob(f"*-{kind}/metrics.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("scale", ["1x24gb", "1x80gb", "8x80gb"])
def test_every_recipe_is_bound_at_every_scale_of_hardware(recipe: str, scale: str) -> None:
    bound = read_recipe(recipe, scale=scale)
    assert bound.steps and "toy:" not in json.dumps([dict(step.fields) for step in bound.steps], default=str)
    for step in bound.steps:
        wanted = scales()[scale].get(step.kind, {})
        assert {name: step.fields[name] for name in wanted} == wanted


def test_a_recipe_that_makes_its_own_models_says_so() -> None:
    for name, why in OWN.items():
        assert why
        with pytest.raises(ConfigError):
            read_recipe(name, scale="huge")


def test_stages_that_are_not_there_leave_numbers_and_the_start(tmp_path: Path) -> None:
    steps = read_recipe("r1", scale="1x80gb").steps
    assert [step.kind for step in steps] == ["sft", "grpo", "sample", "sft", "grpo"]
    assert (steps[3].start, steps[3].fields["rollouts"]) == ("start", "3-sample")
    assert read_recipe("constitutional", scale="cpu").steps[3].fields["judge"] == "start"
    with pytest.raises(ConfigError, match="give --scale nano, or one of cpu"):
        read_recipe("r1")


def test_the_toy_form_of_a_recipe_is_what_it_was() -> None:
    """Numbers of published runs hang on these fields."""
    fields = [dict(step.fields) for step in read_recipe("kimi-k1.5", scale="nano").steps]
    assert fields[3]["leave_out"] == "3-sample" and fields[1]["corpus"].startswith("toy:")
    assert "data" not in fields[1]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["r1", "tulu3"])
def test_a_killed_run_goes_on_and_ends_with_the_same_weights(home: Path, tmp_path: Path, recipe: str) -> None:
    environment = {**os.environ, DATA: str(home / "data")}

    def words(out: Path) -> list[str]:
        given = ["train", "run", recipe, "--model", str(home / "model"), "--scale", "cpu", "--seed", "1"]
        return [sys.executable, "-m", "ttc", *given, "--out", str(out)]

    subprocess.run(words(tmp_path / "whole"), env=environment, check=True, capture_output=True)
    out = tmp_path / "killed"
    for wanted in ("1-sft/checkpoints", "2-*/done.json", "2-*/metrics.jsonl"):
        process = subprocess.Popen(words(out), env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        while process.poll() is None and not list(out.glob(wanted)):
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
    subprocess.run(words(out), env=environment, check=True, capture_output=True)
    first, second = ((tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("whole", "killed"))
    assert first == second


EXAMPLES = Path(__file__).parents[2] / "train" / "recipes" / "examples"


@pytest.mark.parametrize("path", [path for path in sorted(EXAMPLES.glob("*.toml")) if "[[stage]]" in path.read_text()])
@pytest.mark.parametrize("scale", ["cpu", "1x24gb", "1x80gb", "8x80gb"])
def test_every_example_is_bound_at_every_scale_and_says_how_to_run_it(
    home: Path, path: Path, scale: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DATA, str(home / "data"))
    monkeypatch.chdir(EXAMPLES.parents[2])
    steps = read_recipe(str(path), scale=scale).steps
    assert steps
    for step in steps if scale == "cpu" else ():  # the other scales read data sets of the hub
        step.stage.check(True)
    assert f"ttc train run {path.relative_to(EXAMPLES.parents[2])} --model" in path.read_text()


@pytest.mark.long
def test_a_mixture_of_tasks_is_learnt_with_a_curve_for_each(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DATA, str(home / "data"))
    monkeypatch.chdir(EXAMPLES.parents[2])
    assert run(home, str(EXAMPLES / "mixture.toml"), tmp_path / "run", "--set", "ppo.prompts=12") == 0
    steps = [row for row in rows(tmp_path / "run", "ppo") if "reward" in row]
    families = [name for row in steps for name in row if name.startswith("family/")]
    assert set(families) == {"family/words", "family/numbers"}
    assert any("grad_norm" in row for row in steps)
