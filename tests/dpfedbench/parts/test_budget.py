"""A budget that not even one round fits into is refused when the plan is made."""

import pytest

from dpfedbench.errors import BenchError
from dpfedbench.parts.budget import least_delta
from dpsum.accounting.calibration import epsilon_after
from dpsum.accounting.gaussian import gaussian_delta
from tests.dpfedbench.federation.conftest import make_config


@pytest.mark.parametrize("z", [0.3, 1.0, 7.0])
@pytest.mark.parametrize("epsilon", [0.001, 0.5, 4.0])
def test_of_a_client_that_is_in_for_certain_it_is_the_gaussian_mechanisms(
    z: float, epsilon: float
) -> None:
    assert least_delta(z, 1.0, epsilon) == pytest.approx(
        gaussian_delta(z, epsilon), rel=1e-6, abs=1e-14
    )


def test_large_numbers_are_no_fault() -> None:
    assert (
        least_delta(1e6, 1e-7, 1e6) == 0.0 and 0 <= least_delta(1e-3, 1.0, 499.0) <= 1
    )
    assert least_delta(1e6, 1e-7, 1e-3) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(
    ("kind", "clients"), [("one-pass", 48), ("poisson", 48), ("balls-and-bins", 48)]
)
def test_what_is_refused_is_what_the_account_of_one_round_is_beyond(
    kind: str, clients: int
) -> None:
    """The account's epsilon after a round, to within the margin of its grid."""
    sampler = {
        "kind": kind,
        "clients": clients,
        "cohort": 4,
        "rounds": 12,
        "rate": 4 / clients,
    }
    spent = epsilon_after("holds", sampler, 1.0, 1, 1e-3)

    def planned(epsilon: float) -> None:
        budget = {"epsilon": epsilon, "delta": 1e-3, "profile": "holds"}
        make_config(
            {
                "participation": {"kind": kind},
                "budget": budget,
                "noise": {"multiplier": 1.0},
            }
        )

    planned(1.001 * spent)
    with pytest.raises(
        BenchError,
        match=(
            r"the budget of epsilon .* is spent by the first round: raise"
            r" budget.epsilon"
        ),
    ):
        planned(0.9 * spent)
