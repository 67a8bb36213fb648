"""Clipping rules whose first threshold comes from another run."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from dpsum.clipping import CohortRule

if TYPE_CHECKING:
    from dpfedbench.method import Method


@dataclasses.dataclass(frozen=True)
class ReferenceRule(CohortRule):
    """Base of the rules that read a file of another run on the same clients.

    Attributes:
        reference: the method of that run.
        reference_file: the file of that run that gives the first threshold.
    """

    finds_threshold: ClassVar[bool] = True
    reference: ClassVar[str]
    reference_file: ClassVar[str]

    def first_threshold(self, path: Path, run: Method) -> float:
        """Return the first threshold, from the file of the other run."""
        raise NotImplementedError
