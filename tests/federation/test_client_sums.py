"""Clients that sum over their own records: releases, thresholds, noise, budget, resuming."""

import functools
import json
import math

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.numpy import load_file

from dpfedbench.accounting import calibration
from dpfedbench.accounting.account import account
from dpfedbench.accounting.budgets import DecayingBudget
from dpfedbench.accounting.filters import HOLDING_ORDERS
from dpfedbench.accounting.poisson import epsilon_of, renyi, upper_epsilon
from dpfedbench.config import RunConfig, merge
from dpfedbench.data.fragments import load_fragments
from dpfedbench.data.records import load_records
from dpfedbench.errors import BenchError
from dpfedbench.evaluation.meta_test import meta_test
from dpfedbench.federation import client_sums, engine
from dpfedbench.federation.accounts import account_run
from dpfedbench.federation.client_sums import ClientSums
from dpfedbench.federation.composition import CLAIMS_OF_TODAY
from dpfedbench.federation.participation import PoissonLots
from dpfedbench.methods import METHODS
from dpfedbench.privacy.ledger import Ledger, read_ledger
from dpfedbench.privacy.private_sum import PrivateSum
from dpfedbench.randomness import stream

from ..models.nets import cnn
from .conftest import RUN

epsilon_after = functools.partial(calibration.epsilon_after, claims=CLAIMS_OF_TODAY)
rounds_allowed = functools.partial(calibration.rounds_allowed, claims=CLAIMS_OF_TODAY)
CLAIMED_ORDERS = CLAIMS_OF_TODAY["poisson-lots"].orders
LOTS = {
    "method": "adap-dp-fl",
    "dataset": "digits",
    "task": {"ways": 10, "shots": 0},
    "clients": {"count": 4, "partition": "fragments", "fragments": 20},
    "model": {"name": "cnn", "pixel_mean": 0.3, "pixel_deviation": 0.5},
    "participation": {"kind": "poisson-lots", "cohort": 8, "rounds": 12},
    "client_update": {"kind": "local-steps", "inner_steps": 1, "inner_rate": 0.01, "optimizer": "adam"},
    "clipping": {"rule": "constant", "threshold": 1.0, "factor": 1.0},
    "noise": {"multiplier": 2.0},
    "budget": {"epsilon": None, "delta": 1e-4, "profile": "as_claimed"},
    "server": {"optimizer": "average", "rate": 1.0},
    "validation": {"every": 1, "tasks": 20},
    "evaluation": {"every": 4},
}
PLAIN = {"method": "fedavg", "clipping": None, "noise": None, "budget": None}
VECTOR = {"clipping": {"rule": "norm-of-release", "threshold": None, "factor": 0.5}}
SCALAR = {"clipping": {"rule": "noised-mean-norm", "threshold": None, "factor": 1.0}}
RAW = {"clipping": {"rule": "mean-of-raw-norms", "threshold": None, "factor": 1.0}}
DECAY = {"noise": {"decay": 0.9}}


def make_config(*overlays):
    return RunConfig.from_dict(merge(RUN, LOTS, *overlays))


def train(config, silos, run_dir, threads=1, checkpoint_seconds=1e9):
    data, clients = silos
    engine.train(
        config, data_dir=data, clients_dir=clients, run_dir=run_dir, threads=threads,
        checkpoint_seconds=checkpoint_seconds,
    )  # fmt: skip
    (run_dir / "config.yaml").write_text(config.to_yaml(), encoding="utf-8")
    meta_test(config, data_dir=data, model_path=run_dir / "model.safetensors", out_path=run_dir / "metrics.json")


def rounds_of(config, silos, tmp_path, threads=1):
    data, clients = silos
    return ClientSums(
        config, METHODS[config.method].compose(config), data_dir=data, clients_dir=clients,
        ledger=Ledger(tmp_path / "ledger.jsonl"), threads=threads,
    )  # fmt: skip


RESULTS = ("model.safetensors", "ledger.jsonl", "metrics.json")


def results(run_dir):
    return {name: (run_dir / name).read_bytes() for name in RESULTS}


def history(run_dir):
    return pd.read_csv(run_dir / "history.csv")


