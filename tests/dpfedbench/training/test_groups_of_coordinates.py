"""Clipping by groups of coordinates in a run."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from dpfedbench.errors import BenchError
from dpfedbench.models.net import Net
from dpfedbench.models.torch_sums import add_groups_on_device, add_to
from dpfedbench.parts.optimizers.adam_bc import AdamBC
from dpfedbench.training.agreement import check_agrees
from dpfedbench.training.client_updates.maml import QUERY, SUPPORT
from dploss.gaussian import gaussian_epsilon
from dpsum.group_clipping import CoordinateGroups, GroupedSum, clip_groups
from dpsum.private_sum import PrivateSum

from .conftest import (
    accounted,
    history_in,
    ledger_in,
    make_config,
    proven,
    rounds_of,
    train,
)

JOINT = {"noise_by_group": "joint"}
FOUR = {"participation": {"rounds": 4}}
CONSTANT = {
    "kind": "constant",
    "threshold": 0.2,
    "groups": "tensors",
    "noise_by_group": "per-group",
}
BY_TENSOR = {"clipping": CONSTANT} | FOUR
QUANTILE_RULE = {
    "kind": "private-quantile",
    "groups": "layers",
    "threshold": 0.5,
    "percentile": 50,
    "count_noise": 3.0,
    "never_rising": False,
}
QUANTILE = {"clipping": QUANTILE_RULE} | FOUR
NAMES = [
    *(f"block{n}.{name}" for n in range(1, 5) for name in ("weight", "scale", "shift")),
    "head.weight",
    "head.bias",
]
GROUPS = CoordinateGroups((0, 20, 21, 50))
THRESHOLDS = (1.0, 0.1, 30.0)


class Named(nn.Module):
    """Module with tensors in several submodules, one of them normalisation."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 3, 3)
        self.norm = nn.GroupNorm(3, 3)
        self.body = nn.Sequential(nn.Linear(12, 5, bias=False), nn.Linear(5, 2))

    def forward(self, x):
        return self.body(self.norm(self.first(x)).flatten(1))


TENSORS = {
    "first.weight": 27,
    "first.bias": 3,
    "norm.weight": 3,
    "norm.bias": 3,
    "body.0.weight": 60,
    "body.1.weight": 10,
    "body.1.bias": 2,
}
LAYERS = {"first": 36, "body.0.weight": 60, "body.1": 12}


@pytest.mark.parametrize(
    ("kind", "expected"), [("tensors", TENSORS), ("layers", LAYERS)]
)
def test_coordinate_groups_are_the_tensors_or_layers_of_a_network(kind, expected):
    net = Net(Named, input_shape=(4, 4, 1), outputs=2)
    groups = net.coordinate_groups(kind, "joint")
    sizes = np.diff(groups.boundaries).tolist()
    assert dict(zip(groups.names, sizes, strict=True)) == expected
    assert groups.dimension == net.dimension == 108
    with_rates = net.with_rates(2, 0.1)
    groups = with_rates.coordinate_groups(kind, "joint")
    assert groups.names[-1] == "rates"
    assert groups.dimension == with_rates.dimension


# Sums of torch tensors


def rows_with_a_nan(dimension=50):
    rows = torch.randn(37, dimension, generator=torch.Generator().manual_seed(0))
    rows[3, 7] = torch.nan
    return rows


def test_add_to_clips_each_group_as_the_definition_says():
    rows = rows_with_a_nan()
    total = GroupedSum(groups=GROUPS, thresholds=THRESHOLDS, noise_multiplier=1.0)
    add_to(total, rows)
    expected = sum(clip_groups(row.numpy(), GROUPS, THRESHOLDS) for row in rows)
    assert total.non_finite == 1
    assert total._total == pytest.approx(expected, rel=1e-9)


def test_add_groups_on_device_is_the_definition():
    """The path of a GPU, with tensors on the CPU."""
    rows = rows_with_a_nan()
    total = np.zeros(50)
    norms = np.zeros((37, 3))
    add_groups_on_device(GROUPS, rows, THRESHOLDS, total, norms)
    expected = sum(clip_groups(row.numpy(), GROUPS, THRESHOLDS) for row in rows)
    assert total == pytest.approx(expected, rel=1e-6)
    assert np.isnan(norms[3]).all()
    first = [np.linalg.norm(rows[0].numpy()[group]) for group in GROUPS.slices]
    assert norms[0] == pytest.approx(first, rel=1e-6)


