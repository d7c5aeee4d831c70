"""The pool of killable workers."""

from __future__ import annotations

import asyncio
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.timing import patience
from ttc.errors import ConfigError, VerifierError
from ttc.verifiers.workers.pool import Pool

PROGRAM = str(pathlib.Path(__file__).with_name("misbehaving_worker.py"))
LIMIT_S = 0.5
"""Of processor time: a worker that shares its core with one other process takes twice as long."""


@pytest.fixture
def pool() -> Iterator[Pool]:
    made = Pool(workers=2, timeout_s=LIMIT_S, memory_mb=1024, program=(PROGRAM,))
    yield made
    made.close()


def ask(how: str = "", echo: object = None) -> dict[str, object]:
    return {"call": "misbehave", "how": how, "echo": echo}


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = pathlib.Path(f"/proc/{pid}/stat")
    return not (state.exists() and state.read_text().split()[2] == "Z")


def wait_for_death(pid: int) -> bool:
    deadline = time.monotonic() + 5
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not is_alive(pid)


@pytest.mark.parametrize(
    ("how", "status"),
    [
        ("spin", "timeout"),
        ("sleep", "timeout"),
        ("hang in C", "timeout"),
        ("exit", "error"),
        ("memory", "limit"),
        ("recursion", "limit"),
        ("raise", "error"),
    ],
)
def test_every_misbehaviour_ends_in_time_and_the_pool_stays_healthy(pool: Pool, how: str, status: str) -> None:
    pool.submit(ask()).result()
    reply = pool.submit(ask(how)).result()
    assert reply.status == status
    assert reply.seconds < (2 * LIMIT_S + 0.3) * patience()
    assert pool.submit(ask(echo="still here")).result().data["echo"] == "still here"


def test_a_soft_timeout_keeps_its_worker(pool: Pool) -> None:
    pool.submit(ask()).result()
    started = pool.num_started
    assert pool.submit(ask("spin")).result().data["reason"] == "soft limit"
    assert pool.num_started == started


@pytest.mark.skipif(not pathlib.Path("/proc/self/stat").exists(), reason="only /proc tells who is kept waiting")
def test_time_in_which_the_machine_lets_a_worker_not_run_is_not_its_own(pool: Pool) -> None:
    worker = [pool.submit(ask()).result().data for _ in range(2)][-1]
    pending = pool.submit({**ask("work"), "until_s": worker["spent_s"] + LIMIT_S / 2})
    time.sleep(LIMIT_S / 10)
    os.kill(worker["pid"], signal.SIGSTOP)
    time.sleep(1.5 * LIMIT_S)
    os.kill(worker["pid"], signal.SIGCONT)
    reply = pending.result()
    assert (reply.status, reply.data.get("pid")) == ("ok", worker["pid"])
    assert reply.seconds > 1.5 * LIMIT_S


@pytest.mark.skipif(not pathlib.Path("/proc/self/stat").exists(), reason="only /proc tells who is kept waiting")
def test_a_worker_whose_main_thread_waits_for_another_that_is_in_line_is_kept_waiting(pool: Pool) -> None:
    worker = [pool.submit(ask()).result().data for _ in range(2)][-1]
    request = {**ask("work in a thread"), "first_s": LIMIT_S / 2, "until_s": worker["spent_s"] + 0.6 * LIMIT_S}
    reply = pool.submit(request).result()
    assert (reply.status, reply.data.get("pid")) == ("ok", worker["pid"])
    assert reply.seconds > LIMIT_S


