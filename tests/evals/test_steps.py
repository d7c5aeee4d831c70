"""Labelled steps: reading, exact labels, scoring by any scorer, first-error F1, calibration, the command."""

from __future__ import annotations

import asyncio
import gzip
import json
import math
import os
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evals.data.steps import label_rows, read_labelled, sample_labelled, score_rows, write_labelled
from evals.data.worked_steps import ArithmeticSteps
from evals.numbers.step_metrics import (
    Judged,
    calibration,
    calibration_error,
    first_error,
    fit_threshold,
    ranking,
    split,
)
from evals.tasks.arithmetic import arithmetic
from ttc.cli.cli import main
from ttc.core import Message, Problem, Prompt, Sampling, Score, Scorer, Usage, UsageSink
from ttc.engines.scripted import ScriptedEngine
from ttc.errors import ConfigError, EngineError, RecordError

DATA = os.environ.get("TTC_DATA")
ENGINE = ScriptedEngine(lambda prompt, path, key: "2+3=5\n\n5*4=21\n\n</think>\n\nThe answer is \\boxed{21}.")


def judged(labels: Sequence[float | None], scores: Sequence[float] | None, name: str = "r") -> Judged:
    return Judged(name, name, tuple(labels), None if scores is None else tuple(scores))


# -- figures -----------------------------------------------------------------------------------------------------------
def test_first_error_f1_is_the_harmonic_mean_of_both_accuracies() -> None:
    rows = [
        judged([1, 0, None], [0.9, 0.2, 0.1], "found"),
        judged([1, 0, None], [0.3, 0.2, 0.1], "too early"),
        judged([1, 1], [0.9, 0.8], "sound"),
        judged([1, 1], [0.9, 0.4], "false alarm"),
        judged([1, 1], [0.9, 0.9], "sound too"),
        judged([1, 1], [0.9, 0.9], "sound as well"),
        judged([1, 0], None, "unscored"),
    ]
    found = first_error(rows, 0.5, seed=1)
    assert (found.num_with_error, found.num_without, found.num_unscored) == (2, 4, 1)
    assert (found.with_error.value, found.without.value) == (0.5, 0.75)
    assert found.f1.value == pytest.approx(0.6)
    assert found.f1.low < 0.6 < found.f1.high
    assert first_error(rows[2:6], 0.5, seed=1).f1.value != first_error(rows[2:6], 0.5, seed=1).f1.value  # NaN


def test_an_f1_without_a_miss_is_not_taken_for_certainty() -> None:
    rows = [Judged(f"s{i}", f"c{i}", (1.0, float(i % 2)), (0.9, 0.9 if i % 2 else 0.1)) for i in range(40)]
    f1 = first_error(rows, 0.5, seed=1).f1
    assert (f1.value, f1.high) == (1.0, 1.0) and 0.8 < f1.low < 0.95


def test_a_fitted_threshold_is_the_best_there_is_and_is_chosen_on_other_rows() -> None:
    rng = random.Random(1)
    rows = []
    for number in range(400):
        wrong = rng.randrange(4) if number % 2 else None
        scores = [rng.uniform(0.0, 0.3) if at == wrong else rng.uniform(0.31, 1.0) for at in range(4)]
        labels = [None if wrong is not None and at > wrong else float(at != wrong) for at in range(4)]
        rows.append(judged(labels, scores, f"r{number}"))
    fitted_on, told = split(rows)
    assert not {row.name for row in fitted_on} & {row.name for row in told}
    assert 150 < len(told) < 250
    threshold = fit_threshold(fitted_on)
    assert 0.28 < threshold < 0.32
    assert first_error(told, threshold, seed=1).f1.value > 0.95
    assert first_error(told, 0.9, seed=1).f1.value < 0.5
    assert fit_threshold([judged([1], None)]) == 0.5


def test_calibrated_scores_lie_on_the_line_and_inverted_ones_do_not() -> None:
    rng = random.Random(2)
    scores = [rng.random() for _ in range(4000)]
    rows = [judged([float(rng.random() < score)], [score], str(at)) for at, score in enumerate(scores)]
    bins = calibration(rows, seed=1)
    assert [item.count for item in bins] == [400] * 10
    assert all(item.right.low < item.score < item.right.high for item in bins[2:8])
    assert calibration_error(bins) < 0.03
    assert ranking(rows) > 0.8
    turned = [judged(row.labels, [1 - row.scores[0]], row.name) for row in rows if row.scores]
    assert calibration_error(calibration(turned, seed=1)) > 0.4
    assert ranking(turned) == pytest.approx(1 - ranking(rows))


