"""Search spaces and genotypes of cells (Liu et al. 2018, DARTS), without torch.

A cell has two inputs, the outputs of the two cells before it, and some nodes. In a
search each node has an edge from every state before it (the inputs are states 0 and 1,
node k is state 2 + k). An edge mixes all operations by the softmax of its architecture
weights. A genotype keeps two edges of each node, and one operation of each edge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpfedbench.errors import BenchError
from dpfedbench.files import read_json
from dpfedbench.lazy import np

NONE = "none"
OPERATIONS = (
    NONE,
    "max_pool_3x3",
    "avg_pool_3x3",
    "skip_connect",
    "sep_conv_3x3",
    "sep_conv_5x5",
    "dil_conv_3x3",
    "dil_conv_5x5",
)
"""DARTS' operations in its order.

`none` outputs zero. All others keep the shape of a map.
"""

KINDS = ("normal", "reduction")
KEPT = 2
"""Number of inputs of each node of a genotype."""

Edge = tuple[str, int]
"""An operation and the state that it reads."""


def edge(node: int, state: int) -> int:
    """Return the index of the edge from a state to a node.

    A cell's edges are ordered by node, then by state.
    """
    return sum(2 + before for before in range(node)) + state


@dataclass(frozen=True)
class Space:
    """Search space of genotypes.

    Attributes:
        operations: operations that each edge mixes.
        nodes: nodes of each cell.
        kinds: kinds of cells of a network, among "normal" and "reduction", in this
            order.

    Raises:
        BenchError: an operation is unknown or repeated, or there is only `none`.
    """

    operations: tuple[str, ...] = OPERATIONS
    nodes: int = 4
    kinds: tuple[str, ...] = KINDS

    def __post_init__(self) -> None:
        repeated = len(set(self.operations)) < len(self.operations)
        if repeated or not set(self.operations) <= set(OPERATIONS) or not self.choices:
            raise BenchError(
                f"the search space has the operations {', '.join(self.operations)}:"
                f" give different ones of {', '.join(OPERATIONS)}, with one that keeps"
                " the shape of its input"
            )

    @property
    def choices(self) -> tuple[str, ...]:
        """Return the operations that a genotype may have on an edge."""
        return tuple(operation for operation in self.operations if operation != NONE)

    @property
    def edges(self) -> int:
        """Number of edges of a cell in a search."""
        return edge(self.nodes, 0)

    @property
    def size(self) -> int:
        """Number of architecture weights of a network.

        One for each kind of cell, edge and operation.
        """
        return len(self.kinds) * self.edges * len(self.operations)

    def weights(self, architecture: np.ndarray) -> dict[str, np.ndarray]:
        """Return the share of each operation on each edge.

        Args:
            architecture: architecture weights [size], in the order of the flat vector.

        Returns:
            For each kind of cell, float64 [edges, operations].

        Raises:
            ValueError: the number of weights is not `size`.
        """
        from scipy.special import softmax

        logits = np.asarray(architecture, np.float64).reshape(
            len(self.kinds), self.edges, len(self.operations)
        )
        return dict(zip(self.kinds, softmax(logits, axis=-1), strict=True))

    def entropy(self, architecture: np.ndarray) -> dict[str, float]:
        """Return the mean entropy of an edge's operation shares, for each kind of cell.

        Entropy is in nats, at most ln(operations).

        Args:
            architecture: as for `weights`.
        """
        entropies = {}
        for kind, shares in self.weights(architecture).items():
            terms = np.where(
                shares > 0, -shares * np.log(np.maximum(shares, 1e-300)), 0.0
            )
            entropies[kind] = float(terms.sum(axis=1).mean())
        return entropies

    def genotype(self, architecture: np.ndarray) -> Genotype:
        """Return the genotype of a search.

        Each node keeps its two strongest inputs, each with its strongest operation
        other than `none`. Ties go to the first. For released weights this is
        post-processing.

        Args:
            architecture: as for `weights`.
        """
        cells = {}
        for kind, shares in self.weights(architecture).items():
            nodes = []
            for node in range(self.nodes):
                edges: list[tuple[float, int, str]] = []
                for state in range(2 + node):
                    row = dict(
                        zip(
                            self.operations,
                            shares[edge(node, state)].tolist(),
                            strict=True,
                        )
                    )
                    best = max(self.choices, key=row.__getitem__)
                    edges.append((-row[best], state, best))
                nodes.append(
                    tuple((best, state) for _, state, best in sorted(edges)[:KEPT])
                )
            cells[kind] = _ordered(nodes)
        return Genotype(self, cells)

    def random(self, rng: np.random.Generator) -> Genotype:
        """Return a uniformly drawn genotype.

        Each node gets two inputs and one operation for each.
        """
        cells = {}
        for kind in self.kinds:
            nodes = []
            for node in range(self.nodes):
                states = rng.choice(2 + node, size=KEPT, replace=False)
                nodes.append(
                    tuple(
                        (self.choices[rng.integers(len(self.choices))], int(state))
                        for state in states
                    )
                )
            cells[kind] = _ordered(nodes)
        return Genotype(self, cells)

    def same(self, operation: str) -> Genotype:
        """Return the genotype whose nodes read both inputs by one operation.

        Raises:
            BenchError: the space does not have the operation.
        """
        nodes = _ordered(
            [tuple((operation, state) for state in range(KEPT))] * self.nodes
        )
        return Genotype(self, dict.fromkeys(self.kinds, nodes))


@dataclass(frozen=True)
class Genotype:
    """Cells: for each kind and node, the operations that it adds up and their states.

    Attributes:
        space: search space of the genotype.
        cells: for each kind of cell, a tuple over nodes of two edges (operation,
            state), ordered by state.

    Raises:
        BenchError: the kinds of cells, the number of nodes, an operation or an edge is
            not of the space.
    """

    space: Space
    cells: Mapping[str, tuple[tuple[Edge, ...], ...]] = field(hash=False)

    def __post_init__(self) -> None:
        space = self.space
        for kind in space.kinds:
            nodes = self.cells.get(kind, ())
            if len(nodes) != space.nodes:
                raise BenchError(
                    f"the genotype belongs to another search space: its {kind} cell has"
                    f" {len(nodes)} nodes, not {space.nodes}"
                )
            for node, edges in enumerate(nodes):
                states = {state for _, state in edges if 0 <= state < 2 + node}
                known = all(operation in space.choices for operation, _ in edges)
                if not known or not len(states) == len(edges) == KEPT:
                    raise BenchError(
                        "the genotype belongs to another search space: node"
                        f" {node} of its {kind} cell is {list(edges)}, not {KEPT} of"
                        f" {', '.join(space.choices)}, of different states from 0 to"
                        f" {1 + node}"
                    )

    def to_json(self) -> dict[str, Any]:
        """Return plain values, which `read_genotype` reads back."""
        return {
            "operations": list(self.space.operations),
            "nodes": self.space.nodes,
            "cells": {
                kind: [[list(edge) for edge in node] for node in nodes]
                for kind, nodes in self.cells.items()
            },
        }


def plain_cell(
    nodes: Sequence[Sequence[Sequence[Any]]],
) -> tuple[tuple[Edge, ...], ...]:
    """Return a cell from plain values: for each node its edges [operation, state]."""
    return _ordered(
        [
            tuple((str(operation), int(state)) for operation, state in edges)
            for edges in nodes
        ]
    )


def read_genotype(path: Path | str) -> Genotype:
    """Read a genotype from its file.

    Raises:
        BenchError: the file is missing, damaged or of another kind.
    """
    values = read_json(path)
    try:
        cells = {
            str(kind): plain_cell(nodes) for kind, nodes in values["cells"].items()
        }
        kinds = tuple(kind for kind in KINDS if kind in cells)
        space = Space(tuple(values["operations"]), int(values["nodes"]), kinds)
        return Genotype(space, cells)
    except (BenchError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise BenchError(
            f"{path} is not a genotype ({type(error).__name__}: {error}): give"
            " operations, nodes and cells"
        ) from error


def _ordered(nodes: Sequence[tuple[Edge, ...]]) -> tuple[tuple[Edge, ...], ...]:
    """Sort the edges of each node by the state that they read."""
    return tuple(tuple(sorted(edges, key=lambda edge: edge[1])) for edges in nodes)
