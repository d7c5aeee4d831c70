"""Programs are judged by what they compute, and by nothing that they can say or do about it."""

from __future__ import annotations

import asyncio
import dataclasses
import gzip
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.timing import patience
from tests.ttc.honest_programs import HONEST, LIARS, NEEDS_NUMPY
from tests.ttc.hostile_programs import FORGERIES, TARGET
from ttc.answers import extract, key
from ttc.core import Submission, Verdict
from ttc.errors import ConfigError
from ttc.sandbox.limits import packages
from ttc.verifiers.code import CodeVerifier, assemble, code
from ttc.verifiers.programs.target import read_target
from ttc.verifiers.programs.trial import same_output


@pytest.fixture(scope="module")
def verifier() -> Iterator[CodeVerifier]:
    try:
        made = code(timeout_s=5.0)
    except ConfigError as exc:
        pytest.skip(str(exc))
    yield made
    asyncio.run(made.close())


@pytest.fixture(scope="module")
def hurried(verifier: CodeVerifier) -> Iterator[CodeVerifier]:
    """For programs that may run without end."""
    made = code(timeout_s=1.5, memory_mb=256)
    yield made
    asyncio.run(made.close())


def judge(verifier: CodeVerifier, target: object, *texts: str) -> list[Verdict]:
    async def run() -> list[Verdict]:
        return list(await asyncio.gather(*(verifier.verify(target, Submission(text)) for text in texts)))

    return asyncio.run(run())


def program(source: str) -> str:
    return f"Here it is.\n```python\n{source}\n```\nDone."


DOUBLE = program("def double(x):\n    return x + x")


# -- forging -----------------------------------------------------------------------------------------------------------
@pytest.mark.long
def test_no_forgery_is_correct_and_the_honest_program_is(hurried: CodeVerifier) -> None:
    verdicts = dict(zip(FORGERIES, judge(hurried, TARGET, *FORGERIES.values()), strict=True))
    honest = judge(hurried, TARGET, DOUBLE)[0]
    assert {name: verdict.status for name, verdict in verdicts.items() if verdict.status != "incorrect"} == {}
    # What doubles nothing gets nothing; 0 + 0 is 0, so a constant may be right once.
    assert max(verdict.score or 0 for name, verdict in verdicts.items() if name != "table_of_the_shown") < 0.2
    assert all(verdict.reason for verdict in verdicts.values())
    assert max(verdict.seconds for verdict in verdicts.values()) < hurried.card.max_s * patience()
    assert (honest.status, honest.score) == ("correct", 1.0)


def test_hidden_and_drawn_cases_catch_a_table_of_the_shown_tests(verifier: CodeVerifier) -> None:
    table = program("def double(x):\n    return {3: 6, -1: -2}.get(x)")
    shown = {"entry_point": "double", "tests": ["assert double(3) == 6", "assert double(-1) == -2"]}
    assert judge(verifier, shown, table)[0].correct
    assert not judge(verifier, {**shown, "random": TARGET["random"]}, table)[0].correct
    assert not judge(verifier, {**shown, "cases": TARGET["cases"]}, table)[0].correct


def test_a_helper_of_the_question_cannot_be_replaced_in_its_tests(verifier: CodeVerifier) -> None:
    prelude = "def square(x):\n    return x * x"
    target = {
        "entry_point": "root",
        "prelude": prelude,
        "tests": "def check(candidate):\n    for n in range(1, 4):\n        assert square(candidate(n * n)) == n * n\n",
    }
    right, wrong = "def root(x):\n    return x ** 0.5", "def square(x):\n    return A()\ndef root(x):\n    return 1"
    cheat = "class A:\n    __eq__ = lambda s, o: True\n" + wrong
    assert [verdict.correct for verdict in judge(verifier, target, program(right), program(cheat))] == [True, False]


def test_the_program_never_sees_a_test(verifier: CodeVerifier) -> None:
    target = {"entry_point": "f", "cases": [{"args": [1], "expected": "needle-in-the-tests"}]}
    search = (
        "import gc, sys\ndef f(x):\n    found = [o for o in gc.get_objects() if isinstance(o, (dict, list, str))]\n"
        "    return next((o for o in found if 'needle' + '-in' in str(o)[:10**4]), None) and 'needle' + '-in-the-tests'"
    )
    assert not judge(verifier, target, program(search))[0].correct