def test_a_round_without_noise_is_an_adam_step_of_each_client_and_their_mean(silos, tmp_path, monkeypatch):
    """By autodiff on the same lots, with torch's own Adam for each client alone."""
    monkeypatch.setattr(PrivateSum, "_noised", lambda self, total, generator: total)
    config = make_config({"clipping": {"threshold": 0.05}, "method": "dp-fl"})
    found = rounds_of(config, silos, tmp_path)
    dataset, partition = load_records(silos[0]), load_fragments(silos[1])
    net = cnn(image_shape=dataset.image_shape, classes=10, pixel_mean=0.3, pixel_deviation=0.5)
    theta = torch.from_numpy(net.initial(stream(0, "initial-weights")))
    lots = PoissonLots(clients=4, lot=8, rounds=12, steps=1, seed=0, records=100)

    def loss(weights, image, label):
        return torch.nn.functional.cross_entropy(net.logits(weights, image[None]), label[None])

    models = [torch.nn.Parameter(theta.clone()) for _ in range(4)]
    optimizers = [torch.optim.Adam([model], lr=0.01) for model in models]
    for index in range(3):
        for client, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            own = np.sort(partition.records[client])[lots.lot(index, 0, client)]
            images = torch.from_numpy(np.asarray(dataset.images[own])).float() / 255
            labels = torch.from_numpy(np.asarray(dataset.labels[own]))
            with torch.no_grad():
                model.copy_(theta)
            gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(theta, images, labels)
            scale = torch.clamp(0.05 / gradients.norm(dim=1), max=1.0)
            model.grad = (gradients * scale[:, None]).sum(dim=0) / 8
            optimizer.step()
        theta = torch.stack([model.detach() for model in models]).mean(dim=0)
        found.round(index)
        # Adam's step is a ratio: where a gradient is near zero, rounding decides it.
        close = np.isclose(found.theta, theta.numpy(), atol=1e-4)
        assert close.mean() > 0.99
        theta = torch.from_numpy(found.theta.copy())


@pytest.mark.parametrize(
    "overlay", [VECTOR, SCALAR | DECAY, RAW, DECAY, PLAIN, {"client_update": {"keep_state": False}}]
)
def test_it_goes_on_from_a_checkpoint_with_the_same_bits(silos, tmp_path, monkeypatch, overlay):
    config = make_config(overlay)
    train(config, silos, tmp_path / "whole")

    class Stop(Exception):
        pass

    step = engine._Training._round

    def until_five(self, index):
        if index == 5:
            raise Stop
        return step(self, index)

    with monkeypatch.context() as patch, pytest.raises(Stop):
        patch.setattr(engine._Training, "_round", until_five)
        train(config, silos, tmp_path / "resumed", checkpoint_seconds=0)
    train(config, silos, tmp_path / "resumed", threads=2)
    assert results(tmp_path / "resumed") == results(tmp_path / "whole")
    columns = [name for name in history(tmp_path / "whole") if name != "seconds"]
    pd.testing.assert_frame_equal(history(tmp_path / "whole")[columns], history(tmp_path / "resumed")[columns])


def test_every_release_of_every_client_is_in_the_ledger(silos, tmp_path, monkeypatch):
    """Properties 2, 6 and 8, for both releases of the scalar reading and two local steps a round."""
    done, streams = [], []
    release = PrivateSum.release

    def spy(self, generator):
        done.append((self.dimension, self.threshold, self.noise_multiplier, self.count))
        return release(self, generator)

    named = client_sums.stream
    monkeypatch.setattr(PrivateSum, "release", spy)
    monkeypatch.setattr(client_sums, "stream", lambda *name: streams.append(name) or named(*name))
    config = make_config(SCALAR, {"client_update": {"inner_steps": 2}, "participation": {"rounds": 5}})
    train(config, silos, tmp_path)
    ledger = read_ledger(tmp_path / "ledger.jsonl")
    assert [(event.round, event.name) for event in ledger] == [
        (number, name) for number in range(10) for name in ("gradient-sum", "clipped-norm-sum")
    ]
    written = [
        (event.dimension, threshold, event.noise_multiplier) for event in ledger for threshold in event.threshold
    ]
    assert sorted(written) == sorted(values[:3] for values in done)
    assert len(done) == 2 * 10 * 4
    noises = [name for name in streams if name[1] in ("noise", "norm-noise")]
    assert len(noises) == len(set(noises)) == len(done)
    # Lots differ in size, what they are divided by does not.
    assert len({count for *_, count in done}) > 1
    assert {event.denominator for event in ledger} == {8.0}
    assert all(event.sampler["rate"] == 8 / 100 and event.unit == "record" for event in ledger)
    account_run(tmp_path, tmp_path / "privacy.json")
    profiles = json.loads((tmp_path / "privacy.json").read_text())["profiles"]
    assert profiles["as_claimed"]["status"] == "void"
    assert profiles["holds"]["epsilon_high"] == pytest.approx(
        upper_epsilon(((2.0 / math.sqrt(2), 10),), 8 / 100, 1e-4), rel=1e-9
    )


