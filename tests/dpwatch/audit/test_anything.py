"""The audit of anybody's release: what it refutes, what it lets pass, and what it does
not take.
"""

import itertools
import math
import runpy
from pathlib import Path

import numpy as np
import pytest
from scipy.special import ndtr

import dpsum
from dpsum.audit.ranks import RankTest
from dpsum.errors import DpsumError
from dpsum.randomness import stream
from dpwatch.audit import attacks
from dpwatch.audit.anything import FALSE_ALARM, audited
from dpwatch.audit.declared import ALONE, OfRounds, Whatever, observations_for

EXAMPLE = Path(__file__).parents[3] / "examples" / "check_a_mechanism.py"
# of one Gaussian release at z = 1, delta = 1e-5 (Balle and Wang 2018, Theorem 8)
EXACT = 4.377


@pytest.fixture(scope="module")
def example():
    return runpy.run_path(str(EXAMPLE))


def mechanism(example, name, seed):
    return getattr(example["Mechanisms"](seed), name)


# What it says


@pytest.mark.parametrize(
    "name",
    [
        "half_the_noise",
        "noise_by_tensor",
        "clipped_by_tensor",
        "clipped_after_adding",
        "realised_denominator",
        "noise_used_twice",
        "coordinates_without_noise",
    ],
)
def test_each_fault_is_refuted(example, name):
    assert name in example["FAULTS"]
    found = audited(mechanism(example, name, 0), dimension=200, noise_multiplier=1.0)
    assert (
        found.refuted and found.status.startswith("REFUTED") and found.epsilon > EXACT
    )


