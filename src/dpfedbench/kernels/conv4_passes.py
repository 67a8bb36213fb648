"""Conv-4 by hand-written passes: what the passes of tasks (`batch_conv4`) and of records (`record_conv4`) share.

The order of the passes is compiled too. Python calls a pass over the whole network, of as many batches as it has, which
holds none of Python's locks: where it called each layer's loops one by one, two threads waited for it.

Images are normalised together in *groups* of equal size, one after another in a batch: a task's batch is one group, and
a network that normalises within each record has a group a record. Moments, and the first layer's folded weights, have
the group as their first dimension G.

Memory is given beforehand. A *point* holds what the derivatives of one batch at one set of weights need, the *scratch*
of a thread what no later pass needs; a table says what lies where in either. Of padded arrays the outer zeros are never
written to. All of a network's floats are of one type, in which each operation is rounded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from dpfedbench.compiled import compiled, exact
from dpfedbench.kernels import calls, winograd
from dpfedbench.kernels.calls import (
    Call,
    Native,
    array_at,
    copy,
    caller,
    elementwise,
    matmul,
    power,
    product,
    products,
    sum_of,
)
from dpfedbench.models.conv4 import NORMALISATION_EPSILON, Conv4
from dpfedbench.models.net import Array

_LOOPS = [
    Call(winograd.patches_of_images, "4,1,2"),
    Call(winograd.first_layer, "4,2,1,2,4,c2"),
    Call(winograd.first_layer_gradient, "4,4,c2,2,2,1"),
    Call(winograd.first_layer_tangent, "4,2,1,c2,2,4"),
    Call(winograd.tiles_of_input, "4,3"),
    Call(winograd.input_gradient_of_tiles, "3,2,4"),
    Call(winograd.outputs_of_tiles, "3,i,i,i,3,2"),
    Call(winograd.moments, "3,2,i,i,i,f,2,2"),
    Call(winograd.normalise_and_pool, "3,i,i,2,2,1,1,4,c2,2"),
    Call(winograd.pooled_gradient, "4,c2,2,i,i,2,2,2"),
    Call(winograd.gradient_tiles, "3,i,i,i,2,2,1,c2,2,2,2,3"),
    Call(winograd.tangent_moments, "3,3,1,i,i,i,1,1,1,1"),
    Call(winograd.tangent_normalise_and_pool, "3,i,i,1,1,1,1,1,1,c2,2,4,2"),
    Call(winograd.tangent_pooled_gradient, "4,c2,2,2,2,i,i,2,1,1"),
    Call(winograd.tangent_gradient_tiles, "3,3,i,i,i,1,1,1,1,1,1,c2,2,2,1,1,1,1,3"),
]
(
    _patches_of_images, _first_layer, _first_layer_gradient, _first_layer_tangent, _tiles_of_input,
    _input_gradient_of_tiles, _outputs_of_tiles, _moments, _normalise_and_pool, _pooled_gradient, _gradient_tiles,
    _tangent_moments, _tangent_normalise_and_pool, _tangent_pooled_gradient, _tangent_gradient_tiles,
) = (caller(place, call) for place, call in enumerate(_LOOPS))  # fmt: skip

# What lies in a point: of each of the three later layers, then of the first layer and the head.
_INPUTS, _WEIGHTS, _GRADIENTS, _Z, _SELECTED, _DELTA, _MEAN, _STD, _SCALE, _SHIFT = range(10)
_SPREAD, _WEIGHTS_GRADIENT, _CENTRED = range(30, 33)  # [G, 9*C, F]
_FIRST_MEAN, _FIRST_STD, _GAIN, _MOMENT, _PULL, _SHIFT_GRADIENT = range(33, 39)  # [G, F]
_FLAT, _PROBABILITIES, _RESIDUAL = range(39, 42)

# In the scratch: of each later layer and, its first two, of the features; then of all. Tangents have the names above.
_PADDED, _PADDED_GRADIENT, _OUTPUTS, _INPUT_GRADIENTS, _TOTAL = range(10, 15)
_WINDOW, _TILE, _TRANSPOSED, _PRODUCTS, _TAPS = range(60, 65)
_FOLDED, _SPREAD_DOT, _WEIGHTS_GRADIENT_DOT = range(65, 68)  # [9*C, F]
_FIRST = 68  # [8, F]
_LOGITS, _SHIFTED, _LOSSES, _SUM, _THREE, _FLAT_DOT, _FEATURE, _HEAD, _PATCHES = range(69, 78)


class Room(NamedTuple):
    """What a thread's passes compute with."""

    native: Native
    scratch: np.ndarray
    weights: np.ndarray
    """Where a tensor's rows of weights are, as all tables: int64 [parts, 5], the start and four sizes."""
    points: np.ndarray
    codes: np.ndarray
    scratches: np.ndarray
    planes: np.ndarray
    """int64 [3, 2]: later layers' heights and widths."""
    transform: np.ndarray
    """[16, 9], that of weights into their 16 products' form."""


class Images(NamedTuple):
    """Batches of images as the first layer reads them: zero-padded, with the moments of their groups' 3x3 patches."""

    padded: np.ndarray
    """[T, B, H+2, W+2, C]."""
    mean: np.ndarray
    """[T, G, 9*C]."""
    covariance: np.ndarray
    """[T, G, 9*C, 9*C]."""


class Points(NamedTuple):
    """Memory of T points."""

    floats: np.ndarray
    codes: np.ndarray


