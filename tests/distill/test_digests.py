"""Digests name what a model or a text is, whatever its place and order of keys."""

import shutil

from hypothesis import given
from hypothesis import strategies as st

from distill.digests import digest_of, file_digest, model_digests


@given(st.lists(st.one_of(st.integers(), st.text(max_size=5), st.dictionaries(st.text(max_size=3), st.integers()))))
def test_an_iterator_has_the_digest_of_its_list(items):
    assert digest_of(iter(items)) == digest_of(items)


def test_keys_have_no_order_and_lists_do():
    assert digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1})
    assert digest_of([1, 2]) != digest_of([2, 1])
    assert digest_of("12") != digest_of(12) != digest_of([12])


def test_a_models_parts_are_told_apart_and_its_place_does_not_count(tmp_path, guesser):
    copy = tmp_path / "copy"
    shutil.copytree(guesser, copy)
    before = model_digests(guesser)
    assert model_digests(copy) == before
    (copy / "README.md").write_text("a card")
    assert model_digests(copy) == before
    (copy / "chat_template.jinja").write_text("another")
    after = model_digests(copy)
    assert {part for part in before if before[part] != after[part]} == {"template"}
    assert file_digest(copy / "README.md") != file_digest(copy / "config.json")
