"""`ttc report`: rebuilds the report of finished, interrupted and several runs from their folders alone."""

import argparse
import json
import re
from dataclasses import replace

import pytest

from evals.commands import report
from evals.numbers.statistics import mean_interval
from evals.numbers.summary import summarise, write_summary
from evals.run_folder import CONFIG, RECORDS
from tests.evals.pools import make_record
from ttc.cli.cli import main
from ttc.core import Verdict
from ttc.errors import ConfigError
from ttc.records import RecordFile

CONFIG_OF_A_RUN = {"strategy": "majority", "params": {"n": 4}, "task": "toy", "level": 2, "seed": 1}


def make_run(folder, records, **changes):
    folder.mkdir(parents=True)
    (folder / CONFIG).write_text(json.dumps({"digest": "x", "config": {**CONFIG_OF_A_RUN, **changes}}))
    with RecordFile(folder / RECORDS) as file:
        for record in records:
            file.append(record)


@pytest.fixture
def records():
    return [make_record(f"p{i}", ["1", "1", "2", None] if i % 3 else ["2", "2", "1", "1"]) for i in range(9)]


def command(*arguments):
    parser = argparse.ArgumentParser()
    report.register(parser.add_subparsers())
    args = parser.parse_args(["report", *map(str, arguments)])
    return args.run(args)


def test_report_rebuilds_from_a_folder_of_several_runs(tmp_path, records, capsys):
    make_run(tmp_path / "all" / "majority", records)
    entry = summarise(records, CONFIG_OF_A_RUN) | {"records": "majority", "accuracy": 0.4321}
    write_summary(tmp_path / "all", [entry])
    assert command(tmp_path / "all") == 0
    out, err = capsys.readouterr()
    assert "43.2 %" in out and err == f"report: {tmp_path / 'all' / 'report.html'}\n"
    assert "43.2 %" in (tmp_path / "all" / "report.html").read_text()


def test_report_of_an_interrupted_run_uses_the_records_it_has(tmp_path, records, capsys):
    make_run(tmp_path / "run", records[:3])
    assert command(tmp_path / "run", "--out", tmp_path / "page") == 0
    assert "3 problems" in capsys.readouterr().out
    assert (tmp_path / "page" / "report.html").exists()


def test_runs_that_differ_by_their_seeds_are_one_row_over_problems_and_draws(tmp_path, capsys):
    rights = {1: "1101", 2: "1000", 3: "1100"}
    for seed, row in rights.items():
        records = [make_record(f"p{i}", ["1" if right == "1" else "2"] * 4) for i, right in enumerate(row)]
        make_run(tmp_path / f"s{seed}", records, seed=seed)
    make_run(tmp_path / "other", records, seed=1, params={"n": 4, "of": "tree"})
    folders = [tmp_path / name for name in ("s1", "s2", "s3", "other")]
    assert command(*folders, "--out", tmp_path / "page") == 0
    out, err = capsys.readouterr()
    (row,) = [line for line in out.splitlines() if line.startswith("majority N=4, 3 seeds")]
    shares = [1.0, 2 / 3, 0.0, 1 / 3]
    exact = mean_interval([float(c) for row in rights.values() for c in row], list("0123") * 3, seed=0)
    assert exact.value == pytest.approx(sum(shares) / 4)
    assert "50.0 %" in row and out.startswith("toy level 2, 4 problems")
    low, high = map(float, re.findall(r"(\d+\.\d)–(\d+\.\d)", row)[0])
    assert (low, high) == pytest.approx((100 * exact.low, 100 * exact.high), abs=1.5)
    assert "3 seeds: 75.0 % with seed 1, 25.0 % with seed 2, 50.0 % with seed 3" in err
    assert f" {make_record('p', ['1'] * 4).answer.usage.tokens:,} " in row  # of one run
    assert "4 problems" in (tmp_path / "page" / "report.html").read_text()
    assert command(*folders, "--per-seed", "--out", tmp_path / "page") == 0
    assert capsys.readouterr().out.count("majority N=4, seed=") == 4


def test_a_seed_that_was_interrupted_has_a_row_of_its_own(tmp_path, records, capsys):
    for seed, part in ((1, records), (2, records[:4]), (3, records)):
        make_run(tmp_path / f"s{seed}", part, seed=seed)
    assert command(tmp_path / "s1", tmp_path / "s2", "--out", tmp_path / "page") == 0
    out = capsys.readouterr().out
    assert "majority N=4, seed=1" in out and "majority N=4, seed=2" in out and "seeds" not in out
    assert command(tmp_path / "s1", tmp_path / "s3", "--out", tmp_path / "page") == 0
    assert "majority N=4, 2 seeds" in capsys.readouterr().out


