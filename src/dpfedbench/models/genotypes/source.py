"""Base of sources of a genotype: settings, and the genotype that they make."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from dpfedbench.models.genotype import Genotype, Space
from dpfedbench.settings.part import Part

if TYPE_CHECKING:
    from dpfedbench.settings.run import Run


class GenotypeSource(Part):
    """Base of the sources."""

    package: ClassVar[str] = "dpfedbench.models.genotypes"

    def references(self, run: Run) -> dict[str, Run]:
        """The other runs whose files it needs, by the file's name, for a run that
        trains a network of it.
        """
        return {}

    def resolved(self, files: Mapping[str, Path]) -> GenotypeSource:
        """The source that needs no file, given those that it asked for by
        `references`.
        """
        return self

    def without_references(self) -> GenotypeSource:
        """A source of cells of the same size that needs no file."""
        return self

    def of(self, space: Space) -> Genotype:
        """The genotype.

        Args:
            space: of the network that is made of it.

        Raises:
            BenchError: there is none, or it is of another search space.
        """
        raise NotImplementedError


def space_of(run: Run) -> Space:
    """The search space of the network that a run trains."""
    space: Space = getattr(  # noqa: B009
        run.model, "space"
    )  # `models.zoo.darts` has it, which imports this
    return space
