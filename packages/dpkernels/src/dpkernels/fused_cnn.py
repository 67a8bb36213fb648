"""Gradients of single records of a small CNN on a CPU, by hand-written passes.

DP-SGD needs the gradient of each record alone, and for such a small network automatic
differentiation spends most of its time elsewhere. Here one thread computes a record
from start to end, in arrays that stay in its cache. The backward pass makes use of
zeros: after the max pooling few outputs of the second convolution have a gradient. Each
of them adds a 4x4x16 block of inputs to its filter's gradient, and its filter to the
gradient of that block.

A record's bits depend only on the weights and the record. The values equal those of
automatic differentiation up to rounding (tests/).

Blocks of 4 positions x 16 channels are held in vector registers (`vectors`).

Layout: channels last. The first convolution's outputs are needed at 13x13 positions
only, for which `padded` holds the pixels with three zeros before them. `code` states
which of a window's four positions was the maximum, 1 to 4 in row order, and 0 if the
activation was not positive. Arrays are flat, and indices of vectors count floats.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from dpkernels.clipped_sum import add_clipped
from dpkernels.compiled import compiled, part
from dpkernels.networks import HIDDEN, MAP, CnnShape
from dpkernels.passes import Measures, Passes, aligned_zeros, plain
from dpkernels.vectors import (
    add,
    add_product,
    add_products,
    add_products_at,
    constant,
    load,
    prefetch,
    several,
    store,
    store_several,
    sum_of_lanes,
    where_equal,
    where_greater,
)

_PADDED = (
    32  # side of the padded image: range of 13 outputs of an 8x8 filter at stride 2
)
_ROW = 13 * 16  # floats in a row of the first convolution's outputs
_POOLED_ROW = 12 * 16  # floats in a row of the first pooling's output
_FEATURES = math.prod(MAP)
# Records whose gradients are added at once. With 100 KB each, they stay in a core's own
# cache.
_TOGETHER = 4
_NOTHING = np.empty(0)
_LARGEST = 1e6
"""Largest absolute weight with which no pass can overflow.

Without overflow no NaN arises, which a comparison might hide.
"""


class _Scratch(NamedTuple):
    """Arrays of one worker.

    Each starts on a cache line and is float32 unless stated otherwise.
    """

    normalise: np.ndarray
    """Factor and summand that map a byte to the network's input."""
    theta: np.ndarray
    """Weights [d]."""
    conv2: np.ndarray
    """Weights of conv2 [4, 4, 16, 32]."""
    padded: np.ndarray
    """Input of the network [C, 32, 32], zero outside the image."""
    plane1: np.ndarray
    pooled1: np.ndarray
    code1: np.ndarray
    """Outputs of the first convolution (`plane1` [13, 13, 16]) and of its pooling.

    `pooled1` and `code1` are [12, 12, 16].
    """
    plane2: np.ndarray
    pooled2: np.ndarray
    code2: np.ndarray
    """Outputs of the second convolution (`plane2` [5, 5, 32]) and of its pooling.

    `pooled2` and `code2` are [4, 4, 32].
    """
    hidden: np.ndarray
    """[32]."""
    residual: np.ndarray
    """Gradient of the logits; before that, the logits [classes]."""
    hidden_gradient: np.ndarray
    active: np.ndarray
    """int64 [32]: hidden units that have a gradient."""
    feature_gradient: np.ndarray
    gradient2: np.ndarray
    """Gradient of plane2, [5, 5, 32]."""
    listed: np.ndarray
    """int64 [32]: number of outputs of each filter of conv2 that have a gradient."""
    which: np.ndarray
    """int64 [32, 25]: where the inputs of these outputs begin in pooled1."""
    value: np.ndarray
    """[32, 25]: gradients of these outputs."""
    pooled_gradient: np.ndarray
    """[12, 12, 16]."""
    plane_gradient: np.ndarray
    """Gradient of plane1, [13, 13, 16]."""
    block: np.ndarray
    """[256]: vectors that are taken apart."""