def test_a_run_whose_records_are_gone_is_reported_by_its_summary_and_says_so(tmp_path, records, capsys):
    make_run(tmp_path / "run", records)
    write_summary(tmp_path / "run", [summarise(records, CONFIG_OF_A_RUN) | {"records": "."}])
    (tmp_path / "run" / RECORDS).unlink()
    assert command(tmp_path / "run") == 0
    out, err = capsys.readouterr()
    assert "9 problems" in out
    assert f"{tmp_path / 'run'} has no records any more: the numbers are those of its summary" in err


def test_report_joins_runs_by_problem(tmp_path, records):
    for name in "ab":
        make_run(tmp_path / name, records)
    assert command(tmp_path / "a", tmp_path / "b", "--out", tmp_path / "page") == 0
    text = (tmp_path / "page" / "report.html").read_text()
    assert '"runs":["majority N=4 #1","majority N=4 #2"]' in text


def test_report_of_several_runs_asks_where_to_write(tmp_path):
    with pytest.raises(ConfigError, match="--out DIR"):
        command(tmp_path / "a", tmp_path / "b")


def test_report_of_no_run_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="not a run"):
        command(tmp_path)


def test_report_of_a_run_without_records_is_refused(tmp_path):
    make_run(tmp_path / "run", [])
    with pytest.raises(ConfigError, match="no records yet"):
        command(tmp_path / "run")


def test_an_evaluation_ends_with_its_page_and_a_figure(tmp_path):
    arguments = ["eval", "--task", "simulated", "--engine", "simulated", "--strategy", "majority", "--limit", "3"]
    assert main([*arguments, "--out", str(tmp_path / "run")]) == 0
    assert {"report.html", "figure.png"} <= {path.name for path in (tmp_path / "run").iterdir()}


def test_a_report_of_a_run_that_has_gone_on_since_its_summary_counts_what_it_holds_now(tmp_path, records, capsys):
    make_run(tmp_path / "run", records[:4])
    entry = summarise(records[:4], CONFIG_OF_A_RUN) | {"model": "m", "records": "."}
    write_summary(tmp_path / "run", [entry])
    with RecordFile(tmp_path / "run" / RECORDS) as file:
        for record in records[4:]:
            file.append(record)
    assert command(tmp_path / "run") == 0
    out, err = capsys.readouterr()
    assert "9 problems" in out and "4 problems" not in out
    assert f"{tmp_path / 'run'} has gone on since it was summarised: the numbers are those of the 9 problems" in err


def test_a_report_of_a_summary_of_before_has_the_intervals_of_now(tmp_path, records, capsys):
    make_run(tmp_path / "run", records)
    entry = summarise(records, CONFIG_OF_A_RUN) | {"model": "m", "records": "."}
    before = {name: value for name, value in entry.items() if name != "intervals"} | {"low": 0.123, "high": 0.987}
    write_summary(tmp_path / "run", [before])
    assert command(tmp_path / "run") == 0
    told = capsys.readouterr()
    assert "12.3–98.7" not in told.out and f"{100 * entry['low']:.1f}–{100 * entry['high']:.1f}" in told.out
    assert "has gone on" not in told.err


def test_a_report_of_a_run_that_was_judged_again_since_its_summary_has_the_verdicts_of_now(tmp_path, records, capsys):
    late = replace(records[0], verdict=Verdict("timeout"))
    make_run(tmp_path / "run", [late])
    write_summary(tmp_path / "run", [summarise([late], CONFIG_OF_A_RUN) | {"model": "m", "records": "."}])
    with RecordFile(tmp_path / "run" / RECORDS) as file:
        file.append(replace(late, verdict=Verdict("correct")))
    assert command(tmp_path / "run") == 0
    told = capsys.readouterr()
    assert "has gone on since it was summarised" in told.err and "100.0 %" in told.out and "no verdict" not in told.out


def test_a_report_of_runs_that_count_flops_in_different_ways_says_so(tmp_path, records, capsys):
    for name, mark in (("old", {}), ("new", {"counting": 2})):
        make_run(tmp_path / name, records)
        write_summary(tmp_path / name, [summarise(records, CONFIG_OF_A_RUN | mark) | {"records": "."}])
    assert command(tmp_path / "old", tmp_path / "new", "--out", tmp_path / "page") == 0
    assert "these runs count FLOPs in different ways" in capsys.readouterr().err
    assert command(tmp_path / "new") == 0
    assert "count FLOPs" not in capsys.readouterr().err


def test_a_place_that_cannot_hold_a_report_is_refused(tmp_path, records):
    make_run(tmp_path / "run", records)
    with pytest.raises(ConfigError, match=r"--out .*run\.json/page: .*run\.json is a file; name a folder"):
        command(tmp_path / "run", "--out", tmp_path / "run" / "run.json" / "page")
