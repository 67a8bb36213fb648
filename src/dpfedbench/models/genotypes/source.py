"""Sources of a network's cells: settings, and the genotype that they describe."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from dpfedbench.config.part import Part, setting
from dpfedbench.config.rules import Rule
from dpfedbench.errors import BenchError
from dpfedbench.models.genotype import Genotype, Space, plain_cell, read_genotype
from dpfedbench.models.references import reference
from dpsum.randomness import stream

if TYPE_CHECKING:
    from dpfedbench.run import Run

CellOperations = tuple[tuple[tuple[str | int, ...], ...], ...]


class GenotypeSource(Part):
    """Base of the genotype sources."""

    package: ClassVar[str] = "dpfedbench.models.genotypes"

    def resolved(self, files: Mapping[str, Path]) -> GenotypeSource:
        """Return the equivalent source that needs no file.

        Args:
            files: the files that `references` names.
        """
        return self

    def without_references(self) -> GenotypeSource:
        """Return a source of cells of the same size that needs no file."""
        return self

    def check_space(self, space: Space) -> None:
        """Refuse what does not fit the search space, before any stage runs.

        The plan is read where only Snakemake is installed, so no check needs NumPy.

        Raises:
            BenchError: as in `genotype_in`.
        """
        self.genotype_in(space)

    def genotype_in(self, space: Space) -> Genotype:
        """Return the genotype.

        Args:
            space: search space of the network that is built from it.

        Raises:
            BenchError: there is no genotype, or it belongs to another search space.
        """
        raise NotImplementedError


class RandomGenotype(GenotypeSource):
    """Inputs and operations drawn uniformly for each node: a baseline for searches."""

    kind: Literal["random"] = "random"
    seed: int = setting(0, ge=0, doc="seed of the drawing, apart from the run's")

    def check_space(self, space: Space) -> None:
        """Accept: the genotype is drawn from the space, so it fits."""

    def genotype_in(self, space: Space) -> Genotype:
        return space.random(stream(self.seed, "random-genotype"))


class SameGenotype(GenotypeSource):
    """All nodes read their cell's two inputs by one operation: a baseline without a search."""

    kind: Literal["same"] = "same"
    operation: str = setting(
        "sep_conv_3x3", doc="operation of all edges; one of model.operations"
    )

    def genotype_in(self, space: Space) -> Genotype:
        return space.same(self.operation)


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


class FoundGenotype(GenotypeSource):
    """Genotype from the architecture weights of a search.

    The settings name the search run. Its folder holds genotype.json.
    """

    kind: Literal["found"] = "found"
    file: ClassVar[str] = "genotype.json"

    search: dict[str, Any] = setting(
        doc=(
            "settings of the run that searches, with this run's seed; a series'"
            " `searched_by` fills it in"
        )
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            lambda source, run: (
                source.search_run(run).dataset != run.dataset
                and source.search_run(run).dataset
            ),
            "model.genotype.search is a run on {fault}, but this run is on"
            " {run.dataset}: take a search on {run.dataset}",
        ),
    )

    def search_run(self, run: Run) -> Run:
        """Return the run that searches, with the seed of the run that trains."""
        return run.another({**self.search, "seed": run.seed})

    def references(self, run: Run) -> dict[str, Run]:
        search = self.search_run(run)
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

    def check_space(self, space: Space) -> None:
        """Accept: the cells are those of a search that has not run yet."""

    def genotype_in(self, space: Space) -> Genotype:
        raise RuntimeError("the cells are in a file: call resolved() first")
