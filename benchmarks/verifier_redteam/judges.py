"""The judges of the pairs: the verifiers of this tree in process, and peers, each in an environment of its own.

A peer reads JSON lines {"gold", "text", "verifier"} and answers each with {"correct": true | false | null}; `peers/`
has one for math-verify.
"""

from __future__ import annotations

import asyncio
import json
import shlex
import subprocess
from collections.abc import Sequence

from benchmarks.verifier_redteam.pairs import Pair
from ttc.core import Submission, Verdict
from ttc.verifiers.choice import choice
from ttc.verifiers.math import math

CHUNK = 50
"""Pairs that fit into a pipe at once."""


class Ours:
    """This repository's verifiers, in process; `close` ends their workers."""

    name = "ours"

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._verifiers = {"math": math(), "number": math(kind="number"), "choice": choice()}

    def verdicts(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """The verdicts, one after the other."""
        return self._runner.run(self._verdicts(pairs))

    def judge(self, pairs: Sequence[Pair]) -> list[bool]:
        """Whether it accepts each pair."""
        return [verdict.correct for verdict in self.verdicts(pairs)]

    async def _verdicts(self, pairs: Sequence[Pair]) -> list[Verdict]:
        return [await self._verifiers[pair.verifier].verify(pair.target, Submission(pair.text)) for pair in pairs]

    def close(self) -> None:
        """End the workers."""
        for verifier in self._verifiers.values():
            self._runner.run(verifier.close())
        self._runner.close()


class Peer:
    """Another judge, a program that is started once."""

    def __init__(self, name: str, command: str) -> None:
        self.name, self.command = name, command
        self._process: subprocess.Popen[str] | None = None

    def judge(self, pairs: Sequence[Pair]) -> list[bool]:
        """Whether it accepts each pair."""
        return [accept for at in range(0, len(pairs), CHUNK) for accept in self._asked(pairs[at : at + CHUNK])]

    def _asked(self, pairs: Sequence[Pair]) -> list[bool]:
        if self._process is None:
            self._process = subprocess.Popen(
                shlex.split(self.command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        assert self._process.stdin is not None and self._process.stdout is not None
        for pair in pairs:
            self._process.stdin.write(
                json.dumps({"gold": pair.gold, "text": pair.text, "verifier": pair.verifier}) + "\n"
            )
        self._process.stdin.flush()
        return [json.loads(self._process.stdout.readline())["correct"] is True for _ in pairs]

    def close(self) -> None:
        """End the program."""
        if self._process is not None:
            self._process.communicate()


def read_peer(text: str) -> Peer:
    """Read NAME=COMMAND."""
    name, _, command = text.partition("=")
    return Peer(name, command)
