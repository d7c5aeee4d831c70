"""Generation fills the ledger: one failure costs one sample, an engine that is gone stops the job, nothing is lost."""

import asyncio

import pytest

from distill.generation.generate import MAX_STREAK, fill
from distill.generation.ledger import AnswerLedger
from tests.distill.pieces import ScriptedTeacher, unit
from ttc.errors import EngineError

UNITS = [unit(i) for i in range(24)]


def make(ledger, teacher, units=UNITS, concurrency=6):
    return asyncio.run(fill(ledger, teacher, units, concurrency=concurrency, opener=lambda who, most: who.open(most)))


def test_a_failed_call_loses_one_sample_and_is_made_at_the_next_run(tmp_path):
    with AnswerLedger(tmp_path / "ledger.sqlite") as ledger:
        teacher = ScriptedTeacher(fails={"what is p5?"})
        assert make(ledger, teacher) == len(UNITS)
        assert [u.key for u in ledger.missing(UNITS)] == [UNITS[5].key]
        ((_, entry),) = ledger.entries([UNITS[5]])
        assert entry.error == "EngineError: no answer to what is p5?"
        assert make(ledger, ScriptedTeacher()) == 1
        whole = ledger.digest()
    with AnswerLedger(tmp_path / "other.sqlite") as ledger:
        make(ledger, ScriptedTeacher(), UNITS[::-1], concurrency=1)
        assert ledger.digest() == whole


def test_what_is_there_is_not_asked_again_and_nothing_is_opened_for_nothing(tmp_path):
    with AnswerLedger(tmp_path / "ledger.sqlite") as ledger:
        make(ledger, ScriptedTeacher(), UNITS[:10])
        teacher = ScriptedTeacher()
        assert make(ledger, teacher) == 14
        assert len(teacher.asked) == 14

        def never(who, most):
            raise AssertionError("opened")

        assert asyncio.run(fill(ledger, teacher, UNITS, concurrency=2, opener=never)) == 0


def test_an_engine_that_is_gone_stops_the_job_and_keeps_what_was_made(tmp_path):
    with AnswerLedger(tmp_path / "ledger.sqlite") as ledger:
        make(ledger, ScriptedTeacher(), UNITS[:5])
        gone = ScriptedTeacher(fails={"what is"})
        with pytest.raises(EngineError, match=f"{MAX_STREAK} answers of scripted in a row failed.*run it again"):
            make(ledger, gone, concurrency=1)
        assert ledger.totals()["done"] == 5
        assert make(ledger, ScriptedTeacher()) == 19


def test_no_more_than_the_bound_are_in_flight(tmp_path):
    with AnswerLedger(tmp_path / "ledger.sqlite") as ledger:
        teacher = ScriptedTeacher()
        make(ledger, teacher, concurrency=3)
        assert 1 < teacher.engine.max_live <= 3


def test_the_draw_of_a_unit_depends_on_its_key_alone(tmp_path):
    with AnswerLedger(tmp_path / "a.sqlite") as first, AnswerLedger(tmp_path / "b.sqlite") as second:
        make(first, ScriptedTeacher(), UNITS, concurrency=8)
        make(second, ScriptedTeacher(), UNITS[7:9], concurrency=1)
        mine = [entry.answer.text for _, entry in first.entries(UNITS[7:9])]
        assert mine == [entry.answer.text for _, entry in second.entries(UNITS[7:9])]
