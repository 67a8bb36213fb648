"""Training of known cells as DARTS does it: whole batches, without privacy."""

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch.nn import functional

from dpfedbench.evaluation import evaluate
from dpfedbench.parts.augmentation import Augmentation

from .conftest import client_examples, lots_config, rounds_of, take_rounds, train_model

CELLS = {
    "method": "cells",
    "model": {
        "kind": "darts-cells",
        "filters": 2,
        "cells": 3,
        "nodes": 1,
        "pooling": 4,
        "reductions": [1],
        "batch_normalisation": True,
        "auxiliary": True,
        "genotype": {"kind": "same"},
    },
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


def test_batch_steps_are_tested_without_augmentation(silos, tmp_path, monkeypatch):
    run = lots_config(CELLS)
    train_model(run, silos, tmp_path)
    monkeypatch.setattr(
        Augmentation, "apply", lambda *_: pytest.fail("a test was augmented")
    )
    model = tmp_path / "model.safetensors"
    means = [mean for name, mean in load_file(model).items() if name.endswith(".mean")]
    assert means
    assert all(np.abs(mean).max() > 0 for mean in means)
    evaluate(run, data_dir=silos[0], model_path=model, out_path=tmp_path / "out.json")


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
        run = lots_config(CELLS, {"client_update": update})
        rounds = take_rounds(rounds_of(run, silos, tmp_path / name), 3)
        stem = rounds.net.tensors(rounds.theta)["stem.weight"]
        stems.add(stem.numpy().tobytes())
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
    gradients = []
    lots = run.participation.lots(clients=4, seed=run.stream_seed, steps=1, records=100)
    for client, (images, labels) in enumerate(client_examples(silos)):
        lot = lots.lot(0, 0, client)
        module = rounds.net.build()
        torch.nn.utils.vector_to_parameters(start.clone(), module.parameters())
        for layer in module.modules():
            if hasattr(layer, "uses_batch"):
                layer.uses_batch = True
        loss = functional.cross_entropy(module(images[lot].movedim(-1, 1)), labels[lot])
        parts = torch.autograd.grad(
            loss, [*module.parameters()], allow_unused=True, materialize_grads=True
        )
        gradients.append(torch.nn.utils.parameters_to_vector(parts))
    expected = start - 0.1 * torch.stack(gradients).mean(dim=0)
    names = [name for name in rounds.net.shapes if name.endswith((".mean", "variance"))]
    learnt = ~rounds.net.mask(*names)
    assert torch.allclose(rounds.theta[learnt], expected[learnt], atol=1e-6)
