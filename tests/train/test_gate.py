"""A model is promoted only when every gate passes, and each gate fails for its own reason."""

import json
import shutil

import pytest

from evals.numbers.gates import GateCheck
from tests.train.cipher_base import STEPS, SYMBOLS, WALKS
from tests.train.stages import make_stage
from train.base.models import load_model, load_tokenizer, save_model
from train.base.stage import Setting, StageResult, write_result
from train.measure.gates import read_gates
from train.promote import gate
from train.promote.gate import _Answered, digest, judge, promote, read_reviews, safe
from train.recipe.recipe import read_recipe
from train.stages.sample import sample
from ttc.cli.cli import main
from ttc.core import Usage
from ttc.errors import ConfigError, RecordError

TASK = f"cipher:symbols={SYMBOLS},max_steps={STEPS}"


@pytest.fixture(scope="module")
def run(cipher_model, tmp_path_factory):
    """A finished run: the base as if pretrained, its rollouts, and the model that learnt from the right ones."""
    root = tmp_path_factory.mktemp("run")
    first = root / "1-pretrain"
    first.mkdir()
    save_model(load_model(cipher_model, "cpu"), load_tokenizer(cipher_model), first / "model")
    write_result(first, StageResult(str(first / "model"), {"seconds": 40.0}))
    for name, stage in (
        ("2-sample", sample(task=WALKS, n=6)),
        ("3-sft", make_stage("sft", rollouts="2-sample", steps=40, lr=3e-3)),
    ):
        (root / name).mkdir()
        write_result(root / name, stage.run(Setting(root / name, first / "model", 1, "cpu", 1, lambda text: None)))
    (root / "model").symlink_to("3-sft/model")
    asked = {"recipe": "tiny", "seed": 1, "stages": [], "gates": {"held_out": WALKS, "min_gain": 0.0}}
    (root / "run.json").write_text(json.dumps(asked))
    return root


def checked(run, **table):
    found = judge(read_gates({"held_out": WALKS, **table}, "x"), run, None, Setting(run, None, 1, "cpu", 1, print))
    return {check.gate: check for check in found}


def test_variants_of_one_problem_weigh_as_one(run, monkeypatch):
    def answers(groups):
        def answered(task, limit, model, setting, *, greedy=True):
            return _Answered([float("3-sft" in str(model))] * len(groups), groups, Usage())

        monkeypatch.setattr(gate, "_answers", answered)
        return checked(run, min_gain=0.5, min_accuracy=0.5)

    assert all(check.passed for check in answers([f"p{i}" for i in range(40)]).values())
    found = answers([f"p{i % 2}" for i in range(40)])
    assert not found["min_gain"].passed and not found["min_accuracy"].passed


