"""The operations of a layer besides its matrix products on a CPU, compiled by numba: norm, RoPE, gate, paged attention.

torch runs these as some forty operations a layer, each of which costs more to call than to compute with tens of rows.
Here each is one pass that rounds once. Arrays are numpy's; bf16 is passed as uint16 (`array`). The kernels are generic
in their sizes, so they are compiled once per processor and dtype and cached on disk (a few seconds the first time).

`attend` iterates over a row's keys with running sums (online softmax: Milakov and Gimelshein 2018, arXiv 1805.02867;
pages: Kwon et al. 2023, arXiv 2309.06180), starting from the partial sums that `attend_together` or `join` left for
shared keys. Pages are laid out as in `pool`: keys with the positions last, so that the scores of neighbouring positions
fill a register. The next page is prefetched during the computation, since pages lie anywhere in memory.

`attend_together` does the same for a tile of queries, which multiply each key that was loaded once (FlashAttention, Dao
et al. 2022, arXiv 2205.14135). In bf16 it multiplies pairs where the processor has AVX-512 BF16; softmax weights are
rounded to bf16 for that, as on GPUs.

All kernels are in one file, since numba recompiles a cached kernel when its own file changes, but not when a file that
it calls into changes.

Rows are split over threads by `parallel_rows`. Left out: fp16.

Names: `shares` are unnormalised softmax weights, `peaks` running maxima, `masses` running sums of weights, and `fades`
the factors that rescale earlier sums to a new maximum.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from llvmlite import ir
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from ttc.engines.embedded.core.pool import SHEET
from ttc.engines.shared.shape import Dims

F = TypeVar("F", bound=Callable[..., Any])

_BLOCK = 256
"""Block size of the first level of sums in `draw`, in tokens."""
_LOW, _HIGH = np.float32(-87.0), np.float32(88.0)
_ZERO, _ONE, _HALF, _MASKED = np.float32(0), np.float32(1), np.float32(0.5), np.float32(-1e30)
_LEAST = np.float32(1e-38)
"""Smaller than every positive weight."""


_MATH = {"reassoc", "contract", "arcp", "nsz"}
"""Fast-math flags: sums in any order, but NaN is preserved."""


_GRAIN = 1 << 15
"""Fewest numbers worth a thread, as in torch."""
_HEADS, _SIZE = 4, 256
"""Most query heads that one pass over a sheet computes, and the largest head size."""
_RUNS = 8
"""Runs whose scores are turned into softmax weights together, which takes little longer than for one run."""
_WIDTH = _RUNS * SHEET
_TILE = 12
"""Queries that read the same keys at once: with two registers of keys for each, all sums stay in registers."""

_SHORT, _INT, _LONG, _FLOAT = ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()
_VECTOR, _INTS = ir.VectorType(_FLOAT, SHEET), ir.VectorType(_INT, SHEET)


def array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """The memory of a tensor as a numpy array for the kernels; bf16 as uint16."""
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def serves(head_dim: int) -> bool:
    """Whether `attend` supports this head size."""
    return head_dim % SHEET == 0 and head_dim <= _SIZE


def _compiled(function: F) -> F:
    """Compile at the first call, without the GIL; cached on disk where a writable cache folder exists."""
    options: dict[str, Any] = {"nogil": True, "fastmath": _MATH, "error_model": "numpy"}
    try:
        compiled: F = njit(cache=True, **options)(function)
    except RuntimeError:  # numba has no writable cache folder
        compiled = njit(**options)(function)
    return compiled


def _inlined(function: F) -> F:
    compiled: F = njit(inline="always", fastmath=_MATH, error_model="numpy")(function)
    return compiled


# -- in LLVM IR, since numba cannot express it: typed memory access, vector registers, the stack -----------------------
@intrinsic  # type: ignore[untyped-decorator]
def _float_of(context: Any, bits: Any) -> Any:
    """Reinterpret 32 bits as an fp32 number."""
    return types.float32(types.uint32), lambda _, builder, __, args: builder.bitcast(args[0], ir.FloatType())


@intrinsic  # type: ignore[untyped-decorator]
def _bits_of(context: Any, number: Any) -> Any:
    """Reinterpret an fp32 number as 32 bits."""
    return types.int32(types.float32), lambda _, builder, __, args: builder.bitcast(args[0], ir.IntType(32))


@intrinsic  # type: ignore[untyped-decorator]
def _to_fp32(context: Any, x: Any) -> Any:
    """Convert a stored number (fp32, or bf16 as uint16) to fp32."""

    def code(_: Any, builder: Any, __: Any, args: Any) -> Any:
        if x != types.uint16:
            return args[0]
        bits = builder.shl(builder.zext(args[0], _INT), ir.Constant(_INT, 16))
        return builder.bitcast(bits, ir.FloatType())

    return types.float32(x), code


def _rounded(builder: Any, number: Any) -> Any:
    """Convert fp32 to bf16, rounded to the nearest."""
    bits = builder.bitcast(number, _INT)
    last = builder.and_(builder.lshr(bits, _INT(16)), _INT(1))
    half = builder.add(last, _INT(0x7FFF))
    return builder.trunc(builder.lshr(builder.add(bits, half), _INT(16)), _SHORT)


@intrinsic  # type: ignore[untyped-decorator]
def _stored(context: Any, x: Any, like: Any) -> Any:
    """Convert the fp32 number `x` to the dtype of the array `like`, rounded to the nearest."""

    def code(_: Any, builder: Any, __: Any, args: Any) -> Any:
        return _rounded(builder, args[0]) if like.dtype == types.uint16 else args[0]

    return like.dtype(types.float32, like), code


def _stack(count: int, kind: Any = _FLOAT) -> Any:
    """A function that allocates `count` numbers on its caller's stack, which cannot alias any array."""

    @intrinsic  # type: ignore[untyped-decorator]
    def numbers(context: Any) -> Any:
        def code(_: Any, builder: Any, __: Any, args: Any) -> Any:
            place = cgutils.alloca_once(builder, ir.ArrayType(kind, count))
            return builder.bitcast(place, kind.as_pointer())

        return types.CPointer(types.float32 if kind == _FLOAT else types.int64)(), code

    return numbers


