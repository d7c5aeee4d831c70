"""The toolkit beside its_hub, optillm, search-and-learn, lm-eval and vLLM's own thinking cap, on one server.

    python -m benchmarks.peers install --envs DIR
    python -m benchmarks.peers run --envs DIR --out DIR --vllm VLLM_PYTHON --limit 400 --draws 8=5,4=1,16=1
    python -m benchmarks.peers run --envs DIR --out DIR --vllm VLLM_PYTHON --model FOLDER --limit 200 --draws 8=1
    python -m benchmarks.peers cap --envs DIR --out DIR --vllm VLLM_PYTHON --limit 400 --draws 5
    python -m benchmarks.peers lockstep --envs DIR --out DIR --vllm VLLM_PYTHON --limit 64 --draws 16=5
    python -m benchmarks.peers drain --envs DIR --out DIR --vllm VLLM_PYTHON
    python -m benchmarks.peers table --out DIR [--save FILE.json]
    python -m benchmarks.peers table --out benchmarks/results/peers.json --page benchmarks/README.md

Every system runs in an environment of its own and sends requests for the same held-out problems to the same vLLM
server, with the same template and temperature; answers are read by the same code. Tokens and requests are the
differences of the server's own counters over the run, beside the system's own counts. A row is one run: a file under
`--out`. A row whose file exists is not run again, so a killed command can be resumed. A system that fails has a row
with its error.

Seconds run from the first request to the last answer inside the client, without its start; each row begins with an
empty prefix cache. With the packaged model all systems use the packaged reward model; another model has a constant
score, which costs nothing and ranks nothing: its trees measure the cost of a search, not its result.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import commit as head
from benchmarks.machine import machine
from benchmarks.pages import placed
from benchmarks.peers import environments, server
from benchmarks.peers.answers import is_right
from benchmarks.peers.rows import CAP, CLIENTS, SYSTEMS, Row, capped, rows, stepped
from benchmarks.peers.table import keep, tables
from evals.tasks.arithmetic import arithmetic
from ttc import nano

SEED = 500
LEVELS = {"packaged": 4}
EASY = 1
"""The level for models that were not trained for arithmetic."""
DRAIN_LIMIT, DRAIN_N = 400, 16


def job_of(row: Row, args: argparse.Namespace, url: str, folder: Path) -> tuple[dict[str, Any], list[str]]:
    """The client's input, and the targets that it must not see."""
    level = LEVELS.get(row.model, EASY)
    items = list(arithmetic(level=level).items(row.limit, SEED))
    job = {
        "url": url,
        "model": row.model,
        "folder": str(folder),
        "problems": [{"id": item.problem.id, "question": item.problem.messages[0].content} for item in items],
        "algorithm": row.algorithm,
        "n": row.n,
        "temperature": 0.8,
        "max_tokens": 512,
        "concurrency": 64,
        "cap": CAP,
        "scorer": "prm" if row.model == "packaged" else "constant",
        "thinks": row.model == "packaged",
        "sources": str(args.search_and_learn or ""),
        "template": str(template_of(row.model) or ""),
    }
    return job, [str(item.target) for item in items]


def template_of(model: str) -> Path | None:
    """The chat template; None for the folder's own."""
    return Path(__file__).parent / "template.jinja" if model == "packaged" else None


