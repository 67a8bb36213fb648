"""Accounts of the sums that few-shot clients take over their own examples."""

import dataclasses

import pytest
from dp_accounting import (
    GaussianDpEvent,
    NeighboringRelation,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)
from dp_accounting.pld import PLDAccountant

from dploss.gaussian import gaussian_epsilon
from dpsum import participation
from dpsum.accounting import account as accounts
from dpsum.accounting.analyses import within_task
from dpsum.accounting.claims import ONE_RELEASE, POISSON_MOMENTS, REPTILE_STEPS
from tests.dpsum.helpers import make_release

CLAIMS = {"one-pass": POISSON_MOMENTS, "within-task": ONE_RELEASE}
REPTILE = {"within-task": REPTILE_STEPS, "within-task-poisson": REPTILE_STEPS}


def make_sampler(steps=1, batches="full"):
    return participation.within_task(
        clients=48, rounds=12, records=10, steps=steps, batches=batches
    )


def release(name, z, *, round_=0, steps=1, batches="full"):
    """Return the line of one name of releases of all clients."""
    return make_release(
        round=round_,
        name=name,
        z=z,
        unit="record",
        observer="server",
        threshold=0.2,
        sampler=make_sampler(steps, batches),
        denominator=10.0,
    )


def profiles_of(releases, claims=CLAIMS, delta=1e-5):
    return accounts.account(releases, claims=claims, delta=delta).profiles


def test_calibration_of_within_task_finds_the_noise_of_dp_agrlr():
    """(2.5, 1e-5) needs z = 1.634; k full steps need sqrt(k) times that."""
    target = {"epsilon": 2.5, "delta": 1e-5, "profile": "proven", "claims": CLAIMS}
    one_step = within_task.calibrate({"a": make_sampler()}, **target)
    assert one_step == pytest.approx(1.635)
    samplers = {"a": make_sampler(), "b": make_sampler(5)}
    five_steps = within_task.calibrate(samplers, **target)
    assert five_steps == pytest.approx(1.634 * 5**0.5, rel=1e-3)


@pytest.mark.parametrize(
    ("batches", "proven", "status"),
    [("full", 18.4, "proved"), ("disjoint", 6.18, "void")],
)
def test_account_of_five_steps_of_reptile(batches, proven, status):
    """Steps that read all examples, and steps that share them out."""
    lines = [release("task-gradient-sum", 0.585, steps=5, batches=batches)]
    profiles = profiles_of(lines, REPTILE, 1e-3)
    assert profiles["proven"].epsilon_high == pytest.approx(proven, rel=3e-3)
    assert profiles["claimed"].status == status
    assert profiles["replace_one"].epsilon_high > profiles["proven"].epsilon_high


def test_account_of_two_kinds_of_releases_is_the_worse_of_both():
    """A record is in four releases of one kind, or in one of the other."""
    support = release("support-gradient-sum", 2.0, steps=4)
    profiles = profiles_of([support, release("client-query-gradient-sum", 2.0)])
    proven, claimed = profiles["proven"], profiles["claimed"]
    expected = pytest.approx(gaussian_epsilon(1.0, 1e-5))
    assert (proven.epsilon_low, proven.epsilon_high) == (expected, expected)
    assert claimed.epsilon_high == pytest.approx(gaussian_epsilon(2.0, 1e-5))
    assert claimed.status == "void"


def test_account_of_two_fold_privacy_has_a_unit_for_each_observer():
    """Sample-level privacy, where all sums are of records, has one account."""
    sampler = {"kind": "one-pass", "clients": 48, "cohort": 4, "rounds": 12}
    served = make_release(
        name="query-gradient-sum", threshold=0.2, sampler=sampler | {"rate": 4 / 48}
    )
    lines = [release("support-gradient-sum", 2.0), served]
    two_fold = accounts.account(lines, claims=CLAIMS, delta=1e-6, own_delta=1e-5)
    (also,) = two_fold.also
    expected = (two_fold, "client", 1.0, 1e-6), (also, "record", 2.0, 1e-5)
    for part, unit, z, delta in expected:
        entry = part.profiles["proven"]
        assert (entry.unit, part.delta) == (unit, delta)
        assert entry.epsilon_high == pytest.approx(gaussian_epsilon(z, delta))
    sample_level = [
        dataclasses.replace(line, unit="record", observer="everyone") for line in lines
    ]
    account = accounts.account(sample_level, claims=CLAIMS, delta=1e-5)
    assert not account.also
    epsilon = account.profiles["proven"].epsilon_high
    assert epsilon == pytest.approx(gaussian_epsilon(1.0, 1e-5))


def test_account_of_poisson_steps_is_that_of_dp_accounting():
    """DP-FedMeta's reading of GBML, z = 0.585 at q = 1/5 in five steps: 9.4964 by
    TensorFlow Privacy's accountant. Known disjoint batches would have 6.18, five full
    steps 18.4.
    """
    sampler = make_sampler(5, "poisson")
    assert (sampler["rate"], sampler["cohort"]) == (0.2, 2.0)
    lines = [
        release("task-gradient-sum", 0.585, round_=index, steps=5, batches="poisson")
        for index in range(12)
    ]
    profiles = profiles_of(lines, REPTILE, 1e-3)
    proven, claimed = profiles["proven"], profiles["claimed"]
    assert claimed.epsilon_high == pytest.approx(9.4964, abs=5e-4)
    assert claimed.status == proven.status == "proved"
    accountant = PLDAccountant(
        NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=1e-4
    )
    step = PoissonSampledDpEvent(0.2, GaussianDpEvent(0.585))
    accountant.compose(SelfComposedDpEvent(step, 5))
    expected = accountant.get_epsilon(1e-3)
    assert expected == pytest.approx(6.4547, abs=1e-3)
    assert proven.epsilon_low <= expected + 1e-9
    assert proven.epsilon_high == pytest.approx(expected, abs=1e-3)
    assert proven.epsilon_high - proven.epsilon_low < 1e-3


def test_calibration_of_poisson_steps_by_claim_and_by_proof():
    """The claim 9.5 needs z = 0.585; what is proven needs less noise."""
    sampler = make_sampler(5, "poisson")
    target = {"epsilon": 9.5, "delta": 1e-3, "claims": REPTILE}
    claimed = within_task.calibrate({"a": sampler}, **target, profile="claimed")
    proven = within_task.calibrate({"a": sampler}, **target, profile="proven")
    assert claimed == pytest.approx(0.5849, abs=2e-4)
    assert proven < claimed
    assert within_task.epsilon_of(sampler, proven, 1e-3) <= 9.5
