"""Determine by a test what contains programs on this machine: each tier must contain a canary program.

The canary tries to stay root, read a file, list a folder, see the environment, open a socket, start a process, reach
its parent, write a file and execute a program, and reports where it succeeded. A tier passes if the canary succeeds
nowhere and can still compute. Root in a user namespace that maps no other user stays root, so no tier passes there.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from ttc.errors import ConfigError, VerifierError
from ttc.sandbox import kernel
from ttc.sandbox.limits import ROOT, ResourceLimits, Tier, packages, python
from ttc.sandbox.pool import Worker
from ttc.sandbox.running import Script

UNSAFE = Tier("unsafe", confined=False)
CANARY = """
import os, socket, sys
def managed(attempt):
    try:
        return bool(attempt())
    except OSError:
        return False
def fork():
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    return pid
def write():
    open("/tmp/ttc-canary", "w").close()
    os.remove("/tmp/ttc-canary")
    return True
print(input(), sep="\\n", *(name for name, attempt in {
    "stay root": lambda: os.getuid() == 0,
    "read": lambda: open("/etc/passwd").read(),
    "list": lambda: os.listdir("/"),
    "stat": lambda: os.stat("/etc/passwd"),
    "environment": lambda: os.environ,
    "socket": lambda: socket.socket(socket.AF_UNIX),
    "fork": fork,
    "signal": lambda: os.kill(os.getppid(), 0) is None,
    "write": write,
}.items() if managed(attempt)), flush=True)
managed(lambda: os.execv("/bin/true", ["true"]))
print("still me")
"""
_WORD = "alive"
_LAST = "still me"
_LIMITS = ResourceLimits(wall_s=10.0, cpu_s=5.0, memory_mb=256)


def probe(*, unsafe: bool = False, tiers: Sequence[Tier | str] | None = None) -> Tier:
    """Return the first tier that contains programs here.

    Args:
        unsafe: if no tier does, return one that only limits time and memory.
        tiers: what to try, in order; absent: `candidates()`.

    Raises:
        ConfigError: no tier does and `unsafe` is False; the message gives the reason for each tier.
    """
    failures = []
    for tier in candidates() if tiers is None else tiers:
        why = tier if isinstance(tier, str) else failure(tier)
        if isinstance(tier, Tier) and not why:
            return tier
        failures.append(why)
    if unsafe:
        return UNSAFE
    raise ConfigError(
        f"no sandbox for model-written code works here: {'; '.join(failures)}. Use a Linux kernel >= 5.13 "
        "with Landlock, or install bubblewrap (apt install bubblewrap); or run the programs "
        "without protection: --unsafe-code, or unsafe=True of the verifier"
    )


def candidates() -> list[Tier | str]:
    """The tiers in order of preference; a sentence for one that cannot even be tried."""
    if not kernel.is_supported():
        return [f"seccomp is not supported on {platform.system()} {platform.machine()}"]
    abi, prefix = kernel.landlock_version(), bwrap_prefix()
    return [
        Tier("landlock", abi, seccomp=True) if abi else "the kernel has no Landlock",
        Tier("bubblewrap", seccomp=True, namespaced=True, prefix=prefix) if prefix else "bwrap is not installed",
    ]


def failure(tier: Tier) -> str:
    """The reason why `tier` does not contain programs here; empty if it does."""
    try:
        worker = Worker(tier)
    except VerifierError as exc:
        return f"{tier.name}: {exc}"
    try:
        ran = Script(CANARY, _LIMITS, stdin=_WORD).run(worker)
    except VerifierError as exc:
        return f"{tier.name}: {exc}"
    finally:
        worker.close()
    if ran.cause or ran.output.split()[:1] != [_WORD]:
        return f"{tier.name}: the canary did not run ({ran.cause} {ran.errors[-200:]})"
    managed = ran.output.splitlines()[1:]
    if managed[-1:] == [_LAST]:
        managed.pop()
    else:
        managed.append("execute")
    return f"{tier.name}: the canary managed to {', '.join(managed)}" if managed else ""


NEEDED = ("ttc/__init__.py", "ttc/errors.py", "ttc/config/values.py", "ttc/sandbox")
_SYSTEM = ("/bin", "/lib", "/lib32", "/lib64", "/libx32")


def bwrap_prefix() -> tuple[str, ...] | None:
    """The command in front of the interpreter; None when bubblewrap is not installed.

    Of the host only Python's files are inside, read-only. bubblewrap is started with an empty environment, because
    `--clearenv` cleans only what runs inside: a first process of bubblewrap's own keeps the launcher's environment,
    which any reader of its /proc entry sees. There is no /proc inside, and the zygote itself is the first process
    (`--as-pid-1`), so that its end ends all others. For an ordinary user nested user namespaces are switched off
    (`--disable-userns`). Root makes no user namespace: there the zygote keeps the three capabilities that it needs to
    give each cell an unused user, to whom the process limit applies, unlike to root; cells have no capabilities, and
    their system call filter refuses namespaces.
    """
    program = shutil.which("bwrap")
    if program is None:
        return None
    rights = ["--unshare-user", "--disable-userns", "--cap-drop", "ALL"]
    if os.geteuid() == 0:
        rights = ["--cap-drop", "ALL"]
        for capability in ("CAP_SETUID", "CAP_SETGID", "CAP_KILL"):
            rights += ["--cap-add", capability]
    spaces = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    life = ["--die-with-parent", "--as-pid-1", "--new-session", "--clearenv", "--setenv", "PYTHONHASHSEED", "0"]
    return (program, *spaces, *rights, *life, *_files(), "--chdir", "/", "--")


def _numpy() -> list[Path]:
    """The folders of numpy and of its libraries, if installed."""
    folder = packages()
    names = [Path(folder, name) for name in ("numpy", "numpy.libs")] if folder and not folder.startswith("/usr") else []
    return [path for path in names if path.is_dir()]


def _files() -> list[str]:
    arguments = ["--dev", "/dev", "--ro-bind", "/usr", "/usr"]
    for path in _SYSTEM:
        if os.path.islink(path):
            arguments += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            arguments += ["--ro-bind", path, path]
    if os.path.exists("/etc/ld.so.cache"):
        arguments += ["--ro-bind", "/etc/ld.so.cache", "/etc/ld.so.cache"]
    for folder in {os.path.realpath(sys.base_prefix), os.path.dirname(os.path.dirname(python()))}:
        if not folder.startswith("/usr"):
            arguments += ["--ro-bind", folder, folder]
    for bound in (*(ROOT / name for name in NEEDED), *_numpy()):
        arguments += ["--ro-bind", str(bound), str(bound)]
    return [*arguments, "--remount-ro", "/"]
