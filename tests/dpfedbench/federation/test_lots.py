"""Clients that sum over their own records: releases, thresholds, noise, budget,
resuming.
"""

import json
import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.numpy import load_file

from dpfedbench.data.partition import RecordPartition
from dpfedbench.data.records import load_records
from dpfedbench.errors import BenchError
from dpfedbench.evaluation.held_out import HeldOutMeasures, NoMeasures, held_out
from dpfedbench.federation.rounds import Rounds
from dpfedbench.models.gradients import Choice, Measured
from dpfedbench.parts.participation.poisson_lots import PoissonLots
from dpsum import randomness
from dpsum.accounting.analyses.poisson import upper_epsilon
from dpsum.ledger import read_ledger
from dpsum.private_sum import PrivateSum
from dpsum.randomness import stream

from . import conftest
from .conftest import (
    LOTS,
    Flat,
    accounted,
    assert_drawn_anew,
    rounds_of,
    stop_before,
    train,
)

PLAIN = {"method": "fedavg"}
VECTOR = {"clipping": {"kind": "norm-of-release", "threshold": None, "factor": 0.5}}
SCALAR = {"clipping": {"kind": "noised-mean-norm", "threshold": None, "factor": 1.0}}
RAW = {"clipping": {"kind": "mean-of-raw-norms", "threshold": None, "factor": 1.0}}
DECAY = {"noise": {"kind": "decaying", "decay": 0.9, "falls": 3}}


def make_config(*overlays):
    return conftest.make_config(*overlays, general=LOTS)


def history(run_dir):
    return pd.read_csv(run_dir / "history.csv")


def test_a_round_without_noise_is_an_adam_step_of_each_client_and_their_mean(
    silos, tmp_path, monkeypatch
):
    """By autodiff on the same lots, with torch's own Adam for each client alone."""
    monkeypatch.setattr(PrivateSum, "_noised", lambda self, total, generator: total)
    config = make_config({"clipping": {"threshold": 0.05}, "method": "dp-fl"})
    found = rounds_of(config, silos, tmp_path)
    dataset, partition = load_records(silos[0]), RecordPartition.load(silos[1])
    net = config.net(dataset.image_shape, 10)
    theta = torch.from_numpy(net.initial(stream(0, "initial-weights")))
    lots = PoissonLots(cohort=8, rounds=12).lots(
        clients=4, seed=0, steps=1, records=100
    )

    def loss(weights, image, label):
        return torch.nn.functional.cross_entropy(
            net.logits(weights, image[None]), label[None]
        )

    models = [torch.nn.Parameter(theta.clone()) for _ in range(4)]
    optimizers = [torch.optim.Adam([model], lr=0.01) for model in models]
    for index in range(3):
        for client, (model, optimizer) in enumerate(
            zip(models, optimizers, strict=True)
        ):
            own = np.sort(partition.records[client])[lots.lot(index, 0, client)]
            images = torch.from_numpy(np.asarray(dataset.images[own])).float() / 255
            labels = torch.from_numpy(np.asarray(dataset.labels[own]))
            with torch.no_grad():
                model.copy_(theta)
            gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(
                theta, images, labels
            )
            scale = torch.clamp(0.05 / gradients.norm(dim=1), max=1.0)
            model.grad = (gradients * scale[:, None]).sum(dim=0) / 8
            optimizer.step()
        theta = torch.stack([model.detach() for model in models]).mean(dim=0)
        found.round(index)
        # Adam's step is a ratio: where a gradient is near zero, rounding decides it.
        assert torch.isclose(found.theta, theta, atol=1e-4).float().mean() > 0.99
        theta = found.theta.clone()


