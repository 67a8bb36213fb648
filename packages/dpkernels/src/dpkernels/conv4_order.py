"""Compiled order of the passes over Conv-4: the functions that Python calls.

One call computes T batches. All floats of a network have one type, and each operation
here is rounded to it.
"""

from __future__ import annotations

from dpkernels import calls
from dpkernels import conv4_room as of
from dpkernels.calls import Memory, array_at, copy, elementwise, matmul, sum_of
from dpkernels.compiled import compiled, exact, part
from dpkernels.conv4_first import (
    first_backward,
    first_forward,
    first_tangent,
    first_tangent_backward,
)
from dpkernels.conv4_room import (
    gradient_tiles,
    input_gradient_of_tiles,
    inside,
    moments,
    normalise_and_pool,
    outputs_of_tiles,
    patches_of_images,
    pooled_gradient,
    put_inside,
    tangent_gradient_tiles,
    tangent_moments,
    tangent_normalise_and_pool,
    tangent_pooled_gradient,
    tiles_of_input,
)
from dpkernels.networks import NORMALISATION_EPSILON
from dpkernels.products import product, products, transpose


@exact
def _transformed(room, weight, out):
    """Transform a later layer's weights, or their tangent, for the 16 products."""
    size = weight.size // 9
    product(
        room.native,
        room.transform,
        False,
        weight.reshape((9, size)),
        out.reshape((16, size)),
    )


