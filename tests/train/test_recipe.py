"""Recipes are read, bound and refused before anything is loaded; a run resumes and is never overwritten."""

import json

import pytest

from tests.fresh import heavy_modules_of
from tests.train.tiny_recipe import GRPO, PRETRAIN, write
from train.base.stage import Setting, StageResult, read_result, write_result
from train.recipe.recipe import packaged, read_recipe
from train.recipe.run import RunOptions, run_recipe
from ttc.errors import ConfigError, RecordError, UnknownName

GOOD = f'about = "x"\n{PRETRAIN}{GRPO}'


@pytest.mark.parametrize("name", packaged())
def test_every_packaged_recipe_is_short_says_what_it_deviates_in_and_binds(name):
    path = packaged()[name]
    assert len(path.read_text().splitlines()) < 130  # a toy run and a real one
    recipe = read_recipe(name, scale="nano" if 'only = "nano"' in path.read_text() else None)
    assert "eviation" in recipe.about
    has_model = False
    for step in recipe.steps:
        step.stage.check(has_model)
        has_model = True


def test_a_recipe_runs_from_nothing_to_a_model_and_resumes_without_doing_anything_twice(tmp_path):
    recipe = read_recipe(write(tmp_path, GOOD))
    told = []
    options = RunOptions(tmp_path / "run", 1, None, "cpu", 1)
    first = run_recipe(recipe, options, told.append)
    assert (tmp_path / "run" / "model" / "model.safetensors").is_file()
    again = run_recipe(recipe, options, told.append)
    assert again == first and told[-1].endswith("is done")


def test_a_folder_of_another_run_is_refused_and_left_alone(tmp_path):
    recipe = read_recipe(write(tmp_path, GOOD))
    options = RunOptions(tmp_path / "run", 1, None, "cpu", 1)
    run_recipe(recipe, options, lambda text: None)
    before = (tmp_path / "run" / "run.json").read_text()
    with pytest.raises(ConfigError, match="other settings: seed is 1 there and 2 here"):
        run_recipe(recipe, RunOptions(tmp_path / "run", 2, None, "cpu", 1), lambda text: None)
    assert (tmp_path / "run" / "run.json").read_text() == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "precious.txt").write_text("x")
    with pytest.raises(ConfigError, match="not empty"):
        run_recipe(recipe, RunOptions(tmp_path / "mine", 1, None, "cpu", 1), lambda text: None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('kind = "grpo"', 'kind = "gpro"'), "gpro"),
        (("lr = 1e-3", "lr = 1e-3\nlerning_rate = 2"), "lerning_rate"),
        (("n = 2\n", "n = 1\n"), "n must be at least 2"),
        (("lr = 1e-3", "lr = -1"), "lr must be above 0"),
        (("steps = 2\n", "steps = 2\nloss = 'ppoo'\n"), "ppo"),
        (("steps = 2\n", "steps = 2\nloss = 'ppo:clip_hihg=1'\n"), "clip_high"),
        (("steps = 2\n", "steps = 2\nadvantage = 'group:scale=big'\n"), "scale"),
        (("lr = 1e-3\n", "lr = 1e-3\n[stage.health.truncaton]\nthreshold = 1\n"), "truncation"),
        (("task = ", "task = 'nothing'\n#"), "nothing"),
        (('about = "x"', 'abuot = "x"'), "about"),
        (("lr = 1e-3", ""), "lr"),
    ],
)
def test_a_broken_recipe_is_refused_by_the_name_of_what_is_wrong(tmp_path, change, message):
    with pytest.raises(ConfigError, match=message):
        read_recipe(write(tmp_path, GOOD.replace(*change)))


def test_a_stage_in_the_wrong_place_is_refused_before_work(tmp_path):
    head, first, second = GOOD.split("[[stage]]")
    alone = read_recipe(write(tmp_path, f"{head}[[stage]]{second}"))
    with pytest.raises(ConfigError, match="needs a model"):
        run_recipe(alone, RunOptions(tmp_path / "run", 1, None, "cpu", 1), lambda text: None)
    assert not (tmp_path / "run").exists()
    late = read_recipe(write(tmp_path, f"{head}[[stage]]{first}[[stage]]{first}"))
    with pytest.raises(ConfigError, match="starts from nothing"):
        run_recipe(late, RunOptions(tmp_path / "run", 1, None, "cpu", 1), lambda text: None)


def test_training_on_the_held_out_problems_is_refused_and_shows_one(tmp_path):
    recipe = read_recipe(write(tmp_path, GOOD.replace(",split=train", "")))
    with pytest.raises(ConfigError, match="training problems are held-out problems too, such as 's"):
        run_recipe(recipe, RunOptions(tmp_path / "run", 1, None, "cpu", 1), lambda text: None)


def test_the_command_line_and_a_scale_change_single_fields(tmp_path):
    path = write(tmp_path, GOOD + "[stage.nano]\nsteps = 1\n")
    assert read_recipe(path, scale="nano").steps[1].fields["steps"] == 1
    assert read_recipe(path, overrides={"grpo.lr": "0.5"}).steps[1].fields["lr"] == "0.5"
    assert read_recipe(path, overrides={"1.steps": "9"}).steps[0].fields["steps"] == "9"
    with pytest.raises(ConfigError, match=r"STAGE\.FIELD"):
        read_recipe(path, overrides={"nothing.lr": "1"})
    with pytest.raises(ConfigError, match="no scale 'big'"):
        read_recipe(path, scale="big")
    with pytest.raises(UnknownName, match="cipher-grpo"):
        read_recipe("cipher-gpro")


def test_a_stage_for_one_scale_is_left_out_of_the_others(tmp_path):
    path = write(tmp_path, GOOD.replace('kind = "pretrain"', 'kind = "pretrain"\nonly = "nano"'))
    assert [step.kind for step in read_recipe(path).steps] == ["grpo"]
    assert [step.kind for step in read_recipe(path, scale="nano").steps] == ["pretrain", "grpo"]


def test_a_broken_result_file_says_what_to_delete(tmp_path):
    write_result(tmp_path, StageResult(str(tmp_path / "model"), {"a": 1.0}))
    assert read_result(tmp_path).metrics == {"a": 1.0}
    (tmp_path / "done.json").write_text(json.dumps({"model": 3}))
    with pytest.raises(RecordError, match="delete its folder"):
        read_result(tmp_path)
    assert Setting(tmp_path, None, 1, "cpu", 1, print).seed == 1


def test_recipes_are_listed_without_torch():
    assert heavy_modules_of("train", "list") == []


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ('rollouts = "2-sample"', "stage 2: rollouts names '2-sample', which is no stage before it"),
        ('start = "2-sft"', "stage 2: start names '2-sft'"),
        ('rollouts = "1-pretrian"', r"\(known: 1-pretrain\); did you mean '1-pretrain'"),
    ],
)
def test_a_stage_that_is_named_and_does_not_come_before_is_refused_when_the_recipe_is_read(tmp_path, field, message):
    imitate = '[[stage]]\nkind = "sft"\ncorpus = "cipher:symbols=8,max_steps=2"\nheld_out = "cipher"\nsteps = 1\n'
    with pytest.raises(ConfigError, match=message):
        read_recipe(write(tmp_path, f'about = "x"\n{PRETRAIN}{imitate}lr = 1e-3\n{field}\n'))


@pytest.mark.parametrize("name", ["r1", "qwen3-fusion", "qwen2.5"])
def test_a_recipe_whose_stages_are_numbered_for_a_scale_says_so_without_it(name):
    with pytest.raises(ConfigError, match="give --scale nano, or one of cpu"):
        read_recipe(name)
