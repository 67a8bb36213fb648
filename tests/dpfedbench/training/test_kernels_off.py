"""The torch path trains what the compiled passes do, to float error.

Noise comes from the same streams, so it is equal bit for bit. Ledgers and epsilon are
equal too, where thresholds do not follow from releases. Tests compare how far the model
moved: ||torch - kernels|| over ||kernels - initial||. In double precision 1e-7 is
allowed. In single precision plain descent keeps the relative error of the gradients
(found: up to 5e-6; allowed: 1e-4). Adam divides each coordinate by its own size, so that
rounding decides the step where a gradient is near zero (allowed: 1e-3).
"""

import dataclasses
import functools
import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from dpfedbench.data.records import load_any_records
from dpfedbench.models.members import load_members
from dpfedbench.models.net import Net
from dpfedbench.training import engine, rounds
from dpsum.randomness import stream

from .conftest import (
    DIFFERENCE,
    LOTS,
    RUN,
    accounted,
    ledger_in,
    make_config,
    train_model,
    training_in,
)
from .test_linear_head import HEAD

SGD = {"server": {"optimizer": {"kind": "sgd"}, "rate": 0.1}}
CLIENT_SGD = {"client_update": {"optimizer": "sgd", "inner_rate": 0.5}}
SHORT = {"participation": {"rounds": 3}, "validation": {"every": 0}}
QUIET = {
    "noise": {"multiplier": 0.05},
    "clipping": {"kind": "constant", "threshold": 1.0},
}
"""Noise far below the gradients, so that it does not hide them."""

RECORD = {"model": {"normalisation": "record"}}
WITHIN = {"within_task": {"multiplier": 0.05, "threshold": 1.0}}
TRANSFER = {"method": "transfer", "participation": {"cohort": 8}}
MOVING = {"clipping": {"kind": "noised-mean-norm"}, "noise": {"multiplier": 0.05}}


@dataclasses.dataclass
class ComparedRun:
    """A run, the fixture of its data, its compiled passes, and the allowed distance.

    Clients' Adam needs single precision beside double, so they take SGD where the run
    is in double precision.
    """

    overlays: list
    general: dict = dataclasses.field(default_factory=lambda: RUN)
    fixture: str = "federation"
    kernel: str = "conv4-record"
    double: bool = True
    tolerance: float = 1e-7


BATCH = {"kernel": "conv4-batch"}
SILOS = {"fixture": "silos", "kernel": "cnn", "double": False, "tolerance": 1e-4}
CASES = {
    "dp-agr": ComparedRun([QUIET, SGD], **BATCH),
    "dp-agr single": ComparedRun([QUIET, SGD], **BATCH, double=False, tolerance=1e-4),
    "dp-agr adam": ComparedRun([QUIET], **BATCH),
    "dp-agr first order": ComparedRun(
        [QUIET, SGD, RECORD, {"client_update": {"order": 1}}]
    ),
    "dp-agrlr": ComparedRun([{"method": "dp-agrlr"}, WITHIN, QUIET, SGD]),
    "dp-maml-sample": ComparedRun([{"method": "dp-maml-sample"}, WITHIN, QUIET, SGD]),
    "dp-reptile": ComparedRun([{"method": "dp-reptile"}, WITHIN, CLIENT_SGD]),
    "adap-dp-fl": ComparedRun(
        [QUIET, {"client_update": {"optimizer": "sgd"}}], LOTS, **SILOS
    ),
    "adap-dp-fl adam": ComparedRun([MOVING], LOTS, **SILOS | {"tolerance": 1e-3}),
    "dp-fedavg": ComparedRun(
        [QUIET | {"noise": {"multiplier": 0.01}}], DIFFERENCE, **SILOS
    ),
    "linear head": ComparedRun(
        [HEAD], LOTS, "silos", "linear-head", double=False, tolerance=1e-4
    ),
    "transfer": ComparedRun([TRANSFER, CLIENT_SGD], fixture="holder"),
}


