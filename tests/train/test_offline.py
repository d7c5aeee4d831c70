"""TRL's own trainers on our rows: it gets the ids that were sampled, trains, goes on after a kill, and is measured."""

import dataclasses
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest
import torch

from tests.train.cipher_base import TASK, WALKS
from tests.train.stages import make_stage, metrics_of, setting
from train.base.models import load_model, turn_tokenizer
from train.examples.examples import Example, right_rollouts
from train.examples.pairs import Preferred, pairs_of_rollouts
from train.stages.sample import sample
from train.stages.trl import METHODS
from ttc.concurrent import Interrupted, StopRequest
from ttc.errors import ConfigError, RecordError, UnknownName

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="TRL is not installed: ttckit[train]"),
    pytest.mark.filterwarnings("default"),  # what TRL warns of is not ours
]


@pytest.fixture(scope="module")
def run(cipher_model, tmp_path_factory):
    root = tmp_path_factory.mktemp("run")
    sample(task=WALKS, n=6).run(setting(root / "1-sample", cipher_model))
    return root


def train(method, rows, folder, base, steps, log=lambda text: None, **more):
    """Train on `rows` with a stage of that method; the last metrics."""
    stage = make_stage("trl", method=method, rollouts="x", steps=steps, lr=1e-3, rows=4, **more)
    return stage.train(rows, base, folder / "model", dataclasses.replace(setting(folder, base), log=log))


PAIRS = [
    Preferred("a", Example("a", (5, 6), (8, 9, 1)), Example("a", (5, 6), (10, 1))),
    Preferred("b", Example("b", (7,), (11, 1)), Example("b", (7,), (12, 13, 14, 1))),
]


def test_trl_keeps_the_cap_on_the_attention_of_a_model_that_has_one(cipher_model, tmp_path, monkeypatch):
    import trl as library
    from transformers import AutoConfig, AutoModelForCausalLM

    base, tokenizer = tmp_path / "base", turn_tokenizer(cipher_model)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "head_dim": 16}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    config = AutoConfig.for_model("gemma2", vocab_size=len(tokenizer), **sizes, **heads)
    AutoModelForCausalLM.from_config(config, attn_implementation="eager").save_pretrained(base)
    tokenizer.save_pretrained(base)
    kinds, run_train = [], library.SFTTrainer.train

    def noted(self, *arguments, **options):
        kinds.append(self.model.config._attn_implementation)
        return run_train(self, *arguments, **options)

    monkeypatch.setattr(library.SFTTrainer, "train", noted)
    train("sft", [PAIRS[0].chosen, PAIRS[1].chosen], tmp_path, base, steps=1)
    assert kinds == ["eager"]


def collated(method, rows):
    """What TRL's own collator makes of our rows: its ids and completion masks, as lists without padding."""
    import trl as library

    columns = METHODS[method].columns(rows)
    if method == "sft":
        from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

        return DataCollatorForLanguageModeling(pad_token_id=0)(columns)
    if method == "kto":
        from trl.trainer.kto_trainer import DataCollatorForUnpairedPreference

        return DataCollatorForUnpairedPreference(pad_token_id=0)(columns)
    from trl.trainer import dpo_trainer, reward_trainer

    assert library.__version__.startswith("1.16.")
    module = dpo_trainer if method == "dpo" else reward_trainer
    return module.DataCollatorForPreference(pad_token_id=0)(columns)


def shown(batch, mask):
    return [[i for i, keep in zip(ids, kept, strict=True) if keep]
            for ids, kept in zip(batch["input_ids"].tolist(), mask.tolist(), strict=True)]  # fmt: skip


def test_trl_is_given_the_very_ids_with_only_completions_learnt():
    batch = collated("sft", [PAIRS[0].chosen, PAIRS[1].rejected])
    assert shown(batch, batch["attention_mask"]) == [[5, 6, 8, 9, 1], [7, 12, 13, 14, 1]]
    assert shown(batch, batch["labels"] != -100) == [[8, 9, 1], [12, 13, 14, 1]]
    batch = collated("dpo", PAIRS)
    assert shown(batch, batch["completion_mask"]) == [[8, 9, 1], [11, 1], [10, 1], [12, 13, 14, 1]]
    batch = collated("kto", PAIRS)
    assert batch["label"] == [True, False, True, False] or batch["label"].tolist() == [True, False, True, False]
    assert shown(batch, batch["completion_mask"]) == [[8, 9, 1], [10, 1], [11, 1], [12, 13, 14, 1]]
    mixed = shown({"input_ids": batch["KL_input_ids"]}, batch["KL_completion_mask"])
    assert mixed == [[11, 1], [12, 13, 14], [8, 9, 1], [10, 1]]  # of the other prompt, cut where the longest row ends
    batch = collated("reward", PAIRS)
    assert shown(batch, batch["attention_mask"])[:2] == [[5, 6, 8, 9, 1], [7, 11, 1]]


