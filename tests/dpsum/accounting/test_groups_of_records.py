"""Several records of one client at once, in the account of a run."""

import math

from dploss.gaussian import gaussian_epsilon
from dpsum import participation
from dpsum.accounting.account import account
from dpsum.accounting.claims import REPTILE_STEPS
from dpsum.accounting.context import AccountContext
from tests.dpsum.helpers import make_release

SAMPLER = participation.within_task(
    clients=10, rounds=2, records=80, steps=1, batches="full"
)


def account_of_groups(*groups, **changes):
    release = make_release(z=0.51, unit="record", sampler=SAMPLER, **changes)
    claims = {"within-task": REPTILE_STEPS}
    context = AccountContext(groups=groups)
    return account([release], delta=1e-3, claims=claims, context=context)


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
