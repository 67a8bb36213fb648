"""Profiles of ledgers: the table of PRIVACY.md, what fits what, budgets, and ledgers
that do not add up.
"""

import dataclasses
import functools
import itertools
import json
import math
import subprocess
import sys

import numpy as np
import pytest

from dpfedbench.audit.report import family_of
from dpfedbench.errors import BenchError
from dpfedbench.federation.accounts import account_run, image_use
from dpfedbench.files import write_json
from dpfedbench.parts.budget import BudgetSettings
from dpfedbench.parts.participation.participation import Participation
from dpfedbench.settings.part import kinds_of
from dpsum.accounting import account as accounts
from dpsum.accounting import analyses, calibration
from dpsum.accounting.account import PROFILES, Account
from dpsum.accounting.analyses import known_rounds
from dpsum.accounting.analyses.known_rounds import OnePassAccountant
from dpsum.accounting.analyses.poisson import lower_epsilon, upper_epsilon
from dpsum.accounting.budgets import BudgetPlan, DecayingBudget
from dpsum.accounting.claims import ONE_RELEASE
from dpsum.accounting.context import AccountContext
from dpsum.accounting.gaussian import (
    gaussian_epsilon,
    joint_multiplier,
    rest_multiplier,
)
from dpsum.accounting.image_level import ImageUse
from dpsum.accounting.tuning import Search
from dpsum.ledger import Ledger, Release
from dpsum.participation import PoissonLots
from tests.dpfedbench.federation.conftest import PLAIN, make_config
from tools.published_epsilons import CLAIMS, DP_ACCOUNTING_ORDERS, renyi_epsilon_tight

epsilon_after = functools.partial(calibration.epsilon_after, claims=CLAIMS)
rounds_allowed = functools.partial(calibration.rounds_allowed, claims=CLAIMS)
calibrate = functools.partial(calibration.calibrate, claims=CLAIMS)

DELTA = 1e-6
KINDS = ("one-pass", "balls-and-bins", "poisson")


def account(releases, claims=CLAIMS, **given):
    """As privacy.json has it."""
    return accounts.account(releases, claims=claims, **given).to_json()


def sampler(kind, clients=400_000, cohort=1600, rounds=250):
    part = kinds_of(Participation)[kind](cohort=cohort, rounds=rounds)
    return part.plan(clients=clients, seed=0).describe()


def releases(kind, count, multipliers=(1.0,), **changes):
    plan = changes.pop("sampler", None) or sampler(kind, 4000, 100, 40)
    events = []
    for index in range(count):
        z = multipliers[index % len(multipliers)]
        values = {
            "round": index,
            "name": "query-gradient-sum",
            "unit": "client",
            "adjacency": "zero-out",
            "observer": "everyone",
            "noise_multiplier": z,
            "threshold": 0.5,
            "sensitivity": 0.5,
            "noise_std": 0.5 * z,
            "dimension": 3,
            "sampler": plan,
            "denominator": 100.0,
            "noise_stream": f"0/noise/{index}",
            "data_dependent_threshold": False,
            "reason": "",
            "mechanism": "gaussian",
            "counted_by_paper": True,
        }
        events.append(Release(**values | changes))
    return events


@pytest.mark.parametrize(
    ("z", "claimed", "known", "secret"),
    [
        (1.0, 1.517, 4.887, 0.4525),
        (2.0, 0.355, 2.254, 0.125),
        (3.0, 0.238, 1.448, 0.078),
    ],
)
def test_the_one_pass_table(z, claimed, known, secret):
    """PRIVACY.md, one-pass training, by profile and sampler; balls-and-bins within a
    unit of the last digit printed.
    """
    assert (
        round(epsilon_after("as_claimed", sampler("one-pass"), z, 250, DELTA), 3)
        == claimed
    )
    assert round(epsilon_after("holds", sampler("one-pass"), z, 250, DELTA), 3) == known
    unit = 1e-4 if z == 1.0 else 1e-3
    for profile in ("as_claimed", "holds"):
        assert epsilon_after(
            profile, sampler("balls-and-bins"), z, 250, DELTA
        ) == pytest.approx(secret, abs=unit)
    assert epsilon_after("holds", sampler("poisson"), z, 250, DELTA) < claimed


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("profile", ["as_claimed", "holds"])
def test_epsilon_so_far_never_falls_and_the_budget_is_never_passed(profile, kind):
    plan = sampler(kind, 4000, 100, 40)
    spent = [epsilon_after(profile, plan, 1.0, done, 1e-5) for done in range(41)]
    assert spent[0] == 0 and all(
        before <= after + 1e-9 for before, after in itertools.pairwise(spent)
    )
    budget = 0.999 * spent[-1]
    allowed = rounds_allowed(profile, plan, 1.0, 1e-5, budget)
    assert spent[allowed] <= budget
    assert allowed == 40 or spent[allowed + 1] > budget
    assert rounds_allowed(profile, plan, 1.0, 1e-5, spent[-1]) == 40
    assert rounds_allowed(profile, plan, 1.0, 1e-5, 1e-9) == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("profile", ["as_claimed", "holds"])
