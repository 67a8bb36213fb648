"""Samplers: typed, and the same bytes in a ledger as the mappings that they were."""

import dataclasses
import hashlib
import json
import math

import numpy as np
import pytest
from scipy.stats import norm

import dpsum
from dpsum.accounting.accountant import Accountant, Events
from dpsum.accounting.analyses import find, pairs
from dpsum.ledger import Release, parse
from dpwatch.accountants.fixed_draws import FixedDrawsAccountant
from tests.dpsum.test_ledger import EVENT

WRITTEN = {
    "one-pass": (
        '{"kind": "one-pass", "clients": 8, "cohort": 2, "rounds": 3, "rate": 0.25}'
    ),
    "poisson-lots": (
        '{"kind": "poisson-lots", "clients": 2, "records": 9, "cohort": 3, "rounds": 8,'
        ' "rate": 0.3333333333333333}'
    ),
    "shuffled-epochs": (
        '{"kind": "shuffled-epochs", "clients": 8, "cohort": 2, "rounds": 3, "rate":'
        ' 0.25, "epoch": 4, "batches": "known"}'
    ),
    "min-separation": (
        '{"kind": "min-separation", "clients": 8, "cohort": 2, "rounds": 6, "rate":'
        ' 0.25, "separation": 4, "participations": 2}'
    ),
}
WAYS = {
    "one-pass": dpsum.OnePass(units=8, cohort=2, rounds=3, seed=0),
    "poisson-lots": dpsum.PoissonLots(
        clients=2, lot=3, rounds=4, steps=2, records=9, seed=0
    ),
    "shuffled-epochs": dpsum.ShuffledEpochs(units=8, cohort=2, rounds=3, seed=0),
    "min-separation": dpsum.RepeatedPasses(units=8, cohort=2, rounds=6, seed=0),
}


@pytest.mark.parametrize("kind", WAYS)
def test_a_way_says_in_the_ledger_what_it_always_said(kind: str) -> None:
    """Texts written by hand; the line is read back as the same sampling."""
    said = WAYS[kind].describe()
    assert json.dumps(dict(said)) == WRITTEN[kind]
    line = dataclasses.replace(EVENT, sampler=said).line("")
    assert f'"sampler": {WRITTEN[kind]}, "denominator"' in line
    (read,) = parse(line, "ledger.jsonl")
    assert read.sampler == said == json.loads(WRITTEN[kind]) and hash(
        read.sampler
    ) == hash(said)


def test_a_key_that_the_library_does_not_know_is_kept() -> None:
    """A line of an own way of drawing, as a former version wrote it: bytes and digest
    are the same afterwards.
    """
    text = EVENT.line("").replace('"rate": 0.25}', '"rate": 0.25, "drawn_by": "Mine"}')
    (read,) = parse(text, "ledger.jsonl")
    assert read.sampler["drawn_by"] == "Mine" and read.sampler.others == {
        "drawn_by": "Mine"
    }
    assert (
        hashlib.sha256(read.line("").encode()).digest()
        == hashlib.sha256(text.encode()).digest()
    )
    assert read.sampler != EVENT.sampler and read.sampler.get("epoch") is None
    with pytest.raises(KeyError, match="epoch"):
        read.sampler["epoch"]


@pytest.mark.parametrize("sampler", [{"clients": 8}, {"kind": 3}, "one-pass"])
def test_no_sampler_is_refused(sampler: object) -> None:
    with pytest.raises(ValueError, match="sampler"):
        Release(**{**vars(EVENT), "sampler": sampler})


def test_an_encoders_overlap_is_in_no_ledger_and_tells_samplings_apart() -> None:
    """Two plans of other encoders are not one entry of the calibration's memory."""
    said = WAYS["one-pass"].describe()
    one, other = (dataclasses.replace(said, encoder=bytes(share)) for share in (8, 16))
    assert "encoder" not in dict(one) and one != other and len({one, other, said}) == 3


def test_every_accountant_has_the_small_interface() -> None:
    """Each is found by its pair, and what it does not have says so in one line."""
    for pair in pairs():
        accountant = find(*pair)
        assert (
            isinstance(accountant, Accountant)
            and accountant.pair == pair
            and accountant.explanation
        )
    events = Events.planned(
        ((1.0, 4),),
        {"kind": "fixed-draws", "clients": 8, "cohort": 2, "rounds": 4, "rate": 0.25},
    )
    with pytest.raises(
        dpsum.DpsumError, match="no Renyi divergences of the sampler 'fixed-draws'"
    ) as raised:
        FixedDrawsAccountant().renyi(events, (2, 3))
    assert "\n" not in str(raised.value)


def test_an_accountant_of_one_gaussian_needs_no_more() -> None:
    """Bracket and curve follow: delta(eps) = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 -
    eps/mu), of mu = 1/2.
    """

    class Mine(Accountant):
        pair = "mine", "one-pass"

        def gaussian(self, events: Events) -> float:
            return 2.0

    events = Events.planned(((1.0, 4),), {"kind": "one-pass"})
    mu = 0.5
    delta = norm.cdf(mu / 2 - 1 / mu) - math.e * norm.cdf(-mu / 2 - 1 / mu)
    assert Mine().bracket(events, delta) == pytest.approx((1.0, 1.0), rel=1e-9)
    curve = Mine().curve(events)
    assert np.array_equal(curve.present, curve.absent)
    exact = norm.cdf(mu / 2 - curve.epsilons / mu) - np.exp(curve.epsilons) * norm.cdf(
        -mu / 2 - curve.epsilons / mu
    )
    assert curve.present[:80] == pytest.approx(exact[:80], rel=1e-9)
    assert Mine().renyi(events, (2, 4)) == pytest.approx([2 / 8, 4 / 8])
