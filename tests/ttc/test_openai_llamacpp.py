"""The openai engine against what servers on a laptop do: ids with whole answers, few slots, names of their own.

The replies are those that llama-server 0.5.0, llama-cpp-python 0.3.36 and transformers 5.19 gave; `benchmarks/llamacpp`
asks the first again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.ttc import conformance as suite
from tests.ttc import test_conformance as shared
from tests.ttc.openai_server import Behaviour, Fault, OpenAIServer
from tests.ttc.openai_setup import ALIKE, CHAT, TEACHER, ask, by_ids, essential, once, talker, teacher_server
from ttc.core import Answer, Sampling, Usage
from ttc.engines.openai.engine import RemoteEngine
from ttc.engines.openai.factory import openai
from ttc.engines.openai.ids import IdsReader, logprobs_of
from ttc.engines.openai.wire import TextReader
from ttc.engines.scripted import ScriptedEngine
from ttc.engines.shared.folder import resolve
from ttc.engines.shared.tokens import StopRule
from ttc.errors import ConfigError
from ttc.scorers.simulated import simulated as simulated_scorer
from ttc.session.door import run
from ttc.session.thinking import Thinking
from ttc.strategies.direct import direct
from ttc.strategies.majority import majority
from ttc.strategies.tree import tree

LLAMA = Behaviour(max_model_len=2048, slots=2, heeds_stop_ids=False, grammars=False, scores=False)


@pytest.fixture(scope="module")
def server() -> Iterator[OpenAIServer]:
    with OpenAIServer(suite.embedded, LLAMA) as server:
        yield server


@pytest.mark.parametrize("body", [*ALIKE, shared.test_raising_n_only_adds_draws], ids=lambda body: body.__name__)
def test_the_engine_passes_the_conformance_suite_over_llama_cpp(
    server: OpenAIServer, monkeypatch: pytest.MonkeyPatch, body
) -> None:
    monkeypatch.setitem(suite.ENGINES, "openai", lambda jitter: by_ids(server))
    body("openai")


def _solved(server: OpenAIServer, case: str) -> tuple[dict[str, Answer], Usage]:
    async def solve() -> tuple[dict[str, Answer], Usage]:
        engine = by_ids(server)
        answers = await suite.solve_in_order(engine, suite.THINKING_STRATEGIES[case], suite.problems(2), 2)
        await engine.close()
        assert engine.reconciliation().differed == 0 < engine.reconciliation().agreed
        return answers, engine.counters()

    return asyncio.run(solve())


@pytest.mark.parametrize("case", ["majority under a cap", "tree under a cap"])
def test_thinking_is_capped_by_ids_as_on_a_server_that_streams_them(server: OpenAIServer, case: str) -> None:
    answers, counters = _solved(server, case)
    with teacher_server() as other:
        expected, _ = _solved(other, case)
    assert {name: answer.text for name, answer in answers.items()} == {
        name: answer.text for name, answer in expected.items()
    }
    shared.check_the_ledger(answers.values(), counters)


def test_what_the_server_tells_beside_its_api_is_known(server: OpenAIServer) -> None:
    engine = by_ids(server)
    assert engine.capabilities.max_context == 2048 and engine.features.slots == 2
    assert engine.capabilities.max_concurrency == 4  # more problems would push each other out of its cache
    assert engine.served == {"model id": "served", "model file": "served.gguf", "llama.cpp version": "b6000-abc"}
    body = server.generations()[-1]
    assert (body["top_k"], body["repeat_penalty"], body["stream"]) == (0, 1.0, False)
    once(engine, repetition_penalty=1.2)
    body = server.generations()[-1]
    assert (body["repeat_penalty"], body["repeat_last_n"]) == (1.2, 2048)  # over the whole text, not its own 64 tokens


def test_stop_ids_go_to_the_server_as_text_where_no_other_token_holds_it(server: OpenAIServer) -> None:
    engine = by_ids(server)
    (close,), (digit,) = engine.capabilities.think_close, engine.encode("1")
    (drawn,) = once(engine, max_tokens=200, stop_token_ids=(digit, close))
    body = server.generations()[-1]
    assert body["stop"] == body["preserved_tokens"] == ["</think>"]
    assert drawn.stop_reason == digit and drawn.usage.overrun > 0  # it ran on to the end of its thought


def test_the_address_of_the_server_in_place_of_its_api_is_told(server: OpenAIServer) -> None:
    with pytest.raises(ConfigError, match=rf"{server.url}$"):
        openai(base_url=server.url.removesuffix("/v1"), tokenizer=TEACHER)


@pytest.mark.parametrize("seeded", [True, False])
def test_no_more_is_asked_at_once_than_there_are_slots(seeded: bool) -> None:
    with OpenAIServer(suite.embedded, replace(LLAMA, pause_s=0.05)) as server:
        drawn = once(by_ids(server, seeded=seeded), range(6), max_tokens=4)
        assert len(drawn) == 6 and server.most_live == 2
        assert all("n" not in body for body in server.generations())


def test_log_probabilities_are_all_there_but_those_of_a_stop_string(server: OpenAIServer) -> None:
    (free,) = once(by_ids(server), max_tokens=12, logprobs=True)
    with teacher_server() as other:
        assert essential([free]) == essential(once(by_ids(other), max_tokens=12, logprobs=True))
    (cut,) = once(by_ids(server), max_tokens=12, logprobs=True, stop=(free.text[4:6],))
    known = [value for value in cut.logprobs or () if value is not None]
    assert 0 < len(known) < len(cut.token_ids) == len(cut.logprobs or ())
    assert tuple(known) == (free.logprobs or ())[: len(known)]


def test_log_probabilities_of_a_character_in_several_tokens_stand_at_its_last() -> None:
    pieces = {1: b"a", 2: b"\xf0\x9f", 3: b"\xa6", 4: b"\x99", 5: b"\x98"}

    def decode(ids: Any) -> str:
        return b"".join(pieces[token] for token in ids).decode("utf-8", "replace")

    ids = [2, 3, 4, 1, 2, 5, 4, 1]
    rows = [{"id": 4, "logprob": -1}, {"id": 1, "logprob": -2.0}, {"id": 4, "logprob": -3.0}]
    known = [None, None, -1.0, -2.0, None, None, -3.0]
    assert logprobs_of({"logprobs": {"content": [*rows, {"id": 1, "logprob": 0}]}}, ids, decode) == [*known, 0.0]
    assert logprobs_of({"logprobs": {"content": rows}}, ids, decode) == [*known, None]  # the last was a stop string's
    assert logprobs_of({"logprobs": {"content": rows[1:]}}, ids, decode) is None


def _read(tokens: list[int], **native: str) -> Any:
    def decode(ids: Any) -> str:
        return "".join(f"<{token}>" for token in ids)

    rule = StopRule((), (7,), (9,), (), decode)
    reader = IdsReader(rule, Sampling(max_tokens=20, stop_token_ids=(7,)), (9,), decode, logprobs=False)
    reader.add({"choices": [{"text": "", "finish_reason": "stop"}], "__verbose": {"tokens": tokens, **native}})
    return reader.result()


def test_an_end_of_sequence_that_only_the_server_knows_is_counted_once() -> None:
    done = _read([1, 2, 3], stop_type="eos", stopping_word="")
    assert (done.token_ids, done.text, done.stop_reason, done.num_generated) == ((1, 2, 3), "<1><2>", "eos", 3)


def test_a_stop_id_that_was_spelled_by_other_tokens_ends_no_answer() -> None:
    done = _read([1, 2, 3], stop_type="word", stopping_word="<7>")
    assert (done.token_ids, done.finish_reason, done.stop_reason) == ((1, 2, 3), "abort", "<7>")
    done = _read([1, 2, 7], stop_type="word", stopping_word="<7>")
    assert (done.token_ids, done.finish_reason, done.stop_reason) == ((1, 2, 7), "stop", 7)


def test_a_stop_string_is_told_in_llama_cpps_own_words() -> None:
    reader = TextReader(("\n\n",), (), False, None)
    native = {"content": "", "tokens": [], "stop_type": "word", "stopping_word": "\n\n"}
    chunks: list[dict[str, Any]] = [
        {"choices": [{"finish_reason": None, "index": 0, "delta": {"role": "assistant", "content": None}}]},
        {"choices": [{"finish_reason": None, "index": 0, "delta": {"content": "12+60=72"}}], "__verbose": native},
        {"choices": [{"finish_reason": "stop", "index": 0, "delta": {}}]},
        {"choices": [], "usage": {"completion_tokens": 8, "prompt_tokens": 19, "total_tokens": 27}},
    ]
    for chunk in chunks:
        reader.add(chunk)
    done = reader.result()
    assert (done.text, done.stop_reason, done.num_generated) == ("12+60=72\n\n", "\n\n", 8)


@pytest.mark.parametrize("tokenizer", [None, TEACHER])
def test_whole_answers_are_asked_of_a_server_that_counts_no_streams(tokenizer: str | None) -> None:
    behaviour = replace(CHAT, strict=False, completions=tokenizer is not None, whole_usage=True)
    with OpenAIServer(suite.embedded if tokenizer else talker, behaviour) as server:
        engine = openai(base_url=server.url, tokenizer=tokenizer)
        assert isinstance(engine, RemoteEngine) and engine.features.usage and not engine.features.streams
        answer = run(ask(), engine=engine, strategy=partial(majority, n=3), seed=1, sampling=Sampling(max_tokens=30))
        bodies = server.generations()[-3:]
    assert all((body["stream"], body["top_k"], body["repeat_penalty"]) == (False, 0, 1.0) for body in bodies)
    assert answer.usage.generated > 0 and engine.reconciliation().unreported == 0


def test_a_whole_answer_is_waited_for_as_long_as_its_server_answers_other_questions() -> None:
    with OpenAIServer(talker, replace(CHAT, refuses=("stream",))) as server:
        engine = openai(base_url=server.url, idle_s=0.2, attempts=1)
        server.behaviour.pause_s = 0.7
        assert run(ask(), engine=engine, strategy=direct, seed=1).final is not None


def test_a_search_over_messages_runs_where_stops_are_told_so() -> None:
    chat = replace(LLAMA, completions=False, heeds_stop_ids=True)
    with OpenAIServer(talker, chat) as server:
        engine = openai(base_url=server.url)
        assert isinstance(engine, RemoteEngine) and engine.features.prefill and engine.features.stops
        search = partial(tree, scorer=simulated_scorer(noise=1.0), n=4, beam_width=2)
        assert run(ask(), engine=engine, strategy=search, seed=1).final is not None


def test_slots_that_share_a_context_which_is_too_small_for_all_are_asked_one_by_one() -> None:
    with OpenAIServer(suite.embedded, replace(LLAMA, slots=4, pause_s=0.05)) as server:
        engine = by_ids(server)
        server.faults.extend([Fault(status=500, message="Context size has been exceeded.")] * 3)
        server.most_live = 0
        with pytest.warns(RuntimeWarning, match=r"slots share it, so fewer.*a larger -c"):
            drawn = once(engine, range(6), max_tokens=4)
        assert len(drawn) == 6 and server.most_live == 1


def test_a_file_of_llama_cpps_in_place_of_a_folder_is_told_what_serves_it(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.touch()
    with pytest.raises(ConfigError, match=r"llama-server -m .*model\.gguf.*--base-url"):
        resolve(str(file))


def test_a_model_that_is_named_is_asked_where_its_server_cannot_list_any() -> None:
    with OpenAIServer(talker, replace(CHAT, lists=None)) as server:
        assert openai("served", base_url=server.url).capabilities.model == "served"
        with pytest.raises(ConfigError, match="--model"):
            openai(base_url=server.url)


def _steady() -> ScriptedEngine:
    return ScriptedEngine(lambda prompt, path, key: f"the answer is always \\boxed{{{len(prompt.text)}}}")


def test_a_server_that_draws_the_same_text_again_and_again_is_warned_of_once() -> None:
    with pytest.warns(RuntimeWarning, match="does its server sample at all") as caught:
        _vote(_steady)
    assert len(caught) == 1
    _vote(lambda: talker(steps=3))  # a text of its own now and then is enough


def _vote(make: Any) -> None:
    with OpenAIServer(make, CHAT) as server:
        engine = openai(base_url=server.url)
        for question in ("1+1", "2+2", "3+3", "4+4", "5+5"):
            run(ask(question), engine=engine, strategy=partial(majority, n=5), seed=1)


def test_an_empty_block_that_the_server_repeats_from_its_template_is_no_thought() -> None:
    said = "<think>\n\n</think>\n\nso \\boxed{3}"  # llama-server with --reasoning-format none
    with OpenAIServer(lambda: ScriptedEngine(lambda prompt, path, key: said), CHAT) as server:
        off = Thinking(mode="off")
        answer = run(ask(), engine=openai(base_url=server.url), strategy=direct, seed=3, thinking=off)
    assert (answer.text.strip(), (answer.thinking or "").strip()) == ("so \\boxed{3}", "")
