"""Conversion between ledgers and the event trees of dp_accounting.

jax_privacy's execution plans have such trees too. A tree states noise multipliers,
probabilities and counts only. The caller therefore supplies the number of units, and
may supply a clipping norm other than 1. A ledger from a tree describes the tree, not
the code that ran.

Multipliers are noise over C under every adjacency, as `GaussianDpEvent` defines them. A
tree does not state its adjacency; in dp_accounting the accountant does:

- "zero-out": `NeighboringRelation.REPLACE_SPECIAL`, the default of jax_privacy's plans.
- "add-or-remove": `ADD_OR_REMOVE_ONE`. For Gaussians and Poisson samples it is the same
  as zero-out. A sample of a fixed size is refused, since a unit that leaves changes the
  place of the others.
- "replace-one": `REPLACE_ONE`. The sum moves by up to 2 C. dp_accounting's
  `PLDAccountant` computes the same. Its `RdpAccountant` takes multipliers as noise over
  2 C instead, so that its epsilon is too small for a tree of Gaussians. It is the only
  accountant of samples of a fixed size, so `to_event` makes no tree of these.

The lines are the same for all adjacencies: an account of them has the profiles `proven`
(zero-out, and add-or-remove where it is accepted) and `replace_one`.

The tree of a plan with banded noise is that of one band: ceil(rounds / bands) Poisson
samples.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dp_accounting import NeighboringRelation
from dp_accounting import dp_event as events

from dpsum.accounting import analyses
from dpsum.errors import DpsumError
from dpsum.ledger import Release
from dpsum.sampling import Sampling

ADJACENCIES = {
    NeighboringRelation.ADD_OR_REMOVE_ONE: "add-or-remove",
    NeighboringRelation.REPLACE_ONE: "replace-one",
    NeighboringRelation.REPLACE_SPECIAL: "zero-out",
}
"""Name of each of dp_accounting's adjacencies."""


class _Round(NamedTuple):
    """One sample and the noise multipliers of its releases.

    Attributes:
        rate: sampling rate.
        size: size of the sample and of the data, for a sample of fixed size.
        multipliers: noise multipliers of the releases.
    """

    rate: float
    size: tuple[int, int] | None
    multipliers: tuple[float, ...]


def from_event(
    event: events.DpEvent,
    *,
    units: int,
    unit: str = "record",
    adjacency: str = "zero-out",
    threshold: float = 1.0,
) -> list[Release]:
    """Return the ledger lines of an event tree.

    Args:
        event: a tree of Gaussians, of Poisson samples and fixed-size samples without
            replacement of them, and of compositions.
        units: number of records or clients in the data.
        unit: "record" or "client".
        adjacency: adjacency of the accountant that the tree is for; see the module.
        threshold: C.

    Raises:
        DpsumError: the tree has another event, or one that does not define this
            adjacency, or samples of several kinds or sizes, which one ledger cannot
            have.
    """
    if unit not in ("record", "client") or adjacency not in ADJACENCIES.values():
        raise DpsumError(
            f"unit {unit!r}, adjacency {adjacency!r}: unit is record or client,"
            f" adjacency {list(ADJACENCIES.values())}"
        )
    if isinstance(units, bool) or not isinstance(units, int) or units < 1:
        raise DpsumError(
            f"units is {units!r}: a tree does not state the number of units; give a"
            " whole number of at least 1"
        )
    rounds = list(_rounds(event, adjacency))
    if not rounds:
        raise DpsumError("the tree has no release: there is nothing to account for")
    kinds = {(sample.rate, sample.size, len(sample.multipliers)) for sample in rounds}
    if len(kinds) > 1:
        samplers = "; ".join(
            f"rate {rate:g}, {count} of each"
            for rate, _, count in itertools.islice(sorted(kinds), 3)
        )
        raise DpsumError(
            f"the tree has samples of several kinds ({samplers}): a ledger has one"
            " sampler, so split the tree"
        )
    rate, size, count = kinds.pop()
    if size is not None and size[1] != units:
        raise DpsumError(
            f"the tree samples from {size[1]:,} units, but units is {units:,}: set"
            f" units to {size[1]}"
        )
    cohort = size[0] if size else units * rate
    kind = "fixed-size" if size else "poisson-lots" if unit == "record" else "poisson"
    of = {"clients": 1, "records": units} if unit == "record" else {"clients": units}
    sampler = {
        "kind": kind,
        **of,
        "cohort": cohort,
        "rounds": len(rounds),
        "rate": cohort / units if size else rate,
        "draw": "of the event",
    }
    try:
        return [
            Release(
                round=number,
                name="sum" if count == 1 else f"sum-{index}",
                mechanism="gaussian",
                unit=unit,
                adjacency="zero-out",
                observer="everyone",
                noise_multiplier=z,
                threshold=threshold,
                sensitivity=threshold,
                noise_std=z * threshold,
                dimension=1,
                sampler=Sampling.from_mapping(sampler),
                denominator=1.0,
                noise_stream="unknown",
                counted_by_paper=True,
                data_dependent_threshold=False,
                reason="",
            )
            for number, sample in enumerate(rounds)
            for index, z in enumerate(sample.multipliers)
        ]
    except ValueError as error:
        raise DpsumError(f"the tree has an invalid release: {error}") from error


