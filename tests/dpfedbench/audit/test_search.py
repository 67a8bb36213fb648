"""Audits of DP-FNAS: each half's sum as its observers see it, and mutants."""

import dataclasses

import pytest

from dpsum.accounting.account import further_observers, seen_by
from dpsum.private_sum import PrivateSum

from .conftest import (
    LOTS,
    bound_and_proven,
    experiment,
    make_config,
    noise_of_squared_threshold,
)

SEARCH = {
    **LOTS,
    "method": "dp-fnas",
    "model": {"kind": "darts-search"},
    "client_update": {"kind": "search-steps"},
    "clients": {"count": 3, "fragments": 9},
    "participation": {"kind": "poisson-lots", "lot": 80, "rounds": 20},
    "clipping": {"threshold": 0.1},
    "noise": {"multiplier": 4.0},
    "architecture_clipping": {"threshold": 0.01},
    "architecture_noise": {"multiplier": 4.0},
}
HALF = 400
WEIGHTS = 0
ARCHITECTURE = 1
OTHER_NOISES = {"server": 0, "another client": 2, "everyone": 3}
"""Noises of other parties that an observer does not know."""
SUMS = pytest.mark.parametrize("index", [WEIGHTS, ARCHITECTURE])


def run_audit(index, observer="server", **options):
    """Return the lower bound and the proven epsilon of a sum, for an observer."""
    run = make_config(SEARCH)
    sum_ = run.client_sums[index]
    options |= {"canaries": 300, "records": HALF, "added": OTHER_NOISES[observer]}
    result = experiment(run, sum_, **options)
    releases = result.releases
    assert {(event.name, event.part) for event in releases} == {(sum_.name, sum_.part)}
    if observer != "server":
        releases = [
            seen_by(event, further_observers([event])[observer], observer)
            for event in releases
        ]
    return bound_and_proven(dataclasses.replace(result, releases=releases))


@pytest.mark.parametrize("observer", OTHER_NOISES)
@SUMS
def test_audit_of_search_sums_is_below_what_is_proven(index, observer):
    """A bound above it has a chance of at most 5 % each; the seeds are fixed."""
    bound, proven = run_audit(index, observer)
    assert bound < proven


def test_observer_of_the_sum_over_parties_learns_less():
    assert run_audit(WEIGHTS)[1] > run_audit(WEIGHTS, "everyone")[1]


def noise_of_one_half(self, total, standard):
    """Add noise to the first half of the coordinates alone."""
    noise = self.noise_std * standard
    noise[len(noise) // 2 :] = 0
    return total + noise


@pytest.mark.parametrize("observer", ["server", "everyone"])
@SUMS
@pytest.mark.parametrize("mutant", [noise_of_squared_threshold, noise_of_one_half])
def test_audit_of_search_sums_catches_a_mutant(monkeypatch, mutant, index, observer):
    monkeypatch.setattr(PrivateSum, "_noised", mutant)
    bound, proven = run_audit(index, observer)
    assert bound > proven


def test_audit_of_a_search_sum_without_canaries_is_zero():
    """The sum of one half has no canaries of the other half."""
    assert run_audit(ARCHITECTURE, inserted=False)[0] == 0
