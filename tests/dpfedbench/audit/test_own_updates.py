"""The audit of clients that noise their own updates: the mechanism, nulls and
mutants.
"""

import math
from typing import Any

import numpy as np
import pytest

from dpfedbench.audit.canaries import CanaryExperiment
from dpfedbench.audit.own_sums import one_run_of_examples, one_run_of_updates
from dpfedbench.audit.report import audit, bounds_of
from dpfedbench.papers import read_run
from dpsum.accounting.analyses import find
from dpsum.accounting.gaussian import gaussian_epsilon
from dpsum.audit.ranks import Family
from dpsum.private_sum import PrivateSum
from tests.dpfedbench.federation.test_text import OWN, RUN

HOLDS = gaussian_epsilon(0.51, 1e-3)


def run() -> Any:
    return read_run(RUN | {"method": "local-reptile"} | OWN["local-reptile"])


def bound(found: CanaryExperiment) -> float:
    # As accounted for: the ledger of a mutant may say its own.
    family = Family(
        find("gaussian", "own-update"), ((0.51, 1),), found.releases[0].sampler
    )
    return bounds_of(found, family, delta=1e-3, confidence=0.95, seed=0)[0].epsilon


def test_the_bound_is_below_what_holds_and_near_it() -> None:
    found = one_run_of_updates(run(), seed=3, canaries=2000)
    assert 0.85 * HOLDS < bound(found) <= HOLDS
    # Half a threshold away from either update, in deviations of z.
    x = found.scores * 0.51**2 + 0.5
    assert abs(x[found.coins].mean() - 1) < 0.1 and abs(x[~found.coins].mean()) < 0.1
    assert abs(np.std(x[found.coins]) - 0.51) < 0.05


def test_the_null_finds_nothing() -> None:
    assert bound(one_run_of_updates(run(), seed=4, canaries=2000, inserted=False)) == 0


def test_noise_of_the_wrong_sensitivity_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        PrivateSum,
        "noise_std",
        property(lambda self: self.noise_multiplier * self.threshold),
    )
    assert bound(one_run_of_updates(run(), seed=5, canaries=2000)) > HOLDS


def test_an_update_that_is_not_clipped_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(PrivateSum, "_limit", property(lambda self: 4 * self.threshold))
    assert bound(one_run_of_updates(run(), seed=6, canaries=2000)) > HOLDS


def test_a_run_with_a_private_vocabulary_is_audited_and_nothing_finite_holds():
    """What it reads of private data is in the audit's ledger as in the run's, so that
    the two are one mechanism.
    """
    task = RUN["task"] | {"text": RUN["task"]["text"] | {"vocabulary": "private"}}
    private = read_run(
        RUN | {"method": "dp-reptile"} | OWN["dp-reptile"] | {"task": task}
    )
    ran = one_run_of_examples(private, seed=3, canaries=16).releases
    assert ran and all(
        line.data_dependent_threshold and "vocabulary" in line.reason for line in ran
    )
    assert audit(private, ran, canaries=16)["epsilon_proven"] == math.inf
    local = read_run(
        RUN | {"method": "local-reptile"} | OWN["local-reptile"] | {"task": task}
    )
    assert all(
        line.data_dependent_threshold
        for line in one_run_of_updates(local, seed=3, canaries=16).releases
    )
