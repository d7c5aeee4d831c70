"""`ttc verify`: JSON lines in, JSON lines out; logs judged again, verifiers compared."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from ttc.cli.cli import main


def verify(lines: list[object], *options: str) -> tuple[int, list[dict[str, Any]], str]:
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    printed, errors = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed), redirect_stderr(errors):
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8"))
        code = main(["verify", *options])
    return code, [json.loads(line) for line in printed.getvalue().splitlines()], errors.getvalue()


def test_verdicts_come_in_the_order_of_the_lines() -> None:
    rows: list[object] = [
        {"id": "slow", "target": r"\sqrt{8}", "text": r"\boxed{2\sqrt{2}}"},
        {"id": "fast", "target": "4", "text": r"\boxed{5}"},
        {"id": 3, "target": {"answer": "4", "unit": "cm"}, "text": "I do not know it, sorry."},
        {"id": 4, "target": "4", "text": r"\boxed{4}", "finish_reason": "length"},
        "",
        {"id": 5, "target": "4", "text": "nothing to see here", "thinking": r"\boxed{4}"},
    ]
    code, out, _ = verify(rows)
    assert code == 0
    assert [(row["id"], row["verdict"]) for row in out] == [
        ("slow", "correct"),
        ("fast", "incorrect"),
        (3, "no_answer"),
        (4, "no_answer"),
        (5, "no_answer"),
    ]
    assert out[3]["reason"] == "truncated"
    assert all(row["seconds"] > 0 and row["version"].startswith("math-") for row in out)


def test_the_lines_may_be_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    file.write_text('{"id": "a", "target": "4", "text": "\\\\boxed{4}"}\n{broken\n')
    code, out, err = verify([], str(file))
    assert (code, [row["verdict"] for row in out]) == (2, ["correct"])
    assert f"{file} line 2: not JSON" in err
    assert "does not exist" in verify([], str(tmp_path / "none.jsonl"))[2]
    assert [row["verdict"] for row in verify([{"id": 1, "target": "4", "text": "4"}], "-")[1]] == ["correct"]
    assert f"leave {file} out" in verify([], str(file), "--rescore", str(file))[2]


@pytest.mark.parametrize("gold", ["NaN", "Infinity", "-1e999"])
def test_a_gold_that_is_no_number_is_an_error_and_no_wrong_answer(gold: str) -> None:
    (row,) = verify([f'{{"id": 1, "target": {gold}, "text": "The answer is 3."}}'])[1]
    assert (row["verdict"], "no number to hold an answer to" in row["reason"]) == ("error", True)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{broken", "line 2: not JSON"),
        ("[]", "line 2: expected an object"),
        ({"id": 1, "text": "x"}, "line 2: field 'target'"),
        ({"id": 1, "target": "x"}, "line 2: field 'text'"),
        ({"id": 1, "target": "x", "text": 5}, "line 2: field 'text' must be a string"),
        ({"id": 1, "target": "x", "text": "5", "finish_reason": "tired"}, "line 2: field 'finish_reason'"),
    ],
)
def test_a_broken_line_is_named_after_the_verdicts_before_it(line: object, message: str) -> None:
    code, out, err = verify([{"id": 0, "target": "1/2", "text": "0.5"}, line])
    assert code == 2
    assert [row["verdict"] for row in out] == ["correct"]
    assert message in err


def test_parameters_and_names_are_checked() -> None:
    assert verify([{"id": 0, "target": "0.5", "text": "50%"}], "--set", "percent=unit")[1][0]["verdict"] == "incorrect"
    assert "did you mean 'percent'" in verify([], "--set", "percnt=unit")[2]
    assert "did you mean 'math'" in verify([], "--verifier", "maths")[2]
    assert verify([], "--verifier", "maths")[0] == 2
    assert "key=value" in verify([], "--set", "percent")[2]
    assert "choose one" in verify([], "--rescore", "x", "--against", "exact")[2]
    assert "needs --against" in verify([], "--against-set", "percent=unit")[2]
    assert "does not exist" in verify([], "--rescore", "none.jsonl")[2]


def test_partial_scores_of_a_form_are_shown() -> None:
    _, out, _ = verify([{"id": 0, "target": None, "text": "no box"}], "--verifier", "format")
    assert out[0]["score"] == 0.75
    assert out[0]["parts"] == {"thinking": 1.0, "closed": 1.0, "answer": 0.0, "length": 1.0}


ROWS: list[object] = [
    {"id": 1, "target": "1/2", "text": "0.5"},
    {"id": 2, "target": "1/2", "text": "1/2"},
    {"id": 3, "target": "1/2", "text": "0.25"},
    {"id": 4, "target": "1/2", "text": "I do not know, sorry."},
    {"id": 5, "target": "0.5", "text": "50%"},
]


def test_a_log_is_judged_again_with_other_settings_and_the_changes_are_shown(tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    code, out, _ = verify(ROWS, "--audit", str(log))
    assert (code, len(out), len(log.read_text().splitlines())) == (0, 5, 5)
    code, out, err = verify([], "--rescore", str(log))
    assert (code, out) == (0, [])
    assert "5 rows, 0 differ" in err
    code, out, err = verify([], "--rescore", str(log), "--set", "percent=unit")
    assert [(row["id"], row["first"]["verdict"], row["second"]["verdict"]) for row in out] == [
        (5, "correct", "incorrect")
    ]
    assert out[0]["first"]["version"] != out[0]["second"]["version"]
    assert "5 rows, 1 differ" in err
    assert "correct -> incorrect          1" in err
    assert "where both decided (4) they agree on 75.00 % (95 %: 30.06 to 95.44)" in err
    assert "is the log that is judged again" in verify([], "--rescore", str(log), "--audit", str(log))[2]


def test_two_verifiers_are_compared_row_by_row(tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    options = ("--against", "exact", "--against-set", "whole_text=true", "--audit", str(log))
    code, out, err = verify(ROWS, *options)
    assert code == 0
    assert [(row["id"], row["first"]["verdict"], row["second"]["verdict"]) for row in out] == [
        (1, "correct", "incorrect"),
        (4, "no_answer", "incorrect"),
        (5, "correct", "incorrect"),
    ]
    assert "exact-12-nyn" in err
    assert "5 rows, 3 differ" in err
    assert sorted(json.loads(line)["verifier"] for line in log.read_text().splitlines()) == ["exact"] * 5 + ["math"] * 5


def test_metrics_are_told_at_the_end() -> None:
    _, _, err = verify([*ROWS, ROWS[0]], "--metrics", "--no-canaries", "--verifier", "exact")
    found = json.loads(err)
    assert found["count"] == 6
    assert sum(found["by_status"].values()) == 6
    assert found["timeout_rate"] == found["error_rate"] == 0.0


BROKEN = """
from ttc.core import Verdict
from ttc.verifiers.shared.contract import Canary, Card

