"""Accounts of the sums that few-shot clients take over their own examples."""

import dataclasses
import math
from functools import partial

import pytest

from dploss.gaussian import gaussian_epsilon
from dpsum import participation
from dpsum.accounting.account import account
from dpsum.accounting.analyses import within_task
from dpsum.accounting.claims import ONE_RELEASE, POISSON_MOMENTS, REPTILE_STEPS
from dpsum.accounting.context import AccountContext
from tests.dpsum.accounting.helpers import (
    dp_accounting_epsilon,
    ends,
    gaussian,
    profiles_of,
)
from tests.dpsum.helpers import make_release

CLAIMS = {"one-pass": POISSON_MOMENTS, "within-task": ONE_RELEASE}
REPTILE = {"within-task": REPTILE_STEPS, "within-task-poisson": REPTILE_STEPS}

make_sampler = partial(
    participation.within_task,
    **{"clients": 48, "rounds": 12, "records": 10, "steps": 1, "batches": "full"},
)


def release(name, z, *, round_=0, steps=1, batches="full", part=None):
    """Return the line of one name of releases of all clients."""
    return make_release(
        round=round_,
        name=name,
        z=z,
        unit="record",
        observer="server",
        threshold=0.2,
        sampler=make_sampler(steps=steps, batches=batches),
        denominator=10.0,
        part=part,
    )


def test_calibration_of_within_task_finds_the_noise_of_dp_agrlr():
    """(2.5, 1e-5) needs z = 1.634; k full steps need sqrt(k) times that."""
    target = {"epsilon": 2.5, "delta": 1e-5, "profile": "proven", "claims": CLAIMS}
    one_step = within_task.calibrate({"a": make_sampler()}, **target)
    assert one_step == pytest.approx(1.635)
    samplers = {"a": make_sampler(), "b": make_sampler(steps=5)}
    five_steps = within_task.calibrate(samplers, **target)
    assert five_steps == pytest.approx(1.634 * 5**0.5, rel=1e-3)


@pytest.mark.parametrize(
    ("batches", "proven", "status"),
    [("full", 18.4, "proved"), ("disjoint", 6.18, "void")],
)
def test_account_of_five_steps_of_reptile(batches, proven, status):
    """Steps that read all examples, and steps that share them out."""
    lines = [release("task-gradient-sum", 0.585, steps=5, batches=batches)]
    profiles = profiles_of(lines, 1e-3, REPTILE)
    assert profiles["proven"].epsilon_high == pytest.approx(proven, rel=3e-3)
    assert profiles["claimed"].status == status
    assert profiles["replace_one"].epsilon_high > profiles["proven"].epsilon_high


def test_account_of_two_kinds_of_releases_is_the_worse_of_both():
    """A record is in four releases of one kind, or in one of the other."""
    support = release("support-gradient-sum", 2.0, steps=4, part="support set")
    query = release("client-query-gradient-sum", 2.0, part="query set")
    lines = [support, query]
    profiles = profiles_of(lines, 1e-5, CLAIMS)
    assert ends(profiles["proven"]) == (gaussian(1.0, 1e-5), gaussian(1.0, 1e-5))
    assert profiles["claimed"].epsilon_high == gaussian(2.0, 1e-5)
    assert profiles["claimed"].status == "void"


def test_account_of_two_fold_privacy_has_a_unit_for_each_observer():
    """Sample-level privacy, where all sums are of records, has one account."""
    cohorts = {"clients": 48, "cohort": 4, "rounds": 12, "rate": 4 / 48}
    sampler = {"kind": "one-pass", **cohorts}
    served = make_release(name="query-gradient-sum", threshold=0.2, sampler=sampler)
    lines = [release("support-gradient-sum", 2.0), served]
    two_fold = account(lines, claims=CLAIMS, delta=1e-6, own_delta=1e-5)
    (also,) = two_fold.also
    expected = (two_fold, "client", 1.0, 1e-6), (also, "record", 2.0, 1e-5)
    for part, unit, z, delta in expected:
        entry = part.profiles["proven"]
        assert (entry.unit, part.delta) == (unit, delta)
        assert entry.epsilon_high == gaussian(z, delta)
    sample_level = [
        dataclasses.replace(line, unit="record", observer="everyone", part=part)
        for line, part in zip(lines, ("support set", "query set"), strict=True)
    ]
    of_records = account(sample_level, claims=CLAIMS, delta=1e-5)
    assert not of_records.also
    assert of_records.profiles["proven"].epsilon_high == gaussian(1.0, 1e-5)


def test_account_of_poisson_steps_is_that_of_dp_accounting():
    """DP-FedMeta's reading of GBML, z = 0.585 at q = 1/5 in five steps: 9.4964 by
    TensorFlow Privacy's accountant. Known disjoint batches would have 6.18, five full
    steps 18.4.
    """
    sampler = make_sampler(steps=5, batches="poisson")
    assert (sampler["rate"], sampler["cohort"]) == (0.2, 2.0)
    lines = [
        release("task-gradient-sum", 0.585, round_=index, steps=5, batches="poisson")
        for index in range(12)
    ]
    profiles = profiles_of(lines, 1e-3, REPTILE)
    proven = profiles["proven"]
    claimed = profiles["claimed"]
    assert claimed.epsilon_high == pytest.approx(9.4964, abs=5e-4)
    assert claimed.status == proven.status == "proved"
    expected = dp_accounting_epsilon([(0.585, 5, 0.2)], 1e-3)
    assert expected == pytest.approx(6.4547, abs=1e-3)
    assert proven.epsilon_low <= expected + 1e-9
    assert proven.epsilon_high == pytest.approx(expected, abs=1e-3)
    assert proven.epsilon_high - proven.epsilon_low < 1e-3


def test_calibration_of_poisson_steps_by_claim_and_by_proof():
    """The claim 9.5 needs z = 0.585; what is proven needs less noise."""
    sampler = make_sampler(steps=5, batches="poisson")
    target = {"epsilon": 9.5, "delta": 1e-3, "claims": REPTILE}
    claimed = within_task.calibrate({"a": sampler}, **target, profile="claimed")
    proven = within_task.calibrate({"a": sampler}, **target, profile="proven")
    assert claimed == pytest.approx(0.5849, abs=2e-4)
    assert proven < claimed
    assert within_task.epsilon_of(sampler, proven, 1e-3) <= 9.5


# Several records of one client at once


def account_of_groups(*groups, **changes):
    sampler = make_sampler(clients=10, rounds=2, records=80)
    line = make_release(z=0.51, unit="record", sampler=sampler, **changes)
    context = AccountContext(groups=groups)
    return account([line], delta=1e-3, claims=REPTILE, context=context)


def test_account_of_a_group_is_one_gaussian_of_a_larger_step():
    """(2 eps, 2 e^eps delta) of the claimed 9.2209 would have a delta above 20."""
    entries = account_of_groups(2, 3)
    for size in (2, 3):
        expected = gaussian_epsilon(0.51 / size, 1e-3)
        assert entries.groups[str(size)].epsilon_high == expected
    assert 2 * math.exp(entries.profiles["claimed"].epsilon_high) * 1e-3 > 20
    assert "which says nothing" in entries.groups["2"].explanation


def test_account_of_a_group_is_infinite_for_a_release_without_an_event():
    entry = account_of_groups(2, data_dependent_threshold=True, reason="the vocabulary")
    assert entry.groups["2"].epsilon_high == math.inf
    assert entry.groups["2"].status == "void"