class FusedCnn(Passes):
    """Gradients of a `CnnShape` for records of bytes.

    If a weight is not finite or beyond 1e6, all gradients and losses are NaN.

    Args:
        network: the network's shapes.
        dtype: float32, the only supported type.
    """

    name = "cnn"
    records_at_once = _TOGETHER
    network: CnnShape

    @staticmethod
    def fits(network: Any, dtype: np.dtype) -> bool:
        """Return whether sides of images and the type of parameters are supported."""
        height, width, _ = network.input_shape
        sides = range(26, 30)
        return height in sides and width in sides and dtype == np.float32

    def __init__(self, network: CnnShape, dtype: Any = np.float32) -> None:
        super().__init__(network, dtype)
        self._room = np.empty((_TOGETHER, network.dimension), np.float32)
        channels = network.input_shape[2]
        self._scratch = _Scratch(
            normalise=np.array(
                [
                    1 / (255 * network.pixel_deviation),
                    -network.pixel_mean / network.pixel_deviation,
                ],
                np.float32,
            ),
            theta=aligned_zeros(network.dimension),
            conv2=aligned_zeros(256 * 32),
            padded=aligned_zeros(channels * _PADDED**2),
            plane1=aligned_zeros(13 * _ROW),
            pooled1=aligned_zeros(12 * _POOLED_ROW),
            code1=aligned_zeros(12 * _POOLED_ROW),
            plane2=aligned_zeros(25 * 32),
            pooled2=aligned_zeros(_FEATURES),
            code2=aligned_zeros(_FEATURES),
            hidden=aligned_zeros(HIDDEN),
            residual=aligned_zeros(network.outputs),
            hidden_gradient=aligned_zeros(HIDDEN),
            active=aligned_zeros(HIDDEN + 1, np.int64),
            feature_gradient=aligned_zeros(_FEATURES),
            gradient2=aligned_zeros(25 * 32),
            listed=aligned_zeros(32, np.int64),
            which=aligned_zeros(32 * 25, np.int64),
            value=aligned_zeros(32 * 25),
            pooled_gradient=aligned_zeros(12 * _POOLED_ROW),
            plane_gradient=aligned_zeros(13 * _ROW),
            block=aligned_zeros(256),
        )

    def adds_records(self, x: np.ndarray) -> bool:
        return x.dtype == np.uint8

    def _record_gradients(
        self, theta: np.ndarray, x: np.ndarray, y: np.ndarray, out: np.ndarray
    ) -> np.ndarray | None:
        if x.dtype != np.uint8:
            return None
        return self._run(theta, x, y, out, 0.0, _NOTHING, _NOTHING).losses

    def _add_record_gradients(
        self,
        theta: np.ndarray,
        x: np.ndarray,
        y: np.ndarray,
        limit: float,
        total: np.ndarray,
        norms: np.ndarray,
    ) -> np.ndarray:
        if x.dtype != np.uint8:
            raise ValueError(f"these passes add gradients of bytes, not of {x.dtype}")
        return self._run(theta, x, y, self._room, limit, total, norms).losses

    def _evaluate(
        self, theta: np.ndarray, x: np.ndarray, y: np.ndarray
    ) -> Measures | None:
        if x.dtype != np.uint8:
            return None
        return self._run(theta, x, y, self._room[:0], 0.0, _NOTHING, _NOTHING)

    def _run(
        self,
        theta: np.ndarray,
        x: np.ndarray,
        y: np.ndarray,
        out: np.ndarray,
        limit: float,
        into: np.ndarray,
        norms: np.ndarray,
    ) -> Measures:
        """Call `_records`, after the sizes were checked."""
        usable = _prepare(plain(theta), self._scratch)
        losses = np.empty(len(x))
        correct = np.empty(len(x), np.bool_)
        _records(
            plain(x),
            plain(y),
            usable,
            self._scratch,
            losses,
            correct,
            out,
            limit,
            into,
            norms,
        )
        return Measures(losses, correct.astype(np.float64), np.ones(len(x)))


