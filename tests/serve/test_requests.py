"""Bad input: a nested error that names the field; nothing is silently ignored, nothing fails inside."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from serve.operator.config import ServeLimits
from serve.operator.keys import KeyLimits, key_from_secret
from tests.serve.running import Running, chat, running, scripted, served
from tests.serve.streams import chunks_of, whole
from ttc.scorers.constant import constant


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    limits = ServeLimits(max_body_bytes=20_000, max_tokens=1000, max_width=16, max_total_tokens=5000)
    engine = scripted(thinking=True, max_context=2000)
    with running(served(engine, scorers={"flat": constant()}), limits=limits) as found:
        yield found


@pytest.fixture(scope="module")
def thoughtless() -> Iterator[Running]:
    """A server whose model has no thinking markers."""
    with running(served(_Thoughtless())) as found:
        yield found


class _Thoughtless:
    """The scripted engine without markers."""

    def __init__(self) -> None:
        self._engine = scripted()

    @property
    def capabilities(self) -> Any:
        import dataclasses

        return dataclasses.replace(self._engine.capabilities, think_open=(), think_close=())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


BAD: list[tuple[dict[str, Any], str, str]] = [
    (chat(foo=1), "foo", "unknown_parameter"),
    (chat(thinking_budgets=1), "thinking_budgets", "unknown_parameter"),
    (chat(thinkingBudget=1), "thinkingBudget", "unknown_parameter"),
    (chat(vllm_xargs={}), "vllm_xargs", "unknown_parameter"),
    (chat(best_of=4), "best_of", "invalid_type"),
    (chat(n=0), "n", "invalid_value"),
    (chat(n=True), "n", "invalid_type"),
    (chat(n=1.5), "n", "invalid_type"),
    (chat(n=10**30), "n", "invalid_value"),
    (chat(n=17, max_tokens=5), "n", "invalid_value"),
    (chat(temperature=-0.1), "temperature", "invalid_value"),
    (chat(temperature="hot"), "temperature", "invalid_type"),
    (chat(top_p=0), "top_p", "invalid_value"),
    (chat(max_tokens=0), "max_tokens", "invalid_value"),
    (chat(max_tokens=1001), "max_tokens", "invalid_value"),
    (chat(max_tokens=5, max_completion_tokens=6), "max_tokens", "invalid_value"),
    (chat(stop=["a"] * 65), "stop", "invalid_value"),
    (chat(stop=""), "stop", "invalid_value"),
    (chat(stop=[1]), "stop[0]", "invalid_type"),
    (chat(frequency_penalty=0.5), "frequency_penalty", "unsupported_parameter"),
    (chat(repetition_penalty=1.1), "repetition_penalty", "unsupported_parameter"),
    (chat(presence_penalty=3), "presence_penalty", "invalid_value"),
    (chat(cache_salt="mine"), "cache_salt", "unsupported_parameter"),
    (chat(logit_bias={"5": 1}), "logit_bias", "unsupported_parameter"),
    (chat(logit_bias={"5": 101}), "logit_bias.5", "invalid_value"),
    (chat(logit_bias={"yes": 1}), "logit_bias", "invalid_value"),
    (chat(logit_bias={"05": 1}), "logit_bias", "invalid_value"),
    (chat(logit_bias={"9" * 5000: 1}), "logit_bias", "invalid_value"),
    (chat(verbosity="low"), "verbosity", "unsupported_parameter"),
    (chat(top_logprobs=3, logprobs=True), "top_logprobs", "unsupported_parameter"),
    (chat(top_logprobs=21, logprobs=True), "top_logprobs", "invalid_value"),
    (chat(top_logprobs=0), "top_logprobs", "invalid_value"),
    (chat(stream_options={"include_usage": True}), "stream_options", "invalid_value"),
    (chat(stream=True, stream_options={"other": 1}), "stream_options.other", "unknown_parameter"),
    (chat(tools=[{"type": "function", "function": {"name": "f"}}]), "tools", "unsupported_parameter"),
    (chat(response_format={"type": "json_object"}), "response_format", "unsupported_parameter"),
    (chat(response_format={"type": "xml"}), "response_format.type", "invalid_value"),
    (chat(functions=[]), "functions", "invalid_type"),
    ({"model": "m", "messages": []}, "messages", "invalid_value"),
    ({"model": "m"}, "messages", "missing_required_parameter"),
    ({"messages": [{"role": "user", "content": "x"}]}, "model", "missing_required_parameter"),
    ({"model": "m", "messages": [{"role": "boss", "content": "x"}]}, "messages[0].role", "invalid_value"),
    ({"model": "m", "messages": [{"content": "x"}]}, "messages[0].role", "missing_required_parameter"),
    ({"model": "m", "messages": ["x"]}, "messages[0]", "invalid_type"),
    ({"model": "m", "messages": [{"role": "user", "content": 3}]}, "messages[0].content", "invalid_value"),
    (
        {"model": "m", "messages": [{"role": "user", "content": [{"type": "image_url", "text": "x"}]}]},
        "messages[0].content[0].type",
        "invalid_value",
    ),
    (chat(reasoning_effort="huge"), "reasoning_effort", "invalid_value"),
    (chat(thinking_budget=-2), "thinking_budget", "invalid_value"),
    (chat(thinking_budget=3, max_thinking_tokens=4), "max_thinking_tokens", "conflicting_thinking"),
    (chat(thinking_budget=3, reasoning={"max_tokens": 4}), "reasoning.max_tokens", "conflicting_thinking"),
    (chat(reasoning_effort="low", reasoning={"effort": "high"}), "reasoning.effort", "conflicting_thinking"),
    (chat(reasoning_effort="none", thinking_budget=3), "thinking_budget", "conflicting_thinking"),
    (chat(reasoning_effort="none", min_thinking_tokens=3), "min_thinking_tokens", "conflicting_thinking"),
    (chat(enable_thinking=False, reasoning_effort="high"), "reasoning_effort", "conflicting_thinking"),
    (chat(enable_thinking=False, thinking_budget=9), "thinking_budget", "conflicting_thinking"),
    (chat(enable_thinking=True, thinking_budget=0), "enable_thinking", "conflicting_thinking"),
    (chat(enable_thinking=True, reasoning={"enabled": False}), "reasoning.enabled", "conflicting_thinking"),
    (chat(thinking={"type": "disabled", "budget_tokens": 4}), "thinking.budget_tokens", "conflicting_thinking"),
    (chat(thinking={"type": "maybe"}), "thinking.type", "invalid_value"),
    (chat(min_thinking_tokens=9, thinking_budget=5), "min_thinking_tokens", "conflicting_thinking"),
    (chat(min_thinking_tokens=900, max_tokens=1000), "min_thinking_tokens", "conflicting_thinking"),
    (chat(min_thinking_tokens=900, max_tokens=800, thinking_budget=-1), "min_thinking_tokens", "conflicting_thinking"),
    (chat(include_reasoning=True, reasoning={"exclude": True}), "reasoning.exclude", "conflicting_thinking"),
    (chat(chat_template_kwargs={"tokenize": True}), "chat_template_kwargs.tokenize", "unknown_parameter"),
    (chat(chat_template="{{ x }}"), "chat_template", "invalid_type"),
    (chat(skip_special_tokens=False), "skip_special_tokens", "invalid_value"),
    (chat(min_tokens=5), "min_tokens", "invalid_value"),
    (chat(stop_token_ids=[5]), "stop_token_ids", "invalid_value"),
    (chat(guided_json={"type": "object"}), "guided_json", "invalid_type"),
    (chat(extra_body={"thinking_budget": 5}), "extra_body", "invalid_type"),
    (chat(seed=-2), "seed", "invalid_value"),
    (chat(ttc={"strategy": "mine.py:function"}), "ttc.strategy", "invalid_value"),
    (chat(ttc={"strategy": "budget_forcing"}), "ttc.strategy", "invalid_value"),
    (chat(ttc={"strategy": "majority", "n": 17}), "ttc.n", "invalid_value"),
    (chat(ttc={"strategy": "majority", "n": 0}), "ttc.n", "invalid_value"),
    (chat(ttc={"strategy": "majority", "beam_width": 2}), "ttc.beam_width", "unknown_parameter"),
    (chat(ttc={"strategy": "majority", "scorer": "flat"}), "ttc.scorer", "unsupported_parameter"),
    (chat(ttc={"strategy": "tree", "policy": "none"}), "ttc.policy", "invalid_value"),
    (chat(ttc={"strategy": "tree", "scorer": "http://evil"}), "ttc.scorer", "invalid_value"),
    (chat(ttc={"strategy": "tree", "n": 4}, stop="x"), "stop", "unsupported_parameter"),
    (chat(ttc={"strategy": "majority", "n": 4}, n=2), "n", "unsupported_parameter"),
    (chat(ttc={"strategy": "majority", "n": 4}, temperature=0), "temperature", "invalid_value"),
    (chat(ttc={"max_total_tokens": 5001}), "ttc.max_total_tokens", "invalid_value"),
    (chat(ttc={"verifier": "x"}), "ttc.verifier", "unknown_parameter"),
    (chat(ttc={"seed": 4}, seed=5), "ttc.seed", "invalid_value"),
    (chat(ttc=[]), "ttc", "invalid_type"),
    (chat(n=6, max_tokens=1000), "n", "invalid_value"),
    (chat("x" * 2000), "messages", "context_length_exceeded"),
    (chat("x" * 1500, max_tokens=600), "max_tokens", "context_length_exceeded"),
]


@pytest.mark.parametrize(("body", "param", "code"), BAD, ids=[f"{row[1]}-{i}" for i, row in enumerate(BAD)])
def test_what_cannot_be_honoured_is_refused_by_name(
    server: Running, body: dict[str, Any], param: str, code: str
) -> None:
    for stream in (False, True):
        response = server.ask({**body, **({"stream": True} if stream and "stream_options" not in body else {})})
        error = response.json()["error"]
        assert response.status_code == 400, error
        assert (error["param"], error["code"]) == (param, code), error
        assert param.rpartition(".")[2].partition("[")[0] in error["message"]
        assert set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"\xff\xfe",
        b'{"model": NaN}',
        b'{"model": "m", "messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"model": "m", "temperature": 1e999, "messages": [{"role": "user", "content": "x"}]}',
        b"[" * 100_00,
        b'{"a":' * 3000 + b"1" + b"}" * 3000,
        b'{"n": ' + b"9" * 5000 + b"}",
    ],
)
def test_a_body_that_is_no_request_is_a_400(server: Running, raw: bytes) -> None:
    with server.client() as client:
        response = client.post("/v1/chat/completions", content=raw)
    assert response.status_code == 400
    assert isinstance(response.json()["error"]["code"], str)


@pytest.mark.parametrize(
    ("wish", "owner"),
    [
        ({"max_tokens": 800}, "max_tokens = 800"),
        ({"max_completion_tokens": 700, "thinking_budget": -1}, "max_completion_tokens = 700"),
        ({"max_tokens": 1000, "reasoning_effort": "minimal"}, "reasoning_effort = 'minimal'"),
    ],
)
def test_a_least_thought_is_refused_with_the_field_that_leaves_less(
    server: Running, wish: dict[str, object], owner: str
) -> None:
    response = server.ask(chat(min_thinking_tokens=700, **wish))
    message = response.json()["error"]["message"]
    assert response.status_code == 400
    assert message.startswith("min_thinking_tokens = 700 exceeds the ") and f"that {owner} leaves" in message


@pytest.mark.parametrize("field", ["n", "ttc.n"])
@pytest.mark.parametrize("asked", [17, 129, 400, 10**40])
def test_too_many_samples_are_refused_with_the_limit_of_this_server(server: Running, field: str, asked: int) -> None:
    body = chat(n=asked, max_tokens=1) if field == "n" else chat(ttc={"strategy": "majority", "n": asked})
    response = server.ask(body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == field and f"{field} must be at most 16" in error["message"]


def test_a_limit_above_openais_is_the_limit() -> None:
    with running(served(scripted()), limits=ServeLimits(max_choices=200)) as wide:
        assert len(whole(wide, chat(n=130, max_tokens=1))["choices"]) == 130


def test_a_strategy_whose_default_is_wider_than_the_server_allows_draws_what_is_allowed() -> None:
    with running(served(scripted()), limits=ServeLimits(max_width=3)) as narrow:
        reply = whole(narrow, chat(ttc={"strategy": "majority", "return_candidates": True}))
    assert len(reply["ttc"]["candidates"]) == 3


def test_a_body_somewhat_over_the_limit_is_read_to_its_end_so_that_its_413_is_heard(server: Running) -> None:
    body = b"x" * (2 << 20)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", httpx2.URL(server.url).port or 0)) as connection:
            connection.sendall(head + b"content-length: %d\r\n\r\n" % len(body))
            for start in range(0, len(body), 1 << 16):  # a client that reads only once it has written all
                connection.sendall(body[start : start + (1 << 16)])
                time.sleep(0.002)
            assert connection.recv(64).startswith(b"HTTP/1.1 413 ")


def test_a_model_that_does_not_think_is_refused_by_its_public_name(thoughtless: Running) -> None:
    for wish in ({"reasoning_effort": "low"}, {"thinking_budget": 5}):
        message = thoughtless.ask(chat(**wish)).json()["error"]["message"]
        assert message.startswith(f"{next(iter(wish))}: m has no thinking markers, so it does not think: leave it out")
        assert "thinking.open" in message  # an operator who tries it out learns what is missing


def test_a_body_over_the_limit_is_a_413_whether_announced_or_not(server: Running) -> None:
    with server.client() as client:
        announced = client.post("/v1/chat/completions", json=chat("x" * 30_000))
        chunked = client.post("/v1/chat/completions", content=iter([b"x" * 9000] * 3))
    for response in (announced, chunked):
        assert response.status_code == 413
        assert response.json()["error"]["code"] == "body_too_large"


def test_an_unknown_model_is_a_404_with_the_nearest(server: Running) -> None:
    response = server.ask({**chat(), "model": "mm"})
    assert response.status_code == 404
    assert "did you mean 'm'" in response.json()["error"]["message"]
    with server.client() as client:
        assert client.get("/v1/models/nothing").status_code == 404
        assert client.get("/v1/models/m").json()["id"] == "m"


FIXES: list[tuple[dict[str, Any], str]] = [
    ({"messages": [{"role": "user", "content": "x"}]}, "model is required (GET /v1/models lists the names)"),
    (chat(logprobs=True, top_logprobs=2), "the log-probability of the sampled token only: send 0"),
    (chat(logit_bias={"5": 1}), "http.ignore"),
    (chat(verbosity="high"), "say in a message how long"),
    (chat(cache_salt="mine"), "leave it out"),
    (chat(tools=[{"type": "function", "function": {"name": "f"}}]), "it has no upstream server; leave it out"),
    (chat(temperature=0, ttc={"strategy": "majority"}), "leave it out, or ask for direct"),
    (chat(stop="x", ttc={"strategy": "tree"}), "leave it out, or ask for another"),
    (chat(ttc={"n": 4}), "ttc.strategy chooses another"),
    (chat("x " * 3000), "shorten it by"),
    (chat(model="n"), "GET /v1/models"),
    (chat(max_tokens=1000, n=6), "n x max_tokens = 6000 exceeds this server's limit of 5000 tokens"),
]


@pytest.mark.parametrize(("body", "fix"), FIXES)
def test_a_refusal_says_what_to_do(server: Running, body: dict[str, Any], fix: str) -> None:
    assert fix in server.ask(body).json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/chat/completions", "max_tokens"),
        ("/v1/chat/completions", "max_completion_tokens"),
        ("/v1/messages", "max_tokens"),
        ("/v1/responses", "max_output_tokens"),
    ],
)
def test_a_full_context_is_told_in_the_words_that_agents_look_for(path: str, field: str) -> None:
    def told(text: str, most: int) -> str:
        body = chat(text) if path != "/v1/responses" else {"model": "m", "input": text}
        error = server.ask({**body, field: most}, path).json()["error"]
        assert error["code"] == "context_length_exceeded"
        return str(error["message"])

    with running(served(scripted(max_context=200))) as server:
        too_long, too_many = told("x" * 500, 9), told("x" * 100, 150)
    assert re.search(r"prompt is too long: (\d+) tokens > 200 maximum", too_long)
    assert re.search(rf"input length and `{field}` exceed context limit: \d+ \+ 150 > 200, ", too_many)
    assert "maximum context length" in too_long and "maximum context length" in too_many


def test_unknown_routes_and_methods_get_nested_errors(server: Running) -> None:
    with server.client() as client:
        for response, code in (
            (client.get("/v2/else"), "not_found"),
            (client.get("/v1/chat/completions"), "method_not_allowed"),
        ):
            assert response.json()["error"]["code"] == code


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/messages", "/v1/messages"),
        ("/completions", "/v1/completions"),
        ("/api/v1/responses", "/v1/responses"),
        ("/models", "/v1/models"),
        ("/v1/embeddings", "GET /openapi.json"),
    ],
)
def test_a_base_url_with_one_v1_too_many_or_none_is_told_the_path(server: Running, asked: str, meant: str) -> None:
    refusal = server.ask(chat(), asked)
    assert (refusal.status_code, refusal.json()["error"]["code"]) == (404, "not_found")
    assert meant in refusal.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics", "/version", "/v1/models", "/v1/models/m", "/"])
def test_what_is_read_may_be_asked_for_by_its_head_as_probes_do(server: Running, path: str) -> None:
    with server.client() as client:
        head, whole_ = client.head(path), client.get(path)
        document = client.get("/openapi.json").json()
    assert (head.status_code, head.content, whole_.status_code) == (200, b"", 200)
    assert "head" not in document["paths"].get(path, {})


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/models"])
def test_a_defect_of_the_server_is_an_error_in_the_form_of_its_path(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    def broken(*arguments: object) -> None:
        raise KeyError("of the server's own")

    with running(served(scripted())) as server:
        monkeypatch.setattr(server.service, "open", broken)
        monkeypatch.setattr(type(server.service.catalogue), "to_json", broken)
        with server.client() as client:
            asked = {**chat(), "max_tokens": 9}
            reply = client.get(path) if path == "/v1/models" else client.post(path, json=asked)
    assert (reply.status_code, reply.headers["content-type"]) == (500, "application/json")
    assert reply.json()["error"]["code"] == "internal_error" and "of the server's own" not in reply.text
    assert ("type" in reply.json()) == (path == "/v1/messages") and reply.headers["x-request-id"]


def test_usage_with_every_chunk_is_given_once_at_the_end(server: Running) -> None:
    chunks = chunks_of(server.ask(chat(stream=True, stream_options={"continuous_usage_stats": True})).text)
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == len("hello there") + 1
    assert all(chunk["usage"] is None for chunk in chunks[:-1])


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
def test_a_stream_is_read_line_by_line_whatever_the_client_takes_for_a_line(path: str) -> None:
    said = "one\x85two\u2028three\u2029four \U0001f642"
    asked = {"input": "breaks"} if path.endswith("responses") else chat("breaks")
    body = {**asked, "model": "m", "stream": True, **({"max_tokens": 50} if path.endswith("messages") else {})}
    with running(served(scripted({"breaks": [said]}))) as server:
        lines = [line for line in server.ask(body, path).text.splitlines() if line]
    assert all(line.startswith(("data: ", "event: ")) for line in lines)
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    assert all(repr(mark)[1:-1] in str(events) for mark in "\x85\u2028\u2029\U0001f642")


def test_what_a_client_keeps_in_a_conversation_is_accepted_and_not_read(server: Running) -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    first = {"role": "user", "content": "q"}
    marked = {**first, "content": [{"type": "text", "text": "q", **mark}], **mark}
    dumped = {"annotations": [], "audio": None, "function_call": None, "refusal": None, "tool_calls": None}
    kept = {"reasoning_details": [{"type": "reasoning.text", "text": "x"}], "thinking_blocks": [{"thinking": "x"}]}
    answer = {"role": "assistant", "content": "a"}
    last = {"role": "user", "content": "hi"}
    plain, full = (
        server.ask({"model": "m", "messages": turns}).json()
        for turns in ([first, answer, last], [marked, {**answer, **dumped, **kept}, last])
    )
    assert full["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"]
    refused = server.ask({"model": "m", "messages": [first, {**answer, "function_call": {"name": "f"}}, last]}).json()
    assert refused["error"]["param"] == "messages[1].function_call"


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_choice_that_is_too_long_for_its_key_is_refused_by_the_field_that_says_so(name: str) -> None:
    secret = "bobs-long-secret"
    key = key_from_secret("bob", secret, KeyLimits(max_total_tokens=300))
    with running(served(scripted(max_context=2000)), keys=[key]) as server:
        bearer = {"authorization": f"Bearer {secret}"}
        error = server.ask(chat(**{name: 301}), **bearer).json()["error"]
        several = server.ask(chat(**{name: 200, "n": 2}), **bearer).json()["error"]
        unsaid = server.ask(chat(), **bearer)
        wide = server.ask(chat(n=3), **bearer)
    assert error["param"] == name and f"{name} = 301 exceeds the limit of key bob of 300" in error["message"]
    assert several["param"] == "n" and f"n x {name} = 400" in several["message"]
    assert unsaid.status_code == wide.status_code == 200, "a length that nobody asked for is no reason to refuse"


@pytest.mark.parametrize(
    "fields",
    [
        {"user": "u", "store": True, "metadata": {"a": "b"}, "service_tier": "auto", "verbosity": "medium"},
        {"frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}, "top_k": -1, "min_p": 0},
        {"n": None, "stop": None, "tools": None, "ttc": None, "reasoning_effort": None, "thinking": None},
        {"n": 1.0, "max_tokens": 50.0, "seed": 3.0},
        {"stop": [*"0123456789"], "seed": -1, "ttc": {"seed": 3}},
        {"skip_special_tokens": True, "spaces_between_special_tokens": True, "add_special_tokens": False},
        {"min_tokens": 0, "stop_token_ids": [], "include_stop_str_in_output": False, "bad_words": [], "echo": False},
        {"use_beam_search": False, "length_penalty": 1.0, "priority": 0, "return_tokens_as_token_ids": False},
        {"guided_json": None, "structured_outputs": None, "regex": None, "prompt_logprobs": None, "documents": None},
        {"moderation": None, "speed": None, "thinking": {"type": "adaptive", "display": None}},
        {"separate_reasoning": True, "stream_reasoning": True, "truncate_prompt_tokens": None, "request_id": "a"},
        {"response_format": {"type": "text"}, "tools": [], "modalities": ["text"]},
        {"thinking": {"type": "adaptive"}},
        {"ttc": {}},
    ],
)
def test_what_has_no_effect_is_accepted(server: Running, fields: dict[str, Any]) -> None:
    assert server.ask(chat(**fields)).status_code == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"thinking_budget": 5}, "thinking_budget"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"min_thinking_tokens": 5}, "min_thinking_tokens"),
        ({"enable_thinking": True}, "enable_thinking"),
    ],
)
def test_a_model_that_does_not_think_refuses_to(thoughtless: Running, fields: dict[str, Any], param: str) -> None:
    response = thoughtless.ask(chat(**fields))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


@pytest.mark.parametrize("fields", [{}, {"reasoning_effort": "none"}, {"enable_thinking": False}])
def test_a_model_that_does_not_think_answers_who_asks_for_no_thought(
    thoughtless: Running, fields: dict[str, Any]
) -> None:
    reply = thoughtless.ask(chat(**fields)).json()
    assert reply["choices"][0]["message"]["content"] == "hello there"


def test_a_strategy_that_needs_a_scorer_is_refused_where_there_is_none(thoughtless: Running) -> None:
    response = thoughtless.ask(chat(ttc={"strategy": "best_of_n", "n": 2}))
    assert response.json()["error"]["param"] == "ttc.strategy"


def test_raw_prompts_have_no_template_to_switch_thinking_off(server: Running) -> None:
    for fields in ({"thinking_budget": 0}, {"reasoning_effort": "none"}):
        response = server.ask({"model": "m", "prompt": "hi", **fields}, "/v1/completions")
        assert response.status_code == 400
        assert response.json()["error"]["param"] in fields
    assert server.ask({"model": "m", "prompt": ["a", "b"]}, "/v1/completions").status_code == 400
    assert server.ask({"model": "m", "prompt": ""}, "/v1/completions").status_code == 400
