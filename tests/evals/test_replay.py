"""Replays: other strategies over recorded samples answer, cost and are judged exactly as real runs do."""

from __future__ import annotations

import argparse
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from evals.commands import replay as command
from evals.numbers.summary import read_summary
from evals.run_folder import Run, read_run
from ttc.cli.cli import main
from ttc.core import Record, Usage
from ttc.errors import ConfigError
from ttc.records import RecordFile

pytestmark = pytest.mark.usefixtures("without_matplotlib")

SIMULATED = ["--task", "simulated", "--engine", "simulated", "--set", "engine.p=0.85", "--limit", "12", "--seed", "3"]
SCORED = ["--scorer", "simulated", "--set", "scorer.noise=1.0"]


def evaluate(out: Path, *strategy: str) -> tuple[Record, ...]:
    assert main(["eval", *SIMULATED, "--baseline", "none", "--out", str(out), "--strategy", *strategy]) == 0
    return read_run(out).records


def replayed(source: Path, out: Path, *arguments: str) -> tuple[Record, ...]:
    parser = argparse.ArgumentParser()
    command.register(parser.add_subparsers())
    args = parser.parse_args(["replay", str(source), "--out", str(out), "--strategy", *arguments])
    assert args.run(args) == 0
    return read_run(out).records


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "pool"
    evaluate(folder, "best_of_n", "--n", "12", *SCORED)
    return folder


def outcome(record: Record):
    """All that a replay must repeat."""
    assert record.answer is not None
    answer = record.answer
    return (
        answer.final,
        answer.text,
        answer.stop_cause,
        [replace(candidate, score=None) for candidate in answer.candidates],
        (answer.usage.generated, answer.usage.calls),
        record.verdict and record.verdict.status,
        [verdict.status for verdict in record.verdicts],
    )


@pytest.mark.parametrize(
    "strategy",
    [
        ("majority", "--n", "12"),
        ("majority", "--n", "5"),
        ("adaptive", "--n", "12"),
        ("adaptive", "--n", "12", "--set", "rule=window", "--set", "window=3"),
        ("direct",),
    ],
)
def test_a_replay_is_the_run_it_stands_for(pool: Path, tmp_path: Path, strategy: tuple[str, ...]) -> None:
    real = evaluate(tmp_path / "real", *strategy)
    found = replayed(pool, tmp_path / "replayed", *strategy)
    assert [outcome(record) for record in found] == [outcome(record) for record in real]


@pytest.mark.parametrize("select", ["argmax", "weighted", "pessimistic", "soft"])
def test_selections_over_recorded_scores_are_those_of_a_real_run(pool: Path, tmp_path: Path, select: str) -> None:
    rules = ["best_of_n", "--n", "8", "--set", f"select={select}", "--set", "aggregation=min"]
    real = evaluate(tmp_path / "real", *rules, *SCORED)
    found = replayed(pool, tmp_path / "replayed", *rules)
    assert [outcome(record) for record in found] == [outcome(record) for record in real]
    scores = [[[c.score for c in r.answer.candidates] for r in records if r.answer] for records in (real, found)]
    assert scores[0] == scores[1]


def test_a_whole_replay_costs_what_the_recorded_run_did(pool: Path, tmp_path: Path) -> None:
    for there, here in zip(read_run(pool).records, replayed(pool, tmp_path, "best_of_n"), strict=True):
        assert there.answer is not None and here.answer is not None
        assert here.answer.usage.tokens == there.answer.usage.tokens
        assert here.answer.final == there.answer.final


