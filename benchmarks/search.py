"""Records per second of per-record gradients of DP-FNAS' search network, beside Opacus
and `vmap(grad)`.

    uv run python benchmarks/search.py [--pairs 5] [--records 64]

Same network, same records, same machine, one thread, in turns: each pair times a round
of ours and then one of each other, in seconds of CPU, and the ratio is taken pair by
pair. Ours is `kernels.cells`, for the weights and for the architecture; Opacus' is its
GradSampleModule on torch's own layers, for the weights alone; `vmap` is
`models.torch_gradients`; the last column is one gradient of the whole batch. That
Opacus' rows equal ours is checked first.
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


class PlainSearch(nn.Module):
    """The search network in torch's own layers, an edge and an operation at a time, as
    DARTS writes it.

    It shares no code with `models.darts`, whose weights `load` takes apart.
    """

    def __init__(
        self, settings: DartsSearch, shape: tuple[int, int, int], classes: int
    ) -> None:
        super().__init__()
        self.space: Space = settings.space
        self.halving = settings.halving
        self.pooling = settings.pooling
        self.groups = settings.groups
        wide = 3 * settings.filters
        self.stem = nn.Sequential(
            nn.Conv2d(shape[2], wide, 3, padding=1, bias=False),
            _norm(wide, affine=True),
        )
        self.cells = nn.ModuleList()
        inputs = (wide, wide)
        shrink = False
        filters = settings.filters
        for place in range(settings.cells):
            halves = place in self.halving
            filters *= 2 if halves else 1
            first = (
                _Halving(inputs[0], filters)
                if shrink
                else _pointwise(inputs[0], filters)
            )
            edges = nn.ModuleDict()
            for node in range(settings.nodes):
                for state in range(2 + node):
                    stride = 2 if halves and state < 2 else 1
                    edges[f"{node}-{state}"] = nn.ModuleDict(
                        {
                            name: _operation(name, filters, stride)
                            for name in self.space.choices
                        }
                    )
            self.cells.append(
                nn.ModuleDict(
                    {"0": first, "1": _pointwise(inputs[1], filters), "edges": edges}
                )
            )
            inputs = (inputs[1], settings.nodes * filters)
            shrink = halves
        self.classifier = nn.Linear(inputs[1], classes)
        for layer in self.modules():
            if isinstance(layer, nn.GroupNorm) and self.groups is not None:
                layer.num_groups = self.groups
        self.architecture: Mapping[str, torch.Tensor] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.avg_pool2d(x, self.pooling)
        # Pictures of one channel may pass for channels-last ones, in which Opacus is
        # wrong without a word.
        before = last = self.stem(torch.empty(x.shape, dtype=x.dtype).copy_(x))
        for place, cell in enumerate(self.cells):
            states = [cell["0"](before), cell["1"](last)]  # type: ignore[index]
            shares = self.architecture[
                "reduction" if place in self.halving else "normal"
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
        """Take the weights of a `SearchNet`, by name.

        Returns:
            Of each of its tensors, in order and for each target, this network's
            parameter.
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
                    own = self._own(name)
                    for parameter, part in zip(
                        own, value.detach().chunk(len(own)), strict=True
                    ):
                        parameter.copy_(part.reshape(parameter.shape))
                    order += own
        return order

    def _own(self, name: str) -> list[nn.Parameter]:
        """The parameters that a tensor of a `SearchNet` holds, one for each target."""
        parts = name.split(".")
        if parts[0] == "stem":
            return [self.stem[0].weight]
        if parts[0] == "stem_norm":
            return [self.stem[1].weight if parts[1] == "scale" else self.stem[1].bias]
        if parts[0] == "classifier":
            return [getattr(self.classifier, parts[1])]
        cell: Any = self.cells[int(parts[1])]
        if parts[2] == "preparations":
            prepared = cell[parts[3]]
            return [
                (
                    getattr(prepared, parts[4]).weight
                    if isinstance(prepared, _Halving)
                    else prepared[1].weight
                )
            ]
        state = int(parts[3])
        operation = parts[5]
        layer = parts[6]
        nodes = range(max(0, state - 1), self.space.nodes)
        found = [cell["edges"][f"{node}-{state}"][operation] for node in nodes]
        if operation == "skip_connect":
            return [getattr(one, layer).weight for one in found]
        place = {"depthwise0": 1, "pointwise0": 2, "depthwise1": 5, "pointwise1": 6}[
            layer
        ]
        return [one[place].weight for one in found]


