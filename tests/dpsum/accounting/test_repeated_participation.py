"""Several participations in known rounds, and shuffled epochs: by going through all
sets of rounds, and hand derivations.

Expected values are brute force, closed forms, quadrature, and what jax_privacy 2.0 has
for the same encoders (its `get_sensitivity_banded`, and
`get_min_sep_sensitivity_upper_bound` of more bands; `JAX_PRIVACY`). Planted: a band too
many, a pattern that is ignored, weights of another length.
"""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from scipy.linalg import toeplitz
from scipy.stats import norm

from dpfedbench.errors import BenchError
from dpsum.accounting import analyses
from dpsum.accounting.account import account
from dpsum.accounting.analyses import poisson
from dpsum.accounting.calibration import epsilon_after
from dpsum.accounting.gaussian import gaussian_delta, gaussian_epsilon
from dpsum.accounting.image_level import ImageUse
from dpsum.accounting.repeated_participation import heaviest, sensitivity
from dpwatch.accountants.secret_batches import secret_batches
from tests.dpsum.accounting import test_samplers

DELTA = 1e-6


def banded(rounds, bands):
    """The square root of the sum of a prefix, cut to so many bands: 1, 1/2, 3/8, 5/16,
    ...
    """
    column = np.array(
        [
            math.comb(2 * lag, lag) / 4**lag if lag < bands else 0.0
            for lag in range(rounds)
        ]
    )
    return np.tril(toeplitz(column))


def patterns(rounds, separation, participations):
    for count in range(1, participations + 1):
        for at in itertools.combinations(range(rounds), count):
            if all(
                late - early >= separation for early, late in itertools.pairwise(at)
            ):
                yield list(at)


def brute(gram, separation, participations):
    sizes = [
        np.abs(gram[np.ix_(at, at)]).sum()
        for at in patterns(len(gram), separation, participations)
    ]
    return math.sqrt(max(sizes))


def test_the_heaviest_set_of_rounds_is_that_of_all_sets():
    rng = np.random.default_rng(1)
    for _ in range(60):
        rounds, near, most = (
            rng.integers(1, 11),
            int(rng.integers(1, 5)),
            int(rng.integers(1, 5)),
        )
        weights = rng.exponential(size=rounds)
        found, at = heaviest(weights, near, most)
        assert found == pytest.approx(
            max(weights[at].sum() for at in patterns(rounds, near, most)), rel=1e-12
        )
        assert weights[at].sum() == pytest.approx(found, rel=1e-12) and list(
            at
        ) in list(patterns(rounds, near, most))
    assert heaviest(np.ones(4), 1, 0)[0] == 0.0


def test_the_ends_lie_around_all_sets_of_rounds():
    rng = np.random.default_rng(2)
    for _ in range(60):
        rounds, near, most = (
            rng.integers(2, 9),
            int(rng.integers(1, 4)),
            int(rng.integers(1, 4)),
        )
        encoder = np.tril(rng.normal(size=(rounds, rounds)))
        gram = encoder.T @ encoder
        low, high = sensitivity(gram, near, most)
        exact = brute(gram, near, most)
        assert low <= exact * (1 + 1e-12) and exact <= high * (1 + 1e-12)


@pytest.mark.parametrize("bands", [1, 2, 3, 4, 7, 12])
def test_falling_weights_are_exact(bands):
    gram = banded(12, bands).T @ banded(12, bands)
    low, high = sensitivity(gram, 3, 3)
    assert low == high == pytest.approx(brute(gram, 3, 3), rel=1e-12)
    if (
        bands <= 3
        # columns that far apart are orthogonal: the root of three times the largest square
    ):
        assert high == pytest.approx(math.sqrt(3 * np.diag(gram).max()), rel=1e-12)


def test_any_weights_of_few_bands_are_exact():
    """Columns three apart do not overlap: the heaviest set of squares. A band too many,
    and they do.
    """
    rng = np.random.default_rng(3)
    encoder = np.tril(np.triu(rng.normal(size=(12, 12)), -2))
    gram = encoder.T @ encoder
    low, high = sensitivity(gram, 3, 3)
    assert low == high == pytest.approx(brute(gram, 3, 3), rel=1e-12)
    wider = encoder + np.diag(np.ones(9), -3)
    assert (
        sensitivity(wider.T @ wider, 3, 3)[1]
        >= brute(wider.T @ wider, 3, 3)
        > brute(gram, 3, 3)
    )


