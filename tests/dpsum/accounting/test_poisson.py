"""Poisson accounting against PRIVACY.md's table, dp-accounting, a closed form and known
limits.
"""

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import rdp
from dp_accounting.pld import privacy_loss_distribution
from scipy.optimize import brentq
from scipy.special import ndtr

from dpsum.accounting.analyses.poisson import lower_epsilon, upper_epsilon
from dpsum.accounting.claims import TF_PRIVACY_ORDERS
from dpsum.accounting.gaussian import gaussian_delta, gaussian_epsilon
from dpsum.accounting.renyi import renyi, renyi_epsilon
from tools.published_epsilons import (
    DP_ACCOUNTING_ORDERS,
    renyi_epsilon_tight,
    shuffled_lower_epsilon,
)

Q, T, DELTA = 1600 / 400_000, 250, 1e-6
# PRIVACY.md, one-pass training at N = 400,000, L = 1,600, T = 250, delta = 1e-6.
TABLE = {
    1.0: {
        "paper": 1.517,
        "tight": 1.147,
        "pld": 0.498,
        "one": 4.887,
        "replace": 10.997,
    },
    2.0: {"paper": 0.355, "tight": 0.242, "pld": 0.134, "one": 2.254, "replace": 4.887},
    3.0: {"paper": 0.238, "tight": 0.155, "pld": 0.081, "one": 1.448, "replace": 3.098},
}


@pytest.mark.parametrize("z", TABLE)
def test_the_one_pass_table(z):
    schedule = ((z, T),)
    row = {
        "paper": renyi_epsilon(schedule, Q, DELTA, TF_PRIVACY_ORDERS),
        "tight": renyi_epsilon_tight(schedule, Q, DELTA, DP_ACCOUNTING_ORDERS),
        "pld": upper_epsilon(schedule, Q, DELTA),
        "one": gaussian_epsilon(z, DELTA),
        "replace": gaussian_epsilon(z / 2, DELTA),
    }
    assert {name: round(value, 3) for name, value in row.items()} == TABLE[z]
    assert (
        lower_epsilon(schedule, Q, DELTA)
        <= row["pld"]
        <= row["tight"]
        <= row["paper"]
        < row["one"]
    )
    assert row["pld"] - lower_epsilon(schedule, Q, DELTA) <= 1e-3


def test_a_true_one_and_a_half_needs_2_904():
    z = brentq(lambda z: gaussian_epsilon(z, DELTA) - 1.5, 1, 5, xtol=1e-9)
    assert round(z, 3) == 2.904


def test_shuffled_batches_have_a_lower_bound():
    """4.44 by the event max x > c. For z = 2 that event gives 0.371, above the 0.340
    printed in PRIVACY.md.
    """
    assert round(shuffled_lower_epsilon(1.0, T, DELTA), 2) == 4.44
    assert (
        0.340 <= shuffled_lower_epsilon(2.0, T, DELTA) <= gaussian_epsilon(2.0, DELTA)
    )
    assert upper_epsilon(((2.0, T),), Q, DELTA) < shuffled_lower_epsilon(2.0, T, DELTA)
    # One batch hides nothing, and this pair's distance is then one Gaussian's.
    assert shuffled_lower_epsilon(1.5, 1, 1e-5) == pytest.approx(
        gaussian_epsilon(1.5, 1e-5), abs=1e-3
    )


def test_the_gaussian_inverts_its_own_delta():
    """Balle and Wang's formula by its definition: P(L > eps) - e^eps Q(L > eps), L = (x
    - 1/2)/z^2.
    """
    for z, epsilon in ((0.5, 3.0), (1.0, 1.0), (4.0, 0.1)):
        x = 0.5 + epsilon * z**2
        delta = ndtr(-(x - 1) / z) - math.exp(epsilon) * ndtr(-x / z)
        assert gaussian_delta(z, epsilon) == pytest.approx(delta, rel=1e-9)
        assert gaussian_epsilon(z, delta) == pytest.approx(epsilon, rel=1e-9)
    assert gaussian_epsilon(1.0, 0.5) == 0.0  # the total variation distance is 0.383