def test_several_strategies_get_a_folder_each_and_one_summary(pool: Path, tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    command.register(parser.add_subparsers())
    args = parser.parse_args(["replay", str(pool), "--out", str(tmp_path), "--strategy", "majority,best_of_n:n=4"])
    assert args.run(args) == 0
    entries = read_summary(tmp_path)
    assert [(entry["strategy"], entry["n"]) for entry in entries] == [("majority", 12), ("best_of_n", 4)]
    assert all(len(read_run(tmp_path / entry["records"]).records) == 12 for entry in entries)


def test_a_knockout_by_recorded_scores_is_that_of_a_real_run(pool: Path, tmp_path: Path) -> None:
    real = evaluate(tmp_path / "real", "knockout", "--n", "12", *SCORED)
    records = replayed(pool, tmp_path / "replayed", "knockout")
    assert [outcome(record) for record in records] == [outcome(record) for record in real]
    assert [record.answer and record.answer.usage.scored for record in records] == [
        record.answer and record.answer.usage.scored for record in real
    ]


def test_a_token_budget_holds_in_a_replay(pool: Path, tmp_path: Path) -> None:
    records = replayed(pool, tmp_path, "majority", "--budget", "tokens=300")
    for record in records:
        assert record.answer is not None
        assert record.answer.usage.tokens <= 300 and record.answer.stop_cause == "budget"


@pytest.mark.parametrize(
    ("strategy", "reason"),
    [
        (("majority", "--n", "13"), "holds 12 samples"),
        (("tree",), "cannot ask anything new|token ids|holds"),
        (("first_finished", "--n", "4"), "token ids, which a recorded run does not hold; make a new run"),
        (("aggregate", "--n", "4"), "cannot ask anything new"),
        (("refine:feedback=scorer,threshold=2",), "cannot ask anything new"),
        (("no_think_then_think:n=1",), "keeps the thinking settings of the recorded run"),
        (("budget_forcing",), "keeps the thinking settings of the recorded run"),
        (("direct:temperature=0",), "draws are of temperature 0.8, not 0"),
        (("majority", "--scorer", "simulated"), "recorded scores"),
        (("majority", "--set", "sampling.temperature=0.5"), "sampling.KEY has no effect: a replay uses what was"),
    ],
)
def test_what_cannot_be_replayed_is_refused_with_the_reason(
    pool: Path, tmp_path: Path, strategy: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        replayed(pool, tmp_path / "out", *strategy)
    assert not (tmp_path / "out").exists()


def test_a_replay_of_greedy_answers_is_called_greedy(tmp_path: Path) -> None:
    evaluate(tmp_path / "pool", "direct:temperature=0")
    replayed(tmp_path / "pool", tmp_path / "out", "direct:temperature=0")
    replayed(tmp_path / "pool", tmp_path / "again", "direct")
    settings = [read_run(tmp_path / name).config["settings"] for name in ("out", "again")]
    assert settings == [{"temperature": 0.0}] * 2


def test_a_pool_without_scores_or_one_that_was_stopped_is_refused(tmp_path: Path) -> None:
    evaluate(tmp_path / "votes", "majority", "--n", "4")
    with pytest.raises(ConfigError, match="no scores"):
        replayed(tmp_path / "votes", tmp_path / "a", "best_of_n")
    evaluate(tmp_path / "stopped", "adaptive", "--n", "8", "--set", "engine.p=1.0")
    with pytest.raises(ConfigError, match="their pool is biased"):
        replayed(tmp_path / "stopped", tmp_path / "b", "majority")
    evaluate(tmp_path / "tree", "tree", "--n", "4", *SCORED)
    with pytest.raises(ConfigError, match="whole samples"):
        replayed(tmp_path / "tree", tmp_path / "c", "majority")


def test_a_problem_that_failed_when_it_was_recorded_counts_in_a_replay_too(tmp_path: Path) -> None:
    source = tmp_path / "votes"
    records = evaluate(source, "majority", "--n", "4")
    broken = replace(
        records[3], answer=None, verdict=None, verdicts=(), error="EngineError: gone",
        provenance={**records[3].provenance, "spent": asdict(Usage(generated=70, calls=2, attempts=2))},
    )  # fmt: skip
    (source / "records.jsonl").unlink()
    with RecordFile(source / "records.jsonl") as file:
        for record in (*records[:3], broken, *records[4:]):
            file.append(record)
    again = replayed(source, tmp_path / "again", "majority")
    assert [record.problem.id for record in again] == [record.problem.id for record in records]
    assert again[3].error == "RecordError: it failed in the recorded run: EngineError: gone"
    assert [outcome(record) for record in again if record.answer] == [outcome(r) for r in (*records[:3], *records[4:])]
    (entry,) = read_summary(tmp_path / "again")
    assert (entry["problems"], entry["errors"]) == (12, 1)
    right = sum(record.verdict.correct for record in again if record.verdict)
    assert entry["accuracy"] == pytest.approx(right / 12)
    assert entry["usage"]["generated"] == 70 + sum(r.answer.usage.generated for r in again if r.answer)


def test_a_folder_of_several_runs_is_refused_with_their_names(tmp_path: Path) -> None:
    for name in ("direct", "majority"):
        evaluate(tmp_path / "both" / name, name)
    with pytest.raises(ConfigError, match=r"several runs; name one of them: .*direct.*majority"):
        replayed(tmp_path / "both", tmp_path / "out", "majority")


@pytest.mark.parametrize("command_name", ["replay", "calibrate", "compare", "report"])
def test_every_command_that_takes_a_run_names_those_of_a_folder_without_a_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command_name: str
) -> None:
    for name in ("direct", "majority"):
        (tmp_path / "both" / name).mkdir(parents=True)
        (tmp_path / "both" / name / "run.json").write_text("{}")
    assert main([command_name, str(tmp_path / "both")]) == 2
    both = tmp_path / "both"
    assert f"{both} holds several runs; name one of them: {both}/direct, {both}/majority" in capsys.readouterr().err
    (both / "direct" / "run.json").unlink()
    assert main([command_name, str(both)]) == 2
    assert f"{both} is not a run itself; name the one in it: {both}/majority" in capsys.readouterr().err
    assert main([command_name, str(tmp_path / "none")]) == 2
    assert f"{tmp_path / 'none'} is not a run: there is no folder" in capsys.readouterr().err


def test_replays_of_one_run_do_not_stand_in_each_others_way(pool: Path) -> None:
    for arguments in (["majority"], ["majority", "--n", "2"], ["direct"], ["majority"]):
        assert main(["replay", str(pool), "--strategy", *arguments]) == 0
    found = pool.with_name(f"{pool.name}-replay")
    assert {path.name for path in found.iterdir() if path.is_dir()} == {"majority", "majority-n2", "direct"}
    assert [entry["records"] for entry in read_summary(found)] == ["majority-n2", "direct", "majority"]


def test_a_replay_is_of_the_samples_and_the_strategy_file_that_it_was_begun_with(
    pool: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "from ttc.strategies.majority import majority\n\nasync def mine(problem, session, *, n=2):\n"
    (tmp_path / "mine.py").write_text(code + "    return await majority(problem, session, n=n)\n")
    source = Path(shutil.copytree(pool, tmp_path / "source"))
    words = ["replay", str(source), "--strategy", f"{tmp_path / 'mine.py'}:mine", "--out", str(tmp_path / "out")]
    assert main(words) == 0 and main(words) == 0
    (tmp_path / "mine.py").write_text(code + "    return await majority(problem, session, n=1)\n")
    capsys.readouterr()
    assert main(words) == 2
    assert "it was made with other strategy file mine.py;" in capsys.readouterr().err
    records = (source / "records.jsonl").read_bytes().splitlines(keepends=True)
    (source / "records.jsonl").write_bytes(b"".join(records[:-1]))
    assert main(words) == 2
    assert "other recorded samples, strategy file mine.py;" in capsys.readouterr().err


def test_a_run_that_is_being_written_is_not_replayed(
    pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(pool, tmp_path / "going")

    def read_while_it_grows(folder: Path) -> Run:
        run = read_run(folder)
        with (folder / "records.jsonl").open("ab") as file:
            file.write(b'{"schema": 1, "pro')
        return run

    monkeypatch.setattr(command, "read_run", read_while_it_grows)
    with pytest.raises(ConfigError, match="going is being written; replay it when that has ended"):
        command.open_source(tmp_path / "going")
