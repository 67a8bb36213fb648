"""Event trees of dp_accounting and ledgers, each read as the other; accounts are
compared with dp_accounting's own.
"""

import math
from typing import Any

import numpy as np
import pytest
from dp_accounting import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NeighboringRelation,
    NonPrivateDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SampledWithReplacementDpEvent,
    SelfComposedDpEvent,
    ZCDpEvent,
)
from dp_accounting.dp_event import (
    MixtureOfGaussiansDpEvent,
    TruncatedSubsampledGaussianDpEvent,
)
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from dpsum.accounting.account import account
from dpsum.errors import DpsumError
from dpsum.ledger import Ledger, Release, read_ledger
from dpwatch.adapters.dp_event import from_event, to_event

N, DELTA = 1000, 1e-5


KNOWN: dict[tuple[str, Any], float] = {}


def pld(event: DpEvent, relation: Any = NeighboringRelation.REPLACE_SPECIAL) -> float:
    """What dp_accounting says of a tree, asked once: trees of both units are the
    same.
    """
    if (repr(event), relation) not in KNOWN:
        accountant = PLDAccountant(relation, value_discretization_interval=1e-4)
        accountant.compose(event)
        KNOWN[repr(event), relation] = accountant.get_epsilon(DELTA)
    return KNOWN[repr(event), relation]


def dpsgd(z: float, rate: float, count: int) -> DpEvent:
    """As jax_privacy.accounting makes it of DP-SGD, and of one band of BandMF."""
    return SelfComposedDpEvent(PoissonSampledDpEvent(rate, GaussianDpEvent(z)), count)


TREES = {
    "dp-sgd": dpsgd(1.1, 0.05, 40),
    "gaussian": GaussianDpEvent(0.9),
    "full batches": SelfComposedDpEvent(GaussianDpEvent(4.0), 9),
    "two noises": ComposedDpEvent([dpsgd(1.0, 0.02, 10), dpsgd(2.0, 0.02, 30)]),
    "two sums of a sample": SelfComposedDpEvent(
        PoissonSampledDpEvent(
            0.1, ComposedDpEvent([GaussianDpEvent(2.0), GaussianDpEvent(1.5)])
        ),
        12,
    ),
    "nested": SelfComposedDpEvent(
        ComposedDpEvent([dpsgd(1.0, 0.1, 2), NoOpDpEvent(), dpsgd(1.0, 0.1, 1)]), 4
    ),
    "mixture": SelfComposedDpEvent(
        MixtureOfGaussiansDpEvent(0.8, [0.0, 1.0], [0.97, 0.03]), 20
    ),
}


@pytest.mark.parametrize("name", TREES)
@pytest.mark.parametrize("unit", ["record", "client"])
def test_account_of_a_tree(name: str, unit: str, tmp_path: Any) -> None:
    """What is proven for the lines is what dp_accounting says of the tree; and of the tree
    of the lines.
    """
    releases = from_event(TREES[name], units=N, unit=unit, threshold=0.5)
    ledger = Ledger(tmp_path / "ledger.jsonl")
    for event in releases:
        ledger.append(event)
    assert read_ledger(ledger.path, ledger.chain) == releases
    holds = account(releases, delta=DELTA, claims={}).profiles["holds"]
    if (
        name == "two sums of a sample"
    ):  # one Gaussian of the sample, which PLDAccountant does not make of the two
        wanted = pld(dpsgd((2.0**-2 + 1.5**-2) ** -0.5, 0.1, 12))
    elif (
        name == "mixture"
        # that of nothing and one contribution is a Poisson sample; PLDAccountant takes a
        # minute
    ):
        wanted = pld(dpsgd(0.8, 0.03, 20))
    else:
        wanted = pld(TREES[name])
    assert holds.epsilon_low - 1e-3 < wanted < holds.epsilon_high + 1e-3
    assert holds.epsilon_high - holds.epsilon_low < 1e-3 and holds.unit == unit
    assert pld(to_event(releases)) == pytest.approx(wanted, abs=1e-3)
    assert pld(
        to_event(releases), NeighboringRelation.ADD_OR_REMOVE_ONE
    ) == pytest.approx(wanted, abs=1e-3)


