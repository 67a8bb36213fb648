"""Conv-4 by hand-written passes: what the passes of tasks (`batch_conv4`) and of records (`record_conv4`) share.

Images are normalised together in *groups* of equal size, one after another in a batch: a task's batch is one group, and
a network that normalises within each record has a group a record. Moments, and the first layer's folded weights, have
the group as their first dimension G.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import numpy as np
import torch

from dpfedbench.kernels import winograd
from dpfedbench.models.conv4 import NORMALISATION_EPSILON, Conv4
from dpfedbench.models.net import Array

_TORCH = {np.dtype(np.float32): torch.float32, np.dtype(np.float64): torch.float64}


def views(theta: np.ndarray, net: Conv4) -> list[tuple[np.ndarray, ...]]:
    """Views into flat weights: four times (weight [9*in, out], scale, shift), then (head weight, bias)."""
    parts, start = [], 0
    for shape in net.shapes:
        size = math.prod(shape)
        part = theta[start : start + size]
        parts.append(part.reshape(-1, shape[-1]) if len(shape) > 1 else part)
        start += size
    return [tuple(parts[3 * block : 3 * block + 3]) for block in range(4)] + [tuple(parts[12:])]


def as_floats(x: Array, dtype: np.dtype) -> np.ndarray:
    """Images of numpy's or torch's uint8 or floats as floats in [0, 1]."""
    x = x.numpy() if isinstance(x, torch.Tensor) else x
    return x.astype(dtype) / dtype.type(255) if x.dtype == np.uint8 else np.ascontiguousarray(x, dtype)


class Images:
    """A batch of images as the first layer reads it: zero-padded, with the moments of its groups' 3x3 patches.

    Args:
        x: float array [B, H, W, C].
        groups: G, a divisor of B.
    """

    def __init__(self, x: np.ndarray, groups: int = 1) -> None:
        batch, height, width, channels = x.shape
        self.padded = np.zeros((batch, height + 2, width + 2, channels), x.dtype)
        self.padded[:, 1:-1, 1:-1] = x
        # The same images, a group a row.
        self.groups = self.padded.reshape(groups, batch // groups, *self.padded.shape[1:])
        patches = np.empty((groups, batch // groups * height * width, 9 * channels), x.dtype)
        self.mean = np.empty((groups, 9 * channels), x.dtype)
        for group, some in enumerate(self.groups):
            winograd.patches_of_images(some, self.mean[group], patches[group])
        self.covariance = patches.transpose(0, 2, 1) @ patches / x.dtype.type(patches.shape[1])

    def __len__(self) -> int:
        return len(self.padded)


class _FirstLayer:
    """Convolution, normalisation, activation and pooling of the first layer.

    With patches of mean m and covariance S, the outputs of weights w have mean m.w and variance w.S.w. The
    normalised layer is therefore the plain layer with weights A = k w and shift a = shift - k m.w, where
    k = scale / sqrt(w.S.w + eps); gradients in A and a are carried to w, scale and shift by these formulas. Each group
    has its own m, S, A and a, and its own gradient.
    """

    def __init__(self, net: Conv4, batch: int, dtype: np.dtype, groups: int) -> None:
        height, width, channels = net.image_shape
        self.window = np.empty((4, net.filters), dtype)
        self.code = np.empty((groups, batch // groups * (height // 2) * (width // 2), net.filters), np.uint8)
        self.weights_gradient, self.weights_gradient_dot = np.empty((2, groups, 9 * channels, net.filters), dtype)
        self.shift_gradient, self.shift_gradient_dot = np.empty((2, groups, net.filters), dtype)
        self.eps = dtype.type(NORMALISATION_EPSILON)

    def _by_group(self, padded: np.ndarray) -> np.ndarray:
        return padded.reshape(len(self.code), -1, *padded.shape[1:])

    def forward(
        self, images: Images, out: np.ndarray, weight: np.ndarray, scale: np.ndarray, shift: np.ndarray
    ) -> None:
        self.weight, self.scale = weight, scale
        self.spread = images.covariance @ weight
        self.mean = images.mean @ weight
        self.inverse_std = 1 / np.sqrt((weight * self.spread).sum(1) + self.eps)
        self.gain = scale * self.inverse_std
        folded, shifts = weight * self.gain[:, None], shift - self.gain * self.mean
        for group, to in enumerate(self._by_group(out)):
            winograd.first_layer(images.groups[group], folded[group], shifts[group], self.window, to, self.code[group])

    def backward(self, images: Images, padded: np.ndarray, gradients: tuple[np.ndarray, ...]) -> None:
        self._gradient(images, padded, self.weights_gradient, self.shift_gradient)
        weight, scale, shift = gradients
        # The sum over positions of dy * (output - mean).
        self.moment = (self.weight * self.weights_gradient).sum(1) - self.mean * self.shift_gradient
        self.centred = self.weights_gradient - images.mean[:, :, None] * self.shift_gradient[:, None]
        self.pull = self.gain * self.inverse_std * self.inverse_std * self.moment
        weight[:] = self.gain[:, None] * self.centred - self.pull[:, None] * self.spread
        scale[:] = self.inverse_std * self.moment
        shift[:] = self.shift_gradient

    def _gradient(self, images: Images, padded: np.ndarray, weights: np.ndarray, shifts: np.ndarray) -> None:
        for group, delta in enumerate(self._by_group(padded)):
            winograd.first_layer_gradient(
                images.groups[group], delta, self.code[group], self.window, weights[group], shifts[group]
            )

    def tangent(
        self, images: Images, out: np.ndarray, weight: np.ndarray, scale: np.ndarray, shift: np.ndarray
    ) -> None:
        self.weight_dot = weight
        self.spread_dot = images.covariance @ weight
        self.mean_dot = images.mean @ weight
        self.inverse_std_dot = -(self.inverse_std**3) * (self.weight * self.spread_dot).sum(1)
        self.gain_dot = scale * self.inverse_std + self.scale * self.inverse_std_dot
        folded_dot = weight * self.gain[:, None] + self.weight * self.gain_dot[:, None]
        shift_dot = shift - self.gain_dot * self.mean - self.gain * self.mean_dot
        for group, to in enumerate(self._by_group(out)):
            winograd.first_layer_tangent(
                images.groups[group], folded_dot[group], shift_dot[group], self.code[group], self.window, to
            )

    def tangent_backward(self, images: Images, padded: np.ndarray, gradients: tuple[np.ndarray, ...]) -> None:
        weights_gradient, shift_gradient = self.weights_gradient_dot, self.shift_gradient_dot
        self._gradient(images, padded, weights_gradient, shift_gradient)
        weight, scale, shift = gradients
        r, r_dot = self.inverse_std, self.inverse_std_dot
        moment_dot = (
            (self.weight_dot * self.weights_gradient + self.weight * weights_gradient).sum(1)
            - self.mean_dot * self.shift_gradient
            - self.mean * shift_gradient
        )
        centred_dot = weights_gradient - images.mean[:, :, None] * shift_gradient[:, None]
        pull_dot = (
            self.gain_dot * r * r * self.moment
            + 2 * self.gain * r * r_dot * self.moment
            + self.gain * r * r * moment_dot
        )
        weight[:] = (
            self.gain_dot[:, None] * self.centred
            + self.gain[:, None] * centred_dot
            - pull_dot[:, None] * self.spread
            - self.pull[:, None] * self.spread_dot
        )
        scale[:] = r_dot * self.moment + r * moment_dot
        shift[:] = shift_gradient


class Products:
    """A [16, rows, columns] array that both the compiled loops (`array`) and torch's products (`tensor`) see."""

    def __init__(self, rows: int, columns: int, dtype: np.dtype) -> None:
        self.tensor = torch.empty((16, rows, columns), dtype=_TORCH[dtype])
        self.array = self.tensor.numpy()


