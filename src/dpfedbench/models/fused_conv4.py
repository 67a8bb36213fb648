"""Conv-4 for one task on the CPU: loss, gradient and Hessian-vector product by hand-written passes.

Why it exists: a task's batch is a handful of small images, so automatic differentiation spends most of its time on
allocation, dispatch and memory traffic, and the second derivative of batch normalisation costs as much as the
convolutions. Here each pass writes into arrays that are allocated once, convolutions are 16 matrix products
(`winograd`), and the Hessian-vector product is the derivative of the gradient's own passes, so that MAML needs no
graph across inner steps (`federation.maml`).

A task is computed by one thread from its own arrays, so results do not depend on threads or chunking.
The values equal those of `conv4.forward` under automatic differentiation up to rounding (tests/models).
"""

from __future__ import annotations

import numpy as np
import torch

from dpfedbench.models import winograd
from dpfedbench.models.conv4 import NORMALISATION_EPSILON, Conv4

_TORCH = {np.dtype(np.float32): torch.float32, np.dtype(np.float64): torch.float64}


class Images:
    """A batch of images as the first layer reads it: zero-padded, with the moments of its 3x3 patches.

    Args:
        x: float array [B, H, W, C].
    """

    def __init__(self, x: np.ndarray) -> None:
        batch, height, width, channels = x.shape
        self.shape = (height, width, channels)
        self.padded = np.zeros((batch, height + 2, width + 2, channels), x.dtype)
        self.padded[:, 1:-1, 1:-1] = x
        patches = np.empty((batch * height * width, 9 * channels), x.dtype)
        self.mean = np.empty(9 * channels, x.dtype)
        winograd.patches_of_images(self.padded, self.mean, patches)
        self.covariance = patches.T @ patches / x.dtype.type(len(patches))

    def __len__(self) -> int:
        return len(self.padded)


