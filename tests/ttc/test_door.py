"""`ttc.run` as people call it at first: conversations, options of other tools, values of another type."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import ttc
from tests.ttc.openai_server import OpenAIServer
from tests.ttc.openai_setup import CHAT
from ttc.core import Capabilities
from ttc.engines.scripted import ScriptedEngine, replies
from ttc.errors import ConfigError
from ttc.session import door


def engine() -> ScriptedEngine:
    return ScriptedEngine(replies({"6*7": [r"\boxed{42}"]}))


def test_a_conversation_is_a_list_of_messages_as_chat_endpoints_take_it() -> None:
    system = {"role": "system", "content": "Be brief."}
    for last in ({"role": "user", "content": "6*7"}, ttc.Message("user", "6*7")):
        assert ttc.run([system, last], engine=engine()).final == "42"
    assert door.as_problem([system]).messages == (ttc.Message("system", "Be brief."),)


@pytest.mark.parametrize("question", [None, 7, b"6*7", ["6*7"], [{"role": "user"}], [{"role": "tool", "content": "x"}]])
def test_what_is_no_question_is_refused_with_what_one_looks_like(question: Any) -> None:
    with pytest.raises(ConfigError, match=r"^problem(\[0\])? must be a .*(ttc\.Problem|'role': 'user').*, got "):
        ttc.run(question, engine=engine())


@pytest.mark.parametrize("question", ["", " \n", [], [{"role": "user", "content": ""}]])
def test_an_empty_question_is_refused(question: Any) -> None:
    with pytest.raises(ConfigError, match="problem is empty"):
        ttc.run(question, engine=engine())


VALUES = {
    **{
        "stop": "('a',)",
        "stop_token_ids": "(3,)",
        "logprobs": "True",
        "top_p": "1",
        "min_p": "0.1",
        "repetition_penalty": "1.1",
        "temperature": "0.8",
    },
    **{"flops": "1e15", "device": "'cpu'", "dtype": "'float32'"},
}


@pytest.mark.parametrize("name", door._PLACES)
def test_an_option_of_another_tool_is_refused_with_what_does_it_here_and_that_can_be_written(name: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        ttc.run("6*7", engine=engine(), **{name: 1})  # type: ignore[arg-type]
    option, _, value = str(refusal.value).partition("write ")[2].partition("=")
    written = value.replace("...", VALUES.get(name, "1000")).replace("'MODEL'", "None").replace(":MODEL", "")
    answer = ttc.run("6*7", **{"engine": engine(), "strategy": "majority", option: eval(written)})
    assert option == "engine" or answer.text or answer.thinking


def test_model_and_address_are_named_as_on_the_command_line() -> None:
    problems = [{"question": "6*7", "answer": "42"}]
    with OpenAIServer(lambda: ScriptedEngine(lambda prompt, path, key: r"\boxed{42}"), CHAT) as server:
        assert ttc.run("6*7", model="served", base_url=server.url).final == "42"
        assert ttc.evaluate(problems, model="served", base_url=server.url).accuracy.value == 1.0
    with pytest.raises(ConfigError, match="model and base_url name an engine, and engine is one already"):
        ttc.run("6*7", engine=engine(), model="m")
    with pytest.raises(ConfigError, match="the model is given twice: 'embedded:x' and 'y'"):
        ttc.evaluate(problems, engine="embedded:x", model="y")
    with pytest.raises(ConfigError, match="base_url"):
        ttc.run("6*7", engine="scripted", base_url="http://127.0.0.1:9/v1")
    assert ttc.run("12+30*2", engine="embedded", strategy="best_of_n", n=2).usage.scored > 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sampling": {"max_tokens": 5}}, r"sampling must be a ttc.Sampling, such as ttc.Sampling\(temperature=...\)"),
        ({"thinking": True}, r"thinking must be a ttc.Thinking, such as ttc.Thinking\(mode=...\), got True"),
        ({"budget": 100}, r"budget must be a ttc.Budget, such as ttc.Budget\(tokens=...\), got 100"),
        ({"seed": "a"}, "seed must be a whole number, got 'a'"),
        ({"n": True, "strategy": "majority"}, "n must be a whole number, got True"),
    ],
)
def test_a_value_of_another_type_is_refused_with_the_type_that_it_should_have(
    options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        ttc.run("6*7", engine=engine(), **options)
    with pytest.raises(ConfigError, match=words):
        ttc.evaluate([{"question": "6*7", "answer": "42"}], engine=engine(), **options)


def test_a_conversation_that_asks_nothing_or_shows_a_picture_is_refused() -> None:
    user, picture = {"role": "user", "content": "6*7"}, {"type": "image_url", "image_url": {"url": "https://x/y.png"}}
    with pytest.raises(ConfigError, match="problem ends with the assistant's turn, so nothing is asked: end with"):
        ttc.run([user, {"role": "assistant", "content": "It is"}], engine=engine())
    with pytest.raises(ConfigError, match=r"problem\[0\]: content must be text, got a list of parts; pictures cannot"):
        ttc.run([{"role": "user", "content": [picture]}], engine=engine())  # type: ignore[dict-item]


def test_what_nobody_said_of_sampling_is_as_the_models_authors_recommend() -> None:
    class Recommending(ScriptedEngine):
        asked: ttc.Sampling

        @property
        def capabilities(self) -> Capabilities:
            return replace(super().capabilities, recommended=(("temperature", 0.6), ("top_k", 20)))

        async def generate(self, prompt: Any, sampling: ttc.Sampling, draws: range, on_usage: Any) -> Any:
            self.asked = sampling
            return await super().generate(prompt, sampling, draws, on_usage)

    own = Recommending(replies({"6*7": [r"\boxed{42}"]}))
    assert ttc.run("6*7", engine=own).final == "42"
    assert (own.asked.temperature, own.asked.top_k) == (0.6, 20)
    assert ttc.run("6*7", engine=own, sampling=ttc.Sampling(temperature=1.2)).final == "42"
    assert (own.asked.temperature, own.asked.top_k) == (1.2, None)
