"""`dpsum.Mechanism` in a user's loop: draws, ledger, budget and refusals."""

import dataclasses
import math

import numpy as np
import pytest
from scipy.stats import norm

import dpsum
from tests.dpsum.helpers import make_mechanisms, make_spec, release_rounds

D = 3
POISSON = dpsum.Poisson(units=40, cohort=10, rounds=40, seed=0)


def make(**changes):
    """Make a mechanism of four rounds, whose ledger is a list unless given."""
    (mechanism,) = make_several(changes)
    return mechanism


def make_several(*changes):
    """Make mechanisms of one run, which share a ledger and a budget."""
    values = {
        "name": "update",
        "dimension": D,
        "clipping": dpsum.Constant(0.5),
        "participation": dpsum.OnePass(units=40, cohort=10, rounds=4, seed=0),
        "noise": dpsum.Gaussian(1.0),
        "seed": 0,
        "ledger": [],
    }
    return make_mechanisms([values | more for more in changes])


def gaussian_delta(z, epsilon):
    """Return the delta of Balle and Wang (2018), Theorem 8."""
    second = math.exp(epsilon) * norm.cdf(-0.5 / z - epsilon * z)
    return float(norm.cdf(0.5 / z - epsilon * z) - second)


SECOND = {"name": "second", "stream": "other"}


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
    first, second = make_several(
        {"budget": budget},
        {"budget": budget, "noise": dpsum.Gaussian(2.0), **SECOND},
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
    training = records | {"part": "training half"}
    validation = records | {"part": "validation half", **SECOND}
    quiet = {"noise": dpsum.Gaussian(2.0)}
    for mechanism in make_several(training, validation | quiet):
        spent = mechanism.epsilon_spent(4)["epsilon_proven"]
        assert spent == pytest.approx(4.887, abs=5e-4)
        assert gaussian_delta(1.0, spent) == pytest.approx(1e-6, rel=1e-5)
    tight = {"budget": dpsum.Budget(epsilon=3.0, delta=1e-6)}
    for sums in (
        (training | tight | quiet, validation | tight),
        (training | tight, validation | tight | quiet),
    ):
        first, _ = make_several(*sums)
        assert not first.allows(1)


def test_calibrated_sum_has_the_least_multiplier_of_its_budget():
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
    values = {"noise": dpsum.Factorised(1.0, rounds=4), "seed": seed}
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
        make_several({}, {"name": "second"})
    with pytest.raises(dpsum.DpsumError, match="noise from the stream 0"):
        make(ledger=first.ledger, name="second")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "second", "participation": POISSON}, "no analysis composes them"),
        ({}, r"two private sums .* have the name update"),
    ],
)
def test_composition_refuses_sums_that_do_not_compose(changes, message):
    """Of two sums of one name, the second one's epsilon would be left out."""
    budget = {"budget": dpsum.Budget()}
    with pytest.raises(dpsum.DpsumError, match=message):
        make_several(budget, budget | {"stream": "other"} | changes)


def make_pair(**changes):
    """Return the specifications of two sums that share a budget."""
    budget = dpsum.Budget(epsilon=5.0, delta=1e-6)
    values = {"clipping": dpsum.Constant(0.5), "budget": budget}
    values |= {"noise": dpsum.Gaussian(None)} | changes
    return make_spec(**values), make_spec(**values | SECOND)


def test_calibrated_sums_of_one_budget_have_equal_multipliers():
    """Two sums of sqrt(2) z are one Gaussian of z; z is rounded up to four digits."""
    first, second = dpsum.calibrated(make_pair(), POISSON)
    z = dpsum.calibrate("proven", POISSON.describe(), 5.0, 1e-6)
    assert first.noise.multiplier == second.noise.multiplier
    assert first.noise.multiplier == pytest.approx(math.sqrt(2) * z, rel=1e-3)
    assert first.noise.multiplier >= math.sqrt(2) * z


def test_calibrated_multiplier_of_noise_by_group_is_the_configured_one():
    """Noise of z C_g in each of two groups protects like z / sqrt(2)."""
    plan = dpsum.OnePass(units=40, cohort=10, rounds=4)
    groups = dpsum.CoordinateGroups((0, 1, D), "per-group")
    flat, grouped = (
        dpsum.calibrated(make_pair(groups=value)[:1], plan)[0]
        for value in (None, groups)
    )
    expected = math.sqrt(2) * flat.noise.multiplier
    assert grouped.noise.multiplier == pytest.approx(expected, rel=1e-12)
    assert grouped.noise.multiplier / math.sqrt(2) >= flat.noise.multiplier
    values = {"participation": plan, "dimension": D, "ledger": []}
    mechanism = dpsum.Mechanism(grouped, **values)
    assert mechanism.noise_multiplier == pytest.approx(flat.noise.multiplier)


def test_sums_of_one_budget_are_calibrated_together():
    """The first one's noise does not leave room for the second."""
    first, second = make_pair()
    composition = dpsum.Composition()
    composition.calibrate([first], POISSON)
    with pytest.raises(dpsum.DpsumError, match="calibrate both sums in one call"):
        composition.calibrate([second], POISSON)
    known = dpsum.Composition(sums=[first, second])
    known.calibrate([first], POISSON)
    noisier = dataclasses.replace(second, noise=dpsum.Gaussian(0.5))
    with pytest.raises(dpsum.DpsumError, match="calibrate both sums in one call"):
        known.calibrate([noisier], POISSON)
    known = dpsum.Composition(sums=[first, second])
    known.calibrate([first], POISSON)
    known.calibrate([second], POISSON)
    assert known.noise_multiplier("sum") == known.noise_multiplier("second")


def test_mechanism_takes_a_sum_that_was_calibrated_for_its_participation_once():
    composition = dpsum.Composition()
    spec = make_spec(clipping=dpsum.Constant(0.5), noise=dpsum.Gaussian(1.0))
    composition.calibrate([spec], POISSON)
    values = {"dimension": D, "ledger": [], "composition": composition}
    other = dpsum.Poisson(units=40, cohort=10, rounds=40, seed=1)
    with pytest.raises(dpsum.DpsumError, match="not calibrated for this participation"):
        dpsum.Mechanism(spec, participation=other, **values)
    dpsum.Mechanism(spec, participation=POISSON, **values)
    with pytest.raises(dpsum.DpsumError, match="would draw the same noise"):
        dpsum.Mechanism(spec, participation=POISSON, **values)


def test_mechanism_does_not_look_for_its_multiplier():
    first, _ = make_pair()
    with pytest.raises(dpsum.DpsumError, match="has no noise multiplier: give one, or"):
        dpsum.Mechanism(first, participation=POISSON, dimension=D, ledger=[])


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