def _read(builder: Any, place: Any) -> Any:
    """Load SHEET stored numbers from `place` on into a register."""
    kind = place.type.pointee
    vector = builder.load(
        builder.bitcast(place, ir.VectorType(kind, SHEET).as_pointer()), align=2 if kind == _SHORT else 4
    )
    if kind != _SHORT:
        return vector
    bits = builder.shl(builder.zext(vector, _INTS), ir.Constant(_INTS, [16] * SHEET))
    return builder.bitcast(bits, _VECTOR)


def _broadcast(builder: Any, place: Any) -> Any:
    """Broadcast one fp32 number to all lanes of a register."""
    nothing = ir.Constant(_VECTOR, ir.Undefined)
    one = builder.insert_element(nothing, builder.load(place), _INT(0))
    return builder.shuffle_vector(one, nothing, ir.Constant(_INTS, [0] * SHEET))


def _prefetch(builder: Any, place: Any) -> None:
    """Prefetch the cache line at `place`."""
    pointer = ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [pointer, _INT, _INT, _INT])
    prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(prefetch, [builder.bitcast(place, pointer), *map(_INT, (0, 3, 1))])  # read, high locality, data


def _sum_of_products(
    builder: Any, count: Any, stored: Any, ahead: Any, stride: Any, factors: Any, width: int, heads: int
) -> list[Any]:
    """For each of `heads`: the sum over i < count (rounded up to even) of factors[head, i] stored[i stride : + SHEET].

    `factors` have `width` numbers per head. Two sums alternate, so that neither waits for its own result. The memory at
    `ahead`, as much as is read from `stored`, is prefetched between the sums: the hardware prefetcher does not look
    beyond one system page, and a burst of prefetches would stall it.
    """
    sums = [cgutils.alloca_once(builder, _VECTOR) for _ in range(2 * heads)]
    for place in sums:
        builder.store(ir.Constant(_VECTOR, [0.0] * SHEET), place)
    pairs = builder.lshr(builder.add(count, _LONG(1)), _LONG(1))
    with cgutils.for_range(builder, pairs) as loop:
        for turn in range(2):
            index = builder.add(builder.shl(loop.index, _LONG(1)), _LONG(turn))
            offset = builder.mul(index, stride)
            vector = _read(builder, builder.gep(stored, [offset]))
            _prefetch(builder, builder.gep(ahead, [offset]))
            for head in range(heads):
                factor = _broadcast(builder, builder.gep(factors, [builder.add(index, _LONG(head * width))]))
                place = sums[2 * head + turn]
                product = builder.fmul(factor, vector, flags=("contract",))
                builder.store(builder.fadd(builder.load(place), product, flags=("contract",)), place)
    return [builder.fadd(builder.load(sums[2 * head]), builder.load(sums[2 * head + 1])) for head in range(heads)]


def _page_scores(heads: int) -> Any:
    """scores[head, to : + SHEET] = query[head] keys, for a sheet of keys (D, SHEET); prefetches its values."""

    @intrinsic  # type: ignore[untyped-decorator]
    def function(context: Any, keys: Any, values: Any, at: Any, size: Any, query: Any, to: Any, scores: Any) -> Any:
        def code(ctx: Any, builder: Any, signature: Any, args: Any) -> Any:
            at, size, query, to, scores = args[2:]
            stored, ahead = (
                builder.gep(ctx.make_array(kind)(ctx, builder, array).data, [at])
                for kind, array in ((keys, args[0]), (values, args[1]))
            )
            sums = _sum_of_products(builder, size, stored, ahead, _LONG(SHEET), query, _SIZE, heads)
            for head, vector in enumerate(sums):
                place = builder.gep(scores, [builder.add(to, _LONG(head * _WIDTH))])
                builder.store(vector, builder.bitcast(place, _VECTOR.as_pointer()), align=4)
            return ctx.get_dummy_value()

        whole = types.int64
        return types.void(keys, values, whole, whole, query, whole, scores), code

    return function


def _page_values(heads: int) -> Any:
    """total[head] += scores[head, to + first : + count] values, for a sheet's positions (SHEET, D); prefetches keys."""

    @intrinsic  # type: ignore[untyped-decorator]
    def function(
        context: Any,
        keys: Any,
        values: Any,
        at: Any,
        after: Any,
        size: Any,
        first: Any,
        count: Any,
        to: Any,
        scores: Any,
        total: Any,
    ) -> Any:
        def code(ctx: Any, builder: Any, signature: Any, args: Any) -> Any:
            at, after, size, first, count, to, scores, total = args[2:]
            scores, before = builder.gep(scores, [builder.add(to, first)]), builder.mul(first, size)
            ahead, stored = (
                builder.gep(ctx.make_array(kind)(ctx, builder, array).data, [builder.add(place, before)])
                for kind, array, place in ((keys, args[0], after), (values, args[1], at))
            )
            with cgutils.for_range(builder, builder.lshr(size, _LONG(SHEET.bit_length() - 1))) as chunk:
                start = builder.mul(chunk.index, _LONG(SHEET))
                own, next_own = (builder.gep(place, [start]) for place in (stored, ahead))
                sums = _sum_of_products(builder, count, own, next_own, size, scores, _WIDTH, heads)
                for head, vector in enumerate(sums):
                    place = builder.gep(total, [builder.add(start, _LONG(head * _SIZE))])
                    place = builder.bitcast(place, _VECTOR.as_pointer())
                    whole = builder.fadd(builder.load(place, align=4), vector, flags=("contract",))
                    builder.store(whole, place, align=4)
            return ctx.get_dummy_value()

        whole = types.int64
        return types.void(keys, values, whole, whole, whole, whole, whole, whole, scores, total), code

    return function


