"""Added releases of holders whose thresholds differ: who sees the sum, and what hides a
record in it.
"""

import numpy as np
import pytest

import dpsum
from dpsum.accounting.account import account
from tests.dpsum.accounting.helpers import dp_accounting_epsilon
from tests.dpsum.helpers import make_mechanism, make_release

DELTA = 1e-5
RATE = 0.1


def lines_of(thresholds, z=1.0, adds=None):
    """Return one line a round; `thresholds` has those of all holders, by round."""
    holders = adds or len(thresholds[0])
    sampler = {
        "kind": "poisson-lots",
        "clients": holders,
        "records": 100,
        "cohort": 10.0,
        "rounds": len(thresholds),
        "rate": RATE,
    }
    fields = {"unit": "record", "observer": "server", "sampler": sampler}
    return [
        make_release(round=index, z=z, threshold=values, adds=holders, **fields)
        for index, values in enumerate(thresholds)
    ]


def entries_of(lines):
    first = account(lines, delta=DELTA)
    accounts = (first, *first.also)
    entries = [of_observer.profiles["proven"] for of_observer in accounts]
    return {entry.observer: entry for entry in entries}


def exact(multipliers):
    return dp_accounting_epsilon([(z, 1, RATE) for z in multipliers], DELTA)


def hiding(thresholds, holder, known=None):
    """Return the noise over the threshold of a record of `holder`, in one round.

    The observer knows the noise of the holder `known`. Noise has z = 1.
    """
    squares = [value**2 for value in thresholds]
    if known is not None:
        squares[known] = 0.0
    return sum(squares) ** 0.5 / thresholds[holder]


UNEVEN = [[1.0, 1.0, 1.0], [2.0, 1.0, 0.5], [3.0, 1.5, 0.5]]


def test_added_releases_hide_the_holder_with_the_largest_threshold_least():
    """Holder 0 is the worst in all rounds, and holder 1 the client that knows most."""
    entries = entries_of(lines_of(UNEVEN))
    of_everyone = [hiding(values, 0) for values in UNEVEN]
    of_client = [hiding(values, 0, known=1) for values in UNEVEN]
    for observer, multipliers in (
        ("everyone", of_everyone),
        ("another client", of_client),
    ):
        for holder in range(3):
            pairs = [(holder, None)]
            if observer == "another client":
                pairs = [(holder, known) for known in range(3) if known != holder]
            for pair in pairs:
                others = [hiding(values, *pair) for values in UNEVEN]
                assert sum(z**-2 for z in others) <= sum(z**-2 for z in multipliers)
        entry = entries[observer]
        expected = exact(multipliers)
        assert entry.epsilon_low == pytest.approx(expected, rel=2e-3)
        assert entry.epsilon_high == pytest.approx(expected, rel=2e-3)
        assert entry.status == "as run"
    assert entries["server"].status == "proved"
    assert entries["server"].epsilon_high == pytest.approx(exact([1.0] * 3), rel=2e-3)


def test_added_releases_of_different_worst_holders_have_two_ends():
    """Each round hides another holder least: the high end takes the worst of each."""
    thresholds = [[2.0, 1.0, 1.0], [1.0, 2.0, 1.0], [1.0, 1.0, 2.0]]
    entry = entries_of(lines_of(thresholds))["everyone"]
    one_holder = exact([hiding(values, 0) for values in thresholds])
    all_worst = exact([hiding([2.0, 1.0, 1.0], 0)] * 3)
    assert entry.epsilon_low == pytest.approx(one_holder, rel=3e-3)
    assert entry.epsilon_high == pytest.approx(all_worst, rel=2e-3)
    assert one_holder < 0.8 * all_worst


def test_added_releases_of_equal_thresholds_have_the_noise_of_all():
    entries = entries_of(lines_of([[2.0] * 4] * 3))
    assert entries["everyone"].epsilon_high == pytest.approx(exact([2.0] * 3), rel=2e-3)
    client = entries["another client"]
    assert client.epsilon_high == pytest.approx(exact([3**0.5] * 3), rel=2e-3)
    assert {entry.status for entry in entries.values()} == {"proved"}


def test_added_releases_of_some_holders_have_the_noise_of_these_alone():
    """One of three holders releases nothing: two noises hide a record, not three."""
    entry = entries_of(lines_of([[1.0, 1.0]] * 3, adds=3))["everyone"]
    assert entry.epsilon_high == pytest.approx(exact([2**0.5] * 3), rel=2e-3)
    assert entry.status == "as run"
    lines = lines_of([[1.0]] * 3, adds=3)
    for entry in entries_of(lines).values():
        assert entry.epsilon_high == pytest.approx(exact([1.0] * 3), rel=2e-3)