def test_the_step_is_the_release_over_the_public_denominator(silos, tmp_path, monkeypatch):
    """Property 8, with plain SGD, which unlike Adam shows the scale: lots of all sizes are divided by their mean."""
    seen, release = [], PrivateSum.release

    def spy(self, generator):
        out = release(self, generator)
        seen.append((self.count, out.clone()))
        return out

    monkeypatch.setattr(PrivateSum, "release", spy)
    found = rounds_of(make_config({"method": "dp-fl", "client_update": {"optimizer": "sgd"}}), silos, tmp_path)
    for index in range(3):
        before, seen[:] = found.theta.copy(), []
        found.round(index)
        assert len({count for count, _ in seen}) > 1
        step = 0.01 * torch.stack([released for _, released in seen]).mean(dim=0).numpy() / 8
        np.testing.assert_allclose(found.theta, before - step, atol=2e-7)


def test_the_thresholds_follow_their_readings(silos, tmp_path):
    """Eq. 6 to 8 by hand from what was released; C_0 from random data, so the same for every client."""
    for overlay, name in ((VECTOR, "vector"), (SCALAR, "scalar")):
        found = rounds_of(make_config(overlay), silos, tmp_path)
        assert found.rules is not None
        first = {rule.threshold for rule in found.rules}
        assert len(first) == 1 and 0 < first.pop() < 100
        kept = {}
        client = found._client
        found._client = lambda index, step, number, client=client, kept=kept: kept.setdefault(
            number, client(index, step, number)
        )
        found.round(0)
        assert len(kept) == 4
        for number, step in kept.items():
            value = 0.5 * float(step.mean.norm()) if name == "vector" else abs(step.norms) / 8
            assert found.rules[number].threshold == pytest.approx(value, rel=1e-12)
        assert len({rule.threshold for rule in found.rules}) == 4


def test_a_released_threshold_does_not_depend_on_raw_gradients(silos, tmp_path):
    """Property 9: given the same releases the next thresholds are the same; the raw rule's are not."""
    rng = np.random.default_rng(3)
    released = torch.from_numpy(rng.normal(size=26010))
    for overlay, private in ((VECTOR, True), (SCALAR, True), (RAW, False)):
        rule = rounds_of(make_config(overlay), silos, tmp_path).rules[0]
        after = set()
        for raw in ([1.0, 2.0], [50.0, 70.0]):
            start = rule.state_dict()
            if rule.reads_raw_norms:
                rule.observe_raw(raw)
            rule.observe(released, 8.0)
            if rule.reads_norm_release:
                rule.observe_norms(12.0, 8.0)
            after.add(rule.threshold)
            rule.load_state_dict(start)
        assert (len(after) == 1) == private == rule.private


def test_noise_decays_after_three_falls_in_a_row(silos, tmp_path):
    found = rounds_of(make_config(DECAY), silos, tmp_path)
    assert isinstance(found.budget, DecayingBudget)
    at = []
    # J(w_1) and J(w_2) count as infinite: the first decay can come after the fifth loss.
    for loss in (9, 8, 7, 6, 5, 5, 4, 3, 2, 2.5, 2, 1, 0.5):
        found.budget.observe(float(loss))
        at.append(found.budget.noise_multiplier)
    z = 2.0
    assert at == pytest.approx([z, z, z, z, z * 0.9, z * 0.9, z * 0.9, z * 0.9, *[z * 0.81] * 4, z * 0.729])


