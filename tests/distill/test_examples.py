"""Every example is a job or a recipe that binds, starts from what another example makes, and names how to run it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import distill
from distill.commands.distill import _training
from distill.plan.resolve import resolve
from distill.spec.spec import read_spec
from evals.data.sources import DATA
from tests import qwen_like
from train.recipe.recipe import read_recipe
from train.registries import make_task
from ttc.config.recipes import load_toml

EXAMPLES = sorted((Path(distill.__file__).parent / "examples").glob("*.toml"))
JOBS = [path for path in EXAMPLES if "method" in load_toml(path)]
RECIPES = [path for path in EXAMPLES if path not in JOBS]

SERVED = {"deepseek-reasoner"}
MODELS = {"Qwen/Qwen3-8B"}


def made() -> set[str]:
    """The model folders that the commands in the examples leave."""
    texts = [path.read_text() for path in EXAMPLES]
    outs = {text.split("--out ")[1].split()[0] for text in texts if "--out " in text}
    return {f"{out}/model" for out in outs}


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_a_job_binds_and_starts_from_models_of_the_hub_or_those_that_other_examples_make(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DATA, str(qwen_like.data(tmp_path)))
    spec = read_spec(path, {})
    assert f"ttc distill run distill/examples/{path.name}" in path.read_text()
    models = {spec.student, *(teacher.model for teacher in spec.teachers if teacher.model is not None)}
    assert {name for name in models if not name.startswith("Qwen/")} <= made() | SERVED
    for domain in spec.domains:
        assert domain.held_out is not None
        learnt = {item.problem.messages for item in make_task(domain.task).items(50, 0)}
        measured = {item.problem.messages for item in make_task(domain.held_out).items(50, 0)}
        assert not learnt & measured


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_binds_and_says_what_it_deviates_in(path: Path) -> None:
    recipe = read_recipe(str(path))
    assert "eviation" in recipe.about
    assert recipe.steps


@pytest.mark.parametrize("name", ["traces", "on_policy-8b"])
def test_an_example_of_the_hub_is_planned_with_a_small_model_in_its_place(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DATA, str(qwen_like.data(tmp_path / "data")))
    small = str(qwen_like.model(tmp_path / "model"))
    path = next(path for path in JOBS if path.stem == name)
    spec = read_spec(path, {"student": small, "limit": 16})
    teachers = [replace(one, model=small) if one.model in MODELS else one for one in spec.teachers]
    plan = resolve(replace(spec, teachers=tuple(teachers)), tmp_path / "job")
    assert sum(len(prompts.items) for prompts in plan.prompts.values()) == 16
    text = "\n".join(_training(plan))
    assert "B a device" in text and "steps" in text
