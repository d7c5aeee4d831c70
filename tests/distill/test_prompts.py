"""Problems that must not be asked are found before anything is spent, with what they share with others."""

from dataclasses import replace

from distill.data.pipeline import clean_prompts
from evals.data.decontamination import own_texts
from tests.distill.pieces import item

WORDS = " ".join(f"w{i}" for i in range(15))


def test_equal_and_overlapping_prompts_are_dropped_with_the_matched_text():
    measured = [item("m1", "what is 3+4?"), item("m2", f"a story: {WORDS}. how many?")]
    items = [item("a", "What is  3+4 ?"), item("b", f"{WORDS} and so on"), item("c", "what is 3+5?")]
    found = clean_prompts(items, [measured])
    assert [kept.problem.id for kept in found.items] == ["c"]
    assert [name for name, _ in found.dropped] == ["a", "b"]
    assert found.dropped[0][1].startswith("measured (equal): m1")
    assert found.dropped[1][1].startswith("measured (ngram): m2: w0 w1 w2")


def test_an_instruction_that_all_prompts_share_is_no_contamination():
    order = "please reason step by step and put your final answer in a box, as the examples above have shown you"
    measured = [item(f"m{i}", f"how many are {i}? {order}") for i in range(4)]
    items = [item(f"t{i}", f"how much is {i + 10}? {order}") for i in range(4)]
    assert len(clean_prompts(items, [measured]).items) == 4
    assert (
        own_texts(items) == ["much is 10?", "much is 11?", "much is 12?", "much is 13?"] or own_texts(items)[0] == "10?"
    )


def test_variants_of_a_measured_problem_are_dropped():
    measured = [replace(item("m1", "what is 3+4?"), cluster="sum")]
    items = [
        replace(item("a", "three and four?"), cluster="sum"),
        replace(item("b", "what is 2*2?"), cluster="product"),
    ]
    found = clean_prompts([*items, item("c", "what is 3+5?")], [measured])
    assert [kept.problem.id for kept in found.items] == ["b", "c"]
    assert dict(found.dropped) == {"a": "measured (cluster): m1: both are variants of sum"}


def test_duplicates_and_prompts_that_tell_their_answer_are_dropped():
    items = [item("a", "what is 1?"), item("b", "What is 1?"), item("c", "what is x? answer: 7")]
    found = clean_prompts(items, [])
    assert [kept.problem.id for kept in found.items] == ["a"]
    assert dict(found.dropped) == {"b": "duplicate: a", "c": "tells its answer: answer: 7"}
