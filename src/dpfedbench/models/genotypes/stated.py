"""Cells that a configuration states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from dpfedbench.config.part import setting
from dpfedbench.errors import BenchError
from dpfedbench.models.genotype import Genotype, Space, plain_cell
from dpfedbench.models.genotypes.source import GenotypeSource, space_of

if TYPE_CHECKING:
    from dpfedbench.method import Method

CellOperations = tuple[tuple[tuple[str | int, ...], ...], ...]


class StatedGenotype(GenotypeSource):
    """Genotype in the configuration.

    Each kind of cell lists two edges [operation, state] per node. States 0 and 1 are
    the cell's inputs.
    """

    kind: Literal["stated"] = "stated"
    normal: CellOperations = setting(
        (), doc="the normal cell; [] if the network has none"
    )
    reduction: CellOperations = setting((), doc="the reduction cell")

    def check(self, run: Method) -> None:
        self.genotype_in(space_of(run))

    def genotype_in(self, space: Space) -> Genotype:
        cells = {"normal": self.normal, "reduction": self.reduction}
        try:
            return Genotype(
                space,
                {kind: plain_cell(nodes) for kind, nodes in cells.items() if nodes},
            )
        except (TypeError, ValueError) as error:
            raise BenchError(
                f"model.genotype: an edge is not [operation, state] ({error}): write"
                " e.g. [sep_conv_3x3, 0]"
            ) from error
