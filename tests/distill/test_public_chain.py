"""The chain on a public model, cut to seconds on a tiny one: the same commands, and a start of equal bits each time."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

from benchmarks.chain.place import BASES, RECIPES, START, ChainPlace
from benchmarks.chain.side import SIDE
from benchmarks.chain.stages import STAGES, STUDENT_SECOND, job_settings, spec_of
from distill.spec.spec import read_spec
from train.base.models import Shape, new_model, save_model
from train.nano import tokenizer as nano
from train.recipe.recipe import read_recipe
from ttc.config.recipes import overrides

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.numeric


def _base(folder: Path) -> Path:
    tokenizer = nano.build()
    model = new_model(Shape(hidden=16, heads=2, kv_heads=1, head_dim=8, mlp=24), tokenizer, 1)
    save_model(model, tokenizer, folder, torch.bfloat16)
    return folder


def _run(stage: str, base: Path, place: Path, *options: str) -> None:
    command = [sys.executable, "-m", "benchmarks.chain", stage, "--base", str(base), "--out", str(place / "out")]
    command += ["--kept", str(place / "kept"), "--cut", "--limit", "2", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.slow
def test_the_start_cut_to_twenty_steps_has_the_same_digest_on_two_runs(tmp_path: Path) -> None:
    base = _base(tmp_path / "base")
    digests = []
    for name in ("first", "second"):
        _run("sft", base, tmp_path / name)
        row = json.loads((tmp_path / name / "kept" / "sft-1.json").read_text())
        adapter = (tmp_path / name / "kept" / "adapters" / "sft-1" / "adapter_model.safetensors").read_bytes()
        digests.append((row["weights"], adapter))
    assert digests[0] == digests[1]


@pytest.mark.slow
def test_every_stage_of_questions_and_rewards_runs_and_leaves_its_numbers(tmp_path: Path) -> None:
    base = _base(tmp_path / "base")
    for stage in ("sft", "prm", "pools", "search", "search-second", "grpo", "curve", "probe"):
        _run(stage, base, tmp_path)
    kept = tmp_path / "kept"
    arms = json.loads((kept / "search-dev-1.json").read_text())["arms"]
    assert list(arms) == ["majority", "best_of_n", "beam", "dvts", "particle", "auto"]
    assert all(len(arm["right"]) == len(arm["generated"]) == 2 for arm in arms.values())
    assert [len(pool) for pool in json.loads((kept / "pools-dev-1.json").read_text())["arms"]["pool"]["pool"]] == [3, 3]
    figure = [sys.executable, "-m", "benchmarks.chain.figure", "--part", "dev", "--kept", str(kept)]
    subprocess.run([*figure, "--out", str(tmp_path)], cwd=ROOT, check=True)
    assert all((tmp_path / f"chain.{form}").stat().st_size for form in ("svg", "png", "pdf"))
    # what is kept is enough: on another machine the models are made again
    _run("curve", base, tmp_path / "elsewhere", "--kept", str(kept))


def test_every_trained_stage_has_a_recipe_that_binds() -> None:
    for name, base in BASES.items():
        assert base == START or base in BASES
        assert name in STAGES or name in SIDE
        if not name.startswith("distil"):
            (step,) = read_recipe(str(RECIPES / f"{name.removesuffix('-second')}.toml")).steps
            assert step.fields["lora"] <= 8


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("name", [name for name in STAGES if name.startswith("distil")])
def test_every_stage_that_distils_is_a_job_that_binds(tmp_path: Path, name: str, cut: bool) -> None:
    place = ChainPlace(tmp_path / "base", tmp_path / "out", tmp_path / "kept", 1, "dev", 2, cut=cut, kv_bytes=1000)
    for model in ("sft", "prm", "grpo"):
        (place.out / "models" / f"{model}-1").mkdir(parents=True)
    spec = read_spec(spec_of(name), {"student": "a", "seed": "1", **overrides(job_settings(place, name))})
    assert spec.train["lora"] == 8 and spec.limit == (6 if cut else None)
    (teacher,) = spec.teachers
    assert (teacher.scorer is not None) == (name == "distil-search")
    written = tomllib.loads(spec_of(name).read_text()).get("teacher", {}).get("strategy", "direct")
    assert cut or teacher.strategy == ("majority:n=16" if name == STUDENT_SECOND else written)


@pytest.mark.slow
def test_the_side_probe_trains_on_worked_solutions_and_asks_both_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {
        "id": "a",
        "problem": "Tom has 3 bags of 4 apples. How many?",
        "answer": "12",
        "solution": "3*4=<<3*4=12>>12.",
    }
    for name in ("gsm8k_train", "gsm8k_test", "svamp"):
        lines = [
            json.dumps({**row, "id": f"{name}-{number}", "problem": f"{number} {row['problem']}"})
            for number in range(8)
        ]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    monkeypatch.setenv("TTC_DATA", str(tmp_path))
    base = _base(tmp_path / "base")
    for stage in SIDE:
        _run(stage, base, tmp_path)
    first = json.loads((tmp_path / "out" / "gsm8k-worked.jsonl").read_text().splitlines()[0])
    assert first["completion"] == "3*4=12.\n\\boxed{12}"
    labels = json.loads((tmp_path / "kept" / "side-labels-1.json").read_text())
    assert labels["answers"] == 2 * labels["problems"] == 8 and 0 <= labels["right"] <= 8
    arms = json.loads((tmp_path / "kept" / "side-1.json").read_text())["arms"]
    assert list(arms) == [f"{task} {arm}" for task in ("svamp", "gsm8k") for arm in ("public", "start", "pool")]
