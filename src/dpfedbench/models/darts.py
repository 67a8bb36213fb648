"""Networks of cells (Liu et al. 2018, DARTS), normalised within each record.

A cell reads the outputs of the two cells before it. Its output is the concatenation of
all its nodes. Edges that leave one state by the same operation are computed together,
with separate weights for each target.

As in DARTS: the operations; the stem with three times the filters; cells that halve the
maps (their edges from the inputs have a stride of 2) and double the channels; no learnt
scale in mixed edges, and a normalisation after pooling there. Three things differ:

- Normalisation is group normalisation, so that no record depends on another.
- With one group per channel a normalised map has mean 0, and its mean over positions
  would carry no information. There the last mean is preceded by a ReLU.
- Maps of odd sides are halved to the larger half.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from dpfedbench.errors import BenchError
from dpfedbench.models.cell_layers import (
    AuxiliaryHead,
    DropPath,
    HalvedPreparation,
    Halving,
    Normalisation,
    Pooling,
    Preparation,
    Separable,
    convolution,
)
from dpfedbench.models.genotype import NONE, Genotype, Space, edge

STEM = 3
"""Channels of the stem per filter."""
FIRST_ARCHITECTURE = 1e-3
"""Standard deviation of the initial architecture weights."""

Mix = Mapping[str, torch.Tensor]
"""Shares of the operations for each kind of cell.

[edges, operations] for all records, or [n, edges, operations] for each record.
"""


def _operation(
    name: str,
    channels: int,
    stride: int,
    targets: int,
    norm: Normalisation,
    mixed: bool,
) -> nn.Module | None:
    """Return the module that computes an operation for its targets.

    None: the operation needs no module.
    """
    if name == "skip_connect":
        return None if stride == 1 else Halving(channels, channels, norm, targets)
    first, _, rest = name.partition("_")
    if rest.startswith("pool"):
        return Pooling(channels, stride, first, norm if mixed else None)
    times, dilation = (2, 1) if first == "sep" else (1, 2)
    return Separable(
        channels, int(name[-1]), stride, targets, norm, times=times, dilation=dilation
    )


class Edges(nn.Module):
    """All edges that leave one state.

    Args:
        state: number of the state.
        channels: channels of the state.
        stride: stride of the edges.
        targets: for each operation, the nodes that read the state through it.
        norm: normalisation of the maps.
        mixed: whether every operation goes to every target, weighted by its share.
    """

    def __init__(
        self,
        state: int,
        channels: int,
        stride: int,
        targets: Mapping[str, Sequence[int]],
        norm: Normalisation,
        mixed: bool,
    ) -> None:
        super().__init__()
        self.state = state
        self.channels = channels
        self.targets = {name: tuple(nodes) for name, nodes in targets.items()}
        self.operations = nn.ModuleDict()
        for name, nodes in self.targets.items():
            operation = (
                None
                if name == NONE
                else _operation(name, channels, stride, len(nodes), norm, mixed)
            )
            if operation is not None:
                self.operations[name] = operation

    def forward(
        self, state: torch.Tensor, mix: torch.Tensor | None, drop: DropPath | None
    ) -> list[tuple[int, torch.Tensor]]:
        """Return the contribution of the state to each node that reads it.

        Args:
            state: maps of the state.
            mix, drop: as for `Cell`.
        """
        outputs = self._outputs(state)
        if mix is None:
            parts = []
            for name, out in outputs.items():
                for i, node in enumerate(self.targets[name]):
                    part = out[:, i % out.shape[1]]
                    # DARTS never drops the identity, which has no module.
                    if drop is not None and name in self.operations:
                        part = drop(part)
                    parts.append((node, part))
            return parts
        nodes = next(iter(self.targets.values()))
        weights = mix[..., [edge(node, self.state) for node in nodes], :]
        mixed: torch.Tensor | None = None
        for column, name in enumerate(self.targets):
            if name != NONE:
                part = outputs[name] * weights[..., column, None, None, None]
                mixed = part if mixed is None else mixed + part
        assert mixed is not None
        return list(zip(nodes, mixed.unbind(1), strict=True))

    def _outputs(self, state: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return each operation's output for the state, [n, targets, ...].

        It is [n, 1, ...] where all targets get the same output.
        """
        cut = functional.relu(state)
        outputs = {}
        for name in self.targets:
            if name in self.operations:
                operation = self.operations[name]
                out = operation(state if isinstance(operation, Pooling) else cut)
                outputs[name] = out.unflatten(1, (-1, self.channels))
            elif name != NONE:
                outputs[name] = state[:, None]
        return outputs


