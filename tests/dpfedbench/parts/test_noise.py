"""Noise: what is drawn, how the multiplier moves, and what is refused."""

from typing import ClassVar

import numpy as np
import pytest

from dpfedbench.errors import BenchError
from dpfedbench.parts import noise as noise_parts
from dpfedbench.parts.budget import BudgetSettings
from dpfedbench.settings import families
from dpfedbench.settings.part import kinds_of
from dpsum.accounting.analyses import find
from dpsum.accounting.budgets import BudgetPlan, DecayingBudget
from dpsum.accounting.claims import WHOLE_ORDERS
from dpsum.clipping import Constant, NoisedMeanNorm
from dpsum.correlated_noise import Factorised
from dpsum.noise import Decaying, Gaussian, Noise
from dpsum.participation import PoissonLots
from dpsum.private_sum import PrivateSum
from dpsum.randomness import stream
from dpsum.skellam_noise import Skellam
from dpsum.sums import CompositionGroup, SumSpec
from tests.dpfedbench.federation.conftest import LOTS, make_config

SAMPLER = (
    PoissonLots(cohort=8, rounds=12)
    .lots(clients=4, seed=0, steps=1, records=100)
    .describe()
)
GIVEN = {"claims": {"poisson-lots": WHOLE_ORDERS}, "counted": True, "stepwise": True}


def plan(noise, budget=None, *, uncounted=0):
    rule = NoisedMeanNorm() if uncounted else Constant()
    sum_ = SumSpec(
        name="gradient-sum",
        unit="record",
        observer="server",
        clipping=rule,
        noise=noise,
        budget=budget or BudgetSettings(delta=1e-4),
    )
    return CompositionGroup((sum_,)).plan(SAMPLER, **GIVEN)


def test_independent_noise_is_drawn_from_the_rounds_own_stream():
    """The mechanism's name is what an analysis is found by."""
    assert {kind: part.mechanism for kind, part in kinds_of(Noise).items()} == {
        "fixed": "gaussian",
        "decaying": "gaussian",
        "correlated": "correlated-gaussian",
        "skellam": "skellam",
    }
    asked = []

    def stream_of(index):
        asked.append(index)
        return stream(3, "noise", index)

    for noise in (Gaussian(), Decaying()):
        drawn = noise.standard(stream_of, 7, 50)
        assert drawn.dtype == np.float64 and np.array_equal(
            drawn, stream(3, "noise", 7).standard_normal(50)
        )
    assert asked == [7, 7]


def laplace(self, stream_of, index, dimension):
    """Of deviation 1, and with tails that no Gaussian's account is of."""
    return stream_of(index).laplace(scale=0.5**0.5, size=dimension)


class TimesTen(PrivateSum):
    """Ten times the clipped total under the noise for one."""

    def _noised(self, total, standard):
        return super()._noised(10 * total, standard)


def times_ten(self, ordinary, *, streams, cohort, **values):
    return TimesTen(**values)


class LaplaceDraws:
    """What is laid beside a noise part."""

    standard = laplace


@pytest.mark.parametrize(
    ("bases", "changed", "said"),
    [
        (
            (Gaussian,),
            {"standard": laplace},
            "standard of its own, but the mechanism 'gaussian' of Noise",
        ),
        (
            (Gaussian,),
            {"private_sum": times_ten},
            "private_sum of its own, but the mechanism 'gaussian' of Noise",
        ),
        (
            (LaplaceDraws, Gaussian),
            {},
            "standard of its own, but the mechanism 'gaussian'",
        ),
        (
            (Gaussian,),
            {"combines": lambda self, index: [1.0]},
            "combines of its own, but the mechanism 'gaussian'",
        ),
        (
            (Skellam,),
            {"secure": lambda self, **values: {}},
            "secure of its own, but the mechanism 'skellam'",
        ),
        (
            (Factorised,),
            {"standard": laplace},
            "standard of its own, but the mechanism 'correlated-gaussian' of Encoded",
        ),
        (
            (Gaussian,),
            {"standard": laplace, "mechanism": "gaussian"},
            "both name the mechanism 'gaussian': give one of",
        ),
        (
            (Factorised,),
            {"mechanism": "gaussian"},
            "and dpsum.noise both name the mechanism 'gaussian'",
        ),
        (
            (Gaussian,),
            {"mechanism": "skellam"},
            "and dpsum.skellam_noise both name the mechanism 'skellam'",
        ),
    ],
)
def test_what_draws_or_sums_otherwise_names_a_mechanism_of_its_own(
    bases, changed, said
):
    """Else it would have the Gaussian's epsilon printed beside it, as proved."""
    with pytest.raises(BenchError, match=said):
        type("Other", bases, {"__module__": __name__, "__annotations__": {}} | changed)


