"""The openai engine by token ids, against a real server on loopback: conformance, ledger, several servers, start."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest

from tests.loops import finished
from tests.ttc import conformance as suite
from tests.ttc import test_conformance as shared
from tests.ttc.openai_server import Behaviour, Fault, OpenAIServer
from tests.ttc.openai_setup import ALIKE, CHAT, TEACHER, ask, by_ids, free_port, once, talker, teacher_server
from ttc import nano
from ttc.cli.cli import main
from ttc.core import (
    Engine,
    LogprobEngine,
    Message,
    Problem,
    Sampling,
    StreamingEngine,
    TopLogprobEngine,
    Usage,
)
from ttc.engines.openai.engine import Reconciliation
from ttc.engines.openai.factory import openai
from ttc.errors import ConfigError
from ttc.session.door import run
from ttc.strategies.direct import direct

pytestmark = pytest.mark.usefixtures("without_matplotlib")

CANARY = "sk-canary-4d1f"
CASES = suite.STRATEGIES | suite.THINKING_STRATEGIES | suite.PRM_STRATEGIES


@pytest.fixture(scope="module")
def server() -> Iterator[OpenAIServer]:
    with teacher_server() as server:
        yield server


@pytest.mark.parametrize(
    "body",
    [
        *ALIKE,
        shared.test_raising_n_only_adds_draws,
        shared.test_a_cancelled_draw_is_aborted_and_its_tokens_are_overrun,
        shared.test_encode_and_decode_are_inverse_on_plain_text,
    ],
    ids=lambda body: body.__name__,
)
def test_the_engine_passes_the_conformance_suite_over_the_wire(
    server: OpenAIServer, monkeypatch: pytest.MonkeyPatch, body
) -> None:
    monkeypatch.setitem(suite.ENGINES, "openai", lambda jitter: by_ids(server))
    body("openai")


def test_raising_max_tokens_only_extends(server: OpenAIServer) -> None:
    short = once(by_ids(server), range(3), max_tokens=5)
    long = once(by_ids(server), range(3), max_tokens=30)
    for a, b in zip(short, long, strict=True):
        assert b.token_ids[:5] == a.token_ids and a.finish_reason == "length"


@pytest.mark.parametrize("cut", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}])
def test_the_tightest_cuts_leave_the_greedy_draw_alone(server: OpenAIServer, cut: dict[str, float]) -> None:
    (greedy,) = once(by_ids(server), range(1), temperature=0.0)
    drawn = once(by_ids(server), range(3), temperature=5.0, **cut)
    assert {one.token_ids for one in drawn} == {greedy.token_ids}


def test_a_repetition_penalty_is_sent_where_it_is_set_and_switched_off_elsewhere(server: OpenAIServer) -> None:
    for setting in ({}, {"repetition_penalty": 1.2}):
        once(by_ids(server), **setting)
        assert server.generations()[-1]["repetition_penalty"] == setting.get("repetition_penalty", 1.0)


def test_a_continued_draw_gets_other_random_numbers_than_its_beginning_and_the_same_ones_every_time(
    server: OpenAIServer,
) -> None:
    first = once(by_ids(server), ids=())[0].token_ids
    seen = [body["seed"] for body in server.generations()[-1:]]
    again = [once(by_ids(server), ids=first[:4])[0].token_ids for _ in range(2)]
    seeds = [body["seed"] for body in server.generations() if body.get("max_tokens") == 24][-2:]
    assert again[0] == again[1] and seeds[0] == seeds[1] != seen[0]


@dataclass(frozen=True)
class Served:
    """What strategies answered over the wire, what the engine of each counted, how the server's counters grew."""

    together: suite.Together
    ours: dict[str, Usage]
    compared: dict[str, Reconciliation]
    server: tuple[int, int, int]


async def solve_all(server: OpenAIServer, names: list[str], order: list[Problem], concurrency: int) -> Served:
    """Every strategy at once, each over an engine of its own."""
    engines, before = {name: by_ids(server) for name in names}, server.counters()
    try:
        together = await suite.side_by_side(engines, order, concurrency)
        ours = {name: engine.counters() for name, engine in engines.items()}
        compared = {name: engine.reconciliation() for name, engine in engines.items()}
    finally:
        for engine in engines.values():
            await engine.close()
    after = server.counters()
    grown = (after.generated - before.generated, after.prompt - before.prompt, after.cached - before.cached)
    return Served(together, ours, compared, grown)


