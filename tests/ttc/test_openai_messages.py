"""The openai engine without token ids: messages, plain text, reasoning fields, and what is refused."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tests.ttc import conformance as suite
from tests.ttc.openai_server import Behaviour, Fault, OpenAIServer
from tests.ttc.openai_setup import CHAT, TEACHER, ask, by_ids, once, talker
from ttc.config.choices import PartChoice
from ttc.config.registry import ENGINES
from ttc.core import FILTERED, Budget, Prompt, Sampling
from ttc.engines.openai.chat import ChatDialect
from ttc.engines.openai.engine import RemoteEngine
from ttc.engines.openai.factory import openai
from ttc.engines.openai.probe import served_model
from ttc.engines.openai.refusals import words_of
from ttc.engines.openai.wire import TextReader
from ttc.errors import ConfigError, EngineError, Unsupported
from ttc.scorers.constant import constant
from ttc.scorers.likelihood import likelihood
from ttc.scorers.simulated import simulated as simulated_scorer
from ttc.session.door import run
from ttc.session.thinking import Thinking, split_text
from ttc.strategies.direct import direct
from ttc.strategies.majority import majority
from ttc.strategies.tree import tree


def test_whole_answers_work_through_messages_on_the_plainest_endpoint() -> None:
    with OpenAIServer(talker, replace(CHAT, limit_field="max_completion_tokens")) as server:
        engine = openai(base_url=server.url)
        assert not engine.capabilities.token_ids and not engine.capabilities.logprobs
        answer = run(ask(), engine=engine, strategy=partial(majority, n=8), seed=3)
        bodies = server.generations()[-8:]
    assert answer.final in {"0", "1", "2"} and len({c.final for c in answer.candidates}) > 1
    assert all(body["messages"] == [{"role": "user", "content": "2+2"}] for body in bodies)
    assert all(candidate.num_tokens > 0 for candidate in answer.candidates)
    ours = engine.counters()
    assert answer.usage == ours and ours.generated == sum(c.num_tokens for c in answer.candidates)
    assert engine.reconciliation().taken == 8


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
@pytest.mark.parametrize("mode", ["auto", "on"])
def test_reasoning_fields_become_thinking(field: str, mode) -> None:
    with OpenAIServer(lambda: talker(thinking=True), replace(CHAT, reasoning=field)) as server:
        engine = openai(base_url=server.url)
        answer = run(ask(), engine=engine, strategy=direct, seed=3, thinking=Thinking(mode=mode))
    assert answer.thinking == "step 0\n\nstep 1\n\n" and answer.text.startswith("so ") and answer.final is not None
    assert answer.usage.thinking == len(answer.thinking) < answer.usage.generated


def test_thinking_that_arrives_inside_the_content_is_told_from_the_answer() -> None:
    with OpenAIServer(lambda: talker(thinking=True), CHAT) as server:
        answer = run(ask(), engine=openai(base_url=server.url), strategy=direct, seed=3)
    assert answer.thinking == "step 0\n\nstep 1\n\n" and answer.text.startswith("so ")


@pytest.mark.parametrize(
    ("told", "count", "thought"), [(None, None, 16), (0, None, 16), (None, len, 8), (6, len, 6), (90, None, 20)]
)
@pytest.mark.parametrize("field", [False, True])
def test_thought_that_a_server_does_not_count_apart_is_counted_here(
    field: bool, told: int | None, count: Callable[[str], int] | None, thought: int
) -> None:
    reader = TextReader((), (), False, count)
    message = {"reasoning": "12345678", "content": "12"} if field else {"content": "<think>12345678</think>12"}
    usage = {"prompt_tokens": 3, "completion_tokens": 20, "completion_tokens_details": {"reasoning_tokens": told}}
    reader.add({"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage})
    outcome = reader.result()
    assert (outcome.num_generated, outcome.num_thinking) == (20, thought)


@pytest.mark.parametrize("inside", [False, True])
def test_a_block_behind_white_space_is_a_thought_without_its_marker(inside: bool) -> None:
    reader = TextReader((), (), inside, None)
    content = "\n<think>hm</think>\n\nfour"
    reader.add({"choices": [{"message": {"content": content}, "finish_reason": "stop"}]})
    parts = split_text(reader.result().text, inside)
    assert (parts.thinking.strip(), parts.answer.strip()) == ("hm", "four")


def test_the_thinking_switch_reaches_the_template_or_becomes_an_effort() -> None:
    for strict, name, value in (
        (True, "reasoning_effort", "none"),
        (False, "chat_template_kwargs", {"enable_thinking": False, "thinking": False}),
    ):
        with OpenAIServer(talker, replace(CHAT, strict=strict)) as server:
            engine = openai(base_url=server.url)
            run(ask(), engine=engine, strategy=direct, seed=3, thinking=Thinking(mode="off"))
            assert server.generations()[-1][name] == value


def test_what_messages_cannot_do_is_refused_before_anything_is_sent() -> None:
    with OpenAIServer(talker, CHAT) as server:
        engine = openai(base_url=server.url)
        before = len(server.requests)
        search = partial(tree, scorer=constant(), n=4, beam_width=2)
        with pytest.raises(Unsupported, match=r"step by step.*engine\.tokenizer"):
            run(ask(), engine=engine, strategy=search, seed=1)
        with pytest.raises(ConfigError, match=r"token ids.*engine\.tokenizer"):
            run(ask(), engine=engine, strategy=direct, seed=1, thinking=Thinking(max_tokens=9))
        with pytest.raises(ConfigError, match=r"budget\.flops"):
            run(ask(), engine=engine, strategy=direct, seed=1, budget=Budget(flops=1e9))
        with pytest.raises(ConfigError, match=r"log-probabilities.*engine\.tokenizer"):
            likelihood(engine=engine)
        with pytest.raises(Unsupported, match="stop_token_ids"):
            once(engine, stop_token_ids=(3,))
        with pytest.raises(Unsupported, match="messages only"):
            engine.encode("x")
        assert len(server.requests) == before


def test_search_runs_over_messages_where_the_endpoint_continues_them() -> None:
    with OpenAIServer(talker, Behaviour(completions=False, prefill=True)) as server:
        engine = openai(base_url=server.url)
        assert (
            isinstance(engine, RemoteEngine)
            and engine.features.prefill == ("none", "open", "closed")
            and engine.features.stops
        )
        search = partial(tree, scorer=simulated_scorer(noise=1.0), n=4, beam_width=2)
        answer = run(ask(), engine=engine, strategy=search, seed=1)
        bodies = server.generations()
    assert answer.final is not None
    assert max(len(candidate.path) for candidate in answer.candidates) == 3
    assert bodies[-1]["messages"][-1] == {"role": "assistant", "content": "step 0\n\nstep 1\n\n"}


def test_a_template_that_shows_a_begun_message_otherwise_than_it_asked_for_it_cannot_be_searched() -> None:
    with OpenAIServer(lambda: talker(thinking=True), Behaviour(completions=False, prefill=True)) as server:
        engine = openai(base_url=server.url)
        assert isinstance(engine, RemoteEngine)
        assert engine.features.prefill == ("none", "open", "closed")
    with OpenAIServer(lambda: talker(thinking=True), Behaviour(completions=False, forgets_think=True)) as server:
        engine = openai(base_url=server.url)
        assert isinstance(engine, RemoteEngine) and engine.features.prefill == ()


def test_search_runs_over_plain_text_where_ids_do_not_come_back() -> None:
    with OpenAIServer(suite.embedded, Behaviour(ids=False)) as server:
        engine = openai(base_url=server.url, tokenizer=TEACHER)
        assert isinstance(engine, RemoteEngine) and engine.features.text and engine.features.stops
        assert not engine.capabilities.token_ids
        search = partial(tree, scorer=simulated_scorer(noise=1.0), n=6, beam_width=3, max_depth=12)
        problem = suite.problems(1)[0]
        answer = run(problem, engine=engine, strategy=search, seed=1, sampling=Sampling(max_tokens=96))
        steps = [event for event in answer.trace if event.kind == "generate"]
    assert len({len(event.path) for event in steps}) > 1
    assert answer.final is not None and "<" not in answer.text
    assert all(0 < candidate.num_tokens <= 96 for candidate in answer.candidates)
    assert answer.usage.generated == sum(event.data["num_tokens"] for event in steps)


@pytest.mark.parametrize(("tokenizer", "takes_ids"), [("off", False), ("none", True)])  # none leaves a setting out
def test_a_local_folder_can_be_ignored(tokenizer: str, takes_ids: bool) -> None:
    with OpenAIServer(suite.embedded, Behaviour(model=TEACHER, max_model_len=2048)) as server:
        settings = {"base_url": server.url, "tokenizer": tokenizer}
        engine = PartChoice.of(ENGINES, "openai", settings, TEACHER).create_engine()
    assert engine.capabilities.token_ids == takes_ids and engine.capabilities.max_context == 2048


@pytest.mark.parametrize(
    ("fault", "text", "finish"),
    [
        (Fault("null", after=0), "", "stop"),
        (Fault("finish", finish="content_filter", after=0), "step 0\n\nstep 1\n\nso", "abort"),
        (Fault("finish", finish="tool_calls", after=0), "step 0\n\nstep 1\n\nso", "abort"),
        (Fault("finish", finish="length", after=0), "step 0\n\nstep 1\n\nso", "length"),
    ],
    ids=["null", "content_filter", "tool_calls", "length"],
)
def test_null_contents_and_unknown_finish_reasons_are_read_and_never_count_as_finished(
    fault: Fault, text: str, finish: str
) -> None:
    with OpenAIServer(talker, CHAT) as server:
        engine = openai(base_url=server.url)
        server.faults.append(fault)
        (completion,) = once(engine, max_tokens=100)
        server.faults.append(fault)
        answer = run(ask(), engine=engine, strategy=direct, seed=1)
    assert completion.finish_reason == finish and completion.text.startswith(text)
    if finish != "stop":
        assert not completion.finished and answer.final is None and answer.finish_reason == "length"


@pytest.mark.parametrize(
    ("word", "finish"),
    [
        *(("eos", "stop"), ("eos_token", "stop"), ("STOP", "stop"), ("Stop", "stop"), ("MAX_TOKENS", "length")),
        *(("SAFETY", "abort"), ("content_filter: SPII", "abort")),
    ],
)
def test_finish_reasons_are_understood_in_other_words_and_in_any_case(word: str, finish: str) -> None:
    with OpenAIServer(talker, CHAT) as server:
        engine = openai(base_url=server.url)
        server.faults.append(Fault("finish", finish=word, after=0))
        (completion,) = once(engine, max_tokens=100)
    assert completion.finish_reason == finish and completion.finished == (finish == "stop")


def test_a_server_that_does_not_say_how_answers_end_is_told_at_the_start() -> None:
    with OpenAIServer(talker, replace(CHAT, finish="")) as server:
        with pytest.warns(RuntimeWarning, match=r"served: the server ends answers without a finish_reason: they count"):
            engine = openai(base_url=server.url, attempts=2, retry_s=2.0)
        with pytest.raises(EngineError, match="before the completion had ended"):
            once(engine, max_tokens=100)


def test_a_finish_reason_that_is_not_known_is_named_once() -> None:
    with OpenAIServer(talker, CHAT) as server:
        engine = openai(base_url=server.url)
        server.faults.extend([Fault("finish", finish="xyz", after=0)] * 2)
        with pytest.warns(RuntimeWarning, match="ended with finish_reason 'xyz'") as caught:
            draws = once(engine, range(2), max_tokens=100)
    assert len(caught) == 1
    assert [(draw.finish_reason, draw.stop_reason) for draw in draws] == [("abort", "xyz")] * 2


def test_a_content_in_parts_is_joined_and_its_thought_told_apart() -> None:
    with OpenAIServer(lambda: talker(thinking=True), replace(CHAT, parts=True)) as server:
        engine = openai(base_url=server.url)
        answer = run(ask(), engine=engine, strategy=direct, seed=3, thinking=Thinking(mode="on"))
    assert answer.thinking == "step 0\n\nstep 1\n\n" and answer.text.startswith("so ") and answer.usage.attempts == 1


@pytest.mark.parametrize("behaviour", [{"whole": True}, {"refuses": ("stream",)}], ids=["ignores", "refuses"])
def test_a_server_that_does_not_stream_answers_whole(behaviour: dict) -> None:
    with OpenAIServer(lambda: talker(thinking=True), replace(CHAT, reasoning="reasoning", **behaviour)) as server:
        answer = run(ask(), engine=openai(base_url=server.url), strategy=direct, seed=3)
    assert answer.thinking == "step 0\n\nstep 1\n\n" and answer.final is not None
    assert answer.usage.generated > 0 and answer.usage.attempts == 1


def test_a_page_in_place_of_an_answer_is_told_with_its_type() -> None:
    with (
        OpenAIServer(talker, replace(CHAT, page=True)) as server,
        pytest.raises(ConfigError, match=r"completes nothing: .* answers a completion with text/html"),
    ):
        openai(base_url=server.url)


def test_an_error_that_comes_as_an_answer_is_told_in_its_words() -> None:
    told = {"choices": None, "base_resp": {"status_code": 1004, "status_msg": "login fail"}}
    with (
        OpenAIServer(talker, replace(CHAT, tells=told)) as server,
        pytest.raises(ConfigError, match=r"completes nothing: .* without choices: .*login fail"),
    ):
        openai(base_url=server.url)


def test_a_model_that_takes_only_its_own_temperature_says_what_to_add() -> None:
    with OpenAIServer(talker, replace(CHAT, refuses=("temperature",))) as server:
        engine = openai(base_url=server.url)
        before = len(server.requests)
        with pytest.raises(Unsupported, match=r"takes only its own temperature.*--temperature 1"):
            run(ask(), engine=engine, strategy=direct, seed=1)
        assert len(server.requests) == before
        answer = run(ask(), engine=engine, strategy=direct, seed=1, sampling=Sampling(temperature=1.0))
    assert answer.final is not None


def test_a_server_that_refuses_seeds_is_named_where_one_was_asked_for() -> None:
    with OpenAIServer(talker, replace(CHAT, refuses=("seed",))) as server:
        with pytest.warns(RuntimeWarning, match="refuses the field seed"):
            openai(base_url=server.url)
        engine = openai(base_url=server.url, seeded=False)
        (completion,) = once(engine, max_tokens=100)
        assert "seed" not in server.generations()[-1]
    assert completion.finished


def test_an_answer_without_any_choice_is_a_failure_and_not_an_empty_text() -> None:
    with OpenAIServer(talker, CHAT) as server:
        engine = openai(base_url=server.url, attempts=1)
        server.faults.append(Fault("no_choice", after=0))
        with pytest.raises(EngineError, match="closed the stream"):
            once(engine)


def test_a_draw_that_comes_without_usage_is_warned_of() -> None:
    with OpenAIServer(talker, CHAT) as server:
        engine = openai(base_url=server.url)
        server.faults.append(Fault("no_usage"))
        with pytest.warns(RuntimeWarning, match="came without usage"):
            once(engine, range(2))
    assert isinstance(engine, RemoteEngine) and engine.reconciliation().unreported == 1


COUNTED = {"prompt_tokens": 11, "completion_tokens": 5, "total_tokens": 16}
NULLS = {"prompt_tokens": None, "completion_tokens": None, "total_tokens": None, "completion_tokens_details": None}
ZEROS = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
USAGES = {
    "in the last chunk": [None, None, COUNTED],
    "twice": [None, COUNTED, COUNTED],
    "in every chunk": [{**COUNTED, "completion_tokens": 1, "total_tokens": 12}, COUNTED, COUNTED],
    "nulls at the end": [None, COUNTED, NULLS],
    "zeros at the end": [None, COUNTED, ZEROS],
    "in halves": [{"prompt_tokens": 11, "completion_tokens": 0}, None, {"completion_tokens": 5, "prompt_tokens": None}],
    "prompt and total": [None, None, {"prompt_tokens": 11, "total_tokens": 16}],
    "completion and total": [None, None, {"completion_tokens": 5, "total_tokens": 16}],
    "details that are null": [None, None, {**COUNTED, "prompt_tokens_details": None, "completion_tokens_details": {}}],
}


@pytest.mark.parametrize("name", USAGES)
def test_usage_is_read_however_a_server_spreads_it_over_a_stream(name: str) -> None:
    reader = TextReader((), (), False, None)
    chunks = [{"delta": {"content": "a"}}, {"delta": {"content": "b"}, "finish_reason": "stop"}, None]
    for choice, usage in zip(chunks, USAGES[name], strict=True):
        reader.add({"choices": [choice] if choice else [], "usage": usage})
    outcome = reader.result()
    assert (outcome.server.prompt, outcome.num_generated) == (11, 5)


def test_an_answer_that_its_server_counts_as_nothing_is_counted_here() -> None:
    reader = TextReader((), (), False, len)
    usage = {"prompt_tokens": 11, "completion_tokens": 0}
    reader.add({"choices": [{"message": {"content": "seven"}, "finish_reason": "stop"}], "usage": usage})
    assert reader.result().num_generated == 5


@pytest.mark.parametrize("pieces", [("I cannot", " do that."), ("I cannot do that.",)])
def test_what_a_model_writes_in_refusal_is_text_that_ends_no_answer(pieces: tuple[str, ...]) -> None:
    reader = TextReader((), (), False, None)
    for piece in pieces:
        reader.add({"choices": [{"delta": {"content": None, "refusal": piece}}]})
    reader.add({"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": COUNTED})
    outcome = reader.result()
    assert (outcome.text, outcome.finish_reason, outcome.stop_reason) == ("I cannot do that.", "abort", FILTERED)


def test_a_long_prompt_is_counted_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    count = ChatDialect.num_prompt

    def noted(self: ChatDialect, prompt: Prompt) -> int | None:
        threads.append(threading.current_thread().name)
        return count(self, prompt)

    monkeypatch.setattr(ChatDialect, "num_prompt", noted)
    with OpenAIServer(talker, CHAT) as server:
        engine = openai(base_url=server.url, tokenizer=TEACHER)
        for text in ("2+2", "2+2 " * 6000):
            run(ask(text), engine=engine, strategy=direct, seed=3)
    assert [name.startswith("asyncio") for name in threads] == [False, True]


def test_an_endpoint_without_usage_needs_a_tokenizer_to_count_with() -> None:
    with (
        OpenAIServer(talker, replace(CHAT, usage=False)) as server,
        pytest.raises(ConfigError, match=r"reports no usage.*engine\.tokenizer"),
    ):
        openai(base_url=server.url)
    for behaviour in (replace(CHAT, usage=False), replace(CHAT, usage=False, completions=True)):
        with OpenAIServer(suite.embedded, behaviour) as server:
            engine = openai(base_url=server.url, tokenizer=TEACHER)
            (completion,) = once(engine)
        assert isinstance(engine, RemoteEngine) and not engine.features.usage
        with OpenAIServer(suite.embedded, replace(behaviour, usage=True)) as server:
            (reported,) = once(openai(base_url=server.url, tokenizer=TEACHER))
        assert completion.usage.generated == len(engine.encode(completion.text)) > 0
        assert completion.usage.prompt == reported.usage.prompt > 0
    with OpenAIServer(suite.embedded, Behaviour(usage=False)) as server:
        engine = by_ids(server)
        (completion,) = once(engine)
    assert engine.counters().generated == len(completion.token_ids) and engine.reconciliation().unreported == 1


def test_models_that_are_listed_without_an_object_around_them_are_read() -> None:
    with OpenAIServer(talker, replace(CHAT, lists=True, pricing={"input": "0.2", "output": "0.4"})) as server:
        engine = openai(base_url=server.url)
        (completion,) = once(engine, max_tokens=100)
    assert completion.finished and engine.capabilities.model == "served"
    assert isinstance(engine, RemoteEngine) and engine.prices is not None


def test_a_model_that_is_not_listed_is_told_the_nearest_names() -> None:
    with (
        OpenAIServer(talker, replace(CHAT, model="models/gemini-9-flash")) as server,
        pytest.raises(ConfigError, match=r"does not serve 'gemini-9-flush'; it serves models/gemini-9-flash"),
    ):
        openai("gemini-9-flush", base_url=server.url)


def test_a_model_that_is_listed_in_a_folder_is_known_by_its_name_alone() -> None:
    with OpenAIServer(talker, replace(CHAT, model="models/gemini-9-flash")) as server:
        assert openai("gemini-9-flash", base_url=server.url).capabilities.model == "models/gemini-9-flash"


def test_azure_lists_no_deployments_so_any_name_is_asked() -> None:
    class Listing:
        def cards(self) -> list[dict[str, str]]:
            return [{"id": "gpt-4o-2024-08-06"}]

    client: Any = Listing()
    assert served_model(client, "https://mine.openai.azure.com/openai/v1", "my-deployment").model == "my-deployment"
    with pytest.raises(ConfigError, match="does not serve 'my-deployment'"):
        served_model(client, "https://api.example.com/azure.com/v1", "my-deployment")


@pytest.mark.parametrize("name", ["max_model_len", "context_length", "context_window", "max_context_length"])
def test_the_context_is_read_from_a_models_entry_in_the_words_of_many_servers(name: str) -> None:
    class Listing:
        def cards(self) -> list[dict[str, Any]]:
            return [{"id": "m", "max_model_len": None, name: 8192}]

    client: Any = Listing()
    assert served_model(client, "http://x/v1", None).max_context == 8192


def test_a_server_whose_seeds_are_small_gets_small_ones() -> None:
    with OpenAIServer(talker, replace(CHAT, largest_seed=2**31 - 1)) as server:
        draws = once(openai(base_url=server.url), range(4), max_tokens=100)
        seeds = [body["seed"] for body in server.generations()[-4:]]
    assert all(draw.finished for draw in draws)
    assert len(set(seeds)) == 4 and 2**20 < max(seeds) < 2**31


@pytest.mark.parametrize("refuses", [("seed", "stream_options"), ("seed", "stream"), ("stream_options",)])
def test_a_server_may_refuse_several_fields(refuses: tuple[str, ...]) -> None:
    with OpenAIServer(talker, replace(CHAT, refuses=refuses)) as server:
        engine = openai(base_url=server.url, seeded=False)
        answer = run(ask(), engine=engine, strategy=direct, seed=3)
    assert answer.final is not None and answer.usage.generated > 0 and answer.usage.attempts == 1


def test_a_model_that_must_think_before_it_is_cut_is_allowed_to_at_the_start() -> None:
    picky = replace(CHAT, fewest=64, limit_field="max_completion_tokens", refuses=("temperature",))
    with OpenAIServer(talker, picky) as server:
        engine = openai(base_url=server.url)
        answer = run(ask(), engine=engine, strategy=direct, seed=1, sampling=Sampling(temperature=1.0))
    assert answer.final is not None and isinstance(engine, RemoteEngine) and engine.features.own_temperature


def test_few_tokens_that_are_refused_say_nothing_of_temperatures() -> None:
    with OpenAIServer(talker, replace(CHAT, fewest=16)) as server:
        engine = openai(base_url=server.url)
    assert isinstance(engine, RemoteEngine) and not engine.features.own_temperature


@pytest.mark.parametrize("deaf", [False, True])
def test_thinking_is_switched_by_what_the_server_heeds(deaf: bool) -> None:
    behaviour = replace(CHAT, strict=False, reasoning="reasoning", deaf=deaf)
    with OpenAIServer(lambda: talker(thinking=True), behaviour) as server:
        engine = openai(base_url=server.url)
        run(ask(), engine=engine, strategy=direct, seed=3, thinking=Thinking(mode="on"))
        body = server.generations()[-1]
    assert ("reasoning_effort" in body) == deaf and ("chat_template_kwargs" in body) == (not deaf)


def test_a_model_that_thinks_although_thinking_is_off_is_told_once() -> None:
    deaf = replace(CHAT, strict=False, reasoning="reasoning", deaf=True, refuses=("reasoning_effort",))
    with OpenAIServer(lambda: talker(thinking=True), deaf) as server:
        engine = openai(base_url=server.url)
        with pytest.warns(RuntimeWarning, match="thinks although thinking is off") as caught:
            answer = run(ask(), engine=engine, strategy=direct, seed=3, thinking=Thinking(mode="off"))
    assert len(caught) == 1 and answer.thinking


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "no such model"}},
        [{"error": {"message": "no such model"}}],
        {"error": "no such model"},
        {"message": "no such model"},
        "no such model",
    ],
)
def test_the_words_of_an_error_are_found_in_every_shape(body) -> None:
    assert words_of(body, "status 400") == "no such model"


def test_what_stands_beside_an_error_is_told_too() -> None:
    upstream = {"message": "Provider returned error", "code": 429, "metadata": {"raw": "acme is full", "provider": "a"}}
    assert words_of({"error": upstream}, "") == "Provider returned error: acme is full"
    delay = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "26.6s"}
    gemini = {"message": "You exceeded your current quota.", "code": 429, "details": [{"@type": "other"}, delay]}
    assert words_of([{"error": gemini}], "") == "You exceeded your current quota. Please retry in 26.6s."


@pytest.mark.parametrize(
    ("behaviour", "opens"),
    [
        ({"root": "/models/a"}, ("none", "open")),
        ({"root": "/models/a", "reasoning": "reasoning_content"}, ()),
        ({}, ()),
    ],
)
def test_vllm_is_asked_which_prompts_open_a_thought_that_it_does_not_tell_apart(
    behaviour: dict[str, str], opens: tuple[str, ...]
) -> None:
    with OpenAIServer(lambda: talker(thinking=True), Behaviour(completions=False, ids=False, **behaviour)) as server:
        engine = openai(base_url=server.url, api_key_env="OPENAI_API_KEY")
        assert isinstance(engine, RemoteEngine) and engine.features.opens == opens
        asyncio.run(engine.close())