@pytest.mark.skipif(not pathlib.Path("/proc/self/stat").exists(), reason="only /proc tells who is kept waiting")
def test_a_worker_that_is_never_let_run_ends_too(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ttc.verifiers.workers.pool.MOST_WALL", 1.5)
    pid = [pool.submit(ask()).result().data["pid"] for _ in range(2)][-1]
    os.kill(pid, signal.SIGSTOP)
    assert pool.submit(ask()).result().status == "timeout"
    assert wait_for_death(pid)
    assert pool.submit(ask(echo="still here")).result().data["echo"] == "still here"


def test_a_killed_worker_is_replaced_by_a_spare(pool: Pool) -> None:
    pool.submit(ask()).result()
    started = pool.num_started
    pool.submit(ask("hang in C")).result()
    assert pool.num_started == started + 1


def test_as_many_workers_start_as_are_asked_at_once_and_a_spare(pool: Pool) -> None:
    for _ in range(3):
        pool.submit(ask()).result()
    assert pool.num_started == 2
    lost = [pool.submit(ask("sleep")) for _ in range(2)]
    assert {future.result().status for future in lost} == {"timeout"}
    assert pool.num_started == 3 + len(lost)


def test_what_a_call_imports_late_is_imported_once_and_outside_of_its_limit(pool: Pool) -> None:
    assert pool.submit(ask()).result().data["num_loads"] == 0
    replies = [pool.submit({**ask(), "call": "late"}).result() for _ in range(2)]
    assert [(reply.status, reply.data["num_loads"]) for reply in replies] == [("ok", 1), ("ok", 1)]
    assert replies[0].seconds < LIMIT_S < replies[0].waited


def test_what_a_library_prints_does_not_reach_the_pipe(pool: Pool) -> None:
    assert pool.submit(ask("print")).result().status == "ok"
    assert pool.submit(ask(echo=1)).result().data["echo"] == 1


def test_workers_are_recycled() -> None:
    pool = Pool(workers=1, timeout_s=5, recycle=2, program=(PROGRAM,))
    pids = [pool.submit(ask()).result().data["pid"] for _ in range(6)]
    pool.close()
    assert len(set(pids)) == 3


def test_the_environment_of_a_worker_holds_no_secrets(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    names = pool.submit(ask()).result().data["environment"]
    assert not {"HF_TOKEN", "OPENAI_API_KEY", "HOME"} & set(names)


def test_threads_get_their_own_replies(pool: Pool) -> None:
    with ThreadPoolExecutor(8) as threads:
        replies = list(threads.map(lambda n: pool.submit(ask(echo=n)).result().data["echo"], range(200)))
    assert replies == list(range(200))


def test_coroutines_get_their_own_replies(pool: Pool) -> None:
    async def main() -> list[object]:
        replies = await asyncio.gather(*(pool.run(ask(echo=n)) for n in range(200)))
        return [reply.data["echo"] for reply in replies]

    assert asyncio.run(main()) == list(range(200))


def test_two_event_loops_can_share_a_pool(pool: Pool) -> None:
    for _ in range(2):
        assert asyncio.run(pool.run(ask(echo=1))).data["echo"] == 1


def test_waiting_in_line_does_not_count_as_work(pool: Pool) -> None:
    pool.submit(ask()).result()
    replies = [future.result() for future in [pool.submit(ask("spin")) for _ in range(6)]]
    last = max(replies, key=lambda reply: reply.waited)  # until four others had ended, two at a time
    assert last.waited > LIMIT_S and last.seconds < last.waited


def test_close_ends_every_worker_and_refuses_more(pool: Pool) -> None:
    pids = {future.result().data["pid"] for future in [pool.submit(ask()) for _ in range(20)]}
    pool.close()
    assert not any(is_alive(int(str(pid))) for pid in pids)
    with pytest.raises(VerifierError, match="closed"):
        pool.submit(ask())


@pytest.mark.parametrize("how", ["", "hang in C"])
def test_workers_die_with_their_parent(how: str) -> None:
    code = (
        "import sys, time\n"
        "from ttc.verifiers.workers.pool import Pool\n"
        f"pool = Pool(workers=1, timeout_s=2, program=({PROGRAM!r},))\n"
        "print(pool.submit({'call': 'misbehave', 'how': ''}).result().data['pid'], flush=True)\n"
        f"pool.submit({{'call': 'misbehave', 'how': {how!r}}})\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    assert wait_for_death(pid)


def test_a_program_that_cannot_start_is_reported_with_its_message(tmp_path: pathlib.Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("raise SystemExit('no such luck')")
    pool = Pool(workers=1, program=(str(broken),))
    with pytest.raises(VerifierError, match="no such luck"):
        pool.submit(ask()).result()
    pool.close()


@pytest.mark.parametrize("options", [{"workers": 0}, {"timeout_s": 0}, {"memory_mb": 1}, {"recycle": 0}])
def test_impossible_settings_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=f"verifier: {next(iter(options))} must be"):
        Pool(**options)  # type: ignore[arg-type]
