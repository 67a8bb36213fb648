"""Accounting formulas of the papers that no profile of a run uses, and the checked
figures of docs/privacy.md.

`uv run python tools/published_epsilons.py` prints the table "Checked figures" of that
page, and the function that computes each figure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import scipy
import torch
from dp_accounting.rdp import compute_epsilon
from scipy.special import gammaln, log_ndtr, logsumexp

from dploss import renyi
from dploss.gaussian import Schedule, gaussian_epsilon, joint_multiplier
from dpsum.accounting.analyses import balls_and_bins, poisson
from dpsum.accounting.calibration import calibrate, epsilon_after, rounds_allowed
from dpsum.accounting.claims import POISSON_MOMENTS, TF_PRIVACY_ORDERS, WHOLE_ORDERS
from dpsum.clipping import PercentileOfReleases, Seen

DP_ACCOUNTING_ORDERS = (
    *(1 + x / 10.0 for x in range(1, 100)),
    *range(11, 64),
    128,
    256,
    512,
    1024,
)
"""Default Rényi orders of dp-accounting."""

CLAIMS = {"one-pass": POISSON_MOMENTS, "poisson-lots": WHOLE_ORDERS}

Figure = tuple[str, str, str, str]
"""Description of a figure, stated value, computed value, and function."""


def central_limit_epsilon(
    noise_multiplier: float,
    rate: float,
    rounds: int,
    delta: float,
    *,
    as_printed: bool = False,
) -> float:
    """Return DP-FNAS's epsilon, by a central limit theorem for Gaussian privacy.

    The theorem approximates the composition of sampled Gaussian releases by one
    Gaussian release with mu = p sqrt(T (e^(1/sigma^2) - 1)) (Bu et al., Deep Learning
    with Gaussian Differential Privacy, 2019). The function returns the exact epsilon of
    that release at delta. This is an approximation, not an upper bound.

    Args:
        noise_multiplier: sigma.
        rate: p, the probability that a record is in a batch.
        rounds: T.
        delta: in (0, 1).
        as_printed: use e^(1/sigma^2 - 1), as DP-FNAS's Theorem 3.1 prints it, in place
            of e^(1/sigma^2) - 1.
    """
    exponent = noise_multiplier**-2
    spread = math.exp(exponent - 1) if as_printed else math.expm1(exponent)
    return gaussian_epsilon(1 / (rate * math.sqrt(rounds * spread)), delta)


def literal_rounds(
    noise_multiplier: float, rate: float, epsilon: float, delta: float
) -> int:
    """Return the rounds that Adap DP-FL's eq. 10 allows as printed.

    The printed sum of a round lacks its logarithm. Order alpha allows
    (epsilon (alpha - 1) - log 1/delta) / E (dP/dQ)^alpha rounds. The function returns
    the number of the order that allows most.

    Args:
        noise_multiplier: z > 0.
        rate: the probability that a record is in a lot.
        epsilon: the budget.
        delta: in (0, 1).
    """
    best = 0.0
    for alpha in WHOLE_ORDERS.orders:
        i = np.arange(alpha + 1)
        binomials = gammaln(alpha + 1) - gammaln(i + 1) - gammaln(alpha - i + 1)
        logs = (
            binomials
            + i * math.log(rate)
            + (alpha - i) * math.log1p(-rate)
            + (i * i - i) / (2 * noise_multiplier**2)
        )
        budget = epsilon * (alpha - 1) + math.log(delta)
        best = max(best, budget * math.exp(-float(logsumexp(logs))))
    return math.floor(best)


def renyi_epsilon_tight(
    schedule: Schedule, rate: float, delta: float, orders: Sequence[float]
) -> float:
    """Return the upper end of epsilon by Renyi divergences and dp-accounting's
    conversion (Canonne et al. 2020, Prop. 12).

    Args:
        schedule: noise multipliers, each with its number of rounds.
        rate: sampling rate.
        delta: in (0, 1).
        orders: Renyi orders.
    """
    divergences = np.sum(
        [count * renyi.renyi(z, rate, orders) for z, count in schedule], axis=0
    )
    return float(compute_epsilon(list(orders), divergences, delta)[0])


def shuffled_lower_delta(noise_multiplier: float, rounds: int, epsilon: float) -> float:
    """Return a lower bound of delta(epsilon) of one pass over secret, shuffled batches
    of fixed size.

    One-pass training draws its blocks by a shuffle. No useful upper bound is known that
    shows more privacy for a secret shuffle than for known blocks. A lower bound shows
    how little it can protect (Chua et al., How Private are DP-SGD Implementations?,
    2024). Against zero-out,

        P = (1/T) sum_t N(2 e_t, z^2 I),    Q = (1/T) sum_t N(e_t, z^2 I)

    are the output distributions of two neighbouring data sets, in which all other
    clients contribute -C in one direction, so that the batch of the absent client
    stands out. The bound is the largest P(E) - e^epsilon Q(E) over the events
    E = {max_t x_t > c}, with c on a grid.

    Args:
        noise_multiplier: z > 0.
        rounds: T >= 1.
        epsilon: at least 0.
    """
    z = noise_multiplier
    cuts = np.linspace(-4 * z, 2 + 12 * z, 20_001)
    rest = (rounds - 1) * log_ndtr(cuts / z)
    above_p = -np.expm1(log_ndtr((cuts - 2) / z) + rest)
    above_q = -np.expm1(log_ndtr((cuts - 1) / z) + rest)
    return float(np.max(above_p - np.exp(epsilon) * above_q))


def shuffled_lower_epsilon(noise_multiplier: float, rounds: int, delta: float) -> float:
    """Return a lower bound of epsilon of one pass over T secret batches of fixed size.

    It implies no upper bound.

    Args:
        noise_multiplier: z > 0.
        rounds: T >= 1.
        delta: in (0, 1).
    """
    if shuffled_lower_delta(noise_multiplier, rounds, 0.0) <= delta:
        return 0.0
    high = 1.0
    while shuffled_lower_delta(noise_multiplier, rounds, high) > delta:
        high *= 2

    def excess(epsilon: float) -> float:
        return shuffled_lower_delta(noise_multiplier, rounds, epsilon) - delta

    return max(float(scipy.optimize.brentq(excess, 0.0, high, xtol=1e-9)) - 1e-8, 0.0)


def quantile_noise_factor(noise_multiplier: float, count_noise: float) -> float:
    """Return the factor on the sum's noise that pays for a private quantile (Andrew et
    al. 2019).

    The quantile is released together with the sum. Each client's bit, "norm under the
    threshold", is moved to [-1/2, 1/2], so that the sum of the bits has sensitivity
    1/2. With noise sigma_b it is a Gaussian release of multiplier 2 sigma_b. The
    multiplier z_sum of the clients' sum follows from z^-2 = z_sum^-2 + (2 sigma_b)^-2.

    Args:
        noise_multiplier: z, of the two releases together.
        count_noise: sigma_b.

    Returns:
        z_sum / z.
    """
    return (1 - (noise_multiplier / (2 * count_noise)) ** 2) ** -0.5


def sample_level_epsilon(*, units: int, lot: int) -> float:
    """Return DP-MAML's epsilon of one pass at the sample level: z = 1, delta = 1e-5.

    The accounting is the paper's: Renyi divergences of Poisson sampling, at TensorFlow
    Privacy's orders.

    Args:
        units: N, of tasks or records; it matters through lot / units alone.
        lot: L, in the same units.
    """
    return renyi.renyi_epsilon(
        ((1.0, units // lot),), lot / units, 1e-5, TF_PRIVACY_ORDERS
    )


def mean_form_collapse(
    *,
    dimension: int,
    cohort: int,
    rounds: int,
    noise_multiplier: float = 1.0,
    seed: int = 0,
) -> float:
    """Return the last threshold of DP-AGR's Algorithm 2 where gradients cancel out.

    It is the mean form of the rule, with k = 90, W = 10 and first threshold C = 0.2.

    Args:
        dimension: d.
        cohort: L.
        rounds: T.
        noise_multiplier: z.
        seed: of the noise's norms, which are drawn from the chi distribution.
    """
    rule = PercentileOfReleases(
        form="mean", threshold=0.2, percentile=90, window=10, never_rising=False
    )
    state = rule.begin(0.2)
    rng = np.random.default_rng(seed)
    for _ in range(rounds):
        norm = (
            noise_multiplier * state["threshold"] * math.sqrt(rng.chisquare(dimension))
        )
        released = torch.tensor([norm], dtype=torch.float64)
        rule.observe(
            state,
            Seen(
                released=released,
                extra=None,
                denominator=float(cohort),
                raw_norms=None,
                norm=np.linalg.norm,
            ),
        )
    return float(state["threshold"])


def _yield_one_pass() -> Iterator[Figure]:
    schedules = {z: ((z, 250),) for z in (1.0, 2.0, 3.0)}
    plan = {
        "kind": "one-pass",
        "clients": 400_000,
        "cohort": 1600,
        "rounds": 250,
        "rate": 0.004,
    }

    def make_figure(
        name: str, stated: str, values: list[float], digits: int, function: str
    ) -> Figure:
        text = " / ".join(f"{value:.{digits}f}" for value in values)
        return name, stated, text, function

    rate = 0.004
    delta = 1e-6
    name = "one pass: "
    yield make_figure(
        name + "as claimed",
        "1.517 / 0.355 / 0.238",
        [
            epsilon_after("claimed", plan, z, 250, delta, claims=CLAIMS)
            for z in schedules
        ],
        3,
        'epsilon_after("claimed", ...)',
    )
    yield make_figure(
        name + "Renyi, tighter conversion",
        "1.147 / 0.242 / 0.155",
        [
            renyi_epsilon_tight(s, rate, delta, DP_ACCOUNTING_ORDERS)
            for s in schedules.values()
        ],
        3,
        "renyi_epsilon_tight, dp-accounting's orders",
    )
    yield make_figure(
        name + "the same at TensorFlow Privacy's orders",
        "-",
        [
            renyi_epsilon_tight(s, rate, delta, TF_PRIVACY_ORDERS)
            for s in schedules.values()
        ],
        3,
        "renyi_epsilon_tight, TF_PRIVACY_ORDERS",
    )
    yield make_figure(
        name + "Poisson",
        "0.498 / 0.134 / 0.081",
        [poisson.upper_epsilon(s, rate, delta) for s in schedules.values()],
        3,
        "poisson.upper_epsilon",
    )
    yield make_figure(
        name + "balls-and-bins, low end",
        "-",
        [balls_and_bins.lower_epsilon(z, 250, 250, delta) for z in schedules],
        5,
        "balls_and_bins.lower_epsilon",
    )
    yield make_figure(
        name + "balls-and-bins, high end",
        "0.4525 / 0.125 / 0.078",
        [balls_and_bins.upper_epsilon(z, 250, 250, delta) for z in schedules],
        5,
        "balls_and_bins.upper_epsilon",
    )
    yield make_figure(
        name + "shuffled, lower bound",
        "4.44 / 0.340 / 0.105",
        [shuffled_lower_epsilon(z, 250, delta) for z in schedules],
        3,
        "shuffled_lower_epsilon",
    )
    yield make_figure(
        name + "known blocks",
        "4.887 / 2.254 / 1.448",
        [gaussian_epsilon(z, delta) for z in schedules],
        3,
        "gaussian.gaussian_epsilon(z)",
    )
    yield make_figure(
        name + "known blocks, replace-one",
        "10.997 / 4.887 / 3.098",
        [gaussian_epsilon(z / 2, delta) for z in schedules],
        3,
        "gaussian.gaussian_epsilon(z / 2)",
    )
    for kind, stated in (
        ("one-pass", "2.904"),
        ("balls-and-bins", "-"),
        ("poisson", "-"),
    ):
        multiplier = calibrate("proven", plan | {"kind": kind}, 1.5, delta)
        yield (
            f"z of a proven ε of 1.5, {kind} (rounded up)",
            stated,
            f"{multiplier:.4g}",
            'calibrate("proven", ...)',
        )


def _yield_adap_dp_fl() -> Iterator[Figure]:
    rate = 78 / 6000
    delta = 1e-5
    epsilon = 2.0
    plan = {
        "kind": "poisson-lots",
        "clients": 10,
        "records": 6000,
        "cohort": 78,
        "rounds": 100_000,
        "rate": rate,
    }
    for profile, stated in (
        ("claimed", "451 / 7,921 / 33,495"),
        ("proven", "979 / 12,528 / 52,555"),
    ):
        rounds = [
            rounds_allowed(profile, plan, z, delta, epsilon, claims=CLAIMS)
            for z in (1.1, 3.0, 6.0)
        ]
        text = " / ".join(f"{count:,}" for count in rounds)
        yield (
            f"Adap DP-FL, rounds at 1.1 / 3 / 6, {profile}",
            stated,
            text,
            f'rounds_allowed("{profile}", ...)',
        )
    literal = " / ".join(
        str(literal_rounds(z, rate, epsilon, delta)) for z in (1.1, 3.0, 6.0)
    )
    yield (
        "Adap DP-FL, eq. 10 as printed, 1.1 / 3 / 6",
        "7 / - / -",
        literal,
        "literal_rounds",
    )
    with_query = epsilon_after(
        "claimed", plan, joint_multiplier([1.1, 1.1]), 451, delta, claims=CLAIMS
    )
    yield (
        "Adap DP-FL, scalar query counted, 451 rounds",
        "4.73",
        f"{with_query:.2f}",
        "joint_multiplier, epsilon_after",
    )


def _yield_dp_fnas() -> Iterator[Figure]:
    for parties, limit, composed in ((4, "4.065", "4.261"), (8, "6.091", "6.435")):
        records = 25_000 // parties
        rate = 64 / records
        rounds = 50 * records // 64
        approximation = central_limit_epsilon(1.0, rate, rounds, 1e-5)
        schedule = ((1.0, rounds),)
        low = poisson.lower_epsilon(schedule, rate, 1e-5)
        high = poisson.upper_epsilon(schedule, rate, 1e-5)
        name = f"DP-FNAS, {parties} parties, {rounds:,} steps: "
        yield (
            name + "central limit",
            limit,
            f"{approximation:.3f}",
            "central_limit_epsilon",
        )
        yield (
            name + "composed",
            composed,
            f"{low:.4f} to {high:.4f}",
            "poisson.lower_epsilon, upper_epsilon",
        )
        printed = central_limit_epsilon(1.0, rate, rounds, 1e-5, as_printed=True)
        yield (
            name + "as Theorem 3.1 is printed",
            "-",
            f"{printed:.3f}",
            "as_printed=True",
        )


def _yield_others() -> Iterator[Figure]:
    yield (
        "DP-AGRLR, z0 for (2.5, 1e-5)",
        "1.634",
        f"{_calibrate_gaussian(2.5, 1e-5):.3f}",
        "gaussian.gaussian_epsilon, inverted",
    )
    yield (
        "the same, replace-one",
        "double",
        f"{2 * _calibrate_gaussian(2.5, 1e-5):.3f}",
        "twice that",
    )
    threshold = mean_form_collapse(dimension=111_936, cohort=1600, rounds=250)
    yield (
        "mean form, C after 250 rounds of noise",
        "1e-13",
        f"{threshold:.1e}",
        "mean_form_collapse",
    )
    factor = quantile_noise_factor(1.0, 80.0)
    yield (
        "private quantile, L = 1,600",
        "1.00002",
        f"{factor:.6f}",
        "quantile_noise_factor",
    )
    # 4,000 is the number of tasks of one epoch in DP-MAML's Section 6.2.
    yield (
        "DP-MAML, sample level, one pass over 4,000 units in lots of 10",
        "1.18",
        f"{sample_level_epsilon(units=4_000, lot=10):.3f}",
        "sample_level_epsilon",
    )
    claimed = [sample_level_epsilon(units=23_000, lot=lot) for lot in (10, 50, 100)]
    text = " / ".join(f"{value:.3f}" for value in claimed)
    yield (
        "the same over 23,000 records in lots of 10 / 50 / 100",
        "1.177",
        text,
        "sample_level_epsilon",
    )
    second_order = gaussian_epsilon(101**-0.5, 1e-5)
    yield (
        "DP-MAML, sample level, second order, mu = sqrt(1 + 10^2)",
        "-",
        f"{second_order:.1f}",
        "gaussian.gaussian_epsilon(101^-1/2)",
    )
    for steps, stated in ((5, "18.4"), (1, "6.18")):
        epsilon = gaussian_epsilon(0.585 / steps**0.5, 1e-3)
        yield (
            f"Reptile, z = 0.585, a record in {steps} steps",
            stated,
            f"{epsilon:.2f}",
            "gaussian.gaussian_epsilon",
        )
    schedule = ((0.585, 5),)
    claim = renyi.renyi_epsilon(schedule, 0.2, 1e-3, TF_PRIVACY_ORDERS)
    yield (
        "Reptile, z = 0.585, 5 steps of a sampled fifth, as claimed",
        "9.4964",
        f"{claim:.4f}",
        "renyi.renyi_epsilon",
    )
    proven = poisson.upper_epsilon(schedule, 0.2, 1e-3)
    yield "the same, proven", "6.455", f"{proven:.3f}", "poisson.upper_epsilon"
    shared = 400_000 * 10 / (round(1623 * 0.71) * 20)
    yield (
        "clients an image is in, Omniglot 5-way 1-shot",
        "~170",
        f"{shared:.0f}",
        "400,000 x 10 / 23,040",
    )


def _calibrate_gaussian(epsilon: float, delta: float) -> float:
    """Return the noise multiplier at which one Gaussian release is (epsilon, delta)."""
    return float(
        scipy.optimize.brentq(
            lambda z: gaussian_epsilon(z, delta) - epsilon, 0.05, 100.0, xtol=1e-12
        )
    )


def compute_figures() -> list[Figure]:
    """Compute every figure of the page again."""
    return [
        *_yield_one_pass(),
        *_yield_adap_dp_fl(),
        *_yield_dp_fnas(),
        *_yield_others(),
    ]


if __name__ == "__main__":
    print("| figure | stated | found | by |")
    print("|---|---|---|---|")
    for cells in compute_figures():
        print(f"| {' | '.join(cells)} |")
