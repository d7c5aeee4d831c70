"""A job from its spec to its student, through the command line, killed anywhere, with more asked for later."""

import itertools
import json
import os
import re
import shutil
import signal
from dataclasses import replace

import pytest

from distill.generation.ledger import AnswerLedger
from distill.job.job import plan_job, refused, run_job
from distill.job.manifest import verify_manifest
from distill.plan.lock import claim
from distill.preflight import Finding
from distill.spec.spec import parse_spec
from tests.distill.models import TASK
from tests.distill.openers import DyingTeacher, never, quiet
from tests.fresh import heavy_modules_of
from train.registries import make_task
from ttc.cli.cli import main
from ttc.concurrent import Interrupted, Reminder, StopRequest
from ttc.errors import ConfigError, EngineError, TTCError, UnknownName


def spec(student, teacher, **more):
    table = {"name": "walks", "method": "rejection", "student": str(student), "seed": 1,
             "teacher": teacher if isinstance(teacher, dict) else str(teacher),
             "task": f"{TASK},split=train", "held_out": TASK, "n": 2, "smoke_failures": 8,
             "train": {"steps": 6, "rows": 8, "lr": 3e-3, "save_every": 2}}  # fmt: skip
    return parse_spec({key: value for key, value in {**table, **more}.items() if value is not None})