def test_trees_are_the_same_again() -> None:
    for name in ("dp-sgd", "two noises"):
        assert to_event(from_event(TREES[name], units=N)) == TREES[name]
    lines = from_event(TREES["dp-sgd"], units=N)
    assert [event.round for event in lines] == list(range(40))
    assert lines[0].sampler == {
        "kind": "poisson-lots",
        "clients": 1,
        "records": N,
        "cohort": 50.0,
        "rounds": 40,
        "rate": 0.05,
    }
    assert {
        (event.threshold, event.noise_std)
        for event in from_event(dpsgd(2.0, 0.1, 2), units=10, threshold=0.25)
    } == {(0.25, 0.5)}


def test_samples_of_a_fixed_size() -> None:
    """dp_accounting has them for replace-one, where the sensitivity of the sum is 2 C:
    by its Renyi accountant.

    Its bound holds and is loose. The exact value is at least that of the
    Poisson-sampled Gaussian of this multiplier, which one data set reaches: a
    contribution of C becomes -C, as all others are.
    """
    tree = SelfComposedDpEvent(
        SampledWithoutReplacementDpEvent(N, 100, GaussianDpEvent(3.0)), 30
    )
    lines = from_event(tree, units=N, adjacency="replace-one")
    assert {event.noise_multiplier for event in lines} == {6.0}
    assert (
        lines[0].sampler["kind"] == "fixed-size" and lines[0].sampler["cohort"] == 100
    )
    assert to_event(lines, adjacency="replace-one") == tree
    accountant = RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE)
    accountant.compose(tree)
    renyi = accountant.get_epsilon(DELTA)
    holds = account(lines, delta=DELTA, claims={}).profiles["replace_one"]
    assert (
        holds.epsilon_low
        < pld(dpsgd(3.0, 0.1, 30)) + 1e-3
        < holds.epsilon_high + 1e-3
        < renyi
    )
    with pytest.raises(
        DpsumError,
        match="no event of gaussian noise with the sampler fixed-size for zero-out",
    ):
        to_event(lines)


def known(kind: str, rounds: int, **more: Any) -> list[Release]:
    line = from_event(GaussianDpEvent(2.0), units=N)[0]
    sampler = {
        "kind": kind,
        "clients": N,
        "cohort": 100,
        "rounds": rounds,
        "rate": 0.1,
    } | more
    values = vars(line) | {"sampler": sampler, "unit": "client"}
    return [Release(**values | {"round": number}) for number in range(rounds)]


def test_known_rounds_are_one_gaussian() -> None:
    """z of one pass; of three participations z over the root of three. sensitivity 2 C
    for replace-one.
    """
    assert to_event(known("one-pass", 10)) == GaussianDpEvent(2.0)
    assert to_event(known("one-pass", 10), adjacency="replace-one") == GaussianDpEvent(
        1.0
    )
    for kind, more in (
        ("shuffled-epochs", {"epoch": 10, "batches": "known"}),
        ("min-separation", {"separation": 10, "participations": 3}),
    ):
        event = to_event(known(kind, 30, **more))
        assert isinstance(event, GaussianDpEvent)
        assert event.noise_multiplier == pytest.approx(2 / math.sqrt(3), rel=1e-12)


def test_correlated_noise_is_the_gaussian_of_its_largest_column() -> None:
    """Rows of the inverse of a banded encoder, in one pass: its columns have norm
    sqrt(1 + 0.6^2), but for the last.
    """
    encoder = np.eye(5) + 0.6 * np.eye(5, k=-1)
    inverse, norm = np.linalg.inv(encoder), math.sqrt(1.36)
    lines = [
        Release(
            **vars(line)
            | {
                "mechanism": "correlated-gaussian",
                "combines": [float(one) for one in inverse[number, : number + 1]],
                "sensitivity": norm,
                "noise_std": 2.0 * norm,
            }
        )
        for number, line in enumerate(known("one-pass", 5))
    ]
    event = to_event(lines)
    assert isinstance(
        event, GaussianDpEvent
    ) and event.noise_multiplier == pytest.approx(2.0, rel=1e-12)


