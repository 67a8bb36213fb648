"""Accounts of the sums that few-shot clients take over their own examples."""

import dataclasses

import numpy as np
import pytest

from dpfedbench.audit.own_sums import one_run_of_examples
from dpfedbench.audit.report import bounds_of, own_family
from dpfedbench.errors import BenchError
from dpsum import participation
from dpsum.accounting import account as accounts
from dpsum.accounting.analyses import own_records
from dpsum.accounting.claims import ONE_RELEASE, POISSON_MOMENTS, REPTILE_STEPS
from dpsum.accounting.gaussian import gaussian_epsilon
from dpsum.group_clipping import GroupedSum
from dpsum.ledger import Release
from tests.dpfedbench.federation.conftest import make_config

CLAIMS = {"one-pass": POISSON_MOMENTS, "own-records": ONE_RELEASE}
REPTILE = {"own-records": REPTILE_STEPS}
PLAN = {"clients": 48, "rounds": 12, "records": 10}


def account(releases, claims=CLAIMS, **given):
    return accounts.account(releases, claims=claims, **given).to_json()


def release(name, z, *, round_=0, steps=1, batches="full"):
    return Release(
        round=round_,
        name=name,
        unit="record",
        adjacency="zero-out",
        observer="server",
        noise_multiplier=z,
        threshold=0.2,
        sensitivity=0.2,
        noise_std=z * 0.2,
        dimension=3,
        sampler=participation.own_records(**PLAN, steps=steps, batches=batches),
        denominator=10.0,
        noise_stream="0",
        data_dependent_threshold=False,
        reason="",
        mechanism="gaussian",
        counted_by_paper=True,
    )


def test_the_noise_of_dp_agrlr():
    """PRIVACY: (2.5, 1e-5) needs z_0 = 1.634; by hand the release of k full steps needs
    sqrt(k) times that.
    """
    one, five = (
        participation.own_records(**PLAN, steps=steps, batches="full")
        for steps in (1, 5)
    )
    given = {"epsilon": 2.5, "delta": 1e-5, "profile": "holds", "claims": CLAIMS}
    assert own_records.calibrate({"a": one}, **given) == pytest.approx(1.635)
    assert own_records.calibrate({"a": one, "b": five}, **given) == pytest.approx(
        1.634 * 5**0.5, rel=1e-3
    )


def test_five_full_steps_of_reptile_and_five_disjoint_ones():
    """The figures of five steps that read all examples, and of five that share them
    out: 18.4 and 6.18.
    """
    for batches, wanted in (("full", 18.4), ("disjoint", 6.18)):
        found = account(
            [release("task-gradient-sum", 0.585, steps=5, batches=batches)],
            REPTILE,
            delta=1e-3,
        )
        assert found["profiles"]["holds"]["epsilon_high"] == pytest.approx(
            wanted, rel=3e-3
        )
        assert found["profiles"]["as_claimed"]["status"] == (
            "void" if batches == "disjoint" else "proved"
        )
        assert (
            found["profiles"]["replace_one"]["epsilon_high"]
            > found["profiles"]["holds"]["epsilon_high"]
        )


def test_a_record_is_in_one_of_two_kinds_of_releases():
    found = account(
        [
            release("support-gradient-sum", 2.0, steps=4),
            release("client-query-gradient-sum", 2.0),
        ],
        delta=1e-5,
    )
    holds = found["profiles"]["holds"]
    assert (
        holds["epsilon_high"]
        == holds["epsilon_low"]
        == pytest.approx(gaussian_epsilon(1.0, 1e-5))
    )
    assert found["profiles"]["as_claimed"]["epsilon_high"] == pytest.approx(
        gaussian_epsilon(2.0, 1e-5)
    )
    assert found["profiles"]["as_claimed"]["status"] == "void"


