"""A run goes on only over what it was begun with: models, files, code and problems, told apart by their content."""

import json
import os
import shutil

import pytest
import torch

from tests.train.cipher_base import make_base, secret, write_walks
from tests.train.tiny_recipe import GRPO, PRETRAIN, write
from train.recipe.contents import path_contents, run_contents
from train.recipe.recipe import read_recipe
from train.recipe.run import RunOptions, run_recipe
from train.registries import make_task
from ttc.errors import ConfigError, RecordError

TASK = """data = "{data}"
prompt = "{{question}}"
target = "answer"
kind = "exact"
verifier = {{name = "{folder}/judge.py:judge"}}
max_tokens = 8
"""
JUDGE = """from ttc.verifiers.exact import exact


def judge():
    return exact()
"""
LOSS = """from train.losses.ppo import ppo


def careful(*, clip: float = 0.2):
    return ppo(clip_low=clip, clip_high=clip)
"""
RECIPE = """[[stage]]
kind = "grpo"
task = "{folder}/train.toml"
held_out = "{folder}/held_out.toml"
loss = "{folder}/loss.py:careful:clip=0.1"
reference = "{folder}/reference"
kl_weight = 0.01
ptx = "data:{folder}/rows.jsonl"
ptx_rows = 2
steps = 3
prompts = 2
n = 2
lr = 1e-3
save_every = 1
eval_every = 1
held_out_limit = 60
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Everything that a run reads, written by a user."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("mine")
    make_base(folder / "base", steps=2)
    shutil.copytree(folder / "base", folder / "reference")
    for split, name in (("train", "train"), ("eval", "held_out")):
        write_walks(secret(), folder / f"{name}.jsonl", split, ("question", "answer"))
        (folder / f"{name}.toml").write_text(TASK.format(data=f"{name}.jsonl", folder=folder))
    write_walks(secret(), folder / "rows.jsonl", "train", ("prompt", "completion"))
    (folder / "judge.py").write_text(JUDGE)
    (folder / "loss.py").write_text(LOSS)
    (folder / "recipe.toml").write_text(RECIPE.format(folder=folder))
    return folder


def run(folder, log=lambda text: None, out=None, model=None):
    options = RunOptions(out or folder / "run", 1, model or folder / "base", "cpu", 1)
    return run_recipe(read_recipe(str(folder / "recipe.toml")), options, log)


@pytest.fixture(scope="module")
def cut(folder):
    """A run that was stopped in its second update, with a checkpoint of the first."""

    def stop(text):
        if text.startswith("step 2 of"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(folder, stop)
    assert (folder / "run" / "1-grpo" / "checkpoints" / "step-000001").is_dir()
    return folder


def changed(path):
    """The content of a file with something in it changed, still of its kind."""
    if path.suffix == ".json":
        return json.dumps({**json.loads(path.read_text()), "note": "changed"}).encode()
    if path.suffix == ".safetensors":
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        return bytes(data)
    if path.suffix == ".jsonl":
        first, rest = path.read_text().split("\n", 1)
        return (first.replace(': "s', ': "s1', 1) + "\n" + rest).encode()
    return path.read_bytes() + b"# changed\n"


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("base/model.safetensors", "weights of --model"),
        ("base/config.json", "config of --model"),
        ("base/tokenizer.json", "tokenizer of --model"),
        ("base/chat_template.jinja", "chat template of --model"),
        ("base/generation_config.json", "generation settings of --model"),
        ("reference/model.safetensors", "weights of reference of 1-grpo"),
        ("train.toml", "task of 1-grpo: "),
        ("train.jsonl", "problems of task of 1-grpo"),
        ("held_out.jsonl", "problems of held_out of 1-grpo"),
        ("judge.py", "verifier file judge.py of task of 1-grpo"),
        ("loss.py", "loss of 1-grpo: "),
        ("rows.jsonl", "ptx of 1-grpo: "),
    ],
)
def test_a_changed_file_is_refused_by_name_before_any_work(cut, file, name):
    path, before = cut / file, files_of(cut / "run")
    content = path.read_bytes()
    path.write_bytes(changed(path))
    try:
        with pytest.raises(ConfigError, match="was made with other contents") as raised:
            run(cut, pytest.fail)
    finally:
        path.write_bytes(content)
    assert name in str(raised.value) and "put back what it was made with, or give another --out" in str(raised.value)
    assert files_of(cut / "run") == before


def files_of(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_a_changed_recipe_is_refused_by_the_field(cut):
    path = cut / "recipe.toml"
    content = path.read_text()
    path.write_text(content.replace("lr = 1e-3", "lr = 2e-3"))
    try:
        with pytest.raises(ConfigError, match=r"other settings: stages\[0\]\.digest|stages\[0\]\.fields\.lr"):
            run(cut, pytest.fail)
    finally:
        path.write_text(content)


def test_another_base_in_a_folder_of_the_same_name_is_refused_and_a_copy_elsewhere_is_the_same(cut, tmp_path):
    other = tmp_path / "other" / "base"
    make_base(other, seed=3, steps=1)
    with pytest.raises(ConfigError, match=r"other contents: weights of --model; put back"):
        run(cut, pytest.fail, model=other)
    shutil.copytree(cut / "base", tmp_path / "moved")
    with pytest.raises(KeyboardInterrupt):
        run(cut, interrupt, model=tmp_path / "moved")


def interrupt(text):
    raise KeyboardInterrupt


def test_a_run_of_an_older_version_is_refused_with_the_reason(cut, tmp_path):
    shutil.copytree(cut / "run", tmp_path / "old", symlinks=True)
    asked = json.loads((cut / "run" / "run.json").read_text())
    del asked["contents"]
    (tmp_path / "old" / "run.json").write_text(json.dumps(asked))
    with pytest.raises(ConfigError, match=r"run of an older version, whose run\.json keeps no digests.*another --out"):
        run(cut, pytest.fail, out=tmp_path / "old")


def test_an_untouched_run_goes_on_where_it_was_though_every_file_is_newer(cut, tmp_path):
    for path in cut.glob("[!r]*/*"):
        os.utime(path)
    shutil.copytree(cut / "run", tmp_path / "run", symlinks=True)
    told = []
    run(cut, told.append, out=tmp_path / "run")
    assert "resumed at step 1" in told
    run(cut, told.append, out=tmp_path / "run")
    assert told[-1].endswith("is done")


def test_the_columns_of_a_tasks_rows_are_named_behind_its_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, value in (("train", 1), ("test", 2)):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"input": f"{value}+1", "label": str(value + 1)}) + "\n")
    stage = """[[stage]]
