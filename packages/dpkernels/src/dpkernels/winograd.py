"""Compiled loops of the fused Conv-4 (see `batch_conv4`), one sweep over memory each.

A 3x3 convolution with padding 1 is computed by Winograd's F(2x2, 3x3) (Lavin and Gray,
*Fast Algorithms for Convolutional Neural Networks*, 2016): inputs are cut into 4x4
tiles with stride 2 and transformed by B, weights by G, both are multiplied channel by
channel in 16 matrix products, and the result is transformed back by A into 2x2 tiles of
outputs. It takes 16 products where the plain convolution takes 36. The 2x2 output tile
is also the 2x2 window of the max pooling that follows, so that normalisation,
activation and pooling, and their derivatives, are applied a tile at a time.

Arrays are channels-last. `padded` arrays have the shape [B, 2T+2, 2T+2, C]: T tiles a
side, one row of zeros before the image and at least one after it. `code` says which of
a window's four positions was the maximum, 1 to 4 in row order, and 0 where the
activation was not positive, so that no gradient passes.

Normalisation is over groups of images: sums and moments have the shape [G, F], where G
is 1 (the task's own batch) or the number of images (each record by itself).
"""

import numpy as np

from dpkernels.compiled import compiled, part
from dpkernels.vectors import add, add_product, load, store, where_code

# Weight transform kron(G, G): 9 taps to 16 points.
_G = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
WEIGHT_TRANSFORM = np.kron(_G, _G)


@part
def _untransformed(t0, t1, t2, t3):
    """Return B times a column of the gradient of a transformed tile."""
    return t0, t1 - t2 + t3, t1 + t2 - t0, -t3


@part
def _summed(m0, m1, m2, m3):
    """Return A^T times a column of a tile of products."""
    return m0 + m1 + m2, m1 - m2 - m3


@part
def _four(tiles, first, step, tile, c):
    """Return four of the 16 points of a tile."""
    return (
        tiles[first, tile, c],
        tiles[first + step, tile, c],
        tiles[first + 2 * step, tile, c],
        tiles[first + 3 * step, tile, c],
    )


@part
def _store_gradient_tile(out, tile, f, d0, d1, d2, d3):
    """Compute out[:, tile, f] = A d A^T of the gradients d at a window's positions."""
    out[0, tile, f] = d0
    out[1, tile, f] = d0 + d1
    out[2, tile, f] = d0 - d1
    out[3, tile, f] = -d1
    out[4, tile, f] = d0 + d2
    out[5, tile, f] = d0 + d1 + d2 + d3
    out[6, tile, f] = d0 - d1 + d2 - d3
    out[7, tile, f] = -d1 - d3
    out[8, tile, f] = d0 - d2
    out[9, tile, f] = d0 + d1 - d2 - d3
    out[10, tile, f] = d0 - d1 - d2 + d3
    out[11, tile, f] = d3 - d1
    out[12, tile, f] = -d2
    out[13, tile, f] = -d2 - d3
    out[14, tile, f] = d3 - d2
    out[15, tile, f] = d3


@part
def _differences(padded, b, y, other, x, c):
    """Return four pixels of row y minus those of another row."""
    return (
        padded[b, y, x, c] - padded[b, other, x, c],
        padded[b, y, x + 1, c] - padded[b, other, x + 1, c],
        padded[b, y, x + 2, c] - padded[b, other, x + 2, c],
        padded[b, y, x + 3, c] - padded[b, other, x + 3, c],
    )


@part
def _store_row(out, row, tile, c, a0, a1, a2, a3):
    """Write B^T times a row of a tile as four of its 16 points."""
    out[4 * row, tile, c] = a0 - a2
    out[4 * row + 1, tile, c] = a1 + a2
    out[4 * row + 2, tile, c] = a2 - a1
    out[4 * row + 3, tile, c] = a1 - a3