class Cell(nn.Module):
    """One cell.

    Args:
        inputs: channels of its two inputs.
        channels: channels of each node.
        halves: whether its maps are half as large as those of its second input.
        shrink: whether the maps of its first input are twice as large as those of its
            second input.
        targets: for each state and operation, the nodes that read the state through it.
        norm: normalisation of the maps.
        mixed: whether every operation goes to every target.
    """

    def __init__(
        self,
        inputs: tuple[int, int],
        channels: int,
        *,
        halves: bool,
        shrink: bool,
        targets: Sequence[Mapping[str, Sequence[int]]],
        norm: Normalisation,
        mixed: bool,
    ) -> None:
        super().__init__()
        first = HalvedPreparation if shrink else Preparation
        self.preparations = nn.ModuleList(
            [first(inputs[0], channels, norm), Preparation(inputs[1], channels, norm)]
        )
        self.edges = nn.ModuleList(
            Edges(
                state, channels, 2 if halves and state < 2 else 1, reading, norm, mixed
            )
            for state, reading in enumerate(targets)
        )
        self.nodes = len(targets) - 1

    def forward(
        self,
        before: torch.Tensor,
        last: torch.Tensor,
        mix: torch.Tensor | None,
        drop: DropPath | None,
    ) -> torch.Tensor:
        """Return the nodes' outputs, concatenated: [n, nodes x channels, ...].

        Args:
            before, last: outputs of the two cells before.
            mix: shares of the operations on each edge, for all records or for each
                record.
            drop: drop path in training. None: no drop path.
        """
        states = [
            prepare(x)
            for prepare, x in zip(self.preparations, (before, last), strict=True)
        ]
        sums: list[torch.Tensor | None] = [None] * self.nodes
        for state, edges in enumerate(self.edges):
            for node, part in edges(states[state], mix, drop):
                total = sums[node]
                sums[node] = part if total is None else total + part
            if state > 0:
                done = sums[state - 1]
                assert done is not None
                states.append(done)
        return torch.cat(states[2:], dim=1)