@pytest.mark.parametrize(
    "overlay",
    [
        VECTOR,
        SCALAR | DECAY,
        RAW,
        DECAY,
        PLAIN,
        {"client_update": {"keep_state": False, "inner_steps": 2}},
    ],
)
def test_it_goes_on_from_a_checkpoint_with_the_same_bits(
    silos, tmp_path, monkeypatch, overlay
):
    config = make_config(overlay)
    whole = train(config, silos, tmp_path / "whole")
    with monkeypatch.context() as patch, pytest.raises(stop_before(patch, 5)):
        train(config, silos, tmp_path / "resumed", checkpoint_seconds=0)
    assert train(config, silos, tmp_path / "resumed", threads=2) == whole
    columns = [name for name in history(tmp_path / "whole") if name != "seconds"]
    pd.testing.assert_frame_equal(
        history(tmp_path / "whole")[columns], history(tmp_path / "resumed")[columns]
    )


def test_every_release_of_every_client_is_in_the_ledger(silos, tmp_path, monkeypatch):
    """Properties 2, 6 and 8, for both releases of the scalar reading and two local
    steps a round.
    """
    done, streams = [], []
    release = PrivateSum.release

    def spy(self, generator):
        done.append((self.dimension, self.threshold, self.noise_multiplier, self.count))
        return release(self, generator)

    named = randomness.stream
    monkeypatch.setattr(PrivateSum, "release", spy)
    monkeypatch.setattr(
        randomness, "stream", lambda *name: streams.append(name) or named(*name)
    )
    config = make_config(
        SCALAR, {"client_update": {"inner_steps": 2}, "participation": {"rounds": 5}}
    )
    train(config, silos, tmp_path)
    ledger = read_ledger(tmp_path / "ledger.jsonl")
    assert [(event.round, event.name) for event in ledger] == [
        (number, name)
        for number in range(10)
        for name in ("gradient-sum", "clipped-norm-sum")
    ]
    written = [
        (event.dimension, threshold, event.noise_multiplier)
        for event in ledger
        for threshold in event.threshold
    ]
    assert sorted(written) == sorted(values[:3] for values in done)
    assert len(done) == 2 * 10 * 4
    noises = [name for name in streams if name[1] in ("noise", "norm-noise")]
    assert len(noises) == len(set(noises)) == len(done)
    # Lots differ in size, what they are divided by does not.
    assert len({count for *_, count in done}) > 1
    assert {event.denominator for event in ledger} == {8.0}
    assert all(
        event.sampler["rate"] == 8 / 100 and event.unit == "record" for event in ledger
    )
    profiles = accounted(config, tmp_path)["profiles"]
    assert profiles["as_claimed"]["status"] == "void"
    assert profiles["holds"]["epsilon_high"] == pytest.approx(
        upper_epsilon(((2.0 / math.sqrt(2), 10),), 8 / 100, 1e-4), rel=1e-9
    )


def test_the_step_is_the_release_over_the_public_denominator(
    silos, tmp_path, monkeypatch
):
    """Property 8, with plain SGD, which unlike Adam shows the scale: lots of all sizes
    are divided by their mean.
    """
    seen, release = [], PrivateSum.release

    def spy(self, generator):
        out = release(self, generator)
        seen.append((self.count, out.copy()))
        return out

    monkeypatch.setattr(PrivateSum, "release", spy)
    found = rounds_of(
        make_config({"method": "dp-fl", "client_update": {"optimizer": "sgd"}}),
        silos,
        tmp_path,
    )
    for index in range(3):
        before, seen[:] = found.theta.clone(), []
        found.round(index)
        assert len({count for count, _ in seen}) > 1
        step = 0.01 * np.mean([released for _, released in seen], axis=0) / 8
        np.testing.assert_allclose(found.theta, before.numpy() - step, atol=2e-7)


@pytest.mark.parametrize(("overlay", "factor"), [(VECTOR, 0.5), (SCALAR, 1.0)])
def test_the_thresholds_follow_from_what_was_released(silos, tmp_path, overlay, factor):
    """Property 9, eq. 6 to 8 by hand from what the server sees; C_0 from random data,
    so the same for every client.
    """
    seen = []
    observer = lambda line, left: seen.append(  # noqa: E731
        (line, [(made.holder, mean.copy()) for made, mean in left])
    )
    found = rounds_of(make_config(overlay), silos, tmp_path, observer=observer)
    states = found.clients.entry.states
    expected = [state["threshold"] for state in states]
    assert len(set(expected)) == 1 and 0 < expected[0] < 100
    for index in range(3):
        seen.clear()
        found.round(index)
        assert seen[0][0].threshold == pytest.approx(expected, rel=1e-12)
        assert [client for client, _ in seen[0][1]] == [0, 1, 2, 3]
        if overlay is VECTOR:
            expected = [factor * float(np.linalg.norm(mean)) for _, mean in seen[0][1]]
        else:
            assert seen[1][0].threshold == seen[0][0].threshold
            expected = [factor * abs(float(mean[0])) for _, mean in seen[1][1]]
        assert [state["threshold"] for state in states] == pytest.approx(
            expected, rel=1e-12
        )
        assert len(set(expected)) == 4


