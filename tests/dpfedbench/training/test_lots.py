"""Clients that sum over lots of their own records: releases, thresholds and noise."""

import numpy as np
import pytest
import torch

from dpfedbench.data.images import load_dataset
from dpfedbench.data.records import load_any_records
from dpfedbench.evaluation.held_out import HeldOutMeasures
from dpfedbench.training.client_updates.summed_steps import Phase

from .conftest import (
    UNEQUAL,
    RecordRows,
    assert_drawn_anew,
    client_examples,
    clipped_gradient_sum,
    ledger_in,
    lots_config,
    make_config,
    mean_gradient,
    releases_by_round,
    remove_noise,
    rounds_of,
    rounds_of_rows,
    take_rounds,
    train_model,
    watch,
    watch_releases,
)
from .test_search import cells_config, search_config

DP_FL = {"method": "dp-fl"}
SGD = {"client_update": {"optimizer": "sgd"}}
VECTOR = {"clipping": {"kind": "norm-of-release", "threshold": None, "factor": 0.5}}
SCALAR = {"clipping": {"kind": "noised-mean-norm", "threshold": None, "factor": 1.0}}
RAW = {"clipping": {"kind": "mean-of-raw-norms", "threshold": None, "factor": 1.0}}
DECAY = {"noise": {"kind": "decaying", "decay": 0.9, "falls": 3}}


def test_round_without_noise_averages_an_adam_step_of_each_client(
    silos, tmp_path, monkeypatch
):
    """Three rounds without noise, by autodiff on the same lots, with torch's Adam."""
    remove_noise(monkeypatch)
    config = lots_config(DP_FL, {"clipping": {"threshold": 0.05}})
    rounds = rounds_of(config, silos, tmp_path)
    lots = config.participation.lots(clients=4, seed=0, steps=1, records=100)
    models = [torch.nn.Parameter(rounds.theta.clone()) for _ in range(4)]
    optimizers = [torch.optim.Adam([model], lr=0.01) for model in models]
    held = client_examples(silos)
    for index in range(3):
        theta = rounds.theta.clone()
        for client, (images, labels) in enumerate(held):
            lot = lots.lot(index, 0, client)
            total = clipped_gradient_sum(
                rounds.net, theta, images[lot], labels[lot], threshold=0.05
            )
            models[client].data.copy_(theta)
            models[client].grad = total / 8
            optimizers[client].step()
        mean = torch.stack([model.detach() for model in models]).mean(dim=0)
        rounds.round(index)
        # Adam's step is a ratio: where a gradient is near zero, rounding decides it.
        assert torch.isclose(rounds.theta, mean, atol=1e-4).float().mean() > 0.99


def test_client_step_is_the_release_over_the_public_denominator(
    silos, tmp_path, monkeypatch
):
    """Property 8, with plain SGD, whose steps show the scale (Adam's do not): lots of
    all sizes are divided by their mean size.
    """
    releases = watch_releases(monkeypatch)
    rounds = rounds_of(lots_config(DP_FL, SGD), silos, tmp_path)
    for index in range(3):
        before = rounds.theta.clone()
        releases.clear()
        rounds.round(index)
        assert len({total.count for total, _ in releases}) > 1
        step = 0.01 * np.mean([vector for _, vector in releases], axis=0) / 8
        np.testing.assert_allclose(rounds.theta, before.numpy() - step, atol=2e-7)


@pytest.mark.parametrize(("overlay", "factor"), [(VECTOR, 0.5), (SCALAR, 1.0)])
def test_thresholds_of_clients_follow_from_their_releases(
    silos, tmp_path, overlay, factor
):
    """Property 9: eq. 6 to 8, computed from the server's view. C_0 comes from random
    data, so it is the same for every client.
    """
    rounds = rounds_of(lots_config(overlay), silos, tmp_path)
    expected = [state["threshold"] for state in rounds.clients.mechanism.states]
    assert len(set(expected)) == 1
    assert 0 < expected[0] < 100
    for lines, means in releases_by_round(rounds, 4):
        for line in lines:
            assert line.threshold == pytest.approx(expected, rel=1e-12)
        # The norm query is the last release of a round, where there is one.
        expected = [factor * float(np.linalg.norm(mean)) for mean in means[-1]]
        assert len(set(expected)) == 4


def test_norm_query_clips_norms(monkeypatch):
    """Without noise, C = 1 and L = 8: a record of norm 1e30 moves the query by 1, and
    the others by their 1/4 each.
    """
    remove_noise(monkeypatch)
    rows = np.zeros((4, 100, 3))
    rows[:, :, 0] = 0.25
    rows[:, 41] = (0.0, 0.0, 1e30)
    config = lots_config(SCALAR, {"clipping": {"threshold": 1.0}})
    rounds = rounds_of_rows(config, rows)
    states = rounds.clients.mechanism.states
    large_records = 0
    for index in range(12):
        for state in states:
            state["threshold"] = 1.0
        rounds.round(index)
        for client, state in enumerate(states):
            lot = rounds.clients._lots.lot(index, 0, client)
            large_records += 41 in lot
            query = (0.25 * len(lot) + 0.75 * (41 in lot)) / 8
            assert state["threshold"] == pytest.approx(max(query, 1e-20), rel=1e-6)
    assert large_records > 0


