"""Watched loops of jax_privacy: right ones, and planted faults."""

import math

import numpy as np
import pytest

pytest.importorskip("jax_privacy")

import dp_accounting
import jax
import jax.numpy as jnp
from jax_privacy import batch_selection, clipping, noise_addition
from jax_privacy.experimental import accounting

from dpsum import DpsumError
from dpsum.accounting.analyses import fixed_size, poisson
from dpsum.ledger import read_ledger
from dpwatch.adapters.jax_privacy import watch

pytestmark = pytest.mark.filterwarnings(
    "ignore:optax.global_norm is deprecated:DeprecationWarning"
)
EXAMPLES = 200
ROUNDS = 3
DELTA = 1e-5
DATA = np.random.default_rng(0).normal(size=(EXAMPLES, 40)).astype(np.float32)
POISSON = batch_selection.CyclicPoissonSampling(sampling_prob=0.1, iterations=ROUNDS)
FIXED = batch_selection.FixedBatchSampling(batch_size=20, iterations=ROUNDS)
BINS = batch_selection.BallsInBinsSampling(iterations=ROUNDS, cycle_length=ROUNDS)


def loss(weights, rows):
    return jnp.mean((rows @ weights - 1.0) ** 2)


def make_watch(path, selection=POISSON, *, noise=2.0, stddev=2.0, **options):
    clipped = clipping.clipped_grad(loss, l2_clip_norm=1.0, batch_argnums=1)
    privatizer = noise_addition.gaussian_privatizer(stddev=noise, prng_key=3)
    options = {"examples": EXAMPLES, "stddev": stddev} | options
    return watch(selection, clipped, privatizer, path, **options)


def run(watched, *, scale=1.0, twice=False, pad=0, marked=True):
    """Train; a fault is a scaled sum, a second step on a batch, or padding."""
    weights = jnp.zeros(40)
    state = watched.privatizer.init(weights)
    for indices in watched.batches(1):
        batch = DATA[indices]
        options = {}
        if pad:
            batch = np.concatenate([batch, np.ones((pad, 40), np.float32)])
            if marked:
                flags = np.arange(len(batch)) >= len(indices)
                options = {"is_padding_example": jnp.array(flags)}
        for _ in range(2 if twice else 1):
            total = watched.clipped(weights, batch, **options)
            if scale != 1.0:
                total = total * scale
            noisy, state = watched.privatizer.update(total, state)
            weights = weights - 0.01 * noisy
    return weights


def proven(watched):
    return watched.account(DELTA).profiles["proven"]


def test_poisson_has_the_account_of_what_ran(path):
    event = accounting.dpsgd_event(2.0, ROUNDS, sampling_prob=0.1)
    watched = make_watch(path, event=event)
    run(watched)
    lines = read_ledger(path)
    assert [line.round for line in lines] == list(range(ROUNDS))
    assert {line.reason for line in lines} == {""}
    assert lines[0].sensitivity == 1.0
    assert lines[0].dimension == 40
    entry = proven(watched)
    expected = poisson.ends(((2.0, ROUNDS),), 0.1, DELTA)
    assert (entry.epsilon_low, entry.epsilon_high) == expected
    claimed = watched.account(DELTA).profiles["claimed"]
    assert claimed.epsilon_high == pytest.approx(expected[1], rel=0.02)
    assert claimed.adjacency == "zero-out"


def test_watching_changes_no_bit(path):
    watched = run(make_watch(path))
    clipped = clipping.clipped_grad(loss, l2_clip_norm=1.0, batch_argnums=1)
    privatizer = noise_addition.gaussian_privatizer(stddev=2.0, prng_key=3)
    weights = jnp.zeros(40)
    state = privatizer.init(weights)
    for indices in POISSON.batch_iterator(EXAMPLES, 1):
        noisy, state = privatizer.update(clipped(weights, DATA[indices]), state)
        weights = weights - 0.01 * noisy
    assert np.array_equal(np.asarray(weights), np.asarray(watched))


