"""Several sums of one ledger: their adjacency, draws, parts and noise."""

import dataclasses
import itertools
import math

import numpy as np
import pytest

import dpsum
from dpsum.accounting.account import account
from dpsum.accounting.context import AccountContext
from dpsum.participation import local
from tests.dpsum.accounting.helpers import (
    dp_accounting_epsilon,
    sampled_gaussian_epsilon,
)
from tests.dpsum.helpers import make_mechanism, make_mechanisms, make_release

DELTA = 1e-5
ROWS = np.zeros((0, 3))


def gaussian_epsilon(mu, delta=DELTA):
    """Return epsilon of one Gaussian at a distance of mu deviations, by mpmath."""
    return sampled_gaussian_epsilon(1 / mu, 1.0, delta)


def make_sums(ledger, participations, noise_multiplier=1.0, **changes):
    """Return one mechanism for each participation; all share a ledger."""
    sums = []
    for number, participation in enumerate(participations):
        values = {
            "name": f"sum-{number}",
            "stream": f"noise-{number}",
            "participation": participation,
            "clipping": dpsum.Constant(1.0),
            "noise": dpsum.Gaussian(noise_multiplier),
            "dimension": 3,
            "ledger": ledger,
        }
        sums.append(values | changes)
    return make_mechanisms(sums)


def release_all(mechanisms, rounds):
    for index in range(rounds):
        for mechanism in mechanisms:
            mechanism.release(mechanism.begin_round(index))


def proven(ledger, delta=DELTA):
    return account(ledger, delta=delta).profiles["proven"]


# Adjacency of the sums that a clipping rule makes


@pytest.fixture
def count_ledger():
    """Ledger of a local sum of z = 1 with a noised count (sigma_b = 2)."""
    ledger = []
    mechanism = make_mechanism(
        adjacency="replace-one",
        clipping=dpsum.PrivateQuantile(1.0, count_noise=2.0),
        noise=dpsum.Gaussian(1.0),
        participation=local(clients=4, cohort=1, rounds=4),
        dimension=3,
        ledger=ledger,
    )
    mechanism.release(mechanism.begin_round(0))
    return ledger


def test_count_under_replace_one_has_the_sensitivity_of_replaced_indicators(
    count_ledger,
):
    """Indicators are -1/2 to 1/2, so that another unit moves their sum by up to 1."""
    rule = dpsum.PrivateQuantile(1.0, count_noise=2.0)
    state = rule.begin(1.0)
    indicators = rule.values(state, np.array([0.0, 0.5, 3.0]))[:, 0]
    moved = max(
        abs(one - other) for one, other in itertools.product(indicators, repeat=2)
    )
    _, count = count_ledger
    assert count.sensitivity == moved == 1.0


def test_account_of_a_count_under_replace_one_covers_both_releases(count_ledger):
    """mu^2 = (2 C / sigma)^2 + (1 / sigma_b)^2 of the noise that was drawn."""
    total, count = count_ledger
    mu = math.hypot(2.0 / total.noise_std, 1.0 / count.noise_std)
    entry = proven(count_ledger)
    assert entry.adjacency == "replace-one"
    assert entry.epsilon_high == pytest.approx(gaussian_epsilon(mu), rel=1e-6)
    assert mu == pytest.approx(1.0)


def test_count_with_half_its_sensitivity_is_refused(count_ledger):
    """The count's noise of 0.52 for a step of 1 had 4.377 printed for 9.6455."""
    _, count = count_ledger
    half = dataclasses.replace(
        count, sensitivity=0.5, noise_std=0.52, noise_multiplier=1.04
    )
    shares = 1.0 - 1.04**-2, 0.52**-2
    assert gaussian_epsilon(math.sqrt(sum(shares))) == pytest.approx(9.6455, abs=5e-4)
    with pytest.raises(dpsum.DpsumError, match=r"less than the replace-one sensitiv"):
        proven([count_ledger[0], half])


@pytest.mark.parametrize("kind", [dpsum.PrivateQuantile, dpsum.NoisedMeanNorm])
def test_every_sum_of_a_rule_has_the_adjacency_of_its_sum(kind):
    """With one group and with two, whose counts are one release of two coordinates."""
    for groups in (None, dpsum.CoordinateGroups((0, 1, 3))):
        ledger = []
        mechanism = make_mechanism(
            adjacency="replace-one",
            clipping=kind(threshold=1.0),
            noise=dpsum.Gaussian(0.5),
            participation=local(clients=400, cohort=100, rounds=4),
            dimension=3,
            ledger=ledger,
            groups=groups,
        )
        mechanism.release(mechanism.begin_round(0))
        assert [line.adjacency for line in ledger] == ["replace-one"] * 2
        for line in ledger:
            assert line.sensitivity == 2 * line.threshold
            expected_std = line.noise_multiplier * line.sensitivity
            assert line.noise_std == pytest.approx(expected_std)