def test_the_noise_for_a_target_is_the_smallest_of_four_digits(profile, kind):
    plan = sampler(kind, 4000, 100, 40)
    z = calibrate(profile, plan, 1.5, 1e-5)
    assert epsilon_after(profile, plan, z, 40, 1e-5) <= 1.5
    assert epsilon_after(profile, plan, z * (1 - 2e-3), 40, 1e-5) > 1.5
    assert float(f"{z:.4g}") == z


def test_a_true_one_and_a_half_takes_three_times_the_noise():
    """PRIVACY.md: 2.904, rounded up here; the repair gives noise back at the claimed
    epsilon.
    """
    assert calibrate("holds", sampler("one-pass"), 1.5, DELTA) in (2.904, 2.905)
    assert calibrate("holds", sampler("balls-and-bins"), 1.5, DELTA) < 1.0


@pytest.mark.parametrize("kind", KINDS)
def test_an_account_names_what_it_is_of(kind):
    found = account(releases(kind, 25), delta=1e-5)
    assert (found["unit"], found["rounds"], found["delta"], found["notices"]) == (
        "client",
        25,
        1e-5,
        [],
    )
    assert list(found["profiles"]) == ["as_claimed", "holds", "replace_one"]
    assert list(found["reasons"]) == ["image_level", "tuning"] and all(
        found["reasons"].values()
    )
    for profile, row in found["profiles"].items():
        assert 0 < row["epsilon_low"] <= row["epsilon_high"] < math.inf
        adjacency = "replace-one" if profile == "replace_one" else "zero-out"
        assert (row["unit"], row["adjacency"], row["observer"], row["delta"]) == (
            "client",
            adjacency,
            "everyone",
            1e-5,
        )
        assert row["status"] == (
            "void" if (profile, kind) == ("as_claimed", "one-pass") else "proved"
        )
        assert row["explanation"]
        if profile != "replace_one":
            high = epsilon_after(profile, sampler(kind, 4000, 100, 40), 1.0, 25, 1e-5)
            assert row["epsilon_high"] == high
    # A repaired variant claims what is proven.
    if kind != "one-pass":
        assert found["profiles"]["as_claimed"] == found["profiles"]["holds"]


def test_a_threshold_from_raw_norms_leaves_no_finite_epsilon():
    reason = "PercentileOfRawNorms sets the threshold from raw norms"
    for kind in KINDS:
        clean, leaking = (
            releases(kind, 20),
            releases(kind, 20, data_dependent_threshold=True, reason=reason),
        )
        found = account([*clean[:12], *leaking[12:]], delta=1e-5)["profiles"]
        assert (
            found["holds"]["epsilon_low"] == found["holds"]["epsilon_high"] == math.inf
        )
        assert found["holds"]["status"] == found["as_claimed"]["status"] == "void"
        assert (
            "query-gradient-sum from round 12, PercentileOfRawNorms"
            in found["holds"]["explanation"]
        )
        assert found["as_claimed"]["epsilon_high"] < math.inf


@pytest.mark.parametrize("kind", KINDS)
def test_rounds_of_different_noise_are_bracketed(kind):
    found = account(releases(kind, 20, (1.0, 3.0)), delta=1e-5)["profiles"]["holds"]
    quiet = account(releases(kind, 20, (3.0,)), delta=1e-5)["profiles"]["holds"]
    loud = account(releases(kind, 20, (1.0,)), delta=1e-5)["profiles"]["holds"]
    if kind == "poisson":
        # Composed as they were, apart from their order: ten loud rounds and ten quiet
        # ones.
        rate = sampler(kind, 4000, 100, 40)["rate"]
        assert found["epsilon_high"] == upper_epsilon(
            ((1.0, 10), (3.0, 10)), rate, 1e-5
        )
        assert (
            quiet["epsilon_high"]
            < found["epsilon_low"]
            <= found["epsilon_high"]
            < loud["epsilon_low"]
        )
        return
    assert found["epsilon_high"] == loud["epsilon_high"]
    assert (
        found["epsilon_low"] == (loud if kind == "one-pass" else quiet)["epsilon_low"]
    )
    if kind == "one-pass":
        assert found["epsilon_low"] == gaussian_epsilon(1.0, 1e-5)


