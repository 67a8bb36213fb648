"""Search spaces and genotypes of cells (Liu et al. 2018, DARTS), without torch.

A cell has two inputs, the outputs of the two cells before it, and some nodes. In a
search each node has an edge from every state before it (the inputs are states 0 and 1,
node k is state 2 + k), and an edge mixes all operations by the softmax of its
architecture weights. A genotype keeps two edges of each node, and one operation of
each.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfedbench.errors import BenchError
from dpfedbench.files import read_json

if TYPE_CHECKING:
    import numpy as np
else:
    from dpsum.lazy import Lazy

    np = Lazy("numpy")

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
"""DARTS' operations, in its order. All but `none`, which gives zero, keep the shape of
a map.
"""

KINDS = ("normal", "reduction")
KEPT = 2
"""Inputs that a node of a genotype keeps."""

Edge = tuple[str, int]
"""An operation, and the state that it reads."""


def edge(node: int, state: int) -> int:
    """The place of the edge to a node from a state: a cell's edges are ordered by node,
    then by state.
    """
    return sum(2 + before for before in range(node)) + state


@dataclass(frozen=True)
class Space:
    """Search space of genotypes.

    Attributes:
        operations: of each edge.
        nodes: of a cell.
        kinds: of the cells that a network has, of "normal" and "reduction", in this
            order.

    Raises:
        BenchError: an unknown or repeated operation, or none that keeps the shape of
            what it reads; no nodes.
    """

    operations: tuple[str, ...] = OPERATIONS
    nodes: int = 4
    kinds: tuple[str, ...] = KINDS

    def __post_init__(self) -> None:
        for operation in self.operations:
            if operation not in OPERATIONS:
                near = difflib.get_close_matches(
                    str(operation), OPERATIONS, n=1, cutoff=0
                )
                raise BenchError(
                    f"there is no operation {operation!r}: choose of"
                    f" {', '.join(OPERATIONS)}; the nearest is {near[0]}"
                )
            if self.operations.count(operation) > 1:
                raise BenchError(
                    f"the operation {operation} is in the search space twice: name it"
                    " once"
                )
        if not self.choices:
            raise BenchError(
                "the search space has no operation that keeps the shape of its input:"
                " add one, e.g. skip_connect"
            )
        if self.nodes < 1:
            raise BenchError(f"a cell has {self.nodes} nodes: give it at least 1")

    @property
    def choices(self) -> tuple[str, ...]:
        """Return the operations that a genotype may have on an edge."""
        return tuple(operation for operation in self.operations if operation != NONE)

    @property
    def edges(self) -> int:
        """Edges of a cell in a search."""
        return edge(self.nodes, 0)

    @property
    def size(self) -> int:
        """Architecture weights of a network: of each kind of cell, of each edge, of
        each operation.
        """
        return len(self.kinds) * self.edges * len(self.operations)

    def weights(self, architecture: np.ndarray) -> dict[str, np.ndarray]:
        """The share of each operation on each edge: of each kind of cell, float64
        [edges, operations].

        Args:
            architecture: architecture weights [size], as they lie in the flat vector.

        Raises:
            ValueError: they are not as many.
        """
        if np.shape(architecture) != (self.size,):
            raise ValueError(
                f"architecture weights must be [{self.size}], not"
                f" {list(np.shape(architecture))}"
            )
        logits = np.asarray(architecture, np.float64).reshape(
            len(self.kinds), self.edges, len(self.operations)
        )
        shares = np.exp(logits - logits.max(axis=-1, keepdims=True))
        return dict(
            zip(self.kinds, shares / shares.sum(axis=-1, keepdims=True), strict=True)
        )

    def entropy(self, architecture: np.ndarray) -> dict[str, float]:
        """Mean over a cell's edges of the entropy of its operations' shares, in nats;
        at most ln(operations).

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
        """Return the genotype that a search found: each node's two strongest inputs,
        each by its strongest operation but `none`.

        Of equals the first is taken. Of released weights this is post-processing.

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
        """A genotype drawn uniformly: of each node two inputs and an operation for
        each.
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
        """The cell whose nodes all read the cell's two inputs by one operation.

        Raises:
            BenchError: the operation is not of this space.
        """
        nodes = _ordered(
            [tuple((operation, state) for state in range(KEPT))] * self.nodes
        )
        return Genotype(self, dict.fromkeys(self.kinds, nodes))