# (rounds, bands, rounds apart, participations): jax_privacy 2.0's, with x64 on, of
# `banded(rounds, bands)`.
JAX_PRIVACY = {
    (40, 4, 10, 4): 2.439902661992892,
    (40, 10, 10, 4): 2.676821952679029,
    (40, 10, 10, 2): 1.8927989547683568,
    (64, 16, 16, 4): 2.788461114777662,
    (100, 25, 30, 3): 2.5026225182511572,
    (40, 11, 10, 4): 2.883694554171545,
    (40, 40, 10, 4): 3.8813174427331667,
    (12, 12, 3, 3): 3.0705364864907208,
}


@pytest.mark.parametrize("of", JAX_PRIVACY)
def test_jax_privacy_has_the_same(of):
    rounds, bands, near, most = of
    found = sensitivity(banded(rounds, bands).T @ banded(rounds, bands), near, most)[1]
    assert found == pytest.approx(JAX_PRIVACY[of], rel=1e-9)


SAMPLER = {
    "kind": "min-separation",
    "clients": 300,
    "cohort": 90,
    "rounds": 10,
    "rate": 0.3,
    "separation": 3,
    "participations": 3,
}
Z, C = 2.0, 0.5


def ledger(weights=None, *, sampler=SAMPLER, rounds=10, noises=None, **values):
    """Of ten rounds; `weights` is C^-1 of correlated noise."""
    lines = test_samplers.ledger(sampler)[:rounds]
    said = {
        "noise_multiplier": Z,
        "threshold": C,
        "sensitivity": C,
        "noise_std": Z * C,
    } | values
    if noises is not None:
        return [
            dataclasses.replace(line, noise_multiplier=z, noise_std=z)
            for line, z in zip(lines, noises, strict=True)
        ]
    if weights is None:
        return [dataclasses.replace(line, **said) for line in lines]
    return [
        dataclasses.replace(
            line,
            mechanism="correlated-gaussian",
            combines=weights[line.round, : line.round + 1].tolist(),
            **said,
        )
        for line in lines
    ]


def holds(releases, profile="holds"):
    entry = account(releases, delta=DELTA, claims={}).profiles[profile]
    return entry.epsilon_low, entry.epsilon_high


def test_independent_noise_is_one_gaussian_of_the_worst_rounds():
    """Ten rounds, three apart, at most three of them; after four rounds a unit has been
    in two, after three in one.
    """
    for rounds, count in ((10, 3), (4, 2), (3, 1)):
        low, high = holds(ledger(rounds=rounds))
        assert (
            low
            == high
            == pytest.approx(gaussian_epsilon(Z / count**0.5, DELTA), rel=1e-12)
        )
    assert holds(ledger(), "replace_one")[1] == pytest.approx(
        gaussian_epsilon(Z / 3**0.5 / 2, DELTA), rel=1e-12
    )
    assert epsilon_after("holds", SAMPLER, Z, 4, DELTA) == pytest.approx(
        gaussian_epsilon(Z / 2**0.5, DELTA), rel=1e-12
    )
    # Rounds 1, 4 and 8 have the least noise of any that are three apart: 1/1 + 1/4 +
    # 1/4.
    noises = [4.0, 1.0, 1.0, 4.0, 2.0, 4.0, 4.0, 4.0, 2.0, 4.0]
    squares = [sum(noises[at] ** -2 for at in rounds) for rounds in patterns(10, 3, 3)]
    assert max(squares) == 1.5
    assert holds(ledger(noises=noises))[1] == pytest.approx(
        gaussian_epsilon(1.5**-0.5, DELTA), rel=1e-12
    )


def scaled(bands, separation=3, participations=3, rounds=10):
    """C^-1 for a banded C whose largest column has norm 1, and how far three
    participations move it.
    """
    encoder = banded(rounds, bands)
    encoder /= np.sqrt((encoder**2).sum(axis=0).max())
    return np.linalg.inv(encoder), brute(
        encoder.T @ encoder, separation, participations
    )