def test_added_private_quantiles_count_each_holders_threshold(tmp_path):
    """Two holders, of whom one has contributions a hundred times as large.

    The sum has z' with z'^-2 = 1 - 40^-2, the count z = 40. Everyone: z' (C_0^2 +
    C_1^2)^1/2 / max(C) for the sum and 40 2^1/2 for the count, in each round. The other
    client subtracts its own release and sees the first holder's as the server does:
    z = 1. (An account of the smaller noise against the larger threshold, epsilon 6.369,
    would be of a client that looks for its own records.)
    """
    path = tmp_path / "ledger.jsonl"
    lots = dpsum.PoissonLots(lot=10, rounds=3)
    clipping = dpsum.PrivateQuantile(1.0, count_noise=20.0, never_rising=False)
    mechanism = make_mechanism(
        name="g",
        unit="record",
        observer="server",
        taken_by="client",
        clipping=clipping,
        noise=dpsum.Gaussian(1.0),
        added=True,
        participation=lots.lots(clients=2, seed=1, steps=1, records=100),
        dimension=200,
        ledger=path,
        seed=1,
        holders=2,
    )
    for index in range(3):
        for holder, size in enumerate((1.0, 100.0)):
            total = mechanism.begin_round(index, holder=holder)
            total.add(np.full((10, 200), size))
            mechanism.finish(total)
        mechanism.write(index)
    sums = [line for line in dpsum.read_ledger(path) if line.name == "g"]
    own_z = (1 - 40.0**-2) ** -0.5
    multipliers = []
    for line in sums:
        first, second = line.threshold
        total = own_z * (first**2 + second**2) ** 0.5 / max(first, second)
        multipliers.append((total**-2 + (40 * 2**0.5) ** -2) ** -0.5)
    assert len({line.threshold[0] for line in sums}) == 3
    entries = entries_of(path)
    expected = exact(multipliers)
    assert expected == pytest.approx(1.437, abs=2e-3)
    assert entries["everyone"].epsilon_high == pytest.approx(expected, rel=2e-3)
    expected = exact([1.0] * 3)
    assert expected == pytest.approx(2.087, abs=1e-3)
    assert entries["another client"].epsilon_high == pytest.approx(expected, rel=2e-3)


def test_added_releases_whose_thresholds_may_differ_are_as_run(tmp_path):
    """In the first round both clients have one threshold, whatever the rule is.

    The rule of the first mechanism may move them apart, and with them how much the
    noise of one client hides of the other. The value is that of the noise that was run: z' 2^1/2 for the sum and 40
    2^1/2 for the count, with z'^-2 = 1 - 40^-2, which together are z = 2^1/2.
    """
    for name, clipping in (
        ("moving", dpsum.PrivateQuantile(1.0, count_noise=20.0)),
        ("constant", dpsum.Constant(1.0)),
    ):
        path = tmp_path / f"{name}.jsonl"
        lots = dpsum.PoissonLots(lot=10, rounds=1)
        mechanism = make_mechanism(
            name="g",
            unit="record",
            observer="server",
            taken_by="client",
            clipping=clipping,
            noise=dpsum.Gaussian(1.0),
            added=True,
            participation=lots.lots(clients=2, seed=1, steps=1, records=100),
            dimension=200,
            ledger=path,
            seed=1,
            holders=2,
        )
        for holder in range(2):
            total = mechanism.begin_round(0, holder=holder)
            total.add(np.ones((10, 200)))
            mechanism.finish(total)
        mechanism.write(0)
        lines = dpsum.read_ledger(path)
        mark = True if name == "moving" else None
        assert {line.thresholds_may_differ for line in lines} == {mark}
        entries = entries_of(lines)
        expected = exact([2**0.5])
        assert entries["everyone"].epsilon_high == pytest.approx(expected, rel=2e-3)
        assert entries["everyone"].status == ("as run" if mark else "proved")
        # Another of two clients and the server see one client's release with its noise.
        assert entries["server"].status == "proved"
        assert entries["another client"].status == "proved"


@pytest.mark.parametrize("value", [False, 1, "yes"])
def test_ledger_refuses_another_mark_of_thresholds_that_may_differ(value):
    with pytest.raises(ValueError, match=r"thresholds_may_differ is .*: it is true or"):
        make_release(thresholds_may_differ=value)