def lots(rounds=100_000):
    """Adap DP-FL's: 78 of 6,000 records."""
    plan = PoissonLots(
        kind="poisson-lots",
        clients=10,
        lot=78,
        rounds=rounds,
        steps=1,
        seed=0,
        records=6000,
    )
    return plan.describe()


@pytest.mark.parametrize(
    ("z", "claimed", "holds"),
    [(1.1, 451, 979), (3.0, 7921, 12_528), (6.0, 33_495, 52_555)],
)
def test_the_rounds_of_adap_dp_fl(z, claimed, holds):
    """PRIVACY.md: rounds allowed at epsilon = 2, delta = 1e-5. The claim exactly.

    The rounds that hold there came from another library's upper end; ours is lower, and
    so allows a little more: the low end of the bracket is within 0.5 % there.
    """
    assert rounds_allowed("as_claimed", lots(), z, 1e-5, 2.0) == claimed
    found = rounds_allowed("holds", lots(), z, 1e-5, 2.0)
    assert holds <= found <= 1.004 * holds
    if z < 6:  # the low end takes a while for more rounds
        assert lower_epsilon(((z, found + 1),), 78 / 6000, 1e-5) > 2.0 * (1 - 5e-3)


def lot_releases(count, multipliers=(1.1,), names=("gradient-sum",), **changes):
    """Releases of ten clients' lots, of one or two kinds a lot."""
    events = []
    for index in range(count):
        z = multipliers[index % len(multipliers)]
        for name in names:
            thresholds = [0.5 + client for client in range(10)]
            values = {
                "round": index,
                "name": name,
                "unit": "record",
                "adjacency": "zero-out",
                "observer": "server",
                "noise_multiplier": z,
                "threshold": thresholds,
                "sensitivity": thresholds,
                "noise_std": [z * value for value in thresholds],
                "dimension": 3,
                "sampler": lots(),
                "denominator": 78.0,
                "noise_stream": f"0/noise/{index}",
                "data_dependent_threshold": False,
                "reason": "",
                "mechanism": "gaussian",
                "counted_by_paper": name != "clipped-norm-sum",
            }
            events.append(Release(**values | changes))
    return events


def test_a_second_release_of_a_lot_counts_though_its_paper_does_not_count_it():
    """PRIVACY.md: eq. 6 as a scalar query at sigma = 1.1 costs 4.73 where the paper
    counts 2 (its own conversion).
    """
    alone = account(lot_releases(451), delta=1e-5)["profiles"]
    both = account(
        lot_releases(451, names=("gradient-sum", "clipped-norm-sum")), delta=1e-5
    )["profiles"]
    assert (
        both["as_claimed"]["epsilon_high"] == alone["as_claimed"]["epsilon_high"] <= 2.0
    )
    assert (
        both["as_claimed"]["status"] == "void"
        and "clipped-norm-sum" in both["as_claimed"]["explanation"]
    )
    assert both["holds"]["epsilon_low"] > 2 * alone["holds"]["epsilon_high"]
    joint = joint_multiplier([1.1, 1.1])
    assert joint == pytest.approx(1.1 / math.sqrt(2))
    assert both["holds"]["epsilon_high"] == upper_epsilon(
        ((joint, 451),), 78 / 6000, 1e-5
    )
    assert round(epsilon_after("as_claimed", lots(), joint, 451, 1e-5), 2) == 4.73


@pytest.mark.parametrize("z", [0.3, 0.7535, 1.0, 3.7])
@pytest.mark.parametrize("other", [4.0, 160.0, 1e6])
def test_what_is_left_beside_another_release_costs_with_it_what_was_asked_for(z, other):
    left = rest_multiplier(z, other)
    joint = joint_multiplier([left, other])
    assert z <= joint <= z * (1 + 1e-14) and left > z
    # PRIVACY.md: L = 1,600, so 2 sigma_b = 160, costs x1.00002 at z = 1.
    if (z, other) == (1.0, 160.0):
        assert left == pytest.approx(1.0000195, abs=5e-7)


def test_a_second_release_that_costs_all_is_refused():
    for other in (1.0, 0.5, math.nan):
        with pytest.raises(BenchError, match="count_noise"):
            rest_multiplier(1.0, other)