class Layer:
    """Convolution, normalisation, activation and pooling of a later layer, with what its derivatives need."""

    def __init__(self, batch: int, size: tuple[int, int], filters: int, dtype: np.dtype, groups: int) -> None:
        self.batch, self.height, self.width = batch, *size
        rows, columns = (self.height + 1) // 2, (self.width + 1) // 2
        tiles = batch * rows * columns
        self.padded = np.zeros((batch, 2 * rows + 2, 2 * columns + 2, filters), dtype)
        self.inputs = Products(tiles, filters, dtype)
        self.weights = Products(filters, filters, dtype)
        self.gradients = Products(tiles, filters, dtype)
        self.z = np.empty((tiles, 4, filters), dtype)
        self.code = np.empty((tiles, filters), np.uint8)
        self.selected = np.empty((tiles, filters), dtype)
        self.delta = np.empty((tiles, filters), dtype)
        # Of each group of images that is normalised together: see `winograd`.
        self.mean, self.inverse_std, self.scale_gradient, self.shift_gradient = np.empty((4, groups, filters), dtype)


class _Scratch:
    """Arrays of a later layer that no other pass needs afterwards; one set serves all evaluations."""

    def __init__(self, layer: Layer) -> None:
        tiles, _, filters = layer.z.shape
        dtype = layer.z.dtype
        self.outputs = Products(tiles, filters, dtype)
        self.input_gradients = Products(tiles, filters, dtype)
        self.weights_transposed = torch.empty((16, filters, filters), dtype=_TORCH[dtype])
        self.tile = np.empty((16, filters), dtype)
        self.padded_gradient = np.empty_like(layer.padded)
        self.total = np.empty_like(layer.mean)


