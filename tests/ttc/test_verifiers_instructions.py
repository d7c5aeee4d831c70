"""The 25 instructions of IFEval, strict and loose, and that hostile responses are judged in time."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ttc.hostile import hostile_texts
from ttc.core import Submission, Verdict
from ttc.errors import ConfigError
from ttc.verifiers.instructions.table import INSTRUCTIONS, count_capital_words, count_sentences, count_words
from ttc.verifiers.instructions.verifier import instructions, variants

ALL: dict[str, tuple[dict[str, Any], str, str]] = {
    "keywords:existence": ({"keywords": ["art", "war"]}, "Warm hearts.", "hearts only"),
    "keywords:frequency": ({"keyword": "ha", "relation": "at least", "frequency": 3}, "Ha ha, aha!", "ha ha"),
    "keywords:forbidden_words": ({"forbidden_words": ["rock"]}, "rocks are rocky", "A Rock."),
    "keywords:letter_frequency": ({"letter": "Q", "let_relation": "less than", "let_frequency": 2}, "Quit", "Qq"),
    "language:response_language": (
        {"language": "fr"},
        "Le chat dort sur la chaise et ne veut pas se lever.",
        "The cat sleeps on the chair.",
    ),
    "length_constraints:number_sentences": (
        {"relation": "less than", "num_sentences": 3},
        "Dr. Smith left at 5 p.m. on Monday. He was late...",
        "One. Two! Three?",
    ),
    "length_constraints:number_paragraphs": ({"num_paragraphs": 2}, "a\n***\nb", "a\n***\n\n***\nb"),
    "length_constraints:number_words": ({"relation": "at least", "num_words": 3}, "a well-known", "a_b c"),
    "length_constraints:nth_paragraph_first_word": (
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "Yes"},
        'No.\n\n"Yes," he said.',
        "No.\n\nYesterday.",
    ),
    "detectable_content:number_placeholders": ({"num_placeholders": 2}, "[name], [city]", "[name\n] [city]"),
    "detectable_content:postscript": ({"postscript_marker": "P.P.S"}, "Bye. p. p. s: one", "P.S. one"),
    "detectable_format:number_bullet_lists": ({"num_bullets": 2}, "* a\n  - b\n** c", "* a"),
    "detectable_format:constrained_response": ({}, "Well: My answer is no. Really.", "my answer is no."),
    "detectable_format:number_highlighted_sections": ({"num_highlights": 2}, "*a* and **b**", "** and *b"),
    "detectable_format:multiple_sections": (
        {"section_spliter": "Day", "num_sections": 2},
        "Day 1 x Day2 y",
        "Day one, Day 2",
    ),
    "detectable_format:json_format": ({}, '```json\n{"a": [1]}\n```', "{a: 1}"),
    "detectable_format:title": ({}, "text\n<<Ode to Joy>>", "<<\nOde>>"),
    "combination:two_responses": ({}, "a\n******\nb", "a\n******\na"),
    "combination:repeat_prompt": ({"prompt_to_repeat": "Say hi."}, "say HI. Hi!", "Hi! Say hi."),
    "startend:end_checker": ({"end_phrase": "The end."}, '"It is over. the END."', "The end. Or not"),
    "startend:quotation": ({}, ' "quoted" ', '"'),
    "change_case:capital_word_frequency": (
        {"capital_relation": "at least", "capital_frequency": 3},
        "NASA, I and (GPT-4)",
        "NASA Nasa nASA",
    ),
    "change_case:english_capital": ({}, "THIS IS A SENTENCE IN CAPITALS.", "THIS IS Not."),
    "change_case:english_lowercase": ({}, "this is a sentence in small letters.", "this is not in English: Das."),
    "punctuation:no_comma": ({}, "no; none", "one, two"),
}


def judge(target: object, text: str, *, finish: Any = "stop", **options: Any) -> Verdict:
    return asyncio.run(instructions(**options).verify(target, Submission(text, finish_reason=finish)))


def only(name: str, **kwargs: Any) -> dict[str, Any]:
    return {"instruction_id_list": [name], "kwargs": [kwargs]}


def test_there_are_the_twenty_five_instructions() -> None:
    assert set(ALL) == set(INSTRUCTIONS)
    assert len(INSTRUCTIONS) == 25


@pytest.mark.parametrize("name", sorted(ALL))
def test_each_instruction_is_told_apart_from_its_breach(name: str) -> None:
    kwargs, good, bad = ALL[name]
    assert judge(only(name, **kwargs), good).status == "correct"
    assert judge(only(name, **kwargs), bad).status == "incorrect"


def test_every_instruction_has_its_own_result_and_the_score_is_their_share() -> None:
    target = {
        "instruction_id_list": ["punctuation:no_comma", "startend:quotation", "punctuation:no_comma"],
        "kwargs": [{}, {"unused": None}, {}],
    }
    verdict = judge(target, "plain")
    assert verdict.parts == {"punctuation:no_comma": 1, "startend:quotation": 0, "punctuation:no_comma#2": 1}
    assert (verdict.status, verdict.score, verdict.reason) == ("incorrect", 2 / 3, "startend:quotation")


def test_loose_forgives_a_first_line_a_last_line_and_stars() -> None:
    target = only("combination:repeat_prompt", prompt_to_repeat="Say hi.")
    assert judge(target, "Sure, here it is:\nSay hi.\nHi!").status == "incorrect"
    assert judge(target, "Sure, here it is:\n**Say hi.**\nHi!", mode="loose").status == "correct"
    assert judge(only("startend:end_checker", end_phrase="Bye."), "Bye.\nHope it helps!", mode="loose").correct
    assert variants("a\n*b*\nc") == ["a\n*b*\nc", "a\nb\nc", "*b*\nc", "b\nc", "a\n*b*", "a\nb", "*b*", "b"]


def test_a_response_that_is_cut_or_empty_or_still_thinking_has_no_verdict() -> None:
    target = only("punctuation:no_comma")
    assert judge(target, "fine", finish="length").status == "no_answer"
    assert judge(target, "fine", finish="length", allow_truncated=True).correct
    assert judge(target, " \n").status == "no_answer"
    assert judge(target, "<think>fine").status == "no_answer"
    assert judge(target, "<think>a, b</think>fine").correct
    assert judge(target, "x" * 100_001).status == "incorrect"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("text", "target must be an object"),
        ({"kwargs": []}, r"target\.instruction_id_list must be a list"),
        ({"instruction_id_list": [], "kwargs": []}, "at least one"),
        ({"instruction_id_list": ["punctuation:no_comma"], "kwargs": []}, "as many kwargs as instructions"),
        ({"instruction_id_list": ["punctuation:no_coma"], "kwargs": [{}]}, r"\[0\].*mean 'punctuation:no_comma'"),
        (only("punctuation:no_comma", word="x"), r"kwargs\[0\]\.word: no such parameter"),
        ({"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{1: 2}]}, r"kwargs\[0\]\.1: no such parameter"),
        (only("length_constraints:number_words", relation="at least", num_words=float("inf")), "whole number >= 0"),
        (only("keywords:existence"), r"kwargs\[0\]\.keywords is missing"),
        (only("keywords:existence", keywords=[""]), "strings that are not blank"),
        (only("language:response_language", language="xx"), "unknown language 'xx'"),
        (only("length_constraints:number_words", relation="at most", num_words=3), "'at least' or 'less than'"),
        (only("length_constraints:number_words", relation="at least", num_words=2.5), "whole number >= 0"),
        ({"instruction_id_list": [], "kwargs": [], "kwarg": []}, r"target\.kwarg: no such field; .*'kwargs'"),
    ],
)
def test_a_broken_target_names_its_field(target: object, message: str) -> None:
    with pytest.raises(ConfigError, match=f"row 7: .*{message}"):
        instructions().check_gold(target, "row 7")
    assert judge(target, "text").status == "error"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("No stop", 1),
        ("One. Two! Three?", 3),
        ("Mr. Brown and Dr. J. Smith met the U.S. Army.", 1),
        ('"Stop!" he said. Then (he left.)', 3),
        ("Wait... what? It ended at 3.14 p.m. today.", 2),
        ("1. First item\n2. Second item", 3),
        ("Really?! Yes.", 2),
        ("See example.com for more.", 1),
    ],
)
def test_sentences_are_counted_as_punkt_counts_them(text: str, count: int) -> None:
    assert count_sentences(text) == count


def test_words_and_words_in_capitals_are_counted_as_nltk_counts_them() -> None:
    assert count_words("It's a well-known_fact, 3.5!") == 7
    assert count_capital_words("DON'T shout, NASA/ESA: I CAN (A.B.) **BOLD** 42") == 7


def test_hostile_responses_are_judged_in_time() -> None:
    mean = ["[" * 99_999, "<<" * 49_999, "\n" * 99_999, "*" * 99_999, "* \n" * 33_000, " " * 99_999 + "x", "." * 99_999]
    mean += ["'" * 99_999, "a.\n" * 33_000, "[[]" * 33_000, '{"a":' * 20_000, "***\n" * 24_000, "- " * 49_000]
    names = sorted(ALL)
    target = {"instruction_id_list": names, "kwargs": [ALL[name][0] for name in names]}
    verifiers = [instructions(mode="strict"), instructions(mode="loose")]
    slow = []
    for text in [*mean, *hostile_texts().values()]:
        for verifier in verifiers:
            started = time.thread_time()
            verdict = asyncio.run(verifier.verify(target, Submission(text)))
            assert verdict.status in ("correct", "incorrect", "no_answer")
            slow.append(time.thread_time() - started)
    assert max(slow) < verifiers[0].card.max_s


@given(st.text(max_size=300))
def test_no_text_makes_a_check_raise(text: str) -> None:
    names = sorted(ALL)
    target = {"instruction_id_list": names, "kwargs": [ALL[name][0] for name in names]}
    assert judge(target, text, mode="loose").status in ("correct", "incorrect", "no_answer")
