"""The mechanisms of the sums that one run takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from dpfedbench.models.torch_sums import TORCH
from dpsum.composition import Composition
from dpsum.mechanism import Mechanism, Observer, ReleaseLog
from dpsum.participation import DrawnBy
from dpsum.randomness import Seed
from dpsum.sums import SumSpec


class Mechanisms:
    """Mechanisms of one run, which share a composition, a ledger and a seed.

    Args:
        composition: calibrates the sums.
        ledger: ledger to which releases are appended.
        seed: seed of the noise; see `dpsum.Mechanism`.
        observer: receives each release of a private sum.

    Attributes:
        created: the mechanisms in the order of their creation.
    """

    def __init__(
        self,
        composition: Composition,
        *,
        ledger: ReleaseLog,
        seed: Seed,
        observer: Observer | None = None,
    ) -> None:
        self.composition = composition
        self.created = list[Mechanism]()
        self._ledger = ledger
        self._seed = seed
        self._observer = observer

    def create(
        self,
        spec: SumSpec,
        *,
        participation: DrawnBy,
        dimension: int,
        holders: int = 0,
        plain_sum: Callable[[int], Any] | None = None,
    ) -> Mechanism:
        """Calibrate a sum, and return its mechanism.

        Args:
            spec: specification of the sum, with its groups and first threshold.
            participation, dimension, holders: see `dpsum.Mechanism`.
            plain_sum: creates the sum object, given d, where the sum is not private.

        Raises:
            BenchError: no noise meets the budget, or the sum does not compose with
                another of the run.
        """
        (calibrated,) = self.composition.calibrate([spec], participation)
        return self.create_calibrated(
            calibrated,
            participation=participation,
            dimension=dimension,
            holders=holders,
            plain_sum=plain_sum,
        )

    def create_calibrated(
        self,
        spec: SumSpec,
        *,
        participation: DrawnBy,
        dimension: int,
        holders: int = 0,
        plain_sum: Callable[[int], Any] | None = None,
    ) -> Mechanism:
        """Return the mechanism of a calibrated sum; the arguments are as in `create`."""
        arithmetic = TORCH
        if plain_sum is not None:
            arithmetic = dataclasses.replace(TORCH, plain_sum=plain_sum)
        mechanism = Mechanism(
            spec,
            participation=participation,
            dimension=dimension,
            ledger=self._ledger,
            seed=self._seed,
            composition=self.composition,
            holders=holders,
            arithmetic=arithmetic,
        )
        mechanism.observer = self._observer
        self.created.append(mechanism)
        return mechanism