@pytest.mark.parametrize(
    ("z", "q", "rounds"),
    [(1.0, Q, T), (3.0, Q, T), (1.0, 0.025, 40), (2.0, 0.013, 979)],
)
def test_it_agrees_with_dp_accounting(z, q, rounds):
    """Its pessimistic composition on a grid of 1e-4 is an upper bound of the same
    quantity.
    """
    step = privacy_loss_distribution.from_gaussian_mechanism(
        z, sampling_prob=q, value_discretization_interval=1e-4
    )
    theirs = step.self_compose(rounds).get_epsilon_for_delta(1e-6)
    ours = upper_epsilon(((z, rounds),), q, 1e-6)
    assert lower_epsilon(((z, rounds),), q, 1e-6) <= theirs
    assert ours == pytest.approx(theirs, abs=1e-3)


def test_schedules_with_several_noises_agree_with_dp_accounting():
    schedule = ((3.0, 60), (2.0, 30), (1.2, 5))
    composed = None
    for z, count in schedule:
        part = privacy_loss_distribution.from_gaussian_mechanism(
            z, sampling_prob=0.02
        ).self_compose(count)
        composed = part if composed is None else composed.compose(part)
    theirs = composed.get_epsilon_for_delta(1e-5)
    assert upper_epsilon(schedule, 0.02, 1e-5) == pytest.approx(theirs, abs=1e-3)
    assert lower_epsilon(schedule, 0.02, 1e-5) <= theirs
    assert upper_epsilon(schedule[::-1], 0.02, 1e-5) == pytest.approx(
        upper_epsilon(schedule, 0.02, 1e-5), abs=1e-6
    )


@pytest.mark.parametrize("z", [0.05, 0.51, 1.0, 3.0, 33.0])
@pytest.mark.parametrize("q", [0.0, 1e-4, 0.004, 1 / 15, 0.5, 0.9999, 1.0])
def test_renyi_divergences_are_dp_accountings_to_the_bit(z, q):
    theirs = rdp.RdpAccountant(TF_PRIVACY_ORDERS)
    theirs.compose(
        dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(z))
    )
    assert np.array_equal(renyi(z, q, TF_PRIVACY_ORDERS), theirs.rdp)


@pytest.mark.parametrize("z", [0.4, 1.0, 5.0])
@pytest.mark.parametrize("q", [0.001, 0.1, 0.7])
def test_one_round_is_a_closed_form(z, q):
    def excess(epsilon):
        x = 0.5 + z**2 * math.log((math.exp(epsilon) - 1 + q) / q)
        return (
            (1 - q) * ndtr(-x / z)
            + q * ndtr(-(x - 1) / z)
            - math.exp(epsilon) * ndtr(-x / z)
            - 1e-6
        )

    exact = brentq(excess, 0, 60, xtol=1e-12) if excess(0.0) > 0 else 0.0
    low, high = lower_epsilon(((z, 1),), q, 1e-6), upper_epsilon(((z, 1),), q, 1e-6)
    assert low <= exact <= high
    assert high - low <= 2e-3


def test_everyone_every_round_is_composed_gaussians():
    assert upper_epsilon(((4.0, 16),), 1.0, DELTA) == gaussian_epsilon(1.0, DELTA)
    assert lower_epsilon(((4.0, 16),), 1.0, DELTA) == gaussian_epsilon(1.0, DELTA)
    assert upper_epsilon(((4.0, 16),), 1 - 1e-7, DELTA) == pytest.approx(
        gaussian_epsilon(1.0, DELTA), abs=2e-3
    )
    assert upper_epsilon((), 0.5, DELTA) == 0.0


@pytest.mark.parametrize("epsilon", [upper_epsilon, lower_epsilon])
def test_it_is_monotone(epsilon):
    base = epsilon(((1.0, 40),), 0.02, DELTA)
    assert (
        epsilon(((1.2, 40),), 0.02, DELTA) < base < epsilon(((0.9, 40),), 0.02, DELTA)
    )
    assert (
        epsilon(((1.0, 40),), 0.01, DELTA) < base < epsilon(((1.0, 40),), 0.03, DELTA)
    )
    assert (
        epsilon(((1.0, 20),), 0.02, DELTA) < base < epsilon(((1.0, 80),), 0.02, DELTA)
    )
    assert epsilon(((1.0, 40),), 0.02, 1e-5) < base < epsilon(((1.0, 40),), 0.02, 1e-7)


