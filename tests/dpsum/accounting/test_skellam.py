"""Skellam noise as one Gaussian release: against exact sums, Renyi divergences,
dp-accounting and published bounds.
"""

import dataclasses
import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy import stats
from scipy.special import i0e, logsumexp, ndtri

from dpfedbench.errors import BenchError
from dpsum.accounting.account import account
from dpsum.accounting.analyses import find
from dpsum.accounting.analyses.skellam import (
    FACTOR,
    LEAST_VARIANCE,
    log_tails,
    lower_epsilon,
    step,
)
from dpsum.accounting.calibration import calibrate
from dpsum.accounting.context import AccountContext
from dpsum.accounting.gaussian import gaussian_delta, gaussian_epsilon
from dpsum.accounting.image_level import ImageUse
from dpsum.ledger import Ledger, Release, read_ledger
from dpsum.secure import Lattice

VARIANCES = [1.0, 4.0, 30.0, 300.0]


def skellam(variance):
    return stats.skellam(variance / 2, variance / 2)


@pytest.mark.parametrize("variance", VARIANCES)
def test_tails_are_scipys(variance):
    """Relative to 1e-7, down to 1e-7: beyond it scipy's own sums are not exact."""
    far = int(5 * math.sqrt(variance))
    assert np.exp(log_tails(variance)[:far]) == pytest.approx(
        skellam(variance).sf(np.arange(far) - 1), rel=1e-7
    )


@pytest.mark.parametrize("variance", [*VARIANCES, 1e4, 1e6])
def test_the_middle_step_is_the_largest(variance):
    """In closed form, by scipy's Bessel function; so it is what the proof needs and no
    more.
    """
    assert step(variance) == pytest.approx(2 * ndtri((1 + i0e(variance)) / 2), rel=2e-8)


@pytest.mark.parametrize("variance", [LEAST_VARIANCE, 300.0, 1e3, 1e5, 1e7])
def test_the_analysis_asks_for_enough(variance):
    assert 1 < step(variance) * math.sqrt(variance) < FACTOR


def exact_delta(variance, shifts, epsilon):
    """sum of (p(x - v) - e^eps p(x))^+ over a grid of two dimensions at most, by
    scipy's probabilities.
    """
    far = int(14 * math.sqrt(variance)) + 10
    x = np.arange(-far, far + 1)
    shifted, plain = np.ones(1), np.ones(1)
    for shift in shifts:
        shifted = np.multiply.outer(shifted, skellam(variance).pmf(x - shift))
        plain = np.multiply.outer(plain, skellam(variance).pmf(x))
    return float(np.clip(shifted - math.exp(epsilon) * plain, 0, None).sum())


@pytest.mark.parametrize("shifts", [(1,), (-3,), (1, 1), (2, -1), (4, 3)])
@pytest.mark.parametrize("variance", [1.0, 4.0, 30.0])
def test_every_shift_is_within_the_gaussian(variance, shifts):
    distance = step(variance) * math.hypot(*shifts)
    for epsilon in (0.0, 0.1, 0.5, 1.0, 2.0, 4.0):
        exact = exact_delta(variance, shifts, epsilon)
        assert exact <= gaussian_delta(1 / distance, epsilon) + 1e-12
    # At epsilon 0 the middle corner of one shift by one is reached.
    if shifts == (1,):
        assert exact_delta(variance, shifts, 0.0) == pytest.approx(
            gaussian_delta(1 / distance, 0.0), rel=1e-7
        )


def test_normal_noise_of_the_same_deviation_would_not_do():
    """Which is why the factor is there: a Gaussian of deviation mu^1/2 promises less
    delta than there is.
    """
    assert exact_delta(1.0, (1,), 0.0) > gaussian_delta(1.0, 0.0)