@pytest.fixture
def handlers():
    """Puts back what is done at a signal: after a request the next signal would end the tests."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def put_back():
        for number, handler in before.items():
            signal.signal(number, handler)

    yield put_back
    put_back()


@pytest.fixture(scope="module")
def finished(tmp_path_factory, guesser, walker):
    """A finished job that nothing disturbed."""
    folder = tmp_path_factory.mktemp("jobs") / "whole"
    done = run_job(spec(guesser, walker), folder, quiet)
    return folder, done


class Signalling(DyingTeacher):
    """Sends this process SIGTERM after some answers."""

    def end(self):
        os.kill(os.getpid(), signal.SIGTERM)


def manifest(folder):
    return json.loads((folder / "manifest.json").read_text())


def test_a_finished_job_holds_a_student_that_the_toolkit_reads(finished, capsys):
    folder, done = finished
    assert done.promoted is None  # no gates are declared
    assert verify_manifest(folder) == []
    assert "Before and after" in (folder / "model" / "README.md").read_text()
    for part in ("model.safetensors", "generation_config.json", "tokenizer.json"):
        assert (folder / "model" / part).is_file()
    found = json.loads((folder / "result.json").read_text(), parse_constant=pytest.fail)  # NaN is no JSON
    assert found["audit"]["stop_share"] == 1.0
    assert set(found["measured"]) == {"start", "student", "teacher"}


def test_status_report_trace_and_verify_tell_the_job(finished, tmp_path, capsys):
    folder, _ = finished
    assert main(["distill", "status", str(folder)]) == 0
    assert "finished, not promoted" in capsys.readouterr().out
    assert main(["distill", "report", str(folder)]) == 0
    told = capsys.readouterr().out
    for title in (
        "Funnel",
        "Cost",
        "Pass rate by difficulty",
        "Length by verdict",
        "Rows per prompt",
        "Before and after",
    ):
        assert title in told
    (metrics,) = folder.glob("train/*/1-sft/metrics.jsonl")
    steps = [json.loads(line) for line in metrics.read_text().splitlines()]
    learnt = int(sum(step["tokens_learnt"] for step in steps if step["step"]))
    assert learnt and re.search(rf"Training\n.*\n  1-sft +{len(steps) - 1} +– +– +{learnt:,}\n", told)
    page = (folder / "report.html").read_text()
    assert page.startswith("<!doctype html>") and str(folder) not in page and "<script" not in page
    assert main(["distill", "report", str(folder), "--out", str(tmp_path / "pages" / "job.html")]) == 0
    assert (tmp_path / "pages" / "job.html").read_text() == page
    capsys.readouterr()
    assert main(["distill", "trace", str(folder), "0"]) == 0
    told = capsys.readouterr().out
    assert "teacher teacher, draw" in told and "correct" in told and "in row 0" in told
    dropped = json.loads((folder / "data" / "decisions.jsonl").read_text().splitlines()[0])
    assert main(["distill", "trace", str(folder), dropped["key"]]) == 0
    assert f"dropped by {dropped['stage']}" in capsys.readouterr().out
    assert main(["distill", "verify", str(folder)]) == 0
    assert main(["distill", "trace", str(folder), "9999"]) == 2
    assert "no row and no answer" in capsys.readouterr().err


def test_a_job_that_measures_nothing_ends_with_a_page_under_its_name(finished, tmp_path):
    folder = tmp_path / "unmeasured"
    shutil.copytree(finished[0], folder, symlinks=True)
    result = json.loads((folder / "result.json").read_text())
    result["measured"] = {who: {"tasks": {}, "own": {}} for who in ("start", "student")}
    (folder / "result.json").write_text(json.dumps(result))
    assert main(["distill", "report", str(folder)]) == 0
    assert "<h1>walks</h1>" in (folder / "report.html").read_text()


def test_the_funnel_adds_up_from_problems_to_rows(finished):
    folder, _ = finished
    found = json.loads((folder / "data" / "funnel.json").read_text())
    stages = found["answers"]
    assert stages[0]["came"] == 2 * found["prompts"][0]["kept"]
    for before, after in itertools.pairwise(stages):
        assert before["kept"] == after["came"]
    assert stages[-1]["kept"] == found["rows"] == len((folder / "data" / "lineage.jsonl").read_text().splitlines())


def test_running_a_finished_job_again_asks_for_nothing_and_changes_nothing(finished, guesser, walker):
    folder, _ = finished
    before = manifest(folder)
    run_job(spec(guesser, walker), folder, quiet, never)
    assert manifest(folder) == before
    as_text = {"steps": "6", "rows": "8", "lr": "0.003", "save_every": "2"}  # as --set train.steps=6 gives them
    run_job(spec(guesser, walker, train=as_text), folder, quiet, never)
    assert manifest(folder) == before and len(list((folder / "train").iterdir())) == 1


@pytest.mark.long
def test_a_job_killed_anywhere_ends_as_the_one_that_was_not(tmp_path, finished, guesser, walker, monkeypatch):
    whole, _ = finished
    folder = tmp_path / "torn"
    for after in (3, 17, 30):
        with pytest.raises(KeyboardInterrupt):
            run_job(spec(guesser, walker), folder, quiet, DyingTeacher(after))
    told = []

    def until(text):
        told.append(text)
        if text.startswith(("step", "measuring", "teacher: ")) and len(told) not in seen:
            seen.add(len(told))
            raise KeyboardInterrupt

    seen: set[int] = set()
    for _ in range(12):
        told.clear()
        try:
            run_job(spec(guesser, walker), folder, until)
            break
        except KeyboardInterrupt:
            continue
    assert len(seen) >= 3
    assert manifest(folder) == manifest(whole)


@pytest.mark.long
def test_a_signal_ends_a_job_with_all_answers_and_updates_kept_and_says_how_many(
    tmp_path, finished, guesser, walker, handlers
):
    whole, _ = finished
    asked = spec(guesser, walker, smoke=0, train={**spec(guesser, walker).train, "eval_every": 2})
    with pytest.raises(Interrupted, match=r"^\d+ of \d+ answers are on the ledger$") as raised:
        run_job(asked, tmp_path, quiet, Signalling(9), StopRequest(armed=True))
    num_kept = int(str(raised.value).split()[0])
    assert raised.value.number == signal.SIGTERM and 8 <= num_kept < 30
    handlers()
    told = []

    def send(text):
        told.append(text)
        if text.startswith("step 2 of 6"):
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted, match=r"answers are on the ledger; 2 updates of 1-sft are kept$"):
        run_job(asked, tmp_path, send, stop=StopRequest(armed=True))
    assert any(f"{num_kept} answers were on the ledger" in text for text in told)
    handlers()
    run_job(asked, tmp_path, told.append)
    assert "resumed at step 2" in told
    mine, other = ((place / "model" / "model.safetensors").read_bytes() for place in (tmp_path, whole))
    assert mine == other


def test_raising_n_pays_for_the_difference_and_keeps_what_was_there(tmp_path, finished, guesser, walker):
    whole, _ = finished
    folder = tmp_path / "more"
    shutil.copytree(whole, folder, symlinks=True)
    told = []
    run_job(spec(guesser, walker, n=3), folder, told.append)
    count = json.loads((whole / "data" / "funnel.json").read_text())["prompts"][0]["kept"]
    assert f"teacher: {2 * count} answers were on the ledger, {count} made now" in told
    assert len(list((folder / "train").iterdir())) in (1, 2)
    with AnswerLedger(folder / "ledger.sqlite") as more, AnswerLedger(whole / "ledger.sqlite") as before:
        assert more.totals()["done"] == 3 * count and before.totals()["done"] == 2 * count


def test_another_student_learns_from_answers_that_a_job_paid_for(tmp_path, finished, walker, capsys):
    whole, _ = finished
    again = spec(walker, walker, ledgers=[str(whole)], eval={"teachers": False})
    count = json.loads((whole / "data" / "funnel.json").read_text())["prompts"][0]["kept"]
    assert f"{2 * count} of them are on the ledger of {whole}" in plan_job(again, tmp_path / "j").cost
    told = []
    run_job(again, tmp_path / "j", told.append, never)
    assert f"{2 * count} answers taken over from {whole}" in told
    with AnswerLedger(tmp_path / "j" / "ledger.sqlite") as here, AnswerLedger(whole / "ledger.sqlite") as there:
        assert here.digest() == there.digest() and here.totals()["usage"] == there.totals()["usage"]
    with pytest.raises(ConfigError, match=r"ledgers: .*nowhere is not the folder of a job: it has no ledger.sqlite"):
        plan_job(spec(walker, walker, ledgers=[str(tmp_path / "nowhere")]), tmp_path / "k")


def test_raising_max_tokens_makes_only_cut_answers_anew(tmp_path, guesser, walker):
    folder, told = tmp_path / "short", []
    short = spec(guesser, walker, sampling={"max_tokens": 8}, smoke=0, filters={"verdict": False})
    run_job(short, folder, quiet)
    with AnswerLedger(folder / "ledger.sqlite") as ledger:
        cut, done = ledger.totals()["cut"], ledger.totals()["done"]
    assert 0 < cut < done
    longer = spec(guesser, walker, sampling={"max_tokens": 20}, smoke=0)
    (line,) = [line for line in plan_job(longer, folder).cost if "to make, about" in line]
    assert int(re.search(r"about (\d+) tokens", line)[1]) > 8 * cut  # an answer that 8 cut is longer than 8
    run_job(longer, folder, told.append)
    assert f"teacher: {done - cut} answers were on the ledger, {cut} made now" in told
    with pytest.raises(ConfigError, match="max_tokens cannot be lowered"):
        plan_job(short, folder)


def test_another_job_in_the_folder_is_refused_by_what_differs(finished, guesser, walker, tmp_path):
    folder, _ = finished
    with pytest.raises(ConfigError, match="holds another job: seed is 1 there and 2 here"):
        plan_job(spec(guesser, walker, seed=2), folder)
    (tmp_path / "x").write_text("")
    with pytest.raises(ConfigError, match="is not empty and holds no job"):
        plan_job(spec(guesser, walker), tmp_path)


def test_a_folder_that_another_process_works_in_is_refused_and_stays_that_ones(tmp_path, guesser, walker):
    plan = plan_job(spec(guesser, walker), tmp_path / "j").plan
    before = (tmp_path / "j" / "lock.json").read_bytes()
    with claim(plan):
        for work in (lambda job: plan_job(job, tmp_path / "j"), lambda job: run_job(job, tmp_path / "j", quiet)):
            with pytest.raises(ConfigError, match="is being written by another process"):
                work(spec(guesser, walker, n=3))
    assert (tmp_path / "j" / "lock.json").read_bytes() == before
    plan_job(spec(guesser, walker, n=3), tmp_path / "j")
    assert (tmp_path / "j" / "lock.json").read_bytes() != before


def test_a_job_that_died_before_its_lock_was_written_goes_on(tmp_path, guesser, walker):
    (tmp_path / "j").mkdir()
    (tmp_path / "j" / "log.jsonl").write_text("")
    plan_job(spec(guesser, walker), tmp_path / "j")
    assert (tmp_path / "j" / "lock.json").is_file()


def test_a_bad_teacher_is_stopped_at_the_smoke_gate_before_the_whole_spend(tmp_path, guesser):
    folder = tmp_path / "bad"
    with pytest.raises(ConfigError, match=r"smoke gate: \d+ of the first 4 problems got no answer.*smoke_failures = "):
        run_job(spec(guesser, guesser, smoke=4, smoke_failures=0, sampling={"max_tokens": 2}), folder, quiet)
    with AnswerLedger(folder / "ledger.sqlite") as ledger:
        assert ledger.totals()["done"] == 8
    assert not (folder / "train").exists()


def test_plan_spends_nothing_and_prints_the_cost(tmp_path, guesser, walker, capsys):
    flags = ["--method", "rejection", "--teacher", str(walker), "--student", str(guesser), "--seed", "1", "--n", "2",
             "--task", f"{TASK},split=train", "--limit", "10", "--out", str(tmp_path / "j")]  # fmt: skip
    assert main(["distill", "plan", *flags]) == 0
    told = capsys.readouterr().out
    assert "teacher (direct): 20 answers, at most 240 tokens" in told
    assert "measuring" not in told
    assert (tmp_path / "j" / "lock.json").is_file() and not (tmp_path / "j" / "ledger.sqlite").exists()


def test_plan_counts_the_answers_that_measuring_asks_for(tmp_path, finished, guesser, walker):
    plan = plan_job(spec(guesser, walker, gates={"min_gain": 0.0}), tmp_path / "j")
    lines = [line for line in plan.cost if line.startswith(("measuring", "not counted"))]
    counts = [int(line.partition(": ")[2].split()[0]) for line in lines[:2]]
    files = list((finished[0] / "eval").glob("**/records.jsonl"))
    by_teacher = [path for path in files if "teachers" in path.parts]
    sizes = [sum(len(path.read_text().splitlines()) for path in paths) for paths in (files, by_teacher)]
    assert counts == [sizes[0] - sizes[1], sizes[1]]
    cap = make_task(TASK).sampling.max_tokens
    assert lines == [
        "measuring the start and the student, greedily and sampled: "
        f"{counts[0]} answers, at most {counts[0] * cap} tokens",
        f"measuring teacher (direct): {counts[1]} answers, at most {counts[1] * cap} tokens",
        "not counted: what the gates measure",
    ]


def test_gates_are_measured_under_the_sampling_of_the_spec(tmp_path, finished, guesser, walker, monkeypatch):
    shutil.copytree(finished[0], tmp_path / "j", symlinks=True)
    caps = []

    def judge(gates, run, start, setting, make):
        caps.extend(make(name).sampling.max_tokens for name in (gates.held_out, *gates.retention))
        return []

    monkeypatch.setattr("distill.job.job.judge", judge)
    table = {"min_gain": 0.0, "retention": [f"{TASK},key=1"]}
    run_job(spec(guesser, walker, gates=table, sampling={"max_tokens": 20}), tmp_path / "j", quiet)
    assert caps == [20, 20] != [make_task(TASK).sampling.max_tokens] * 2


def test_promotion_moves_the_pointer_only_when_every_gate_passes(tmp_path, finished, guesser, walker, capsys):
    whole, _ = finished
    folder = tmp_path / "gated"
    shutil.copytree(whole, folder, symlinks=True)
    bad = run_job(spec(guesser, walker, gates={"min_accuracy": 1.0, "max_truncation_rise": 1.0}), folder, quiet)
    assert bad.promoted is None and not (folder / "promoted").exists()
    assert [c.passed for c in bad.checks if c.gate == "min_accuracy"] == [False]
    assert json.loads((folder / "log.jsonl").read_text().splitlines()[-1])["text"].startswith(
        "not promoted: min_accuracy failed. Change the spec and run the same command"
    )
    good = run_job(spec(guesser, walker, gates={"min_gain": -1.0, "max_truncation_rise": 1.0}), folder, quiet)
    assert good.promoted == folder / "promoted"
    assert (folder / "promoted").resolve() == (folder / "model").resolve()
    assert status(folder, capsys) == "finished, promoted"
    run_job(spec(guesser, walker, gates={"min_accuracy": 1.0}), folder, quiet)
    assert (folder / "promoted").is_symlink()  # what was promoted stays
    assert status(folder, capsys).startswith("finished, not promoted; promoted is still the student of an earlier run")
    plan_job(spec(guesser, walker, gates={"min_accuracy": 0.5}), folder)
    assert status(folder, capsys).startswith("not finished; model, result.json and report are of an earlier run")


def status(folder, capsys):
    """The last line that is told of a job."""
    capsys.readouterr()
    assert main(["distill", "status", str(folder)]) == 0
    return capsys.readouterr().out.splitlines()[-1]


def test_difficulty_asks_the_student_and_mixing_adds_rows(tmp_path, guesser, walker):
    extra = tmp_path / "extra.jsonl"
    extra.write_text("".join(json.dumps({"prompt": f"s{i}n9=", "completion": f"s{i}"}) + "\n" for i in range(10)))
    changed = spec(guesser, walker, n=1, smoke=0, filters={"difficulty": {"high": 0.9, "n": 2}}, limit=16,
                   mix={"data": [str(extra)], "share": 0.25}, eval={"teachers": False})  # fmt: skip
    folder = tmp_path / "j"
    run_job(changed, folder, quiet)
    lineage = [json.loads(line) for line in (folder / "data" / "lineage.jsonl").read_text().splitlines()]
    foreign = [row for row in lineage if row["prompt"].startswith("mix/")]
    assert 0 < len(foreign) <= 0.25 * len(lineage) + 1
    samples = [json.loads(line) for line in (folder / "data" / "samples.jsonl").read_text().splitlines()]
    assert sum(row["label"] == "probe" for row in samples) == 32


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (None, "is no file; name one of JSON lines, or leave it out"),
        ([], "holds no row; leave it out"),
        ([{"prompt": "s1n1="}], "line 1: completion must be a text"),
        ([{"prompt": "s1n1=", "completion": "\n"}], "line 1: the answer is empty"),
        ([{"messages": [{"role": "usr", "content": "s1"}], "completion": "s1"}], "line 1: messages[0]: role must be"),
        ([{"prompt": "s1n1=", "completion": "s1", "weight": "heavy"}], "line 1: weight must be a number"),
        ([{"prompt": "s1n1=", "completion": "s1", "tools": [{"type": "function", "function": {"name": "f"}}]}],
         "line 1: calls of functions are not mixed in"),
    ],
    ids=["missing", "empty", "no completion", "empty completion", "unknown role", "weight", "tools"],
)  # fmt: skip
def test_rows_that_cannot_be_mixed_in_are_refused_before_anything_is_spent(tmp_path, guesser, walker, lines, told):
    extra = tmp_path / "extra.jsonl"
    if lines is not None:
        extra.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(TTCError) as error:
        plan_job(spec(guesser, walker, n=1, limit=4, mix={"data": [str(extra)]}), tmp_path / "j")
    assert told in str(error.value) and str(extra) in str(error.value) and not (tmp_path / "j").exists()


def test_two_files_of_one_name_are_not_mixed_in(tmp_path, guesser, walker):
    (tmp_path / "a").mkdir()
    files = [tmp_path / "rows.jsonl", tmp_path / "a" / "rows.jsonl"]
    for file in files:
        file.write_text(json.dumps({"prompt": "say it", "completion": "s1"}) + "\n")
    with pytest.raises(ConfigError, match=r"two files are called rows\.jsonl, and their rows"):
        plan_job(spec(guesser, walker, mix={"data": list(map(str, files))}), tmp_path / "j")


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"held_out": None, "eval": {"retention": [TASK]}},
        {"held_out": None, "gates": {"held_out": TASK, "min_gain": 0.0}},
    ],
    ids=["held out", "retention", "gate"],
)
def test_rows_that_something_is_measured_on_are_not_mixed_in(tmp_path, guesser, walker, more):
    measured = make_task(TASK).items(1, 0)[0].problem.messages[-1].content
    extra = tmp_path / "extra.jsonl"
    rows = [{"prompt": "say it", "completion": "it"}, {"prompt": measured, "completion": "s1"}]
    extra.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ConfigError, match=r"mix\.data: 1 row is a held-out problem too, such as .*extra.jsonl, line 2"):
        plan_job(spec(guesser, walker, n=1, limit=4, mix={"data": [str(extra)]}, **more), tmp_path / "j")
    assert not (tmp_path / "j").exists()


def test_a_job_says_on_the_way_how_many_answers_it_has(tmp_path, guesser, walker, monkeypatch):
    monkeypatch.setattr(Reminder, "due", lambda self: True)
    lines = []
    run_job(spec(guesser, walker, smoke=2, eval={"limit": 2}, train={"steps": 2, "rows": 2, "lr": 1e-3}),
            tmp_path / "j", lines.append)  # fmt: skip
    text = "\n".join(lines)
    assert "smoke gate: teacher answers the first 2 problems\nteacher: 1 of 4 answers" in text
    assert f"measuring the start\n{TASK}: 1 of 4 answers" in text
    assert f"measuring the student\n{TASK}: 1 of 4 answers" in text


def test_search_learns_what_a_vote_agrees_on_without_a_key(tmp_path, walker):
    table = {"name": "s", "method": "search", "student": str(walker), "seed": 1, "n": 1, "smoke": 0, "limit": 24,
             "task": f"{TASK},split=train", "held_out": TASK, "teacher": {"strategy": "majority:n=4"},
             "search": {"trust": "self", "agreeing": True}, "train": {"steps": 2, "rows": 8}}  # fmt: skip
    folder = tmp_path / "j"
    run_job(parse_spec(table), folder, quiet)
    stages = [s["name"] for s in json.loads((folder / "data" / "funnel.json").read_text())["answers"]]
    assert "agreement" in stages and "verdict" not in stages
    with AnswerLedger(folder / "ledger.sqlite") as ledger:
        (usage,) = ledger.totals()["usage"].values()
    assert usage["calls"] == 4 * 24
    assert set(json.loads((folder / "result.json").read_text())["recovered"]) == {TASK}


def test_a_waived_check_warns_and_an_unknown_one_is_refused(tmp_path, guesser, walker):
    wrong = [Finding("padding", False, "pads with the end", "set pad_token"), Finding("disk", True, "enough")]
    assert [finding.check for finding in refused(wrong, spec(guesser, walker))] == ["padding"]
    assert refused(wrong, spec(guesser, walker, waive=["padding"])) == []
    with pytest.raises(UnknownName, match="unknown pre-flight check 'pading'; did you mean 'padding'"):
        refused(wrong, spec(guesser, walker, waive=["pading"]))


FLAKY = """
from pathlib import Path
from ttc.engines.embedded.engine import embedded
from ttc.errors import EngineError, PromptRefused
def flaky(model=None):
    engine = embedded(model)
    answer = engine.generate
    async def generate(prompt, *arguments, **more):
        if Path(__file__).with_name("dead").exists():
            raise EngineError("nobody answers")
        if sum(prompt.token_ids) % 2:
            for name, error in [("gone", EngineError), ("filter", PromptRefused)]:
                if Path(__file__).with_name(name).exists():
                    raise error(name)
        return await answer(prompt, *arguments, **more)
    engine.generate = generate
    return engine
