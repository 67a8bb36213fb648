"""Matrix products for compiled loops, with the bits of torch's products.

They are MKL's own, or faster loops with the same bits. MKL first copies the parts of
small matrices together and writes zeros where it will add: a quarter to a third of its
time here. `_loop` keeps a block of the result in registers instead. Each number of the
result is the sum of its terms in their order, with fused multiply-adds in single
precision. It has all bits of MKL's number if both begin a new sum after the same number
of terms; `deepest` determines that number by trial. If there is no such number, MKL
computes the product.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from llvmlite import binding

from dpkernels.calls import (
    BATCH,
    MULTIPLY,
    Native,
    address_of,
    enter_c,
    matmul,
)
from dpkernels.compiled import compiled, exact, exact_part
from dpkernels.vectors import (
    add_outer,
    load,
    plus_several,
    several,
    store_several,
    transpose_block,
    zeros,
)

_SMALL = 400  # products with fewer multiplications use torch's own loops
_LANES = 16
_DEEPEST = (192, 256, 384)
"""Candidates for the number of terms after which a library begins a new sum.

192 is MKL's on AMD's processors.
"""


@exact
def _plain_product(a, turned, b, out, adds):
    """Compute a product as torch does.

    Each sum has its terms in order; with `adds`, it is then added to `out`.
    """
    rows, columns = out.shape
    for i in range(rows):
        for j in range(columns):
            total = out.dtype.type(0)
            for k in range(b.shape[0]):
                total += (a[k, i] if turned else a[i, k]) * b[k, j]
            out[i, j] = out[i, j] + total if adds else total


def _block(lanes, count):
    """Make the loop for one block of a product: `count` rows and `lanes` columns."""

    @exact_part
    def block(a, turned, b, out, adds, row, column, first, stop):
        step, onwards = (1, out.shape[0]) if turned else (b.shape[0], 1)
        columns = out.shape[1]
        y = several(zeros(out, lanes), count)
        for k in range(first, stop):
            y = add_outer(
                y,
                a,
                row * step + k * onwards,
                step,
                load(b, k * columns + column, lanes),
            )
        if adds:
            y = plus_several(out, row * columns + column, columns, y)
        store_several(out, row * columns + column, columns, y)

    return block


def _loop(lanes, count):
    """Make the loop for products whose columns are a multiple of `lanes`.

    It works in blocks of `count` rows.
    """
    most = _block(lanes, count)
    four = _block(lanes, 4)
    single = _block(lanes, 1)

    def loop(a, turned, b, out, adds, depth):
        rows, columns = out.shape
        for first in range(0, b.shape[0], depth):
            stop = min(first + depth, b.shape[0])
            more = adds or first > 0
            for column in range(0, columns, lanes):
                row = 0
                while row < rows:
                    if row + count <= rows:
                        most(a, turned, b, out, more, row, column, first, stop)
                        row += count
                    elif row + 4 <= rows:
                        four(a, turned, b, out, more, row, column, first, stop)
                        row += 4
                    else:
                        single(a, turned, b, out, more, row, column, first, stop)
                        row += 1

    loop.__qualname__ = f"by_{lanes}"
    return exact(loop)


# Blocks of 16 registers; AVX-512 has 32.
_by_64 = _loop(64, 4)
_by_32 = _loop(32, 8)
_by_16 = _loop(16, 16)


@exact
def _by_blocks(a, turned, b, out, adds, deepest):
    """Compute out = a @ b by blocks.

    `turned`: with the transpose of a. `adds`: the product is added to `out`.
    """
    inner, columns = b.shape
    depth = (
        inner if inner <= deepest else inner // 2 if inner < 2 * deepest else deepest
    )
    if columns % 64 == 0:
        _by_64(a, turned, b, out, adds, depth)
    elif columns % 32 == 0:
        _by_32(a, turned, b, out, adds, depth)
    else:
        _by_16(a, turned, b, out, adds, depth)


@exact
def products(native, a, turned, b, out, adds):
    """Compute out[n] = a[n] @ b[n] for each n, like torch's `bmm`.

    `turned`: with the transpose of a[n]. `adds`: the products are added to `out`.
    """
    count, rows, columns = out.shape
    inner = b.shape[1]
    if rows * columns * inner < _SMALL:
        for n in range(count):
            _plain_product(a[n], turned, b[n], out[n], adds)
    elif native.deepest > 0 and columns % _LANES == 0:
        for n in range(count):
            _by_blocks(a[n], turned, b[n], out[n], adds, native.deepest)
    elif native.addresses[BATCH] == 0:
        spare = native.spare[: rows * columns].reshape((rows, columns))
        for n in range(count):
            to = spare if adds else out[n]
            if turned:
                matmul(native, a[n].T, b[n], to)
            else:
                matmul(native, a[n], b[n], to)
            if adds:
                for i in range(rows):
                    for j in range(columns):
                        out[n, i, j] += spare[i, j]
    else:
        ints = native.ints
        words = native.words
        factors = address_of(native.factors)
        ints[0] = 111
        ints[1] = 112 if turned else 111
        ints[2] = columns
        ints[3] = rows
        ints[4] = inner
        ints[5] = columns
        ints[6] = rows if turned else inner
        ints[7] = columns
        ints[8] = count
        for n in range(count):
            words[n] = address_of(b[n])
            words[count + n] = address_of(a[n])
            words[2 * count + n] = address_of(out[n])
        i = address_of(ints)
        w = address_of(words)
        enter_c(
            native.addresses[BATCH],
            (
                np.int32(102),
                i,
                i + 4,
                i + 8,
                i + 12,
                i + 16,
                factors,
                w,
                i + 20,
                w + 8 * count,
                i + 24,
                factors if adds else factors + out.itemsize,
                w + 16 * count,
                i + 28,
                np.int32(1),
                i + 32,
            ),
        )


@exact
def product(native, a, turned, b, out):
    """Compute out = a @ b, or with the transpose of a, like torch's `mm`."""
    rows, columns = out.shape
    if native.deepest > 0 and columns % _LANES == 0:
        _by_blocks(a, turned, b, out, False, native.deepest)
        return
    if native.addresses[MULTIPLY] == 0:
        if turned:
            matmul(native, a.T, b, out)
        else:
            matmul(native, a, b, out)
        return
    ints = native.ints
    ints[0] = ord("n")
    ints[1] = ord("t") if turned else ord("n")
    ints[2] = columns
    ints[3] = rows
    ints[4] = b.shape[0]
    ints[5] = columns
    ints[6] = rows if turned else b.shape[0]
    ints[7] = columns
    i = address_of(ints)
    factors = address_of(native.factors)
    enter_c(
        native.addresses[MULTIPLY],
        (
            i,
            i + 4,
            i + 8,
            i + 12,
            i + 16,
            factors,
            address_of(b),
            i + 20,
            address_of(a),
            i + 24,
            factors + out.itemsize,
            address_of(out),
            i + 28,
        ),
    )