class Evaluation:
    """One evaluation of the network at one set of weights: what its derivatives need.

    The fields are overwritten by the next pass forward that is given this object.
    """

    blocks: list[tuple[np.ndarray, ...]]  # the weights, block by block
    flat: np.ndarray  # features [B, n]
    probabilities: np.ndarray  # [B, ways]
    residual: np.ndarray  # gradient of the loss in the logits [B, ways]

    def __init__(self, net: Conv4, batch: int, dtype: np.dtype, groups: int) -> None:
        height, width, _ = net.image_shape
        self.first = _FirstLayer(net, batch, dtype, groups)
        self.layers = []
        for _ in range(3):
            height, width = height // 2, width // 2
            self.layers.append(Layer(batch, (height, width), net.filters, dtype, groups))
        self.features = np.zeros((batch, height // 2 + 2, width // 2 + 2, net.filters), dtype)


class Passes(ABC):
    """Passes over one batch of fixed size, for weights given as one flat vector.

    Args:
        net: the network's shapes.
        batch: images in the batch.
        dtype: numpy float32 or float64.
        groups: how many groups of the batch are normalised, each by itself.

    Not safe for use by two threads at once: give each its own object.
    """

    def __init__(self, net: Conv4, batch: int, dtype: type, groups: int) -> None:
        self.net, self.batch, self.dtype, self.groups = net, batch, np.dtype(dtype), groups
        self._transform = torch.from_numpy(winograd.WEIGHT_TRANSFORM).to(_TORCH[self.dtype])
        example = self.evaluation()
        self._scratch = [_Scratch(layer) for layer in example.layers]
        self._feature_gradient = np.zeros_like(example.features)

    def evaluation(self) -> Evaluation:
        """A new place for an evaluation to be stored in."""
        return Evaluation(self.net, self.batch, self.dtype, self.groups)

    def logits(self, theta: np.ndarray, images: Images, at: Evaluation) -> np.ndarray:
        """Logits [B, ways] of the network with flat weights `theta` [d] on `images`."""
        blocks = views(theta, self.net)
        at.blocks = blocks
        at.first.forward(images, at.layers[0].padded, *blocks[0])
        for index, (layer, scratch) in enumerate(zip(at.layers, self._scratch, strict=True)):
            weight, scale, shift = blocks[index + 1]
            winograd.tiles_of_input(layer.padded, layer.inputs.array)
            self.transform_weights(weight, layer.weights)
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

    def transform_weights(self, weight: np.ndarray, out: Products) -> None:
        """Bring a later layer's weights, or their tangent, to the 16 products' form."""
        torch.mm(self._transform, torch.from_numpy(weight).view(9, -1), out=out.tensor.view(16, -1))

    def untransform_gradients(self, gradients: Products, taps: torch.Tensor) -> None:
        """Carry gradients in the 16 products' weights to `taps`, those in the weights' nine.

        `taps` is a tensor of its own, not a part of a row of gradients: a product's last bits may depend on where its
        result begins in memory (MKL on two threads).
        """
        torch.mm(self._transform.T, gradients.tensor.view(16, -1), out=taps.view(9, -1))

    def softmax(self, logits: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Each image's cross-entropy [B], and the classes' probabilities [B, ways]."""
        shifted = logits - logits.max(axis=1, keepdims=True)
        exponentials = np.exp(shifted)
        totals = exponentials.sum(axis=1, keepdims=True)
        return np.log(totals[:, 0]) - shifted[np.arange(self.batch), labels], exponentials / totals

    def backward(
        self, images: Images, at: Evaluation, residual: np.ndarray, blocks: list[tuple[np.ndarray, ...]]
    ) -> None:
        """Write the gradients of all blocks but the last, which is the head; `residual` [B, ways]."""
        inside = self._feature_gradient[:, 1:-1, 1:-1]
        inside[:] = (residual @ at.blocks[4][0].T).reshape(inside.shape)
        padded = self._feature_gradient
        for index in (2, 1, 0):
            layer, scratch = at.layers[index], self._scratch[index]
            weight, scale, shift = blocks[index + 1]
            plane = (layer.height, layer.width)
            winograd.pooled_gradient(
                padded, layer.code, layer.selected, *plane, layer.delta, layer.shift_gradient, layer.scale_gradient
            )
            shift[:], scale[:] = layer.shift_gradient, layer.scale_gradient
            winograd.gradient_tiles(
                layer.z, *plane, layer.batch, layer.mean, layer.inverse_std, at.blocks[index + 1][1], layer.code,
                layer.delta, layer.shift_gradient, layer.scale_gradient, layer.gradients.array,
            )  # fmt: skip
            self.weight_gradient(layer, weight)
            transposed = scratch.weights_transposed.copy_(layer.weights.tensor.mT)  # cheaper than a transposed product
            torch.bmm(layer.gradients.tensor, transposed, out=scratch.input_gradients.tensor)
            padded = scratch.padded_gradient
            winograd.input_gradient_of_tiles(scratch.input_gradients.array, scratch.tile, padded)
        at.first.backward(images, padded, blocks[0])

    @abstractmethod
    def weight_gradient(self, layer: Layer, out: np.ndarray) -> None:
        """Gradient of a later layer's weights, from its inputs and output gradients in tiles."""
