"""Every hostile program is held on every tier of this machine, and the machine is as it was."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ttc.hostile_programs import ESCAPES, EXHAUSTIONS
from ttc.sandbox.limits import ResourceLimits, Tier
from ttc.sandbox.pool import Sandbox
from ttc.sandbox.probe import UNSAFE, candidates, failure
from ttc.sandbox.running import Script, ScriptResult

TIERS = [tier for tier in candidates() if isinstance(tier, Tier)]
LIMITS = ResourceLimits(wall_s=3.0, cpu_s=3.0, memory_mb=128, output_kb=64)
SHORT = ResourceLimits(wall_s=0.5, cpu_s=0.5, memory_mb=128, output_kb=64)
HARMLESS = ("read_passwd", "stat_a_file", "list_root", "socket_pair", "memory_file", "host_name", "subprocess")
"""Attempts that do no damage where nothing holds them."""


@pytest.fixture(params=TIERS, ids=[tier.name for tier in TIERS])
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    if why := failure(request.param):
        pytest.skip(why)
    with Sandbox(request.param, workers=2) as sandbox:
        yield sandbox


def test_every_attempt_to_get_out_is_held(sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TTC_TEST_SECRET", "sk-not-for-programs")
    witness = Path("/tmp/ttc-witness")
    witness.write_text("here")
    before = witness.stat()
    running = {name: sandbox.submit(Script(source, LIMITS)) for name, source in ESCAPES.items()}
    ran = {name: future.result() for name, future in running.items()}
    assert {name: outcome.output for name, outcome in ran.items() if not held(outcome)} == {}
    assert not [name for name, outcome in ran.items() if "sk-not-for" in outcome.output + outcome.errors]
    after = witness.stat()
    assert (after.st_mode, after.st_size, after.st_mtime_ns) == (before.st_mode, before.st_size, before.st_mtime_ns)
    assert not [path for folder in ("/tmp", "/dev/shm") for path in Path(folder).glob("ttc-hostile*")]
    witness.unlink()
    assert sandbox.submit(Script("print(6 * 7)", LIMITS)).result().output == "42\n"


def held(ran: ScriptResult) -> bool:
    return "ESCAPED" not in ran.output and ("HELD" in ran.output or bool(ran.cause))


@pytest.mark.slow
def test_every_program_that_takes_all_it_can_get_is_ended(sandbox: Sandbox) -> None:
    sandbox.submit(Script("pass", LIMITS)).result()
    began = time.monotonic()
    running = {name: sandbox.submit(Script(source, SHORT)) for name, source in EXHAUSTIONS.items()}
    ran = {name: future.result() for name, future in running.items()}
    assert [name for name, outcome in ran.items() if not outcome.cause] == []
    assert time.monotonic() - began < len(ran) * (SHORT.wall_s + 0.5)
    assert not list(Path("/tmp").glob("ttc-fill*"))
    assert max(len(outcome.output) for outcome in ran.values()) < 200_000
    assert sandbox.submit(Script("print(6 * 7)", LIMITS)).result().output == "42\n"


@pytest.mark.parametrize("name", ["fork_bomb", "memory_bomb", "disk_filler", "endless_output", "stop_oneself"])
def test_the_usual_bombs_are_ended(sandbox: Sandbox, name: str) -> None:
    ran = sandbox.submit(Script(EXHAUSTIONS[name], SHORT)).result()
    assert ran.cause
    assert ran.cpu_s < 2


def test_the_attempts_do_succeed_where_nothing_holds_them() -> None:
    with Sandbox(UNSAFE, workers=1) as sandbox:
        ran = {name: sandbox.submit(Script(ESCAPES[name], LIMITS)).result() for name in HARMLESS}
    assert [name for name, outcome in ran.items() if "ESCAPED" not in outcome.output] == []
    assert os.path.exists("/etc/passwd")


FILES_AND_SIGNALS = (
    "read_passwd", "list_root", "read_parent_memory", "write_to_tmp", "make_a_symbolic_link", "remove_a_file",
    "temporary_file", "open_by_openat2", "execute", "kill_parent",
)  # fmt: skip


@pytest.mark.parametrize("tier", TIERS, ids=[tier.name for tier in TIERS])
def test_the_layer_around_the_system_call_filter_holds_files_and_signals_alone(tier: Tier) -> None:
    if why := failure(tier):
        pytest.skip(why)
    names = [name for name in FILES_AND_SIGNALS if name not in REACHED_INSIDE[tier.name]]
    with Sandbox(dataclasses.replace(tier, seccomp=False), workers=1) as sandbox:
        ran = {name: sandbox.submit(Script(ESCAPES[name], LIMITS)).result() for name in names}
    assert {name: outcome.output for name, outcome in ran.items() if not held(outcome)} == {}


REACHED_INSIDE = {"landlock": (), "bubblewrap": ("list_root", "execute")}
"""What is harmless inside: a namespace has a root folder and programs of its own."""