@exact
def transpose(matrices, out):
    """Compute out[n] = the transpose of the square matrix matrices[n]."""
    side = matrices.shape[1]
    if side % _LANES == 0:
        for n in range(len(matrices)):
            for i in range(0, side, _LANES):
                for j in range(0, side, _LANES):
                    transpose_block(
                        matrices[n], i * side + j, side, out[n], j * side + i, _LANES
                    )
    else:
        for n in range(len(matrices)):
            for i in range(side):
                for j in range(side):
                    out[n, j, i] = matrices[n, i, j]


@compiled
def _tried(native, single, a, turned, b, out):
    """Compute a product for comparison in Python.

    `native.deepest` selects MKL or the loops.
    """
    if single:
        product(native, a[0], turned, b[0], out[0])
    else:
        out[:] = 1
        products(native, a, turned, b, out, True)


def deepest(native: Native, shapes: Iterable[tuple[bool, bool, int, int, int]]) -> int:
    """Return after how many terms MKL begins a new sum, if the loops have its bits.

    0: MKL has to compute the products.

    Args:
        native: buffers with MKL's addresses.
        shapes: shapes of the products: whether `product` computes it, whether the first
            matrix is transposed, rows, columns, and terms of a sum.
    """
    if native.factors.dtype != np.float32 or not native.addresses[BATCH]:
        return 0
    if not binding.get_host_cpu_features().get("avx512f"):  # too few registers
        return 0
    rng = np.random.default_rng(0)
    equal: tuple[int, ...] = _DEEPEST
    for single, turned, rows, columns, inner in shapes:
        a = rng.standard_normal(
            (2, inner, rows) if turned else (2, rows, inner), np.float32
        )
        right = rng.standard_normal((2, inner, columns), np.float32)
        expected = np.empty((2, rows, columns), np.float32)
        with _one_thread():  # on several threads MKL may divide a sum differently
            _tried(native._replace(deepest=0), single, a, turned, right, expected)
        out = np.empty_like(expected)
        for depth in equal:
            _tried(native._replace(deepest=depth), single, a, turned, right, out)
            if not np.array_equal(out[: 2 - single], expected[: 2 - single]):
                equal = tuple(candidate for candidate in equal if candidate != depth)
    return equal[0] if equal else 0


@contextmanager
def _one_thread() -> Iterator[None]:
    """Limit torch and MKL to one thread within the calling thread."""
    previous = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(previous)
