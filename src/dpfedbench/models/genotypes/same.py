"""Cells of a single operation: a baseline without a search."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from dpfedbench.config.part import setting
from dpfedbench.models.genotype import Genotype, Space
from dpfedbench.models.genotypes.source import GenotypeSource, space_of

if TYPE_CHECKING:
    from dpfedbench.method import Method


class SameGenotype(GenotypeSource):
    """Every node reads the two inputs of its cell by the same operation."""

    kind: Literal["same"] = "same"
    operation: str = setting(
        "sep_conv_3x3", doc="operation of all edges; one of model.operations"
    )

    def check(self, run: Method) -> None:
        self.genotype_in(space_of(run))

    def genotype_in(self, space: Space) -> Genotype:
        return space.same(self.operation)
