"""`ttc verify` as a process: JSON lines in, JSON lines out."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest


def verify(lines: list[object], *options: str) -> tuple[int, list[dict[str, Any]], str]:
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    done = subprocess.run(
        [sys.executable, "-m", "ttc", "verify", *options], input=text, capture_output=True, text=True, timeout=60
    )
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


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
    assert "KEY=VALUE" in verify([], "--set", "percent")[2]


def test_partial_scores_of_a_form_are_shown() -> None:
    _, out, _ = verify([{"id": 0, "target": None, "text": "no box"}], "--verifier", "format")
    assert out[0]["score"] == 0.75
    assert out[0]["parts"] == {"thinking": 1.0, "closed": 1.0, "answer": 0.0, "length": 1.0}