@pytest.fixture(scope="module")
def schedules(server: OpenAIServer) -> list[Served]:
    order, names = suite.problems(2), list(CASES)
    return [
        asyncio.run(solve_all(server, columns, sequence, concurrency))
        for concurrency, sequence, columns in ((1, order, names), (7, order[::-1], names[::-1]))
    ]


@pytest.mark.parametrize("name", list(CASES))
def test_any_schedule_gives_the_same_trees_and_ledgers_that_the_server_reports(
    schedules: list[Served], name: str
) -> None:
    results = []
    for served in schedules:
        answers, ours, compared = served.together.of(name), served.ours[name], served.compared[name]
        results.append({key: suite.essence(answer) for key, answer in sorted(answers.items())})
        shared.check_the_ledger(answers.values(), ours)
        assert compared.differed == compared.unreported == 0 and compared.agreed == ours.calls
    assert results[0] == results[1]


def test_the_ledgers_of_all_strategies_equal_the_servers_own_to_the_token(schedules: list[Served]) -> None:
    for served in schedules:
        ours = sum(served.ours.values(), Usage())
        assert served.server == (ours.generated + ours.overrun, ours.prompt, ours.cached)


def test_a_draw_is_one_request_for_one_choice_with_a_hashed_seed(server: OpenAIServer) -> None:
    engine = by_ids(server)
    before = len(server.requests)
    once(engine, range(6))
    bodies = server.requests[before:]
    seeds = sorted(body["seed"] for body in bodies)
    assert len(bodies) == 6 and all("n" not in body for body in bodies)
    assert min(b - a for a, b in pairwise(seeds)) > 1 << 20 and max(seeds) < 1 << 53


def test_a_run_without_a_seed_is_refused(server: OpenAIServer) -> None:
    with pytest.raises(ConfigError, match=r"sampling\.seed"):
        once(by_ids(server), seed=None)


def test_log_probabilities_are_those_of_the_model_behind_the_server(server: OpenAIServer) -> None:
    (remote,) = once(by_ids(server), logprobs=True, temperature=0.0)
    (local,) = once(suite.embedded(), logprobs=True, temperature=0.0)
    assert remote.token_ids == local.token_ids and remote.logprobs == local.logprobs
    assert local.certainty and not remote.certainty and not by_ids(server).capabilities.certainty


def test_given_ids_are_scored_as_by_the_model_behind_the_server(server: OpenAIServer) -> None:
    async def score(engine: Engine, ids: tuple[int, ...], usages: list[Usage]) -> tuple[float, ...]:
        assert isinstance(engine, LogprobEngine)
        try:
            return await engine.logprobs(ids, 3, usages.append)
        finally:
            await engine.close()

    remote, usages = by_ids(server), list[Usage]()
    ids = remote.encode("12+30*2\n30*2=60")
    values = asyncio.run(score(remote, ids, usages))
    assert values == asyncio.run(score(suite.embedded(), ids, [])) and len(values) == len(ids) - 3
    assert usages == [remote.counters()] and usages[0].overrun == 1 and usages[0].prompt == len(ids)
    with pytest.raises(ConfigError, match="start must lie in"):
        asyncio.run(score(remote, ids[:2], usages))
    with OpenAIServer(suite.embedded, Behaviour(scores=False)) as other:
        assert not isinstance(by_ids(other), LogprobEngine)


def test_the_likeliest_tokens_of_given_ids_are_those_of_the_model_behind_the_server(server: OpenAIServer) -> None:
    async def tell(engine: Engine, usages: list[Usage]) -> tuple[Mapping[int, float], ...]:
        assert isinstance(engine, TopLogprobEngine)
        try:
            return await engine.top_logprobs(engine.encode("12+30*2\n30*2=60"), 2, 3, usages.append)
        finally:
            await engine.close()

    remote, usages = by_ids(server), list[Usage]()
    assert asyncio.run(tell(remote, usages)) == asyncio.run(tell(suite.embedded(), []))
    assert usages == [remote.counters()]
    with OpenAIServer(suite.embedded, Behaviour(scores=False)) as other:
        assert not isinstance(by_ids(other), TopLogprobEngine)