def test_a_decaying_budget_is_what_the_account_says(silos, tmp_path):
    config = make_config(DECAY, {"participation": {"rounds": 30}, "budget": {"epsilon": 3.0}})
    train(config, silos, tmp_path)
    training = json.loads((tmp_path / "training.json").read_text())
    ledger = read_ledger(tmp_path / "ledger.jsonl")
    found = account(ledger, delta=1e-4, claims=CLAIMS_OF_TODAY).to_json()["profiles"]
    last = history(tmp_path)["epsilon_claimed"].iloc[-1]
    assert len({event.noise_multiplier for event in ledger}) > 1
    assert found["as_claimed"]["epsilon_high"] == pytest.approx(last, rel=1e-9)
    assert training["stopped_by"] == "budget" and last <= 3.0
    assert found["holds"]["epsilon_high"] < last
    assert found["holds"]["status"] == "as run"
    # One round more, at the noise that came next, would have been too much.
    again = rounds_of(config, silos, tmp_path)
    for event in ledger:
        again.budget.noise_multiplier = event.noise_multiplier
        again.budget.took(1)
    assert not again.budget.allows(len(ledger) + 1)


@pytest.mark.parametrize("profile", ["holds", "as_claimed"])
def test_a_budget_that_noise_may_follow_a_loss_under_is_proved(silos, tmp_path, profile):
    """The filter that kept the budget is the one that the account finds in the ledger, whatever the noise was."""
    config = make_config(DECAY, {"participation": {"rounds": 60}, "budget": {"epsilon": 3.0, "profile": profile}})
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    train(config, silos, tmp_path)
    account_run(tmp_path, tmp_path / "privacy.json")
    ledger = read_ledger(tmp_path / "ledger.jsonl")
    assert len({event.noise_multiplier for event in ledger}) > 1
    assert json.loads((tmp_path / "training.json").read_text())["stopped_by"] == "budget"
    found = json.loads((tmp_path / "privacy.json").read_text())["profiles"]["holds"]
    assert found["status"] == "proved" and found["epsilon_low"] < found["epsilon_high"]
    assert "filter" in found["explanation"]
    assert found["epsilon_high"] == pytest.approx(3.0, abs=1e-9 if profile == "holds" else 0.05)


def test_lots_without_a_multiplier_meet_their_budget(silos, tmp_path):
    budget = {"epsilon": 2.0, "profile": "holds"}
    config = make_config(
        {"method": "dp-fl", "noise": {"multiplier": None}, "budget": budget, "participation": {"rounds": 20}}
    )
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    train(config, silos, tmp_path)
    account_run(tmp_path, tmp_path / "privacy.json")
    found = json.loads((tmp_path / "privacy.json").read_text())
    assert found["rounds"] == 20 and 1.99 <= found["profiles"]["holds"]["epsilon_high"] <= 2.0
    assert found["profiles"]["image_level"]["unit"] == "image"


@pytest.mark.parametrize(("profile", "epsilon"), [("as_claimed", 1.5), ("holds", 1.0)])
def test_constant_noise_stops_before_the_budget_is_exceeded(silos, tmp_path, profile, epsilon):
    config = make_config({"budget": {"epsilon": epsilon, "profile": profile}, "participation": {"rounds": 60}})
    train(config, silos, tmp_path)
    sampler = PoissonLots(clients=4, lot=8, rounds=60, steps=1, seed=0, records=100).describe()
    allowed = rounds_allowed(profile, sampler, 2.0, 1e-4, epsilon)
    assert json.loads((tmp_path / "training.json").read_text())["rounds_run"] == allowed < 60
    assert epsilon_after(profile, sampler, 2.0, allowed, 1e-4) <= epsilon
    assert epsilon_after(profile, sampler, 2.0, allowed + 1, 1e-4) > epsilon


def test_a_budget_that_must_hold_counts_both_releases_of_a_lot(silos, tmp_path):
    """The claim leaves the second one out, as the paper does; what holds is one Gaussian of multiplier z / sqrt(2)."""
    for profile, z, orders, tight in (
        ("holds", 2.0 / math.sqrt(2), HOLDING_ORDERS, True),
        ("as_claimed", 2.0, CLAIMED_ORDERS, False),
    ):
        budget = {"epsilon": 2.0, "profile": profile}
        config = make_config(SCALAR, {"budget": budget, "participation": {"rounds": 500}})
        found = rounds_of(config, silos, tmp_path).budget
        cost = renyi(z, 8 / 100, orders)
        allowed = sum(epsilon_of(count * cost, orders, 1e-4, tight=tight) <= 2.0 for count in range(1, 500))
        assert 0 < allowed < 499
        assert found.allows(allowed) and not found.allows(allowed + 1)


