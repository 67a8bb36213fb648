"""`dpsum.Mechanism` in a user's loop: draws, ledger, budget and refusals."""

import math

import numpy as np
import pytest
from scipy.stats import norm

import dpsum
from dpsum.factorisations import square_root
from tests.dpsum.helpers import make_mechanism, release_rounds

D = 3
POISSON = dpsum.Poisson(units=40, cohort=10, rounds=40, seed=0)


def make(**changes):
    """Make a mechanism of four rounds, whose ledger is a list unless given."""
    values = {
        "name": "update",
        "dimension": D,
        "clipping": dpsum.Constant(0.5),
        "participation": dpsum.OnePass(units=40, cohort=10, rounds=4, seed=0),
        "noise": dpsum.Gaussian(1.0),
        "seed": 0,
        "ledger": [],
    }
    return make_mechanism(**values | changes)


def gaussian_delta(z, epsilon):
    """Return the delta of Balle and Wang (2018), Theorem 8."""
    second = math.exp(epsilon) * norm.cdf(-0.5 / z - epsilon * z)
    return float(norm.cdf(0.5 / z - epsilon * z) - second)


def shared_with(mechanism):
    """Return the ledger and the budget that a second mechanism shares."""
    return {"ledger": mechanism.ledger, "composition": mechanism.composition}


def run_rounds(mechanism, rounds=4):
    """Return the releases of the first rounds, each of ten contributions."""
    return release_rounds(mechanism, np.full((10, D), 7.0), rounds)


def test_mechanism_ledger_has_the_account_of_one_gaussian(tmp_path):
    """A client is in one known round. Ten contributions of norm C point one way; the
    mean of twelve draws of deviation 1 is within five standard errors.
    """
    mechanism = make(noise=dpsum.Gaussian(2.0), ledger=tmp_path / "ledger.jsonl")
    releases = run_rounds(mechanism)
    lines = dpsum.read_ledger(mechanism.ledger.path)
    assert [line.round for line in lines] == [0, 1, 2, 3]
    assert lines[0].noise_std == 1.0 == lines[0].sensitivity * 2
    expected_mean = 10 * 0.5 / math.sqrt(D)
    assert np.mean(releases) == pytest.approx(expected_mean, abs=5 / math.sqrt(12))
    epsilon = dpsum.account(mechanism.ledger.path, delta=1e-6).profiles["proven"]
    assert gaussian_delta(2.0, epsilon.epsilon_high) == pytest.approx(1e-6, rel=1e-6)


@pytest.mark.parametrize(("epsilon", "is_enough"), [(5.6, True), (5.5, False)])
def test_mechanisms_of_one_budget_are_one_gaussian(epsilon, is_enough):
    """z = 1 and 2 over the same clients are (1 + 1/4)^-1/2: 5.551 by closed form."""
    budget = dpsum.Budget(epsilon=epsilon, delta=1e-6)
    first = make(budget=budget)
    second = make(
        **shared_with(first),
        budget=budget,
        name="second",
        stream="other",
        noise=dpsum.Gaussian(2.0),
    )
    assert first.allows(4) == is_enough
    spent = first.epsilon_spent(4)["epsilon_proven"]
    assert spent == second.epsilon_spent(4)["epsilon_proven"]
    assert spent == pytest.approx(5.551, abs=5e-4)
    assert gaussian_delta(1.25**-0.5, spent) == pytest.approx(1e-6, rel=1e-5)


