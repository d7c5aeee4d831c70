"""The sglang engine against a faithful fake of SGLang, over real HTTP on loopback and in process.

The same calls against SGLang itself: `benchmarks/sglang_cpu`.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.ttc import conformance as suite
from tests.ttc import sglang_server as fake
from tests.ttc import test_conformance as conformance
from ttc import nano
from ttc.core import Completion, ExtraCompletion, ExtraSampling, Message, Sampling, TopLogprobEngine, Usage, extras_of
from ttc.engines.embedded.engine import embedded
from ttc.engines.sglang.factory import sglang
from ttc.engines.sglang.wire import ending
from ttc.errors import ConfigError, EngineError, EngineTimeout, MissingExtra, PromptTooLong, Unsupported
from ttc.session.solve import solve
from ttc.strategies.majority import majority

Runner = Callable[..., Any]
Shared = tuple[fake.Machine, str]
Local = tuple[fake.Machine, dict[str, Any], Any]
TEACHER = str(nano.path("teacher"))
QUESTION = (Message("user", "Compute 3+1-0."),)


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[fake.Machine, str]]:
    """One fake server for the tests that leave it as it was."""
    machine = fake.Machine()
    with fake.serving(machine) as url:
        yield machine, url


def with_engine(url: str, body: Callable[[Any], Any], **options: Any) -> Any:
    """Run `body(engine)` against the server at `url` and close the engine."""

    async def go() -> Any:
        engine = sglang(base_url=url, **options)
        try:
            return await body(engine)
        finally:
            await engine.close()

    return asyncio.run(go())


@pytest.fixture
def alone(shared: Shared) -> Iterator[Runner]:
    """Runs `body(engine, machine)` on the shared server, or on one of its own when that is to be another."""
    common, common_url = shared

    def run(body: Callable[[Any, fake.Machine], Any], *, engine: dict[str, Any] | None = None, **machine: Any) -> Any:
        if not machine:
            return with_engine(common_url, lambda found: body(found, common), **(engine or {}))
        made = fake.Machine(**machine)
        with fake.serving(made) as url:
            return with_engine(url, lambda found: body(found, made), **(engine or {}))

    yield run
    common.faults = fake.Faults()


async def draw(engine: Any, draws: range = range(1), sink: list[Usage] | None = None, **given: Any) -> list[Completion]:
    sampling = Sampling(**{"seed": 3, "max_tokens": 24, **given})
    report = (sink if sink is not None else []).append
    done: list[Completion] = await engine.generate(engine.render(QUESTION, None), sampling, draws, report)
    return done


# -- the suite of every engine ---------------------------------------------------------------------------------------

BASIC = (
    conformance.test_raising_n_only_adds_draws,
    conformance.test_raising_max_tokens_only_extends,
    conformance.test_a_draw_resumed_in_pieces_equals_one_long_run,
    conformance.test_text_is_what_the_ids_decode_to,
    conformance.test_a_stop_string_ends_the_draw_and_stays_in_it,
    conformance.test_a_stop_token_ends_the_draw_and_stays_in_it,
    conformance.test_every_draw_reports_its_usage_once_and_the_sum_is_the_engines_own,
    conformance.test_a_cancelled_draw_is_aborted_and_its_tokens_are_overrun,
    conformance.test_a_prompt_beyond_the_context_is_refused_with_both_numbers,
    conformance.test_encode_and_decode_are_inverse_on_plain_text,
)


@pytest.fixture
def registered(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> str:
    """The engine under a name of the conformance suite."""
    monkeypatch.setitem(suite.ENGINES, "sglang", lambda jitter: sglang(base_url=shared[1]))
    monkeypatch.setitem(suite.EXTRA, "sglang", suite.THINKING_STRATEGIES)
    return "sglang"


@pytest.mark.parametrize("check", BASIC, ids=lambda check: check.__name__)
def test_the_engine_behaves_like_every_engine(registered: str, check: Callable[[str], None]) -> None:
    check(registered)


@pytest.mark.parametrize("case", ["majority", "tree", "majority under a cap", "budget_forcing with a wait"])
def test_the_ledger_of_a_strategy_is_the_servers(shared: Shared, registered: str, case: str) -> None:
    machine, _ = shared

    async def body(engine: Any) -> tuple[Usage, Usage]:
        before = machine.engine.counters()
        answers = await suite.solve_in_order(engine, suite.cases(registered)[case], suite.problems(3), 3)
        ours = sum((answer.usage for answer in answers.values()), Usage())
        now = machine.engine.counters()
        return ours, replace(
            now,
            prompt=now.prompt - before.prompt,
            cached=now.cached - before.cached,
            generated=now.generated + now.overrun - before.generated - before.overrun,
        )

    ours, theirs = with_engine(shared[1], body)
    assert (ours.prompt, ours.cached) == (theirs.prompt, theirs.cached)
    assert ours.generated + ours.overrun == theirs.generated
    assert ours.flops > 0


@pytest.mark.slow
@pytest.mark.parametrize("case", list(suite.STRATEGIES | suite.THINKING_STRATEGIES))
def test_every_strategy_gives_the_same_trees_and_ledgers_under_any_schedule(registered: str, case: str) -> None:
    conformance.check_any_schedule(registered, suite.cases(registered)[case])


def test_draws_are_keyed_by_path_and_go_out_one_by_one(shared: Shared) -> None:
    machine, url = shared

    async def body(engine: Any) -> list[dict[str, Any]]:
        before = len(machine.requests)
        await draw(engine, range(3), temperature=0.7, top_p=0.9, top_k=5, min_p=0.1)
        await draw(engine, range(1), temperature=0.0)
        return machine.requests[before:]

    *sampled, greedy = with_engine(url, body)
    params = [request["sampling_params"] for request in sampled]
    assert len({p["sampling_seed"] for p in params}) == 3 and all(0 <= p["sampling_seed"] < 1 << 63 for p in params)
    assert [(p["temperature"], p["top_p"], p["top_k"], p["min_p"]) for p in params] == [(0.7, 0.9, 5, 0.1)] * 3
    assert all("n" not in p and p["repetition_penalty"] == 1.0 for p in params)
    assert len({request["rid"] for request in sampled}) == 3
    assert "sampling_seed" not in greedy["sampling_params"] and greedy["sampling_params"]["top_k"] == -1


def test_a_repetition_penalty_is_refused_since_sglang_starts_it_anew_with_every_request(shared: Shared) -> None:
    async def body(engine: Any) -> None:
        await draw(engine, range(1), repetition_penalty=1.1)

    with pytest.raises(Unsupported, match="leave repetition_penalty at 1"):
        with_engine(shared[1], body)


# -- log-probabilities and streams -----------------------------------------------------------------------------------


def test_log_probabilities_are_the_models_own_sampled_and_given(shared: Shared) -> None:
    async def body(engine: Any) -> None:
        (done,) = await draw(engine, logprobs=True)
        prompt, usages = engine.render(QUESTION, None).token_ids, []
        given = await engine.logprobs(prompt + done.token_ids, len(prompt), usages.append)
        assert given == pytest.approx(done.logprobs, abs=1e-4)
        assert usages[0].scored == usages[0].prompt - usages[0].cached
        assert await engine.logprobs(prompt, len(prompt), usages.append) == ()
        with pytest.raises(ConfigError, match="start"):
            await engine.logprobs(prompt, 0, usages.append)

    with_engine(shared[1], body)


def test_the_likeliest_tokens_are_told_of_draws_streamed_or_not_and_of_given_ids(shared: Shared) -> None:
    async def go(engine: Any) -> None:
        assert isinstance(engine, TopLogprobEngine) and "top_logprobs" in extras_of(engine.capabilities)
        prompt, usages = engine.render(QUESTION, None), list[Usage]()
        sampling = ExtraSampling(seed=3, max_tokens=12, logprobs=True, top_logprobs=2)
        (done,) = await engine.generate(prompt, sampling, range(1), usages.append)
        shown = await engine.stream(prompt, sampling, 0, usages.append, lambda ids: None)
        assert isinstance(done, ExtraCompletion) and shown.top_logprobs == done.top_logprobs
        assert [len(top) for top in done.top_logprobs] == [2] * len(done.token_ids)
        rows = await engine.top_logprobs((*prompt.token_ids, *done.token_ids), len(prompt.token_ids), 2, usages.append)
        for top, row, token, value in zip(done.top_logprobs, rows, done.token_ids, done.logprobs, strict=True):
            assert row == pytest.approx(dict(top) | {token: value}, abs=1e-3)
        assert await engine.top_logprobs(prompt.token_ids, len(prompt.token_ids), 2, usages.append) == ()
        assert sum(usages, Usage()) == engine.counters()

    with_engine(shared[1], go)


def test_log_probabilities_that_nothing_reads_are_asked_of_no_request(shared: Shared) -> None:
    machine, url = shared
    before = len(machine.requests)
    answer = with_engine(
        url,
        lambda engine: solve(suite.problems(1)[0], engine=engine, strategy=partial(majority, n=3), seed=1),
        logprobs=False,
    )
    assert len(answer.candidates) == 3 and all(candidate.logprob is None for candidate in answer.candidates)
    assert not any(request["return_logprob"] for request in machine.requests[before:])


def test_a_server_that_scales_log_probabilities_is_noticed_and_none_are_promised(alone: Runner) -> None:
    async def body(engine: Any, machine: fake.Machine) -> None:
        assert not engine.capabilities.logprobs
        with pytest.raises(Unsupported, match="SGLANG_RETURN_ORIGINAL_LOGPROB=1"):
            await draw(engine, logprobs=True)
        assert (await draw(engine))[0].logprobs is None

    alone(body, raw_logprobs=False)


@pytest.mark.parametrize("incremental", [False, True])
def test_a_stream_hands_over_every_token_once(alone: Runner, incremental: bool) -> None:
    async def body(engine: Any, machine: fake.Machine) -> None:
        (whole,) = await draw(engine, range(2, 3), logprobs=True)
        pieces: list[tuple[int, ...]] = []
        done = await engine.stream(
            engine.render(QUESTION, None),
            Sampling(seed=3, max_tokens=24, logprobs=not incremental),
            2,
            [].append,
            pieces.append,
        )
        assert sum(pieces, ()) == done.token_ids == whole.token_ids and len(pieces) > 1
        assert incremental or done.logprobs == whole.logprobs

    alone(body, incremental=incremental)


# -- cancellation ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("streamed", [False, True])
def test_a_cancelled_draw_is_aborted_and_its_tokens_are_known_to_the_token(alone: Runner, streamed: bool) -> None:
    async def body(engine: Any, machine: fake.Machine) -> None:
        before, usages = machine.engine.counters(), []
        if streamed:
            prompt, sampling = engine.render(QUESTION, None), Sampling(seed=3, max_tokens=400, stop_token_ids=())
            work = engine.stream(prompt, sampling, 0, usages.append, lambda ids: None)
        else:
            work = draw(engine, range(4), usages, max_tokens=400)
        task = asyncio.create_task(work)
        while not machine.running:
            await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not machine.running
        now = machine.engine.counters()
        total = sum(usages, Usage())
        assert total == engine.counters() and total.generated <= now.generated - before.generated
        assert total.generated + total.overrun == now.generated + now.overrun - before.generated - before.overrun
        assert total.prompt == now.prompt - before.prompt
        assert total.calls == len(usages) == (1 if streamed else 4)

    alone(body)


def test_an_abort_that_overtakes_its_request_is_repeated(alone: Runner) -> None:
    async def body(engine: Any, machine: fake.Machine) -> None:
        task = asyncio.create_task(draw(engine, max_tokens=400))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not machine.running
        assert (await draw(engine))[0].token_ids

    alone(body)


@pytest.mark.parametrize("where", ["over HTTP", "in process"])
def test_closing_the_engine_fails_what_runs_by_an_engine_error(shared: Shared, in_process: Local, where: str) -> None:
    machine, engine = (
        (shared[0], sglang(base_url=shared[1])) if where == "over HTTP" else (in_process[0], sglang(TEACHER))
    )

    async def body() -> None:
        usages: list[Usage] = []
        machine.faults.slow_s = 30.0
        task = asyncio.create_task(draw(engine, range(2), usages))
        while len(machine.running) < 2:
            await asyncio.sleep(0.005)
        await engine.close()
        with pytest.raises(EngineError, match="closed"):
            await task
        assert len(usages) == 2 and sum(usages, Usage()) == engine.counters()
        machine.faults.slow_s = 0.0

    asyncio.run(body())


# -- stops -----------------------------------------------------------------------------------------------------------


def test_a_stop_string_seen_late_is_cut_where_it_was_complete(alone: Runner) -> None:
    async def body(engine: Any, machine: fake.Machine) -> None:
        (free,) = await draw(engine, max_tokens=30)
        stop = free.text[2:4]
        (exact,) = await draw(engine, max_tokens=30, stop=(stop,))
        machine.faults.late_stop = 2
        (late,) = await draw(engine, max_tokens=30, stop=(stop,))
        assert (late.token_ids, late.text, late.stop_reason) == (exact.token_ids, exact.text, stop)
        assert (late.usage.generated, late.usage.overrun) == (len(exact.token_ids), 2)

    alone(body)


def test_more_stop_strings_than_sglang_takes_are_refused(shared: Shared) -> None:
    async def body(engine: Any) -> None:
        with pytest.raises(Unsupported, match="32"):
            await draw(engine, stop=tuple(f"s{i}" for i in range(33)))

    with_engine(shared[1], body)


@pytest.mark.parametrize(
    ("finish", "words"),
    [
        ({"type": "length_but_new"}, "length_but_new"),
        ({"type": "stop", "matched": "NaN happened"}, "NaN"),
        ({"type": "abort", "message": "weights are coming"}, "weights are coming"),
        (None, "finish_reason"),
    ],
)
def test_an_end_that_is_not_understood_is_an_error_with_its_tokens_counted(
    alone: Runner, finish: Any, words: str
) -> None:
    async def body(engine: Any, machine: fake.Machine) -> None:
        machine.faults.finish.append(finish)
        usages: list[Usage] = []
        with pytest.raises(EngineError, match=words):
            await draw(engine, range(1), usages)
        assert usages[0].generated == 0 and usages[0].overrun > 0
        assert usages == [engine.counters()]

    alone(body)


def test_a_server_that_shortens_the_prompt_is_caught(alone: Runner) -> None:
    async def body(engine: Any, machine: fake.Machine) -> None:
        machine.faults.lost_prompt = 3
        with pytest.raises(EngineError, match="prompt tokens"):
            await draw(engine)

    alone(body)


# -- grammars --------------------------------------------------------------------------------------------------------

SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": [12, 34]}},
    "required": ["a"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
GRAMMAR = f"%llguidance {{}}\nstart: BLANK answer\nanswer: %json {json.dumps(SCHEMA)}\nBLANK: /[ \\n]{{0,4}}/"


async def held(engine: Any) -> Completion:
    """One draw under the grammar, streamed."""
    sampling = ExtraSampling(seed=3, max_tokens=40, grammar=GRAMMAR)
    done: Completion = await engine.stream(engine.render(QUESTION, False), sampling, 0, lambda _: None, lambda _: None)
    return done


def test_an_answer_follows_its_grammar_and_ends_where_that_is_complete(alone: Runner) -> None:
    async def body(engine: Any, machine: fake.Machine) -> None:
        done = await held(engine)
        assert json.loads(done.text)["a"] in (12, 34) and done.finished
        assert machine.requests[-1]["sampling_params"]["ebnf"] == GRAMMAR
        await draw(engine)
        assert "ebnf" not in machine.requests[-1]["sampling_params"]

    alone(body)


def test_a_server_with_another_library_for_grammars_promises_none(alone: Runner) -> None:
    async def body(engine: Any, machine: fake.Machine) -> None:
        assert "grammar" not in extras_of(engine.capabilities)

    alone(body, grammar_backend="xgrammar")


def test_a_grammar_that_ends_without_an_end_of_sequence_keeps_its_last_token() -> None:
    sampling = ExtraSampling(seed=1, max_tokens=9, grammar=GRAMMAR, stop_token_ids=(8,))
    assert ending({"type": "stop", "matched": 7}, (5, 7), sampling, (2,)) == ("stop", None)
    assert ending({"type": "stop", "matched": 8}, (5, 8), sampling, (2,)) == ("stop", 8)
    assert ending({"type": "stop", "matched": 2}, (5, 2), sampling, (2,)) == ("stop", "eos")


# -- failures --------------------------------------------------------------------------------------------------------

FAST = {"max_attempts": 3}


def test_a_failure_that_passes_is_retried_and_counted(alone: Runner) -> None:
    async def body(engine: Any, machine: fake.Machine) -> None:
        (clean,) = await draw(engine)
        machine.faults.statuses = deque([500, 503])
        (done,) = await draw(engine)
        assert done.token_ids == clean.token_ids
        assert (done.usage.calls, done.usage.attempts) == (1, 3)

    alone(body, engine=FAST)


def test_a_failure_that_stays_is_an_engine_error_with_the_servers_words(alone: Runner) -> None:
    async def body(engine: Any, machine: fake.Machine) -> None:
        usages: list[Usage] = []
        machine.faults.statuses = deque([503] * 3)
        with pytest.raises(EngineError, match=r"503: out of luck \(gave up after 3 attempts\)"):
            await draw(engine, range(1), usages)
        assert usages == [Usage(calls=1, attempts=3)]
        machine.faults.statuses = deque([400])
        with pytest.raises(EngineError, match="400: out of luck"):
            await draw(engine, range(1), usages)
        assert usages[-1].attempts == 1

    alone(body, engine=FAST)


def test_a_connection_that_dies_under_an_answer_is_retried(alone: Runner) -> None:
    async def body(engine: Any, machine: fake.Machine) -> None:
        (clean,) = await draw(engine)
        machine.faults.die_after.append(3)
        (done,) = await draw(engine)
        assert done.token_ids == clean.token_ids and done.usage.attempts == 2

    alone(body)


def test_a_stream_that_dies_after_tokens_were_handed_over_fails_with_them_on_the_ledger(alone: Runner) -> None:
    async def body(engine: Any, machine: fake.Machine) -> None:
        machine.faults.die_after.append(3)
        usages: list[Usage] = []
        pieces: list[tuple[int, ...]] = []
        prompt, sampling = engine.render(QUESTION, None), Sampling(seed=3, max_tokens=24)
        with pytest.raises(EngineError, match="sglang at http"):
            await engine.stream(prompt, sampling, 0, usages.append, pieces.append)
        assert usages[0].overrun == len(sum(pieces, ())) > 0
        machine.faults.stream_errors.append(503)
        done = await engine.stream(prompt, sampling, 0, usages.append, pieces.append)
        assert done.finish_reason and usages[1].attempts == 2

    alone(body, engine=FAST)


@pytest.mark.long
def test_an_answer_that_does_not_come_is_a_timeout_and_the_request_is_aborted(alone: Runner) -> None:
    async def body(engine: Any, machine: fake.Machine) -> None:
        machine.faults.slow_s = 30.0
        with pytest.raises(EngineTimeout, match="answer_s"):
            await draw(engine)
        assert machine.requests[-1]["rid"] in machine.aborted

    alone(body, engine={"answer_s": 3.0})


def test_two_servers_share_the_work_and_one_may_die() -> None:
    first, second = fake.Machine(), fake.Machine()
    with fake.serving(second) as lasting:
        with fake.serving(first) as dying:

            async def both(engine: Any) -> None:
                root = engine.render(QUESTION, None)
                for name in ("a", "b", "a", "b"):
                    prompt = replace(root, problem_id=name)
                    await engine.generate(prompt, Sampling(seed=1, max_tokens=3), range(2), lambda usage: None)

            with_engine(f"{dying},{lasting}", both)
            homes = [len(machine.requests) for machine in (first, second)]
            assert min(homes) >= 4
            engine = sglang(base_url=f"{dying},{lasting}")

        async def rest() -> None:
            assert all([(await draw(engine, range(3)))[0].token_ids for _ in range(2)])
            await engine.close()

        asyncio.run(rest())


# -- weights ---------------------------------------------------------------------------------------------------------


def other_weights() -> dict[str, Any]:
    from safetensors.torch import load_file

    state = load_file(nano.path("teacher") / "model.safetensors")
    name = next(key for key in state if key.endswith("down_proj.weight"))
    return state | {name: state[name] * 0.5}


def test_new_weights_reach_the_server_and_the_cache_is_dropped(alone: Runner) -> None:
    state = other_weights()

    async def reference() -> Completion:
        engine = embedded(batch_invariant=True)
        await engine.load_weights(state)  # type: ignore[attr-defined]
        (done,) = await draw(engine, temperature=0.0, logprobs=True)
        await engine.close()
        return done

    async def body(engine: Any, machine: fake.Machine) -> None:
        (old,) = await draw(engine, temperature=0.0, logprobs=True)
        await engine.load_weights(state)
        (new,) = await draw(engine, temperature=0.0, logprobs=True)
        assert new.logprobs == expected.logprobs != old.logprobs and new.usage.cached == 0
        assert machine.updates == ["disk", "flush"]
        machine.faults.slow_s = 30.0
        task = asyncio.create_task(draw(engine))
        await asyncio.sleep(0)
        with pytest.raises(EngineError, match="idle"):
            await engine.load_weights(state)
        task.cancel()
        await asyncio.wait({task})

    expected = asyncio.run(reference())
    alone(body, max_input=200)  # a server of its own: its weights change


# -- start -----------------------------------------------------------------------------------------------------------


def test_a_server_that_is_not_there_is_named_with_the_command_that_starts_one() -> None:
    with pytest.raises(ConfigError, match=r"http://127\.0\.0\.1:9.*sglang serve"):
        sglang(base_url="http://127.0.0.1:9", connect_s=0.5)


def test_an_address_that_redirects_is_refused_with_advice() -> None:
    class Moved(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(308)
            self.send_header("location", "https://elsewhere.example/model_info")
            self.end_headers()

        def log_message(self, *words: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Moved) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(ConfigError, match=r"redirects \(308\): set engine.base_url to the address"):
            sglang(base_url=f"http://127.0.0.1:{server.server_port}")
        server.shutdown()


def test_a_server_that_ignores_seeds_is_refused_unless_that_is_accepted() -> None:
    machine = fake.Machine(deterministic=False)
    with fake.serving(machine) as url:
        with pytest.raises(ConfigError, match="--enable-deterministic-inference"):
            sglang(base_url=url)

        async def body(engine: Any) -> list[Completion]:
            return await draw(engine, range(2))

        assert len(with_engine(url, body, deterministic=False)) == 2


def test_keys_come_from_the_environment_and_show_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = fake.Machine(api_key="canary-user", admin_key="canary-admin")
    monkeypatch.setenv("USER_KEY", "canary-user")
    monkeypatch.setenv("ADMIN_KEY", "canary-admin")
    with fake.serving(machine) as url:
        with pytest.raises(ConfigError, match="api_key_env"):
            sglang(base_url=url)
        with pytest.raises(ConfigError, match="admin_key_env"):
            sglang(base_url=url, api_key_env="USER_KEY")
        with pytest.raises(ConfigError, match="NO_SUCH_KEY"):
            sglang(base_url=url, api_key_env="NO_SUCH_KEY")

        async def body(engine: Any) -> None:
            assert (await draw(engine))[0].token_ids
            assert "canary" not in repr(vars(engine)) + repr(vars(engine._server))

        with_engine(url, body, api_key_env="USER_KEY", admin_key_env="ADMIN_KEY")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"base_url": "localhost:30000"}, "http://HOST:PORT"),
        ({"base_url": "http://127.0.0.1:9", "tp_size": 2}, "tp_size"),
        ({"base_url": "http://127.0.0.1:9", "cuda_graph": False}, "cuda_graph"),
        ({"api_key_env": "KEY", "model": "somewhere"}, "base_url"),
        ({}, "needs a model"),
        ({"tp_size": 0}, "tp_size"),
        ({"model": TEACHER, "mem_fraction_static": 1.5}, "mem_fraction_static"),
    ],
)
def test_options_are_checked_before_anything_starts(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        sglang(**options)


def test_another_model_than_the_server_has_is_refused(shared: Shared, tmp_path: Any) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gemma3"}')
    with pytest.raises(ConfigError, match="gemma3"):
        sglang(str(tmp_path), base_url=shared[1])


def test_the_context_is_what_the_server_can_hold_and_no_more(alone: Runner) -> None:
    async def body(engine: Any, machine: fake.Machine) -> None:
        length = len(engine.render(QUESTION, None).token_ids)
        assert engine.capabilities.max_context == 60
        before = len(machine.requests)
        with pytest.raises(PromptTooLong, match=f"lower sampling.max_tokens to {60 - length}"):
            await draw(engine, max_tokens=61 - length)
        assert len(machine.requests) == before
        assert (await draw(engine, max_tokens=60 - length))[0].token_ids

    alone(body, max_input=60)


# -- in process ------------------------------------------------------------------------------------------------------


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[Local]:
    """The fake as the `sglang` package, with one child process that belongs to the engine."""
    machine: fake.Machine = fake.Machine()
    options: dict[str, Any] = {}
    child = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,))
    child.start()
    fake.install(fake.python_surface(machine, [child.pid], options), monkeypatch.setitem)
    monkeypatch.setenv("SGLANG_RETURN_ORIGINAL_LOGPROB", "1")
    yield machine, options, child
    child.kill()
    child.join()
    asyncio.run(machine.engine.close())


def test_without_the_package_the_command_that_installs_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sglang", None)
    monkeypatch.setenv("SGLANG_RETURN_ORIGINAL_LOGPROB", "1")
    with pytest.raises(MissingExtra, match=r"pip install .*\[sglang\]"):
        sglang(TEACHER)


def test_the_engine_in_process_behaves_like_the_one_over_http(shared: Shared, in_process: Local) -> None:
    _, options, child = in_process

    async def body(engine: Any) -> list[Any]:
        usages: list[Usage] = []
        done = await draw(engine, range(3), usages, logprobs=True)
        pieces: list[tuple[int, ...]] = []
        sampling = Sampling(seed=3, max_tokens=24)
        streamed = await engine.stream(engine.render(QUESTION, None), sampling, 2, usages.append, pieces.append)
        assert sum(pieces, ()) == streamed.token_ids == done[2].token_ids
        given = await engine.logprobs(done[0].token_ids, 2, usages.append)
        assert sum(usages, Usage()) == engine.counters()
        guided = await held(engine)
        return [[replace(completion, usage=Usage()) for completion in (*done, guided)], given]

    engine = sglang(TEACHER, tp_size=2, device="cpu", mem_fraction_static=0.3, cuda_graph=False)

    async def local() -> list[Any]:
        found = await body(engine)
        await engine.close()
        await engine.close()
        return found

    assert asyncio.run(local()) == with_engine(shared[1], body)
    assert not child.is_alive()
    assert options["tp_size"] == 2 and options["mem_fraction_static"] == 0.3 and options["disable_cuda_graph"]
    assert options["enable_deterministic_inference"] and options["model_path"] == TEACHER
    assert options["grammar_backend"] == "llguidance"
    assert "quantization" not in options and "attention_backend" not in options


def test_the_engine_in_process_aborts_and_takes_new_weights(in_process: Local) -> None:
    machine, _, _ = in_process
    engine = sglang(TEACHER)
    before = machine.engine.counters()

    async def body() -> None:
        usages: list[Usage] = []
        task = asyncio.create_task(draw(engine, range(3), usages, max_tokens=400))
        while not machine.running:
            await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        now = machine.engine.counters()
        total = sum(usages, Usage())
        assert len(usages) == 3
        assert total.generated + total.overrun == now.generated + now.overrun - before.generated - before.overrun

        def broken(ids: tuple[int, ...]) -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await engine.stream(engine.render(QUESTION, None), Sampling(seed=3), 0, usages.append, broken)
        (old,) = await draw(engine, temperature=0.0, logprobs=True)
        await engine.load_weights(other_weights())
        (new,) = await draw(engine, temperature=0.0, logprobs=True)
        assert old.logprobs != new.logprobs and new.usage.cached == 0
        assert machine.updates == ["tensor"] and not machine.session_open
        await engine.close()

    asyncio.run(body())


def test_a_scheduler_that_dies_fails_what_runs_instead_of_the_process(in_process: Local) -> None:
    machine, _, _ = in_process
    before = signal.getsignal(signal.SIGQUIT)
    engine = sglang(TEACHER)

    async def body() -> None:
        machine.faults.slow_s = 30.0
        task = asyncio.create_task(draw(engine))
        while not machine.running:
            await asyncio.sleep(0.005)
        os.kill(os.getpid(), signal.SIGQUIT)
        with pytest.raises(EngineError, match="scheduler process died"):
            await task
        with pytest.raises(EngineError, match="scheduler process died"):
            await draw(engine)
        machine.faults.slow_s = 0.0
        await engine.close()

    asyncio.run(body())
    assert signal.getsignal(signal.SIGQUIT) == before


def test_an_option_that_sglang_refuses_is_told_in_its_words(in_process: Local) -> None:
    with pytest.raises(ConfigError, match="Unknown quantization method: nonsense"):
        sglang(TEACHER, quantization="nonsense")