# -- scores ------------------------------------------------------------------------------------------------------------
def test_the_score_is_the_share_of_checks_and_each_group_is_a_part(verifier: CodeVerifier) -> None:
    half = program("def double(x):\n    return x + x if isinstance(x, str) else -x")
    verdict = judge(verifier, TARGET, half)[0]
    assert verdict.status == "incorrect"
    assert set(verdict.parts) == {"tests", "cases", "random"}
    assert verdict.parts["cases"] == 0.5
    assert verdict.score is not None
    assert 0 < verdict.score < 0.5
    assert verdict.reason.startswith("2 of 13 checks passed; tests 1: AssertionError")


def test_the_binary_rule_can_be_a_share(verifier: CodeVerifier) -> None:
    target = {"entry_point": "f", "cases": [{"args": [n], "expected": n} for n in range(4)]}
    text = program("def f(x):\n    return min(x, 2)")
    strict, loose = verifier, code(timeout_s=5.0, min_share=0.75)
    found = [judge(each, target, text)[0] for each in (strict, loose)]
    asyncio.run(loose.close())
    assert [verdict.status for verdict in found] == ["incorrect", "correct"]
    assert [verdict.score for verdict in found] == [0.75, 0.75]
    assert strict.version != loose.version
    assert "at least 0.75" in loose.card.correct_when


IO = {"io": [{"input": "2 3\n", "output": "5\n"}, {"input": "10 -4", "output": "6"}, {"input": "0 0", "output": "0"}]}


@pytest.mark.parametrize(
    ("source", "passed"),
    [
        ("a, b = map(int, input().split())\nprint(a + b)", 3),
        ("a, b = map(int, input().split())\nprint(f'{a + b:.2f}  ')\nprint()", 3),
        ("import sys\nprint(sum(map(int, sys.stdin.read().split())))", 3),
        ("print(sum(map(int, input().split())))\nexit()", 3),
        ("print(sum(map(int, input().split())))\nquit(0)", 3),
        ("with open('/dev/stdin') as file:\n    print(sum(map(int, file.read().split())))", 3),
        ("import os\nprint(sum(map(int, os.read(0, os.fstat(0).st_size).split())))", 3),
        ("a, b = map(int, input().split())\nprint(a + b)\nif a == 2:\n    raise SystemExit(1)", 2),
        ("print(5)", 1),
        ("print('5\\n6\\n0')", 0),
        ("input(", 0),
    ],
)
def test_scripts_are_held_to_their_output(verifier: CodeVerifier, source: str, passed: int) -> None:
    verdict = judge(verifier, IO, program(source))[0]
    assert verdict.score == passed / 3
    assert verdict.correct == (passed == 3)


def test_a_program_out_of_time_has_failed_and_one_verdict_has_one_time() -> None:
    quick = code(timeout_s=1.0, case_s=0.3)
    target = {"io": [{"input": str(n), "output": str(n)} for n in range(9)]}
    began = time.perf_counter()
    slow, never = judge(
        quick, target, program("n = input()\nwhile n != '0': pass\nprint(n)"), program("while True: pass")
    )
    assert time.perf_counter() - began < 8 * patience()
    asyncio.run(quick.close())
    assert (slow.status, slow.score) == ("incorrect", 1 / 9)
    assert (never.status, never.score) == ("incorrect", 0.0)
    assert slow.reason == "1 of 9 checks passed; io 2: wall time"


def test_a_program_that_had_no_processor_is_run_once_more_and_no_more_often() -> None:
    quick = code(timeout_s=0.6)
    target = {"entry_point": "f", "cases": [CASE], "io": [{"input": "", "output": "x"}]}
    began = time.perf_counter()
    verdict = judge(quick, target, program("import time\ntime.sleep(99)"))[0]
    asyncio.run(quick.close())
    assert 1.1 < time.perf_counter() - began < quick.card.max_s * patience()
    assert verdict.status == "incorrect"
    assert "wall time" in verdict.reason