def test_lines_that_are_not_accounted_for_make_no_private_tree() -> None:
    lines = from_event(TREES["dp-sgd"], units=N)
    lines[7] = Release(
        **vars(lines[7])
        | {
            "data_dependent_threshold": True,
            "reason": "its noise is less",
        }
    )
    assert to_event(lines) == NonPrivateDpEvent()


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (LaplaceDpEvent(1.0), "no analysis of LaplaceDpEvent"),
        (ZCDpEvent(0.1), "no analysis of ZCDpEvent"),
        (NonPrivateDpEvent(), "no analysis of NonPrivateDpEvent"),
        (
            TruncatedSubsampledGaussianDpEvent(N, 0.1, 150, 1.0),
            "no analysis of TruncatedSubsampled",
        ),
        (
            SampledWithReplacementDpEvent(N, 100, GaussianDpEvent(1.0)),
            "no analysis of SampledWithReplacement",
        ),
        (
            PoissonSampledDpEvent(0.1, LaplaceDpEvent(1.0)),
            "no analysis of LaplaceDpEvent",
        ),
        (
            PoissonSampledDpEvent(0.1, dpsgd(1.0, 0.1, 2)),
            "no analysis of PoissonSampledDpEvent in this place",
        ),
        (
            MixtureOfGaussiansDpEvent(1.0, [0.0, 1.0, 2.0], [0.8, 0.1, 0.1]),
            "no analysis of MixtureOfGaussians",
        ),
        (
            ComposedDpEvent([dpsgd(1.0, 0.1, 2), dpsgd(1.0, 0.2, 2)]),
            "samples of several kinds",
        ),
        (
            ComposedDpEvent([GaussianDpEvent(1.0), dpsgd(1.0, 0.2, 2)]),
            "samples of several kinds",
        ),
        (NoOpDpEvent(), "no release"),
        (SelfComposedDpEvent(NoOpDpEvent(), 10**9), "no release"),
        (dpsgd(1.0, 1.5, 2), "a chance of 1.5"),
        (dpsgd(0.0, 0.1, 2), "no mechanism makes"),
        (
            SampledWithoutReplacementDpEvent(N + 1, 100, GaussianDpEvent(1.0)),
            "units is 1,000",
        ),
    ],
)
def test_refused_trees(event: DpEvent, said: str) -> None:
    with pytest.raises(DpsumError, match=said) as error:
        from_event(event, units=N)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "values",
    [{"units": 0}, {"units": 2.5}, {"unit": "user"}, {"adjacency": "add-or-remove"}],
)
def test_refused_arguments(values: dict[str, Any]) -> None:
    with pytest.raises(DpsumError):
        from_event(TREES["gaussian"], **{"units": N} | values)


@pytest.mark.parametrize("how", ["empty", "units", "kind", "adjacency"])
def test_refused_ledgers(how: str) -> None:
    lines = from_event(TREES["dp-sgd"], units=N)
    adjacency = "zero-out"
    if how == "empty":
        lines = []
    elif how == "units":
        lines[3] = Release(**vars(lines[3]) | {"unit": "client"})
    elif how == "kind":
        lines = known("balls-and-bins", 10)
    else:
        adjacency = "replace-one"
    with pytest.raises(DpsumError):
        to_event(lines, adjacency=adjacency)


def test_plans_of_jax_privacy() -> None:
    """Its own plans' trees: the account of what is read from them is its accountant's;
    a truncated plan is refused.
    """
    plans: Any = pytest.importorskip("jax_privacy.experimental.execution_plan")
    config = {"iterations": 60, "epsilon": 2.0, "delta": DELTA, "sampling_prob": 0.1}
    for bands in (1, 4):
        plan = plans.BandMFExecutionPlanConfig.default(
            num_bands=bands, strategy_optimization_steps=20, **config
        ).plan
        lines = from_event(plan.dp_event, units=N)
        assert len(lines) == math.ceil(60 / bands)
        holds = account(lines, delta=DELTA, claims={}).profiles["holds"]
        assert holds.epsilon_low - 1e-3 < pld(plan.dp_event) < holds.epsilon_high + 1e-3
        assert holds.epsilon_high == pytest.approx(
            2.0, abs=0.01
        )  # what the plan was calibrated to
        assert pld(to_event(lines)) == pytest.approx(pld(plan.dp_event), abs=1e-9)
    truncated = plans.BandMFExecutionPlanConfig(
        strategy=np.ones(1), num_examples=N, truncated_batch_size=150, **config
    ).plan
    with pytest.raises(DpsumError, match="TruncatedSubsampledGaussianDpEvent"):
        from_event(truncated.dp_event, units=N)