def test_calibration_does_not_depend_on_the_order_of_steps_of_one_score() -> None:
    rows = [judged([float(at < 50)], [0.5], str(at)) for at in range(100)]  # the right ones come first
    (whole,) = calibration(rows, seed=1)
    assert (whole.count, whole.score, whole.right.value) == (100, 0.5, 0.5)
    coarse = [judged([float(at < 70)], [0.25 if at % 4 else 0.75], str(at)) for at in range(100)]
    assert [(each.count, each.score) for each in calibration(coarse, seed=1)] == [(75, 0.25), (25, 0.75)]


def test_ranking_counts_ties_as_half_and_needs_both_kinds() -> None:
    assert ranking([judged([1, 0], [0.5, 0.5])]) == 0.5
    assert ranking([judged([1, 0, None], [0.6, 0.5, 0.9])]) == 1.0
    assert math.isnan(ranking([judged([1, 1], [0.6, 0.5])]))
    assert calibration([], seed=1) == []


# -- labels ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("steps", "labels"),
    [
        (["2+3=5", "5*4=20", "</think>", r"The answer is \boxed{20}."], (1.0, 1.0, None, 1.0)),
        (["2+3=5", "5*4=21", "</think>", r"The answer is \boxed{21}."], (1.0, 0.0, None, 0.0)),
        (["2+3=6", "Wait, 2+3=5", "5*4=20"], (0.0, 1.0, 1.0)),
        (["3*4=12", "2+3=5"], (0.0, 0.0)),
        (["Time is up, I must answer now."], (None,)),
    ],
)
def test_every_step_of_arithmetic_is_labelled_exactly(steps: list[str], labels: tuple[float | None, ...]) -> None:
    problem = Problem("p", (Message("user", "Compute (2+3)*4."),), "number")
    assert asyncio.run(ArithmeticSteps().check(problem, None, steps)).labels == labels


def test_a_problem_that_is_no_expression_has_no_exact_labels() -> None:
    with pytest.raises(ConfigError, match="'p' asks for no expression"):
        asyncio.run(ArithmeticSteps().check(Problem("p", (Message("user", "Why?"),)), None, ["1+1=2"]))


class Remembering(ScriptedEngine):
    """Counts the problems whose keys it was told to forget; the last one cannot be drawn for."""

    def __init__(self) -> None:
        super().__init__(self._say)
        self.forgotten: list[str] = []

    def _say(self, prompt: Prompt, path: tuple[int, ...], key: int) -> str:
        if "Compute 1+1." in prompt.text:
            raise EngineError("out of memory")
        return "2"

    def prune(self, problem_id: str, path: tuple[int, ...]) -> None:
        """Nothing is kept for a path."""

    def release(self, problem_id: str) -> None:
        self.forgotten.append(problem_id)


def test_an_engine_forgets_every_sampled_problem_also_one_whose_draw_fails() -> None:
    engine, items = Remembering(), arithmetic(level=1).items(2, 0)
    failing = replace(items[0], problem=Problem("no", (Message("user", "Compute 1+1."),), "number"))
    asyncio.run(sample_labelled(engine, items, ArithmeticSteps(), n=1, sampling=Sampling(), seed=1))
    assert sorted(engine.forgotten) == sorted(item.problem.id for item in items)
    with pytest.raises(EngineError, match="out of memory"):
        asyncio.run(sample_labelled(engine, [failing], ArithmeticSteps(), n=1, sampling=Sampling(), seed=1))
    assert engine.forgotten[-1] == "no"


def test_sampled_solutions_are_cut_into_steps_labelled_and_read_back(tmp_path: Path) -> None:
    items = arithmetic(level=1).items(3, 0)
    rows, usage = asyncio.run(sample_labelled(ENGINE, items, ArithmeticSteps(), n=2, sampling=Sampling(), seed=1))
    assert len(rows) == 6
    assert usage.generated > 0
    assert rows[0].steps == ("2+3=5", "5*4=21", "</think>", "The answer is \\boxed{21}.")
    assert {row.cluster for row in rows} == {item.problem.id for item in items}
    write_labelled(tmp_path / "rows.jsonl", rows, "test")
    again = read_labelled(tmp_path / "rows.jsonl")
    assert [(row.problem.id, row.steps, row.labels, row.cluster, row.target) for row in again] == [
        (row.problem.id, row.steps, row.labels, row.cluster, row.target) for row in rows
    ]
    relabelled, _ = asyncio.run(label_rows(again, ArithmeticSteps()))
    assert [row.labels for row in relabelled] == [row.labels for row in rows]


