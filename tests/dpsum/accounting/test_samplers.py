"""A ledger whose sampler contradicts itself has no account: epsilon would follow from
whichever number is read.
"""

import dataclasses
from typing import Any

import pytest

from dpfedbench.errors import BenchError
from dpsum import participation
from dpsum.accounting.account import account
from dpsum.ledger import Release
from tests.dpsum.accounting import test_correlated, test_skellam

COHORTS = {"clients": 500, "cohort": 50, "rounds": 10, "rate": 0.1}
LOTS = {"clients": 2, "records": 500, "cohort": 50, "rounds": 10, "rate": 0.1}
OWN = {"clients": 48, "rounds": 10, "records": 10, "steps": 5}
SAMPLERS: dict[str, dict[str, Any]] = {
    "one-pass": {"kind": "one-pass", **COHORTS},
    "balls-and-bins": {"kind": "balls-and-bins", **COHORTS},
    "poisson": {"kind": "poisson", **COHORTS},
    "poisson-lots": {"kind": "poisson-lots", **LOTS},
    "fixed-size": {"kind": "fixed-size", **COHORTS},
    "shuffled-epochs": {
        "kind": "shuffled-epochs",
        **COHORTS,
        "epoch": 10,
        "batches": "secret",
    },
    "min-separation": {
        "kind": "min-separation",
        **COHORTS,
        "separation": 5,
        "participations": 2,
    },
    "own-update": participation.own_update(clients=500, cohort=50, rounds=10),
    "full": participation.own_records(**OWN, batches="full"),
    "disjoint": participation.own_records(**OWN, batches="disjoint"),
    "poisson-steps": participation.own_records(**OWN, batches="poisson"),
}


def ledger(sampler: dict[str, Any], **changes: Any) -> list[Release]:
    replace_one = sampler["kind"] == "own-update"
    values = {"adjacency": "replace-one", "sensitivity": 2.0} if replace_one else {}
    return [
        Release(
            round=index,
            sampler=sampler,
            noise_std=2.0 if replace_one else 1.0,
            **{
                "name": "sum",
                "mechanism": "gaussian",
                "unit": "client",
                "adjacency": "zero-out",
                "observer": "server",
                "noise_multiplier": 1.0,
                "threshold": 1.0,
                "sensitivity": 1.0,
                "dimension": 3,
                "denominator": 1.0,
                "noise_stream": "0",
                "counted_by_paper": True,
                "data_dependent_threshold": False,
                "reason": "",
                **values,
                **changes,
            },
        )
        for index in range(10)
    ]


@pytest.mark.parametrize("name", SAMPLERS)
def test_what_is_drawn_is_read(name):
    assert (
        account(ledger(SAMPLERS[name]), delta=1e-6, claims={})
        .profiles["holds"]
        .epsilon_high
        > 0
    )


