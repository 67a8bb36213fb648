"""Pre-training on all training classes: what the records are, the steps, the new last
layer, account and audit.
"""

import json

import numpy as np
import pytest
import torch

from dpfedbench.audit.report import audit
from dpfedbench.data.images import RawImages, load_dataset
from dpfedbench.data.partition import RecordPartition
from dpfedbench.data.records import load_any_records
from dpfedbench.evaluation import evaluate
from dpfedbench.models.members import load_members
from dpsum.accounting import renyi
from dpsum.accounting.analyses import poisson
from dpsum.accounting.claims import WHOLE_ORDERS
from dpsum.ledger import read_ledger
from dpsum.private_sum import PrivateSum
from dpsum.randomness import stream
from tests.partitions import make_fragments

from . import conftest
from .conftest import accounted, rounds_of, train

SPLITS = ("test", "train", "validation", "train", "test", "train", "test", "train")
TRAINING = [1, 3, 5, 7]
EXAMPLES = 10
SMALL = {"participation": {"cohort": 8, "rounds": 6}}


def make_config(*overlays, method="dp-transfer"):
    noise = (
        {"noise": {"multiplier": 2.0}, "budget": {"profile": "as_claimed"}}
        if method == "dp-transfer"
        else {}
    )
    return conftest.make_config({"method": method}, SMALL, noise, *overlays)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """(data folder, clients folder): eight classes whose training classes are not the
    first ones, one holder.
    """
    root = tmp_path_factory.mktemp("images")
    drawn = np.random.default_rng(0).integers(
        0, 256, size=(8, EXAMPLES, 16, 16, 1), dtype=np.uint8
    )
    names = tuple(f"class{i}" for i in range(8))
    RawImages(images=drawn, class_names=names, splits=SPLITS, versions={}).save(
        root / "data", {"name": "glyphs"}
    )
    make_fragments(
        load_any_records(root / "data"), clients=1, fragments=1, seed=0
    ).save(root / "clients")
    return root / "data", root / "clients"


def test_records_are_all_images_of_the_training_classes_and_labels_their_places(
    images, tmp_path
):
    dataset, records = load_dataset(images[0]), load_any_records(images[0])
    assert (
        records.class_names == ("class1", "class3", "class5", "class7")
        and len(records.splits["test"]) == 0
    )
    assert records.labels.tolist() == [
        TRAINING.index(i) if i in TRAINING else -1 for i in range(8) for _ in range(10)
    ]
    held = RecordPartition.load(images[1]).records
    assert held.shape == (1, 40) and sorted(held[0]) == [
        10 * i + j for i in TRAINING for j in range(10)
    ]
    rounds = rounds_of(make_config(), images, tmp_path)
    assert rounds.net.shapes["head.bias"] == (4,)
    held = rounds.clients._held
    for image, label in zip(held.images[0], held.labels[0], strict=True):
        own = dataset.images[TRAINING[label]]
        assert (own == image).all(axis=(1, 2, 3)).any()


def test_a_round_without_noise_is_an_adam_step_along_the_clipped_sum(
    images, tmp_path, monkeypatch
):
    """By autodiff of the same network on the same lots, with torch's own Adam."""
    monkeypatch.setattr(PrivateSum, "_noised", lambda self, total, generator: total)
    config = make_config({"clipping": {"threshold": 0.3}})
    found = rounds_of(config, images, tmp_path)
    records = load_any_records(images[0])
    own, net = np.sort(RecordPartition.load(images[1]).records[0]), found.net
    model = torch.nn.Parameter(
        torch.from_numpy(net.initial(stream(0, "initial-weights")))
    )
    optimizer = torch.optim.Adam([model], lr=0.004)
    lots = config.participation.lots(clients=1, seed=0, steps=1, records=40)

    for index in range(2):
        total = torch.zeros(net.dimension)
        for record in own[lots.lot(index, 0, 0)]:
            image = (
                torch.from_numpy(np.array(records.images[record])[None]).float() / 255
            )
            label = torch.from_numpy(records.labels[record : record + 1])
            loss = torch.nn.functional.cross_entropy(net.logits(model, image), label)
            (gradient,) = torch.autograd.grad(loss, model)
            total += gradient * min(1.0, 0.3 / float(gradient.norm()))
        model.grad = total / 8
        optimizer.step()
        found.round(index)
        # Adam's step is a ratio: where a gradient is near zero, rounding decides it.
        assert (
            torch.isclose(found.theta, model.detach(), atol=1e-4).float().mean() > 0.99
        )


