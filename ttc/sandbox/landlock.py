"""Landlock: give up all access to files, to TCP ports and, on newer kernels, to other processes' signals and sockets.

The rules have no exception: the process keeps the descriptors it holds and can open nothing more. It needs no privilege
and cannot be undone. Kernel 5.13 has the first version of the interface, 6.12 the one with scopes; older ones leave to
`seccomp` what they do not know. Source: Documentation/userspace-api/landlock.rst of the Linux kernel.
"""

from __future__ import annotations

import ctypes
import os

from ttc.sandbox.kernel import PR_SET_NO_NEW_PRIVS, prctl, syscall

CREATE_RULESET, RESTRICT_SELF = 444, 446
"""Numbers of the system calls; the same on all architectures."""
GET_VERSION = 1
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""How many access rights to files each version of the interface knows."""
_LATEST = 5
_NET_SINCE, _SCOPE_SINCE = 4, 6


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scope", ctypes.c_uint64))


def version() -> int:
    """Return the version of the kernel's interface; 0 when it has none or it is switched off."""
    try:
        return syscall(CREATE_RULESET, None, 0, GET_VERSION)
    except OSError:
        return 0


def confine(abi: int) -> None:
    """Give up everything that version `abi` of the interface can take away; raises OSError when it cannot be done."""
    ruleset = _Ruleset((1 << _FILE_RIGHTS[min(abi, _LATEST)]) - 1, 0, 0)
    size = 8
    if abi >= _NET_SINCE:
        ruleset.net, size = 0b11, 16
    if abi >= _SCOPE_SINCE:
        ruleset.scope, size = 0b11, 24
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    descriptor = syscall(CREATE_RULESET, ctypes.byref(ruleset), size, 0)
    try:
        syscall(RESTRICT_SELF, descriptor, 0)
    finally:
        os.close(descriptor)