def test_tokens_stream_as_they_come_and_only_once_when_the_connection_breaks(server: OpenAIServer) -> None:
    engine = by_ids(server)
    assert isinstance(engine, StreamingEngine)
    prompt = engine.render(ask("3+4*2").messages, None)
    got: list[int] = []

    server.faults.append(Fault("drop", after=6))
    completion = finished(
        engine.stream(prompt, Sampling(seed=5, max_tokens=40), 0, lambda usage: None, lambda ids: got.extend(ids)),
        engine,
    )
    assert tuple(got) == completion.token_ids and completion.usage.attempts == 2


def test_cancelling_aborts_in_the_server_and_charges_what_had_been_streamed() -> None:
    usages: list[Usage] = []
    with OpenAIServer(suite.embedded, Behaviour(pause_s=0.02)) as server:
        engine = by_ids(server)

        async def go() -> None:
            task = asyncio.create_task(shared.draw(engine, range(3), usages, max_tokens=400))
            while server.most_live < 3:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.2)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await engine.close()

        asyncio.run(go())
        for _ in range(100):
            if not server.live:
                break
            time.sleep(0.02)
        assert server.live == 0 and server.most_live == 3
    total = sum(usages, Usage())
    assert len(usages) == 3 and total == engine.counters()
    assert 0 < total.overrun < 3 * 60 and total.generated == 0 and total.attempts == 3


def test_stops_hold_on_a_server_that_does_not_know_stop_ids_and_what_it_decodes_too_much_is_overrun() -> None:
    with OpenAIServer(suite.embedded, Behaviour(heeds_stop_ids=False)) as server:
        (free,) = once(by_ids(server), max_tokens=30)
        token = free.token_ids[3]
        (stopped,) = once(by_ids(server), max_tokens=30, stop_token_ids=(token,))
    first = free.token_ids.index(token)
    assert stopped.token_ids == free.token_ids[: first + 1]
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", token)
    assert stopped.usage.generated == first + 1 and stopped.usage.overrun >= 1


def test_a_server_that_counts_otherwise_is_warned_of_once_and_never_believed() -> None:
    with OpenAIServer(suite.embedded, Behaviour(miscount=3)) as server:
        engine = by_ids(server)
        with pytest.warns(RuntimeWarning, match="the ledger keeps ours") as caught:
            completions = once(engine, range(4))
    assert len(caught) == 1
    compared = engine.reconciliation()
    assert compared.differed == 4 and compared.agreed == 0
    assert compared.server_generated == compared.our_generated + 12
    assert engine.counters().generated == sum(len(completion.token_ids) for completion in completions)


def test_one_engine_serves_several_event_loops(server: OpenAIServer) -> None:
    engine = by_ids(server)
    answers = [run(ask("12+30*2"), engine=engine, strategy=direct, seed=1) for _ in range(2)]
    assert answers[0].text == answers[1].text != ""


def test_threads_with_a_loop_each_share_an_engine() -> None:
    with OpenAIServer(talker, replace(CHAT, pause_s=0.005)) as server:
        engine = openai(base_url=server.url, attempts=1)

        async def go(first: int) -> int:
            prompt = engine.render([Message("user", str(first))], None)
            draws = (engine.generate(prompt, Sampling(seed=first), range(i, i + 1), lambda _: None) for i in range(8))
            return len(await asyncio.gather(*draws))

        with ThreadPoolExecutor(3) as pool:
            assert list(pool.map(lambda first: asyncio.run(go(first)), range(6))) == [8] * 6
    assert engine.counters().calls == 48


def test_no_more_requests_are_in_flight_than_allowed() -> None:
    with OpenAIServer(suite.embedded, Behaviour(pause_s=0.002)) as server:
        once(by_ids(server, max_in_flight=3), range(12), max_tokens=8)
        assert 1 < server.most_live <= 3


