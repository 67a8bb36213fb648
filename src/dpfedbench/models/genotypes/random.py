"""Cells drawn at random: what a search has to beat."""

from __future__ import annotations

from typing import Literal

from dpfedbench.models.genotype import Genotype, Space
from dpfedbench.models.genotypes.source import GenotypeSource
from dpfedbench.settings.part import setting
from dpsum.randomness import stream


class RandomGenotype(GenotypeSource):
    """Each node's two inputs and their operations, drawn uniformly."""

    kind: Literal["random"] = "random"
    seed: int = setting(0, ge=0, doc="of the drawing, apart from the run's")

    def of(self, space: Space) -> Genotype:
        return space.random(stream(self.seed, "random-genotype"))
