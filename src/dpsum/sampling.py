"""The typed form of what a ledger calls `sampler`: how the cohort of each round was
drawn.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Sampling(Mapping[str, Any]):
    """The way in which the cohort of each round was drawn, as accountants read it.

    Read as a mapping it is the ledger's group `sampler`: the keys that are set, in the
    order of the fields below. Values are checked where they are used: by `Release`, and
    by `Accountant.check`, which knows what fits together.

    Attributes:
        kind: which way of drawing; an accountant is found by it and the mechanism.
        clients: N.
        records: of one client, where the units that are drawn are its records.
        cohort: units of a round, or their expected number.
        rounds: planned for the whole run.
        rate: a unit's chance of being in a given round.
        steps: releases of one client over its own records.
        epoch: rounds in which a shuffled list is gone through once.
        batches: whether an observer may know them: "known" or "secret".
        separation, participations: any two rounds of a unit are at least so far apart,
            and there are at most so many.
        others: further keys, of a way of drawing that this library does not know.
        encoder: of correlated noise, the sizes |C| of all planned rounds, float64
            [rounds, rounds], as bytes; it belongs to the noise, and is in no ledger.
    """

    kind: str = ""
    clients: int | None = None
    records: int | None = None
    cohort: float | None = None
    rounds: int | None = None
    rate: float | None = None
    steps: int | None = None
    epoch: int | None = None
    batches: str | None = None
    separation: int | None = None
    participations: int | None = None
    others: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    encoder: bytes | None = None

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Sampling:
        """A `Sampling` from a ledger's group `sampler`; one that is a `Sampling`
        already is returned.
        """
        if isinstance(said, cls):
            return said
        others = {key: value for key, value in said.items() if key not in _SAID}
        return cls(
            **{key: value for key, value in said.items() if key in _SAID}, others=others
        )

    def __getitem__(self, key: str) -> Any:
        if key in _SAID:
            value = getattr(self, key)
        else:
            value = self.others.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def __iter__(self) -> Iterator[str]:
        yield from (key for key in _SAID if getattr(self, key) is not None)
        yield from self.others

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __or__(self, more: Mapping[str, Any]) -> dict[str, Any]:
        return {**self, **more}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mapping):
            return NotImplemented
        return (
            dict(self) == dict(other)
            and getattr(other, "encoder", self.encoder) == self.encoder
        )

    def __hash__(self) -> int:
        return hash((self.encoder, *(getattr(self, key) for key in _SAID)))


_SAID = tuple(
    field.name
    for field in dataclasses.fields(Sampling)
    if field.name not in ("others", "encoder")
)

Sampler = Mapping[str, Any]
"""A `Sampling`, or a mapping that says the same."""
