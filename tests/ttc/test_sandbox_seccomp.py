"""The filter itself, carried out here instruction by instruction, for both architectures."""

from __future__ import annotations

import errno
import platform

import pytest

from ttc.sandbox import kernel

ALLOW, KILL = 0x7FFF0000, 0x80000000
DENY, MISSING = 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
PID = 4321
THREAD_FLAGS = 0x3D0F00
"""The flags of a new thread in the C library."""
ALLOWED = {
    "x86_64": {"read": 0, "write": 1, "mmap": 9, "futex": 202, "exit_group": 231, "getrandom": 318},
    "aarch64": {"read": 63, "write": 64, "mmap": 222, "futex": 98, "exit_group": 94, "getrandom": 278},
}
DENIED = {
    "x86_64": {
        "open": 2, "stat": 4, "ioctl": 16, "shmget": 29, "socket": 41, "connect": 42, "sendto": 44, "socketpair": 53,
        "fork": 57, "vfork": 58, "execve": 59, "uname": 63, "ptrace": 101, "mount": 165, "openat": 257, "unshare": 272,
        "newfstatat": 262, "process_vm_readv": 310, "memfd_create": 319, "bpf": 321, "statx": 332,
        "pidfd_send_signal": 424, "io_uring_setup": 425, "openat2": 437, "x32 open": 0x40000002,
    },
    "aarch64": {
        "openat": 56, "ioctl": 29, "socket": 198, "connect": 203, "execve": 221, "uname": 160, "ptrace": 117,
        "mount": 40, "unshare": 97, "newfstatat": 79, "process_vm_readv": 270, "memfd_create": 279, "bpf": 280,
        "statx": 291, "shmget": 194, "pidfd_send_signal": 424, "io_uring_setup": 425, "openat2": 437,
    },
}  # fmt: skip
SPECIAL = {
    "x86_64": {"clone": 56, "kill": 62, "fcntl": 72, "prctl": 157, "tkill": 200, "tgkill": 234, "prlimit64": 302},
    "aarch64": {"clone": 220, "kill": 129, "fcntl": 25, "prctl": 167, "tkill": 130, "tgkill": 131, "prlimit64": 261},
}
MACHINES = pytest.mark.parametrize("machine", ["x86_64", "aarch64"])


def decide(machine: str, number: int, *args: int, audit: int | None = None) -> int:
    """What the filter returns for a call."""
    words = {0: number, 4: AUDIT[machine] if audit is None else audit}
    for index in range(6):
        value = args[index] if index < len(args) else 0
        words[16 + 8 * index], words[20 + 8 * index] = value & 0xFFFFFFFF, value >> 32 & 0xFFFFFFFF
    code, at, accumulator = kernel.program(machine, PID), 0, 0
    while True:
        operation, jump_true, jump_false, operand = code[at]
        at += 1
        if operation == 0x06:
            return operand
        if operation == 0x20:
            accumulator = words[operand]
        elif operation == 0x54:
            accumulator &= operand
        else:
            assert operation == 0x15
            at += jump_true if accumulator == operand else jump_false


@MACHINES
def test_calls_on_the_list_are_allowed_and_others_refused(machine: str) -> None:
    assert {name: decide(machine, number) for name, number in ALLOWED[machine].items()} == dict.fromkeys(
        ALLOWED[machine], ALLOW
    )
    assert {name: decide(machine, number) for name, number in DENIED[machine].items()} == dict.fromkeys(
        DENIED[machine], DENY
    )
    assert decide(machine, 435) == MISSING


@MACHINES
def test_every_number_up_to_a_thousand_is_decided_and_few_are_allowed(machine: str) -> None:
    answers = [decide(machine, number) for number in range(1000)]
    assert set(answers) == {ALLOW, DENY, MISSING}
    assert answers.count(ALLOW) < 80


@MACHINES
def test_a_call_of_another_architecture_ends_the_process(machine: str) -> None:
    assert decide(machine, ALLOWED[machine]["read"], audit=0x40000003) == KILL


@MACHINES
def test_threads_may_be_made_and_processes_and_namespaces_not(machine: str) -> None:
    clone = SPECIAL[machine]["clone"]
    assert decide(machine, clone, THREAD_FLAGS) == ALLOW
    for flags in (17, 0x100 | 17, 0x10000000 | 17, THREAD_FLAGS | 0x10000000, THREAD_FLAGS | 0x40000000, 0):
        assert decide(machine, clone, flags) == DENY


@MACHINES
def test_a_signal_reaches_only_the_process_itself(machine: str) -> None:
    for name in ("kill", "tkill", "tgkill"):
        number = SPECIAL[machine][name]
        assert decide(machine, number, PID, PID, 9) == ALLOW
        for other in (1, 0, 2**32 - 1, PID + 1):
            assert decide(machine, number, other, 9) == DENY


@MACHINES
def test_descriptor_flags_may_change_and_their_owner_not(machine: str) -> None:
    fcntl = SPECIAL[machine]["fcntl"]
    assert [decide(machine, fcntl, 1, command) for command in (0, 1, 2, 3, 4, 1030)] == [ALLOW] * 6
    assert [decide(machine, fcntl, 1, command) for command in (8, 10, 15, 1024, 1031, 1033)] == [DENY] * 6


@MACHINES
def test_attributes_and_limits_of_the_process_stay(machine: str) -> None:
    assert decide(machine, SPECIAL[machine]["prctl"], 15) == ALLOW
    assert [decide(machine, SPECIAL[machine]["prctl"], option) for option in (1, 4, 22, 38, 36)] == [DENY] * 5
    assert decide(machine, SPECIAL[machine]["prlimit64"], 0) == ALLOW
    assert decide(machine, SPECIAL[machine]["prlimit64"], 1) == DENY


CLOCKS = {"x86_64": (228, 229, 230, 204), "aarch64": (113, 114, 115, 123)}


@MACHINES
def test_the_clocks_and_cores_of_other_processes_cannot_be_asked_for(machine: str) -> None:
    *clocks, affinity = CLOCKS[machine]
    for number in clocks:
        assert [decide(machine, number, clock) for clock in (0, 1, 2, 3, 4, 7, 11)] == [ALLOW] * 7
        for pid in (1, 2, PID, PID + 1):
            assert decide(machine, number, (~pid << 3 | 2) & 0xFFFFFFFF) == DENY
    assert [decide(machine, affinity, pid) for pid in (0, PID)] == [ALLOW] * 2
    assert [decide(machine, affinity, pid) for pid in (1, 2, PID + 1)] == [DENY] * 3


@pytest.mark.parametrize("pid", [1, 2, 77, 4_194_303])
def test_a_prepared_filter_is_that_of_the_process_which_enters_it(pid: int) -> None:
    if not kernel.is_supported():
        pytest.skip("another system")
    assert kernel.enter(kernel.prepare(), pid) == kernel.encode(kernel.program(platform.machine(), pid))
