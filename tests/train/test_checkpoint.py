"""A run goes on from the newest checkpoint that is whole, says which one was not, and loses none to a kill."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.train.cipher_base import make_parts, model_of, ran
from tests.train.tiny_recipe import GRPO, PRETRAIN, write
from train.base.checkpoint import Checkpoints
from train.base.models import load_model
from train.base.weights import add_lora
from train.recipe.recipe import read_recipe
from train.recipe.run import RunOptions, run_recipe
from train.rl.loop import LoopPlan, learn
from ttc.durable import SUMS
from ttc.errors import RecordError, TrainingError

FILES = ("model.safetensors", "optimiser.pt", "state.json", SUMS)


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGES = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-7]),
    "flipped": flip,
    "emptied": lambda path: path.write_bytes(b""),
    "lost": lambda path: path.unlink(),
}


def saved(folder, *steps, keep=2):
    for step in steps:
        Checkpoints(folder, print, keep).save(step, model_of(step), {"m": torch.ones(3)}, {"best": 0.5})


def load(folder, told=None):
    """(step, value of the weights) of what is loaded."""
    model = model_of(-1)
    loaded = Checkpoints(folder, (told if told is not None else []).append).load(model)
    return loaded and (loaded[1]["step"], model.weight[0, 0].item())


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("file", FILES)
def test_a_damaged_newest_checkpoint_is_named_and_the_older_one_is_used(tmp_path, file, damage):
    saved(tmp_path, 5, 10)
    DAMAGES[damage](tmp_path / "step-000010" / file)
    told = []
    assert load(tmp_path, told) == (5, 5.0)
    (line,) = told
    assert line.startswith(f"{tmp_path.name}/step-000010 is not whole: ")
    assert line.endswith("; step-000005 is used instead")
    assert file in line or file == SUMS


def test_a_whole_newest_checkpoint_is_used_without_a_word(tmp_path):
    told = []
    assert load(tmp_path, told) is None
    saved(tmp_path, 5, 10)
    assert load(tmp_path, told) == (10, 10.0) and told == []


def test_without_a_whole_checkpoint_the_error_names_every_file_and_the_fix(tmp_path):
    saved(tmp_path, 5, 10)
    DAMAGES["cut"](tmp_path / "step-000010" / "model.safetensors")
    DAMAGES["lost"](tmp_path / "step-000005" / "state.json")
    with pytest.raises(TrainingError) as raised:
        load(tmp_path)
    text = str(raised.value)
    assert "step-000010 is not whole: model.safetensors (" in text and "delete the folder to start" in text
    assert "step-000005 is not whole: state.json is missing" in text and str(tmp_path) in text


def test_a_folder_that_was_copied_half_is_found_and_a_hidden_one_is_nobodys(tmp_path):
    saved(tmp_path, 5)
    (tmp_path / "step-000010").mkdir()
    (tmp_path / "step-000010" / "model.safetensors").write_bytes(b"half")
    (tmp_path / ".step-000015.partial").mkdir()
    told = []
    assert load(tmp_path, told) == (5, 5.0)
    (line,) = told
    assert "step-000010 is not whole: SHA256SUMS is missing, so it was not written to its end" in line


def test_what_was_not_whole_goes_with_the_next_save_and_the_older_whole_one_stays(tmp_path):
    saved(tmp_path, 5, 10)
    flip(tmp_path / "step-000010" / "optimiser.pt")
    assert load(tmp_path) == (5, 5.0)
    saved(tmp_path, 7)
    assert names(tmp_path) == ["step-000005", "step-000007"] and load(tmp_path) == (7, 7.0)


def test_a_stage_that_ended_before_its_first_checkpoint_says_that_it_starts_again(tmp_path):
    told, stage = [], tmp_path / "1-grpo"
    stage.mkdir()
    checkpoints = Checkpoints(stage / "checkpoints", told.append)
    (stage / "metrics.jsonl").touch()
    assert checkpoints.resume(model_of(-1)) is None and not told
    (stage / "metrics.jsonl").write_text('{"step": 1}\n')
    assert checkpoints.resume(model_of(-1)) is None
    assert told == ["1-grpo ended before its first checkpoint (save_every): it starts again"]
    saved(stage / "checkpoints", 2)
    assert checkpoints.resume(model_of(-1)) is not None and len(told) == 1


def test_checkpoints_are_told_apart_by_number_beyond_six_digits(tmp_path):
    saved(tmp_path, 999_999, 1_000_000, 1_000_001)
    assert names(tmp_path) == ["step-1000000", "step-1000001"] and load(tmp_path) == (1_000_001, 1_000_001.0)


def test_the_seal_is_what_sha256sum_checks(tmp_path):
    saved(tmp_path, 5)
    done = subprocess.run(["sha256sum", "-c", SUMS], cwd=tmp_path / "step-000005", capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.count(": OK") == 3


@pytest.mark.long
def test_a_kill_at_any_file_operation_of_saving_loses_no_checkpoint(tmp_path):
    script, root = Path(__file__).with_name("dying_saver.py"), Path(__file__).parents[2]
    done = subprocess.run([sys.executable, str(script), str(tmp_path)], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    steps = [tuple(json.loads(line)) for line in done.stdout.splitlines()]
    assert len(steps) > 10 and steps[0] == (5, 10) and steps[-1] == (10, 10)
    assert set(steps) == {(5, 10), (10, 10)} and sorted(steps) == steps


def run(plan, parts):
    ran(learn(plan, parts), parts)
    return [parameter.detach().clone() for parameter in parts.updater.model.parameters()]


@pytest.mark.numeric
@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_a_run_with_a_damaged_checkpoint_ends_as_the_one_without(base, tmp_path, damage):
    plan = LoopPlan(steps=4, prompts=2, eval_every=9, save_every=1)
    whole = run(plan, make_parts(base, tmp_path / "whole"))
    run(LoopPlan(steps=3, prompts=2, eval_every=9, save_every=1), make_parts(base, tmp_path / "hurt"))
    DAMAGES[damage](tmp_path / "hurt" / "checkpoints" / "step-000003" / "model.safetensors")
    again = run(plan, make_parts(base, tmp_path / "hurt"))
    assert all(torch.equal(a, b) for a, b in zip(whole, again, strict=True))


def test_a_model_that_was_damaged_after_its_stage_is_refused_by_the_next_run(tmp_path):
    recipe = read_recipe(write(tmp_path, f'about = "x"\n{PRETRAIN}{GRPO}'))
    options = RunOptions(tmp_path / "run", 1, None, "cpu", 1)
    run_recipe(recipe, options, lambda text: None)
    (tmp_path / "run" / "1-pretrain" / "model" / "README.md").write_text("added later")
    weights = tmp_path / "run" / "1-pretrain" / "model" / "model.safetensors"
    (tmp_path / "run" / "2-grpo" / "done.json").unlink()
    run_recipe(recipe, options, lambda text: None)
    flip(weights)
    with pytest.raises(RecordError, match=r"1-pretrain: model/model\.safetensors \(.* bytes\) is not what was written"):
        run_recipe(recipe, options, lambda text: None)
    weights.unlink()
    with pytest.raises(RecordError, match=r"model/model\.safetensors is missing\. Put back .* delete .*1-pretrain"):
        run_recipe(recipe, options, lambda text: None)


def test_a_checkpoint_of_a_model_with_adapters_holds_these_alone_and_brings_them_back(base, tmp_path):
    from safetensors.torch import load_file

    def adapted(value):
        model = load_model(base, "cpu")
        add_lora(model, 2, 4.0, seed=0)
        for parameter in model.parameters():
            if parameter.requires_grad:
                torch.nn.init.constant_(parameter, value)
        return model

    one, two = adapted(1.0), adapted(2.0)
    place = Checkpoints(tmp_path, print).save(5, one, {"m": torch.ones(3)}, {})
    names = load_file(place / "model.safetensors").keys()
    assert names and all(name.endswith((".up", ".down")) for name in names)
    Checkpoints(tmp_path, print).load(two)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    with pytest.raises(TrainingError, match="weights of another model"):
        Checkpoints(tmp_path, print).load(load_model(base, "cpu"))