@compiled
def tiles_of_input(padded, out):
    """Compute out[16, B*T*T, C] = B^T d B for each 4x4 tile d of `padded`."""
    images, height, width, channels = padded.shape
    rows = (height - 2) // 2
    columns = (width - 2) // 2
    tile = 0
    for b in range(images):
        for i in range(rows):
            for j in range(columns):
                y = 2 * i
                x = 2 * j
                for c in range(channels):
                    a00, a01, a02, a03 = _differences(padded, b, y, y + 2, x, c)
                    a10 = padded[b, y + 1, x, c] + padded[b, y + 2, x, c]
                    a11 = padded[b, y + 1, x + 1, c] + padded[b, y + 2, x + 1, c]
                    a12 = padded[b, y + 1, x + 2, c] + padded[b, y + 2, x + 2, c]
                    a13 = padded[b, y + 1, x + 3, c] + padded[b, y + 2, x + 3, c]
                    a20, a21, a22, a23 = _differences(padded, b, y + 2, y + 1, x, c)
                    a30, a31, a32, a33 = _differences(padded, b, y + 1, y + 3, x, c)
                    _store_row(out, 0, tile, c, a00, a01, a02, a03)
                    _store_row(out, 1, tile, c, a10, a11, a12, a13)
                    _store_row(out, 2, tile, c, a20, a21, a22, a23)
                    _store_row(out, 3, tile, c, a30, a31, a32, a33)
                tile += 1


@compiled
def input_gradient_of_tiles(tiles, scratch, padded):
    """Compute the transpose of `tiles_of_input`.

    `padded` becomes the sum of B d B^T over the tiles d. `scratch` is [16, C]: a tile
    is finished there before it is added, because a loop that reads and writes several
    positions of one array is not vectorised.
    """
    images, height, width, channels = padded.shape
    rows = (height - 2) // 2
    columns = (width - 2) // 2
    padded[:] = 0
    tile = 0
    for b in range(images):
        for i in range(rows):
            for j in range(columns):
                for c in range(channels):
                    e00, e01, e02, e03 = _untransformed(*_four(tiles, 0, 1, tile, c))
                    e10, e11, e12, e13 = _untransformed(*_four(tiles, 4, 1, tile, c))
                    e20, e21, e22, e23 = _untransformed(*_four(tiles, 8, 1, tile, c))
                    e30, e31, e32, e33 = _untransformed(*_four(tiles, 12, 1, tile, c))
                    scratch[0, c], scratch[4, c], scratch[8, c], scratch[12, c] = (
                        _untransformed(e00, e10, e20, e30)
                    )
                    scratch[1, c], scratch[5, c], scratch[9, c], scratch[13, c] = (
                        _untransformed(e01, e11, e21, e31)
                    )
                    scratch[2, c], scratch[6, c], scratch[10, c], scratch[14, c] = (
                        _untransformed(e02, e12, e22, e32)
                    )
                    scratch[3, c], scratch[7, c], scratch[11, c], scratch[15, c] = (
                        _untransformed(e03, e13, e23, e33)
                    )
                for r in range(4):
                    for s in range(4):
                        for c in range(channels):
                            padded[b, 2 * i + r, 2 * j + s, c] += scratch[4 * r + s, c]
                tile += 1


@compiled
def outputs_of_tiles(products, images, height, width, z, total):
    """Compute z[tile, 4, F] = A^T m A for each 4x4 tile m of `products`.

    total[G, F] is the sum of the outputs inside the image.
    """
    rows = (height + 1) // 2
    columns = (width + 1) // 2
    filters = z.shape[2]
    total[:] = 0
    tile = 0
    for b in range(images):
        g = b if len(total) > 1 else 0
        for i in range(rows):
            for j in range(columns):
                for f in range(filters):
                    a00, a10 = _summed(*_four(products, 0, 4, tile, f))
                    a01, a11 = _summed(*_four(products, 1, 4, tile, f))
                    a02, a12 = _summed(*_four(products, 2, 4, tile, f))
                    a03, a13 = _summed(*_four(products, 3, 4, tile, f))
                    z[tile, 0, f], z[tile, 1, f] = _summed(a00, a01, a02, a03)
                    z[tile, 2, f], z[tile, 3, f] = _summed(a10, a11, a12, a13)
                for r in range(min(2, height - 2 * i)):
                    for s in range(min(2, width - 2 * j)):
                        for f in range(filters):
                            total[g, f] += z[tile, 2 * r + s, f]
                tile += 1


