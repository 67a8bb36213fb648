"""Base of genotype sources: settings, and the genotype that they describe."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from dpfedbench.config.part import Part
from dpfedbench.models.genotype import Genotype, Space

if TYPE_CHECKING:
    from dpfedbench.method import Method


class GenotypeSource(Part):
    """Base of the genotype sources."""

    package: ClassVar[str] = "dpfedbench.models.genotypes"

    def references(self, run: Method) -> dict[str, Method]:
        """Return the other runs whose files the source needs, by file name.

        Args:
            run: the run that trains a network of the genotype.
        """
        return {}

    def resolved(self, files: Mapping[str, Path]) -> GenotypeSource:
        """Return the equivalent source that needs no file.

        Args:
            files: the files that `references` names.
        """
        return self

    def without_references(self) -> GenotypeSource:
        """Return a source of cells of the same size that needs no file."""
        return self

    def genotype_in(self, space: Space) -> Genotype:
        """Return the genotype.

        Args:
            space: search space of the network that is built from it.

        Raises:
            BenchError: there is no genotype, or it belongs to another search space.
        """
        raise NotImplementedError


def space_of(run: Method) -> Space:
    """Return the search space of the network that a run trains."""
    space: Space = getattr(  # noqa: B009
        run.model, "space"
    )  # `models.zoo.darts` defines it and imports this module
    return space