def test_a_budget_that_no_round_fits_is_refused(silos, tmp_path):
    for overlay in ({}, DECAY):
        with pytest.raises(BenchError, match="first round"):
            train(make_config(overlay, {"budget": {"epsilon": 0.01}}), silos, tmp_path)


def test_a_lot_larger_than_a_clients_data_is_refused(silos, tmp_path):
    with pytest.raises(BenchError, match="a client holds 100 records"):
        train(make_config({"participation": {"cohort": 101}}), silos, tmp_path)


def test_validation_records_are_not_test_records(silos, tmp_path):
    train(make_config({"participation": {"rounds": 2}}), silos, tmp_path)
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert metrics["records"] == 80
    found = rounds_of(make_config(), silos, tmp_path / "again")
    held = found.source.held_out
    pixels = [{image.tobytes() for image in images} for images, _ in (held.validation, held.test)]
    assert not pixels[0] & pixels[1]
    with pytest.raises(BenchError, match="lower it"):
        rounds_of(make_config({"validation": {"tasks": 100}}), silos, tmp_path / "all")


def test_private_runs_write_nothing_that_no_noise_protects(silos, tmp_path):
    train(make_config(SCALAR), silos, tmp_path / "private")
    private = history(tmp_path / "private")
    assert private["loss"].isna().all() and not [name for name in private if name.startswith("norm_")]
    train(make_config(PLAIN), silos, tmp_path / "plain")
    plain = history(tmp_path / "plain")
    assert plain["loss"].notna().all() and plain[[f"norm_client{client}" for client in range(4)]].notna().all(axis=None)
    assert (tmp_path / "plain" / "ledger.jsonl").read_bytes() == b""
    # Tests in training are for the reader alone: without them it ends with the same model.
    train(make_config(SCALAR, {"evaluation": {"every": 0}}), silos, tmp_path / "untested")
    model = load_file(tmp_path / "untested" / "model.safetensors")
    tested = load_file(tmp_path / "private" / "model.safetensors")
    assert all(np.array_equal(model[name], tested[name]) for name in model)


def test_empty_lots_release_noise(silos, tmp_path):
    config = make_config({"participation": {"cohort": 1, "rounds": 4}, "method": "dp-fl"})
    train(config, silos, tmp_path)
    assert len(read_ledger(tmp_path / "ledger.jsonl")) == 4
    assert all(np.isfinite(tensor).all() for tensor in load_file(tmp_path / "model.safetensors").values())


def test_a_raw_threshold_leaves_no_finite_epsilon(silos, tmp_path):
    train(make_config(RAW), silos, tmp_path)
    account_run(tmp_path, tmp_path / "privacy.json")
    profiles = json.loads((tmp_path / "privacy.json").read_text())["profiles"]
    assert profiles["holds"]["epsilon_high"] in (math.inf, "inf", "Infinity") and profiles["holds"]["status"] == "void"


def test_lots_are_poisson():
    """Property 7. The frequency, and that two records are together as often as apart from one another: 99.99 %."""
    plan = PoissonLots(clients=2, lot=20, rounds=4000, steps=1, seed=0, records=100)
    drawn = np.zeros((4000, 100), bool)
    for index in range(4000):
        drawn[index, plan.lot(index, 0, 1)] = True
    assert abs(drawn.mean() - 0.2) < 3.9 * math.sqrt(0.16 / drawn.size)
    together = (drawn[:, :50] & drawn[:, 50:]).mean()
    assert abs(together - 0.04) < 3.9 * math.sqrt(0.04 * 0.96 / (4000 * 50))
    assert not np.array_equal(plan.lot(0, 0, 0), plan.lot(0, 0, 1))
    assert not np.array_equal(plan.lot(0, 0, 0), plan.lot(0, 1, 0))


def test_the_plain_sum_is_the_methods_without_clipping_and_noise(silos, tmp_path, monkeypatch):
    """Property 5, bit for bit."""
    train(make_config(PLAIN), silos, tmp_path / "plain")
    monkeypatch.setattr(PrivateSum, "_noised", lambda self, total, generator: total)
    monkeypatch.setattr(PrivateSum, "_limit", math.inf)
    train(make_config({"method": "dp-fl"}), silos, tmp_path / "off")
    plain, off = (load_file(tmp_path / name / "model.safetensors") for name in ("plain", "off"))
    assert all(np.array_equal(plain[name], off[name]) for name in plain)
