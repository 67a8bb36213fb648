"""Audits of the sums that few-shot clients take over their own examples."""

import numpy as np
import pytest

from dpfedbench.audit.own_sums import one_run_of_examples
from dpfedbench.audit.report import own_family
from dpfedbench.papers import gbml
from dploss.gaussian import gaussian_epsilon
from dpsum.accounting.analyses import within_task
from dpsum.private_sum import PrivateSum
from tests.dpfedbench.training.conftest import make_config

from .conftest import bounds, scaled_noise


def run_audit(method, within, canaries=1500, delta=1e-5, update=None, **options):
    """Return the first sampler of an audit at seed 5, and its bound at 95 %."""
    overlay = {"method": method, "within_task": within, "client_update": update or {}}
    options |= {"seed": 5, "canaries": canaries}
    result = one_run_of_examples(make_config(overlay), **options)
    family = own_family(result.releases, delta)
    bound = bounds(result, family, delta=delta, seed=5)[0].epsilon
    return [line.sampler for line in result.releases], bound


@pytest.mark.parametrize("method", ["dp-agrlr", "dp-maml-sample", "dp-reptile"])
def test_audit_of_within_task_is_zero_on_a_null_and_at_most_the_proven_epsilon(method):
    """95 %, three mechanisms, fixed seed: an alarm of either kind is one in seven."""
    samplers, bound = run_audit(method, {"multiplier": 1.0})
    releases = max(map(within_task.releases_with, samplers))
    proven = gaussian_epsilon(releases**-0.5, 1e-5)
    assert 0.3 * proven < bound <= proven
    assert run_audit(method, {"multiplier": 1.0}, inserted=False)[1] == 0


def test_audit_refutes_half_the_stated_noise(monkeypatch):
    monkeypatch.setattr(PrivateSum, "_noised", scaled_noise(1 / 2))
    _, bound = run_audit("dp-agrlr", {"multiplier": 2.0}, canaries=4000)
    assert bound > gaussian_epsilon(2.0, 1e-5)


BY_TENSOR = {
    "multiplier": 4.0,
    "epsilon": None,
    "clipping_groups": "tensors",
    "noise_by_group": "per-group",
}


@pytest.mark.parametrize("method", ["dp-agrlr", "dp-reptile"])
def test_audit_by_tensor_refutes_the_multiplier_of_one_tensor(method):
    """16 tensors with noise 4 C in each protect like z = 1."""
    (sampler, *_), bound = run_audit(method, BY_TENSOR, canaries=1000, groups=16)
    claimed, proven = (within_task.epsilon_of(sampler, z, 1e-5) for z in (4.0, 1.0))
    assert claimed < bound <= proven


def audit_poisson_steps(z=0.585, **options):
    (sampler, *_), bound = run_audit(
        "dp-reptile",
        {"multiplier": z, "delta": 1e-3},
        canaries=4000,
        delta=1e-3,
        update={"batches": "poisson", "inner_steps": 5},
        **options,
    )
    return bound, within_task.epsilon_of(sampler, z, 1e-3)


def test_audit_of_poisson_steps_is_zero_on_a_null_and_at_most_the_proven_epsilon():
    """At a fixed seed; one audit in twenty would be above, and one null in twenty."""
    bound, proven = audit_poisson_steps()
    assert 1.0 < bound <= proven
    assert audit_poisson_steps(inserted=False)[0] == 0


def test_audit_refutes_poisson_steps_that_read_every_example(monkeypatch):
    monkeypatch.setattr(
        gbml, "poisson_batches", lambda rng, steps, count: [np.arange(count)] * steps
    )
    bound, proven = audit_poisson_steps(z=1.2)
    assert bound > proven
