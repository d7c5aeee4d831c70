"""The ledger pays for every answer once, whatever the order, the kills and the failures."""

import sqlite3
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distill.generation.ledger import AnswerLedger
from tests.distill.pieces import failure, filled, outcome, unit
from ttc.core import Verdict
from ttc.errors import ConfigError, RecordError

UNITS = [unit(i) for i in range(12)]


@settings(max_examples=40, deadline=None)
@given(
    order=st.permutations(range(len(UNITS))),
    kills=st.sets(st.integers(0, len(UNITS) - 1)),
    failing=st.sets(st.integers(0, len(UNITS) - 1)),
)
def test_any_order_any_kills_and_any_failures_give_the_same_ledger(order, kills, failing):
    with tempfile.TemporaryDirectory() as folder:
        wanted = filled(Path(folder, "whole.sqlite"), UNITS)
        path = Path(folder, "torn.sqlite")
        ledger = AnswerLedger(path)
        for place, number in enumerate(order):
            if place in kills:
                ledger.close()
                ledger = AnswerLedger(path)
            ledger.record(UNITS[number], failure() if number in failing else outcome(UNITS[number]))
        assert {u.key for u in ledger.missing(UNITS)} == {UNITS[i].key for i in failing}
        for one in ledger.missing(UNITS):
            ledger.record(one, outcome(one))
        assert ledger.digest() == wanted
        assert ledger.missing(UNITS) == []
        ledger.close()


def test_an_answer_is_never_paid_twice(tmp_path):
    with AnswerLedger(tmp_path / "ledger.sqlite") as ledger:
        ledger.record(UNITS[0], outcome(UNITS[0]))
        with pytest.raises(ConfigError, match="asked for twice"):
            ledger.record(UNITS[0], outcome(UNITS[0]))


def test_a_failed_unit_keeps_what_its_failures_had_cost(tmp_path):
    with AnswerLedger(tmp_path / "ledger.sqlite") as ledger:
        for _ in range(2):
            ledger.record(UNITS[0], failure())
        assert [u.key for u in ledger.missing(UNITS[:1])] == [UNITS[0].key]
        ledger.record(UNITS[0], outcome(UNITS[0]))
        ((_, entry),) = ledger.entries(UNITS[:1])
        assert entry.attempts == 3
        assert entry.usage.generated == 4 + outcome(UNITS[0]).usage.generated
        assert ledger.totals()["failed"] == 0


def test_answers_are_taken_over_from_another_ledger_where_they_end_the_unit(tmp_path):
    short, raised = UNITS, [unit(i, max_tokens=12) for i in range(12)]
    filled(tmp_path / "there.sqlite", short)
    with AnswerLedger(tmp_path / "here.sqlite") as here, AnswerLedger(tmp_path / "there.sqlite") as there:
        ended = {u.key for u in raised} - {u.key for u in there.missing(raised)}
        assert 0 < len(ended) < 12
        here.record(raised[0], outcome(raised[0]))
        number = len(ended - {raised[0].key})
        assert here.take_over(there, raised) == number
        assert {u.key for u in raised} - {u.key for u in here.missing(raised)} == ended | {raised[0].key}
        assert here.totals()["done"] == number + 1, "what was cut too early is not worth its tokens here"
        assert here.take_over(there, raised) == 0


def test_an_answer_under_a_higher_cap_is_not_taken_over_since_it_may_be_longer(tmp_path):
    low = [unit(i, max_tokens=4) for i in range(12)]
    filled(tmp_path / "there.sqlite", [unit(i, max_tokens=30) for i in range(12)])
    with AnswerLedger(tmp_path / "here.sqlite") as here, AnswerLedger(tmp_path / "there.sqlite") as there:
        assert there.missing(low) == [] and there.answered(low) == {}
        assert here.take_over(there, low) == 0 and len(here.missing(low)) == 12


def test_raising_the_cap_makes_only_cut_answers_anew_and_keeps_their_old_rows(tmp_path):
    path = tmp_path / "ledger.sqlite"
    filled(path, UNITS)
    raised = [unit(i, max_tokens=30) for i in range(len(UNITS))]
    with AnswerLedger(path) as ledger:
        cut = {u.key for u, entry in ledger.entries(UNITS) if entry.answer and entry.answer.finish_reason != "stop"}
        assert 0 < len(cut) < len(UNITS)
        todo = ledger.missing(raised)
        assert {u.key for u in todo} == cut
        for one in todo:
            ledger.record(one, outcome(one))
        assert not any(entry.answer and entry.answer.finish_reason != "stop" for _, entry in ledger.entries(raised))
        assert ledger.totals()["done"] == len(UNITS) + len(cut)
        assert [line.max_tokens for line in ledger.story(todo[0].key)] == [8, 30]
        assert ledger.missing(UNITS) == [] and ledger.missing(raised) == []


def test_entries_come_in_the_order_they_are_asked_for(tmp_path):
    filled(tmp_path / "ledger.sqlite", UNITS)
    with AnswerLedger(tmp_path / "ledger.sqlite") as ledger:
        backwards = UNITS[::-1]
        assert [u.key for u, _ in ledger.entries(backwards)] == [u.key for u in backwards]


def test_verdicts_stand_by_verifier_and_target(tmp_path):
    with AnswerLedger(tmp_path / "ledger.sqlite") as ledger:
        ledger.record(UNITS[0], outcome(UNITS[0]))
        ((_, entry),) = ledger.entries(UNITS[:1])
        ledger.add_verdicts([(entry, "exact 1", "t", Verdict("correct", 1.0, seconds=3.0))])
        assert ledger.verdict(entry, "exact 1", "t") == Verdict("correct", 1.0)
        assert ledger.verdict(entry, "exact 2", "t") is None
        assert ledger.verdict(entry, "exact 1", "u") is None


def test_a_file_that_is_no_ledger_is_refused_by_name(tmp_path):
    path = tmp_path / "ledger.sqlite"
    path.write_text("not a database, and long enough to be looked at" * 40)
    with pytest.raises(RecordError, match=r"ledger\.sqlite is not a ledger"):
        AnswerLedger(path)


def test_a_ledger_of_another_schema_is_refused(tmp_path):
    path = tmp_path / "ledger.sqlite"
    base = sqlite3.connect(path)
    base.execute("PRAGMA user_version=9")
    base.close()
    with pytest.raises(RecordError, match="schema 9"):
        AnswerLedger(path)


def test_a_ledger_that_was_copied_in_part_is_told_as_damaged(tmp_path):
    path = tmp_path / "ledger.sqlite"
    filled(path, UNITS)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(RecordError, match=r"ledger\.sqlite is cut or damaged .*put back a complete copy"):
        AnswerLedger(path)


def test_a_ledger_that_may_not_be_written_is_read_and_left_as_it_is(tmp_path, monkeypatch):
    path = tmp_path / "ledger.sqlite"
    digest = filled(path, UNITS)
    monkeypatch.setattr("distill.generation.ledger.os.access", lambda path, mode: False)  # root may write anywhere
    before = path.read_bytes()
    with AnswerLedger(path) as ledger:
        assert ledger.digest() == digest and ledger.totals()["done"] == len(UNITS)
        assert [place.name for place in tmp_path.iterdir()] == ["ledger.sqlite"]
        with pytest.raises(RecordError, match=r"cannot be opened for writing .*make it and its folder writable"):
            ledger.record(unit(99), outcome(unit(99)))
    assert path.read_bytes() == before
