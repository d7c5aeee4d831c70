"""Every stage's model on every held-out task: what a stage gained, and what it cost the ones before it."""

import json
import math

import pytest

from evals.numbers.statistics import Interval
from tests.train.cipher_base import STEPS, SYMBOLS
from tests.train.tiny_recipe import GRPO, PRETRAIN, write
from train.base.models import load_model, load_tokenizer, save_model
from train.base.stage import Setting
from train.measure.retention import (
    Kept,
    Retention,
    TaskAnswers,
    _kept,
    measure_retention,
    read_kept,
    read_retention,
    write_kept,
)
from train.recipe.recipe import read_recipe
from train.recipe.run import RunOptions, run_recipe
from train.report import read_run, render_summary
from train.report.page import render_page, render_retention, retention_lines
from ttc.errors import ConfigError, RecordError

TASK = f"cipher:symbols={SYMBOLS},max_steps={STEPS}"

SAMPLE = """[[stage]]
kind = "sample"
task = "cipher:symbols=8,max_steps=2,split=train"
limit = 2
n = 2
"""
RECIPE = f'about = "x"\n[retention]\nlimit = 4\n{PRETRAIN}{SAMPLE}{GRPO}start = "1-pretrain"\n'


def test_wins_count_ties_and_missing_verdicts_one_half_and_changes_are_paired():
    old = TaskAnswers([1, 0, 0, 0], [1, 0, 0, 0], [1.0, 0.5, 0.2, math.nan], "abcd")
    new = TaskAnswers([1, 1, 0, 0], [1, 1, 0, 0], [1.0, 1.0, 0.1, 0.3], "abcd")
    row = _kept("2-sft", "x", new, old, seed=0)
    assert row.wins is not None and row.wins.value == (0.5 + 1 + 0 + 0.5) / 4
    assert row.change is not None and row.change.value == 0.25
    twice = TaskAnswers([1, 0], [1, 1, 0, 1], [1.0, 1.0, 0.0, 1.0], "ab")
    assert _kept("1-a", "x", twice, None, seed=0).sampled.value == 0.75
    first = _kept("1-pretrain", "x", old, None, seed=0)
    assert first.change is None and first.wins is None and first.sampled.value == 0.25


def test_a_ruined_model_loses_against_the_one_before_and_equal_ones_tie(cipher_model, tmp_path):
    model, tokenizer = load_model(cipher_model, "cpu"), load_tokenizer(cipher_model)
    for parameter in model.parameters():
        parameter.data.mul_(0.0)
    save_model(model, tokenizer, tmp_path / "ruined")
    setting = Setting(tmp_path, None, 1, "cpu", 1, lambda text: None)
    models = [("1-a", cipher_model), ("2-b", cipher_model), ("3-c", tmp_path / "ruined")]
    rows = measure_retention(Retention((), 8, 2), models, [TASK], setting)
    assert [row.stage for row in rows] == ["1-a", "2-b", "3-c"]
    assert rows[1].wins is not None and rows[1].wins.low < rows[1].wins.value == 0.5 < rows[1].wins.high
    assert rows[1].change is not None and rows[1].change.value == 0
    assert rows[2].sampled.value == 0 and rows[2].wins is not None and rows[2].wins.value <= 0.5
    write_kept(tmp_path, rows)
    assert read_kept(tmp_path) == rows


def test_a_recipe_with_the_table_is_measured_at_its_end_and_reported(tmp_path):
    recipe = read_recipe(write(tmp_path, RECIPE))
    assert recipe.steps[2].start == "1-pretrain"
    run = tmp_path / "run"
    run_recipe(recipe, RunOptions(run, 1, None, "cpu", 1), lambda text: None)
    rows = read_kept(run)
    assert [row.stage for row in rows] == ["1-pretrain", "3-grpo"]  # the stage that passes its model through has none
    before = (run / "retention.json").read_text()
    run_recipe(recipe, RunOptions(run, 1, None, "cpu", 1), lambda text: None)
    assert (run / "retention.json").read_text() == before
    data = read_run(run)
    assert "retention: sampled accuracy" in render_summary(data) and "<h2>Retention</h2>" in render_page(data)


def test_the_table_shows_every_model_and_task_and_is_nothing_without_rows():
    half = Interval(0.5, 0.25, 0.75)
    rows = [Kept("1-a", "x<y", half, half), Kept("2-b", "x<y", half, half, Interval(0.1, 0, 0.2), half)]
    assert "2-b                50.0 (+10.0, +0.0 to +20.0; wins 50.0)" in retention_lines(rows)[-1]
    assert "x&lt;y" in render_retention(rows)
    assert not retention_lines([]) and not render_retention([])


@pytest.mark.parametrize(
    ("table", "message"),
    [({"limit": 0}, "limit"), ({"taks": []}, "tasks"), ({"tasks": ["nothing"]}, "nothing"), (3, "must be a table")],
)
def test_a_table_that_cannot_be_is_refused_by_field(table, message):
    with pytest.raises(ConfigError, match=message):
        read_retention(table, "recipe.toml")


def test_a_stage_that_starts_from_none_before_it_is_refused(tmp_path):
    path = write(tmp_path, RECIPE.replace('start = "1-pretrain"', 'start = "3-grpo"'))
    with pytest.raises(ConfigError, match=r"stage 3: start names '3-grpo'.*1-pretrain"):
        read_recipe(path)


def test_a_broken_file_says_what_to_do(tmp_path):
    (tmp_path / "retention.json").write_text(json.dumps([{"stage": "1-a", "task": "x", "wrong": 1}]))
    with pytest.raises(RecordError, match="delete it and run again"):
        read_kept(tmp_path)
