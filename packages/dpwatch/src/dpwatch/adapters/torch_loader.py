"""Watch of the batches that a torch loader draws, for the adapters of torch trainings.

It determines the ledger's sampler of these batches.
"""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
)

from dpsum.errors import DpsumError

SAME_DRAW = (
    "its batch was drawn from a generator in a state that a batch was drawn from before"
)
NOT_DRAWN = (
    "its gradients are not those of the next batch that the loader drew: of one a"
    " second time, or of another"
)
SEVERAL = (
    "several Poisson batches were added up, and a record may be in more than one of"
    " them"
)
SKIPPED = (
    "an empty batch before it was left out, which tells that no record was in that"
    " batch"
)
STRADDLES = "an epoch began before the one before it had made all of its steps"


def check(loader: DataLoader[Any]) -> None:
    """Refuse a loader of unknown length (without a sampler), or one watched already."""
    try:
        len(loader), len(loader.dataset)  # type: ignore[arg-type]
    except TypeError as error:
        raise DpsumError(
            f"the loader does not state how many records it draws from ({error}): no"
            " account is possible without this number"
        ) from error
    if loader.batch_sampler is not None and "_dpsum" in vars(loader.batch_sampler):
        raise DpsumError(
            "the loader is watched already: stop() the other watch, or make a new"
            " loader"
        )


class States:
    """Earlier states of random generators, to detect repeated draws."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def again(self, generator: Any, device: torch.device) -> bool:
        """Record a generator's state, and return whether it occurred before.

        Args:
            generator: the generator; None: torch's own of the device.
            device: the device.
        """
        try:
            if generator is not None:
                state = generator.get_state()
            elif device.type in ("cpu", "cuda"):
                state = (
                    torch.cuda.get_rng_state(device)
                    if device.type == "cuda"
                    else torch.get_rng_state()
                )
            else:
                return False
        except (AttributeError, RuntimeError, NotImplementedError):
            return (
                False  # one that has no state to tell, such as the operating system's
            )
        digest = hashlib.sha256(state.cpu().numpy().tobytes()).hexdigest()
        again = digest in self._seen
        self._seen.add(digest)
        return again


class Draws:
    """The batches that a loader draws, in order.

    The loader's batch sampler gets a class derived from its own, which counts its
    batches. So batches are counted for every reader: Opacus's `BatchMemoryManager` and
    workers that fetch ahead, too. `epochs` is the number of passes over the loader.
    `poisson` is the class of batch sampler that draws each of `num_samples` records
    with probability `sample_rate`.
    """

    def __init__(self, loader: DataLoader[Any], epochs: int, poisson: type) -> None:
        self._loader = loader
        self._epochs = epochs
        self._states = States()
        self._drawn: deque[int] = deque()
        self._reasons: list[str] = []
        self._taken = 0
        self._batches = 1
        self._sampler = dict[str, Any]()
        sampler = loader.batch_sampler
        self._poisson = type(sampler) is poisson
        if sampler is not None:
            vars(sampler)["_dpsum"] = self
            sampler.__class__ = _counting(type(sampler))

    def stop(self) -> None:
        """Stop counting, and restore the batch sampler's class."""
        sampler = self._loader.batch_sampler
        if sampler is not None and vars(sampler).pop("_dpsum", None):
            sampler.__class__ = type(sampler).__mro__[1]

    def take(self, records: int) -> tuple[dict[str, Any], list[str]]:
        """Return the ledger's sampler of a step, and reasons against an account.

        Args:
            records: number of records whose gradients the step used.
        """
        why = self._reasons
        self._reasons = []
        sizes: list[int] = []
        while self._drawn and (sum(sizes) < records or not sizes):
            sizes.append(self._drawn.popleft())
        count = len(sizes)
        if self._loader.batch_sampler is not None and (
            not sizes or sum(sizes) != records
        ):
            why.append(NOT_DRAWN)
        elif self._poisson and count > 1:
            why.append(SEVERAL if all(sizes) else SKIPPED)
        if not self._sampler:
            self._batches = max(count, 1)
        elif count > self._batches:
            why.append(NOT_DRAWN)
        if self._poisson or not self._sampler:
            self._sampler = self._describe()
        self._taken += 1
        return self._sampler, why

    def begin(self) -> None:
        """Begin an epoch, and drop unused batches of the last one."""
        self._drawn.clear()
        length = self._sampler.get("epoch") or self._sampler.get("separation") or 1
        if self._taken % length:
            self._reasons.append(STRADDLES)

    def draw(self, batches: Iterator[list[int]], generator: Any) -> Iterator[list[int]]:
        """Yield the batches, and count them."""
        while True:
            again = self._poisson and self._states.again(generator, torch.device("cpu"))
            batch = next(batches, None)
            if batch is None:
                return
            if again:
                self._reasons.append(SAME_DRAW)
            self._drawn.append(len(batch))
            yield batch

    def _describe(self) -> dict[str, Any]:
        sampler: Any = self._loader.batch_sampler
        inner, records = getattr(sampler, "sampler", None), len(self._loader.dataset)  # type: ignore[arg-type]
        length = math.ceil(len(self._loader) / (1 if self._poisson else self._batches))
        rounds = length * self._epochs
        if self._poisson:
            rate = float(sampler.sample_rate)
            cohort = sampler.num_samples * rate
            return _sampler("poisson-lots", sampler.num_samples, cohort, rounds) | {
                "rate": rate
            }
        plain = (
            type(sampler).__mro__[1] is BatchSampler if sampler is not None else False
        )
        whole = (
            type(inner) is RandomSampler
            and not inner.replacement
            and inner.num_samples == records
        )
        subset = type(inner) is SubsetRandomSampler and len(set(inner.indices)) == len(
            inner.indices
        )
        if plain and (whole or subset):
            records = len(inner)  # type: ignore[arg-type]
            cohort = min(sampler.batch_size * self._batches, records)
            return _sampler("shuffled-epochs", records, cohort, rounds) | {
                "epoch": length,
                "batches": "secret",
            }
        if plain and type(inner) is SequentialSampler:
            cohort = min(sampler.batch_size * self._batches, records)
            known = {"separation": length, "participations": self._epochs}
            return _sampler("min-separation", records, cohort, rounds) | known
        by = inner if plain else self._loader.sampler if sampler is None else sampler
        return _sampler(
            "unknown", records, math.ceil(records / len(self._loader)), rounds
        ) | {"drawn_by": type(by).__name__}


def _sampler(kind: str, records: int, cohort: float, rounds: int) -> dict[str, Any]:
    shape = {
        "kind": kind,
        "clients": 1,
        "records": records,
        "cohort": cohort,
        "rounds": rounds,
    }
    return shape | {"rate": cohort / records}


def _counting(kind: type) -> type:
    def __iter__(self: Any) -> Iterator[list[int]]:  # noqa: N807
        draws = vars(self)["_dpsum"]
        draws.begin()
        yield from draws.draw(
            super(kind_here, self).__iter__(), getattr(self, "generator", None)
        )

    kind_here: Any = type(
        kind.__name__, (kind,), {"__iter__": __iter__, "__doc__": kind.__doc__}
    )
    return kind_here
