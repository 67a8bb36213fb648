"""Clipping by groups of coordinates in a run: what is clipped, written down, paid for
and refused.
"""

import csv
import dataclasses
import functools
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from dpfedbench.errors import BenchError
from dpfedbench.federation.agreement import check_agrees
from dpfedbench.models.lstm import Lstm
from dpfedbench.models.net import Net
from dpfedbench.models.torch_sums import add_groups_on_device, add_to
from dpfedbench.parts.client_updates.maml import QUERY, SUPPORT
from dpfedbench.parts.optimizers.adam_bc import AdamBC
from dpsum.accounting.gaussian import gaussian_epsilon
from dpsum.group_clipping import CoordinateGroups, GroupedSum, clip_groups
from dpsum.ledger import read_ledger
from dpsum.private_sum import PrivateSum

from .conftest import (
    DIFFERENCE,
    LOTS,
    accounted,
    make_config,
    rounds_of,
    stop_before,
    train,
)

BY_TENSOR = {
    "clipping": {
        "kind": "constant",
        "threshold": 0.2,
        "groups": "tensors",
        "noise_by_group": "per-group",
    },
    "participation": {"rounds": 4},
}
QUANTILE = {
    "clipping": {
        "kind": "private-quantile",
        "groups": "layers",
        "threshold": 0.5,
        "percentile": 50,
        "count_noise": 3.0,
        "never_rising": False,
    },
    "participation": {"rounds": 4},
}
NAMES = [
    *(f"block{n}.{name}" for n in range(1, 5) for name in ("weight", "scale", "shift")),
    "head.weight",
    "head.bias",
]


# Groups of a network


def groups_of(build, kind):
    """(name, coordinates) of each group of a module's weights."""
    net = Net(build, input_shape=(4, 4, 1), outputs=2)
    groups = net.coordinate_groups(kind, "joint")
    assert groups.dimension == net.dimension
    return dict(zip(groups.names, np.diff(groups.boundaries).tolist(), strict=True))


