"""OlympiadBench: golds of all kinds become targets that the verifier can hold answers against, or are excluded."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import datasets
import pytest

from evals.task import Item, Task
from evals.tasks.olympiadbench import olympiadbench
from tests.evals.local_data import write_hub_copy, write_lines
from tests.loops import verdicts
from ttc.cli.cli import main
from ttc.errors import RecordError
from ttc.verifiers.math import math

DATA = os.environ.get("TTC_DATA")


def hub_row(number: int, gold: str | list[str], **fields: Any) -> dict[str, Any]:
    """A row with the columns of the hub that matter here."""
    plain = {
        "id": number,
        "question": f"What is {number}?",
        "solution": ["..."],
        "final_answer": [gold] if isinstance(gold, str) else gold,
        "context": None,
        "is_multiple_answer": False,
        "unit": None,
        "answer_type": "Numerical",
        "error": None,
        "subfield": "Algebra",
    }
    return plain | fields


def local_row(number: int, gold: str | list[str], **fields: Any) -> dict[str, Any]:
    """The same row in the local format."""
    row = hub_row(number, gold, **fields)
    return {**row, "id": f"olympiadbench-{number}", "problem": row.pop("question")}


def only(tmp_path: Path, gold: str | list[str], **fields: Any) -> Item:
    write_lines(tmp_path / "olympiadbench_math.jsonl", [local_row(7, gold, **fields)])
    (item,) = olympiadbench(data=str(tmp_path)).items(None, 0)
    return item


def statuses(item: Item, answers: list[str]) -> list[str]:
    verifier = math()
    verifier.check_gold(item.target)
    judged = verdicts(verifier, [(item.target, f"\\boxed{{{answer}}}") for answer in answers])
    return [verdict.status for verdict in judged]


def test_the_hub_and_the_local_format_give_the_same_items(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    golds = [(1, "$2^{1009}$", {}), (2, "$(1,2),(3,4)$", {"is_multiple_answer": True, "answer_type": "Tuple"})]
    write_lines(tmp_path / "local" / "olympiadbench_math.jsonl", [local_row(i, gold, **f) for i, gold, f in golds])
    repository = tmp_path / "hub" / "Hothan" / "OlympiadBench"
    write_hub_copy(repository, [hub_row(i, g, **f) for i, g, f in golds], split="train", config="OE_TO_maths_en_COMP")
    local, hub = (olympiadbench(data=str(tmp_path / name)) for name in ("local", "hub"))
    assert local.items(None, 0) == hub.items(None, 0)
    assert [item.problem.id for item in hub.items(None, 0)] == ["olympiadbench-1", "olympiadbench-2"]
    assert hub.items(None, 0)[0].difficulty == "Algebra"
    assert local.params == hub.params == {"subset": "math", "excluded": 0}


def test_several_answers_are_one_set_in_any_order(tmp_path: Path) -> None:
    item = only(tmp_path, "27,54,108", is_multiple_answer=True)
    assert "all answers into the one box" in item.problem.messages[0].content
    assert statuses(item, ["108, 27, 54", "\\{27, 54, 108\\}", "27, 54", "27"]) == ["correct"] * 2 + ["incorrect"] * 2


def test_numbers_of_one_bracket_keep_their_order_and_so_do_tuples(tmp_path: Path) -> None:
    # olympiadbench-2639: "Compute (a, b)".
    numbers = only(tmp_path, "$(\\frac{1}{4}, \\frac{1}{27})$", is_multiple_answer=True)
    answers = ["\\frac{1}{4}, \\frac{1}{27}", "(1/4, 1/27)", "\\frac{1}{27}, \\frac{1}{4}", "(1/27, 1/4)"]
    assert statuses(numbers, answers) == ["correct", "correct", "incorrect", "incorrect"]
    tuples = only(tmp_path, "$(1,8), (2,7)$", is_multiple_answer=True, answer_type="Tuple")
    assert statuses(tuples, ["(2,7), (1,8)", "(8,1), (2,7)"]) == ["correct", "incorrect"]


def test_the_error_field_is_an_absolute_tolerance_in_the_unit_of_the_gold(tmp_path: Path) -> None:
    item = only(tmp_path, "21", unit="cm", error="5e-1")
    assert "The unit of the answer is cm" in item.problem.messages[0].content
    assert statuses(item, ["21.4", "21.6", "21.4 \\text{ cm}", "0.212 \\text{ m}", "0.6 \\text{ m}"]) == [
        "correct", "incorrect", "correct", "correct", "incorrect",
    ]  # fmt: skip


def test_per_cent_with_a_tolerance_does_not_accept_small_numbers(tmp_path: Path) -> None:
    item = only(tmp_path, "4.2", unit="%", error="1e-1")
    assert statuses(item, ["4.3", "4.2\\%", "0.1"]) == ["correct", "correct", "incorrect"]


def test_a_unit_that_the_grammar_does_not_know_is_only_asked_for(tmp_path: Path) -> None:
    item = only(tmp_path, "$2022.2$", unit="$\\frac{\\mathrm{kg}}{\\mathrm{m}^{3}}$", error="1e-1")
    assert "unit" not in item.target
    assert "\\mathrm{kg}" in item.problem.messages[0].content
    assert statuses(item, ["2022.3"]) == ["correct"]


@pytest.mark.parametrize(
    ("gold", "kind", "right"),
    [
        ("$m_{\\max }=n^{2}-n-1$", "Expression", "n^2-n-1"),
        ("$N(n)=\\left\\lfloor\\frac{2 n}{3}\\right\\rfloor+1$", "Expression", "\\lfloor 2n/3 \\rfloor + 1"),
        ("$=1.702 \\times 10^{26} $", "Numerical", "1.702e26"),
        ("$\\Delta E=208.684 $", "Numerical", "208.684"),
        ("$n_{1} \\sin i_{1}=n_{2} \\sin i_{2}$", "Equation", "n_2 \\sin i_2 = n_1 \\sin i_1"),
    ],
)
def test_the_side_that_is_asked_for_is_enough(tmp_path: Path, gold: str, kind: str, right: str) -> None:
    assert statuses(only(tmp_path, gold, answer_type=kind), [right, "17"]) == ["correct", "incorrect"]


def test_further_golds_are_alternatives(tmp_path: Path) -> None:
    item = only(tmp_path, ["$-2 a N / V$", "$0$"], answer_type="Expression")
    assert statuses(item, ["-\\frac{2aN}{V}", "0", "a"]) == ["correct", "correct", "incorrect"]


def test_golds_that_cannot_be_verified_are_excluded_and_counted(tmp_path: Path) -> None:
    rows = [
        local_row(1, "5"),
        local_row(2, "$f(x)=a x+b$, where $b$ is an arbitrary integer", answer_type="Expression"),
        local_row(3, "$t(0,4]$", answer_type="Interval"),
        local_row(4, "142, 293.6", is_multiple_answer=True, error="1e-0,1e-1", unit="m, K"),
        local_row(5, "10.8633, 10.925", is_multiple_answer=True, error="1e-3", unit="MeV"),
    ]
    write_lines(tmp_path / "olympiadbench_math.jsonl", rows)
    task = olympiadbench(data=str(tmp_path))
    assert [item.problem.id for item in task.items(None, 0)] == ["olympiadbench-1", "olympiadbench-5"]
    assert task.params == {"subset": "math", "excluded": 3}
    assert task.note == "3 of 5 problems are left out: their golds cannot be verified"


def test_physics_problems_with_one_context_are_one_cluster(tmp_path: Path) -> None:
    rows = [
        hub_row(1, "1", context="A ball falls. Part (a)."),
        hub_row(2, "2", context="A ball falls. Part (a)."),
        hub_row(3, "3", context="A lens bends light."),
        hub_row(4, "4"),
    ]
    repository = tmp_path / "Hothan" / "OlympiadBench"
    write_hub_copy(repository, rows, split="train", config="OE_TO_physics_en_COMP")
    items = olympiadbench(data=str(tmp_path), subset="physics").items(None, 0)
    clusters = [item.cluster for item in items]
    assert clusters[0] == clusters[1] != clusters[2]
    assert (clusters[3], len(set(clusters))) == ("", 3)
    assert items[0].problem.messages[0].content.startswith("A ball falls. Part (a).\n\nWhat is 1?")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"final_answer": None}, "final_answer: expected a list of non-empty strings, got None"),
        ({"final_answer": []}, "final_answer: expected a list"),
        ({"final_answer": [3]}, "final_answer: expected a list"),
        ({"error": "small"}, "error: expected a number, got 'small'"),
        ({"problem": ""}, "problem: expected a non-empty string"),
    ],
)
def test_a_broken_row_is_named(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    write_lines(tmp_path / "olympiadbench_math.jsonl", [local_row(1, "5") | fields])
    with pytest.raises(RecordError, match=f"olympiadbench_math.jsonl, line 1: {message}"):
        olympiadbench(data=str(tmp_path))


@pytest.mark.skipif(not DATA, reason="TTC_DATA names no data folder")
def test_every_published_gold_is_met_by_itself_and_by_its_last_spelling() -> None:
    task: Task = olympiadbench(data=DATA)
    items = task.items(None, 0)
    assert (len(items), task.params["excluded"]) == (673, 2)
    verifier = math()
    for item in items:
        verifier.check_gold(item.target, item.problem.id)
    spellings = [
        (item, answer) for item in items for answer in (item.target["answer"], *item.target.get("alternatives", ()))
    ]
    judged = verdicts(verifier, [(item.target, f"\\boxed{{{answer}}}") for item, answer in spellings])
    wrong = [one for one, verdict in zip(spellings, judged, strict=True) if verdict.status != "correct"]
    assert wrong == []


def test_the_packaged_model_is_evaluated_within_its_context_unless_a_length_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [*(local_row(number, str(number)) for number in range(1, 3)), local_row(3, "$t(0,4]$")]
    write_lines(tmp_path / "data" / "olympiadbench_math.jsonl", rows)
    line = "eval --task olympiadbench --limit 2 --strategy direct --baseline none --seed 1 --json --data"
    command = [*line.split(), str(tmp_path / "data")]
    assert main([*command, "--out", str(tmp_path / "run")]) == 0
    printed = capsys.readouterr()
    assert "olympiadbench: 1 of 3 problems are left out" in printed.err
    summary = json.loads(printed.out.splitlines()[-1])
    assert (summary["task"], summary["problems"], summary["errors"]) == ("olympiadbench", 2, 0)
    config = json.loads((tmp_path / "run" / "run.json").read_text())["config"]
    assert config["task_params"] == {"subset": "math", "excluded": 1}
    assert config["fit"] and config["sampling"]["max_tokens"] > 2048
    assert main([*command, "--out", str(tmp_path / "asked"), "--max-tokens", "8192"]) == 2
    assert "--max-tokens 8192 exceeds the context of nano-teacher: 2048 tokens" in capsys.readouterr().err