def test_a_paper_that_claims_nothing_of_own_sums_has_no_claim_and_no_budget_by_it():
    found = account([release("support-gradient-sum", 2.0)], {}, delta=1e-5)
    assert "as_claimed" not in found["profiles"] and found["reasons"]["as_claimed"]
    given = {"epsilon": 2.5, "delta": 1e-5, "profile": "as_claimed"}
    one = {"a": participation.own_records(**PLAN, steps=1, batches="full")}
    with pytest.raises(BenchError, match="claims no epsilon"):
        own_records.calibrate(one, **given, claims={})
    # Where the paper claims something of another sampler, what is proven is claimed.
    other = account(
        [release("support-gradient-sum", 2.0, steps=4)],
        {"one-pass": POISSON_MOMENTS},
        delta=1e-5,
    )
    assert other["profiles"]["as_claimed"] == other["profiles"]["holds"]


def test_noise_that_does_not_fit_its_multiplier_is_refused():
    odd = dataclasses.replace(release("support-gradient-sum", 2.0), noise_std=0.1)
    with pytest.raises(BenchError, match="not z x sensitivity"):
        account([odd], delta=1e-5)


def test_two_fold_privacy_has_two_accounts_and_sample_level_one():
    sampler = {
        "kind": "one-pass",
        "clients": 48,
        "cohort": 4,
        "rounds": 12,
        "rate": 4 / 48,
    }
    own = release("support-gradient-sum", 2.0)
    served = dataclasses.replace(
        own,
        name="query-gradient-sum",
        unit="client",
        observer="everyone",
        noise_multiplier=1.0,
        noise_std=0.2,
        sampler=sampler,
    )
    both = account([own, served], delta=1e-6, own_delta=1e-5)
    assert both["unit"] == "client" and both["delta"] == 1e-6
    assert both["profiles"]["holds"]["epsilon_high"] == pytest.approx(
        gaussian_epsilon(1.0, 1e-6)
    )
    (also,) = both["also"]
    assert (also["unit"], also["delta"]) == ("record", 1e-5)
    assert also["profiles"]["holds"]["epsilon_high"] == pytest.approx(
        gaussian_epsilon(2.0, 1e-5)
    )
    alike = [
        dataclasses.replace(own, observer="everyone"),
        dataclasses.replace(served, unit="record"),
    ]
    one = account(alike, delta=1e-5)
    assert "also" not in one
    assert one["profiles"]["holds"]["epsilon_high"] == pytest.approx(
        gaussian_epsilon(1.0, 1e-5)
    )


@pytest.mark.parametrize("method", ["dp-agrlr", "dp-maml-sample", "dp-reptile"])
def test_the_audit_of_own_releases_is_zero_on_a_null_and_not_above_what_holds(method):
    """Bounds of 95 % for three mechanisms at a fixed seed: a false alarm of either kind
    is one in seven at most.
    """
    config = make_config({"method": method}, {"within_task": {"multiplier": 1.0}})
    found = one_run_of_examples(config, seed=5, canaries=1500)
    samplers = [line.sampler for line in found.releases]
    holds = max(
        gaussian_epsilon(1 / own_records.releases_with(s) ** 0.5, 1e-5)
        for s in samplers
    )
    bound = bounds_of(
        found, own_family(found.releases, 1e-5), delta=1e-5, confidence=0.95, seed=5
    )[0]
    assert 0.3 * holds < bound.epsilon <= holds
    null = one_run_of_examples(config, seed=5, canaries=1500, inserted=False)
    assert (
        bounds_of(
            null, own_family(null.releases, 1e-5), delta=1e-5, confidence=0.95, seed=5
        )[0].epsilon
        == 0
    )


def test_half_the_noise_is_above_what_the_ledger_holds(monkeypatch):
    """A mutant: noise of half the stated deviation, which the bound at 95 % must
    expose.
    """
    from dpsum.private_sum import PrivateSum

    config = make_config({"method": "dp-agrlr"}, {"within_task": {"multiplier": 2.0}})
    own = PrivateSum._noised
    monkeypatch.setattr(
        PrivateSum,
        "_noised",
        lambda self, total, rng: total + (own(self, total, rng) - total) / 2,
    )
    found = one_run_of_examples(config, seed=5, canaries=4000)
    bound = bounds_of(
        found, own_family(found.releases, 1e-5), delta=1e-5, confidence=0.95, seed=5
    )[0]
    assert bound.epsilon > gaussian_epsilon(2.0, 1e-5)