def test_sixteen_coordinates_by_dp_accounting():
    """v of sixteen ones at mu = 16 composes to an epsilon just below that of a Gaussian
    at 4 g.
    """
    variance, delta = 16.0, 1e-6
    x = np.arange(-120, 121)
    pmf, moved = (
        dict(zip(x.tolist(), skellam(variance).logpmf(x - shift), strict=True))
        for shift in (0, 1)
    )
    composed = privacy_loss_distribution.from_two_probability_mass_functions(
        pmf, moved, value_discretization_interval=1e-4
    ).self_compose(16)
    ours = gaussian_epsilon(1 / (step(variance) * 4), delta)
    theirs = composed.get_epsilon_for_delta(delta)
    assert theirs <= ours * (1 + 1e-3)  # theirs is rounded up to its grid
    assert theirs > 0.97 * ours


@pytest.mark.parametrize("variance", [4.0, 30.0, 300.0])
def test_renyi_divergences_lie_between_the_exact_and_the_published_bound(variance):
    """D_alpha by direct summation <= alpha g^2 / 2 <= Agarwal et al. 2021, Theorem 3.5,
    of one coordinate's shift.
    """
    far = int(25 * math.sqrt(variance)) + 60
    x = np.arange(-far, far + 1)
    log = stats.skellam(variance / 2, variance / 2).logpmf
    logs = [np.where(np.isfinite(one), one, -1e4) for one in (log(x), log(x - 1))]
    for alpha in (2, 4, 8, 16):
        exact = float(logsumexp(alpha * logs[1] + (1 - alpha) * logs[0])) / (alpha - 1)
        gaussian = alpha * step(variance) ** 2 / 2
        extra = min(((2 * alpha - 1) + 6) / (4 * variance**2), 3 / (2 * variance))
        assert exact <= gaussian * (1 + 1e-9)
        assert gaussian <= alpha / (2 * variance) + extra


@pytest.mark.parametrize(("variance", "shift"), [(4.0, 1), (30.0, 5), (300.0, 17)])
def test_the_low_end_is_one_coordinates_epsilon(variance, shift):
    found = lower_epsilon(variance, shift, 1e-5)
    assert exact_delta(variance, (shift,), found) == pytest.approx(1e-5, rel=1e-5)
    assert found <= gaussian_epsilon(1 / (step(variance) * shift), 1e-5)
    assert lower_epsilon(variance, 10**6, 1e-5) == 0.0


# The account of a ledger

Z, C, DELTA, COHORT = 2.0, 0.5, 1e-6, 100
SAMPLER = {
    "kind": "one-pass",
    "clients": 400,
    "cohort": COHORT,
    "rounds": 4,
    "rate": 0.25,
}
GIVEN = {
    "dimension": 3000,
    "threshold": C,
    "noise_multiplier": Z,
    "deviations": 4.0,
    "clients": COHORT,
}


def ledger(bits=16, counted=COHORT, **values):
    lattice = Lattice.of(**GIVEN, bits=bits, counted=counted)
    reach = lattice.granularity * lattice.bound(C)
    return [
        Release(
            **{
                "round": index,
                "name": "sum",
                "mechanism": "skellam",
                "unit": "client",
                "adjacency": "zero-out",
                "observer": "server",
                "noise_multiplier": Z,
                "threshold": C,
                "sensitivity": reach,
                "noise_std": Z * reach,
                "dimension": 3000,
                "sampler": SAMPLER,
                "denominator": 100.0,
                "noise_stream": "0/noise",
                "counted_by_paper": True,
                "data_dependent_threshold": False,
                "reason": "",
                "secure": lattice.said(threshold=C, noise_multiplier=Z),
            }
            | values
        )
        for index in range(4)
    ]


def test_it_is_one_gaussian_release_of_slightly_less_noise():
    found = account(ledger(), delta=DELTA, claims={})
    holds = found.profiles["holds"]
    assert holds.epsilon_high == gaussian_epsilon(Z / FACTOR, DELTA)
    assert (
        0.998 * gaussian_epsilon(Z, DELTA)
        < holds.epsilon_low
        < gaussian_epsilon(Z, DELTA)
    )
    assert (holds.unit, holds.observer, holds.status) == ("client", "server", "proved")
    replaced = found.profiles["replace_one"]
    assert (
        replaced.epsilon_low
        < replaced.epsilon_high
        == gaussian_epsilon(Z / FACTOR / 2, DELTA)
    )
    assert "claims no epsilon" in found.reasons["as_claimed"]
    assert (
        calibrate("holds", SAMPLER, 1.5, DELTA, mechanism="skellam") == 2.907
    )  # 2.90406 times the factor, rounded up