@pytest.mark.parametrize(("dimension", "period"), [(300, 1), (30, 4), (5000, 2)])
def test_noise_that_comes_again_is_a_leak_and_no_state(example, dimension, period):
    """A generator that is seeded in each call, or every few calls."""
    noise = 0.5 * np.random.default_rng(4).standard_normal((period, dimension))
    calls = itertools.count()

    def release(rows):
        return example["clipped"](rows).sum(axis=0) + noise[next(calls) // 2 % period]

    assert audited(
        release, dimension=dimension, noise_multiplier=1.0, calls=200
    ).refuted


def test_right_code_passes_on_twenty_seeds(example):
    """At one false alarm in a thousand all twenty pass in 98 of 100 sets of seeds; the
    bound is above in one of 20.
    """
    found = [
        audited(
            mechanism(example, "right", seed),
            dimension=200,
            noise_multiplier=1.0,
            seed=seed,
        )
        for seed in range(20)
    ]
    assert not any(one.refuted for one in found)
    assert found[0].claimed == pytest.approx(EXACT, abs=1e-3)
    # Five of twenty or more are above in 3 of 1,000 sets of seeds.
    above = [one for one in found if one.epsilon > EXACT]
    assert len(above) < 5 and all(
        ", as right code does once in " in one.status for one in above
    )
    # An ideal attacker is said to show as much in half of all audits: the means are
    # near.
    assert np.mean([one.epsilon for one in found]) == pytest.approx(
        np.mean([one.ideal for one in found]), rel=0.1
    )
    assert min(one.little for one in found) > 1e-4


def test_the_example_says_so(example, capsys):
    assert example["main"](seed=3) == 0
    assert capsys.readouterr().out.count("REFUTED") == 7


def test_too_much_noise_is_said_to_be_another_mechanism(example):
    right = mechanism(example, "right", 0)
    found = audited(
        lambda rows: right(rows) + sum(right(rows[:0]) for _ in range(3)),
        dimension=200,
        noise_multiplier=1.0,
    )
    assert (
        not found.refuted
        and found.little < 1e-4
        and "another mechanism than declared" in found.status
    )


def test_epsilon_is_that_of_the_participation(example):
    """z = 1 and a rate of 1 is three Gaussian releases: one of 1/sqrt(3) (Dong, Roth
    and Su 2022), 8.50 at 1e-5.
    """
    rounds = {"kind": "poisson", "clients": 10, "cohort": 10, "rounds": 3, "rate": 1.0}
    found = audited(
        mechanism(example, "right", 0),
        dimension=200,
        noise_multiplier=1.0,
        participation=rounds,
    )

    def delta(epsilon, z=3**-0.5):
        return ndtr(0.5 / z - epsilon * z) - math.exp(epsilon) * ndtr(
            -0.5 / z - epsilon * z
        )

    assert delta(found.claimed) == pytest.approx(1e-5, rel=0.02)
    assert not found.refuted
    plan = dpsum.Poisson(units=1000, cohort=50, rounds=50)
    found = audited(
        mechanism(example, "right", 0), dimension=200, epsilon=3.0, participation=plan
    )
    # Calibrated noise is 0.949, and the code has 1.0.
    assert (
        found.claimed == 3.0
        and 0.9 < found.noise_multiplier < 1.0
        and not found.refuted
    )


class TooOften(dpsum.Poisson):
    """Four times the chance that it says."""

    def sample_cohort(self, index):
        drawn = stream(self.seed, "test", index).random(self.units)
        return np.flatnonzero(drawn < 4 * self.cohort / self.units)


class InTwoRounds(dpsum.BallsAndBins):
    """Whoever is in a round is in the next as well."""

    def sample_cohort(self, index):
        return np.concatenate(
            [
                super().sample_cohort(index),
                super().sample_cohort((index + 1) % self.rounds),
            ]
        )


class InTwoBlocks(dpsum.OnePass):
    """The same block twice."""

    def sample_cohort(self, index):
        return super().sample_cohort(index // 2)


def drawn(kind):
    return lambda seed: kind(units=400, cohort=40, rounds=10, seed=seed)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (dpsum.Poisson, TooOften),
        (dpsum.BallsAndBins, InTwoRounds),
        (dpsum.OnePass, InTwoBlocks),
    ],
)
def test_a_participation_is_tried_through_its_rounds(example, right, wrong):
    """The release is right, and so is one of two participations of the same
    description.
    """

    def audit_of(kind):
        given = dict(dimension=200, noise_multiplier=1.0, delta=1e-5, leak=1.25)
        return audited(
            mechanism(example, "right", 1), participation=drawn(kind), **given
        )

    as_said, otherwise = audit_of(right), audit_of(wrong)
    assert as_said.sampler == otherwise.sampler and as_said.claimed == otherwise.claimed
    assert (
        not as_said.refuted
        and otherwise.refuted
        and otherwise.worst.name == "over rounds"
    )
    by_name = {attack.name: attack.bound for attack in as_said.attacks}
    assert by_name["over rounds"].ideal == pytest.approx(
        by_name["over rounds"].epsilon, rel=0.5
    )
    assert by_name["over rounds"].chances["as_little"] > 1e-4
    assert otherwise.worst.calls == as_said.attacks[-1].calls > 100


def test_a_participation_that_is_drawn_once_is_tried_once(example):
    found = audited(
        mechanism(example, "right", 0),
        dimension=200,
        noise_multiplier=1.0,
        participation=drawn(dpsum.Poisson)(0),
    )
    assert (
        found.attacks[-1].observations == 200 and not found.refuted
    )  # as many as there are coordinates


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_the_number_of_rows_is_public_where_it_is_said_to_be(example, adjacency):
    """Half the noise is still seen; dividing by the number of rows is no fault."""
    sensitivity = 2.0 if adjacency == "replace-one" else 1.0

    def audit_of(scale):
        made, seen = example["Mechanisms"](5), set()

        def release(rows):
            seen.add(len(rows))
            return (
                example["clipped"](rows).sum(axis=0) + made.noise(scale * sensitivity)
            ) / len(rows)

        found = audited(
            release, dimension=200, noise_multiplier=1.0, adjacency=adjacency, cohort=40
        )
        assert seen == {40}
        return found

    assert not audit_of(1.0).refuted
    assert audit_of(0.5).refuted


def laplace(seed, epsilon, d=20):
    rng = np.random.default_rng(seed)

    def release(rows):
        norms = np.abs(rows).sum(axis=1, keepdims=True)
        clipped = rows * np.minimum(1, 1 / np.maximum(norms, 1e-12))
        return clipped.sum(axis=0) + rng.laplace(scale=1 / epsilon, size=d)

    return release


