"""The audit of clients that noise their own updates: correct code, nulls, mutants."""

import math

import numpy as np
import pytest

from dpfedbench.audit.own_sums import one_run_of_examples, one_run_of_updates
from dpfedbench.audit.report import audit
from dpfedbench.papers import read_run
from dploss.gaussian import gaussian_epsilon
from dpsum.accounting.analyses import find
from dpsum.audit.ranks import Family
from dpsum.private_sum import PrivateSum
from tests.dpfedbench.training.test_text import OWN, RUN

from .conftest import headline

PROVEN = gaussian_epsilon(0.51, 1e-3)


def text_run(method, **changes):
    return read_run(RUN | {"method": method} | OWN[method] | changes)


LOCAL = text_run("local-reptile")


def bound(result):
    """Return the lower bound by the account's family: a mutant's ledger may differ."""
    sampler = result.releases[0].sampler
    family = Family(find("gaussian", "local"), ((0.51, 1),), sampler)
    return headline(result, family, delta=1e-3)


def test_audit_of_own_updates_is_below_what_is_proven_and_near_it():
    """The scores are half a threshold from either update, in deviations of z."""
    result = one_run_of_updates(LOCAL, seed=3, canaries=2000)
    assert 0.85 * PROVEN < bound(result) <= PROVEN
    x = result.scores * 0.51**2 + 0.5
    present = x[result.coins]
    absent = x[~result.coins]
    assert [present.mean(), absent.mean()] == pytest.approx([1, 0], abs=0.1)
    assert np.std(present) == pytest.approx(0.51, abs=0.05)
    null = one_run_of_updates(LOCAL, seed=4, canaries=2000, inserted=False)
    assert bound(null) == 0


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("noise_std", lambda total: total.noise_multiplier * total.threshold),
        ("_limit", lambda total: 4 * total.threshold),
    ],
    ids=["noise of half the sensitivity", "no clipping"],
)
def test_audit_of_own_updates_catches_a_mutant(monkeypatch, member, value):
    monkeypatch.setattr(PrivateSum, member, property(value))
    assert bound(one_run_of_updates(LOCAL, seed=5, canaries=2000)) > PROVEN


def test_audit_of_a_private_vocabulary_proves_nothing_finite():
    """The audit's ledger has the vocabulary, as the run's has."""
    task = RUN["task"] | {"text": RUN["task"]["text"] | {"vocabulary": "private"}}
    config = text_run("dp-reptile", task=task)
    releases = one_run_of_examples(config, seed=3, canaries=16).releases
    assert audit(config, releases, canaries=16)["epsilon_proven"] == math.inf
    config = text_run("local-reptile", task=task)
    local = one_run_of_updates(config, seed=3, canaries=16).releases
    for line in (*releases, *local):
        assert line.data_dependent_threshold
        assert "vocabulary" in line.reason
