"""The typed form of the ledger's field `sampler`: how each round's cohort was drawn."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

UNNAMED = "unnamed"
"""First part of the name of a draw of which nothing is known beside another draw."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Sampling(Mapping[str, Any]):
    """Description of how the cohort of each round was drawn, for accountants.

    As a mapping it is the ledger's field `sampler`: the keys that are set, in the order
    of the fields below. `Release` and `Accountant.check` check the values.

    Attributes:
        kind: name of the sampler. The accountant is found by it and the mechanism.
        clients: N, the number of clients.
        records: number of records of one client, where the units are its records.
        cohort: number of units of a round, or its expectation.
        rounds: number of rounds planned for the whole run.
        rate: sampling rate: a unit's probability of taking part in a given round.
        steps: number of releases of one client over its own records.
        epoch: number of rounds of one pass over a shuffled list.
        batches: whether an observer may know the batches: "known" or "secret".
        separation: least number of rounds between two participations of a unit.
        participations: most rounds in which a unit takes part.
        draw: name of the draw of the cohorts. Lines of one draw have the same cohorts.
            Two draws are independent if their names differ before the first "/"; else
            nothing is known of them together. None: the ledger does not say (ledgers
            of earlier versions).
        further_keys: keys of a sampler that this library does not know.
        encoder: for correlated noise, the absolute values |C| for all planned rounds,
            float64 [rounds, rounds], as bytes. It belongs to the noise, and no ledger
            holds it.
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
    draw: str | None = None
    further_keys: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    encoder: bytes | None = None

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Sampling:
        """Return a `Sampling` from the ledger's field `sampler`.

        A `Sampling` is returned unchanged.
        """
        if isinstance(values, cls):
            return values
        known_keys = {}
        further_keys = {}
        for key, value in values.items():
            if key in _KEYS:
                known_keys[key] = value
            else:
                further_keys[key] = value
        return cls(**known_keys, further_keys=further_keys)

    def __getitem__(self, key: str) -> Any:
        if key in _KEYS:
            value = getattr(self, key)
        else:
            value = self.further_keys.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def __iter__(self) -> Iterator[str]:
        yield from (key for key in _KEYS if getattr(self, key) is not None)
        yield from self.further_keys

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
        return hash((self.encoder, *(getattr(self, key) for key in _KEYS)))


_KEYS = tuple(
    field.name
    for field in dataclasses.fields(Sampling)
    if field.name not in ("further_keys", "encoder")
)

Sampler = Mapping[str, Any]
"""A `Sampling`, or a mapping with the same keys."""
