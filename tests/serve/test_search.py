"""Strategies over the wire: what they return, how they show their progress, presets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from serve.operator.config import PresetSpec, ServeLimits
from serve.requests.search import ServedStrategies
from tests.serve.running import Running, chat, running, scripted, served
from tests.serve.streams import same, streamed, whole
from tests.ttc import bad_plugins
from ttc.engines.embedded.engine import embedded
from ttc.engines.simulated import simulated, truth
from ttc.scorers.constant import constant
from ttc.scorers.prm import prm
from ttc.scorers.simulated import simulated as simulated_scorer

OFFERED = ServedStrategies(None, (), 128).names
PRESETS = [
    PresetSpec("m:vote-of-5", "m", "majority", {"n": 5}),
    PresetSpec("m:tree", "m", "tree", {"n": 8, "beam_width": 4}),
]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    model = served(simulated(jitter=2), scorers={"sim": simulated_scorer(), "flat": constant()})
    with running(model, presets=PRESETS, limits=ServeLimits(progress_interval_s=0.001)) as found:
        yield found


@pytest.mark.parametrize(
    "ttc",
    [
        {"strategy": "majority", "n": 7},
        {"strategy": "best_of_n", "n": 7},
        {"strategy": "best_of_n", "n": 7, "select": "weighted", "scorer": "flat"},
        {"strategy": "tree", "n": 16, "beam_width": 4},
        {"strategy": "tree", "n": 8, "policy": "beam", "max_total_tokens": 600},
    ],
)
def test_a_search_gives_the_same_reply_streamed_or_not(server: Running, ttc: dict[str, object]) -> None:
    body = chat("what is it?", ttc={**ttc, "seed": 9})
    reply, stream = whole(server, body), streamed(server, body)
    same(reply, stream)
    told = reply["ttc"]
    assert told["strategy"] == ttc["strategy"]
    assert told["candidates"] == stream["ttc"]["candidates"]
    assert told["parameters"] == {key: ttc[key] for key in ttc if key in told["parameters"]}
    chosen = told["candidates"][told["chosen"]]
    assert chosen["final"] == told["final"]
    assert told["final"] in reply["choices"][0]["content"]
    assert reply["usage"]["completion_tokens"] <= told["usage"]["generated"]


def test_the_same_seed_gives_the_same_reply_and_another_seed_another(server: Running) -> None:
    texts = [whole(server, chat("q", seed=seed, temperature=1))["choices"][0]["content"] for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    more = whole(server, chat("q", seed=1, temperature=1, n=3))["choices"]
    assert more[0]["content"] == texts[0], "more choices only add"
    assert len({choice["content"] for choice in more}) == 3


@pytest.mark.parametrize("level", ["off", "summary", "full"])
def test_progress_tells_of_every_node_and_what_became_of_it(server: Running, level: str) -> None:
    reply = streamed(server, chat("q", ttc={"strategy": "tree", "n": 8, "seed": 3, "progress": level}))
    if level == "off":
        assert reply["progress"] == []
        return
    last = reply["progress"][-1]
    assert last["tokens"] == reply["ttc"]["usage"]["generated"]
    assert last["live"] == 0
    nodes: dict[tuple[int, ...], dict[str, object]] = {}
    for message in reply["progress"]:
        nodes.update({tuple(node["path"]): node for node in message.get("nodes", ())})
    if level == "summary":
        assert not nodes
        return
    assert len(nodes) == last["nodes_total"]
    assert all(tuple(node["parent"]) in nodes or node["parent"] == [] for node in nodes.values())
    states = [node["state"] for node in nodes.values()]
    assert states.count("chosen") == 1
    assert {"pruned", "finished"} <= set(states)
    chosen = tuple(reply["ttc"]["candidates"][reply["ttc"]["chosen"]]["path"])
    assert nodes[chosen]["state"] == "chosen"
    assert nodes[chosen]["score"] is not None


def test_candidates_come_with_their_text_only_when_asked_for(server: Running) -> None:
    plain = whole(server, chat("q", ttc={"strategy": "majority", "n": 3}))["ttc"]["candidates"]
    told = whole(server, chat("q", ttc={"strategy": "majority", "n": 3, "return_candidates": True}))["ttc"][
        "candidates"
    ]
    assert not any("text" in candidate for candidate in plain)
    assert all(candidate["final"] in candidate["text"] for candidate in told)


def test_a_search_stays_within_its_budget_of_tokens_and_answers_with_what_it_has(server: Running) -> None:
    reply = whole(server, chat("q", ttc={"strategy": "majority", "n": 50, "max_total_tokens": 400}))["ttc"]
    assert reply["usage"]["tokens"] <= 400
    assert reply["stop_cause"] == "budget"
    assert reply["final"] is not None


def test_presets_are_models_and_the_body_beats_them(server: Running) -> None:
    with server.client() as client:
        names = [row["id"] for row in client.get("/v1/models").json()["data"]]
    assert names == ["m", "m:vote-of-5", "m:tree"]
    voted = whole(server, {**chat("q"), "model": "m:vote-of-5"})["ttc"]
    assert (voted["strategy"], len(voted["candidates"])) == ("majority", 5)
    wider = whole(server, {**chat("q"), "model": "m:vote-of-5", "ttc": {"n": 9}})["ttc"]
    assert len(wider["candidates"]) == 9
    other = whole(server, {**chat("q"), "model": "m:vote-of-5", "ttc": {"strategy": "direct"}})["ttc"]
    assert (other["strategy"], other["parameters"]) == ("direct", {})
    assert server.ask({**chat("q"), "model": "m:vote-of-9"}).status_code == 404


def test_more_compute_finds_the_answer_more_often(server: Running) -> None:
    def right(**fields: object) -> int:
        replies = [whole(server, chat(f"question {i}", seed=1, **fields))["ttc"]["final"] for i in range(25)]
        return sum(final == truth(f"question {i}") for i, final in enumerate(replies))

    assert right(ttc={"strategy": "tree", "n": 16}) > right() + 5


def test_stop_strings_end_the_answer_and_are_not_in_it() -> None:
    engine = scripted({"q": ["one two three four"]})
    with running(served(engine)) as server:
        for stop, text in ((["three"], "one two "), (["tw", "ee"], "one "), (["zzz"], "one two three four")):
            body = chat("q", stop=stop)
            reply = whole(server, body)
            assert reply["choices"][0]["content"] == text
            assert reply["choices"][0]["finish_reason"] == "stop"
            same(reply, streamed(server, body))


def test_log_probabilities_are_those_of_the_answers_tokens() -> None:
    with running(served(scripted())) as server:
        body = chat(logprobs=True, enable_thinking=False)
        reply = whole(server, body)
        content = reply["choices"][0]["logprobs"]["content"]
        assert "".join(item["token"] for item in content) == "hello there"
        assert {item["logprob"] for item in content} == {-0.5}
        same(reply, streamed(server, body))


@pytest.fixture(scope="module")
def nano() -> Iterator[Running]:
    with running(served(embedded(), scorers={"prm": prm()})) as found:
        yield found


@pytest.mark.parametrize("strategy", OFFERED)
def test_every_strategy_that_is_offered_answers_streamed_or_not(nano: Running, strategy: str) -> None:
    body = chat("12+30*2", max_tokens=300, ttc={"strategy": strategy, "seed": 1})
    reply, stream = whole(nano, body), streamed(nano, body)
    wanted = None if strategy == "tools" else "72"  # the packaged model was not taught to call anything
    assert reply["ttc"]["final"] == stream["ttc"]["final"] == wanted
    assert reply["choices"][0]["content"] == stream["choices"][0]["content"]


def test_parameters_that_a_strategy_itself_refuses_are_a_400_before_anything_is_sent(nano: Running) -> None:
    for stream in (False, True):
        response = nano.ask(chat("1+1", stream=stream, ttc={"strategy": "confidence", "n": 4, "warmup": 9}))
        assert (response.status_code, response.json()["error"]["param"]) == (400, "ttc")


def test_the_packaged_tree_tells_of_its_scores(nano: Running) -> None:
    reply = streamed(nano, chat("12+30*2", ttc={"strategy": "tree", "n": 8, "seed": 1, "progress": "full"}))
    assert reply["ttc"]["final"] == "72"
    assert reply["ttc"]["usage"]["scored"] > 0
    assert reply["progress"][-1]["best_score"] > 0.5


def test_a_strategy_of_the_operators_own_that_fails_is_a_500_that_tells_nothing_of_it() -> None:
    failing = f"{bad_plugins.__file__}:raises"
    with running(served(simulated()), strategies=("direct", failing)) as server:
        reply = server.ask(chat("q", ttc={"strategy": failing}))
    assert reply.status_code == 500
    error = reply.json()["error"]
    assert (error["type"], error["code"]) == ("server_error", "plugin_error")
    assert "boom" not in error["message"] and "bad_plugins" not in error["message"]