def _table(parts: dict[int, Sequence[int]], line: int) -> tuple[np.ndarray, int]:
    """Where arrays of these shapes are that each begin at a multiple of `line`; their size together."""
    table, start = np.zeros((max(parts) + 1, 5), np.int64), 0
    for place, shape in parts.items():
        table[place] = [start, *shape, *[1] * (4 - len(shape))]
        start += -(-math.prod(shape) // line) * line
    return table, start


# The first layer. With patches of mean m and covariance S, the outputs of weights w have mean m.w and variance w.S.w.
# The normalised layer is therefore the plain layer with weights A = k w and shift a = shift - k m.w, where
# k = scale / sqrt(w.S.w + eps); gradients in A and a are carried to w, scale and shift by these formulas. Each group
# has its own m, S, A and a, and its own gradient.


@exact
def _sum_of_products(a, b, out):
    """out[F] = the sum of a * b over rows."""
    out[:] = 0
    for r in range(a.shape[0]):
        for f in range(a.shape[1]):
            out[f] += a[r, f] * b[r, f]


@exact
def _first_forward(room, images, mean, covariance, row, point, codes):
    scratch, native = room.scratch, room.native
    weight = array_at(row, room.weights, 0, 2)
    scale, shift = array_at(row, room.weights, 1, 1), array_at(row, room.weights, 2, 1)
    spread, means = array_at(point, room.points, _SPREAD, 3), array_at(point, room.points, _FIRST_MEAN, 2)
    stds, gains = array_at(point, room.points, _FIRST_STD, 2), array_at(point, room.points, _GAIN, 2)
    folded, shifts = array_at(scratch, room.scratches, _FOLDED, 2), array_at(scratch, room.scratches, _FIRST, 2)[0]
    window, code = array_at(scratch, room.scratches, _WINDOW, 2), array_at(codes, room.codes, 3, 3)
    padded = array_at(scratch, room.scratches, _PADDED, 4)
    one, epsilon = scratch.dtype.type(1), scratch.dtype.type(NORMALISATION_EPSILON)
    groups = len(mean)
    each = len(images) // groups
    matmul(native, mean, weight, means)
    for g in range(groups):
        matmul(native, covariance[g], weight, spread[g])
        _sum_of_products(weight, spread[g], stds[g])
        for f in range(len(scale)):
            stds[g, f] = one / np.sqrt(stds[g, f] + epsilon)
            gains[g, f] = scale[f] * stds[g, f]
            shifts[f] = shift[f] - gains[g, f] * means[g, f]
        for r in range(len(weight)):
            for f in range(len(scale)):
                folded[r, f] = weight[r, f] * gains[g, f]
        _first_layer(
            native.addresses,
            (images[g * each : (g + 1) * each], folded, shifts, window, padded[g * each : (g + 1) * each], code[g]),
        )  # fmt: skip


@exact
def _first_backward(room, images, mean, row, point, codes, out):
    scratch, native = room.scratch, room.native
    weight = array_at(row, room.weights, 0, 2)
    spread, means = array_at(point, room.points, _SPREAD, 3), array_at(point, room.points, _FIRST_MEAN, 2)
    stds, gains = array_at(point, room.points, _FIRST_STD, 2), array_at(point, room.points, _GAIN, 2)
    plain, centred = array_at(point, room.points, _WEIGHTS_GRADIENT, 3), array_at(point, room.points, _CENTRED, 3)
    moments, pulls = array_at(point, room.points, _MOMENT, 2), array_at(point, room.points, _PULL, 2)
    shifts = array_at(point, room.points, _SHIFT_GRADIENT, 2)
    window, code = array_at(scratch, room.scratches, _WINDOW, 2), array_at(codes, room.codes, 3, 3)
    padded = array_at(scratch, room.scratches, _PADDED_GRADIENT, 4)
    groups, filters = len(mean), weight.shape[1]
    each = len(images) // groups
    for g in range(groups):
        _first_layer_gradient(
            native.addresses,
            (images[g * each : (g + 1) * each], padded[g * each : (g + 1) * each], code[g], window, plain[g], shifts[g]),
        )  # fmt: skip
        _sum_of_products(weight, plain[g], moments[g])
        to, scale, shift = (
            array_at(out[g], room.weights, 0, 2),
            array_at(out[g], room.weights, 1, 1),
            array_at(out[g], room.weights, 2, 1),
        )
        for f in range(filters):
            moments[g, f] = moments[g, f] - means[g, f] * shifts[g, f]
            pulls[g, f] = gains[g, f] * stds[g, f] * stds[g, f] * moments[g, f]
            scale[f], shift[f] = stds[g, f] * moments[g, f], shifts[g, f]
        for r in range(len(weight)):
            for f in range(filters):
                centred[g, r, f] = plain[g, r, f] - mean[g, r] * shifts[g, f]
                to[r, f] = gains[g, f] * centred[g, r, f] - pulls[g, f] * spread[g, r, f]


@exact
def _first_tangent(room, images, mean, covariance, row, along, point, codes):
    scratch, native = room.scratch, room.native
    weight, scale = array_at(row, room.weights, 0, 2), array_at(row, room.weights, 1, 1)
    weight_dot = array_at(along, room.weights, 0, 2)
    scale_dot, shift_dot = array_at(along, room.weights, 1, 1), array_at(along, room.weights, 2, 1)
    means, stds = array_at(point, room.points, _FIRST_MEAN, 2)[0], array_at(point, room.points, _FIRST_STD, 2)[0]
    gains = array_at(point, room.points, _GAIN, 2)[0]
    folded, spread_dot = (
        array_at(scratch, room.scratches, _FOLDED, 2),
        array_at(scratch, room.scratches, _SPREAD_DOT, 2),
    )
    rows = array_at(scratch, room.scratches, _FIRST, 2)
    mean_dot, std_dot, gain_dot, shifts, cubes = rows[1:2], rows[2], rows[3], rows[4], rows[5]
    matmul(native, covariance[0], weight_dot, spread_dot)
    matmul(native, mean, weight_dot, mean_dot)
    power(native, stds, array_at(scratch, room.scratches, _THREE, 1), cubes)
    _sum_of_products(weight, spread_dot, std_dot)
    for f in range(len(scale)):
        std_dot[f] = -cubes[f] * std_dot[f]
        gain_dot[f] = scale_dot[f] * stds[f] + scale[f] * std_dot[f]
        shifts[f] = shift_dot[f] - gain_dot[f] * means[f] - gains[f] * mean_dot[0, f]
    for r in range(len(weight)):
        for f in range(len(scale)):
            folded[r, f] = weight_dot[r, f] * gains[f] + weight[r, f] * gain_dot[f]
    _first_layer_tangent(
        native.addresses,
        (
            images, folded, shifts, array_at(codes, room.codes, 3, 3)[0], array_at(scratch, room.scratches, _WINDOW, 2),
            array_at(scratch, room.scratches, _PADDED, 4),
        ),
    )  # fmt: skip


@exact
def _first_tangent_backward(room, images, mean, row, along, point, codes, out):
    """After `_first_tangent`, whose rows of the scratch it goes on with."""
    scratch, native = room.scratch, room.native
    weight, weight_dot = array_at(row, room.weights, 0, 2), array_at(along, room.weights, 0, 2)
    spread, means = array_at(point, room.points, _SPREAD, 3)[0], array_at(point, room.points, _FIRST_MEAN, 2)[0]
    stds, gains = array_at(point, room.points, _FIRST_STD, 2)[0], array_at(point, room.points, _GAIN, 2)[0]
    plain, centred = array_at(point, room.points, _WEIGHTS_GRADIENT, 3)[0], array_at(point, room.points, _CENTRED, 3)[0]
    moments, pulls = array_at(point, room.points, _MOMENT, 2)[0], array_at(point, room.points, _PULL, 2)[0]
    shifts = array_at(point, room.points, _SHIFT_GRADIENT, 2)[0]
    spread_dot = array_at(scratch, room.scratches, _SPREAD_DOT, 2)
    plain_dot = array_at(scratch, room.scratches, _WEIGHTS_GRADIENT_DOT, 2)
    rows = array_at(scratch, room.scratches, _FIRST, 2)
    mean_dot, std_dot, gain_dot, shifts_dot, moment_dot, pull_dot = rows[1], rows[2], rows[3], rows[5], rows[6], rows[7]
    two = scratch.dtype.type(2)
    to, scale, shift = (
        array_at(out, room.weights, 0, 2),
        array_at(out, room.weights, 1, 1),
        array_at(out, room.weights, 2, 1),
    )
    _first_layer_gradient(
        native.addresses,
        (
            images, array_at(scratch, room.scratches, _PADDED_GRADIENT, 4), array_at(codes, room.codes, 3, 3)[0],
            array_at(scratch, room.scratches, _WINDOW, 2), plain_dot, shifts_dot,
        ),
    )  # fmt: skip
    moment_dot[:] = 0
    for r in range(len(weight)):
        for f in range(len(scale)):
            moment_dot[f] += weight_dot[r, f] * plain[r, f] + weight[r, f] * plain_dot[r, f]
    for f in range(len(scale)):
        s, t = stds[f], std_dot[f]
        moment_dot[f] = moment_dot[f] - mean_dot[f] * shifts[f] - means[f] * shifts_dot[f]
        pull_dot[f] = (
            gain_dot[f] * s * s * moments[f] + two * gains[f] * s * t * moments[f] + gains[f] * s * s * moment_dot[f]
        )
        scale[f], shift[f] = t * moments[f] + s * moment_dot[f], shifts_dot[f]
    for r in range(len(weight)):
        for f in range(len(scale)):
            centred_dot = plain_dot[r, f] - mean[0, r] * shifts_dot[f]
            to[r, f] = (
                gain_dot[f] * centred[r, f]
                + gains[f] * centred_dot
                - pull_dot[f] * spread[r, f]
                - pulls[f] * spread_dot[r, f]
            )


# All layers


@exact
def _transformed(room, weight, out):
    """A later layer's weights [9*F, F], or their tangent, in the 16 products' form."""
    size = weight.size // 9
    product(room.native, room.transform, False, weight.reshape((9, size)), out.reshape((16, size)))


@exact
def _untransformed(room, index, out):
    """Carry the gradients in the 16 products' weights to a later layer's own, of each group [G, d].

    `taps` is memory of its own, not a part of a row of gradients: a product's last bits may depend on where its result
    begins in memory (MKL on two threads).
    """
    gradients, taps = (
        array_at(room.scratch, room.scratches, _PRODUCTS, 3),
        array_at(room.scratch, room.scratches, _TAPS, 2),
    )
    product(room.native, room.transform, True, gradients.reshape((16, gradients.size // 16)), taps)
    each = taps.shape[1] // len(out)
    for g in range(len(out)):
        weight = array_at(out[g], room.weights, 3 * index + 3, 2).reshape((9, each))
        for tap in range(9):
            copy(taps[tap, g * each : (g + 1) * each], weight[tap])


@exact
def _transpose(weights, out):
    for n in range(weights.shape[0]):
        for i in range(weights.shape[1]):
            for j in range(weights.shape[2]):
                out[n, j, i] = weights[n, i, j]


@exact
def _inside(padded, flat):
    """What is inside the border of zeros, an image a row."""
    images, height, width, filters = padded.shape
    for b in range(images):
        for i in range(height - 2):
            for j in range(width - 2):
                start = (i * (width - 2) + j) * filters
                copy(padded[b, i + 1, j + 1], flat[b, start : start + filters])


@exact
def _put_inside(flat, padded):
    """The inverse of `_inside`."""
    images, height, width, filters = padded.shape
    for b in range(images):
        for i in range(height - 2):
            for j in range(width - 2):
                start = (i * (width - 2) + j) * filters
                copy(flat[b, start : start + filters], padded[b, i + 1, j + 1])


@exact
def _logits(room, images, mean, covariance, row, point, codes):
    """Logits [B, ways] in the scratch, of a batch at weights `row` [d]."""
    scratch, native = room.scratch, room.native
    transformed, flat = array_at(scratch, room.scratches, _LOGITS, 2), array_at(point, room.points, _FLAT, 2)
    _first_forward(room, images, mean, covariance, row, point, codes)
    count = len(images)
    for index in range(3):
        height, width = room.planes[index, 0], room.planes[index, 1]
        own, shared = 10 * index, 15 * index
        inputs, weights = (
            array_at(point, room.points, own + _INPUTS, 3),
            array_at(point, room.points, own + _WEIGHTS, 3),
        )
        z, means, stds = (
            array_at(point, room.points, own + _Z, 3), array_at(point, room.points, own + _MEAN, 2),
            array_at(point, room.points, own + _STD, 2),
        )  # fmt: skip
        outputs, total = (
            array_at(scratch, room.scratches, shared + _OUTPUTS, 3), array_at(scratch, room.scratches, shared + _TOTAL, 2),
        )  # fmt: skip
        _tiles_of_input(native.addresses, (array_at(scratch, room.scratches, shared + _PADDED, 4), inputs))
        _transformed(room, array_at(row, room.weights, 3 * index + 3, 2), weights)
        products(native, inputs, False, weights, outputs, False)
        _outputs_of_tiles(native.addresses, (outputs, count, height, width, z, total))
        _moments(native.addresses, (z, total, count, height, width, NORMALISATION_EPSILON, means, stds))
        _normalise_and_pool(
            native.addresses,
            (
                z, height, width, means, stds, array_at(row, room.weights, 3 * index + 4, 1),
                array_at(row, room.weights, 3 * index + 5, 1), array_at(scratch, room.scratches, shared + 15 + _PADDED, 4),
                array_at(codes, room.codes, index, 2), array_at(point, room.points, own + _SELECTED, 2),
            ),
        )  # fmt: skip
    _inside(array_at(scratch, room.scratches, 45 + _PADDED, 4), flat)
    matmul(native, flat, array_at(row, room.weights, 12, 2), transformed)
    bias = array_at(row, room.weights, 13, 1)
    for b in range(count):
        for k in range(len(bias)):
            transformed[b, k] = transformed[b, k] + bias[k]


@exact
def _largest(row):
    """Where a row's maximum is, or its first NaN."""
    best = 0
    for k in range(1, len(row)):
        if row[best] == row[best] and not row[k] <= row[best]:
            best = k
    return best


@exact
def _losses(room, labels, point, by_record):
    """Each image's cross-entropy in the scratch, and the gradient in the logits in the point; right answers."""
    scratch, native = room.scratch, room.native
    logits, shifted = array_at(scratch, room.scratches, _LOGITS, 2), array_at(scratch, room.scratches, _SHIFTED, 2)
    losses, total = array_at(scratch, room.scratches, _LOSSES, 1), array_at(scratch, room.scratches, _SUM, 1)
    probabilities, residual = (
        array_at(point, room.points, _PROBABILITIES, 2),
        array_at(point, room.points, _RESIDUAL, 2),
    )
    count, ways = logits.shape
    for b in range(count):
        top = logits[b, _largest(logits[b])]
        for k in range(ways):
            shifted[b, k] = logits[b, k] - top
    elementwise(native, calls.EXP, shifted, probabilities)
    divisor = scratch.dtype.type(1 if by_record else count)
    for b in range(count):
        sum_of(native, probabilities[b], total[b : b + 1])
        for k in range(ways):
            probabilities[b, k] = probabilities[b, k] / total[b]
            residual[b, k] = probabilities[b, k]
        residual[b, labels[b]] -= scratch.dtype.type(1)
        for k in range(ways):
            residual[b, k] = residual[b, k] / divisor
    elementwise(native, calls.LOG, total, losses)
    for b in range(count):
        losses[b] = losses[b] - shifted[b, labels[b]]


@exact
def _head_backward(room, point, out, by_record):
    native = room.native
    flat, residual = array_at(point, room.points, _FLAT, 2), array_at(point, room.points, _RESIDUAL, 2)
    if by_record:
        for b in range(len(flat)):
            weight, bias = array_at(out[b], room.weights, 12, 2), array_at(out[b], room.weights, 13, 1)
            copy(residual[b], bias)
            for i in range(flat.shape[1]):
                for k in range(len(bias)):
                    weight[i, k] = flat[b, i] * residual[b, k]
    else:
        matmul(native, flat.T, residual, array_at(out[0], room.weights, 12, 2))
        _sum_of_rows(residual, array_at(out[0], room.weights, 13, 1))


@exact
def _sum_of_rows(rows, out):
    out[:] = 0
    for b in range(len(rows)):
        for k in range(len(out)):
            out[k] += rows[b, k]


@exact
def _backward(room, images, mean, row, point, codes, out, by_record):
    """Write the gradients of a batch's groups, [G, d]."""
    scratch, native = room.scratch, room.native
    feature, count = array_at(scratch, room.scratches, _FEATURE, 2), len(images)
    gradients_of_weights = array_at(scratch, room.scratches, _PRODUCTS, 3)
    _head_backward(room, point, out, by_record)
    matmul(native, array_at(point, room.points, _RESIDUAL, 2), array_at(row, room.weights, 12, 2).T, feature)
    _put_inside(feature, array_at(scratch, room.scratches, 45 + _PADDED_GRADIENT, 4))
    for after in range(3):
        index = 2 - after
        height, width = room.planes[index, 0], room.planes[index, 1]
        own, shared = 10 * index, 15 * index
        inputs, gradients = (
            array_at(point, room.points, own + _INPUTS, 3),
            array_at(point, room.points, own + _GRADIENTS, 3),
        )
        code, delta = array_at(codes, room.codes, index, 2), array_at(point, room.points, own + _DELTA, 2)
        shifts, scales = array_at(point, room.points, own + _SHIFT, 2), array_at(point, room.points, own + _SCALE, 2)
        _pooled_gradient(
            native.addresses,
            (
                array_at(scratch, room.scratches, shared + 15 + _PADDED_GRADIENT, 4), code,
                array_at(point, room.points, own + _SELECTED, 2), height, width, delta, shifts, scales,
            ),
        )  # fmt: skip
        for g in range(len(out)):
            copy(shifts[g], array_at(out[g], room.weights, 3 * index + 5, 1))
            copy(scales[g], array_at(out[g], room.weights, 3 * index + 4, 1))
        _gradient_tiles(
            native.addresses,
            (
                array_at(point, room.points, own + _Z, 3), height, width, count, array_at(point, room.points, own + _MEAN, 2),
                array_at(point, room.points, own + _STD, 2), array_at(row, room.weights, 3 * index + 4, 1), code, delta, shifts,
                scales, gradients,
            ),
        )  # fmt: skip
        # A group's tiles lie side by side, so that each group has its own 16 products.
        _, tiles, filters = inputs.shape
        each = (len(gradients_of_weights), 16 * tiles // len(gradients_of_weights), filters)
        products(native, inputs.reshape(each), True, gradients.reshape(each), gradients_of_weights, False)
        _untransformed(room, index, out)
        transposed = array_at(scratch, room.scratches, _TRANSPOSED, 3)
        _transpose(array_at(point, room.points, own + _WEIGHTS, 3), transposed)  # cheaper than a transposed product
        input_gradients = array_at(scratch, room.scratches, shared + _INPUT_GRADIENTS, 3)
        products(native, gradients, False, transposed, input_gradients, False)
        _input_gradient_of_tiles(
            native.addresses,
            (
                input_gradients, array_at(scratch, room.scratches, _TILE, 2),
                array_at(scratch, room.scratches, shared + _PADDED_GRADIENT, 4),
            ),
        )  # fmt: skip
    _first_backward(room, images, mean, row, point, codes, out)


@exact
def _head_product(room, row, along, point, out):
    """The head's part of a Hessian product, from the features' tangent; then the features' own gradient's tangent."""
    scratch, native = room.scratch, room.native
    flat, residual = array_at(point, room.points, _FLAT, 2), array_at(point, room.points, _RESIDUAL, 2)
    probabilities, weight = array_at(point, room.points, _PROBABILITIES, 2), array_at(row, room.weights, 12, 2)
    weight_dot, bias_dot = array_at(along, room.weights, 12, 2), array_at(along, room.weights, 13, 1)
    flat_dot, feature = array_at(scratch, room.scratches, _FLAT_DOT, 2), array_at(scratch, room.scratches, _FEATURE, 2)
    logits, more = array_at(scratch, room.scratches, _LOGITS, 2), array_at(scratch, room.scratches, _SHIFTED, 2)
    total, head = array_at(scratch, room.scratches, _SUM, 1), array_at(scratch, room.scratches, _HEAD, 2)
    to = array_at(out, room.weights, 12, 2)
    count, ways = logits.shape
    _inside(array_at(scratch, room.scratches, 45 + _PADDED, 4), flat_dot)
    matmul(native, flat_dot, weight, logits)
    matmul(native, flat, weight_dot, more)
    for b in range(count):
        for k in range(ways):
            logits[b, k] = logits[b, k] + more[b, k] + bias_dot[k]
            more[b, k] = probabilities[b, k] * logits[b, k]
        sum_of(native, more[b], total[b : b + 1])
        for k in range(ways):
            logits[b, k] = probabilities[b, k] * (logits[b, k] - total[b]) / scratch.dtype.type(count)
    matmul(native, flat_dot.T, residual, to)
    matmul(native, flat.T, logits, head)
    for i in range(len(head)):
        for k in range(ways):
            to[i, k] += head[i, k]
    _sum_of_rows(logits, array_at(out, room.weights, 13, 1))
    matmul(native, logits, weight.T, feature)
    matmul(native, residual, weight_dot.T, flat_dot)
    for b in range(count):
        for i in range(feature.shape[1]):
            feature[b, i] = feature[b, i] + flat_dot[b, i]
    _put_inside(feature, array_at(scratch, room.scratches, 45 + _PADDED_GRADIENT, 4))


@exact
def _product(room, images, mean, covariance, row, along, point, codes, out):
    """Write the Hessian of a batch's loss times `along` [d] to `out` [1, d].

    The product is the directional derivative of the gradient: each pass here is the derivative of the pass of the same
    place in `_logits` and `_backward`.
    """
    scratch, native = room.scratch, room.native
    count = len(images)
    _first_tangent(room, images, mean, covariance, row, along, point, codes)
    for index in range(3):
        height, width = room.planes[index, 0], room.planes[index, 1]
        own, shared = 10 * index, 15 * index
        inputs_dot = array_at(scratch, room.scratches, shared + _INPUTS, 3)
        weights_dot = array_at(scratch, room.scratches, shared + _WEIGHTS, 3)
        z_dot, mean_dot = (
            array_at(scratch, room.scratches, shared + _Z, 3),
            array_at(scratch, room.scratches, shared + _MEAN, 1),
        )
        slope, stds = (
            array_at(scratch, room.scratches, shared + _STD, 1),
            array_at(point, room.points, own + _STD, 2)[0],
        )
        outputs = array_at(scratch, room.scratches, shared + _OUTPUTS, 3)
        total = array_at(scratch, room.scratches, shared + _TOTAL, 2)
        _tiles_of_input(native.addresses, (array_at(scratch, room.scratches, shared + _PADDED, 4), inputs_dot))
        _transformed(room, array_at(along, room.weights, 3 * index + 3, 2), weights_dot)
        products(native, array_at(point, room.points, own + _INPUTS, 3), False, weights_dot, outputs, False)
        products(native, inputs_dot, False, array_at(point, room.points, own + _WEIGHTS, 3), outputs, True)
        _outputs_of_tiles(native.addresses, (outputs, count, height, width, z_dot, total))
        _tangent_moments(
            native.addresses,
            (
                array_at(point, room.points, own + _Z, 3), z_dot, total[0], count, height, width,
                array_at(point, room.points, own + _MEAN, 2)[0], stds, mean_dot, slope,
            ),
        )  # fmt: skip
        _tangent_normalise_and_pool(
            native.addresses,
            (
                z_dot, height, width, stds, mean_dot, slope, array_at(row, room.weights, 3 * index + 4, 1),
                array_at(along, room.weights, 3 * index + 4, 1), array_at(along, room.weights, 3 * index + 5, 1),
                array_at(codes, room.codes, index, 2), array_at(point, room.points, own + _SELECTED, 2),
                array_at(scratch, room.scratches, shared + 15 + _PADDED, 4),
                array_at(scratch, room.scratches, shared + _SELECTED, 2),
            ),
        )  # fmt: skip
    _head_product(room, row, along, point, out[0])
    gradients_of_weights, transposed = (
        array_at(scratch, room.scratches, _PRODUCTS, 3), array_at(scratch, room.scratches, _TRANSPOSED, 3),
    )  # fmt: skip
    for after in range(3):
        index = 2 - after
        height, width = room.planes[index, 0], room.planes[index, 1]
        own, shared = 10 * index, 15 * index
        code, delta = array_at(codes, room.codes, index, 2), array_at(point, room.points, own + _DELTA, 2)
        delta_dot = array_at(scratch, room.scratches, shared + _DELTA, 2)
        shift_dot = array_at(scratch, room.scratches, shared + _SHIFT, 1)
        scale_dot = array_at(scratch, room.scratches, shared + _SCALE, 1)
        _tangent_pooled_gradient(
            native.addresses,
            (
                array_at(scratch, room.scratches, shared + 15 + _PADDED_GRADIENT, 4), code,
                array_at(point, room.points, own + _SELECTED, 2), array_at(scratch, room.scratches, shared + _SELECTED, 2), delta,
                height, width, delta_dot, shift_dot, scale_dot,
            ),
        )  # fmt: skip
        copy(shift_dot, array_at(out[0], room.weights, 3 * index + 5, 1))
        copy(scale_dot, array_at(out[0], room.weights, 3 * index + 4, 1))
        outputs = array_at(scratch, room.scratches, shared + _OUTPUTS, 3)
        _tangent_gradient_tiles(
            native.addresses,
            (
                array_at(point, room.points, own + _Z, 3), array_at(scratch, room.scratches, shared + _Z, 3), height, width, count,
                array_at(point, room.points, own + _MEAN, 2)[0], array_at(point, room.points, own + _STD, 2)[0],
                array_at(scratch, room.scratches, shared + _MEAN, 1), array_at(scratch, room.scratches, shared + _STD, 1),
                array_at(row, room.weights, 3 * index + 4, 1), array_at(along, room.weights, 3 * index + 4, 1), code, delta,
                delta_dot, array_at(point, room.points, own + _SHIFT, 2)[0], array_at(point, room.points, own + _SCALE, 2)[0],
                shift_dot, scale_dot, outputs,
            ),
        )  # fmt: skip
        gradients = array_at(point, room.points, own + _GRADIENTS, 3)
        products(native, array_at(point, room.points, own + _INPUTS, 3), True, outputs, gradients_of_weights, False)
        inputs_dot = array_at(scratch, room.scratches, shared + _INPUTS, 3)
        products(native, inputs_dot, True, gradients, gradients_of_weights, True)
        _untransformed(room, index, out)
        input_gradients = array_at(scratch, room.scratches, shared + _INPUT_GRADIENTS, 3)
        _transpose(array_at(point, room.points, own + _WEIGHTS, 3), transposed)
        products(native, outputs, False, transposed, input_gradients, False)
        _transpose(array_at(scratch, room.scratches, shared + _WEIGHTS, 3), transposed)
        products(native, gradients, False, transposed, input_gradients, True)
        _input_gradient_of_tiles(
            native.addresses,
            (
                input_gradients, array_at(scratch, room.scratches, _TILE, 2),
                array_at(scratch, room.scratches, shared + _PADDED_GRADIENT, 4),
            ),
        )  # fmt: skip
    _first_tangent_backward(room, images, mean, row, along, point, codes, out[0])


# What Python calls: T batches, one after another.


@compiled
def _prepare(room, x, padded, means, covariances):
    """`Images` of x [T, B, H, W, C]."""
    scratch, groups = room.scratch, means.shape[1]
    each = x.shape[1] // groups
    patches = array_at(scratch, room.scratches, _PATCHES, 2)
    for t in range(len(x)):
        _border(x[t], padded[t])
        for g in range(groups):
            mean = means[t, g]
            _patches_of_images(room.native.addresses, (padded[t, g * each : (g + 1) * each], mean, patches))
            matmul(room.native, patches.T, patches, covariances[t, g])
            _divide(covariances[t, g], len(patches))


@exact
def _border(x, padded):
    images, height, width, channels = x.shape
    padded[:] = 0
    for b in range(images):
        for i in range(height):
            for j in range(width):
                for c in range(channels):
                    padded[b, i + 1, j + 1, c] = x[b, i, j, c]


@exact
def _divide(matrix, count):
    divisor = matrix.dtype.type(count)
    for i in range(matrix.shape[0]):
        for j in range(matrix.shape[1]):
            matrix[i, j] = matrix[i, j] / divisor


@compiled
def _evaluate(room, theta, images, labels, points, by_record, logits, losses, right):
    """Logits [T, B, ways] of batches at weights [T, d] and, unless `losses` is empty, losses and right answers [T, B].

    Weights and points may be one for all.
    """
    for t in range(len(logits)):
        row, place = theta[t if len(theta) > 1 else 0], t if len(points.floats) > 1 else 0
        point = points.floats[place]
        _logits(room, images.padded[t], images.mean[t], images.covariance[t], row, point, points.codes[place])
        found = array_at(room.scratch, room.scratches, _LOGITS, 2)
        for b in range(len(found)):
            copy(found[b], logits[t, b])
        if len(losses) > 0:
            _losses(room, labels[t], point, by_record)
            copy(array_at(room.scratch, room.scratches, _LOSSES, 1), losses[t])
            for b in range(len(found)):
                right[t, b] = _largest(found[b]) == labels[t, b]


@compiled
def _gradients(room, theta, images, points, by_record, out):
    """Gradients [T, G, d] of batches' groups, of which `_evaluate` made the points."""
    for t in range(len(out)):
        floats, codes = points.floats[t], points.codes[t]
        _backward(room, images.padded[t], images.mean[t], theta[t], floats, codes, out[t], by_record)


@compiled
def _hessian_products(room, theta, images, direction, points, out):
    """Hessians of tasks times directions [T, d], after `_gradients`."""
    for t in range(len(theta)):
        _product(
            room, images.padded[t], images.mean[t], images.covariance[t], theta[t], direction[t], points.floats[t],
            points.codes[t], out[t : t + 1],
        )  # fmt: skip


class Passes:
    """Passes over batches of one size, for weights given as flat vectors.

    Args:
        net: the network's shapes.
        batch: images in a batch.
        dtype: numpy float32 or float64.
        by_record: whether each image is normalised by itself and has a gradient of its own.

    Not safe for use by two threads at once: give each its own object.
    """

    def __init__(self, net: Conv4, batch: int, dtype: type, by_record: bool = False) -> None:
        groups = batch if by_record else 1
        self.batch, self.groups, self.by_record = batch, groups, by_record
        self.number, self.ways = np.dtype(dtype), net.ways
        height, width, channels = net.image_shape
        f, patch, line = net.filters, 9 * channels, 64 // self.number.itemsize
        planes = [(height >> level, width >> level) for level in (1, 2, 3)]
        point: dict[int, Sequence[int]] = {}
        scratch: dict[int, Sequence[int]] = {}
        codes: dict[int, Sequence[int]] = {3: (groups, batch // groups * planes[0][0] * planes[0][1], f)}
        for index, (h, w) in enumerate(planes):
            rows, columns = (h + 1) // 2, (w + 1) // 2
            tiles, padded = batch * rows * columns, (batch, 2 * rows + 2, 2 * columns + 2, f)
            point |= {10 * index + part: (16, tiles, f) for part in (_INPUTS, _GRADIENTS)}
            point |= {10 * index + _WEIGHTS: (16, f, f), 10 * index + _Z: (tiles, 4, f)}
            point |= {10 * index + part: (tiles, f) for part in (_SELECTED, _DELTA)}
            point |= {10 * index + part: (groups, f) for part in (_MEAN, _STD, _SCALE, _SHIFT)}
            codes[index] = (tiles, f)
            own: dict[int, Sequence[int]] = {part: padded for part in (_PADDED, _PADDED_GRADIENT)}
            own |= {part: (16, tiles, f) for part in (_OUTPUTS, _INPUT_GRADIENTS)} | {_TOTAL: (groups, f)}
            if not by_record:
                own |= {_INPUTS: (16, tiles, f), _WEIGHTS: (16, f, f), _Z: (tiles, 4, f)}
                own |= {part: (tiles, f) for part in (_SELECTED, _DELTA)}
                own |= {part: (f,) for part in (_MEAN, _STD, _SCALE, _SHIFT)}
            scratch |= {15 * index + part: shape for part, shape in own.items()}
        h, w = height >> 4, width >> 4
        features = h * w * f
        point |= {part: (groups, patch, f) for part in (_SPREAD, _WEIGHTS_GRADIENT, _CENTRED)}
        point |= {part: (groups, f) for part in range(_FIRST_MEAN, _SHIFT_GRADIENT + 1)}
        point |= {_FLAT: (batch, features), _PROBABILITIES: (batch, net.ways), _RESIDUAL: (batch, net.ways)}
        scratch |= {45 + part: (batch, h + 2, w + 2, f) for part in (_PADDED, _PADDED_GRADIENT)}
        scratch |= {_WINDOW: (4, f), _TILE: (16, f), _TRANSPOSED: (16, f, f), _PRODUCTS: (16 * groups, f, f)}
        scratch |= {_TAPS: (9, groups * f * f), _FIRST: (8, f), _LOSSES: (batch,), _SUM: (batch,), _THREE: (1,)}
        scratch |= {part: (patch, f) for part in (_FOLDED, _SPREAD_DOT, _WEIGHTS_GRADIENT_DOT)}
        scratch |= {part: (batch, net.ways) for part in (_LOGITS, _SHIFTED)}
        scratch |= {part: (batch, features) for part in (_FLAT_DOT, _FEATURE)}
        scratch |= {_HEAD: (features, net.ways), _PATCHES: (batch // groups * height * width, patch)}
        weights = [(math.prod(shape[:-1]), shape[-1]) if len(shape) > 1 else shape for shape in net.shapes]
        points, self._floats = _table(point, line)
        places, self._codes = _table(codes, 64)
        scratches, size = _table(scratch, line)
        largest = max(math.prod(shape) for shape in (*point.values(), scratch[_PRODUCTS]))
        self._room = Room(
            native=calls.native(_LOOPS, self.number, products=16 * groups, largest=max(largest, 16 * f * f)),
            scratch=_zeros(size, self.number),
            weights=_table(dict(enumerate(weights)), 1)[0],
            points=points,
            codes=places,
            scratches=scratches,
            planes=np.array(planes, np.int64),
            transform=winograd.WEIGHT_TRANSFORM.astype(self.number),
        )
        start = scratches[_THREE, 0]
        self._room.scratch[start] = 3
        self._image_shape = net.image_shape

    def points(self, count: int) -> Points:
        """Places for so many batches' evaluations to be stored in."""
        floats, codes = _zeros(count * self._floats, self.number), _zeros(count * self._codes, np.dtype(np.uint8))
        return Points(floats.reshape(count, -1), codes.reshape(count, -1))

    def images(self, x: np.ndarray) -> Images:
        """Batches of floats [T, B, H, W, C] as the first layer reads them."""
        height, width, channels = self._image_shape
        tasks, patch = len(x), 9 * channels
        found = Images(
            np.empty((tasks, self.batch, height + 2, width + 2, channels), self.number),
            np.empty((tasks, self.groups, patch), self.number),
            np.empty((tasks, self.groups, patch, patch), self.number),
        )
        _prepare(self._room, _plain(x), *found)
        return found

    def logits(self, theta: np.ndarray, images: Images, at: Points) -> np.ndarray:
        """Logits [T, B, ways] of batches at weights [T, d] or, for all, [1, d]; `at` has one place."""
        labels = np.empty((0, self.batch), np.int64)
        return self._evaluated(theta, images, labels, at)[0]

    def losses(
        self, theta: np.ndarray, images: Images, labels: np.ndarray, at: Points
    ) -> tuple[np.ndarray, np.ndarray]:
        """Losses, and which answers are right, of images [T, B] at weights [T, d]; stores what derivatives need."""
        return self._evaluated(theta, images, labels, at)[1:]

    def _evaluated(self, theta: np.ndarray, images: Images, labels: np.ndarray, at: Points) -> tuple[np.ndarray, ...]:
        logits = np.empty((len(images.padded), self.batch, self.ways), self.number)
        losses, right = np.empty(labels.shape, self.number), np.empty(labels.shape, np.bool_)
        given = _plain(theta), images, _plain(labels), at, self.by_record
        _evaluate(self._room, *given, logits, losses, right)
        return logits, losses, right

    def gradients(self, theta: np.ndarray, images: Images, at: Points, out: np.ndarray) -> None:
        """Gradients of the groups' losses that were last evaluated, at the same weights, to `out` [T * G, d].

        A task's is that of its mean loss, a record's that of its own.
        """
        to = _plain(out)
        rows = to.reshape(-1, self.groups, to.shape[-1])
        _gradients(self._room, _plain(theta), images, at, self.by_record, rows)
        if to is not out:
            out[:] = to

    def hessian_products(
        self, theta: np.ndarray, images: Images, direction: np.ndarray, at: Points, out: np.ndarray
    ) -> None:
        """Hessians of the losses times directions [T, d] to `out` [T, d]; after `gradients`."""
        to = _plain(out)
        _hessian_products(self._room, _plain(theta), images, _plain(direction), at, to)
        if to is not out:
            out[:] = to


def as_floats(x: Array, dtype: np.dtype) -> np.ndarray:
    """Images of numpy's or torch's uint8 or floats as floats in [0, 1]."""
    x = x.numpy() if isinstance(x, torch.Tensor) else x
    return x.astype(dtype) / dtype.type(255) if x.dtype == np.uint8 else np.ascontiguousarray(x, dtype)


def _plain(array: np.ndarray) -> np.ndarray:
    """A contiguous, writable array: each other kind would be compiled for anew."""
    flags = array.flags
    return array if flags.carray else np.require(array, requirements=("C", "A", "W"))


def _zeros(size: int, number: np.dtype) -> np.ndarray:
    """Zeros [size] that begin at a cache line."""
    room = np.zeros(size * number.itemsize + 64, np.uint8)
    start = -room.ctypes.data % 64
    return room[start : start + size * number.itemsize].view(number)