def test_a_mechanism_that_is_not_declared_is_held_to_epsilon_alone():
    """Laplace noise of scale 1/eps on L1-clipped rows is eps-DP, and no less (Dwork et
    al. 2006).
    """
    right = [
        audited(
            laplace(seed, 1.0), dimension=20, epsilon=1.0, mechanism=None, seed=seed
        )
        for seed in range(3)
    ]
    assert not any(one.refuted for one in right) and all(
        0.2 < one.epsilon < 1.0 for one in right
    )
    assert audited(laplace(0, 2.5), dimension=20, epsilon=1.0, mechanism=None).refuted
    nothing = audited(laplace(0, 2.5), dimension=20)
    assert (
        nothing.claimed is None and not nothing.refuted and 1.0 < nothing.epsilon < 2.5
    )


def test_an_answer_that_no_mean_shows_is_seen(example):
    """The sum with a sign that is drawn anew: it tells as much as the sum itself of
    whether one row is there.
    """
    made, signs = example["Mechanisms"](0), np.random.default_rng(0)

    def release(rows, scale=0.05):
        return signs.choice([-1.0, 1.0]) * example["clipped"](rows).sum(
            axis=0
        ) + made.noise(scale)

    found = audited(release, dimension=200, noise_multiplier=1.0)
    assert found.refuted and found.worst.name == "alone" and found.epsilon > EXACT


def test_what_is_released_may_be_several_arrays_of_another_size():
    rng = np.random.default_rng(0)

    def release(rows, scale=1.0):
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        total = (rows * np.minimum(1, 1 / np.maximum(norms, 1e-12))).sum(axis=0)
        return {
            "sum": total + scale * rng.standard_normal(6),
            "parts": [rng.standard_normal(2), 1.0],
        }

    assert not audited(release, dimension=6, noise_multiplier=1.0).refuted
    assert audited(
        lambda rows: release(rows, 0.5), dimension=6, noise_multiplier=1.0
    ).refuted


# What it is made of


def test_a_false_alarm_is_as_rare_as_said():
    """The statistic of right code, drawn 20,000 times: its normal tail is exceeded
    about as often as it says.
    """
    family, coins = OfRounds(1.0, ALONE), 200
    test = RankTest(family, coins, confidence=0.98, generator=stream(0, "test"))
    own, rng = test.draws(1.0), np.random.default_rng(1)
    present = rng.integers(2, size=(20_000, coins)).astype(bool)
    scores = present + rng.standard_normal(present.shape)
    ranked = np.take_along_axis(present, np.argsort(-scores, axis=1), axis=1)
    found = ranked @ test.weights
    share = FALSE_ALARM / 3
    alarms = int((ndtr((own.mean() - found) / own.std()) < share).sum())
    assert (
        alarms <= 20
    )  # 6.7 are expected; of a Poisson number of these 21 are seen once in 50,000 tests


@pytest.mark.parametrize(("z", "leak"), [(1.0, math.sqrt(2)), (0.5, 2.0)])
def test_so_many_canaries_tell_a_leak_as_often_as_was_said(z, leak):
    """By simulation of one Gaussian of z / leak: of 400 audits at least 360 where 380
    are expected (5 in 10^5).
    """
    family = OfRounds(z, ALONE)
    needed = observations_for(family, leak, power=0.95, false_alarm=3e-4)
    test = RankTest(family, needed, confidence=0.98, generator=stream(0, "test"))
    own, rng = test.draws(1.0), np.random.default_rng(2)
    present = rng.integers(2, size=(400, needed)).astype(bool)
    scores = present + z / leak * rng.standard_normal(present.shape)
    found = (
        np.take_along_axis(present, np.argsort(-scores, axis=1), axis=1) @ test.weights
    )
    told = int((ndtr((own.mean() - found) / own.std()) < 3e-4).sum())
    assert told >= 360 and (told < 400 or needed == 200)