def test_epsilon_spent_on_disjoint_parts_is_that_of_the_worse_part():
    """z = 1 over one part of the records, z = 2 over the other: 4.887 at 1e-6, not
    2.254 (Balle and Wang 2018, Theorem 8).
    """
    budget = dpsum.Budget(epsilon=20.0, delta=1e-6)
    records = {"unit": "record", "observer": "server", "budget": budget}
    first = make(**records, name="a", part="training half")
    second = make(
        **records,
        **shared_with(first),
        name="b",
        part="validation half",
        stream="other",
        noise=dpsum.Gaussian(2.0),
    )
    for mechanism in (first, second):
        spent = mechanism.epsilon_spent(4)["epsilon_proven"]
        assert spent == pytest.approx(4.887, abs=5e-4)
        assert gaussian_delta(1.0, spent) == pytest.approx(1e-6, rel=1e-5)
    tight = dpsum.Budget(epsilon=3.0, delta=1e-6)
    for multipliers in ((1.0, 2.0), (2.0, 1.0)):
        records |= {"budget": tight}
        first = make(
            **records, name="a", part="a", noise=dpsum.Gaussian(multipliers[0])
        )
        make(
            **records,
            **shared_with(first),
            name="b",
            part="b",
            stream="other",
            noise=dpsum.Gaussian(multipliers[1]),
        )
        assert not first.allows(1)


def test_mechanism_finds_its_multiplier_from_a_budget():
    mechanism = make(noise=dpsum.Gaussian(None), budget=dpsum.Budget(epsilon=2.0))
    z = mechanism.noise_multiplier
    assert gaussian_delta(z, 2.0) <= 1e-6 < gaussian_delta(z * 0.999, 2.0)


def test_mechanism_repeats_with_a_seed_and_not_without():
    seeded = make(seed=5)
    assert np.array_equal(run_rounds(seeded), run_rounds(make(seed=5)))
    assert seeded.ledger[0].noise_stream == "5/noise/0"
    unseeded = make(seed=None)
    assert not np.isclose(run_rounds(unseeded), run_rounds(make(seed=None))).any()
    assert unseeded.ledger[0].noise_stream == "the operating system/noise/0"
    assert str(unseeded.seed) not in str(unseeded.ledger)


@pytest.mark.parametrize("seed", [3, None])
def test_mechanism_restarts_from_its_state_with_the_same_bits(seed):
    """Correlated noise takes back what earlier rounds added: it is drawn again."""
    values = {"noise": dpsum.Correlated(1.0, square_root(4)), "seed": seed}
    mechanism = make(**values)
    expected = run_rounds(mechanism, 3)
    restarted = make(**values)
    restarted.restore(mechanism.state())
    assert np.array_equal(run_rounds(restarted, 3), expected)
    assert ("seed" in mechanism.state()) is (seed is None)


def test_mechanism_releases_each_round_once():
    mechanism = make()
    total = mechanism.begin_round(0)
    mechanism.release(total)
    with pytest.raises(RuntimeError, match="was released"):
        total.add(np.ones((1, D)))
    for second in (total, mechanism.begin_round(0)):
        with pytest.raises(dpsum.DpsumError, match="round 0 of update was released"):
            mechanism.release(second)
    mechanism.release(mechanism.begin_round(1))
    assert len(mechanism.ledger) == 2


def test_mechanism_releases_nothing_beyond_its_budget():
    """Without a budget all planned rounds are released."""
    budget = dpsum.Budget(epsilon=5.0, delta=1e-6)
    mechanism = make(participation=POISSON, budget=budget)
    last = max(rounds for rounds in range(41) if mechanism.allows(rounds))
    assert 0 < last < 40
    assert mechanism.epsilon_spent(last)["epsilon_proven"] <= 5.0
    assert mechanism.epsilon_spent(last + 1)["epsilon_proven"] > 5.0
    run_rounds(mechanism, last)
    with pytest.raises(dpsum.DpsumError, match=f"^round {last} .* beyond the budget"):
        mechanism.release(mechanism.begin_round(last))
    assert len(run_rounds(make(participation=POISSON), 40)) == 40


def test_mechanism_begins_no_round_before_the_last_is_in_the_ledger():
    mechanism = make()
    mechanism.finish(mechanism.begin_round(0))
    with pytest.raises(dpsum.DpsumError, match="the ledger has no line of it"):
        mechanism.begin_round(1)
    mechanism.write(0)
    mechanism.release(mechanism.begin_round(1))
    assert [line.round for line in mechanism.ledger] == [0, 1]


