"""Pre-training on all training classes: records, steps, new last layer, account."""

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
from dpsum.randomness import stream
from tests.partitions import make_fragments

from .conftest import (
    accounted,
    ledger_in,
    make_config,
    remove_noise,
    rounds_of,
    train,
)

SPLITS = ("test", "train", "validation", "train", "test", "train", "test", "train")
TRAINING = [1, 3, 5, 7]
EXAMPLES = 10
SMALL = {"participation": {"cohort": 8, "rounds": 6}}
TRANSFER = SMALL | {
    "method": "dp-transfer",
    "noise": {"multiplier": 2.0},
    "budget": {"profile": "claimed"},
}


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Make eight classes whose training classes are not the first, and one holder.

    Returns (data folder, clients folder).
    """
    root = tmp_path_factory.mktemp("images")
    drawn = np.random.default_rng(0).integers(
        0, 256, size=(8, EXAMPLES, 16, 16, 1), dtype=np.uint8
    )
    names = tuple(f"class{i}" for i in range(8))
    raw = RawImages(
        images=drawn,
        class_names=names,
        splits=SPLITS,
        versions={},
    )
    raw.save(root / "data", {"name": "glyphs"})
    records = load_any_records(root / "data")
    partition = make_fragments(records, clients=1, fragments=1, seed=0)
    partition.save(root / "clients")
    return root / "data", root / "clients"


def test_pretraining_records_are_all_images_of_the_training_classes(images, tmp_path):
    """The labels number the training classes."""
    dataset = load_dataset(images[0])
    records = load_any_records(images[0])
    assert records.class_names == ("class1", "class3", "class5", "class7")
    assert len(records.splits["test"]) == 0
    labels = [TRAINING.index(i) if i in TRAINING else -1 for i in range(8)]
    assert records.labels.tolist() == np.repeat(labels, EXAMPLES).tolist()
    (indices,) = RecordPartition.load(images[1]).records
    assert sorted(indices) == [10 * i + j for i in TRAINING for j in range(10)]
    rounds = rounds_of(make_config(TRANSFER), images, tmp_path)
    assert rounds.net.shapes["head.bias"] == (4,)
    held = rounds.clients._held
    for image, label in zip(held.images[0], held.labels[0], strict=True):
        class_images = dataset.images[TRAINING[label]]
        assert (class_images == image).all(axis=(1, 2, 3)).any()


def test_pretraining_without_noise_is_adam_along_the_clipped_sum(
    images, tmp_path, monkeypatch
):
    """Reference: autodiff of the network on the same lots, with torch's Adam."""
    remove_noise(monkeypatch)
    config = make_config(TRANSFER, {"clipping": {"threshold": 0.3}})
    rounds = rounds_of(config, images, tmp_path)
    records = load_any_records(images[0])
    indices = np.sort(RecordPartition.load(images[1]).records[0])
    net = rounds.net
    start = torch.from_numpy(net.initial(stream(0, "initial-weights")))
    model = torch.nn.Parameter(start)
    optimizer = torch.optim.Adam([model], lr=0.004)
    lots = config.participation.lots(
        clients=1,
        seed=0,
        steps=1,
        records=40,
    )
    for index in range(2):
        total = torch.zeros(net.dimension)
        for record in indices[lots.lot(index, 0, 0)]:
            pixels = torch.from_numpy(np.array(records.images[record])[None])
            label = torch.from_numpy(records.labels[record : record + 1])
            logits = net.logits(model, pixels.float() / 255)
            loss = torch.nn.functional.cross_entropy(logits, label)
            (gradient,) = torch.autograd.grad(loss, model)
            total += gradient * min(1.0, 0.3 / float(gradient.norm()))
        model.grad = total / 8
        optimizer.step()
        rounds.round(index)
        # Adam's step is a ratio: where a gradient is near zero, rounding decides it.
        close = torch.isclose(rounds.theta, model.detach(), atol=1e-4)
        assert close.float().mean() > 0.99


def test_new_last_layer_keeps_the_body_bit_for_bit(images, tmp_path, monkeypatch):
    """A 16 x 16 image has one position of 4 features, so each class has 5 weights."""
    config = make_config(TRANSFER)
    train(config, images, tmp_path)
    (theta,) = load_members(tmp_path / "model.safetensors", config.net((16, 16, 1), 4))
    calls = []

    def scores(choice, members, *_, adapted, **options):
        calls.append((choice.make().net, adapted, *members))
        raise InterruptedError

    monkeypatch.setattr("dpfedbench.evaluation.few_shot.task_scores", scores)
    with pytest.raises(InterruptedError):
        train(config, images, tmp_path)
    ((net, adapted, tested),) = calls
    assert net.outputs == 3
    assert adapted is None
    assert tested.dtype == np.float32
    assert (tested[-3 * 5 :] == 0).all()
    assert theta[-4 * 5 :].any()
    assert tested[: -3 * 5].tobytes() == theta[: -4 * 5].tobytes()


def test_pretrained_model_is_tested_at_several_shots(images, tmp_path):
    config = make_config({"method": "transfer"}, SMALL)
    train(config, images, tmp_path)
    assert ledger_in(tmp_path) == []
    for shots in (1, 5):
        test = config.tested_at(shots=shots, steps=3, tasks=4)
        assert test.test_name == f"{shots}shot-3steps-0.1rate-4tasks-3query"
        path = tmp_path / test.test_name
        model = tmp_path / "model.safetensors"
        evaluate(test, data_dir=images[0], model_path=model, out_path=path)
        metrics = json.loads(path.read_text())
        assert metrics["shots"] == shots
        assert metrics["steps"] == 3
        assert len(metrics["per_task"]) == 4


def test_pretraining_account_is_that_of_poisson_lots_of_images(images, tmp_path):
    """z = 2, six lots of 8 expected of 40 records, delta 1e-5."""
    config = make_config(TRANSFER)
    train(config, images, tmp_path)
    ledger = ledger_in(tmp_path)
    assert len(ledger) == 6
    for line in ledger:
        assert line.unit == "record"
        assert line.observer == "everyone"
        assert line.noise_multiplier == 2.0
        assert line.denominator == 8.0
    profiles = accounted(config, tmp_path)["profiles"]
    claim = profiles["claimed"]
    proof = profiles["proven"]
    claimed = renyi.renyi_epsilon(((2.0, 6),), 0.2, 1e-5, WHOLE_ORDERS.orders)
    assert claim["epsilon_high"] == pytest.approx(claimed, rel=1e-9)
    tight = poisson.upper_epsilon(((2.0, 6),), 0.2, 1e-5)
    assert proof["epsilon_high"] == pytest.approx(tight, rel=1e-9)
    assert tight < claimed
    assert claim["status"] == proof["status"] == "proved"


def test_pretraining_audit_takes_one_holder(images, tmp_path):
    """The bound at 95 % confidence is above the proven epsilon in at most one of twenty
    seeds; the seed is fixed. Three quarters of 40 records are canaries.
    """
    config = make_config(TRANSFER, {"noise": {"multiplier": 0.7}})
    train(config, images, tmp_path)
    report = audit(config, ledger_in(tmp_path))
    assert report["unit"] == "record"
    assert report["observer"] == "everyone"
    assert report["clients_audited"] == 1
    assert report["rounds"] == 6
    assert report["canaries"] == 30
    assert report["status"].startswith("not above")
