"""Audits of the sums that few-shot clients take over their own examples."""

import numpy as np
import pytest

from dpfedbench.audit.own_sums import one_run_of_examples
from dpfedbench.audit.report import bounds_of, own_family
from dpfedbench.papers import gbml
from dploss.gaussian import gaussian_epsilon
from dpsum.accounting.analyses import within_task
from dpsum.private_sum import PrivateSum
from tests.dpfedbench.training.conftest import make_config


def run_audit(method, *overlays, canaries=1000, delta=1e-5, **options):
    """Return the run of an audit at seed 5, and its bound at 95 %."""
    run = one_run_of_examples(
        make_config({"method": method}, *overlays),
        seed=5,
        canaries=canaries,
        **options,
    )
    family = own_family(run.releases, delta)
    bounds = bounds_of(run, family, delta=delta, confidence=0.95, seed=5)
    return run, bounds[0].epsilon


@pytest.mark.parametrize("method", ["dp-agrlr", "dp-maml-sample", "dp-reptile"])
def test_audit_of_within_task_is_zero_on_a_null_and_at_most_the_proven_epsilon(method):
    """Bounds of 95 % for three mechanisms at a fixed seed: a false alarm of either kind
    is one in seven at most.
    """
    overlay = {"within_task": {"multiplier": 1.0}}
    run, bound = run_audit(method, overlay, canaries=1500)
    proven = max(
        gaussian_epsilon(within_task.releases_with(line.sampler) ** -0.5, 1e-5)
        for line in run.releases
    )
    assert 0.3 * proven < bound <= proven
    _, null_bound = run_audit(method, overlay, canaries=1500, inserted=False)
    assert null_bound == 0


def test_audit_refutes_half_the_stated_noise(monkeypatch):
    right_noise = PrivateSum._noised

    def half_noise(self, total, standard):
        return total + (right_noise(self, total, standard) - total) / 2

    monkeypatch.setattr(PrivateSum, "_noised", half_noise)
    overlay = {"within_task": {"multiplier": 2.0}}
    _, bound = run_audit("dp-agrlr", overlay, canaries=4000)
    assert bound > gaussian_epsilon(2.0, 1e-5)


BY_TENSOR = {
    "within_task": {
        "multiplier": 4.0,
        "epsilon": None,
        "clipping_groups": "tensors",
        "noise_by_group": "per-group",
    }
}


@pytest.mark.parametrize("method", ["dp-agrlr", "dp-reptile"])
def test_audit_by_tensor_refutes_the_multiplier_of_one_tensor(method):
    """16 tensors with noise 4 C in each protect like z = 1."""
    run, bound = run_audit(method, BY_TENSOR, groups=16)
    sampler = run.releases[0].sampler
    claimed, proven = (within_task.epsilon_of(sampler, z, 1e-5) for z in (4.0, 1.0))
    assert claimed < bound <= proven


def audit_poisson_steps(z=0.585, **options):
    overlay = {
        "within_task": {"multiplier": z, "delta": 1e-3},
        "client_update": {"batches": "poisson", "inner_steps": 5},
    }
    run, bound = run_audit("dp-reptile", overlay, canaries=4000, delta=1e-3, **options)
    return bound, within_task.epsilon_of(run.releases[0].sampler, z, 1e-3)


def test_audit_of_poisson_steps_is_zero_on_a_null_and_at_most_the_proven_epsilon():
    """At a fixed seed; one audit in twenty would be above, and one null in twenty."""
    bound, proven = audit_poisson_steps()
    assert 1.0 < bound <= proven
    assert audit_poisson_steps(inserted=False)[0] == 0


def test_audit_refutes_poisson_steps_that_read_every_example(monkeypatch):
    def full_batches(rng, steps, count):
        return [np.arange(count)] * steps

    monkeypatch.setattr(gbml, "poisson_batches", full_batches)
    bound, proven = audit_poisson_steps(z=1.2)
    assert bound > proven
