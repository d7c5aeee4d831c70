"""Records survive the round trip and any death of their writer; broken lines are named."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ttc.core import Answer, Candidate, Event, Message, Problem, Record, Usage, Verdict
from ttc.errors import ConfigError, RecordError
from ttc.records import RecordFile, from_json, iterate, read, to_json


def make_record(name: str = "p-1", text: str = "so \\boxed{4}") -> Record:
    candidates = (
        Candidate(path=(0,), text=text, thinking="2+2", final="4", finish_reason="stop", num_tokens=7, score=0.5),
        Candidate(path=(1, 2), text="", thinking="", final=None, finish_reason="length", num_tokens=9),
    )
    answer = Answer(
        text=text,
        final="4",
        candidates=candidates,
        usage=Usage(prompt=3, generated=16, flops=1.5e9),
        trace=(Event("score", (0,), {"value": 0.5, "steps": [0.1, 0.5]}),),
        enforced="ids",
        seconds=0.25,
    )
    right = Verdict("correct", score=1.0, parts={"format": 1.0}, extracted="4", span=(3, 12), version="m1")
    return Record(
        problem=Problem(name, (Message("user", "2+2?"),), "number", {"level": 2}),
        target={"answer": "4", "alternatives": ["four"]},
        answer=answer,
        verdict=right,
        verdicts=(right, Verdict("no_answer", reason="truncated")),
        provenance={"session": 1},
    )


def test_a_record_survives_the_round_trip_through_json() -> None:
    record = make_record()
    assert from_json(json.loads(json.dumps(to_json(record)))) == record


def test_a_failed_problem_survives_the_round_trip() -> None:
    record = Record(Problem("p", (Message("user", "?"),)), target="1", error="EngineTimeout: 5 s")
    assert from_json(json.loads(json.dumps(to_json(record)))) == record


@given(st.text(st.characters(codec=None), max_size=30), st.floats())
@settings(max_examples=60, deadline=None)
def test_any_text_and_any_float_survive_the_file(text: str, score: float) -> None:
    candidate = Candidate((0,), text, text, text, "stop", 1, score=score)
    record = Record(Problem(text, ()), answer=Answer(text, text, candidates=(candidate,)))
    line = json.dumps(to_json(record), allow_nan=False).encode()
    back = from_json(json.loads(line))
    assert back.answer is not None and back.answer.text == text
    value = back.answer.candidates[0].score
    assert value == score or (value is not None and math.isnan(value) and math.isnan(score))


def test_appended_records_are_read_back_in_order(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    with RecordFile(path) as file:
        file.append(make_record("a"))
        file.append(make_record("b"))
    with RecordFile(path) as file:
        file.append(make_record("c"))
    assert [record.problem.id for record in read(path)] == ["a", "b", "c"]


@pytest.mark.parametrize("keep", [1, 40, 200])
def test_a_torn_last_line_is_ignored_by_readers_and_cut_by_the_next_writer(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "records.jsonl"
    with RecordFile(path) as file:
        file.append(make_record("a"))
        file.append(make_record("b", text="long " * 30_000))
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for torn in (whole[: first + keep], whole[:-1]):
        path.write_bytes(torn)
        assert [record.problem.id for record in read(path)] == ["a"]
        with RecordFile(path) as file:
            file.append(make_record("c"))
        assert [record.problem.id for record in read(path)] == ["a", "c"]


def test_a_line_that_nests_without_end_is_refused_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("{}\n" + "[" * 100_000 + "\n")
    with pytest.raises(RecordError, match=r"rows.jsonl, line 2: not JSON \(maximum recursion depth"):
        list(iterate(path))


def test_a_file_that_is_one_torn_line_becomes_empty(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_bytes(b'{"schema": 1, "prob')
    RecordFile(path).close()
    assert path.read_bytes() == b""


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    with RecordFile(path), pytest.raises(ConfigError, match="another process"):
        RecordFile(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 7}, "schema: this version reads 1, got 7"),
        ({"verdict": {"status": "right"}}, "verdict.status: expected one of correct"),
        ({"answer": {"text": "x", "final": 3}}, "answer.final: expected a string"),
        ({"answer": {"text": "x"}}, "answer.final: missing"),
        ({"answer": {"text": "x", "final": None, "usage": {"prompt": 1.5}}}, "answer.usage.prompt: expected a whole"),
        ({"verdicts": [{"status": "correct", "span": [1]}]}, r"verdicts\[0\].span: expected 2 items"),
        ({"extra": 1}, "extra: no such field in Record"),
    ],
)
def test_a_broken_line_is_named_by_file_line_and_field(tmp_path: Path, change: dict[str, object], message: str) -> None:
    path = tmp_path / "records.jsonl"
    good = to_json(make_record("a"))
    path.write_text(json.dumps(good) + "\n" + json.dumps({**good, **change}) + "\n")
    with pytest.raises(RecordError, match=f"records.jsonl, line 2: {message}"):
        read(path)


def test_a_line_in_the_middle_that_is_not_json_is_named(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text('{"schema": 1\n{}\n')
    with pytest.raises(RecordError, match="line 1: not JSON"):
        read(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        read(tmp_path / "none.jsonl")
