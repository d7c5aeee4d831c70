"""Oracle 23: particle Gibbs keeps its path in every population and leaves the exact posterior invariant."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import Counter
from collections.abc import Mapping
from functools import partial

import pytest

from tests.ttc.questions import ask
from ttc import seeds
from ttc.answers import kind_of
from ttc.core import Path, Prompt, Sampling, Score, Scorer
from ttc.engines.scripted import ScriptedEngine
from ttc.errors import ConfigError
from ttc.search.policies.gibbs import Gibbs, gibbs
from ttc.search.tree import Growth
from ttc.session.session import Session
from ttc.session.solve import solve
from ttc.strategies.tree import tree

STEPS, ROUNDS, WIDTH = 2, 1000, 3
GOES_ON = {"": 0.5, "a": 0.8, "b": 0.3}
"""Chance of an `a` after each letter."""
LIKES = {"a": 0.4, "b": 0.9}


def script(prompt: Prompt, path: Path, key: int) -> str:
    said = prompt.generated_text.replace("\n\n", "")
    letters = ""
    while len(said + letters) < STEPS:
        before = (said + letters)[-1:]
        letters += "a" if seeds.uniform(key, len(said + letters)) < GOES_ON[before] else "b"
    return "".join(f"{letter}\n\n" for letter in letters)


class Liking(Scorer):
    """Scores a step by its letter."""

    def __init__(self, likes: Mapping[str, float] = LIKES) -> None:
        self.likes = likes

    async def score(self, prompts, on_usage):
        return [Score(self.likes[prompt.generated_text.replace("\n\n", "")[-1]]) for prompt in prompts]


def posterior() -> dict[str, float]:
    """What the scorer makes of the chain, path by path; the end of the text is scored as one more step."""
    weights = {}
    for letters in itertools.product("ab", repeat=STEPS):
        chance, before = 1.0, ""
        for letter in letters:
            chance *= GOES_ON[before] if letter == "a" else 1 - GOES_ON[before]
            chance *= LIKES[letter]
            before = letter
        weights["".join(letters)] = chance * LIKES[letters[-1]]
    total = sum(weights.values())
    return {path: weight / total for path, weight in weights.items()}


class Watched(Gibbs):
    """Writes down the kept path of every round, and whether the population holds it."""

    async def walk(self, session, root, width, kept, growth, number, numbers):
        found = await Gibbs.walk(self, session, root, width, kept, growth, number, numbers)
        session.shared(Seen).append(kept)
        assert not kept or [walker.way for walker in found if walker.kept] == [kept]
        assert len(found) == width
        return found


class Seen(list):
    """The kept paths."""


def test_the_kept_paths_follow_the_exact_posterior_with_only_three_particles() -> None:
    engine, shared = ScriptedEngine(script), {}
    policy = Watched(ROUNDS, 1.0, "score")

    async def go() -> None:
        session = Session(
            ask("q"), engine, answers=kind_of("math"), seed=3, sampling=Sampling(max_tokens=64), shared=shared
        )
        growth = Growth(Liking(), session.sampling, ("\n\n",), 16, 10, "last")
        await policy.search(session, session.render(), WIDTH * ROUNDS, growth)

    asyncio.run(go())
    kept = [way[-1].prompt.generated_text.replace("\n\n", "") for way in shared[Seen] if way]
    counts, expected = Counter(kept), posterior()
    for path, chance in expected.items():
        # Neighbours in the chain are alike, so it says as much as a fifth of its length of independent draws would.
        error = 4 * math.sqrt(chance * (1 - chance) / (len(kept) / 5))
        assert abs(counts[path] / len(kept) - chance) < error, path


def test_the_weights_of_the_leaves_are_the_shares_that_they_had_in_every_round() -> None:
    rounds = 20

    async def go() -> None:
        session = Session(
            ask("q"), ScriptedEngine(script), answers=kind_of("math"), seed=3, sampling=Sampling(max_tokens=64)
        )
        growth = Growth(Liking(), session.sampling, ("\n\n",), 16, 10, "last")
        leaves = await gibbs(rounds=rounds).search(session, session.render(), WIDTH * rounds, growth)
        assert math.isclose(math.fsum(math.exp(leaf.log_weight) for leaf in leaves), rounds, rel_tol=1e-9)
        assert len({leaf.prompt.path for leaf in leaves}) == len(leaves)

    asyncio.run(go())


def test_no_path_is_drawn_twice_and_a_schedule_changes_nothing() -> None:
    def leaves(jitter: int | None):
        engine = ScriptedEngine(script, jitter=jitter)
        strategy = partial(tree, scorer=Liking(), n=12, policy="gibbs:rounds=3", select="population")
        return asyncio.run(solve(ask("q"), engine=engine, strategy=strategy, seed=1, sampling=Sampling(max_tokens=64)))

    found = [leaves(jitter) for jitter in (None, 1, 2)]
    assert len({(a.usage, tuple(c.path for c in a.candidates)) for a in found}) == 1
    paths = [event.path for event in found[0].trace if event.kind == "generate"]
    assert len(paths) == len(set(paths))
    assert 4 <= len(found[0].candidates) <= 12


@pytest.mark.parametrize("table", [LIKES, {"a": 0.0, "b": 0.5}])
@pytest.mark.parametrize("max_depth", [1, 2, 3])
def test_paths_that_the_depth_cuts_are_all_kept_and_weighed_by_their_last_step(max_depth: int, table) -> None:
    n = 6

    async def go() -> None:
        endless = ScriptedEngine(lambda prompt, path, key: "ab"[seeds.uniform(key, 0) < 0.5] + "\n\n" + "a" * 9)
        session = Session(ask("q"), endless, answers=kind_of("math"), seed=3, sampling=Sampling(max_tokens=64))
        growth = Growth(Liking(table), session.sampling, ("\n\n",), 16, max_depth, "last")
        leaves = await gibbs(rounds=1).search(session, session.render(), n, growth)
        assert len({leaf.prompt.path for leaf in leaves}) == n
        assert all(len(leaf.prompt.path) == max_depth and not leaf.finished for leaf in leaves)
        likes = [table[leaf.prompt.generated_text.replace("\n\n", "")[-1]] for leaf in leaves]
        assert len(set(likes)) == 2
        for leaf, like in zip(leaves, likes, strict=True):
            assert math.isclose(math.exp(leaf.log_weight), like / sum(likes))

    asyncio.run(go())


@pytest.mark.parametrize("rounds", [1, 3, 4, 40])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 8, 13])
def test_n_paths_are_drawn_whatever_the_number_of_rounds(n: int, rounds: int) -> None:
    strategy = partial(tree, scorer=Liking(), n=n, policy=f"gibbs:rounds={rounds}")
    answer = asyncio.run(solve(ask("q"), engine=ScriptedEngine(script), strategy=strategy, seed=1))
    assert len(answer.candidates) == n
    assert all(candidate.finish_reason == "stop" for candidate in answer.candidates)


def test_bad_parameters_are_refused() -> None:
    for params in ({"rounds": 0}, {"temperature": 0.0}):
        with pytest.raises(ConfigError):
            gibbs(**params)