BY_TENSOR = {
    "multiplier": 4.0,
    "epsilon": None,
    "clipping_groups": "tensors",
    "noise_by_group": "per-group",
}


@pytest.mark.parametrize("method", ["dp-agrlr", "dp-reptile"])
def test_the_audit_by_tensor_refutes_noise_of_each_tensor_accounted_as_all(method):
    """16 tensors with noise 4 C in each protect like z = 1. The bound of 95 % is above
    the epsilon of z = 4, and not above that of z = 1.
    """
    config = make_config({"method": method}, {"within_task": BY_TENSOR})
    found = one_run_of_examples(config, seed=5, canaries=1000, groups=16)
    for line in found.releases:
        assert line.noise_multiplier == pytest.approx(1.0)
        assert line.counted_multiplier == pytest.approx(4.0)
    bound = bounds_of(
        found, own_family(found.releases, 1e-5), delta=1e-5, confidence=0.95, seed=5
    )[0]
    holds = own_records.epsilon_of(found.releases[0].sampler, 1.0, 1e-5)
    claimed = own_records.epsilon_of(found.releases[0].sampler, 4.0, 1e-5)
    assert claimed < bound.epsilon <= holds


def test_the_audit_by_tensor_sees_a_tensor_without_noise(monkeypatch):
    """The last of four groups has no noise: the bound exposes it."""
    own = GroupedSum.deviations.fget

    def deviations(total):
        stds = own(total).copy()
        stds[total.groups.slices[-1]] = 0.0
        return stds

    monkeypatch.setattr(GroupedSum, "deviations", property(deviations))
    config = make_config({"method": "dp-agrlr"}, {"within_task": BY_TENSOR})
    found = one_run_of_examples(config, seed=5, canaries=1000, groups=4)
    bound = bounds_of(
        found, own_family(found.releases, 1e-5), delta=1e-5, confidence=0.95, seed=5
    )[0]
    assert bound.epsilon > gaussian_epsilon(4.0 / 4**0.5, 1e-5)


@pytest.mark.parametrize("batches, steps", [("full", 1), ("poisson", 5)])
def test_the_claim_counts_the_noise_of_each_group_and_is_void(batches, steps):
    """Groups of thresholds 0.3 and 0.4 with noise of 2 C in each: z / sqrt(2) proven."""
    line = dataclasses.replace(
        release("a", 2.0 / 2**0.5, steps=steps, batches=batches),
        threshold=0.5,
        sensitivity=0.5,
        noise_std=0.5 * 2.0 / 2**0.5,
        claimed_multiplier=2.0,
        groups={
            "boundaries": [0, 1, 3],
            "thresholds": [0.3, 0.4],
            "noise_stds": [0.6, 0.8],
        },
    )
    claims = {line.sampler["kind"]: ONE_RELEASE}
    profiles = account([line], claims, delta=1e-5)["profiles"]
    assert profiles["as_claimed"]["epsilon_high"] == pytest.approx(
        gaussian_epsilon(2.0, 1e-5)
    )
    assert profiles["as_claimed"]["status"] == "void"
    assert "together have less noise" in profiles["as_claimed"]["explanation"] or (
        steps > 1
    )
    flat = release("a", 2.0 / 2**0.5, steps=steps, batches=batches)
    alike = account([flat], claims, delta=1e-5)["profiles"]["holds"]
    assert profiles["holds"]["epsilon_high"] == alike["epsilon_high"]


POISSON = {"clients": 48, "rounds": 12, "records": 10, "steps": 5, "batches": "poisson"}