def test_a_verdict_is_the_same_in_any_company(verifier: CodeVerifier) -> None:
    texts = [DOUBLE, program("def double(x):\n    return 0"), "no program", program("import os\nos._exit(0)")] * 3
    found = [dataclasses.replace(verdict, seconds=0.0) for verdict in judge(verifier, TARGET, *texts)]
    assert found[:4] == found[4:8] == found[8:]
    assert [verdict.status for verdict in found[:4]] == ["correct", "incorrect", "no_answer", "incorrect"]
    assert verifier.version in {verdict.version for verdict in found}
    assert "seccomp" in verifier.version


# -- targets -----------------------------------------------------------------------------------------------------------
def test_an_answer_may_continue_the_stub_or_replace_it(verifier: CodeVerifier) -> None:
    stub = 'import math\n\ndef area(r: float) -> float:\n    """The area."""\n'
    target = {
        "entry_point": "area",
        "stub": stub,
        "prelude": "import math",
        "cases": [{"args": [1], "expected": 3.14159265}],
        "tolerance": 1e-6,
    }
    texts = ["    return math.pi * r * r\n", program(stub + "    return math.pi * r ** 2"),
             program("def area(r):\n    return math.pi * r ** 2"), program("    return 3 * r")]  # fmt: skip
    assert [verdict.correct for verdict in judge(verifier, target, *texts)] == [True, True, True, False]


def test_a_method_of_solution_is_found(verifier: CodeVerifier) -> None:
    target = {"entry_point": "twoSum", "cases": [{"args": [[2, 7, 11], 9], "expected": [0, 1]}]}
    source = (
        "class Solution:\n    def twoSum(self, nums: list[int], target: int) -> tuple[int, ...]:\n        return (0, 1)"
    )
    assert judge(verifier, target, program(source))[0].correct


BROKEN: list[tuple[object, str]] = [
    (None, "must be an object"),
    ({}, "nothing to test with"),
    ({"test": []}, "unknown field 'test'"),
    ({"tests": ["assert f(("]}, r"target.tests\[0\] is not Python"),
    ({"tests": 5}, "target.tests must be a list"),
    ({"tests": ["def check(c): pass"]}, "needs target.entry_point"),
    ({"cases": [{"args": [1], "expected": 1}]}, "target.cases needs target.entry_point"),
    ({"entry_point": "f", "cases": [{"args": 1, "expected": 1}]}, r"target.cases\[0\]"),
    ({"entry_point": "f()", "cases": []}, "name of a function"),
    ({"io": [{"input": "1"}]}, r"target.io\[0\] must be an object with input and output"),
    ({"entry_point": "f", "random": {"reference": ""}}, "reference, arguments, seed and count"),
    ({"entry_point": "f", "random": {"reference": "", "arguments": [], "seed": 1, "count": 0}}, "count must be"),
    ({"entry_point": "f", "random": {"reference": "", "arguments": [{"type": 1}], "seed": 1, "count": 1}}, "type must"),
    ({"entry_point": "f", "random": {"reference": "g = 1", "arguments": [], "seed": 1, "count": 1}}, "define 'f'"),
    ({"entry_point": "f", "in_place": 1, "cases": [{"args": [], "expected": 1}]}, "in_place must be true or false"),
    ({"entry_point": "f", "tolerance": 2, "cases": [{"args": [], "expected": 1}]}, "tolerance must be"),
]  # fmt: skip


@pytest.mark.parametrize(("target", "message"), BROKEN)
def test_a_broken_target_is_named_before_and_during_a_run(verifier: CodeVerifier, target: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"item 7: .*{message}"):
        verifier.check_gold(target, "item 7")
    assert judge(verifier, target, DOUBLE)[0].status == "error"


def test_a_test_that_cannot_be_sent_is_an_error_of_the_test(verifier: CodeVerifier) -> None:
    target = {"tests": ["assert double(object()) == 1"], "functions": ["double"]}
    verdict = judge(verifier, target, DOUBLE)[0]
    assert verdict.status == "error"
    assert "the test is broken" in verdict.reason