def test_a_fresh_head_keeps_the_body_bit_for_bit(images, tmp_path, monkeypatch):
    config = make_config()
    train(config, images, tmp_path)
    wide = config.net((16, 16, 1), 4)
    (theta,) = load_members(tmp_path / "model.safetensors", wide)
    seen = []

    def scores(choice, members, *_, **named):
        seen.extend([choice.make().net, named["adapted"], *members])
        raise InterruptedError

    with monkeypatch.context() as patch, pytest.raises(InterruptedError):
        patch.setattr("dpfedbench.evaluation.few_shot.task_scores", scores)
        train(config, images, tmp_path)
    net, adapted, tested = seen
    assert net.outputs == 3 and adapted is None
    # Head of a 16 x 16 image: one position of 4 features, to each way, and a bias.
    assert (
        tested.dtype == np.float32
        and (tested[-3 * 5 :] == 0).all()
        and theta[-4 * 5 :].any()
    )
    assert tested[: -3 * 5].tobytes() == theta[: -4 * 5].tobytes()


def test_one_trained_model_is_tested_at_several_shots(images, tmp_path):
    run, config = tmp_path, make_config(method="transfer")
    train(config, images, run)
    assert (run / "ledger.jsonl").read_text() == ""
    found = {}
    for shots in (1, 5):
        test = config.tested_at(shots=shots, steps=3, tasks=4)
        evaluate(
            test,
            data_dir=images[0],
            model_path=run / "model.safetensors",
            out_path=run / f"{test.test_name}",
        )
        found[shots] = json.loads((run / test.test_name).read_text())
    assert sorted(path.name for path in run.glob("*query")) == [
        "1shot-3steps-0.1rate-4tasks-3query",
        "5shot-3steps-0.1rate-4tasks-3query",
    ]
    assert [found[shots]["shots"] for shots in (1, 5)] == [1, 5] and found[5][
        "steps"
    ] == 3
    assert len(found[5]["per_task"]) == 4


def test_the_account_is_that_of_the_poisson_plan_and_an_image_the_unit(
    images, tmp_path
):
    config = make_config()
    train(config, images, tmp_path)
    releases = read_ledger(tmp_path / "ledger.jsonl")
    assert len(releases) == 6
    assert {
        (each.unit, each.observer, each.noise_multiplier, each.denominator)
        for each in releases
    } == {("record", "everyone", 2.0, 8.0)}
    profiles = accounted(config, tmp_path)["profiles"]
    # z = 2, six lots of 8 of 40 records expected, delta 1e-5.
    claimed = renyi.renyi_epsilon(((2.0, 6),), 0.2, 1e-5, WHOLE_ORDERS.orders)
    assert profiles["as_claimed"]["epsilon_high"] == pytest.approx(claimed, rel=1e-9)
    assert profiles["holds"]["epsilon_high"] == pytest.approx(
        poisson.upper_epsilon(((2.0, 6),), 0.2, 1e-5), rel=1e-9
    )
    assert profiles["holds"]["epsilon_high"] < claimed
    assert {profiles[name]["status"] for name in ("as_claimed", "holds")} == {"proved"}


def test_the_audit_takes_one_holder(images, tmp_path):
    """A bound with 95 % confidence, so above what holds in at most one of twenty seeds;
    the seed is fixed.
    """
    config = make_config({"noise": {"multiplier": 0.7}})
    train(config, images, tmp_path)
    found = audit(config, read_ledger(tmp_path / "ledger.jsonl"))
    assert (
        found["unit"],
        found["observer"],
        found["clients_audited"],
        found["rounds"],
    ) == ("record", "everyone", 1, 6)
    assert found["canaries"] == 30 and found["status"].startswith(
        "not above"
    )  # three quarters of 40
