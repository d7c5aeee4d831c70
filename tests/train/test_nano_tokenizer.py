"""The tokenizer of the packaged family and its chat template."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from train.nano import tokenizer

QUESTION = [{"role": "user", "content": "Compute 2+3."}]


def ids_of(nano, text):
    return nano.encode(text, add_special_tokens=False)


@settings(deadline=None, max_examples=200)
@given(st.text())
def test_any_text_round_trips(text):
    nano = _shared()
    assert nano.decode(ids_of(nano, text)) == text


def _shared(made=[]):  # noqa: B006  one tokenizer for all examples
    if not made:
        made.append(tokenizer.build())
    return made[0]


@pytest.mark.parametrize("text", [*tokenizer.WORDS, *tokenizer.MARKERS, *tokenizer.SPECIAL])
def test_each_word_and_marker_is_one_token(nano, text):
    assert len(ids_of(nano, text)) == 1


def test_digits_stay_single(nano):
    assert len(ids_of(nano, "1234567890")) == 10


def test_think_markers_are_not_special_so_that_decoding_keeps_them(nano):
    text = "<think>\n1+1=2\n\n</think>\n\nThe answer is \\boxed{2}."
    assert nano.decode(ids_of(nano, text + "<|im_end|>"), skip_special_tokens=True) == text


def render(nano, messages, **options):
    return nano.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **options)


def test_the_template_opens_the_think_block_by_default(nano):
    expected = "<|im_start|>user\nCompute 2+3.<|im_end|>\n<|im_start|>assistant\n<think>\n"
    assert render(nano, QUESTION) == expected
    assert render(nano, QUESTION, enable_thinking=True) == expected


def test_the_template_closes_the_think_block_when_thinking_is_off(nano):
    assert render(nano, QUESTION, enable_thinking=False).endswith("assistant\n<think>\n\n</think>\n\n")


def test_a_system_message_and_earlier_turns_are_rendered_without_their_thinking(nano):
    messages = [
        {"role": "system", "content": "Be brief."},
        *QUESTION,
        {"role": "assistant", "content": "<think>\n2+3=5\n\n</think>\n\nThe answer is 5."},
        {"role": "user", "content": "And 3+4?"},
    ]
    assert render(nano, messages) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nCompute 2+3.<|im_end|>\n"
        "<|im_start|>assistant\nThe answer is 5.<|im_end|>\n"
        "<|im_start|>user\nAnd 3+4?<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n"
    )


def test_a_saved_tokenizer_loads_unchanged(tmp_path, nano):
    tokenizer.save(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.is_fast
    text = render(nano, QUESTION) + "2+3=5\n\n</think>\n\n"
    assert render(loaded, QUESTION) == render(nano, QUESTION)
    assert ids_of(loaded, text) == ids_of(nano, text)
    assert (loaded.eos_token, loaded.pad_token) == ("<|im_end|>", "<|endoftext|>")
