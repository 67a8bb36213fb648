"""Training of known cells as DARTS does it: whole batches, without privacy."""

import json

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch.nn import functional

from dpfedbench.evaluation import evaluate
from dpfedbench.parts.augmentation import Augmentation

from .conftest import lots_config, rounds_of, train

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
CELLS = {
    "method": "cells",
    "model": MODEL,
    "client_update": {
        "kind": "batch-steps",
        "weights": {"rate": 0.1, "optimizer": {"kind": "sgd", "momentum": 0.0}},
        "augmentation": {"crop": 2, "flip": True, "cutout": 8},
        "drop_path": 0.2,
    },
    "participation": {"rounds": 3},
    "validation": {"every": 0},
    "evaluation": {"every": 0},
}


def trained_tensors(silos, run_dir, update):
    train(lots_config(CELLS, {"client_update": update}), silos, run_dir)
    return load_file(run_dir / "model.safetensors")


def test_batch_steps_are_tested_without_augmentation(silos, tmp_path, monkeypatch):
    run = lots_config(CELLS)
    train(run, silos, tmp_path)
    monkeypatch.setattr(
        Augmentation, "apply", lambda *_: pytest.fail("a test was augmented")
    )
    model = tmp_path / "model.safetensors"
    means = [mean for name, mean in load_file(model).items() if name.endswith(".mean")]
    assert means
    assert all(np.abs(mean).max() > 0 for mean in means)
    metrics = tmp_path / "metrics.json"
    evaluate(run, data_dir=silos[0], model_path=model, out_path=metrics)
    assert json.loads(metrics.read_text())["records"] > 0


def test_batch_steps_without_one_of_their_parts_train_another_model(silos, tmp_path):
    without = {
        "nothing": {},
        "crop": {"augmentation": {"crop": 0}},
        "flip": {"augmentation": {"flip": False}},
        "cutout": {"augmentation": {"cutout": 0}},
        "drop path": {"drop_path": 0.0},
        "auxiliary": {"auxiliary": 0.0},
    }
    stems = set()
    for name, update in without.items():
        tensors = trained_tensors(silos, tmp_path / name, update)
        (stem,) = (tensors[key] for key in tensors if key.endswith("stem.weight"))
        stems.add(stem.tobytes())
    assert len(stems) == len(without)


def test_batch_steps_follow_the_mean_gradient_of_the_parties(silos, tmp_path):
    """Reference: autograd with torch's statistics of each party's batch.

    Augmentation, drop path and the second classifier are off.
    """
    plain = {"crop": 0, "flip": False, "cutout": 0}
    update = {"augmentation": plain, "drop_path": 0.0}
    run = lots_config(CELLS, {"model": {"auxiliary": False}, "client_update": update})
    rounds = rounds_of(run, silos, tmp_path)
    start = rounds.theta.clone()
    rounds.round(0)
    held = rounds.clients._held
    gradients = []
    for client in range(4):
        lot = rounds.clients._lots.lot(0, 0, client)
        module = rounds.net.build()
        torch.nn.utils.vector_to_parameters(start.clone(), module.parameters())
        for layer in module.modules():
            if hasattr(layer, "uses_batch"):
                layer.uses_batch = True
        images = torch.from_numpy(held.images[client][lot]).float().movedim(-1, 1)
        labels = torch.from_numpy(held.labels[client][lot])
        functional.cross_entropy(module(images / 255), labels).backward()
        parts = [
            torch.zeros_like(weights) if weights.grad is None else weights.grad
            for weights in module.parameters()
        ]
        gradients.append(torch.cat([part.flatten() for part in parts]))
    expected = start - 0.1 * torch.stack(gradients).mean(dim=0)
    names = [name.rpartition(".")[2] for name in rounds.net.shapes]
    sizes = [int(np.prod(shape)) for shape in rounds.net.shapes.values()]
    learnt = np.repeat([name not in ("mean", "variance") for name in names], sizes)
    assert torch.allclose(rounds.theta[learnt], expected[learnt], atol=1e-6)
