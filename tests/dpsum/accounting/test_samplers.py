"""A ledger whose sampler contradicts itself has no account.

Epsilon would follow from whichever number is read: ten rounds of z = 1 with 50 of 500
clients have 2.85, and a rate of 0.001 in the same ledger 0.024.
"""

import dataclasses

import pytest

from dpsum import DpsumError, participation
from dpsum.accounting.account import account
from tests.dpsum.accounting.helpers import correlated_releases, skellam_releases
from tests.dpsum.helpers import make_releases

COHORTS = {"clients": 500, "cohort": 50, "rounds": 10, "rate": 0.1}
STEPS = {"clients": 48, "rounds": 10, "records": 10, "steps": 5}
SAMPLERS = {
    "one-pass": COHORTS,
    "balls-and-bins": COHORTS,
    "poisson": COHORTS,
    "poisson-lots": {**COHORTS, "clients": 2, "records": 500},
    "fixed-size": COHORTS,
    "shuffled-epochs": {**COHORTS, "epoch": 10, "batches": "secret"},
    "min-separation": {**COHORTS, "separation": 5, "participations": 2},
    "local": participation.local(clients=500, cohort=50, rounds=10),
    "full": participation.within_task(**STEPS, batches="full"),
    "disjoint": participation.within_task(**STEPS, batches="disjoint"),
    "poisson-steps": participation.within_task(**STEPS, batches="poisson"),
}


def sampler_of(name, changes=()):
    values = {"kind": name, **SAMPLERS[name]} | dict(changes)
    return {key: value for key, value in values.items() if value is not None}


def account_of(sampler, **changes):
    """Return the account of ten rounds of z = 1."""
    values = {"sampler": sampler, "threshold": 1.0}
    if sampler["kind"] == "local":
        values |= {"adjacency": "replace-one", "sensitivity": 2.0, "noise_std": 2.0}
    return account(make_releases(10, **values | changes), delta=1e-5, claims={})


@pytest.mark.parametrize("name", SAMPLERS)
def test_account_reads_the_sampler_of_a_participation(name):
    assert account_of(sampler_of(name)).profiles["proven"].epsilon_high > 0


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        *((name, {"rate": 0.001}, "is a rate of 0.1") for name in list(SAMPLERS)[:7]),
        ("one-pass", {"rounds": 11}, "fewer rounds"),
        ("one-pass", {"cohort": 501, "rate": 1.0}, "more than the 500 clients"),
        ("balls-and-bins", {"rounds": 1000}, "cohort x rounds is the number"),
        ("poisson", {"clients": 50_000}, "is a rate of 0.001"),
        ("poisson", {"cohort": 0, "rate": 0.0}, "cohort is not a number above 0"),
        ("poisson", {"rate": None}, "rate is not a number above 0"),
        ("poisson", {"clients": 500.5}, "clients is not a whole number"),
        ("fixed-size", {"cohort": 50.5, "rate": 0.101}, "cohort is not a whole number"),
        ("fixed-size", {"records": 50_000}, "50 of 50,000 records is a rate of 0.001"),
        ("shuffled-epochs", {"epoch": 9}, "has 10 rounds, or one more"),
        ("shuffled-epochs", {"epoch": None}, "epoch is not a whole number"),
        ("shuffled-epochs", {"batches": None}, "batches is neither known nor secret"),
        (
            "min-separation",
            {"separation": 9, "cohort": 60, "rate": 0.12},
            "9 rounds without a repeated unit",
        ),
        ("min-separation", {"separation": 0}, "separation is not a whole number"),
        ("min-separation", {"participations": 3}, "no unit can be in 3 of 10 rounds"),
        ("min-separation", {"participations": None}, "is not a whole number"),
        ("poisson-lots", {"records": None}, "records is not a whole number"),
        ("full", {"rate": 0.1}, "10 of 10 records is a rate of 1"),
        ("full", {"records": 20, "rate": 0.5}, "cannot read 50 of 20"),
        ("full", {"steps": 0}, "steps is not a whole number"),
        ("disjoint", {"steps": 6}, "cannot read 12 of 10"),
        ("poisson-steps", {"rate": 0.1, "cohort": 1.0}, "the rate must be 1/5"),
        ("poisson-steps", {"steps": 1}, "with 1 steps the rate must be 1/1"),
        ("local", {"steps": 5}, "one release, at rate 1"),
        ("local", {"rate": 0.1}, "one release, at rate 1"),
        ("local", {"rounds": 20}, "fewer rounds"),
    ],
)
def test_account_refuses_a_sampler_that_contradicts_itself(name, changes, message):
    with pytest.raises(DpsumError, match=f"is invalid.*{message}"):
        account_of(sampler_of(name, changes))


def test_account_refuses_noise_of_more_clients_than_the_sampler_has():
    """The observer of the sum of K clients sees sqrt(K) times the noise."""
    lots = sampler_of("poisson-lots")
    assert len(account_of(lots, unit="record", adds=2).also) == 2
    with pytest.raises(DpsumError, match="those of 200 clients, but its sampler has 2"):
        account_of(lots, unit="record", adds=200)


@pytest.mark.parametrize(
    ("releases", "changes", "message"),
    [
        (correlated_releases(), {"rate": 0.001}, "is invalid"),
        (skellam_releases(), {"rate": 0.001}, "is invalid"),
        (
            skellam_releases(),
            {"cohort": 50, "rate": 0.125},
            r"noise of 100 clients, but its sampler has 50 in a round",
        ),
    ],
)
def test_account_checks_the_sampler_of_other_noise(releases, changes, message):
    sampler = {**releases[0].sampler, **changes}
    lines = [dataclasses.replace(release, sampler=sampler) for release in releases]
    with pytest.raises(DpsumError, match=message):
        account(lines, delta=1e-6, claims={})
