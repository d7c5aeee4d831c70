"""HumanEval, MBPP and LiveCodeBench: their exact questions, their targets, and what is broken in a file."""

from __future__ import annotations

import asyncio
import base64
import json
import pickle
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest

from evals.experiment import check_golds
from evals.task import Item, Task
from evals.tasks.humaneval import humaneval
from evals.tasks.livecodebench import livecodebench
from evals.tasks.mbpp import mbpp
from tests.evals.local_data import write_hub_copy, write_lines
from ttc.cli.cli import main
from ttc.config.registry import VERIFIERS
from ttc.core import Submission
from ttc.errors import ConfigError, RecordError


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def statuses(task: Task, items: list[Item], *texts: str) -> list[str]:
    """The statuses of the texts of the items under the task's own verifier, after its golds were checked."""

    async def judge() -> list[str]:
        verifier = VERIFIERS.load(task.check.verifier)(**task.check.params)
        try:
            check_golds(items, verifier, task)
            pairs = zip(items, texts, strict=True)
            found = [await verifier.verify(item.target, Submission(text)) for item, text in pairs]
        finally:
            await verifier.close()
        return [verdict.status for verdict in found]

    return asyncio.run(judge())


HUMANEVAL = {
    "task_id": "HumanEval/50",
    "prompt": 'def shift(s: str):\n    """Move each letter on."""\n    return s\n\n\n'
    'def unshift(s: str):\n    """\n    takes a shifted string.\n    """\n',
    "canonical_solution": "    return s\n",
    "test": "\n\nMETADATA = {}\n\n\ndef check(candidate):\n    for text in ('ab', ''):\n"
    "        assert candidate(shift(text)) == text\n",
    "entry_point": "unshift",
}
HUMANEVAL_QUESTION = '''Complete this Python function. Keep its name and its parameters.

```python
def shift(s: str):
    """Move each letter on."""
    return s


def unshift(s: str):
    """
    takes a shifted string.
    """
```

Reply with the complete program in one ```python block.'''


def test_humaneval_asks_for_the_function_and_reads_both_formats(tmp_path: Path) -> None:
    write_hub_copy(tmp_path / "openai/openai_humaneval", [HUMANEVAL])
    write_lines(tmp_path / "local/humaneval.jsonl.gz", [{**HUMANEVAL, "id": "HumanEval/50"}])
    write_lines(tmp_path / "published/humaneval.jsonl", [HUMANEVAL])
    folders = (tmp_path, tmp_path / "local", tmp_path / "published")
    hub, local, published = (humaneval(data=str(folder)).items(None, 0) for folder in folders)
    assert published == hub
    assert hub == local
    assert [message.role for message in hub[0].problem.messages] == ["user"]
    assert hub[0].problem.messages[0].content == HUMANEVAL_QUESTION
    assert (hub[0].problem.id, hub[0].problem.kind) == ("HumanEval/50", "code")
    assert hub[0].target["prelude"].startswith("def shift")
    assert "unshift" not in hub[0].target["prelude"]


@pytest.mark.usefixtures("sandboxed")
def test_humaneval_answers_are_judged_by_the_tests(tmp_path: Path) -> None:
    write_lines(tmp_path / "humaneval.jsonl", [{**HUMANEVAL, "id": "HumanEval/50"}])
    task = humaneval(data=str(tmp_path))
    item = task.items(None, 0)[0]
    texts = [
        "```python\ndef unshift(s):\n    return s\n```",
        "    return s\n",
        "```python\ndef shift(s):\n    return ''\ndef unshift(s):\n    return ''\n```",
        "I would return s.",
    ]
    assert statuses(task, [item] * 4, *texts) == ["correct", "correct", "incorrect", "no_answer"]


MBPP = {
    "task_id": 126,
    "text": "Write a function to find the sum of common divisors.",
    "prompt": "Write a python function to find the sum of common divisors.",
    "code": "def sum(a,b): \r\n    return 6",
    "test_list": [
        "assert sum(10,15) == 6", "assert sum(4,6) == 6", "assert math.isclose(sum(1,2), 6)", "assert sum(0,0) == 6",
    ],
    "test_setup_code": "",
    "test_imports": ["import math"],
    "challenge_test_list": [],
}  # fmt: skip
MBPP_QUESTION = """Write a python function to find the sum of common divisors.

Your program must pass tests like these:

assert sum(10,15) == 6
assert sum(4,6) == 6
assert math.isclose(sum(1,2), 6)

Reply with the complete program in one ```python block."""


def local_mbpp(**changes: Any) -> dict[str, Any]:
    sanitized = {f"sanitized_{name}": MBPP[name] for name in ("prompt", "code", "test_list", "test_imports")}
    row = {**MBPP, **sanitized, "id": "mbpp-126", "split": "test", "sanitized": True, "prompt": MBPP["text"]}
    return {**row, **changes}