class _BF16(ir.Type):  # type: ignore[misc]
    """LLVM's bf16 type, which llvmlite lacks."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BF16)

    def __hash__(self) -> int:
        return hash("bfloat")


class _Products:
    """Sums of products for a tile of queries: of fp32 numbers, or of bf16 pairs where the processor supports them.

    A factor of one query is multiplied with SHEET positions (or SHEET elements of a head). `step` factors are summed at
    once; for stored bf16 numbers they are adjacent in `factors`.
    """

    _WORDS = ir.VectorType(_SHORT, 2 * SHEET)
    _PAIRS = ir.VectorType(_BF16(), 2 * SHEET)

    def __init__(self, context: Any, builder: Any, kind: Any) -> None:
        features = context.codegen().magic_tuple()[2].split(",")
        self._builder = builder
        self.pairs = kind == types.uint16 and "+avx512bf16" in features
        self.step = 2 if self.pairs else 1
        has_wide = "+avx512f" in features
        self.queries, self.vectors = (_TILE, 2) if has_wide else (_TILE // 2, 1)  # whose sums registers hold

    def factors(self, buffer: Any) -> Any:
        """The address of factors that `_write_factor` wrote."""
        return self._builder.bitcast(buffer, _SHORT.as_pointer()) if self.pairs else buffer

    def sums(self) -> list[list[Any]]:
        """Accumulators for each query, all in registers."""
        return [[cgutils.alloca_once(self._builder, _VECTOR) for _ in range(self.vectors)] for _ in range(self.queries)]

    def positions(self, place: Any) -> Any:
        """From keys (D, SHEET): the next `step` numbers of each position of a sheet."""
        if not self.pairs:
            return _read(self._builder, place)
        words = self._words(place, self._WORDS)
        return self._joined(words, words, 0, SHEET)

    def places(self, place: Any, size: Any, count: int) -> list[Any]:
        """From values (SHEET, size): `count` times SHEET elements of the next `step` positions."""
        builder = self._builder
        if not self.pairs:
            return [_read(builder, builder.gep(place, [_LONG(part * SHEET)])) for part in range(count)]
        kind = ir.VectorType(_SHORT, count * SHEET)
        one, two = (self._words(at, kind) for at in (place, builder.gep(place, [size])))
        return [self._joined(one, two, part * SHEET, (count + part) * SHEET) for part in range(count)]

    def add(self, sums: list[Any], factor: Any, vectors: list[Any]) -> None:
        """Add the products of one query's next `step` factors, stored at `factor`, with `vectors` to its sums."""
        builder = self._builder
        both = self._pair(factor) if self.pairs else _broadcast(builder, factor)
        for place, vector in zip(sums, vectors, strict=True):
            total = builder.load(place)
            if self.pairs:
                kind = ir.FunctionType(_VECTOR, [_VECTOR, self._PAIRS, self._PAIRS])
                dot = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx512bf16.dpbf16ps.512")
                total = builder.call(dot, [total, both, vector])
            else:
                product = builder.fmul(both, vector, flags=("contract",))
                total = builder.fadd(total, product, flags=("contract",))
            builder.store(total, place)

    def _words(self, place: Any, kind: Any) -> Any:
        return self._builder.load(self._builder.bitcast(place, kind.as_pointer()), align=2)

    def _joined(self, one: Any, two: Any, first: int, second: int) -> Any:
        """Interleave `one` from element `first` on with `two` from `second` on, counted from the end of `one`."""
        order = [place for j in range(SHEET) for place in (first + j, second + j)]
        words = self._builder.shuffle_vector(one, two, ir.Constant(ir.VectorType(_INT, 2 * SHEET), order))
        return self._builder.bitcast(words, self._PAIRS)

    def _pair(self, place: Any) -> Any:
        builder, nothing = self._builder, ir.Constant(_INTS, ir.Undefined)
        pair = builder.load(builder.bitcast(place, _INT.as_pointer()), align=4)
        first = builder.insert_element(nothing, pair, _INT(0))
        return builder.bitcast(builder.shuffle_vector(first, nothing, ir.Constant(_INTS, [0] * SHEET)), self._PAIRS)


@intrinsic  # type: ignore[untyped-decorator]
def _write_factor(context: Any, buffer: Any, index: Any, number: Any, like: Any) -> Any:
    """Write an fp32 number as factor `index` of a buffer, for products with numbers stored like `like`."""

    def code(ctx: Any, builder: Any, _: Any, args: Any) -> Any:
        buffer, index, number = args[:3]
        products = _Products(ctx, builder, like.dtype)
        if products.pairs:
            number = _rounded(builder, number)
        builder.store(number, builder.gep(products.factors(buffer), [index]))
        return ctx.get_dummy_value()

    return types.void(buffer, types.int64, types.float32, like), code


@intrinsic  # type: ignore[untyped-decorator]
def _tile_scores(context: Any, keys: Any, at: Any, other: Any, size: Any, queries: Any, to: Any, scores: Any) -> Any:
    """scores[n, to : + 2 SHEET] = queries[n] keys, for each query of a tile and the two sheets `at` and `other`."""

    def code(ctx: Any, builder: Any, _: Any, args: Any) -> Any:
        size, queries, to, scores = args[3:]
        products = _Products(ctx, builder, keys.dtype)
        data, factors = ctx.make_array(keys)(ctx, builder, args[0]).data, products.factors(queries)
        sheets = [builder.gep(data, [at]) for at in args[1:3]]
        for first in range(0, _TILE, products.queries):
            for sheet in range(0, len(sheets), products.vectors):
                sums = products.sums()
                for place in itertools.chain(*sums):
                    builder.store(ir.Constant(_VECTOR, [0.0] * SHEET), place)
                with cgutils.for_range(builder, builder.udiv(size, _LONG(products.step))) as loop:
                    start = builder.mul(loop.index, _LONG(products.step))
                    row = builder.mul(start, _LONG(SHEET))
                    own = sheets[sheet : sheet + products.vectors]
                    vectors = [products.positions(builder.gep(each, [row])) for each in own]
                    for n, own_sums in enumerate(sums, first):
                        factor = builder.gep(factors, [builder.add(start, _LONG(n * _SIZE))])
                        products.add(own_sums, factor, vectors)
                for n, own_sums in enumerate(sums, first):
                    for number, place in enumerate(own_sums, sheet):
                        end = builder.gep(scores, [builder.add(to, _LONG(n * _WIDTH + number * SHEET))])
                        builder.store(builder.load(place), builder.bitcast(end, _VECTOR.as_pointer()), align=4)
        return ctx.get_dummy_value()

    whole = types.int64
    return types.void(keys, whole, whole, whole, queries, whole, scores), code


