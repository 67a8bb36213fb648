"""Pre-training on all training classes: what the records are, the steps, the new last layer, account and audit."""

import json

import numpy as np
import pytest
import torch
from dpfedbench.evaluation.meta_test import meta_test
from dpfedbench.federation.client_sums import ClientSums, OwnRecords
from dpfedbench.federation.participation import PoissonLots

from dpfedbench.accounting import poisson
from dpfedbench.accounting.claims import WHOLE_ORDERS
from dpfedbench.audit.report import audit
from dpfedbench.config import RunConfig, merge
from dpfedbench.data.fragments import load_fragments, make_fragments
from dpfedbench.data.images import RawImages, load_dataset, save_dataset
from dpfedbench.data.records import load_any_records
from dpfedbench.errors import BenchError
from dpfedbench.federation import engine
from dpfedbench.federation.accounts import account_run
from dpfedbench.methods import METHODS
from dpfedbench.models.conv4 import Conv4
from dpfedbench.models.members import load_members
from dpfedbench.privacy.ledger import Ledger, read_ledger
from dpfedbench.privacy.private_sum import PrivateSum
from dpfedbench.randomness import stream

from .conftest import RUN

SPLITS = ("test", "train", "validation", "train", "test", "train", "test", "train")
TRAINING = [1, 3, 5, 7]
EXAMPLES = 10
SMALL = {"participation": {"cohort": 8, "rounds": 6}, "noise": {"multiplier": 2.0}}


def make_config(*overlays, method="dp-transfer"):
    values = merge(RUN, METHODS[method].DEFAULTS, {"method": method}, SMALL, *overlays)
    if method == "transfer":
        values |= {"noise": None}
    return RunConfig.from_dict(values)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """(data folder, clients folder): eight classes whose training classes are not the first ones, one holder."""
    root = tmp_path_factory.mktemp("images")
    drawn = np.random.default_rng(0).integers(0, 256, size=(8, EXAMPLES, 16, 16, 1), dtype=np.uint8)
    names = tuple(f"class{i}" for i in range(8))
    save_dataset(
        root / "data", RawImages(images=drawn, class_names=names, splits=SPLITS, versions={}), {"name": "glyphs"}
    )
    make_fragments(load_any_records(root / "data"), clients=1, fragments=1, seed=0).save(root / "clients")
    return root / "data", root / "clients"


def train(config, images, run_dir):
    data, clients = images
    engine.train(config, data_dir=data, clients_dir=clients, run_dir=run_dir)
    (run_dir / "config.yaml").write_text(config.to_yaml(), encoding="utf-8")
    return run_dir


def test_records_are_all_images_of_the_training_classes_and_labels_their_places(images):
    dataset, records = load_dataset(images[0]), load_any_records(images[0])
    assert records.class_names == ("class1", "class3", "class5", "class7") and len(records.splits["test"]) == 0
    assert records.labels.tolist() == [TRAINING.index(i) if i in TRAINING else -1 for i in range(8) for _ in range(10)]
    held = load_fragments(images[1]).records
    assert held.shape == (1, 40) and sorted(held[0]) == [10 * i + j for i in TRAINING for j in range(10)]
    source = OwnRecords(make_config(), data_dir=images[0], clients_dir=images[1])
    assert source.net.shapes["head.bias"] == (4,)
    for image, label in zip(source.images[0], source.labels[0], strict=True):
        own = dataset.images[TRAINING[label]]
        assert (own == image).all(axis=(1, 2, 3)).any()


def test_a_round_without_noise_is_an_adam_step_along_the_clipped_sum(images, tmp_path, monkeypatch):
    """By autodiff of the same network on the same lots, with torch's own Adam."""
    monkeypatch.setattr(PrivateSum, "_noised", lambda self, total, generator: total)
    config = make_config({"clipping": {"threshold": 0.3}})
    found = ClientSums(
        config, METHODS["dp-transfer"].compose(config), data_dir=images[0], clients_dir=images[1],
        ledger=Ledger(tmp_path / "ledger.jsonl"),
    )  # fmt: skip
    records = load_any_records(images[0])
    own = np.sort(load_fragments(images[1]).records[0])
    net = Conv4(image_shape=(16, 16, 1), filters=4, ways=4, normalisation="record")
    model = torch.nn.Parameter(torch.from_numpy(net.initial(stream(0, "initial-weights"))))
    optimizer = torch.optim.Adam([model], lr=0.004)
    lots = PoissonLots(clients=1, lot=8, rounds=6, steps=1, seed=0, records=40)

    for index in range(2):
        total = torch.zeros(net.dimension)
        for record in own[lots.lot(index, 0, 0)]:
            image = torch.from_numpy(np.array(records.images[record])[None]).float() / 255
            label = torch.from_numpy(records.labels[record : record + 1])
            loss = torch.nn.functional.cross_entropy(net.forward(model, image), label)
            (gradient,) = torch.autograd.grad(loss, model)
            total += gradient * min(1.0, 0.3 / float(gradient.norm()))
        model.grad = total / 8
        optimizer.step()
        found.round(index)
        # Adam's step is a ratio: where a gradient is near zero, rounding decides it.
        assert np.isclose(found.theta, model.detach().numpy(), atol=1e-4).mean() > 0.99


