"""Claims of papers: the accounting of a method's paper.

A claim may be wrong for the mechanism that ran. A method names one claim for each kind
of sampler that its paper accounts for. This module imports nothing heavy, since every
plan reads the methods.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dploss.gaussian import Schedule
    from dpsum.sampling import Sampler

TF_PRIVACY_ORDERS = (
    1.25,
    1.5,
    1.75,
    2.0,
    2.25,
    2.5,
    3.0,
    3.5,
    4.0,
    4.5,
    *range(5, 64),
    128,
    256,
    512,
)
"""Orders of TensorFlow Privacy (compute_dp_sgd_privacy), which reproduce the claims of
the one-pass papers.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """A paper's accounting for one kind of sampler.

    Attributes:
        epsilon: function from (schedule, sampler, delta) to the paper's epsilon. For
            sums that a client takes over its own examples, the schedule is that of one
            client's releases of one name.
        explanation: what the paper does.
        status: "proved", or "void" where the claim is about another mechanism than the
            one that runs.
        void: function that returns why the claim is void for a sampler, as words after
            the explanation; "" where it is valid.
        orders: orders of Renyi divergences, where the claim adds them up and converts
            them by epsilon = divergence + log(1/delta) / (order - 1), so that a budget
            can be kept lot by lot.
        readings: epsilon under other readings of the paper, by description; stated with
            the explanation.
    """

    epsilon: Callable[[Schedule, Sampler, float], float]
    explanation: str
    status: str = "proved"
    void: Callable[[Sampler], str] | None = None
    orders: tuple[float, ...] = ()
    readings: Mapping[str, Callable[[Schedule, Sampler, float], float]] = (
        dataclasses.field(default_factory=dict)
    )

    def read_otherwise(self, schedule: Schedule, sampler: Sampler, delta: float) -> str:
        """Return the epsilon of each other reading, as words after the explanation."""
        return "".join(
            f"; {name}: {reading(schedule, sampler, delta):.4g}"
            for name, reading in self.readings.items()
        )

    def statement(self, sampler: Sampler) -> tuple[str, str]:
        """Return the status and the explanation of the claim for a sampler."""
        why = self.void(sampler) if self.void else ""
        if why:
            return "void", self.explanation + why
        return self.status, self.explanation


Claims = Mapping[str, Claim]
"""A method's claims by kind of sampler. Empty: its paper claims no epsilon. If there
are claims but none for a kind, the proven epsilon is claimed.
"""


def _counting_clients(claim: Claim, clients: int) -> Claim:
    def epsilon(schedule: Schedule, sampler: Sampler, delta: float) -> float:
        rate = sampler["cohort"] / clients
        counted = {**sampler, "clients": clients, "rate": rate}
        return claim.epsilon(schedule, counted, delta)

    return dataclasses.replace(
        claim,
        epsilon=epsilon,
        explanation=f"{claim.explanation}; of {clients:,} clients, as the authors' code"
        " counts",
        status="void",
        orders=(),
        readings={},
    )


def counting_clients(claims: Claims, clients: int) -> Claims:
    """Return claims that count another number of clients than took part.

    They are void. Claims of within-task sums do not change, since they do not read the
    number of clients.

    Args:
        claims: claims of a method.
        clients: N, at least the cohort size.
    """
    return {
        kind: claim
        if kind.startswith("within-task")
        else _counting_clients(claim, clients)
        for kind, claim in claims.items()
    }


NO_CLAIM = "the method's paper claims no epsilon"


def renyi_claim(
    orders: tuple[float, ...],
    explanation: str,
    *,
    status: str = "proved",
    void: Callable[[Sampler], str] | None = None,
) -> Claim:
    """Return a claim of Renyi accounting of Poisson sampling; arguments as `Claim`."""

    def epsilon(schedule: Schedule, sampler: Sampler, delta: float) -> float:
        from dploss.renyi import renyi_epsilon

        return renyi_epsilon(schedule, sampler["rate"], delta, orders)

    return Claim(
        epsilon=epsilon,
        explanation=explanation,
        status=status,
        void=void,
        orders=orders,
    )


