"""Gates hold a student to what was declared, on the end of the interval that is against it."""

from dataclasses import asdict, replace

import pytest

from distill.measure.evaluate import _numbers
from distill.measure.measured import Measured, TaskNumbers, compared, recoveries, unjudged_lines
from distill.plan.gates import job_checks, read_job_gates
from distill.report.tables import JobData, cost
from distill.spec.spec import parse_spec
from evals.report.kit import MISSING
from ttc.core import Problem, Record, Usage, Verdict
from ttc.errors import ConfigError

PLAIN = {"name": "j", "method": "rejection", "student": "s", "teacher": "t", "task": "cipher", "seed": 1,
         "held_out": "cipher"}  # fmt: skip


def numbers(right, of=200, cut=0.0):
    return TaskNumbers(tuple(i < right for i in range(of)), tuple(i < right for i in range(of)), 9.0, 9.0, cut)


def measured(right, own=None, cut=0.0):
    return Measured({"cipher": numbers(right, cut=cut)}, own or {})


def checks(gates, start, student, teacher=None):
    found = read_job_gates(parse_spec({**PLAIN, "gates": gates}))
    teachers = {} if teacher is None else {"teacher": teacher}
    return {c.gate: c.passed for c in job_checks(found, start, student, teachers, 1)}


def test_a_student_near_its_teacher_passes_and_one_far_below_does_not():
    assert checks({"max_below_teacher": 0.05}, measured(20), measured(198), measured(199)) == {
        "max_below_teacher": True
    }
    assert checks({"max_below_teacher": 0.05}, measured(20), measured(150), measured(199)) == {
        "max_below_teacher": False
    }


def test_the_share_of_the_gain_is_between_start_and_teacher():
    assert recoveries({"start": measured(20), "student": measured(110), "teacher": measured(200)}) == pytest.approx(
        {"cipher": 0.5}
    )
    assert checks({"min_recovered": 0.5}, measured(20), measured(110), measured(200)) == {"min_recovered": True}
    assert checks({"min_recovered": 0.6}, measured(20), measured(110), measured(200)) == {"min_recovered": False}
    # without a gain there is nothing to recover, which is no success
    assert checks({"min_recovered": 0.1}, measured(20), measured(110), measured(20)) == {"min_recovered": False}


def test_drops_and_truncation_are_bounded():
    gates = {"max_domain_drop": 0.02, "max_truncation_rise": 0.01}
    assert checks(gates, measured(100), measured(100)) == {"max_domain_drop": True, "max_truncation_rise": True}
    assert checks(gates, measured(100), measured(90, cut=0.1)) == {
        "max_domain_drop": False,
        "max_truncation_rise": False,
    }


def test_a_methods_own_numbers_may_be_bounded_by_name():
    gates = {"measured": {"obedience": 0.99}}
    assert checks(gates, measured(1), measured(1, {"obedience": 1.0})) == {"measured.obedience": True}
    with pytest.raises(ConfigError, match=r"gates\.measured\.obedience: the method measures no such number"):
        checks(gates, measured(1), measured(1))


@pytest.mark.parametrize(
    ("gates", "told"),
    [
        ({"min_gian": 0}, r"unknown key 'gates\.min_gian'; did you mean 'min_gain'"),
        ({"limit": "many"}, r"gates\.limit only sets how gates such as min_gain are measured"),
        ({"held_out": "nothing", "max_domain_drop": 0.1}, r"gates\.held_out only sets how"),
        ({"max_drop": 0.1, "min_gain": 0}, r"max_drop bounds the drop on .* gates\.retention, .*max_domain_drop"),
        ({"max_canary_drop": 0.1, "min_gain": 0}, r"gates\.max_canary_drop is read with gates\.canaries alone"),
        ({"min_recovered": 2}, r"gates\.min_recovered must be in \[-1, 1\]"),
        ({"measured": {"x": "much"}}, r"gates\.measured\.x must be float"),
        ({"reviews": "none.jsonl"}, r"gates\.reviews: none\.jsonl does not exist"),
        ({"reward_model": "none/model", "min_win_rate": 0.5}, r"gates\.reward_model: none/model does not exist"),
    ],
)
def test_a_gate_that_cannot_be_is_refused_by_name(gates, told):
    with pytest.raises(ConfigError, match=told):
        read_job_gates(parse_spec({**PLAIN, "gates": gates}))


