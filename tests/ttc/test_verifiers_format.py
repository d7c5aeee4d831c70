"""Forms beyond boxes and tags: JSON of a schema, and repetition."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.loops import verdicts
from tests.timing import patience
from tests.ttc.hostile import hostile_texts
from ttc.core import Verdict
from ttc.errors import ConfigError
from ttc.verifiers.format import format as form
from ttc.verifiers.format import repetition

SCHEMA = {
    "schema": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
        "required": ["name"],
        "additionalProperties": False,
    }
}


def judge_all(cases: list[tuple[object, str]], **options: Any) -> list[Verdict]:
    return verdicts(form(**options), cases)


def test_json_must_meet_the_schema_of_the_target() -> None:
    texts = {
        '{"name": "Ann", "age": 3}': "correct",
        'Here it is:\n```json\n{"name": "Ann"}\n```\nDone.': "correct",
        '<think>{"name": 1}</think>{"name": "Ann"}': "correct",
        '{"age": 3}': "incorrect",
        '{"name": "Ann", "age": -1}': "incorrect",
        '{"name": "Ann", "more": 1}': "incorrect",
        '{"name": "Ann"': "incorrect",
        "Ann": "incorrect",
        '{"name": "Ann", "name": "Bob"}': "incorrect",
        '{"name": "Ann", "age": NaN}': "incorrect",
        "[" * 5000 + "]" * 5000: "incorrect",
        '{"name": ' + "[" * 500 + "1" + "]" * 500 + "}": "incorrect",
    }
    verdicts = judge_all([(SCHEMA, text) for text in texts], answer="free")
    assert [verdict.status for verdict in verdicts] == list(texts.values())
    assert verdicts[0].parts["schema"] == 1
    assert verdicts[3].parts["schema"] == 0
    (tagged,) = judge_all([(SCHEMA, '{"name": 1} <answer>{"name": "Ann"}</answer>')], answer="tag")
    assert tagged.correct


@pytest.mark.parametrize("place", ["box", "hash", "any", "free"])
def test_json_of_a_schema_needs_no_box(place: str) -> None:
    verdicts = judge_all([(SCHEMA, '{"name": "Ann"}'), (SCHEMA, r'{"age": "\\boxed{4}"}')], answer=place)
    assert [verdict.status for verdict in verdicts] == ["correct", "incorrect"]


def test_a_pattern_in_a_schema_cannot_hang_and_a_reference_is_not_fetched() -> None:
    evil = {"schema": {"type": "string", "pattern": "^(a+)+$"}}
    away = {"schema": {"$ref": "http://127.0.0.1:9/schema.json"}}
    started = time.perf_counter()
    slow, lost = judge_all([(evil, '"' + "a" * 60 + '!"'), (away, '"a"')], answer="free", timeout_s=0.5)
    assert (slow.status, slow.score) == ("timeout", None)
    assert lost.status == "error"
    assert time.perf_counter() - started < 10


def test_the_first_check_against_a_schema_does_not_pay_for_what_its_worker_imports() -> None:
    (first,) = judge_all([(SCHEMA, '{"name": "Ann"}')], answer="free", timeout_s=0.08)
    assert (first.status, first.reason) == ("correct", "all parts hold")


def test_a_schema_that_is_none_is_refused_and_other_targets_are_not_read() -> None:
    with pytest.raises(ConfigError, match=r"row 7: target\.schema is not a JSON schema: \$\.type"):
        form().check_gold({"schema": {"type": "text"}}, "row 7")
    for odd in (5, "{}", {"enum": {1, 2}}):
        with pytest.raises(ConfigError, match=r"row 7: target\.schema"):
            form().check_gold({"schema": odd}, "row 7")
        assert judge_all([({"schema": odd}, "4")])[0].status == "error"
    form().check_gold({"answer": "4"})
    (verdict,) = judge_all([({"answer": "4"}, r"\boxed{5}")])
    assert verdict.correct


@pytest.mark.parametrize(
    ("text", "size", "share"),
    [("", 4, 0.0), ("a b c", 4, 0.0), ("a b a b a b", 2, 0.6), ("no, No! no.", 1, 2 / 3), ("好好好好", 1, 0.75)],
)
def test_repetition_is_the_share_of_repeated_n_grams(text: str, size: int, share: float) -> None:
    assert repetition(text, size) == pytest.approx(share)


def test_a_text_that_goes_round_in_circles_is_refused() -> None:
    fresh = "The quick brown fox jumps over the lazy dog and runs away."
    options = {"answer": "free", "max_repetition": 0.2}
    good, bad = judge_all([(None, fresh), (None, fresh * 20)], **options)
    assert good.correct
    assert (bad.status, bad.reason) == ("incorrect", "repetition")
    with pytest.raises(ConfigError, match="max_repetition"):
        form(max_repetition=2.0)


@pytest.mark.long
def test_hostile_texts_are_judged_in_time() -> None:
    texts = list(hostile_texts().values())
    verdicts = judge_all([(SCHEMA, text) for text in texts], answer="tag", max_repetition=0.5, timeout_s=0.5)
    assert {verdict.status for verdict in verdicts} <= {"incorrect", "limit", "timeout", "no_answer"}
    assert max(verdict.seconds for verdict in verdicts) < 3 * patience()
