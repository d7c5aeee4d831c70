"""Comparisons are paired, corrected, and honest about cost."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path

import pytest

from benchmarks.vllm_accuracy import compared
from evals.commands.compare import run as compare_command
from evals.numbers.compare import Side, compare_all
from evals.numbers.statistics import holm
from evals.numbers.summary import summarise, write_summary
from evals.run_folder import digest
from tests.evals.pools import FLOPS, failed, make_record, mcnemar
from ttc.core import Record, Verdict
from ttc.errors import ConfigError
from ttc.records import RecordFile


def side(label: str, right: str, **options) -> Side:  # type: ignore[no-untyped-def]
    """A run whose problem i is right where `right[i]` is "1"."""
    return Side(label, [make_record(f"p{i}", ["1" if c == "1" else "2"], **options) for i, c in enumerate(right)])


def test_the_difference_is_paired_by_problem_whatever_the_order() -> None:
    first, second = side("a", "1100110011" * 200), side("b", "1110110011" * 200)
    (item,) = compare_all([first, Side("b", list(reversed(second.records)))], seed=0)
    assert item.difference == pytest.approx(0.1)
    assert (item.only_first, item.only_second) == (0, 200)
    assert 0 < item.low < 0.1 < item.high < 0.2
    assert item.p_value == pytest.approx(mcnemar(0, 200))
    assert item.tokens_ratio == item.flops_ratio == 1.0
    unpaired = compare_all([first, side("b", "0011001110" * 200)], seed=0)[0]
    assert unpaired.high - unpaired.low > 3 * (item.high - item.low)


def test_problems_of_one_cluster_are_one_piece_of_evidence() -> None:
    def run(label: str, right: str) -> Side:
        finals = ["1" if c == "1" else "2" for c in right]
        return Side(label, [make_record(f"p{i}", [final], cluster=f"c{i // 5}") for i, final in enumerate(finals)])

    (item,) = compare_all([run("a", "0" * 20), run("b", "1" * 10 + "0" * 10)], seed=0)
    assert item.pairs == 4
    assert (item.only_first, item.only_second) == (0, 10)
    assert item.p_value == pytest.approx(0.5) and mcnemar(0, 10) < 0.01


def test_where_nothing_differs_no_detectable_difference_is_told() -> None:
    (item,) = compare_all([side("a", "1010"), side("b", "1010")], seed=0)
    assert item.pairs == item.problems
    assert item.detectable is None and item.low < 0 < item.high
    (item,) = compare_all([side("a", "1010"), side("b", "1110")], seed=0)
    assert item.detectable is not None and item.detectable > 0


def test_only_shared_problems_count() -> None:
    first = side("a", "1010")
    second = Side("b", [*side("b", "11").records, make_record("other", ["1"])])
    (item,) = compare_all([first, second], seed=0)
    assert (item.problems, item.accuracy_first, item.accuracy_second) == (2, 0.5, 1.0)
    assert (item.alone_first, item.alone_second) == (2, 1)


def test_the_command_says_how_many_problems_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = write_run(tmp_path / "few", "direct", list(side("few", "11").records))
    more = write_run(tmp_path / "more", "majority", list(side("more", "11100").records))
    for folders, is_told in (([few, few], False), ([few, more], True)):
        compare_command(argparse.Namespace(runs=folders, seed=0, json=False))
        line = "  left out     0 of direct, 3 of majority: the other run has no record of these problems\n"
        assert (line in capsys.readouterr().out) is is_told


def test_a_failed_problem_counts_as_not_solved() -> None:
    (item,) = compare_all([side("a", "11"), Side("b", [make_record("p0", ["1"]), failed("p1")])], seed=0)
    assert item.accuracy_second == 0.5


def test_all_pairs_are_corrected_together() -> None:
    items = compare_all([side("a", "0" * 12), side("b", "1" * 6 + "0" * 6), side("c", "1" * 12)], seed=0)
    assert [(item.first, item.second) for item in items] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert [item.p_holm for item in items] == holm([item.p_value for item in items])


def test_equal_flops_takes_the_vote_of_as_many_draws_as_cost_at_least_as_much() -> None:
    pool = [make_record(f"p{i}", ["1", "2", "1", "2", "2", "2", "2", "2"]) for i in range(20)]
    rival = [make_record(f"p{i}", ["1"] * 3, paths=[(0, 0), (0, 1), (1, 0)]) for i in range(20)]
    (item,) = compare_all([Side("majority", pool), Side("tree", rival)], seed=0)
    assert item.equal_flops is not None and item.needed_n is None
    assert item.equal_flops.k == 3
    assert item.equal_flops.flops_ratio == pytest.approx(1.0)
    vote = 6 / 56 * 2 / 2 + 0  # both right ones among three: C(2,2) C(6,1) / C(8,3)
    assert item.equal_flops.difference == pytest.approx(1 - vote)
    assert item.flops_ratio == pytest.approx(3 / 8)


@pytest.mark.parametrize("flops", [0.1, 3.3e11, 123456789.7])
def test_a_run_that_cost_as_much_as_n_draws_is_compared_with_the_vote_of_n(flops: float) -> None:
    def priced(record: Record) -> Record:
        assert record.answer is not None
        usage = dataclasses.replace(record.answer.usage, flops=flops * (1 + int(record.problem.id[1:])))
        return dataclasses.replace(record, answer=dataclasses.replace(record.answer, usage=usage))

    pool = [priced(make_record(f"p{i}", ["1"] * 7)) for i in range(9)]
    for first, second in ((pool, pool), (pool, pool[::-1])):
        (item,) = compare_all([Side("majority", first), Side("best_of_n", second)], seed=0)
        assert item.needed_n is None and item.equal_flops is not None and item.equal_flops.k == 7


def test_a_pool_too_small_for_equal_flops_says_how_large_it_must_be() -> None:
    pool = [make_record("p0", ["1", "2"])]
    rival = [make_record("p0", ["1"] * 5, paths=[(0, i) for i in range(5)])]
    (item,) = compare_all([Side("majority", pool), Side("tree", rival)], seed=0)
    assert item.equal_flops is None and item.needed_n == 5
    assert FLOPS > 0


def test_runs_of_other_seeds_are_one_side_whose_problems_count_once() -> None:
    pool = [make_record(f"p{i}", ["1", "2", "1"]) for i in range(4)]
    once = Side("b", [make_record(f"p{i}", [final]) for i, final in enumerate("1122")])
    twice = Side("b", [*once.records, *(make_record(f"p{i}", [final]) for i, final in enumerate("1212"))])
    one, two = (compare_all([Side("a", pool), other], seed=0)[0] for other in (once, twice))
    assert (two.problems, two.accuracy_second, two.difference) == (4, 0.5, -0.5)
    assert (two.flops_ratio, two.tokens_ratio) == (one.flops_ratio, one.tokens_ratio)
    assert two.equal_flops is not None and one.equal_flops is not None and two.equal_flops.k == one.equal_flops.k == 1
    assert (two.only_first, two.only_second) == (3, 0)  # shares lost: 0, 1/2, 1/2 and 1
    assert two.pairs == 4 and two.p_value == pytest.approx(mcnemar(2, 0))
    assert compare_all([Side("a", pool * 2), twice], seed=0)[0] == two


def test_the_command_sets_no_seed_against_another_where_strategies_ran_with_several(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [tmp_path / f"{strategy}{seed}" for strategy in ("direct", "majority") for seed in (1, 2)]
    for folder in folders:
        strategy, seed = folder.name[:-1], int(folder.name[-1])
        write_run(folder, strategy, [make_record(f"p{i}", ["1"]) for i in range(3)], seed)
    assert compare_command(argparse.Namespace(runs=folders, seed=0, json=False)) == 0
    told = capsys.readouterr().out
    assert told.count(" minus ") == 1 and "majority, 2 seeds minus direct, 2 seeds, 3 shared problems" in told
    assert compare_command(argparse.Namespace(runs=folders[:2], seed=0, json=False)) == 0
    assert "direct, seed=2 minus direct, seed=1" in capsys.readouterr().out
    other = folders[0] / "run.json"
    config = {**json.loads(other.read_text())["config"], "contents": {"weights of model m": "other"}}
    other.write_text(json.dumps({"digest": digest(config), "config": config}))
    assert compare_command(argparse.Namespace(runs=folders, seed=0, json=False)) == 0
    assert "direct, seed=2 minus direct, seed=1" in capsys.readouterr().out


def test_runs_that_cannot_be_compared_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least two"):
        compare_all([side("a", "1")], seed=0)
    with pytest.raises(ConfigError, match="share no problem"):
        compare_all([side("a", "1"), Side("b", [make_record("other", ["1"])])], seed=0)
    with pytest.raises(ConfigError, match="b has no finished problem yet"):
        compare_all([side("a", "1"), Side("b", [])], seed=0)
    with pytest.raises(ConfigError, match="different targets for problem 'p0'"):
        compare_all([side("a", "1"), Side("b", [make_record("p0", ["1"], target="9")])], seed=0)


def write_run(folder: Path, strategy: str, records: list[Record], seed: int = 0) -> Path:
    config = {"strategy": strategy, "params": {}, "seed": seed}
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"digest": digest(config), "config": config}))
    with RecordFile(folder / "records.jsonl") as file:
        for record in records:
            file.append(record)
    write_summary(folder, [{**summarise(records, config), "records": "."}])
    return folder


def test_the_command_says_which_run_has_failed_problems(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = write_run(tmp_path / "a", "direct", list(side("a", "11").records))
    lost = write_run(tmp_path / "b", "majority", [make_record("p0", ["1"]), failed("p1")])
    for folders, told in (([whole, whole], False), ([whole, lost], True)):
        compare_command(argparse.Namespace(runs=folders, seed=0, json=False))
        line = "  failed       0 of direct, 1 of majority: counted as not right; "
        assert (line in capsys.readouterr().out) is told


def test_the_command_prints_tables_and_json_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [
        write_run(tmp_path / name, "direct", list(side(name, bits).records))
        for name, bits in [("a", "1000"), ("b", "1110")]
    ]
    assert compare_command(argparse.Namespace(runs=folders, seed=0, json=False)) == 0
    text = capsys.readouterr().out
    assert "direct #2 minus direct #1, 4 shared problems" in text
    assert "+50.0 points" in text and "2 gained, 0 lost" in text
    assert compare_command(argparse.Namespace(runs=folders, seed=0, json=True)) == 0
    assert json.loads(capsys.readouterr().out)["difference"] == 0.5


def test_the_benchmark_of_vllm_takes_problems_of_one_cluster_for_one_piece_of_evidence() -> None:
    row = compared("direct", [0] * 10, [1] * 10, ["a"] * 5 + ["b"] * 5)
    assert row["p"] == 0.5 and mcnemar(0, 10) < 0.01
    assert (row["embedded"], row["vllm"], row["difference"]) == (0, 1, 1)


def test_answers_without_a_verdict_are_told_by_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import argparse

    whole = write_run(tmp_path / "a", "direct", list(side("a", "11").records))
    late = dataclasses.replace(make_record("p1", ["1"]), verdict=Verdict("timeout"))
    undecided = write_run(tmp_path / "b", "majority", [make_record("p0", ["1"]), late])
    for folders, told in (([whole, whole], False), ([whole, undecided], True)):
        compare_command(argparse.Namespace(runs=folders, seed=0, json=False))
        assert ("  no verdict   0 of direct, 1 of majority: counted as not right" in capsys.readouterr().out) is told


def test_runs_that_count_flops_in_different_ways_are_compared_with_a_word_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = [make_record(f"p{i}", ["1"]) for i in range(4)]
    folders = [write_run(tmp_path / name, name, records) for name in ("a", "b", "c")]
    for folder in folders[1:]:
        stored = json.loads((folder / "run.json").read_text())
        stored["config"]["counting"] = 2
        (folder / "run.json").write_text(json.dumps(stored))
        (folder / "summary.json").unlink()  # as of a run that is not finished
    assert compare_command(argparse.Namespace(runs=folders[:2], seed=0, json=False)) == 0
    assert "these runs count FLOPs in different ways" in capsys.readouterr().err
    assert compare_command(argparse.Namespace(runs=folders[1:], seed=0, json=False)) == 0
    assert capsys.readouterr().err == ""
