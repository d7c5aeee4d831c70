"""Several processes that train one model: what they split, where they must agree, how they start.

Every process holds the model, draws and judges the rollouts of its share of the prompts, and then gets all of them;
each computes its share of an update's micro-batches, and the gradients are summed before the optimiser's step. Weights
per token are fixed over the whole batch (`train.update.batch`), so N processes make the update of one, up to the order
of sums. What steers a run (metrics, held-out outcomes) is taken from process 0, so that all decide alike. Unlike with a
data-parallel wrapper, processes may have different numbers of micro-batches: the gradient is communicated once a step.
`ttc train run --processes` starts a command in several processes through torch's own launcher; `torchrun -m ttc train
run ..` does the same, across machines too, and so does `accelerate launch` where it starts several processes (on CPUs
only through MPI). Process groups are set up by accelerate.

No process outlives the command, however it ends: the launcher ends when the command is gone, workers when the launcher
is. On a failure the user sees the worker's own error, and the command has its exit code.

Cost: one all-reduce of the gradient per optimiser step. Left out: overlapping it with the backward pass.
"""

from __future__ import annotations

import ctypes
import datetime
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ttc.concurrent import StopRequest
from ttc.errors import MissingExtra, TrainingError

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
_PATIENCE = datetime.timedelta(hours=24)
"""How long the others wait while process 0 runs a stage that is not split."""
HANDED_ON_S = 2.0
"""A batch system may send every process the signal that the launcher hands on to them, too, within so many seconds."""
_PR_SET_PDEATHSIG = 1
_LAUNCH = "from train.base.world import launch; launch({parent})"


@dataclass(frozen=True, slots=True)
class World:
    """This process among `size`; `rank` 0 writes files."""

    rank: int = 0
    size: int = 1

    @property
    def main(self) -> bool:
        """Whether this process writes and decides."""
        return self.rank == 0

    def share(self, items: Sequence[T]) -> tuple[int, list[T]]:
        """This process's consecutive part of `items`, and its first index; parts differ by one item at most."""
        start, end = (len(items) * rank // self.size for rank in (self.rank, self.rank + 1))
        return start, list(items[start:end])

    def gather(self, items: Sequence[T]) -> list[T]:
        """The items of all processes, in their order, on every process."""
        if self.size == 1:
            return list(items)
        import torch

        parts: list[Any] = [None] * self.size
        with self._together():
            torch.distributed.all_gather_object(parts, list(items))
        return [item for part in parts for item in part]

    def any(self, flag: bool) -> bool:
        """Whether it is true in any process."""
        return any(self.gather([flag]))

    def agree(self, value: T) -> T:
        """The value of process 0."""
        if self.size == 1:
            return value
        import torch

        box: list[Any] = [value]
        with self._together():
            torch.distributed.broadcast_object_list(box, src=0)
        first: T = box[0]
        return first

    def add(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replace every tensor by its sum over all processes, in one message."""
        if self.size == 1 or not tensors:
            return
        import torch

        flat = torch.cat([tensor.detach().flatten().float() for tensor in tensors])
        with self._together():
            torch.distributed.all_reduce(flat)
        for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(part.view_as(tensor))

    def wait(self) -> None:
        """Continue when every process is here."""
        if self.size > 1:
            import torch

            with self._together():
                torch.distributed.barrier()

    @contextmanager
    def _together(self) -> Iterator[None]:
        """Report a failure inside as the end of another process, which has reported the cause."""
        try:
            yield
        except RuntimeError as exc:
            lost = f"process {self.rank} of {self.size} lost contact with the others"
            raise TrainingError(f"{lost}; the first that ended says why above or below") from exc


ALONE = World()
"""One process; nothing is sent anywhere."""


def joined(device: str) -> World:
    """The world that the launcher's environment describes; `ALONE` without one.

    Raises:
        MissingExtra: several processes without accelerate.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return ALONE
    try:
        from accelerate import PartialState
    except ImportError as exc:
        raise MissingExtra("several processes", "train") from exc
    _end_with_launcher()
    state = PartialState(cpu=device == "cpu", timeout=_PATIENCE)
    return World(state.process_index, state.num_processes)


def relaunch(processes: int, arguments: Sequence[str], stop: StopRequest) -> int:
    """Run `ttc` with `arguments` in that many processes, and wait; returns the launcher's exit code.

    Ctrl-C reaches each of them once: through the launcher, which has a session of its own and gets this process's
    signals. A second signal kills them all.

    Raises:
        Interrupted: a signal came, and they have ended.
    """
    launcher = [sys.executable, "-c", _LAUNCH.format(parent=os.getpid())]
    workers = ["--standalone", f"--nproc-per-node={processes}", "-m", "ttc", *arguments]
    child = subprocess.Popen([*launcher, *workers], start_new_session=True)
    with child, stop.heeded(first=child.send_signal, second=partial(_kill_session, child.pid)):
        return child.wait()


def launch(parent: int) -> None:
    """Act as torch's launcher with the arguments of this process, which `parent` started, and end when that ends.

    Exits with the code of the worker that failed first, and prints nothing further, unless that was killed.
    """
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    _end_with_parent(signal.SIGTERM)
    if os.getppid() != parent:
        return
    logging.disable(logging.ERROR)  # which processes it ends when one has failed, and a traceback of its own
    try:
        run.run(run.parse_args(sys.argv[1:]))
    except SignalException as exc:
        sys.exit(128 + exc.sigval)
    except ChildFailedError as exc:
        rank, failure = exc.get_first_failure()
        if failure.exitcode < 0:
            name = signal.Signals(-failure.exitcode).name
            os.write(2, f"ttc: error: process {rank} was ended by {name}; continue with: the same command\n".encode())
        sys.exit(failure.exitcode if failure.exitcode > 0 else 128 - failure.exitcode)


def _end_with_launcher() -> None:
    """Make the system kill this process when the launcher, which should end it, is gone; on Linux."""
    from torch.distributed import is_torchelastic_launched

    if is_torchelastic_launched():
        _end_with_parent(signal.SIGKILL)


def _end_with_parent(number: int) -> None:
    """Make the system send this process that signal when its parent is gone; on Linux."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def _kill_session(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def without(option: str, arguments: Sequence[str]) -> list[str]:
    """`arguments` without an option and its value, in either spelling."""
    rest: list[str] = []
    skip = False
    for argument in arguments:
        if skip or argument == option:
            skip = argument == option and not skip
            continue
        if not argument.startswith(f"{option}="):
            rest.append(argument)
    return rest
