"""Accounts of ledgers: profiles, calibration, budgets, and ledgers that contradict."""

import dataclasses
import itertools
import json
import math
from functools import partial

import numpy as np
import pytest

from dploss.gaussian import gaussian_epsilon, joint_multiplier
from dpsum import DpsumError
from dpsum.accounting import analyses, calibration
from dpsum.accounting.account import Account, account
from dpsum.accounting.analyses.poisson import lower_epsilon, upper_epsilon
from dpsum.accounting.budget_plans import BudgetPlan, DecayingBudgetPlan
from dpsum.accounting.claims import ONE_RELEASE
from dpsum.accounting.further_release import rest_multiplier
from dpsum.accounting.image_level import ImageUse
from dpsum.accounting.tuning import Search
from dpsum.budget import Budget
from tests.dpsum.accounting import helpers
from tests.dpsum.accounting.helpers import ends
from tests.dpsum.helpers import make_release
from tools.published_epsilons import CLAIMS, DP_ACCOUNTING_ORDERS, renyi_epsilon_tight

DELTA = 1e-5
KINDS = ("one-pass", "balls-and-bins", "poisson")
RATE_OF_LOTS = 78 / 6000
BOTH_SUMS = ("gradient-sum", "clipped-norm-sum")
DECAY = [4.0 * 0.99**step for step in range(60)]

epsilon_after = partial(calibration.epsilon_after, claims=CLAIMS)
rounds_allowed = partial(calibration.rounds_allowed, claims=CLAIMS)
calibrate = partial(calibration.calibrate, claims=CLAIMS)
profiles_of = partial(helpers.profiles_of, delta=DELTA, claims=CLAIMS)

each_kind = pytest.mark.parametrize("kind", KINDS)
each_profile = pytest.mark.parametrize("profile", ["claimed", "proven"])


def sampler_of(kind, clients=4000, cohort=100, rounds=40):
    values = {"clients": clients, "cohort": cohort, "rounds": rounds}
    return {"kind": kind, **values, "rate": cohort / clients}


def lots_of(rounds=100_000):
    """Return the sampler of Adap DP-FL: ten clients' lots of 78 of 6,000 records."""
    values = {"clients": 10, "records": 6000, "cohort": 78, "rounds": rounds}
    values["draw"] = "lots"
    return {"kind": "poisson-lots", **values, "rate": RATE_OF_LOTS}


def lines_of(kind, count, multipliers=(1.0,), **changes):
    """Return rounds of a sampler of 4,000 clients; multipliers are repeated in turn."""
    values = {"name": "query-gradient-sum", "sampler": sampler_of(kind)} | changes
    rounds = zip(range(count), itertools.cycle(multipliers), strict=False)
    return [make_release(round=index, z=z, **values) for index, z in rounds]


def lot_lines(count, multipliers=(1.1,), names=("gradient-sum",), rounds=100_000):
    """Return releases of ten clients' lots, of one or two names a lot."""
    values = {"unit": "record", "observer": "server", "sampler": lots_of(rounds)}
    values["threshold"] = [0.5 + client for client in range(10)]
    return [
        dataclasses.replace(line, name=name, counted_by_paper=name == "gradient-sum")
        for line in lines_of("poisson-lots", count, multipliers, **values)
        for name in names
    ]


# Epsilon of a plan


@each_kind
@each_profile
def test_rounds_allowed_never_pass_the_budget(profile, kind):
    sampler = sampler_of(kind)
    spent = [epsilon_after(profile, sampler, 1.0, done, DELTA) for done in range(41)]
    assert spent[0] == 0
    assert (np.diff(spent) >= -1e-9).all()
    allowed = partial(rounds_allowed, profile, sampler, 1.0, DELTA)
    rounds = allowed(0.999 * spent[-1])
    assert spent[rounds] <= 0.999 * spent[-1]
    assert rounds == 40 or spent[rounds + 1] > 0.999 * spent[-1]
    assert (allowed(spent[-1]), allowed(1e-9)) == (40, 0)