IN_PLACE = {"entry_point": "f", "tests": ["a = [3, 1, 2]\nf(a)\nassert a == [1, 2, 3]"]}
STACK = {
    "tests": ["q = Stack()\nq.push(1)\nassert len(q) == 1 and q.pop() == 1 and q.size == 0"],
    "functions": ["Stack"],
}
A_STACK = """class Stack:
    def __init__(s): s.a = []
    def __len__(s): return len(s.a)
    def push(s, x): s.a.append(x)
    def pop(s): return s.a.pop()
    @property
    def size(s): return len(s.a)"""


@pytest.mark.parametrize(
    ("target", "right", "wrong"),
    [
        (IN_PLACE, "def f(a): a.sort()", "def f(a): a.reverse()"),
        (STACK, A_STACK, A_STACK.replace("s.a.pop()", "2")),
        (
            {"entry_point": "f", "tests": ["assert f(1)(2) == 3"]},
            "def f(a): return lambda b: a + b",
            "def f(a): return max",
        ),
        (
            {"entry_point": "f", "tests": ["assert f('aab').most_common(1) == [('a', 2)]"]},
            "from collections import Counter\ndef f(a): return Counter(a)",
            "def f(a): return {'a': 2}",
        ),
        (
            {"entry_point": "f", "tests": ["assert f(1).x == 1 and f(1) == (1,)"]},
            "from collections import namedtuple\ndef f(a): return namedtuple('P', 'x')(a)",
            "def f(a): return (a,)",
        ),
    ],
)
def test_objects_of_a_program_and_what_it_does_in_place_are_tested(
    verifier: CodeVerifier, target: Any, right: str, wrong: str
) -> None:
    verdicts = judge(verifier, target, program(right), program(wrong))
    assert [verdict.status for verdict in verdicts] == ["correct", "incorrect"], [v.reason for v in verdicts]


@pytest.mark.parametrize("name", sorted(HONEST))
def test_what_ordinary_tests_of_code_do_is_supported(verifier: CodeVerifier, name: str) -> None:
    if name in NEEDS_NUMPY and not packages():
        pytest.skip("numpy is not installed")
    target, source = HONEST[name]
    (verdict,) = judge(verifier, target, program(source))
    assert verdict.status == "correct", verdict.reason


ENDLESS = {"callback_without_end", "endless_nodes", "endless_steps"}


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(LIARS))
def test_no_object_function_node_or_array_of_a_program_lies_its_way_through_a_test(
    verifier: CodeVerifier, hurried: CodeVerifier, name: str
) -> None:
    target, source = LIARS[name]
    (verdict,) = judge(hurried if name in ENDLESS else verifier, target, program(source))
    assert verdict.status == "incorrect", verdict.reason


FORGED = """
import json, sys
frame = sys._getframe()
while "values" not in frame.f_globals:
    frame = frame.f_back
values = frame.f_globals["values"]
def dump(value, keep, *rest, dump=values.dump, **settings):
    if value != ["value", 1]:
        return dump(value, keep, *rest, **settings)
    endless = {"t": "iterator", "v": [0] * 100_000, "rest": keep(iter(range(500)))}
    return json.dumps(["value", endless]).encode()
values.dump = dump
def f(x): return 1
def g(x): return 2
"""


@pytest.mark.parametrize(
    "source", ["async def f(x): return 1\ndef g(x): return 2", "async def f(x): yield 1\ndef g(x): return 2", FORGED]
)
def test_a_program_whose_value_cannot_be_passed_on_is_wrong_and_breaks_no_test(
    verifier: CodeVerifier, source: str
) -> None:
    (verdict,) = judge(verifier, {"tests": ["assert g(f(1)) == 3"]}, program(source))
    assert (verdict.status, verdict.score) == ("incorrect", 0.0), verdict.reason


def test_a_long_list_of_nodes_travels_in_time_that_grows_with_its_length(verifier: CodeVerifier) -> None:
    nodes = "class ListNode:\n    def __init__(self, val=0, next=None):\n        self.val, self.next = val, next\n"
    build = "head = None\nfor i in range(40_000):\n    head = ListNode(i, head)\n"
    target = {"prelude": nodes, "entry_point": "f", "tests": [f"{build}assert f(head) is head"]}
    (verdict,) = judge(verifier, target, program(f"{nodes}\ndef f(head):\n    return head"))
    assert verdict.status == "correct", verdict.reason