@intrinsic  # type: ignore[untyped-decorator]
def _tile_values(
    context: Any,
    values: Any,
    sheets: Any,
    starts: Any,
    counts: Any,
    runs: Any,
    size: Any,
    fades: Any,
    shares: Any,
    total: Any,
) -> Any:
    """total[n] = fades[n] total[n] + shares[n] values, for each query of a tile and the sheets at `sheets`.

    Reads `counts` positions of each sheet from `starts` on; both are even.
    """

    def code(ctx: Any, builder: Any, _: Any, args: Any) -> Any:
        sheets, starts, counts, runs, size, fades, shares, total = args[1:]
        products = _Products(ctx, builder, values.dtype)
        data, factors = ctx.make_array(values)(ctx, builder, args[0]).data, products.factors(shares)

        def add(start: Any, count: int, first: int) -> None:
            """Add `count` registers of a head's elements from `start` on, for some of the queries."""
            sums = [own[:count] for own in products.sums()]
            ends = [
                [builder.gep(total, [builder.add(start, _LONG(n * _SIZE + part * SHEET))]) for part in range(count)]
                for n in range(first, first + len(sums))
            ]
            ends = [[builder.bitcast(end, _VECTOR.as_pointer()) for end in row] for row in ends]
            for n, (own_sums, row) in enumerate(zip(sums, ends, strict=True), first):
                fade = _broadcast(builder, builder.gep(fades, [_LONG(n)]))
                for place, end in zip(own_sums, row, strict=True):
                    builder.store(builder.fmul(fade, builder.load(end, align=4)), place)
            with cgutils.for_range(builder, runs) as run:
                sheet, begin, number = (builder.load(builder.gep(x, [run.index])) for x in (sheets, starts, counts))
                with cgutils.for_range(builder, builder.udiv(number, _LONG(products.step))) as loop:
                    position = builder.add(begin, builder.mul(loop.index, _LONG(products.step)))
                    place = builder.add(builder.add(sheet, start), builder.mul(position, size))
                    vectors = products.places(builder.gep(data, [place]), size, count)
                    share = builder.add(builder.mul(run.index, _LONG(SHEET)), position)
                    for n, own_sums in enumerate(sums, first):
                        factor = builder.gep(factors, [builder.add(share, _LONG(n * _WIDTH))])
                        products.add(own_sums, factor, vectors)
            for own_sums, row in zip(sums, ends, strict=True):
                for place, end in zip(own_sums, row, strict=True):
                    builder.store(builder.load(place), end, align=4)

        width = products.vectors * SHEET
        for first in range(0, _TILE, products.queries):
            with cgutils.for_range(builder, builder.udiv(size, _LONG(width))) as chunk:
                add(builder.mul(chunk.index, _LONG(width)), products.vectors, first)
            rest = builder.urem(size, _LONG(width))
            with builder.if_then(builder.icmp_unsigned("!=", rest, _LONG(0))):
                add(builder.sub(size, rest), 1, first)
        return ctx.get_dummy_value()

    whole = types.int64
    return types.void(values, sheets, starts, counts, whole, whole, fades, shares, total), code


_scores, _sums, _queries = _stack(_HEADS * _WIDTH), _stack(_HEADS * _SIZE), _stack(_HEADS * _SIZE)
_peaks, _masses = _stack(_HEADS), _stack(_HEADS)
_tile_points, _tile_shares = _stack(_TILE * _WIDTH), _stack(_TILE * _WIDTH)
_tile_queries, _tile_sums = _stack(_TILE * _SIZE), _stack(_TILE * _SIZE)
_tile_peaks, _tile_masses, _tile_fades = _stack(_TILE), _stack(_TILE), _stack(_TILE)
_tile_rows, _tile_heads, _tile_limits, _tile_floors = (_stack(_TILE, _LONG) for _ in range(4))
_run_places, _run_starts, _run_sizes = (_stack(_RUNS, _LONG) for _ in range(3))
_scores_1, _scores_2, _scores_3, _scores_4 = (_page_scores(heads) for heads in range(1, _HEADS + 1))
_values_1, _values_2, _values_3, _values_4 = (_page_values(heads) for heads in range(1, _HEADS + 1))


class _RowKernel:
    """A kernel(start, stop, *work) over rows; split over threads where torch computes with several."""

    def __init__(self, kernel: Callable[..., None]) -> None:
        self._kernel = kernel
        self._parallel: Callable[..., None] | None = None

    def __call__(self, rows: int, numbers: int, *work: Any) -> None:
        """Compute `rows` rows, which read and write about `numbers` numbers in total."""
        threads = min(torch.get_num_threads(), rows, numbers // _GRAIN)
        if threads < 2:
            self._kernel(0, rows, *work)
            return
        if self._parallel is None:  # imported only by processes with several threads
            from ttc.engines.embedded.core.parallel_rows import ParallelRows

            self._parallel = ParallelRows(self._kernel)
        self._parallel(threads, rows, *work)


@_inlined
def _score(heads: int, keys: Any, values: Any, at: int, size: int, query: Any, to: int, scores: Any) -> None:
    """See `_page_scores`."""
    if heads == 1:
        _scores_1(keys, values, at, size, query, to, scores)
    elif heads == 2:
        _scores_2(keys, values, at, size, query, to, scores)
    elif heads == 3:
        _scores_3(keys, values, at, size, query, to, scores)
    else:
        _scores_4(keys, values, at, size, query, to, scores)


@_inlined
def _add(
    heads: int, keys: Any, values: Any, at: int, after: int, size: int, first: int, count: int, to: int, scores: Any,
    total: Any
) -> None:  # fmt: skip
    """See `_page_values`."""
    if heads == 1:
        _values_1(keys, values, at, after, size, first, count, to, scores, total)
    elif heads == 2:
        _values_2(keys, values, at, after, size, first, count, to, scores, total)
    elif heads == 3:
        _values_3(keys, values, at, after, size, first, count, to, scores, total)
    else:
        _values_4(keys, values, at, after, size, first, count, to, scores, total)


@_inlined
def _mask(scores: Any, begin: int, count: int) -> None:
    """Mask the scores (heads, SHEET) of a sheet outside `count` positions from `begin` on."""
    for g in range(len(scores)):
        for t in range(SHEET):
            if (t < begin) | (t >= begin + count):
                scores[g, t] = _MASKED


@_inlined
def _load_tile(
    q: Any, seed: Any, totals: Any, rows: Any, heads: Any, like: Any, query: Any, peaks: Any, masses: Any, total: Any
) -> None:
    """Write the queries of a tile as factors, and load the partial sums of their rows."""
    for n in range(_TILE):
        row, head = rows[n], heads[n]
        peaks[n] = seed[row, head]
        is_seeded = peaks[n] > _MASKED
        masses[n] = _ONE if is_seeded else _ZERO
        for d in range(q.shape[2]):
            _write_factor(query, n * _SIZE + d, _to_fp32(q[row, head, d]), like)
            total[n, d] = totals[row, head, d] if is_seeded else _ZERO


@_inlined
def _softmax_weights(count: int, scores: Any, like: Any, shares: Any, peaks: Any, masses: Any, fades: Any) -> None:
    """Write the softmax weights of `count` scores per query as factors; `fades` rescales earlier sums."""
    for n in range(_TILE):
        before, mass = peaks[n], _ZERO
        peak = max(before, _highest(scores[n, :count]))
        for t in range(count):
            share = _ZERO if scores[n, t] == _MASKED else _exp(scores[n, t] - peak)
            _write_factor(shares, n * _WIDTH + t, share, like)
            mass += share
        fades[n] = _exp(before - peak)
        peaks[n], masses[n] = peak, masses[n] * fades[n] + mass


# -- the kernels -------------------------------------------------------------------------------------------------------
@_inlined
def _exp(x: Any) -> Any:
    """Exp of an fp32 number, accurate to the last bits, in vectorisable operations (Cephes' polynomial)."""
    x = min(max(x, _LOW), _HIGH)
    n = np.floor(x * np.float32(1.44269504) + _HALF)
    r = x - n * np.float32(0.693359375) + n * np.float32(2.12194440e-4)
    y = np.float32(1.9875691500e-4)
    y = y * r + np.float32(1.3981999507e-3)
    y = y * r + np.float32(8.3334519073e-3)
    y = y * r + np.float32(4.1665795894e-2)
    y = y * r + np.float32(1.6666665459e-1)
    y = y * r + np.float32(5.0000001201e-1)
    y = y * r * r + r + _ONE
    return y * _float_of(np.uint32(np.int32(n) + np.int32(127)) << np.uint32(23))


@_inlined
def _order_of(bits: Any) -> Any:
    """Map the bits of a float to an integer of the same order, and back."""
    return np.int32(bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF)))