@each_kind
@each_profile
def test_calibrate_finds_the_smallest_multiplier_of_four_digits(profile, kind):
    sampler = sampler_of(kind)
    z = calibrate(profile, sampler, 1.5, DELTA)
    assert epsilon_after(profile, sampler, z, 40, DELTA) <= 1.5
    assert epsilon_after(profile, sampler, z * (1 - 2e-3), 40, DELTA) > 1.5
    assert float(f"{z:.4g}") == z


@each_kind
@each_profile
def test_delta_after_is_the_smallest_at_which_epsilon_suffices(profile, kind):
    """It is accurate to one part in a thousand, and rounded up."""
    sampler = sampler_of(kind)
    epsilon = epsilon_after(profile, sampler, 1.0, 40, 1e-4)
    after = partial(calibration.delta_after, claims=CLAIMS)
    delta = after(profile, sampler, 1.0, 40, epsilon)
    assert 1e-4 * (1 - 2e-6) <= delta <= 1e-4 * (1 + 2e-3)
    assert epsilon_after(profile, sampler, 1.0, 40, delta) <= epsilon


@pytest.mark.parametrize(
    ("z", "claimed", "proven"),
    [(1.1, 451, 979), (3.0, 7921, 12_528), (6.0, 33_495, 52_555)],
)
def test_rounds_allowed_of_adap_dp_fl(z, claimed, proven):
    """docs/privacy.md: epsilon = 2, delta = 1e-5. The proven rounds there are by another
    library's upper end; ours is lower, and allows a little more.
    """
    assert rounds_allowed("claimed", lots_of(), z, DELTA, 2.0) == claimed
    rounds = rounds_allowed("proven", lots_of(), z, DELTA, 2.0)
    assert proven <= rounds <= 1.004 * proven
    if z < 6:  # the low end of more rounds takes a while
        low = lower_epsilon(((z, rounds + 1),), RATE_OF_LOTS, DELTA)
        assert low > 2.0 * (1 - 5e-3)


def test_calibration_has_no_jump_where_noise_is_little():
    sampler = sampler_of("poisson", 1000, 10, 60)

    def epsilon_of(z):
        return epsilon_after("proven", sampler, z, 60, DELTA)

    assert epsilon_of(0.1999) == pytest.approx(epsilon_of(0.2001), rel=0.01)
    target = 1.2 * epsilon_of(0.1999)
    z = calibrate("proven", sampler, target, DELTA)
    assert z < 0.1999
    assert epsilon_of(z) == pytest.approx(target, rel=0.01)


@pytest.mark.parametrize("z", [0.3, 1.0, 3.7])
@pytest.mark.parametrize("second", [4.0, 160.0, 1e6])
def test_rest_multiplier_costs_the_total_beside_the_second_release(z, second):
    """PRIVACY.md: L = 1,600, so 2 sigma_b = 160, costs x1.00002 at z = 1."""
    rest = rest_multiplier(z, second)
    assert rest > z
    assert z <= joint_multiplier([rest, second]) <= z * (1 + 1e-14)
    if (z, second) == (1.0, 160.0):
        assert rest == pytest.approx(1.0000195, abs=5e-7)
    for costly in (z, z / 2, math.nan):
        with pytest.raises(DpsumError, match="count_noise"):
            rest_multiplier(z, costly)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_epsilon_of_a_plan_refuses_impossible_numbers(value):
    sampler = sampler_of("one-pass")
    with pytest.raises(DpsumError, match="noise multiplier"):
        epsilon_after("proven", sampler, value, 1, DELTA)
    with pytest.raises(DpsumError, match=r"budget\.epsilon"):
        calibrate("proven", sampler, value, DELTA)
    with pytest.raises(DpsumError, match="delta"):
        epsilon_after("proven", sampler, 1.0, 1, value)
    with pytest.raises(DpsumError, match="delta"):
        profiles_of(lines_of("one-pass", 2), delta=value)
    with pytest.raises(DpsumError, match="image_level"):
        epsilon_after("image_level", sampler, 1.0, 1, DELTA)


# Accounts


