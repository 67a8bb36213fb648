"""Description of one table or figure: what its script gets from the plan."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Item:
    """A table or figure of a paper.

    Attributes:
        paper: the experiment that it belongs to.
        name: such as `table2`.
        kind: `table`, `sweep`, `history`, `frontier` or `account`.
        spec: the experiment file's section, with title and axes.
        cells: one mapping for each run of each cell, with the columns of
            `columns.CELLS` that the plan knows. A figure of accounts has one for each
            cell, without a run but with its `mechanism`.
    """

    paper: str
    name: str
    kind: str
    spec: Mapping[str, Any]
    cells: Sequence[Mapping[str, Any]]

    @property
    def title(self) -> str:
        """The title for readers."""
        return str(self.spec["title"])

    def unique(self, column: str) -> list[str]:
        """Return the different values of a column of the cells that are not empty."""
        values = dict.fromkeys(cell[column] for cell in self.cells)
        return [value for value in values if value]