def test_mbpp_shows_its_first_tests_and_reads_both_formats(tmp_path: Path) -> None:
    write_hub_copy(tmp_path / "google-research-datasets/mbpp", [MBPP], config="sanitized")
    write_lines(tmp_path / "local/mbpp.jsonl.gz", [local_mbpp()])
    hub, local = (mbpp(data=str(folder)).items(None, 0) for folder in (tmp_path, tmp_path / "local"))
    assert hub == local
    assert hub[0].problem.messages[0].content == MBPP_QUESTION
    assert hub[0].target == {"tests": MBPP["test_list"], "setup": "import math", "functions": ["sum"]}
    assert hub[0].problem.id == "mbpp-126"


def test_mbpp_takes_the_subset_and_split_that_are_asked_for(tmp_path: Path) -> None:
    rows = [
        local_mbpp(task_id=1, split="prompt"),
        local_mbpp(task_id=2, sanitized=False, sanitized_prompt=None),
        local_mbpp(task_id=3),
        local_mbpp(task_id=367, split="test"),
    ]
    write_lines(tmp_path / "mbpp.jsonl", rows)

    def ids(**params: Any) -> list[str]:
        return [item.problem.id for item in mbpp(data=str(tmp_path), **params).items(None, 0)]

    assert ids() == ["mbpp-3"]
    assert ids(split="all") == ["mbpp-1", "mbpp-3"]
    assert ids(subset="full") == ["mbpp-2", "mbpp-3"]
    shown = mbpp(data=str(tmp_path), num_shown=1).items(None, 0)[0]
    assert shown.problem.messages[0].content.count("assert") == 1
    assert len(shown.target["tests"]) == 4
    with pytest.raises(ConfigError, match="num_shown"):
        mbpp(num_shown=0)


@pytest.mark.usefixtures("sandboxed")
def test_mbpp_answers_are_judged_by_all_tests(tmp_path: Path) -> None:
    write_lines(tmp_path / "mbpp.jsonl", [local_mbpp()])
    task = mbpp(data=str(tmp_path), num_shown=1)
    item = task.items(None, 0)[0]
    texts = ["```python\ndef sum(a, b):\n    return 6\n```", "```python\ndef sum(a, b):\n    return 6 if a else 0\n```"]
    assert statuses(task, [item] * 2, *texts) == ["correct", "incorrect"]


def packed(value: object) -> str:
    """Hidden tests as they are published."""
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(value)))).decode("ascii")


SCRIPT = {
    "question_title": "Sum",
    "question_content": "Print the sum of the numbers.\n",
    "platform": "atcoder",
    "question_id": "abc300_a",
    "contest_id": "abc300",
    "contest_date": "2023-04-29T00:00:00",
    "starter_code": "",
    "difficulty": "easy",
    "public_test_cases": json.dumps([{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}]),
    "private_test_cases": packed([{"input": "5 5\n", "output": "10\n", "testtype": "stdin"}]),
    "metadata": "{}",
}
FUNCTION = {
    **SCRIPT,
    "platform": "leetcode",
    "question_id": "3001",
    "contest_date": "2024-02-01T00:00:00",
    "starter_code": "class Solution:\n    def add(self, a: int, b: List[int]) -> int:\n        ",
    "public_test_cases": json.dumps([{"input": "1\n[2, 3]", "output": "6", "testtype": "functional"}]),
    "private_test_cases": packed([{"input": "0\n[]", "output": "0", "testtype": "functional"}]),
    "metadata": json.dumps({"func_name": "add"}),
}
SCRIPT_QUESTION = """Print the sum of the numbers.

Write a program that reads the input from stdin and writes the answer to stdout.

Reply with the complete program in one ```python block."""
FUNCTION_QUESTION = """Print the sum of the numbers.

Complete this code:

```python
class Solution:
    def add(self, a: int, b: List[int]) -> int:
```

Reply with the complete program in one ```python block."""


def test_livecodebench_reads_the_published_columns(tmp_path: Path) -> None:
    write_lines(tmp_path / "livecodebench.jsonl", [SCRIPT, FUNCTION])
    script, function = livecodebench(data=str(tmp_path)).items(None, 0)
    assert script.problem.messages[0].content == SCRIPT_QUESTION
    assert function.problem.messages[0].content == FUNCTION_QUESTION
    assert script.target["io"] == [{"input": "1 2\n", "output": "3\n"}, {"input": "5 5\n", "output": "10\n"}]
    assert function.target["cases"] == [{"args": [1, [2, 3]], "expected": 6}, {"args": [0, []], "expected": 0}]
    assert (script.difficulty, script.problem.meta["platform"]) == ("easy", "atcoder")
    assert len(livecodebench(data=str(tmp_path), since="2024-01-01").items(None, 0)) == 1
    assert len(livecodebench(data=str(tmp_path), until="2023-12-31").items(None, 0)) == 1
    with pytest.raises(ConfigError, match="read from a copy only"):
        livecodebench().items(None, 0)


