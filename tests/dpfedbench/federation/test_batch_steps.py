"""Training of known cells as DARTS has it: batches as a whole, without privacy."""

import json

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch.nn import functional

from dpfedbench.errors import BenchError
from dpfedbench.parts.augmentation import Augmentation

from . import conftest
from .conftest import LOTS, rounds_of, train

MODEL = {
    "kind": "darts-cells",
    "filters": 2,
    "cells": 3,
    "nodes": 1,
    "pooling": 4,
    "reductions": [1],
    "batch_normalisation": True,
    "auxiliary": True,
    "genotype": {"kind": "same"},
}
STEPS = {
    "kind": "batch-steps",
    "weights": {"rate": 0.1, "optimizer": {"kind": "sgd", "momentum": 0.0}},
    "augmentation": {"crop": 2, "flip": True, "cutout": 8},
    "drop_path": 0.2,
}


def make_config(*overlays):
    return conftest.make_config(
        {
            "method": "cells",
            "model": MODEL,
            "client_update": STEPS,
            "participation": {"rounds": 3},
            "validation": {"every": 0},
            "evaluation": {"every": 0},
        },
        *overlays,
        general=LOTS,
    )


def test_a_training_has_the_same_bits_again_and_claims_nothing(silos, tmp_path):
    for name in ("one", "two"):
        train(make_config(), silos, tmp_path / name)
    one, two = (
        load_file(tmp_path / name / "model.safetensors") for name in ("one", "two")
    )
    assert all((one[name] == two[name]).all() for name in one)
    run = make_config()
    assert not run.private and not run.client_sums
    moved = [name for name in one if name.endswith(".mean")]
    assert moved and all(np.abs(one[name]).max() > 0 for name in moved)


def test_every_part_of_the_training_changes_it(silos, tmp_path):
    """Each piece alone, taken out of the whole, gives another model."""
    without = {
        "crop": {"client_update": {"augmentation": {"crop": 0}}},
        "flip": {"client_update": {"augmentation": {"flip": False}}},
        "cutout": {"client_update": {"augmentation": {"cutout": 0}}},
        "drop path": {"client_update": {"drop_path": 0.0}},
        "auxiliary": {"client_update": {"auxiliary": 0.0}},
    }
    heads = set()
    for name, overlay in {"": {}, **without}.items():
        train(make_config(overlay), silos, tmp_path / f"{name or 'all'}")
        tensors = load_file(tmp_path / f"{name or 'all'}" / "model.safetensors")
        name = next(name for name in tensors if name.endswith("stem.weight"))
        heads.add(tensors[name].tobytes())
    assert len(heads) == 1 + len(without)


def test_a_round_is_a_step_along_the_parties_mean_gradient(silos, tmp_path):
    """By autograd, with torch's own statistics of each party's batch: without
    augmentation, drop path and the second classifier.
    """
    plain = {"crop": 0, "flip": False, "cutout": 0}
    update = {"augmentation": plain, "drop_path": 0.0}
    run = make_config({"model": {"auxiliary": False}, "client_update": update})
    rounds = rounds_of(run, silos, tmp_path)
    start = rounds.theta.clone()
    rounds.round(0)
    lots, held = rounds.clients._lots, rounds.clients._held
    gradients = []
    for client in range(4):
        lot = lots.lot(0, 0, client)
        module = rounds.net.build()
        torch.nn.utils.vector_to_parameters(start.clone(), module.parameters())
        for layer in module.modules():
            if hasattr(layer, "uses_batch"):
                layer.uses_batch = True
        x = torch.from_numpy(held.images[client][lot]).float().movedim(-1, 1) / 255
        labels = torch.from_numpy(held.labels[client][lot])
        functional.cross_entropy(module(x), labels).backward()
        parts = [
            torch.zeros(weights.numel()) if weights.grad is None else weights.grad
            for weights in module.parameters()
        ]
        gradients.append(torch.cat([part.flatten() for part in parts]))
    expected = start - 0.1 * torch.stack(gradients).mean(dim=0)
    names = [name.rpartition(".")[2] for name in rounds.net.shapes]
    sizes = [int(np.prod(shape)) for shape in rounds.net.shapes.values()]
    learnt = np.repeat([name not in ("mean", "variance") for name in names], sizes)
    assert torch.allclose(rounds.theta[learnt], expected[learnt], atol=1e-6)


def test_tests_read_images_as_they_are(silos, tmp_path, monkeypatch):
    """A trained model is tested without any augmentation."""
    from tests.dpfedbench.federation.conftest import evaluate

    run = make_config()
    train(run, silos, tmp_path)
    monkeypatch.setattr(
        Augmentation, "apply", lambda *_: pytest.fail("a test was augmented")
    )
    out = tmp_path / "metrics.json"
    evaluate(
        run,
        data_dir=silos[0],
        model_path=tmp_path / "model.safetensors",
        out_path=out,
    )
    assert json.loads(out.read_text())["records"] == 80


@pytest.mark.parametrize("method", ["dp-cells", "cells", "dp-fl"])
def test_statistics_over_a_batch_are_refused_with_sums_over_records(method):
    update = {} if method == "dp-fl" else {"kind": "summed-steps"}
    model = MODEL | {"auxiliary": False}
    overlay = {"method": method, "model": model, "client_update": update}
    with pytest.raises(BenchError, match="ties a record's gradient to the others of"):
        conftest.make_config(overlay, general=LOTS)
