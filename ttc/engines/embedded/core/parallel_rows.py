"""A compiled kernel over rows, split over the threads that torch computes with.

Threads of numba or Python would compete with those of torch, which spin while they wait for its next product. GNU's
OpenMP, which torch ships on Linux, runs any function in its threads (`GOMP_parallel`), including one compiled by numba.
Cost: a microsecond a call, and a second of compilation in a process that computes with several threads. Left out: macOS
and Windows, where torch ships another OpenMP; there a kernel runs in one thread.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from llvmlite import ir
from numba import cfunc, njit, typeof, types
from numba.core import cgutils
from numba.core.imputils import impl_ret_borrowed
from numba.extending import intrinsic

_INT, _LONG = ir.IntType(32), ir.IntType(64)


class OpenMP(NamedTuple):
    """Addresses of functions of the OpenMP library that torch uses."""

    parallel: int
    thread: int
    threads: int


@functools.cache
def openmp() -> OpenMP | None:
    """Those of this build of torch; None where its OpenMP is not GNU's."""
    names = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
    for path in (Path(torch.__file__).parent / "lib").glob("libgomp*"):
        library = ctypes.CDLL(str(path))
        addresses = (ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in names)
        return OpenMP(*(int(address or 0) for address in addresses))
    return None


@intrinsic  # type: ignore[untyped-decorator]
def _in_threads(context: Any, parallel: Any, part: Any, threads: Any, work: Any) -> Any:
    """GOMP_parallel(part, &work, threads, 0): every thread calls `part`; returns when all are done."""

    def code(ctx: Any, builder: Any, _: Any, args: Any) -> Any:
        bytes_ = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [bytes_, bytes_, _INT, _INT]).as_pointer()
        place = builder.bitcast(cgutils.alloca_once_value(builder, args[3]), bytes_)
        target = builder.inttoptr(args[1], bytes_)
        builder.call(builder.inttoptr(args[0], kind), [target, place, builder.trunc(args[2], _INT), _INT(0)])
        return ctx.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, work), code


@intrinsic  # type: ignore[untyped-decorator]
def _int_from(context: Any, function: Any) -> Any:
    """Call the function without arguments at this address; returns its int."""

    def code(_: Any, builder: Any, __: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], ir.FunctionType(_INT, []).as_pointer())
        return builder.sext(builder.call(pointer, []), _LONG)

    return types.int64(types.int64), code


def _reader(kind: Any) -> Any:
    """A function that reads a value of numba's type `kind` from memory."""

    @intrinsic  # type: ignore[untyped-decorator]
    def value(context: Any, place: Any) -> Any:
        def code(ctx: Any, builder: Any, _: Any, args: Any) -> Any:
            pointer = builder.bitcast(args[0], ctx.get_value_type(kind).as_pointer())
            return impl_ret_borrowed(ctx, builder, kind, builder.load(pointer))

        return kind(types.voidptr), code

    return value


def _launch(parallel: Any, number: Any, count: Any, part: Any, threads: Any, rows: Any, arguments: Any) -> None:
    _in_threads(parallel, part, threads, (number, count, rows, arguments))


class ParallelRows:
    """A kernel(start, stop, *work) over rows, in the threads that torch computes with.

    The dtype is that of its first argument. A launcher is compiled for fixed argument types, so that no argument is
    misread: it refuses others, for which another launcher is compiled. It is compiled once per process, since numba
    would cache the function of a thread on disk anew for every process.
    """

    def __init__(self, kernel: Callable[..., None]) -> None:
        self._kernel = kernel
        self._launchers: dict[Any, tuple[Callable[..., None], Any]] = {}

    def __call__(self, threads: int, rows: int, *work: Any) -> None:
        """Compute `rows` rows in `threads` threads."""
        library = openmp()
        if library is None:
            self._kernel(0, rows, *work)
            return
        kind = work[0].dtype
        if kind not in self._launchers:
            self._launchers[kind] = self._launcher(tuple(map(typeof, work)))
        try:
            launch, part = self._launchers[kind]
            launch(*library, part.address, threads, rows, work)
        except TypeError:  # an array of another layout
            launch, part = self._launchers[kind] = self._launcher(tuple(map(typeof, work)))
            launch(*library, part.address, threads, rows, work)

    def _launcher(self, kinds: tuple[Any, ...]) -> tuple[Callable[..., None], Any]:
        kernel, work = self._kernel, types.Tuple(kinds)
        read = _reader(types.Tuple((types.int64, types.int64, types.int64, work)))

        def part(place: Any) -> None:
            number, count, rows, arguments = read(place)
            at, threads = _int_from(number), _int_from(count)
            kernel(rows * at // threads, rows * (at + 1) // threads, *arguments)

        signature = types.void(*[types.int64] * 6, work)
        return njit(signature, nogil=True)(_launch), cfunc(types.void(types.voidptr))(part)