@pytest.mark.parametrize(
    ("row", "labels"),
    [
        ({"mistake_index": 1}, (1.0, 0.0, None)),
        ({"mistake_index": None}, (1.0, 1.0, 1.0)),
        ({"label": -1}, (1.0, 1.0, 1.0)),
        ({"label": 0}, (0.0, None, None)),
        ({"labels": [1, 0.25, None]}, (1.0, 0.25, None)),
        ({"labels": [True, False, None]}, (1.0, 0.0, None)),
        ({}, (None, None, None)),
    ],
)
def test_labels_are_read_in_every_form(tmp_path: Path, row: dict[str, Any], labels: tuple[float | None, ...]) -> None:
    file = tmp_path / "rows.jsonl.gz"
    with gzip.open(file, "wt") as out:
        out.write(json.dumps({"problem": "2?", "steps": ["a", "b\n\nc", "d"], **row}) + "\n")
    (found,) = read_labelled(file)
    assert found.labels == labels
    assert found.steps == ("a", "b\nc", "d")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"steps": []}, "steps: expected a list"),
        ({"problem": ""}, "problem: expected"),
        ({"label": 2, "labels": [1, 1]}, "give one of"),
        ({"label": 7}, "label: expected the index"),
        ({"mistake_index": "x"}, "mistake_index: expected the index"),
        ({"labels": [1]}, "labels: expected 2 numbers"),
        ({"labels": [1, 2]}, "labels: expected 2 numbers"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"problem": "2?", "steps": ["a", "b"], **row}) + "\n")
    with pytest.raises(RecordError, match=f"line 1: {message}"):
        read_labelled(file)
    file.write_text("")
    with pytest.raises(ConfigError, match="no rows"):
        read_labelled(file)


# -- scores ------------------------------------------------------------------------------------------------------------
class Steps(Scorer):
    """Scores each step by its text; keeps what it was shown."""

    def __init__(self, *, whole: bool) -> None:
        self.whole, self.seen = whole, list[str]()

    async def score(self, prompts: Sequence[Prompt], on_usage: UsageSink) -> list[Score]:
        on_usage(Usage(scored=len(prompts)))
        self.seen += [prompt.generated_text for prompt in prompts]
        return [self._one(prompt) for prompt in prompts]

    def _one(self, prompt: Prompt) -> Score:
        steps = tuple(0.1 if "21" in step else 0.9 for step in prompt.generated_text.strip().split("\n\n"))
        if "silent" in prompt.generated_text:
            return Score(None)
        return Score(steps[-1], steps if self.whole else ())


def rows_of(*steps: str) -> str:
    return json.dumps({"problem": "2?", "steps": list(steps), "mistake_index": 1, "answer": "secret"}) + "\n"


@pytest.mark.parametrize("whole", [True, False])
def test_scorers_with_and_without_step_scores_are_asked_alike(tmp_path: Path, whole: bool) -> None:
    (tmp_path / "rows.jsonl").write_text(rows_of("2+3=5", "5*4=21", "done") + rows_of("silent", "21"))
    scorer = Steps(whole=whole)
    found, usage = asyncio.run(score_rows(read_labelled(tmp_path / "rows.jsonl"), ENGINE, scorer, seed=1))
    assert [row.scores for row in found] == [(0.9, 0.1, 0.9), None]
    assert usage.scored > 0
    assert not any("secret" in text for text in scorer.seen)