def test_the_account_says_what_it_assumes():
    text = (
        account(ledger(counted=80), delta=DELTA, claims={})
        .profiles["holds"]
        .explanation
    )
    assert (
        "the sum modulo 2^16 alone, with an honest majority, and counts 80 of 100"
        " clients' shares" in text
    )


def test_fewer_bits_widen_the_bracket_and_uncounted_shares_too():
    """Rounding may add to a contribution's norm, but need not; who stays adds noise
    that is not counted.
    """
    lows = [
        account(ledger(**one), delta=DELTA, claims={}).profiles["holds"].epsilon_low
        for one in (
            {"bits": 16},
            {"bits": 12},
            {"bits": 11},
            {"bits": 16, "counted": 50},
        )
    ]
    assert lows[0] > lows[1] > lows[2] > 0
    assert lows[3] == pytest.approx(gaussian_epsilon(Z * math.sqrt(2), DELTA), rel=0.01)


def test_an_image_in_several_rounds():
    use = ImageUse(images=np.array([[7], [7], [8]]), rounds=np.array([0, 0, 1]))
    found = account(
        ledger(), delta=DELTA, claims={}, given=AccountContext(images=use)
    ).profiles["image_level"]
    assert found.epsilon_high == pytest.approx(
        gaussian_epsilon(Z / FACTOR / 2, DELTA), rel=1e-9
    )
    assert found.epsilon_low < gaussian_epsilon(Z, DELTA)


@pytest.mark.parametrize("kind", ["poisson", "balls-and-bins", "poisson-lots"])
def test_other_samplers_have_no_analysis(kind):
    with pytest.raises(
        BenchError, match=f"no analysis for skellam noise with the sampler '{kind}'"
    ):
        find("skellam", kind)


def changed(lines, **values):
    return [
        dataclasses.replace(lines[0], secure={**lines[0].secure, **values}),
        *lines[1:],
    ]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            lambda lines: [dataclasses.replace(lines[0], secure=None), *lines[1:]],
            "does not say which whole numbers",
        ),
        (lambda lines: changed(lines, more=1), "does not say which whole numbers"),
        (lambda lines: changed(lines, counted=101), "counts 101 of 100 clients' noise"),
        # The sensitivity of contributions that were not rounded.
        (
            lambda lines: ledger(sensitivity=C, noise_std=Z * C),
            "but rounding 3000 coordinates makes it",
        ),
        (
            lambda lines: changed(lines, coordinates=2048),
            "but rounding 3000 coordinates makes it",
        ),
        # Noise of shares for 100 clients, of which 80 are counted.
        (lambda lines: changed(lines, counted=80), "but 80 shares come to"),
        (
            lambda lines: changed(
                lines, share_variance=lines[0].secure["share_variance"] / 4
            ),
            "but 100 shares come to",
        ),
    ],
)
def test_ledgers_of_another_mechanism_are_refused(change, line):
    with pytest.raises(BenchError) as caught:
        account(change(ledger()), delta=DELTA, claims={})
    assert line in str(caught.value) and "\n" not in str(caught.value)


def test_too_little_noise_for_the_analysis_is_refused():
    lattice = Lattice(
        granularity=C, bits=16, coordinates=1, clients=COHORT, counted=COHORT
    )
    reach = C * lattice.bound(C)
    one = ledger(
        dimension=1,
        sensitivity=reach,
        noise_std=Z * reach,
        secure=lattice.said(threshold=C, noise_multiplier=Z),
    )
    with pytest.raises(
        BenchError,
        match=(
            r"noise of variance 11 units on a coordinate, below the 256 of its analysis"
        ),
    ):
        account(one, delta=DELTA, claims={})


def test_the_ledger_keeps_the_whole_numbers(tmp_path):
    written = Ledger(tmp_path / "ledger.jsonl")
    for release in ledger():
        written.append(release)
    assert read_ledger(written.path) == ledger()
