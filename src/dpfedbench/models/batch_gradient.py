"""Gradients of a batch for networks of cells in training mode.

Training mode has batch normalisation, drop path and a second classifier. It is not
private: batch statistics couple the records of a batch, and the running statistics
depend on all of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from dpfedbench.models.cell_layers import BatchNorm, DropPath
from dpfedbench.models.darts import CellNet
from dpfedbench.models.net import Array, Net, tensor_of


class BatchMeasures(NamedTuple):
    """Gradient, loss and running statistics of one batch.

    The gradient is float32 [d]. The loss is the mean loss of the network itself,
    without the second classifier. Each new running statistic stands beside its
    coordinates.
    """

    gradient: torch.Tensor
    loss: float
    statistics: list[tuple[slice, torch.Tensor]]


class BatchGradient:
    """Gradients of the mean loss of a batch.

    Args:
        net: a network whose module is a `GenotypeNet`.
        device: "cpu" or a CUDA device.
        drop_path: probability of drop path; 0 switches it off.
        auxiliary: weight of the second classifier's loss, if the network has one.
    """

    def __init__(
        self, net: Net, *, device: str, drop_path: float, auxiliary: float
    ) -> None:
        module = net.build()
        assert isinstance(module, CellNet)
        self._net = net
        self._device = device
        self._drop_path = drop_path
        self._auxiliary = auxiliary
        self._module = module.to(device)
        self._statistics = list[tuple[slice, BatchNorm, str]]()
        start = 0
        for name, value in self._module.named_parameters():
            coordinates = slice(start, start + value.numel())
            start = coordinates.stop
            layer_name, _, key = name.rpartition(".")
            layer = self._module.get_submodule(layer_name)
            if isinstance(layer, BatchNorm) and key in ("mean", "variance"):
                self._statistics.append((coordinates, layer, key))
        for layer in self._module.modules():
            if isinstance(layer, BatchNorm):
                layer.uses_batch = True

    def __call__(
        self,
        theta: Array,
        x: Array,
        y: Array,
        *,
        generator: torch.Generator,
        progress: float = 1.0,
    ) -> BatchMeasures:
        """Differentiate the mean loss of a batch.

        Args:
            theta: weights [d].
            x, y: images [n, H, W, C] and labels [n], n >= 2.
            generator: source of the masks of drop path.
            progress: completed share of the training, 0 to 1. The probability of drop
                path grows with it from 0, as in DARTS.
        """
        module = self._module
        weights = tensor_of(theta, self._device).float()
        parameters = list(module.parameters())
        nn.utils.vector_to_parameters(weights, parameters)
        probability = self._drop_path * progress
        drop = DropPath(probability, generator) if probability > 0 else None
        # With channels last, torch's backward pass of these grouped convolutions wrote
        # beyond its memory (torch on a CPU, oneDNN).
        inputs = self._net.inputs(x, weights).contiguous()
        labels = tensor_of(y, self._device)
        with torch.enable_grad():
            logits, second = module.training_logits(inputs, drop)
            loss = functional.cross_entropy(logits, labels)
            total = loss
            if second is not None:
                total = loss + self._auxiliary * functional.cross_entropy(
                    second, labels
                )
            gradients = torch.autograd.grad(
                total, parameters, allow_unused=True, materialize_grads=True
            )
        gradient = torch.cat([part.flatten() for part in gradients])
        running = [
            (coordinates, layer.running[key].cpu())
            for coordinates, layer, key in self._statistics
        ]
        return BatchMeasures(gradient.cpu(), float(loss.detach()), running)


def generator_of(rng: np.random.Generator) -> torch.Generator:
    """Return a torch generator that is seeded from a named random stream."""
    return torch.Generator().manual_seed(int(rng.integers(2**62)))
