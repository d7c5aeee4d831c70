"""Summaries count what the records hold, and their curves equal the closed forms."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from evals.numbers.compare import Side, compare_all
from evals.numbers.summary import curve_values, read_summary, summarise, votes, write_summary
from tests.evals.pools import FLOPS, SCORED, TOKENS, failed, make_record
from ttc.core import Message, Problem, Record, Strategy, Verdict
from ttc.engines.simulated import simulated, truth
from ttc.errors import ConfigError, RecordError
from ttc.session.solve import solve
from ttc.strategies.confidence import confidence
from ttc.strategies.knockout import knockout
from ttc.strategies.majority import majority

CONFIG = {"strategy": "majority", "params": {"n": 4}, "task": "arithmetic", "level": 2, "seed": 5, "engine": "scripted"}


def points(entry: dict[str, object], kind: str) -> dict[int, dict[str, float]]:
    return {point["k"]: point for point in entry["curve"] if point["kind"] == kind}  # type: ignore[attr-defined]


def test_counts_rates_and_costs_are_those_of_the_records() -> None:
    records = [
        make_record("a", ["1", "1", "2", None], at_s=2.0),
        make_record("b", ["2", "2", "1", "3"], at_s=5.0),
        make_record("c", [None, None, None, None], chosen=None, session=2, at_s=3.0),
        failed("d"),
    ]
    entry = summarise(records, CONFIG)
    assert (entry["problems"], entry["n"], entry["errors"]) == (4, 4, 1)
    assert entry["accuracy"] == 0.25
    assert entry["low"] <= 0.25 <= entry["high"]
    assert entry["coverage"] == 0.5
    assert entry["selection_regret"] == 0.25
    assert entry["truncated"] == entry["no_answer"] == 0.25
    assert entry["verdicts"] == {"correct": 1, "incorrect": 1, "no_answer": 1}
    assert entry["tokens_per_problem"] == 3 * 4 * TOKENS / 4
    assert entry["usage"]["generated"] == 3 * 4 * TOKENS
    assert entry["flops_per_problem"] == 3 * 4 * FLOPS / 4
    assert entry["seconds"] == 5.0 + 3.0
    assert (entry["strategy"], entry["task"], entry["level"], entry["engine"]) == (
        "majority",
        "arithmetic",
        2,
        "scripted",
    )
    assert entry["mde"] > 0


def test_the_curve_of_a_pool_is_exact_and_priced_by_its_draws() -> None:
    records = [make_record("a", ["1", "2", "2", "2"], chosen=1), make_record("b", ["1", "1", "1", "2"])]
    entry = summarise(records, CONFIG)
    majority, ceiling = points(entry, "majority"), points(entry, "pass")
    assert {k: p["accuracy"] for k, p in majority.items()} == pytest.approx({1: 0.5, 2: 0.5, 4: 0.5})
    assert {k: p["accuracy"] for k, p in ceiling.items()} == pytest.approx({1: 0.5, 2: (0.5 + 1) / 2, 4: 1.0})
    assert {k: p["tokens"] for k, p in majority.items()} == {1: TOKENS, 2: 2 * TOKENS, 4: 4 * TOKENS}
    assert majority[4]["flops"] == 4 * FLOPS == entry["flops_per_problem"]
    assert entry["pass_at_k"] == pytest.approx({"1": 0.5, "2": 0.75, "4": 1.0})
    assert entry["best_of_k"] == {}


def test_a_scored_pool_adds_best_of_n_and_the_weighted_vote_and_prices_the_scorer() -> None:
    records = [make_record("a", ["1", "2", "2", "2"], scores=[0.9, 0.2, 0.3, 0.1])]
    entry = summarise(records, CONFIG)
    best = points(entry, "best_of_n")
    assert {k: p["accuracy"] for k, p in best.items()} == pytest.approx({1: 0.25, 2: 0.5, 4: 1.0})
    assert best[4]["tokens"] == 4 * (TOKENS + SCORED) == entry["tokens_per_problem"]
    assert points(entry, "weighted")[4]["accuracy"] == 1.0
    assert points(entry, "majority")[4]["accuracy"] == 0.0
    assert points(entry, "majority")[4]["tokens"] == 4 * TOKENS
    assert points(entry, "majority")[4]["flops"] is None


def test_the_order_of_the_records_changes_no_figure() -> None:
    scores = [[((7 * i + 3 * number) % 20 + 1) / 20 for i in range(14)] for number in range(6)]
    records = [make_record(str(i), list("12213121321123"), scores=row) for i, row in enumerate(scores)]
    curve, turned = (summarise(part, CONFIG)["curve"] for part in (records, records[::-1]))
    assert all(0 < point["accuracy"] < 1 for point in curve if point["kind"] == "weighted")
    for figure in ("accuracy", "low", "high"):
        assert [point[figure] for point in curve] == pytest.approx([point[figure] for point in turned], rel=1e-9)


def test_log_probability_scores_give_no_weighted_vote() -> None:
    entry = summarise([make_record("a", ["1", "2"], scores=[-0.5, -2.0])], CONFIG)
    assert not points(entry, "weighted")
    assert points(entry, "best_of_n")[2]["accuracy"] == 1.0


def test_the_leaves_of_a_tree_are_not_sub_sampled() -> None:
    entry = summarise([make_record("a", ["1", "2"], paths=[(0, 1), (2, 0)])], CONFIG)
    assert entry["curve"] == [] and entry["pass_at_k"] == {}
    assert entry["coverage"] == 1.0


def test_pools_of_different_sizes_are_sub_sampled_to_the_smallest() -> None:
    records = [make_record("a", ["1"] * 4), make_record("b", ["2", "1"]), failed("c")]
    majority = points(summarise(records, CONFIG), "majority")
    assert {k: p["accuracy"] for k, p in majority.items()} == pytest.approx({1: 0.5, 2: 0.5})
    assert curve_values([votes(record) for record in records], "majority", 2, 0) == pytest.approx([1.0, 0.5, 0.0])


def test_difficulties_are_reported_apart() -> None:
    records = [make_record("a", ["1"], difficulty="1"), make_record("b", ["2"], difficulty="2")]
    groups = summarise(records, CONFIG)["by_difficulty"]
    assert {name: group["accuracy"] for name, group in groups.items()} == {"1": 1.0, "2": 0.0}


def test_a_summary_survives_the_disk_and_a_broken_one_is_named(tmp_path: Path) -> None:
    entry = summarise([make_record("a", ["1", "2"])], CONFIG)
    write_summary(tmp_path, [{**entry, "records": "."}])
    (back,) = read_summary(tmp_path)
    assert back == json.loads(json.dumps({**entry, "records": "."}))
    (tmp_path / "summary.json").write_text('{"runs": 3}')
    with pytest.raises(RecordError, match="runs: expected a list"):
        read_summary(tmp_path)
    with pytest.raises(ConfigError, match=r"has no summary.json"):
        read_summary(tmp_path / "none")


def test_a_run_without_records_gives_no_figure_and_still_valid_json(tmp_path: Path) -> None:
    write_summary(tmp_path, [summarise([], CONFIG)])
    assert read_summary(tmp_path)[0]["accuracy"] is None


def of_strategy(strategy: Strategy, **engine: Any) -> list[Record]:
    """What a strategy gave on ten simulated problems."""
    problems = [Problem(f"p{i}", (Message("user", f"q{i}"),), "number") for i in range(10)]
    reasoner = simulated(p=0.8, steps=4, **engine)
    records = []
    for problem in problems:
        answer = asyncio.run(solve(problem, engine=reasoner, strategy=strategy, seed=1))
        verdicts = tuple(
            Verdict("correct" if one.final == truth(problem.messages[0].content) else "incorrect")
            for one in answer.candidates
        )
        records.append(Record(problem, truth(problem.messages[0].content), answer, verdicts[0], verdicts))
    return records


def test_draws_are_priced_apart_from_what_a_strategy_asks_beside_them() -> None:
    votes_entry = summarise(of_strategy(partial(majority, n=4)), CONFIG)
    matches = of_strategy(partial(knockout, n=4))
    entry = summarise(matches, CONFIG)
    assert entry["tokens_per_problem"] > votes_entry["tokens_per_problem"]
    tokens = [[point["tokens"] for point in each["curve"]] for each in (entry, votes_entry)]
    assert tokens[0] == tokens[1]
    assert {point["flops"] for point in entry["curve"]} == {None}
    rival = Side("tree", of_strategy(partial(majority, n=2)))
    (item,) = compare_all([Side("knockout", matches), rival], seed=0)
    assert item.equal_flops is None and item.needed_n is None


def test_flops_of_a_vote_are_not_those_of_the_judge_beside_it() -> None:
    def judged(record: Record) -> Record:
        assert record.answer is not None
        usage = replace(record.answer.usage, scored=0, judged=40)
        return replace(record, answer=replace(record.answer, usage=usage))

    records = [judged(make_record(f"p{i}", ["1", "2"], scores=[0.9, 0.2])) for i in range(3)]
    assert points(summarise(records, CONFIG), "majority")[2]["flops"] is None
    (item,) = compare_all([Side("best_of_n", records), Side("again", records)], seed=0)
    assert item.equal_flops is None


def test_traces_that_were_aborted_for_what_they_said_are_no_pool() -> None:
    strategy = partial(confidence, n=8, warmup=4, consensus=2.0, chunk=8, group=8)
    records = of_strategy(strategy, confidence=1.0)
    assert any(event.kind == "prune" for record in records for event in record.answer.trace)  # type: ignore[union-attr]
    assert summarise(records, CONFIG)["curve"] == []


def test_a_vote_of_the_whole_pool_costs_what_the_run_does_also_where_problems_failed() -> None:
    records = [make_record("a", ["1", "2"]), make_record("b", ["1", "1"]), failed("c"), failed("d")]
    entry = summarise(records, CONFIG)
    whole = points(entry, "majority")[2]
    assert whole["accuracy"] == pytest.approx(0.375)
    assert (whole["tokens"], whole["flops"]) == (entry["tokens_per_problem"], entry["flops_per_problem"])
    assert points(entry, "pass")[1]["tokens"] == entry["tokens_per_problem"] / 2


def test_difficulties_stand_in_the_order_of_their_numbers_and_one_that_is_not_told_says_so() -> None:
    records = [make_record(f"p{name}", ["1"], difficulty=name) for name in ("10", "2", "1", None)]
    assert list(summarise(records, CONFIG)["by_difficulty"]) == ["1", "2", "10", "not told"]


def test_a_verifier_that_reads_whole_texts_covers_what_it_finds_right() -> None:
    records = [make_record("a", [None, None]), make_record("b", [None, "2"])]
    right = [replace(record, verdict=Verdict("correct"), verdicts=(Verdict("correct"),) * 2) for record in records]
    entry = summarise(right, CONFIG)
    assert (entry["accuracy"], entry["coverage"], entry["selection_regret"]) == (1.0, 1.0, 0.0)
    assert entry["pass_at_k"] == {"1": 1.0, "2": 1.0} and entry["maj_at_k"] == {"1": 0.25, "2": 0.5}


@pytest.mark.parametrize("finals", [["1", "1", "1", "1"], ["2", "2", "2", "2"], ["1", "2", "1", "2"]])
def test_where_no_cluster_differs_no_detectable_difference_is_told(finals: list[str]) -> None:
    records = [make_record(f"p{i}", [final], cluster=f"c{i // 2}") for i, final in enumerate(finals)]
    assert summarise(records, CONFIG)["mde"] is None
    (item,) = compare_all([Side("a", records), Side("b", [make_record(f"p{i}", ["1"]) for i in range(4)])], seed=0)
    assert item.detectable is None
