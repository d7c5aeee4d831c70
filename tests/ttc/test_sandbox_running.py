"""What programs may do, how they are ended, and that nothing is left of them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ttc.processes import descendants
from ttc.errors import ConfigError, VerifierError
from ttc.sandbox.limits import ResourceLimits, Tier, unused_user
from ttc.sandbox.pool import Sandbox, Worker
from ttc.sandbox.probe import UNSAFE, candidates, failure, probe
from ttc.sandbox.running import Script, Suite

LIMITS = ResourceLimits(wall_s=5.0, cpu_s=5.0)
SHORT = ResourceLimits(wall_s=0.4, cpu_s=5.0)


@pytest.fixture(scope="module")
def tier() -> Tier:
    for found in candidates():
        if isinstance(found, Tier) and not failure(found):
            return found
    pytest.skip("nothing holds programs on this machine")


@pytest.fixture(scope="module")
def sandbox(tier: Tier) -> Iterator[Sandbox]:
    with Sandbox(tier, workers=2) as sandbox:
        yield sandbox


# -- scripts -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("source", "stdin", "output"),
    [
        ("print(int(input()) + 1)", "4\n", "5\n"),
        ("import sys\nprint(sum(map(int, sys.stdin)))", "1\n2\n3", "6\n"),
        ("print(open(0).read().upper(), end='')", "ä b", "Ä B"),
        ("import sys\nsys.stdout.buffer.write(sys.stdin.buffer.read()[::-1])", "abc", "cba"),
        ("if __name__ == '__main__':\n    print('main')", "", "main\n"),
        ("import sys\nprint(1)\nsys.exit()", "", "1\n"),
        ("import threading\nthreading.Thread(target=lambda: print('late')).start()", "", "late\n"),
        ("import threading as t\nt.stack_size(1 << 26)\nt.Thread(target=print, args=(1,)).start()", "", "1\n"),
        ("import atexit\natexit.register(print, 'bye')", "", "bye\n"),
        ("import sys\nsys.setrecursionlimit(9**9)\nf = lambda n: n and 1 + f(n - 1)\nprint(f(9999))", "", "9999\n"),
        ("import numpy_is_not_here", "", ""),
        ("import heapq, decimal, xml.etree.ElementTree, tomllib, wave\nprint(decimal.Decimal(2).sqrt())", "",
         "1.414213562373095048801688724\n"),
        ("import re, os\nprint(os.getcwd(), len(os.environ), __file__)", "", "/ 0 program.py\n"),
        ("from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int\nprint(A(1))", "", "A(x=1)\n"),
        ("import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))).__name__)", "", "A\n"),
        ("print({'b', 'a', 'c'} == set('abc'), hash('a') == hash('a'))", "", "True True\n"),
    ],
)  # fmt: skip
def test_an_ordinary_script_runs_as_it_would_anywhere(sandbox: Sandbox, source: str, stdin: str, output: str) -> None:
    assert sandbox.submit(Script(source, LIMITS, stdin)).result().output == output


def test_the_order_of_sets_is_the_same_in_every_run(sandbox: Sandbox) -> None:
    source = "print(list({f'x{n}' for n in range(20)}))"
    assert len({sandbox.submit(Script(source, LIMITS)).result().output for _ in range(4)}) == 1


@pytest.mark.parametrize(
    ("source", "limits", "cause"),
    [
        ("1 / 0", LIMITS, "exit code 1"),
        ("import sys\nsys.exit(3)", LIMITS, "exit code 3"),
        ("import sys\nsys.exit('no')", LIMITS, "exit code 1"),
        ("while True: pass", SHORT, "wall time"),
        ("while True: pass", ResourceLimits(wall_s=9.0, cpu_s=0.1), "processor time"),
        ("import os\nos.abort()", LIMITS, "killed by SIGABRT"),
        ("print('x' * 10**7)", ResourceLimits(5.0, 5.0, output_kb=16), "output"),
        ("x = bytearray(10**9)", LIMITS, "exit code 1"),
    ],
)
def test_how_a_script_failed_is_told(sandbox: Sandbox, source: str, limits: ResourceLimits, cause: str) -> None:
    assert sandbox.submit(Script(source, limits)).result().cause == cause


def test_one_whose_time_is_over_before_it_begins_was_late_and_no_fault_of_the_sandbox(sandbox: Sandbox) -> None:
    instant = ResourceLimits(wall_s=1e-4, cpu_s=5.0)
    group = {"kind": "cases", "function": "f", "cases": [{"args": [], "expected": 1}], "tolerance": 0.0}
    endless = "while True: pass"  # where the machine is busy, one that ends by itself may do so before it is looked at
    suite = Suite(f"{endless}\ndef f(): return 1", [group], instant)
    assert [sandbox.submit(Script(endless, instant)).result().cause for _ in range(3)] == ["wall time"] * 3
    assert sandbox.submit(suite).result().cause == "wall time"
    assert sandbox.submit(Script("print(2)", LIMITS)).result().output == "2\n"


def test_tests_that_call_nothing_do_not_pass_a_program_that_ended_while_it_was_loaded(sandbox: Sandbox) -> None:
    group = {"kind": "asserts", "setup": "", "tests": ["assert True"], "remote": ["f"], "check": ""}
    ran = sandbox.submit(Suite("import os\nos._exit(0)", [group], LIMITS)).result()
    assert (ran.notes, ran.cause) == (((),), "the program broke off")


def test_a_traceback_is_kept_and_names_nothing_of_the_host(sandbox: Sandbox) -> None:
    ran = sandbox.submit(Script("def f():\n    raise ValueError('what')\nf()", LIMITS)).result()
    assert ran.errors.rstrip().endswith("ValueError: what")
    assert 'File "program.py", line 2' in ran.errors


def test_a_program_finds_no_remains_of_another(sandbox: Sandbox) -> None:
    with Sandbox(sandbox.tier, workers=1) as one:
        one.submit(Script("import builtins, sys\nbuiltins.left = 'here'\nsys.modules['left'] = sys", LIMITS)).result()
        ran = one.submit(Script("import builtins\nprint(hasattr(builtins, 'left'))\nimport left", LIMITS)).result()
    assert ran.output == "False\n"
    assert "No module named 'left'" in ran.errors


# -- the processes -----------------------------------------------------------------------------------------------------
def test_nothing_is_left_when_a_sandbox_closes(tier: Tier) -> None:
    before, descriptors = descendants(), set(os.listdir("/proc/self/fd"))
    sandbox = Sandbox(tier, workers=3)
    futures = [sandbox.submit(Script(source, SHORT)) for source in ["print(1)", "while True: pass", "1/0"] * 3]
    assert [future.result().cause for future in futures][:3] == ["", "wall time", "exit code 1"]
    sandbox.close()
    assert descendants() <= before
    assert set(os.listdir("/proc/self/fd")) <= descriptors
    with pytest.raises(VerifierError, match="closed"):
        sandbox.submit(Script("", LIMITS))


def test_a_dead_zygote_is_replaced(tier: Tier) -> None:
    before = descendants()
    with Sandbox(tier, workers=1) as sandbox:
        assert sandbox.submit(Script("print(1)", LIMITS)).result().output == "1\n"
        for pid in descendants() - before:
            os.kill(pid, signal.SIGKILL)
        assert sandbox.submit(Script("print(2)", LIMITS)).result().output == "2\n"


def test_cells_end_when_the_zygote_is_killed(tier: Tier) -> None:
    before = descendants()
    worker = Worker(tier)
    zygotes = descendants() - before
    cell = worker.start({"mode": "script", "source": "import time\ntime.sleep(99)", "stdin": ""}, LIMITS)
    cells = descendants() - before - zygotes
    assert len(cells) == 1
    for pid in zygotes:
        os.kill(pid, signal.SIGKILL)
    assert gone(cells)
    with pytest.raises(VerifierError):
        worker.finish(cell)
    worker.close()


def test_everything_ends_when_the_host_is_killed(tier: Tier) -> None:
    code = (
        "import sys, time\nfrom ttc.sandbox.pool import Sandbox\nfrom ttc.sandbox.probe import probe\n"
        "from ttc.sandbox.running import Script\nfrom ttc.sandbox.limits import ResourceLimits\n"
        "s = Sandbox(probe(), workers=2)\n"
        "s.submit(Script('print(1)', ResourceLimits(50, 50))).result()\n"
        "for _ in range(2):\n    s.submit(Script('while True: pass', ResourceLimits(50, 50)))\n"
        "time.sleep(99)\n"
    )
    before = descendants()
    host = subprocess.Popen([sys.executable, "-c", code])
    deadline = time.monotonic() + 30
    # The host, two zygotes and a cell of each.
    while len(family := descendants() - before) < 5 and time.monotonic() < deadline:
        time.sleep(0.1)
    host.kill()
    host.wait()
    assert len(family) >= 5
    assert gone(family)


def gone(pids: set[int]) -> bool:
    """Whether all of these end within five seconds."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        if not any(alive(pid) for pid in pids):
            return True
        time.sleep(0.05)
    return False


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (OSError, ProcessLookupError):
        return False


