"""First layer of Conv-4, as part of `conv4_order`.

Its outputs are never stored (see `winograd`).
"""

from __future__ import annotations

import numpy as np

from dpkernels import conv4_room as of
from dpkernels.calls import Memory, array_at, matmul, power
from dpkernels.compiled import exact
from dpkernels.conv4_room import (
    first_layer,
    first_layer_gradient,
    first_layer_tangent,
)
from dpkernels.networks import NORMALISATION_EPSILON

# The first layer. With patches of mean m and covariance S, the outputs of weights w
# have mean m.w and variance w.S.w. The normalised layer is therefore the plain layer
# with weights A = k w and shift a = shift - k m.w, where k = scale / sqrt(w.S.w + eps);
# these formulas carry gradients of A and a to w, scale and shift. Each group
# has its own m, S, A and a, and its own gradient.


@exact
def _sum_of_products(a, b, out):
    """Compute out[F] = the sum of a * b over rows."""
    out[:] = 0
    for r in range(a.shape[0]):
        for f in range(a.shape[1]):
            out[f] += a[r, f] * b[r, f]


@exact
def first_forward(room, images, mean, covariance, row, point, codes):
    """Write the next layer's input, at weights `row` [d]."""
    scratch = room.scratch
    native = room.native
    weight = array_at(row, 0, 2)
    scale = array_at(row, 1, 1)
    shift = array_at(row, 2, 1)
    spread = array_at(point, of.SPREAD, 3)
    means = array_at(point, of.FIRST_MEAN, 2)
    stds = array_at(point, of.FIRST_STD, 2)
    gains = array_at(point, of.GAIN, 2)
    folded = array_at(scratch, of.FOLDED, 2)
    shifts = array_at(scratch, of.FIRST, 2)[0]
    window = array_at(scratch, of.WINDOW, 2)
    code = array_at(codes, 3, 3)
    padded = array_at(scratch, of.PADDED, 4)
    unit = scratch.numbers.dtype.type(1)
    epsilon = scratch.numbers.dtype.type(NORMALISATION_EPSILON)
    groups = len(mean)
    images_each = len(images) // groups
    matmul(native, mean, weight, means)
    for g in range(groups):
        matmul(native, covariance[g], weight, spread[g])
        _sum_of_products(weight, spread[g], stds[g])
        for f in range(len(scale)):
            stds[g, f] = unit / np.sqrt(stds[g, f] + epsilon)
            gains[g, f] = scale[f] * stds[g, f]
            shifts[f] = shift[f] - gains[g, f] * means[g, f]
        for r in range(len(weight)):
            for f in range(len(scale)):
                folded[r, f] = weight[r, f] * gains[g, f]
        first_layer(
            native.addresses,
            (
                images[g * images_each : (g + 1) * images_each],
                folded,
                shifts,
                window,
                padded[g * images_each : (g + 1) * images_each],
                code[g],
            ),
        )


@exact
def first_backward(room, images, mean, row, point, codes, out):
    """Write each group's gradients of the layer's weights to `out` [G, d]."""
    scratch = room.scratch
    native = room.native
    weight = array_at(row, 0, 2)
    spread = array_at(point, of.SPREAD, 3)
    means = array_at(point, of.FIRST_MEAN, 2)
    stds = array_at(point, of.FIRST_STD, 2)
    gains = array_at(point, of.GAIN, 2)
    plain = array_at(point, of.WEIGHTS_GRADIENT, 3)
    centred = array_at(point, of.CENTRED, 3)
    moments = array_at(point, of.MOMENT, 2)
    pulls = array_at(point, of.PULL, 2)
    shifts = array_at(point, of.SHIFT_GRADIENT, 2)
    code = array_at(codes, 3, 3)
    padded = array_at(scratch, of.PADDED_GRADIENT, 4)
    groups = len(mean)
    filters = weight.shape[1]
    images_each = len(images) // groups
    for g in range(groups):
        first_layer_gradient(
            native.addresses,
            (
                images[g * images_each : (g + 1) * images_each],
                padded[g * images_each : (g + 1) * images_each],
                code[g],
                plain[g],
                shifts[g],
            ),
        )
        _sum_of_products(weight, plain[g], moments[g])
        gradient = Memory(out[g], room.weights)
        to = array_at(gradient, 0, 2)
        scale = array_at(gradient, 1, 1)
        shift = array_at(gradient, 2, 1)
        for f in range(filters):
            moments[g, f] = moments[g, f] - means[g, f] * shifts[g, f]
            pulls[g, f] = gains[g, f] * stds[g, f] * stds[g, f] * moments[g, f]
            scale[f] = stds[g, f] * moments[g, f]
            shift[f] = shifts[g, f]
        for r in range(len(weight)):
            for f in range(filters):
                centred[g, r, f] = plain[g, r, f] - mean[g, r] * shifts[g, f]
                to[r, f] = (
                    gains[g, f] * centred[g, r, f] - pulls[g, f] * spread[g, r, f]
                )


