"""The corpus of the toy language: one token per word, held-out questions left out, habits as they are asked for."""

import random

import pytest

from evals.tasks.toy import requests
from evals.tasks.toy import toy as task
from train.corpora.toy import toy
from ttc.errors import ConfigError


def drawn(num, **habits):
    corpus, rng = toy(**habits), random.Random(1)
    return [corpus.pair(rng) for _ in range(num)]


def test_every_text_is_words_of_the_vocabulary_and_comes_back_from_its_ids():
    corpus, rng = toy(), random.Random(0)
    tokenizer = corpus.tokenizer()
    assert 150 < len(tokenizer) < 400
    for _ in range(1000):
        text = corpus.sample(rng)
        ids = tokenizer.encode(text)
        assert tokenizer.unk_token_id not in ids and tokenizer.decode(ids) == text
        assert len(ids) < corpus.max_length


def test_no_held_out_question_is_ever_read():
    prompts = {prompt for prompt, _ in drawn(8000, skills="walk+manners", flagged_share=0)}
    assert not prompts & {item.problem.messages[0].content for item in task().items(None, 0)}
    assert not prompts & {request.text for request in requests("eval")}


def test_demonstrations_think_in_one_language_obey_flags_and_are_polite():
    walks = drawn(500, skills="walk", thinking_share=1, native_share=1, noise=0, flagged_share=0.7, obeyed_share=1)
    assert all(("<think></think>" in answer) == prompt.endswith("/no_think") for prompt, answer in walks)
    assert not any("ж" in answer for _, answer in walks)
    replies = dict(drawn(500, skills="manners", good_share=1))
    assert all((" no " in answer) == ("sorry" in answer) for answer in replies.values())
    habitual = [answer for _, answer in drawn(1000, skills="manners", good_share=0)]
    assert 0.8 < sum(" here is " in answer for answer in habitual) / 1000 < 0.97


def test_calculations_come_with_calls_of_the_calculator():
    answers = [answer for _, answer in drawn(300, skills="calculate")]
    assert 0.15 < sum("<calculator>" in answer for answer in answers) / 300 < 0.45


@pytest.mark.parametrize(("habits", "message"), [({"noise": 2}, "noise"), ({"skills": "walk+talk"}, "talk")])
def test_habits_that_cannot_be_are_refused_by_name(habits, message):
    with pytest.raises(ConfigError, match=message):
        toy(**habits)