def test_weights_of_rows_which_trl_does_not_take_are_refused(tmp_path):
    for method, row in (("sft", {"completion": "5"}), ("dpo", {"chosen": "5", "rejected": "6"})):
        (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "2+3", **row, "weight": 2.0}) + "\n")
        with pytest.raises(RecordError, match="line 1: unknown field 'weight'"):
            make_stage("trl", method=method, data=str(tmp_path / "rows.jsonl"), steps=1, lr=1e-3).check(True)


@pytest.mark.long
@pytest.mark.parametrize("method", ["sft", "dpo", "kto"])
def test_a_model_learns_from_its_own_rollouts_through_trl(cipher_model, run, method):
    stage = make_stage("trl", method=method, rollouts="1-sample", steps=25, lr=1e-3, rows=24, held_out=TASK)
    stage.check(True)
    folder = run / f"2-{method}"
    found = stage.run(setting(folder, cipher_model)).metrics
    assert found["held_out_after"] > found["held_out_before"]
    if method == "sft":
        assert found["likelihood_gain"] > 0
    assert load_model(folder / "model", "cpu") is not None
    rows = metrics_of(folder)
    assert [row["step"] for row in rows] == list(range(1, 26)) and "loss" in rows[0]


@pytest.mark.long
def test_a_reward_model_ranks_held_out_pairs_and_the_policy_passes_through(cipher_model, run):
    stage = make_stage("trl", method="reward", rollouts="1-sample", steps=60, lr=2e-3, rows=24, held_out_share=0.4)
    folder = run / "2-reward"
    result = stage.run(setting(folder, cipher_model))
    assert result.metrics["ranked_before"] == 0.5 and result.metrics["ranked_gain_low"] > 0
    assert (folder / "reward_model" / "config.json").is_file()
    assert (folder / "model").resolve() == cipher_model.resolve()
    before = (cipher_model / "model.safetensors").read_bytes()
    stage.run(setting(folder, cipher_model))  # as after a kill before the stage was marked as done
    assert (cipher_model / "model.safetensors").read_bytes() == before


@pytest.mark.long
@pytest.mark.numeric
def test_a_killed_job_goes_on_from_trls_newest_whole_checkpoint(cipher_model, run, tmp_path):
    rows = right_rollouts(run / "1-sample" / "rollouts.jsonl")
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    train("sft", rows, whole, cipher_model, 4)
    train("sft", rows, halves, cipher_model, 3, save_every=1)
    told, newest = [], halves / "trl" / "checkpoint-3"
    (newest / "model.safetensors").write_bytes((newest / "model.safetensors").read_bytes()[:-1])
    train("sft", rows, halves, cipher_model, 4, told.append, save_every=1)
    (line,) = told
    assert line.startswith("trl/checkpoint-3 is not whole: model.safetensors") and "checkpoint-2 is used" in line
    pairs = zip(*(load_model(folder / "model", "cpu").parameters() for folder in (whole, halves)), strict=True)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in pairs)


@pytest.mark.long
def test_options_reach_trls_configuration(cipher_model, run, tmp_path):
    pairs = pairs_of_rollouts(run / "1-sample" / "rollouts.jsonl")
    gentle = train("dpo", pairs, tmp_path / "a", cipher_model, 3, options=("beta=0.01",))
    strong = train("dpo", pairs, tmp_path / "b", cipher_model, 3, options=("beta=5.0",))
    assert abs(strong["rewards/margins"]) > 10 * abs(gentle["rewards/margins"])


def test_what_cannot_work_is_refused_by_field():
    with pytest.raises(UnknownName, match="beta"):
        make_stage("trl", method="dpo", rollouts="x", steps=1, lr=1e-3, options=("betta=1",)).check(True)
    with pytest.raises(ConfigError, match="max_steps is set by the stage"):
        make_stage("trl", method="dpo", rollouts="x", steps=1, lr=1e-3, options=("max_steps=1",)).check(True)
    with pytest.raises(ConfigError, match=r"options: write KEY=VALUE .*got 'beta'"):
        make_stage("trl", method="dpo", rollouts="x", steps=1, lr=1e-3, options=("beta",))
    with pytest.raises(ConfigError, match="exactly one of data, rollouts"):
        make_stage("trl", method="dpo", steps=1, lr=1e-3)
    with pytest.raises(ConfigError, match="lr must be above 0"):
        make_stage("trl", method="dpo", rollouts="x", steps=1, lr=0.0)


