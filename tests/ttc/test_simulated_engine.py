"""The simulated reasoner: its processes have the parameters they are given, and any cut and resumption agrees."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections import Counter
from functools import partial

import pytest

from tests.ttc.questions import ask
from ttc.core import Answer, Prompt, Sampling, Usage
from ttc.engines.simulated import LEVELS, last_state, simulated, states, truth
from ttc.errors import ConfigError
from ttc.scorers.simulated import simulated as simulated_scorer
from ttc.session.solve import solve
from ttc.strategies.best_of_n import best_of_n
from ttc.strategies.direct import direct
from ttc.strategies.first_finished import first_finished
from ttc.strategies.majority import majority


def run(strategy, runs: int, at: str = "", **options) -> list[Answer]:
    engine = simulated(**options)

    async def go() -> list[Answer]:
        work = (solve(ask(f"s{i}{at}"), engine=engine, strategy=strategy, seed=9) for i in range(runs))
        return list(await asyncio.gather(*work))

    return asyncio.run(go())


def texts(answers: list[Answer]) -> list[str]:
    return [candidate.text for answer in answers for candidate in answer.candidates]


@pytest.mark.parametrize("level", [1, 3, 5])
def test_a_level_named_in_the_question_sets_the_success_of_a_step(level: int) -> None:
    found = run(partial(majority, n=8), 60, f" at level {level}")
    right = sum(c.final == truth(f"s{i} at level {level}") for i, a in enumerate(found) for c in a.candidates)
    law = LEVELS[level - 1] ** 8
    assert abs(right / 480 - law) < 4 * math.sqrt(law * (1 - law) / 480)


def test_an_own_p_wins_over_a_level() -> None:
    assert all(a.final == truth(f"s{i} at level 5") for i, a in enumerate(run(direct, 10, " at level 5", p=1.0)))


def test_failure_is_absorbing_unless_it_can_be_repaired() -> None:
    for text in texts(run(partial(majority, n=4), 20, p=0.7)):
        marks = "".join(states(text.rpartition("\n\n")[0]))
        assert set(marks) <= {"g", "b"} and "bg" not in marks
    repaired = "".join("".join(states(t)) for t in texts(run(partial(majority, n=4), 20, p=0.7, repair=0.5)))
    assert "bg" in repaired


def test_the_noise_of_the_scorer_comes_from_the_seed_of_the_run() -> None:
    def scores(seed: int) -> list[float | None]:
        work = partial(best_of_n, scorer=simulated_scorer(noise=1.0), n=8)
        answer = asyncio.run(solve(ask("s1"), engine=simulated(p=1.0), strategy=work, seed=seed))
        return [candidate.score for candidate in answer.candidates]

    first = scores(1)
    assert first == scores(1) and len(set(first)) == 8 and not set(first) & set(scores(2))
    assert "seed" not in inspect.signature(simulated_scorer).parameters


def test_paths_off_track_deceive_at_the_rate_they_are_given_and_the_scorer_likes_them() -> None:
    found = texts(run(partial(majority, n=8), 40, p=0.5, deceive=0.3, steps=6))
    first = Counter("".join(states(text))[0] for text in found)
    wrong = first["b"] + first["d"]
    assert abs(first["d"] / wrong - 0.3) < 4 * math.sqrt(0.21 / wrong)
    answers = run(partial(best_of_n, scorer=simulated_scorer(preset="hackable"), n=8), 40, p=0.5, deceive=0.3, steps=6)
    scores: dict[str, list[float]] = {"g": [], "b": [], "d": []}
    for answer in answers:
        for candidate in answer.candidates:
            scores[last_state(candidate.text)].append(candidate.score or 0.0)
    means = {state: sum(values) / len(values) for state, values in scores.items()}
    assert means["b"] < means["g"] < means["d"]


def test_the_attractor_takes_its_share_of_the_wrong_answers() -> None:
    finals = Counter()
    for i, answer in enumerate(run(partial(majority, n=8), 50, p=0.0, steps=1, attractor=0.6)):
        for candidate in answer.candidates:
            finals[int(candidate.final or 0) - int(truth(f"s{i}"))] += 1
    zipf = 1 / sum(1 / rank for rank in range(1, 21))
    share = 0.6 + 0.4 * zipf
    assert abs(finals[1] / 400 - share) < 4 * math.sqrt(share * (1 - share) / 400)
    assert 0 not in finals and max(finals) <= 20


def test_lengths_of_steps_vary_as_they_are_told() -> None:
    sizes = [
        len(s)
        for t in texts(run(partial(majority, n=4), 40, p=1.0, mean_step_tokens=43, cv=0.9))
        for s in t.split("\n\n")[:-1]
    ]
    assert abs(sum(sizes) / len(sizes) - 42) < 4


def test_confidence_tells_on_track_from_off_track_and_nothing_by_default() -> None:
    def mean(answer: Answer) -> float:
        return (answer.candidates[0].logprob or 0.0) / answer.candidates[0].num_tokens

    told = run(direct, 60, p=0.8, confidence=0.5)
    on = [mean(a) for i, a in enumerate(told) if a.final == truth(f"s{i}")]
    off = [mean(a) for i, a in enumerate(told) if a.final != truth(f"s{i}")]
    assert min(on) > -0.8 and sum(on) / len(on) > sum(off) / len(off) + 0.1
    assert {round(mean(a), 9) for a in run(direct, 10, p=0.8)} == {-0.5}


def test_a_thinker_answers_by_what_it_has_found() -> None:
    found = run(direct, 200, hazard=0.2, steps=5)
    law = 1 - 0.8**5
    right = sum(a.final == truth(f"s{i}") for i, a in enumerate(found)) / 200
    assert abs(right - law) < 4 * math.sqrt(law * (1 - law) / 200)
    for answer in found:
        marks = "".join(states(answer.thinking))
        assert set(marks) <= {"n", "f"} and "fn" not in marks and len(marks) == 5
    assert any("fn" in "".join(states(a.thinking)) for a in run(direct, 60, hazard=0.5, forget=0.5, steps=8))


@pytest.mark.parametrize("options", [{"p": 0.7}, {"hazard": 0.3}, {"p": 0.7, "cv": 1.0, "deceive": 0.4}])
@pytest.mark.parametrize("chunk", [1, 3, 7])
def test_draws_in_pieces_are_the_uninterrupted_ones(options, chunk: int) -> None:
    pieces = run(partial(first_finished, n=3, m=3, chunk=chunk), 8, steps=4, **options)
    whole = run(partial(majority, n=3), 8, steps=4, **options)
    assert [a.candidates for a in pieces] == [a.candidates for a in whole]


def test_a_cut_by_length_never_changes_what_came_before() -> None:
    engine = simulated(p=0.8)

    async def go(size: int) -> str:
        prompt = engine.render(ask("cut").messages, None)
        (c,) = await engine.generate(prompt, Sampling(max_tokens=size, seed=1), range(1), lambda usage: None)
        return c.text

    full = asyncio.run(go(500))
    for size in range(1, len(full)):
        assert asyncio.run(go(size)) == full[:size]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"p": 1.5}, "p"),
        ({"repair": -0.1}, "repair"),
        ({"attractor": 2.0}, "attractor"),
        ({"deceive": 0.7, "repair": 0.7}, "deceive"),
        ({"hazard": 1.5}, "hazard"),
        ({"cv": 0.0}, "cv"),
        ({"spread": (0.0, 1.0)}, "spread"),
    ],
)
def test_parameters_out_of_range_are_refused_by_name(options, field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        simulated(**options)


def test_what_scoring_two_places_costs_does_not_depend_on_which_is_scored_first() -> None:
    """Places that spell the same are scored by themselves, as their order is the schedule's; a path pays once."""
    parent, long, short = (
        Prompt("", tuple(map(ord, text)), path=path, problem_id="p")
        for path, text in (((0,), "Gab"), ((0, 0), "Gabcd"), ((0, 1), "Gabc"))
    )
    for order in ([parent, long, short], [parent, short, long]):
        usages: list[Usage] = []
        asyncio.run(simulated_scorer(noise=1.0).score([*order, order[-1]], usages.append))
        assert sum(usage.scored for usage in usages) == 3 + 2 + 1
