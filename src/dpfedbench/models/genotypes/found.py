"""Cells that another run, a search, has found."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from dpfedbench.config.part import setting
from dpfedbench.errors import BenchError
from dpfedbench.models.genotype import Genotype, Space, read_genotype
from dpfedbench.models.genotypes.source import (
    GenotypeSource,
    RandomGenotype,
    StatedGenotype,
)
from dpfedbench.models.references import reference

if TYPE_CHECKING:
    from dpfedbench.method import Method


class FoundGenotype(GenotypeSource):
    """Genotype from the architecture weights of a search.

    The settings name the search run. Its folder holds genotype.json.
    """

    kind: Literal["found"] = "found"
    file: ClassVar[str] = "genotype.json"

    search: dict[str, Any] = setting(
        doc=(
            "settings of the run that searches, without its seed, which is this"
            " run's; a series' `searched_by` fills it in"
        )
    )

    def check(self, run: Method) -> None:
        self.references(run)

    def references(self, run: Method) -> dict[str, Method]:
        search = run.another({**self.search, "seed": run.seed})
        if search.dataset != run.dataset:
            raise BenchError(
                f"model.genotype.search is a run on {search.dataset}, but this run is"
                f" on {run.dataset}: take a search on {run.dataset}"
            )
        # A private search read the same records, so the account covers both runs.
        return {self.file: search} | (
            {"ledger.jsonl": search} if search.private else {}
        )

    def resolved(self, files: Mapping[str, Path]) -> GenotypeSource:
        cells = read_genotype(reference(files, self.file, "the search")).cells
        return StatedGenotype(
            normal=cells.get("normal", ()), reduction=cells.get("reduction", ())
        )

    def without_references(self) -> GenotypeSource:
        return RandomGenotype()

    def genotype_in(self, space: Space) -> Genotype:
        raise RuntimeError("the cells are in a file: call resolved() first")