@each_kind
def test_account_states_what_it_is_of(kind):
    result = account(lines_of(kind, 25), claims=CLAIMS, delta=DELTA)
    assert (result.unit, result.rounds, result.delta) == ("client", 25, DELTA)
    assert result.notices == ()
    assert list(result.reasons) == ["image_level", "tuning"]
    claimed, proven, replace_one = result.profiles.values()
    assert claimed.status == ("void" if kind == "one-pass" else "proved")
    assert proven.status == replace_one.status == "proved"
    assert (proven.adjacency, replace_one.adjacency) == ("zero-out", "replace-one")
    for profile, entry in result.profiles.items():
        assert 0 < entry.epsilon_low <= entry.epsilon_high < math.inf
        assert (entry.unit, entry.observer) == ("client", "everyone")
        if profile != "replace_one":
            expected = epsilon_after(profile, sampler_of(kind), 1.0, 25, DELTA)
            assert entry.epsilon_high == expected
    if kind != "one-pass":  # a repaired variant claims what is proven
        assert claimed == proven
    noted = account(lines_of(kind, 2), claims=CLAIMS, delta=1e-3)
    assert "1/4000" in noted.notices[0]


def test_account_prints_the_adjacency_of_each_epsilon():
    """Two Gaussian rounds of z = 1 that a client is in once: 4.377 at 1e-5, and 9.997
    where a replaced client moves each of the sums by 2C (Balle and Wang 2018).
    """
    text = str(account(lines_of("one-pass", 2), delta=DELTA))
    assert "proven: epsilon 4.377 under zero-out adjacency (proved)" in text
    assert "replace_one: epsilon 9.997 under replace-one adjacency (proved)" in text


@each_kind
def test_account_of_a_threshold_from_raw_norms_is_infinite_but_for_the_claim(kind):
    raw = {"data_dependent_threshold": True, "reason": "a threshold from raw norms"}
    lines = lines_of(kind, 12) + lines_of(kind, 20, **raw)[12:]
    search = Search(runs=3, data="private")
    profiles = profiles_of(lines, images=use_of(kind), search=search)
    claimed = profiles.pop("claimed")
    assert set(profiles) == {"proven", "replace_one", "image_level", "tuning"}
    for entry in profiles.values():
        assert ends(entry) == (math.inf, math.inf)
        assert entry.status == "void"
        assert "from raw norms" in entry.explanation
    assert "query-gradient-sum from round 12" in profiles["proven"].explanation
    assert claimed.status == "void"
    assert claimed.epsilon_high < math.inf


@each_kind
def test_account_brackets_rounds_of_different_noise(kind):
    varied, quiet, loud = (
        profiles_of(lines_of(kind, 20, multipliers))["proven"]
        for multipliers in ((1.0, 3.0), (3.0,), (1.0,))
    )
    if kind == "poisson":
        schedule = ((1.0, 10), (3.0, 10))
        expected = upper_epsilon(schedule, sampler_of(kind)["rate"], DELTA)
        assert varied.epsilon_high == expected
        assert quiet.epsilon_high < varied.epsilon_low <= varied.epsilon_high
        assert varied.epsilon_high < loud.epsilon_low
    elif kind == "one-pass":
        assert ends(varied) == ends(loud) == (gaussian_epsilon(1.0, DELTA),) * 2
    else:
        assert ends(varied) == (quiet.epsilon_low, loud.epsilon_high)


def test_account_counts_a_second_release_that_the_paper_leaves_out():
    """Eq. 6 is a scalar query at sigma = 1.1, which the paper's 2 does not count."""
    alone = profiles_of(lot_lines(451))
    with_both = profiles_of(lot_lines(451, names=BOTH_SUMS))
    claimed = with_both["claimed"]
    assert claimed.epsilon_high == alone["claimed"].epsilon_high <= 2.0
    assert claimed.status == "void"
    assert "clipped-norm-sum" in claimed.explanation
    assert with_both["proven"].epsilon_low > 2 * alone["proven"].epsilon_high
    joint = joint_multiplier([1.1, 1.1])
    assert joint == pytest.approx(1.1 / math.sqrt(2))
    expected = upper_epsilon(((joint, 451),), RATE_OF_LOTS, DELTA)
    assert with_both["proven"].epsilon_high == expected