def test_five_steps_of_a_fifth_of_the_records_are_dp_fedmetas_reading_of_gbml():
    """z = 0.585 at q = 1/5: 9.4964 by TensorFlow Privacy's accountant; what is proven by
    dp-accounting's.
    """
    from dp_accounting import (
        GaussianDpEvent,
        NeighboringRelation,
        PoissonSampledDpEvent,
        SelfComposedDpEvent,
    )
    from dp_accounting.pld import PLDAccountant

    sampler = participation.own_records(**POISSON)
    assert (sampler["rate"], sampler["cohort"]) == (0.2, 2.0)
    claims = {"own-records-poisson": REPTILE_STEPS}
    rounds = [
        dataclasses.replace(
            release("task-gradient-sum", 0.585, round_=index), sampler=sampler
        )
        for index in range(12)
    ]
    found = account(rounds, claims, delta=1e-3)["profiles"]
    assert found["as_claimed"]["epsilon_high"] == pytest.approx(9.4964, abs=5e-4)
    assert found["as_claimed"]["status"] == found["holds"]["status"] == "proved"
    accountant = PLDAccountant(
        NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=1e-4
    )
    accountant.compose(
        SelfComposedDpEvent(PoissonSampledDpEvent(0.2, GaussianDpEvent(0.585)), 5)
    )
    wanted = accountant.get_epsilon(1e-3)
    assert wanted == pytest.approx(6.4547, abs=1e-3)
    low, high = found["holds"]["epsilon_low"], found["holds"]["epsilon_high"]
    assert (
        low <= wanted + 1e-9
        and high == pytest.approx(wanted, abs=1e-3)
        and high - low < 1e-3
    )
    # An example that the observer knows to be in one of five disjoint batches would
    # have 6.18, in all of them 18.4.
    assert 6.18 < high < 18.4


def test_the_noise_of_poisson_steps_is_found_from_epsilon():
    """The claim 9.5 needs z = 0.585, which has 9.4964; what is proven needs less noise for
    the same number.
    """
    sampler = {"a": participation.own_records(**POISSON)}
    given = {
        "epsilon": 9.5,
        "delta": 1e-3,
        "claims": {"own-records-poisson": REPTILE_STEPS},
    }
    z = own_records.calibrate(sampler, **given, profile="as_claimed")
    assert z == pytest.approx(0.5849, abs=2e-4)
    less = own_records.calibrate(sampler, **given, profile="holds")
    assert less < z and own_records.epsilon_of(sampler["a"], less, 1e-3) <= 9.5


def _audited(seed, *, inserted=True, canaries=4000, z=0.585):
    config = make_config(
        {"method": "dp-reptile"},
        {
            "within_task": {"multiplier": z, "delta": 1e-3},
            "client_update": {"batches": "poisson", "inner_steps": 5},
        },
    )
    found = one_run_of_examples(config, seed=seed, canaries=canaries, inserted=inserted)
    bound = bounds_of(
        found, own_family(found.releases, 1e-3), delta=1e-3, confidence=0.95, seed=seed
    )[0]
    return found, bound.epsilon


def test_the_audit_of_poisson_steps_is_zero_on_a_null_and_not_above_what_holds():
    """At a fixed seed; by chance one audit in twenty would be above, and one null in
    twenty above 0.
    """
    found, bound = _audited(5)
    sampler = found.releases[0].sampler
    assert 1.0 < bound <= own_records.epsilon_of(sampler, 0.585, 1e-3)
    assert _audited(5, inserted=False)[1] == 0


def test_steps_that_read_everything_are_found_out(monkeypatch):
    """A mutant: the ledger says that a step reads a fifth of the examples, but each
    reads all of them.
    """
    from dpfedbench.papers import gbml

    monkeypatch.setattr(
        gbml, "poisson_batches", lambda rng, steps, count: [np.arange(count)] * steps
    )
    found, bound = _audited(5, z=1.2)
    assert bound > own_records.epsilon_of(found.releases[0].sampler, 1.2, 1e-3)