def test_fixed_batches_have_the_account_of_fixed_size(path):
    watched = make_watch(path, FIXED)
    run(watched)
    entry = proven(watched)
    schedule = ((2.0, ROUNDS),)
    assert entry.epsilon_high == fixed_size.upper_epsilon(schedule, 0.1, DELTA)


def test_claim_for_add_or_remove_of_fixed_batches_is_void(path):
    relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    event = accounting.dpsgd_event(2.0, ROUNDS, sampling_prob=0.1)
    accountant = lambda: dp_accounting.pld.PLDAccountant(relation)  # noqa: E731
    watched = make_watch(path, FIXED, event=event, accountant=accountant)
    run(watched)
    claimed = watched.account(DELTA).profiles["claimed"]
    assert claimed.status == "void"
    assert "fixed number of records" in claimed.explanation


@pytest.mark.parametrize(
    ("selection", "kind"),
    [
        (BINS, "balls-and-bins"),
        (
            batch_selection.FixedBatchSampling(
                batch_size=20, iterations=ROUNDS, replace=True
            ),
            "fixed-draws",
        ),
    ],
)
def test_other_selections_have_a_finite_account(path, selection, kind):
    watched = make_watch(path, selection)
    run(watched)
    assert read_ledger(path)[0].sampler["kind"] == kind
    entry = proven(watched)
    assert entry.status == "proved"
    assert 0 < entry.epsilon_low <= entry.epsilon_high < math.inf


@pytest.mark.parametrize(
    ("selection", "kind"),
    [
        (
            batch_selection.CyclicPoissonSampling(
                sampling_prob=0.1, iterations=ROUNDS, truncated_batch_size=15
            ),
            "truncated-poisson",
        ),
        (
            batch_selection.CyclicPoissonSampling(
                sampling_prob=0.1, iterations=ROUNDS, cycle_length=2
            ),
            "cyclic-poisson",
        ),
        (
            batch_selection.BallsInBinsSampling(iterations=ROUNDS + 3, cycle_length=3),
            "balls-in-bins of several cycles",
        ),
    ],
)
def test_selections_without_analysis_have_no_epsilon(path, selection, kind):
    watched = make_watch(path, selection)
    run(watched)
    with pytest.raises(DpsumError, match=f"no analysis.*{kind}"):
        watched.account(DELTA)


def test_marked_padding_is_right(path):
    watched = make_watch(path)
    run(watched, pad=3)
    assert proven(watched).status == "proved"


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ({"pad": 3, "marked": False}, "examples, but"),
        ({"scale": 0.5}, "not the clipped sum"),
    ],
)
def test_planted_faults_of_the_loop_are_found(path, fault, reason):
    watched = make_watch(path)
    run(watched, **fault)
    assert any(reason in line.reason for line in read_ledger(path))
    assert math.isinf(proven(watched).epsilon_high)


def test_second_step_on_a_batch_is_found_and_has_no_account(path):
    watched = make_watch(path)
    run(watched, twice=True)
    reasons = [line.reason for line in read_ledger(path)]
    assert [bool(reason) for reason in reasons] == [False, True] * ROUNDS
    assert "a batch a second time" in reasons[1]
    with pytest.raises(DpsumError, match=f"its sampler plans {ROUNDS}"):
        watched.account(DELTA)


def test_noise_that_is_too_small_is_found(path):
    """120 coordinates of half of the deviation: chi squared, wrong once in 1e8."""
    watched = make_watch(path, noise=1.0, stddev=2.0)
    run(watched)
    assert math.isinf(proven(watched).epsilon_high)


def test_watch_refuses_a_compiled_privatizer(path):
    watched = make_watch(path)
    next(watched.batches(1))
    weights = jnp.zeros(40)
    state = watched.privatizer.init(weights)
    with pytest.raises(DpsumError, match=r"under jax\.jit"):
        jax.jit(watched.privatizer.update)(weights, state)


@pytest.mark.parametrize("wrong", [{"examples": 0}, {"stddev": 0.0}])
def test_watch_refuses_numbers_out_of_range(path, wrong):
    with pytest.raises(DpsumError, match=next(iter(wrong))):
        make_watch(path, **wrong)
