"""The least noise that a declared rule of decay allows, by hand."""

from types import SimpleNamespace

import pytest

from dpsum.accounting.filters import floor_of


def events(*multipliers, rounds):
    return SimpleNamespace(sampling={"rounds": rounds}, multipliers=multipliers)


@pytest.mark.parametrize(
    ("rounds", "counts"), [(12, (5, 5, 2)), (10, (5, 5)), (11, (5, 5, 1)), (4, (4,))]
)
def test_least_noise_covers_each_planned_lot(rounds, counts):
    """z = 2, halved after every five lots; the last part may be shorter."""
    floor = floor_of(events(2.0, 2.0, rounds=rounds), (0.5, 5))
    expected = tuple((2.0 * 0.5**fallen, n) for fallen, n in enumerate(counts))
    assert floor == expected
    assert sum(count for _, count in floor) == rounds


def test_noise_below_the_declared_rule_has_no_floor():
    """With two lots at each noise, the third may be halved, and not the second."""
    assert floor_of(events(2.0, 2.0, 1.0, rounds=4), (0.5, 2)) is not None
    assert floor_of(events(2.0, 1.0, 1.0, rounds=4), (0.5, 2)) is None
    assert floor_of(events(2.0, 2.0, 0.9, rounds=4), (0.5, 2)) is None