class CellNet(nn.Module):
    """Base of the networks of cells.

    Args:
        image_shape: (height, width, channels) of an image.
        classes: number of classes.
        filters: channels of the first cells' nodes.
        cells: number of cells.
        reductions: indices of the cells that halve the maps.
        pooling: side of the squares of pixels whose mean the stem reads.
        norm: normalisation of the maps.
        targets: for each kind of cell, state and operation, the nodes that read the
            state through it.
        mixed: whether every operation goes to every target.
        auxiliary: whether there is a second classifier after two thirds of the cells,
            used in training only.

    Raises:
        BenchError: an argument is out of range.
    """

    channels_last = True

    def __init__(
        self,
        *,
        image_shape: tuple[int, ...],
        classes: int,
        filters: int,
        cells: int,
        reductions: Sequence[int],
        pooling: int,
        norm: Normalisation,
        targets: Mapping[str, Sequence[Mapping[str, Sequence[int]]]],
        mixed: bool,
        auxiliary: bool = False,
    ) -> None:
        super().__init__()
        height, width, channels = image_shape
        self.pooling = pooling
        self.centred = norm.groups is None and not norm.batch
        self.kinds = tuple(
            "reduction" if index in reductions else "normal" for index in range(cells)
        )
        side = min(height, width) // pooling
        smallest = math.ceil(side / 2 ** self.kinds.count("reduction"))
        if side < 1 or smallest < 2:
            raise BenchError(
                f"pictures of {height}x{width} leave maps with a side of {smallest}"
                " pixel, too small to normalise: lower model.pooling or use fewer"
                " model.reductions"
            )
        wide = STEM * filters
        self.stem = convolution(channels, wide, 3)
        self.stem_norm = replace(norm, affine=True).layer(wide)
        inputs = (wide, wide)
        shrink = False
        self.cells = nn.ModuleList()
        for kind in self.kinds:
            halves = kind == "reduction"
            filters *= 2 if halves else 1
            cell = Cell(
                inputs,
                filters,
                halves=halves,
                shrink=shrink,
                targets=targets[kind],
                norm=norm,
                mixed=mixed,
            )
            self.cells.append(cell)
            inputs = (inputs[1], cell.nodes * filters)
            shrink = halves
            if auxiliary and len(self.cells) == 1 + 2 * cells // 3:
                self.auxiliary = AuxiliaryHead(inputs[1], classes, norm)
        self.classifier = nn.Linear(inputs[1], classes)

    def initial(self, rng: np.random.Generator) -> np.ndarray:
        """Return the initial weights, float32 [d].

        As torch's own, weights are uniform within 1/sqrt(inputs of a unit), biases are
        zero and scales one. Architecture weights are normal with deviation 0.001, as in
        DARTS.
        """
        parts = []
        for name, value in self.named_parameters():
            last = name.rpartition(".")[2]
            if last == "weight":
                bound = 1 / math.sqrt(value[0].numel())
                parts.append(rng.uniform(-bound, bound, value.numel()))
            elif last in ("scale", "shift", "bias", "mean", "variance"):
                first = float(last in ("scale", "variance"))
                parts.append(np.full(value.numel(), first))
            else:
                parts.append(FIRST_ARCHITECTURE * rng.standard_normal(value.numel()))
        return np.concatenate(parts).astype(np.float32)

    def logits(self, x: torch.Tensor, mix: Mix | None) -> torch.Tensor:
        """Return the logits [n, classes] of images [n, C, H, W].

        Args:
            x: images.
            mix: shares of the operations, where they are mixed.
        """
        output = torch.empty(0)
        for last in self._outputs(x, mix):
            output = last
        return self._classified(output)

    def training_logits(
        self, x: torch.Tensor, drop: DropPath | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the logits [n, classes] in training.

        The second element holds the logits of the second classifier, or None.
        """
        auxiliary = None
        output = torch.empty(0)
        for index, last in enumerate(self._outputs(x, None, drop)):
            output = last
            if index == 2 * len(self.cells) // 3 and hasattr(self, "auxiliary"):
                auxiliary = self.auxiliary(last)
        return self._classified(output), auxiliary

    def _outputs(
        self, x: torch.Tensor, mix: Mix | None, drop: DropPath | None = None
    ) -> Iterator[torch.Tensor]:
        """Yield the outputs of the cells in their order."""
        x = functional.avg_pool2d(x, self.pooling) if self.pooling > 1 else x
        before = last = self.stem_norm(self.stem(x))
        for kind, cell in zip(self.kinds, self.cells, strict=True):
            cell_mix = None if mix is None else mix[kind]
            before, last = last, cell(before, last, cell_mix, drop)
            yield last

    def _classified(self, last: torch.Tensor) -> torch.Tensor:
        """Return the logits of the last cell's output."""
        return self.classifier(
            (functional.relu(last) if self.centred else last).mean((2, 3))
        )


class SearchNet(CellNet):
    """Network of a search.

    Each edge adds up all operations, weighted by the softmax of its architecture
    weights.

    Args:
        space: the search space.
        groups: groups of channels that are normalised together. None: one group per
            channel.
        sizes: arguments of `CellNet`.
    """

    def __init__(
        self, *, space: Space, groups: int | None = None, **sizes: Any
    ) -> None:
        reading = [
            dict.fromkeys(space.operations, range(max(0, state - 1), space.nodes))
            for state in range(1 + space.nodes)
        ]
        super().__init__(
            targets=dict.fromkeys(space.kinds, reading),
            mixed=True,
            norm=Normalisation(groups, affine=False),
            **sizes,
        )
        self.space = space
        shape = space.edges, len(space.operations)
        self.architecture = nn.ParameterDict(
            {kind: nn.Parameter(torch.zeros(shape)) for kind in space.kinds}
        )

    @property
    def blocks(self) -> dict[str, tuple[str, ...]]:
        """Names of the weights and of the architecture weights."""
        names = [name for name, _ in self.named_parameters()]
        architecture = tuple(name for name in names if name.startswith("architecture."))
        return {
            "weights": tuple(name for name in names if name not in architecture),
            "architecture": architecture,
        }

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits [n, classes] of images [n, C, H, W]."""
        mix = {
            kind: self.architecture[kind].softmax(dim=-1) for kind in self.space.kinds
        }
        return self.logits(x, mix)


class GenotypeNet(CellNet):
    """Network of known cells: each node adds up two operations.

    Args:
        genotype: the cells.
        affine: whether normalised maps are scaled and shifted.
        groups: groups of channels that are normalised together. None: one group per
            channel.
        batch: whether maps are normalised over the batch instead.
        sizes: arguments of `CellNet`.
    """

    def __init__(
        self,
        *,
        genotype: Genotype,
        affine: bool = True,
        groups: int | None = None,
        batch: bool = False,
        **sizes: Any,
    ) -> None:
        targets = {}
        for kind, nodes in genotype.cells.items():
            reading: list[dict[str, list[int]]] = [{} for _ in range(1 + len(nodes))]
            for node, edges in enumerate(nodes):
                for operation, state in edges:
                    reading[state].setdefault(operation, []).append(node)
            targets[kind] = reading
        norm = Normalisation(groups, affine, batch)
        super().__init__(targets=targets, norm=norm, mixed=False, **sizes)
        self.genotype = genotype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits [n, classes] of images [n, C, H, W]."""
        return self.logits(x, None)
