"""Networks of cells (Liu et al. 2018, DARTS).

One network searches its cells; the other one has known cells.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from dpfedbench.config.part import setting
from dpfedbench.errors import BenchError
from dpfedbench.models.genotype import KINDS, OPERATIONS, Space
from dpfedbench.models.genotypes.source import GenotypeSource, RandomGenotype
from dpfedbench.models.zoo.model import ZooModel

if TYPE_CHECKING:
    from torch import nn


class CellModel(ZooModel):
    """A stem, cells one after another, a mean over the last maps and a linear layer.

    All maps are normalised per record.
    """

    operations: tuple[str, ...] = setting(
        OPERATIONS, doc="operations of the search space", paper="all eight"
    )
    nodes: int = setting(
        4, ge=1, doc="nodes of a cell, besides its two inputs and its output", paper="4"
    )
    cells: int = setting(
        8, ge=1, doc="number of cells, one after another", paper="8 (search), 20"
    )
    filters: int = setting(
        16,
        ge=2,
        le=1024,
        doc="channels of the first cells' nodes; each reduction doubles them",
        paper="16, 36",
    )
    reductions: tuple[int, ...] | None = setting(
        None,
        doc="cells that halve the maps; null: after one and two thirds",
        paper="after 1/3 and 2/3",
    )
    groups: int | None = setting(
        None,
        ge=1,
        doc=(
            "groups of channels in which a record's map is normalised; null:"
            " one per channel"
        ),
    )
    pooling: int = setting(
        1,
        ge=1,
        doc="side of the squares of pixels that are averaged first",
        paper="1",
    )

    def model_post_init(self, _: Any) -> None:
        """Refuse sizes that describe no network."""
        for cell in self.reductions or ():
            if not 0 <= cell < self.cells:
                raise BenchError(
                    f"model.reductions has cell {cell}, but the cells are 0 to"
                    f" {self.cells - 1}"
                )
        if self.groups is not None and (
            self.filters % self.groups or self.filters == self.groups
        ):
            raise BenchError(
                f"model.groups is {self.groups}, but model.filters is {self.filters}:"
                " take groups of equal size with at least two channels, or null for"
                " one group for each channel"
            )
        self.space  # noqa: B018

    @property
    def halving(self) -> tuple[int, ...]:
        """Indices of the cells that halve the maps."""
        reductions = (
            (self.cells // 3, 2 * self.cells // 3)
            if self.reductions is None
            else self.reductions
        )
        return tuple(sorted(set(reductions)))

    @property
    def space(self) -> Space:
        """Search space of the network.

        Raises:
            BenchError: the settings describe no search space.
        """
        having = (len(self.halving) < self.cells, bool(self.halving))
        kinds = tuple(kind for kind, has in zip(KINDS, having, strict=True) if has)
        return Space(tuple(self.operations), self.nodes, kinds)

    def _sizes(self, input_shape: tuple[int, ...], outputs: int) -> dict[str, Any]:
        return {
            "image_shape": input_shape,
            "classes": outputs,
            "filters": self.filters,
            "cells": self.cells,
            "reductions": self.halving,
            "pooling": self.pooling,
            "groups": self.groups,
        }


class DartsSearch(CellModel):
    """Network of a search: each edge mixes all operations.

    Its weights and its architecture are two blocks.
    """

    kind: Literal["darts-search"] = "darts-search"

    def module(self, *, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        from dpfedbench.models.darts import SearchNet

        return SearchNet(space=self.space, **self._sizes(input_shape, outputs))


class DartsCells(CellModel):
    """Network of a finished search: each node adds up two operations."""

    kind: Literal["darts-cells"] = "darts-cells"
    by_record: ClassVar[str] = "model.batch_normalisation to false"
    affine: bool = setting(
        True,
        doc="weights scale and shift normalised maps",
        paper="true",
    )
    genotype: GenotypeSource = setting(RandomGenotype(), doc="source of the cells")
    batch_normalisation: bool = setting(
        False,
        doc=(
            "false: normalised within each record; true: over the batch in"
            " training and by running statistics in tests, without privacy only"
            " (client_update.kind batch-steps)"
        ),
        paper="true",
    )
    auxiliary: bool = setting(
        False,
        doc=(
            "a second classifier after two thirds of the cells, in training alone"
            " (client_update.kind batch-steps)"
        ),
        paper="true",
    )

    def model_post_init(self, _: Any) -> None:
        """Refuse cells that do not fit the search space."""
        super().model_post_init(_)
        self.genotype.check_space(self.space)

    @property
    def record_level(self) -> bool:
        return not self.batch_normalisation

    def resolved(self, files: Mapping[str, Path]) -> DartsCells:
        return self.replace(genotype=self.genotype.resolved(files))

    def without_references(self) -> DartsCells:
        return self.replace(genotype=self.genotype.without_references())

    def module(self, *, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        from dpfedbench.models.darts import GenotypeNet

        return GenotypeNet(
            genotype=self.genotype.genotype_in(self.space),
            affine=self.affine,
            batch=self.batch_normalisation,
            auxiliary=self.auxiliary,
            **self._sizes(input_shape, outputs),
        )
