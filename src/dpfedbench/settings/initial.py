"""Where the weights that training starts from come from, and whether they are anybody's secret."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from dpfedbench.settings.part import Part
from dpsum.randomness import stream

if TYPE_CHECKING:
    import numpy as np


class Initial(Part):
    """Base of the starts.

    What private data made of weights leaves with the first release of who starts from them. So a start says what it
    has read: nothing private (`public_for`), the same records as the run under an account that is composed with it
    (`references` has a ledger), or private data without an account (`without_account`), and then nothing finite holds.
    """

    place: ClassVar[str] = "dpfedbench.models.initial"

    @property
    def told(self) -> str:
        """For tables and figures: where the weights are from; "" where they are random."""
        return ""

    def references(self, run: Any) -> dict[str, Any]:
        """The other runs whose files it needs, by the file's name in their folder."""
        return {}

    def without_account(self, run: Any) -> tuple[str, ...]:
        """Why what the weights tell of private data has no event in any ledger; none where it has, or tells nothing."""
        return ()

    def public_for(self, run: Any) -> bool:
        """Whether the weights tell nothing of what a run's clients hold, nor of anybody else's private data."""
        return True

    def weights(self, run: Any, net: Any, files: Mapping[str, Path]) -> np.ndarray:
        """The weights that training starts from, float32 [d].

        Args:
            run: the run (a method).
            net: the model (`models.net.Net`).
            files: of other runs, by name (`Method.references`).

        Raises:
            BenchError: a file is missing, damaged, or another network's.
        """
        raise NotImplementedError


class RandomInitial(Initial):
    """The network's own random weights, of the run's seed."""

    kind: Literal["random"] = "random"

    def weights(self, run: Any, net: Any, files: Mapping[str, Path]) -> np.ndarray:
        found: np.ndarray = net.initial(stream(run.seed, "initial-weights"))
        return found