# Sensitivity of a line


def replaced_line(sensitivity):
    """Return a local line of noise 1 at C = 1."""
    return make_release(
        threshold=1.0,
        sensitivity=sensitivity,
        noise_std=1.0,
        z=1.0 / sensitivity,
        adjacency="replace-one",
        sampler=local(clients=4, cohort=1, rounds=4),
    )


def test_account_refuses_a_replace_one_line_of_sensitivity_c():
    """Noise of deviation C: mu = 2 (9.997). A sensitivity of C had 4.377."""
    entry = proven([replaced_line(2.0)])
    assert entry.epsilon_high == pytest.approx(9.997, abs=5e-4)
    assert entry.epsilon_high == pytest.approx(gaussian_epsilon(2.0), rel=1e-6)
    for releases in ([replaced_line(1.0)], [replaced_line(2.0), replaced_line(1.0)]):
        with pytest.raises(dpsum.DpsumError, match="of its threshold"):
            proven(releases)


def test_account_refuses_an_earlier_line_of_too_small_sensitivity():
    context = AccountContext(before=(replaced_line(1.0),))
    with pytest.raises(dpsum.DpsumError, match="the earlier ledger's release 0"):
        account([make_release()], delta=DELTA, context=context)


def test_account_refuses_an_unknown_adjacency():
    with pytest.raises(dpsum.DpsumError, match="for swap adjacency"):
        proven([make_release(adjacency="swap")])


# Draws of cohorts

POISSON = {"units": 10, "cohort": 1, "rounds": 1}


def one_draw_epsilon(z, q, delta):
    """Return epsilon of two sums of one cohort: one sampled Gaussian of z / sqrt(2)."""
    return sampled_gaussian_epsilon(z / math.sqrt(2), q, delta)


@pytest.mark.parametrize(
    ("units", "z", "delta", "printed", "right"),
    [
        (10, 1 / 3, 0.09, 0.699, 1.675),
        (100, 0.28, 0.0095, 0.228, 1.317),
        # Faster: the two cases above.
        pytest.param(10, 0.2, 0.15, 0.0, 5.193, marks=pytest.mark.slow),
    ],
)
def test_sums_of_two_poisson_draws_are_two_sampled_releases(
    units, z, delta, printed, right
):
    """Two draws are Poisson's two rounds, by dp_accounting; one draw has less here."""
    plans = [dpsum.Poisson(**POISSON | {"units": units}) for _ in range(2)]
    ledger = []
    release_all(make_sums(ledger, plans, z), 1)
    entry = proven(ledger, delta)
    expected = dp_accounting_epsilon([(z, 1, 1 / units)] * 2, delta)
    assert expected == pytest.approx(right, abs=2e-3)
    assert entry.status == "proved"
    assert entry.epsilon_low <= expected + 1e-9
    assert entry.epsilon_high == pytest.approx(expected, abs=2e-3)
    ledger = []
    release_all(make_sums(ledger, plans[:1] * 2, z), 1)
    together = one_draw_epsilon(z, 1 / units, delta)
    assert together == pytest.approx(printed, abs=4e-3)
    assert proven(ledger, delta).epsilon_high == pytest.approx(together, abs=4e-3)


def test_participations_of_equal_seeds_are_one_draw():
    """Also where the objects differ: their cohorts are the same."""
    plans = [dpsum.Poisson(seed=5, **POISSON) for _ in range(2)]
    ledger = []
    release_all(make_sums(ledger, plans, 0.2), 1)
    expected = one_draw_epsilon(0.2, 0.1, 0.15)
    assert proven(ledger, 0.15).epsilon_high == pytest.approx(expected, abs=1e-3)


def test_sum_and_count_of_one_mechanism_are_one_draw(tmp_path):
    """The draw is in the ledger's file, and reveals no seed."""
    path = tmp_path / "ledger.jsonl"
    plan = dpsum.Poisson(seed=77, **POISSON)
    mechanism = make_mechanism(
        clipping=dpsum.PrivateQuantile(1.0, count_noise=2.0),
        noise=dpsum.Gaussian(1.0),
        participation=plan,
        dimension=3,
        ledger=path,
    )
    mechanism.release(mechanism.begin_round(0))
    total, count = dpsum.read_ledger(path)
    assert total.sampler["draw"] == count.sampler["draw"] == plan.draw
    assert "77" not in plan.draw
    expected = sampled_gaussian_epsilon(1.0, 0.1, 1e-3)
    assert proven(path, 1e-3).epsilon_high == pytest.approx(expected, abs=1e-3)