kind = "grpo"
task = "train.jsonl:question=input,answer=label"
held_out = "test.jsonl:question=input,answer=label"
steps = 1
lr = 1e-3
"""
    contents = run_contents(read_recipe(write(tmp_path, stage)), None, tmp_path / "run")
    assert {"task of 1-grpo: train.jsonl", "held_out of 1-grpo: test.jsonl"} <= contents.keys()


def test_a_task_without_its_columns_says_how_a_recipe_names_them(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"prompt": "1+1", "reward_model": {"ground_truth": "2"}}) + "\n")
    with pytest.raises(RecordError, match=r"answer=reward_model\.ground_truth; in a recipe or spec, .*rows\.jsonl:K"):
        make_task(str(file))


def test_stages_of_the_run_and_words_that_a_folder_shares_are_no_contents(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    score = GRPO.replace("lr = 1e-3", 'lr = 1e-3\nreference = "1-pretrain"\nkl_weight = 0.1')
    recipe = read_recipe(write(tmp_path, f'about = "x"\n{PRETRAIN}{score}'))
    options = RunOptions(tmp_path / "cipher", 1, None, "cpu", 1)  # the folder has the name of the task
    run_recipe(recipe, options, lambda text: None)
    contents = json.loads((tmp_path / "cipher" / "run.json").read_text())["contents"]
    assert sorted(contents) == ["problems of held_out of 2-grpo", "problems of task of 2-grpo"]
    run_recipe(recipe, options, lambda text: None)


def test_models_that_are_named_by_a_bare_word_count_too(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("base", "critic"):
        shutil.copytree(folder / "base", tmp_path / name)
    shutil.copytree(folder / "base", tmp_path / "rewards" / "reward_model-1")
    stage = GRPO.replace('"grpo"', '"ppo"') + 'reference = "base"\ncritic = "critic"\nreward_model = ["rewards"]\n'
    contents = run_contents(read_recipe(write(tmp_path, stage)), None, tmp_path / "run")
    for field, place in (("reference", "base"), ("critic", "critic"), ("reward_model", "rewards/reward_model-1")):
        assert f"weights of {field} of 1-ppo: {place}" in contents


@pytest.mark.parametrize("text", ["", "~nobody knows", "a" * 5000, "0.5", ".", "http://127.0.0.1:1/v1", "\0", "x\ny"])
def test_any_text_may_stand_in_a_field(tmp_path, text):
    assert path_contents("field", text, tmp_path / "out") == {}