def test_mechanism_refuses_a_ledger_or_a_stream_of_noise_that_is_in_use(tmp_path):
    first = make(ledger=tmp_path / "ledger.jsonl")
    with pytest.raises(dpsum.DpsumError, match="exists already: name a new file"):
        make(ledger=first.ledger.path)
    with pytest.raises(dpsum.DpsumError, match="noise from the stream 'noise'"):
        make(**shared_with(first), name="second")
    with pytest.raises(dpsum.DpsumError, match="noise from the stream 0"):
        make(ledger=first.ledger, name="second")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "second", "participation": POISSON}, "no analysis composes them"),
        ({}, r"two private sums .* have the name update"),
    ],
)
def test_composition_refuses_mechanisms_that_do_not_compose(changes, message):
    """Of two sums of one name, the second one's epsilon would be left out."""
    first = make(budget=dpsum.Budget())
    make(**shared_with(first), budget=dpsum.Budget(), stream="other", **changes)
    with pytest.raises(dpsum.DpsumError, match=message):
        first.allows(1)


@pytest.mark.parametrize(
    ("create", "message"),
    [
        (lambda: make().begin_round(0).add(np.ones((2, 4))), r"^contributions .*n, 3"),
        (lambda: make().begin_round(0).add(np.ones(3)), r"^contributions .*\[n, 3\]"),
        (lambda: make().begin_round(0).add([["a"] * 3]), r"^contributions .*\[n, 3\]"),
        (lambda: make(noise=dpsum.Gaussian(None)), "has no noise multiplier"),
        (lambda: make(clipping=dpsum.Constant(None)), r"clipping\.threshold is null"),
        (lambda: dpsum.Budget(epsilon=0.0), "^epsilon is "),
        (lambda: dpsum.Budget(delta=1.0), "^delta is "),
        (lambda: dpsum.Budget(profile="hopes"), "^profile is "),
        (lambda: dpsum.Correlated(1.0, np.ones((2, 2))), "lower triangular"),
        (lambda: dpsum.Correlated(1.0, 0.5 * np.eye(2)), "a norm above 1"),
        (lambda: dpsum.Correlated(1.0, np.ones(2)), "lower triangular"),
        (lambda: dpsum.OnePass(units=40, cohort=7, rounds=4), "divides the units"),
        (lambda: dpsum.BallsAndBins(units=40, cohort=10, rounds=3), "= units"),
        (lambda: dpsum.Poisson(units=40, cohort=41, rounds=3), "41 of 40 units"),
        (lambda: dpsum.Everyone(units=40, cohort=10, rounds=3), "10 of 40 units"),
    ],
)
def test_mechanism_and_its_parts_refuse_values_without_an_account(create, message):
    with pytest.raises(dpsum.DpsumError, match=message):
        create()


@pytest.mark.parametrize(
    "rule",
    [
        dpsum.Constant(1.0),
        dpsum.PrivateQuantile(1.0, count_noise=10.0),
        dpsum.NoisedMeanNorm(1.0),
        dpsum.NormOfRelease(1.0),
        dpsum.PercentileOfReleases(1.0),
        dpsum.PercentileOfRawNorms(1.0, never_rising=False, window=1),
        dpsum.MeanOfRawNorms(1.0),
    ],
    ids=lambda rule: type(rule).__name__,
)
def test_mechanism_finishes_each_round_whatever_the_contributions(rule):
    mechanism = make(clipping=rule)
    rows = [[1e308] * D, [5e-324] * D, [0.0] * D, [math.nan] * D, [math.inf] * D]
    assert np.isfinite(release_rounds(mechanism, np.array(rows), 4)).all()
    assert mechanism.non_finite == 8
    assert {line.round for line in mechanism.ledger} == {0, 1, 2, 3}