def _rounds(event: events.DpEvent, adjacency: str) -> Iterator[_Round]:
    """Yield the tree's samples in order; a Gaussian over all units has rate 1.

    Raises:
        DpsumError: an event has no analysis, or does not define this adjacency.
    """
    _check_adjacency(event, adjacency)
    match event:
        case events.NoOpDpEvent():
            return
        case events.ComposedDpEvent():
            for part in event.events:
                yield from _rounds(part, adjacency)
        case events.SelfComposedDpEvent():
            once = list(_rounds(event.event, adjacency))
            for _ in range(event.count if once else 0):
                yield from once
        case events.PoissonSampledDpEvent():
            yield _Round(
                _chance(event.sampling_probability),
                None,
                tuple(_gaussians(event.event)),
            )
        case events.SampledWithoutReplacementDpEvent():
            size = event.sample_size, event.source_dataset_size
            yield _Round(
                event.sample_size / event.source_dataset_size,
                size,
                tuple(_gaussians(event.event)),
            )
        case events.MixtureOfGaussiansDpEvent() if sorted(event.sensitivities) == [
            0.0,
            1.0,
        ]:
            chances = dict(zip(event.sensitivities, event.sampling_probs, strict=True))
            yield _Round(
                _chance(chances[1.0]), None, (float(event.standard_deviation),)
            )
        case _:
            yield _Round(1.0, None, tuple(_gaussians(event)))


def _check_adjacency(event: events.DpEvent, adjacency: str) -> None:
    fixed_size = isinstance(event, events.SampledWithoutReplacementDpEvent)
    if fixed_size and adjacency == "add-or-remove":
        raise DpsumError(
            "the tree has samples of a fixed size, which a unit more or less changes:"
            " give adjacency zero-out or replace-one"
        )
    mixture = isinstance(event, events.MixtureOfGaussiansDpEvent)
    if mixture and adjacency == "replace-one":
        raise DpsumError(
            "the tree has a mixture of Gaussians, which states what a unit more or less"
            " does and not what another unit in its place does: give adjacency zero-out"
            " or add-or-remove, or a PoissonSampledDpEvent"
        )


def _chance(chance: float) -> float:
    if not 0 < chance <= 1:
        raise DpsumError(
            f"the tree samples with a chance of {chance}: it must be above 0 and at"
            " most 1"
        )
    return float(chance)


def _gaussians(event: events.DpEvent) -> Iterator[float]:
    """Yield the noise multipliers of the releases of one sample."""
    match event:
        case events.GaussianDpEvent():
            yield float(event.noise_multiplier)
        case events.ComposedDpEvent():
            for part in event.events:
                yield from _gaussians(part)
        case events.SelfComposedDpEvent():
            yield from itertools.chain.from_iterable(
                list(_gaussians(event.event)) for _ in range(event.count)
            )
        case _:
            raise DpsumError(
                f"no analysis of {type(event).__name__} in this place, so no ledger:"
                " there are Gaussians, Poisson samples and fixed-size samples without"
                " replacement of them, and compositions"
            )


def to_event(
    releases: Sequence[Release], *, adjacency: str = "zero-out"
) -> events.DpEvent:
    """Return a ledger of one unit as an event tree for dp_accounting's accountants.

    Known rounds become one Gaussian: the composition for the worst unit. A line without
    a valid account (`reason`) makes the tree non-private.

    Args:
        releases: lines of the ledger.
        adjacency: adjacency of the accountant; see the module. Multipliers are noise
            over C under each.

    Raises:
        DpsumError: no accountant of dp_accounting reads an event of the mechanism and
            sampler under this adjacency as its class defines it, or the ledger has no
            account.
    """
    if not releases or adjacency not in ADJACENCIES.values():
        raise DpsumError(
            f"{len(releases)} releases, adjacency {adjacency!r}: give a ledger, and one"
            f" of {list(ADJACENCIES.values())}"
        )
    if len({event.unit for event in releases}) > 1:
        raise DpsumError(
            "the ledger has releases of clients and of records: a tree has one unit,"
            " so split the ledger"
        )
    if any(event.data_dependent_threshold for event in releases):
        return events.NonPrivateDpEvent()
    first = releases[0]
    analysis = analyses.of(releases)
    kind = analysis.pair[1]
    is_poisson = kind in ("poisson", "poisson-lots")
    has_event = (
        first.mechanism in ("gaussian", "correlated-gaussian")
        and first.adjacency == "zero-out"
        and not analysis.within_task
        # Only Poisson samples of the others are the same without a unit.
        and (is_poisson or adjacency != "add-or-remove")
    )
    reading = analysis.read(releases)
    if has_event:
        multiplier = analysis.gaussian(reading)
        if multiplier is not None:
            return events.GaussianDpEvent(multiplier)
        if is_poisson:
            rate = float(first.sampler["rate"])
            rounds = [
                events.SelfComposedDpEvent(
                    events.PoissonSampledDpEvent(rate, events.GaussianDpEvent(z)), count
                )
                for z, count in reading.schedule
            ]
            return events.ComposedDpEvent(rounds)
    raise DpsumError(
        f"dp_accounting has no accountant of {first.mechanism} noise with the sampler"
        f" {kind} for {adjacency} that reads multipliers as noise over C: account for"
        " the ledger here"
    )