@_inlined
def _highest(row: Any) -> Any:
    """The maximum of stored numbers, compared as ordered integers, which the compiler vectorises."""
    peak = np.int32(-0x7FFFFFFF)
    for j in range(len(row)):
        peak = max(peak, _order_of(_bits_of(_to_fp32(row[j]))))
    return _float_of(np.uint32(_order_of(peak)))


@_inlined
def _weight(logit: Any, peak: Any, inverse: Any) -> Any:
    """Sampling weight in [0, 1] of a stored logit relative to `peak`, the highest."""
    score = (_to_fp32(logit) - peak) * inverse
    return _exp(score) if score >= _LOW else _ZERO


@_compiled
def _threshold(weights: Any, count: int, goal: Any, low: Any, by_mass: bool) -> Any:
    """The largest t >= `low` for which the weights >= t have a sum (`by_mass`), or else a number, of at least `goal`.

    Both decrease with t, so a binary search over the bit patterns of fp32 replaces a sort.
    """
    at, above = _bits_of(low), np.int32(0x3F900000)  # 1.125: above every weight
    while above - at > 1:
        middle = (at + above) >> np.int32(1)
        pivot = _float_of(np.uint32(middle))
        held: Any = 0.0
        for j in range(count):
            unit = weights[j] if by_mass else _ONE
            held += unit if weights[j] >= pivot else _ZERO
        if held >= goal:
            at = middle
        else:
            above = middle
    return _float_of(np.uint32(at))


@_compiled
def _bound(crests: Any, total: Any, vocab: int, top_k: int, top_p: Any, min_p: Any) -> Any:
    """A lower bound > 0 on the weights that the filters keep, from each block's maximum and the total."""
    least = min_p
    if top_k:
        count = len(crests)
        least = _threshold(crests, count, np.float64(top_k), _ZERO, False) if top_k <= count else _ZERO
    elif top_p < _ONE:
        least = np.float32(0.999 * (1.0 - top_p) * total / vocab)  # all below sum to less than top-p excludes
    return max(least, _LEAST)


@_compiled
def _filter(weights: Any, ids: Any, count: int, total: Any, top_k: int, top_p: Any, min_p: Any) -> Any:
    """Move the weights that pass top-k, top-p and min-p to the front; returns their number and their sum.

    `count` weights, with their ids, contain all that may pass; `total` is the sum over the whole vocabulary.
    """
    low, mass = _ZERO, total
    if top_k:
        low = _threshold(weights, count, np.float64(top_k), _ZERO, False)
        mass, rest = 0.0, top_k  # exactly k tokens: those above the threshold, and as many tied with it as are missing
        for j in range(count):
            if weights[j] > low:
                mass += weights[j]
                rest -= 1
        mass += rest * low
    if top_p < _ONE:
        low = _threshold(weights, count, top_p * mass, low, True)
    low = max(low, min_p)  # the highest weight is 1
    size, mass = 0, 0.0
    for j in range(count):
        if weights[j] >= low:
            weights[size], ids[size] = weights[j], ids[j]
            mass += weights[j]
            size += 1
    return size, mass


@_RowKernel
@_compiled
def draw(
    start: int, stop: int, logits: Any, inverse: Any, top_k: Any, top_p: Any, min_p: Any, shares: Any, edges: Any,
    tokens: Any
) -> None:  # fmt: skip
    """Sample a token for each row of logits (B, V) by inverse CDF: first the block, then the token in it.

    Args:
        start: the first row.
        stop: the row after the last.
        logits: bf16 or fp32; tokens at -inf are never drawn.
        inverse: (B) fp32, 1 / temperature; 0 takes the first of the likeliest tokens.
        top_k: (B), 0 is off.
        top_p: (B) fp32, 1 is off.
        min_p: (B) fp32, 0 is off.
        shares: (B) fp64, uniform random numbers.
        edges: (B, blocks of 256 tokens) fp64, scratch.
        tokens: (B), output.
    """
    vocab, num_blocks = logits.shape[1], edges.shape[1]
    crests, weights, ids = np.empty(num_blocks, np.float32), np.empty(vocab, np.float32), np.empty(vocab, np.int32)
    for i in range(start, stop):
        row, sums = logits[i], edges[i]
        peak, tokens[i] = _highest(row), 0
        if inverse[i] == _ZERO:
            for j in range(vocab):
                if _to_fp32(row[j]) == peak:
                    tokens[i] = j
                    break
            continue
        total: Any = 0.0
        for b in range(num_blocks):
            block = row[b * _BLOCK : (b + 1) * _BLOCK]
            mass = _ZERO
            for j in range(len(block)):
                mass += _weight(block[j], peak, inverse[i])
            total += mass
            sums[b] = total
        limit = top_k[i] if top_k[i] < vocab else 0
        cuts = limit > 0 or top_p[i] < _ONE or min_p[i] > _ZERO
        first, last, least, below, goal = 0, num_blocks, _LEAST, 0.0, shares[i] * total
        if cuts:
            for b in range(num_blocks):
                crests[b] = _weight(_highest(row[b * _BLOCK : (b + 1) * _BLOCK]), peak, inverse[i])
            least = _bound(crests, total, vocab, limit, top_p[i], min_p[i])
        else:
            while first < num_blocks - 1 and sums[first] <= goal:
                first += 1
            last, below = first + 1, sums[first - 1] if first else 0.0
        count = 0
        for b in range(first, last):
            if not cuts or crests[b] >= least:
                block = row[b * _BLOCK : (b + 1) * _BLOCK]
                for j in range(len(block)):
                    weights[count], ids[count] = _weight(block[j], peak, inverse[i]), b * _BLOCK + j
                    count += 1 if weights[count] >= least else 0
        if cuts:
            count, total = _filter(weights, ids, count, total, limit, top_p[i], min_p[i])
            goal = shares[i] * total
        for j in range(count):
            tokens[i] = ids[j]
            below += weights[j]
            if below > goal:
                break