def test_many_programs_run_at_once_from_coroutines(sandbox: Sandbox) -> None:
    async def run() -> list[str]:
        scripts = (Script("print(int(input()) ** 2)", LIMITS, str(n)) for n in range(30))
        return [ran.output for ran in await asyncio.gather(*(sandbox.run(script) for script in scripts))]

    assert asyncio.run(run()) == [f"{n * n}\n" for n in range(30)]


# -- tests apart from the program --------------------------------------------------------------------------------------
def checks(sandbox: Sandbox, source: str, *tests: str, setup: str = "", remote: tuple[str, ...] = ("f",)) -> list[bool]:
    group = {"kind": "asserts", "setup": setup, "tests": list(tests), "remote": list(remote), "check": None}
    return [note.ok for note in sandbox.submit(Suite(source, [group], LIMITS)).result().notes[0]]


def test_each_assert_counts_and_a_failed_one_does_not_end_the_rest(sandbox: Sandbox) -> None:
    source = "def f(x):\n    return x + 1"
    assert checks(sandbox, source, "assert f(1) == 2", "assert f(1) == 3\nassert f(2) == 3", "f.no") == [
        True, False, True, False,
    ]  # fmt: skip


def test_exceptions_of_the_program_arrive_as_exceptions(sandbox: Sandbox) -> None:
    source = "class Own(Exception): pass\ndef f(x):\n    raise x if False else (KeyError('k') if x else Own('o'))"
    test = "try:\n    f({})\nexcept KeyError:\n    assert True\nexcept Exception as e:\n    assert 'Own' in str(e)"
    assert checks(sandbox, source, test.format(1), test.format(0)) == [True, True]


