"""`dpsum.Mechanism` in anybody's loop: what it draws, what the ledger says, what is
spent, and what is refused.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

import dpsum
from dpsum.accounting.units import cannot_compose

D = 3


def mechanism(**changed: Any) -> dpsum.Mechanism:
    values: dict[str, Any] = {
        "name": "update",
        "unit": "client",
        "observer": "everyone",
        "dimension": D,
        "clipping": dpsum.Constant(0.5),
        "participation": dpsum.OnePass(units=40, cohort=10, rounds=4, seed=0),
        "noise": dpsum.Gaussian(1.0),
        "seed": 0,
    }
    return dpsum.Mechanism(**values | changed)


def delta_of(z: float, epsilon: float) -> float:
    """The Gaussian mechanism's delta (Balle and Wang 2018, Theorem 8)."""
    return float(
        norm.cdf(0.5 / z - epsilon * z)
        - math.exp(epsilon) * norm.cdf(-0.5 / z - epsilon * z)
    )


def trained(made: dpsum.Mechanism, rounds: int = 4) -> list[np.ndarray]:
    found = []
    for index in range(rounds):
        total = made.open(index)
        total.add(np.full((10, D), 7.0))
        found.append(made.release(total))
    return found


def test_a_loop_of_ones_own_has_an_account(tmp_path: Path) -> None:
    """One known round a client: epsilon is that of one Gaussian, whatever the number of
    rounds.
    """
    made = mechanism(ledger=tmp_path / "ledger.jsonl", noise=dpsum.Gaussian(2.0))
    released = trained(made)
    lines = dpsum.read_ledger(made.ledger.path)
    assert [line.round for line in lines] == [0, 1, 2, 3] and lines[
        0
    ].noise_std == 1.0 == lines[0].sensitivity * 2
    # Ten contributions of norm C along one direction, and noise of deviation 1: five
    # standard errors of twelve draws.
    assert np.mean(released) == pytest.approx(
        10 * 0.5 / math.sqrt(D), abs=5 / math.sqrt(12)
    )
    found = dpsum.account(made.ledger.path, delta=1e-6)
    assert delta_of(2.0, found.profiles["holds"].epsilon_high) == pytest.approx(
        1e-6, rel=1e-6
    )
    assert "proved" in str(found) and "at delta 1e-06" in str(found)


def test_mechanisms_of_one_budget_are_one_gaussian_a_round() -> None:
    """z = 1 and 2 over the same clients are one of (1 + 1/4)^-1/2: 5.551 at 1e-6, by
    the closed form.
    """
    budget = dpsum.Budget(epsilon=5.6, delta=1e-6)
    shared = {"budget": budget, "ledger": dpsum.Ledger(Path("/dev/null"))}
    one, two = (
        mechanism(**shared),
        mechanism(**shared, name="second", stream="other", noise=dpsum.Gaussian(2.0)),
    )
    spent = budget.spent(4)["epsilon_proven"]
    assert spent == pytest.approx(5.551, abs=5e-4) and delta_of(
        1.25**-0.5, spent
    ) == pytest.approx(1e-6, rel=1e-5)
    assert one.allows(4) and two.spent(4)["epsilon_proven"] == spent
    short = dpsum.Budget(epsilon=5.5, delta=1e-6)
    shared = {"budget": short, "ledger": dpsum.Ledger(Path("/dev/null"))}
    mechanism(**shared)
    mechanism(**shared, name="second", stream="other", noise=dpsum.Gaussian(2.0))
    assert not short.allows(1)


def test_a_multiplier_is_found_from_a_budget() -> None:
    made = mechanism(
        noise=dpsum.Gaussian(None),
        budget=dpsum.Budget(epsilon=2.0),
        ledger=dpsum.Ledger(Path("/dev/null")),
    )
    z = made.noise_multiplier
    assert delta_of(z, 2.0) <= 1e-6 < delta_of(z * 0.999, 2.0)


def test_a_seed_makes_runs_equal_and_none_makes_them_differ(tmp_path: Path) -> None:
    again = [
        trained(mechanism(ledger=tmp_path / f"{number}.jsonl", seed=5))
        for number in range(2)
    ]
    assert np.array_equal(*again)
    free = [
        mechanism(ledger=tmp_path / f"free{number}.jsonl", seed=None)
        for number in range(2)
    ]
    drawn = [trained(made) for made in free]
    assert not np.isclose(*drawn).any()
    line = json.loads(free[0].ledger.path.read_text().splitlines()[0])
    assert line["noise_stream"] == "the operating system/noise/0"
    assert (
        "5/noise/0" in (tmp_path / "0.jsonl").read_text()
        and str(free[0].seed) not in free[0].ledger.path.read_text()
    )


