"""schemathesis over the OpenAPI document: nothing it makes up leads to a 500 or an undocumented reply."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest

pytest.importorskip("schemathesis")
CASES = int(os.environ.get("TTC_SCHEMA_CASES", "2000"))


def test_no_case_finds_a_500_or_an_undocumented_reply(
    url: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    per_operation = CASES // 4
    command = [
        str(pathlib.Path(sys.executable).with_name("schemathesis")),
        "run",
        f"{url}/openapi.json",
        "--checks",
        "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance",
        "--max-examples",
        str(per_operation),
        "--mode",
        "all",
        "--phases",
        "examples,coverage,fuzzing",
        "--seed",
        "1",
        "--no-color",
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=3000)
    sys.stdout.write(done.stdout[-6000:])
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    generated = [int(number) for number in re.findall(r"(\d+) generated", done.stdout)]
    with capsys.disabled():
        sys.stdout.write(f"{sum(generated)} cases\n")
    assert sum(generated) >= CASES
