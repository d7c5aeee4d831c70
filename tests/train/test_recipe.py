"""Recipes are read, bound and refused before anything is loaded; a run resumes and is never overwritten."""

import json
import re
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import qwen_like
from tests.fresh import heavy_modules_of
from tests.train.stages import make_stage
from tests.train.tiny_recipe import GRPO, PRETRAIN, write
from train.base.stage import Setting, StageResult, read_result, write_result
from train.commands.train import _line, _sentence
from train.recipe.adapt import Adaptation, adapt, adapted
from train.recipe.recipe import START, packaged, read_recipe
from train.recipe.run import RunOptions, claim, run_recipe
from ttc.cli.cli import main
from ttc.durable import alone_in, replace_link
from ttc.engines.shared.text import Text
from ttc.errors import ConfigError, RecordError, UnknownName

GOOD = f'about = "x"\n{PRETRAIN}{GRPO}'


@pytest.mark.long
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


def test_a_finished_stage_keeps_its_model_and_no_checkpoint_unless_they_are_asked_for(tmp_path):
    recipe = read_recipe(write(tmp_path, GOOD))
    for name, keep in (("lean", False), ("kept", True)):
        options = RunOptions(tmp_path / name, 1, None, "cpu", 1, keep_checkpoints=keep)
        results = run_recipe(recipe, options, lambda text: None)
        assert all((Path(result.model) / "model.safetensors").is_file() for result in results)
        assert (tmp_path / name / "2-grpo" / "checkpoints").exists() is keep
    # one that was killed between the end of a stage and the deletion is tidied by the next call
    (tmp_path / "lean" / "2-grpo" / "checkpoints" / "step-000001").mkdir(parents=True)
    run_recipe(recipe, RunOptions(tmp_path / "lean", 1, None, "cpu", 1), lambda text: None)
    assert not (tmp_path / "lean" / "2-grpo" / "checkpoints").exists()


def test_the_checkpoints_of_a_stage_that_a_health_rule_ended_stay(tmp_path):
    rule = '[stage.health.all_fail]\naction = "stop"\nthreshold = -1\npatience = 1\n'
    recipe = read_recipe(write(tmp_path, GOOD + rule))
    results = run_recipe(recipe, RunOptions(tmp_path / "run", 1, None, "cpu", 1), lambda text: None)
    assert results[-1].stopped.startswith("health rule all_fail")
    assert any((tmp_path / "run" / "2-grpo" / "checkpoints").iterdir())


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
        (('about = "x"', "retention = 3"), r"recipe.toml: retention must be a table \[retention\], got 3"),
        (('about = "x"', "adapt = 3"), r"recipe.toml: adapt must be a table \[adapt\], got 3"),
        (('about = "x"', "about = 3"), "recipe.toml: about must be a text, got 3"),
        (("lr = 1e-3\n", "lr = 1e-3\nhealth = 3\n"), r"health must be a table \[stage.health\], got 3"),
        (
            ("lr = 1e-3\n", "lr = 1e-3\nhealth.truncation = 3\n"),
            r"health.truncation must be a table \[stage.health.truncation\], got 3",
        ),
        (("lr = 1e-3\n", "lr = 1e-3\nstart = 3\n"), "start must be the name of an earlier stage, got 3"),
    ],
)
def test_a_broken_recipe_is_refused_by_the_name_of_what_is_wrong(tmp_path, change, message):
    with pytest.raises(ConfigError, match=message):
        read_recipe(write(tmp_path, GOOD.replace(*change)))


@pytest.mark.parametrize("scale", [None, "nano"])
def test_a_table_of_a_stage_that_sets_what_the_stage_has_not_is_refused_at_every_scale(tmp_path, scale):
    strange = GOOD + "[stage.sampling]\ntemprature = 1\n"
    with pytest.raises(ConfigError, match=r"stage 2: \[stage.sampling\] is read .* has no field 'temprature'"):
        read_recipe(write(tmp_path, strange), scale=scale)


def test_stages_and_scales_that_are_no_tables_are_refused_by_name(tmp_path):
    with pytest.raises(ConfigError, match=r"recipe.toml: stage 1 must be a table \[\[stage\]\], got 1"):
        read_recipe(write(tmp_path, "stage = [1]\n"))
    scaled = GOOD.replace("lr = 1e-3\n", "lr = 1e-3\nsmall = 3\n")
    with pytest.raises(ConfigError, match=r"scale small must be a table \[stage.small\], got 3"):
        read_recipe(write(tmp_path, scaled), scale="small")


