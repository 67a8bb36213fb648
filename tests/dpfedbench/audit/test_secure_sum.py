"""The audit of secure aggregation: below what is proven on right code, nothing where
nothing leaks, above it on mutants.
"""

import math

import numpy as np
import pytest
import torch

from dpfedbench.audit.report import audit, bounds_of, family_of
from dpsum import mechanism, secure
from dpsum.accounting.analyses.skellam import FACTOR
from dpsum.accounting.gaussian import gaussian_epsilon
from dpsum.randomness import stream
from dpsum.secure import Lattice, SecureSum

from .conftest import experiment, make_config

RUN = {
    "method": "dp-agr-secagg",
    "clients": {"count": 2000},
    "participation": {"cohort": 40, "rounds": 50},
}
DROPPING = {"noise": {"dropped": 0.75, "dropped_at_most": 0.75}}
CANARIES = 1990  # of 2,048 coordinates
HOLDS = gaussian_epsilon(1 / FACTOR, 1e-6)


def shown(*overlays, **values):
    found = experiment(make_config(RUN, *overlays), canaries=CANARIES, **values)
    return bounds_of(
        found, family_of(found.releases), delta=1e-6, confidence=0.95, seed=0
    )


@pytest.mark.parametrize(
    "overlay",
    [{}, {"noise": {"bits": 11}}, DROPPING],
    ids=["16 bits", "11 bits", "dropping"],
)
def test_right_code_is_below_what_holds(overlay):
    """Chance of being above: below 5 % for each bound, seed fixed."""
    bounds = shown(overlay)
    assert all(bound.epsilon < HOLDS for bound in bounds)
    assert bounds[0].epsilon > HOLDS / 4


def test_nothing_leaks_where_no_canary_is_inserted():
    """In at least 95 of 100 runs; here 3 seeds, of which at most one may show
    anything.
    """
    assert (
        sum(shown(inserted=False, seed=seed)[0].epsilon > 0 for seed in (1, 2, 3)) <= 1
    )


def share_of(scale):
    """Shares whose variance is scaled by what `scale` makes of the sum's own
    numbers.
    """

    def share(self, place):
        rate = self.secure["share_variance"] * scale(self.lattice) / 2
        generator, size = self._streams("", place), self.lattice.coordinates
        return generator.poisson(rate, size) - generator.poisson(rate, size)

    return share


def not_scaled_for_clients(monkeypatch):
    """The deviation, and not the variance, is dealt out to the clients."""
    monkeypatch.setattr(
        SecureSum, "_share", share_of(lambda lattice: 1 / lattice.counted)
    )


def dropped_clients_counted(monkeypatch):
    """Shares are those of a cohort in which nobody drops out."""
    monkeypatch.setattr(
        SecureSum, "_share", share_of(lambda lattice: lattice.counted / lattice.clients)
    )


def one_round_for_all(monkeypatch):
    """Each round draws the shares of the first."""
    honest = mechanism.streams

    def again(seed, purpose, *indices):
        named = honest(seed, purpose, *indices)
        return (lambda index: named(0)) if purpose == "noise" else named

    monkeypatch.setattr(mechanism, "streams", again)


def one_share(monkeypatch):
    """The first client alone adds noise."""
    honest = SecureSum._share

    def share(self, place):
        return (
            honest(self, place)
            if place == 0
            else np.zeros(self.lattice.coordinates, np.int64)
        )

    monkeypatch.setattr(SecureSum, "_share", share)


@pytest.mark.parametrize(
    ("mutant", "overlay"),
    [
        (not_scaled_for_clients, {}),
        (dropped_clients_counted, DROPPING),
        (one_round_for_all, {}),
        (one_share, {}),
    ],
)
def test_the_audit_catches(monkeypatch, mutant, overlay):
    mutant(monkeypatch)
    assert shown(overlay)[0].epsilon > HOLDS


def test_the_audit_catches_contributions_that_are_not_clipped(monkeypatch):
    honest = secure.rounded
    monkeypatch.setattr(
        secure,
        "rounded",
        lambda values, bound, generator: honest(values, math.inf, generator),
    )
    encoded = SecureSum._encoded
    monkeypatch.setattr(
        SecureSum,
        "_encoded",
        lambda self, row, norm, place: encoded(self, row, norm / 5, place),
    )
    assert shown({"noise": {"deviations": 20.0}})[0].epsilon > HOLDS


def halves(rounding):
    """The largest norm, over its bound, of 300 contributions that lie halfway between
    whole numbers, at few bits.
    """
    lattice = Lattice(granularity=1 / 16, bits=8, coordinates=256, clients=1, counted=1)
    worst, row = 0.0, torch.zeros(1, 256)
    row[0, 3] = (
        # clipped to 0.5, which is 8 units, which a rotation makes half a unit on each
        # coordinate
        10.0
    )
    before, secure.rounded = secure.rounded, rounding
    try:
        for seed in range(300):
            total = SecureSum(
                dimension=256,
                threshold=0.5,
                noise_multiplier=1.0,
                lattice=lattice,
                dropped=0,
                streams=lambda what, *at, seed=seed: stream(seed, what, *at),
            )
            found = total._encoded(row[0].numpy().astype(float), 10.0, 0)
            worst = max(worst, float(np.linalg.norm(found)) / lattice.bound(0.5))
    finally:
        secure.rounded = before
    return worst


def test_a_bound_that_is_not_enforced_is_seen_in_what_a_client_sends():
    """No canary shows it, since its own coordinate hardly moves; the norm of what is
    sent does.
    """
    honest = secure.rounded
    assert (
        halves(lambda values, bound, generator: honest(values, math.inf, generator)) > 1
    )
    assert halves(honest) <= 1


def test_a_run_is_audited_with_as_many_coordinates_as_its_model():
    """The granularity and the sensitivity over C follow from them, and the ledgers are
    compared.
    """
    config = make_config(
        RUN,
        {
            "noise": {"bits": 11},
            "clients": {"count": 400},
            "participation": {"rounds": 10},
        },
    )
    releases = experiment(config, canaries=100, dimension=700).releases
    assert releases[0].secure["coordinates"] == 1024
    found = audit(config, releases, canaries=400)
    assert found["canaries"] == 300 and found["observer"] == "server"
    assert found["status"].startswith("not above what is proven (4.89")