def test_a_long_decay_is_composed_in_groups_that_bracket_it():
    multipliers = [4.0 * 0.99**step for step in range(60)]
    found = account(lot_releases(60, multipliers), delta=1e-5)["profiles"]["holds"]
    assert found["status"] == "as run" and "schedule" in found["explanation"]
    every = tuple((z, 1) for z in multipliers)
    exact = renyi_epsilon_tight(every, 78 / 6000, 1e-5, DP_ACCOUNTING_ORDERS)
    assert found["epsilon_low"] <= found["epsilon_high"] <= exact
    assert found["epsilon_high"] - found["epsilon_low"] < 0.1 * found["epsilon_high"]


def test_rounds_that_differ_in_what_they_released_are_refused():
    whole = lot_releases(3, names=("gradient-sum", "clipped-norm-sum"))
    with pytest.raises(BenchError, match="differ in what they released"):
        account(whole[:-1], delta=1e-5)
    with pytest.raises(BenchError, match="is of round 0"):
        account([whole[0], whole[0]], delta=1e-5)


def test_delta_is_checked_against_the_clients():
    assert "1/4000" in account(releases("one-pass", 2), delta=1e-3)["notices"][0]
    for delta in (0.0, 1.0, -1e-6, math.nan):
        with pytest.raises(BenchError, match="delta"):
            account(releases("one-pass", 2), delta=delta)
        with pytest.raises(BenchError, match="delta"):
            epsilon_after("holds", sampler("one-pass"), 1.0, 1, delta)


@pytest.mark.parametrize("z", [0.0, -1.0, math.nan, math.inf])
def test_noise_is_checked(z):
    with pytest.raises(BenchError, match="noise multiplier"):
        epsilon_after("holds", sampler("one-pass"), z, 1, DELTA)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf])
def test_a_target_is_checked(epsilon):
    with pytest.raises(BenchError, match=r"budget\.epsilon"):
        calibrate("holds", sampler("one-pass"), epsilon, DELTA)


@pytest.mark.parametrize(
    ("mechanism", "kind"),
    [("gaussian", "shuffled"), ("correlated", "one-pass"), ("correlated", "poisson")],
)
def test_a_pair_without_an_analysis_has_no_epsilon(mechanism, kind):
    """Noise that is correlated over rounds, say, is not the Gaussian that any analysis
    here is of.
    """
    plan = {"kind": kind, "clients": 4000, "cohort": 100, "rounds": 40, "rate": 0.025}
    budget = BudgetSettings(epsilon=2.0, delta=1e-5, profile="holds", stop=False)
    events = releases("one-pass", 3, sampler=plan, mechanism=mechanism)
    for attempt in (
        lambda: analyses.find(mechanism, kind),
        lambda: epsilon_after("holds", plan, 1.0, 1, DELTA, mechanism=mechanism),
        lambda: epsilon_after("as_claimed", plan, 1.0, 1, DELTA, mechanism=mechanism),
        lambda: BudgetPlan(
            budget, sampler=plan, multiplier=1.0, claims=CLAIMS, mechanism=mechanism
        ),
        lambda: account(events, delta=1e-5),
        lambda: family_of(events),
    ):
        with pytest.raises(
            BenchError,
            match=f"no analysis for {mechanism} noise with the sampler '{kind}'",
        ) as raised:
            attempt()
        assert "\n" not in str(raised.value)


def test_unknown_profiles_are_refused():
    with pytest.raises(BenchError, match="image_level"):
        epsilon_after("image_level", sampler("one-pass"), 1.0, 1, DELTA)


def test_two_analyses_of_one_pair_are_refused(monkeypatch):
    class Another(OnePassAccountant):
        pass

    monkeypatch.setattr(Another, "__module__", known_rounds.__name__)
    monkeypatch.setattr(known_rounds, "Another", Another, raising=False)
    analyses._known.cache_clear()
    try:
        with pytest.raises(BenchError, match="both for"):
            analyses.find("gaussian", "one-pass")
    finally:
        analyses._known.cache_clear()
        monkeypatch.undo()