def test_known_cohorts_of_two_orders_are_one_gaussian_of_both():
    """A client is in one release of each sum, whatever the orders: mu = sqrt(2)."""
    plans = [dpsum.OnePass(units=8, cohort=2, rounds=4) for _ in range(2)]
    ledger = []
    release_all(make_sums(ledger, plans), 4)
    expected = pytest.approx(gaussian_epsilon(math.sqrt(2)), rel=1e-6)
    assert proven(ledger).epsilon_high == expected


def test_known_cohorts_of_two_orders_meet_at_the_least_noise_of_each_sum():
    """Sum 0 has z = 1 in round 0, sum 1 in round 1; else z = 9. In one order a client is
    never in both, in two orders it may be.
    """
    noise = {"sum-0": [1.0, 9.0], "sum-1": [9.0, 1.0]}
    lines = []
    for index, name in itertools.product(range(2), noise):
        sampler = {"kind": "one-pass", "clients": 4, "cohort": 2, "rounds": 2}
        sampler |= {"rate": 0.5, "draw": name}
        z = noise[name][index]
        lines.append(make_release(round=index, name=name, z=z, sampler=sampler))
    apart = proven(lines)
    assert apart.epsilon_high == pytest.approx(gaussian_epsilon(math.sqrt(2)), rel=1e-6)
    one_order = [
        dataclasses.replace(line, sampler=line.sampler | {"draw": "one"})
        for line in lines
    ]
    mu = math.hypot(1.0, 1 / 9)
    high = proven(one_order).epsilon_high
    assert high == pytest.approx(gaussian_epsilon(mu), rel=1e-6)


@pytest.mark.parametrize("draws", [(None, None), ("a", None), ("a/1", "a/2")])
def test_sums_of_draws_of_which_nothing_is_known_are_refused(draws):
    """Ledgers of earlier versions have no draw; one stream may serve two draws."""
    numbers = {"kind": "poisson", "clients": 10, "cohort": 1, "rounds": 1, "rate": 0.1}
    lines = []
    for number, draw in enumerate(draws):
        sampler = dict(numbers) if draw is None else numbers | {"draw": draw}
        lines.append(make_release(name=f"sum-{number}", sampler=sampler))
    with pytest.raises(dpsum.DpsumError, match="one draw or independent draws"):
        proven(lines)
    single = proven(lines[:1], 1e-3).epsilon_high
    assert single == pytest.approx(sampled_gaussian_epsilon(1.0, 0.1, 1e-3), abs=1e-3)


def test_plugins_participation_is_one_draw_only_if_all_its_values_agree():
    """Its `describe` says nothing of the offset, and the random stream is one."""

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Shifted(dpsum.Poisson):
        kind = "poisson-shifted"
        offset: int = 0

        def sample_cohort(self, index):
            return super().sample_cohort(index + self.offset)

    plans = [Shifted(seed=1, offset=offset, **POISSON) for offset in (0, 1, 1)]
    first, second, third = (plan.draw for plan in plans)
    assert first != second == third
    assert first.partition("/")[0] == second.partition("/")[0]


# Faster: test_sums_of_two_poisson_draws_are_two_sampled_releases.
@pytest.mark.slow
def test_lots_of_two_purposes_are_two_draws():
    lots = dpsum.PoissonLots(lot=1, rounds=1)
    values = {"clients": 1, "seed": 3, "steps": 1, "records": 10}
    plans = [lots.lots(purpose=purpose, **values) for purpose in ("a", "b")]
    ledger = []
    release_all(make_sums(ledger, plans, 0.2, unit="record"), 1)
    expected = dp_accounting_epsilon([(0.2, 1, 0.1)] * 2, 0.15)
    assert proven(ledger, 0.15).epsilon_high == pytest.approx(expected, abs=2e-3)


def test_budget_of_two_draws_is_refused():
    budget = dpsum.Budget(epsilon=8.0, delta=1e-3)
    plans = [dpsum.Poisson(**POISSON) for _ in range(2)]
    with pytest.raises(dpsum.DpsumError, match="cohorts of their own draws"):
        make_sums([], plans, budget=budget)
    shared, _ = make_sums([], plans[:1] * 2, budget=budget)
    shared.begin_round(0)


def test_run_that_rests_on_another_has_a_draw_of_its_own():
    """Two runs of one seed are in the same cohorts: their releases are dependent."""
    ledgers = []
    for seed in (1, 1, 2):
        ledger = []
        plans = [dpsum.Poisson(seed=seed, **POISSON)]
        release_all(make_sums(ledger, plans, 0.2), 1)
        ledgers.append(ledger)
    first, same, other = ledgers
    context = AccountContext(before=tuple(first))
    with pytest.raises(dpsum.DpsumError, match="random stream of the run that it"):
        account(same, delta=0.15, context=context)
    apart = account(other, delta=0.15, context=context).profiles["proven"]
    expected = dp_accounting_epsilon([(0.2, 1, 0.1)] * 2, 0.15)
    assert apart.epsilon_high == pytest.approx(expected, abs=2e-3)


