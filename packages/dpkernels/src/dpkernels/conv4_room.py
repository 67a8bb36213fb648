"""Memory layout of the passes of Conv-4 (`conv4_order`), and the loops that they call.

A *point* holds the state that the derivatives of one batch at one set of weights need.
The *scratch* of a thread holds values that no later pass needs. Tables describe the
layout of both. The outer zeros of padded arrays are never written to.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dpkernels import winograd
from dpkernels.calls import Call, Memory, Native, caller, copy
from dpkernels.compiled import exact

LOOPS = [
    Call(winograd.patches_of_images, "4,1,2"),
    Call(winograd.first_layer, "4,2,1,2,4,c2"),
    Call(winograd.first_layer_gradient, "4,4,c2,2,1"),
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
    patches_of_images,
    first_layer,
    first_layer_gradient,
    first_layer_tangent,
    tiles_of_input,
    input_gradient_of_tiles,
    outputs_of_tiles,
    moments,
    normalise_and_pool,
    pooled_gradient,
    gradient_tiles,
    tangent_moments,
    tangent_normalise_and_pool,
    tangent_pooled_gradient,
    tangent_gradient_tiles,
) = (caller(index, call) for index, call in enumerate(LOOPS))

# Arrays of a point: those of each of the three later layers, then of the first layer
# and the head.
INPUTS, WEIGHTS, GRADIENTS, Z, SELECTED, DELTA, MEAN, STD, SCALE, SHIFT = range(10)
SPREAD, WEIGHTS_GRADIENT, CENTRED = range(30, 33)  # [G, 9*C, F]
FIRST_MEAN, FIRST_STD, GAIN, MOMENT, PULL, SHIFT_GRADIENT = range(33, 39)  # [G, F]
FLAT, PROBABILITIES, RESIDUAL = range(39, 42)

# Arrays of the scratch: those of each later layer (the first two also of the features),
# then common ones. Tangents have the names above. All layers share the memory of
# outputs, which later holds the gradients of the inputs, and of the gradients'
# tangents.
PADDED, PADDED_GRADIENT, OUTPUTS, TANGENTS, TOTAL = range(10, 15)
WINDOW, TILE, TRANSPOSED, PRODUCTS, TAPS = range(60, 65)
FOLDED, SPREAD_DOT, WEIGHTS_GRADIENT_DOT = range(65, 68)  # [9*C, F]
FIRST = 68  # [8, F]
LOGITS, SHIFTED, LOSSES, SUM, THREE, FLAT_DOT, FEATURE, HEAD, PATCHES = range(69, 78)


class Room(NamedTuple):
    """Memory, tables and loops of one thread's passes."""

    native: Native
    scratch: Memory
    weights: np.ndarray
    """Layout of the tensors in a row of weights."""
    points: np.ndarray
    codes: np.ndarray
    """Layouts of a point's floats and codes."""
    planes: np.ndarray
    """int64 [3, 2]: heights and widths of the later layers."""
    transform: np.ndarray
    """[16, 9]: transform of weights for the 16 products."""


class Images(NamedTuple):
    """Batches of images as input of the first layer.

    They are zero-padded, with the moments of their groups' 3x3 patches.
    """

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


class Steps(NamedTuple):
    """Steps of gradient descent on other batches before an evaluation.

    They are MAML's steps on the support sets.
    """

    room: Room
    images: Images
    labels: np.ndarray
    rates: np.ndarray
    """Rate of each step, for all weights [K, 1] or for each [K, d]; K = 0: no steps."""
    second: bool
    """Whether a gradient is carried back through the steps.

    Otherwise the weights after the steps count as constants.
    """
    points: Points
    """Points of each step if the gradient is carried back, otherwise a single one."""
    rows: np.ndarray
    """Memory for weights [max(K, 2) + 2, d]."""


def table(parts: dict[int, Sequence[int]], line: int) -> tuple[np.ndarray, int]:
    """Return the layout of arrays of these shapes (`Memory`), and their total size.

    Each array starts at a multiple of `line`.
    """
    table = np.zeros((max(parts) + 1, 5), np.int64)
    start = 0
    for part, shape in parts.items():
        table[part] = [start, *shape, *[1] * (4 - len(shape))]
        start += -(-math.prod(shape) // line) * line
    return table, start


@exact
def inside(padded, flat):
    """Copy the inside of the border of zeros to `flat`, one image per row."""
    images, height, width, filters = padded.shape
    for b in range(images):
        for i in range(height - 2):
            for j in range(width - 2):
                start = (i * (width - 2) + j) * filters
                copy(padded[b, i + 1, j + 1], flat[b, start : start + filters])


@exact
def put_inside(flat, padded):
    """Copy rows of `flat` to the inside of the border: the inverse of `inside`."""
    images, height, width, filters = padded.shape
    for b in range(images):
        for i in range(height - 2):
            for j in range(width - 2):
                start = (i * (width - 2) + j) * filters
                copy(flat[b, start : start + filters], padded[b, i + 1, j + 1])
