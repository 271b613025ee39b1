"""Register tiles: the two loops in which a Hessian product spends its time, written in vector instructions.

    dots    out[i, j] = Σ_k X[i, k] V[j, k]          two rows by a group of columns, vectors along k
    outer   G[j, k] += Σ_i R[i, j] X[i, k]           a group of columns by a few vectors along k

A tile holds all its sums in registers, so that every number loaded is used several times. LLVM's own choice for the
plain loops spills them, and takes 256-bit vectors where there are 512; here the code is emitted as it shall be.
Features of a smaller type (bytes, for images) become numbers in the registers.
Each sum has its own order of additions, whatever tile it falls into: results do not depend on the grouping.

Measured on a Zen 4 core, 10 columns of 784: 0.85 to 0.9 of the rate of a large dense multiplication (`fbompi bench
kernels`), whether compiled for 512-bit vectors or for 256.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from fbompi.kernels import LINE
from fbompi.kernels.cpu.compiling import cpu

_FEATURES = cpu()[1]
_AVX512 = "+avx512f" in _FEATURES
VECTOR_BYTES = 64 if _AVX512 else 32 if "+avx2" in _FEATURES else 16
# The group of 10 needs 22 vector registers of 32; with 16 of them (AVX2) 5 is the most that does not spill.
GROUPS = (10, 9, 5, 4, 3, 2, 1) if _AVX512 else (5, 4, 3, 2, 1)
ROWS = 2

_i32, _i64 = ir.IntType(32), ir.IntType(64)


class _Writer:
    """Emits loads, stores and multiply-adds at addresses that are plain integers."""

    def __init__(self, context: Any, builder: Any, real: types.Float, lanes: int) -> None:
        self.context, self.builder = context, builder
        self.scalar = context.get_value_type(real)
        self.size, self.lanes = real.bitwidth // 8, lanes
        self.type = ir.VectorType(self.scalar, lanes) if lanes > 1 else self.scalar
        self.zero = ir.Constant(self.type, [0.0] * lanes if lanes > 1 else 0.0)

    def add(self, *terms: Any) -> Any:
        total = _constant(terms[0])
        for term in terms[1:]:
            total = self.builder.add(total, _constant(term))
        return total

    def times(self, a: Any, b: Any) -> Any:
        return self.builder.mul(_constant(a), _constant(b))

    def array(self, kind: types.Array, value: Any) -> tuple[Any, Any]:
        """Address of the first element, and bytes from one row to the next."""
        array = self.context.make_array(kind)(self.context, self.builder, value)
        return self.builder.ptrtoint(array.data, _i64), self.builder.extract_value(array.strides, 0)

    def load(self, address: Any, kind: Any = None) -> Any:
        kind = kind or self.type
        aligned = 8 if kind is _i64 else self.size
        return self.builder.load(self.builder.inttoptr(address, kind.as_pointer()), align=aligned)

    def load_as_real(self, address: Any, stored: Any, lanes: int) -> Any:
        """Features of whatever type, as numbers of the working precision: the conversion happens in registers."""
        source, kind = self.context.get_value_type(stored), self.scalar
        if lanes > 1:
            source, kind = ir.VectorType(source, lanes), ir.VectorType(kind, lanes)
        raw = self.builder.load(self.builder.inttoptr(address, source.as_pointer()), align=stored.bitwidth // 8)
        if isinstance(stored, types.Integer):
            return self.builder.uitofp(raw, kind)
        return raw if stored.bitwidth == 8 * self.size else self.builder.fpext(raw, kind)

    def store(self, value: Any, address: Any) -> None:
        self.builder.store(value, self.builder.inttoptr(address, value.type.as_pointer()), align=self.size)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        letter = "f64" if self.size == 8 else "f32"
        name = f"llvm.fma.v{a.type.count}{letter}" if isinstance(a.type, ir.VectorType) else f"llvm.fma.{letter}"
        signature = ir.FunctionType(a.type, [a.type] * 3)
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, signature, name), [a, b, c])

    def spread(self, number: Any) -> Any:
        """A vector with this number in every lane."""
        if self.lanes == 1:
            return number
        one = self.builder.insert_element(ir.Constant(self.type, ir.Undefined), number, ir.Constant(_i32, 0))
        return self.builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(_i32, self.lanes), [0] * self.lanes))

    def lane_sum(self, vector: Any) -> Any:
        lanes = self.lanes
        while lanes > 1:
            lanes //= 2
            low, high = (
                self.builder.shuffle_vector(vector, vector, ir.Constant(ir.VectorType(_i32, lanes), list(which)))
                for which in (range(lanes), range(lanes, 2 * lanes))
            )
            vector = self.builder.fadd(low, high)
        return self.builder.extract_element(vector, ir.Constant(_i32, 0)) if self.lanes > 1 else vector

    def only(self, vector: Any, first: Any, end: Any) -> Any:
        """A vector with zeros in all lanes but first…end−1."""
        numbers = ir.Constant(ir.VectorType(_i64, self.lanes), [*range(self.lanes)])
        bounds = ir.Constant(numbers.type, ir.Undefined)
        zeros = ir.Constant(ir.VectorType(_i32, self.lanes), [0] * self.lanes)

        def compared(how: str, bound: Any) -> Any:
            one = self.builder.insert_element(bounds, _constant(bound), ir.Constant(_i32, 0))
            return self.builder.icmp_signed(how, numbers, self.builder.shuffle_vector(one, one, zeros))

        inside = self.builder.and_(compared(">=", first), compared("<", end))
        return self.builder.select(inside, vector, self.zero)

    def prefetch(self, address: Any) -> None:
        """Ask for the line at this address, for the second-level cache."""
        pointer = ir.IntType(8).as_pointer()
        signature = ir.FunctionType(ir.VoidType(), [pointer, _i32, _i32, _i32])
        call = cgutils.get_or_insert_function(self.builder.module, signature, "llvm.prefetch.p0")
        read, second_level, data = (ir.Constant(_i32, number) for number in (0, 2, 1))
        self.builder.call(call, [self.builder.inttoptr(address, pointer), read, second_level, data])

    def variables(self, count: int, kind: Any = None) -> list[Any]:
        """Registers-to-be, at zero."""
        zero = ir.Constant(kind, 0.0) if kind else self.zero
        slots = [cgutils.alloca_once(self.builder, zero.type) for _ in range(count)]
        for slot in slots:
            self.builder.store(zero, slot)
        return slots

    def each(self, sizes: tuple[int, ...], size: Any) -> Iterator[int]:
        """Every size in turn, what is emitted for it guarded by `size` being that one."""
        for one in sizes:
            with self.builder.if_then(self.builder.icmp_signed("==", size, _constant(one))):
                yield one

    @contextmanager
    def loop(self, begin: Any, end: Any, step: int) -> Iterator[Any]:
        with cgutils.for_range_slice(self.builder, _constant(begin), end, _constant(step), inc=True) as (index, _):
            yield index


def _constant(value: Any) -> Any:
    return ir.Constant(_i64, value) if isinstance(value, int) else value


@intrinsic
def dots(typing, group, X, offsets, i, V, j, begin, end, out, first):
    """out[i:i+2, j:j+group] = (first) or += Σ_{begin≤k<end} X[row, k] V[j, k], rows at byte offsets[i:i+2]."""
    intp = types.intp
    signature = types.void(intp, X, offsets, intp, V, intp, intp, intp, out, types.boolean)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        stored, real = signature.args[1].dtype, signature.args[4].dtype
        w = _Writer(context, builder, real, VECTOR_BYTES // (real.bitwidth // 8))
        group, X, offsets, i, V, j, begin, end, out, first = arguments
        x, _ = w.array(signature.args[1], X)
        places, _ = w.array(signature.args[2], offsets)
        v, v_stride = w.array(signature.args[4], V)
        to, to_stride = w.array(signature.args[8], out)
        rows = [w.add(x, w.load(w.add(places, w.times(w.add(i, r), 8)), _i64)) for r in range(ROWS)]
        count = builder.sub(end, begin)
        rest = builder.srem(count, _constant(w.lanes))
        is_left = builder.icmp_signed("!=", rest, _constant(0))

        def products(columns: list[Any], k: Any, lanes: int) -> Iterator[tuple[int, Any, Any]]:
            there = w.times(k, stored.bitwidth // 8)
            x_k = [w.load_as_real(w.add(row, there), stored, lanes) for row in rows]
            for c, column in enumerate(columns):
                v_k = w.load_as_real(w.add(column, w.times(k, w.size)), real, lanes)
                for r in range(ROWS):
                    yield r * len(columns) + c, x_k[r], v_k

        def accumulate(sums: list[Any], columns: list[Any], last: Any, lanes: int) -> None:
            with w.loop(begin, last, lanes) as k:
                for place, x_k, v_k in products(columns, k, lanes):
                    builder.store(w.fma(x_k, v_k, builder.load(sums[place])), sums[place])

        def write(sums: list[Any], size: int, c: Any) -> None:
            for r in range(ROWS):
                for column in range(size):
                    address = w.add(to, w.times(w.add(i, r), to_stride), w.times(w.add(j, c, column), w.size))
                    before = builder.select(first, ir.Constant(w.scalar, 0.0), w.load(address, w.scalar))
                    w.store(builder.fadd(before, sums[r * size + column]), address)

        with builder.if_else(builder.icmp_signed(">=", count, _constant(w.lanes))) as (vectors, numbers):
            with vectors:
                for size in w.each(GROUPS, group):
                    columns = [w.add(v, w.times(w.add(j, c), v_stride)) for c in range(size)]
                    sums = w.variables(ROWS * size)
                    accumulate(sums, columns, builder.sub(end, rest), w.lanes)
                    with builder.if_then(is_left):  # part of the last vector that there is
                        new = builder.sub(_constant(w.lanes), rest)
                        for place, x_k, v_k in products(columns, builder.sub(end, _constant(w.lanes)), w.lanes):
                            part = w.only(builder.fmul(x_k, v_k), new, w.lanes)
                            builder.store(builder.fadd(builder.load(sums[place]), part), sums[place])
                    write([w.lane_sum(builder.load(vector)) for vector in sums], size, 0)
            with numbers, w.loop(0, group, 1) as c:
                sums = w.variables(ROWS, w.scalar)
                accumulate(sums, [w.add(v, w.times(w.add(j, c), v_stride))], end, 1)
                write([builder.load(number) for number in sums], 1, c)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def outer(typing, group, X, offsets, rows, R, j, begin, end, G, next_offsets):
    """G[j:j+group, k] += Σ_i R[i, j] X[row, k] for 0 ≤ k < end; tiles start at `begin`, for the sake of alignment.

    Meanwhile the rows of the next block are on their way into the cache.
    """
    intp = types.intp
    signature = types.void(intp, X, offsets, intp, R, intp, intp, intp, G, offsets)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        stored, real = signature.args[1].dtype, signature.args[4].dtype
        group, X, offsets, rows, R, j, begin, end, G, next_offsets = arguments

        def tile(w: _Writer, j: Any, size: int, width: int, k: Any, lanes: tuple[Any, Any] | None = None) -> None:
            """`size` columns from j by `width` vectors at k, or those lanes of one vector."""
            x, _ = w.array(signature.args[1], X)
            places, _ = w.array(signature.args[2], offsets)
            r, r_stride = w.array(signature.args[4], R)
            r = w.add(r, w.times(j, w.size))
            g, g_stride = w.array(signature.args[8], G)
            next_places, _ = w.array(signature.args[9], next_offsets)
            size_stored = stored.bitwidth // 8
            sums = w.variables(size * width)
            with w.loop(0, rows, 1) as i:
                there = w.add(x, w.times(k, size_stored))
                row = w.add(there, w.load(w.add(places, w.times(i, 8)), _i64))
                x_k = [w.load_as_real(w.add(row, f * w.lanes * size_stored), stored, w.lanes) for f in range(width)]
                ahead = w.add(there, w.load(w.add(next_places, w.times(i, 8)), _i64))
                for line in range(0, width * w.lanes * size_stored, LINE):
                    w.prefetch(w.add(ahead, line))
                numbers = w.add(r, w.times(i, r_stride))
                for c in range(size):
                    number = w.spread(w.load(w.add(numbers, c * w.size), w.scalar))
                    for f in range(width):
                        slot = sums[c * width + f]
                        builder.store(w.fma(number, x_k[f], builder.load(slot)), slot)
            for c in range(size):
                for f in range(width):
                    address = w.add(g, w.times(w.add(j, c), g_stride), w.times(w.add(k, f * w.lanes), w.size))
                    total = builder.load(sums[c * width + f])
                    total = w.only(total, *lanes) if lanes else total
                    w.store(builder.fadd(w.load(address), total), address)

        w = _Writer(context, builder, real, VECTOR_BYTES // (real.bitwidth // 8))
        lanes, zero = _constant(w.lanes), _constant(0)
        with builder.if_else(builder.icmp_signed(">=", end, lanes)) as (vectors, numbers):
            with vectors:
                for size in w.each(GROUPS, group):
                    # Few columns leave registers free for more vectors, and need them: each sum waits for the last.
                    width = 4 if size <= 2 else 2
                    rest = builder.srem(builder.sub(end, begin), _constant(width * w.lanes))
                    whole = builder.sub(end, rest)
                    with w.loop(begin, whole, width * w.lanes) as k:
                        tile(w, j, size, width, k)
                    # Then single vectors, the last of which may overlap what is done; and what is before `begin`.
                    singles = builder.sdiv(w.add(rest, w.lanes - 1), lanes)
                    with w.loop(0, w.add(singles, 1), 1) as number:
                        is_head = builder.icmp_signed("==", number, singles)
                        new = w.add(whole, w.times(number, w.lanes))
                        latest = builder.sub(end, lanes)
                        fits = builder.icmp_signed("<=", new, latest)
                        k = builder.select(is_head, zero, builder.select(fits, new, latest))
                        first = builder.select(is_head, zero, builder.sub(new, k))
                        last = builder.select(is_head, begin, lanes)
                        with builder.if_then(builder.icmp_signed("<", first, last)):
                            tile(w, j, size, 1, k, (first, last))
            with numbers, w.loop(0, group, 1) as c, w.loop(0, end, 1) as k:
                tile(_Writer(context, builder, real, 1), w.add(j, c), 1, 1, k)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def feature(typing, X, offset, k):
    """X[row, k], the row at a byte offset."""
    signature = X.dtype(X, types.intp, types.intp)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        stored = signature.args[0].dtype
        w = _Writer(context, builder, types.float64, 1)
        x, _ = w.array(signature.args[0], arguments[0])
        place = w.add(x, arguments[1], w.times(arguments[2], stored.bitwidth // 8))
        kind = context.get_value_type(stored)
        return builder.load(builder.inttoptr(place, kind.as_pointer()), align=stored.bitwidth // 8)

    return signature, generate


@intrinsic
def address(typing, array):
    """Where an array begins."""
    signature = types.intp(array)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _Writer(context, builder, types.float64, 1).array(signature.args[0], arguments[0])[0]

    return signature, generate


MASKED_VECTORS = 8  # rows of a block of the masked loops, in vectors


@intrinsic
def masked_column(typing, Xt, features, values, begin, end, out, j):
    """out[j, :] = Σ_{begin≤h<end} values[h]·Xt[features[h], :]: one column's held coordinates, all rows at once."""
    intp = types.intp
    signature = types.void(Xt, features, values, intp, intp, out, intp)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        stored, real = signature.args[0].dtype, signature.args[2].dtype
        w = _Writer(context, builder, real, VECTOR_BYTES // (real.bitwidth // 8))
        Xt, features, values, begin, end, out, j = arguments
        x, x_stride = w.array(signature.args[0], Xt)
        which, _ = w.array(signature.args[1], features)
        v, _ = w.array(signature.args[2], values)
        to, to_stride = w.array(signature.args[5], out)
        sums = w.variables(MASKED_VECTORS)
        with w.loop(begin, end, 1) as h:
            row = w.add(x, w.times(w.load(w.add(which, w.times(h, 8)), _i64), x_stride))
            number = w.spread(w.load(w.add(v, w.times(h, w.size)), w.scalar))
            for f, slot in enumerate(sums):
                part = w.load_as_real(w.add(row, f * w.lanes * stored.bitwidth // 8), stored, w.lanes)
                builder.store(w.fma(number, part, builder.load(slot)), slot)
        for f, slot in enumerate(sums):
            w.store(builder.load(slot), w.add(to, w.times(j, to_stride), f * w.lanes * w.size))
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def masked_sums(typing, Xt, features, begin, end, R, j, sums):
    """sums[h, lane] += R[j, i]·Xt[features[h], i] over the rows i of the lane, for begin ≤ h < end.

    Lanes are added up by whoever reads them, once and not per block. Meanwhile the same features of the next block,
    if blocks follow each other in memory, are on their way into the cache.
    """
    intp = types.intp
    signature = types.void(Xt, features, intp, intp, R, intp, sums)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        stored, real = signature.args[0].dtype, signature.args[4].dtype
        w = _Writer(context, builder, real, VECTOR_BYTES // (real.bitwidth // 8))
        Xt, features, begin, end, R, j, sums = arguments
        x, x_stride = w.array(signature.args[0], Xt)
        rows = builder.extract_value(context.make_array(signature.args[0])(context, builder, Xt).shape, 0)
        which, _ = w.array(signature.args[1], features)
        r, r_stride = w.array(signature.args[4], R)
        to, to_stride = w.array(signature.args[6], sums)
        parts = [w.add(w.times(j, r_stride), r, f * w.lanes * w.size) for f in range(MASKED_VECTORS)]
        numbers = [w.load(part) for part in parts]
        width = w.lanes * stored.bitwidth // 8
        block = w.times(rows, x_stride)
        with w.loop(begin, end, 1) as h:
            row = w.add(x, w.times(w.load(w.add(which, w.times(h, 8)), _i64), x_stride))
            for line in range(0, MASKED_VECTORS * width, LINE):
                w.prefetch(w.add(row, block, line))
            address = w.add(to, w.times(h, to_stride))
            even, odd = w.load(address), w.zero
            for f in range(0, MASKED_VECTORS, 2):
                even = w.fma(numbers[f], w.load_as_real(w.add(row, f * width), stored, w.lanes), even)
                odd = w.fma(numbers[f + 1], w.load_as_real(w.add(row, (f + 1) * width), stored, w.lanes), odd)
            w.store(builder.fadd(even, odd), address)
        return context.get_dummy_value()

    return signature, generate


@numba.njit(error_model="numpy")
def group_size(left):
    """How many of the columns that are left make the next group: many, but so that few do not remain."""
    for size in GROUPS:
        if left == size:
            return left
    if left < 10:
        return (left + 1) // 2
    return GROUPS[0] if left >= GROUPS[0] + 5 else GROUPS[1]
