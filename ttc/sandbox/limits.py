"""Limits of a program: time, memory and threads, an unused user, and the tier of kernel protection.

Root's processes have no process limit and may write root's files, so a root process becomes an unused user and group,
without capabilities, before the program runs. For an ordinary user the kernel counts all of the user's threads
together, so the limit is the user's present number of threads plus `threads`.

A `Tier` describes the kernel mechanisms that contain a program, and how the zygote is started for it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import resource
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ttc.config.values import above, at_least

MIN_MEMORY_MB = 32
_UNMAPPED = 2**32 - 1
_HIGHEST = 2_000_000_000
_SPREAD = 100_000


@dataclass(frozen=True, slots=True)
class ResourceLimits:
    """Limits of one program.

    Args:
        wall_s: seconds until it is killed.
        cpu_s: seconds of CPU time, all threads together.
        memory_mb: address space in addition to the interpreter's own, in MiB.
        threads: most threads.
        output_kb: standard output that is kept, in KiB; a program that writes more is killed.
    """

    wall_s: float
    cpu_s: float
    memory_mb: int = 512
    threads: int = 32
    output_kb: int = 4096

    def __post_init__(self) -> None:
        """Refuse limits with which no program can run."""
        above("sandbox", 0, wall_s=self.wall_s, cpu_s=self.cpu_s)
        at_least("sandbox", MIN_MEMORY_MB, memory_mb=self.memory_mb)
        at_least("sandbox", 1, threads=self.threads, output_kb=self.output_kb)


def apply(limits: ResourceLimits, max_threads: int | None) -> None:
    """Set the limits on this process, with no way to raise them; `max_threads` counts as the kernel does for the user.

    Nothing may be written to a file; the program's own output goes to pipes, which have no size limit here. Memory is
    only limited on Linux; elsewhere programs run unprotected or not at all.
    """
    cpu_s = max(1, round(limits.cpu_s + 0.5))
    # The hard limit is later: at the soft one the kernel sends SIGXCPU, whose default action ends the process with a
    # cause.
    _lower(resource.RLIMIT_CPU, cpu_s, cpu_s + 1)
    _lower(resource.RLIMIT_FSIZE, 0)
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_NOFILE, 64)
    if sys.platform == "linux":
        _lower(resource.RLIMIT_AS, _address_space() + (limits.memory_mb << 20))
        _lower(resource.RLIMIT_MEMLOCK, 0)
        _lower(resource.RLIMIT_MSGQUEUE, 0)
        _lower(resource.RLIMIT_SIGPENDING, 64)
    if max_threads is not None:
        _lower(resource.RLIMIT_NPROC, max_threads)


def drop_user(number: int) -> None:
    """Become an unused user and group permanently; raises OSError when that fails."""
    os.setgroups([])
    os.setresgid(number, number, number)
    os.setresuid(number, number, number)


def unused_user(salt: int, num_mapped: int | None = None) -> int | None:
    """An unused user id, varied by `salt`; None when this process cannot change its user.

    It is one of the `num_mapped` ids of the user namespace (absent: read here), so it exists in containers as well.
    """
    if os.geteuid() != 0:
        return None
    top = min((num_users() if num_mapped is None else num_mapped) - 1, _HIGHEST)
    for attempt in range(_SPREAD):
        number = top - (salt + attempt) % _SPREAD
        if number < 1000:
            return None
        with contextlib.suppress(KeyError):
            pwd.getpwuid(number)
            continue
        return number
    return None


def count_threads(user: int) -> int:
    """How many threads `user` has now, as far as /proc shows them."""
    total = 0
    for name in os.listdir("/proc"):
        if name.isdecimal():
            # a process may end while its entry is read
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{name}").st_uid == user:
                    total += len(os.listdir(f"/proc/{name}/task"))
    return total


def num_users() -> int:
    """One more than the highest user id of this user namespace; 1 if /proc does not show it."""
    with contextlib.suppress(OSError), open("/proc/self/uid_map", encoding="ascii") as file:
        ends = [int(first) + int(count) for first, _, count in (line.split() for line in file)]
        return min(max(ends, default=1), _UNMAPPED)
    return 1


def _address_space() -> int:
    """Bytes of address space in use."""
    with contextlib.suppress(OSError), open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * resource.getpagesize()
    return 256 << 20


def _lower(which: int, soft: int, hard: int | None = None) -> None:
    ceiling = resource.getrlimit(which)[1]
    limit = soft if hard is None else hard
    if ceiling != resource.RLIM_INFINITY:
        limit = min(limit, ceiling)
    resource.setrlimit(which, (min(soft, limit), limit))


_OPTIONS = ("-s", "-S", "-P", "-B", "-X", "utf8")
"""Options of the interpreter: without an environment's packages."""
ROOT = Path(__file__).resolve().parents[2]
"""The folder that holds this package."""


@dataclass(frozen=True, slots=True)
class Tier:
    """One way to contain programs.

    Attributes:
        name: landlock, bubblewrap or unsafe.
        landlock: version of Landlock's interface that cells use; 0 for none.
        seccomp: whether cells have a system call filter.
        confined: whether cells of root become an unused user.
        namespaced: whether the kernel counts the threads of the cells' user separately from all others.
        prefix: the command in front of the zygote's interpreter.
    """

    name: str
    landlock: int = 0
    seccomp: bool = False
    confined: bool = True
    namespaced: bool = False
    prefix: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The label in verdicts: the mechanisms, and the interpreter."""
        means = [self.name if self.name != "landlock" else f"landlock{self.landlock}"]
        means += ["seccomp"] * self.seccomp + ["user"] * (self.confined and os.geteuid() == 0)
        return f"{'+'.join(means)} cpython-{sys.version.split()[0]}"

    def command(self, descriptor: int, is_rich: bool = False) -> list[str]:
        """The command line of a zygote whose control stream is `descriptor`; a rich one has numpy and event loops."""
        zygote = (str(ROOT / "ttc/sandbox/zygote.py"), str(ROOT), str(descriptor))
        return [*self.prefix, python(), *_OPTIONS, *zygote, *([packages() or "-"] if is_rich else [])]

    def request(self) -> dict[str, Any]:
        """The settings that a zygote needs to fork a cell of this tier."""
        means = {name: getattr(self, name) for name in ("landlock", "seccomp", "confined", "namespaced")}
        return {**means, "users": num_users()}  # the host sends their number, because there may be no /proc inside


def packages() -> str:
    """The folder that numpy is installed in; empty where it is not."""
    spec = importlib.util.find_spec("numpy")
    return str(Path(spec.origin).resolve().parents[1]) if spec is not None and spec.origin else ""


def python() -> str:
    """The file of the base interpreter, outside any virtual environment."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