@dataclass(frozen=True)
class Genotype:
    """Cells: of each kind, for each node, the operations that it adds up and the states
    that they read.

    Attributes:
        space: that it is of.
        cells: of each kind of cell, a tuple over nodes of two edges (operation, state),
            by state.

    Raises:
        BenchError: it is not of the space.
    """

    space: Space
    cells: Mapping[str, tuple[tuple[Edge, ...], ...]] = field(hash=False)

    def __post_init__(self) -> None:
        self.check(self.space)

    def check(self, space: Space) -> None:
        """Refuse a genotype that the search space does not have.

        Raises:
            BenchError: it has other kinds of cells, another number of nodes, another
                operation, or an edge that no node can have.
        """
        for kind in space.kinds:
            if kind not in self.cells:
                raise BenchError(
                    f"the genotype belongs to another search space: it has no {kind}"
                    " cell; give it one"
                )
            nodes = self.cells[kind]
            if len(nodes) != space.nodes:
                raise BenchError(
                    f"the genotype belongs to another search space: its {kind} cell has"
                    f" {len(nodes)} nodes, not {space.nodes}: set model.nodes to"
                    f" {len(nodes)}, or take another genotype"
                )
            for node, edges in enumerate(nodes):
                if (
                    sorted({state for _, state in edges})
                    != sorted(state for _, state in edges)
                    or len(edges) != KEPT
                ):
                    raise BenchError(
                        f"node {node} of the genotype's {kind} cell needs {KEPT}"
                        " inputs, each another"
                    )
                for operation, state in edges:
                    if operation not in space.choices:
                        raise BenchError(
                            f"the genotype belongs to another search space: node {node}"
                            f" of its {kind} cell has {operation}, which is none of"
                            f" {', '.join(space.choices)}"
                        )
                    if not 0 <= state < 2 + node:
                        raise BenchError(
                            f"node {node} of the genotype's {kind} cell reads state"
                            f" {state}: give one of 0 to {1 + node} (0 and 1 are the"
                            " cell's inputs, 2 is node 0)"
                        )

    def to_json(self) -> dict[str, Any]:
        """Plain values, which `from_json` reads back."""
        return {
            "operations": list(self.space.operations),
            "nodes": self.space.nodes,
            "cells": {
                kind: [[list(edge) for edge in node] for node in nodes]
                for kind, nodes in self.cells.items()
            },
        }

    @classmethod
    def from_json(cls, values: Any) -> Genotype:
        """Make a genotype from plain values.

        Raises:
            BenchError: they are no genotype's.
        """
        try:
            cells = {
                str(kind): plain_cell(nodes) for kind, nodes in values["cells"].items()
            }
            kinds = tuple(kind for kind in KINDS if kind in cells)
            space = Space(tuple(values["operations"]), int(values["nodes"]), kinds)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BenchError(
                f"this is no genotype ({type(error).__name__}: {error}): give"
                " operations, nodes and cells"
            ) from error
        return cls(space, cells)


def plain_cell(
    nodes: Sequence[Sequence[Sequence[Any]]],
) -> tuple[tuple[Edge, ...], ...]:
    """A cell of plain values: of each node its edges [operation, state]."""
    return _ordered(
        [
            tuple((str(operation), int(state)) for operation, state in edges)
            for edges in nodes
        ]
    )


def read_genotype(path: Path | str) -> Genotype:
    """Read a genotype's file.

    Raises:
        BenchError: it is missing, damaged or something else; says what to do.
    """
    try:
        return Genotype.from_json(read_json(Path(path)))
    except BenchError as error:
        raise BenchError(f"{path}: {error}") from error


def _ordered(nodes: Sequence[tuple[Edge, ...]]) -> tuple[tuple[Edge, ...], ...]:
    """Each node's edges by the state that they read."""
    return tuple(tuple(sorted(edges, key=lambda edge: edge[1])) for edges in nodes)