def test_account_groups_the_noise_of_a_long_decay():
    entry = profiles_of(lot_lines(60, DECAY))["proven"]
    assert entry.status == "as run"
    assert "schedule" in entry.explanation
    schedule = tuple((z, 1) for z in DECAY)
    renyi = renyi_epsilon_tight(schedule, RATE_OF_LOTS, DELTA, DP_ACCOUNTING_ORDERS)
    assert 0.9 * entry.epsilon_high < entry.epsilon_low <= entry.epsilon_high <= renyi


@each_kind
def test_replace_one_is_half_the_multiplier_or_two_changes(kind):
    profiles = profiles_of(lines_of(kind, 40, (2.0,)))
    low, high = ends(profiles["replace_one"])
    known = gaussian_epsilon(1.0 if kind != "poisson" else 1.0 / math.sqrt(40), DELTA)
    assert profiles["proven"].epsilon_low <= low <= high <= known
    if kind == "one-pass":
        assert low == high == gaussian_epsilon(1.0, DELTA)
    else:
        assert high >= 2 * profiles["proven"].epsilon_high


def test_replace_one_of_poisson_covers_the_pair_by_quadrature():
    """One round, q = 0.3, z = 2: (1 - q) N(0) + q N(1) against (1 - q) N(0) + q N(-1)."""
    lines = lines_of("poisson", 1, (2.0,), sampler=sampler_of("poisson", 10, 3, 1))
    epsilon = profiles_of(lines, delta=1e-3)["replace_one"].epsilon_high
    x = np.linspace(-30, 30, 600_001)
    zero, up, down = (
        np.exp(-((x - mean) ** 2) / 8) / math.sqrt(8 * math.pi) for mean in (0, 1, -1)
    )
    gap = 0.7 * zero + 0.3 * up - math.exp(epsilon) * (0.7 * zero + 0.3 * down)
    assert np.maximum(gap, 0).sum() * (x[1] - x[0]) <= 1e-3


def use_of(kind, sharing=3):
    """Return image 0 of the first clients of 4,000, and an image for each other."""
    images = np.arange(1, 4001)[:, None]
    images[:sharing] = 0
    rounds = np.arange(4000) // 100 if kind == "one-pass" else None
    return ImageUse(images=images, rounds=rounds)


@each_kind
def test_image_of_several_clients_is_less_private_than_one_client(kind):
    profiles = profiles_of(lines_of(kind, 40), images=use_of(kind))
    image = profiles["image_level"]
    client = profiles["proven"]
    assert client.epsilon_high < image.epsilon_low or kind == "balls-and-bins"
    assert client.epsilon_high < image.epsilon_high < math.inf
    assert (image.unit, image.uses_max, image.status) == ("image", 3, "proved")
    assert image.uses_mean == pytest.approx(4000 / 3998)
    if kind == "one-pass":  # all three are in the first block
        assert image.epsilon_high == helpers.gaussian(1 / 3, DELTA, rel=1e-12)
    alone = profiles_of(lines_of(kind, 40), images=use_of(kind, 1))["image_level"]
    assert alone.epsilon_high == pytest.approx(client.epsilon_high, rel=1e-9)


def test_image_of_one_record_is_the_record():
    profiles = profiles_of(lot_lines(20))
    image = profiles["image_level"]
    assert ends(image) == ends(profiles["proven"])
    assert (image.unit, image.uses_max) == ("image", 1)


@each_kind
@pytest.mark.parametrize("number", ["fixed", "geometric", "poisson"])
def test_search_costs_on_private_data_alone(kind, number):
    def profiles_of_search(runs, data):
        search = Search(runs=runs, data=data, number=number)
        lines = lines_of(kind, 40, (3.0,))
        return profiles_of(lines, search=search, own_streams=True)

    public = profiles_of_search(20, "public")
    assert ends(public["tuning"]) == ends(public["proven"])
    few, twenty = (profiles_of_search(runs, "private")["tuning"] for runs in (2, 20))
    alone = public["proven"].epsilon_high
    assert alone < few.epsilon_high < twenty.epsilon_high < math.inf
    assert twenty.epsilon_low <= alone
    if (kind, number) == ("one-pass", "fixed"):
        assert twenty.epsilon_high == gaussian_epsilon(3.0 / math.sqrt(20), DELTA)