def test_add_to_with_one_group_has_the_bits_of_flat_clipping():
    rows = rows_with_a_nan(5000)
    flat = PrivateSum(dimension=5000, threshold=0.7, noise_multiplier=1.0)
    whole = CoordinateGroups((0, 5000))
    grouped = GroupedSum(groups=whole, thresholds=(0.7,), noise_multiplier=1.0)
    releases = []
    for total in (flat, grouped):
        add_to(total, rows)
        releases.append(total.release(np.random.default_rng(1).standard_normal(5000)))
    assert np.array_equal(*releases)


# Runs


@pytest.fixture(scope="module")
def by_tensor(federation, tmp_path_factory):
    """Train a run that is clipped by tensor, and return its folder."""
    run_dir = tmp_path_factory.mktemp("by-tensor")
    train(make_config(BY_TENSOR), federation, run_dir)
    return run_dir


def test_ledger_and_account_by_tensor_are_one_gaussians(
    federation, by_tensor, tmp_path
):
    """One pass over known blocks is one Gaussian of multiplier 14^(-1/2). delta is
    1e-3.
    """
    config = make_config(BY_TENSOR)
    lines = ledger_in(by_tensor)
    assert len(lines) == 4
    for line in lines:
        assert line.groups["names"] == NAMES
        assert line.groups["thresholds"] == [0.2] * 14
        assert line.groups["noise_stds"] == pytest.approx([0.2] * 14)
        assert line.noise_multiplier == pytest.approx(14**-0.5)
        assert line.claimed_multiplier == pytest.approx(1.0)
    check_agrees(config, lines, 4)
    profiles = accounted(config, by_tensor)["profiles"]
    epsilon = profiles["proven"]["epsilon_high"]
    assert epsilon == pytest.approx(gaussian_epsilon(14**-0.5, 1e-3))
    flat = make_config(BY_TENSOR, {"clipping": {"groups": "all"} | JOINT})
    train(flat, federation, tmp_path)
    claimed = accounted(flat, tmp_path)["profiles"]["claimed"]["epsilon_high"]
    assert profiles["claimed"]["epsilon_high"] == pytest.approx(claimed)
    first = history_in(by_tensor).iloc[0]
    assert first["threshold"] == pytest.approx(0.2 * 14**0.5)
    assert first["threshold_least"] == first["threshold_most"] == 0.2
    assert first["epsilon_proven"] == pytest.approx(epsilon)


def test_thresholds_of_layers_differ_and_their_counts_are_paid(federation, tmp_path):
    """Five layers: the counts have mu^2 = 5 (1 / 2)^2 / 3^2, and the sum has the rest
    of 1.

    The torch path and the compiled passes agree on the thresholds.
    """
    config = make_config(QUANTILE)
    train(config, federation, tmp_path)
    lines = ledger_in(tmp_path)
    count_cost = 5 / 36
    for total, count in zip(lines[::2], lines[1::2], strict=True):
        assert count.noise_multiplier**-2 == pytest.approx(count_cost)
        assert total.noise_multiplier**-2 == pytest.approx(1 - count_cost)
    thresholds = lines[-2].groups["thresholds"]
    assert len(set(thresholds)) > 1
    epsilon = proven(config, tmp_path)["epsilon_high"]
    assert epsilon == pytest.approx(gaussian_epsilon(1.0, 1e-3))
    train(config, federation, tmp_path / "torch", kernels=False)
    by_torch = ledger_in(tmp_path / "torch")[-2].groups["thresholds"]
    assert by_torch == pytest.approx(thresholds, rel=1e-3)


def test_adam_without_bias_reads_the_noise_of_each_group():
    optimizer = AdamBC()
    weights = torch.zeros(3)
    state = optimizer.begin(weights)
    optimizer.set_noise_deviation(state, np.array([1.0, 1.0, 2.0]))
    optimizer.step(weights, torch.ones(3), state, 0.1)
    assert state["noise"].tolist() == pytest.approx([0.001, 0.001, 0.004])
    assert weights.isfinite().all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"noise_by_group": "joint"}, "claimed multiplier|multipliers"),
        ({"groups": "all", "noise_by_group": "joint"}, "groups of"),
        ({"threshold": 0.3}, "first threshold"),
    ],
)
def test_ledger_by_tensor_of_another_configuration_is_refused(
    by_tensor, change, message
):
    with pytest.raises(BenchError, match=message):
        check_agrees(
            make_config(BY_TENSOR, {"clipping": change}), ledger_in(by_tensor), 4
        )


