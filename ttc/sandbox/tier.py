"""A tier: which of the kernel's means contain a program, and how the zygote is started for it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ttc.sandbox.limits import num_users

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
        namespaced: whether the kernel counts the threads of the cells' user apart from all others.
        prefix: the command that starts the zygote's interpreter in its surroundings.
    """

    name: str
    landlock: int = 0
    seccomp: bool = False
    confined: bool = True
    namespaced: bool = False
    prefix: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """What stands in verdicts: the means, and the interpreter."""
        means = [self.name if self.name != "landlock" else f"landlock{self.landlock}"]
        means += ["seccomp"] * self.seccomp + ["user"] * (self.confined and os.geteuid() == 0)
        return f"{'+'.join(means)} cpython-{sys.version.split()[0]}"

    def command(self, descriptor: int) -> list[str]:
        """The command line of a zygote whose control stream is `descriptor`."""
        return [*self.prefix, *interpreter(), str(ROOT / "ttc/sandbox/zygote.py"), str(ROOT), str(descriptor)]

    def request(self) -> dict[str, Any]:
        """What a zygote must know of the tier to fork a cell."""
        return {
            "landlock": self.landlock,
            "seccomp": self.seccomp,
            "confined": self.confined,
            "namespaced": self.namespaced,
            # Said by the host, because there may be no /proc inside.
            "users": num_users(),
        }


def interpreter() -> Sequence[str]:
    """The interpreter itself, without an environment's packages, and its options."""
    return (python(), "-s", "-S", "-P", "-B", "-X", "utf8")


def python() -> str:
    """The file of the base interpreter, behind any virtual environment."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