class Off:
    name, version = "off", "off-1"
    card = Card(name, version, "any", 1.0, "none", "none", "never", ("all",),
                (Canary(1, "good", "correct"), Canary(1, "bad", "incorrect")))
    async def verify(self, target, submission):
        return Verdict("incorrect", version=self.version)
    def check_gold(self, target, item=""):
        pass
    async def close(self):
        pass

def off():
    return Off()
"""


def test_a_verifier_that_fails_a_known_case_is_not_used_unless_it_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "off.py").write_text(BROKEN)
    rows: list[object] = [{"id": 1, "target": 1, "text": "good"}]
    code, out, err = verify(rows, "--verifier", f"{tmp_path}/off.py:off")
    assert (code, out) == (1, [])
    assert "fails a known case: 'good'" in err
    code, out, _ = verify(rows, "--verifier", f"{tmp_path}/off.py:off", "--no-canaries")
    assert (code, out[0]["verdict"]) == (0, "incorrect")


def test_input_that_is_no_text_or_too_deep_is_named() -> None:
    deep = '{"id": 1, "text": "x", "target": ' + "[" * 100_000 + "]" * 100_000 + "}"
    code, _, err = verify([deep], "--verifier", "exact")
    assert code == 2
    assert "line 1: nested too deeply" in err
    process = [sys.executable, "-m", "ttc", "verify", "--verifier", "exact"]
    done = subprocess.run(
        process, input=b"\xff\xfe", capture_output=True, timeout=60, env={"PYTHONIOENCODING": "utf-8"}
    )
    assert done.returncode == 2
    assert b"not UTF-8" in done.stderr
