"""What every source of a genotype is: settings, and the genotype that they make."""

from __future__ import annotations

from typing import ClassVar

from dpfedbench.models.genotype import Genotype, Space
from dpfedbench.settings.part import Part


class GenotypeSource(Part):
    """Base of the sources."""

    place: ClassVar[str] = "dpfedbench.models.genotypes"

    def of(self, space: Space) -> Genotype:
        """The genotype.

        Args:
            space: of the network that is made of it.

        Raises:
            BenchError: there is none, or it is of another search space.
        """
        raise NotImplementedError