"""


def flaky(folder, student, model, how):
    """A job whose teacher fails in a way once it is measured, and the log that makes it fail."""
    (folder / "engine.py").write_text(FLAKY)
    teacher = {"model": str(model), "engine": f"{folder / 'engine.py'}:flaky"}

    def failing(text):
        if text.startswith("measuring"):
            (folder / how).touch()

    return spec(student, teacher, limit=8, gates={"max_below_teacher": 1.0}, train={"steps": 1}), failing


def test_a_teacher_whose_calls_fail_while_it_is_measured_is_not_a_bad_teacher(tmp_path, guesser, walker):
    asked, failing = flaky(tmp_path, guesser, walker, "gone")
    with pytest.raises(EngineError, match=r"measuring teacher on cipher.*: 5 of 11 answers failed, the first with Eng"):
        run_job(asked, tmp_path / "j", failing)
    assert not (tmp_path / "j" / "promoted").is_symlink()
    (tmp_path / "gone").unlink()
    assert run_job(asked, tmp_path / "j", quiet).promoted is not None
    (records,) = (tmp_path / "j" / "eval" / "teachers").glob("*/greedy/records.jsonl")
    assert len(records.read_text().splitlines()) == 11 + 5  # only what failed was asked again


def test_a_teacher_that_dies_while_it_is_measured_stops_the_job_with_advice_that_is_the_jobs(tmp_path, guesser, walker):
    asked, failing = flaky(tmp_path, guesser, walker, "dead")
    stopped = "measuring teacher on cipher.* was stopped: nobody answers; what was answered is kept: run the job again$"
    with pytest.raises(EngineError, match=stopped):
        run_job(asked, tmp_path / "j", failing)
    (tmp_path / "dead").unlink()
    assert run_job(asked, tmp_path / "j", quiet).promoted is not None


def test_a_filter_of_a_teachers_server_keeps_no_job_from_its_end(tmp_path, guesser, walker):
    asked, failing = flaky(tmp_path, guesser, walker, "filter")
    assert run_job(asked, tmp_path / "j", failing).promoted is not None
    (records,) = (tmp_path / "j" / "eval" / "teachers").glob("*/greedy/records.jsonl")
    assert sum("PromptRefused: filter" in line for line in records.read_text().splitlines()) == 5
    with pytest.raises(ConfigError, match="Leave out the problems that the filter refuses") as caught:
        run_job(replace(asked, smoke_failures=0), tmp_path / "k", quiet)
    lost = int(re.findall(r"or accept it: smoke_failures = (\d+)", str(caught.value))[0])
    assert run_job(replace(asked, smoke_failures=lost), tmp_path / "k", quiet).promoted is not None


def test_files_that_changed_are_found_by_the_manifest(tmp_path, finished, capsys):
    folder = tmp_path / "changed"
    shutil.copytree(finished[0], folder, symlinks=True)
    (folder / "data" / "train.jsonl").write_text("")
    assert verify_manifest(folder) == ["data/train.jsonl has changed"]
    assert main(["distill", "verify", str(folder)]) == 3
    (folder / "manifest.json").unlink()
    with pytest.raises(ConfigError, match="the job is not finished"):
        verify_manifest(folder)


def test_problems_that_a_gate_measures_are_not_asked(tmp_path, guesser, walker):
    folder = tmp_path / "j"
    gates = {"min_gain": 0.0, "retention": [f"{TASK},split=train"], "limit": 5}
    planned = plan_job(spec(guesser, walker, gates=gates, eval={"limit": 5}), folder)
    reasons = [reason for _, reason in planned.plan.prompts["task"].dropped]
    assert len(reasons) >= 5 and all(reason.startswith("measured (equal)") for reason in reasons)


@pytest.mark.parametrize("arguments", [("status",), ("verify",), ("trace", 0), ("report",)])
def test_commands_that_only_tell_of_a_job_load_no_torch(finished, arguments):
    folder, _ = finished
    assert heavy_modules_of("distill", arguments[0], folder, *arguments[1:]) == []


def test_status_of_a_job_that_was_only_planned(tmp_path, guesser, walker, capsys):
    plan_job(spec(guesser, walker), tmp_path / "j")
    assert main(["distill", "status", str(tmp_path / "j")]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "not finished"
    assert main(["distill", "status", str(tmp_path)]) == 2
    assert "is not a distillation job" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "content", "verb", "told"),
    [
        ("data/funnel.json", "", "status", r"funnel\.json: not JSON .*run the job again"),
        ("data/funnel.json", "{}", "report", r"funnel\.json: prompts is missing; run the job again"),
        ("result.json", '{"checks": [', "status", r"result\.json: not JSON .*run the job again"),
        ("manifest.json", "", "verify", r"manifest\.json: not a manifest .*run the job again, which rewrites it"),
        ("result.json", "[]", "report", r"result\.json: measured is missing; run the job again"),
        ("lock.json", "", "status", r"lock\.json: not the lock of a job .*put it back, or give another --out"),
        ("data/lineage.jsonl", "", "trace", r"lineage\.jsonl has 0 lines for \d+ rows; run the job again"),
        ("data/lineage.jsonl", "", "report", r"lineage\.jsonl has 0 lines for \d+ rows; run the job again"),
        ("data/train.jsonl", "", "trace", r"train\.jsonl has 0 lines for \d+ rows; run the job again"),
        ("lock.json", "{}", "report", r"lock\.json: not the lock of a job .*put it back, or give another --out"),
    ],
)
def test_a_file_of_a_job_that_was_emptied_or_cut_is_named_with_what_to_do(
    tmp_path, finished, capsys, file, content, verb, told
):
    shutil.copytree(finished[0], tmp_path / "j", symlinks=True)
    (tmp_path / "j" / file).write_text(content)
    assert main(["distill", verb, str(tmp_path / "j"), *(["0"] if verb == "trace" else [])]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(told, line)


def test_running_a_job_again_writes_its_damaged_files_anew_and_where_the_lock_is_lost_its_answers_are_taken_over(
    tmp_path, finished, guesser, walker
):
    whole, _ = finished
    shutil.copytree(whole, tmp_path / "j", symlinks=True)
    for name in ("data/funnel.json", "data/samples.jsonl", "result.json", "manifest.json"):
        (tmp_path / "j" / name).write_text("")
    run_job(spec(guesser, walker), tmp_path / "j", quiet, never)
    assert manifest(tmp_path / "j") == manifest(whole)
    (tmp_path / "j" / "lock.json").unlink()
    with pytest.raises(ConfigError, match=rf"no lock\.json: put it back, or .* and ledgers = \['{tmp_path}/j'\]"):
        run_job(spec(guesser, walker), tmp_path / "j", quiet)
    again = spec(guesser, walker, ledgers=[str(tmp_path / "j")], eval={"teachers": False})
    run_job(again, tmp_path / "k", quiet, never)


def test_a_job_that_was_copied_with_its_links_followed_is_refused_before_work_and_says_what_to_delete(
    tmp_path, finished, guesser, walker
):
    shutil.copytree(finished[0], tmp_path / "j")
    for _ in range(5):
        try:
            run_job(spec(guesser, walker), tmp_path / "j", quiet, never)
            break
        except (FileExistsError, ConfigError) as error:
            assert "delete it" in str(error)
            shutil.rmtree(re.search(rf"{tmp_path}/\S*?/(model|start)\b", str(error))[0])
    assert manifest(tmp_path / "j") == manifest(finished[0])


def test_a_folder_of_something_else_is_refused_before_a_student_is_put_there(tmp_path, guesser, walker):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="is not empty and holds no job"):
        plan_job(spec(guesser, walker, form="boxed"), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_ledger_that_was_emptied_is_not_paid_for_again_without_a_word(tmp_path, finished, guesser, walker):
    shutil.copytree(finished[0], tmp_path / "j", symlinks=True)
    (tmp_path / "j" / "ledger.sqlite").write_bytes(b"")
    assert main(["distill", "status", str(tmp_path / "j")]) == 0
    with pytest.raises(ConfigError, match=r"ledger\.sqlite holds no answer, .*made of its answers: put back a copy"):
        run_job(spec(guesser, walker), tmp_path / "j", quiet, never)
    (tmp_path / "j" / "ledger.sqlite").unlink()
    run_job(spec(guesser, walker), tmp_path / "j", quiet)
    assert manifest(tmp_path / "j") == manifest(finished[0])


def test_a_report_that_cannot_be_written_is_refused_before_it_is_made(tmp_path, finished, capsys):
    shutil.copytree(finished[0], tmp_path / "j", symlinks=True)
    (tmp_path / "j" / "report.html").unlink(missing_ok=True)
    (tmp_path / "j" / "report.html").mkdir()
    assert main(["distill", "report", str(tmp_path / "j")]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and "report.html is a folder; name a file in it" in printed.err
