"""Incremental projected subgradient sweeps: x is read and written once per row, and so is each row from memory.

A step needs the row's inner product with x (or its distance from x) before it can move x, and a row is too long to be
kept in registers: done plainly, that is two passes over x and the row. Here the pass that moves x along this row also
takes the next row's product with the moved x, so that every pass but the first does both.

The passes are written in LLVM's own vectors, as Numba's loops reached neither the speed nor a fixed order of summation:
lane l adds up the elements l, l + lanes, … with fused multiply-adds, and the lanes are added by halves. The lanes fill
one cache line on every machine, so the sum does not depend on the width of the machine's registers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from fbompi.kernels import LINE
from fbompi.kernels.cpu.compiling import given, kernel

# x and shift stand between zeros that fill their first and last lines; where all rows lie alike in their lines, x and
# shift lie like them, and no vector touches two lines.

# Rows come from memory at the full rate only when asked for in time, into the second-level cache. Rows that follow each
# other in memory are asked for by lines, others by rows. For 784 doubles a row, beyond the last cache, on Zen 4: 1.1 to
# 1.4 of the time of reading them, by how fast memory is just then; with 48 lines 2.2. With rows in the cache a step
# takes longer than reading a row from memory at its fastest.
LINES_FAR = 384
ROWS_FAR = 4

_INT32, _INT64 = ir.IntType(32), ir.IntType(64)
_SECOND_LEVEL = 2  # LLVM's name for where a prefetch goes
_LLVM_NAMES = {"double": "f64", "float": "f32", "i8": "i8"}


class _Vectors:
    """Writes LLVM instructions on vectors of `lanes` reals; all lanes, or those where `mask` is true."""

    def __init__(self, builder: Any, real: ir.Type, lanes: int, mask: Any = None) -> None:
        self.builder, self.real, self.lanes, self.mask = builder, real, lanes, mask
        self.type = ir.VectorType(real, lanes)
        self.zeros = ir.Constant(self.type, [0.0] * lanes)

    def splat(self, scalar: Any, lane_type: ir.Type | None = None) -> Any:
        """The scalar in every lane."""
        nothing = ir.Constant(ir.VectorType(lane_type or self.real, self.lanes), ir.Undefined)
        first = self.builder.insert_element(nothing, scalar, _INT32(0))
        return self.builder.shuffle_vector(
            first, nothing, ir.Constant(ir.VectorType(_INT32, self.lanes), [0] * self.lanes)
        )

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """a·b + c."""
        name = f"llvm.fma.v{self.lanes}{_LLVM_NAMES[str(self.real)]}"
        function = ir.FunctionType(self.type, [self.type] * 3)
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, function, name), [a, b, c])

    def load(self, pointer: Any) -> Any:
        """Elements of x or shift: padded, so the mask is of no concern."""
        return self.builder.load(self.builder.bitcast(pointer, self.type.as_pointer()), align=LINE)

    def store(self, vector: Any, pointer: Any) -> None:
        self.builder.store(vector, self.builder.bitcast(pointer, self.type.as_pointer()), align=LINE)

    def masked(self, vector: Any) -> Any:
        """Zeros where the mask is false."""
        return vector if self.mask is None else self.builder.select(self.mask, vector, self.zeros)

    def features(self, pointer: Any, scale: Any, offset: Any) -> Any:
        """Elements of a row as reals; bytes become scale·byte + offset."""
        element = pointer.type.pointee
        raw = ir.VectorType(element, self.lanes)
        place, align = self.builder.bitcast(pointer, raw.as_pointer()), 1 if element == ir.IntType(8) else 4
        if self.mask is None:
            loaded = self.builder.load(place, align=align)
        else:
            name = f"llvm.masked.load.v{self.lanes}{_LLVM_NAMES[str(element)]}.p0"
            function = ir.FunctionType(raw, [place.type, _INT32, self.mask.type, raw])
            load = cgutils.get_or_insert_function(self.builder.module, function, name)
            nothing = ir.Constant(raw, [0] * self.lanes)
            loaded = self.builder.call(load, [place, _INT32(align), self.mask, nothing])
        if element == self.real:
            return loaded
        if element == ir.IntType(8):
            return self.fma(self.builder.uitofp(loaded, self.type), self.splat(scale), self.splat(offset))
        widen = isinstance(self.real, ir.DoubleType)
        return (self.builder.fpext if widen else self.builder.fptrunc)(loaded, self.type)

    def sum(self, vector: Any) -> Any:
        """The lanes added by halves: of lanes turned round, as x may begin anywhere in a line, that is the same sum."""
        half = self.lanes
        while half > 1:
            half //= 2
            low, high = (ir.Constant(ir.VectorType(_INT32, half), [*range(b, b + half)]) for b in (0, half))
            shuffle = self.builder.shuffle_vector
            vector = self.builder.fadd(shuffle(vector, vector, low), shuffle(vector, vector, high))
        return self.builder.extract_element(vector, _INT32(0))


def _prefetch(builder: Any, pointer: Any) -> None:
    byte = ir.IntType(8).as_pointer()
    function = ir.FunctionType(ir.VoidType(), [byte, _INT32, _INT32, _INT32])
    prefetch = cgutils.get_or_insert_function(builder.module, function, "llvm.prefetch.p0")
    builder.call(prefetch, [builder.bitcast(pointer, byte), _INT32(0), _INT32(_SECOND_LEVEL), _INT32(1)])


@contextmanager
def _loop(builder: Any, begin: Any, end: Any, step: int) -> Iterator[Any]:
    """Code for k = begin, begin + step, … below `end`, not unrolled, and beginning a cache line.

    Unrolling bunches the prefetches, and where in a line the loop begins is otherwise left to chance: on Zen 3, with
    LLVM's choice of either, a sweep over rows in memory took up to a fifth longer.
    """
    before, body, after = builder.block, builder.append_basic_block(), builder.append_basic_block()
    builder.cbranch(builder.icmp_signed(">", end, begin), body, after)
    builder.position_at_end(body)
    k = builder.phi(_INT64)
    k.add_incoming(begin, before)
    yield k
    following = builder.add(k, _INT64(step))
    k.add_incoming(following, builder.block)
    back = builder.cbranch(builder.icmp_signed("<", following, end), body, after)
    module = builder.module
    wishes = [["llvm.loop.unroll.disable"], ["llvm.loop.align", _INT32(LINE)]]
    loop = module.add_metadata([module.add_metadata(wish) for wish in wishes])
    if loop.operands[0] is not loop:  # LLVM wants it to begin with itself; llvmlite gives the same one again
        loop.operands = (loop, *loop.operands)
    back.set_metadata("llvm.loop", loop)
    builder.position_at_end(after)


def _write_pass(
    context: Any, builder: Any, X: tuple, rows: tuple, lines: Any, x: tuple, coded: tuple, turn: Callable
) -> Any:
    """The loop over the features: `turn(vectors, k, a, b, sum)` for whole lines, masked for parts of the ends.

    X and x come as (Numba type, value), `rows` as the numbers of this row, the next, and the one to be fetched from,
    so many `lines` ahead. k counts from the first feature, and is negative where the line begins before it.
    """
    real = context.get_value_type(x[0].dtype)
    width = x[0].dtype.bitwidth // 8
    lanes, row_width = LINE // width, X[0].dtype.bitwidth // 8
    matrix, point = (context.make_array(kind)(context, builder, value) for kind, value in (X, x))
    a, b, far = (
        cgutils.get_item_pointer(context, builder, X[0], matrix, [row, _INT64(0)], wraparound=False) for row in rows
    )
    scale, offset = (context.cast(builder, value, types.float64, x[0].dtype) for value in coded)
    vectors = _Vectors(builder, real, lanes)
    total = cgutils.alloca_once(builder, vectors.type)
    builder.store(vectors.zeros, total)

    far = builder.gep(far, [builder.mul(lines, _INT64(lanes))])

    def write(vectors: _Vectors, k: Any) -> None:
        def features(row: Any) -> Any:
            return vectors.features(builder.gep(row, [k]), scale, offset)

        if lanes * row_width == LINE:  # narrower features come fast enough by themselves
            _prefetch(builder, builder.gep(far, [k]))
        builder.store(turn(vectors, k, partial(features, a), partial(features, b), builder.load(total)), total)

    def write_part(first: Any, end: Any, k: Any) -> None:
        """Lanes first…end−1 of the line at k."""
        numbers = ir.Constant(ir.VectorType(_INT64, lanes), [*range(lanes)])
        low, high = vectors.splat(first, _INT64), vectors.splat(end, _INT64)
        inside = builder.icmp_signed(">=", numbers, low), builder.icmp_signed("<", numbers, high)
        write(_Vectors(builder, real, lanes, builder.and_(*inside)), k)

    count = builder.extract_value(point.shape, 0)
    in_line = builder.and_(builder.ptrtoint(point.data, _INT64), _INT64(LINE - 1))
    lead = builder.udiv(in_line, _INT64(width))  # lanes before the first feature
    begins_inside = builder.icmp_signed("!=", lead, _INT64(0))
    before = builder.neg(lead)
    with builder.if_then(begins_inside):
        write_part(lead, builder.add(lead, count), before)
    begin = builder.select(begins_inside, builder.add(before, _INT64(lanes)), _INT64(0))
    left = builder.sub(count, begin)
    rest = builder.and_(left, _INT64(lanes - 1))
    whole = builder.sub(count, rest)
    with _loop(builder, begin, whole, lanes) as k:
        write(vectors, k)
    some_left = builder.icmp_signed(">", left, _INT64(0)), builder.icmp_signed("!=", rest, _INT64(0))
    with builder.if_then(builder.and_(*some_left)):
        write_part(_INT64(0), rest, whole)
    return context.cast(builder, vectors.sum(builder.load(total)), x[0].dtype, types.float64)


def _added_product(vectors: _Vectors, b: Any, x: Any, total: Any) -> Any:
    return vectors.fma(b, x, total)


def _added_square(vectors: _Vectors, b: Any, x: Any, total: Any) -> Any:
    difference = vectors.builder.fsub(x, b)
    return vectors.fma(difference, difference, total)


def _along_row(vectors: _Vectors, a: Any, x: Any) -> Any:
    return a


def _away_from_row(vectors: _Vectors, a: Any, x: Any) -> Any:
    return vectors.builder.fsub(x, a)


def _reduction(added: Callable) -> Any:
    """`reduction(X, row, x, scale, offset)`: ⟨row, x⟩ or ‖x − row‖²."""

    @intrinsic
    def reduction(typing: Any, X: Any, row: Any, x: Any, scale: Any, offset: Any) -> Any:
        def write(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            X, row, x, *coded = arguments
            start = context.make_array(signature.args[2])(context, builder, x).data

            def turn(vectors: _Vectors, k: Any, this: Callable, _: Callable, total: Any) -> Any:
                return added(vectors, this(), vectors.load(builder.gep(start, [k])), total)

            matrix, point = (signature.args[0], X), (signature.args[2], x)
            return _write_pass(context, builder, matrix, (row, row, row), _INT64(LINES_FAR), point, coded, turn)

        number = types.float64
        return number(X, types.intp, x, number, number), write

    return reduction


def _step(along: Callable, added: Callable, fresh: bool) -> Any:
    """x ← P[x − step·d − shift], and of the moved x and the next row what `_reduction` gives.

    d is this row or x − row. A fresh step subtracts l1·sign(x) + l2·x as well, at the x that it moves.
    """

    @intrinsic
    def step(
        typing: Any, X: Any, row: Any, following: Any, far: Any, lines: Any, x: Any, shift: Any,
        size: Any, l1: Any, l2: Any, lo: Any, hi: Any, scale: Any, offset: Any,
    ) -> Any:  # fmt: skip
        def write(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            X, row, following, far, lines, x = arguments[:6]
            numbers, coded = arguments[7:12], arguments[12:]
            start, shift_start = (
                context.make_array(signature.args[i])(context, builder, arguments[i]).data for i in (5, 6)
            )
            size, l1, l2, lo, hi = (
                context.cast(builder, number, types.float64, signature.args[5].dtype) for number in numbers
            )

            def turn(vectors: _Vectors, k: Any, this: Callable, following: Callable, total: Any) -> Any:
                place = builder.gep(start, [k])
                old = vectors.load(place)
                new = old
                if fresh:
                    up, down, flat = vectors.splat(l1), vectors.splat(builder.fneg(l1)), vectors.zeros
                    negative = builder.select(builder.fcmp_ordered("<", old, flat), down, flat)
                    sign = builder.select(builder.fcmp_ordered(">", old, flat), up, negative)
                    new = builder.fsub(vectors.fma(vectors.splat(builder.fneg(l2)), old, old), sign)
                new = vectors.fma(vectors.splat(builder.fneg(size)), along(vectors, this(), old), new)
                new = builder.fsub(new, vectors.load(builder.gep(shift_start, [k])))
                # A comparison with NaN is false: NaN stays, where a minimum or maximum might take the bound.
                high, low = vectors.splat(hi), vectors.splat(lo)
                new = builder.select(builder.fcmp_ordered(">", new, high), high, new)
                new = builder.select(builder.fcmp_ordered("<", new, low), low, new)
                new = vectors.masked(new)
                vectors.store(new, place)
                return added(vectors, following(), new, total)

            matrix, point = (signature.args[0], X), (signature.args[5], x)
            return _write_pass(context, builder, matrix, (row, following, far), lines, point, coded, turn)

        number, index = types.float64, types.intp
        return number(X, index, index, index, index, x, shift, *[number] * 7), write

    return step


_product, _squared_distance = _reduction(_added_product), _reduction(_added_square)
_logistic_step, _logistic_fresh = (_step(_along_row, _added_product, fresh) for fresh in (False, True))
_location_step, _location_fresh = (_step(_away_from_row, _added_square, fresh) for fresh in (False, True))


def _sweep_signature(feature: Any, real: Any) -> Any:
    number = types.float64
    per_row, order = given(number, 1), given(types.intp, 1)
    return types.intp(given(feature, 2), per_row, order, real[::1], real[::1], *[number] * 7)


def _value_signature(feature: Any, real: Any) -> Any:
    number = types.float64
    return number(given(feature, 2), given(number, 1), real[::1], number, number)


@numba.njit
def _rows(order, i):
    """At step i: its row, the next step's, and where to fetch from, a row and lines further on."""
    last = order.size - 1
    following = order[min(i + 1, last)]
    if order[min(i + 2, last)] == following + 1:
        return order[i], following, following, LINES_FAR
    return order[i], following, order[min(i + ROWS_FAR, last)], 0


