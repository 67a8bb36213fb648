"""The torch path trains what the compiled passes do, to float error."""

import functools
import subprocess
import sys

import numpy as np
import pytest
import torch

from dpfedbench.data.records import load_any_records
from dpfedbench.models.members import load_members
from dpfedbench.models.net import Net
from dpfedbench.training import federation as federation_module
from dpfedbench.training import run_files
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
TRANSFER = {"method": "transfer", "participation": {"lot": 8}}
MOVING = {"clipping": {"kind": "noised-mean-norm"}, "noise": {"multiplier": 0.05}}


def compare(
    *overlays, general=RUN, fixture="federation", kernel="conv4-record", tolerance=1e-7
):
    """Return a run, the fixture of its data, its compiled passes, and the allowed
    distance of the two models, relative to how far they moved.

    In double precision it is 1e-7. In single precision plain descent keeps the relative
    error of the gradients (found: up to 5e-6; allowed: 1e-4). Adam divides each
    coordinate by its own size, so that rounding decides the step where a gradient is
    near zero (allowed: 1e-3); clients' Adam needs single precision.
    """
    config = make_config(SHORT, *overlays, general=general)
    return config, fixture, kernel, tolerance


batch = functools.partial(compare, kernel="conv4-batch")
silos = functools.partial(
    compare, general=LOTS, fixture="silos", kernel="cnn", tolerance=1e-4
)
CASES = {
    "dp-agr": batch(QUIET, SGD),
    "dp-agr single": batch(QUIET, SGD, tolerance=1e-4),
    "dp-agr adam": batch(QUIET),
    "dp-agr first order": compare(QUIET, SGD, RECORD, {"client_update": {"order": 1}}),
    "dp-agrlr": compare({"method": "dp-agrlr"}, WITHIN, QUIET, SGD),
    "dp-maml-sample": compare({"method": "dp-maml-sample"}, WITHIN, QUIET, SGD),
    "dp-reptile": compare({"method": "dp-reptile"}, WITHIN, CLIENT_SGD),
    "adap-dp-fl": silos(QUIET, {"client_update": {"optimizer": "sgd"}}),
    "adap-dp-fl adam": silos(MOVING, tolerance=1e-3),
    "dp-fedavg": silos(QUIET, {"noise": {"multiplier": 0.01}}, general=DIFFERENCE),
    "linear head": silos(HEAD, kernel="linear-head"),
    "transfer": compare(TRANSFER, CLIENT_SGD, fixture="holder"),
}


def check_close(config, data, model, other, tolerance):
    """Check the distance of two models, relative to how far the first one moved."""
    dataset = load_any_records(data)
    net = config.trained_net(dataset.image_shape, len(dataset.class_names))
    initial = net.initial(stream(config.seed, "initial-weights"))
    moved = np.linalg.norm(model - initial)
    assert moved > 1e-3
    assert np.linalg.norm(model - other) <= tolerance * moved


@pytest.fixture
def double(monkeypatch):
    """Train in double precision."""
    initial = Net.initial
    monkeypatch.setattr(
        Net, "initial", lambda self, rng: initial(self, rng).astype(np.float64)
    )
    choose = functools.partial(federation_module.choose, dtype=torch.float64)
    monkeypatch.setattr(federation_module, "choose", choose)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


DOUBLE = [name for name, (*_, tolerance) in CASES.items() if tolerance == 1e-7]
ON_GPU = [pytest.param(name, "cuda", marks=pytest.mark.cuda) for name in DOUBLE]


@pytest.mark.parametrize(
    ("name", "device"), [*((name, "cpu") for name in CASES), *ON_GPU]
)
def test_torch_path_agrees_with_the_kernels(
    name, device, request, tmp_path, monkeypatch
):
    config, fixture, kernel, tolerance = CASES[name]
    folders = request.getfixturevalue(fixture)
    if name in DOUBLE:
        request.getfixturevalue("double")
    models = []
    monkeypatch.setattr(
        run_files, "save_members", lambda path, net, members: models.extend(members)
    )
    ledgers = []
    profiles = []
    for gradients, run_device in ((kernel, "cpu"), ("torch", device)):
        folder = tmp_path / gradients
        options = {"kernels": gradients != "torch", "device": run_device}
        train_model(config, folders, folder, **options)
        training = training_in(folder)
        assert (training["gradients"], training["device"]) == (gradients, run_device)
        ledgers.append(ledger_in(folder))
        if config.private:
            profiles.append(accounted(config, folder)["profiles"])
    assert (models[0].dtype == np.float64) is (name in DOUBLE)
    check_close(config, folders[0], *models, tolerance)
    for line, torch_line in zip(*ledgers, strict=True):
        rounded = {
            field: pytest.approx(getattr(line, field), rel=1e-3)
            for field in ("threshold", "sensitivity", "noise_std")
        }
        assert vars(torch_line) == vars(line) | rounded
    assert not config.private or profiles[0] == profiles[1]


WITHOUT_DPKERNELS = """
import importlib, pkgutil, sys, yaml
from pathlib import Path
sys.modules["dpkernels"] = None
import dpfedbench
from dpfedbench.training import engine
from dpfedbench.papers import read_run
for module in pkgutil.walk_packages(dpfedbench.__path__, "dpfedbench."):
    if ".workflow" not in module.name:
        importlib.import_module(module.name)
data, clients, folder = map(Path, sys.argv[2:])
engine.train(read_run(yaml.safe_load(sys.argv[1])), data_dir=data, clients_dir=clients, run_dir=folder, device="cpu")
"""


def test_dpfedbench_imports_and_trains_without_dpkernels(federation, tmp_path):
    """The model is that of torch with the compiled sum, to the float error of a sum in
    another order.
    """
    config = make_config(SHORT, QUIET, SGD)
    without = tmp_path / "without"
    command = [sys.executable, "-c", WITHOUT_DPKERNELS, config.to_yaml()]
    subprocess.run([*command, *federation, without], check=True)
    train_model(config, federation, tmp_path / "with", kernels=False)
    net = config.trained_net((16, 16, 1), 3)
    models = [
        load_members(folder / "model.safetensors", net)[0]
        for folder in (tmp_path / "with", without)
    ]
    check_close(config, federation[0], *models, 1e-4)
    assert training_in(without)["gradients"] == "torch"
