"""Both detectors find what they are for, and leave apart what only looks alike."""

from hypothesis import given
from hypothesis import strategies as st

from evals.data.decontamination import answer_leaks, normalised, overlaps, own_texts, prompt_text
from evals.task import Item, boxed_question
from ttc.core import Message, Problem

LONG = "A train leaves the station at nine and travels at sixty miles an hour for three hours and a half. How far?"


def item(text, target):
    return Item(Problem("p", (Message("user", text),)), target)


def test_equal_texts_are_found_whatever_their_case_spaces_and_unicode_form():
    (found,) = overlaps(["  COMPUTE\u00a0３+4 !"], ["compute 3+4"])
    assert (found.train, found.held_out, found.how) == (0, 0, "equal")


def test_a_shared_run_of_words_is_found_inside_other_text_and_shown():
    (found,) = overlaps(["unrelated", f"Please solve this. {LONG} Think first."], ["x", LONG])
    assert (found.train, found.held_out, found.how) == (1, 1, "ngram")
    assert len(found.shared.split()) == 13 and "train leaves the station" in found.shared


def test_other_numbers_are_another_problem_and_short_texts_need_to_be_equal():
    assert list(overlaps(["Compute 3+5."], ["Compute 3+4."])) == []
    assert list(overlaps(["What is 3+4? Show your work."], ["What is 3+4?"])) == []


@given(st.text(max_size=80))
def test_a_text_always_overlaps_with_itself_and_normalising_twice_changes_nothing(text):
    assert len(list(overlaps([text], [text]))) == 1
    assert normalised(normalised(text)) == normalised(text)


def test_an_answer_behind_a_mark_is_a_leak_and_one_that_stands_there_by_chance_is_not():
    leaking = [item(r"What is 3+4? Hint: \boxed{7}", "7"), item("3+4? #### 7", "7"), item("3+4? The answer is 7.", "7")]
    assert len(list(answer_leaks(leaking))) == 3
    chance = [item("What is 7+0?", "7"), item("The answer is 7+x. Find x.", "7"), item("Is 17 prime?", "7")]
    assert list(answer_leaks(chance)) == []


def test_a_long_target_word_for_word_is_a_leak():
    assert len(list(answer_leaks([item(f"Repeat: {LONG}", LONG)]))) == 1


def test_targets_that_are_not_text_are_left_alone():
    assert list(answer_leaks([item("x", {"answer": "7"}), item("x", None)])) == []


def test_an_instruction_that_all_prompts_share_is_no_overlap():
    asked = ["How many legs are there?", "How far is it in total?", "How many cats are there?", "How much is that?"]
    items = [Item(Problem(str(i), boxed_question(f"{i} things. {text}")), "1") for i, text in enumerate(asked)]
    bare = [prompt_text(each) for each in items]
    assert len(list(overlaps(bare[:2], bare[2:]))) == 2  # the instruction alone is a run of 13 words
    own = own_texts(items)
    assert list(overlaps(own[:2], own[2:])) == []
    assert own[0] == "0 things. How many legs are there?"
    again = own_texts([*items, items[0]])
    assert [found.how for found in overlaps(again[:2], again[4:])] == ["equal"]