@pytest.mark.parametrize(
    ("bands", "factor"), [(1, 3**0.5), (3, 3**0.5), (4, None), (10, None)]
)
def test_correlated_noise_is_one_gaussian_of_several_columns(bands, factor):
    """Up to three bands cost sqrt(3), as independent noise does; a fourth lets columns
    overlap, and costs more.
    """
    weights, moved = scaled(bands)
    low, high = holds(ledger(weights))
    assert low == pytest.approx(high, rel=1e-9) and high == pytest.approx(
        gaussian_epsilon(Z / moved, DELTA), rel=1e-9
    )
    if factor:
        assert moved == pytest.approx(factor, rel=1e-12)
        assert high == pytest.approx(holds(ledger())[1], rel=1e-9)
    else:
        assert (
            high > 1.02 * holds(ledger())[1]
        )  # of a pattern that is ignored, or a band that is not counted
    assert holds(ledger(weights), "replace_one")[1] == pytest.approx(
        gaussian_epsilon(Z / moved / 2, DELTA), rel=1e-9
    )


def test_it_is_the_gaussian_that_tells_two_neighbours_apart():
    """By the covariance of all releases, for a client of rounds 0, 3 and 6 whose
    contributions are the same vector.
    """
    weights, _ = scaled(10)
    inverse = np.linalg.inv((Z * C) ** 2 * weights @ weights.T)
    moved = np.zeros(10)
    moved[[0, 3, 6]] = C
    distance = (moved @ inverse @ moved) ** 0.5
    assert holds(ledger(weights))[0] == pytest.approx(
        gaussian_epsilon(1 / distance, DELTA), rel=1e-9
    )


def test_the_pattern_of_the_ledger_is_the_one_accounted_for():
    weights, _ = scaled(10)
    found = {}
    for near, most in ((3, 3), (3, 2), (5, 2), (10, 1), (1, 10)):
        sampler = {
            **SAMPLER,
            "separation": near,
            "participations": most,
            "cohort": 30,
            "rate": 0.1,
        }
        found[near, most] = holds(ledger(weights, sampler=sampler))[1]
        encoder = np.linalg.inv(weights)
        worst = max(
            np.linalg.norm(encoder[:, at].sum(axis=1))
            for at in patterns(10, near, most)
        )
        assert found[near, most] == pytest.approx(
            gaussian_epsilon(Z / worst, DELTA), rel=1e-9
        )
    assert found[10, 1] < found[5, 2] < found[3, 2] < found[3, 3] < found[1, 10]


def test_weights_below_nothing_have_two_ends():
    """By hand: C^T C is [[5/4, -1/2], [-1/2, 1]] / (5/4). Both columns make 9/4 at
    right angles and 13/4 at most.
    """
    encoder = np.array([[1.0, 0.0], [-0.5, 1.0]]) / math.sqrt(1.25)
    sampler = {**SAMPLER, "separation": 1, "participations": 2, "rounds": 2}
    low, high = holds(ledger(np.linalg.inv(encoder), sampler=sampler, rounds=2))
    ends = [
        gaussian_epsilon(Z / math.sqrt(square / 1.25), DELTA)
        for square in (9 / 4, 13 / 4)
    ]
    assert [low, high] == pytest.approx(ends, rel=1e-9)


def test_a_weight_too_many_or_too_few_is_refused():
    weights, _ = scaled(3)
    for change in (lambda row: row[:-1], lambda row: [*row, 0.0]):
        lines = ledger(weights)
        lines[5] = dataclasses.replace(lines[5], combines=change(lines[5].combines))
        with pytest.raises(BenchError, match="release 5 does not say which draws"):
            account(lines, delta=DELTA, claims={})
    with pytest.raises(BenchError, match=r"its encoder has a column of norm 1\.2"):
        account(ledger(weights / 1.2), delta=DELTA, claims={})


def test_images_of_clients_that_come_again():
    """Two clients of an image in the same rounds: at most twice as far."""
    use = ImageUse(images=np.zeros((2, 1), int), rounds=None)
    for releases, one in ((ledger(), Z / 3**0.5), (ledger(scaled(3)[0]), Z / 3**0.5)):
        analysis = analyses.of(releases)
        low, high = analysis.image(analysis.read(releases), use, DELTA)
        assert [low, high] == pytest.approx(
            [gaussian_epsilon(one, DELTA), gaussian_epsilon(one / 2, DELTA)], rel=1e-9
        )


EPOCHS = {
    "kind": "shuffled-epochs",
    "clients": 100,
    "cohort": 20,
    "rounds": 10,
    "rate": 0.2,
    "epoch": 5,
}


