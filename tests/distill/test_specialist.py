"""Specialists: who teaches a domain is measured, the winner is imitated, and rollouts go to their own teacher."""

import dataclasses
import json

import pytest

from distill.commands.distill import _training
from distill.data.pipeline import Context
from distill.filters.routing import routing, win_rates, winners
from distill.job.job import run_job
from distill.plan.resolve import resolve
from distill.spec.spec import parse_spec
from distill.stages.domains import DomainVerifier, joined, named, parse_named
from evals.task import Task
from tests.distill.models import SYMBOLS, make_model
from tests.distill.pieces import sample
from tests.loops import verdicts
from ttc.errors import ConfigError

SHORT, LONG = f"cipher:symbols={SYMBOLS},max_steps=2", f"cipher:symbols={SYMBOLS},max_steps=4"
TABLE = {
    "name": "two",
    "method": "specialist",
    "seed": 1,
    "n": 2,
    "domain": {
        "short": {"task": f"{SHORT},split=train", "held_out": SHORT},
        "long": {"task": f"{LONG},split=train", "held_out": LONG},
    },
    "train": {"steps": 2, "rows": 4},
    "eval": {"limit": 4, "teachers": False},
    "specialist": {"on_policy_steps": 2, "prompts": 4, "n": 1},
}


def answers(domain, teacher, statuses):
    return [
        dataclasses.replace(sample(key=f"{domain}{teacher}{i}", status=status, index=i), domain=domain, teacher=teacher)
        for i, status in enumerate(statuses)
        if status != "failed"
    ]


def test_a_domain_goes_to_the_teacher_with_the_most_right_answers():
    found = [
        *answers("sums", "a", ["correct", "correct", "incorrect"]),
        *answers("sums", "b", ["correct", "incorrect", None]),
        *answers("products", "a", ["incorrect", "timeout", "incorrect"]),
        *answers("products", "b", ["correct", "incorrect", "incorrect"]),
    ]
    rates = win_rates(found)
    assert rates["sums"] == {"a": pytest.approx(2 / 3), "b": pytest.approx(1 / 3)}
    assert winners(rates) == {"sums": "a", "products": "b"}
    reasons = routing()(found, Context())
    kept = [(s.domain, s.teacher) for s, reason in zip(found, reasons, strict=True) if reason is None]
    assert set(kept) == {("sums", "a"), ("products", "b")} and len(kept) == 6
    assert reasons[3] == "another teacher's domain: a solves 0.667 of sums, b 0.333"


def test_calls_that_failed_do_not_let_a_teacher_win_by_the_problems_it_was_spared():
    found = [
        *answers("sums", "a", ["correct", "correct", "incorrect", "incorrect"]),
        *answers("sums", "b", ["correct", "incorrect", "failed", "failed"]),
        *answers("odd", "a", ["correct", "failed"]),
        *answers("odd", "b", ["failed", "correct"]),
    ]
    assert win_rates(found) == {"sums": {"a": 1.0, "b": 0.5}, "odd": {"a": 0.0, "b": 0.0}}
    assert winners(win_rates(found))["sums"] == "a"


def test_a_tie_goes_to_the_teacher_named_first():
    found = [*answers("sums", "b", ["correct"]), *answers("sums", "a", ["correct"])]
    assert winners(win_rates(found)) == {"sums": "b"}


def test_a_plan_tells_what_training_takes_before_it_is_known_who_wins(tmp_path, guesser, walker):
    rivals = [{"name": name, "model": str(walker)} for name in ("first", "second")]
    spec = parse_spec({**TABLE, "student": str(guesser), "limit": 8, "teacher": rivals})
    told = list(_training(resolve(spec, tmp_path / "job")))
    assert [line.partition(":")[0] for line in told if not line.startswith(" ")] == ["1-sft", "2-on_policy"]