# Parts of the records


def test_part_of_a_sum_over_clients_is_refused():
    with pytest.raises(dpsum.DpsumError, match="parts are of records"):
        dpsum.SumSpec(name="a", unit="client", observer="everyone", part="a")
    lines = [make_release(part="a")]
    with pytest.raises(dpsum.DpsumError, match="parts are of records"):
        proven(lines)


@pytest.mark.parametrize(
    ("parts", "mu"), [((None, None), math.sqrt(2)), (("support", "query"), 1.0)]
)
def test_sums_over_records_are_disjoint_only_where_they_say_so(parts, mu):
    """Names of DP-AGRLR's sums had 4.377 without parts, for 6.573."""
    names = "support-gradient-sum", "query-gradient-sum"
    sampler = {"kind": "everyone", "clients": 3, "cohort": 3, "rounds": 1, "rate": 1.0}
    lines = [
        make_release(name=name, unit="record", part=part, sampler=sampler)
        for name, part in zip(names, parts, strict=True)
    ]
    expected = pytest.approx(gaussian_epsilon(mu), rel=1e-6)
    assert proven(lines).epsilon_high == expected
    assert gaussian_epsilon(math.sqrt(2)) == pytest.approx(6.573, abs=5e-4)


# Noise of a round


def make_one(**changes):
    (mechanism,) = make_sums(
        changes.pop("ledger", []),
        [dpsum.OnePass(units=8, cohort=2, rounds=4)],
        **changes,
    )
    return mechanism


def test_second_sum_with_the_noise_of_a_finished_one_is_refused():
    mechanism = make_one()
    first, second = mechanism.begin_round(0), mechanism.begin_round(0)
    mechanism.finish(first)
    with pytest.raises(dpsum.DpsumError, match="would repeat its noise"):
        mechanism.finish(second)
    mechanism.write(0)
    with pytest.raises(dpsum.DpsumError, match="would repeat its noise"):
        mechanism.finish(second)
    with pytest.raises(dpsum.DpsumError, match="has the line of round 0"):
        mechanism.write(0)


def test_holders_have_noise_of_their_own_once_a_round():
    plan = dpsum.Everyone(units=2, cohort=2, rounds=2)
    mechanism = make_mechanism(
        clipping=dpsum.Constant(1.0),
        noise=dpsum.Gaussian(1.0),
        participation=plan,
        dimension=3,
        ledger=[],
        holders=2,
        seed=0,
    )
    for index in range(2):
        sums = [mechanism.begin_round(index, holder=holder) for holder in (0, 1)]
        repeated = mechanism.begin_round(index, holder=1)
        first, second = map(mechanism.finish, sums)
        assert not np.allclose(first, second)
        with pytest.raises(dpsum.DpsumError, match="would repeat its noise"):
            mechanism.finish(repeated)
        mechanism.write(index)


def test_finished_sum_is_written_as_its_own_round_alone():
    mechanism = make_one()
    mechanism.finish(mechanism.begin_round(1))
    with pytest.raises(dpsum.DpsumError, match="write that round, not 2"):
        mechanism.write(2)


@pytest.mark.parametrize("in_a_file", [False, True])
def test_restored_mechanism_does_not_release_a_written_round_again(tmp_path, in_a_file):
    ledger = []
    if in_a_file:
        ledger = dpsum.Ledger(tmp_path / "ledger.jsonl")
    mechanism = make_one(ledger=ledger)
    state = mechanism.state()
    mechanism.release(mechanism.begin_round(0))
    mechanism.restore(state)
    with pytest.raises(dpsum.DpsumError, match="would repeat its noise"):
        mechanism.release(mechanism.begin_round(0))


def test_restored_mechanism_repeats_rounds_that_the_ledger_took_back(tmp_path):
    """A restart from a checkpoint makes the same releases, not further ones."""
    ledger = dpsum.Ledger(tmp_path / "ledger.jsonl")
    mechanism = make_one(ledger=ledger)
    mechanism.release(mechanism.begin_round(0))
    state, chain = mechanism.state(), ledger.chain
    first = mechanism.release(mechanism.begin_round(1))
    ledger.go_on_after(chain)
    mechanism.restore(state)
    again = mechanism.release(mechanism.begin_round(1))
    np.testing.assert_array_equal(first, again)
    assert len(dpsum.read_ledger(ledger.path)) == 2


def test_restored_mechanism_repeats_rounds_that_were_removed_from_a_list():
    ledger = []
    mechanism = make_one(ledger=ledger)
    state = mechanism.state()
    first = mechanism.release(mechanism.begin_round(0))
    ledger.clear()
    mechanism.restore(state)
    again = mechanism.release(mechanism.begin_round(0))
    np.testing.assert_array_equal(first, again)
    assert len(ledger) == 1