def test_known_batches_are_one_gaussian_an_epoch():
    known = {**EPOCHS, "batches": "known"}
    for rounds, count in ((10, 2), (6, 2), (5, 1), (1, 1)):
        low, high = holds(ledger(sampler=known, rounds=rounds))
        assert (
            low
            == high
            == pytest.approx(gaussian_epsilon(Z / count**0.5, DELTA), rel=1e-12)
        )
    noises = [4.0, 1.0, 4.0, 4.0, 2.0, 4.0, 4.0, 4.0, 4.0, 2.0]
    low, high = holds(ledger(sampler=known, noises=noises))
    assert (
        low
        == high
        == pytest.approx(gaussian_epsilon((1 + 1 / 4) ** -0.5, DELTA), rel=1e-12)
    )
    low, high = holds(ledger(sampler=known), "replace_one")
    assert (
        low == high == pytest.approx(gaussian_epsilon(Z / 2**0.5 / 2, DELTA), rel=1e-12)
    )


def test_secret_batches_are_between():
    secret = {**EPOCHS, "batches": "secret"}
    low, high = holds(ledger(sampler=secret))
    assert (
        0.1 * high
        < low
        < high
        == pytest.approx(gaussian_epsilon(Z / 2**0.5, DELTA), rel=1e-12)
    )
    assert holds(ledger(sampler=secret), "replace_one")[1] == pytest.approx(
        gaussian_epsilon(Z / 2**0.5 / 2, DELTA)
    )
    noises = [1.0] * 5 + [2.0] * 5
    varied = holds(ledger(sampler=secret, noises=noises))
    assert varied[0] == pytest.approx(low, rel=1e-9)  # of the greatest noise
    assert varied[1] == pytest.approx(
        gaussian_epsilon(1.0 / 2**0.5, DELTA), rel=1e-9
    )  # of the least
    # A batch that is everyone hides nothing: two Gaussians, whether batches are secret
    # or not.
    whole = {**EPOCHS, "cohort": 100, "rate": 1.0, "epoch": 1, "batches": "secret"}
    low, high = holds(ledger(sampler=whole, rounds=2))
    assert low == high == pytest.approx(gaussian_epsilon(Z / 2**0.5, DELTA), rel=1e-12)


@pytest.mark.parametrize(("z", "epoch"), [(1.0, 250), (2.0, 250), (1.0, 10)])
def test_one_secret_epoch_is_at_least_the_event_of_one_large_sum(z, epoch):
    """Chua et al. (2024): P and Q of the largest of T sums being above c, by their
    product formula, at the best c.
    """
    cuts = np.linspace(-6 * z, 2 + 12 * z, 40_001)
    rest = (epoch - 1) * norm.logcdf(cuts / z)
    first, second = (
        -np.expm1(norm.logcdf((cuts - mean) / z) + rest) for mean in (2.0, 1.0)
    )
    low = secret_batches(z, 1 / epoch, epoch, epoch, DELTA)
    assert (
        float(np.max(first - math.exp(low + 5e-3) * second))
        < DELTA
        < gaussian_delta(z, low)
    )
    # And above what Poisson's account has at the same rate.
    assert low > poisson.upper_epsilon(((z, epoch),), 1 / epoch, DELTA)


def test_two_secret_epochs_of_two_rounds_by_quadrature():
    """Of the data set itself, the unit 1 and all others -1: the exact delta of four
    sums is above what the low end says.

    One epoch's pair is (N(2, 0) + N(0, 2)) / 2 against (N(1, 0) + N(0, 1)) / 2. Its
    loss is put on a fine grid, rounded to nearest, and composed with itself by a double
    sum: no end, but right to 1e-3 of epsilon.
    """
    z, delta = 1.5, 1e-3
    x = np.linspace(-9, 11, 801)
    one, two = np.meshgrid(x, x)
    cell = (x[1] - x[0]) ** 2 / (2 * math.pi * z**2)

    def law(mean):
        shifted = [
            np.exp(-((one - a) ** 2 + (two - b) ** 2) / (2 * z**2))
            for a, b in ((mean, 0), (0, mean))
        ]
        return cell * sum(shifted) / 2

    first, second = law(2.0), law(1.0)
    step = 2e-3
    places = np.rint(np.log(first / second) / step).astype(int).ravel()
    least = places.min()
    weights = np.bincount(places - least, first.ravel())
    both = np.convolve(weights, weights)
    losses = (2 * least + np.arange(len(both))) * step

    def above(epsilon):
        return float((both * np.maximum(-np.expm1(epsilon - losses), 0.0)).sum())

    low = secret_batches(z, 0.5, 2, 4, delta)
    high = gaussian_epsilon(z / 2**0.5, delta)
    assert above(high) < delta < above(low + 2e-3)
    assert delta > above(1.3 * low)  # and not far above