def test_a_job_routes_by_what_it_measured(tmp_path, guesser, walker):
    idle = make_model(tmp_path / "idle", share=0.0, steps=3)
    given = {
        "student": str(guesser),
        "limit": 8,
        "teacher": [{"name": "idle", "model": str(idle)}, {"name": "walker", "model": str(walker)}],
    }
    done = run_job(parse_spec({**TABLE, **given}), tmp_path / "job", lambda text: None)
    assert done.model is not None
    lines = [json.loads(line) for line in (tmp_path / "job/data/lineage.jsonl").read_text().splitlines()]
    assert {(line["domain"], line["teacher"]) for line in lines} == {("short", "walker"), ("long", "walker")}
    funnel = json.loads((tmp_path / "job/data/funnel.json").read_text())
    first = funnel["answers"][1]
    assert first["name"] == "routing" and list(first["reasons"]) == ["another teacher's domain"]
    (folder,) = (tmp_path / "job/train").iterdir()
    stages = json.loads((folder / "run.json").read_text())["stages"]
    assert [stage["kind"] for stage in stages] == ["sft", "on_policy"]
    assert stages[1]["fields"]["teacher"] == [f"short={walker}", f"long={walker}"]
    metrics = [json.loads(line) for line in (folder / "2-on_policy/metrics.jsonl").read_text().splitlines()]
    assert metrics[-1]["teacher_tokens/short"] > 0


def test_domains_given_by_hand_are_not_measured(guesser, walker, tmp_path):

    teachers = [
        {"name": "s", "model": str(walker), "domains": ["short"]},
        {"name": "l", "model": str(guesser), "domains": ["long"]},
    ]
    plan = resolve(parse_spec({**TABLE, "student": str(guesser), "teacher": teachers}), tmp_path)
    assert [(a.teacher.name, a.domain.name, a.gated) for a in plan.assignments] == [
        ("s", "short", True),
        ("l", "long", True),
    ]
    rivals = [{"name": "s", "model": str(walker)}, {"name": "l", "model": str(guesser)}]
    plan = resolve(parse_spec({**TABLE, "student": str(guesser), "teacher": rivals}), tmp_path)
    assert len(plan.assignments) == 4 and not any(a.gated for a in plan.assignments)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"teacher": "x"}, "needs several teachers"),
        ({"teacher": [{"model": "x"}, {"model": "y", "strategy": "majority:n=4"}]}, "has none; use method = search"),
        ({"specialist": {"on_policy_steps": -1}}, "on_policy_steps must be at least 0"),
        ({"teacher": [{"model": "x", "domains": ["short"]}, {"model": "y", "domains": ["short"]}]},
         "no teacher may answer the domain long"),
    ],
)  # fmt: skip
def test_what_cannot_be_merged_is_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        parse_spec({**TABLE, "student": "s", "teacher": [{"model": "x"}, {"model": "y"}], **given})


def test_joined_tasks_keep_their_own_verifiers_and_targets():
    tasks = named("task", (f"short={SHORT}", "sums=arithmetic"))
    whole = joined(tasks)
    items = whole.items(3, 0)
    assert isinstance(whole, Task) and len(items) == 6
    assert {item.problem.id.partition("/")[0] for item in items} == {"short", "sums"}
    assert whole.sampling.max_tokens == max(task.sampling.max_tokens for task in tasks.values())
    pairs = [(item.target, f"The answer is {item.target['target']}") for item in items]
    assert all(verdict.correct for verdict in verdicts(DomainVerifier(tasks), pairs))
    alone = named("task", SHORT)
    assert joined(alone) is alone[""]


def test_names_of_domains_are_told_from_parameters():
    assert parse_named("task", "cipher:split=train,max_steps=4") == {"": "cipher:split=train,max_steps=4"}
    assert parse_named("task", ("a=cipher:split=train", "b=x")) == {"a": "cipher:split=train", "b": "x"}
    with pytest.raises(ConfigError, match="needs a name of its own"):
        parse_named("task", ("a=x", "a=y"))
    with pytest.raises(ConfigError, match="is empty"):
        parse_named("task", ())
