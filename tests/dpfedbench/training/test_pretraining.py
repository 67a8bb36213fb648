"""Pre-training on all training classes: records, steps, new last layer, account."""

import numpy as np
import pytest

from dpfedbench.audit.report import audit
from dpfedbench.data.images import RawImages, load_dataset
from dpfedbench.data.partition import RecordPartition
from dpfedbench.data.records import load_any_records
from dpfedbench.models.members import load_members
from dploss import renyi
from dpsum.accounting.analyses import poisson
from dpsum.accounting.claims import WHOLE_ORDERS
from tests.partitions import make_fragments

from .conftest import accounted, ledger_in, make_config, rounds_of, train
from .test_lots import check_adam_steps

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
    raw = RawImages(images=drawn, class_names=names, splits=SPLITS, versions={})
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
    config = make_config(TRANSFER, {"clipping": {"threshold": 0.3}})
    check_adam_steps(config, images, tmp_path, monkeypatch, limit=0.3)


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