def test_what_a_program_did_in_place_is_seen_beside_its_value_only_where_the_target_says_so(
    verifier: CodeVerifier,
) -> None:
    tests = ["a = [1, 1, 2]\nk = f(a)\nassert a[:k] == [1, 2]"]
    source = program("def f(a):\n    b = sorted(set(a))\n    a[: len(b)] = b\n    return len(b)")
    targets = [{"entry_point": "f", "tests": tests, "in_place": flag} for flag in (True, False)]
    assert [judge(verifier, target, source)[0].status for target in targets] == ["correct", "incorrect"]


@pytest.mark.parametrize(
    ("tests", "source"),
    [
        ("assert all(map(f, [2, 3, 5, 7]))", "def f(x):\n    raise StopIteration"),
        ("a = [3, 1]\nassert f(a) == sorted(a)", "def f(a):\n    a.clear()\n    return []"),
        ("assert f(f(2)) == 16", "def f(x):\n    r = 1\n    for _ in range(230): r = [r]\n    return r"),
        ("assert f(f(2)) == 16", "def f(x):\n    return iter(range(100_005))"),
    ],
)
def test_what_a_program_sends_is_never_the_fault_of_the_test(verifier: CodeVerifier, tests: str, source: str) -> None:
    (verdict,) = judge(verifier, {"entry_point": "f", "tests": [tests]}, program(source))
    assert (verdict.status, verdict.score) == ("incorrect", 0.0)


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        ("10", "0010"), ("7 5", "07 05"), ("1_0_0_0", "1000"), ("1e5", "100000"), ("\u0663", "3"), ("NaN", "nan"),
        ("*\n***\n*****", "  *\n ***\n*****"),
    ],
)  # fmt: skip
def test_texts_that_are_no_plain_numbers_are_compared_as_texts(got: str, expected: str) -> None:
    assert not same_output(got, expected)
    assert same_output(expected, expected)


def test_the_functions_of_a_test_are_found_by_name() -> None:
    groups = read_target({"setup": "import math\nk = 2", "tests": ["assert g(k) == math.pi + len(sys.argv)"]}).groups
    assert groups[0]["remote"] == ["g"]
    assert read_target({"tests": ["assert sum(1, 2) == 3"], "functions": ["sum"]}).groups[0]["remote"] == ["sum"]


@pytest.mark.parametrize(
    ("got", "expected", "same"),
    [
        ("1 2\n3", "1 2\n3\n", True), ("1  2", "1 2", True), ("1.0", "1", True), ("1e3", "1000.000", False),
        ("yes", "YES", False), ("1\n\n2", "1\n2", False), ("", "\n", True), ("0.1", "0.10000001", False),
        ("nan", "nan", True), ("9" * 500, "9" * 499, False), ("1", "1 1", False), (" 1", "1", True),
    ],
)  # fmt: skip
def test_outputs_are_equal_up_to_white_space_and_spelling_of_numbers(got: str, expected: str, same: bool) -> None:
    assert same_output(got, expected) == same


# -- answers -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "final"),
    [
        ("```python\na = 1\n```\nthen\n```python\nb = 2\n```", "b = 2"),
        ("```py\na = 1\n```\noutput:\n```\n5\n```", "a = 1"),
        ("~~~\na = 1\n~~~", "a = 1"),
        ("```python\na = 1", "a = 1"),
        ("````python\ns = '''\n```\n'''\n````", "s = '''\n```\n'''"),
        ("<think>```python\na = 1\n```</think>```python\nb = 2\n```", "b = 2"),
        ("    return 1", "    return 1"),
        ("def f():\n    return 1\n", "def f():\n    return 1"),
        ("[BEGIN]\ndef f():\n    return 1\n[DONE]", "def f():\n    return 1"),
        ("Sure.\n[PYTHON]\na = 1\n[/PYTHON]\nDone.", "a = 1"),
        ("The answer is 5.", None),
        ("five", None),
        ("```bash\nls\n```", None),
        ("<think>```python\na = 1\n```", None),
        ("```python\n" + "x = 1\n" * 20_000 + "```", None),
    ],
)
def test_the_program_of_a_text_is_its_last_python_block(text: str, final: str | None) -> None:
    assert extract(text, "code").final == final


