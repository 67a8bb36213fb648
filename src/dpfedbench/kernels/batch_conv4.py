"""Conv-4 for one task on the CPU: loss, gradient and Hessian-vector product by hand-written passes.

Why it exists: a task's batch is a handful of small images, so automatic differentiation spends most of its time on
allocation, dispatch and memory traffic, and the second derivative of batch normalisation costs as much as the
convolutions. Here each pass writes into arrays that are allocated once, convolutions are 16 matrix products
(`winograd`), and the Hessian-vector product is the derivative of the gradient's own passes, so that MAML needs no
graph across inner steps (`models.meta_gradient`).

A task is computed by one thread from its own arrays, so results do not depend on threads or chunking.
The values equal those of `models.conv4` under automatic differentiation up to rounding (tests/kernels).
"""

from __future__ import annotations

import numpy as np
import torch

from dpfedbench.kernels import winograd
from dpfedbench.kernels.conv4_passes import Evaluation, Images, Layer, Passes, Products, as_floats, views
from dpfedbench.models.conv4 import Conv4
from dpfedbench.models.gradients import Inputs, Point
from dpfedbench.models.net import Array, Net
from dpfedbench.models.torch_gradients import TorchGradients


class _Tangents:
    """A later layer's arrays for the Hessian-vector product."""

    def __init__(self, layer: Layer) -> None:
        tiles, _, filters = layer.z.shape
        self.padded = np.zeros_like(layer.padded)
        self.inputs = Products(tiles, filters, layer.z.dtype)
        self.weights = Products(filters, filters, layer.z.dtype)
        self.z = np.empty_like(layer.z)
        self.selected, self.delta = np.empty_like(layer.selected), np.empty_like(layer.delta)
        self.mean, self.slope, self.scale, self.shift = np.empty((4, filters), layer.z.dtype)


class FusedConv4(Passes):
    """Passes over a task's batch, normalised as one group.

    Args:
        net: the network's shapes.
        batch: images in the batch.
        dtype: numpy float32 or float64.

    Not safe for use by two threads at once: give each its own object.
    """

    def __init__(self, net: Conv4, batch: int, dtype: type = np.float32) -> None:
        super().__init__(net, batch, dtype, groups=1)
        self._weight_gradients = Products(net.filters, net.filters, self.dtype)
        self._taps = torch.empty((9, net.filters**2), dtype=self._weight_gradients.tensor.dtype)
        self._tangents = [_Tangents(layer) for layer in self.evaluation().layers]
        self._feature_dot = np.zeros_like(self._feature_gradient)

    def loss(self, theta: np.ndarray, images: Images, labels: np.ndarray, at: Evaluation) -> tuple[float, float]:
        """Mean cross-entropy and accuracy (0 to 1) at `theta`; stores in `at` what the derivatives need."""
        logits = self.logits(theta, images, at)
        losses, at.probabilities = self.softmax(logits, labels)
        at.residual = at.probabilities.copy()
        at.residual[np.arange(self.batch), labels] -= 1
        at.residual /= self.dtype.type(self.batch)
        return float(losses.mean()), float((logits.argmax(axis=1) == labels).mean())

    def gradient(self, images: Images, at: Evaluation, out: np.ndarray) -> None:
        """Gradient of the loss that was last evaluated into `at`, written to `out` [d]."""
        blocks = views(out, self.net)
        np.matmul(at.flat.T, at.residual, out=blocks[4][0])
        at.residual.sum(axis=0, out=blocks[4][1])
        self.backward(images, at, at.residual, blocks)

    def weight_gradient(self, layer: Layer, out: np.ndarray) -> None:
        torch.bmm(layer.inputs.tensor.mT, layer.gradients.tensor, out=self._weight_gradients.tensor)
        self._of_transformed(out)

    def _of_transformed(self, out: np.ndarray) -> None:
        """Carry the gradient of the transformed weights to the weights."""
        self.untransform_gradients(self._weight_gradients, self._taps)
        torch.from_numpy(out).view(9, -1).copy_(self._taps)

    def hessian_product(self, direction: np.ndarray, images: Images, at: Evaluation, out: np.ndarray) -> None:
        """Hessian of the loss in `at` times `direction` [d], written to `out` [d].

        `gradient` must have been called for `at` before. The product is the directional derivative of the gradient:
        each pass below is the derivative of the pass of the same place above.
        """
        dots, blocks = views(direction, self.net), views(out, self.net)
        at.first.tangent(images, self._tangents[0].padded, *dots[0])
        for index, (layer, scratch, dot) in enumerate(zip(at.layers, self._scratch, self._tangents, strict=True)):
            weight_dot, scale_dot, shift_dot = dots[index + 1]
            size = (layer.batch, layer.height, layer.width)
            winograd.tiles_of_input(dot.padded, dot.inputs.array)
            self.transform_weights(weight_dot, dot.weights)
            products = scratch.outputs.tensor
            torch.bmm(layer.inputs.tensor, dot.weights.tensor, out=products)
            torch.baddbmm(products, dot.inputs.tensor, layer.weights.tensor, out=products)
            winograd.outputs_of_tiles(scratch.outputs.array, *size, dot.z, scratch.total)
            winograd.tangent_moments(
                layer.z,
                dot.z,
                scratch.total[0],
                *size,
                layer.mean[0],
                layer.inverse_std[0],
                dot.mean,
                dot.slope,
            )
            target = self._tangents[index + 1].padded if index < 2 else self._feature_dot
            winograd.tangent_normalise_and_pool(
                dot.z, *size[1:], layer.inverse_std[0], dot.mean, dot.slope,
                at.blocks[index + 1][1], scale_dot, shift_dot, layer.code, layer.selected, target, dot.selected,
            )  # fmt: skip
        flat_dot = self._feature_dot[:, 1:-1, 1:-1].reshape(self.batch, -1)
        logits_dot = flat_dot @ at.blocks[4][0] + at.flat @ dots[4][0] + dots[4][1]
        centre = (at.probabilities * logits_dot).sum(axis=1, keepdims=True)
        residual_dot = at.probabilities * (logits_dot - centre) / self.dtype.type(self.batch)
        np.matmul(flat_dot.T, at.residual, out=blocks[4][0])
        blocks[4][0][:] += at.flat.T @ residual_dot
        residual_dot.sum(axis=0, out=blocks[4][1])
        inside = self._feature_gradient[:, 1:-1, 1:-1]
        inside[:] = (residual_dot @ at.blocks[4][0].T + at.residual @ dots[4][0].T).reshape(inside.shape)
        padded = self._feature_gradient
        for index in (2, 1, 0):
            layer, scratch, dot = at.layers[index], self._scratch[index], self._tangents[index]
            weight, scale, shift = blocks[index + 1]
            plane = (layer.height, layer.width)
            winograd.tangent_pooled_gradient(
                padded, layer.code, layer.selected, dot.selected, layer.delta, *plane,
                dot.delta, dot.shift, dot.scale,
            )  # fmt: skip
            shift[:], scale[:] = dot.shift, dot.scale
            winograd.tangent_gradient_tiles(
                layer.z, dot.z, *plane, layer.batch, layer.mean[0], layer.inverse_std[0], dot.mean,
                dot.slope, at.blocks[index + 1][1], dots[index + 1][1], layer.code, layer.delta, dot.delta,
                layer.shift_gradient[0], layer.scale_gradient[0], dot.shift, dot.scale,
                scratch.outputs.array,
            )  # fmt: skip
            gradients_dot, products = scratch.outputs.tensor, self._weight_gradients.tensor
            torch.bmm(layer.inputs.tensor.mT, gradients_dot, out=products)
            torch.baddbmm(products, dot.inputs.tensor.mT, layer.gradients.tensor, out=products)
            self._of_transformed(weight)
            products = scratch.input_gradients.tensor
            transposed = scratch.weights_transposed.copy_(layer.weights.tensor.mT)
            torch.bmm(gradients_dot, transposed, out=products)
            transposed.copy_(dot.weights.tensor.mT)
            torch.baddbmm(products, layer.gradients.tensor, transposed, out=products)
            padded = scratch.padded_gradient
            winograd.input_gradient_of_tiles(scratch.input_gradients.array, scratch.tile, padded)
        at.first.tangent_backward(images, padded, blocks[0])


