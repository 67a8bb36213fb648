"""A linear head on fixed features trains with privacy like any model: by the kernel,
and by torch to rounding.
"""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from dpfedbench.data.holdings import Records
from dpfedbench.data.records import load_records
from dpfedbench.evaluation.held_out import held_out
from dpfedbench.federation.rounds import Rounds
from dpsum.ledger import Ledger
from dpsum.randomness import stream

from .conftest import LOTS, accounted, make_config, train

HEAD = {
    "method": "dp-fl",
    "model": {"kind": "linear", "features": {"kind": "random", "count": 60}},
    "client_update": {
        "optimizer": "sgd",
        "inner_rate": 20.0,
        "schedule": {"kind": "cosine", "final_rate": 10.0},
    },
    "clipping": {"threshold": 0.5},
    "noise": {"multiplier": 0.5},
    "participation": {"cohort": 20, "rounds": 20},
}


def test_it_learns_under_the_account_of_its_lots(silos, tmp_path):
    run = make_config(HEAD, general=LOTS)
    train(run, silos, tmp_path)
    assert (
        json.loads((tmp_path / "training.json").read_text())["gradients"]
        == "linear-head"
    )
    assert (
        json.loads((tmp_path / "metrics.json").read_text())["accuracy"] > 30
    )  # of ten classes
    # The features are no release: what is proven is what the same lots and noise cost with
    # any model.
    network = make_config(
        HEAD
        | {"model": {"kind": "cnn"}, "participation": {"cohort": 20, "rounds": 20}},
        general=LOTS,
    )
    train(network, silos, tmp_path / "cnn")
    holds = [
        accounted(one, place)["profiles"]["holds"]
        for one, place in ((run, tmp_path), (network, tmp_path / "cnn"))
    ]
    assert holds[0]["epsilon_high"] == holds[1]["epsilon_high"] < 60


def test_threads_change_no_bit_and_torch_only_the_last_ones(silos, tmp_path):
    run = make_config(HEAD, {"participation": {"rounds": 3}}, general=LOTS)
    for name, more in (
        ("one", {}),
        ("two", {"threads": 2}),
        ("torch", {"kernels": False}),
    ):
        train(run, silos, tmp_path / name, **more)
    one, two, torch = (
        load_file(tmp_path / name / "model.safetensors")
        for name in ("one", "two", "torch")
    )
    for name, tensor in one.items():
        np.testing.assert_array_equal(tensor, two[name])
        np.testing.assert_allclose(tensor, torch[name], rtol=1e-3, atol=1e-3)


def test_the_rate_of_local_steps_follows_its_schedule(silos, tmp_path):
    """Each client takes each planned round at the rate of the half cosine from the
    first rate to the final one.
    """
    from dpfedbench.parts.optimizers.optimizer import Sgd

    rates, step = [], Sgd.step
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            Sgd,
            "step",
            lambda self, w, g, state, rate: (
                rates.append(rate),
                step(self, w, g, state, rate),
            )[1],
        )
        train(
            make_config(HEAD, {"participation": {"rounds": 4}}, general=LOTS),
            silos,
            tmp_path,
        )
    # From 20 to 10 on half a cosine: 15 + 5 cos(pi t / 4), for each of four clients.
    assert rates[::4] == pytest.approx(
        [20.0, 15 + 5 * 0.5**0.5, 15.0, 15 - 5 * 0.5**0.5]
    )


EVENED = {"model": {"bias": False, "features": {"evened": 5}}}


def test_directions_are_of_the_public_split_alone(silos, tmp_path):
    """What clients and the test read is the map of their images by the public records,
    written down anew.
    """
    run = make_config(HEAD, EVENED, general=LOTS)
    dataset = load_records(silos[0])
    rounds = Rounds.of(
        run,
        data_dir=silos[0],
        clients_dir=silos[1],
        ledger=Ledger(tmp_path / "ledger.jsonl"),
    )
    order = dataset.splits["test"][
        stream(0, "public-validation").permutation(len(dataset.splits["test"]))
    ]
    public = np.asarray(dataset.images[np.sort(order[: run.validation.tasks])])
    held = Records(*silos)
    for own, images in zip(rounds.clients._held.images, held.images, strict=True):
        np.testing.assert_array_equal(own, run.model.features(images, public))
    images, _ = held_out(run, dataset).test
    left = np.asarray(dataset.images[np.sort(order[run.validation.tasks :])])
    np.testing.assert_array_equal(images, run.model.features(left, public))
    assert rounds.net.dimension == 60 * 10
    assert any("evened by 20 public records" in notice for notice in run.notices)
    # Under the same account as without: nothing is released for them.
    train(run, silos, tmp_path / "evened")
    train(make_config(HEAD, general=LOTS), silos, tmp_path / "plain")
    holds = [
        (tmp_path / name / "ledger.jsonl").read_text().count("\n")
        for name in ("evened", "plain")
    ]
    assert holds[0] == holds[1] > 0
