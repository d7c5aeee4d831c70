"""How the Linux kernel permanently restricts a process: Landlock for files, seccomp for system calls; by ctypes.

Landlock gives up all access to files, to TCP ports and, on newer kernels, to other processes' signals and sockets. The
rules have no exception: the process keeps the descriptors it holds and can open nothing more. It needs no privilege.
Kernel 5.13 has the first version of the interface, 6.12 the one with scopes; older ones leave to seccomp what they do
not know. Source: Documentation/userspace-api/landlock.rst of the Linux kernel.

seccomp refuses every system call that is not on a list with EPERM, so a call that this file does not know is refused.
No call that takes a path is on it, nor one that makes a socket, a process, a shared memory or a signal to another
process. Threads are allowed (a `clone` with CLONE_THREAD), `clone3` is answered with ENOSYS so that the C library falls
back to `clone`, whose flags can be seen by a filter. The filter is a classic BPF program over `struct seccomp_data`,
built here by hand and installed with a system call. Sources: Documentation/userspace-api/seccomp_filter.rst; the
numbers are those of asm/unistd_64.h and asm-generic/unistd.h. Left out: architectures other than x86_64 and aarch64.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Mapping, Sequence

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_NO_NEW_PRIVS = 38

_LIBC = ctypes.CDLL(None, use_errno=True)


# -- system calls ------------------------------------------------------------------------------------------------------
def syscall(number: int, *arguments: object) -> int:
    """Make a system call; raises OSError when it fails."""
    words = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    result = int(_LIBC.syscall(ctypes.c_long(number), *words))
    if result < 0:
        _fail(f"system call {number}")
    return result


def prctl(option: int, value: int) -> None:
    """Set an attribute of this process; raises OSError when it fails."""
    if _LIBC.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)) != 0:
        _fail(f"prctl {option}")


def _fail(what: str) -> None:
    number = ctypes.get_errno()
    raise OSError(number, f"{what}: {os.strerror(number)}")


# -- Landlock ----------------------------------------------------------------------------------------------------------
CREATE_RULESET, RESTRICT_SELF = 444, 446
"""Numbers of the system calls; the same on all architectures."""
GET_VERSION = 1
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""Number of access rights to files in each version of the interface."""
_LATEST = 5
_NET_SINCE, _SCOPE_SINCE = 4, 6


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scope", ctypes.c_uint64))


def landlock_version() -> int:
    """Return the version of the kernel's interface; 0 if it has none or it is switched off."""
    try:
        return syscall(CREATE_RULESET, None, 0, GET_VERSION)
    except OSError:
        return 0


def restrict_files(abi: int) -> None:
    """Give up all rights that version `abi` of the interface covers; raises OSError when that fails."""
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


# -- seccomp -----------------------------------------------------------------------------------------------------------
_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_SECCOMP = {"x86_64": 317, "aarch64": 277}
_SET_MODE_FILTER = 1

_FREE: Mapping[str, tuple[int | None, int | None]] = {
    # descriptors that are open already
    "read": (0, 63), "write": (1, 64), "close": (3, 57), "fstat": (5, 80), "lseek": (8, 62), "pread64": (17, 67),
    "pwrite64": (18, 68), "readv": (19, 65), "writev": (20, 66), "dup": (32, 23), "dup2": (33, None), "dup3": (292, 24),
    "pipe": (22, None), "pipe2": (293, 59), "poll": (7, None), "ppoll": (271, 73), "select": (23, None),
    "pselect6": (270, 72), "epoll_create": (213, None), "epoll_create1": (291, 20), "epoll_ctl": (233, 21),
    "epoll_wait": (232, None), "epoll_pwait": (281, 22), "eventfd": (284, None), "eventfd2": (290, 19),
    # memory
    "mmap": (9, 222), "mprotect": (10, 226), "munmap": (11, 215), "brk": (12, 214), "mremap": (25, 216),
    "madvise": (28, 233), "membarrier": (324, 283),
    # signals to oneself, and timers
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "rt_sigpending": (127, 136),
    "rt_sigtimedwait": (128, 137), "rt_sigsuspend": (130, 133), "sigaltstack": (131, 132), "pause": (34, None),
    "alarm": (37, None), "getitimer": (36, 102), "setitimer": (38, 103), "restart_syscall": (219, 128),
    # threads and the end
    "futex": (202, 98), "set_robust_list": (273, 99), "get_robust_list": (274, 100), "rseq": (334, 293),
    "set_tid_address": (218, 96), "gettid": (186, 178), "sched_yield": (24, 124), "exit": (60, 93),
    "exit_group": (231, 94),
    # time, randomness and who am I
    "nanosleep": (35, 101), "gettimeofday": (96, 169), "time": (201, None), "times": (100, 153), "getrusage": (98, 165),
    "getrandom": (318, 278), "getpid": (39, 172), "getppid": (110, 173), "getuid": (102, 174), "geteuid": (107, 175),
    "getgid": (104, 176), "getegid": (108, 177), "getrlimit": (97, None), "getcwd": (79, 17), "umask": (95, 166),
}  # fmt: skip
_KILL, _TKILL, _TGKILL = (62, 129), (200, 130), (234, 131)
_CLONE, _CLONE3, _PRCTL, _FCNTL, _PRLIMIT = (56, 220), (435, 435), (157, 167), (72, 25), (302, 261)
_CLOCKS = ((228, 113), (229, 114), (230, 115))  # clock_gettime, clock_getres, clock_nanosleep
_AFFINITY = (204, 123)
_CLOCK_IDS = tuple(range(12))  # the constant ones; a negative id is the clock of another process
_CLONE_THREAD = 0x00010000
_NEW_NAMESPACES = 0x7E020080
_PRCTL_ALLOWED = (15, 16)  # set and get the name of a thread
_FCNTL_ALLOWED = (0, 1, 2, 3, 4, 1030, 1032)  # duplicate, flags, size of a pipe; not F_SETOWN, which sends signals