def one_release(schedule: Schedule, sampler: Sampler, delta: float) -> float:
    """Return epsilon of one Gaussian release, the least noisy of a schedule."""
    from dploss.gaussian import gaussian_epsilon

    return gaussian_epsilon(min(z for z, _ in schedule), delta)


def _several_steps(sampler: Sampler) -> str:
    if sampler["steps"] > 1:
        return f"; {sampler['steps']} steps read the same examples"
    return ""


def _disjoint_batches(sampler: Sampler) -> str:
    if sampler["rate"] == 1 or sampler["kind"].endswith("poisson"):
        return ""
    return ", as if each batch were a Poisson sample; disjoint batches were run"


POISSON_MOMENTS = renyi_claim(
    TF_PRIVACY_ORDERS,
    "the paper's: Renyi accounting of Poisson sampling at q = L/N with eps = rdp +"
    " log(1/delta)/(alpha-1); disjoint batches were run, not Poisson sampling",
    status="void",
)
"""DP-FedMeta and DP-MAML, for "one-pass": TensorFlow Privacy's moments accountant."""

WHOLE_ORDERS = renyi_claim(
    tuple(range(2, 65)),
    "the paper's: Renyi accounting of Poisson sampling, orders 2 to 64, eps = rdp +"
    " log(1/delta)/(alpha-1)",
)
"""Adap DP-FL, for "poisson-lots" (Section IV-D: alpha from {2, 3, ..., 64})."""

ONE_RELEASE = Claim(
    epsilon=one_release,
    explanation="the paper's: the noise of one release",
    void=_several_steps,
)
"""DP-AGRLR and sample-level DP-MAML, for "within-task": their released code counts
several steps as one step.
"""

REPTILE_STEPS = renyi_claim(
    TF_PRIVACY_ORDERS,
    "the paper's: Renyi accounting of the steps within a task by TensorFlow Privacy",
    void=_disjoint_batches,
)
"""Task-global DP Reptile, for "within-task" and "within-task-poisson": each step is a
sampled release at q = batch / records.
"""


def _gdp(
    schedule: Schedule,
    sampler: Sampler,
    delta: float,
    *,
    square: Callable[[float, int], float],
) -> float:
    from dploss.gaussian import gaussian_epsilon

    mu = sampler["rate"] * math.sqrt(
        math.fsum(square(z, rounds) for z, rounds in schedule)
    )
    if mu:
        return gaussian_epsilon(1 / mu, delta)
    return 0.0


def gdp_claim(
    explanation: str, readings: Mapping[str, Callable[[float, int], float]]
) -> Claim:
    """Return a claim of mu-GDP by the central limit theorem of sampled Gaussians.

    The theorem (Bu et al. 2020) is a limit and not a bound.

    Args:
        explanation: what the paper does.
        readings: functions from (z, T) to (mu / q)^2 of T rounds, by description of the
            reading; the first is the claim.
    """
    (_, square), *alternatives = readings.items()
    return Claim(
        epsilon=functools.partial(_gdp, square=square),
        explanation=explanation,
        status="void",
        readings={
            name: functools.partial(_gdp, square=reading)
            for name, reading in alternatives
        },
    )


GDP_OF_HALVES = gdp_claim(
    "the paper's: mu-GDP by the central limit theorem, mu = B/n (T (e^(1/sigma^2) -"
    " 1))^1/2 (Lemma B.3), for each half by itself; a limit and no bound",
    {
        "Lemma B.3": lambda z, rounds: rounds * math.expm1(z**-2),
        "as Theorem 3.1 is printed, T e^(1/sigma^2 - 1) under the root": (
            lambda z, rounds: rounds * math.exp(z**-2 - 1)
        ),
        "as Theorem B.1 is printed, T e^(1/sigma^2) - 1 under the root": (
            lambda z, rounds: rounds * math.exp(z**-2) - 1
        ),
    },
)
"""DP-FNAS, for "poisson-lots": sigma is the deviation of the noise over the clipping
threshold.
"""
