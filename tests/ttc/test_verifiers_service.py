"""The service around a verifier: known cases, wall limit, memory, metrics, audit log, from threads and from loops."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ttc.core import Submission, TargetLike, Verdict
from ttc.errors import ConfigError, RecordError, VerifierError
from ttc.verifiers.exact import exact
from ttc.verifiers.math import math
from ttc.verifiers.service.audit import Audit, Entry, read_audit
from ttc.verifiers.service.service import Service, digest
from ttc.verifiers.shared.contract import Canary, Card


class Probe:
    """A verifier that does what the text says, and counts."""

    name = "probe"
    version = "probe-1"
    card: Any = None

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.most = self.now = 0
        self.freed = threading.Event()
        self.closed = False

    async def verify(self, target: TargetLike, submission: Submission) -> Verdict:
        self.asked.append(submission.text)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            return await self._act(submission.text)
        finally:
            self.now -= 1

    async def _act(self, text: str) -> Verdict:
        word, _, rest = text.partition(" ")
        if word == "sleep":
            await asyncio.sleep(float(rest))
        if word == "hold":
            self.freed.wait(30)
        if word == "raise":
            raise ValueError(rest)
        if word == "leave":
            sys.exit(3)
        if word == "broken":
            raise VerifierError(rest)
        if word == "status":
            return Verdict(rest, version=self.version)  # type: ignore[arg-type]
        return Verdict("correct", 1.0, reason=text, version=self.version, seconds=0.01)

    def check_gold(self, target: TargetLike, item: str = "") -> None:
        raise ConfigError(f"{item}: asked")

    async def close(self) -> None:
        self.closed = True


@asynccontextmanager
async def serving(verifier: Any, **options: Any) -> AsyncIterator[Service]:
    service = Service(verifier, **options)
    try:
        yield service
    finally:
        await service.close()


def ask(verifier: Any, texts: list[str], **options: Any) -> tuple[list[Verdict], Service]:
    async def main() -> tuple[list[Verdict], Service]:
        async with serving(verifier, **options) as service:
            return list(await asyncio.gather(*(service.verify("t", Submission(text)) for text in texts))), service

    return asyncio.run(main())


def test_a_service_answers_as_its_verifier_does_and_closes_it() -> None:
    probe = Probe()
    verdicts, service = ask(probe, ["one", "two"])
    assert [verdict.reason for verdict in verdicts] == ["one", "two"]
    assert (service.name, service.version) == ("probe", "probe-1")
    assert probe.closed
    with pytest.raises(ConfigError, match="row 3: asked"):
        service.check_gold("t", "row 3")


def test_an_exception_is_the_verdict_error_and_the_service_goes_on() -> None:
    verdicts, _ = ask(Probe(), ["raise oh no", "leave", "one"])
    assert [verdict.status for verdict in verdicts] == ["error", "error", "correct"]
    assert verdicts[0].reason == "ValueError: oh no"
    assert verdicts[0].version == "probe-1"


def test_a_broken_verifier_is_told_to_the_caller() -> None:
    with pytest.raises(VerifierError, match="no worker"):
        ask(Probe(), ["broken no worker"])


def test_a_verdict_that_waits_too_long_is_a_timeout() -> None:
    began = time.perf_counter()
    verdicts, _ = ask(Probe(), ["sleep 60", "one"], wall_s=1.0)
    assert [verdict.status for verdict in verdicts] == ["timeout", "correct"]
    assert "wall limit of the service" in verdicts[0].reason
    assert time.perf_counter() - began < 5


def test_code_that_holds_the_loop_costs_only_its_own_verdict() -> None:
    probe = Probe()
    texts = ["sleep 0.2", "hold", "sleep 0.3", *(f"text {i}" for i in range(20))]
    verdicts, _ = ask(probe, texts, wall_s=1.2)
    probe.freed.set()
    assert [verdict.status for verdict in verdicts] == ["correct", "timeout", *["correct"] * 21]


def test_no_more_than_the_set_number_run_at_once() -> None:
    probe = Probe()
    ask(probe, [f"sleep 0.0{i}" for i in range(1, 10)] * 3, concurrency=3, memory=0)
    assert probe.most == 3
    assert len(probe.asked) == 27


def test_what_was_asked_before_is_remembered_but_no_timeout_and_no_error() -> None:
    async def main() -> tuple[Probe, Service]:
        probe = Probe()
        async with serving(probe, wall_s=0.8, memory=2) as service:
            for text in ("one", "one", "raise x", "raise x", "sleep 9", "sleep 9", "status limit", "status limit"):
                await service.verify("t", Submission(text))
            await service.verify("another target", Submission("one"))
            await service.verify("t", Submission("one", "with thinking"))
            await service.verify("t", Submission("status limit"))  # forgotten: two newer ones are kept
            return probe, service

    probe, service = asyncio.run(main())
    asked = {text: probe.asked.count(text) for text in probe.asked}
    assert asked == {"one": 3, "raise x": 2, "sleep 9": 2, "status limit": 2}
    assert service.metrics().remembered == 2


def test_metrics_count_statuses_and_measure_latency() -> None:
    verdicts, service = ask(Probe(), ["one", "two", "raise x", "sleep 30"], wall_s=1.0)
    found = service.metrics()
    assert found.count == len(verdicts) == 4
    assert found.by_status == {"correct": 2, "error": 1, "timeout": 1}
    assert (found.timeout_rate, found.error_rate) == (0.25, 0.25)
    assert found.latency_s.p50 < 0.9 < found.latency_s.max
    assert found.work_s.p50 == 0.01
    assert Service(Probe()).metrics().latency_s.p99 == 0.0


def test_threads_and_loops_may_ask_one_service_at_once() -> None:
    service = Service(exact())

    def in_thread(i: int) -> bool:
        return service.submit("1", Submission(str(i))).result().correct

    async def in_loop() -> list[Verdict]:
        return list(await asyncio.gather(*(service.verify("1", Submission(str(i))) for i in range(50))))

    with ThreadPoolExecutor(8) as threads:
        told = list(threads.map(in_thread, range(50)))
        loops = [threads.submit(asyncio.run, in_loop()) for _ in range(3)]
        for loop in loops:
            assert sum(verdict.correct for verdict in loop.result()) == 1
    assert sum(told) == 1
    assert service.metrics().count == 200
    asyncio.run(service.close())


def test_a_closed_service_refuses_work_and_fails_what_it_had() -> None:
    service = Service(Probe(), concurrency=1)
    running = [service.submit("t", Submission(text)) for text in ("sleep 60", "sleep 61")]
    asyncio.run(service.close())
    for future in running:
        with pytest.raises(VerifierError, match="closed before"):
            future.result(1)
    with pytest.raises(VerifierError, match="closed"):
        service.submit("t", Submission("one")).result(1)
    asyncio.run(service.close())


def test_a_target_that_is_not_json_is_refused() -> None:
    with pytest.raises(ConfigError, match="not JSON data"):
        Service(Probe()).submit(object(), Submission("one"))


def with_canaries(*canaries: Canary) -> Probe:
    probe = Probe()
    probe.card = Card("probe", "probe-1", "a text", 1.0, "none", "none", "always", ("all",), canaries)
    return probe


def test_known_cases_are_run_at_the_start_and_a_failing_one_refuses_it() -> None:
    good = Service(with_canaries(Canary("t", "one", "correct"), Canary("t", "status incorrect", "incorrect")))
    good.start()
    assert good.metrics().count == 0
    bad = Service(with_canaries(Canary("t", "one", "correct"), Canary("t", "raise x", "incorrect")))
    with pytest.raises(VerifierError, match="'raise x' held to 't' must be incorrect, got error"):
        bad.start()
    for service in (good, bad):
        asyncio.run(service.close())


def test_the_real_maths_verifier_passes_its_known_cases_and_survives_hostile_answers() -> None:
    service = Service(math(timeout_s=0.5))
    service.start()
    texts = [r"\boxed{2\sqrt{2}}", r"\boxed{(10^{10})!}", r"\boxed{" + "9^" * 500 + "9}", "\u202e\\boxed{5}"] * 3
    futures = [service.submit(r"\sqrt{8}", Submission(text + " " * i)) for i, text in enumerate(texts)]
    assert [future.result(20).correct for future in futures] == [True, False, False, False] * 3
    asyncio.run(service.close())


# -- the audit log -----------------------------------------------------------------------------------------------------
def test_every_verdict_is_logged_with_what_it_was_made_of(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"

    async def main() -> None:
        async with serving(exact(), audit=Audit(path)) as service:
            for label, text in ((1, "Paris"), ("two", "Rome"), (3, "Paris"), (4, "\ud800")):
                await asyncio.wrap_future(service.submit({"answer": "Paris"}, Submission(text), label))

    asyncio.run(main())
    entries = list(read_audit(path))
    assert [(entry.id, entry.verdict.status, entry.remembered) for entry in entries] == [
        (1, "correct", False),
        ("two", "incorrect", False),
        (3, "correct", True),
        (4, "incorrect", False),
    ]
    assert entries[0].digest == entries[2].digest == digest({"answer": "Paris"}, Submission("Paris"))
    assert entries[0].submission == Submission("Paris")
    assert entries[0].verdict.version == "exact-12-nnn"
    assert all(entry.verifier == "exact" for entry in entries)


def test_a_killed_writer_loses_no_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    code = (
        "import asyncio, sys, pathlib\n"
        "from ttc.core import Submission\n"
        "from ttc.verifiers.service.audit import Audit\n"
        "from ttc.verifiers.exact import exact\n"
        "from ttc.verifiers.service.service import Service\n"
        "service = Service(exact(), audit=Audit(pathlib.Path(sys.argv[1])))\n"
        "for number in range(10**9):\n"
        "    service.submit('x', Submission(str(number)), number).result()\n"
        "    print(number, flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        seen = [int(next(process.stdout)) for _ in range(300)][-1]
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    with path.open("ab") as file:
        file.write(b'{"id": 1, "torn')
    assert [entry.id for entry in read_audit(path)][: seen + 1] == list(range(seen + 1))
    Audit(path).close()
    assert path.read_bytes().endswith(b"}\n")


def test_two_writers_of_one_log_and_broken_logs_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    first = Audit(path)
    with pytest.raises(ConfigError, match="another process"):
        Audit(path)
    first.append(Entry(1, "d", "t", Submission("x"), "exact", Verdict("correct")))
    first.close()
    row = json.loads(path.read_text())
    row["verdict"]["status"] = "fine"
    path.write_text(path.read_text() + json.dumps(row) + "\n")
    with pytest.raises(RecordError, match=r"line 2: verdict.status"):
        list(read_audit(path))
    with pytest.raises(ConfigError, match="does not exist"):
        list(read_audit(tmp_path / "none"))
    with pytest.raises(ConfigError, match="cannot be opened"):
        Audit(tmp_path / "no" / "folder" / "audit.jsonl")


def test_a_log_that_cannot_be_written_withholds_the_verdict(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "audit.jsonl")
    service = Service(exact(), audit=audit)
    audit.close()
    with pytest.raises(ValueError, match="closed file"):
        service.submit("x", Submission("x")).result(5)
    asyncio.run(service.close())
