"""Several records of one client at once, in the account of a run."""

import math

from dpsum import participation
from dpsum.accounting.account import account
from dpsum.accounting.claims import REPTILE_STEPS
from dpsum.accounting.context import AccountContext
from dpsum.accounting.gaussian import gaussian_epsilon
from dpsum.ledger import Release


def release(**changes: object) -> Release:
    values = {
        "round": 0,
        "name": "task-gradient-sum",
        "mechanism": "gaussian",
        "unit": "record",
        "adjacency": "zero-out",
        "observer": "server",
        "noise_multiplier": 0.51,
        "threshold": 0.5,
        "sensitivity": 0.5,
        "noise_std": 0.255,
        "dimension": 3,
        "denominator": 80.0,
        "noise_stream": "0/x",
        "counted_by_paper": True,
        "data_dependent_threshold": False,
        "reason": "",
        "sampler": participation.own_records(
            clients=10, rounds=2, records=80, steps=1, batches="full"
        ),
    }
    return Release(**values | changes)  # type: ignore[arg-type]


def test_a_group_is_one_gaussian_of_a_larger_step() -> None:
    found = account(
        [release()],
        delta=1e-3,
        claims={"own-records": REPTILE_STEPS},
        given=AccountContext(groups=(2, 3)),
    )
    assert {size: entry.epsilon_high for size, entry in found.groups.items()} == {
        "2": gaussian_epsilon(0.51 / 2, 1e-3),
        "3": gaussian_epsilon(0.51 / 3, 1e-3),
    }
    # (2 eps, 2 e^eps delta) of the claimed 9.2209: the issue's delta' = 20.
    assert 2 * math.exp(found.profiles["as_claimed"].epsilon_high) * 1e-3 > 20
    assert "which says nothing" in found.groups["2"].explanation


def test_nothing_is_asked_for_by_default_and_nothing_is_written() -> None:
    found = account([release()], delta=1e-3, claims={})
    assert found.groups == {} and "groups" not in found.to_json()


def test_a_release_without_an_event_is_infinite_for_groups_too() -> None:
    released = release(data_dependent_threshold=True, reason="the vocabulary")
    found = account(
        [released], delta=1e-3, claims={}, given=AccountContext(groups=(2,))
    )
    assert (
        found.groups["2"].epsilon_high == math.inf
        and found.groups["2"].status == "void"
    )