def test_account_is_read_back():
    raw = {"data_dependent_threshold": True, "reason": "raw"}
    for lines in ([], lines_of("poisson", 3), lines_of("poisson", 3, **raw)):
        result = account(lines, claims=CLAIMS, delta=DELTA)
        values = json.loads(json.dumps(result.to_json()))
        restored = Account.from_json(values)
        assert restored.profiles == result.profiles
        assert restored.to_json() == result.to_json()
    for change in ({"profiles": {"proven": {}}}, {"odd": 1}):
        with pytest.raises(DpsumError, match="is not an account"):
            Account.from_json(values | change)


# Refusals


@pytest.mark.parametrize(
    ("mechanism", "kind"),
    [("gaussian", "shuffled"), ("correlated", "one-pass"), ("correlated", "poisson")],
)
def test_pair_without_an_analysis_has_no_epsilon(mechanism, kind):
    sampler = sampler_of(kind)
    plan = {"sampler": sampler, "multiplier": 1.0, "claims": CLAIMS}
    after = partial(epsilon_after, mechanism=mechanism)
    lines = lines_of("one-pass", 3, sampler=sampler, mechanism=mechanism)
    for attempt in (
        lambda: analyses.find(mechanism, kind),
        lambda: after("proven", sampler, 1.0, 1, DELTA),
        lambda: after("claimed", sampler, 1, 1, DELTA),
        lambda: BudgetPlan(budget_of("proven"), **plan, mechanism=mechanism),
        lambda: profiles_of(lines),
    ):
        message = f"no analysis for {mechanism} noise with the sampler '{kind}'"
        with pytest.raises(DpsumError, match=message):
            attempt()


def changed(**change):
    """Return six rounds of one pass, the fourth of which is changed."""
    lines = lines_of("one-pass", 6)
    lines[3] = dataclasses.replace(lines[3], **change)
    return lines


TWO_SUMS = lot_lines(3, names=BOTH_SUMS)
REPLACED = {"adjacency": "replace-one", "sensitivity": 1.0, "noise_std": 1.0}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (changed(round=7), "of round 7"),
        (changed(round=2), "of round 2"),
        (changed(sampler={"kind": "poisson"}), "another sampler"),
        (changed(unit="record"), "composes sums over two units"),
        (changed(**REPLACED), "another sampler, unit, adjacency"),
        (changed(adjacency="replace-one"), "the replace-one sensitivity of its thr"),
        (changed(noise_std=0.25), "deviation 0.25"),
        (changed(noise_std=0.5 / 100), "deviation 0.005"),
        (changed(mechanism="correlated"), "no analysis for correlated"),
        (changed(sensitivity=0.25, noise_std=0.25), "declares sensitivity"),
        (lines_of("poisson", 3, **REPLACED), "is for replace-one adjacency"),
        (lines_of("poisson", 41), "41 rounds"),
        (TWO_SUMS[:-1], "differ in what they released"),
        ([TWO_SUMS[0], TWO_SUMS[0]], "is of round 0"),
    ],
)
def test_account_refuses_lines_that_contradict_each_other(lines, message):
    """z, C and the sampler of each round must describe the accounted mechanism."""
    with pytest.raises(DpsumError, match=message):
        profiles_of(lines)


