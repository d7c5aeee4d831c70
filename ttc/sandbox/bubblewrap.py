"""bubblewrap: the zygote in namespaces of its own, with nothing of the host but Python's files, read-only.

Started with an empty environment, because `--clearenv` cleans only what runs inside: a first process of bubblewrap's
own keeps the launcher's environment for anyone who can read its /proc entry. Here it has none to keep, there is no
/proc inside, and the zygote is the first process itself (`--as-pid-1`), so that its end ends all. For an ordinary user
nested user namespaces are switched off (`--disable-userns`). Root makes no user namespace: there the zygote keeps the
three capabilities that it needs to give each cell an unused user, whom the process limit binds as it never binds root;
cells have none, and their system call filter refuses namespaces.
"""

from __future__ import annotations

import os
import shutil
import sys

from ttc.sandbox.tier import ROOT, python

NEEDED = ("ttc/__init__.py", "ttc/errors.py", "ttc/config/ranges.py", "ttc/sandbox")
_SYSTEM = ("/bin", "/lib", "/lib32", "/lib64", "/libx32")


def prefix() -> tuple[str, ...] | None:
    """The command before the interpreter's; None when bubblewrap is not installed."""
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
    for name in NEEDED:
        arguments += ["--ro-bind", str(ROOT / name), str(ROOT / name)]
    return [*arguments, "--remount-ro", "/"]
