"""Budget-conditioned traces: each goes to the budget it is nearest to, the shortest right one to none."""

import json
from collections import Counter
from pathlib import Path

import pytest

from distill.job.job import run_job
from distill.methods.budget import budget
from distill.plan.resolve import resolve
from distill.spec.method import DistillJob, Domain
from distill.spec.sample import Sample
from distill.spec.spec import parse_spec
from tests.distill.models import SYMBOLS, TASK
from tests.distill.pieces import item, sample
from train.registries import make_task
from ttc.errors import ConfigError

TABLE = {"name": "b", "method": "budget", "seed": 1, "task": f"{TASK},split=train", "held_out": TASK}
WORD = "s1"
"""One id of the cipher's tokenizer."""


def job(folder, **more):
    spec = parse_spec({**TABLE, "student": str(folder), "teacher": str(folder), "budget": {"budgets": [4]}, **more})
    items = [item(f"p{i}") for i in range(9)]
    return DistillJob(spec, Path(folder), Path(folder), (), [Domain("task", make_task(TASK), items, None)])


def traces(*lengths: int, problem: str = "p0") -> list[Sample]:
    return [
        sample("s7", problem=problem, thinking=WORD * length, index=i, label="") for i, length in enumerate(lengths)
    ]


def told(row):
    return row.notes["budget"], row.thinking.count(WORD), row.messages[-1].content


def test_a_trace_goes_to_the_nearest_budget_and_only_within_the_tolerance(guesser):
    method = budget(budgets=(10, 20), instruction="|{budget}", tolerance=0.15, shortest=False)
    rows = method.rows(traces(9, 12, 13, 18, 30) + traces(11, problem="p1"), job(guesser))
    assert [told(row) for row in rows] == [
        ("10", 9, "what is p0?|10"),
        ("20", 18, "what is p0?|20"),
        ("10", 11, "what is p1?|10"),
    ]


def test_the_nearest_traces_come_first_and_the_shortest_right_one_without_a_budget(guesser):
    method = budget(budgets=(10,), instruction="|{budget}", per_budget=2)
    rows = method.rows(traces(11, 9, 10, 6), job(guesser))
    assert [told(row)[:2] for row in rows] == [("10", 10), ("10", 11), ("none", 6)] or [told(r)[:2] for r in rows] == [
        ("10", 10), ("10", 9), ("none", 6),
    ]  # fmt: skip
    assert rows[-1].messages[-1].content == "what is p0?"
    assert len({row.parents for row in rows}) == 3


def test_a_budget_that_no_trace_is_near_is_refused_with_the_lengths_there_are(guesser):
    with pytest.raises(ConfigError, match=r"within 0\.15 of 40; they are from 9 to 12 tokens"):
        budget(budgets=(10, 40)).rows(traces(9, 12), job(guesser))


def test_asking_the_teacher_for_a_budget_puts_it_behind_the_question(guesser, walker, tmp_path):
    table = {**TABLE, "student": str(guesser), "teacher": str(walker), "n": 2, "limit": 5}
    plain = resolve(parse_spec({**table, "budget": {"budgets": [4, 8]}}), tmp_path)
    assert [a.label for a in plain.assignments] == [""]
    own = {"budgets": [8, 4], "ask_teacher": True, "instruction": "s{budget}"}
    asked = resolve(parse_spec({**table, "budget": own}), tmp_path)
    assert [a.label for a in asked.assignments] == ["", "budget-4", "budget-8"]
    first = asked.assignments[1].items[0].problem
    assert first.messages[-1].content.endswith("s4")
    assert first.id == asked.assignments[0].items[0].problem.id
    assert asked.num_units == 3 * plain.num_units


def test_a_job_learns_lengths_and_measures_how_well_they_are_kept(guesser, walker, tmp_path):
    given = {"student": str(guesser), "teacher": str(walker), "n": 2, "smoke": 0, "limit": 30, "eval": {"limit": 6},
             "budget": {"budgets": [4, 8], "instruction": "s{budget}", "tolerance": 0.5},
             "filters": {"verdict": False, "format": False}, "train": {"steps": 2, "rows": 4}}  # fmt: skip
    spec = parse_spec({**TABLE, **given})
    plan = resolve(spec, tmp_path / "job")
    done = run_job(spec, tmp_path / "job", lambda text: None)
    assert done.model is not None
    lines = [json.loads(line) for line in (tmp_path / "job/data/lineage.jsonl").read_text().splitlines()]
    assert set(Counter(line["budget"] for line in lines)) == {"4", "8", "none"}
    own = json.loads((tmp_path / "job/result.json").read_text())["measured"]["student"]["own"]
    assert own["obedience"] in (0.0, 0.5, 1.0)
    kept = [abs(own[f"budget_{size}_used"] - 1) <= 0.5 for size in (4, 8)]
    assert own["obedience"] == sum(kept) / 2
    assert set(plan.method.numbers(plan.job)) == set(own) and SYMBOLS > 8


def test_a_bound_on_a_number_that_is_not_measured_is_refused_before_anything_is_paid_for(guesser, walker, tmp_path):
    table = {**TABLE, "student": str(guesser), "teacher": str(walker), "n": 2, "budget": {"budgets": [4, 8]}}
    resolve(parse_spec({**table, "gates": {"measured": {"budget_4_accuracy": 0.5}}}), tmp_path)
    message = r"gates\.measured\.budget_4_acuracy: budget measures no such number; did you mean 'budget_4_accuracy'\?"
    with pytest.raises(ConfigError, match=message):
        resolve(parse_spec({**table, "gates": {"measured": {"budget_4_acuracy": 0.5}}}), tmp_path)
    table = {name: value for name, value in table.items() if name != "budget"} | {"method": "rejection"}
    with pytest.raises(ConfigError, match=r"gates\.measured\.obedience: rejection measures no such number$"):
        resolve(parse_spec({**table, "gates": {"measured": {"obedience": 0.5}}}), tmp_path)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"budgets": []}, "must be different numbers"),
        ({"budgets": [4, 4]}, "must be different numbers"),
        ({"budgets": [4], "instruction": "be brief"}, "must contain"),
        ({"budgets": [4], "tolerance": 0.0}, "0 < tolerance < 1"),
        ({}, "needs 'budgets'"),
    ],
)
def test_budgets_that_cannot_be_taught_are_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        parse_spec({**TABLE, "student": "s", "teacher": "t", "budget": given})


def test_a_selection_that_would_drop_the_long_traces_is_refused():
    given = {"student": "s", "teacher": "t", "budget": {"budgets": [4]}, "n": 8}
    with pytest.raises(ConfigError, match=r"would keep 4 of 8 answers.*select\.per_prompt = 8"):
        parse_spec({**TABLE, **given})
    assert parse_spec({**TABLE, **given, "select": {"per_prompt": 8}}).n == 8