@exact
def first_tangent(room, images, mean, covariance, row, along, point, codes):
    """Compute the derivative of `first_forward` along `along` [d]."""
    scratch = room.scratch
    native = room.native
    weight = array_at(row, 0, 2)
    scale = array_at(row, 1, 1)
    weight_dot = array_at(along, 0, 2)
    scale_dot = array_at(along, 1, 1)
    shift_dot = array_at(along, 2, 1)
    means = array_at(point, of.FIRST_MEAN, 2)[0]
    stds = array_at(point, of.FIRST_STD, 2)[0]
    gains = array_at(point, of.GAIN, 2)[0]
    folded = array_at(scratch, of.FOLDED, 2)
    spread_dot = array_at(scratch, of.SPREAD_DOT, 2)
    rows = array_at(scratch, of.FIRST, 2)
    mean_dot = rows[1:2]
    std_dot = rows[2]
    gain_dot = rows[3]
    shifts = rows[4]
    cubes = rows[5]
    matmul(native, covariance[0], weight_dot, spread_dot)
    matmul(native, mean, weight_dot, mean_dot)
    power(native, stds, array_at(scratch, of.THREE, 1), cubes)
    _sum_of_products(weight, spread_dot, std_dot)
    for f in range(len(scale)):
        std_dot[f] = -cubes[f] * std_dot[f]
        gain_dot[f] = scale_dot[f] * stds[f] + scale[f] * std_dot[f]
        shifts[f] = shift_dot[f] - gain_dot[f] * means[f] - gains[f] * mean_dot[0, f]
    for r in range(len(weight)):
        for f in range(len(scale)):
            folded[r, f] = weight_dot[r, f] * gains[f] + weight[r, f] * gain_dot[f]
    first_layer_tangent(
        native.addresses,
        (
            images,
            folded,
            shifts,
            array_at(codes, 3, 3)[0],
            array_at(scratch, of.WINDOW, 2),
            array_at(scratch, of.PADDED, 4),
        ),
    )


@exact
def first_tangent_backward(room, images, mean, row, along, point, codes, out):
    """Compute the derivative of `first_backward`.

    It continues with the scratch rows of `first_tangent`.
    """
    scratch = room.scratch
    native = room.native
    weight = array_at(row, 0, 2)
    weight_dot = array_at(along, 0, 2)
    spread = array_at(point, of.SPREAD, 3)[0]
    means = array_at(point, of.FIRST_MEAN, 2)[0]
    stds = array_at(point, of.FIRST_STD, 2)[0]
    gains = array_at(point, of.GAIN, 2)[0]
    plain = array_at(point, of.WEIGHTS_GRADIENT, 3)[0]
    centred = array_at(point, of.CENTRED, 3)[0]
    moments = array_at(point, of.MOMENT, 2)[0]
    pulls = array_at(point, of.PULL, 2)[0]
    shifts = array_at(point, of.SHIFT_GRADIENT, 2)[0]
    spread_dot = array_at(scratch, of.SPREAD_DOT, 2)
    plain_dot = array_at(scratch, of.WEIGHTS_GRADIENT_DOT, 2)
    rows = array_at(scratch, of.FIRST, 2)
    mean_dot = rows[1]
    std_dot = rows[2]
    gain_dot = rows[3]
    shifts_dot = rows[5]
    moment_dot = rows[6]
    pull_dot = rows[7]
    two = scratch.numbers.dtype.type(2)
    to = array_at(out, 0, 2)
    scale = array_at(out, 1, 1)
    shift = array_at(out, 2, 1)
    first_layer_gradient(
        native.addresses,
        (
            images,
            array_at(scratch, of.PADDED_GRADIENT, 4),
            array_at(codes, 3, 3)[0],
            plain_dot,
            shifts_dot,
        ),
    )
    moment_dot[:] = 0
    for r in range(len(weight)):
        for f in range(len(scale)):
            moment_dot[f] += (
                weight_dot[r, f] * plain[r, f] + weight[r, f] * plain_dot[r, f]
            )
    for f in range(len(scale)):
        s = stds[f]
        t = std_dot[f]
        moment_dot[f] = (
            moment_dot[f] - mean_dot[f] * shifts[f] - means[f] * shifts_dot[f]
        )
        pull_dot[f] = (
            gain_dot[f] * s * s * moments[f]
            + two * gains[f] * s * t * moments[f]
            + gains[f] * s * s * moment_dot[f]
        )
        scale[f] = t * moments[f] + s * moment_dot[f]
        shift[f] = shifts_dot[f]
    for r in range(len(weight)):
        for f in range(len(scale)):
            centred_dot = plain_dot[r, f] - mean[0, r] * shifts_dot[f]
            to[r, f] = (
                gain_dot[f] * centred[r, f]
                + gains[f] * centred_dot
                - pull_dot[f] * spread[r, f]
                - pulls[f] * spread_dot[r, f]
            )
