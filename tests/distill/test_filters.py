"""Every filter keeps what it should and says why it drops the rest; together they lose nothing."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distill.data.pipeline import Context, read_filters, read_selection, run_pipeline, settings_of
from distill.job.job import PROBE, _pass_rates
from tests.distill.pieces import sample
from ttc.config.plugins import blamed
from ttc.core import Verdict
from ttc.errors import ConfigError, UnknownName


def reasons(name, samples, context=None, **fields):
    return list(read_filters({name: fields})[name](samples, context or Context()))


def test_cut_answers_are_dropped_whatever_they_say():
    assert reasons("truncated", [sample(), sample(finish="length")]) == [None, "cut by length"]


def test_only_right_answers_pass_the_verdict_and_no_verdict_is_not_wrong():
    found = reasons("verdict", [sample(status=s) for s in ("correct", "incorrect", "timeout", None)])
    assert found == [None, "incorrect: told so", "timeout: told so", "no verdict"]


def test_agreement_counts_draws_without_an_answer_as_disagreeing():
    agreed = sample(others=["7", "7.0", None])
    assert reasons("agreement", [agreed], min_share=0.5) == [None]
    assert reasons("agreement", [agreed], min_share=0.8) == ["too few agree: 0.50 of the draws"]
    assert reasons("agreement", [sample(final=None)], min_share=0.1)[0].startswith("too few agree")


@pytest.mark.parametrize(
    ("given", "fields", "why"),
    [
        (sample(" "), {}, "empty answer"),
        (sample("a<think>7"), {}, "stray marker: <think>"),
        (sample("7", thinking="x</think>"), {}, "stray marker: </think>"),
        (sample("7", final=None), {}, "no final answer"),
        (sample("7", final=None), {"final": False}, None),
        (sample("seven"), {"pattern": r"\d"}, r"pattern missing: \d"),
        (sample("7" * 30), {"max_chars": 20}, "too long: 30 characters"),
    ],
)
def test_form_is_checked(given, fields, why):
    assert reasons("format", [given], **fields) == [why]


def test_loops_are_dropped():
    loop, plain = sample("and then again " * 40), sample(" ".join(f"word{i}" for i in range(100)))
    assert reasons("repetition", [plain, loop])[0] is None
    assert reasons("repetition", [plain, loop])[1].startswith("repeats itself: 0.9")


def test_another_language_is_dropped():
    russian = sample("\u044d\u0442\u043e \u0440\u0443\u0441\u0441\u043a\u0438\u0439 \u0442\u0435\u043a\u0441\u0442 7")
    korean = sample("\ud55c\uad6d\uc5b4\ub85c \uc4f4 \uae00 7")
    found = reasons("language", [korean, russian, sample("7")], code="ko")
    assert found[0] is None and found[1].startswith("another language") and found[2] is None


def test_a_trace_that_holds_a_measured_problem_is_dropped_with_the_matched_text():
    words = " ".join(f"w{i}" for i in range(20))
    context = Context(measured=[f"tell me {words} now"])
    found, clean = reasons("contamination", [sample(f"well {words}"), sample("7")], context)
    assert found.startswith("holds a measured problem (ngram): w0 w1")
    assert clean is None


def test_of_equal_answers_to_one_prompt_the_first_stays():
    first, second, third = sample("It is  7", index=0), sample("it is 7", index=1), sample("it is 7", problem="q")
    assert reasons("exact", [first, second, third]) == [None, f"equal: {first.key}", None]


def test_nearly_equal_answers_are_found_within_a_prompt_and_on_request_across():
    text = "the quick brown fox jumps over the lazy dog and runs away from it as fast as it can today"
    first, second, third = sample(text), sample(text + "!s"), sample(text + "?t", problem="q")
    assert reasons("near", [first, second, third]) == [None, f"nearly equal: {first.key}", None]
    assert reasons("near", [first, third], across=True) == [None, f"nearly equal: {first.key}"]
    assert reasons("near", [first, sample("something else altogether, of about the same length as that")]) == [
        None,
        None,
    ]


def test_difficulty_is_the_students_own_pass_rate():
    context = Context(pass_rates={"task/easy": 1.0, "task/hard": 0.0, "task/fit": 0.5})
    samples = [sample(problem=name) for name in ("easy", "hard", "fit", "unknown")]
    found = reasons("difficulty", samples, context, low=0.1, high=0.75)
    assert found == ["too easy: the student solves 1.00", "too hard: the student solves 0.00", None, None]


def test_a_draw_without_a_verdict_says_nothing_of_difficulty():
    statuses = {"half": ["correct", "incorrect", "timeout", "error"], "unknown": ["limit", "timeout"]}
    samples = [
        replace(sample(problem=name), label=PROBE, verdict=Verdict(status))
        for name, found in statuses.items()
        for status in found
    ]
    assert _pass_rates(samples) == {samples[0].prompt: 0.5}


def test_filters_stand_where_they_say_and_those_that_say_nothing_come_last(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def zeal():\n    return lambda samples, context: [None for _ in samples]\n")
    own = ["routing", "truncated", "verdict", "agreement", "format", "language", "repetition", "contamination", "exact",
           "near", "difficulty"]  # fmt: skip
    everything = {name: {} for name in (f"{file}:zeal", *reversed(own))}
    assert list(settings_of(everything, {})) == [*own, f"{file}:zeal"]
    assert list(settings_of({}, {})) == ["truncated", "verdict", "format", "repetition", "contamination", "exact"]


MISTAKES = """
def async_needed(samples, context):
    return None