class Lots:
    """In place of gradients: a record is a single byte, and its gradient the row of
    that number.
    """

    device = "cpu"

    def __init__(self, rows):
        self.rows = torch.from_numpy(np.asarray(rows, np.float32))

    def add_each(self, theta, images, labels, total):
        rows = self.rows[torch.from_numpy(images[:, 0].astype(np.int64))]
        return Measured(
            np.zeros(len(rows)), np.zeros(len(rows)), np.ones(len(rows))
        ), total.add(rows)


def test_the_norm_query_clips_norms(monkeypatch):
    """Noise off, C = 1, L = 8: a record of norm 1e30 moves the query by 1, the others
    by their 1/4 each.
    """
    monkeypatch.setattr(PrivateSum, "_noised", lambda self, total, generator: total)
    config = make_config(SCALAR, {"clipping": {"threshold": 1.0}})
    rows = np.zeros((100, 3))
    rows[:, 0], rows[41] = 0.25, (0.0, 0.0, 1e30)
    images = [np.arange(100, dtype=np.uint8)[:, None]] * 4
    held = SimpleNamespace(images=images, labels=[np.zeros(100, np.int64)] * 4)
    found = Rounds(
        config,
        net=Flat(3),
        held=held,
        gradients=Choice("given", lambda: Lots(rows), "cpu"),
        measures=NoMeasures(),
        ledger=[],
    )
    states, reached = found.clients.entry.states, 0
    for index in range(12):
        for state in states:
            state["threshold"] = 1.0
        found.round(index)
        for client, state in enumerate(states):
            lot = found.clients._lots.lot(index, 0, client)
            reached += 41 in lot
            wanted = (0.25 * (len(lot) - (41 in lot)) + (41 in lot)) / 8
            assert state["threshold"] == pytest.approx(max(wanted, 1e-20), rel=1e-6)
    assert reached > 0


def test_lots_are_drawn_anew_in_each_step_round_and_client():
    """Four rounds of four clients of 100 records, three steps of 30 expected."""
    config = make_config(
        {
            "method": "dp-fl",
            "client_update": {"inner_steps": 3},
            "participation": {"cohort": 30},
        }
    )
    read = [[] for _ in range(4)]

    class Seen(Lots):
        def add_each(self, theta, images, labels, total):
            read[labels[0]].append(np.isin(np.arange(100), images))
            return super().add_each(theta, images, labels, total)

    held = SimpleNamespace(
        images=[np.arange(100, dtype=np.uint8)[:, None]] * 4,
        labels=[np.full(100, client) for client in range(4)],
    )
    found = Rounds(
        config,
        net=Flat(1),
        held=held,
        measures=NoMeasures(),
        ledger=[],
        gradients=Choice("given", lambda: Seen(np.zeros((100, 1))), "cpu"),
    )
    for index in range(4):
        found.round(index)
    assert_drawn_anew(np.swapaxes(np.array(read).reshape(4, 4, 3, 100), 0, 1), 0.3)