@_compiled
def lower(logits: Any, ids: Any, counts: Any, factor: float, once: float, each: float) -> None:
    """Penalize tokens in logits (V) as `sampler.Penalty` says; `counts` is how often each of `ids` was drawn."""
    for place in range(len(ids)):
        token = ids[place]
        value = _to_fp32(logits[token])
        value = value / np.float32(factor) if value > _ZERO else value * np.float32(factor)
        if counts[place] > _ZERO:
            value -= np.float32(once) + np.float32(each) * counts[place]
        logits[token] = _stored(value, logits)


@_RowKernel
@_compiled
def survey(start: int, stop: int, logits: Any, tokens: Any, logprobs: Any, certainty: Any) -> None:
    """For each row of logits (B, V): the log-probability of its token, and KL(uniform || model), in nats."""
    for i in range(start, stop):
        row = logits[i]
        total: Any = 0.0
        mass: Any = 0.0
        peak = _highest(row)
        for start in range(0, len(row), _BLOCK):
            block = row[start : start + _BLOCK]
            part, share = _ZERO, _ZERO
            for j in range(len(block)):
                score = _to_fp32(block[j]) - peak
                part += score
                share += _exp(score) if score >= _LOW else _ZERO
            total += part
            mass += share
        logprobs[i] = _to_fp32(row[tokens[i]]) - peak - np.log(mass)
        certainty[i] = np.log(mass) - total / len(row) - np.log(len(row))


@_RowKernel
@_compiled
def norm(start: int, stop: int, x: Any, weight: Any, eps: float, out: Any) -> None:
    """Root-mean-square norm: x and out (T, D), weight (D) fp32."""
    width = x.shape[1]
    for i in range(start, stop):
        total = _ZERO
        for d in range(width):
            value = _to_fp32(x[i, d])
            total += value * value
        scale = np.float32(_ONE / np.sqrt(total / np.float32(width) + np.float32(eps)))
        for d in range(width):
            out[i, d] = _stored(_to_fp32(x[i, d]) * scale * weight[d], out)


@_RowKernel
@_compiled
def gate(start: int, stop: int, both: Any, out: Any) -> None:
    """SiLU of the first half of each row times the second half: both (T, 2 I) -> out (T, I)."""
    width = out.shape[1]
    for i in range(start, stop):
        for d in range(width):
            value = _to_fp32(both[i, d])
            out[i, d] = _stored(value / (_ONE + _exp(-value)) * _to_fp32(both[i, width + d]), out)


@_RowKernel
@_compiled
def split_heads(
    start: int, stop: int, qkv: Any, weight: Any, eps: float, cos: Any, sin: Any, scale: float, q: Any, k: Any, v: Any
) -> None:
    """Split one product into heads: q (T, heads, D) rotated and scaled, k (T, kv heads, D) rotated, v unchanged.

    qkv (T, heads + 2 kv heads, D); cos and sin (T, D), signed for the two halves; weight (heads + kv heads, D) of a
    norm per head, or empty (0, D).
    """
    size, heads, others = q.shape[2], q.shape[1], k.shape[1]
    half = size // 2
    for i in range(start, stop):
        for h in range(heads + others):
            factor = np.float32(scale) if h < heads else _ONE
            target, source = q[i, h] if h < heads else k[i, h - heads], qkv[i, h]
            length = _ONE
            if len(weight):
                total = _ZERO
                for d in range(size):
                    value = _to_fp32(source[d])
                    total += value * value
                length = np.float32(_ONE / np.sqrt(total / np.float32(size) + np.float32(eps)))
            for d in range(half):
                low, high = _to_fp32(source[d]), _to_fp32(source[half + d])
                if len(weight):
                    low, high = low * length * weight[h, d], high * length * weight[h, half + d]
                target[d] = _stored((low * _to_fp32(cos[i, d]) + high * _to_fp32(sin[i, d])) * factor, target)
                high = high * _to_fp32(cos[i, half + d]) + low * _to_fp32(sin[i, half + d])
                target[half + d] = _stored(high * factor, target)
        for h in range(others):
            for d in range(size):
                v[i, h, d] = qkv[i, heads + others + h, d]


@_RowKernel
@_compiled
def store(start: int, stop: int, k: Any, v: Any, sheets: Any, offsets: Any, keys: Any, values: Any) -> None:
    """Write the keys and values (T, kv heads, D) of new tokens to their slots in one layer of a shelf."""
    for i in range(start, stop):
        sheet, offset = sheets[i], offsets[i]
        for h in range(k.shape[1]):
            for d in range(k.shape[2]):
                keys[sheet, h, d, offset] = k[i, h, d]
            for d in range(k.shape[2]):
                values[sheet, h, offset, d] = v[i, h, d]


