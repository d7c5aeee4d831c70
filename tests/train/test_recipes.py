"""Packaged recipes are bound and checked at nano scale, and the one with most kinds of stages runs from end to end."""

import pytest

from train.base.stage import read_result
from train.measure.retention import read_kept
from train.recipe.recipe import packaged, read_recipe
from train.recipe.run import RunOptions, run_recipe, stage_folders

SCALES = {name: "nano" if "nano" in path.read_text() else None for name, path in packaged().items()}
NAMED = {"r1-zero", "r1", "dapo", "dr-grpo", "kimi-k1.5", "qwen3-fusion", "tulu3", "qwen2.5", "instructgpt",
         "constitutional", "iterative-dpo", "async-agentic", "nano", "math-shepherd", "ttrl", "self-rewarding",
         "tree-rl", "generative-verifier"}  # fmt: skip


def test_the_recipes_that_are_promised_are_there():
    assert set(packaged()) >= NAMED


@pytest.mark.long
@pytest.mark.parametrize("name", SCALES)
def test_at_its_smallest_scale_a_recipe_starts_from_nothing_and_no_stage_needs_a_file_of_the_user(name):
    has_model = False
    for step in read_recipe(name, scale=SCALES[name]).steps:
        step.stage.check(has_model)
        assert "data" not in step.fields
        has_model = True


@pytest.mark.parametrize("name", SCALES)
def test_stages_of_a_run_that_are_named_come_before_and_make_what_is_read(name):
    makes = {"rollouts": {"sample", "revise", "feedback", "grpo"}, "leave_out": {"sample"}, "judge": None,
             "critic": {"reward_model"}, "reference": None, "verifier_lm": None,
             "reward_model": {"reward_model"}, "process_reward": {"prm"}}  # fmt: skip
    before: list[str] = []
    for number, step in enumerate(read_recipe(name, scale=SCALES[name]).steps, start=1):
        for field, kinds in makes.items():
            given = step.fields.get(field, ())
            for place in (given,) if isinstance(given, str) else given:
                if field == "critic" and place in ("copy", "head"):
                    continue
                assert place in before and (kinds is None or place.partition("-")[2] in kinds)
        before.append(f"{number}-{step.kind}")


@pytest.mark.slow
def test_constitutional_ai_makes_a_model_polite_and_harmless_without_a_label(tmp_path):
    recipe = read_recipe("constitutional", scale="nano")
    run_recipe(recipe, RunOptions(tmp_path / "run", 3, None, "cpu", 1), lambda text: None)
    results = {folder.name: read_result(folder) for folder in stage_folders(tmp_path / "run")}
    assert results["2-revise"].metrics["good_gain_low"] > 0.3
    assert results["5-feedback"].metrics["agreement_gain_low"] > 0.1
    assert results["6-reward_model"].metrics["ranked_mean_gain_low"] > 0.2
    manners = [row for row in read_kept(tmp_path / "run") if row.task == "toy:skill=manners"]
    assert [row.stage for row in manners] == ["1-pretrain", "3-sft", "7-ppo"]
    assert all(row.wins.low > 0.5 for row in manners[1:])
    assert manners[-1].sampled.low > 0.6


@pytest.mark.slow
def test_the_family_is_made_by_its_own_training_and_every_member_learns(tmp_path):
    recipe = read_recipe("nano", scale="nano", overrides={"nano.teacher_steps": "12", "nano.student_steps": "12"})
    (result,) = run_recipe(recipe, RunOptions(tmp_path / "run", 1, None, "cpu", 1), lambda text: None)
    assert all(result.metrics[f"likelihood_{name}_gain_low"] > 0 for name in ("teacher", "prm", "student"))
    family = tmp_path / "run" / "1-nano" / "family"
    assert {path.name for path in family.iterdir()} >= {"teacher", "prm", "student"}
    assert (tmp_path / "run" / "model").resolve() == (family / "teacher").resolve()