class Named(nn.Module):
    """Tensors in several modules, normalisation among them."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 3, 3)
        self.norm = nn.GroupNorm(3, 3)
        self.body = nn.Sequential(nn.Linear(12, 5, bias=False), nn.Linear(5, 2))

    def forward(self, x):
        return self.body(self.norm(self.first(x)).flatten(1))


def test_coordinate_groups_of_tensors_have_a_group_for_each():
    assert groups_of(Named, "tensors") == {
        "first.weight": 27,
        "first.bias": 3,
        "norm.weight": 3,
        "norm.bias": 3,
        "body.0.weight": 60,
        "body.1.weight": 10,
        "body.1.bias": 2,
    }


def test_coordinate_groups_of_layers_keep_weight_bias_and_normalisation_together():
    assert groups_of(Named, "layers") == {
        "first": 36,
        "body.0.weight": 60,
        "body.1": 12,
    }


def test_coordinate_groups_of_a_language_model_go_by_the_number_in_the_names():
    build = functools.partial(Lstm, words=10, record=4, width=3, layers=2)
    net = Net(build, input_shape=(4,), outputs=10)
    groups = net.coordinate_groups("layers", "joint")
    assert groups.names[:3] == ("embedding", "input0", "input1")


def test_coordinate_groups_have_what_is_learnt_besides_for_itself():
    net = Net(Named, input_shape=(4, 4, 1), outputs=2).with_rates(2, 0.1)
    assert net.coordinate_groups("layers", "joint").names[-1] == "rates"
    assert net.coordinate_groups("layers", "joint").dimension == net.dimension


# Adding what torch holds


def test_add_to_clips_each_group_as_the_definition_says():
    rows = torch.randn(37, 50, generator=torch.Generator().manual_seed(0))
    rows[3, 7] = torch.nan
    groups, thresholds = CoordinateGroups((0, 20, 21, 50)), (1.0, 0.1, 30.0)
    total = GroupedSum(groups=groups, thresholds=thresholds, noise_multiplier=1.0)
    add_to(total, rows)
    expected = sum(clip_groups(row.numpy(), groups, thresholds) for row in rows)
    assert total.non_finite == 1
    assert total._total == pytest.approx(expected, rel=1e-9)


def test_add_groups_on_device_is_the_definition():
    """The path of a GPU, on tensors of the CPU."""
    rows = torch.randn(37, 50, generator=torch.Generator().manual_seed(0))
    rows[3, 7] = torch.nan
    groups, thresholds = CoordinateGroups((0, 20, 21, 50)), (1.0, 0.1, 30.0)
    total, norms = np.zeros(50), np.zeros((37, 3))
    add_groups_on_device(groups, rows, thresholds, total, norms)
    expected = sum(clip_groups(row.numpy(), groups, thresholds) for row in rows)
    assert total == pytest.approx(expected, rel=1e-6)
    assert np.isnan(norms[3]).all()
    for index, group in enumerate(groups.slices):
        assert norms[0, index] == pytest.approx(
            np.linalg.norm(rows[0].numpy()[group]), rel=1e-6
        )


def test_add_to_with_one_group_has_the_bits_of_flat_clipping():
    rows = torch.randn(37, 5000, generator=torch.Generator().manual_seed(0))
    flat = PrivateSum(dimension=5000, threshold=0.7, noise_multiplier=1.0)
    one = GroupedSum(
        groups=CoordinateGroups((0, 5000)), thresholds=(0.7,), noise_multiplier=1.0
    )
    add_to(flat, rows)
    add_to(one, rows)
    drawn = [s.release(np.random.default_rng(1)) for s in (flat, one)]
    assert np.array_equal(*drawn)


# A run


def test_ledger_and_account_of_a_run_by_tensor(federation, tmp_path):
    config = make_config(BY_TENSOR)
    train(config, federation, tmp_path)
    lines = read_ledger(tmp_path / "ledger.jsonl")
    assert len(lines) == 4
    for line in lines:
        assert line.groups["names"] == NAMES
        assert line.groups["thresholds"] == [0.2] * 14
        assert line.groups["noise_stds"] == pytest.approx([0.2] * 14)
        assert line.noise_multiplier == pytest.approx(14**-0.5)
        assert line.claimed_multiplier == pytest.approx(1.0)
    found = accounted(config, tmp_path)
    # One pass over known blocks: one Gaussian of multiplier 14^(-1/2), delta 1e-3.
    holds = found["profiles"]["holds"]["epsilon_high"]
    assert holds == pytest.approx(gaussian_epsilon(14**-0.5, 1e-3))
    flat = make_config(BY_TENSOR, {"clipping": {"groups": "all"} | JOINT})
    train(flat, federation, tmp_path / "flat")
    claimed = accounted(flat, tmp_path / "flat")["profiles"]["as_claimed"]
    assert found["profiles"]["as_claimed"]["epsilon_high"] == pytest.approx(
        claimed["epsilon_high"]
    )
    with open(tmp_path / "history.csv", encoding="utf-8", newline="") as file:
        (first, *_) = csv.DictReader(file)
    assert float(first["threshold"]) == pytest.approx(0.2 * 14**0.5)
    assert float(first["threshold_least"]) == float(first["threshold_most"]) == 0.2
    assert float(first["epsilon_holds"]) == pytest.approx(holds)


JOINT = {"noise_by_group": "joint"}


def test_groups_do_not_move_the_identity_of_a_run_without_them():
    config = make_config()
    assert {"groups", "noise_by_group"}.isdisjoint(config.clipping.identity())
    assert (
        make_config(BY_TENSOR).key
        != make_config(BY_TENSOR, {"clipping": {"groups": "layers"}}).key
    )


def test_torch_and_compiled_passes_agree_by_layer(federation, tmp_path):
    config = make_config(QUANTILE)
    for name, kernels in (("compiled", True), ("torch", False)):
        train(config, federation, tmp_path / name, kernels=kernels)
    ours, theirs = (
        read_ledger(tmp_path / name / "ledger.jsonl") for name in ("compiled", "torch")
    )
    for one, other in zip(ours, theirs, strict=True):
        assert one.groups["thresholds"] == pytest.approx(
            other.groups["thresholds"], rel=1e-3
        )


def test_a_run_by_layer_goes_on_after_a_restart(federation, tmp_path, monkeypatch):
    config = make_config(QUANTILE)
    expected = train(config, federation, tmp_path / "whole")
    with monkeypatch.context() as patched:
        stop = stop_before(patched, 2)
        with pytest.raises(stop):
            train(config, federation, tmp_path / "again", checkpoint_seconds=0)
    assert train(config, federation, tmp_path / "again") == expected


def test_thresholds_of_layers_move_by_themselves_and_counts_are_paid(
    federation, tmp_path
):
    config = make_config(QUANTILE)
    train(config, federation, tmp_path)
    lines = read_ledger(tmp_path / "ledger.jsonl")
    sums, counts = lines[::2], lines[1::2]
    assert len(set(sums[-1].groups["thresholds"])) > 1
    # Five layers: the counts have mu^2 = 5 (1 / 2)^2 / 3^2, the sum the rest of 1.
    paid = 5 / 36
    for total, count in zip(sums, counts, strict=True):
        assert count.noise_multiplier**-2 == pytest.approx(paid)
        assert total.noise_multiplier**-2 == pytest.approx(1 - paid)
    holds = accounted(config, tmp_path)["profiles"]["holds"]["epsilon_high"]
    assert holds == pytest.approx(gaussian_epsilon(1.0, 1e-3))


@pytest.mark.parametrize("reading", ["joint", "per-group", "equal-shares"])
def test_calibrated_noise_keeps_the_proven_epsilon(federation, tmp_path, reading):
    config = make_config(
        BY_TENSOR,
        {
            "clipping": {"noise_by_group": reading},
            "noise": {"multiplier": None},
            "budget": {"epsilon": 2.0},
        },
    )
    train(config, federation, tmp_path)
    holds = accounted(config, tmp_path)["profiles"]["holds"]["epsilon_high"]
    assert 1.98 < holds <= 2.0


def test_adam_without_bias_reads_the_noise_of_each_group():
    optimizer, weights = AdamBC(), torch.zeros(3)
    state = optimizer.begin(weights)
    optimizer.told(state, np.array([1.0, 1.0, 2.0]))
    optimizer.step(weights, torch.ones(3), state, 0.1)
    assert state["noise"].tolist() == pytest.approx([0.001, 0.001, 0.004])
    assert weights.isfinite().all()


# A ledger that says something else than the configuration


@pytest.mark.parametrize(
    "change, message",
    [
        ({"noise_by_group": "joint"}, "claimed multiplier|multipliers"),
        ({"groups": "all", "noise_by_group": "joint"}, "groups of"),
        ({"threshold": 0.3}, "first threshold"),
    ],
)
def test_ledger_by_tensor_is_not_that_of_another_configuration(
    federation, tmp_path, change, message
):
    train(make_config(BY_TENSOR), federation, tmp_path)
    lines = read_ledger(tmp_path / "ledger.jsonl")
    check_agrees(make_config(BY_TENSOR), lines, 4)
    with pytest.raises(BenchError, match=message):
        check_agrees(make_config(BY_TENSOR, {"clipping": change}), lines, 4)


def test_ledger_whose_groups_share_noise_in_another_way_is_refused(
    federation, tmp_path
):
    config = make_config(BY_TENSOR, {"clipping": JOINT})
    train(config, federation, tmp_path)
    lines = read_ledger(tmp_path / "ledger.jsonl")
    stds = lines[2].groups["noise_stds"]
    moved = [stds[0] * 2, 1 / (2 * stds[0] ** -2 - stds[0] ** -2 / 4) ** 0.5]
    lines[2] = dataclasses.replace(
        lines[2], groups=lines[2].groups | {"noise_stds": moved + stds[2:]}
    )
    with pytest.raises(BenchError, match="noise in each group"):
        check_agrees(config, lines, 4)


# Bad input


@pytest.mark.parametrize(
    "overlay, message",
    [
        ({"clipping": {"groups": "all"}}, "set groups to layers or tensors"),
        (
            {
                "method": "dp-agr-ftrl",
                "clipping": {"noise_by_group": "joint"},
            },
            "no analysis by groups",
        ),
        (
            {
                "method": "dp-agr-secagg",
                "clipping": {"noise_by_group": "joint"},
            },
            "no analysis by groups",
        ),
    ],
)
def test_groups_that_cannot_be_are_refused_in_one_line(overlay, message):
    with pytest.raises(BenchError, match=message) as error:
        make_config(BY_TENSOR, overlay)
    assert "\n" not in str(error.value)


def test_groups_of_a_clients_own_sum_are_refused():
    with pytest.raises(BenchError, match="is a sum of each client's own"):
        make_config({"clipping": {"groups": "layers"}}, general=LOTS)


def test_private_quantile_that_costs_more_than_the_budget_is_refused(
    federation, tmp_path
):
    config = make_config(QUANTILE, {"clipping": {"count_noise": 1.1}})
    with pytest.raises(BenchError, match=r"raise clipping.count_noise above 1.118"):
        train(config, federation, tmp_path)


# Sums that a few-shot client takes over its own examples


OWN_BY_TENSOR = {
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
    "reading, proven", [("per-group", 2.0 * 14**-0.5), ("joint", 2.0)]
)
def test_own_sums_by_tensor_have_the_account_of_their_noise(
    federation, tmp_path, reading, proven
):
    """14 tensors of C = 0.2: by hand, noise of 2 C in each protects like 2 / sqrt(14)."""
    config = make_config(OWN_BY_TENSOR, {"within_task": {"noise_by_group": reading}})
    train(config, federation, tmp_path)
    lines = [
        line for line in read_ledger(tmp_path / "ledger.jsonl") if line.unit == "record"
    ]
    assert {line.name for line in lines} == {SUPPORT, QUERY}
    std = 0.4 if reading == "per-group" else 0.4 * 14**0.5
    for line in lines:
        assert line.groups["names"] == NAMES
        assert line.groups["thresholds"] == [0.2] * 14
        assert line.groups["noise_stds"] == pytest.approx([std] * 14)
        assert line.noise_multiplier == pytest.approx(proven)
        assert line.counted_multiplier == pytest.approx(2.0)
    (own,) = accounted(config, tmp_path, federation[1])["also"]
    claimed, holds = (own["profiles"][name] for name in ("as_claimed", "holds"))
    assert holds["epsilon_high"] == pytest.approx(gaussian_epsilon(proven, 1e-5))
    assert claimed["epsilon_high"] == pytest.approx(gaussian_epsilon(2.0, 1e-5))
    assert claimed["status"] == ("void" if reading == "per-group" else "proved")


def test_own_sums_by_tensor_take_steps_along_gradients_clipped_by_tensor(
    federation, tmp_path
):
    """Without noise, one support step: each tensor of each example's gradient is cut to
    C by the formula, in double precision; and the query gradient likewise.
    """
    threshold, rate = 0.05, 0.4
    config = make_config(
        OWN_BY_TENSOR,
        {
            "within_task": {"threshold": threshold, "multiplier": 1e-3},
            "client_update": {"inner_steps": 1, "inner_rate": rate, "order": 1},
        },
    )
    rounds = rounds_of(config, federation, tmp_path)
    for entry in rounds.clients.entries.values():
        entry.noise_of = lambda purpose, total: _NoNoise()
    rng = np.random.default_rng(0)
    theta = rounds.net.initial(rng)
    theta = (theta + 0.1 * rng.standard_normal(len(theta))).astype(np.float32)
    cohort = np.array([5])
    (sent,) = [
        rows.clone() for rows, _, _ in rounds.clients.contributions(theta, cohort, 0)
    ]
    tasks = rounds.clients.setup.held.gather(cohort)
    sizes = [math.prod(shape) for shape in rounds.net.shapes.values()]

    def clipped_mean(weights, x, y):
        weights = torch.tensor(weights, dtype=torch.float64, requires_grad=True)
        logits = rounds.net.logits(weights, torch.from_numpy(x).double())
        losses = functional.cross_entropy(logits, torch.from_numpy(y), reduction="none")
        total = torch.zeros_like(weights)
        for loss in losses:
            (row,) = torch.autograd.grad(loss, weights, retain_graph=True)
            parts = row.split(sizes)
            total += torch.cat(
                [part * min(1.0, threshold / float(part.norm())) for part in parts]
            )
        return (total / len(losses)).detach().numpy()

    step = clipped_mean(theta, tasks.support_x[0], tasks.support_y[0])
    wanted = clipped_mean(theta - rate * step, tasks.query_x[0], tasks.query_y[0])
    assert np.linalg.norm(sent[0].numpy() - wanted) < 1e-3 * np.linalg.norm(wanted)


class _NoNoise:
    """Stand-in for a source of noise."""

    @staticmethod
    def standard_normal(size):
        return np.zeros(size)


@pytest.mark.parametrize(
    "overlay, message",
    [
        ({"clipping_groups": "all", "noise_by_group": "per-group"}, "one group"),
        (
            {"noise_by_group": "per-group", "multiplier": None, "epsilon": 2.5},
            "within_task.multiplier is null: give it",
        ),
    ],
)
def test_readings_of_own_noise_that_cannot_be_are_refused(overlay, message):
    with pytest.raises(BenchError, match=message) as error:
        make_config(OWN_BY_TENSOR, {"within_task": overlay})
    assert "\n" not in str(error.value)


def test_own_sums_of_one_group_keep_the_identity_of_a_run():
    identity = make_config(OWN_BY_TENSOR).identity()["within_task"]
    assert identity["clipping_groups"] == "tensors"
    flat = make_config(OWN_BY_TENSOR, {"within_task": {"clipping_groups": "all"}})
    assert not {"clipping_groups", "noise_by_group"} & {*flat.identity()["within_task"]}


def test_groups_of_model_differences_are_clipped_too(silos, tmp_path):
    config = make_config(
        {"clipping": {"groups": "layers"}, "participation": {"rounds": 2}},
        general=DIFFERENCE,
    )
    train(config, silos, tmp_path)
    first, _ = read_ledger(tmp_path / "ledger.jsonl")
    assert len(first.groups["thresholds"]) > 1
    assert first.noise_multiplier == pytest.approx(1.0)
