"""Base of the initial weights of a training, and random initial weights.

These classes do not know the class of runs (`dpfedbench.run`), which has them as
fields, so that runs are `Any` here. Other kinds of initial weights are in
`dpfedbench.models.initial`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from dpfedbench.config.part import Part
from dpfedbench.lazy import np
from dpsum.randomness import stream


class Initial(Part):
    """Base of the initial weights of a training.

    The first release of a training discloses what its initial weights disclose of
    private data. So each kind of initial weights declares the private data that it
    depends on. There are three cases: none (`public_for`); the same records as the run,
    under an account that is composed with the run's (`references` has a ledger); or
    private data without an account (`without_account`), and then no finite epsilon is
    proven.
    """

    package: ClassVar[str] = "dpfedbench.models.initial"

    @property
    def label(self) -> str:
        """Source of the weights, for tables and figures; "" for random weights."""
        return ""

    def without_account(
        self, dataset: str, references: Mapping[str, Any]
    ) -> tuple[str, ...]:
        """Return why no ledger covers what the weights disclose of private data.

        There are none where a ledger covers it, or where the weights disclose nothing.

        Args:
            dataset: name of the data set on which the run trains.
            references: other runs that the run needs (`Run.references`).
        """
        return ()

    def public_for(self, run: Any) -> bool:
        """Return whether the weights are independent of all private data.

        These are the data of the run's clients and of anybody else.
        """
        return True

    def weights(
        self,
        net: Any,
        *,
        seed: int,
        dataset: str,
        references: Mapping[str, Any],
        files: Mapping[str, Path],
    ) -> np.ndarray:
        """Return the initial weights of the training, float32 [d].

        Args:
            net: the model (`models.net.Net`).
            seed: seed of the run.
            dataset: name of the data set on which the run trains.
            references: other runs that the run needs (`Run.references`).
            files: their files, by the same names.

        Raises:
            BenchError: a file is missing, damaged, or another network's.
        """
        raise NotImplementedError


class RandomInitial(Initial):
    """The network's own random weights, drawn from the run's seed."""

    kind: Literal["random"] = "random"

    def weights(self, net: Any, *, seed: int, **_: Any) -> np.ndarray:
        return net.initial(stream(seed, "initial-weights"))  # type: ignore[no-any-return]