@kernel(_sweep_signature)
def logistic_sweep(X, t, order, x, shift, gamma, l1, l2, lo, hi, scale, offset):
    """Moves x; returns the number of steps done, fewer than `order` has at a label that is neither −1 nor +1."""
    fresh = l1 != 0.0 or l2 != 0.0
    product = _product(X, order[0], x, scale, offset)
    for i in range(order.size):
        row, following, far, lines = _rows(order, i)
        label = t[row]
        if label * label != 1.0:
            return i
        # ∇f = −t σ(−t⟨a, x⟩) a; an overflow of exp gives the right limit, 0.
        size = -gamma * label / (1.0 + math.exp(label * product))
        if fresh:
            product = _logistic_fresh(X, row, following, far, lines, x, shift, size, l1, l2, lo, hi, scale, offset)
        else:
            product = _logistic_step(X, row, following, far, lines, x, shift, size, l1, l2, lo, hi, scale, offset)
    return order.size


@kernel(_sweep_signature)
def location_sweep(centres, radii, order, x, shift, gamma, l1, l2, lo, hi, scale, offset):
    """Moves x; returns the number of steps done, fewer than `order` has at a negative radius."""
    fresh = l1 != 0.0 or l2 != 0.0
    squared = _squared_distance(centres, order[0], x, scale, offset)
    for i in range(order.size):
        row, following, far, lines = _rows(order, i)
        if radii[row] < 0.0:
            return i
        distance = math.sqrt(squared)
        excess = distance - radii[row]
        if excess > 0.0:
            size = gamma / distance
        elif excess <= 0.0:
            size = 0.0
        else:  # NaN: in the data, so in x
            size = excess
        if fresh:
            squared = _location_fresh(
                centres, row, following, far, lines, x, shift, size, l1, l2, lo, hi, scale, offset
            )
        else:
            squared = _location_step(centres, row, following, far, lines, x, shift, size, l1, l2, lo, hi, scale, offset)
    return order.size