def test_scores_are_likelihood_ratios():
    """Of independent noise (x - s/2) s; of noise that is used twice that of both coins
    together.
    """
    rng = np.random.default_rng(3)
    shift, count = 1.5, 20_000
    here = rng.integers(2, size=(2, count)).astype(bool)
    coins = here & rng.integers(2, size=here.shape).astype(bool)
    middle = np.where(here, shift / 2, 0.0)
    x = rng.standard_normal(here.shape) + shift * coins - middle
    found = attacks._ratios(x, here, np.full(count, shift))
    assert np.corrcoef(found[here], (shift * x)[here])[0, 1] > 0.999
    assert found[here] == pytest.approx((shift * x)[here], abs=0.15)
    # The same noise in both calls: where the other call has no canary its answer is the
    # noise.
    x = rng.standard_normal(count) + shift * coins - middle
    found = attacks._ratios(x, here, np.full(count, shift))
    sure = here[0] & ~here[1]
    assert (
        found[0][sure][coins[0][sure]].min() > 100
        and found[0][sure][~coins[0][sure]].max() < -100
    )


def test_whatever_is_private_has_the_curve_of_its_definition():
    """Of (eps, delta): a share delta of present units is certain, the others have e^eps
    / (1 + e^eps), and mirrored.
    """
    found = Whatever(1.0, 0.1).posteriors(2.0)
    cells = len(found)
    assert found[: int(0.05 * cells) - 1] == pytest.approx(1.0)
    middle = found[int(0.05 * cells) + 1 : cells // 2 - 1]
    assert middle == pytest.approx(1 / (1 + math.exp(-2.0)))
    assert (np.abs(found + found[::-1] - 1) > 1e-9).sum() < 5  # but where it steps


def test_the_plan_is_said_before_it_starts_and_kept(example):
    said, made, right = [], [], mechanism(example, "right", 0)
    found = audited(
        lambda rows: (made.append(1), right(rows))[1],
        dimension=200,
        noise_multiplier=1.0,
        say=lambda line: said.append((line, len(made))),
    )
    ((line, before),) = said
    assert before == 0 and line == found.plan
    planned = int(line.split()[1].replace(",", ""))
    assert abs(planned - found.calls) <= 0.02 * planned and found.calls == len(made)
    few = audited(right, dimension=200, noise_multiplier=1.0, calls=32)
    assert (
        "there are 32 in each" in few.plan
        and few.calls < 0.5 * found.calls
        and not few.refuted
    )


def test_the_same_seed_makes_the_same_audit(example):
    one, two = (
        audited(mechanism(example, "right", 0), dimension=200, epsilon=4.0, seed=1)
        for _ in range(2)
    )
    assert repr(one) == repr(two)


# Bad input


def stateful(kind):
    """Right code but for what it keeps from call to call."""
    rng, kept = np.random.default_rng(0), {"momentum": np.zeros(50), "threshold": 1.0}

    def release(rows):
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        total = (
            rows * np.minimum(1, kept["threshold"] / np.maximum(norms, 1e-12))
        ).sum(axis=0)
        total += kept["threshold"] * rng.standard_normal(50)
        if kind == "momentum":
            total = kept["momentum"] = total + 0.9 * kept["momentum"]
        elif len(rows) > 20:
            kept["threshold"] *= 1.2
        return total

    return release


def several_sizes():
    sizes = itertools.count(50)
    return lambda rows: np.zeros(next(sizes))


RIGHT = {"dimension": 50, "noise_multiplier": 1.0}
RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("release", "changes", "said"),
    [
        (
            several_sizes(),
            {},
            "answers contributions .* with 51 numbers, and answered with 50 before",
        ),
        (lambda rows: rows + 1.0, {}, "has to have one size"),
        (stateful("momentum"), {}, "keeps state"),
        (stateful("threshold"), {}, "keeps state: .* has other noise"),
        (lambda rows: RNG.standard_normal(50), {}, "ignores its input"),
        (lambda rows: np.zeros(50), {}, "ignores its input"),
        (lambda rows: np.full(50, np.nan), {}, "not finite"),
        (lambda rows: "sum", {}, "return real numbers"),
        (
            lambda rows: rows[:, 60],
            {},
            r"fails on contributions \[1, 50\] at call 1 \(IndexError: .*\)",
        ),
        (3, {}, "hand over a function"),
        (RNG.normal, {"dimension": 0}, "dimension is 0"),
        (RNG.normal, {"noise_multiplier": -1.0}, "noise_multiplier is -1"),
        (RNG.normal, {"epsilon": 1.0}, "both epsilon and noise_multiplier"),
        (RNG.normal, {"mechanism": "laplace"}, "mechanism is 'laplace'"),
        (
            RNG.normal,
            {"mechanism": None},
            "says nothing of a mechanism that is not declared",
        ),
        (RNG.normal, {"delta": 0.0}, "delta is 0.0"),
        (RNG.normal, {"leak": 1.0}, "leak is 1.0"),
        (RNG.normal, {"calls": 3}, "takes 16 at least"),
        (RNG.normal, {"cohort": 5}, "goes with zero-out or replace-one"),
        (
            RNG.normal,
            {"adjacency": "add"},
            "choose add-or-remove, zero-out, replace-one",
        ),
        (RNG.normal, {"participation": 5}, "hand over one of dpsum's"),
        (RNG.normal, {"participation": lambda seed: None}, "hand over one of dpsum's"),
        (
            RNG.normal,
            {"participation": {"kind": "passes", "rounds": 3}},
            "no analysis for gaussian noise",
        ),
    ],
)
def test_bad_input_gives_one_line(release, changes, said):
    with pytest.raises(DpsumError, match=said) as caught:
        audited(release, **RIGHT | changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("cohort", "said"),
    [
        ([0.5, 1.0], "no list of numbers"),
        ([[1]], "no list of numbers"),
        ([3, 400], "not one of its 400"),
    ],
)
def test_a_cohort_is_of_units(example, cohort, said):
    plan = drawn(
        type(
            "Faulty",
            (dpsum.Poisson,),
            {"sample_cohort": lambda self, index: cohort},
        )
    )(0)
    with pytest.raises(DpsumError, match=said):
        audited(
            mechanism(example, "right", 0),
            dimension=200,
            noise_multiplier=1.0,
            participation=plan,
            calls=16,
        )