def number():
    return 3

def silent():
    return lambda samples, context: None

def short():
    return lambda samples, context: [None]

def raises():
    def judge(samples, context):
        return samples[9].text
    return judge
"""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("async_needed", "takes samples, which nothing gives it: write def async_needed(*, ...) -> Filter"),
        ("number", "made a value of type int, not a Filter: return a function of ("),
    ],
)
def test_a_filter_of_another_shape_is_refused_when_the_spec_is_read(tmp_path, name, message):
    file = tmp_path / "mine.py"
    file.write_text(MISTAKES)
    with pytest.raises(ConfigError, match=re.escape(f"filter {file}:{name} {message}")):
        read_filters({f"{file}:{name}": {}})


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("silent", "returned None; return a Sequence"),
        ("short", "returned 1 values for 2; return one for each, in order"),
        ("raises", "raised IndexError: list index out of range (mine.py, line 16)"),
    ],
)
def test_a_filter_that_fails_is_told_as_the_users_own(tmp_path, name, fault):
    file = tmp_path / "mine.py"
    file.write_text(MISTAKES)
    filters = read_filters({f"{file}:{name}": {}})
    with pytest.raises(Exception) as caught:
        run_pipeline([sample(), sample("8")], filters, Context(), None, 1)
    assert str(blamed(caught.value)) == f"filter {file}:{name} {fault}"


def test_a_spec_adds_changes_and_drops_filters_and_the_order_stays():
    found = settings_of(
        {"agreement": {"min_share": 0.5}}, {"verdict": False, "near": True, "format": {"final": "false"}}
    )
    assert list(found) == ["truncated", "agreement", "format", "repetition", "contamination", "exact", "near"]
    assert found["format"] == {"final": "false"}
    with pytest.raises(UnknownName, match="unknown filter 'neer'; did you mean 'near'"):
        read_filters(settings_of({}, {"neer": True}))
    with pytest.raises(ConfigError, match=r"filters\.near must be a table, true or false, got 3"):
        settings_of({}, {"near": 3})
    with pytest.raises(ConfigError, match=r"\[filters\.near\].*thresold"):
        read_filters({"near": {"thresold": 0.5}})


answers = st.builds(
    sample,
    text=st.sampled_from(["7", "it is 7", "it is 8", "", "no <think>"]),
    problem=st.sampled_from(["a", "b", "c"]),
    finish=st.sampled_from(["stop", "length"]),
    status=st.sampled_from(["correct", "incorrect", "timeout", None]),
    index=st.integers(0, 50),
    tokens=st.integers(1, 9),
)


@given(st.lists(answers, max_size=30, unique_by=lambda one: one.key), st.integers(1, 3))
def test_the_funnel_adds_up_whatever_comes_in(samples, per_prompt):
    filters = read_filters(settings_of({}, {"near": True}))
    found = run_pipeline(samples, filters, Context(), read_selection({"per_prompt": per_prompt}), 1)
    came = len(samples)
    for stage in found.stages:
        assert stage.came == came
        assert stage.came - stage.kept == sum(stage.reasons.values())
        came = stage.kept
    assert came == len(found.kept)
    assert {s.key for s in samples} == {s.key for s in found.kept} | set(found.dropped)
    assert not {s.key for s in found.kept} & set(found.dropped)
    assert all(sum(s.prompt == other.prompt for other in found.kept) <= per_prompt for s in found.kept)
    assert all(s.verdict.correct and s.answer.finish_reason == "stop" for s in found.kept)


def chosen(rule, samples, per_prompt=1, seed=1, **fields):
    kept, lost = read_selection({"rule": rule, "per_prompt": per_prompt, **fields}).choose(samples, seed)
    assert len(kept) + len(lost) == len(samples)
    return [one.answer.text for one in kept]


def test_each_rule_of_selection_prefers_what_it_says():
    samples = [sample("a b c d e f", tokens=9, score=0.9), sample("a b c d e g", tokens=2, score=0.1),
               sample("zz yy xx", tokens=5, score=None)]  # fmt: skip
    assert chosen("shortest", samples) == ["a b c d e g"]
    assert chosen("best_scored", samples) == ["a b c d e f"]
    assert chosen("diverse", samples, per_prompt=2) == ["a b c d e g", "zz yy xx"]
    drawn = {tuple(chosen("random", samples, seed=seed)) for seed in range(20)}
    assert len(drawn) == 3
    assert chosen("random", samples, seed=3) == chosen("random", samples[::-1], seed=3)


def test_a_cap_counts_answers_of_one_purpose():
    samples = [sample("long", tokens=5, label="think"), sample("short", tokens=1, label="plain")]
    assert chosen("shortest", samples) == ["long", "short"]