def test_a_mechanism_of_ones_own_is_taken_and_has_no_analysis():
    class Laplace(Gaussian):
        mechanism: ClassVar[str] = "laplace"
        standard = laplace

    class Wider(Laplace):
        """Changes nothing of it."""

    assert Wider().mechanism == "laplace"
    with pytest.raises(
        BenchError,
        match=(
            r"^no analysis for laplace noise with the sampler 'one-pass', so no epsilon"
        ),
    ):
        find(Wider().mechanism, "one-pass")


def test_a_plan_is_refused_with_one_line(tmp_path, monkeypatch):
    """A file in the folder of noise parts, as one would add it: whoever reads a plan
    looks there.
    """
    (tmp_path / "laplacian.py").write_text(
        "from dpsum.noise import Gaussian\n"
        "class Laplacian(Gaussian):\n"
        "    kind = 'laplacian'\n"
        "    def standard(self, stream_of, index, dimension):\n"
        "        return stream_of(index).laplace(scale=0.5**0.5, size=dimension)\n"
    )
    monkeypatch.setattr(noise_parts, "__path__", [*noise_parts.__path__, str(tmp_path)])
    with pytest.raises(BenchError) as caught:
        families._family.__wrapped__(Noise)
    assert (
        str(caught.value)
        == "dpfedbench.parts.noise.laplacian.Laplacian has a standard of its own, but"
        " the mechanism 'gaussian' of Noise, whose analyses are of other code: name"
        " another mechanism there"
    )


def test_noise_decays_after_three_falls_in_a_row():
    """J(w_1) and J(w_2) count as infinite: the first decay can come after the fifth
    loss.
    """
    budget = plan(Decaying(multiplier=2.0, decay=0.9, falls=3))
    assert isinstance(budget, DecayingBudget)
    at = []
    for loss in (9, 8, 7, 6, 5, 5, 4, 3, 2, 2.5, 2, 1, 0.5):
        budget.observe(float(loss))
        at.append(budget.noise_multiplier)
    z = 2.0
    assert at == pytest.approx(
        [z, z, z, z, z * 0.9, z * 0.9, z * 0.9, z * 0.9, *[z * 0.81] * 4, z * 0.729]
    )


def test_noise_that_stays_follows_no_loss():
    for uncounted in (0, 1):
        budget = plan(Gaussian(multiplier=2.0), uncounted=uncounted)
        for loss in range(20, 0, -1):
            budget.observe(float(loss))
        assert budget.noise_multiplier == 2.0
    assert type(plan(Gaussian(multiplier=2.0))) is BudgetPlan


def test_a_null_multiplier_is_the_least_that_the_budget_allows():
    """With one per cent less noise the budget is exceeded."""
    budget = BudgetSettings(epsilon=1.0, delta=1e-4, profile="holds")
    found = plan(Gaussian(multiplier=None), budget)
    assert found.lots_allowed == 12
    assert plan(Gaussian(multiplier=found.noise_multiplier), budget).lots_allowed == 12
    assert (
        plan(Gaussian(multiplier=0.99 * found.noise_multiplier), budget).lots_allowed
        < 12
    )


@pytest.mark.parametrize(
    ("overlay", "line"),
    [
        (
            {"noise": {"multiplier": None}},
            "noise.multiplier and budget.epsilon are both null: give one",
        ),
        (
            {"noise": {"multiplier": 0}},
            "noise.multiplier is 0",
        ),
        (
            {"noise": {"kind": "fixed", "decay": 0.9}},
            "unknown key noise.decay",
        ),
        (
            {"noise": {"kind": "decaying", "decay": 1.0}},
            "noise.decay is 1.0",
        ),
        ({"noise": {"kind": "decaying", "falls": 0}}, "noise.falls is 0"),
        (
            {"noise": {"kind": "decaying", "multiplier": None}},
            "noise.multiplier is null, but noise that decays needs",
        ),
        (
            {"noise": {"kind": "decaying"}, "validation": {"every": 0}},
            "noise.kind is decaying, but validation.every",
        ),
        (
            {"noise": {"kind": "decaying"}, "validation": {"public": False}},
            "validation.public is false, but its loss",
        ),
    ],
)
def test_bad_values_are_one_line(overlay, line):
    with pytest.raises(BenchError) as caught:
        make_config(overlay, general=LOTS)
    assert str(caught.value).startswith(line) and "\n" not in str(caught.value)