def test_lots_are_drawn_anew_in_each_step_round_and_client(monkeypatch):
    """Four rounds of four clients of 100 records, and three steps of 30 expected
    records.
    """
    plan = {"client_update": {"inner_steps": 3}, "participation": {"lot": 30}}
    lots = [[] for _ in range(4)]

    def record(_, rows, theta, images, labels, total):
        client = labels[0]
        lots[client].append(np.isin(100 * client + np.arange(100), images))

    watch(monkeypatch, RecordRows, "add_record_gradients", record)
    take_rounds(rounds_of_rows(lots_config(DP_FL, plan), np.zeros((4, 100, 1))), 4)
    drawn = np.array(lots).reshape(4, 4, 3, 100)
    assert_drawn_anew(np.swapaxes(drawn, 0, 1), 0.3)


def test_decaying_noise_follows_the_validation_loss_alone(silos, tmp_path, monkeypatch):
    """The test loss moves the other way. The fifth validation is the first after three
    decreases.
    """
    losses = ({"validation_loss": 12.0 - index} for index in range(12))
    test_losses = ({"test_loss": float(index)} for index in range(12))
    monkeypatch.setattr(HeldOutMeasures, "validate", lambda *_: next(losses))
    monkeypatch.setattr(HeldOutMeasures, "test", lambda *_: next(test_losses))
    train_model(lots_config(DECAY, {"evaluation": {"every": 1}}), silos, tmp_path)
    multipliers = [line.noise_multiplier for line in ledger_in(tmp_path)]
    expected = [2.0] * 5 + [2.0 * 0.9**decays for decays in range(1, 8)]
    assert multipliers == pytest.approx(expected, rel=1e-12)


# With one record expected of a hundred, 37 % of the lots are empty.
def test_client_moves_by_its_noise_alone_where_its_lot_is_empty():
    config = lots_config(DP_FL, SGD, {"participation": {"lot": 1}})
    rounds = rounds_of_rows(config, np.zeros((4, 100, 3)))
    empty = 0
    for index in range(5):
        before = rounds.theta.clone()
        rounds.round(index)
        empty += sum(not len(rounds.clients._lots.lot(index, 0, n)) for n in range(4))
        assert ((rounds.clients._models - before).abs() > 1e-6).all()
    assert 0 < empty < 20


@pytest.mark.parametrize("config_of", [search_config, cells_config])
def test_party_releases_its_noise_alone_where_its_lot_is_empty(monkeypatch, config_of):
    """The release of an empty lot is noise in both phases of the search."""
    sizes = watch(
        monkeypatch, RecordRows, "add_record_gradients", lambda *call: len(call[3])
    )
    released = watch(monkeypatch, Phase, "take", lambda result, *_: result[0].clone())
    config = config_of({"participation": {"lot": 1}})
    take_rounds(rounds_of_rows(config, np.zeros((4, 100, 3))), 4)
    assert 0 in sizes
    assert any(sizes)
    assert len(released) == len(sizes)
    assert all(vector.abs().min() > 0 for vector in released)


def test_plain_step_of_unequal_clients_is_along_the_mean_over_records(
    unequal, tmp_path
):
    """Every record is in every lot (L is the mean number of records), and the mean is
    over records.
    """
    overlay = {
        "method": "fedavg",
        "clients": UNEQUAL,
        "participation": {"lot": 100, "rounds": 1},
        "client_update": {"inner_rate": 0.1, "optimizer": "sgd"},
    }
    rounds = rounds_of(lots_config(overlay), unequal, tmp_path)
    theta = rounds.theta.clone()
    rounds.round(0)
    images, labels = map(torch.cat, zip(*client_examples(unequal), strict=True))
    expected = theta - 0.1 * mean_gradient(rounds.net, theta, images, labels)
    assert torch.allclose(rounds.theta, expected, rtol=1e-3, atol=1e-6)


# A central trainer that holds all images of the training classes
TRANSFER = {
    "method": "dp-transfer",
    "participation": {"lot": 8, "rounds": 6},
    "noise": {"multiplier": 2.0},
    "budget": {"profile": "claimed"},
}


def test_pretraining_records_are_all_images_of_the_training_classes(holder, tmp_path):
    """The labels number the training classes."""
    dataset = load_dataset(holder[0])
    records = load_any_records(holder[0])
    assert records.class_names == ("class1", "class3", "class5", "class7")
    assert len(records.splits["test"]) == 0
    rounds = rounds_of(make_config(TRANSFER), holder, tmp_path)
    assert rounds.net.shapes["head.bias"] == (4,)
    held = rounds.clients._held
    assert len(held.images[0]) == 40
    for label in range(4):
        images = held.images[0][held.labels[0] == label]
        expected = dataset.images[2 * label + 1]
        assert sorted(map(bytes, images)) == sorted(map(bytes, expected))