def test_ledger_whose_noise_moved_between_groups_is_refused(federation, tmp_path):
    """One tensor has more noise and another less, so that the multiplier is the same."""
    config = make_config(BY_TENSOR, {"clipping": JOINT})
    train(config, federation, tmp_path)
    lines = ledger_in(tmp_path)
    std, _, *rest = lines[2].groups["noise_stds"]
    less = (2 * std**-2 - std**-2 / 4) ** -0.5
    groups = lines[2].groups | {"noise_stds": [2 * std, less, *rest]}
    lines[2] = dataclasses.replace(lines[2], groups=groups)
    with pytest.raises(BenchError, match="noise in each group"):
        check_agrees(config, lines, 4)


# Sums that a few-shot client takes over its own examples

WITHIN_TASK = {
    "method": "dp-agrlr",
    "within_task": {
        "threshold": 0.2,
        "multiplier": 2.0,
        "epsilon": None,
        "clipping_groups": "tensors",
    },
    "participation": {"rounds": 2},
}


@pytest.mark.parametrize(
    ("reading", "multiplier", "std", "status"),
    [
        ("per-group", 2.0 * 14**-0.5, 0.4, "void"),
        ("joint", 2.0, 0.4 * 14**0.5, "proved"),
    ],
)
def test_within_task_sums_by_tensor_have_the_account_of_their_noise(
    federation, tmp_path, reading, multiplier, std, status
):
    """14 tensors of C = 0.2: noise of 2 C in each protects like a multiplier of 2 /
    sqrt(14).
    """
    config = make_config(WITHIN_TASK, {"within_task": {"noise_by_group": reading}})
    train(config, federation, tmp_path)
    lines = [line for line in ledger_in(tmp_path) if line.unit == "record"]
    assert {line.name for line in lines} == {SUPPORT, QUERY}
    for line in lines:
        assert line.groups["names"] == NAMES
        assert line.groups["thresholds"] == [0.2] * 14
        assert line.groups["noise_stds"] == pytest.approx([std] * 14)
        assert line.noise_multiplier == pytest.approx(multiplier)
        assert line.counted_multiplier == pytest.approx(2.0)
    (records,) = accounted(config, tmp_path, federation[1])["also"]
    claimed = records["profiles"]["claimed"]
    proof = records["profiles"]["proven"]
    assert proof["epsilon_high"] == pytest.approx(gaussian_epsilon(multiplier, 1e-5))
    assert claimed["epsilon_high"] == pytest.approx(gaussian_epsilon(2.0, 1e-5))
    assert claimed["status"] == status


def test_within_task_steps_follow_gradients_clipped_by_tensor(federation, tmp_path):
    """Without noise, one support step, in double precision: the formula clips each
    tensor of each example's gradient to C, and of the query gradient too.
    """
    threshold = 0.05
    rate = 0.4
    steps = {
        "within_task": {"threshold": threshold, "multiplier": 1e-3},
        "client_update": {"inner_steps": 1, "inner_rate": rate, "order": 1},
    }
    rounds = rounds_of(make_config(WITHIN_TASK, steps), federation, tmp_path)
    for mechanism in rounds.clients.mechanisms.values():
        mechanism.draw_noise = lambda purpose, total: np.zeros(total.dimension)
    rng = np.random.default_rng(0)
    theta = rounds.net.initial(rng)
    theta = (theta + 0.1 * rng.standard_normal(len(theta))).astype(np.float32)
    cohort = np.array([5])
    ((sent, _),) = rounds.clients.contributions(theta, cohort, 0)
    tasks = rounds.clients.setup.held.gather(cohort)
    sizes = [math.prod(shape) for shape in rounds.net.shapes.values()]

    def clip(part):
        return part * min(1.0, threshold / float(part.norm()))

    def clipped_mean(weights, x, y):
        weights = torch.tensor(weights, dtype=torch.float64, requires_grad=True)
        logits = rounds.net.logits(weights, torch.from_numpy(x).double())
        losses = functional.cross_entropy(logits, torch.from_numpy(y), reduction="none")
        total = torch.zeros_like(weights)
        for loss in losses:
            (row,) = torch.autograd.grad(loss, weights, retain_graph=True)
            total += torch.cat([clip(part) for part in row.split(sizes)])
        return (total / len(losses)).detach().numpy()

    step = clipped_mean(theta, tasks.support_x[0], tasks.support_y[0])
    expected = clipped_mean(theta - rate * step, tasks.query_x[0], tasks.query_y[0])
    gap = np.linalg.norm(sent[0].numpy() - expected)
    assert gap < 1e-3 * np.linalg.norm(expected)
