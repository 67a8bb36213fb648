"""The mechanisms of the sums that one run takes, and torch's additions to these sums.

On a CPU a compiled loop adds contributions. On a GPU they are added on the device.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from dpfedbench.models.kernels import add_rows
from dpsum.composition import Composition
from dpsum.group_clipping import CoordinateGroups, add_rows_by_group
from dpsum.mechanism import (
    Accumulator,
    Arithmetic,
    Mechanism,
    Observer,
    ReleaseLog,
)
from dpsum.participation import DrawnBy
from dpsum.private_sum import PlainSum, PrivateSum
from dpsum.randomness import Seed
from dpsum.sums import SumSpec


def rows_of(contributions: torch.Tensor) -> np.ndarray:
    """Convert contributions to contiguous float32 [n, d] for the compiled loops.

    A number beyond single precision becomes infinite, so its row counts as zero.
    """
    rows = contributions.detach().cpu().to(torch.float32)
    return np.asarray(rows.contiguous().numpy())


def add_on_device(
    rows: torch.Tensor, limit: float, total: np.ndarray, norms: np.ndarray
) -> None:
    """Add clipped rows [n, d] on their device, like `kernels.add_rows()`.

    A GPU sends one sum instead of every row. All arithmetic is in double precision. The
    rows of a call are summed before they are added to the total, so the last bits
    depend on the chunks.
    """
    row_norms = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    finite = row_norms.isfinite()
    weights = torch.where(finite, torch.clamp(limit / row_norms, max=1.0), 0.0)
    norms[:] = row_norms.cpu().numpy()
    total += (weights @ torch.where(finite[:, None], rows, 0.0).double()).cpu().numpy()


def add_groups_on_device(
    groups: CoordinateGroups,
    rows: torch.Tensor,
    limits: Sequence[float],
    total: np.ndarray,
    norms: np.ndarray,
) -> None:
    """Add rows [n, d] on their device; see `dpsum.group_clipping.add_rows_by_group`."""
    finite = rows.isfinite().all(dim=1)
    rows = torch.where(finite[:, None], rows, torch.nan)
    for index, group in enumerate(groups.slices):
        lengths = np.empty(len(rows))
        add_on_device(rows[:, group], limits[index], total[group], lengths)
        norms[:, index] = lengths


def add_to(total: Any, contributions: torch.Tensor | np.ndarray) -> Any:
    """Add contributions [n, d], a numpy array or a torch tensor, to a sum.

    See `dpsum.private_sum.PrivateSum.add`.

    Raises:
        ValueError: the contributions are not [n, d].
    """
    contributions = torch.as_tensor(contributions)
    if contributions.ndim != 2 or contributions.shape[1] != total.dimension:
        raise ValueError(
            f"contributions must be [n, {total.dimension}], not"
            f" {tuple(contributions.shape)}"
        )
    if total.one_by_one:
        return total.add(contributions.detach().cpu())
    groups = getattr(total, "groups", None)
    if contributions.is_cuda:
        on_device = contributions.detach().float()
        if groups is not None:
            add = functools.partial(add_groups_on_device, groups, on_device)
            return total.add_by(add, len(on_device))
        return total.add_by(functools.partial(add_on_device, on_device), len(on_device))
    rows = rows_of(contributions)
    add = functools.partial(add_rows, rows)
    if groups is not None:
        add = functools.partial(add_rows_by_group, add_rows, groups, rows)
    return total.add_by(add, len(rows))


TORCH = Arithmetic(
    add=add_to, norm=lambda values: float(torch.from_numpy(values).double().norm())
)
"""Addition and norm of the benchmark's mechanisms."""


def make_accumulator(total: PlainSum | PrivateSum) -> Accumulator:
    """Return an accumulator of a sum outside of any mechanism, which takes tensors."""
    return Accumulator(
        spec=SumSpec(name="gradient-sum", unit="record", observer="server"),
        arithmetic=TORCH,
        rule=None,
        dimension=total.dimension,
        round=0,
        step=0,
        holder=0,
        sum=total,
        state={},
    )


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
        is_calibrated: bool = False,
    ) -> Mechanism:
        """Return the mechanism of a sum.

        Args:
            spec: specification of the sum, with its groups and first threshold.
            participation, dimension, holders: see `dpsum.Mechanism`.
            plain_sum: creates the sum object, given d, where the sum is not private.
            is_calibrated: whether `Composition.calibrate` returned the specification,
                with those of other sums.

        Raises:
            BenchError: no noise meets the budget, or the sum does not compose with
                another of the run.
        """
        if not is_calibrated:
            (spec,) = self.composition.calibrate([spec], participation)
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