class BatchConv4(TorchGradients):
    """Gradients of a Conv-4 that is normalised over the task's batch; arguments are those of `Gradients`."""

    name = "conv4-batch"

    def __init__(self, net: Net, *, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(net, dtype=dtype)
        self._passes: dict[int, FusedConv4] = {}

    def _prepared(self, x: Array) -> list[Images]:
        return [Images(task) for task in as_floats(x, self.number)]

    def _of(self, batch: int) -> FusedConv4:
        if batch not in self._passes:
            assert isinstance(self.net.module, Conv4)
            self._passes[batch] = FusedConv4(self.net.module, batch, self.number.type)
        return self._passes[batch]

    def _at(self, theta: Array, x: Inputs, y: Array, products: bool, into: Point | None) -> Point:
        passes = self._of(x.shape[1])
        places = None
        if isinstance(into, _Tasks) and into.passes is passes and len(into.places) == len(theta):
            places = into.places
        return _Tasks(passes, np.asarray(theta), x.value, np.asarray(y), places)

    def _logits(self, theta: Array, x: Inputs) -> np.ndarray:
        passes = self._of(x.shape[1])
        place = passes.evaluation()
        return np.stack(
            [passes.logits(own, images, place) for own, images in zip(np.asarray(theta), x.value, strict=True)]
        )


class _Tasks(Point):
    """Tasks, each with an evaluation of its own; their weights may not change before their derivatives are had."""

    def __init__(
        self,
        passes: FusedConv4,
        theta: np.ndarray,
        images: list[Images],
        labels: np.ndarray,
        places: list[Evaluation] | None,
    ) -> None:
        super().__init__(theta)
        self.passes, self._images = passes, images
        self.places = places or [passes.evaluation() for _ in images]
        tasks = zip(theta, images, labels, self.places, strict=True)
        found = np.array([passes.loss(own, some, y, place) for own, some, y, place in tasks])
        self._found = found.reshape(-1, 2).T

    def _measures(self) -> tuple[np.ndarray, np.ndarray]:
        return self._found[0], self._found[1]

    def _gradient(self, out: Array) -> None:
        for images, place, row in zip(self._images, self.places, np.asarray(out), strict=True):
            self.passes.gradient(images, place, row)

    def _product(self, direction: Array, out: Array) -> None:
        rows = zip(np.asarray(direction), self._images, self.places, np.asarray(out), strict=True)
        for along, images, place, row in rows:
            self.passes.hessian_product(along, images, place, row)
