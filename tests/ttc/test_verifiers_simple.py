"""The verifiers of choices, strings and forms."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.timing import patience
from ttc.answers import extract, key
from ttc.core import Submission, TargetLike, Verdict
from ttc.errors import ConfigError
from ttc.verifiers.choice import choice
from ttc.verifiers.exact import exact
from ttc.verifiers.format import format as form
from ttc.verifiers.math import math


def judge(verifier: Any, target: TargetLike, text: str, thinking: str = "", finish: Any = "stop") -> Verdict:
    verdict = asyncio.run(verifier.verify(target, Submission(text, thinking, finish)))
    assert isinstance(verdict, Verdict)
    return verdict


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("The answer is (C).", "correct"),
        ("The correct option is C", "correct"),
        (r"\boxed{C}", "correct"),
        (r"\boxed{\text{(C)}}", "correct"),
        ("C", "correct"),
        ("C. Paris", "correct"),
        ("**C**", "correct"),
        ("<answer>c</answer>", "correct"),
        ("Answer: D", "incorrect"),
        (r"First \boxed{C}. No, wait. \boxed{D}", "incorrect"),
        ("Answer: B or C", "no_answer"),
        (r"\boxed{B, C}", "no_answer"),
        ("A good question.", "no_answer"),
        ("I cannot tell.", "no_answer"),
        ("", "no_answer"),
        ("<think>C", "no_answer"),
    ],
)
def test_choices_are_compared_by_letter(text: str, status: str) -> None:
    assert judge(choice(), "C", text).status == status


@pytest.mark.parametrize(
    "text",
    [
        "A is too small. Thus, C.",
        "letter C",
        "Hence, the letter C.",
        "Option C is correct because A is wrong.",
        "The answer is C because A is wrong.",
        "The answer is (C), not (B).",
        "The answer is C and not D.",
        "Option A is wrong, so C.",
        "A is wrong. It must be C.",
        "Thus, C is the answer.",
        "Only (C) is correct.",
        "We choose C.",
        "Let's go with C.",
        "This matches option C.",
        "The answer is the letter C.",
        "Based on this, I choose C.",
        "La respuesta correcta es la C.",
        "A resposta é a letra C.",
        "Vậy đáp án đúng là C.",
    ],
)
def test_a_sentence_that_takes_a_letter_is_an_answer(text: str) -> None:
    assert judge(choice(), "C", text).correct
    assert judge(choice(), "A", text).status == "incorrect"


@pytest.mark.parametrize(
    "text",
    [
        "C is wrong",
        "C is wrong.",
        "C cannot be correct.",
        "Thus, not C.",
        "Thus, C is wrong.",
        "Thus, B or C.",
        "Thus, C and D.",
        "Thus, C?",
        "The wrong answer is C.",
        "The least likely answer is C.",
        "Never pick C.",
        "I would not choose C.",
        "This does not match option C.",
        "This rules out option C.",
        "Vitamin C",
        "If A is true, then C.",
        "Only C fits.",
    ],
)
def test_a_sentence_that_only_mentions_a_letter_is_none(text: str) -> None:
    assert judge(choice(), "C", text).status == "no_answer"


@pytest.mark.parametrize(
    "formula", ["c+d", "C+D", "c^2", "C_1", "c-d", "dc/dx", "c = 3", "C(x)", "c/d", r"c\pm d", r"C \le 3"]
)
def test_a_letter_of_a_formula_is_no_choice(formula: str) -> None:
    for text in (rf"\boxed{{{formula}}}", f"The answer is {formula}."):
        assert not judge(choice(), "C", text).correct, text


def test_a_letter_before_its_value_is_a_choice() -> None:
    for text in (
        r"\boxed{C - 12}",
        r"\boxed{C-12}",
        r"\boxed{\text{C: } 4}",
        "The answer is C (42).",
        "Answer: C-peptide",
    ):
        assert judge(choice(), "C", text).correct, text


@pytest.mark.parametrize(
    "text",
    [
        "The answer to the question is D.",
        "The answer is clearly D.",
        "My choice is D.",
        "因此，正确选项是D。",
        "D\n\nExplanation: A and B are wrong.",
        "**D.**\n\n**Explanation:** " + "A is wrong, since it says too little. " * 20,
    ],
)
def test_a_letter_is_found_in_what_models_say_of_their_choice(text: str) -> None:
    assert judge(choice(), "D", text).correct


@pytest.mark.parametrize(
    "text",
    [
        "The answer to the question is not D.",
        "The answer is clearly not D.",
        "The answer is definitely A or D.",
        "D\n\nExplanation: wait, that is wrong, it is A.",
        "D\n\nA\n\nExplanation: both are right.",
        "D\n\nExplanation: so the answer is A.",
    ],
)
def test_a_letter_that_is_denied_replaced_or_one_of_two_is_no_choice(text: str) -> None:
    assert not judge(choice(), "D", text).correct


def test_quotation_marks_and_emphasis_are_no_part_of_a_string() -> None:
    for text in ("Answer: *Paris*", "“Paris”", "The answer is «Paris».", "***Paris***", "„Paris“", "**Paris**."):
        assert judge(exact(), "Paris", text).correct, text
    for text in ("Answer: *Rome*", "“Paris” or “Rome”", "*Paris* *Rome*"):
        assert not judge(exact(), "Paris", text).correct, text


def test_a_choice_target_may_bring_the_text_of_the_option() -> None:
    assert judge(choice(), {"answer": "C", "alternatives": ["Paris"]}, r"\boxed{Paris}").correct
    assert judge(choice(), {"answer": "B", "alternatives": ["C major"]}, r"\boxed{C major}").correct
    planets = {"answer": "C", "alternatives": ["Mercury"]}
    for text in ("Mercury", "**Mercury**", "The answer is Mercury.", "So it is.\n\nAnswer: *Mercury*"):
        assert judge(choice(), planets, text).correct, text
    for text in (
        "Venus",
        "The answer is not Mercury.",
        "The answer is Mercury or Venus.",
        "B) Mercury",
        "<think>Mercury",
    ):
        assert not judge(choice(), planets, text).correct, text
    assert judge(choice(), {"answer": "B", "alternatives": ["C major"]}, r"\boxed{C}").status == "incorrect"


@pytest.mark.parametrize(
    "text",
    [
        r"\boxed{\textbf{(B)}\ 5}",
        r"\boxed{\textbf{(B) } 5}",
        r"\boxed{\mathrm{(B)}\,\frac{1}{2}}",
        r"The answer is $\textbf{(B)}\ 5$.",
        r"\boxed{\textbf{(B)}\ \text{neither (A) nor (C)}}",
        r"\boxed{\textbf{(B)}\ x < 1 \text{ or } x > 4}",
    ],
)
def test_a_letter_with_the_value_of_its_option_is_that_letter(text: str) -> None:
    assert judge(choice(), "B", text).correct
    assert judge(choice(), "C", text).status == "incorrect"


@pytest.mark.parametrize(
    "text",
    [
        r"\boxed{\textbf{(B)}\ \text{or}\ \textbf{(C)}}",
        r"\boxed{\textbf{(B)}\quad\text{and}\quad\textbf{(C)}}",
        r"\boxed{\textbf{(B)}~\text{or}~\textbf{(C)}}",
        r"\boxed{\textbf{(B)}\ 5 \text{ or } \textbf{(C)}\ 6}",
        r"\boxed{(B) 5 or (C) 6}",
        "The answer is (B) 5 or (C) 6.",
    ],
)
def test_two_letters_with_their_values_are_a_hedge(text: str) -> None:
    for gold in "BC":
        assert judge(choice(), gold, text).status == "no_answer"


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("The answer is A mammal.", "no_answer"),
        ("The answer is option A mammal.", "correct"),
        ("The answer is A) mammal", "correct"),
        ("The answer is A. mammal", "correct"),
        ("The answer is (A) mammal", "correct"),
        ("The answer is **A** mammal", "correct"),
        ("The answer is A: mammal", "correct"),
        ("The answer is A - mammal", "correct"),
        (r"\boxed{\textbf{A} mammal}", "correct"),
        (r"\boxed{A}", "correct"),
        ("Answer: A\nmammals give milk", "correct"),
        ("The answer is A based on the passage.", "correct"),
        ("The answer is A if we read it so.", "correct"),
        ("The answer is A for several reasons.", "correct"),
        ("So the answer is A given the data.", "correct"),
        ("The answer is A rather than B.", "correct"),
        ("The answer is A not B.", "correct"),
        ("The answer is A rather large mammal.", "no_answer"),
        ("The answer is A given number.", "no_answer"),
        ("The answer is A not unusual mammal.", "no_answer"),
        (r"\boxed{A mammal}", "incorrect"),
        (r"\boxed{(A mammal)}", "incorrect"),
        ("<answer>A large mammal</answer>", "incorrect"),
        ("The answer is A while loop.", "no_answer"),
        ("The answer is A from-scratch design.", "no_answer"),
    ],
)
def test_an_article_before_a_word_is_no_letter(text: str, status: str) -> None:
    assert judge(choice(), "A", text).status == status


def test_a_pronoun_before_a_word_is_no_letter() -> None:
    assert judge(choice(), "I", "The answer is I think unclear.").status == "no_answer"
    assert judge(choice(), "I", "The answer is I) think").correct


def test_the_text_of_an_option_that_begins_with_an_article_is_not_the_letter_of_the_article() -> None:
    target = {"answer": "C", "alternatives": ["A mammal"]}
    assert judge(choice(), target, r"\boxed{A mammal}").correct
    assert judge(choice(), target, r"\boxed{A}").status == "incorrect"


@pytest.mark.parametrize("target", ["Paris", "B or C", "", 5, "A mammal"])
def test_a_choice_gold_that_is_not_one_letter_is_refused(target: TargetLike) -> None:
    with pytest.raises(ConfigError, match="row 3"):
        choice().check_gold(target, "row 3")


@pytest.mark.parametrize(
    ("options", "text", "status"),
    [
        ({}, "  Hello   WORLD. ", "correct"),
        ({}, "The answer is hello world.", "correct"),
        ({}, r"\boxed{hello world}", "correct"),
        ({}, "hello", "incorrect"),
        ({}, "many\nlines", "no_answer"),
        ({"case_sensitive": True}, "Hello world", "incorrect"),
        ({"whole_text": True}, "hello\nworld", "correct"),
        ({"whole_text": True}, "The answer is hello world", "incorrect"),
    ],
)
def test_strings_are_compared_after_normalisation(options: dict[str, bool], text: str, status: str) -> None:
    assert judge(exact(**options), "hello world", text).status == status


@pytest.mark.parametrize(
    ("gold", "text"),
    [
        ("Paris", r"\boxed{\text{Paris}}"),
        ("Paris", r"\boxed{\mathrm{Paris}}"),
        ("Paris", "**Paris**"),
        ("Paris", "The answer is **Paris**."),
        ("Paris", "**Answer: Paris**"),
        ("AT&T", r"\boxed{AT\&T}"),
        ("50%", r"\boxed{50\%}"),
        ("under_score", r"\boxed{\text{under\_score}}"),
        ("New York", r"\boxed{New~York}"),
        (r"AT\&T", "AT&T"),
    ],
)
def test_marks_of_latex_and_markdown_are_no_part_of_words(gold: str, text: str) -> None:
    for case_sensitive in (False, True):
        assert judge(exact(case_sensitive=case_sensitive), gold, text).correct
    final = extract(text, "exact").final
    assert final is not None and key(final, "exact") == key(gold, "exact")


VERDICTS = {
    "No": (
        [
            "No, because 4 is even.", "The answer is: No, since 91 = 7 * 13.", "No. It is odd.", "NO!",
            "No (91 = 7 · 13)", "No — 91 is composite.", "**No**, it is not.", "No: there is none.",
            r"\boxed{\text{No, because } 91 = 7\cdot 13}",
        ],
        [
            "No idea.", "No way to tell", "No one", "No or yes", "No? Yes.", "No, wait: yes.", "No. Actually it is.",
            "No, yes", "No, sorry, I cannot answer that.", "No. 5", "No, if n > 2", "No, but it is close.",
            "Yes. No other number works.", "No, and yes for n = 2", "No, that would be true: yes", "None, as 4 is.",
        ],
    ),
    "yes": (
        ["Yes, no other number works.", "Yes: both are prime", "yes!", "Yes because 7 is prime"],
        [
            "Yes, no, maybe", "Yes, if n > 2", "Yes. No.", "Yes and no", "Yes, no otherwise",
            "Yesterday, because it rained",
        ],
    ),
    "True": (
        ["True, because 2 is prime."],
        ["True or False", "True, false for 4", "Truely, because", "False, because 2 is prime"],
    ),
    "Paris": ([], ["Paris, Texas", "Paris, because it is large"]),
}  # fmt: skip


@pytest.mark.parametrize("gold", VERDICTS)
def test_a_verdict_is_right_with_its_reason_and_not_with_the_other_one(gold: str) -> None:
    right, wrong = VERDICTS[gold]
    assert [text for text in right if not judge(exact(), gold, text).correct] == []
    assert [text for text in wrong if judge(exact(), gold, text).correct] == []
    assert not any(judge(exact(whole_text=True), gold, text).correct for text in right if text.casefold() != gold)


def test_a_block_of_one_line_and_signs_that_nobody_sees_do_not_hide_a_string() -> None:
    assert judge(exact(), "SELECT 1", "```sql\nSELECT 1\n```").correct
    assert judge(exact(), "Paris", "Pa\u200bris\ufeff").correct
    assert not judge(exact(), "SELECT 1", "```sql\nSELECT 1\nSELECT 2\n```").correct


def test_signs_that_belong_to_a_string_stay_in_it() -> None:
    for gold, text in (("~/bin", "/bin"), ("__init__", "init"), ("$5", "5"), (r"C:\temp", "C:temp"), ("*.py", ".py")):
        assert judge(exact(), gold, gold).correct
        assert judge(exact(), gold, text).status == "incorrect"


def test_the_end_of_an_emphasis_is_no_part_of_an_answer() -> None:
    assert extract("The answer is **Paris**.", "exact").final == "Paris"


def test_a_cut_text_has_no_answer_for_any_verifier() -> None:
    for verifier in (choice(), exact(), form()):
        assert judge(verifier, "C", r"\boxed{C}", finish="length").status == "no_answer"
    for verifier in (choice(allow_truncated=True), exact(allow_truncated=True), form(allow_truncated=True)):
        assert judge(verifier, "C", r"\boxed{C}", finish="length").correct


@pytest.mark.parametrize(
    ("options", "text", "thinking", "broken"),
    [
        ({}, r"so \boxed{4}", "", ""),
        ({}, r"\boxed{3} then \boxed{4}", "", "answer"),
        ({}, "4", "", "answer"),
        ({"thinking": "required"}, r"\boxed{4}", "", "thinking"),
        ({"thinking": "required"}, r"\boxed{4}", "hm", ""),
        ({"thinking": "required"}, r"<think>hm</think>\boxed{4}", "", ""),
        ({"thinking": "required"}, r"<think></think>\boxed{4}", "", "thinking"),
        ({"thinking": "forbidden"}, r"<think>hm</think>\boxed{4}", "", "thinking"),
        ({}, r"<think>hm \boxed{4}", "", "closed, answer"),
        ({"answer": "tag"}, "<answer>4</answer>", "", ""),
        ({"answer": "tag"}, "<answer>4</answer><answer>5</answer>", "", "answer"),
        ({"answer": "tag"}, "</answer>4<answer>", "", "answer"),
        ({"answer": "hash"}, "work\n#### 4", "", ""),
        ({"answer": "any"}, "The answer is 4.", "", ""),
        ({"answer": "free"}, "anything", "", ""),
        ({"answer": "free", "max_chars": 3}, "anything", "", "length"),
        ({"answer": "free", "min_chars": 30}, "anything", "", "length"),
    ],
)
def test_forms_are_judged_part_by_part(options: dict[str, Any], text: str, thinking: str, broken: str) -> None:
    verdict = judge(form(**options), None, text, thinking)
    assert verdict.status == ("incorrect" if broken else "correct")
    assert ", ".join(name for name, holds in verdict.parts.items() if not holds) == broken
    assert verdict.score == sum(verdict.parts.values()) / 4


def test_impossible_lengths_are_refused() -> None:
    with pytest.raises(ConfigError, match="min_chars"):
        form(min_chars=5, max_chars=4)


def test_a_text_of_more_than_a_million_characters_is_not_searched() -> None:
    for verifier, target in ((choice(), "C"), (exact(), "C"), (math(), "4")):
        verdict = judge(verifier, target, "x" * 1_000_001 + r"\boxed{C}")
        assert (verdict.status, verdict.score, verdict.reason) == ("incorrect", 0.0, "limit: text_too_long")
        assert verdict.seconds < 0.5 * patience()


@pytest.mark.parametrize(
    "text",
    [
        "Option C", "Choice C.", "Option C: Paris", "The answer must be C.", "The answer is 'C'.",
        "The answer is `C`.", "`C`", "选C", "选择C", "故选：C。", "因此选 (C)", "答案选C", "Answer choice: C",
        '{"answer": "C"}', "C. H", r"\boxed{C. A river}", "The answer is C) A river", "(C) A river bank", "(C) H",
    ],
)  # fmt: skip
def test_letters_are_found_in_quotes_behind_option_and_in_chinese(text: str) -> None:
    assert judge(choice(), "C", text).status == "correct"


@pytest.mark.parametrize(
    "text",
    [
        "C is wrong.", "C is incorrect.", "C is not the answer.", "(C) isn't correct.", "C. No wait, D.",
        "Answer: (C)(D)", "C D", "The answer is C or none.", "Answer: C (or D)", "C D B", "C. D. B.",
        "Answer: C D", "Option C is incorrect.", "不选C",
    ],
)  # fmt: skip
def test_a_letter_that_is_denied_or_has_another_beside_it_is_no_answer(text: str) -> None:
    assert [judge(choice(), letter, text).status for letter in "BCD"] == ["no_answer"] * 3


def test_brackets_that_close_no_box_are_a_gold_and_an_article_is_no_part_of_a_name() -> None:
    exact().check_gold("] }")
    for text in ("So we need ] }. So the answer is ] }", r"\boxed{] \}}", "] }"):
        assert judge(exact(), "] }", text).status == "correct"
    assert judge(exact(), "] }", "The answer is } ].").status == "incorrect"
    assert judge(exact(), "blue whale", "It's the blue whale.").status == "correct"
    assert judge(exact(), "b c", "a b c").status == "incorrect"