@pytest.mark.parametrize("falls", [True, False])
def test_the_noise_follows_the_validation_loss_and_no_other(
    silos, tmp_path, monkeypatch, falls
):
    """The test's loss goes the other way, which would show. By hand: at the fifth, for
    the first time, three fell.
    """
    down, up = (
        [float(12 - index) for index in range(12)],
        [float(index) for index in range(12)],
    )
    given = {"validate": down if falls else up, "test": up if falls else down}
    for name, losses in given.items():
        key, left = (
            {"validate": "validation_loss", "test": "test_loss"}[name],
            iter(losses),
        )
        monkeypatch.setattr(
            HeldOutMeasures,
            name,
            lambda self, theta, key=key, left=left: {key: next(left)},
        )
    train(make_config(DECAY, {"evaluation": {"every": 1}}), silos, tmp_path)
    found = [line.noise_multiplier for line in read_ledger(tmp_path / "ledger.jsonl")]
    by_hand = [2.0] * 5 + [2.0 * 0.9**fallen for fallen in range(1, 8)]
    assert found == pytest.approx(by_hand if falls else [2.0] * 12, rel=1e-12)
    assert history(tmp_path)["test_loss"].tolist() == given["test"]


def test_a_lot_larger_than_a_clients_data_is_refused(silos, tmp_path):
    with pytest.raises(BenchError, match="a client holds 100 records"):
        train(make_config({"participation": {"cohort": 101}}), silos, tmp_path)


def test_validation_records_are_not_test_records(silos, tmp_path):
    train(make_config({"participation": {"rounds": 2}}), silos, tmp_path)
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert metrics["records"] == 80
    held = held_out(make_config(), load_records(silos[0]))
    pixels = [
        {image.tobytes() for image in images}
        for images, _ in (held.validation, held.test)
    ]
    assert not pixels[0] & pixels[1]
    with pytest.raises(BenchError, match="lower it"):
        rounds_of(make_config({"validation": {"tasks": 100}}), silos, tmp_path / "all")


def test_private_runs_write_nothing_that_no_noise_protects(silos, tmp_path):
    train(make_config(SCALAR), silos, tmp_path / "private")
    private = history(tmp_path / "private")
    assert private["loss"].isna().all() and not [
        name for name in private if name.startswith("norm_")
    ]
    train(make_config(PLAIN), silos, tmp_path / "plain")
    plain = history(tmp_path / "plain")
    assert plain["loss"].notna().all() and plain[
        [f"norm_client{client}" for client in range(4)]
    ].notna().all(axis=None)
    assert (tmp_path / "plain" / "ledger.jsonl").read_bytes() == b""
    # Tests in training are for the reader alone: without them it ends with the same
    # model.
    train(
        make_config(SCALAR, {"evaluation": {"every": 0}}), silos, tmp_path / "untested"
    )
    model = load_file(tmp_path / "untested" / "model.safetensors")
    tested = load_file(tmp_path / "private" / "model.safetensors")
    assert all(np.array_equal(model[name], tested[name]) for name in model)


def test_empty_lots_release_noise(silos, tmp_path):
    config = make_config(
        {"participation": {"cohort": 1, "rounds": 4}, "method": "dp-fl"}
    )
    train(config, silos, tmp_path)
    assert len(read_ledger(tmp_path / "ledger.jsonl")) == 4
    assert all(
        np.isfinite(tensor).all()
        for tensor in load_file(tmp_path / "model.safetensors").values()
    )


def test_a_raw_threshold_leaves_no_finite_epsilon(silos, tmp_path):
    config = make_config(RAW)
    train(config, silos, tmp_path)
    profiles = accounted(config, tmp_path)["profiles"]
    assert (
        profiles["holds"]["epsilon_high"] in (math.inf, "inf", "Infinity")
        and profiles["holds"]["status"] == "void"
    )


def test_the_plain_sum_is_the_methods_without_clipping_and_noise(
    silos, tmp_path, monkeypatch
):
    """Property 5, bit for bit."""
    train(make_config(PLAIN), silos, tmp_path / "plain")
    monkeypatch.setattr(PrivateSum, "_noised", lambda self, total, generator: total)
    monkeypatch.setattr(PrivateSum, "_limit", math.inf)
    train(make_config({"method": "dp-fl"}), silos, tmp_path / "off")
    plain, off = (
        load_file(tmp_path / name / "model.safetensors") for name in ("plain", "off")
    )
    assert all(np.array_equal(plain[name], off[name]) for name in plain)