class _FirstLayer:
    """Convolution, normalisation, activation and pooling of the first layer.

    With patches of mean m and covariance S, the outputs of weights w have mean m.w and variance w.S.w. The
    normalised layer is therefore the plain layer with weights A = k w and shift a = shift - k m.w, where
    k = scale / sqrt(w.S.w + eps); gradients in A and a are carried to w, scale and shift by these formulas.
    """

    def __init__(self, batch: int, size: tuple[int, int], channels: int, filters: int, dtype: np.dtype) -> None:
        self.window = np.empty((4, filters), dtype)
        self.code = np.empty((batch * (size[0] // 2) * (size[1] // 2), filters), np.uint8)
        self.weights_gradient = np.empty((9 * channels, filters), dtype)
        self.shift_gradient = np.empty(filters, dtype)
        self.folded_dot = np.empty((9 * channels, filters), dtype)
        self.eps = dtype.type(NORMALISATION_EPSILON)
        self.half = dtype.type(0.5)

    def forward(
        self, images: Images, out: np.ndarray, weight: np.ndarray, scale: np.ndarray, shift: np.ndarray
    ) -> None:
        self.weight, self.scale = weight, scale
        self.spread = images.covariance @ weight
        self.mean = images.mean @ weight
        self.inverse_std = 1 / np.sqrt((weight * self.spread).sum(0) + self.eps)
        self.gain = scale * self.inverse_std
        winograd.first_layer(
            images.padded, weight * self.gain, shift - self.gain * self.mean, self.window, out, self.code
        )

    def backward(self, images: Images, padded: np.ndarray, gradients: tuple[np.ndarray, ...]) -> None:
        winograd.first_layer_gradient(
            images.padded, padded, self.code, self.window, self.weights_gradient, self.shift_gradient
        )
        weight, scale, shift = gradients
        # The sum over positions of dy * (output - mean).
        self.moment = (self.weight * self.weights_gradient).sum(0) - self.mean * self.shift_gradient
        self.centred = self.weights_gradient - images.mean[:, None] * self.shift_gradient
        self.pull = self.gain * self.inverse_std * self.inverse_std * self.moment
        weight[:] = self.gain * self.centred - self.pull * self.spread
        scale[:] = self.inverse_std * self.moment
        shift[:] = self.shift_gradient

    def tangent(
        self, images: Images, out: np.ndarray, weight: np.ndarray, scale: np.ndarray, shift: np.ndarray
    ) -> None:
        self.weight_dot = weight
        self.spread_dot = images.covariance @ weight
        self.mean_dot = images.mean @ weight
        self.inverse_std_dot = -(self.inverse_std**3) * (self.weight * self.spread_dot).sum(0)
        self.gain_dot = scale * self.inverse_std + self.scale * self.inverse_std_dot
        np.multiply(weight, self.gain, out=self.folded_dot)
        self.folded_dot += self.weight * self.gain_dot
        shift_dot = shift - self.gain_dot * self.mean - self.gain * self.mean_dot
        winograd.first_layer_tangent(images.padded, self.folded_dot, shift_dot, self.code, self.window, out)

    def tangent_backward(self, images: Images, padded: np.ndarray, gradients: tuple[np.ndarray, ...]) -> None:
        weights_gradient, shift_gradient = (
            np.empty_like(self.weights_gradient),
            np.empty_like(self.shift_gradient),
        )
        winograd.first_layer_gradient(images.padded, padded, self.code, self.window, weights_gradient, shift_gradient)
        weight, scale, shift = gradients
        r, r_dot = self.inverse_std, self.inverse_std_dot
        moment_dot = (
            (self.weight_dot * self.weights_gradient + self.weight * weights_gradient).sum(0)
            - self.mean_dot * self.shift_gradient
            - self.mean * shift_gradient
        )
        centred_dot = weights_gradient - images.mean[:, None] * shift_gradient
        pull_dot = (
            self.gain_dot * r * r * self.moment
            + 2 * self.gain * r * r_dot * self.moment
            + self.gain * r * r * moment_dot
        )
        weight[:] = (
            self.gain_dot * self.centred
            + self.gain * centred_dot
            - pull_dot * self.spread
            - self.pull * self.spread_dot
        )
        scale[:] = r_dot * self.moment + r * moment_dot
        shift[:] = shift_gradient


class _Products:
    """A [16, rows, columns] array that both the compiled loops (`array`) and torch's products (`tensor`) see."""

    def __init__(self, rows: int, columns: int, dtype: np.dtype) -> None:
        self.tensor = torch.empty((16, rows, columns), dtype=_TORCH[dtype])
        self.array = self.tensor.numpy()


class _Layer:
    """Convolution, normalisation, activation and pooling of a later layer, with what its derivatives need."""

    def __init__(
        self, batch: int, size: tuple[int, int], channels: int, filters: int, dtype: np.dtype, *, groups: int = 1
    ) -> None:
        self.batch, self.height, self.width = batch, *size
        rows, columns = (self.height + 1) // 2, (self.width + 1) // 2
        tiles = batch * rows * columns
        self.padded = np.zeros((batch, 2 * rows + 2, 2 * columns + 2, channels), dtype)
        self.inputs = _Products(tiles, channels, dtype)
        self.weights = _Products(channels, filters, dtype)
        self.gradients = _Products(tiles, filters, dtype)
        self.z = np.empty((tiles, 4, filters), dtype)
        self.code = np.empty((tiles, filters), np.uint8)
        self.selected = np.empty((tiles, filters), dtype)
        self.delta = np.empty((tiles, filters), dtype)
        # Of each group of images that is normalised together: see `winograd`.
        self.mean, self.inverse_std, self.scale_gradient, self.shift_gradient = np.empty((4, groups, filters), dtype)


class _Scratch:
    """Arrays of a later layer that no other pass needs afterwards; one set serves all inner steps."""

    def __init__(self, layer: _Layer, transform: torch.Tensor) -> None:
        tiles, _, filters = layer.z.shape
        channels, dtype = layer.padded.shape[3], layer.z.dtype
        self.outputs = _Products(tiles, filters, dtype)
        self.input_gradients = _Products(tiles, channels, dtype)
        self.weight_gradients = _Products(channels, filters, dtype)
        self.weights_transposed = torch.empty((16, filters, channels), dtype=_TORCH[dtype])
        self.tile = np.empty((16, channels), dtype)
        self.padded_gradient = np.empty_like(layer.padded)
        self.total = np.empty_like(layer.mean)
        self.transform = transform
        # For the Hessian-vector product.
        self.padded_dot = np.zeros_like(layer.padded)
        self.inputs_dot = _Products(tiles, channels, dtype)
        self.weights_dot = _Products(channels, filters, dtype)
        self.z_dot = np.empty_like(layer.z)
        self.selected_dot, self.delta_dot = np.empty_like(layer.selected), np.empty_like(layer.delta)
        self.mean_dot, self.slope, self.scale_dot, self.shift_dot = np.empty((4, filters), dtype)

    def transform_weights(self, weight: np.ndarray, out: _Products) -> None:
        torch.mm(self.transform, torch.from_numpy(weight).view(9, -1), out=out.tensor.view(16, -1))

    def weight_gradient(self, out: np.ndarray) -> None:
        torch.mm(self.transform.T, self.weight_gradients.tensor.view(16, -1), out=torch.from_numpy(out).view(9, -1))


class Evaluation:
    """One evaluation of the network at one set of weights: what its gradient and Hessian-vector product need.

    The fields are overwritten by the next `FusedConv4.loss` that is given this object.
    """

    blocks: list[tuple[np.ndarray, ...]]  # the weights, block by block
    flat: np.ndarray  # features [B, n]
    probabilities: np.ndarray  # [B, ways]
    residual: np.ndarray  # gradient of the loss in the logits [B, ways]

    def __init__(self, net: Conv4, batch: int, dtype: np.dtype) -> None:
        height, width, channels = net.image_shape
        self.first = _FirstLayer(batch, (height, width), channels, net.filters, dtype)
        self.layers = []
        for _ in range(3):
            height, width = height // 2, width // 2
            self.layers.append(_Layer(batch, (height, width), net.filters, net.filters, dtype))
        self.features = np.zeros((batch, height // 2 + 2, width // 2 + 2, net.filters), dtype)


class FusedConv4:
    """Passes of Conv-4 over one batch of fixed size, for weights given as one flat vector.

    Args:
        net: the network's shapes.
        batch: images in the batch.
        dtype: numpy float32 or float64.

    Not safe for use by two threads at once: give each its own object.
    """

    def __init__(self, net: Conv4, batch: int, dtype: type = np.float32) -> None:
        self.net, self.batch, self.dtype = net, batch, np.dtype(dtype)
        transform = torch.from_numpy(winograd.WEIGHT_TRANSFORM).to(_TORCH[self.dtype])
        example = self.evaluation()
        self._scratch = [_Scratch(layer, transform) for layer in example.layers]
        self._feature_gradient = np.zeros_like(example.features)
        self._feature_dot = np.zeros_like(example.features)

    def evaluation(self) -> Evaluation:
        """A new place for an evaluation to be stored in."""
        return Evaluation(self.net, self.batch, self.dtype)

    def logits(self, theta: np.ndarray, images: Images, at: Evaluation) -> np.ndarray:
        """Logits [B, ways] of the network with flat weights `theta` [d] on `images`."""
        blocks = self.net.unflatten(theta)
        at.blocks = blocks
        at.first.forward(images, at.layers[0].padded, *blocks[0])
        for index, (layer, scratch) in enumerate(zip(at.layers, self._scratch, strict=True)):
            weight, scale, shift = blocks[index + 1]
            winograd.tiles_of_input(layer.padded, layer.inputs.array)
            scratch.transform_weights(weight, layer.weights)
            torch.bmm(layer.inputs.tensor, layer.weights.tensor, out=scratch.outputs.tensor)
            size = (layer.batch, layer.height, layer.width)
            winograd.outputs_of_tiles(scratch.outputs.array, *size, layer.z, scratch.total)
            winograd.moments(layer.z, scratch.total, *size, NORMALISATION_EPSILON, layer.mean, layer.inverse_std)
            target = at.layers[index + 1].padded if index < 2 else at.features
            winograd.normalise_and_pool(
                layer.z,
                *size[1:],
                layer.mean,
                layer.inverse_std,
                scale,
                shift,
                target,
                layer.code,
                layer.selected,
            )
        at.flat = at.features[:, 1:-1, 1:-1].reshape(self.batch, -1)
        return at.flat @ blocks[4][0] + blocks[4][1]

    def loss(self, theta: np.ndarray, images: Images, labels: np.ndarray, at: Evaluation) -> tuple[float, float]:
        """Mean cross-entropy and accuracy (0 to 1) at `theta`; stores in `at` what the derivatives need."""
        logits = self.logits(theta, images, at)
        shifted = logits - logits.max(axis=1, keepdims=True)
        exponentials = np.exp(shifted)
        totals = exponentials.sum(axis=1, keepdims=True)
        rows = np.arange(self.batch)
        at.probabilities = exponentials / totals
        at.residual = at.probabilities.copy()
        at.residual[rows, labels] -= 1
        at.residual /= self.dtype.type(self.batch)
        loss = float((np.log(totals[:, 0]) - shifted[rows, labels]).mean())
        return loss, float((logits.argmax(axis=1) == labels).mean())

    def gradient(self, images: Images, at: Evaluation, out: np.ndarray) -> None:
        """Gradient of the loss that was last evaluated into `at`, written to `out` [d]."""
        blocks = self.net.unflatten(out)
        np.matmul(at.flat.T, at.residual, out=blocks[4][0])
        at.residual.sum(axis=0, out=blocks[4][1])
        inside = self._feature_gradient[:, 1:-1, 1:-1]
        inside[:] = (at.residual @ at.blocks[4][0].T).reshape(inside.shape)
        padded = self._feature_gradient
        for index in (2, 1, 0):
            layer, scratch = at.layers[index], self._scratch[index]
            weight, scale, shift = blocks[index + 1]
            plane = (layer.height, layer.width)
            winograd.pooled_gradient(
                padded,
                layer.code,
                layer.selected,
                *plane,
                layer.delta,
                layer.shift_gradient,
                layer.scale_gradient,
            )
            shift[:], scale[:] = layer.shift_gradient[0], layer.scale_gradient[0]
            winograd.gradient_tiles(
                layer.z, *plane, layer.batch, layer.mean, layer.inverse_std, at.blocks[index + 1][1], layer.code,
                layer.delta, layer.shift_gradient, layer.scale_gradient, layer.gradients.array,
            )  # fmt: skip
            torch.bmm(layer.inputs.tensor.mT, layer.gradients.tensor, out=scratch.weight_gradients.tensor)
            scratch.weight_gradient(weight)
            transposed = scratch.weights_transposed.copy_(layer.weights.tensor.mT)  # cheaper than a transposed product
            torch.bmm(layer.gradients.tensor, transposed, out=scratch.input_gradients.tensor)
            padded = scratch.padded_gradient
            winograd.input_gradient_of_tiles(scratch.input_gradients.array, scratch.tile, padded)
        at.first.backward(images, padded, blocks[0])

    def hessian_product(self, direction: np.ndarray, images: Images, at: Evaluation, out: np.ndarray) -> None:
        """Hessian of the loss in `at` times `direction` [d], written to `out` [d].

        `gradient` must have been called for `at` before. The product is the directional derivative of the gradient:
        each pass below is the derivative of the pass of the same place above.
        """
        dots, blocks = self.net.unflatten(direction), self.net.unflatten(out)
        at.first.tangent(images, self._scratch[0].padded_dot, *dots[0])
        for index, (layer, scratch) in enumerate(zip(at.layers, self._scratch, strict=True)):
            weight_dot, scale_dot, shift_dot = dots[index + 1]
            size = (layer.batch, layer.height, layer.width)
            winograd.tiles_of_input(scratch.padded_dot, scratch.inputs_dot.array)
            scratch.transform_weights(weight_dot, scratch.weights_dot)
            products = scratch.outputs.tensor
            torch.bmm(layer.inputs.tensor, scratch.weights_dot.tensor, out=products)
            torch.baddbmm(products, scratch.inputs_dot.tensor, layer.weights.tensor, out=products)
            winograd.outputs_of_tiles(scratch.outputs.array, *size, scratch.z_dot, scratch.total)
            winograd.tangent_moments(
                layer.z,
                scratch.z_dot,
                scratch.total[0],
                *size,
                layer.mean[0],
                layer.inverse_std[0],
                scratch.mean_dot,
                scratch.slope,
            )
            target = self._scratch[index + 1].padded_dot if index < 2 else self._feature_dot
            winograd.tangent_normalise_and_pool(
                scratch.z_dot, *size[1:], layer.inverse_std[0], scratch.mean_dot, scratch.slope,
                at.blocks[index + 1][1], scale_dot, shift_dot, layer.code, layer.selected, target, scratch.selected_dot,
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
            layer, scratch = at.layers[index], self._scratch[index]
            weight, scale, shift = blocks[index + 1]
            plane = (layer.height, layer.width)
            winograd.tangent_pooled_gradient(
                padded, layer.code, layer.selected, scratch.selected_dot, layer.delta, *plane,
                scratch.delta_dot, scratch.shift_dot, scratch.scale_dot,
            )  # fmt: skip
            shift[:], scale[:] = scratch.shift_dot, scratch.scale_dot
            winograd.tangent_gradient_tiles(
                layer.z, scratch.z_dot, *plane, layer.batch, layer.mean[0], layer.inverse_std[0], scratch.mean_dot,
                scratch.slope, at.blocks[index + 1][1], dots[index + 1][1], layer.code, layer.delta, scratch.delta_dot,
                layer.shift_gradient[0], layer.scale_gradient[0], scratch.shift_dot, scratch.scale_dot,
                scratch.outputs.array,
            )  # fmt: skip
            gradients_dot, products = scratch.outputs.tensor, scratch.weight_gradients.tensor
            torch.bmm(layer.inputs.tensor.mT, gradients_dot, out=products)
            torch.baddbmm(products, scratch.inputs_dot.tensor.mT, layer.gradients.tensor, out=products)
            scratch.weight_gradient(weight)
            products = scratch.input_gradients.tensor
            transposed = scratch.weights_transposed.copy_(layer.weights.tensor.mT)
            torch.bmm(gradients_dot, transposed, out=products)
            transposed.copy_(scratch.weights_dot.tensor.mT)
            torch.baddbmm(products, layer.gradients.tensor, transposed, out=products)
            padded = scratch.padded_gradient
            winograd.input_gradient_of_tiles(scratch.input_gradients.array, scratch.tile, padded)
        at.first.tangent_backward(images, padded, blocks[0])
