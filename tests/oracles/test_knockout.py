"""Oracle 28: the law of a knockout among answers with a comparator of known accuracy."""

from __future__ import annotations

import asyncio
import itertools
import re
from functools import partial

import pytest

from tests.oracles.tools import near, say
from tests.ttc.questions import ask
from ttc import seeds
from ttc.core import Score, Scorer
from ttc.engines.scripted import ScriptedEngine
from ttc.session.solve import solve
from ttc.strategies.knockout import knockout

PAPER = 1e9
"""The trust at which votes only break ties, as in the paper."""


def law(p: float, q: float, rounds: int) -> float:
    for _ in range(rounds):
        p = p * p + 2 * p * (1 - p) * q
    return p


def of_three(q: float) -> float:
    return q**3 + 3 * q**2 * (1 - q)


def contest(p: float, q: float, log: list[str] | None = None) -> ScriptedEngine:
    """Answers are right (1) with chance p; asked to compare, it names the right one with chance q."""

    def script(prompt, path, key):
        asked = prompt.messages[-1].content
        if "<answer_a>" not in asked:
            return f"\\boxed{{{int(seeds.uniform(key, 0) < p)}}}"
        if log is not None:
            log.append(asked)
        first_is_right = "boxed{1}" in asked.partition("<answer_b>")[0].partition("<answer_a>")[2]
        says_first = first_is_right == (seeds.uniform(key, 0) < q)
        return f"Verdict: {'A' if says_first else 'B'}"

    return ScriptedEngine(script)


@pytest.mark.parametrize(("n", "k"), [(2, 1), (4, 1), (8, 1), (4, 3)])
def test_a_knockout_wins_as_its_law_says(n: int, k: int) -> None:
    p, q, runs = 0.4, 0.8, 300
    engine = contest(p, q)

    async def go():
        strategy = partial(knockout, n=n, k=k, trust=PAPER)
        work = (solve(ask(f"k{i}"), engine=engine, strategy=strategy, seed=1) for i in range(runs))
        return await asyncio.gather(*work)

    got = sum(answer.final == "1" for answer in asyncio.run(go())) / runs
    expected = law(p, q if k == 1 else of_three(q), n.bit_length() - 1)
    assert near(got, expected, runs)


def test_every_pair_is_asked_in_both_orders_and_equal_answers_do_not_meet() -> None:
    log: list[str] = []
    strategy = partial(knockout, n=8, k=2, trust=PAPER)
    answer = asyncio.run(solve(ask("k0"), engine=contest(0.5, 1.0, log), strategy=strategy, seed=3))
    assert log and len(log) % 2 == 0

    def sides(asked: str) -> tuple[str, str]:
        a = asked.partition("<answer_a>")[2].partition("</answer_a>")[0].strip()
        b = asked.partition("<answer_b>")[2].partition("</answer_b>")[0].strip()
        return a, b

    pairs = [sides(asked) for asked in log]
    assert sorted(pairs) == sorted((b, a) for a, b in pairs)
    assert all(a != b for a, b in pairs)
    assert answer.final == "1"


@pytest.mark.parametrize("n", [2, 3, 4, 5, 7, 9, 13, 17])
def test_nobody_goes_on_without_a_match_twice_so_that_the_best_plays_as_few_as_can_be_on_average(n: int) -> None:
    """A tree of n leaves is n * log n deep in all, rounded down, and two deeper for each leaf beyond a power of two."""
    played = []
    for best in range(n):

        def script(prompt, path, key, best=best):
            if len(path) == 1:
                return rf"\boxed{{{path[0]}}}"
            one, other = map(int, re.findall(r"boxed\{(\d+)\}", prompt.messages[-1].content))
            played.extend([best] * (best in (one, other)))
            return "Verdict: A" if one == best else "Verdict: B"

        asyncio.run(solve(ask("b"), engine=ScriptedEngine(script), strategy=partial(knockout, n=n, k=1), seed=0))
    rounds = n.bit_length() - 1
    assert len(played) == n * rounds + 2 * (n - 2**rounds)