@pytest.mark.parametrize("z", [0.01, 0.19, 0.25])
def test_very_little_noise_gives_a_bracket_all_the_same(z):
    low, high = (
        lower_epsilon(((z, 10),), 0.01, DELTA),
        upper_epsilon(((z, 10),), 0.01, DELTA),
    )
    assert 0 <= low <= high <= gaussian_epsilon(z / math.sqrt(10), DELTA)


def test_several_clients_at_once_in_one_round_are_a_mixture_by_quadrature():
    """uses: P = sum_n Binomial(k, q)(n) N(n, z^2) against N(0, z^2), its best event by
    bisection on the threshold.
    """
    k, q, z, delta = 4, 0.3, 1.5, 1e-4
    weights = [math.comb(k, n) * q**n * (1 - q) ** (k - n) for n in range(k + 1)]

    def loss(x):
        return math.log(
            sum(w * math.exp((n * x - n * n / 2) / z**2) for n, w in enumerate(weights))
        )

    def excess(epsilon):
        x = brentq(lambda x: loss(x) - epsilon, -5, 60)
        return (
            sum(w * ndtr(-(x - n) / z) for n, w in enumerate(weights))
            - math.exp(epsilon) * ndtr(-x / z)
            - delta
        )

    exact = brentq(excess, 0.01, 50, xtol=1e-12)
    low, high = (end(((z, 1),), q, delta, k) for end in (lower_epsilon, upper_epsilon))
    assert low <= exact <= high
    assert high - low <= 1e-2 * exact


@pytest.mark.parametrize(("k", "q", "rounds"), [(2, 0.05, 20), (7, 0.02, 40)])
def test_several_clients_at_once_agree_with_dp_accountings_mixture_of_gaussians(
    k, q, rounds
):
    """Its pessimistic estimate is an upper end of the same; coarse, since a fine one
    takes it minutes.
    """
    counts = [float(n) for n in range(k + 1)]
    weights = [math.comb(k, n) * q**n * (1 - q) ** (k - n) for n in range(k + 1)]
    one = privacy_loss_distribution.from_mixture_gaussian_mechanism(
        2.0,
        counts,
        weights,
        value_discretization_interval=2e-2,
        log_mass_truncation_bound=-36,
    )
    theirs = one.self_compose(rounds).get_epsilon_for_delta(1e-5)
    low, high = (
        end(((2.0, rounds),), q, 1e-5, k) for end in (lower_epsilon, upper_epsilon)
    )
    assert low <= theirs
    assert high == pytest.approx(theirs, rel=1e-2)
    assert high - low <= 4e-3 * high


def test_more_clients_at_once_are_worse_and_never_worse_than_all_of_them_always():
    ends = [upper_epsilon(((3.0, 30),), 0.05, DELTA, k) for k in (1, 2, 3, 5, 9)]
    assert ends == sorted(ends) and len(set(ends)) == 5
    assert ends[0] == upper_epsilon(((3.0, 30),), 0.05, DELTA)
    assert all(
        end < gaussian_epsilon(3.0 / (k * math.sqrt(30)), DELTA)
        for end, k in zip(ends, (1, 2, 3, 5, 9), strict=True)
    )
    assert upper_epsilon(((3.0, 30),), 1.0, DELTA, 3) == gaussian_epsilon(
        1.0 / math.sqrt(30), DELTA
    )


@pytest.mark.parametrize("given", [(((0.0, 1),), 0.1, 0.1), (((1.0, 0),), 0.1, 0.1), (((1.0, 1),), 0.0, 0.1),
                                   (((1.0, 1),), 1.1, 0.1), (((1.0, 1),), 0.1, 1.0)])  # fmt: skip
def test_arguments_out_of_bounds_are_refused(given):
    with pytest.raises(ValueError, match="Poisson"):
        upper_epsilon(*given)
