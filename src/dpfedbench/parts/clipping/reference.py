"""Clipping rules whose first threshold comes from another run."""

from __future__ import annotations

import csv
import dataclasses
import math
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from dpfedbench.config.rules import Rule
from dpfedbench.errors import BenchError
from dpsum.clipping import LARGEST_THRESHOLD, SMALLEST_THRESHOLD, CohortRule
from dpsum.parameters import parameter

if TYPE_CHECKING:
    from dpfedbench.run import Run


@dataclasses.dataclass(frozen=True)
class MedianOfRun(CohortRule):
    """Constant threshold C: the median norm of a run without privacy (DP-FedMeta,
    Section 6.1; DP-MAML, Section 5.2.1).

    That run used the same clients. An observer of the releases therefore learns
    something of them that no noise protects.
    """

    kind: ClassVar[str] = "median-of-run"
    private: ClassVar[bool] = False
    reason: ClassVar[str] = (
        "the threshold is the median of gradient norms that no release protects, those"
        " of a run without privacy"
    )
    notice: ClassVar[str] = (
        "the clipping threshold is the median norm of a run without privacy: not private"
    )
    finds_threshold: ClassVar[bool] = True
    file: ClassVar[str] = "history.csv"
    threshold: float | None = parameter(
        None,
        ge=SMALLEST_THRESHOLD,
        le=LARGEST_THRESHOLD,
        doc="null: the median norm of a run without privacy",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        # Other clients have no history of gradient norms that fits.
        Rule(
            lambda rule, run: run.client_update.kind != "maml",
            "clipping.kind median-of-run is for client_update.kind maml",
        ),
        Rule(
            lambda rule, run: rule.threshold is not None,
            "clipping.threshold is {part.threshold:g}, but median-of-run"
            " computes it from a run without privacy: set it to null",
        ),
    )

    def references(self, run: Run) -> dict[str, Run]:
        """Return the run without privacy, by the name of its file."""
        return {self.file: run.of_method("maml")}

    def first_threshold(self, path: Path, run: Run) -> float:
        """Return the median over rounds of the cohorts' median gradient norms.

        All cohorts of that run have the same size, so that the result is close to the
        median over all clients, which no file has.

        Raises:
            BenchError: the history is missing, damaged, or has no norms.
        """
        needed = f"{run.folder} finds its threshold in {path}"
        try:
            with open(path, encoding="utf-8", newline="") as file:
                norms = [
                    float(row["norm_q50"])
                    for row in csv.DictReader(file)
                    if row["norm_q50"]
                ]
            median = statistics.median(norms) if norms else math.nan
        except (OSError, ValueError, KeyError) as error:
            raise BenchError(
                f"{needed}, which cannot be read ({error}): train that run again"
            ) from error
        if not 0 < median < math.inf:
            raise BenchError(
                f"{needed}, which has no gradient norms: train that run again"
            )
        return median
