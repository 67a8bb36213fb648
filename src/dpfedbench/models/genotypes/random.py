"""Random cells: a baseline for searches."""

from __future__ import annotations

from typing import Literal

from dpfedbench.config.part import setting
from dpfedbench.models.genotype import Genotype, Space
from dpfedbench.models.genotypes.source import GenotypeSource
from dpsum.randomness import stream


class RandomGenotype(GenotypeSource):
    """Genotype whose inputs and operations are drawn uniformly for each node."""

    kind: Literal["random"] = "random"
    seed: int = setting(
        0, ge=0, doc="seed of the drawing, independent of the run's seed"
    )

    def genotype_in(self, space: Space) -> Genotype:
        return space.random(stream(self.seed, "random-genotype"))