@kernel(_value_signature)
def logistic_value(X, t, x, scale, offset):
    """Σ log(1 + exp(−t⟨a, x⟩)), without overflow."""
    total = 0.0
    for i in range(X.shape[0]):
        margin = t[i] * _product(X, i, x, scale, offset)
        total += math.log1p(math.exp(-abs(margin)))
        if margin < 0.0:
            total -= margin
    return total


@kernel(_value_signature)
def location_value(centres, radii, x, scale, offset):
    """Σ max(‖x − c‖ − r, 0)."""
    total = 0.0
    for i in range(centres.shape[0]):
        squared = _squared_distance(centres, i, x, scale, offset)
        excess = math.sqrt(squared) - radii[i]
        if not excess <= 0.0:  # NaN is added too
            total += excess
    return total


def own_sweep(component: Callable) -> Callable:
    """The sweep around a user's compiled component; Numba compiles it at the first call with each type of data."""

    @numba.njit(error_model="numpy")
    def sweep(data, order, x, shift, gamma, l1, l2, lo, hi):
        subgradient = shift.copy()  # shape and type of x; the component overwrites it
        for i in range(order.size):
            component(data, order[i], x, subgradient)
            for k in range(x.size):
                new = x[k] - l2 * x[k] - l1 * np.sign(x[k]) - gamma * subgradient[k] - shift[k]
                new = hi if new > hi else new
                x[k] = lo if new < lo else new

    return sweep