@pytest.mark.parametrize("gate", ["max_below_teacher", "min_recovered"])
def test_a_gate_beside_teachers_that_are_not_measured_is_refused_and_not_left_out(gate):
    without = {**PLAIN, "gates": {gate: 0.5, "min_gain": 0.0}, "eval": {"teachers": False}}
    with pytest.raises(ConfigError, match=rf"gates\.{gate} compares with the teachers.*eval\.teachers = true"):
        read_job_gates(parse_spec(without))


def test_a_gate_beside_a_teacher_of_no_measured_domain_is_refused_and_not_left_out():
    domains = {"a": {"task": "cipher", "held_out": "cipher"}, "b": {"task": "arithmetic"}}
    table = {"domain": domains, "teacher": {"model": "t", "domains": ["b"]}, "gates": {"max_below_teacher": 0.1}}
    whole = {key: value for key, value in {**PLAIN, **table}.items() if key not in ("task", "held_out")}
    with pytest.raises(
        ConfigError, match=r"gates\.max_below_teacher .* none of their domains is measured: give one held"
    ):
        read_job_gates(parse_spec(whole))
    assert read_job_gates(parse_spec({**whole, "teacher": {"model": "t"}})).max_below_teacher == 0.1


def test_gates_of_training_take_the_held_out_task_of_the_spec():
    found = read_job_gates(parse_spec({**PLAIN, "gates": {"min_gain": 0.1, "max_truncation_rise": 0.0}}))
    assert found.train.held_out == "cipher" and found.train.min_gain == 0.1 and found.max_truncation_rise == 0.0
    assert read_job_gates(parse_spec(PLAIN)) is None
    without = {key: value for key, value in PLAIN.items() if key != "held_out"}
    with pytest.raises(ConfigError, match="give held_out"):
        read_job_gates(parse_spec({**without, "gates": {"max_domain_drop": 0.1}}))


def test_the_table_shows_paired_gains_over_the_start():
    lines = compared({"start": measured(20), "student": measured(110)}, 1)
    assert [line[1] for line in lines] == ["start", "student"]
    assert lines[0][4] == "" and lines[1][4].startswith("+45.0 (+")


def test_variants_of_one_problem_weigh_as_one():
    records = [
        Record(
            Problem(f"p{i}", (), "exact"),
            verdict=Verdict("correct" if i < 110 else "incorrect"),
            provenance={"cluster": f"c{i // 50}"},
        )
        for i in range(200)
    ]
    told = _numbers(records, ())
    assert told.groups[49:51] == (0, 1) and TaskNumbers.from_json(told.to_json()) == told
    whole, alone = (numbers.interval(1) for numbers in (told, replace(told, groups=())))
    assert whole.value == alone.value and whole.high - whole.low > 2 * (alone.high - alone.low)
    start = Measured({"cipher": replace(told, right=(False,) * 200)})
    assert start.gap(Measured({"cipher": told}), "cipher", 1).low < 0.3


def test_answers_without_a_verdict_are_told_and_kept_in_results():
    told = TaskNumbers((True, False), (), 9.0, 9.0, 0.0, unjudged=1)
    models = {"start": measured(1), "teacher": Measured({"cipher": told})}
    assert unjudged_lines(models) == ["teacher: 1 answer on cipher without a verdict, counted as wrong"]
    assert TaskNumbers.from_json(told.to_json()) == told


def test_flops_that_nobody_told_are_unknown_and_not_none():
    line = {"teacher": "t", "key": "k", "prompt": "p", "spent": 9, "tokens": 9, "status": "correct"}
    lock = {"fixed": {"teachers": {"t": "digest"}}}
    for flops, told in ((0, MISSING), (2e6, "2 M")):
        totals = {"usage": {"digest": asdict(Usage(generated=9, flops=flops))}}
        job = JobData(lock, totals, None, [line], [{"parents": ["k"]}], (), None, {})
        assert cost(job).rows == [("t", "9", told, "1.0", "9.0")]