@pytest.mark.parametrize("seed", [3, None])
def test_it_goes_on_from_its_state_with_the_same_bits(seed: int | None) -> None:
    """Also where noise takes back what earlier rounds added, which is drawn again after
    the restart.
    """
    weights = dpsum.factorisations.square_root(4)
    kinds = {
        "noise": dpsum.Correlated(1.0, weights),
        "ledger": dpsum.Ledger(Path("/dev/null")),
        "seed": seed,
    }
    first = mechanism(**kinds)
    whole, state = trained(first, 3), first.state()
    again = mechanism(**kinds | {"ledger": dpsum.Ledger(Path("/dev/null"))})
    again.restore(state)
    assert np.array_equal(trained(again, 3), whole)
    assert ("seed" in state) is (seed is None)


def test_correlated_noise_is_the_encoders() -> None:
    """Row t of C^-1 Z: z C x the weights times what independent noise of the same
    stream draws.
    """
    weights = dpsum.factorisations.square_root(4)
    kinds = dpsum.Gaussian(1.0), dpsum.Correlated(1.0, weights)
    apart, together = (
        mechanism(
            ledger=dpsum.Ledger(Path("/dev/null")),
            clipping=dpsum.Constant(1e-9),
            noise=noise,
        )
        for noise in kinds
    )
    drawn, found = (
        np.array([made.release(made.open(index)) for index in range(4)])
        for made in (apart, together)
    )
    np.testing.assert_allclose(found, weights @ drawn, rtol=1e-12)
    assert (np.linalg.norm(np.linalg.inv(weights), axis=0) <= 1).all()


def test_an_audit_sees_each_release_as_it_leaves() -> None:
    seen = []
    made = mechanism(ledger=dpsum.Ledger(Path("/dev/null")))
    made.on_release = lambda total, released: seen.append(
        (total.round, total.sum.threshold, released)
    )
    released = trained(made)
    assert [(index, threshold) for index, threshold, _ in seen] == [
        (index, 0.5) for index in range(4)
    ]
    assert all(one is other for (_, _, one), other in zip(seen, released, strict=True))


class _OnAGpu:
    """What numpy cannot take over, as a tensor on another device."""

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (np.ones((2, D + 1)), r"^contributions must be \[n, 3\], not \[2, 4\]$"),
        (np.ones(D), r"^contributions must be \[n, 3\], not \[3\]$"),
        (
            [["a", "b", "c"]],
            r"^contributions are <U1: hand over real numbers \[n, 3\]$",
        ),
        ([[1.0], [2.0, 3.0]], r"^contributions are no array \("),
        (
            _OnAGpu(),
            (
                r"^contributions are no array \(can't convert cuda:0 .* hand over \[n,"
                r" 3\] on the CPU$"
            ),
        ),
    ],
)
def test_what_is_no_contribution_is_refused_in_one_line(given: Any, said: str) -> None:
    total = mechanism(ledger=dpsum.Ledger(Path("/dev/null"))).open(0)
    with pytest.raises(dpsum.DpsumError, match=said):
        total.add(given)


def test_values_that_are_not_finite_count_as_zero_and_are_counted() -> None:
    made = mechanism(ledger=dpsum.Ledger(Path("/dev/null")), noise=dpsum.Gaussian(1e-3))
    total = made.open(0)
    norms = total.add([[0.3, 0.0, 0.0], [np.nan, 1.0, 0.0], [np.inf, 0.0, 0.0]])
    assert norms[0] == pytest.approx(0.3) and not np.isfinite(norms[1:]).any()
    np.testing.assert_allclose(made.release(total), [0.3, 0, 0], atol=0.01)
    assert made.non_finite == 2


def test_a_total_is_released_once(tmp_path: Path) -> None:
    made = mechanism(ledger=tmp_path / "ledger.jsonl")
    total = made.open(0)
    made.release(total)
    for again in (lambda: made.release(total), lambda: total.add(np.ones((1, D)))):
        with pytest.raises((RuntimeError, dpsum.DpsumError), match=r"was released"):
            again()
    assert len(dpsum.read_ledger(made.ledger.path)) == 1


def test_a_rounds_noise_is_drawn_once() -> None:
    made = mechanism(ledger=dpsum.Ledger(Path("/dev/null")))
    trained(made, 2)
    for index in (0, 1):
        with pytest.raises(
            dpsum.DpsumError,
            match=rf"^round {index} of update was released before, and its noise",
        ):
            made.release(made.open(index))
    made.release(made.open(2))