# The compiled loops. They may reorder operations (`compiled`), in the same way for
# every record.


@part
def _conv1_size(scratch):
    """Return the size of the first convolution's weights [8, 8, C, 16]."""
    return 8 * 8 * (len(scratch.padded) // _PADDED**2) * 16


@compiled
def _prepare(theta, scratch):
    """Bring the weights into the orders that the passes read.

    Returns:
        Whether no weight is NaN or too large.
    """
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


@part
def _pad(image, scale, shift, padded):
    """Normalise the image [H, W, C] into planes [C, 32, 32].

    Three zeros precede the image in either direction.
    """
    height, width, channels = image.shape
    flat = image.reshape(-1)
    for c in range(channels):
        for y in range(height):
            at = (c * _PADDED + y + 3) * _PADDED + 3
            start = (y * width) * channels + c
            if channels == 1:  # a loop that the compiler can vectorise
                for x in range(width):
                    padded[np.uint64(at + x)] = (
                        flat[np.uint64(start + x)] * scale + shift
                    )
            else:
                for x in range(width):
                    padded[np.uint64(at + x)] = (
                        flat[np.uint64(start + x * channels)] * scale + shift
                    )


_WINDOWS = tuple(2 * j for j in range(13))
"""Start of each window in a row of the first convolution's outputs."""
_TAPS = tuple(_PADDED * row + column for row in range(2) for column in range(8))
"""Offsets of the two rows of a window."""


@part
def _convolve1(padded, weights, bias, plane):
    """Compute the first convolution: the plane [13, 13, 16].

    It is the bias, plus the padded image's 8x8 windows at stride 2 times the weights
    [8, 8, C, 16].
    """
    channels = len(padded) // _PADDED**2
    for i in range(13):
        y = several(load(bias, 0, 16), 13)
        for c in range(channels):
            for row in range(8):
                for column in range(8):
                    w = load(weights, ((8 * row + column) * channels + c) * 16, 16)
                    at = (c * _PADDED + 2 * i + row) * _PADDED + column
                    y = add_products_at(y, padded, at, _WINDOWS, w)
        store_several(plane, i * _ROW, 16, y)


@part
def _convolve1_gradient(padded, plane, out):
    """Compute the gradient of the first convolution's weights, out [8, 8, C, 16].

    It is the sum over windows of the padded image times their output's gradient.
    """
    channels = len(padded) // _PADDED**2
    for c in range(channels):
        for y in range(0, 8, 2):
            t = several(constant(0, 16), 16)
            for i in range(13):
                for j in range(13):
                    d = load(plane, i * _ROW + 16 * j, 16)
                    t = add_products_at(
                        t, padded, (c * _PADDED + 2 * i + y) * _PADDED + 2 * j, _TAPS, d
                    )
            store_several(out, (8 * y * channels + c) * 16, 16 * channels, t)


@part
def _pool(plane, first, row, channels, height, width, pooled, code):
    """Apply max pooling of stride 1 and ReLU to a plane.

    The plane's outputs begin at `first`; `pooled` is [height, width]. width * channels
    is a multiple of 64.
    """
    zero = constant(0, 64)
    unit = constant(1, 64)
    two = constant(2, 64)
    three = constant(3, 64)
    four = constant(4, 64)
    for i in range(height):
        for j in range(0, width * channels, 64):
            at = first + i * row + j
            to = i * width * channels + j
            top = load(plane, at, 64)
            k = unit
            y = load(plane, at + channels, 64)
            k = where_greater(y, top, two, k)
            top = where_greater(y, top, y, top)
            y = load(plane, at + row, 64)
            k = where_greater(y, top, three, k)
            top = where_greater(y, top, y, top)
            y = load(plane, at + row + channels, 64)
            k = where_greater(y, top, four, k)
            top = where_greater(y, top, y, top)
            store(pooled, to, where_greater(top, zero, top, zero))
            store(code, to, where_greater(top, zero, k, zero))


@part
def _pool_gradient(
    pooled, code, first, row, channels, height, width, block, plane, bias
):
    """Add the gradient in `pooled` to the plane, at the positions of the maxima.

    bias[channels] receives its sum over positions.
    """
    zero = total = constant(0, 64)
    for i in range(height):
        for j in range(0, width * channels, 64):
            at = first + i * row + j
            k = load(code, i * width * channels + j, 64)
            d = load(pooled, i * width * channels + j, 64)
            total = add(total, where_greater(k, zero, d, zero))
            store(plane, at, add(load(plane, at, 64), where_equal(k, 1, d)))
            at += channels
            store(plane, at, add(load(plane, at, 64), where_equal(k, 2, d)))
            at += row - channels
            store(plane, at, add(load(plane, at, 64), where_equal(k, 3, d)))
            at += channels
            store(plane, at, add(load(plane, at, 64), where_equal(k, 4, d)))
    store(block, 0, total)
    bias[:] = 0
    for start in range(0, 64, channels):
        for f in range(channels):
            bias[f] += block[start + f]


_INPUTS = tuple(
    position // 5 * (2 * _POOLED_ROW) + position % 5 * 32 for position in range(25)
)
"""Start of the inputs in pooled1 of each of the second convolution's 25 outputs."""
_FIRST = _INPUTS[:13]
_LAST = _INPUTS[12:]
"""Inputs of the first and the last 13 outputs, as many as the registers hold."""


@njit(inline="always")
def _convolve2_part(pooled, weights, bias, plane, places, to, ahead, start):
    """Compute 13 outputs of the second convolution, whose inputs begin at `places`."""
    y = several(load(bias, 0, 32), 13)
    for row in range(4):
        for k in range(64):
            line = start + (64 * row + k) * 48
            prefetch(ahead, line)
            prefetch(ahead, line + 16)
            prefetch(ahead, line + 32)
            w = load(weights, (64 * row + k) * 32, 32)
            y = add_products_at(y, pooled, row * _POOLED_ROW + k, places, w)
    store_several(plane, to, 32, y)


@part
def _convolve2(pooled, weights, bias, plane, ahead):
    """Compute the second convolution; both parts compute the middle output.

    Memory is idle meanwhile, so 24,576 floats of the array `ahead`, which is used next,
    are prefetched.
    """
    _convolve2_part(pooled, weights, bias, plane, _FIRST, 0, ahead, 0)
    _convolve2_part(pooled, weights, bias, plane, _LAST, 12 * 32, ahead, 48 * 256)


@part
def _list_gradients(gradient, listed, which, value):
    """List the outputs of the second convolution that have a gradient, by filter."""
    listed[:] = 0
    for p in range(25):
        at = _INPUTS[p]
        for f in range(32):
            d = gradient[np.uint64(32 * p + f)]
            n = listed[f]
            i = np.uint64(25 * f + n)
            which[i] = at
            value[i] = d
            listed[f] = n + (d != 0)


@part
def _add_row(total, d, pooled, at, weights, w, pooled_gradient):
    """Return the total + d * a row of inputs; add d * weights to their gradient."""
    gradient = add_product(load(pooled_gradient, at, 64), d, load(weights, w, 64))
    store(pooled_gradient, at, gradient)
    return add_product(total, d, load(pooled, at, 64))


@part
def _convolve2_gradient(pooled, weights, listed, which, value, out, pooled_gradient):
    """Compute the gradient of the second convolution's weights and of its inputs.

    The weights' gradient is out [32, 4, 4, 16].
    """
    pooled_gradient[:] = 0
    for f in range(32):
        t0 = t1 = t2 = t3 = constant(0, 64)
        w = 256 * f
        for i in range(25 * f, 25 * f + listed[f]):
            at = which[np.uint64(i)]
            d = value[np.uint64(i)]
            t0 = _add_row(t0, d, pooled, at, weights, w, pooled_gradient)
            at += _POOLED_ROW
            t1 = _add_row(t1, d, pooled, at, weights, w + 64, pooled_gradient)
            at += _POOLED_ROW
            t2 = _add_row(t2, d, pooled, at, weights, w + 128, pooled_gradient)
            at += _POOLED_ROW
            t3 = _add_row(t3, d, pooled, at, weights, w + 192, pooled_gradient)
        store(out, w, t0)
        store(out, w + 64, t1)
        store(out, w + 128, t2)
        store(out, w + 192, t3)


@part
def _linear(x, weights, bias, y):
    """Compute y = bias + weights [len(y), len(x)] x.

    len(x) is a multiple of 64 and len(y) of 4.
    """
    n = len(x)
    for h in range(0, len(y), 4):
        y0 = y1 = y2 = y3 = constant(0, 64)
        for i in range(0, n, 64):
            v = load(x, i, 64)
            y0 = add_products(y0, v, load(weights, h * n + i, 64))
            y1 = add_products(y1, v, load(weights, h * n + n + i, 64))
            y2 = add_products(y2, v, load(weights, h * n + 2 * n + i, 64))
            y3 = add_products(y3, v, load(weights, h * n + 3 * n + i, 64))
        y[h] = bias[h] + sum_of_lanes(y0)
        y[h + 1] = bias[h + 1] + sum_of_lanes(y1)
        y[h + 2] = bias[h + 2] + sum_of_lanes(y2)
        y[h + 3] = bias[h + 3] + sum_of_lanes(y3)


@part
def _linear_gradient(x, weights, gradient, active, out, bias, x_gradient):
    """Compute out = gradient x^T, bias = gradient and x_gradient = weights^T gradient.

    len(x) is a multiple of 256.
    """
    n = len(x)
    zero = constant(0, 64)
    count = 0
    for h in range(len(gradient)):
        active[count] = h
        count += gradient[h] != 0
        bias[h] = gradient[h]
    for start in range(0, n, 256):
        t0 = t1 = t2 = t3 = zero
        for k in range(count):
            h = active[k]
            at = h * n + start
            d = gradient[h]
            t0 = add_product(t0, d, load(weights, at, 64))
            t1 = add_product(t1, d, load(weights, at + 64, 64))
            t2 = add_product(t2, d, load(weights, at + 128, 64))
            t3 = add_product(t3, d, load(weights, at + 192, 64))
        store(x_gradient, start, t0)
        store(x_gradient, start + 64, t1)
        store(x_gradient, start + 128, t2)
        store(x_gradient, start + 192, t3)
        t0 = load(x, start, 64)
        t1 = load(x, start + 64, 64)
        t2 = load(x, start + 128, 64)
        t3 = load(x, start + 192, 64)
        for h in range(len(gradient)):
            at = h * n + start
            d = gradient[h]
            store(out, at, add_product(zero, d, t0))
            store(out, at + 64, add_product(zero, d, t1))
            store(out, at + 128, add_product(zero, d, t2))
            store(out, at + 192, add_product(zero, d, t3))


@part
def _loss(logits, label):
    """Compute the cross-entropy, and overwrite the logits [classes] by its gradient.

    Returns:
        The loss, and whether the label's logit is the first largest one.
    """
    best = 0
    for c in range(1, len(logits)):
        if logits[c] > logits[best]:
            best = c
    top = logits[best]
    total = 0.0
    for c in range(len(logits)):
        total += math.exp(np.float64(logits[c] - top))
    loss = math.log(total) - np.float64(logits[label] - top)
    for c in range(len(logits)):
        logits[c] = math.exp(np.float64(logits[c] - top)) / total
    logits[label] -= np.float32(1)
    return loss, best == label


@part
def _forward(image, scratch, ahead):
    """Compute the logits of one image [H, W, C] and write them to `residual`.

    `ahead` is as for `_convolve2`.
    """
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
    zero = constant(0, 32)
    x = load(scratch.hidden, 0, 32)
    x = where_greater(x, zero, x, zero)
    store(scratch.hidden, 0, x)
    b += HIDDEN
    classes = len(scratch.residual)
    for c in range(classes):
        y = sum_of_lanes(add_products(zero, x, load(w, b + c * HIDDEN, 32)))
        scratch.residual[c] = w[b + classes * HIDDEN + c] + y


@part
def _backward(scratch, out):
    """Write the gradient of the image of the last forward pass to out [d]."""
    w = scratch.theta
    classes = len(scratch.residual)
    conv1 = _conv1_size(scratch)
    conv2 = conv1 + 16
    fc1 = conv2 + 8192 + 32
    fc2 = fc1 + _FEATURES * HIDDEN + HIDDEN
    zero = gradient = constant(0, 32)
    hidden = load(scratch.hidden, 0, 32)
    for c in range(classes):
        d = scratch.residual[c]
        out[fc2 + classes * HIDDEN + c] = d
        store(out, fc2 + c * HIDDEN, add_product(zero, d, hidden))
        gradient = add_product(gradient, d, load(w, fc2 + c * HIDDEN, 32))
    store(scratch.hidden_gradient, 0, where_greater(hidden, zero, gradient, zero))
    _linear_gradient(
        scratch.pooled2,
        w[fc1 : fc2 - HIDDEN],
        scratch.hidden_gradient,
        scratch.active,
        out[fc1 : fc2 - HIDDEN],
        out[fc2 - HIDDEN : fc2],
        scratch.feature_gradient,
    )
    scratch.gradient2[:] = 0
    _pool_gradient(
        scratch.feature_gradient,
        scratch.code2,
        0,
        160,
        32,
        4,
        4,
        scratch.block,
        scratch.gradient2,
        out[fc1 - 32 : fc1],
    )
    _list_gradients(scratch.gradient2, scratch.listed, scratch.which, scratch.value)
    _convolve2_gradient(
        scratch.pooled1,
        w[conv2 : fc1 - 32],
        scratch.listed,
        scratch.which,
        scratch.value,
        out[conv2 : fc1 - 32],
        scratch.pooled_gradient,
    )
    scratch.plane_gradient[:] = 0
    _pool_gradient(
        scratch.pooled_gradient,
        scratch.code1,
        0,
        _ROW,
        16,
        12,
        12,
        scratch.block,
        scratch.plane_gradient,
        out[conv1:conv2],
    )
    _convolve1_gradient(scratch.padded, scratch.plane_gradient, out[:conv1])


@compiled
def _records(
    images, labels, usable, scratch, losses, correct, out, limit, total, norms
):
    """Compute losses [n], right answers [n] and, unless `out` is [0, d], gradients.

    An answer is right if the label has the largest logit. `usable` is the result of
    `_prepare`. If `total` is empty, the gradients are `out` [n, d]. Otherwise `out` [m,
    d] is a buffer for m records at a time; `add_clipped` adds their gradients to the
    total [d] and writes their norms to `norms` [n].
    """
    if not usable:
        losses[:] = np.nan
        correct[:] = False
        out[:] = np.nan
        norms[:] = np.nan
        return
    for i in range(len(images)):
        slot = i % len(out) if len(out) else 0
        _forward(
            images[i],
            scratch,
            out[slot, _conv1_size(scratch) + 16 :] if len(out) else scratch.theta,
        )
        losses[i], correct[i] = _loss(scratch.residual, labels[i])
        if len(out):
            _backward(scratch, out[slot])
        if len(total) and (slot == len(out) - 1 or i == len(images) - 1):
            add_clipped(out[: slot + 1], limit, total, norms[i - slot : i + 1])
