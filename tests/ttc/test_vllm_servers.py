"""Servers of vLLM that a trainer pushes its weights to; here the packaged teacher behind vLLM's routes on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ttc.openai_server import Behaviour, OpenAIServer
from tests.ttc.openai_setup import TEACHER, ask, free_port
from train.base.models import load_model
from train.rollouts.sync import Syncer, revived
from ttc.config.registry import ENGINES
from ttc.config.signatures import bind
from ttc.core import Completion, Engine, Sampling
from ttc.engines.embedded.engine import embedded
from ttc.engines.vllm.servers import VllmServers
from ttc.errors import ConfigError, EngineError, TrainingError

IDS = [tuple(range(60, 80)), tuple(range(100, 120))]


def exact() -> Engine:
    """The teacher in fp32: "auto" is bf16 where the processor has it, and the trainer has fp32 weights."""
    return embedded(batch_invariant=True, dtype="float32")


def server(port: int = 0, **behaviour) -> OpenAIServer:
    return OpenAIServer(exact, Behaviour(max_model_len=512, **{"updates": True, **behaviour}), port)


def connected(*servers: OpenAIServer, wait_s: float = 0.0) -> VllmServers:
    urls = ",".join(one.url for one in servers)
    engine = ENGINES.create("vllm", {"base_url": urls, "wait_s": wait_s}, supply={"model": TEACHER, "device": "cpu"})
    assert isinstance(engine, VllmServers)
    return engine


@pytest.fixture
def two() -> Iterator[tuple[OpenAIServer, OpenAIServer]]:
    with server() as first, server() as second:
        yield first, second


def moved(factor: float):
    """The teacher, its embedding and head (one tensor) scaled."""
    import torch

    model = load_model(Path(TEACHER), "cpu")
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(factor)
    return model


async def drawn(engine: Engine, num: int = 4) -> list[Completion]:
    """One draw of each of `num` problems, at once."""
    sampling = Sampling(max_tokens=12, seed=5, logprobs=True)
    prompts = [engine.render(ask(f"{number}+2=").messages, None) for number in range(num)]
    return [row[0] for row in await asyncio.gather(*(engine.generate(p, sampling, range(1), _ignore) for p in prompts))]


def _ignore(usage) -> None:
    """The engine keeps its own totals."""


def test_every_server_takes_the_new_weights_and_only_then_the_probe_passes(two):
    async def go() -> None:
        engine, model = connected(*two), moved(1.1)
        syncer = Syncer(engine, model, limit=1e-3)
        with pytest.raises(TrainingError, match="parity"):
            await syncer.probe(IDS)
        await syncer.push()
        assert await syncer.probe(IDS) < 1e-3
        assert len({one.weight_version for one in two}) == 1 and two[0].weight_version != "default"
        assert len(await drawn(engine)) == 4
        await engine.close()

    asyncio.run(go())


def test_servers_that_hold_different_weights_are_noticed(two):
    async def go() -> None:
        engine = connected(*two)
        await two[1].engine.load_weights(moved(1.5).state_dict())  # type: ignore[attr-defined]
        with pytest.raises(EngineError, match="hold different weights"):
            await engine.logprobs(IDS[0], 1, _ignore)
        await engine.close()

    asyncio.run(go())


def test_a_server_that_is_killed_in_a_round_leaves_its_draws_to_the_other(two):
    async def go() -> None:
        engine = connected(*two)
        await engine.load_weights(moved(1.0).state_dict())
        before = await drawn(engine)
        two[0].kill()
        after = await drawn(engine)
        assert [one.token_ids for one in after] == [one.token_ids for one in before]
        await engine.load_weights(moved(1.0).state_dict())
        assert engine.holding == {two[1].url}
        await engine.close()

    asyncio.run(go())


def test_a_server_that_was_started_again_draws_nothing_before_it_holds_the_newest_weights(two):
    async def go() -> None:
        engine, model = connected(*two), moved(1.3)
        await engine.load_weights(model.state_dict())
        before = await drawn(engine)
        two[0].kill()
        with server(two[0].port) as again:
            await asyncio.sleep(0.1)  # the loop sees now that its connections have ended
            after = await drawn(engine)
            assert [one.token_ids for one in after] == [one.token_ids for one in before]
            assert engine.holding == {two[1].url}
            await engine.load_weights(model.state_dict())
            assert engine.holding == {two[1].url, again.url}
        await engine.close()

    asyncio.run(go())


def test_a_run_goes_on_when_its_only_server_is_killed_and_started_again():
    async def go() -> None:
        lines: list[str] = []
        with server() as only:
            engine = revived(lambda: connected(only, wait_s=20.0), lines.append)
            model = moved(1.3)
            await Syncer(engine, model, limit=1e-3).push()
            before = await drawn(engine)
            only.kill()
            with server(only.port):
                after = await drawn(engine)
                assert await Syncer(engine, model, limit=1e-3).probe(IDS) < 1e-3
                assert [one.token_ids for one in after] == [one.token_ids for one in before]
                await engine.close()
        assert len(lines) == 1 and "started again" in lines[0]

    asyncio.run(go())


def test_where_no_server_answers_the_message_says_what_to_start_and_that_the_run_goes_on():
    url = f"http://127.0.0.1:{free_port()}/v1"
    with pytest.raises(ConfigError, match=r"no vLLM server answers at .*vllm serve MODEL .*same command again"):
        ENGINES.create("vllm", {"base_url": url, "wait_s": 0}, supply={"model": TEACHER})


def test_a_server_without_the_routes_for_weights_is_refused_with_the_way_to_start_it():
    async def go() -> None:
        with server(updates=False) as plain:
            engine = connected(plain)
            with pytest.raises(ConfigError, match=r"takes no weights .*VLLM_SERVER_DEV_MODE=1 vllm serve"):
                await engine.load_weights(moved(1.0).state_dict())
            await engine.close()

    asyncio.run(go())


def test_options_of_an_engine_in_this_process_are_refused_beside_servers():
    with pytest.raises(ConfigError, match="are set where the server is started"):
        bind(ENGINES.load("vllm"), {"base_url": "http://a:1/v1", "max_num_seqs": "3"}, supply={"model": TEACHER})
