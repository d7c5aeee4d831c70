"""Several models behind one endpoint: `auto`, and fallbacks that say so."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable
from typing import Any

import pytest

from serve.commands.serve import register, run
from serve.operator.config import PresetSpec, from_options
from serve.operator.keys import KeyLimits, key_from_secret
from serve.running.catalogue import ServedModel
from tests.serve.running import chat, running, scripted, served
from tests.serve.slow import SlowEngine, until
from tests.serve.streams import streamed, whole
from ttc import nano
from ttc.core import Completion, Path, Prompt, Sampling, UsageSink
from ttc.engines.openai.refusals import NoCredit
from ttc.engines.scripted import ScriptedEngine, replies
from ttc.errors import ConfigError, EngineBusy, EngineError


class Broken(ScriptedEngine):
    """An engine that is down."""

    error: Exception = EngineError("the engine at /secret/place/gpu0 died")

    async def generate(self, prompt: Prompt, sampling: Sampling, draws: range, on_usage: UsageSink) -> list[Completion]:
        raise self.error


class Refused(Broken):
    """A server where our account is spent."""

    error = NoCredit("the account of this key has no credit left")


class Full(Broken):
    """A server that has no room for us."""

    error = EngineBusy("the server at gpu0 answered 429")


def ponder(prompt: Prompt, path: Path, key: int) -> str:
    """A model that never stops thinking."""
    return "hm " * 500


def small(name: str = "small") -> ServedModel:
    return served(scripted({"q": ["from the small one"]}), name, cost=1)


@pytest.mark.parametrize(
    ("make", "reason", "options"),
    [
        (lambda: Broken(ponder), "unavailable", {}),
        (lambda: Refused(ponder), "unavailable", {}),
        (lambda: Full(ponder), "busy", {}),
        (lambda: SlowEngine(30), "timeout", {"fallback_after_s": 0.2}),
        (lambda: ScriptedEngine(ponder, thinking=True), "out_of_budget", {}),
    ],
)
@pytest.mark.parametrize("read", [whole, streamed])
def test_a_fallback_answers_for_a_model_that_cannot_and_the_reply_says_so(
    make: Callable[[], Any], reason: str, options: dict[str, Any], read: Callable[..., dict[str, Any]]
) -> None:
    big = served(make(), "big", fallback="small", **options)
    with running(big, small()) as server:
        body = {**chat("q", thinking_budget=-1 if reason == "out_of_budget" else 50, max_tokens=60), "model": "big"}
        reply = read(server, body)
    assert reply["choices"][0]["content"] == "from the small one"
    assert reply["choices"][0]["finish_reason"] == "stop"
    assert reply["ttc"]["fallback"] == {"from": "big", "reason": reason}
    assert reply["ttc"]["model"] == "small"
    if reason == "out_of_budget":
        assert reply["ttc"]["usage"]["generated"] > 60, "what the first model cost is on the ledger"
        spent = reply["ttc"]["usage"]
        assert reply["usage"]["prompt_tokens"] == spent["prompt"], "each model has read the prompt"
        assert reply["usage"]["total_tokens"] == spent["prompt"] + spent["tokens"]


@pytest.mark.parametrize(("limit", "content"), [(190, "from the small one"), (110, "from the "), (90, "")])
def test_a_fallback_spends_what_is_left_of_the_tokens_of_its_key(limit: int, content: str) -> None:
    key = key_from_secret("alice", "a-secret-of-alice", KeyLimits(tokens_per_minute=limit))
    big = served(ScriptedEngine(ponder, thinking=True), "big", fallback="small")
    with running(big, small(), keys=[key]) as server:
        body = {**chat("q", thinking_budget=-1, max_tokens=60), "model": "big"}
        reply = server.ask(body, authorization="Bearer a-secret-of-alice").json()
    assert reply["choices"][0]["message"]["content"].startswith(content[:-1])
    assert reply["choices"][0]["finish_reason"] == ("stop" if limit == 190 else "length")
    spent = reply["ttc"]["usage"]
    assert 60 <= spent["tokens"] <= limit - spent["prompt"], "each model has read the prompt"


def test_what_a_model_spent_before_its_fallback_answered_is_booked_on_it(caplog: pytest.LogCaptureFixture) -> None:
    big = served(ScriptedEngine(ponder, thinking=True), "big", fallback="small")
    caplog.set_level(logging.INFO, "serve.access")
    with running(big, small()) as server, server.client() as client:
        reply = server.ask({**chat("q", thinking_budget=-1, max_tokens=60), "model": "big"}).json()
        assert until(lambda: server.service.idle)
        lines = client.get("/metrics").text.splitlines()
    counts = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    for model, num_tokens in {"big": "60", "small": "19"}.items():
        labels = f'model="{model}",strategy="direct"'
        assert counts[f"ttc_generation_tokens_total{{{labels}}}"] == num_tokens
    of_key = [float(count) for name, count in counts.items() if name.startswith("ttc_key_tokens_total")]
    assert sum(of_key) == reply["usage"]["total_tokens"] and min(of_key) > 19, "each model has read the prompt"
    assert counts['ttc_requests_ended_total{model="small",strategy="direct",outcome="done"}'] == "1"
    notes = next(record.__dict__ for record in caplog.records if record.name == "serve.access")
    assert notes["spent"] == {"big": 60, "small": 19} and notes["total_tokens"] == 79


def test_a_whole_reply_bears_the_name_of_the_model_that_answered() -> None:
    with running(served(Broken(ponder), "big", fallback="small"), small()) as server:
        for path, more in (("/v1/chat/completions", {}), ("/v1/messages", {"max_tokens": 60})):
            assert server.ask({**chat("q"), **more, "model": "big"}, path).json()["model"] == "small"


def test_a_fallback_with_a_smaller_context_draws_as_much_as_it_has_room_for() -> None:
    engine = ScriptedEngine(replies({"q": ["from the small one"]}), max_context=100)
    with running(served(Broken(ponder), "big", fallback="small"), served(engine, "small")) as server:
        reply = server.ask({**chat("q", max_tokens=4000), "model": "big"}).json()
        room = 100 - reply["usage"]["prompt_tokens"]
        assert reply["choices"][0]["message"]["content"] == "from the small one"
        assert reply["ttc"]["adjusted"] == {"max_tokens": {"asked": 4000, "used": room}}
        assert server.ask({**chat("q" * 200, max_tokens=4000), "model": "big"}).status_code == 503


def test_without_a_fallback_the_failure_is_told_without_its_places() -> None:
    with running(served(Broken(ponder))) as server:
        response = server.ask(chat("q"))
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "engine_unavailable"
    assert "/secret/place" not in response.text


def test_a_fallback_that_is_down_too_ends_in_an_error() -> None:
    models = served(Broken(ponder), "big", fallback="small"), served(Broken(ponder), "small", fallback="big")
    with running(*models) as server:
        assert server.ask({**chat("q"), "model": "big"}).status_code == 503


def test_where_the_fallback_of_a_busy_model_is_down_a_client_hears_when_to_come_back() -> None:
    full = Full(ponder)
    full.error = EngineBusy("the server at gpu0 answered 429")
    full.error.retry_after_s = 7.0
    with running(served(full, "big", fallback="small"), served(Broken(ponder), "small")) as server:
        reply = server.ask({**chat("q"), "model": "big"})
    assert (reply.status_code, reply.headers["retry-after"]) == (429, "7")


@pytest.mark.parametrize(
    ("fields", "model"),
    [
        ({}, "small"),
        ({"reasoning_effort": "none"}, "small"),
        ({"reasoning_effort": "low"}, "small"),
        ({"reasoning_effort": "high"}, "big"),
        ({"thinking_budget": 100}, "small"),
        ({"thinking_budget": 20_000}, "big"),
        ({"thinking_budget": -1}, "big"),
        ({"thinking_budget": 0}, "small"),
    ],
)
def test_auto_gives_easy_requests_to_the_cheaper_model(fields: dict[str, Any], model: str) -> None:
    big = served(scripted({"q": ["x"]}), "big", cost=9)
    with running(big, small()) as server:
        reply = whole(server, {**chat("q", **fields), "model": "auto"})
    assert reply["ttc"]["model"] == model
    assert reply["ttc"]["routed"]["to"] == model


def test_a_request_that_names_no_model_goes_to_the_one_that_the_file_names_for_it() -> None:
    turns = {"messages": chat("q")["messages"], "max_tokens": 9}
    bodies = {
        "/v1/chat/completions": turns,
        "/v1/responses": {"input": "q"},
        "/v1/messages": turns,
        "/v1/completions": {"prompt": "q"},
    }
    with running(served(scripted({"q": ["x"]})), small()) as server:
        params = {path: server.ask(body, path).json()["error"]["param"] for path, body in bodies.items()}
    assert params == dict.fromkeys(bodies, "model"), "the first is no default"
    with running(served(scripted({"q": ["x"]})), small(), fills_model=True) as server:
        replies = {path: server.ask(body, path).json() for path, body in bodies.items()}
        with server.client() as client:
            document = client.get("/openapi.json").json()
    for path, reply in replies.items():
        assert reply["model"] == reply["ttc"]["model"] == "m", path
        schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert "model" not in document["components"]["schemas"][schema["$ref"].split("/")[-1]]["required"], path


def test_auto_picks_strategy_and_mode_by_effort_where_the_operator_says_how() -> None:
    big = served(scripted({"q": ["x"]}), "big")
    presets = [
        PresetSpec("big:vote", "big", "majority", {"n": 3}),
        PresetSpec("quick", "small", reasoning_effort="none"),
    ]
    auto = {"none": "quick", "medium": "big", "high": "big:vote"}
    with running(big, small(), presets=presets, auto=auto) as server:
        told = {
            effort: whole(server, {**chat("q", reasoning_effort=effort), "model": "auto"})["ttc"]
            for effort in ("none", "minimal", "medium", "xhigh")
        }
    assert [told[effort]["model"] for effort in told] == ["small", "small", "big", "big"]
    assert [told[effort]["strategy"] for effort in told] == ["direct", "direct", "direct", "majority"]
    assert told["none"]["thinking"]["mode"] == "off"


def test_options_become_a_configuration_or_an_error_that_names_them() -> None:
    config = from_options(
        None, None, None, None, None, {"limits.request_timeout_s": "5", "thinking.reserve_share": "0.5"}
    )
    assert config.default == "nano-teacher"
    assert [preset.name for preset in config.presets] == [
        "nano-teacher:majority-8",
        "nano-teacher:best-of-8",
        "nano-teacher:tree-16",
    ]
    assert (config.limits.request_timeout_s, config.thinking.reserve_share) == (5, 0.5)
    for arguments, message in (
        ((None, None, None, None, None, {"limit.x": "1"}), "no part 'limit'"),
        ((None, None, None, None, None, {"limits.max_width": "0"}), "max_width must be > 0"),
        ((None, "simulated", None, None, None, {"scorer.x": "1"}), "needs --scorer"),
        ((None, "vllm", None, None, "http://x/v1", {}), "engine openai"),
        ((None, None, None, None, "http://x/v1", {"engine.base_url": "http://y/v1"}), "--upstream and --set engine"),
        ((None, "nothing", None, None, None, {}), "unknown engine"),
        (("here", "embedded:there", None, None, None, {}), "the model is given twice"),
    ):
        with pytest.raises(ConfigError, match=message):
            from_options(*arguments)


def test_the_model_may_be_told_as_every_other_command_is_told_it() -> None:
    folder = str(nano.path("student"))
    beside, inline = (
        from_options(model, engine, None, None, None, {})
        for model, engine in ((folder, None), (None, f"embedded:{folder}"))
    )
    assert beside == inline
    assert (beside.default, beside.models[0].engine.model) == ("student", folder)
    parser = argparse.ArgumentParser()
    register(parser.add_subparsers())
    with pytest.raises(ConfigError, match="the model is given twice: here and --model there"):
        run(parser.parse_args(["serve", "here", "--model", "there"]))