def test_nothing_is_released_beyond_the_budget() -> None:
    """Poisson rounds at z = 1: as many as the budget has room for, and not one more;
    without one, as many as asked.
    """
    ways = dpsum.Poisson(units=40, cohort=10, rounds=40, seed=0)
    budget = dpsum.Budget(epsilon=5.0, delta=1e-6)
    made = mechanism(
        participation=ways, budget=budget, ledger=dpsum.Ledger(Path("/dev/null"))
    )
    last = max(rounds for rounds in range(41) if made.allows(rounds))
    assert (
        0 < last < 40
        and made.spent(last)["epsilon_proven"]
        <= 5.0
        < made.spent(last + 1)["epsilon_proven"]
    )
    trained(made, last)
    with pytest.raises(
        dpsum.DpsumError, match=rf"^round {last} of update is beyond the budget"
    ):
        made.release(made.open(last))
    assert (
        len(
            trained(
                mechanism(participation=ways, ledger=dpsum.Ledger(Path("/dev/null"))),
                40,
            )
        )
        == 40
    )


def test_a_release_that_the_ledger_does_not_have_stops_the_next_round(
    tmp_path: Path,
) -> None:
    made = mechanism(ledger=tmp_path / "ledger.jsonl")
    made.end(made.open(0))
    with pytest.raises(
        dpsum.DpsumError,
        match=r"^update was released in round 0, and the ledger does not say so",
    ):
        made.open(1)
    made.write(0)
    made.release(made.open(1))
    assert [line.round for line in dpsum.read_ledger(made.ledger.path)] == [0, 1]


def test_what_cannot_be_a_mechanism_is_refused(tmp_path: Path) -> None:
    made = mechanism(ledger=tmp_path / "ledger.jsonl")
    with pytest.raises(dpsum.DpsumError, match=r"is there already: name a new file"):
        mechanism(ledger=tmp_path / "ledger.jsonl", name="second")
    with pytest.raises(
        dpsum.DpsumError,
        match=r"^update has no noise multiplier: give one, or a budget",
    ):
        mechanism(ledger=made.ledger, noise=dpsum.Gaussian(None))
    with pytest.raises(
        dpsum.DpsumError, match=r"clipping.threshold is null: give a first threshold"
    ):
        mechanism(ledger=made.ledger, clipping=dpsum.Constant(None))
    budget, ledger = dpsum.Budget(), dpsum.Ledger(Path("/dev/null"))
    mechanism(ledger=ledger, budget=budget)
    with pytest.raises(
        dpsum.DpsumError, match=r"draw their noise from the stream 'noise'"
    ):
        mechanism(ledger=ledger, budget=budget, name="second")
    with pytest.raises(
        dpsum.DpsumError,
        match=r"^two mechanisms of /dev/null draw their noise from the stream 0",
    ):
        mechanism(ledger=ledger, name="second")  # also of a budget of its own
    other = dpsum.Poisson(units=40, cohort=10, rounds=4, seed=0)
    mechanism(
        ledger=ledger, budget=budget, name="second", stream="other", participation=other
    )
    with pytest.raises(dpsum.DpsumError) as error:
        budget.allows(1)
    assert str(error.value) == cannot_compose("update", "second", "client", "")
    for wrong in ({"epsilon": 0.0}, {"delta": 1.0}, {"profile": "hopes"}):
        with pytest.raises(dpsum.DpsumError, match=r"^the budget's "):
            dpsum.Budget(**wrong)
    for weights in (np.ones((2, 2)), 0.5 * np.eye(2), np.eye(2)[0]):
        with pytest.raises(dpsum.DpsumError):
            dpsum.Correlated(1.0, weights)


@pytest.mark.parametrize(
    ("way", "said"),
    [
        (lambda: dpsum.OnePass(units=40, cohort=7, rounds=4), "divides the units"),
        (
            lambda: dpsum.BallsAndBins(units=40, cohort=10, rounds=3),
            "cohort x rounds = units",
        ),
        (lambda: dpsum.Poisson(units=40, cohort=41, rounds=3), "41 of 40 units"),
        (
            lambda: dpsum.PoissonLots(records=10, lot=11, rounds=3),
            "a lot must be from 1 to that",
        ),
    ],
)
def test_participation_that_contradicts_itself_is_refused(way: Any, said: str) -> None:
    with pytest.raises(dpsum.DpsumError, match=said):
        way()