def test_a_fresh_head_keeps_the_body_bit_for_bit(images, tmp_path, monkeypatch):
    run = train(make_config(), images, tmp_path)
    wide = Conv4(image_shape=(16, 16, 1), filters=4, ways=4, normalisation="record")
    (theta,) = load_members(run / "model.safetensors", wide)
    seen = []

    def scores(net, members, *_, **__):
        seen.extend([net, *members])
        raise InterruptedError

    with monkeypatch.context() as patch, pytest.raises(InterruptedError):
        patch.setattr("dpfedbench.evaluation.meta_test.task_scores", scores)
        meta_test(
            make_config(), data_dir=images[0], model_path=run / "model.safetensors", out_path=tmp_path / "metrics.json"
        )
    net, tested = seen
    assert net.ways == 3 and net.normalisation == "record"
    # Head of a 16 x 16 image: one position of 4 features, to each way, and a bias.
    assert tested.dtype == np.float32 and (tested[-3 * 5 :] == 0).all() and theta[-4 * 5 :].any()
    assert tested[: -3 * 5].tobytes() == theta[: -4 * 5].tobytes()


def test_one_trained_model_is_tested_at_several_shots(images, tmp_path):
    run, config = train(make_config(method="transfer"), images, tmp_path), make_config(method="transfer")
    assert (run / "ledger.jsonl").read_text() == ""
    found = {}
    for shots in (1, 5):
        test = config.tested_at(shots=shots, steps=3, tasks=4)
        meta_test(test, data_dir=images[0], model_path=run / "model.safetensors", out_path=run / f"{test.test_name}")
        found[shots] = json.loads((run / test.test_name).read_text())
    assert sorted(path.name for path in run.glob("*query")) == [
        "1shot-3steps-0.1rate-4tasks-3query", "5shot-3steps-0.1rate-4tasks-3query",
    ]  # fmt: skip
    assert [found[shots]["shots"] for shots in (1, 5)] == [1, 5] and found[5]["steps"] == 3
    assert len(found[5]["per_task"]) == 4


def test_the_account_is_that_of_the_poisson_plan_and_an_image_the_unit(images, tmp_path):
    run = train(make_config(), images, tmp_path)
    releases = read_ledger(run / "ledger.jsonl")
    assert len(releases) == 6
    assert {(each.unit, each.observer, each.noise_multiplier, each.denominator) for each in releases} == {
        ("record", "everyone", 2.0, 8.0)
    }
    account_run(run, run / "privacy.json")
    profiles = json.loads((run / "privacy.json").read_text())["profiles"]
    # z = 2, six lots of 8 of 40 records expected, delta 1e-5.
    claimed = poisson.renyi_epsilon(((2.0, 6),), 0.2, 1e-5, WHOLE_ORDERS.orders)
    assert profiles["as_claimed"]["epsilon_high"] == pytest.approx(claimed, rel=1e-9)
    assert profiles["holds"]["epsilon_high"] == pytest.approx(poisson.upper_epsilon(((2.0, 6),), 0.2, 1e-5), rel=1e-9)
    assert profiles["holds"]["epsilon_high"] < claimed
    assert {profiles[name]["status"] for name in ("as_claimed", "holds")} == {"proved"}


def test_the_audit_takes_one_holder(images, tmp_path):
    """A bound with 95 % confidence, so above what holds in at most one of twenty seeds; the seed is fixed."""
    config = make_config({"noise": {"multiplier": 0.7}})
    run = train(config, images, tmp_path)
    found = audit(config, read_ledger(run / "ledger.jsonl"))
    assert (found["unit"], found["observer"], found["clients_audited"], found["rounds"]) == ("record", "everyone", 1, 6)
    assert found["canaries"] == 30 and found["status"].startswith("not above")  # three quarters of 40


@pytest.mark.parametrize("method", ["transfer", "dp-transfer"])
@pytest.mark.parametrize(
    ("overlay", "line"),
    [
        ({"model": {"normalisation": "batch"}}, "model.normalisation is batch, but local-steps takes records one by "),
        ({"validation": {"every": 2}}, "validation.every and evaluation.every are for models that are used as they "),
        (
            {"participation": {"kind": "one-pass", "cohort": 1, "rounds": 1}},
            "participation.kind is one-pass, which does not go with ",
        ),
    ],
)
def test_bad_input_is_one_line(method, overlay, line):
    with pytest.raises(BenchError) as caught:
        make_config(overlay, method=method)
    assert str(caught.value).startswith(line) and "\n" not in str(caught.value)


def test_a_model_that_is_used_as_it_is_has_no_meta_test():
    config = make_config(
        {"model": {"name": "cnn", "normalisation": "batch"}, "task": {"ways": 10, "shots": 0}}, method="dp-transfer"
    )
    assert not config.pretrains and config.on_records
    with pytest.raises(
        BenchError, match=r"^test is a meta-test's, but this run's model is used as it is: leave it out"
    ):
        config.tested_at(shots=5)
