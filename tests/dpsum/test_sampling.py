"""`Sampling` in a ledger, and the interface of accountants."""

import dataclasses
import json

import numpy as np
import pytest
from scipy.stats import norm

import dpsum
from dpsum.accounting.accountant import Accountant, Events
from dpsum.accounting.analyses import find, pairs
from dpsum.ledger import parse
from dpwatch.accountants.fixed_draws import FixedDrawsAccountant
from tests.dpsum.helpers import make_release

SAMPLERS = [
    (
        dpsum.OnePass(units=8, cohort=2, rounds=3, seed=0),
        '{"kind": "one-pass", "clients": 8, "cohort": 2, "rounds": 3, "rate": 0.25}',
    ),
    (
        dpsum.RecordLots(clients=2, lot=3, rounds=4, steps=2, records=9, seed=0),
        '{"kind": "poisson-lots", "clients": 2, "records": 9, "cohort": 3, "rounds": 8,'
        ' "rate": 0.3333333333333333}',
    ),
    (
        dpsum.ShuffledEpochs(units=8, cohort=2, rounds=3, seed=0),
        '{"kind": "shuffled-epochs", "clients": 8, "cohort": 2, "rounds": 3, "rate":'
        ' 0.25, "epoch": 4, "batches": "known"}',
    ),
    (
        dpsum.MinSeparation(units=8, cohort=2, rounds=6, seed=0),
        '{"kind": "min-separation", "clients": 8, "cohort": 2, "rounds": 6, "rate":'
        ' 0.25, "separation": 4, "participations": 2}',
    ),
]


@pytest.mark.parametrize(("participation", "text"), SAMPLERS)
def test_sampling_has_a_fixed_text_in_the_ledger(participation, text):
    """The texts are written by hand; the line is read back as the same sampling."""
    sampling = participation.describe()
    assert json.dumps(dict(sampling)) == text
    line = make_release(sampler=sampling).line("")
    assert f'"sampler": {text}, "denominator"' in line
    (release,) = parse(line, "ledger.jsonl")
    assert release.sampler == sampling
    assert hash(release.sampler) == hash(sampling)


def test_sampling_keeps_a_key_that_the_library_does_not_know():
    line = make_release().line("").replace('"rate": 0.25}', '"rate": 0.25, "by": "me"}')
    (release,) = parse(line, "ledger.jsonl")
    assert release.sampler["by"] == "me"
    assert release.line("") == line
    assert release.sampler != make_release().sampler


def test_sampling_of_another_encoder_is_another_and_in_no_ledger():
    sampling = SAMPLERS[0][0].describe()
    small, large = (
        dataclasses.replace(sampling, encoder=bytes(size)) for size in (8, 16)
    )
    assert "encoder" not in dict(small)
    assert small != large
    assert len({small, large, sampling}) == 3


def test_accountant_is_found_by_its_pair():
    for pair in pairs():
        accountant = find(*pair)
        assert isinstance(accountant, Accountant)
        assert accountant.pair == pair
        assert accountant.explanation


def test_accountant_without_renyi_divergences_names_the_sampler():
    sampler = {"kind": "fixed-draws", "clients": 8, "cohort": 2, "rounds": 4}
    events = Events.planned(((1.0, 4),), sampler | {"rate": 0.25})
    message = "no Renyi divergences for the sampler 'fixed-draws'"
    with pytest.raises(dpsum.DpsumError, match=message):
        FixedDrawsAccountant().renyi(events, (2, 3))


def test_accountant_of_one_gaussian_derives_bracket_curve_and_renyi():
    """delta(eps) = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu), with mu = 1/2."""

    class OneGaussian(Accountant):
        pair = "mine", "one-pass"

        def gaussian(self, events):
            return 2.0

    def delta_at(epsilon):
        mu = 0.5
        second = np.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
        return norm.cdf(mu / 2 - epsilon / mu) - second

    events = Events.planned(((1.0, 4),), {"kind": "one-pass"})
    bracket = OneGaussian().bracket(events, delta_at(1.0))
    assert bracket == pytest.approx((1.0, 1.0), rel=1e-9)
    curve = OneGaussian().curve(events)
    assert np.array_equal(curve.present, curve.absent)
    expected = delta_at(curve.epsilons[:80])
    assert curve.present[:80] == pytest.approx(expected, rel=1e-9)
    divergences = OneGaussian().renyi(events, (2, 4))
    assert divergences == pytest.approx([2 / 8, 4 / 8])
