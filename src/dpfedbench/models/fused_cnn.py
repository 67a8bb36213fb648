"""Every record's own gradient of `cnn.Cnn` on the CPU, by hand-written passes.

Why it exists: DP-SGD needs the gradient of each record alone, and for a network this small automatic differentiation
spends most of its time elsewhere. Here a record is computed from start to end by one thread, in arrays that stay in
its cache, and the backward pass uses what is zero: after the max pooling few outputs of the second convolution have a
gradient. Each adds a 4x4x16 block of inputs to its filter's gradient, and its filter to the gradient of that block.

A record's bits depend on nothing but the weights and the record. The values equal those of `cnn.Cnn.logits` under
automatic differentiation up to rounding (tests/models).

Blocks of 4 positions x 16 channels are held in vector registers, which numba's own loops cannot be brought to do:
hence the vector type below, which becomes LLVM's. On a processor without AVX-512 LLVM splits the vectors.

Layout: channels last. The first convolution's outputs are needed at 13x13 positions only, for which `padded` holds the
pixels with three zeros before them. `code` says which of a window's four
positions was the maximum, 1 to 4 in row order, and 0 where the activation was not positive. Arrays are flat, and
indices of vectors count floats.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit
from numba.core import cgutils, types
from numba.extending import intrinsic, models, register_model

from dpfedbench.models.cnn import HIDDEN, MAP, Cnn
from dpfedbench.models.winograd import _compiled, _part

_PADDED = 32  # side of the padded image: what 13 outputs of an 8x8 filter at stride 2 reach
_ROW = 13 * 16  # floats in a row of the first convolution's outputs
_POOLED_ROW = 12 * 16  # floats in a row of the first pooling's output
_FEATURES = math.prod(MAP)
_LARGEST = 1e6
"""With weights up to this size no pass can overflow, so that no NaN arises which a comparison might swallow."""


class _Vector(types.Type):
    """float32 vector of a fixed number of lanes; a whole number of processor registers."""

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        super().__init__(name=f"float32x{lanes}")


@register_model(_Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, dmm, vector) -> None:
        super().__init__(dmm, vector, ir.VectorType(ir.FloatType(), vector.lanes))


def _spread(builder, scalar, vector):
    """LLVM: the scalar in each lane."""
    single = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, ir.IntType(32)(0))
    lanes = ir.Constant(ir.VectorType(ir.IntType(32), vector.count), None)
    return builder.shuffle_vector(single, ir.Constant(vector, ir.Undefined), lanes)


def _place(context, builder, array_type, array, start, vector):
    """LLVM: the address of a vector in an array."""
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [start]), vector.as_pointer())


@intrinsic(prefer_literal=True)
def _load(_, array, start, lanes):
    """array[start : start + lanes] as a vector."""
    result = _Vector(lanes.literal_value)

    def code(context, builder, signature, arguments):
        vector = context.get_value_type(result)
        loaded = builder.load(_place(context, builder, array, arguments[0], arguments[1], vector))
        loaded.align = 4
        return loaded

    return result(array, types.intp, lanes), code


@intrinsic
def _store(_, array, start, value):
    """array[start : start + lanes] = value."""

    def code(context, builder, signature, arguments):
        vector = context.get_value_type(value)
        stored = builder.store(arguments[2], _place(context, builder, array, arguments[0], arguments[1], vector))
        stored.align = 4
        return context.get_dummy_value()

    return types.void(array, types.intp, value), code


@intrinsic
def _prefetch(_, array, start):
    """Bring the cache line of array[start] near; it need not be inside the array."""

    def code(context, builder, signature, arguments):
        data = context.make_array(array)(context, builder, arguments[0]).data
        address = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(8).as_pointer())
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [address.type, number, number, number])
        prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(prefetch, [address, number(0), number(2), number(1)])
        return context.get_dummy_value()

    return types.void(array, types.intp), code


@intrinsic
def _add_product(_, total, factor, value):
    """total + factor * value, with a scalar factor."""

    def code(context, builder, signature, arguments):
        factors = _spread(builder, arguments[1], context.get_value_type(value))
        product = builder.fmul(factors, arguments[2], flags=("contract",))
        return builder.fadd(arguments[0], product, flags=("contract",))

    return value(value, types.float32, value), code


@intrinsic
def _add(_, a, b):
    """a + b."""
    return a(a, a), lambda context, builder, signature, arguments: builder.fadd(*arguments)


@intrinsic
def _sum(_, a):
    """The sum of all lanes."""

    def code(context, builder, signature, arguments):
        vector, scalar = context.get_value_type(a), ir.FloatType()
        name = f"llvm.vector.reduce.fadd.v{a.lanes}f32"
        reduce = cgutils.get_or_insert_function(builder.module, ir.FunctionType(scalar, [scalar, vector]), name)
        return builder.call(reduce, [scalar(-0.0), arguments[0]], fastmath=("reassoc",))

    return types.float32(a), code


@intrinsic
def _add_products(_, total, a, b):
    """total + a * b."""

    def code(context, builder, signature, arguments):
        product = builder.fmul(*arguments[1:], flags=("contract",))
        return builder.fadd(arguments[0], product, flags=("contract",))

    return a(a, a, a), code


@intrinsic
def _where_greater(_, a, b, x, y):
    """Lane by lane: x where a > b, else y."""

    def code(context, builder, signature, arguments):
        return builder.select(builder.fcmp_ordered(">", *arguments[:2]), *arguments[2:])

    return a(a, a, a, a), code


@intrinsic
def _where_equal(_, a, scalar, x):
    """Lane by lane: x where a equals the scalar, else 0."""

    def code(context, builder, signature, arguments):
        vector = context.get_value_type(a)
        equal = builder.fcmp_ordered("==", arguments[0], _spread(builder, arguments[1], vector))
        return builder.select(equal, arguments[2], ir.Constant(vector, None))

    return a(a, types.float32, a), code


@intrinsic(prefer_literal=True)
def _constant(_, scalar, lanes):
    """The scalar in each lane."""
    result = _Vector(lanes.literal_value)

    def code(context, builder, signature, arguments):
        return _spread(builder, arguments[0], context.get_value_type(result))

    return result(types.float32, lanes), code


class _Scratch(NamedTuple):
    """Arrays of one worker; each starts on a cache line, float32 where nothing else is said."""

    normalise: np.ndarray
    """Factor and summand that bring a byte to the network's input."""
    theta: np.ndarray
    """The weights [d]."""
    conv2: np.ndarray
    """conv2 [4, 4, 16, 32]."""
    padded: np.ndarray
    """The network's input [C, 32, 32], zero outside the image."""
    plane1: np.ndarray
    pooled1: np.ndarray
    code1: np.ndarray
    """First convolution's outputs [13, 13, 16], its pooling's [12, 12, 16] and their codes."""
    plane2: np.ndarray
    pooled2: np.ndarray
    code2: np.ndarray
    """Second convolution's outputs [5, 5, 32], its pooling's [4, 4, 32] and their codes."""
    hidden: np.ndarray
    """[32]."""
    residual: np.ndarray
    """Gradient in the logits; before that, the logits [classes]."""
    hidden_gradient: np.ndarray
    active: np.ndarray
    """int64 [32]: the hidden units that have a gradient."""
    feature_gradient: np.ndarray
    gradient2: np.ndarray
    """Gradient in plane2, [5, 5, 32]."""
    listed: np.ndarray
    """int64 [32]: outputs of a filter of the second convolution that have a gradient."""
    which: np.ndarray
    """int64 [32, 25]: where in pooled1 their inputs begin."""
    value: np.ndarray
    """[32, 25]: their gradients."""
    pooled_gradient: np.ndarray
    """[12, 12, 16]."""
    plane_gradient: np.ndarray
    """Gradient in plane1, [13, 13, 16]."""
    block: np.ndarray
    """[256], for vectors that are taken apart."""