def test_objects_of_the_program_can_be_passed_back(sandbox: Sandbox) -> None:
    source = (
        "class Pair:\n    def __init__(self, a):\n        self.a = a\n    def __eq__(self, o):\n        return True\n"
    )
    source += "def f(pairs):\n    return sum(p.a for p in pairs)"
    test = "assert f([Pair(1), Pair(2)]) == 3\nassert Pair(1) != Pair(1)"
    assert checks(sandbox, source, test, remote=("f", "Pair")) == [True, True]


def test_tests_may_use_modules_and_their_own_helpers(sandbox: Sandbox) -> None:
    source = "def f(x):\n    return x * 3.1400000001"
    test = "assert math.isclose(f(two()), 6.28, rel_tol=1e-6)"
    assert checks(sandbox, source, test, setup="def two():\n    return 2") == [True]


# -- configuration -----------------------------------------------------------------------------------------------------
def test_without_a_tier_programs_are_refused_unless_that_is_wanted() -> None:
    tiers = ["the kernel has no Landlock", "bwrap is not installed"]
    with pytest.raises(ConfigError, match=r"no Landlock; bwrap is not installed.*--unsafe-code"):
        probe(tiers=tiers)
    assert probe(unsafe=True, tiers=tiers) == UNSAFE
    assert UNSAFE.label.startswith("unsafe")


def test_a_tier_that_does_not_hold_the_canary_is_not_used() -> None:
    with pytest.raises(ConfigError, match=r"unsafe: the canary managed to .*read, list, stat, .*fork.* execute"):
        probe(tiers=[UNSAFE])
    broken = Tier("broken", prefix=("/bin/false",))
    with pytest.raises(ConfigError, match="broken: the sandbox's zygote"):
        probe(tiers=[broken, Tier("missing", prefix=("/no/such/program",))])


def test_a_safe_tier_is_preferred_even_where_none_is_required(tier: Tier) -> None:
    assert probe(unsafe=True) == tier


@pytest.mark.parametrize("values", [(0, 1), (1, 0), (1, 1, 4), (1, 1, 512, 0), (1, 1, 512, 1, 0)])
def test_limits_under_which_nothing_runs_are_refused(values: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="got"):
        ResourceLimits(*values)


def test_a_sandbox_needs_a_worker(tier: Tier) -> None:
    with pytest.raises(ConfigError, match="workers >= 1"):
        Sandbox(tier, workers=0)


def test_the_unused_user_is_nobodys_and_only_for_root() -> None:
    user = unused_user(7)
    if os.geteuid() != 0:
        assert user is None
    else:
        assert user is not None
        assert user >= 1000
        assert user != unused_user(8)
