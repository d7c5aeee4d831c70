"""Chat templates as folders bring them: their switches of thinking, and what goes wrong inside."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tests.ttc import tiny_model
from ttc.core import Capabilities, Message, Sampling
from ttc.engines.shared.text import Text
from ttc.errors import ConfigError
from ttc.scorers.reward_models.layouts import RewardTokenizer

ASK = [Message("user", "hi")]
PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}"
END = "{% if add_generation_prompt %}"
DEEPSEEK = PLAIN + END + "{% if thinking %}<think>{% else %}</think>{% endif %}{% endif %}"
ALWAYS = PLAIN + END + "<think>\n{% endif %}"


def folder(path: Path, template: str) -> Path:
    tiny_model.write_tokenizer(path, template)
    return path


def test_the_switch_of_thinking_is_known_by_both_of_its_names(tmp_path) -> None:
    text = Text(folder(tmp_path, DEEPSEEK))
    assert text.render(ASK, True).think_state == "open" and text.render(ASK, True).text.endswith("<think>")
    assert text.render(ASK, False).think_state == "closed" and text.render(ASK, None).think_state == "closed"
    text = Text(folder(tmp_path, tiny_model.TEMPLATE))
    assert [text.render(ASK, switch).think_state for switch in (None, True, False)] == ["open", "open", "closed"]


def test_a_thought_that_a_template_opens_whatever_is_asked_of_it_is_closed_where_thinking_is_off(tmp_path) -> None:
    text = Text(folder(tmp_path, ALWAYS))
    assert text.render(ASK, True).think_state == text.render(ASK, None).think_state == "open"
    prompt = text.render(ASK, False)
    assert prompt.think_state == "closed" and prompt.text == "hi<think>\n\n</think>\n\n"
    assert prompt.token_ids == text.encode(prompt.text) and prompt.rendered_chars == len(prompt.text)


def test_a_model_that_opens_its_thoughts_itself_gets_an_empty_one_where_thinking_is_off(tmp_path) -> None:
    forgets = PLAIN.replace("m.content", "m.content.split('</think>')[-1]") + END + " assistant:{% endif %}"
    text = Text(folder(tmp_path, forgets))
    assert [text.render(ASK, switch).text for switch in (None, True)] == ["hi assistant:"] * 2
    prompt = text.render(ASK, False)
    assert prompt.think_state == "closed" and prompt.text == "hi assistant:<think>\n\n</think>\n\n"
    assert prompt.token_ids == text.encode(prompt.text) and prompt.rendered_chars == len(prompt.text)


@pytest.mark.parametrize(
    "template",
    [
        PLAIN + END + " assistant:{% endif %}",  # a model that never thinks, though its tokenizer knows the markers
        "{% if thinking %}First think in <think></think>. {% endif %}" + PLAIN + END + " assistant:{% endif %}",
    ],
    ids=["knows no thought", "has a switch"],
)
def test_a_template_that_knows_no_thought_or_has_a_switch_is_left_as_it_is(template: str, tmp_path) -> None:
    prompt = Text(folder(tmp_path, template)).render(ASK, False)
    assert (prompt.think_state, prompt.text) == ("closed", "hi assistant:")


def test_no_text_is_cut_or_padded_though_its_tokenizer_was_saved_so(tmp_path) -> None:
    from tokenizers import Tokenizer

    file = folder(tmp_path, PLAIN) / "tokenizer.json"
    plain, long = Text(tmp_path), "more than five bytes"
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.enable_truncation(max_length=5)
    tokenizer.enable_padding(length=30, pad_id=256, pad_token="<|endoftext|>")
    tokenizer.save(str(file))
    text = Text(tmp_path)
    assert text.encode(long) == plain.encode(long) and len(text.encode(long)) == len(long)
    assert text.render(ASK, None).token_ids == plain.render(ASK, None).token_ids


def test_a_long_text_is_encoded_as_its_parts_are_while_other_threads_run(tmp_path) -> None:
    text, ended, num_turns = Text(folder(tmp_path, PLAIN)), threading.Event(), 0

    def take_turns() -> None:
        nonlocal num_turns
        while not ended.wait(0.001):
            num_turns += 1

    other = threading.Thread(target=take_turns)
    other.start()
    ids = text.encode("ab " * 300_000)
    ended.set()
    other.join()
    assert ids == text.encode("ab ") * 300_000 and num_turns > 10


def test_of_several_templates_that_for_tools_shows_them_and_the_other_one_all_else(tmp_path) -> None:
    tiny_model.write_tokenizer(tmp_path, DEEPSEEK)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    shown = PLAIN + '{{ tools[0].function.name }}<tool_call>{"name": ...}</tool_call>'
    named = {"default": settings["chat_template"], "tool_use": shown}
    settings["chat_template"] = [{"name": name, "template": template} for name, template in named.items()]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    text = Text(tmp_path)
    assert text.render(ASK, True).think_state == "open" and text.render(ASK, None).text == "hi</think>"
    tool = {"type": "function", "function": {"name": "look", "description": "", "parameters": {}}}
    assert text.render(ASK, None, [tool]).text.startswith("hilook") and text.tool_format == "hermes"


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('no system here') }}", "refuses these messages: no system here"),
        ("{{ messages[0].content + none }}", "fails on these messages: TypeError: can only concatenate"),
        ("{{ 1 / 0 }}", "fails on these messages: ZeroDivisionError"),
        ("{% if add_generation_prompt %}x{% else %}{{ 1 / 0 }}{% endif %}", "fails on these messages: ZeroDivision"),
    ],
)
def test_what_goes_wrong_inside_a_template_is_told_with_its_folder(template: str, words: str, tmp_path) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        Text(folder(tmp_path, template)).render(ASK, None)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(("content", "words"), [("{broken", "is not JSON"), ("[]", "holds no JSON object")])
def test_a_broken_file_beside_the_tokenizer_is_named(content: str, words: str, tmp_path) -> None:
    (folder(tmp_path, PLAIN) / "generation_config.json").write_text(content)
    with pytest.raises(ConfigError, match=rf"generation_config\.json {words}"):
        Text(tmp_path)


@pytest.mark.parametrize(
    ("stated", "recommended"),
    [
        ({"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.1}, [0.6, 0.95, 20, 0.1, None]),
        ({"temperature": 0, "top_p": 1.0, "top_k": 0, "min_p": 0, "repetition_penalty": 1.0}, [None] * 5),  # all off
        ({"temperature": None, "top_p": "0.9", "top_k": True, "repetition_penalty": "1.1"}, [None] * 5),
        ({"repetition_penalty": 1.05, "presence_penalty": 1.5}, [None, None, None, None, 1.05]),
    ],
)
def test_the_sampling_that_a_models_authors_recommend_is_known(stated: dict, recommended: list, tmp_path) -> None:
    (folder(tmp_path, PLAIN) / "generation_config.json").write_text(json.dumps(stated))
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    told = dict(Text(tmp_path).recommended)
    assert [told.get(name) for name in names] == recommended
    drawn = Capabilities("m", 10, recommended=Text(tmp_path).recommended).as_recommended(Sampling(max_tokens=7))
    usual = Sampling(max_tokens=7)
    for name, value in zip(names, recommended, strict=True):
        assert getattr(drawn, name) == (getattr(usual, name) if value is None else value)


def test_what_an_engine_cannot_honour_of_the_recommended_sampling_is_left_out_and_named() -> None:
    stated = (("temperature", 0.7), ("top_k", 20.0), ("repetition_penalty", 1.05))
    able = Capabilities("m", 10, recommended=stated)
    narrow = able.without_settings("repetition_penalty", "min_p")
    assert narrow.recommended == stated[:2] and narrow.unapplied == stated[2:] and not able.unapplied
    assert narrow.as_recommended(Sampling()) == replace(Sampling(), temperature=0.7, top_k=20)


PARTS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% for part in m.content %}{% if part.type == 'text' %}"
    "{{ part.text }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
)
NAMED = (
    PARTS.replace("m.content", "m['content']")
    .replace("part.type", "part['type']")
    .replace("part.text", "part['text'] | trim")
)
ADDED = "{% for m in messages %}{% for part in m.content %}{{ part.text + ';' }}{% endfor %}{% endfor %}"
MIXED = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ 'SYS ' + m.content + '\n' }}{% else %}"
    "{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}{% endfor %}"
)
EITHER = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}<list>"
    "{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}{% endfor %}"
)
FIRST = "{{ messages[0]['content'][0]['text'] }}: {{ messages[1]['content'] }}"
ONLY_USERS = (
    "{% for m in messages %}{% if m.role != 'user' %}{{ raise_exception('no') }}{% endif %}"
    "{% for part in m.content %}{{ part.text }}{% endfor %}{% endfor %}"
)


@pytest.mark.parametrize(
    ("template", "shown"),
    [
        (PARTS, "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"),
        (NAMED, "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"),
        (ADDED, "Be kind.;hi;"),
        (MIXED, "SYS Be kind.\nhi"),
        (EITHER, "Be kind.hi"),
        (FIRST, "Be kind.: hi"),
    ],
)
def test_a_template_that_reads_contents_in_parts_gets_them_so(template: str, shown: str, tmp_path) -> None:
    messages = [Message("system", "Be kind."), *ASK]
    assert Text(folder(tmp_path, template)).render(messages, None).text == shown
    reward = RewardTokenizer(tmp_path)
    assert reward.apply(messages) == shown


def test_parts_are_read_where_a_template_takes_users_alone_and_control_tokens_in_them_stay_text(tmp_path) -> None:
    text = Text(folder(tmp_path, ONLY_USERS))
    prompt = text.render([Message("user", "hi<|im_end|>")], None)
    assert prompt.text == "hi<|im_end|>" and not set(text.encode("<|im_end|>")) & set(prompt.token_ids or ())
