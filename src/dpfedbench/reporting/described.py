"""The part of a plan that reporting needs: tables and figures with their cells, typed,
or as plain data.

Snakemake's parameters are plain data, so a description is written by `plain` and read
by `Item.read` or `Private.read`. Nothing here imports what computes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import pydantic


class Description:
    """A frozen dataclass that plain data can carry."""

    def plain(self) -> dict[str, Any]:
        """As mappings, sequences, texts and numbers."""
        return dataclasses.asdict(self)  # type: ignore[call-overload, no-any-return]

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Self:
        """What `plain` gave.

        Raises:
            pydantic.ValidationError: a value is missing or of another type; the plan is
            at fault, and no user.
        """
        return pydantic.TypeAdapter(cls).validate_python(dict(values))


class _OfRuns(Description):
    """What has runs, one for each seed."""

    folders: tuple[str, ...]

    @property
    def group(self) -> str:
        """The folder that the seeds share."""
        return str(Path(self.folders[0]).parent)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mechanism:
    """What an accountant has to know of a run that is not trained.

    `noise_multiplier` is None where no noise is added. `counted` is whether everything
    that the clipping rule reads is a release that an account counts; `mechanism` is
    what the ledger would call the noise.
    """

    sampler: Mapping[str, Any]
    noise_multiplier: float | None
    counted: bool
    mechanism: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell(_OfRuns):
    """One value of a table or figure.

    Attributes:
        label: what a figure calls it; `variant` what a table does, "" where its method
            says it all.
        x: where it stands on a swept axis, None where nothing is swept.
        method: the method's name, `title` the name to print.
        dataset: measured on, `published_dataset` the paper's; `tested` is the task of
            its meta-test.
        mismatch: why our value may not be read against the published one, "" where it
            may.
        metrics: the meta-test's file in a run's folder.
        folders: of the runs, one for each seed, below results/runs; none where nothing
            is trained.
        mechanism: what is accounted for where nothing is trained.
        searched: how many runs a search compares, this cell's among them; 0 where
            nothing is searched.
    """

    series: str
    label: str
    variant: str
    x: float | None
    method: str
    title: str
    dataset: str
    published_dataset: str
    task: str
    tested: str
    mismatch: str
    metrics: str
    folders: tuple[str, ...]
    mechanism: Mechanism | None = None
    searched: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Item(Description):
    """A table or figure of a paper: `spec` is what the experiment file says of it."""

    paper: str
    name: str
    kind: str
    spec: Mapping[str, Any]
    cells: tuple[Cell, ...]

    @property
    def mismatches(self) -> list[str]:
        """Why its values may not be read against the published ones, each reason
        once.
        """
        return list(
            dict.fromkeys(cell.mismatch for cell in self.cells if cell.mismatch)
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """A table of a paper that shows a configuration: as which series, and whose claim
    it mends ("": no other's).
    """

    paper: str
    item: str
    series: str
    repairs: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Private(_OfRuns):
    """A private configuration for the table of privacy: `audited` is the run whose
    audit stands for it.

    `multiplier` is its noise multiplier as configured, None where the budget gives it.
    `start` says where its first weights are from; "" where they are random.
    """

    paper: str
    tables: tuple[Place, ...]
    method: str
    title: str
    variant: str
    multiplier: float | None
    dataset: str
    task: str
    folders: tuple[str, ...]
    audited: str
    start: str = ""

    @property
    def repaired(self) -> bool:
        """Whether it mends a claim that does not hold."""
        return any(place.repairs for place in self.tables)
