"""Upstream servers over real sockets: every kind of fault is told cleanly, in time, without an address, or hidden."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from serve.http.process import take_over_keys
from serve.operator.config import HttpSettings, PresetSpec
from serve.operator.keys import KeyLimits, key_from_secret
from serve.running.upstreams import Patience, Upstreams
from tests.serve.faulty import Faulty, Play, Wire, faulty, well
from tests.serve.running import Running, chat, running, scripted, served
from tests.serve.slow import until
from tests.serve.streams import chunks_of
from tests.serve.test_forward import WithoutIds
from ttc.core import ThinkState
from ttc.engines.openai.client import Client
from ttc.engines.openai.refusals import Access
from ttc.engines.openai.wire import FEWER_SEED_BITS, SEED_BITS, Features
from ttc.engines.scripted import replies
from ttc.engines.shared.balance import Balancer, Transient
from ttc.errors import ConfigError, EngineError

KEY = "sk-of-the-operator"
PATIENCE = Patience(first_s=3.0, gap_s=2.0)
REST_S = 30.0
"""Longer than a test on a busy machine takes."""


@contextlib.contextmanager
def gateway(
    *behind: Faulty,
    own_temperature: bool = False,
    opens: tuple[ThinkState, ...] = (),
    seed_bits: int = SEED_BITS,
    **options: Any,
) -> Iterator[Running]:
    """Our server before these."""
    features = Features("theirs", usage=True, own_temperature=own_temperature, opens=opens, seed_bits=seed_bits)
    clients = {server.url: Client(server.url, Access(KEY, 2, 20)) for server in behind}
    servers = Upstreams(clients, features, Balancer(tuple(clients), rest_s=REST_S), PATIENCE)
    with running(dataclasses.replace(served(WithoutIds(replies({}))), forward=servers), **options) as server:
        yield server


def stall(wire: Wire) -> None:
    wire.wait()


def stall_after_head(wire: Wire) -> None:
    wire.begin()
    wire.wait()


def stall_between(wire: Wire) -> None:
    wire.begin()
    wire.words(2)
    wire.wait()


def close_at_once(wire: Wire) -> None:
    wire.connection.close()


def reset_at_once(wire: Wire) -> None:
    wire.reset()


def close_between(wire: Wire) -> None:
    wire.begin()
    wire.words(2)
    wire.connection.close()


def reset_between(wire: Wire) -> None:
    wire.begin()
    wire.words(2)
    wire.reset()


def garbage(wire: Wire) -> None:
    wire.begin()
    wire.event(b"{not json")


def not_utf8(wire: Wire) -> None:
    wire.begin()
    wire.event(b'{"a": "\xff"}')


def no_http(wire: Wire) -> None:
    wire.send(b"SSH-2.0-OpenSSH\r\n")
    wire.connection.close()


def no_finish(wire: Wire) -> None:
    wire.begin()
    wire.words()
    wire.event(b"[DONE]")
    wire.send(b"0\r\n\r\n")


def error_chunk(wire: Wire) -> None:
    wire.begin()
    wire.words(2)
    wire.event({"error": {"message": f"gpu died, key {KEY}", "code": "x"}})


def a_page(wire: Wire) -> None:
    wire.plain("200 OK", b"<html>login</html>", kind="text/html")


def empty(wire: Wire) -> None:
    wire.plain("200 OK", b"")


def a_list(wire: Wire) -> None:
    wire.begin()
    wire.event([1, 2])


def says(status: str, *headers: str, words: str = "no") -> Play:
    def play(wire: Wire) -> None:
        wire.error(status, f"{words}: see http://10.0.0.9/v1 with {KEY}", *headers)

    return play


FAULTS: dict[str, tuple[Play, int, int]] = {
    # what it does, our status, how often the only server is asked
    "500": (says("500 X"), 503, 2),
    "502": (says("502 X"), 503, 2),
    "503": (says("503 X", "retry-after: 3"), 503, 2),
    "504": (says("504 X"), 503, 2),
    "429": (says("429 X", "retry-after: 7"), 429, 1),
    "429 without a time": (says("429 X"), 429, 1),
    "402": (says("402 X"), 502, 1),
    "429 of a spent account": (says("429 X", words="insufficient_quota"), 502, 1),
    "429 of one that will not change": (says("429 X", "x-should-retry: false", words="insufficient_quota"), 502, 1),
    "401": (says("401 X"), 502, 1),
    "403": (says("403 X"), 502, 1),
    "404": (says("404 X"), 502, 1),
    "400": (says("400 X"), 400, 1),
    "422": (says("422 X"), 400, 1),
    "a stall before the head": (stall, 504, 1),
    "a stall after the head": (stall_after_head, 504, 1),
    "a stall between two chunks": (stall_between, 504, 1),
    "a close at once": (close_at_once, 503, 2),
    "a reset at once": (reset_at_once, 503, 2),
    "a close between two chunks": (close_between, 503, 1),
    "a reset between two chunks": (reset_between, 503, 1),
    "garbage": (garbage, 503, 2),
    "bytes that are not UTF-8": (not_utf8, 503, 2),
    "no HTTP": (no_http, 503, 2),
    "no end": (no_finish, 503, 1),
    "an error between two chunks": (error_chunk, 503, 1),
    "a page": (a_page, 503, 2),
    "an empty reply": (empty, 503, 2),
    "a list": (a_list, 503, 2),
}

BREAKS_LATE = {"a close between two chunks", "a reset between two chunks", "no end", "an error between two chunks"}
"""What a stream has shown a word of; a request that is not streamed has shown nothing, and is sent again."""


def test_there_are_at_least_twenty_kinds_of_fault() -> None:
    assert len(FAULTS) >= 20


@pytest.mark.long
@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_told_in_time_and_without_an_address(name: str) -> None:
    play, status, times = FAULTS[name]
    with faulty(play) as behind, gateway(behind) as server:
        for stream in (False, True):
            behind.asked.clear()
            begun = time.monotonic()
            reply = server.ask(chat(stream=stream))
            assert time.monotonic() - begun < 10
            told = reply.text
            if stream and reply.status_code == 200:
                assert told.endswith("data: [DONE]\n\n") and '"error"' in told
            else:
                assert reply.status_code == status, told
                assert reply.headers.get("retry-after") == {"429": "7", "429 without a time": "1", "503": "3"}.get(name)
            assert KEY not in told and "127.0.0.1" not in told and "10.0.0.9" not in told and "api_key_env" not in told
            again = 2 if name in BREAKS_LATE and not stream else times
            assert len(behind.asked) == again, "asked again where that may help, and only there"
        assert until(lambda: server.service.idle, 5)
        behind.play = well
        assert until(lambda: server.ask(chat()).status_code == 200, 8)


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name, (_, status, _) in FAULTS.items() if status in (429, 503)])
def test_a_second_server_answers_in_place_of_one_that_fails_before_its_first_word(name: str) -> None:
    play, _, times = FAULTS[name]
    with faulty(play) as bad, faulty() as good, gateway(bad, good) as server:
        asked = [chat(f"question {i}") for i in range(4)]
        statuses = [server.ask(body).status_code for body in asked]
        if times == 2 or name.startswith("429"):
            assert statuses == [200] * 4
        else:
            assert set(statuses) <= {200, 503} and 200 in statuses
        assert len(bad.asked) <= 2, "a server that fails rests"
        retries = sum(server.service.catalogue.upstreams["m"].retried.counts.values())
        assert retries <= len(bad.asked) + 1


def test_a_server_that_closes_its_kept_connections_at_any_moment_costs_no_reply_and_takes_no_rest() -> None:
    moments = iter([k / 10_000 for k in range(1000)])  # of a list: threads share it

    def closes(wire: Wire) -> None:
        well(wire)
        time.sleep(next(moments))  # up to 6 ms: the next request comes before, while and after it closes

    with faulty(garbage) as bad, faulty(closes) as good, gateway(bad, good) as server:
        assert {server.ask(chat(f"question {i}")).status_code for i in range(60)} == {200}
        assert len(bad.asked) <= 1 and len(good.asked) == 60


def test_kept_connections_that_a_server_has_closed_cost_no_reply_however_many_there_are() -> None:
    def closes_when_asked_again(wire: Wire) -> None:
        well(wire)
        wire.connection.recv(1)

    with faulty(closes_when_asked_again) as good, gateway(good) as server:
        vote = chat(stop=["never"], ttc={"strategy": "majority", "n": 5})
        assert server.ask(vote).status_code == 200
        assert server.ask(chat()).status_code == 200
        assert len(good.asked) == 6


def breaks_once(play: Play) -> Play:
    """Plays so the first time, and well afterwards."""
    plays = iter([play])

    def first_only(wire: Wire) -> None:
        next(plays, well)(wire)

    return first_only


@pytest.mark.parametrize("play", [close_between, no_finish, error_chunk])
def test_a_reply_that_is_not_streamed_is_asked_for_again_when_its_server_breaks_off(play: Play) -> None:
    with faulty(breaks_once(play)) as behind, gateway(behind) as server:
        reply = server.ask(chat())
        assert reply.status_code == 200 and len(behind.asked) == 2
        assert reply.json()["choices"][0]["message"]["content"] == "The answer is 7."


def test_a_stream_whose_server_breaks_off_says_that_and_not_that_nobody_answered() -> None:
    with faulty(says("429 X")) as busy, faulty(close_between) as bad, gateway(busy, bad) as server:
        for _ in range(2):
            *chunks, last = chunks_of(server.ask(chat(stream=True)).text)
            assert last["error"]["message"] == "the upstream server broke off its reply"
            assert any(chunk["choices"][0]["delta"].get("content") for chunk in chunks)


def ends(word: str, content: str = "The answer is 7.") -> Play:
    def play(wire: Wire) -> None:
        wire.begin()
        for letter in content:
            wire.chunk({"content": letter})
        wire.chunk({}, word)
        wire.event(b"[DONE]")
        wire.send(b"0\r\n\r\n")

    return play


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("eos", "stop"),
        ("STOP", "stop"),
        ("content_filter", "content_filter"),
        ("MAX_TOKENS", "length"),
        ("x", "length"),
    ],
)
def test_a_finish_reason_of_an_upstream_server_means_the_same_in_a_stream_and_a_vote(word: str, reason: str) -> None:
    with faulty(ends(word)) as behind, gateway(behind) as server:
        vote = chat(stop=["never"], ttc={"strategy": "majority", "n": 2})
        for body in (chat(), vote):
            assert server.ask(body).json()["choices"][0]["finish_reason"] == reason
        chunks = chunks_of(server.ask(chat(stream=True)).text)
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks if chunk["choices"]][-1] == reason


def test_a_reply_that_the_filter_ended_is_told_in_every_dialect() -> None:
    with faulty(ends("content_filter")) as behind, gateway(behind) as server:
        response = server.ask({"model": "m", "input": "hi"}, "/v1/responses").json()
        message = server.ask({**chat(), "max_tokens": 9}, "/v1/messages").json()
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "content_filter"})
    assert message["stop_reason"] == "refusal"


@pytest.mark.parametrize("stream", [False, True])
def test_what_a_model_behind_says_in_refusal_of_a_form_is_told(stream: bool) -> None:
    def refuses(wire: Wire) -> None:
        wire.begin()
        wire.chunk({"role": "assistant", "content": None, "refusal": ""})
        for word in ("I cannot", " help with that."):
            wire.chunk({"refusal": word})
        wire.end()

    body = chat(response_format={"type": "json_object"}, stream=stream)
    with faulty(refuses) as behind, gateway(behind) as server:
        text = server.ask(body).text
    choices = [part["choices"][0] for part in (chunks_of(text) if stream else [json.loads(text)])]
    said = [choice["delta" if stream else "message"].get("content") for choice in choices]
    assert "".join(word or "" for word in said) == "I cannot help with that."
    assert choices[-1]["finish_reason"] == "content_filter"


def test_a_content_in_parts_is_joined() -> None:
    def play(wire: Wire) -> None:
        wire.begin()
        wire.chunk({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]})
        wire.chunk({"content": [{"type": "text", "text": "7"}]})
        wire.end()

    with faulty(play) as behind, gateway(behind) as server:
        message = server.ask(chat()).json()["choices"][0]["message"]
    assert (message["content"], message["reasoning"]) == ("7", "hm")


def test_a_think_block_in_the_content_is_thought_streamed_whole_and_in_a_vote() -> None:
    with (
        faulty(ends("stop", "<think>\nso 5 < 7</think>\n\nThe <b> is \\boxed{7}.")) as behind,
        gateway(behind) as server,
    ):
        vote = chat(stop=["never"], ttc={"strategy": "majority", "n": 2})
        for body in (chat(), vote):
            message = server.ask(body).json()["choices"][0]["message"]
            assert (message["reasoning"], message["content"]) == ("so 5 < 7", "The <b> is \\boxed{7}.")
        chunks = chunks_of(server.ask(chat(stream=True)).text)
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
        assert "".join(delta.get("reasoning") or "" for delta in deltas) == "so 5 < 7"
        assert "".join(delta.get("content") or "" for delta in deltas) == "The <b> is \\boxed{7}."
        behind.play = ends("stop", "so 5</think>\n7")
        message = server.ask(chat()).json()["choices"][0]["message"]
        assert (message["reasoning"], message["content"]) == ("so 5", "7")
        behind.play = ends("stop", " <thin air>")
        assert server.ask(chat()).json()["choices"][0]["message"]["content"] == " <thin air>"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("reason", [" is", 151645])
def test_the_stop_string_that_ended_a_reply_is_told_where_the_upstream_server_told_it(
    reason: object, stream: bool
) -> None:
    def stops(wire: Wire) -> None:
        wire.begin()
        wire.words(2)
        wire.event({"id": "x", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "stop_reason": reason}]})
        wire.end()

    with faulty(stops) as behind, gateway(behind) as server:
        body = chat(max_tokens=20, stop_sequences=[" is"], stream=stream)
        text = server.ask(body, "/v1/messages").text
        told = '"stop_sequence","stop_sequence":" is"' if isinstance(reason, str) else '"end_turn","stop_sequence":null'
        assert f'"stop_reason":{told}' in text


@pytest.mark.parametrize("stream", [False, True])
def test_a_model_that_runs_here_answers_a_chat_in_place_of_servers_that_fail(stream: bool) -> None:
    with faulty(says("500 X")) as behind:
        servers = Upstreams({behind.url: Client(behind.url, Access(KEY, 2, 20))}, Features("theirs"), None, PATIENCE)
        front = dataclasses.replace(served(WithoutIds(replies({})), fallback="small"), forward=servers)
        with running(front, served(scripted({"hi": ["from here"]}), "small")) as server:
            text = server.ask(chat("hi", stream=stream)).text
    assert "from here" in text and '"fallback":{"from":"m","reason":"unavailable"}' in text


def test_a_thought_that_the_prompt_had_opened_is_thought_in_a_stream_too_where_the_server_tells_of_it() -> None:
    def said(server: Running, **fields: Any) -> tuple[str, str]:
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks_of(server.ask(chat(stream=True, **fields)).text)]
        return tuple("".join(delta.get(name) or "" for delta in deltas) for name in ("reasoning", "content"))  # type: ignore[return-value]

    with faulty(ends("stop", "\nso 5 < 7</think>\n\nIt is 7.")) as behind, gateway(behind, opens=("none",)) as server:
        assert said(server) == ("so 5 < 7", "It is 7.")
        behind.play = ends("length", "so 5 <")
        assert said(server) == ("so 5 <", "")
        message = server.ask(chat()).json()["choices"][0]["message"]
        assert (message["reasoning"], message["content"]) == ("so 5 <", "")
        assert said(server, reasoning_effort="none") == ("", "so 5 <"), "which is not asked with that switch"


def test_a_server_that_answers_whole_is_read() -> None:
    def play(wire: Wire) -> None:
        choice = {"index": 0, "message": {"role": "assistant", "content": "7"}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 11, "completion_tokens": 5}
        wire.plain("200 OK", json.dumps({"choices": [choice], "usage": usage}).encode())

    with faulty(play) as behind, gateway(behind) as server:
        reply = server.ask(chat()).json()
    assert reply["choices"][0]["message"]["content"] == "7" and reply["usage"]["total_tokens"] == 16


def whole(choice: object, usage: object = None) -> Play:
    def play(wire: Wire) -> None:
        wire.plain("200 OK", json.dumps({"choices": [choice], "usage": usage}).encode())

    return play


def says_calls(*calls: object) -> Play:
    return whole({"message": {"content": None, "tool_calls": calls}, "finish_reason": "tool_calls"})


SEVEN = {"message": {"content": "7"}, "finish_reason": "stop"}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]


@pytest.mark.parametrize(
    "play",
    [
        whole("7"),
        whole({**SEVEN, "finish_reason": 3}),
        whole(SEVEN, usage=[7]),
        whole(SEVEN, usage={"completion_tokens_details": 7}),
        says_calls("add"),
        says_calls({"id": 7, "function": {"name": "add", "arguments": "{}"}}),
        says_calls({"index": "first", "function": {"name": "add", "arguments": "{}"}}),
    ],
)
def test_another_server_answers_in_place_of_one_whose_reply_has_not_the_shape_of_one(play: Play) -> None:
    with faulty(play) as bad, faulty() as good, gateway(bad, good) as server:
        assert [server.ask(chat(f"question {i}")).status_code for i in range(2)] == [200, 200]
        assert len(bad.asked) == 1 and len(good.asked) == 2


def test_counts_that_are_none_are_not_reported() -> None:
    counts = {
        "prompt_tokens": "eleven",
        "completion_tokens": -3,
        "completion_tokens_details": {"reasoning_tokens": 1e400},
    }
    with faulty(whole(SEVEN, usage=counts)) as behind, gateway(behind) as server:
        for body in (chat(), chat(stream=True, stream_options={"include_usage": True})):
            reply = server.ask(body)
            assert reply.status_code == 200 and '"total_tokens":0' in reply.text


@pytest.mark.parametrize(
    "later",
    [
        {"prompt_tokens": None, "completion_tokens": None, "total_tokens": None},
        {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0, "prompt_tokens_details": None},
        {"prompt_tokens": 11, "completion_tokens": 5, "total_tokens": 16, "completion_tokens_details": None},
        {"completion_tokens": 5, "total_tokens": 16},
        None,
    ],
)
def test_usage_that_comes_more_than_once_is_counted_once(later: Any) -> None:
    def play(wire: Wire) -> None:
        usage = {"prompt_tokens": 11, "completion_tokens": 5, "total_tokens": 16}
        last = {"index": 0, "delta": {"content": "7"}, "finish_reason": "stop"}
        chunks = [{"choices": [last], "usage": usage}, {"choices": [], "usage": later}]
        events = b"".join(b"data: %s\n\n" % json.dumps(chunk).encode() for chunk in chunks)
        wire.plain("200 OK", events + b"data: [DONE]\n\n", kind="text/event-stream")

    with faulty(play) as behind, gateway(behind) as server:
        usage = server.ask(chat()).json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (11, 5)


def test_calls_that_have_no_index_stay_apart_and_arguments_may_be_an_object() -> None:
    calls = [
        {"id": "one", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}},
        {"id": "two", "type": "function", "function": {"name": "add", "arguments": {"a": 2}}},
    ]
    with faulty(says_calls(*calls)) as behind, gateway(behind) as server:
        message = server.ask(chat(tools=TOOLS)).json()["choices"][0]["message"]
    told = [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in message["tool_calls"]]
    assert told == [("one", "add", '{"a": 1}'), ("two", "add", '{"a": 2}')]


@pytest.mark.parametrize("stream", [False, True])
def test_calls_without_ids_are_given_some_that_tell_them_apart(stream: bool) -> None:
    call = {"type": "function", "function": {"name": "add", "arguments": "{}"}}
    with faulty(says_calls(call, {**call, "id": None}, {**call, "id": "theirs"})) as behind, gateway(behind) as server:
        reply = server.ask(chat(tools=TOOLS, stream=stream))
    rows = (
        [chunk["choices"][0]["delta"] for chunk in chunks_of(reply.text)]
        if stream
        else [reply.json()["choices"][0]["message"]]
    )
    ids = [one["id"] for row in rows for one in row.get("tool_calls") or ()]
    assert len(set(ids)) == 3 and all(ids) and ids[2] == "theirs"


def test_a_limit_that_the_client_did_not_send_is_told_where_it_is_refused() -> None:
    for text in ("maximum context length is 200 tokens", "max_tokens is too large: 4096"):

        def play(wire: Wire, text: str = text) -> None:
            wire.error("400 X", text)

        with faulty(play) as behind, gateway(behind) as server:
            error = server.ask(chat()).json()["error"]
            assert error["param"] == "max_completion_tokens" and "limits.default_max_tokens" in error["message"]
            assert "default" not in server.ask(chat(max_tokens=9)).json()["error"]["message"]


def test_a_model_with_its_own_temperature_is_asked_for_that_where_the_client_says_none() -> None:
    with faulty() as behind, gateway(behind, own_temperature=True) as server:
        server.ask(chat())
        server.ask(chat(temperature=0.5))
    assert [body["temperature"] for body in behind.asked] == [1.0, 0.5]


@pytest.mark.parametrize("bits", [SEED_BITS, FEWER_SEED_BITS])
def test_a_server_that_takes_small_seeds_only_is_asked_with_such(bits: int) -> None:
    with faulty() as behind, gateway(behind, seed_bits=bits) as server:
        for seed in range(8):
            assert server.ask(chat(seed=seed, n=2)).status_code == 200
    seeds = {body["seed"] for body in behind.asked}
    assert len(seeds) == 16 and max(seeds).bit_length() <= bits


def test_chats_are_spread_over_servers_and_a_conversation_stays_at_home() -> None:
    with faulty() as one, faulty() as two, gateway(one, two) as server:
        for i in range(8):
            turns = [{"role": "user", "content": f"question {i}"}]
            for _ in range(3):
                assert server.ask({"model": "m", "messages": turns}).status_code == 200
                turns += [{"role": "assistant", "content": "7"}, {"role": "user", "content": "more"}]
    first = [{body["messages"][0]["content"] for body in behind.asked} for behind in (one, two)]
    assert len(first[0]) == len(first[1]) == 4 and not first[0] & first[1]
    assert len(one.asked) == len(two.asked) == 12


def test_with_all_at_rest_a_request_still_goes_to_each_of_them_and_finds_the_one_that_is_well_again() -> None:
    with faulty(close_at_once) as one, faulty(close_at_once) as two, gateway(one, two) as server:
        assert server.ask(chat()).status_code == 503
        assert sorted([len(one.asked), len(two.asked)]) == [1, 2], "once, and the last of them once more"
        assert server.ask(chat("other")).status_code == 503
        assert min(len(one.asked), len(two.asked)) >= 2
        for ill, well_again in ((one, two), (two, one)):
            ill.play, well_again.play = close_at_once, well
            assert server.ask(chat(f"question to {well_again.url}")).status_code == 200


def test_a_server_that_is_busy_is_not_asked_again_in_place_of_one_that_fails() -> None:
    with faulty(says("429 X", "retry-after: 7")) as busy, faulty(says("500 X")) as bad, gateway(busy, bad) as server:
        for number in (1, 2):
            reply = server.ask(chat(f"question {number}"))
            assert (reply.status_code, reply.headers["retry-after"]) == (429, "7")
            assert len(busy.asked) == number and number <= len(bad.asked) <= 2 * number


def test_of_servers_that_are_all_busy_the_one_that_has_room_first_says_when_to_come_back() -> None:
    first, late = says("429 X", "retry-after: 3"), says("429 X", "retry-after: 40")
    for plays in ((first, late), (late, first), (first, says("429 X"))):
        with faulty(plays[0]) as one, faulty(plays[1]) as two, gateway(one, two) as server:
            assert server.ask(chat()).headers["retry-after"] == "3"


REFUSED = ("401 X", "402 X", "403 X", "404 X", "429 X")


@pytest.mark.parametrize("status", REFUSED)
@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"n": 2}])
def test_a_server_that_refuses_us_costs_no_reply_and_gets_no_more_requests(
    status: str, fields: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    refuses = says(status, words="insufficient_quota")
    with faulty(refuses) as spent, faulty() as good, gateway(spent, good) as server, server.client() as client:
        for number in range(4):
            reply = server.ask(chat(f"question {number}", **fields))
            assert reply.status_code == 200
        draws = int(fields.get("n", 1))
        assert 1 <= len(spent.asked) <= draws and len(good.asked) == 4 * draws
        assert client.get("/ready").json()["upstreams"] == {"m": {"servers": 2, "healthy": 1}}
        metric = f'ttc_upstream_retries_total{{model="m",reason="refused"}} {len(spent.asked)}'
        assert metric in client.get("/metrics").text
    told = [record.levelname for record in caplog.records if "refuses" in record.message]
    assert told == ["ERROR"] * len(spent.asked)


def test_servers_that_all_refuse_a_request_are_asked_again_by_the_next() -> None:
    with faulty(says("403 X")) as one, faulty(says("401 X")) as two, gateway(one, two) as server:
        assert server.ask(chat()).status_code == 502
        one.play = two.play = well
        for number in range(4):
            assert server.ask(chat(f"question {number}")).status_code == 200
        assert min(len(one.asked), len(two.asked)) > 1


def test_where_one_server_refuses_us_a_client_hears_when_the_others_have_room() -> None:
    with faulty(says("402 X")) as spent, faulty(says("429 X", "retry-after: 7")) as busy:
        for pool in ((spent, busy), (busy, spent)):
            with gateway(*pool) as server:
                reply = server.ask(chat())
                assert (reply.status_code, reply.headers["retry-after"]) == (429, "7")


def test_metrics_count_what_a_strategy_sends_again_beside_what_is_passed_through() -> None:
    with faulty(breaks_once(says("500 X"))) as behind, gateway(behind) as server, server.client() as client:
        assert server.ask(chat()).status_code == 200
        servers = server.service.catalogue.upstreams["m"]
        servers.retried.add(Transient(EngineError("of a draw"), status=500))
        lines = client.get("/metrics").text.splitlines()
        assert 'ttc_upstream_retries_total{model="m",reason="500"} 2' in lines
        assert "# TYPE ttc_upstream_retries_total counter" in lines
        assert servers.retried is servers._balancer.retried, "which the engine's own retries go through"


def test_readiness_and_health_checks_know_the_upstream_servers() -> None:
    with faulty() as one, faulty() as two, gateway(one, two) as server, contextlib.ExitStack() as stack:
        servers = server.service.catalogue.upstreams["m"]
        client = stack.enter_context(server.client())
        ready = client.get("/ready")
        assert (ready.status_code, ready.json()["upstreams"]) == (200, {"m": {"servers": 2, "healthy": 2}})
        one.play = two.play = close_at_once
        assert server.ask(chat()).status_code == 503
        assert until(lambda: server.ask(chat("other")).status_code == 503 and not servers.num_healthy, 5)
        assert client.get("/ready").status_code == 503
        one.play = two.play = well
        watched = server.service.catalogue.watch(0.1)
        task = asyncio.run_coroutine_threadsafe(watched, server.loop)
        assert until(lambda: servers.num_healthy == 2, 5)
        task.cancel()
        assert client.get("/ready").status_code == 200 and one.checked and two.checked


SECRET = "a-secret-of-alice"


def test_parallel_requests_never_pass_a_quota_of_tokens() -> None:
    key = key_from_secret("alice", SECRET, KeyLimits(tokens_per_minute=500))
    with running(served(scripted({"hi": ["x" * 120]}, jitter=1)), keys=[key]) as server:
        replies_: list[Any] = []

        def ask(i: int) -> None:
            body = chat(max_tokens=150, **({"ttc": {"strategy": "majority", "n": 3}} if i % 4 == 0 else {}))
            replies_.append(server.ask(body, authorization=f"Bearer {SECRET}"))

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        spent = sum(one.json()["ttc"]["usage"]["tokens"] for one in replies_ if one.status_code == 200)
        refused = [one for one in replies_ if one.status_code == 429]
        assert 0 < spent <= 500 and len(refused) >= 30
        assert all(one.headers["retry-after"] for one in refused)
        assert {one.status_code for one in replies_} == {200, 429}


def test_a_reply_that_its_keys_minute_cut_says_so() -> None:
    key = key_from_secret("alice", SECRET, KeyLimits(tokens_per_minute=40))
    with running(served(scripted({"hi": ["x" * 120]})), keys=[key]) as server:
        reply = server.ask(chat(max_tokens=100), authorization=f"Bearer {SECRET}").json()
    assert reply["choices"][0]["finish_reason"] == "length" and reply["usage"]["completion_tokens"] == 20
    assert reply["ttc"]["adjusted"] == {"max_tokens": {"asked": 100, "used": 20}}


def test_what_was_set_aside_and_not_spent_comes_back() -> None:
    key = key_from_secret("alice", SECRET, KeyLimits(tokens_per_minute=500))
    with running(served(scripted()), keys=[key]) as server:
        for _ in range(4):  # the prompt is 20 tokens, "hello there" and the end are 12
            assert server.ask(chat(max_tokens=350), authorization=f"Bearer {SECRET}").status_code == 200
        assert server.ask(chat(max_tokens=353), authorization=f"Bearer {SECRET}").status_code == 429
        assert server.ask(chat(max_tokens=352), authorization=f"Bearer {SECRET}").status_code == 200


def test_keys_are_read_again_without_a_restart() -> None:
    with running(served(scripted()), keys=[key_from_secret("alice", SECRET)]) as server:
        other = "a-secret-of-bobby"
        assert server.ask(chat(), authorization=f"Bearer {other}").status_code == 401
        take_over_keys(server.service, lambda: (key_from_secret("bob", other),))
        assert server.ask(chat(), authorization=f"Bearer {other}").status_code == 200
        assert server.ask(chat(), authorization=f"Bearer {SECRET}").status_code == 401

        def broken() -> tuple[()]:
            raise ConfigError("the file is half written")

        take_over_keys(server.service, broken)
        take_over_keys(server.service, lambda: ())
        assert server.ask(chat(), authorization=f"Bearer {other}").status_code == 200
        assert server.ask(chat()).status_code == 401


def test_a_preset_takes_temperature_zero_and_says_what_it_used() -> None:
    presets = [PresetSpec("m:vote", "m", "majority", {"n": 3}, temperature=0.7), PresetSpec("m:plain", "m")]
    with running(served(scripted()), presets=presets) as server:
        reply = server.ask({**chat(temperature=0), "model": "m:vote"}).json()
        assert reply["ttc"]["adjusted"] == {"temperature": {"asked": 0, "used": 0.7}}
        assert "adjusted" not in server.ask({**chat(temperature=0), "model": "m:plain"}).json()["ttc"]
        assert server.ask(chat(temperature=0, ttc={"strategy": "majority", "n": 3})).status_code == 400


UNHEARD = {"ignore_eos": True, "keep_alive": "5m", "logit_bias": {"5": 1}}


def test_harmless_fields_are_refused_by_name_or_ignored_with_a_header() -> None:
    with running(served(scripted())) as server:
        for name, value in UNHEARD.items():
            refused = server.ask(chat(**{name: value}))
            assert refused.status_code == 400 and refused.json()["error"]["param"].startswith(name)
            assert "http.ignore" in refused.json()["error"]["message"]
    with running(served(scripted()), http=HttpSettings(ignore=tuple(UNHEARD))) as server:
        reply = server.ask(chat(**UNHEARD))
        assert (reply.status_code, reply.headers["x-ttc-ignored"]) == (200, ", ".join(UNHEARD))
        assert "x-ttc-ignored" not in server.ask(chat()).headers
        stream = server.ask(chat(keep_alive="1m", stream=True))
        assert stream.headers["x-ttc-ignored"] == "keep_alive"
    with pytest.raises(ConfigError, match=r"http\.ignore"):
        HttpSettings(ignore=("thinking_budget",))


def test_a_repeat_penalty_is_a_repetition_penalty() -> None:
    with faulty() as behind, gateway(behind) as server:
        assert server.ask(chat(repeat_penalty=1.2)).status_code == 200
        assert behind.asked[0]["repetition_penalty"] == 1.2
        assert server.ask(chat(repeat_penalty=1.2, repetition_penalty=1.3)).status_code == 400
