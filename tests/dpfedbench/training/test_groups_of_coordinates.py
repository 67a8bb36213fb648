"""Clipping by groups of coordinates in a run."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from dpfedbench.errors import BenchError
from dpfedbench.parts.optimizers.adam_bc import AdamBC
from dpfedbench.training.agreement import check_agrees
from dpfedbench.training.mechanisms import add_groups_on_device, add_to
from dpsum.group_clipping import CoordinateGroups, GroupedSum

from .conftest import (
    clipped_gradient_sum,
    history_in,
    ledger_in,
    make_config,
    rounds_of,
    train_model,
)

JOINT = {"noise_by_group": "joint"}
FOUR = {"participation": {"rounds": 4}}
BY_TENSOR = FOUR | {
    "clipping": {
        "kind": "constant",
        "threshold": 0.2,
        "groups": "tensors",
        "noise_by_group": "per-group",
    }
}
QUANTILE_BY_LAYER = FOUR | {
    "clipping": {
        "kind": "private-quantile",
        "groups": "layers",
        "percentile": 50,
        "count_noise": 3.0,
    }
}
NAMES = [
    *(f"block{n}.{name}" for n in range(1, 5) for name in ("weight", "scale", "shift")),
    "head.weight",
    "head.bias",
]


def test_coordinate_groups_are_the_tensors_or_layers_of_a_network():
    """Learnt rates are a group of their own, behind those of the weights."""
    net = make_config().trained_net((16, 16, 1), 3)
    layers = {"block1": 44, "block2": 152, "block3": 152, "block4": 152, "head": 15}
    for kind, names in (("tensors", NAMES), ("layers", [*layers])):
        groups = net.coordinate_groups(kind, "joint")
        assert list(groups.names) == names
        assert groups.dimension == net.dimension
        with_rates = net.with_rates(2, 0.1)
        groups = with_rates.coordinate_groups(kind, "joint")
        assert list(groups.names) == [*names, "rates"]
        assert groups.dimension == with_rates.dimension
    assert np.diff(groups.boundaries).tolist()[:-1] == [*layers.values()]


def test_add_to_clips_each_group_as_the_definition_says():
    """By the sum of a CPU, and by that of a GPU with tensors on the CPU."""
    rows = torch.randn(37, 50, generator=torch.Generator().manual_seed(0))
    rows[3, 7] = torch.nan
    groups = CoordinateGroups((0, 20, 21, 50))
    thresholds = (1.0, 0.1, 30.0)
    total = GroupedSum(groups=groups, thresholds=thresholds, noise_multiplier=1.0)
    add_to(total, rows)
    values = rows.double().numpy()[torch.isfinite(rows).all(dim=1)]
    expected = np.zeros(50)
    for group, threshold in zip(groups.slices, thresholds, strict=True):
        group_norms = np.linalg.norm(values[:, group], axis=1)
        factors = np.minimum(1.0, threshold / group_norms)
        expected[group] = factors @ values[:, group]
    assert total.non_finite == 1
    assert total._total == pytest.approx(expected, rel=1e-9)
    on_device = np.zeros(50)
    norms = np.zeros((37, 3))
    add_groups_on_device(groups, rows, thresholds, on_device, norms)
    assert on_device == pytest.approx(expected, rel=1e-6)
    assert np.isnan(norms[3]).all()
    first = [np.linalg.norm(rows[0].numpy()[group]) for group in groups.slices]
    assert norms[0] == pytest.approx(first, rel=1e-6)


def test_thresholds_of_layers_differ_and_are_those_of_torch(federation, tmp_path):
    thresholds = {}
    for kernels in (True, False):
        folder = tmp_path / str(kernels)
        train_model(make_config(QUANTILE_BY_LAYER), federation, folder, kernels=kernels)
        thresholds[kernels] = ledger_in(folder)[-2].groups["thresholds"]
    assert len(set(thresholds[True])) > 1
    assert thresholds[False] == pytest.approx(thresholds[True], rel=1e-3)


def test_adam_without_bias_reads_the_noise_of_each_group():
    optimizer = AdamBC()
    weights = torch.zeros(3)
    state = optimizer.begin(weights)
    optimizer.set_noise_deviation(state, np.array([1.0, 1.0, 2.0]))
    optimizer.step(weights, torch.ones(3), state, 0.1)
    assert state["noise"].tolist() == pytest.approx([0.001, 0.001, 0.004])
    assert weights.isfinite().all()


def test_ledger_by_tensor_has_the_noise_of_each_tensor_and_fits_no_other_run(
    federation, tmp_path
):
    """14 tensors with noise of C each are one Gaussian of multiplier 14^(-1/2). The
    paper counts 1.
    """
    run = make_config(BY_TENSOR)
    train_model(run, federation, tmp_path)
    lines = ledger_in(tmp_path)
    for line in lines:
        assert line.groups["names"] == NAMES
        assert line.groups["thresholds"] == [0.2] * 14
        assert line.groups["noise_stds"] == pytest.approx([0.2] * 14)
        assert line.noise_multiplier == pytest.approx(14**-0.5)
        assert line.claimed_multiplier == pytest.approx(1.0)
    first = history_in(tmp_path).iloc[0]
    assert first["threshold"] == pytest.approx(0.2 * 14**0.5)
    assert first["threshold_least"] == first["threshold_most"] == 0.2
    check_agrees(run, lines, 4)
    for change, message in (
        (JOINT, "claimed multiplier|multipliers"),
        ({"groups": "all"} | JOINT, "groups of"),
        ({"threshold": 0.3}, "first threshold"),
    ):
        with pytest.raises(BenchError, match=message):
            check_agrees(make_config(BY_TENSOR, {"clipping": change}), lines, 4)
    # One tensor has more noise and another less, so that the multiplier is the same.
    std, _, *rest = lines[2].groups["noise_stds"]
    less = (2 * std**-2 - std**-2 / 4) ** -0.5
    groups = lines[2].groups | {"noise_stds": [2 * std, less, *rest]}
    lines[2] = dataclasses.replace(lines[2], groups=groups)
    with pytest.raises(BenchError, match="noise in each group"):
        check_agrees(run, lines, 4)


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


def test_within_task_steps_follow_gradients_clipped_by_tensor(federation, tmp_path):
    """Without noise, one support step, in double precision: the formula clips each
    tensor of each example's gradient to C, and of the query gradient too.
    """
    threshold = 0.05
    rate = 0.4
    steps = {
        "within_task": {"threshold": threshold, "multiplier": 1e-3},
        "client_update": {"inner_rate": rate, "order": 1},
    }
    rounds = rounds_of(make_config(WITHIN_TASK, steps), federation, tmp_path)
    for mechanism in rounds.clients.mechanisms.values():
        mechanism.draw_noise = lambda purpose, total: np.zeros(total.dimension)
    net = rounds.net
    moved = 0.1 * np.random.default_rng(0).standard_normal(net.dimension)
    theta = rounds.theta + torch.from_numpy(moved).float()
    cohort = np.array([5])
    ((sent, _),) = rounds.clients.contributions(theta.numpy(), cohort, 0)
    tasks = rounds.clients.setup.held.gather(cohort)
    tensors = torch.arange(net.dimension).split([*map(math.prod, net.shapes.values())])

    def clipped_mean(weights, images, labels):
        records = torch.from_numpy(images).double(), torch.from_numpy(labels)
        sums = [
            clipped_gradient_sum(net, weights, *records, threshold, tensor)
            for tensor in tensors
        ]
        return torch.cat(sums) / len(labels)

    theta = theta.double()
    step = clipped_mean(theta, tasks.support_x[0], tasks.support_y[0])
    expected = clipped_mean(theta - rate * step, tasks.query_x[0], tasks.query_y[0])
    assert (sent[0] - expected).norm() < 1e-3 * expected.norm()
