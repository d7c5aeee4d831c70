"""FLOPs are those of a problem alone, whoever has filled the prefix cache before it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from ttc.core import Capabilities, Completion, ModelShape, Prompt, Sampling, Usage, UsageSink
from ttc.engines.shared.wrapped import Wrapped
from ttc.engines.simulated import simulated
from ttc.session.meter import OwnPrefixes, generate_alone

SHAPE = ModelShape(num_params=1000, num_layers=2, attention_width=8)
SAMPLING = Sampling(max_tokens=4, seed=1)


class Cached(Wrapped):
    """An engine whose prefix cache knows what it was given beforehand, and everything that it has read since."""

    def __init__(self, *known: Sequence[int]) -> None:
        super().__init__(simulated())
        self._known = OwnPrefixes()
        for ids in known:
            self._known.add(ids)

    @property
    def capabilities(self) -> Capabilities:
        """With a shape, so that FLOPs are counted."""
        return replace(self._engine.capabilities, shape=SHAPE)

    async def generate(self, prompt: Prompt, sampling: Sampling, draws: range, on_usage: UsageSink) -> list[Completion]:
        """Every draw is `draw, 7, 7, 7`; the last one pays for the prompt."""
        ids = prompt.token_ids or ()
        cached = self._known.length(ids)
        completions = []
        for draw in draws:
            hit = cached if draw == draws[-1] else len(ids)
            flops = SHAPE.flops(len(ids) - hit, hit) + SHAPE.flops(3, len(ids))
            usage = Usage(prompt=len(ids), cached=hit, generated=4, calls=1, attempts=1, flops=flops)
            on_usage(usage)
            completions.append(Completion((*prompt.path, draw), "", (draw, 7, 7, 7), "length", usage=usage))
            self._known.add((*ids, draw, 7, 7))
        return completions


def asked(engine: Cached, *requests: tuple[Sequence[int], int]) -> tuple[Usage, Usage]:
    """Put requests of one problem, ids and number of draws: what was reported, and what the completions say."""
    prefixes, reports, own = OwnPrefixes(), list[Usage](), list[Usage]()

    async def work() -> None:
        for number, (ids, n) in enumerate(requests):
            prompt = Prompt("", tuple(ids), path=(number,), rendered_len=len(ids))
            drawn = await generate_alone(engine, prefixes, prompt, SAMPLING, range(n), reports.append)
            own.extend(completion.usage for completion in drawn)

    asyncio.run(work())
    return sum(reports, Usage()), sum(own, Usage())


ROOT = tuple(range(50))
TREE = ((ROOT, 3), ((*ROOT, 0, 7, 7, 7), 2), ((*ROOT, 1, 7, 7, 7, 90, 91), 1), (ROOT, 1))


@pytest.mark.parametrize("known", [ROOT, ROOT[:20], (*ROOT, 0, 7, 7, 7), (*ROOT, 1, 7, 7, 7, 90, 91, 92)])
def test_flops_do_not_hang_on_what_others_left_in_the_cache(known: tuple[int, ...]) -> None:
    alone, _ = asked(Cached(), *TREE)
    after, answers = asked(Cached(known), *TREE)
    assert after.cached > alone.cached, "tokens are the engine's"
    assert after.flops == pytest.approx(alone.flops, rel=1e-12) == answers.flops


def test_a_prompt_that_is_asked_again_is_not_paid_twice() -> None:
    once, _ = asked(Cached(), (ROOT, 1))
    twice, _ = asked(Cached(), (ROOT, 1), (ROOT, 1))
    assert twice.flops - once.flops == SHAPE.flops(3, len(ROOT))


def test_what_an_engine_computes_again_is_paid_again() -> None:
    class Forgetful(Cached):
        async def generate(
            self, prompt: Prompt, sampling: Sampling, draws: range, on_usage: UsageSink
        ) -> list[Completion]:
            self._known = OwnPrefixes()
            return await super().generate(prompt, sampling, draws, on_usage)

    whole = SHAPE.flops(len(ROOT), 0) + SHAPE.flops(3, len(ROOT))
    assert asked(Forgetful(), (ROOT, 1), (ROOT, 1))[0].flops == 2 * whole


def test_known_prefixes_are_those_that_were_added_to_the_token() -> None:
    rng = random.Random(0)
    for _ in range(300):
        prefixes, rows = OwnPrefixes(), list[tuple[int, ...]]()
        for _ in range(6):
            base = rng.choice(rows)[: rng.randrange(60)] if rows else ()
            row = (*base, *(rng.randrange(2) for _ in range(rng.randrange(40))))
            assert prefixes.length(row) == max((num_common(row, other) for other in rows), default=0)
            prefixes.add(row)
            rows.append(row)


def num_common(first: Sequence[int], second: Sequence[int]) -> int:
    """How many ids both begin with, one by one."""
    count = 0
    while count < min(len(first), len(second)) and first[count] == second[count]:
        count += 1
    return count
