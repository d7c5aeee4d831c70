r"""LiveCodeBench: contest problems with their dates, as scripts or functions (Jain et al. 2024, arXiv:2403.07974).

    {"question_id": "abc_7", "question_content": "Print twice the number.", "contest_date": "2024-08-10T00:00:00",
     "platform": "atcoder", "difficulty": "easy", "starter_code": "", "metadata": "{}",
     "public_test_cases": "[{\"input\": \"2\", \"output\": \"4\", \"testtype\": \"stdin\"}]",
     "private_test_cases": "eJx.."}

Read from a file with the published columns (`test.jsonl` or a successor, renamed livecodebench.jsonl): on the hub it is
several GB and loads only by running code of the repository, which is not done here. The hidden tests are published as
base64 of zlib of a pickled string. Nothing is unpickled: the one shape that a pickled string has is read, and anything
else is refused. The imports that the benchmark puts before every answer are put there as well. Left out: problems with
several right outputs, which the benchmark leaves out too.
"""

from __future__ import annotations

import base64
import binascii
import json
import pickletools
import zlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from evals.data.sources import Row, Source, dataset
from evals.task import Item, Task, VerifierSpec, code_block, program_question
from ttc.core import Problem, Sampling
from ttc.errors import RecordError

MAX_TESTS_BYTES = 1 << 29
"""Bytes of the unpacked hidden tests of one problem."""
_SCRIPT = "Write a program that reads the input from stdin and writes the answer to stdout."
_FUNCTION = "Complete this code:"
_MODULES = (
    "string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics", "itertools",
    "functools", "operator", "io", "sys", "json", "typing",
)  # fmt: skip
_PRELUDE = "\n".join(
    (
        *(f"from {name} import *" for name in _MODULES),
        *(f"import {name}" for name in _MODULES),
        "from builtins import *",
    )
)
_AROUND_A_STRING = {"PROTO", "FRAME", "MEMOIZE", "BINPUT", "LONG_BINPUT", "STOP"}
_STRINGS = {"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"}


def livecodebench(
    *, data: str | None = None, since: str = "", until: str = "", timeout_s: float = 120.0, case_s: float = 6.0
) -> Task:
    """Contest problems with hidden tests and dates (LiveCodeBench), from a file.

    Args:
        data: file of rows, or folder with livecodebench.jsonl(.gz); required.
        since: date (YYYY-MM-DD) of the oldest contest taken.
        until: date of the newest contest taken.
        timeout_s: seconds for all tests of one answer.
        case_s: seconds for one run of a script.
    """
    source = Source("livecodebench", "livecodebench/code_generation_lite", None, "test", on_hub=False)
    return Task(
        name="livecodebench",
        kind="code",
        load=dataset(source, data, partial(_item, since=since, until=until)),
        sampling=Sampling(max_tokens=8192),
        params={"since": since, "until": until},
        verifier=VerifierSpec("code", {"timeout_s": timeout_s, "case_s": case_s}),
    )


def _item(row: Row, since: str, until: str) -> Item | None:
    date = row.text("contest_date")[:10]
    if date < since or (until and date > until):
        return None
    starter = str(row.data.get("starter_code") or "")
    tests = [*_tests(row, "public_test_cases"), *_tests(row, "private_test_cases")]
    asking = f"{_FUNCTION}\n\n{code_block(starter)}" if starter else _SCRIPT
    meta = row.labels(platform="platform", date="contest_date", difficulty="difficulty")
    problem = Problem(
        row.text("question_id"), program_question(f"{row.text('question_content').strip()}\n\n{asking}"), "code", meta
    )
    return Item(problem, _target(row, tests), difficulty=meta.get("difficulty"))


def _target(row: Row, tests: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    kinds = {test["testtype"] for test in tests}
    if kinds == {"stdin"}:
        return {"prelude": _PRELUDE, "io": [{"input": test["input"], "output": test["output"]} for test in tests]}
    if kinds != {"functional"}:
        raise RecordError(f"{row.where}: testtype: expected stdin or functional throughout, got {sorted(kinds)}")
    name = _json(row, "metadata", row.data.get("metadata")).get("func_name")
    if not isinstance(name, str):
        raise RecordError(f"{row.where}: metadata: func_name: expected the name of a function, got {name!r}")
    return {"prelude": _PRELUDE, "entry_point": name, "cases": [_case(row, test) for test in tests]}


def _case(row: Row, test: Mapping[str, str]) -> dict[str, Any]:
    args = [_json(row, "input", line) for line in test["input"].split("\n")]
    return {"args": args, "expected": _json(row, "output", test["output"])}


def _tests(row: Row, name: str) -> list[Mapping[str, str]]:
    value = row.data.get(name) or "[]"
    tests = value if isinstance(value, list) else _decoded(row, name, value)
    for test in tests:
        if not isinstance(test, dict) or not all(isinstance(test.get(key), str) for key in _TEST):
            raise RecordError(f"{row.where}: {name}: expected objects with the texts {', '.join(_TEST)}")
    return tests


_TEST = ("input", "output", "testtype")


def _decoded(row: Row, name: str, text: Any) -> list[Any]:
    if isinstance(text, str) and not text.lstrip().startswith("["):
        try:
            text = _pickled_string(_unpacked(base64.b64decode(text, validate=True)))
        except (binascii.Error, zlib.error, ValueError) as exc:
            raise RecordError(f"{row.where}: {name}: {exc}") from exc
    tests = _json(row, name, text)
    if not isinstance(tests, list):
        raise RecordError(f"{row.where}: {name}: expected a list of tests")
    return tests


def _unpacked(data: bytes) -> bytes:
    stream = zlib.decompressobj()
    unpacked = stream.decompress(data, MAX_TESTS_BYTES)
    if stream.unconsumed_tail:
        raise ValueError(f"more than {MAX_TESTS_BYTES} bytes of tests")
    return unpacked


def _pickled_string(data: bytes) -> str:
    """The string in a pickle that holds a string and nothing else; no opcode of it is carried out."""
    string = None
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name in _STRINGS and string is None:
            string = argument
        elif opcode.name not in _AROUND_A_STRING:
            raise ValueError(f"a pickle of something else than a string ({opcode.name}): not read")
    if not isinstance(string, str):
        raise ValueError("a pickle without a string")
    return string


def _json(row: Row, name: str, text: Any) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError) as exc:
        raise RecordError(f"{row.where}: {name}: not JSON ({exc})") from exc
