"""The gradient of a batch by a network of cells in training mode: batch normalisation,
drop path and a second classifier.

None of it is private: the statistics of a batch couple its records, and the running
statistics are of all of them.
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
    """A batch's gradient float32 [d], mean loss of the network itself, and the new
    running statistics by their coordinates.
    """

    gradient: torch.Tensor
    loss: float
    statistics: list[tuple[slice, torch.Tensor]]


class BatchGradient:
    """Gradients of the mean loss of a batch.

    Args:
        net: of a `CellNet` of known cells.
        device: "cpu" or a CUDA device.
        drop_path: the probability of drop path; 0: none.
        auxiliary: the weight of the second classifier's loss, where the network has
            one.
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
            generator: draws the masks of drop path.
            progress: share of the training that is over, by which the probability of
                drop path grows from 0, as DARTS has it.
        """
        module = self._module
        weights = tensor_of(theta, self._device).float()
        nn.utils.vector_to_parameters(weights, module.parameters())
        module.zero_grad()
        probability = self._drop_path * progress
        drop = DropPath(probability, generator) if probability > 0 else None
        # Not channels last: torch's backward passes of these grouped convolutions then
        # wrote beyond their memory (torch on a CPU, oneDNN).
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
            total.backward()
        gradient = torch.cat(
            [
                (
                    torch.zeros_like(value) if value.grad is None else value.grad
                ).flatten()
                for value in module.parameters()
            ]
        )
        return BatchMeasures(gradient.cpu(), float(loss.detach()), self._running())

    def _running(self) -> list[tuple[slice, torch.Tensor]]:
        running = []
        for coordinates, layer, key in self._statistics:
            assert layer.running is not None
            mean, variance = layer.running
            value = mean if key == "mean" else variance
            running.append((coordinates, value.detach().cpu()))
        return running


def generator_of(rng: np.random.Generator) -> torch.Generator:
    """A torch generator whose seed a named stream draws."""
    generator = torch.Generator()
    generator.manual_seed(int(rng.integers(2**62)))
    return generator