@pytest.mark.parametrize("n", [2, 3, 5, 6, 7, 12, 13])
def test_whatever_n_all_but_the_best_lose_one_match_and_a_match_is_numbered_by_its_two_answers(n: int) -> None:
    for best in range(n):
        met: list[tuple[int, int]] = []

        def script(prompt, path, key, best=best, met=met):
            if len(path) == 1:
                return rf"\boxed{{{path[0]}}}"
            one, other = map(int, re.findall(r"boxed\{(\d+)\}", prompt.messages[-1].content))
            met.append((one, other))
            return "Verdict: A" if (one - best) % n < (other - best) % n else "Verdict: B"

        engine = ScriptedEngine(script)
        answer = asyncio.run(solve(ask("b"), engine=engine, strategy=partial(knockout, n=n, k=1), seed=0))
        lost = [max(pair, key=lambda i, best=best: (i - best) % n) for pair in met]
        assert answer.final == str(best) and sorted([*lost, best]) == list(range(n))
        asked = [event.path for event in answer.trace if event.kind == "generate" and len(event.path) > 1]
        assert asked == sorted((*pair, 0, 0) for pair in met)


def test_a_larger_n_asks_anew_no_comparison_that_a_smaller_one_makes() -> None:
    def comparisons(n: int) -> dict[tuple[int, ...], object]:
        answer = asyncio.run(solve(ask("k2"), engine=contest(0.5, 0.7), strategy=partial(knockout, n=n, k=3), seed=3))
        return {event.path: event.data for event in answer.trace if event.kind == "generate"}

    few, many = comparisons(4), comparisons(8)
    assert len(few) > 4 and {path: many[path] for path in few if path in many} == few


def test_no_question_is_asked_with_the_seed_of_another_or_of_an_answer() -> None:
    answer = asyncio.run(solve(ask("k1"), engine=contest(0.5, 0.7), strategy=partial(knockout, n=8, k=3), seed=3))
    paths = [event.path for event in answer.trace if event.kind == "generate"]
    assert len(paths) > 8 and len(set(paths)) == len(paths)


def test_a_comparator_that_always_says_a_decides_nothing() -> None:
    def script(prompt, path, key):
        return "Verdict: A" if "<answer_a>" in prompt.messages[-1].content else ["\\boxed{10}", "\\boxed{2}"][path[0]]

    engine = ScriptedEngine(script)
    answer = asyncio.run(solve(ask("x"), engine=engine, strategy=partial(knockout, n=2, k=2), seed=0))
    assert answer.final == "2"  # the shorter one


@pytest.mark.parametrize("finals", ["12233344", "21112", "1222233", "3311122", "4321122"])
def test_among_answers_that_a_comparator_cannot_tell_apart_the_vote_decides(finals: str) -> None:
    """Whoever gave it shortest: the fewer gave an answer, the shorter it is."""

    def script(prompt, path, key):
        if "<answer_a>" in prompt.messages[-1].content:
            return "Verdict: A"
        return "word " * finals.count(finals[path[0]]) + rf"\boxed{{{finals[path[0]]}}}"

    engine = ScriptedEngine(script)
    answer = asyncio.run(solve(ask("v"), engine=engine, strategy=partial(knockout, n=len(finals), k=2), seed=0))
    assert finals.count(answer.final or "") == max(map(finals.count, finals))


def test_a_match_without_a_winner_ends_no_class_that_has_no_other_answer_in_the_field() -> None:
    """The right one, 7, is given once, and recognised in its second match."""

    def script(prompt, path, key):
        asked = prompt.messages[-1].content
        if "<answer_a>" not in asked:
            return "at length " * (path[0] == 0) + rf"\boxed{{{'7112'[path[0]]}}}"
        knows = "boxed{7}" in asked and path[:2] != (0, 1)
        return f"Verdict: {'AB'['boxed{7}' in asked.partition('<answer_b>')[2]] if knows else 'tie'}"

    strategy = partial(knockout, n=4, k=2, trust=PAPER)
    answer = asyncio.run(solve(ask("v"), engine=ScriptedEngine(script), strategy=strategy, seed=0))
    assert answer.final == "7"