_ANY_PID = 0x5EC0DE5A
"""Placeholder of the process id in a prepared filter; no number or flag in it has this value."""

_LOAD, _EQUAL, _AND, _RETURN = 0x20, 0x15, 0x54, 0x06
_ALLOW, _ERRNO, _KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_Instruction = tuple[int, int, int, int]


def is_supported() -> bool:
    """Whether the system call numbers of this machine are known here."""
    return platform.system() == "Linux" and platform.machine() in _AUDIT


def prepare() -> bytes:
    """Return this machine's filter for `restrict_calls`, in which each process only has to enter its own id."""
    return encode(program(platform.machine(), _ANY_PID))


def enter(prepared: bytes, pid: int) -> bytes:
    """Return a prepared filter for the process `pid`."""
    return prepared.replace(struct.pack("=I", _ANY_PID), struct.pack("=I", pid))


def encode(instructions: Sequence[_Instruction]) -> bytes:
    """Return a filter in the kernel's form: an array of `struct sock_filter`."""
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)


def restrict_calls(prepared: bytes, machine: str, pid: int) -> None:
    """Permanently allow this process, whose id is `pid`, only the calls of the list; raises OSError."""
    code = enter(prepared, pid)
    buffer = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("@HP", len(code) // 8, ctypes.addressof(buffer))
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    syscall(_SECCOMP[machine], _SET_MODE_FILTER, 0, ctypes.create_string_buffer(header, len(header)))


def program(machine: str, pid: int) -> list[_Instruction]:
    """Return the filter for `machine` (x86_64 or aarch64) as instructions (code, jump if true, if false, operand)."""
    column = list(_AUDIT).index(machine)
    code: list[_Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, _AUDIT[machine]),
        (_RETURN, 0, 0, _KILL_PROCESS),
        (_LOAD, 0, 0, _NUMBER),
    ]
    for pair in _FREE.values():
        if (number := pair[column]) is not None:
            code += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ALLOW)]
    code += _when(_CLONE3[column], [(_RETURN, 0, 0, _ERRNO | errno.ENOSYS)])
    flags = [(_AND, 0, 0, _CLONE_THREAD | _NEW_NAMESPACES), *_allow_if((_CLONE_THREAD,))]
    code += _when(_CLONE[column], [_argument(0), *flags])
    for call in (_KILL, _TGKILL, _TKILL):
        code += _when(call[column], [_argument(0), *_allow_if((pid,))])
    code += _when(_PRCTL[column], [_argument(0), *_allow_if(_PRCTL_ALLOWED)])
    code += _when(_FCNTL[column], [_argument(1), *_allow_if(_FCNTL_ALLOWED)])
    code += _when(_PRLIMIT[column], [_argument(0), *_allow_if((0,))])
    for call in _CLOCKS:
        code += _when(call[column], [_argument(0), *_allow_if(_CLOCK_IDS)])
    code += _when(_AFFINITY[column], [_argument(0), *_allow_if((0, pid))])
    return [*code, (_RETURN, 0, 0, _ERRNO | errno.EPERM)]


def _when(number: int, body: Sequence[_Instruction]) -> list[_Instruction]:
    """Run `body`, which ends with a return, for the call `number`."""
    return [(_EQUAL, 0, len(body), number), *body]


def _argument(index: int) -> _Instruction:
    """Load the lower half of an argument, the only part that these calls read."""
    return (_LOAD, 0, 0, _ARGUMENTS + 8 * index)


def _allow_if(values: Sequence[int]) -> list[_Instruction]:
    code: list[_Instruction] = []
    for value in values:
        code += [(_EQUAL, 0, 1, value), (_RETURN, 0, 0, _ALLOW)]
    return [*code, (_RETURN, 0, 0, _ERRNO | errno.EPERM)]