@pytest.mark.parametrize(
    "text",
    [
        "```" + "a" * 10**6 + "`",
        "`" * 10**6,
        "```\n" * 10**5,
        "[PYTHON]\n" * 10**5,
        " " * 10**6,
        "~~~ " * 10**5,
        "(" * 10**5,
        "```py\n" + "-" * 60_000,
    ],
    ids=["a long tag", "ticks", "fences", "marks", "spaces", "one line", "brackets", "signs"],
)
def test_a_program_is_looked_for_in_linear_time(text: str) -> None:
    began = time.perf_counter()
    final = extract(text, "code").final
    key(final or "", "code")
    assert time.perf_counter() - began < 2 * patience()


def test_programs_with_one_tree_are_one_class() -> None:
    assert key("x = 'a'  # note\n", "code") == key('x = (\n    "a")', "code")
    assert key("x = 1", "code") != key("y = 1", "code")
    assert key("def (", "code") != key("def [", "code")


def test_a_program_is_put_together_from_prelude_stub_and_answer() -> None:
    exercise = read_target({"entry_point": "f", "stub": "def f(x):", "prelude": "import re", "cases": [CASE]})
    assert assemble(exercise, "    return 1") == "import re\ndef f(x):\n    return 1\n"
    assert assemble(exercise, "def f(x): return 1") == "import re\ndef f(x): return 1\n"
    assert assemble(exercise, "f = len") == "import re\nf = len\n"


CASE = {"args": [1], "expected": 1}


@pytest.mark.parametrize(
    "params", [{"timeout_s": 0}, {"case_s": -1}, {"min_share": 0}, {"min_share": 2}, {"memory_mb": 1}, {"workers": 0}]
)
def test_parameters_out_of_range_are_refused(params: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="code: "):
        code(**params)


# -- the references of the public sets ---------------------------------------------------------------------------------
def rows(path: Path) -> list[Mapping[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


PASS_WITHOUT_THEIR_LAST_LINE = {9, 20, 160, 223, 395, 627, 803, 804}


def shortened(source: str) -> str:
    return source.rstrip().rpartition("\n")[0]


@pytest.mark.slow
def test_all_references_pass_and_all_broken_ones_fail(data_dir: Path) -> None:
    from evals.tasks.humaneval import humaneval
    from evals.tasks.mbpp import mbpp

    verifier = code(timeout_s=30.0)
    human = {item.problem.id: item.target for item in humaneval(data=str(data_dir)).items(None, 0)}
    basic = {item.problem.id: item.target for item in mbpp(data=str(data_dir), split="all").items(None, 0)}
    cases: list[tuple[str, str, Any, str, bool]] = []
    for row in rows(data_dir / "humaneval.jsonl.gz"):
        stub, body = row["prompt"], row["canonical_solution"]
        sources = {"whole": stub + body, "none": f"{stub}    return None", "cut": stub + shortened(body)}
        cases += [(row["id"], kind, human[row["id"]], text, kind == "whole") for kind, text in sources.items()]
    for row in rows(data_dir / "mbpp.jsonl.gz"):
        if row["sanitized"]:
            target, source = basic[row["id"]], row["sanitized_code"]
            nothing = "\n".join(f"def {name}(*a, **k):\n    return None" for name in target["functions"])
            spared = row["task_id"] in PASS_WITHOUT_THEIR_LAST_LINE
            cases += [(row["id"], "whole", target, source, True), (row["id"], "none", target, nothing, False)]
            cases.append((row["id"], "cut", target, shortened(source), spared))

    async def run() -> list[Verdict]:
        return list(await asyncio.gather(*(verifier.verify(case[2], Submission(program(case[3]))) for case in cases)))

    verdicts = asyncio.run(run())
    asyncio.run(verifier.close())
    assert len(cases) == 3 * (164 + 427)
    wrong = [
        (case[0], case[1], verdict.status, verdict.reason)
        for case, verdict in zip(cases, verdicts, strict=True)
        if verdict.correct != case[4]
    ]
    assert wrong == []