def test_a_tokenizer_of_another_model_is_refused(server: OpenAIServer, tmp_path) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    for name in ("tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        (folder / name).write_bytes((nano.path("teacher") / name).read_bytes())
    tokens = json.loads((nano.path("teacher") / "tokenizer.json").read_text())
    vocab = tokens["model"]["vocab"]
    digits = [str(digit) for digit in range(10)]
    for a, b in zip(digits[::2], digits[1::2], strict=True):
        vocab[a], vocab[b] = vocab[b], vocab[a]
    (folder / "tokenizer.json").write_text(json.dumps(tokens))
    with pytest.raises(ConfigError, match=r"engine\.tokenizer is not that of served"):
        openai(base_url=server.url, tokenizer=str(folder))


def test_nothing_listening_is_said_before_the_run_with_what_to_start() -> None:
    with pytest.raises(ConfigError, match=r"no OpenAI-compatible server answers at http://127.*vllm serve"):
        openai("m", base_url=f"http://127.0.0.1:{free_port()}/v1")


def test_a_model_that_is_not_served_is_refused_by_name(server: OpenAIServer) -> None:
    with pytest.raises(ConfigError, match=r"does not serve 'other'; it serves served"):
        openai("other", base_url=server.url)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"base_url": "localhost:8000"}, "base_url must look like"),
        ({"base_url": "http://user:pw@h/v1"}, "no user, password or query"),
        ({"base_url": "http://h/v1?key=1"}, "no user, password or query"),
        (
            {"base_url": "https://h.azure.com/openai?api-version=2024-02-01"},
            r"https://h\.azure\.com/openai/v1, and the",
        ),
        (
            {"base_url": "https://h.azure.com/openai/deployments/d/chat/completions?api-version=2024-02-01"},
            r"https://h\.azure\.com/openai/v1, and the",
        ),
        ({"base_url": "http://h/v1/chat/completions"}, "the whole API, http://h/v1, and not"),
        ({"base_url": "http://h/v1", "attempts": 0}, "attempts must be at least 1"),
        ({"base_url": "http://h/v1", "idle_s": 0.0}, "idle_s must be > 0"),
        ({"base_url": "http://h/v1", "api_key_env": "NO_SUCH_KEY"}, "NO_SUCH_KEY"),
        ({}, "OPENAI_API_KEY"),
    ],
)
def test_bad_options_are_refused_by_name(options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        openai("m", **options)


def test_the_key_is_sent_and_appears_nowhere_else(monkeypatch: pytest.MonkeyPatch, tmp_path, capfd) -> None:
    monkeypatch.setenv("MY_KEY", CANARY)
    with OpenAIServer(suite.embedded, Behaviour(key=CANARY)) as server:
        out = tmp_path / "run"
        arguments = ["eval", "--engine", "openai", "--set", f"engine.base_url={server.url}", "--limit", "3"]
        arguments += ["--set", f"engine.tokenizer={TEACHER}", "--set", "engine.api_key_env=MY_KEY", "--seed", "1"]
        assert main([*arguments, "--strategy", "direct", "--baseline", "none", "--out", str(out)]) == 0
        assert all(headers["authorization"] == f"Bearer {CANARY}" for headers in server.headers)
    with OpenAIServer(suite.embedded, Behaviour(key="another")) as server:
        with pytest.raises(ConfigError) as caught:
            openai(base_url=server.url, tokenizer=TEACHER, api_key_env="MY_KEY")
        error: BaseException | None = caught.value
        while error is not None:
            assert CANARY not in f"{error} {error!r} {error.__dict__}"
            error = error.__cause__
        assert "[key]" in str(caught.value)
    written = [path for path in out.rglob("*") if path.is_file()]
    assert len(written) > 3 and not any(CANARY.encode() in path.read_bytes() for path in written)
    captured = capfd.readouterr()
    assert CANARY not in captured.out + captured.err


def test_the_command_line_solves_over_an_endpoint(server: OpenAIServer, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--engine", "openai", "--model", "served", "--set", f"engine.base_url={server.url}", "--seed", "1"]
    assert main(["solve", "12+30*2", *arguments, "--set", f"engine.tokenizer={TEACHER}"]) == 0
    assert capsys.readouterr().out.strip() == "72"
    down = ["--engine", "openai", "--model", "m", "--set", f"engine.base_url=http://127.0.0.1:{free_port()}/v1"]
    assert main(["solve", "12+30*2", *down]) == 2
    assert "vllm serve" in capsys.readouterr().err