@exact
def _untransformed(room, index, out):
    """Transform the gradients of the 16 products' weights to a later layer's weights.

    The result has each group [G, d]. `taps` is a separate buffer, not a part of a row
    of gradients: a product's last bits may depend on the memory address of its result
    (MKL on two threads).
    """
    gradients = array_at(room.scratch, of.PRODUCTS, 3)
    taps = array_at(room.scratch, of.TAPS, 2)
    product(
        room.native,
        room.transform,
        True,
        gradients.reshape((16, gradients.size // 16)),
        taps,
    )
    columns_each = taps.shape[1] // len(out)
    for g in range(len(out)):
        weight = array_at(Memory(out[g], room.weights), 3 * index + 3, 2).reshape(
            (9, columns_each)
        )
        for tap in range(9):
            copy(taps[tap, g * columns_each : (g + 1) * columns_each], weight[tap])


@exact
def _logits(room, images, mean, covariance, row, point, codes):
    """Write the logits [B, ways] of a batch at weights `row` [d] to the scratch."""
    scratch = room.scratch
    native = room.native
    transformed = array_at(scratch, of.LOGITS, 2)
    flat = array_at(point, of.FLAT, 2)
    first_forward(room, images, mean, covariance, row, point, codes)
    count = len(images)
    for index in range(3):
        height = room.planes[index, 0]
        width = room.planes[index, 1]
        layer = 10 * index
        shared = 15 * index
        inputs = array_at(point, layer + of.INPUTS, 3)
        weights = array_at(point, layer + of.WEIGHTS, 3)
        z = array_at(point, layer + of.Z, 3)
        means = array_at(point, layer + of.MEAN, 2)
        stds = array_at(point, layer + of.STD, 2)
        outputs = array_at(scratch, shared + of.OUTPUTS, 3)
        total = array_at(scratch, shared + of.TOTAL, 2)
        tiles_of_input(
            native.addresses,
            (array_at(scratch, shared + of.PADDED, 4), inputs),
        )
        _transformed(room, array_at(row, 3 * index + 3, 2), weights)
        products(native, inputs, False, weights, outputs, False)
        outputs_of_tiles(native.addresses, (outputs, count, height, width, z, total))
        moments(
            native.addresses,
            (z, total, count, height, width, NORMALISATION_EPSILON, means, stds),
        )
        normalise_and_pool(
            native.addresses,
            (
                z,
                height,
                width,
                means,
                stds,
                array_at(row, 3 * index + 4, 1),
                array_at(row, 3 * index + 5, 1),
                array_at(scratch, shared + 15 + of.PADDED, 4),
                array_at(codes, index, 2),
                array_at(point, layer + of.SELECTED, 2),
            ),
        )
    inside(array_at(scratch, 45 + of.PADDED, 4), flat)
    matmul(native, flat, array_at(row, 12, 2), transformed)
    bias = array_at(row, 13, 1)
    for b in range(count):
        for k in range(len(bias)):
            transformed[b, k] = transformed[b, k] + bias[k]


@exact
def _largest(row):
    """Return the index of a row's maximum, or of its first NaN."""
    best = 0
    for k in range(1, len(row)):
        if row[best] == row[best] and not row[k] <= row[best]:
            best = k
    return best


@exact
def _losses(room, labels, point, by_record):
    """Compute each image's cross-entropy and the gradient of the logits.

    The losses go to the scratch, the gradient to the point.
    """
    scratch = room.scratch
    native = room.native
    logits = array_at(scratch, of.LOGITS, 2)
    shifted = array_at(scratch, of.SHIFTED, 2)
    losses = array_at(scratch, of.LOSSES, 1)
    total = array_at(scratch, of.SUM, 1)
    probabilities = array_at(point, of.PROBABILITIES, 2)
    residual = array_at(point, of.RESIDUAL, 2)
    count, ways = logits.shape
    for b in range(count):
        top = logits[b, _largest(logits[b])]
        for k in range(ways):
            shifted[b, k] = logits[b, k] - top
    elementwise(native, calls.EXP, shifted, probabilities)
    divisor = scratch.numbers.dtype.type(1 if by_record else count)
    for b in range(count):
        sum_of(native, probabilities[b], total[b : b + 1])
        for k in range(ways):
            probabilities[b, k] = probabilities[b, k] / total[b]
            residual[b, k] = probabilities[b, k]
        residual[b, labels[b]] -= scratch.numbers.dtype.type(1)
        for k in range(ways):
            residual[b, k] = residual[b, k] / divisor
    elementwise(native, calls.LOG, total, losses)
    for b in range(count):
        losses[b] = losses[b] - shifted[b, labels[b]]


@exact
def _head_backward(room, point, out, by_record):
    native = room.native
    flat = array_at(point, of.FLAT, 2)
    residual = array_at(point, of.RESIDUAL, 2)
    if by_record:
        for b in range(len(flat)):
            gradient = Memory(out[b], room.weights)
            weight = array_at(gradient, 12, 2)
            bias = array_at(gradient, 13, 1)
            copy(residual[b], bias)
            for i in range(flat.shape[1]):
                for k in range(len(bias)):
                    weight[i, k] = flat[b, i] * residual[b, k]
    else:
        gradient = Memory(out[0], room.weights)
        matmul(native, flat.T, residual, array_at(gradient, 12, 2))
        _sum_of_rows(residual, array_at(gradient, 13, 1))


@exact
def _sum_of_rows(rows, out):
    out[:] = 0
    for b in range(len(rows)):
        for k in range(len(out)):
            out[k] += rows[b, k]


@exact
def _backward(room, images, mean, row, point, codes, out, by_record):
    """Write the gradients of a batch's groups, [G, d]."""
    scratch = room.scratch
    native = room.native
    feature = array_at(scratch, of.FEATURE, 2)
    count = len(images)
    gradients_of_weights = array_at(scratch, of.PRODUCTS, 3)
    _head_backward(room, point, out, by_record)
    matmul(
        native,
        array_at(point, of.RESIDUAL, 2),
        array_at(row, 12, 2).T,
        feature,
    )
    put_inside(feature, array_at(scratch, 45 + of.PADDED_GRADIENT, 4))
    for after in range(3):
        index = 2 - after
        height = room.planes[index, 0]
        width = room.planes[index, 1]
        layer = 10 * index
        shared = 15 * index
        inputs = array_at(point, layer + of.INPUTS, 3)
        gradients = array_at(point, layer + of.GRADIENTS, 3)
        code = array_at(codes, index, 2)
        delta = array_at(point, layer + of.DELTA, 2)
        shifts = array_at(point, layer + of.SHIFT, 2)
        scales = array_at(point, layer + of.SCALE, 2)
        pooled_gradient(
            native.addresses,
            (
                array_at(scratch, shared + 15 + of.PADDED_GRADIENT, 4),
                code,
                array_at(point, layer + of.SELECTED, 2),
                height,
                width,
                delta,
                shifts,
                scales,
            ),
        )
        for g in range(len(out)):
            gradient = Memory(out[g], room.weights)
            copy(shifts[g], array_at(gradient, 3 * index + 5, 1))
            copy(scales[g], array_at(gradient, 3 * index + 4, 1))
        gradient_tiles(
            native.addresses,
            (
                array_at(point, layer + of.Z, 3),
                height,
                width,
                count,
                array_at(point, layer + of.MEAN, 2),
                array_at(point, layer + of.STD, 2),
                array_at(row, 3 * index + 4, 1),
                code,
                delta,
                shifts,
                scales,
                gradients,
            ),
        )
        # A group's tiles are contiguous, so that each group has its own 16 products.
        _, tiles, filters = inputs.shape
        group_shape = (
            len(gradients_of_weights),
            16 * tiles // len(gradients_of_weights),
            filters,
        )
        products(
            native,
            inputs.reshape(group_shape),
            True,
            gradients.reshape(group_shape),
            gradients_of_weights,
            False,
        )
        _untransformed(room, index, out)
        transposed = array_at(scratch, of.TRANSPOSED, 3)
        transpose(
            array_at(point, layer + of.WEIGHTS, 3), transposed
        )  # cheaper than a transposed product
        input_gradients = array_at(scratch, shared + of.OUTPUTS, 3)
        products(native, gradients, False, transposed, input_gradients, False)
        input_gradient_of_tiles(
            native.addresses,
            (
                input_gradients,
                array_at(scratch, of.TILE, 2),
                array_at(scratch, shared + of.PADDED_GRADIENT, 4),
            ),
        )
    first_backward(room, images, mean, row, point, codes, out)


@exact
def _head_product(room, row, along, point, out):
    """Compute the head's part of a Hessian product, from the features' tangent.

    It also computes the tangent of the features' gradient.
    """
    scratch = room.scratch
    native = room.native
    flat = array_at(point, of.FLAT, 2)
    residual = array_at(point, of.RESIDUAL, 2)
    probabilities = array_at(point, of.PROBABILITIES, 2)
    weight = array_at(row, 12, 2)
    weight_dot = array_at(along, 12, 2)
    bias_dot = array_at(along, 13, 1)
    flat_dot = array_at(scratch, of.FLAT_DOT, 2)
    feature = array_at(scratch, of.FEATURE, 2)
    logits = array_at(scratch, of.LOGITS, 2)
    more = array_at(scratch, of.SHIFTED, 2)
    total = array_at(scratch, of.SUM, 1)
    head = array_at(scratch, of.HEAD, 2)
    to = array_at(out, 12, 2)
    count, ways = logits.shape
    inside(array_at(scratch, 45 + of.PADDED, 4), flat_dot)
    matmul(native, flat_dot, weight, logits)
    matmul(native, flat, weight_dot, more)
    for b in range(count):
        for k in range(ways):
            logits[b, k] = logits[b, k] + more[b, k] + bias_dot[k]
            more[b, k] = probabilities[b, k] * logits[b, k]
        sum_of(native, more[b], total[b : b + 1])
        for k in range(ways):
            logits[b, k] = (
                probabilities[b, k]
                * (logits[b, k] - total[b])
                / scratch.numbers.dtype.type(count)
            )
    matmul(native, flat_dot.T, residual, to)
    matmul(native, flat.T, logits, head)
    for i in range(len(head)):
        for k in range(ways):
            to[i, k] += head[i, k]
    _sum_of_rows(logits, array_at(out, 13, 1))
    matmul(native, logits, weight.T, feature)
    matmul(native, residual, weight_dot.T, flat_dot)
    for b in range(count):
        for i in range(feature.shape[1]):
            feature[b, i] = feature[b, i] + flat_dot[b, i]
    put_inside(feature, array_at(scratch, 45 + of.PADDED_GRADIENT, 4))


@exact
def _product(room, images, mean, covariance, row, along, point, codes, out):
    """Write the Hessian of a batch's loss times `along` [d] to `out` [1, d].

    The product is the directional derivative of the gradient. Each pass here is the
    derivative of the pass at the same position in `_logits` and `_backward`.
    """
    scratch = room.scratch
    native = room.native
    count = len(images)
    first_tangent(room, images, mean, covariance, row, along, point, codes)
    for index in range(3):
        height = room.planes[index, 0]
        width = room.planes[index, 1]
        layer = 10 * index
        shared = 15 * index
        inputs_dot = array_at(scratch, shared + of.INPUTS, 3)
        weights_dot = array_at(scratch, shared + of.WEIGHTS, 3)
        z_dot = array_at(scratch, shared + of.Z, 3)
        mean_dot = array_at(scratch, shared + of.MEAN, 1)
        slope = array_at(scratch, shared + of.STD, 1)
        stds = array_at(point, layer + of.STD, 2)[0]
        outputs = array_at(scratch, shared + of.OUTPUTS, 3)
        total = array_at(scratch, shared + of.TOTAL, 2)
        tiles_of_input(
            native.addresses,
            (array_at(scratch, shared + of.PADDED, 4), inputs_dot),
        )
        _transformed(room, array_at(along, 3 * index + 3, 2), weights_dot)
        products(
            native,
            array_at(point, layer + of.INPUTS, 3),
            False,
            weights_dot,
            outputs,
            False,
        )
        products(
            native,
            inputs_dot,
            False,
            array_at(point, layer + of.WEIGHTS, 3),
            outputs,
            True,
        )
        outputs_of_tiles(
            native.addresses, (outputs, count, height, width, z_dot, total)
        )
        tangent_moments(
            native.addresses,
            (
                array_at(point, layer + of.Z, 3),
                z_dot,
                total[0],
                count,
                height,
                width,
                array_at(point, layer + of.MEAN, 2)[0],
                stds,
                mean_dot,
                slope,
            ),
        )
        tangent_normalise_and_pool(
            native.addresses,
            (
                z_dot,
                height,
                width,
                stds,
                mean_dot,
                slope,
                array_at(row, 3 * index + 4, 1),
                array_at(along, 3 * index + 4, 1),
                array_at(along, 3 * index + 5, 1),
                array_at(codes, index, 2),
                array_at(point, layer + of.SELECTED, 2),
                array_at(scratch, shared + 15 + of.PADDED, 4),
                array_at(scratch, shared + of.SELECTED, 2),
            ),
        )
    gradient = Memory(out[0], room.weights)
    _head_product(room, row, along, point, gradient)
    gradients_of_weights = array_at(scratch, of.PRODUCTS, 3)
    transposed = array_at(scratch, of.TRANSPOSED, 3)
    for after in range(3):
        index = 2 - after
        height = room.planes[index, 0]
        width = room.planes[index, 1]
        layer = 10 * index
        shared = 15 * index
        code = array_at(codes, index, 2)
        delta = array_at(point, layer + of.DELTA, 2)
        delta_dot = array_at(scratch, shared + of.DELTA, 2)
        shift_dot = array_at(scratch, shared + of.SHIFT, 1)
        scale_dot = array_at(scratch, shared + of.SCALE, 1)
        tangent_pooled_gradient(
            native.addresses,
            (
                array_at(scratch, shared + 15 + of.PADDED_GRADIENT, 4),
                code,
                array_at(point, layer + of.SELECTED, 2),
                array_at(scratch, shared + of.SELECTED, 2),
                delta,
                height,
                width,
                delta_dot,
                shift_dot,
                scale_dot,
            ),
        )
        copy(shift_dot, array_at(gradient, 3 * index + 5, 1))
        copy(scale_dot, array_at(gradient, 3 * index + 4, 1))
        tangents = array_at(scratch, shared + of.TANGENTS, 3)
        tangent_gradient_tiles(
            native.addresses,
            (
                array_at(point, layer + of.Z, 3),
                array_at(scratch, shared + of.Z, 3),
                height,
                width,
                count,
                array_at(point, layer + of.MEAN, 2)[0],
                array_at(point, layer + of.STD, 2)[0],
                array_at(scratch, shared + of.MEAN, 1),
                array_at(scratch, shared + of.STD, 1),
                array_at(row, 3 * index + 4, 1),
                array_at(along, 3 * index + 4, 1),
                code,
                delta,
                delta_dot,
                array_at(point, layer + of.SHIFT, 2)[0],
                array_at(point, layer + of.SCALE, 2)[0],
                shift_dot,
                scale_dot,
                tangents,
            ),
        )
        gradients = array_at(point, layer + of.GRADIENTS, 3)
        products(
            native,
            array_at(point, layer + of.INPUTS, 3),
            True,
            tangents,
            gradients_of_weights,
            False,
        )
        inputs_dot = array_at(scratch, shared + of.INPUTS, 3)
        products(native, inputs_dot, True, gradients, gradients_of_weights, True)
        _untransformed(room, index, out)
        input_gradients = array_at(scratch, shared + of.OUTPUTS, 3)
        transpose(array_at(point, layer + of.WEIGHTS, 3), transposed)
        products(native, tangents, False, transposed, input_gradients, False)
        transpose(array_at(scratch, shared + of.WEIGHTS, 3), transposed)
        products(native, gradients, False, transposed, input_gradients, True)
        input_gradient_of_tiles(
            native.addresses,
            (
                input_gradients,
                array_at(scratch, of.TILE, 2),
                array_at(scratch, shared + of.PADDED_GRADIENT, 4),
            ),
        )
    first_tangent_backward(room, images, mean, row, along, point, codes, gradient)


# Functions that Python calls: T batches, one after another.


@compiled
def prepare(room, x, padded, means, covariances):
    """Fill `Images` from x [T, B, H, W, C]."""
    scratch = room.scratch
    groups = means.shape[1]
    images_each = x.shape[1] // groups
    patches = array_at(scratch, of.PATCHES, 2)
    for t in range(len(x)):
        _border(x[t], padded[t])
        for g in range(groups):
            mean = means[t, g]
            patches_of_images(
                room.native.addresses,
                (padded[t, g * images_each : (g + 1) * images_each], mean, patches),
            )
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


@exact
def _descend(row, slope, rate, out):
    """Take one step of gradient descent.

    The rate is one for all weights [1] or one per weight [d].
    """
    for i in range(len(out)):
        out[i] = row[i] - slope[i] * rate[i if len(rate) > 1 else 0]


@exact
def _scale(row, rate, out):
    """Multiply weights by the rate, one for all [1] or one per weight [d]."""
    for i in range(len(out)):
        out[i] = row[i] * rate[i if len(rate) > 1 else 0]


@exact
def _differentiate(
    room, images, mean, covariance, labels, row, point, codes, by_record, out
):
    """Compute the gradients [G, d] of a batch's groups at weights `row` [d]."""
    _logits(room, images, mean, covariance, row, point, codes)
    _losses(room, labels, point, by_record)
    _backward(room, images, mean, row, point, codes, out, by_record)


@part
def _point(room, points, index):
    """Return the floats and the codes of a point."""
    floats = Memory(points.floats[index], room.points)
    return floats, Memory(points.codes[index], room.codes)


@compiled
def evaluate(
    room, theta, steps, images, labels, points, by_record, logits, losses, right, out
):
    """Compute logits, losses, right answers and gradients of batches.

    Logits are [T, B, ways] at weights [T, d]; losses and right answers are [T, B];
    gradients of groups are [T, G, d].

    Steps before the evaluation start at these weights. The gradient is then that of the
    weights before the steps: MAML's (`models.meta_gradient`). If `losses` and `out` are
    empty, neither losses nor gradients are computed. Weights and points may be one for
    all batches.
    """
    before = steps.images
    for t in range(len(logits)):
        row = theta[t if len(theta) > 1 else 0]
        for step in range(len(steps.rates)):
            point, codes = _point(steps.room, steps.points, step if steps.second else 0)
            _differentiate(
                steps.room,
                before.padded[t],
                before.mean[t],
                before.covariance[t],
                steps.labels[t],
                Memory(row, room.weights),
                point,
                codes,
                by_record,
                steps.rows[-1:],
            )
            there = steps.rows[step if steps.second else step % 2]
            _descend(row, steps.rows[-1], steps.rates[step], there)
            row = there
        weights = Memory(row, room.weights)
        point, codes = _point(room, points, t if len(points.floats) > 1 else 0)
        _logits(
            room,
            images.padded[t],
            images.mean[t],
            images.covariance[t],
            weights,
            point,
            codes,
        )
        scores = array_at(room.scratch, of.LOGITS, 2)
        for b in range(len(scores)):
            copy(scores[b], logits[t, b])
        if len(losses) > 0:
            _losses(room, labels[t], point, by_record)
            copy(array_at(room.scratch, of.LOSSES, 1), losses[t])
            for b in range(len(scores)):
                right[t, b] = _largest(scores[b]) == labels[t, b]
        if len(out) > 0:
            _backward(
                room,
                images.padded[t],
                images.mean[t],
                weights,
                point,
                codes,
                out[t],
                by_record,
            )
        for after in range(len(steps.rates) if steps.second else 0):
            step = len(steps.rates) - 1 - after
            row = (
                steps.rows[step - 1] if step > 0 else theta[t if len(theta) > 1 else 0]
            )
            _scale(out[t, 0], steps.rates[step], steps.rows[-1])
            point, codes = _point(steps.room, steps.points, step)
            _product(
                steps.room,
                before.padded[t],
                before.mean[t],
                before.covariance[t],
                Memory(row, room.weights),
                Memory(steps.rows[-1], room.weights),
                point,
                codes,
                steps.rows[-2:-1],
            )
            for i in range(out.shape[2]):
                out[t, 0, i] -= steps.rows[-2, i]


@compiled
def hessian_products(room, theta, images, direction, points, out):
    """Compute Hessians of tasks times directions [T, d], after `gradients`."""
    for t in range(len(theta)):
        point, codes = _point(room, points, t)
        _product(
            room,
            images.padded[t],
            images.mean[t],
            images.covariance[t],
            Memory(theta[t], room.weights),
            Memory(direction[t], room.weights),
            point,
            codes,
            out[t : t + 1],
        )