@pytest.mark.parametrize("kind", [*KINDS, "poisson-lots"])
def test_a_method_whose_paper_claims_nothing_prints_no_claim(kind):
    plan = lots(40) if kind == "poisson-lots" else sampler(kind, 4000, 100, 40)
    events = (
        lot_releases(5, sampler=plan) if kind == "poisson-lots" else releases(kind, 5)
    )
    found = account(events, claims={}, delta=1e-5)
    assert (
        "as_claimed" not in found["profiles"]
        and "claims no epsilon" in found["reasons"]["as_claimed"]
    )
    with_claims = account(events, delta=1e-5)
    assert found["profiles"] == {
        name: row
        for name, row in with_claims["profiles"].items()
        if name != "as_claimed"
    }
    with pytest.raises(BenchError, match="claims no epsilon"):
        calibration.epsilon_after("as_claimed", plan, 1.0, 1, DELTA)
    given = {"sampler": plan, "multiplier": 1.0, "claims": {}, "mechanism": "gaussian"}
    claimed, held = (
        BudgetSettings(epsilon=2.0, delta=1e-5, profile=name, stop=True)
        for name in ("as_claimed", "holds")
    )
    with pytest.raises(BenchError, match=r"budget\.profile is as_claimed"):
        BudgetPlan(claimed, **given)
    spent, holds = BudgetPlan(held, **given).spent(2)
    assert math.isnan(spent) and holds == epsilon_after("holds", plan, 1.0, 2, 1e-5)
    if kind == "poisson-lots":
        with pytest.raises(BenchError, match=r"budget\.profile is as_claimed"):
            DecayingBudget(claimed, decay=0.9, falls=3, **given)
        moving = DecayingBudget(held, decay=0.9, falls=3, **given)
        moving.took(2)
        assert math.isnan(moving.spent(2)[0]) and moving.allows(3)


def test_noise_that_follows_a_loss_is_for_gaussian_lots_alone():
    budget = BudgetSettings(epsilon=2.0, delta=1e-5, profile="holds", stop=True)
    for mechanism, plan in (("correlated", lots()), ("gaussian", sampler("poisson"))):
        with pytest.raises(BenchError, match="noise that follows a loss"):
            DecayingBudget(
                budget,
                sampler=plan,
                multiplier=1.0,
                decay=0.9,
                falls=3,
                claims=CLAIMS,
                mechanism=mechanism,
            )


def test_a_claim_of_another_kind_cannot_be_kept_lot_by_lot():
    budget = BudgetSettings(epsilon=2.0, delta=1e-5, profile="as_claimed", stop=True)
    with pytest.raises(BenchError, match="lot by lot"):
        DecayingBudget(
            budget,
            sampler=lots(),
            multiplier=1.0,
            decay=0.9,
            falls=3,
            claims={"poisson-lots": ONE_RELEASE},
            mechanism="gaussian",
        )


def test_an_account_is_read_back(tmp_path):
    for given in ({}, {"data_dependent_threshold": True, "reason": "raw"}):
        found = accounts.account(
            releases("poisson", 3, **given), claims=CLAIMS, delta=1e-5
        )
        write_json(tmp_path / "privacy.json", found.to_json())
        text = (tmp_path / "privacy.json").read_text()
        read = Account.from_json(json.loads(text))
        assert read.profiles == found.profiles and read.to_json() == found.to_json()
    nothing = accounts.account([], claims=CLAIMS, delta=1e-5)
    assert Account.from_json(nothing.to_json()) == nothing
    for change in ({"profiles": {"holds": {}}}, {"odd": 1}, {"profiles": []}):
        with pytest.raises(BenchError, match="is not an account"):
            Account.from_json(found.to_json() | change)


def test_claims_are_read_without_a_heavy_import():
    code = (
        "import sys, dpsum.accounting.claims; "
        "print(sorted({'numpy', 'scipy', 'torch', 'dp_accounting'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"round": 7}, "of round 7"),
        ({"round": 2}, "of round 2"),
        ({"sampler": {"kind": "poisson"}}, "another sampler"),
        ({"unit": "record"}, "composes sums of two units"),
        ({"adjacency": "replace-one"}, "adjacency"),
        ({"noise_std": 0.25}, "deviation 0.25"),
        ({"noise_std": 0.5 / 100}, "deviation 0.005"),
        ({"mechanism": "correlated"}, "no analysis for correlated"),
        ({"sensitivity": 0.25, "noise_std": 0.25}, "declares sensitivity"),
    ],
)
def test_a_ledger_that_does_not_add_up_is_refused(change, message):
    """Property 6: z, C and the sampler of each round must describe the mechanism that
    is accounted for.
    """
    events = releases("one-pass", 6)
    events[3] = dataclasses.replace(events[3], **change)
    with pytest.raises(BenchError, match=message):
        account(events, delta=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"noise_multiplier": -1.0, "noise_std": -0.5}, "noise_std is -0.5"),
        ({"noise_multiplier": -1.0}, "is -1.0"),
        ({"noise_multiplier": math.nan}, "noise_multiplier is nan"),
    ],
)
def test_noise_that_is_none_is_no_release(change, message):
    """So that no ledger of it is accounted for."""
    with pytest.raises(ValueError, match=f"{message}, not a number from 1e-150 "):
        dataclasses.replace(releases("one-pass", 1)[0], **change)