def test_the_packaged_reward_model_tells_right_steps_from_wrong_ones(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--data", "arithmetic", "--level", "2", "--limit", "12", "--n", "2", "--json"]
    assert main(["steps", "eval", *options]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["num"] == 24
    assert report["auc"] > 0.7
    assert report["usage"]["scored"] > 0
    assert sum(item["count"] for item in report["calibration"]) > 24


def test_steps_are_labelled_by_rollouts_and_evaluated_from_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "labels.jsonl")
    options = ["--data", "arithmetic", "--level", "1", "--limit", "2", "--n", "1"]
    assert main(["steps", "label", *options, "--checker", "rollouts", "--rollouts", "2", "--out", out]) == 0
    assert "2 solutions labelled by rollouts-1 2 of" in capsys.readouterr().out
    assert all(0 <= label <= 1 for row in read_labelled(Path(out)) for label in row.labels if label is not None)
    assert main(["steps", "eval", "--data", out, "--threshold", "0.3"]) == 0
    assert "threshold 0.3; " in capsys.readouterr().out


def test_what_cannot_be_evaluated_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rows.jsonl").write_text('{"problem": "2?", "steps": ["a"]}\n')
    assert main(["steps", "eval", "--data", str(tmp_path / "rows.jsonl")]) == 2
    assert "no step has a label" in capsys.readouterr().err
    assert main(["steps", "eval", "--data", "nowhere.jsonl"]) == 2
    assert "--data nowhere.jsonl does not exist" in capsys.readouterr().err
    assert main(["steps", "eval", "--data", "arithmetic", "--limit", "0"]) == 2
    assert "steps: limit must be at least 1, got 0" in capsys.readouterr().err
    assert main(["steps", "eval", "--data", "arithmetic", "--threshold", "high"]) == 2
    assert "--threshold must be a number or fit" in capsys.readouterr().err


def test_a_file_is_refused_before_the_engine_is_looked_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken, bare, out = tmp_path / "broken.jsonl", tmp_path / "bare.jsonl", tmp_path / "new" / "labels.jsonl"
    broken.write_text('{"problem": "2?", "steps": []}\n')
    bare.write_text('{"problem": "2?", "steps": ["a"]}\n')
    engine = ["--engine", "openai", "--set", "engine.base_url=http://127.0.0.1:9/v1", "--scorer", "constant"]
    assert main(["steps", "eval", "--data", str(broken), *engine]) == 2
    assert "line 1: steps: expected a list of texts" in capsys.readouterr().err
    assert main(["steps", "eval", "--data", str(bare), *engine]) == 2
    assert "no step has a label" in capsys.readouterr().err
    assert main(["steps", "label", "--data", str(broken), *engine[:4], "--out", str(out)]) == 2
    assert "line 1: steps: expected a list of texts" in capsys.readouterr().err and not out.parent.exists()
    assert main(["steps", "label", "--data", str(bare), *engine[:4], "--out", str(bare / "labels.jsonl")]) == 2
    assert "is a file; name a folder" in capsys.readouterr().err
    assert main(["steps", "label", "--data", str(bare), *engine[:4], "--out", str(tmp_path)]) == 2
    assert f"--out {tmp_path} is a folder; name a file" in capsys.readouterr().err


@pytest.mark.skipif(not DATA, reason="needs TTC_DATA")
def test_the_labels_of_bigbench_mistake_are_read() -> None:
    rows = read_labelled(Path(str(DATA)) / "bigbench_mistake.jsonl.gz")
    assert len(rows) == 2186
    assert sum(None in row.labels or 0.0 in row.labels for row in rows) == 1708
    assert {row.group for row in rows} >= {"multistep_arithmetic", "word_sorting"}


def test_a_line_of_trls_step_data_is_read_as_it_was_published(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    row = {"prompt": "1+1?", "completions": ["one more", "is two"], "labels": [True, False]}
    path.write_text(json.dumps(row) + "\n")
    (read,) = read_labelled(path)
    assert (read.problem.messages[-1].content, read.steps, read.labels) == ("1+1?", ("one more", "is two"), (1.0, 0.0))


@pytest.mark.parametrize("field", ["id", "cluster"])
@pytest.mark.parametrize("value", [["a"], {"a": 1}, True])
def test_what_names_a_row_is_a_text_or_a_number(tmp_path: Path, field: str, value: object) -> None:
    path = tmp_path / "rows.jsonl"
    row = {"problem": "2?", "steps": ["a"], "labels": [1]}
    path.write_text(json.dumps({**row, field: value}) + "\n")
    with pytest.raises(RecordError, match=rf"rows\.jsonl, line 1: {field}: expected a text or a number, got"):
        list(read_labelled(path))
    path.write_text("".join(json.dumps({**row, field: name}) + "\n" for name in ("a", 7)) + json.dumps(row) + "\n")
    assert [(row.problem.id if field == "id" else row.cluster) for row in read_labelled(path)] == ["a", "7", "3"]


def test_a_folder_in_the_place_of_labelled_steps_is_told_as_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["steps", "eval", "--data", str(tmp_path)]) == 2
    assert f"--data {tmp_path} is a folder; give a file of labelled solutions" in capsys.readouterr().err