@pytest.mark.usefixtures("sandboxed")
def test_livecodebench_answers_are_judged_by_public_and_hidden_tests(tmp_path: Path) -> None:
    write_lines(tmp_path / "livecodebench.jsonl", [SCRIPT, FUNCTION])
    task = livecodebench(data=str(tmp_path))
    script, function = task.items(None, 0)
    texts = [
        "```python\nprint(sum(map(int, input().split())))\n```",
        "```python\nprint(3)\n```",
        f"```python\n{FUNCTION['starter_code']}return reduce(operator.add, b, a)\n```",
        "```python\nclass Solution:\n    def add(self, a, b):\n        return 6\n```",
    ]
    found = statuses(task, [script, script, function, function], *texts)
    assert found == ["correct", "incorrect", "correct", "incorrect"]


class _Attack:
    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return (Path.touch, ("/tmp/ttc-unpickled",))


def encoded(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data)).decode("ascii")


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickled_string_is_read_in_every_protocol(tmp_path: Path, protocol: int) -> None:
    tests = json.dumps([{"input": "é", "output": "1", "testtype": "stdin"}], ensure_ascii=False)
    row = {**SCRIPT, "private_test_cases": encoded(pickle.dumps(tests, protocol))}
    write_lines(tmp_path / "livecodebench.jsonl", [row])
    assert livecodebench(data=str(tmp_path)).items(None, 0)[0].target["io"][1] == {"input": "é", "output": "1"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"private_test_cases": encoded(pickle.dumps(_Attack()))}, "something else than a string"),
        ({"private_test_cases": encoded(pickle.dumps(["[]", "[]"]))}, "something else than a string"),
        ({"private_test_cases": encoded(b"not a pickle")}, "line 1: private_test_cases"),
        ({"private_test_cases": "%%%"}, "line 1: private_test_cases"),
        ({"private_test_cases": encoded(pickle.dumps("[broken"))}, "private_test_cases: not JSON"),
        ({"public_test_cases": '[{"input": 1}]'}, "public_test_cases: expected objects"),
        ({"public_test_cases": '[{"input": "", "output": "", "testtype": "functional"}]'}, "testtype: expected"),
        ({"question_content": ""}, "question_content: expected a non-empty string"),
    ],
)
def test_a_broken_row_is_named_and_nothing_of_it_is_run(tmp_path: Path, changes: Any, message: str) -> None:
    write_lines(tmp_path / "livecodebench.jsonl", [{**SCRIPT, **changes}])
    with pytest.raises(RecordError, match=message):
        livecodebench(data=str(tmp_path)).items(None, 0)
    assert not Path("/tmp/ttc-unpickled").exists()


def test_broken_rows_of_the_other_sets_are_named(tmp_path: Path) -> None:
    write_lines(tmp_path / "humaneval.jsonl", [{**HUMANEVAL, "id": "x", "entry_point": "other"}])
    with pytest.raises(RecordError, match="line 1: entry_point: the prompt does not define 'other'"):
        humaneval(data=str(tmp_path)).items(None, 0)
    write_lines(tmp_path / "mbpp.jsonl", [local_mbpp(sanitized_test_list="assert")])
    with pytest.raises(RecordError, match="line 1: sanitized_test_list: expected a list of strings"):
        mbpp(data=str(tmp_path)).items(None, 0)


def test_the_local_sets_load_and_their_golds_can_be_read(data_dir: Path) -> None:
    from ttc.verifiers.programs.target import read_target

    human, basic = (task(data=str(data_dir)).items(None, 0) for task in (humaneval, mbpp))
    assert (len(human), len(basic)) == (164, 257)
    assert len(mbpp(data=str(data_dir), split="all").items(None, 0)) == 427
    assert len(mbpp(data=str(data_dir), split="all", subset="full").items(None, 0)) == 972
    for item in (*human, *basic):
        assert read_target(item.target).groups[0]["remote"]


def test_unsafe_code_reaches_the_verifier_of_programs_and_no_other(tmp_path: Path) -> None:
    write_lines(tmp_path / "mbpp.jsonl", [local_mbpp()])
    common = ["eval", "--engine", "simulated", "--strategy", "direct", "--baseline", "none", "--unsafe-code"]
    assert main([*common, "--task", "mbpp", "--data", str(tmp_path), "--out", str(tmp_path / "code")]) == 0
    assert main([*common, "--task", "simulated", "--limit", "2", "--out", str(tmp_path / "other")]) == 0
    code, other = (json.loads((tmp_path / name / "run.json").read_text())["config"] for name in ("code", "other"))
    assert code["verifier_params"]["unsafe"] is True
    assert "unsafe" not in other["verifier_params"]