def test_a_stage_in_the_wrong_place_is_refused_before_work(tmp_path):
    head, first, second = GOOD.split("[[stage]]")
    alone = read_recipe(write(tmp_path, f"{head}[[stage]]{second}"))
    with pytest.raises(ConfigError, match="needs a model"):
        run_recipe(alone, RunOptions(tmp_path / "run", 1, None, "cpu", 1), lambda text: None)
    assert not (tmp_path / "run").exists()
    late = read_recipe(write(tmp_path, f"{head}[[stage]]{first}[[stage]]{first}"))
    with pytest.raises(ConfigError, match="starts from nothing"):
        run_recipe(late, RunOptions(tmp_path / "run", 1, None, "cpu", 1), lambda text: None)


SFT = """about = "x"
[[stage]]
kind = "sft"
data = "{data}"
steps = 1
rows = 2
lr = 1e-3
"""


def test_a_run_that_failed_before_anything_was_made_goes_on_in_its_folder_when_its_rows_are_put_right(
    cipher_model, tmp_path
):
    data = tmp_path / "rows.jsonl"
    data.write_text('{"prompt": "s1n1="}\n' * 4)  # the completion is read with the model
    options = RunOptions(tmp_path / "run", 1, cipher_model, "cpu", 1)
    recipe = read_recipe(write(tmp_path, SFT.format(data=data)))
    with pytest.raises(RecordError, match="line 1: completion must be a text"):
        run_recipe(recipe, options, lambda text: None)
    rows = [{"prompt": f"s{number}n1=", "completion": "s2"} for number in range(1, 5)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run_recipe(recipe, options, lambda text: None)
    data.write_text('{"prompt": "s1n1="}\n' * 4)
    with pytest.raises(ConfigError, match="other contents"):
        run_recipe(recipe, options, lambda text: None)
    assert (tmp_path / "run" / "run.json").is_file() and (tmp_path / "run" / "1-sft" / "model").is_dir()


def test_a_run_that_ends_in_no_number_says_what_goes_on_and_that_does(cipher_model, tmp_path, capsys):
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"s{n}n1=", "completion": "s2"}) + "\n" for n in range(1, 9)))
    text = SFT.format(data=data).replace("steps = 1", "steps = 3").replace("lr = 1e-3", "lr = 1e30\nwarmup = 0")
    words = ["train", "run", "--model", str(cipher_model), "--seed", "1", "--out"]
    assert main([*words, str(tmp_path / "ended"), str(write(tmp_path, text))]) == 1
    table, setting = re.search(r"with (\[.*\]) (.*) in the recipe$", capsys.readouterr().err.strip()).groups()
    going_on = [*words, str(tmp_path / "on"), str(write(tmp_path, f"{text}\n{table}\n{setting}\n"))]
    assert main([*going_on, "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["not_finite"] == 1.0
    assert main(going_on) == 0
    outcome = capsys.readouterr().out.splitlines()
    assert main(["train", "report", str(tmp_path / "on")]) == 0
    whole = capsys.readouterr().out.splitlines()
    assert set(outcome) < set(whole) and "stage 1-sft: done, 4 steps logged" in outcome
    assert outcome[0].startswith("1-sft: probability of held-out tokens")
    assert not any("entropy" in row for row in outcome)


def test_a_number_that_is_none_is_null_in_what_a_run_prints():
    line = _line("sft", StageResult("", {"loss": float("nan"), "rows": 2.0}))
    assert json.loads(line, parse_constant=pytest.fail) == {"stage": "sft", "stopped": "", "loss": None, "rows": 2.0}


def test_a_model_may_be_taught_to_think_in_the_folder_of_a_run_that_failed_at_once(tmp_path):
    model, start = qwen_like.model(tmp_path / "model"), tmp_path / "run" / START
    start.parent.mkdir()
    replace_link(start, model)
    wanted = Adaptation(open="<think>", close="</think>")
    adapted(model, start, wanted)
    assert not start.is_symlink() and Text(start).markers == ("<think>", "</think>")
    assert Text(model).markers is None
    with pytest.raises(ConfigError, match="delete it, or give another --out"):
        adapted(model, start, Adaptation(open="<a>", close="</a>"))
    (tmp_path / "other").mkdir()
    replace_link(tmp_path / "other" / START, model)
    (tmp_path / "other" / "run.json").write_text("{}")
    with pytest.raises(ConfigError, match="was made with None"):
        adapted(model, tmp_path / "other" / START, wanted)


def test_a_resume_with_another_field_is_refused_by_the_field(cipher_model, tmp_path):
    recipe = read_recipe(write(tmp_path, GOOD))
    options = RunOptions(tmp_path / "run", 1, None, "cpu", 1)
    claim(recipe, options)
    changed = read_recipe(write(tmp_path, GOOD), overrides={"pretrain.steps": "5"})
    with pytest.raises(ConfigError, match=r"settings: stages\[0\]\.fields\.steps is 4 there and "):
        claim(changed, options)


def test_a_second_run_in_the_folder_of_one_that_is_running_is_refused_at_once(tmp_path):
    recipe = read_recipe(write(tmp_path, GOOD))
    options = RunOptions(tmp_path / "run", 1, None, "cpu", 1)
    refusals = []

    def log(text):
        if text.startswith("stage 1"):
            with pytest.raises(ConfigError, match=r"run/run\.lock is being written by another process") as refusal:
                run_recipe(recipe, options, lambda text: None)
            refusals.append(refusal)

    assert len(run_recipe(recipe, options, log)) == 2
    assert len(refusals) == 1


def test_a_recipe_file_that_is_not_there_is_told_as_a_file():
    with pytest.raises(ConfigError, match=r"recipe file mine/own\.toml does not exist"):
        read_recipe("mine/own.toml")


def test_a_run_goes_on_where_a_number_is_given_by_set_that_the_file_had_and_the_other_way_round(tmp_path):
    plain = read_recipe(write(tmp_path, GOOD))
    as_text = read_recipe(write(tmp_path, GOOD), overrides={"pretrain.steps": "4", "grpo.lr": "1e-3"})
    for name, first, second in (("a", plain, as_text), ("b", as_text, plain)):
        options = RunOptions(tmp_path / name, 1, None, "cpu", 1)
        assert claim(first, options) and not claim(second, options)
        other = read_recipe(write(tmp_path, GOOD), overrides={"pretrain.steps": "4", "grpo.lr": "2e-3"})
        with pytest.raises(ConfigError, match=r"settings: stages\[1\]\.fields\.lr is .* and \"2e-3\" here"):
            claim(other, options)


@pytest.mark.parametrize(("kind", "own"), [("reward_model", ""), ("prm", 'step_delimiter = "\\n"\n')])
def test_a_family_without_the_head_that_a_stage_needs_is_refused_before_the_start(tmp_path, kind, own):
    from transformers import CohereConfig

    CohereConfig(hidden_size=16, num_hidden_layers=1).save_pretrained(tmp_path / "model")
    data = tmp_path / "rows.jsonl"
    data.write_text('{"prompt": "a", "chosen": "b", "rejected": "c"}\n' * 4)
    text = SFT.replace('"sft"', f'"{kind}"').format(data=data) + own
    options = RunOptions(tmp_path / "run", 1, tmp_path / "model", "cpu", 1)
    with pytest.raises(ConfigError, match=r"no head for \w+ on models of the family cohere;") as refusal:
        run_recipe(read_recipe(write(tmp_path, text)), options, lambda text: None)
    assert len(str(refusal.value)) < 300 + len(str(tmp_path)) and not (tmp_path / "run").exists()


def test_the_last_sentence_of_a_run_names_the_reward_model_that_it_made(tmp_path):
    place = tmp_path / "1-reward_model"
    for name in ("base", "1-reward_model/reward_model-1"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.json").write_text("{}")
    replace_link(place / "model", tmp_path / "base")
    step = SimpleNamespace(kind="reward_model")
    sentence = _sentence([step], [StageResult(str(tmp_path / "base"))], tmp_path)
    assert f"what reward_model made is in {place / 'reward_model-1'};" in sentence and "the model is in" not in sentence


def test_training_on_the_held_out_problems_is_refused_and_shows_one(tmp_path):
    recipe = read_recipe(write(tmp_path, GOOD.replace(",split=train", "")))
    with pytest.raises(ConfigError, match="training problems are held-out problems too, such as 's"):
        run_recipe(recipe, RunOptions(tmp_path / "run", 1, None, "cpu", 1), lambda text: None)


def test_variants_of_one_problem_on_both_sides_are_refused(tmp_path):
    for name, questions in (("train", ("2+3?", "7-1?")), ("eval", ("Two and three?", "Nine less two?"))):
        variant, other = ({"id": f"{name} {text}", "problem": text, "answer": "5"} for text in questions)
        rows = {**variant, "cluster": "sum"}, other
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tasks = {"task": str(tmp_path / "train.jsonl"), "held_out": str(tmp_path / "eval.jsonl")}
    stage = make_stage("grpo", **tasks, steps=1, lr=1e-3)
    with pytest.raises(
        ConfigError, match=r"1 training problem of held-out clusters, such as train 2\+3\? of cluster 'sum'"
    ):
        stage.check(True)


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


def test_a_setting_changes_a_health_rule_as_the_recipe_may(tmp_path):
    path = write(tmp_path, GOOD + "[stage.health.truncation]\naction = 'warn'\n")
    changes = {"grpo.health.truncation.threshold": "0.9", "all.health.all_fail.enabled": "false"}
    rules = {rule.name: rule for rule in read_recipe(path, overrides=changes).steps[1].stage.rules}
    assert (rules["truncation"].threshold, rules["truncation"].action) == (0.9, "warn") and "all_fail" not in rules
    with pytest.raises(ConfigError, match=r"health\.truncation\.threshold must be a number, got 'high'"):
        read_recipe(path, overrides={"grpo.health.truncation.threshold": "high"})
    with pytest.raises(ConfigError, match=r"health\.truncation\.enabled must be .*, got 'maybe'"):
        read_recipe(path, overrides={"grpo.health.truncation.enabled": "maybe"})


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
        ('rollouts = "2-sample"', "stage 2: rollouts names '2-sample', which is not an earlier stage"),
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


def test_of_two_runs_that_adapt_a_model_at_once_the_second_takes_the_copy_of_the_first(tmp_path):
    model, start = qwen_like.model(tmp_path / "model"), tmp_path / "run" / START
    start.parent.mkdir()
    wanted = Adaptation(open="<think>", close="</think>")
    thread = threading.Thread(target=adapted, args=(model, start, wanted))
    with alone_in(start.parent):
        thread.start()
        thread.join(1)
        assert not list(start.parent.iterdir()), "it waits for who is at it"
        adapt(model, start, wanted)
        before = (start / "config.json").stat().st_mtime_ns
    thread.join(30)
    assert (start / "config.json").stat().st_mtime_ns == before


def test_a_folder_of_something_else_is_refused_before_a_model_is_put_there(tmp_path, capsys):
    model = qwen_like.model(tmp_path / "model")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    claim(read_recipe(write(tmp_path, GOOD)), RunOptions(tmp_path / "from-nothing", 1, None, "cpu", 1))
    recipe = write(tmp_path, SFT.replace("{data}", str(tmp_path / "rows.jsonl")))
    for name, told in (("mine", "not empty, and holds no run"), ("from-nothing", "a run that started from no model")):
        before = sorted((tmp_path / name).iterdir())
        options = ["--seed", "1", "--model", str(model), "--set", "thinking.open=<t>", "--set", "thinking.close=</t>"]
        assert main(["train", "run", recipe, *options, "--out", str(tmp_path / name)]) == 2
        assert told in capsys.readouterr().err
        assert sorted((tmp_path / name).iterdir()) == before


def test_a_run_whose_link_to_its_model_became_a_folder_is_refused_before_work(tmp_path):
    recipe, options = read_recipe(write(tmp_path, GOOD)), RunOptions(tmp_path / "run", 1, None, "cpu", 1)
    claim(recipe, options)
    (tmp_path / "run" / "model").mkdir()
    with pytest.raises(FileExistsError, match=r"a folder stands where a link belongs .*delete it, then go on"):
        run_recipe(recipe, options, pytest.fail)
