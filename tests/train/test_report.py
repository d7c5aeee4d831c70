"""The dashboard shows what a run left on disk: its panels, its alarms with rollouts, and nothing from a network."""

import asyncio
import dataclasses
import importlib.util
import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from evals.report.lines import Bar, Series, line_chart
from tests.fresh import heavy_modules_of
from tests.train.cipher_base import make_base, make_parts
from train import stages
from train.base.health import AlarmFile, Health, HealthRule
from train.base.stage import StageResult, write_result
from train.report import read_run, render_summary, write_report
from train.report.page import PANELS, STEMS
from train.rl.loop import LoopPlan, learn
from ttc.cli.cli import main
from ttc.errors import ConfigError, RecordError
from ttc.records import LineFile

STAGES = Path(stages.__file__).parent


def test_whatever_a_stage_measures_before_and_after_has_words_in_the_summary():
    measured = {name for path in STAGES.glob("*.py") for name in re.findall(r'gains\("(\w+)"', path.read_text())}
    assert {"moved", "good", "agreement", "likelihood"} <= measured and measured <= STEMS.keys()


ALWAYS = HealthRule(
    "always", "length", "above", 0.0, 2, "warn", "every <rollout> has a length", offending=lambda r: True
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A real run of four steps that raised alarms."""
    root = tmp_path_factory.mktemp("run")
    base = make_base(root / "base", steps=100)
    folder = root / "out" / "1-grpo"
    made = make_parts(base, folder)
    parts = dataclasses.replace(
        made,
        health=Health([ALWAYS]),
        alarm_file=AlarmFile(folder / "alarms.jsonl"),
        held_out_file=LineFile(folder / "held_out.jsonl"),
    )
    try:
        asyncio.run(learn(LoopPlan(steps=4, prompts=3, eval_every=2), parts))
    finally:
        for file in (parts.metrics, parts.rollouts, parts.alarm_file, parts.held_out_file):
            file.close()
        asyncio.run(parts.collector.engine.close())
    asked = {"recipe": "tiny", "seed": 3, "stages": [{"kind": "grpo", "fields": {"task": "<b>cipher</b>"}}]}
    (root / "out" / "run.json").write_text(json.dumps(asked))
    return root / "out"


def test_a_stage_of_several_models_shows_the_mean_of_their_metrics_and_the_alarms_of_all(tmp_path):
    asked = {"recipe": "tiny", "seed": 3, "stages": [{"kind": "reward_model", "fields": {"data": "pairs.jsonl"}}]}
    (tmp_path / "run.json").write_text(json.dumps(asked))
    for member, losses in ((1, (0.7, 0.5)), (2, (0.9, 0.7))):
        place = tmp_path / "1-reward_model" / f"member-{member}"
        place.mkdir(parents=True)
        rows = [{"step": step, "loss": loss} for step, loss in enumerate(losses, start=1)]
        (place / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (place / "alarms.jsonl").write_text(json.dumps({"step": member, "rule": f"rule-{member}"}) + "\n")
    (stage,) = read_run(tmp_path).stages
    assert stage.series("loss") == [(1, pytest.approx(0.8)), (2, pytest.approx(0.6))]
    assert [alarm["rule"] for alarm in stage.alarms] == ["rule-1", "rule-2"]


def test_the_page_is_written_without_torch(run, tmp_path):
    assert heavy_modules_of("train", "report", run, "--out", tmp_path / "page.html") == []


@pytest.fixture
def copy(run, tmp_path):
    import shutil

    shutil.copytree(run, tmp_path / "copy")
    return tmp_path / "copy"


def test_the_page_is_self_contained_and_the_same_for_the_same_run(run, tmp_path):
    first = write_report(run, tmp_path / "a.html").read_text()
    assert first == write_report(run, tmp_path / "pages" / "b.html").read_text()
    assert not re.search(r"https?://|<script|src=|@import|url\(", first)
    assert "default-src 'none'" in first and "<b>cipher</b>" not in first


def test_everything_that_the_loop_logs_is_on_a_panel(run):
    (stage,) = read_run(run).stages
    shown = {metric for panel in PANELS for metric in panel.metrics}
    families = tuple(name[:-1] for name in shown if name.endswith("*"))
    logged = {name for row in stage.rows for name in row if not name.startswith(families)}
    counters = {"step", "seconds", "tokens", "tokens_learnt", "updated", "not_finite", "rollout_share"}
    derived = {"gap", "gap_low", "form_gap", "held_out_drop", "judges_widening"}  # differences of what is shown
    assert logged - shown <= counters | derived


def test_held_out_accuracy_has_an_interval_from_before_the_first_update_on(run):
    (stage,) = read_run(run).stages
    assert [point.step for point in stage.held_out] == [0, 2, 4]
    for point in stage.held_out:
        assert 0 <= point.interval.low <= point.interval.value <= point.interval.high <= 1 and point.num > 1


def test_alarms_stand_on_the_page_with_their_offending_rollouts(run):
    (stage,) = read_run(run).stages
    assert [alarm["step"] for alarm in stage.alarms] == [2, 4]
    assert len(stage.alarms[0]["rollouts"]) == 3
    assert any(row["text"] or row["thinking"] for row in stage.alarms[0]["rollouts"])
    page = write_report(run).read_text()
    assert "every &lt;rollout&gt; has a length" in page
    assert stage.alarms[-1]["rollouts"][0]["problem"] in page
    assert page.count('class="alarm"') == 2  # both on the panel of lengths, and on no other


def test_rollouts_of_several_steps_are_shown(run):
    (stage,) = read_run(run).stages
    assert set(stage.samples) == {1, 2, 3, 4}
    assert all(1 <= len(rows) <= 4 for rows in stage.samples.values())


def test_the_summary_says_where_it_started_and_ended_and_which_alarms_there_were(run, capsys):
    text = render_summary(read_run(run))
    assert "tiny, seed 3" in text and "not finished, 4 steps logged" in text
    assert re.search(r"held-out accuracy, \d+ problems +[\d.]+ % \(.*\) -> ", text)
    assert "always at step 2, 4 -> warn: every <rollout> has a length" in text
    assert main(["train", "report", str(run)]) == 0
    assert capsys.readouterr().out == text


def test_what_a_stage_measured_of_itself_is_shown_with_its_intervals(copy):
    names = [f"held_out_{part}{end}" for part in ("before", "after", "gain") for end in ("", "_low", "_high")]
    numbers = dict(zip(names, (0.1, 0.05, 0.2, 0.6, 0.5, 0.7, 0.5, 0.4, 0.6), strict=True))
    write_result(copy / "1-grpo", StageResult(str(copy / "1-grpo" / "model"), numbers, "held-out accuracy reached 1"))
    text = render_summary(read_run(copy))
    assert re.search(r"10.0 % \(5.0 to 20.0\) -> 60.0 % \(50.0 to 70.0\), gain 50.0 % \(40.0 to 60.0\)", text)
    assert "done, 4 steps logged, held-out accuracy reached 1" in text
    assert "gain 50.0 %" in write_report(copy).read_text()


def test_steps_that_a_cut_attempt_had_beyond_the_end_of_the_one_that_went_on_are_left_out(copy):
    path = copy / "1-grpo" / "metrics.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines, lines[1]]) + "\n")  # went on after step 1, and ended after step 2
    (stage,) = read_run(copy).stages
    assert [row["step"] for row in stage.rows] == [json.loads(line)["step"] for line in lines[:2]]
    assert max(point.step for point in stage.held_out) == max(row["step"] for row in stage.alarms) == 2


def test_a_step_that_was_written_twice_counts_once_as_last_written(copy):
    path = copy / "1-grpo" / "metrics.jsonl"
    path.write_text(path.read_text() + '{"step": 4, "length": 77.0}\n')
    (stage,) = read_run(copy).stages
    assert [row["step"] for row in stage.rows] == [1, 2, 3, 4] and stage.series("length")[-1] == (4, 77.0)


def test_a_torn_last_line_is_ignored_and_a_broken_one_is_named(copy):
    path = copy / "1-grpo" / "metrics.jsonl"
    whole = path.read_text()
    path.write_text(whole + '{"step": 5, "len')
    assert len(read_run(copy).stages[0].rows) == 4
    path.write_text(whole + '{"length": 5}\n')
    with pytest.raises(RecordError, match=r"metrics\.jsonl, line 5"):
        read_run(copy)


def test_folders_that_are_no_run_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"no run\.json"):
        read_run(tmp_path)
    (tmp_path / "run.json").write_text('{"recipe": "x", "seed": 1, "stages": []}')
    with pytest.raises(ConfigError, match="nothing to report"):
        read_run(tmp_path)


def test_charts_are_well_formed_whatever_the_values():
    bars = [Bar(0, 0.5, 0.4, 0.6)]
    for series in (
        [Series("one", [(3, 2.0)])],
        [Series("flat", [(1, 0.0), (2, 0.0)])],
        [Series("wide", [(1, 1e-9), (2, 3e-2)])],
        [Series("signs", [(1, -5.0), (2, 7.0)])],
        [Series("long", [(float(i), float(i % 7)) for i in range(5000)])],
        [Series("a<b", [], bars)],
    ):
        svg = line_chart("x", series, marks=[1, 99])
        root = ElementTree.fromstring(svg)
        numbers = [float(value) for node in root.iter() for key in ("cx", "cy", "x1", "y1") if (value := node.get(key))]
        assert all(-1 <= number <= 521 for number in numbers)
        assert len(svg) < 60_000
    assert line_chart("x", [Series("none", [])]) == ""


@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is not None, reason="tensorboard is installed")
def test_a_missing_writer_names_its_install_command(run, tmp_path, capsys):
    assert main(["train", "report", str(run), "--out", str(tmp_path / "r.html"), "--tensorboard", str(tmp_path)]) == 2
    assert "pip install tensorboard" in capsys.readouterr().err


def test_a_page_that_cannot_be_written_is_refused_with_what_to_name(copy, capsys):
    (copy / "report.html").unlink(missing_ok=True)
    (copy / "report.html").mkdir()
    assert main(["train", "report", str(copy)]) == 2
    assert "report.html is a folder; name a file in it" in capsys.readouterr().err


def test_a_run_in_a_folder_that_nobody_writes_to_is_told_and_its_page_asked_another_place(copy, capsys, monkeypatch):
    monkeypatch.setattr("train.commands.train.os.access", lambda *asked: False)
    assert main(["train", "report", str(copy)]) == 2
    out, err = capsys.readouterr()
    assert "held-out accuracy" in out and f"{copy} cannot be written to: give the page another place with --out" in err
    assert main(["train", "report", str(copy), "--out", str(copy.parent / "page.html")]) == 0