def _aligned(size: int, dtype: type = np.float32) -> np.ndarray:
    """Zeros [size], from the start of a cache line on."""
    room = np.zeros(size * np.dtype(dtype).itemsize + 64, np.uint8)
    start = -room.ctypes.data % 64
    return room[start : start + size * np.dtype(dtype).itemsize].view(dtype)


def _plain(array: np.ndarray) -> np.ndarray:
    """A contiguous, writable array: each other kind would be compiled for anew."""
    return np.require(np.asarray(array), requirements=("C", "A", "W"))


class FusedCnn:
    """Passes of the network for weights given as one flat vector.

    Args:
        net: the network's shapes.

    Not safe for use by two threads at once: give each its own object.
    """

    def __init__(self, net: Cnn) -> None:
        self.net = net
        channels = net.image_shape[2]
        self._scratch = _Scratch(
            normalise=np.array([1 / (255 * net.pixel_deviation), -net.pixel_mean / net.pixel_deviation], np.float32),
            theta=_aligned(net.dimension),
            conv2=_aligned(256 * 32),
            padded=_aligned(channels * _PADDED**2),
            plane1=_aligned(13 * _ROW),
            pooled1=_aligned(12 * _POOLED_ROW),
            code1=_aligned(12 * _POOLED_ROW),
            plane2=_aligned(25 * 32),
            pooled2=_aligned(_FEATURES),
            code2=_aligned(_FEATURES),
            hidden=_aligned(HIDDEN),
            residual=_aligned(net.classes),
            hidden_gradient=_aligned(HIDDEN),
            active=_aligned(HIDDEN + 1, np.int64),
            feature_gradient=_aligned(_FEATURES),
            gradient2=_aligned(25 * 32),
            listed=_aligned(32, np.int64),
            which=_aligned(32 * 25, np.int64),
            value=_aligned(32 * 25),
            pooled_gradient=_aligned(12 * _POOLED_ROW),
            plane_gradient=_aligned(13 * _ROW),
            block=_aligned(256),
        )

    def gradients(self, theta: np.ndarray, images: np.ndarray, labels: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Gradient of each record's cross-entropy.

        Args:
            theta: weights, float32 [d]. If one is not finite or beyond 1e6, all gradients and losses are NaN.
            images: uint8 [n, H, W, C]; the network sees them divided by 255 and normalised.
            labels: int64 [n].
            out: float32 [n, d], written.

        Returns:
            Losses, float64 [n].

        Raises:
            ValueError: an array's shape or type is not that, or a label is not a class.
        """
        if len(out) != len(images):
            raise ValueError(f"gradients of {len(images)} records need as many rows, not {len(out)}")
        return np.concatenate([losses for losses, _ in self.pieces(theta, images, labels, out)] or [np.empty(0)])

    def pieces(
        self, theta: np.ndarray, images: np.ndarray, labels: np.ndarray, room: np.ndarray
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The same, a few records at a time: their gradients (100 KB each) are in the cache when they are used.

        Args:
            theta, images, labels: as for `gradients`.
            room: float32 [m, d], written again and again.

        Yields:
            Losses, float64 [k], and gradients, the first k <= m rows of the room, of the next k records.

        Raises:
            ValueError: as for `gradients`.
        """
        self._check(theta, images, labels)
        if room.shape[1:] != (self.net.dimension,) or room.dtype != np.float32 or not room.flags.c_contiguous:
            raise ValueError(f"gradients go to a contiguous float32 array [m, {self.net.dimension}]")
        if len(images) and not len(room):
            raise ValueError("gradients need room for one record at least")
        theta, images, labels = _plain(theta), _plain(images), _plain(labels)
        usable = _prepare(theta, self._scratch)
        for start in range(0, len(images), len(room) or 1):
            some = images[start : start + len(room)]
            losses, correct, out = np.empty(len(some)), np.empty(len(some), np.bool_), room[: len(some)]
            _records(some, labels[start : start + len(room)], usable, self._scratch, losses, correct, out)
            yield losses, out

    def evaluate(self, theta: np.ndarray, images: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Each record's cross-entropy, float64 [n], and whether its label has the largest logit, bool [n].

        Arguments and errors are those of `gradients`; of equal logits the first counts as the largest.
        """
        self._check(theta, images, labels)
        losses, correct = np.empty(len(images)), np.empty(len(images), np.bool_)
        none = np.empty((0, self.net.dimension), np.float32)
        usable = _prepare(_plain(theta), self._scratch)
        _records(_plain(images), _plain(labels), usable, self._scratch, losses, correct, none)
        return losses, correct

    def _check(self, theta: np.ndarray, images: np.ndarray, labels: np.ndarray) -> None:
        """The compiled loops check no bounds."""
        if theta.shape != (self.net.dimension,) or theta.dtype != np.float32:
            raise ValueError(f"weights must be float32 [{self.net.dimension}], not {theta.dtype} {theta.shape}")
        if images.shape[1:] != self.net.image_shape or images.dtype != np.uint8:
            raise ValueError(f"images must be uint8 [n, {self.net.image_shape}], not {images.dtype} {images.shape}")
        if labels.shape != images.shape[:1] or labels.dtype != np.int64:
            raise ValueError(f"labels must be int64 [{len(images)}], not {labels.dtype} {labels.shape}")
        if len(labels) and not 0 <= labels.min() <= labels.max() < self.net.classes:
            raise ValueError(f"labels must be 0 to {self.net.classes - 1}")


# The compiled loops. Reordering is allowed to them (`winograd`), and is the same for every record.


@_part
def _conv1_size(scratch):
    """Weights [8, 8, C, 16] of the first convolution."""
    return 8 * 8 * (len(scratch.padded) // _PADDED**2) * 16


@_compiled
def _prepare(theta, scratch):
    """Bring the weights into the orders that the passes read; whether none is too large or NaN."""
    usable = True
    for i in range(len(theta)):
        usable &= abs(theta[i]) <= _LARGEST
        scratch.theta[i] = theta[i]
    start = _conv1_size(scratch) + 16
    for block in range(0, 256, 16):
        for f in range(32):
            for tap in range(block, block + 16):
                scratch.conv2[tap * 32 + f] = theta[start + f * 256 + tap]
    return usable


@_part
def _pad(image, scale, shift, padded):
    """The image [H, W, C], normalised, as planes [C, 32, 32] with three zeros before it in either direction."""
    height, width, channels = image.shape
    flat = image.reshape(-1)
    for c in range(channels):
        for y in range(height):
            at, start = (c * _PADDED + y + 3) * _PADDED + 3, (y * width) * channels + c
            if channels == 1:  # a loop that the compiler can turn into vectors
                for x in range(width):
                    padded[np.uint64(at + x)] = flat[np.uint64(start + x)] * scale + shift
            else:
                for x in range(width):
                    padded[np.uint64(at + x)] = flat[np.uint64(start + x * channels)] * scale + shift


@_part
def _convolve1(padded, weights, bias, plane):
    """The plane [13, 13, 16] = bias + the padded image's 8x8 windows at stride 2 times the weights [8, 8, C, 16]."""
    channels = len(padded) // _PADDED**2
    for i in range(13):
        y0 = y1 = y2 = y3 = y4 = y5 = y6 = y7 = y8 = y9 = y10 = y11 = y12 = _load(bias, 0, 16)
        for c in range(channels):
            for y in range(8):
                row = (c * _PADDED + 2 * i + y) * _PADDED
                for x in range(8):
                    w, at = _load(weights, ((8 * y + x) * channels + c) * 16, 16), np.uint64(row + x)
                    y0 = _add_product(y0, padded[at], w)
                    y1 = _add_product(y1, padded[at + np.uint64(2)], w)
                    y2 = _add_product(y2, padded[at + np.uint64(4)], w)
                    y3 = _add_product(y3, padded[at + np.uint64(6)], w)
                    y4 = _add_product(y4, padded[at + np.uint64(8)], w)
                    y5 = _add_product(y5, padded[at + np.uint64(10)], w)
                    y6 = _add_product(y6, padded[at + np.uint64(12)], w)
                    y7 = _add_product(y7, padded[at + np.uint64(14)], w)
                    y8 = _add_product(y8, padded[at + np.uint64(16)], w)
                    y9 = _add_product(y9, padded[at + np.uint64(18)], w)
                    y10 = _add_product(y10, padded[at + np.uint64(20)], w)
                    y11 = _add_product(y11, padded[at + np.uint64(22)], w)
                    y12 = _add_product(y12, padded[at + np.uint64(24)], w)
        to = i * _ROW
        _store(plane, to, y0)
        _store(plane, to + 16, y1)
        _store(plane, to + 32, y2)
        _store(plane, to + 48, y3)
        _store(plane, to + 64, y4)
        _store(plane, to + 80, y5)
        _store(plane, to + 96, y6)
        _store(plane, to + 112, y7)
        _store(plane, to + 128, y8)
        _store(plane, to + 144, y9)
        _store(plane, to + 160, y10)
        _store(plane, to + 176, y11)
        _store(plane, to + 192, y12)


@_part
def _convolve1_gradient(padded, plane, out):
    """out[8, 8, C, 16] = each window of the padded image times its output's gradient, added up."""
    channels = len(padded) // _PADDED**2
    for c in range(channels):
        for y in range(0, 8, 2):
            t0 = t1 = t2 = t3 = t4 = t5 = t6 = t7 = u0 = u1 = u2 = u3 = u4 = u5 = u6 = u7 = _constant(0, 16)
            for i in range(13):
                for j in range(13):
                    d = _load(plane, i * _ROW + 16 * j, 16)
                    at = np.uint64((c * _PADDED + 2 * i + y) * _PADDED + 2 * j)
                    t0 = _add_product(t0, padded[at], d)
                    t1 = _add_product(t1, padded[at + np.uint64(1)], d)
                    t2 = _add_product(t2, padded[at + np.uint64(2)], d)
                    t3 = _add_product(t3, padded[at + np.uint64(3)], d)
                    t4 = _add_product(t4, padded[at + np.uint64(4)], d)
                    t5 = _add_product(t5, padded[at + np.uint64(5)], d)
                    t6 = _add_product(t6, padded[at + np.uint64(6)], d)
                    t7 = _add_product(t7, padded[at + np.uint64(7)], d)
                    u0 = _add_product(u0, padded[at + np.uint64(32)], d)
                    u1 = _add_product(u1, padded[at + np.uint64(33)], d)
                    u2 = _add_product(u2, padded[at + np.uint64(34)], d)
                    u3 = _add_product(u3, padded[at + np.uint64(35)], d)
                    u4 = _add_product(u4, padded[at + np.uint64(36)], d)
                    u5 = _add_product(u5, padded[at + np.uint64(37)], d)
                    u6 = _add_product(u6, padded[at + np.uint64(38)], d)
                    u7 = _add_product(u7, padded[at + np.uint64(39)], d)
            to = (8 * y * channels + c) * 16
            _store(out, to, t0)
            _store(out, to + 16 * channels, t1)
            _store(out, to + 32 * channels, t2)
            _store(out, to + 48 * channels, t3)
            _store(out, to + 64 * channels, t4)
            _store(out, to + 80 * channels, t5)
            _store(out, to + 96 * channels, t6)
            _store(out, to + 112 * channels, t7)
            _store(out, to + 128 * channels, u0)
            _store(out, to + 144 * channels, u1)
            _store(out, to + 160 * channels, u2)
            _store(out, to + 176 * channels, u3)
            _store(out, to + 192 * channels, u4)
            _store(out, to + 208 * channels, u5)
            _store(out, to + 224 * channels, u6)
            _store(out, to + 240 * channels, u7)


@_part
def _pool(plane, first, row, channels, height, width, pooled, code):
    """Max pooling of stride 1 and ReLU of a plane whose outputs begin at `first`; `pooled` is [height, width].

    width * channels is a multiple of 64.
    """
    zero, one, two = _constant(0, 64), _constant(1, 64), _constant(2, 64)
    three, four = _constant(3, 64), _constant(4, 64)
    for i in range(height):
        for j in range(0, width * channels, 64):
            at, to = first + i * row + j, i * width * channels + j
            top, k = _load(plane, at, 64), one
            y = _load(plane, at + channels, 64)
            k, top = _where_greater(y, top, two, k), _where_greater(y, top, y, top)
            y = _load(plane, at + row, 64)
            k, top = _where_greater(y, top, three, k), _where_greater(y, top, y, top)
            y = _load(plane, at + row + channels, 64)
            k, top = _where_greater(y, top, four, k), _where_greater(y, top, y, top)
            _store(pooled, to, _where_greater(top, zero, top, zero))
            _store(code, to, _where_greater(top, zero, k, zero))


@_part
def _pool_gradient(pooled, code, first, row, channels, height, width, block, plane, bias):
    """Add the gradient in `pooled` to the plane, where the maxima were; bias[channels] = its sum over positions."""
    zero = total = _constant(0, 64)
    for i in range(height):
        for j in range(0, width * channels, 64):
            at, k = first + i * row + j, _load(code, i * width * channels + j, 64)
            d = _load(pooled, i * width * channels + j, 64)
            total = _add(total, _where_greater(k, zero, d, zero))
            _store(plane, at, _add(_load(plane, at, 64), _where_equal(k, 1, d)))
            at += channels
            _store(plane, at, _add(_load(plane, at, 64), _where_equal(k, 2, d)))
            at += row - channels
            _store(plane, at, _add(_load(plane, at, 64), _where_equal(k, 3, d)))
            at += channels
            _store(plane, at, _add(_load(plane, at, 64), _where_equal(k, 4, d)))
    _store(block, 0, total)
    bias[:] = 0
    for start in range(0, 64, channels):
        for f in range(channels):
            bias[f] += block[start + f]


@_part
def _at(position):
    """Where in pooled1 the inputs of one of the second convolution's 25 outputs begin."""
    return position // 5 * (2 * _POOLED_ROW) + position % 5 * 32


@njit(inline="always")
def _convolve2_part(pooled, weights, bias, plane, p, ahead, start):
    """13 outputs of the second convolution, from output p on; as many as the registers hold."""
    y0 = y1 = y2 = y3 = y4 = y5 = y6 = y7 = y8 = y9 = y10 = y11 = y12 = _load(bias, 0, 32)
    for row in range(4):
        for k in range(64):
            w, i = _load(weights, (64 * row + k) * 32, 32), row * _POOLED_ROW + k
            line = start + (64 * row + k) * 48
            _prefetch(ahead, line)
            _prefetch(ahead, line + 16)
            _prefetch(ahead, line + 32)
            y0 = _add_product(y0, pooled[i + _at(p)], w)
            y1 = _add_product(y1, pooled[i + _at(p + 1)], w)
            y2 = _add_product(y2, pooled[i + _at(p + 2)], w)
            y3 = _add_product(y3, pooled[i + _at(p + 3)], w)
            y4 = _add_product(y4, pooled[i + _at(p + 4)], w)
            y5 = _add_product(y5, pooled[i + _at(p + 5)], w)
            y6 = _add_product(y6, pooled[i + _at(p + 6)], w)
            y7 = _add_product(y7, pooled[i + _at(p + 7)], w)
            y8 = _add_product(y8, pooled[i + _at(p + 8)], w)
            y9 = _add_product(y9, pooled[i + _at(p + 9)], w)
            y10 = _add_product(y10, pooled[i + _at(p + 10)], w)
            y11 = _add_product(y11, pooled[i + _at(p + 11)], w)
            y12 = _add_product(y12, pooled[i + _at(p + 12)], w)
    _store(plane, 32 * p, y0)
    _store(plane, 32 * p + 32, y1)
    _store(plane, 32 * p + 64, y2)
    _store(plane, 32 * p + 96, y3)
    _store(plane, 32 * p + 128, y4)
    _store(plane, 32 * p + 160, y5)
    _store(plane, 32 * p + 192, y6)
    _store(plane, 32 * p + 224, y7)
    _store(plane, 32 * p + 256, y8)
    _store(plane, 32 * p + 288, y9)
    _store(plane, 32 * p + 320, y10)
    _store(plane, 32 * p + 352, y11)
    _store(plane, 32 * p + 384, y12)


@_part
def _convolve2(pooled, weights, bias, plane, ahead):
    """The second convolution; the middle output is computed by both parts.

    Memory is idle meanwhile, so that 24,576 floats of the array `ahead`, to be used next, are brought near.
    """
    _convolve2_part(pooled, weights, bias, plane, 0, ahead, 0)
    _convolve2_part(pooled, weights, bias, plane, 12, ahead, 48 * 256)


@_part
def _list_gradients(gradient, listed, which, value):
    """List, filter by filter, the outputs of the second convolution that have a gradient."""
    listed[:] = 0
    for p in range(25):
        at = _at(p)
        for f in range(32):
            d, n = gradient[np.uint64(32 * p + f)], listed[f]
            i = np.uint64(25 * f + n)
            which[i] = at
            value[i] = d
            listed[f] = n + (d != 0)


@_part
def _convolve2_gradient(pooled, weights, listed, which, value, out, pooled_gradient):
    """out[32, 4, 4, 16] = gradient in the second convolution's weights [32, 4, 4, 16]; also that in its inputs."""
    pooled_gradient[:] = 0
    for f in range(32):
        t0 = t1 = t2 = t3 = _constant(0, 64)
        w = 256 * f
        for i in range(25 * f, 25 * f + listed[f]):
            at, d = which[np.uint64(i)], value[np.uint64(i)]
            t0 = _add_product(t0, d, _load(pooled, at, 64))
            _store(pooled_gradient, at, _add_product(_load(pooled_gradient, at, 64), d, _load(weights, w, 64)))
            at += _POOLED_ROW
            t1 = _add_product(t1, d, _load(pooled, at, 64))
            _store(pooled_gradient, at, _add_product(_load(pooled_gradient, at, 64), d, _load(weights, w + 64, 64)))
            at += _POOLED_ROW
            t2 = _add_product(t2, d, _load(pooled, at, 64))
            _store(pooled_gradient, at, _add_product(_load(pooled_gradient, at, 64), d, _load(weights, w + 128, 64)))
            at += _POOLED_ROW
            t3 = _add_product(t3, d, _load(pooled, at, 64))
            _store(pooled_gradient, at, _add_product(_load(pooled_gradient, at, 64), d, _load(weights, w + 192, 64)))
        _store(out, w, t0)
        _store(out, w + 64, t1)
        _store(out, w + 128, t2)
        _store(out, w + 192, t3)


@_part
def _linear(x, weights, bias, y):
    """y = bias + weights [len(y), len(x)] x, where len(x) is a multiple of 64 and len(y) of 4."""
    n = len(x)
    for h in range(0, len(y), 4):
        y0 = y1 = y2 = y3 = _constant(0, 64)
        for i in range(0, n, 64):
            v = _load(x, i, 64)
            y0 = _add_products(y0, v, _load(weights, h * n + i, 64))
            y1 = _add_products(y1, v, _load(weights, h * n + n + i, 64))
            y2 = _add_products(y2, v, _load(weights, h * n + 2 * n + i, 64))
            y3 = _add_products(y3, v, _load(weights, h * n + 3 * n + i, 64))
        y[h] = bias[h] + _sum(y0)
        y[h + 1] = bias[h + 1] + _sum(y1)
        y[h + 2] = bias[h + 2] + _sum(y2)
        y[h + 3] = bias[h + 3] + _sum(y3)


@_part
def _linear_gradient(x, weights, gradient, active, out, bias, x_gradient):
    """out = gradient x^T, bias = gradient and x_gradient = weights^T gradient; len(x) is a multiple of 256."""
    n, zero = len(x), _constant(0, 64)
    count = 0
    for h in range(len(gradient)):
        active[count] = h
        count += gradient[h] != 0
        bias[h] = gradient[h]
    for start in range(0, n, 256):
        t0 = t1 = t2 = t3 = zero
        for k in range(count):
            h = active[k]
            at, d = h * n + start, gradient[h]
            t0 = _add_product(t0, d, _load(weights, at, 64))
            t1 = _add_product(t1, d, _load(weights, at + 64, 64))
            t2 = _add_product(t2, d, _load(weights, at + 128, 64))
            t3 = _add_product(t3, d, _load(weights, at + 192, 64))
        _store(x_gradient, start, t0)
        _store(x_gradient, start + 64, t1)
        _store(x_gradient, start + 128, t2)
        _store(x_gradient, start + 192, t3)
        t0, t1 = _load(x, start, 64), _load(x, start + 64, 64)
        t2, t3 = _load(x, start + 128, 64), _load(x, start + 192, 64)
        for h in range(len(gradient)):
            at, d = h * n + start, gradient[h]
            _store(out, at, _add_product(zero, d, t0))
            _store(out, at + 64, _add_product(zero, d, t1))
            _store(out, at + 128, _add_product(zero, d, t2))
            _store(out, at + 192, _add_product(zero, d, t3))


@_part
def _loss(logits, label):
    """Cross-entropy of logits [classes], which become its gradient, and whether the label's is the first largest."""
    best = 0
    for c in range(1, len(logits)):
        if logits[c] > logits[best]:
            best = c
    top, total = logits[best], 0.0
    for c in range(len(logits)):
        total += math.exp(np.float64(logits[c] - top))
    loss = math.log(total) - np.float64(logits[label] - top)
    for c in range(len(logits)):
        logits[c] = math.exp(np.float64(logits[c] - top)) / total
    logits[label] -= np.float32(1)
    return loss, best == label


@_part
def _forward(image, scratch, ahead):
    """Logits of one image [H, W, C], written to `residual`; `ahead` is that of `_convolve2`."""
    w = scratch.theta
    a = _conv1_size(scratch)
    _pad(image, scratch.normalise[0], scratch.normalise[1], scratch.padded)
    _convolve1(scratch.padded, w[:a], w[a : a + 16], scratch.plane1)
    _pool(scratch.plane1, 0, _ROW, 16, 12, 12, scratch.pooled1, scratch.code1)
    a += 16 + 8192
    _convolve2(scratch.pooled1, scratch.conv2, w[a : a + 32], scratch.plane2, ahead)
    _pool(scratch.plane2, 0, 160, 32, 4, 4, scratch.pooled2, scratch.code2)
    a += 32
    b = a + _FEATURES * HIDDEN
    _linear(scratch.pooled2, w[a:b], w[b : b + HIDDEN], scratch.hidden)
    zero = _constant(0, 32)
    x = _load(scratch.hidden, 0, 32)
    x = _where_greater(x, zero, x, zero)
    _store(scratch.hidden, 0, x)
    b += HIDDEN
    classes = len(scratch.residual)
    for c in range(classes):
        y = _sum(_add_products(zero, x, _load(w, b + c * HIDDEN, 32)))
        scratch.residual[c] = w[b + classes * HIDDEN + c] + y


@_part
def _backward(scratch, out):
    """The gradient of the image that was last passed forward, written to out [d]."""
    w = scratch.theta
    classes, conv1 = len(scratch.residual), _conv1_size(scratch)
    conv2 = conv1 + 16
    fc1 = conv2 + 8192 + 32
    fc2 = fc1 + _FEATURES * HIDDEN + HIDDEN
    zero = gradient = _constant(0, 32)
    hidden = _load(scratch.hidden, 0, 32)
    for c in range(classes):
        d = scratch.residual[c]
        out[fc2 + classes * HIDDEN + c] = d
        _store(out, fc2 + c * HIDDEN, _add_product(zero, d, hidden))
        gradient = _add_product(gradient, d, _load(w, fc2 + c * HIDDEN, 32))
    _store(scratch.hidden_gradient, 0, _where_greater(hidden, zero, gradient, zero))
    _linear_gradient(
        scratch.pooled2, w[fc1 : fc2 - HIDDEN], scratch.hidden_gradient, scratch.active,
        out[fc1 : fc2 - HIDDEN], out[fc2 - HIDDEN : fc2], scratch.feature_gradient,
    )  # fmt: skip
    scratch.gradient2[:] = 0
    _pool_gradient(
        scratch.feature_gradient, scratch.code2, 0, 160, 32, 4, 4, scratch.block,
        scratch.gradient2, out[fc1 - 32 : fc1],
    )  # fmt: skip
    _list_gradients(scratch.gradient2, scratch.listed, scratch.which, scratch.value)
    _convolve2_gradient(
        scratch.pooled1, w[conv2 : fc1 - 32], scratch.listed, scratch.which, scratch.value,
        out[conv2 : fc1 - 32], scratch.pooled_gradient,
    )  # fmt: skip
    scratch.plane_gradient[:] = 0
    _pool_gradient(
        scratch.pooled_gradient, scratch.code1, 0, _ROW, 16, 12, 12, scratch.block,
        scratch.plane_gradient, out[conv1:conv2],
    )  # fmt: skip
    _convolve1_gradient(scratch.padded, scratch.plane_gradient, out[:conv1])


@_compiled
def _records(images, labels, usable, scratch, losses, correct, out):
    """Losses [n], whether the label has the largest logit [n] and gradients [n, d] unless `out` is [0, d].

    `usable` is what `_prepare` said of the weights.
    """
    if not usable:
        losses[:] = np.nan
        correct[:] = False
        out[:] = np.nan
        return
    for i in range(len(images)):
        _forward(images[i], scratch, out[i, _conv1_size(scratch) + 16 :] if len(out) else scratch.theta)
        losses[i], correct[i] = _loss(scratch.residual, labels[i])
        if len(out):
            _backward(scratch, out[i])
