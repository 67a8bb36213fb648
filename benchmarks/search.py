"""Measure per-record gradients of DP-FNAS' search network, beside Opacus and vmap.

    uv run python benchmarks/search.py [--pairs 5] [--records 64]

The rates are in records per second of CPU time. All implementations use the same
network and records, one thread, and take turns. Each pair times a round of each
implementation, and the ratio is computed for each pair. Ours is the compiled pass of
`dpkernels`, for the weights and for the architecture. Opacus runs its GradSampleModule
on torch's layers, for the weights alone. `vmap` is `models.gradients`. A further
column is the gradient of the whole batch at once. The last column is the largest
difference between our rows and Opacus'.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from dpfedbench.models.cell_layers import NORMALISATION_EPSILON
from dpfedbench.models.choose import choose
from dpfedbench.models.genotype import Space
from dpfedbench.models.zoo.darts import DartsSearch

CASES = {
    "8 filters, 3 cells, 2 nodes, 7x7": (
        DartsSearch(filters=8, cells=3, nodes=2, pooling=4),
        (28, 28, 1),
        64,
    ),
    "8 filters, 3 cells, 2 nodes, 14x14": (
        DartsSearch(filters=8, cells=3, nodes=2, pooling=2),
        (28, 28, 1),
        64,
    ),
    "8 filters, 4 cells, 3 nodes, 14x14": (
        DartsSearch(filters=8, cells=4, nodes=3, pooling=2),
        (28, 28, 1),
        32,
    ),
    "the paper's: 16 filters, 8 cells, 4 nodes, 32x32": (DartsSearch(), (32, 32, 3), 8),
}

LAYER_INDICES = {"depthwise0": 1, "pointwise0": 2, "depthwise1": 5, "pointwise1": 6}
"""Position of each layer in the sequence that `_make_operation` returns."""


class PlainSearch(nn.Module):
    """Search network made of torch's layers, with one module for each operation of each
    edge, as in DARTS' code.

    It shares no code with `models.darts`. `load` copies weights of that network.
    """

    def __init__(
        self, settings: DartsSearch, shape: tuple[int, int, int], classes: int
    ) -> None:
        super().__init__()
        self.space: Space = settings.space
        self.halving = settings.halving
        self.pooling = settings.pooling
        self.groups = settings.groups
        stem_channels = 3 * settings.filters
        self.stem = nn.Sequential(
            nn.Conv2d(shape[2], stem_channels, 3, padding=1, bias=False),
            _make_norm(stem_channels, affine=True),
        )
        self.cells = nn.ModuleList()
        inputs = (stem_channels, stem_channels)
        previous_halves = False
        filters = settings.filters
        for index in range(settings.cells):
            halves = index in self.halving
            filters *= 2 if halves else 1
            first = (
                _Halving(inputs[0], filters)
                if previous_halves
                else _make_pointwise(inputs[0], filters)
            )
            edges = nn.ModuleDict()
            for node in range(settings.nodes):
                for state in range(2 + node):
                    stride = 2 if halves and state < 2 else 1
                    edges[f"{node}-{state}"] = nn.ModuleDict(
                        {
                            name: _make_operation(name, filters, stride)
                            for name in self.space.choices
                        }
                    )
            self.cells.append(
                nn.ModuleDict(
                    {
                        "0": first,
                        "1": _make_pointwise(inputs[1], filters),
                        "edges": edges,
                    }
                )
            )
            inputs = (inputs[1], settings.nodes * filters)
            previous_halves = halves
        self.classifier = nn.Linear(inputs[1], classes)
        for layer in self.modules():
            if isinstance(layer, nn.GroupNorm) and self.groups is not None:
                layer.num_groups = self.groups
        self.architecture: Mapping[str, torch.Tensor] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.avg_pool2d(x, self.pooling)
        # torch may take images of one channel for channels-last ones, for which Opacus
        # silently computes wrong gradients. The copy has a plain layout.
        before = last = self.stem(torch.empty(x.shape, dtype=x.dtype).copy_(x))
        for index, cell in enumerate(self.cells):
            states = [cell["0"](before), cell["1"](last)]  # type: ignore[index]
            shares = self.architecture[
                "reduction" if index in self.halving else "normal"
            ].softmax(1)
            edge = 0
            for node in range(self.space.nodes):
                total: Any = 0
                for state in range(2 + node):
                    row = dict(zip(self.space.operations, shares[edge], strict=True))
                    operations = cell["edges"][f"{node}-{state}"]  # type: ignore[index]
                    total = total + sum(
                        row[name] * operations[name](states[state])
                        for name in self.space.choices
                    )
                    edge += 1
                states.append(total)
            before = last
            last = torch.cat(states[2:], 1)
        return self.classifier(
            (functional.relu(last) if self.groups is None else last).mean((2, 3))
        )

    def load(self, tensors: Mapping[str, torch.Tensor]) -> list[nn.Parameter]:
        """Copy the weights of a `SearchNet`.

        Args:
            tensors: its tensors, by name.

        Returns:
            The parameters of this network, in the order of the tensors. A tensor may
            hold several parameters.
        """
        self.architecture = {
            name.split(".")[1]: value
            for name, value in tensors.items()
            if "architecture" in name
        }
        order = []
        with torch.no_grad():
            for name, value in tensors.items():
                if not name.startswith("architecture"):
                    parameters = self._find_parameters(name)
                    parts = value.detach().chunk(len(parameters))
                    for parameter, part in zip(parameters, parts, strict=True):
                        parameter.copy_(part.reshape(parameter.shape))
                    order += parameters
        return order

    def _find_parameters(self, name: str) -> list[nn.Parameter]:
        """Return the parameters that a tensor of a `SearchNet` holds, in its order."""
        parts = name.split(".")
        if parts[0] == "stem":
            return [self.stem[0].weight]
        if parts[0] == "stem_norm":
            return [self.stem[1].weight if parts[1] == "scale" else self.stem[1].bias]
        if parts[0] == "classifier":
            return [getattr(self.classifier, parts[1])]
        cell: Any = self.cells[int(parts[1])]
        if parts[2] == "preparations":
            preparation = cell[parts[3]]
            halves = isinstance(preparation, _Halving)
            layer = getattr(preparation, parts[4]) if halves else preparation[1]
            return [layer.weight]
        state = int(parts[3])
        operation = parts[5]
        layer_name = parts[6]
        nodes = range(max(0, state - 1), self.space.nodes)
        modules = [cell["edges"][f"{node}-{state}"][operation] for node in nodes]
        if operation == "skip_connect":
            return [getattr(module, layer_name).weight for module in modules]
        return [module[LAYER_INDICES[layer_name]].weight for module in modules]


class _Halving(nn.Module):
    """Skip connection that halves the side of the maps (DARTS' FactorizedReduce)."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.even = nn.Conv2d(channels, out // 2, 1, stride=2, bias=False)
        self.odd = nn.Conv2d(channels, out // 2, 1, stride=2, bias=False)
        self.norm = _make_norm(out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(x)
        shifted = torch.zeros_like(x)
        shifted[:, :, :-1, :-1] = x[:, :, 1:, 1:]
        return self.norm(torch.cat([self.even(x), self.odd(shifted)], 1))


def _make_norm(channels: int, affine: bool = False) -> nn.Module:
    """Return the normalisation of each channel within one record."""
    return nn.GroupNorm(channels, channels, eps=NORMALISATION_EPSILON, affine=affine)


def _make_pointwise(channels: int, out: int) -> nn.Module:
    """Return the preparation of a cell's input: ReLU, convolution, normalisation."""
    return nn.Sequential(
        nn.ReLU(), nn.Conv2d(channels, out, 1, bias=False), _make_norm(out)
    )


def _make_operation(name: str, channels: int, stride: int) -> nn.Module:
    """Return an operation of an edge by its name in DARTS."""
    if name == "skip_connect":
        return nn.Identity() if stride == 1 else _Halving(channels, channels)
    if name == "max_pool_3x3":
        return nn.Sequential(nn.MaxPool2d(3, stride, 1), _make_norm(channels))
    if name == "avg_pool_3x3":
        return nn.Sequential(
            nn.AvgPool2d(3, stride, 1, count_include_pad=False), _make_norm(channels)
        )
    side = int(name[-1])
    dilation = 2 if name.startswith("dil") else 1
    layers: list[nn.Module] = []
    padding = dilation * (side // 2)
    # A dilated convolution is one pair of layers, a separable one is two.
    strides = (stride,) if dilation == 2 else (stride, 1)
    for layer_stride in strides:
        layers += [
            nn.ReLU(),
            nn.Conv2d(
                channels,
                channels,
                side,
                layer_stride,
                padding,
                dilation,
                groups=channels,
                bias=False,
            ),
            nn.Conv2d(channels, channels, 1, bias=False),
            _make_norm(channels),
        ]
    return nn.Sequential(*layers)


def _measure_seconds(work: Callable[[], Any]) -> float:
    """Return the CPU seconds of one call."""
    start = time.process_time()
    work()
    return time.process_time() - start


def _measure_case(
    settings: DartsSearch, shape: tuple[int, int, int], records: int, pairs: int
) -> tuple[list[float], float]:
    """Measure all implementations on one network.

    Args:
        settings: the search network.
        shape: of the images, [height, width, channels].
        records: of a round.
        pairs: rounds of each implementation.

    Returns:
        The median records per second of each implementation, then the median ratio to
        Opacus; and the largest difference of a row from Opacus', relative to its norm.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus import GradSampleModule
    net = settings.net(input_shape=shape, outputs=10)
    rng = np.random.default_rng(0)
    theta = (net.initial(rng) + 0.1 * rng.standard_normal(net.dimension)).astype(
        np.float32
    )
    x = rng.integers(0, 256, (records, *shape), np.uint8)
    y = rng.integers(0, 10, records)
    ours = choose(net).make()
    plain_torch = choose(net, enabled=False).make()
    plain = PlainSearch(settings, shape, 10)
    order = plain.load(net.tensors(torch.from_numpy(theta)))
    sampled = GradSampleModule(plain, loss_reduction="sum")
    inputs = net.inputs(x, torch.empty(0))
    labels = torch.from_numpy(y)
    rows = {
        name: np.empty((records, ours.width(name)), np.float32) for name in net.blocks
    }

    def run_opacus() -> None:
        sampled.zero_grad()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            functional.cross_entropy(
                sampled(inputs), labels, reduction="sum"
            ).backward()

    leaf = torch.from_numpy(theta).requires_grad_()
    works = [
        lambda: ours.record_gradients(theta, x, y, rows["weights"], block="weights"),
        lambda: ours.record_gradients(
            theta, x, y, rows["architecture"], block="architecture"
        ),
        run_opacus,
        lambda: plain_torch.record_gradients(
            theta, x, y, rows["weights"], block="weights"
        ),
        lambda: torch.autograd.grad(net.losses(leaf, x, y).sum(), leaf),
    ]
    run_opacus()
    works[0]()
    opacus_rows = torch.cat(
        [parameter.grad_sample.flatten(1) for parameter in order], 1
    ).numpy()
    differences = np.linalg.norm(rows["weights"] - opacus_rows, axis=1)
    relative = differences / np.linalg.norm(opacus_rows, axis=1)
    for work in works:
        work()
    rounds = [
        [records / _measure_seconds(work) for work in works] for _ in range(pairs)
    ]
    rates = [statistics.median(column) for column in zip(*rounds, strict=True)]
    ratio = statistics.median(row[0] / row[2] for row in rounds)
    return [*rates, ratio], float(relative.max())


def main() -> None:
    """Run all cases and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument(
        "--records",
        type=int,
        default=0,
        help="records of a round; 0: a number that suits the case",
    )
    parser.add_argument(
        "--cases",
        type=int,
        default=len(CASES),
        help="number of cases, from the smallest",
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(
        "| network, maps | weights | architecture | Opacus | vmap | batch, not clipped"
        " | ratio to Opacus | error |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name, (settings, shape, records) in list(CASES.items())[: options.cases]:
        count = options.records or records
        rates, difference = _measure_case(settings, shape, count, options.pairs)
        columns = " | ".join(f"{rate:,.1f}" for rate in rates)
        print(f"| {name} | {columns} | {difference:.0e} |", flush=True)


if __name__ == "__main__":
    main()