@compiled
def moments(z, total, images, height, width, epsilon, mean, inverse_std):
    """Compute mean and 1/sqrt(variance + epsilon) of each channel.

    Both are over all positions of a group of images.
    """
    rows = (height + 1) // 2
    columns = (width + 1) // 2
    groups, filters = total.shape
    count = z.dtype.type(images * height * width // groups)
    unit = z.dtype.type(1)
    for g in range(groups):
        for f in range(filters):
            mean[g, f] = total[g, f] / count
            inverse_std[g, f] = 0
    tile = 0
    for b in range(images):
        g = b if groups > 1 else 0
        for i in range(rows):
            for j in range(columns):
                for r in range(min(2, height - 2 * i)):
                    for s in range(min(2, width - 2 * j)):
                        for f in range(filters):
                            d = z[tile, 2 * r + s, f] - mean[g, f]
                            inverse_std[g, f] += d * d
                tile += 1
    for g in range(groups):
        for f in range(filters):
            inverse_std[g, f] = unit / np.sqrt(
                inverse_std[g, f] / count + z.dtype.type(epsilon)
            )


@compiled
def normalise_and_pool(
    z, height, width, mean, inverse_std, scale, shift, padded, code, selected
):
    """Compute padded[b, i+1, j+1] = max over the window of relu(scale * xhat + shift).

    xhat = (z - mean) * inverse_std. code[tile, F] is the chosen position and
    selected[tile, F] its xhat; both are 0 for tiles outside the pooling.
    """
    rows = (height + 1) // 2
    columns = (width + 1) // 2
    images = padded.shape[0]
    filters = z.shape[2]
    zero = z.dtype.type(0)
    tile = 0
    for b in range(images):
        u = b if len(mean) > 1 else 0
        for i in range(rows):
            for j in range(columns):
                if i < height // 2 and j < width // 2:
                    for f in range(filters):
                        m = mean[u, f]
                        s = inverse_std[u, f]
                        g = scale[f]
                        h = shift[f]
                        x0 = (z[tile, 0, f] - m) * s
                        x1 = (z[tile, 1, f] - m) * s
                        x2 = (z[tile, 2, f] - m) * s
                        x3 = (z[tile, 3, f] - m) * s
                        y0 = g * x0 + h
                        y1 = g * x1 + h
                        y2 = g * x2 + h
                        y3 = g * x3 + h
                        top = y0
                        best = x0
                        k = np.uint8(1)
                        if y1 > top:
                            top = y1
                            best = x1
                            k = np.uint8(2)
                        if y2 > top:
                            top = y2
                            best = x2
                            k = np.uint8(3)
                        if y3 > top:
                            top = y3
                            best = x3
                            k = np.uint8(4)
                        # NaN fails this comparison, so it reaches the loss and is
                        # noticed.
                        if top <= 0:
                            top = zero
                            k = np.uint8(0)
                        padded[b, i + 1, j + 1, f] = top
                        code[tile, f] = k
                        selected[tile, f] = best
                else:
                    code[tile] = 0
                    selected[tile] = 0
                tile += 1


@compiled
def pooled_gradient(
    padded, code, selected, height, width, delta, shift_gradient, scale_gradient
):
    """Compute the gradient after the pooling, and its sums over positions.

    The gradient is kept where it passes. The sums are d/dshift and d/dscale.
    """
    rows = (height + 1) // 2
    columns = (width + 1) // 2
    images = padded.shape[0]
    filters = delta.shape[1]
    zero = delta.dtype.type(0)
    shift_gradient[:] = 0
    scale_gradient[:] = 0
    tile = 0
    for b in range(images):
        g = b if len(shift_gradient) > 1 else 0
        for i in range(rows):
            for j in range(columns):
                if i < height // 2 and j < width // 2:
                    for f in range(filters):
                        d = padded[b, i + 1, j + 1, f] if code[tile, f] > 0 else zero
                        delta[tile, f] = d
                        shift_gradient[g, f] += d
                        scale_gradient[g, f] += d * selected[tile, f]
                else:
                    delta[tile] = 0
                tile += 1


@compiled
def gradient_tiles(
    z,
    height,
    width,
    images,
    mean,
    inverse_std,
    scale,
    code,
    delta,
    shift_gradient,
    scale_gradient,
    out,
):
    """Compute out[16, tiles, F] = A dz A^T, the gradient through the normalisation.

    dz is the gradient of the convolution's outputs: dz = scale * inverse_std * (dy -
    mean(dy) - xhat * mean(dy * xhat)). dy is `delta` at the chosen position, else 0.
    """
    rows = (height + 1) // 2
    columns = (width + 1) // 2
    filters = z.shape[2]
    count = z.dtype.type(images * height * width // len(mean))
    tile = 0
    for b in range(images):
        u = b if len(mean) > 1 else 0
        for i in range(rows):
            for j in range(columns):
                # 1 inside the image, 0 for a row or column that only completes the last
                # tile.
                right = z.dtype.type(2 * j + 1 < width)
                lower = z.dtype.type(2 * i + 1 < height)
                for f in range(filters):
                    m = mean[u, f]
                    s = inverse_std[u, f]
                    g = scale[f] * s
                    m1 = shift_gradient[u, f] / count
                    m2 = scale_gradient[u, f] / count
                    k = code[tile, f]
                    d = delta[tile, f]
                    n = z.dtype.type(0)
                    d0 = g * ((d if k == 1 else n) - m1 - (z[tile, 0, f] - m) * s * m2)
                    d1 = (
                        g
                        * ((d if k == 2 else n) - m1 - (z[tile, 1, f] - m) * s * m2)
                        * right
                    )
                    d2 = (
                        g
                        * ((d if k == 3 else n) - m1 - (z[tile, 2, f] - m) * s * m2)
                        * lower
                    )
                    d3 = (
                        g
                        * ((d if k == 4 else n) - m1 - (z[tile, 3, f] - m) * s * m2)
                        * right
                        * lower
                    )
                    _store_gradient_tile(out, tile, f, d0, d1, d2, d3)
                tile += 1


@compiled
def tangent_moments(
    z, z_dot, total_dot, images, height, width, mean, inverse_std, mean_dot, slope
):
    """Compute mean_dot = mean(z_dot) and slope = mean(xhat * z_dot).

    The derivative of the normalisation needs both.
    """
    rows = (height + 1) // 2
    columns = (width + 1) // 2
    filters = z.shape[2]
    count = z.dtype.type(images * height * width)
    slope[:] = 0
    tile = 0
    for _ in range(images):
        for i in range(rows):
            for j in range(columns):
                for r in range(min(2, height - 2 * i)):
                    for s in range(min(2, width - 2 * j)):
                        for f in range(filters):
                            slope[f] += (z[tile, 2 * r + s, f] - mean[f]) * z_dot[
                                tile, 2 * r + s, f
                            ]
                tile += 1
    for f in range(filters):
        mean_dot[f] = total_dot[f] / count
        slope[f] *= inverse_std[f] / count


@part
def _chosen(code, window, f):
    """Return the value of window [4, F] at the position of the maximum, by its code."""
    chosen = window[0, f]
    chosen = window[1, f] if code == 2 else chosen
    chosen = window[2, f] if code == 3 else chosen
    return window[3, f] if code == 4 else chosen


@compiled
def tangent_normalise_and_pool(
    z_dot,
    height,
    width,
    inverse_std,
    mean_dot,
    slope,
    scale,
    scale_dot,
    shift_dot,
    code,
    selected,
    padded,
    selected_dot,
):
    """Compute the derivative of `normalise_and_pool`.

    It is along (z_dot, scale_dot, shift_dot).
    """
    rows = (height + 1) // 2
    columns = (width + 1) // 2
    images = padded.shape[0]
    filters = z_dot.shape[2]
    tile = 0
    for b in range(images):
        for i in range(rows):
            for j in range(columns):
                if i < height // 2 and j < width // 2:
                    for f in range(filters):
                        k = code[tile, f]
                        t = _chosen(k, z_dot[tile], f)
                        n = z_dot.dtype.type(0)
                        x = inverse_std[f] * (
                            t - mean_dot[f] - selected[tile, f] * slope[f]
                        )
                        selected_dot[tile, f] = x
                        y = (
                            scale_dot[f] * selected[tile, f]
                            + scale[f] * x
                            + shift_dot[f]
                        )
                        padded[b, i + 1, j + 1, f] = y if k > 0 else n
                else:
                    selected_dot[tile] = 0
                tile += 1


@compiled
def tangent_pooled_gradient(
    padded_dot,
    code,
    selected,
    selected_dot,
    delta,
    height,
    width,
    delta_dot,
    shift_gradient_dot,
    scale_gradient_dot,
):
    """Compute the derivative of `pooled_gradient`."""
    rows = (height + 1) // 2
    columns = (width + 1) // 2
    images = padded_dot.shape[0]
    filters = delta.shape[1]
    zero = delta.dtype.type(0)
    shift_gradient_dot[:] = 0
    scale_gradient_dot[:] = 0
    tile = 0
    for b in range(images):
        for i in range(rows):
            for j in range(columns):
                if i < height // 2 and j < width // 2:
                    for f in range(filters):
                        d = padded_dot[b, i + 1, j + 1, f]
                        d = d if code[tile, f] > 0 else zero
                        delta_dot[tile, f] = d
                        shift_gradient_dot[f] += d
                        scale_gradient_dot[f] += (
                            d * selected[tile, f]
                            + delta[tile, f] * selected_dot[tile, f]
                        )
                else:
                    delta_dot[tile] = 0
                tile += 1


@compiled
def tangent_gradient_tiles(
    z,
    z_dot,
    height,
    width,
    images,
    mean,
    inverse_std,
    mean_dot,
    slope,
    scale,
    scale_dot,
    code,
    delta,
    delta_dot,
    shift_gradient,
    scale_gradient,
    shift_gradient_dot,
    scale_gradient_dot,
    out,
):
    """Compute the derivative of `gradient_tiles`.

    d(inverse_std) = -inverse_std^2 * slope.
    """
    rows = (height + 1) // 2
    columns = (width + 1) // 2
    filters = z.shape[2]
    count = z.dtype.type(images * height * width)
    tile = 0
    for _ in range(images):
        for i in range(rows):
            for j in range(columns):
                # 1 inside the image, 0 for a row or column that only completes the last
                # tile.
                right = z.dtype.type(2 * j + 1 < width)
                lower = z.dtype.type(2 * i + 1 < height)
                for f in range(filters):
                    m = mean[f]
                    s = inverse_std[f]
                    a = mean_dot[f]
                    u = slope[f]
                    g = scale[f] * s
                    g_dot = scale_dot[f] * s - scale[f] * s * s * u
                    m1 = shift_gradient[f] / count
                    m2 = scale_gradient[f] / count
                    n1 = shift_gradient_dot[f] / count
                    n2 = scale_gradient_dot[f] / count
                    k = code[tile, f]
                    d = delta[tile, f]
                    e = delta_dot[tile, f]
                    n = z.dtype.type(0)
                    x = (z[tile, 0, f] - m) * s
                    y = s * (z_dot[tile, 0, f] - a - x * u)
                    d0 = g_dot * ((d if k == 1 else n) - m1 - x * m2) + g * (
                        (e if k == 1 else n) - n1 - y * m2 - x * n2
                    )
                    x = (z[tile, 1, f] - m) * s
                    y = s * (z_dot[tile, 1, f] - a - x * u)
                    d1 = g_dot * ((d if k == 2 else n) - m1 - x * m2) + g * (
                        (e if k == 2 else n) - n1 - y * m2 - x * n2
                    )
                    x = (z[tile, 2, f] - m) * s
                    y = s * (z_dot[tile, 2, f] - a - x * u)
                    d2 = g_dot * ((d if k == 3 else n) - m1 - x * m2) + g * (
                        (e if k == 3 else n) - n1 - y * m2 - x * n2
                    )
                    x = (z[tile, 3, f] - m) * s
                    y = s * (z_dot[tile, 3, f] - a - x * u)
                    d3 = g_dot * ((d if k == 4 else n) - m1 - x * m2) + g * (
                        (e if k == 4 else n) - n1 - y * m2 - x * n2
                    )
                    d1 *= right
                    d2 *= lower
                    d3 *= right * lower
                    _store_gradient_tile(out, tile, f, d0, d1, d2, d3)
                tile += 1


# The first layer. Its input has few channels. The mean and the variance of its outputs
# therefore follow from those of the image's 3x3 patches (`conv4_first`), and
# normalisation is folded into the weights. Its outputs, the largest array of the whole
# network, are never stored.


@compiled
def patches_of_images(padded, mean, out):
    """Compute out[B*H*W, 9*C] = every 3x3 patch minus the mean patch.

    The mean is written to mean[9*C].
    """
    batch = padded.shape[0]
    height = padded.shape[1] - 2
    width = padded.shape[2] - 2
    channels = padded.shape[3]
    count = out.dtype.type(batch * height * width)
    mean[:] = 0
    for row in range(9 * channels):
        dy = row // (3 * channels)
        dx = (row // channels) % 3
        c = row % channels
        for b in range(batch):
            total = out.dtype.type(0)
            for y in range(height):
                for x in range(width):
                    total += padded[b, y + dy, x + dx, c]
            mean[row] += total / count
    n = 0
    pixels = padded.reshape(padded.size)
    for b in range(batch):
        for y in range(height):
            for x in range(width):
                for dy in range(3):
                    start = ((b * (height + 2) + y + dy) * (width + 2) + x) * channels
                    row = 3 * channels * dy
                    for k in range(3 * channels):
                        out[n, row + k] = pixels[start + k] - mean[row + k]
                n += 1


@part
def _window(image, weights, i, j, out):
    """Apply weights [9*C, F] at the four positions of window (i, j): out[4, F].

    The image is padded.
    """
    channels = image.shape[2]
    filters = weights.shape[1]
    out[:] = 0
    for c in range(channels):
        empty = True
        for r in range(4):
            for s in range(4):
                if image[2 * i + r, 2 * j + s, c] != 0:
                    empty = False
        if empty:  # as in most of a drawing
            continue
        for r in range(2):
            for s in range(2):
                y = 2 * i + r
                x = 2 * j + s
                p0 = image[y, x, c]
                p1 = image[y, x + 1, c]
                p2 = image[y, x + 2, c]
                p3 = image[y + 1, x, c]
                p4 = image[y + 1, x + 1, c]
                p5 = image[y + 1, x + 2, c]
                p6 = image[y + 2, x, c]
                p7 = image[y + 2, x + 1, c]
                p8 = image[y + 2, x + 2, c]
                k = channels
                for f in range(filters):
                    out[2 * r + s, f] += (
                        p0 * weights[c, f]
                        + p1 * weights[k + c, f]
                        + p2 * weights[2 * k + c, f]
                        + p3 * weights[3 * k + c, f]
                        + p4 * weights[4 * k + c, f]
                        + p5 * weights[5 * k + c, f]
                        + p6 * weights[6 * k + c, f]
                        + p7 * weights[7 * k + c, f]
                        + p8 * weights[8 * k + c, f]
                    )


@compiled
def first_layer(images, weights, shift, window, padded, code):
    """Compute padded[b, i+1, j+1] = max over window of relu(patch . weights + shift).

    `window` is scratch [4, F]. images: [B, H+2, W+2, C], one row of zeros on each side.
    """
    batch = images.shape[0]
    rows = (images.shape[1] - 2) // 2
    columns = (images.shape[2] - 2) // 2
    filters = weights.shape[1]
    zero = window.dtype.type(0)
    cell = 0
    for b in range(batch):
        for i in range(rows):
            for j in range(columns):
                _window(images[b], weights, i, j, window)
                for f in range(filters):
                    y0 = window[0, f]
                    y1 = window[1, f]
                    y2 = window[2, f]
                    y3 = window[3, f]
                    top = y0
                    k = np.uint8(1)
                    if y1 > top:
                        top = y1
                        k = np.uint8(2)
                    if y2 > top:
                        top = y2
                        k = np.uint8(3)
                    if y3 > top:
                        top = y3
                        k = np.uint8(4)
                    top += shift[f]
                    if top <= 0:
                        top = zero
                        k = np.uint8(0)
                    padded[b, i + 1, j + 1, f] = top
                    code[cell, f] = k
                cell += 1


@compiled
def first_layer_tangent(images, weights_dot, shift_dot, code, window, padded):
    """Compute the derivative of `first_layer` along (weights_dot, shift_dot)."""
    batch = images.shape[0]
    rows = (images.shape[1] - 2) // 2
    columns = (images.shape[2] - 2) // 2
    filters = weights_dot.shape[1]
    cell = 0
    for b in range(batch):
        for i in range(rows):
            for j in range(columns):
                _window(images[b], weights_dot, i, j, window)
                for f in range(filters):
                    k = code[cell, f]
                    t = _chosen(k, window, f)
                    n = window.dtype.type(0)
                    padded[b, i + 1, j + 1, f] = t + shift_dot[f] if k > 0 else n
                cell += 1


def _gradient_at(lanes):
    """Make the loop that adds one window's part to `lanes` columns.

    It is a part of `first_layer_gradient`.
    """

    @part
    def gradient_at(image, i, j, gradient, code, f, weights_gradient, shift_gradient):
        channels = image.shape[2]
        filters = len(shift_gradient)
        d = load(gradient, f, lanes)
        d0 = where_code(code, f, 1, d)
        d1 = where_code(code, f, 2, d)
        d2 = where_code(code, f, 3, d)
        d3 = where_code(code, f, 4, d)
        store(
            shift_gradient,
            f,
            add(add(add(add(load(shift_gradient, f, lanes), d0), d1), d2), d3),
        )
        for r in range(3):
            for s in range(3):
                for c in range(channels):
                    y = 2 * i + r
                    x = 2 * j + s
                    at = ((3 * r + s) * channels + c) * filters + f
                    p0 = image[y, x, c]
                    p1 = image[y, x + 1, c]
                    p2 = image[y + 1, x, c]
                    p3 = image[y + 1, x + 1, c]
                    # Much of a drawing is empty: there is nothing to add.
                    if p0 != 0 or p1 != 0 or p2 != 0 or p3 != 0:
                        w = add_product(
                            add_product(load(weights_gradient, at, lanes), p0, d0),
                            p1,
                            d1,
                        )
                        store(
                            weights_gradient,
                            at,
                            add_product(add_product(w, p2, d2), p3, d3),
                        )

    return gradient_at


# For loops over a few filters, LLVM computes 32 at once or one after another.
_gradient_at_16 = _gradient_at(16)
_gradient_at_8 = _gradient_at(8)
_gradient_at_1 = _gradient_at(1)


@compiled
def first_layer_gradient(images, padded, code, weights_gradient, shift_gradient):
    """Compute the gradient of `first_layer`.

    It is with respect to the folded weights [9*C, F] and the shift [F].
    """
    batch = images.shape[0]
    rows = (images.shape[1] - 2) // 2
    columns = (images.shape[2] - 2) // 2
    filters = code.shape[1]
    weights_gradient[:] = 0
    shift_gradient[:] = 0
    cell = 0
    for b in range(batch):
        for i in range(rows):
            for j in range(columns):
                f = 0
                gradient = padded[b, i + 1, j + 1]
                while f < filters:
                    if f + 16 <= filters:
                        _gradient_at_16(
                            images[b],
                            i,
                            j,
                            gradient,
                            code[cell],
                            f,
                            weights_gradient,
                            shift_gradient,
                        )
                        f += 16
                    elif f + 8 <= filters:
                        _gradient_at_8(
                            images[b],
                            i,
                            j,
                            gradient,
                            code[cell],
                            f,
                            weights_gradient,
                            shift_gradient,
                        )
                        f += 8
                    else:
                        _gradient_at_1(
                            images[b],
                            i,
                            j,
                            gradient,
                            code[cell],
                            f,
                            weights_gradient,
                            shift_gradient,
                        )
                        f += 1
                cell += 1