def test_reviews_count_only_for_the_very_model_they_read_and_only_when_enough_accept(run, tmp_path):
    name, path = digest(run / "model"), tmp_path / "reviews.jsonl"

    def write(accepted, model=name):
        rows = [{"id": f"t{i}", "model": model, "accept": i < accepted, "by": "ada"} for i in range(30)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return checked(run, reviews=str(path), min_accepted=0.7)["reviews"]

    assert write(30).passed and not write(22).passed
    stale = write(30, "0123456789abcdef")
    assert not stale.passed and name in stale.text and "0 traces" in stale.text
    path.write_text('{"id": "t1", "model": "x", "accept": "yes"}\n')
    with pytest.raises(RecordError, match="line 1"):
        checked(run, reviews=str(path))
    with pytest.raises(ConfigError, match="does not exist"):
        checked(run, reviews=str(tmp_path / "none.jsonl"))


def test_the_last_review_counts_though_no_newline_ends_it(tmp_path):
    path = tmp_path / "reviews.jsonl"
    path.write_text('{"id": "t1", "model": "x", "accept": true}\n{"id": "t2", "model": "x", "accept": false}')
    assert read_reviews(path, "x") == [("t1", True), ("t2", False)]


def test_one_unsafe_answer_fails_the_safety_gate():
    assert safe("x", [[1.0, 1.0], [1.0, 1.0]]).passed
    found = safe("x", [[1.0, 1.0, 1.0], [1.0, 0.0, 1.0]])
    assert not found.passed and found.value == 1.0 and "number 1" in found.text


def test_safety_cases_are_answered_by_the_candidate(run):
    assert not checked(run, safety=[TASK])["safety"].passed  # it samples, and is not always right


def test_the_win_rate_is_that_of_a_trained_reward_model(run, tmp_path):
    rollouts = str(run / "2-sample" / "rollouts.jsonl")
    stage = make_stage("reward_model", rollouts=rollouts, steps=40, rows=16, lr=2e-3, eval_every=40)
    stage.run(Setting(tmp_path, run / "1-pretrain" / "model", 1, "cpu", 1, lambda text: None))
    table = {"reward_model": [str(tmp_path)], "limit": 32}
    found = checked(run, min_win_rate=0.0, **table)["min_win_rate"]
    assert found.passed and 0 < found.value < 1
    assert not checked(run, min_win_rate=1.0, **table)["min_win_rate"].passed


def test_a_better_model_passes_and_the_pointer_moves_to_it(run, capsys):
    assert main(["train", "gate", str(run), "--seed", "1"]) == 0
    told = capsys.readouterr().out
    assert "pass  min_gain" in told and "promoted: " in told
    assert (run / "promoted").resolve() == (run / "3-sft" / "model").resolve()
    assert load_model(run / "promoted", "cpu") is not None
    assert json.loads((run / "gate.json").read_text())["passed"] is True


def test_a_failed_gate_leaves_the_last_promoted_model_in_place(run, tmp_path, capsys):
    pointer = run / "promoted"
    pointer.unlink(missing_ok=True)
    pointer.symlink_to("1-pretrain/model")
    (tmp_path / "gates.toml").write_text(f'[gates]\nheld_out = "{TASK}"\nmin_accuracy = 1.0\n')
    assert main(["train", "gate", str(run), "--seed", "1", "--gates", str(tmp_path / "gates.toml")]) == 3
    told = capsys.readouterr().out
    assert "FAIL  min_accuracy" in told and "not promoted" in told
    assert pointer.resolve() == (run / "1-pretrain" / "model").resolve()
    assert json.loads((run / "gate.json").read_text())["passed"] is False


@pytest.mark.parametrize(
    ("gate", "tight", "loose"),
    [
        ("min_accuracy", 1.0, 0.2),
        ("min_gain", 0.99, 0.0),
        ("max_length", 2.0, 20.0),
        ("max_kl", 1e-6, 50.0),
        ("max_mflops", 1e-3, 100.0),
        ("max_seconds", 39.0, 41.0),
    ],
)
def test_each_gate_fails_on_one_side_of_its_bound_and_passes_on_the_other(run, gate, tight, loose):
    failed, passed = checked(run, **{gate: tight})[gate], checked(run, **{gate: loose})[gate]
    assert not failed.passed and passed.passed
    # Which prompt's beginning another one finds in the cache depends on the schedule, and FLOPs on that.
    assert failed.value == (pytest.approx(passed.value, rel=0.05) if gate == "max_mflops" else passed.value)
    assert (failed.bound, passed.bound) == (tight, loose)


def test_the_divergence_of_a_model_from_itself_is_zero(run):
    from evals.tasks.cipher import cipher
    from train.promote.gate import divergence

    items = cipher(symbols=SYMBOLS, max_steps=STEPS).items(4, 0)
    base, setting = run / "1-pretrain" / "model", Setting(run, None, 1, "cpu", 1, print)
    assert divergence(base, base, items, 14, setting) == pytest.approx(0.0, abs=1e-7)
    assert divergence(run / "3-sft" / "model", base, items, 14, setting) > 0.01


def test_canaries_that_were_trained_on_are_found_and_named(run):
    clean = checked(run, canaries=TASK, max_canary_drop=1.0)
    assert clean["canaries_unseen"].passed and clean["canaries"].passed
    leaked = checked(run, canaries=WALKS, max_canary_drop=1.0)["canaries_unseen"]
    assert not leaked.passed and leaked.value > 30 and "such as 's" in leaked.text


def test_retention_is_no_worse_beyond_doubt_so_few_problems_do_not_pass_by_luck(run):
    few = checked(run, retention=(TASK,), max_drop=0.02, limit=3)["retention"]
    assert not few.passed and few.value > 0.02
    assert checked(run, retention=(TASK,), max_drop=1.0)["retention"].passed


def test_a_run_that_a_health_rule_stopped_is_never_promoted(run, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(run, copy, symlinks=True)
    done = copy / "3-sft" / "done.json"
    done.write_text(json.dumps({**json.loads(done.read_text()), "stopped": "health rule repetition: x"}))
    found = checked(copy, min_gain=-1.0)
    assert not found["finished"].passed
    (copy / "promoted").unlink(missing_ok=True)
    assert promote(copy, list(found.values())) is None and not (copy / "promoted").exists()
    done.unlink()
    with pytest.raises(ConfigError, match="not finished"):
        checked(copy, min_gain=-1.0)


def test_a_run_that_was_cut_between_two_stages_is_not_finished(run, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(run, copy, symlinks=True)
    asked = json.loads((copy / "run.json").read_text())
    (copy / "run.json").write_text(json.dumps({**asked, "stages": [{}] * 4}))
    with pytest.raises(ConfigError, match="not finished"):
        checked(copy, min_gain=-1.0)


def test_the_pointer_is_moved_in_one_step(run):
    (run / ".promoted.1.partial").symlink_to("nowhere")  # a promotion that was killed
    assert promote(run, [GateCheck("x", True, 1.0, 1.0, "")]) == run / "promoted"
    assert (run / "promoted" / "config.json").is_file()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "held_out"),
        ({"held_out": TASK}, "holds no gate"),
        ({"held_out": TASK, "min_acuracy": 0.5}, "min_accuracy"),
        ({"held_out": TASK, "min_accuracy": 1.5}, r"gates\.min_accuracy must be in \[0, 1\]"),
        ({"held_out": TASK, "max_kl": -1.0}, r"gates\.max_kl must be above 0"),
        ({"held_out": "ciper", "min_gain": 0.0}, "cipher"),
        ({"held_out": TASK, "min_gain": 0.0, "max_drop": 0.1}, r"gates\.max_drop is read with gates\.retention alone"),
        ({"held_out": TASK, "retention": ["nothing"]}, "nothing"),
        ("strict", "must be a table"),
    ],
)
def test_a_broken_table_is_refused_by_field(table, message):
    with pytest.raises(ConfigError, match=message):
        read_gates(table, "r.toml")