WAYS = [
    dpsum.OnePass,
    dpsum.BallsAndBins,
    dpsum.Poisson,
    dpsum.ShuffledEpochs,
    dpsum.MinSeparation,
    dpsum.FixedSize,
]


@pytest.mark.parametrize(
    ("way", "adjacency", "rows", "rounds"),
    [
        *((way, "zero-out", 100, 20) for way in WAYS),
        (dpsum.FixedSize, "replace-one", 100, 20),
        (dpsum.Poisson, "replace-one", None, 4),
        (dpsum.OnePass, "zero-out", 100, 1),
    ],
)
def test_calls_of_a_fixed_number_of_rows_are_tried_under_every_participation(
    way, adjacency, rows, rounds
):
    """Cohorts are as large as a call has rows (100, or 1,001 where none are named), or
    larger. In one known round of 100 of 2,000 none of four canaries is, so that no
    attack over rounds is left. Right noise is not refuted; the seeds are fixed, and
    right code fails once in a thousand.
    """
    units, cohort = (2000, 100) if rows else (4400, 1100)
    generator = stream(0, "release")
    sensitivity = 2 if adjacency == "replace-one" else 1
    sizes = set()

    def release(given):
        sizes.add(len(given))
        norms = np.linalg.norm(given, axis=1, keepdims=True)
        total = (given / np.maximum(norms, 1.0)).sum(axis=0)
        return total + 2.0 * sensitivity * generator.standard_normal(4)

    found = audited(
        release,
        dimension=4,
        participation=way(units=units, cohort=cohort, rounds=rounds, seed=0),
        noise_multiplier=2.0,
        adjacency=adjacency,
        cohort=rows,
        calls=100,
    )
    over_rounds = [attack.name for attack in found.attacks][-1] == "over rounds"
    assert over_rounds == (rounds > 1)
    assert not found.refuted and sizes == {rows or 1001}
