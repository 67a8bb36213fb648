"""Conv-4 by hand-written passes: common part of tasks and records.

`batch_conv4` has the passes of tasks and `record_conv4` those of records. The order of
the passes is compiled too (`conv4_order`). Python calls a pass over the whole network
once for all batches, and the pass holds no lock meanwhile. If Python called each
layer's loops one by one, two threads would wait for it.

Images are normalised together in *groups* of equal size, one after another in a batch.
A task's batch is one group; a network that normalises within each record has one group
per record. Moments and the first layer's folded weights have the group as their first
dimension G.

Memory is allocated beforehand; `conv4_room` describes its layout.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import typeof

from dpkernels import calls, conv4_order, products, winograd
from dpkernels import conv4_room as of
from dpkernels.calls import Memory
from dpkernels.compiled import together
from dpkernels.conv4_room import Images, Points, Room, Steps, table
from dpkernels.networks import Conv4Shape
from dpkernels.passes import aligned_zeros, plain


class Conv4Passes:
    """Passes over batches of one size, with weights as flat vectors.

    Args:
        network: the network's shapes.
        batch: images in a batch.
        dtype: numpy float32 or float64.
        by_record: whether each image is normalised separately and has its own gradient.

    It is not safe for use by two threads at once: each thread needs its own object.
    """

    def __init__(
        self, network: Conv4Shape, batch: int, dtype: type, by_record: bool = False
    ) -> None:
        groups = batch if by_record else 1
        self.batch = batch
        self.groups = groups
        self.by_record = by_record
        self.number = np.dtype(dtype)
        self.outputs = network.outputs
        height, width, channels = network.input_shape
        f = network.filters
        patch = 9 * channels
        line = 64 // self.number.itemsize
        planes = [(height >> level, width >> level) for level in (1, 2, 3)]
        point: dict[int, Sequence[int]] = {}
        scratch: dict[int, Sequence[int]] = {}
        shared = (of.OUTPUTS,) if by_record else (of.OUTPUTS, of.TANGENTS)
        codes: dict[int, Sequence[int]] = {
            3: (groups, batch // groups * planes[0][0] * planes[0][1], f)
        }
        for index, (h, w) in enumerate(planes):
            rows = (h + 1) // 2
            columns = (w + 1) // 2
            tiles = batch * rows * columns
            padded = (batch, 2 * rows + 2, 2 * columns + 2, f)
            point |= {
                10 * index + part: (16, tiles, f) for part in (of.INPUTS, of.GRADIENTS)
            }
            point |= {
                10 * index + of.WEIGHTS: (16, f, f),
                10 * index + of.Z: (tiles, 4, f),
            }
            point |= {10 * index + part: (tiles, f) for part in (of.SELECTED, of.DELTA)}
            point |= {
                10 * index + part: (groups, f)
                for part in (of.MEAN, of.STD, of.SCALE, of.SHIFT)
            }
            codes[index] = (tiles, f)
            shapes: dict[int, Sequence[int]] = {
                part: padded for part in (of.PADDED, of.PADDED_GRADIENT)
            }
            shapes[of.TOTAL] = (groups, f)
            if index == 0:
                shapes |= dict.fromkeys(shared, (16, tiles, f))
            if not by_record:
                shapes |= {
                    of.INPUTS: (16, tiles, f),
                    of.WEIGHTS: (16, f, f),
                    of.Z: (tiles, 4, f),
                }
                shapes |= {part: (tiles, f) for part in (of.SELECTED, of.DELTA)}
                shapes |= {part: (f,) for part in (of.MEAN, of.STD, of.SCALE, of.SHIFT)}
            scratch |= {15 * index + part: shape for part, shape in shapes.items()}
        h = height >> 4
        w = width >> 4
        features = h * w * f
        point |= {
            part: (groups, patch, f)
            for part in (of.SPREAD, of.WEIGHTS_GRADIENT, of.CENTRED)
        }
        point |= {
            part: (groups, f) for part in range(of.FIRST_MEAN, of.SHIFT_GRADIENT + 1)
        }
        point |= {
            of.FLAT: (batch, features),
            of.PROBABILITIES: (batch, network.outputs),
            of.RESIDUAL: (batch, network.outputs),
        }
        scratch |= {
            45 + part: (batch, h + 2, w + 2, f)
            for part in (of.PADDED, of.PADDED_GRADIENT)
        }
        scratch |= {
            of.WINDOW: (4, f),
            of.TILE: (16, f),
            of.TRANSPOSED: (16, f, f),
            of.PRODUCTS: (16 * groups, f, f),
        }
        scratch |= {
            of.TAPS: (9, groups * f * f),
            of.FIRST: (8, f),
            of.LOSSES: (batch,),
            of.SUM: (batch,),
        }
        scratch[of.THREE] = (1,)
        scratch |= {
            part: (patch, f)
            for part in (of.FOLDED, of.SPREAD_DOT, of.WEIGHTS_GRADIENT_DOT)
        }
        scratch |= {part: (batch, network.outputs) for part in (of.LOGITS, of.SHIFTED)}
        scratch |= {part: (batch, features) for part in (of.FLAT_DOT, of.FEATURE)}
        scratch |= {
            of.HEAD: (features, network.outputs),
            of.PATCHES: (batch // groups * height * width, patch),
        }
        weights = [
            (math.prod(shape[:-1]), shape[-1]) if len(shape) > 1 else shape
            for shape in network.tensors.values()
        ]
        points, self._floats = table(point, line)
        code_table, self._codes = table(codes, 64)
        scratches, size = table(scratch, line)
        for index, part in itertools.product(
            (1, 2), shared
        ):  # those of the later layers, which are smaller
            scratches[15 * index + part] = (
                scratches[part, 0],
                16,
                point[10 * index + of.INPUTS][1],
                f,
                1,
            )
        largest = max(
            math.prod(shape) for shape in (*point.values(), scratch[of.PRODUCTS])
        )
        native = calls.native(
            of.LOOPS,
            self.number,
            products=16 * groups,
            largest=largest,
        )
        taken = [
            (True, turned, rows, f * f, terms)
            for turned, rows, terms in ((False, 16, 9), (True, 9, 16))
        ]
        for index in range(3):
            tiles = point[10 * index + of.INPUTS][1]
            taken += [(False, False, tiles, f, f), (False, True, f, f, tiles // groups)]
        memory = Memory(aligned_zeros(size, self.number), scratches)
        memory.numbers[scratches[of.THREE, 0]] = 3
        self._room = Room(
            native=native._replace(deepest=products.deepest(native, taken)),
            scratch=memory,
            weights=table(dict(enumerate(weights)), 1)[0],
            points=points,
            codes=code_table,
            planes=np.array(planes, np.int64),
            transform=winograd.WEIGHT_TRANSFORM.astype(self.number),
        )
        self._image_shape = network.input_shape
        self._weights = network.dimension
        empty = np.empty((0, 0), self.number)
        self._none = Steps(
            room=self._room,
            images=Images(
                *(np.empty((0,) * sides, self.number) for sides in (5, 3, 4))
            ),
            labels=np.empty((0, 0), np.int64),
            rates=empty,
            second=False,
            points=Points(empty, np.empty((0, 0), np.uint8)),
            rows=empty,
        )
        together(self._loops())

    def _loops(self) -> list[tuple[Any, tuple[Any, ...]]]:
        """Return the loops that Python always calls, with numba's argument types."""

        def floats(dimensions: int) -> np.ndarray:
            return np.empty((0,) * dimensions, self.number)

        x = floats(5)
        theta = floats(2)
        out = floats(3)
        right = np.empty((0, 0), np.bool_)
        images = self._none.images
        points = self._none.points
        labels = self._none.labels
        loop_calls: list[tuple[Any, tuple[Any, ...]]] = [
            (conv4_order.prepare, (x, *images)),
            (
                conv4_order.evaluate,
                (
                    theta,
                    self._none,
                    images,
                    labels,
                    points,
                    self.by_record,
                    out,
                    theta,
                    right,
                    out,
                ),
            ),
        ]
        return [
            (loop, tuple(map(typeof, (self._room, *values))))
            for loop, values in loop_calls
        ]

    def points(self, count: int) -> Points:
        """Return memory for the evaluations of `count` batches."""
        floats = aligned_zeros(count * self._floats, self.number)
        codes = aligned_zeros(count * self._codes, np.uint8)
        return Points(floats.reshape(count, -1), codes.reshape(count, -1))

    def images(self, x: np.ndarray) -> Images:
        """Prepare batches of floats [T, B, H, W, C] for the first layer."""
        height, width, channels = self._image_shape
        tasks = len(x)
        patch = 9 * channels
        arrays = Images(
            np.empty((tasks, self.batch, height + 2, width + 2, channels), self.number),
            np.empty((tasks, self.groups, patch), self.number),
            np.empty((tasks, self.groups, patch, patch), self.number),
        )
        conv4_order.prepare(self._room, plain(x), *arrays)
        return arrays

    def steps(
        self,
        images: Images,
        labels: np.ndarray,
        rates: np.ndarray,
        second: bool,
        before: Steps | None = None,
    ) -> Steps:
        """Return steps that precede an evaluation by other passes.

        The steps are on batches of this size. They may reuse the memory of `before`.
        """
        if before is None or before.second != second or len(before.rates) != len(rates):
            rows = np.empty((max(len(rates), 2) + 2, self._weights), self.number)
            before = self._none._replace(
                second=second,
                points=self.points(len(rates) if second else 1),
                rows=rows,
            )
        return before._replace(images=images, labels=plain(labels), rates=plain(rates))

    def logits(self, theta: np.ndarray, images: Images, at: Points) -> np.ndarray:
        """Return the logits [T, B, outputs] of batches at weights [T, d] or [1, d].

        `task_gradients` has one point.
        """
        labels = np.empty((0, self.batch), np.int64)
        out = np.empty((0, self.groups, 0), self.number)
        return self._evaluated(theta, images, labels, at, out, self._none)[0]

    def gradients(
        self,
        theta: np.ndarray,
        images: Images,
        labels: np.ndarray,
        at: Points,
        out: np.ndarray,
        steps: Steps | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Compute losses, right answers and gradients.

        Images are [T, B], and weights [T, d].

        A task's gradient is that of its mean loss; a record's gradient is that of its
        own loss. Gradients are written to `out` [T * G, d]. `task_gradients` keeps the state that
        Hessian products need. With `steps`, these start at `theta`, and the gradient is
        with respect to `theta`.
        """
        to = plain(out)
        rows = to.reshape(-1, self.groups, to.shape[-1])
        _, losses, right = self._evaluated(
            theta, images, labels, at, rows, steps or self._none
        )
        if to is not out:
            out[:] = to
        return losses, right

    def _evaluated(
        self,
        theta: np.ndarray,
        images: Images,
        labels: np.ndarray,
        at: Points,
        out: np.ndarray,
        steps: Steps,
    ) -> tuple[np.ndarray, ...]:
        logits = np.empty((len(images.padded), self.batch, self.outputs), self.number)
        losses = np.empty(labels.shape, self.number)
        right = np.empty(labels.shape, np.bool_)
        arguments = plain(theta), steps, images, plain(labels), at, self.by_record
        conv4_order.evaluate(self._room, *arguments, logits, losses, right, out)
        return logits, losses, right

    def hessian_products(
        self,
        theta: np.ndarray,
        images: Images,
        direction: np.ndarray,
        at: Points,
        out: np.ndarray,
    ) -> None:
        """Write Hessians of the losses times directions [T, d] to `out` [T, d].

        Call `gradients` first.
        """
        to = plain(out)
        conv4_order.hessian_products(
            self._room, plain(theta), images, plain(direction), at, to
        )
        if to is not out:
            out[:] = to


def computes(network: Conv4Shape, dtype: np.dtype) -> bool:
    """Return whether the passes compute a Conv-4 with parameters of this type."""
    height, width, _ = network.input_shape
    even = height % 2 == 0 and width % 2 == 0
    return even and min(height, width) >= 16 and dtype in (np.float32, np.float64)


def as_floats(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return uint8 or float images as floats in [0, 1]."""
    return (
        x.astype(dtype) / dtype.type(255)
        if x.dtype == np.uint8
        else np.ascontiguousarray(x, dtype)
    )