def test_gates_are_checked_with_the_recipe_before_anything_runs(tmp_path):
    path = tmp_path / "recipe.toml"
    stage = f'about = "x"\n[[stage]]\nkind = "pretrain"\ncorpus = "{TASK}"\nsteps = 1\n'
    path.write_text(f'{stage}[gates]\nheld_out = "{TASK}"\nmin_acuracy = 0.5\n')
    with pytest.raises(ConfigError, match="min_accuracy"):
        read_recipe(str(path))
    table = f'[gates]\nheld_out = "{TASK}"\nmin_accuracy = 0.5\n[gates.small]\nlimit = 9\n'
    path.write_text(f"{stage}[stage.small]\nrows = 2\n{table}")
    assert read_recipe(str(path)).gates == {"held_out": TASK, "min_accuracy": 0.5}
    assert read_recipe(str(path), scale="small").gates == {"held_out": TASK, "min_accuracy": 0.5, "limit": 9}


def test_a_run_without_gates_or_with_an_outside_start_says_what_to_give(run, tmp_path, capsys):
    (tmp_path / "run.json").write_text('{"recipe": "x", "seed": 1, "stages": []}')
    assert main(["train", "gate", str(tmp_path), "--seed", "1"]) == 2
    assert "declares no gates" in capsys.readouterr().err
    (tmp_path / "1-sft").mkdir()
    write_result(tmp_path / "1-sft", StageResult(str(run / "3-sft" / "model")))
    with pytest.raises(ConfigError, match="give --model"):
        checked(tmp_path, min_gain=0.0)


def test_a_gate_finds_the_model_that_its_run_started_from(run, tmp_path):
    (tmp_path / "run.json").write_text('{"recipe": "x", "seed": 1, "stages": []}')
    (tmp_path / "1-sft").mkdir()
    write_result(tmp_path / "1-sft", StageResult(str(run / "3-sft" / "model")))
    (tmp_path / "start").symlink_to(run / "3-sft" / "model")
    assert checked(tmp_path, min_gain=0.0)["min_gain"].value < 1e-9  # of the model over itself
