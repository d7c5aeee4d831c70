"""Cost of one faulty client, or one faulty upstream server, for `ttc serve`: CPU time, memory and time of each case.

    python -m benchmarks.serve_hardening --json benchmarks/results/serve_hardening.json

The cases are those of `tests/serve/test_sockets.py` (bytes that a client may send, before a key is known and after) and
the faults of `tests/serve/test_gateway.py` (of an upstream server), each alone against a server in a process of its
own; and three floods. Processor time is that of all threads of the server (`schedstat`), memory its resident pages,
time the client's, which waits a while for more if the server keeps the connection open. Listed are the worst of each
kind (of `--repeats` rounds); the server must answer a plain request after each. Faults wait for `upstream_first_s` = 3
and `upstream_gap_s` = 2 seconds of silence. Three minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import pathlib
import socket
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

import httpx2

from benchmarks.machine import occasion
from benchmarks.served import serving_process
from tests.serve.faulty import Play, faulty, well
from tests.serve.test_gateway import FAULTS
from tests.serve.test_sockets import CASES, SECRET

HEADER_S = 1.0
SOCKETS = ("--set", f"http.header_s={HEADER_S}", "--set", "http.max_header_bytes=8192", "--set", "limits.stall_s=3")
BEHIND = ("--set", "limits.upstream_first_s=3", "--set", "limits.upstream_gap_s=2")
FLOOD = 80 << 20
LIMIT_S = 20.0
QUESTION = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}


@dataclass(frozen=True, slots=True)
class Expense:
    """What one case cost the server, and how long the client was busy with it."""

    name: str
    cpu_ms: float
    memory_kib: float
    wall_s: float


def main() -> None:
    """Measure all cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    with serving_process("--engine", "simulated", "--name", "m", *SOCKETS, env={"TTC_SERVE_KEY": SECRET}) as (url, pid):
        place = address(url)
        cases = {name: play_of(place, data) for name, (data, _) in CASES.items()}
        floods = {name: flood_of(place, parts) for name, parts in FLOODS.items()}
        sockets = measured(cases, pid, url, args.repeats)
        flooded = measured(floods, pid, url, 1)
    faults = of_faults()
    kinds = {"malformed bytes": sockets, f"{FLOOD >> 20} MiB at once": flooded, "faults of an upstream server": faults}
    print("| kind | cases | CPU time, median and worst | worst | memory, worst | time, worst |")
    print("|---|---|---|---|---|---|")
    for name, rows in kinds.items():
        print(line(name, rows))
    if args.json is not None:
        args.json.write_text(json.dumps(report(kinds, args.repeats), indent=1) + "\n", encoding="utf-8")


def of_faults() -> list[Expense]:
    """Each fault of a server behind, for a whole reply and for a stream."""
    with faulty() as behind, serving_process("up", "--name", "m", "--upstream", behind.url, *BEHIND) as (url, pid):

        def fault_of(play: Play, stream: bool) -> Callable[[], None]:
            def act() -> None:
                behind.play = play
                ask(url, stream)
                behind.play = well

            return act

        plays = itertools.product(FAULTS.items(), (False, True))
        cases = {f"{name}{', streamed' * stream}": fault_of(play, stream) for (name, (play, _, _)), stream in plays}
        ask(url, False)
        return measured(cases, pid, url, 1)


def report(kinds: Mapping[str, Sequence[Expense]], repeats: int) -> dict[str, object]:
    """All figures, with the conditions."""
    return {
        **occasion(),
        "load": round(os.getloadavg()[0], 2),
        "repeats": repeats,
        "kinds": {name: [asdict(row) for row in rows] for name, rows in kinds.items()},
    }


def line(name: str, rows: Sequence[Expense]) -> str:
    """A row of the table."""
    worst = max(rows, key=lambda row: row.cpu_ms)
    slow = max(rows, key=lambda row: row.wall_s)
    middle = statistics.median(row.cpu_ms for row in rows)
    memory = max(row.memory_kib for row in rows)
    return (
        f"| {name} | {len(rows)} | {middle:.1f}, {worst.cpu_ms:.1f} ms | {worst.name} "
        f"| {memory:.0f} KiB | {slow.wall_s:.1f} s ({slow.name}) |"
    )


def measured(cases: Mapping[str, Callable[[], None]], pid: int, url: str, repeats: int) -> list[Expense]:
    """The worst of `repeats` rounds of each case; a first round of all is not counted, since it fills caches."""
    rows = []
    for act in cases.values() if repeats > 1 else ():
        act()
    for name, act in cases.items():
        rounds = []
        for _ in range(repeats):
            cpu, memory, begun = cpu_ms(pid), resident_kib(pid), time.monotonic()
            act()
            wall = time.monotonic() - begun
            time.sleep(0.02)  # what the server does after its last byte
            rounds.append((cpu_ms(pid) - cpu, max(resident_kib(pid) - memory, 0), wall))
        rows.append(Expense(name, *(round(max(one), 3) for one in zip(*rounds, strict=True))))
        if rows[-1].wall_s > LIMIT_S or not alive(url):
            raise RuntimeError(f"{name}: {rows[-1]}")
    return rows


def play_of(place: tuple[str, int], data: bytes) -> Callable[[], None]:
    """Send `data` and read until the server closes or is silent."""

    def act() -> None:
        with socket.create_connection(place, timeout=4) as client, contextlib.suppress(OSError):
            with contextlib.suppress(OSError):
                client.sendall(data)
            while client.recv(65536):
                client.settimeout(0.15)

    return act


FLOODS = {
    "a head of one line": (b"GET /health HTTP/1.1\r\nHost: localhost\r\nA: ", b"a"),
    "a head of many lines": (b"GET /health HTTP/1.1\r\nHost: localhost\r\n", b"a: b\r\n"),
    "a body without a key": (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % FLOOD,
        b"x",
    ),
}


def flood_of(place: tuple[str, int], parts: tuple[bytes, bytes]) -> Callable[[], None]:
    """Send `FLOOD` bytes, or as many as the server accepts."""
    head, unit = parts
    block = unit * (65536 // len(unit))

    def act() -> None:
        with socket.create_connection(place, timeout=4) as client, contextlib.suppress(OSError):
            client.sendall(head)
            for _ in range(FLOOD // len(block)):
                client.sendall(block)

    return act


def ask(url: str, stream: bool) -> None:
    """Send a chat and ignore the reply."""
    httpx2.post(f"{url}/v1/chat/completions", json={**QUESTION, "stream": stream}, timeout=LIMIT_S)


def alive(url: str) -> bool:
    """Whether the server answers a simple request."""
    return httpx2.get(f"{url}/health", timeout=LIMIT_S).status_code == 200


def address(url: str) -> tuple[str, int]:
    """Host and port."""
    host, _, port = url.removeprefix("http://").partition(":")
    return host, int(port)


def cpu_ms(pid: int) -> float:
    """Processor time of all threads of a process so far."""
    tasks = pathlib.Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e6


def resident_kib(pid: int) -> float:
    """Resident memory of a process."""
    pages = int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1024


if __name__ == "__main__":
    main()