class _Halving(nn.Module):
    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.even = nn.Conv2d(channels, out // 2, 1, stride=2, bias=False)
        self.odd = nn.Conv2d(channels, out // 2, 1, stride=2, bias=False)
        self.norm = _norm(out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(x)
        moved = torch.zeros_like(x)
        moved[:, :, :-1, :-1] = x[:, :, 1:, 1:]
        return self.norm(torch.cat([self.even(x), self.odd(moved)], 1))


def _norm(channels: int, affine: bool = False) -> nn.Module:
    return nn.GroupNorm(channels, channels, eps=NORMALISATION_EPSILON, affine=affine)


def _pointwise(channels: int, out: int) -> nn.Module:
    return nn.Sequential(nn.ReLU(), nn.Conv2d(channels, out, 1, bias=False), _norm(out))


def _operation(name: str, channels: int, stride: int) -> nn.Module:
    if name == "skip_connect":
        return nn.Identity() if stride == 1 else _Halving(channels, channels)
    if name == "max_pool_3x3":
        return nn.Sequential(nn.MaxPool2d(3, stride, 1), _norm(channels))
    if name == "avg_pool_3x3":
        return nn.Sequential(
            nn.AvgPool2d(3, stride, 1, count_include_pad=False), _norm(channels)
        )
    side = int(name[-1])
    dilation = 2 if name.startswith("dil") else 1
    layers: list[nn.Module] = []
    for step in (stride, 1)[: 1 if dilation == 2 else 2]:
        padding = dilation * (side // 2)
        layers += [
            nn.ReLU(),
            nn.Conv2d(
                channels,
                channels,
                side,
                step,
                padding,
                dilation,
                groups=channels,
                bias=False,
            ),
            nn.Conv2d(channels, channels, 1, bias=False),
            _norm(channels),
        ]
    return nn.Sequential(*layers)


def _seconds(work: Callable[[], Any]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def _case(
    settings: DartsSearch, shape: tuple[int, int, int], records: int, pairs: int
) -> tuple[list[float], float]:
    """Median records a second of each way, and the worst difference of a row from
    Opacus', relative to its norm.
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

    def by_opacus() -> None:
        sampled.zero_grad()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            functional.cross_entropy(
                sampled(inputs), labels, reduction="sum"
            ).backward()

    leaf = torch.from_numpy(theta).requires_grad_()
    ways = [
        lambda: ours.each(theta, x, y, rows["weights"], block="weights"),
        lambda: ours.each(theta, x, y, rows["architecture"], block="architecture"),
        by_opacus,
        lambda: plain_torch.each(theta, x, y, rows["weights"], block="weights"),
        lambda: torch.autograd.grad(net.losses(leaf, x, y).sum(), leaf),
    ]
    by_opacus()
    ways[0]()
    wanted = torch.cat(
        [parameter.grad_sample.flatten(1) for parameter in order], 1
    ).numpy()
    worst = np.linalg.norm(rows["weights"] - wanted, axis=1) / np.linalg.norm(
        wanted, axis=1
    )
    for way in ways:
        way()
    rounds = [[records / _seconds(way) for way in ways] for _ in range(pairs)]
    rates = [statistics.median(column) for column in zip(*rounds, strict=True)]
    return [*rates, statistics.median(row[0] / row[2] for row in rounds)], float(
        worst.max()
    )


def main() -> None:
    """Run all cases and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument(
        "--records",
        type=int,
        default=0,
        help="of a round; 0: a number that suits the case",
    )
    parser.add_argument(
        "--cases", type=int, default=len(CASES), help="how many, from the smallest"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(
        "| network, maps | weights | architecture | Opacus | vmap | batch, not clipped"
        " | ratio to Opacus | error |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name, (settings, shape, records) in list(CASES.items())[: options.cases]:
        rates, worst = _case(settings, shape, options.records or records, options.pairs)
        columns = " | ".join(f"{rate:,.1f}" for rate in rates)
        print(f"| {name} | {columns} | {worst:.0e} |", flush=True)


if __name__ == "__main__":
    main()