@pytest.mark.parametrize(
    "lines", [*(lines_of(kind, 5) for kind in KINDS), lot_lines(5, rounds=40)]
)
def test_method_without_a_claim_has_no_claimed_epsilon(lines):
    sampler = lines[0].sampler
    result = account(lines, claims={}, delta=DELTA)
    assert "claims no epsilon" in result.reasons["claimed"]
    expected = profiles_of(lines)
    expected.pop("claimed")
    assert result.profiles == expected
    with pytest.raises(DpsumError, match="claims no epsilon"):
        calibration.epsilon_after("claimed", sampler, 1.0, 1, DELTA)
    plan = {"sampler": sampler, "multiplier": 1.0, "mechanism": "gaussian"}
    with pytest.raises(DpsumError, match=r"budget\.profile is claimed"):
        BudgetPlan(budget_of("claimed"), **plan, claims={})
    spent = BudgetPlan(budget_of("proven"), **plan, claims={}).epsilon_spent(2)
    proven = epsilon_after("proven", sampler, 1.0, 2, DELTA)
    assert spent == pytest.approx((math.nan, proven), rel=0, abs=0, nan_ok=True)


# Noise that follows a loss


def budget_of(profile, epsilon=2.0):
    return Budget(epsilon=epsilon, delta=DELTA, profile=profile, stop=True)


def decayed_profiles(profile, epsilon=2.0, **context):
    """Return the profiles of 60 lots whose noise fell, under a budget."""
    budget = budget_of(profile, epsilon)
    return profiles_of(lot_lines(60, DECAY), budget=budget, adaptive=True, **context)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mechanism": "correlated"}, "noise that follows a loss"),
        ({"sampler": sampler_of("poisson")}, "noise that follows a loss"),
        ({"claims": {"poisson-lots": ONE_RELEASE}}, "lot by lot"),
        ({"claims": {}}, r"budget\.profile is claimed"),
    ],
)
def test_decaying_budget_refuses_what_no_filter_is_of(change, message):
    plan = {"sampler": lots_of(), "claims": CLAIMS, "mechanism": "gaussian"} | change
    decay = {"multiplier": 1.0, "decay": 0.9, "patience": 3}
    with pytest.raises(DpsumError, match=message):
        DecayingBudgetPlan(budget_of("claimed"), **decay, **plan)


def test_account_of_decaying_noise_without_a_filter_that_covers_it_is_as_run():
    """Beyond its budget, free to fall, or with a release that the budget leaves out."""
    assert decayed_profiles("proven", 0.3)["proven"].status == "as run"
    for is_adaptive, status in ((True, "as run"), (False, "proved")):
        profiles = profiles_of(lot_lines(20), adaptive=is_adaptive)
        assert profiles["proven"].status == status
    lines = lot_lines(20, DECAY, names=BOTH_SUMS)
    profiles = profiles_of(lines, budget=budget_of("claimed"), adaptive=True)
    assert profiles["proven"].status == "as run"


def test_search_of_decaying_noise_needs_a_filter_of_one_order():
    """The many orders of the paper's budget have no divergence."""
    search = Search(runs=2, data="private")
    assert decayed_profiles("proven", search=search)["tuning"].epsilon_high > 2.0
    assert "tuning" not in decayed_profiles("claimed", search=search)


def test_account_of_noise_with_a_slowest_fall_takes_every_fall():
    """60 planned lots, at most one fall of 1 % in five of them: the schedule with all
    11 falls. A rule that the ledger did not follow, or one that may fall too far,
    proves nothing.
    """
    multipliers = [4.0 * 0.99 ** (step // 10) for step in range(60)]
    lines = lot_lines(60, multipliers, rounds=60)
    falling = partial(profiles_of, lines, adaptive=True)
    entry = falling(decay_step=(0.99, 5))["proven"]
    worst = tuple((4.0 * 0.99**fall, 5) for fall in range(12))
    assert entry.status == "proved"
    assert entry.epsilon_high == upper_epsilon(worst, RATE_OF_LOTS, DELTA)
    assert entry.epsilon_low < entry.epsilon_high < 1.2 * entry.epsilon_low
    better = falling(decay_step=(0.99, 5), budget=budget_of("proven"))["proven"]
    assert better.epsilon_high == entry.epsilon_high
    for decay_step in ((0.99, 20), (0.5, 5)):
        assert falling(decay_step=decay_step)["proven"].status == "as run"