@pytest.mark.parametrize("method", ["sft", "dpo"])
def test_rollouts_of_held_out_problems_are_refused_before_trl_learns_them(cipher_model, run, tmp_path, method):
    asked = str(run / "1-sample" / "rollouts.jsonl")
    measured = WALKS.replace(",split=train", "")
    stage = make_stage("trl", method=method, rollouts=asked, steps=1, lr=1e-3, held_out=measured)
    sample(task=measured, n=6).run(setting(tmp_path / "1-sample", cipher_model))
    leaking = make_stage("trl", method=method, rollouts="1-sample", steps=1, lr=1e-3, held_out=measured)
    with pytest.raises(ConfigError, match=r"trl: \d+ of the \d+ problems that 1-sample answers are held-out problems"):
        leaking.run(setting(tmp_path / "2-trl", cipher_model))
    assert not (tmp_path / "2-trl" / "model").exists()
    stage.check(True)


@pytest.mark.long
def test_a_signal_ends_trls_training_with_a_checkpoint_and_it_goes_on_from_there(cipher_model, run, tmp_path):
    rows = right_rollouts(run / "1-sample" / "rollouts.jsonl")
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    stop = StopRequest(armed=True)
    stage = make_stage("trl", method="sft", rollouts="x", steps=4, lr=1e-3, rows=4)
    place = setting(tmp_path, cipher_model)
    timer = threading.Timer(0.0, os.kill, (os.getpid(), signal.SIGTERM))
    heeded = stop.heeded

    @contextmanager
    def sending(*given):
        with heeded(*given):
            timer.start()
            timer.join()
            yield

    stop.heeded = sending
    try:
        with pytest.raises(Interrupted, match=r"1 update of .* is kept"):
            stage.train(rows, cipher_model, tmp_path / "model", dataclasses.replace(place, stop=stop))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert (tmp_path / "trl" / "checkpoint-1" / "SHA256SUMS").is_file() and not (tmp_path / "model").exists()
    stage.train(rows, cipher_model, tmp_path / "model", place)
    steps = [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert steps[:4] == [1, 2, 3, 4]


@pytest.mark.parametrize("method", ["sft", "reward"])
def test_a_share_of_0_trains_on_every_row_through_trl_and_measures_none(cipher_model, run, tmp_path, method):
    (tmp_path / "1-sample").symlink_to(run / "1-sample")
    stage = make_stage("trl", method=method, rollouts="1-sample", steps=1, lr=1e-3, rows=2, held_out_share=0)
    result = stage.run(setting(tmp_path / "2-trl", cipher_model))
    assert result.metrics["train_loss"] > 0
    assert not [name for name in result.metrics if name.startswith(("ranked", "likelihood"))]


@pytest.mark.long
def test_two_processes_train_through_trl_on_half_of_the_rows_each_as_one_does_on_all(cipher_model, tmp_path):
    rows = "".join(json.dumps({"prompt": f"s{n} +1", "completion": f"s{n + 1}"}) + "\n" for n in range(9))
    (tmp_path / "rows.jsonl").write_text(rows)
    weights = {}
    for processes in (1, 2):
        recipe, out = tmp_path / f"{processes}.toml", tmp_path / f"run{processes}"
        recipe.write_text(
            f'[[stage]]\nkind = "trl"\nmethod = "sft"\ndata = "{tmp_path / "rows.jsonl"}"\nsteps = 2\nlr = 1e-3\n'
            f"rows = {4 // processes}\n"
        )
        words = ["--model", str(cipher_model), "--seed", "1", "--out", str(out), "--processes", str(processes)]
        command = [sys.executable, "-m", "ttc", "train", "run", str(recipe), *words]
        subprocess.run(command, capture_output=True, check=True, timeout=120)
        weights[processes] = load_model(out / "model", "cpu").state_dict()
        assert len((out / "1-trl" / "metrics.jsonl").read_text().splitlines()) == 2
    start = load_model(cipher_model, "cpu").state_dict()
    for name, alone in weights[1].items():
        assert (alone - weights[2][name]).abs().max() < 1e-5
    assert any((alone - start[name]).abs().max() > 1e-4 for name, alone in weights[1].items())