@_compiled
def load(keys: Any, values: Any, sheets: Any, offsets: Any, places: Any, k: Any, v: Any) -> None:
    """Read keys and values of one layer of a shelf into rows `places` of k and v (T, kv heads, D)."""
    for i in range(len(sheets)):
        sheet, offset, place = sheets[i], offsets[i], places[i]
        for h in range(k.shape[1]):
            for d in range(k.shape[2]):
                k[place, h, d] = keys[sheet, h, d, offset]
            for d in range(k.shape[2]):
                v[place, h, d] = values[sheet, h, offset, d]


@_compiled
def move(keys: Any, values: Any, sources: Any, targets: Any) -> None:
    """Copy tokens from slot to slot (page * page size + position) in all layers of a shelf."""
    layers, _, heads, width, size = keys.shape
    for layer in range(layers):
        for i in range(len(sources)):
            page, offset = divmod(sources[i], size)
            to_page, to_offset = divmod(targets[i], size)
            for h in range(heads):
                for d in range(width):
                    keys[layer, to_page, h, d, to_offset] = keys[layer, page, h, d, offset]
                for d in range(width):
                    values[layer, to_page, h, to_offset, d] = values[layer, page, h, offset, d]


@_RowKernel
@_compiled
def attend(
    start: int, stop: int, q: Any, keys: Any, values: Any, slots: Any, counts: Any, firsts: Any, lasts: Any, seed: Any,
    totals: Any, out: Any
) -> None:  # fmt: skip
    """Attention of one new token per row over the runs of positions that it reads; no run crosses a sheet boundary.

    Args:
        start: the first row.
        stop: the row after the last.
        q: (rows, heads, D), scaled.
        keys: (sheets, kv heads, D, SHEET), one layer of a shelf.
        values: (sheets, kv heads, SHEET, D).
        slots: first slot of each run (see `Shelf`), concatenated over rows.
        counts: number of positions of each run.
        firsts: (rows), index of a row's first run.
        lasts: (rows), index after its last run.
        seed: (rows, heads) fp32, log-sum-exp of the scores of keys already processed; -1e30 for none.
        totals: (rows, heads, D) fp32, attention over those keys; not read where there are none.
        out: (rows, heads, D), output.
    """
    scores_at, total_at, query_at = _scores(), _sums(), _queries()
    scores, total, query = (
        carray(scores_at, (_HEADS, _WIDTH)),
        carray(total_at, (_HEADS, _SIZE)),
        carray(query_at, (_HEADS, _SIZE)),
    )
    peaks, masses = carray(_peaks(), (_HEADS,)), carray(_masses(), (_HEADS,))
    heads, size = q.shape[1:]
    num_kv = keys.shape[1]
    group, sheet = heads // num_kv, size * SHEET
    for row in range(start, stop):
        for h in range(num_kv):
            then, then_h = (row, h + 1) if h + 1 < num_kv else (min(row + 1, stop - 1), 0)
            for first in range(h * group, (h + 1) * group, _HEADS):
                several = min(_HEADS, (h + 1) * group - first)
                for g in range(several):
                    peaks[g] = seed[row, first + g]
                    is_seeded = peaks[g] > _MASKED
                    masses[g] = _ONE if is_seeded else _ZERO
                    for d in range(size):
                        query[g, d] = _to_fp32(q[row, first + g, d])
                        total[g, d] = totals[row, first + g, d] if is_seeded else _ZERO
                for e in range(firsts[row], lasts[row], _RUNS):
                    runs = min(_RUNS, lasts[row] - e)
                    for j in range(runs):
                        at = (slots[e + j] // SHEET * num_kv + h) * sheet
                        _score(several, keys, values, at, size, query_at, j * SHEET, scores_at)
                        if counts[e + j] < SHEET:
                            _mask(scores[:several, j * SHEET : (j + 1) * SHEET], slots[e + j] % SHEET, counts[e + j])
                    for g in range(several):
                        before, mass = peaks[g], _ZERO
                        peak = max(before, _highest(scores[g, : runs * SHEET]))
                        for t in range(runs * SHEET):
                            share = _ZERO if scores[g, t] == _MASKED else _exp(scores[g, t] - peak)
                            scores[g, t] = share
                            mass += share
                        fade = _exp(before - peak)
                        peaks[g], masses[g] = peak, masses[g] * fade + mass
                        for d in range(size):
                            total[g, d] *= fade
                    for j in range(runs):
                        at = (slots[e + j] // SHEET * num_kv + h) * sheet
                        if e + _RUNS + j < lasts[row]:
                            after = (slots[e + _RUNS + j] // SHEET * num_kv + h) * sheet
                        else:
                            after = (slots[min(firsts[then] + j, lasts[then] - 1)] // SHEET * num_kv + then_h) * sheet
                        # values are read in pairs; the weight of a position before the run is 0
                        begin = slots[e + j] % SHEET & -2
                        count = slots[e + j] % SHEET + counts[e + j] - begin
                        _add(several, keys, values, at, after, size, begin, count, j * SHEET, scores_at, total_at)
                for g in range(several):
                    for d in range(size):
                        out[row, first + g, d] = _stored(total[g, d] / masses[g], out)


@_RowKernel
@_compiled
def attend_together(
    start: int, stop: int, q: Any, keys: Any, values: Any, tiles: Any, first_rows: Any, rows: Any, limits: Any,
    floors: Any, slots: Any, counts: Any, firsts: Any, lasts: Any, seed: Any, totals: Any
) -> None:  # fmt: skip
    """Attention of groups of rows over the runs that all rows of a group read, joined to their partial results.

    Args:
        start: the first tile.
        stop: the tile after the last.
        q: (all rows, heads, D), scaled.
        keys: (sheets, kv heads, D, SHEET), one layer of a shelf.
        values: (sheets, kv heads, SHEET, D).
        tiles: (tiles, 2), a group and its first query of a kv head, by `tile_table`.
        first_rows: (groups + 1), where a group's rows begin in `rows`.
        rows: rows of q; no row appears twice in one call.
        limits: for each of `rows`, the first of the group's positions that it does not read; ascending in a group.
        floors: for each of `rows`, the first position that it reads, below its limit; ascending in a group.
        slots: first slot of each run, concatenated over groups.
        counts: number of positions of each run.
        firsts: (groups), index of a group's first run.
        lasts: (groups), index after its last run.
        seed: (all rows, heads) fp32, as for `attend`; updated.
        totals: (all rows, heads, D) fp32, attention over all keys that a row has read; updated.
    """
    scores_at, shares_at, query_at, total_at = _tile_points(), _tile_shares(), _tile_queries(), _tile_sums()
    fades_at, places_at, starts_at, sizes_at = _tile_fades(), _run_places(), _run_starts(), _run_sizes()
    scores, total, fades = carray(scores_at, (_TILE, _WIDTH)), carray(total_at, (_TILE, _SIZE)), carray(fades_at, _TILE)
    peaks, masses = carray(_tile_peaks(), _TILE), carray(_tile_masses(), _TILE)
    own_rows, own_heads = carray(_tile_rows(), _TILE), carray(_tile_heads(), _TILE)
    own_limits, own_floors = carray(_tile_limits(), _TILE), carray(_tile_floors(), _TILE)
    places, starts, sizes = carray(places_at, _RUNS), carray(starts_at, _RUNS), carray(sizes_at, _RUNS)
    size, num_kv = q.shape[2], keys.shape[1]
    group = q.shape[1] // num_kv
    for h in range(num_kv):  # outermost: all tiles of a group read the same keys, which stay in the cache
        for tile in range(start, stop):
            at, first = tiles[tile]
            query = first_rows[at] * group + first
            several = min(_TILE, first_rows[at + 1] * group - query)
            for n in range(_TILE):  # lanes beyond the last query repeat it
                index, g = divmod(query + min(n, several - 1), group)
                own_rows[n], own_heads[n] = rows[index], h * group + g
                own_limits[n], own_floors[n] = limits[index], floors[index]
            _load_tile(q, seed, totals, own_rows, own_heads, keys, query_at, peaks, masses, total)
            e, seen = firsts[at], 0
            while seen + counts[e] <= own_floors[0]:
                seen += counts[e]
                e += 1
            while e < lasts[at] and seen < own_limits[_TILE - 1]:
                runs = min(_RUNS, lasts[at] - e)
                for j in range(runs):
                    # values are read in pairs; positions outside the run's pairs are not read, as they may contain NaN
                    begin, behind = slots[e + j] % SHEET, slots[e + j] % SHEET + counts[e + j]
                    places[j] = (slots[e + j] // SHEET * num_kv + h) * size * SHEET
                    starts[j], sizes[j] = begin & -2, (behind + 1 & -2) - (begin & -2)
                for j in range(0, runs, 2):
                    _tile_scores(keys, places[j], places[min(j + 1, runs - 1)], size, query_at, j * SHEET, scores_at)
                for j in range(runs):
                    if counts[e + j] < SHEET or seen + SHEET > own_limits[0] or seen < own_floors[_TILE - 1]:
                        for n in range(_TILE):
                            begin, behind = max(own_floors[n] - seen, 0), min(own_limits[n] - seen, counts[e + j])
                            part = scores[n : n + 1, j * SHEET : (j + 1) * SHEET]
                            _mask(part, slots[e + j] % SHEET + begin, behind - begin)
                    seen += counts[e + j]
                _softmax_weights(runs * SHEET, scores, keys, shares_at, peaks, masses, fades)
                _tile_values(values, places_at, starts_at, sizes_at, runs, size, fades_at, shares_at, total_at)
                e += runs
            for n in range(several):
                row, head = own_rows[n], own_heads[n]
                seed[row, head] = peaks[n] + np.log(masses[n])
                for d in range(size):
                    totals[row, head, d] = total[n, d] / masses[n]


def tile_table(num_rows: Sequence[int], group: int) -> np.ndarray[Any, Any]:
    """The tiles of `attend_together` for groups of `num_rows` rows and `group` query heads per kv head: (tiles, 2).

    Later rows of a prompt read more, so neighbouring tiles go to different threads.
    """
    tiles = [(at, first) for at, count in enumerate(num_rows) for first in range(0, count * group, _TILE)]
    threads = torch.get_num_threads()
    return np.array([tile for part in range(threads) for tile in tiles[part::threads]], np.int64)


@_compiled
def join(part: Any, weight: Any, rows: Any, seed: Any, totals: Any) -> None:
    """Join the attention over some keys to the partial results of `rows`.

    Args:
        part: (kv heads, len(rows) * group, D), attention of a kv head's query heads, row by row.
        weight: (kv heads, len(rows) * group) fp32, log-sum-exp of the scores behind `part`.
        rows: the rows that read these keys.
        seed: (all rows, heads), as for `attend`; -1e30 for none; updated.
        totals: (all rows, heads, D), as for `attend`; updated.
    """
    num_kv, size = part.shape[0], part.shape[2]
    group = part.shape[1] // len(rows)
    for j in range(len(rows)):
        row = rows[j]
        for h in range(num_kv):
            for g in range(group):
                head, new = h * group + g, weight[h, j * group + g]
                before = seed[row, head]
                peak = max(before, new)
                old_share, share = _exp(before - peak), _exp(new - peak)
                whole = old_share + share
                seed[row, head] = peak + np.log(whole)
                for d in range(size):
                    kept = totals[row, head, d] * old_share if before > _MASKED else _ZERO
                    totals[row, head, d] = (kept + _to_fp32(part[h, j * group + g, d]) * share) / whole


class NativeOps:
    """`model.LayerOps` with the kernels of this module."""

    def __init__(self, dims: Dims) -> None:
        self._dims, self._scale = dims, dims.head_dim**-0.5
        self._no_norm = torch.empty(0, dims.head_dim).numpy()

    def norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """See `model.LayerOps.norm`."""
        out = torch.empty_like(x)
        norm(len(x), x.numel(), array(x), weight.numpy(), self._dims.eps, array(out))
        return out

    def heads(
        self, qkv: torch.Tensor, weight: torch.Tensor | None, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """See `model.LayerOps.heads`."""
        dims = self._dims
        sizes = (dims.num_heads, dims.num_kv_heads, dims.num_kv_heads)
        q, k, v = (qkv.new_empty(len(qkv), count, dims.head_dim) for count in sizes)
        factors = self._no_norm if weight is None else weight.numpy()
        rows = array(qkv).reshape(len(qkv), sum(sizes), dims.head_dim)
        ends = map(array, (q, k, v))
        split_heads(len(qkv), qkv.numel(), rows, factors, dims.eps, array(cos), array(sin), self._scale, *ends)
        return q, k, v

    def gate(self, both: torch.Tensor) -> torch.Tensor:
        """See `model.LayerOps.gate`."""
        out = both.new_empty(len(both), self._dims.intermediate)
        gate(len(both), both.numel(), array(both), array(out))
        return out