@pytest.mark.parametrize(
    ("right", "judge", "trust", "expected"),
    [
        (0.7, 0.5, 2.0, 0.85),  # of 8 draws the vote is right with chance 0.87
        (0.7, 0.5, PAPER, 0.7),
        (0.5, 1.0, 2.0, 0.855),  # at least 3 of 8 are right; the vote: 0.5
        (0.5, 1.0, PAPER, 0.996),  # at least one is
    ],
)
def test_a_judge_that_tosses_a_coin_loses_hardly_anything_of_the_vote_and_a_good_one_beats_it(
    right: float, judge: float, trust: float, expected: float
) -> None:
    runs, engine = 300, contest(right, judge)

    async def go():
        strategy = partial(knockout, n=8, k=2, trust=trust)
        work = (solve(ask(f"c{i}"), engine=engine, strategy=strategy, seed=1) for i in range(runs))
        return await asyncio.gather(*work)

    got = sum(answer.final == "1" for answer in asyncio.run(go())) / runs
    assert near(got, expected, runs)


def judged(finals: str, says: str, **options: float):
    """The knockout of these answers, whose judge says for each question which of the answers 1 and 2 is better."""

    def script(prompt, path, key):
        asked = prompt.messages[-1].content
        if "<answer_a>" not in asked:
            return rf"\boxed{{{finals[path[0]]}}}"
        better = rf"\boxed{{{says[path[-2] + 2 * path[-1]]}}}"
        first = better in asked.partition("<answer_b>")[0]
        return f"Verdict: {'A' if first else 'B'}"

    strategy = partial(knockout, n=len(finals), k=len(says), **options)
    return asyncio.run(solve(ask("w"), engine=ScriptedEngine(script), strategy=strategy, seed=0))


@pytest.mark.parametrize(
    ("finals", "says", "trust", "final"),
    [
        ("11212", "22", 2.0, "2"),  # 3 votes and no verdict against 2 votes and all
        ("11212", "21", 2.0, "1"),
        ("11212", "2221", 2.0, "1"),  # 3 against 2 * 2^(3/4 - 1/4)
        ("11212", "2221", 3.0, "2"),  # 3 against 2 * 3^(1/2)
        ("112112", "22", 2.0, "1"),  # twice the votes
        ("112112", "22", 3.0, "2"),
    ],
)
def test_a_match_goes_to_the_larger_product_of_votes_and_trust(
    finals: str, says: str, trust: float, final: str
) -> None:
    assert judged(finals, says, trust=trust).final == final


def test_an_answer_with_twice_the_votes_of_its_rival_wins_unasked() -> None:
    assert judged("112112", "22").usage.calls == 6
    assert judged("11212", "22").usage.calls > 5


SAID = {"A": 1, "B": -1, "no": 0}


@pytest.mark.parametrize("k", [1, 2, 3, 4])
@pytest.mark.parametrize("options", [(r"at length \boxed{1}", r"\boxed{2}"), (r"\boxed{1}", r"at length \boxed{2}")])
def test_a_match_goes_to_who_has_more_votes_of_both_orders_and_else_to_the_shorter(k: int, options) -> None:
    shorter = str(1 + (len(options[1]) < len(options[0])))
    for said in itertools.product(SAID, repeat=k):

        def script(prompt, path, key, said=said):
            # Question i is draw i // 2 of its order; the odd ones show the second answer first.
            return f"Verdict: {said[path[-2] + 2 * path[-1]]}" if len(path) > 1 else options[path[0]]

        engine = ScriptedEngine(script)
        answer = asyncio.run(solve(ask("m"), engine=engine, strategy=partial(knockout, n=2, k=k), seed=0))
        lead = sum(SAID[word] * (-1) ** i for i, word in enumerate(said))
        assert answer.final == ("1" if lead > 0 else "2" if lead < 0 else shorter), said


def test_an_answer_without_a_final_never_goes_on_and_a_scorer_can_judge() -> None:
    class Table(Scorer):
        async def score(self, prompts, on_usage):
            return [Score(float("{7}" in prompt.generated_text)) for prompt in prompts]

    options = ["no idea at all, sorry", r"\boxed{3}", r"\boxed{7}", r"\boxed{4}"]
    assert say(options, partial(knockout, n=4, scorer=Table())).final == "7"
    assert (
        say(["I cannot do it, sorry.", "This is beyond me, sadly."], partial(knockout, n=2, scorer=Table())).final
        is None
    )