@pytest.mark.parametrize(
    ("name", "changes", "why"),
    [
        *(
            (name, {"rate": 0.001}, "is a rate of 0.1")
            for name in SAMPLERS
            if "steps" not in SAMPLERS[name]
        ),
        ("one-pass", {"rounds": 11}, "do not last"),
        (
            "one-pass",
            {"cohort": 501, "rate": 1.0},
            "cohort is more than the 500 clients",
        ),
        (
            "balls-and-bins",
            {"rounds": 1000},
            "cohort x rounds is the number of clients",
        ),
        (
            "balls-and-bins",
            {"clients": 5000, "rate": 0.01},
            "cohort x rounds is the number of clients",
        ),
        ("poisson", {"clients": 50_000}, "is a rate of 0.001"),
        ("poisson", {"cohort": 0, "rate": 0.0}, "cohort is not a number above 0"),
        ("poisson", {"rate": None}, "rate is not a number above 0"),
        ("poisson", {"clients": 500.5}, "clients is not a whole number"),
        ("fixed-size", {"cohort": 50.5, "rate": 0.101}, "cohort is not a whole number"),
        ("fixed-size", {"records": 50_000}, "50 of 50,000 records is a rate of 0.001"),
        (
            "shuffled-epochs",
            {"epoch": 9},
            "an epoch of batches of 50 of 500 has 10 rounds, or one more",
        ),
        ("shuffled-epochs", {"epoch": None}, "epoch is not a whole number"),
        ("shuffled-epochs", {"batches": None}, "batches is neither known nor secret"),
        (
            "min-separation",
            {"separation": 9, "cohort": 60, "rate": 0.12},
            "9 rounds in a row without a unit twice",
        ),
        ("min-separation", {"separation": 0}, "separation is not a whole number"),
        (
            "min-separation",
            {"participations": 3},
            "nobody is in 3 of 10 rounds, 5 apart",
        ),
        (
            "min-separation",
            {"separation": 5, "participations": 1, "clients": 400, "rate": 0.125},
            "do not last",
        ),
        (
            "min-separation",
            {"participations": None},
            "participations is not a whole number",
        ),
        (
            "poisson-lots",
            {"records": 50_000},
            "50 of 50,000 records is a rate of 0.001",
        ),
        ("poisson-lots", {"records": None}, "records is not a whole number"),
        ("full", {"rate": 0.1}, "10 of 10 records is a rate of 1"),
        ("full", {"records": 20}, "10 of 20 records is a rate of 0.5"),
        ("full", {"records": 20, "rate": 0.5}, "cannot read 50 of 20"),
        ("full", {"steps": None}, "steps is not a whole number"),
        ("full", {"steps": 0}, "steps is not a whole number"),
        ("disjoint", {"steps": 6}, "cannot read 12 of 10"),
        (
            "poisson-steps",
            {"rate": 0.1, "cohort": 1.0},
            "the rate of 5 steps is one over them",
        ),
        ("poisson-steps", {"steps": 1}, "the rate of 1 steps is one over them"),
        ("own-update", {"steps": 5}, "one release, at rate 1"),
        ("own-update", {"rate": 0.1}, "one release, at rate 1"),
        ("own-update", {"rounds": 20}, "do not last"),
    ],
)
def test_a_sampler_that_contradicts_itself_is_refused(name, changes, why):
    """E.g. ten rounds of z = 1 at a rate of 0.001 beside 50 of 500 clients: 0.024 was
    printed, and 0.1 has 2.85.
    """
    said = {
        key: value
        for key, value in (SAMPLERS[name] | changes).items()
        if value is not None
    }
    with pytest.raises(BenchError) as caught:
        account(ledger(said), delta=1e-5, claims={})
    assert (
        why in str(caught.value)
        and "do not fit together" in str(caught.value)
        and "\n" not in str(caught.value)
    )


def test_more_clients_noise_than_the_sampler_has_is_refused():
    """Whoever sees the sum of all sees sqrt(K) times the noise: K is that of the
    sampler.
    """
    lots = ledger(SAMPLERS["poisson-lots"], unit="record", adds=2)
    assert len(account(lots, delta=1e-6, claims={}).also) == 2
    with pytest.raises(
        BenchError, match="added up with those of 200 clients, but its sampler has 2"
    ):
        account(
            ledger(SAMPLERS["poisson-lots"], unit="record", adds=200),
            delta=1e-6,
            claims={},
        )


def test_shares_of_more_clients_than_a_cohort_has_are_refused():
    secure = test_skellam.ledger()
    sampler = secure[0].sampler
    half = {**sampler, "cohort": sampler["cohort"] // 2, "rate": sampler["rate"] / 2}
    with pytest.raises(
        BenchError,
        match=r"shares of noise of \d+ clients, but its sampler has \d+ in a round",
    ):
        account(
            [dataclasses.replace(event, sampler=half) for event in secure],
            delta=1e-6,
            claims={},
        )


def test_correlated_noise_and_shares_are_held_to_it_too():
    for lines in (test_correlated.ledger(), test_skellam.ledger()):
        short = {**lines[0].sampler, "rate": 0.001}
        with pytest.raises(BenchError, match="do not fit together"):
            account(
                [dataclasses.replace(event, sampler=short) for event in lines],
                delta=1e-6,
                claims={},
            )
