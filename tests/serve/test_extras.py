"""Fields that only some engines honour: passed on, told, kept apart by key; refused by name where they cannot hold."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import pytest

from serve.operator.keys import key_from_secret
from serve.requests.thinking import ThinkingPolicy
from tests.serve.running import Running, chat, running, scripted, served
from tests.serve.streams import chunks_of, same, streamed, whole
from tests.ttc.capping import ANSWER, BARE, THOUGHT, Capping
from ttc.core import (
    PENALTIES,
    Completion,
    ExtraCapabilities,
    ExtraCompletion,
    ExtraSampling,
    Prompt,
    Sampling,
    UsageSink,
    with_extra,
)
from ttc.engines.scripted import ScriptedEngine
from ttc.engines.vllm.thinking_cap import CapReport

VOTE = {"strategy": "majority", "n": 2}
REPLY = "<think>hm</think>\n\nThe answer is 7."


class Able(ScriptedEngine):
    """Honours every extra but a thinking cap, and remembers how it was asked to draw."""

    def __init__(self, reply: str = REPLY) -> None:
        def script(prompt: Prompt, path: Any, key: int) -> str:
            said = prompt.generated_text
            return reply[len(said) :] if reply.startswith(said) else "The answer is 7."

        super().__init__(script)
        self.asked: list[Sampling] = []
        self.proven = 0
        found = super().capabilities
        for name in (*PENALTIES, "logit_bias", "top_logprobs", "cache_salt"):
            found = with_extra(found, name)
        self._able = found

    @property
    def capabilities(self) -> ExtraCapabilities:
        return self._able  # type: ignore[return-value]

    async def generate(self, prompt: Prompt, sampling: Sampling, draws: range, on_usage: UsageSink) -> list[Completion]:
        self.asked.append(sampling)
        drawn = await super().generate(prompt, sampling, draws, on_usage)
        if not isinstance(sampling, ExtraSampling) or not sampling.top_logprobs:
            return drawn
        told = []
        for completion in drawn:
            tops = tuple(
                ((token, -0.5), *((ord("z") - i, -2.0 - i) for i in range(sampling.top_logprobs - 1)))
                for token in completion.token_ids
            )
            known = {item.name: getattr(completion, item.name) for item in dataclasses.fields(Completion)}
            told.append(ExtraCompletion(**known, top_logprobs=tops))
        return told

    async def self_test(self) -> CapReport:
        self.proven += 1
        self._able = with_extra(self._able, "thinking_cap")
        return CapReport(1, ())


@pytest.fixture
def server() -> Iterator[Running]:
    with running(served(Able())) as found:
        yield found


def last(server: Running) -> Sampling:
    assert isinstance(server.engine, Able)
    return server.engine.asked[-1]


def test_penalties_reach_the_engine_and_neutral_ones_cost_nothing(server: Running) -> None:
    asked = {"presence_penalty": 0.5, "frequency_penalty": -1, "repetition_penalty": 1.2}
    assert server.ask(chat(**asked)).status_code == 200
    sampling = last(server)
    assert {name: getattr(sampling, name) for name in asked} == asked
    assert server.ask(chat(presence_penalty=0, repetition_penalty=1)).status_code == 200
    assert type(last(server)) is Sampling


def test_biases_reach_the_engine_by_the_ids_of_tokens_with_any_strategy_and_budget(server: Running) -> None:
    biases = {"55": -100, "56": 2.5, "57": 0}
    for fields in ({}, {"thinking_budget": 1}, {"ttc": VOTE}):
        assert server.ask(chat(logit_bias=biases, **fields)).status_code == 200
        assert last(server).logit_bias == ((55, -100), (56, 2.5))  # type: ignore[attr-defined]
    assert server.ask(chat(logit_bias={"57": 0})).status_code == 200
    assert type(last(server)) is Sampling


@pytest.mark.parametrize(
    ("fields", "drawn"),
    [
        ({}, (0.6, 0.95, 20, 0.05, 1.1)),
        ({"temperature": 1.5, "top_p": 1, "top_k": 0, "min_p": 0}, (1.5, 1.0, None, 0, 1.1)),
        ({"top_k": 5, "min_p": 0.1, "repetition_penalty": 1}, (0.6, 0.95, 5, 0.1, 1)),
        ({"temperature": 0, "repeat_penalty": 1.2}, (0.0, 0.95, 20, 0.05, 1.2)),
    ],
)
def test_a_request_that_says_nothing_is_drawn_as_the_models_authors_recommend(
    fields: dict[str, Any], drawn: tuple[float, ...]
) -> None:
    engine = Able()
    stated = (("temperature", 0.6), ("top_p", 0.95), ("top_k", 20), ("min_p", 0.05), ("repetition_penalty", 1.1))
    engine._able = dataclasses.replace(engine._able, recommended=stated)
    with running(served(engine)) as server:
        assert server.ask(chat(**fields)).status_code == 200
        sampling = last(server)
    assert tuple(getattr(sampling, name) for name, _ in stated) == drawn


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"presence_penalty": 1, "thinking_budget": 4}, "presence_penalty"),
        ({"frequency_penalty": 1, "ttc": {"strategy": "beam", "n": 4}}, "frequency_penalty"),
        ({"logprobs": True, "top_logprobs": 2, "ttc": {"strategy": "majority", "n": 2}}, "top_logprobs"),
        ({"logit_bias": {"70000000": 1}}, "logit_bias"),
    ],
)
def test_what_would_only_half_hold_is_refused_by_name(server: Running, fields: dict[str, Any], param: str) -> None:
    refused = server.ask(chat(**fields))
    assert refused.status_code == 400
    if refused.json()["error"]["param"] != "ttc.strategy":  # beam needs a scorer where none is loaded
        assert refused.json()["error"]["param"] == param


def test_a_repetition_penalty_goes_with_a_budget(server: Running) -> None:
    reply = whole(server, chat(repetition_penalty=1.2, thinking_budget=1, seed=1))
    assert reply["ttc"]["thinking"]["used"] == 1
    asked = server.engine.asked  # type: ignore[attr-defined]
    assert len(asked) >= 2 and all(sampling.repetition_penalty == 1.2 for sampling in asked)


@pytest.mark.parametrize("budget", [None, 1])
def test_the_likeliest_tokens_stand_beside_the_sampled_ones_of_the_answer(server: Running, budget: int | None) -> None:
    body = chat(logprobs=True, top_logprobs=3, thinking_budget=budget, seed=1)
    reply = whole(server, body)
    items = reply["choices"][0]["logprobs"]["content"]
    assert "".join(item["token"] for item in items).strip() == "The answer is 7."
    for item in items:
        assert [top["token"] for top in item["top_logprobs"]] == [item["token"], "z", "y"]
        assert all(math.isfinite(top["logprob"]) and top["bytes"] for top in item["top_logprobs"])
    same(reply, streamed(server, body))


def test_a_raw_completion_tells_as_many_of_the_likeliest_tokens_as_it_was_asked_for() -> None:
    body = {"model": "m", "prompt": "hi", "max_tokens": 16, "logprobs": 2, "seed": 1}
    with running(served(Able("The answer is 7."))) as server:
        (choice,) = server.ask(body, "/v1/completions").json()["choices"]
        chunks = chunks_of(server.ask({**body, "stream": True}, "/v1/completions").text)
        none = server.ask({**body, "logprobs": 0}, "/v1/completions").json()["choices"][0]["logprobs"]
    rows = choice["logprobs"]
    for token, tops in zip(rows["tokens"], rows["top_logprobs"], strict=True):
        assert tops == {token: -0.5, "z": -2.0}
    parts = [chunk["choices"][0]["logprobs"] for chunk in chunks if chunk["choices"][0]["logprobs"]]
    assert [row for part in parts for row in part["top_logprobs"]] == rows["top_logprobs"]
    assert none["tokens"] == rows["tokens"] and none["top_logprobs"] is None


@pytest.mark.parametrize(("model", "fields"), [("m", {}), ("able", {"ttc": VOTE})])
def test_likeliest_tokens_that_cannot_be_had_are_refused_in_completions(model: str, fields: dict[str, Any]) -> None:
    body = {"model": model, "prompt": "hi", "max_tokens": 4, "logprobs": 1, **fields}
    with running(served(scripted()), served(Able(), "able")) as server:
        response = server.ask(body, "/v1/completions")
    assert (response.status_code, response.json()["error"]["param"]) == (400, "logprobs")
    assert "send 0" in response.json()["error"]["message"]


def test_log_probabilities_are_asked_of_the_engine_only_when_a_reply_shows_them(server: Running) -> None:
    server.ask(chat())
    assert not last(server).logprobs
    server.ask(chat(logprobs=True))
    assert last(server).logprobs
    server.ask(chat(ttc={"strategy": "majority", "n": 2}))
    assert last(server).logprobs, "strategies may weigh by them"


def test_keys_share_no_prefix_cache_and_a_request_may_split_it_further() -> None:
    engine = Able()
    keys = [key_from_secret(name, f"secret-of-{name}") for name in ("alice", "bob")]

    def salt(server: Running, name: str, **fields: Any) -> str:
        assert server.ask(chat(**fields), authorization=f"Bearer secret-of-{name}").status_code == 200
        sampling = engine.asked[-1]
        assert isinstance(sampling, ExtraSampling) and sampling.cache_salt
        return sampling.cache_salt

    with running(served(engine), keys=keys) as server:
        alice, again, bob = salt(server, "alice"), salt(server, "alice"), salt(server, "bob")
        mine, his = salt(server, "alice", cache_salt="mine"), salt(server, "bob", cache_salt="mine")
    assert alice == again
    assert len({alice, bob, mine, his}) == 4


def test_a_thought_that_the_model_ends_with_its_text_is_told_apart_from_an_answer() -> None:
    with running(served(Able("<think>I give up"))) as server:
        reply = whole(server, chat())
        told, choice = reply["ttc"]["thinking"], reply["choices"][0]
        assert (choice["content"], choice["finish_reason"]) == ("", "stop")
        assert choice["reasoning"] == "I give up" and told["ended_inside"]
        cut = whole(server, chat(thinking_budget=2))
        assert cut["choices"][0]["content"] and not cut["ttc"]["thinking"]["ended_inside"]
    with running(served(Able())) as server:
        assert not whole(server, chat())["ttc"]["thinking"]["ended_inside"]


@pytest.mark.parametrize(("handover", "proven"), [("</think>", 1), (" Enough.</think>", 0), (None, 0)])
def test_an_engine_is_asked_to_prove_its_cap_only_where_it_could_be_used(handover: str | None, proven: int) -> None:
    engine = Able()
    with running(served(engine), thinking=ThinkingPolicy(handover=handover)) as server:
        asyncio.run(server.service.catalogue.prove())
        assert engine.proven == proven
        assert ("thinking_cap" in engine.capabilities.extras) == bool(proven)


@pytest.mark.parametrize(("late", "enforced"), [(0, "native"), (2, "ids")])
@pytest.mark.parametrize("budget", [1, 4, 9])
def test_a_cap_that_the_engine_holds_is_told_and_streams_the_same(late: int, enforced: str, budget: int) -> None:
    with running(served(Capping(late)), thinking=ThinkingPolicy(handover=BARE)) as server:
        body = chat(thinking_budget=budget, seed=1, return_token_ids=True)
        reply = whole(server, body)
        same(reply, streamed(server, body))
        told, choice = reply["ttc"]["thinking"], reply["choices"][0]
        assert (told["used"], told["forced_end"]) == (budget, True)
        assert (choice["reasoning"], choice["content"]) == (THOUGHT[:budget], ANSWER)
        assert told["enforced"] == enforced
        with server.client() as client:
            metrics = client.get("/metrics").text
        assert f'ttc_thinking_enforced_total{{model="m",strategy="direct",how="{enforced}"}} 2' in metrics