def check_close(config, data, model, other, tolerance):
    """Check the distance of two models, relative to how far the first one moved."""
    dataset = load_any_records(data)
    net = config.net(dataset.image_shape, len(dataset.class_names))
    initial = net.initial(stream(config.seed, "initial-weights"))
    moved = np.linalg.norm(model - initial)
    assert moved > 1e-3
    assert np.linalg.norm(model - other) <= tolerance * moved


@pytest.fixture
def double(monkeypatch):
    """Train in double precision."""
    initial = Net.initial

    def initial_in_double(self, rng):
        return initial(self, rng).astype(np.float64)

    choose = functools.partial(rounds.choose, dtype=torch.float64)
    monkeypatch.setattr(rounds, "choose", choose)
    monkeypatch.setattr(Net, "initial", initial_in_double)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    ("name", "device"),
    [(name, "cpu") for name in CASES]
    + [
        pytest.param(name, "cuda", marks=pytest.mark.cuda)
        for name, case in CASES.items()
        if case.double
    ],
)
def test_torch_path_agrees_with_the_kernels(
    name, device, request, tmp_path, monkeypatch
):
    case = CASES[name]
    config = make_config(SHORT, *case.overlays, general=case.general)
    folders = request.getfixturevalue(case.fixture)
    if case.double:
        request.getfixturevalue("double")
    models = []
    monkeypatch.setattr(
        engine, "save_members", lambda path, net, members: models.extend(members)
    )
    ledgers = []
    profiles = []
    for gradients, run_device in ((case.kernel, "cpu"), ("torch", device)):
        folder = tmp_path / gradients
        options = {"kernels": gradients != "torch", "device": run_device}
        train_model(config, folders, folder, **options)
        training = training_in(folder)
        assert (training["gradients"], training["device"]) == (gradients, run_device)
        ledgers.append(ledger_in(folder))
        if config.private:
            profiles.append(accounted(config, folder)["profiles"])
    assert (models[0].dtype == np.float64) is case.double
    check_close(config, folders[0], *models, case.tolerance)
    for line, torch_line in zip(*ledgers, strict=True):
        values = {
            field: getattr(line, field)
            for field in ("threshold", "sensitivity", "noise_std")
        }
        for field, value in values.items():
            np.testing.assert_allclose(value, getattr(torch_line, field), rtol=1e-3)
        assert dataclasses.replace(torch_line, **values) == line
    assert not config.private or profiles[0] == profiles[1]


WITHOUT_DPKERNELS = """
import importlib, json, pkgutil, sys, yaml
from pathlib import Path
sys.modules["dpkernels"] = None
import dpfedbench
from dpfedbench.training import engine
from dpfedbench.papers import read_run
for module in pkgutil.walk_packages(dpfedbench.__path__, "dpfedbench."):
    if ".workflow" not in module.name:
        importlib.import_module(module.name)
text, data, clients, folder = json.loads(sys.argv[1])
engine.train(read_run(yaml.safe_load(text)), data_dir=Path(data), clients_dir=Path(clients), run_dir=Path(folder), device="cpu")
"""


def test_dpfedbench_imports_and_trains_without_dpkernels(federation, tmp_path):
    """The model is that of torch with the compiled sum, to the float error of a sum in
    another order.
    """
    config = make_config(SHORT, QUIET, SGD)
    without = tmp_path / "without"
    arguments = [config.to_yaml(), *map(str, federation), str(without)]
    subprocess.run(
        [sys.executable, "-c", WITHOUT_DPKERNELS, json.dumps(arguments)], check=True
    )
    train_model(config, federation, tmp_path / "with", kernels=False, device="cpu")
    net = config.net((16, 16, 1), 3)
    models = [
        load_members(folder / "model.safetensors", net)[0]
        for folder in (tmp_path / "with", without)
    ]
    check_close(config, federation[0], *models, 1e-4)
    assert training_in(without)["gradients"] == "torch"