def start(row: Row, args: argparse.Namespace, job: dict[str, Any], place: Path) -> subprocess.Popen[bytes]:
    """Start the client of a row in a session of its own."""
    job_file, result_file = place.with_suffix(".job"), place.with_suffix(".result")
    result_file.unlink(missing_ok=True)
    job_file.write_text(json.dumps(job), encoding="utf-8")
    command = [str(environments.python(row.system, args.envs)), "-m", f"benchmarks.peers.clients.{row.client}"]
    with place.with_suffix(".log").open("wb") as log:
        return subprocess.Popen(
            [*command, str(job_file), str(result_file)],
            env=environments.variables(CLIENTS / "stubs"),
            cwd=environments.ROOT,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def measure(row: Row, args: argparse.Namespace, url: str, folder: Path) -> dict[str, Any]:
    """Run one row."""
    place = args.out / row.name
    job, targets = job_of(row, args, url, folder)
    server.settle(url)
    server.forget(url)
    before, started = server.counters(url), time.perf_counter()
    client = start(row, args, job, place)
    try:
        status = client.wait(args.timeout)
    except subprocess.TimeoutExpired:
        _end(client, signal.SIGKILL)
        status = -signal.SIGKILL
    total = time.perf_counter() - started
    server.settle(url)
    counted, result_file = server.difference(before, server.counters(url)), place.with_suffix(".result")
    result: dict[str, Any] = {"status": status, "total_s": total, "server": counted, "load": os.getloadavg()[0]}
    if not result_file.exists():
        log = place.with_suffix(".log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return result | {"error": "; ".join(log[-3:])[-400:].replace("|", "/") or f"exit {status}"}
    client_result = json.loads(result_file.read_text(encoding="utf-8"))
    texts = client_result.pop("texts")
    right = [is_right(text, gold, job["thinks"]) for text, gold in zip(texts, targets, strict=True)]
    return result | client_result | {"right": right, "texts": texts}


def drain(row: Row, args: argparse.Namespace, url: str, folder: Path) -> dict[str, Any]:
    """Kill a client in the middle of its work, and measure how long the server continues."""
    job, _ = job_of(row, args, url, folder)
    server.settle(url)
    server.forget(url)
    client, started = start(row, args, job, args.out / row.name), time.monotonic()
    while server.at_work(url) <= 8 and client.poll() is None and time.monotonic() - started < 120:
        time.sleep(0.1)
    time.sleep(1)
    before, running = server.counters(url), server.at_work(url)
    _end(client, getattr(signal, args.signal))
    killed = time.monotonic()
    while server.at_work(url) and time.monotonic() - killed < 120:
        time.sleep(0.05)
    seconds = time.monotonic() - killed
    _end(client, signal.SIGKILL)
    client.wait()
    return {"running": running, "drained_s": seconds, "server": server.difference(before, server.counters(url))}


def _end(client: subprocess.Popen[bytes], number: int) -> None:
    """Signal the client and what it started."""
    try:
        os.killpg(client.pid, number)
    except ProcessLookupError:
        return


def run_all(wanted: Iterable[Row], args: argparse.Namespace, kind: Any, suffix: str = "") -> None:
    """Run what has no file yet, on a server that is started when the first row needs one."""
    missing = [row for row in wanted if not _place(args, row, suffix).exists()]
    if not missing:
        return
    folder = nano.path("teacher") if args.model == "packaged" else Path(args.model)
    line = server.command(args.vllm, folder, missing[0].model, args.port, template_of(missing[0].model), args.dtype)
    with server.serving(line, args.port, args.out / "server.log") as url:
        for row in missing:
            result = kind(row, args, url, folder)
            place = _place(args, row, suffix)
            text = json.dumps({**vars(row), **result})
            place.with_suffix(".part").write_text(text, encoding="utf-8")
            place.with_suffix(".part").replace(place)
            seen = {name: result[name] for name in ("seconds", "cpu_s", "drained_s", "error") if name in result}
            print(row.name + suffix, seen, result["server"].get("generation_tokens_total"), flush=True)


def _place(args: argparse.Namespace, row: Row, suffix: str) -> Path:
    return Path(args.out / f"{row.name}{suffix}.json")


def conditions(commit: str | None) -> dict[str, Any]:
    """Date, commit, versions and machine of saved rows."""
    return {
        "date": datetime.date.today().isoformat(),
        "commit": commit or head(),
        "versions": environments.versions(),
        "machine": machine(),
    }


def draws_of(text: str) -> dict[int, int]:
    """`8=5,4=1`: N -> number of draws."""
    return {int(n): int(count or 1) for n, _, count in (part.partition("=") for part in text.split(","))}


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("install", "run", "cap", "lockstep", "drain", "table"))
    parser.add_argument("--envs", type=Path, help="folder of the environments")
    parser.add_argument("--out", type=Path, help="folder of the rows")
    parser.add_argument("--vllm", type=Path, help="python of an environment with vLLM")
    parser.add_argument("--model", default="packaged", help="packaged, or a folder")
    parser.add_argument("--dtype", default="bfloat16", help="of the server; float32 where a processor has no bf16")
    parser.add_argument("--limit", type=int, default=400)
    parser.add_argument("--draws", default="8=5,4=1,16=1", help="N=number of draws, by commas; for cap: a number")
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument("--algorithms", default="", help="only these, by commas")
    parser.add_argument("--signal", choices=("SIGKILL", "SIGINT"), default="SIGKILL")
    parser.add_argument("--search-and-learn", type=Path, help="a checkout of search-and-learn")
    parser.add_argument("--save", type=Path, help="for table: one file with all rows, without texts")
    parser.add_argument("--page", type=Path, help="for table: the page to put them into")
    parser.add_argument("--name", default="peers", help="for table: its name on the page; a machine has its own")
    parser.add_argument("--commit", help="for table: the code that the rows were measured with, if not this")
    parser.add_argument("--port", type=int, default=8120)
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds for one row")
    args = parser.parse_args(arguments)
    names, name = args.systems.split(","), "packaged" if args.model == "packaged" else Path(args.model).name
    if args.action == "install":
        for system in names:
            if system in environments.ENVIRONMENTS:
                environments.install(system, args.envs.resolve())
        return
    if args.action == "table":
        if args.save:
            keep(args.out, args.save, conditions(args.commit))
        text = "\n".join(tables(args.out)).strip()
        if args.page:
            page = args.page.read_text(encoding="utf-8")
            args.page.write_text(placed(page, {args.name: text}), encoding="utf-8")
        print(text)
        return
    args.out.mkdir(parents=True, exist_ok=True)
    args.out = args.out.resolve()
    args.envs = args.envs.resolve()
    if args.action == "run":
        wanted = rows(name, args.limit, draws_of(args.draws), names)
        only = args.algorithms.split(",") if args.algorithms else None
        run_all((row for row in wanted if only is None or row.algorithm in only), args, measure)
    elif args.action == "cap":
        run_all(capped(args.limit, max(draws_of(args.draws))), args, measure)
    elif args.action == "lockstep":
        run_all(stepped(args.limit, draws_of(args.draws)), args, measure)
    else:
        wanted = [
            Row(name, system, client, algorithm, DRAIN_N, 0, DRAIN_LIMIT)
            for system in names
            for client, algorithms in [SYSTEMS[system]]
            for algorithm in algorithms[:1]
        ]
        run_all(wanted, args, drain, f"-{args.signal}")


if __name__ == "__main__":
    main()
