"""`Sampling` in a ledger."""

import dataclasses
import json

import pytest

import dpsum
from dpsum.ledger import parse
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


def test_sampling_of_another_encoder_is_another_and_in_no_ledger():
    sampling = SAMPLERS[0][0].describe()
    small, large = (
        dataclasses.replace(sampling, encoder=bytes(size)) for size in (8, 16)
    )
    assert "encoder" not in dict(small)
    assert small != large
    assert len({small, large, sampling}) == 3