def test_a_ledger_of_replace_one_alone_is_refused_too():
    with pytest.raises(BenchError, match="replace-one adjacency"):
        account(releases("poisson", 3, adjacency="replace-one"), delta=1e-5)


def test_more_rounds_than_planned_are_refused():
    with pytest.raises(BenchError, match="41 rounds"):
        account(releases("poisson", 41), delta=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_replace_one_beside_zero_out(kind):
    """Sensitivity 2C is half the multiplier: exact for one Gaussian; never below
    zero-out, never above known draws.
    """
    found = account(releases(kind, 40, (2.0,)), delta=1e-5)["profiles"]
    low, high = (found["replace_one"][f"epsilon_{end}"] for end in ("low", "high"))
    known = gaussian_epsilon(1.0 if kind != "poisson" else 1.0 / math.sqrt(40), 1e-5)
    assert found["holds"]["epsilon_low"] <= low <= high <= known
    if kind == "one-pass":
        assert low == high == gaussian_epsilon(1.0, 1e-5)
    else:
        assert high >= 2 * found["holds"]["epsilon_high"]


def test_replace_one_of_poisson_covers_the_pair_itself():
    """One round, q = 0.3, z = 2: (1 - q) N(0) + q N(1) against (1 - q) N(0) + q N(-1),
    best event by quadrature.
    """
    events = releases("poisson", 1, (2.0,), sampler=sampler("poisson", 10, 3, 1))
    found = account(events, delta=1e-3)["profiles"]["replace_one"]["epsilon_high"]
    x = np.linspace(-30, 30, 600_001)
    zero, up, down = (
        np.exp(-((x - m) ** 2) / 8) / math.sqrt(8 * math.pi) for m in (0, 1, -1)
    )
    gap = 0.7 * zero + 0.3 * up - math.exp(found) * (0.7 * zero + 0.3 * down)
    assert np.maximum(gap, 0).sum() * (x[1] - x[0]) <= 1e-3


def use_of(kind, shared=3):
    """Image 0 is used by the first clients of 4,000, every other by one."""
    images = np.arange(1, 4001)[:, None]
    images[:shared] = 0
    rounds = np.arange(4000) // 100 if kind == "one-pass" else None
    return ImageUse(images=images, rounds=rounds)


@pytest.mark.parametrize("kind", KINDS)
def test_an_image_of_several_clients_is_less_private_than_one_of_them(kind):
    found = account(
        releases(kind, 40), delta=1e-5, given=AccountContext(images=use_of(kind))
    )
    row, holds = found["profiles"]["image_level"], found["profiles"]["holds"]
    assert holds["epsilon_high"] < row["epsilon_low"] or kind == "balls-and-bins"
    assert holds["epsilon_high"] < row["epsilon_high"] < math.inf
    assert (row["unit"], row["adjacency"], row["uses_max"], row["status"]) == (
        "image",
        "zero-out",
        3,
        "proved",
    )
    assert row["uses_mean"] == pytest.approx(4000 / 3998)
    if kind == "one-pass":  # all three in the first block
        assert row["epsilon_high"] == pytest.approx(
            gaussian_epsilon(1 / 3, 1e-5), rel=1e-12
        )
    alone = account(
        releases(kind, 40), delta=1e-5, given=AccountContext(images=use_of(kind, 1))
    )["profiles"]
    assert alone["image_level"]["epsilon_high"] == pytest.approx(
        holds["epsilon_high"], rel=1e-9
    )


def test_a_record_is_an_image():
    found = account(lot_releases(20), delta=1e-5)["profiles"]
    same = ("epsilon_low", "epsilon_high", "status", "delta", "adjacency", "observer")
    assert {key: found["image_level"][key] for key in same} == {
        key: found["holds"][key] for key in same
    }
    assert (
        found["image_level"]["unit"] == "image"
        and found["image_level"]["uses_max"] == 1
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", ["fixed", "geometric", "poisson"])
def test_a_search_on_private_data_costs_and_one_on_public_data_does_not(kind, number):
    def tuned(runs, data):
        search = Search(runs=runs, data=data, number=number)
        given = AccountContext(search=search, own_streams=True)
        return account(releases(kind, 40, (3.0,)), delta=1e-5, given=given)["profiles"]

    public = tuned(20, "public")
    ends = ("epsilon_low", "epsilon_high", "status")
    assert [public["tuning"][end] for end in ends] == [
        public["holds"][end] for end in ends
    ]
    few, many = tuned(2, "private")["tuning"], tuned(20, "private")["tuning"]
    assert (
        public["holds"]["epsilon_high"]
        < few["epsilon_high"]
        < many["epsilon_high"]
        < math.inf
    )
    assert many["epsilon_low"] <= public["holds"]["epsilon_high"]
    if (kind, number) == ("one-pass", "fixed"):
        assert many["epsilon_high"] == gaussian_epsilon(3.0 / math.sqrt(20), 1e-5)
    assert "20 runs" in many["explanation"] or "of mean 20" in many["explanation"]


def test_a_release_without_an_event_leaves_no_profile_finite_but_the_claim():
    events = releases("one-pass", 3, data_dependent_threshold=True, reason="raw norms")
    given = AccountContext(
        images=use_of("one-pass"), search=Search(runs=3, data="private")
    )
    found = account(events, delta=1e-5, given=given)["profiles"]
    for profile in ("holds", "replace_one", "image_level", "tuning"):
        assert (
            found[profile]["epsilon_low"] == found[profile]["epsilon_high"] == math.inf
        )
        assert (
            found[profile]["status"] == "void"
            and "raw norms" in found[profile]["explanation"]
        )
    assert found["as_claimed"]["epsilon_high"] < math.inf


def decays(count, epsilon, profile, **changes):
    """The account of lots whose noise fell, under a budget."""
    budget = BudgetSettings(epsilon=epsilon, delta=1e-5, profile=profile, stop=True)
    given = AccountContext(budget=budget, adaptive=True, **changes)
    return account(
        lot_releases(count, [4.0 * 0.99**step for step in range(count)]),
        delta=1e-5,
        given=given,
    )


def test_noise_that_follows_a_loss_holds_by_the_filter_that_its_budget_was():
    for profile in ("holds", "as_claimed"):
        found = decays(60, 2.0, profile)["profiles"]
        assert (
            found["holds"]["status"] == "proved"
            and "filter" in found["holds"]["explanation"]
        )
        assert (
            found["holds"]["epsilon_low"]
            < 1.0
            < 1.99
            < found["holds"]["epsilon_high"]
            <= 2.0 + 1e-9
        )
        assert found["image_level"]["epsilon_high"] == found["holds"]["epsilon_high"]
        assert (
            found["replace_one"]["epsilon_high"] >= 2 * found["holds"]["epsilon_high"]
        )
        assert found["as_claimed"]["status"] == "as run"
    # A ledger that is not within the budget was not kept by that filter.
    assert decays(60, 0.3, "holds")["profiles"]["holds"]["status"] == "as run"
    # A search of such runs has a divergence at the one order of its filter, and at the
    # many of the paper's none.
    search = Search(runs=2, data="private")
    assert (
        decays(60, 2.0, "holds", search=search)["profiles"]["tuning"]["epsilon_high"]
        > 2.0
    )
    assert (
        "no divergence"
        in decays(60, 2.0, "as_claimed", search=search)["reasons"]["tuning"]
    )


def test_noise_that_was_free_to_fall_is_not_accounted_for_as_if_it_were_not():
    events = lot_releases(20)
    fixed = account(events, delta=1e-5)["profiles"]["holds"]
    free = account(events, delta=1e-5, given=AccountContext(adaptive=True))["profiles"][
        "holds"
    ]
    assert (fixed["status"], free["status"]) == ("proved", "as run")


def test_noise_that_can_only_fall_so_far_is_no_worse_than_if_it_fell_at_every_chance():
    """60 planned lots, at most one fall of 1 % in five of them: the fixed schedule with
    all 11 falls.
    """
    plan = lots(60)
    events = lot_releases(
        60, [4.0 * 0.99 ** (step // 10) for step in range(60)], sampler=plan
    )
    found = account(
        events, delta=1e-5, given=AccountContext(adaptive=True, fall=(0.99, 5))
    )["profiles"]["holds"]
    worst = tuple((4.0 * 0.99**fall, 5) for fall in range(12))
    assert found["status"] == "proved" and "every chance" in found["explanation"]
    assert found["epsilon_high"] == upper_epsilon(worst, plan["rate"], 1e-5)
    assert found["epsilon_low"] < found["epsilon_high"] < 1.2 * found["epsilon_low"]
    # With a budget the better of both proofs counts.
    budget = BudgetSettings(epsilon=2.0, delta=1e-5, profile="holds", stop=True)
    given = AccountContext(adaptive=True, fall=(0.99, 5), budget=budget)
    assert (
        account(events, delta=1e-5, given=given)["profiles"]["holds"]["epsilon_high"]
        == found["epsilon_high"]
    )
    # A rule that the ledger did not follow, or one that may fall too far, proves
    # nothing.
    for fall in ((0.99, 20), (0.5, 5)):
        found = account(
            events, delta=1e-5, given=AccountContext(adaptive=True, fall=fall)
        )["profiles"]["holds"]
        assert found["status"] == "as run"


def test_a_budget_that_leaves_a_release_out_is_no_filter():
    budget = BudgetSettings(epsilon=2.0, delta=1e-5, profile="as_claimed", stop=True)
    events = lot_releases(
        20,
        [4.0 * 0.99**step for step in range(20)],
        names=("gradient-sum", "clipped-norm-sum"),
    )
    found = account(
        events, delta=1e-5, given=AccountContext(budget=budget, adaptive=True)
    )["profiles"]["holds"]
    assert found["status"] == "as run"


def test_noise_for_a_target_is_more_for_a_smaller_one_and_for_more_rounds():
    for kind in (*KINDS, "poisson-lots"):
        plan = lots(500) if kind == "poisson-lots" else sampler(kind, 4000, 100, 40)
        found = [calibrate("holds", plan, epsilon, 1e-5) for epsilon in (8.0, 2.0, 0.5)]
        assert found == sorted(found) and len(set(found)) == 3
        for epsilon, z in zip((8.0, 2.0, 0.5), found, strict=True):
            assert epsilon_after("holds", plan, z, int(plan["rounds"]), 1e-5) <= epsilon
    few, many = (calibrate("holds", lots(rounds), 2.0, 1e-5) for rounds in (100, 1000))
    assert few < many


class TestRuns:
    """A run's folder to its privacy.json."""

    def releases(self, **changes):
        """Of all rounds, as the configuration of the small federation has them."""
        return releases(
            "one-pass", 12, sampler=sampler("one-pass", 48, 4, 12), **changes
        )

    def account(self, path, events, *overlays, **given):
        run, ledger = make_config(*overlays), Ledger(path / "ledger.jsonl")
        for event in events:
            ledger.append(event)
        write_json(
            path / "training.json",
            {"rounds_run": run.participation.rounds, "ledger": ledger.chain},
        )
        account_run(run, path, path / "privacy.json", **given)
        return json.loads((path / "privacy.json").read_text())

    def test_a_private_run(self, tmp_path):
        events = self.releases()
        written = self.account(tmp_path, events)
        expected = account(events, delta=1e-3, given=AccountContext(chosen=True))
        assert written == json.loads(json.dumps(expected))
        assert "post-processing for training clients" in written["reasons"]["tuning"]

    def test_the_partition_gives_the_image_level(self, tmp_path, federation):
        events, search = self.releases(), Search(runs=2, data="public")
        written = self.account(
            tmp_path, events, clients_dir=federation[1], search=search
        )
        assert list(written["profiles"]) == list(PROFILES) and written["reasons"] == {}
        row = written["profiles"]["image_level"]
        square = image_use(make_config(), federation[1]).worst_square([1.0] * 12)
        assert row["epsilon_high"] == gaussian_epsilon(square**-0.5, 1e-3)
        assert row["uses_max"] > 1 and row["uses_mean"] > 1

    def test_infinity_is_written_as_text(self, tmp_path):
        overlay = {"clipping": {"kind": "percentile-of-raw-norms"}}
        events = self.releases(
            data_dependent_threshold=True, reason=make_config(overlay).clipping.reason
        )
        assert (
            self.account(tmp_path, events, overlay)["profiles"]["holds"]["epsilon_high"]
            == "inf"
        )

    def test_a_run_without_privacy_has_no_profiles_and_a_reason(self, tmp_path):
        written = self.account(tmp_path, [], PLAIN)
        assert written["profiles"] == {} and written["reason"]
        assert list(written["reasons"]) == list(PROFILES) and all(
            written["reasons"].values()
        )

    def test_ledger_and_method_must_agree(self, tmp_path):
        for name, events, overlay, said in (
            ("a", [], {}, "is empty, but dp-agr is private"),
            ("b", self.releases(), PLAIN, "has releases, but maml claims no privacy"),
            (
                "c",
                releases("one-pass", 12),
                {},
                ": the ledger has in round 0 a sampler of query-gradient-sum of ",
            ),
        ):
            folder = tmp_path / name
            folder.mkdir()
            with pytest.raises(BenchError, match=rf"ledger\.jsonl.*{said}"):
                self.account(folder, events, overlay)
            assert not (folder / "privacy.json").exists()
