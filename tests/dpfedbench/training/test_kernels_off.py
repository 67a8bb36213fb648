"""The torch path trains what the compiled passes do, to float error.

Noise comes from the same streams, so it is equal bit for bit. Ledgers and epsilon are
equal too, where thresholds do not follow from releases. Gradients differ by rounding,
about 1e-6 of their norm. Tests compare how far the model moved: ||torch - kernels|| over
||kernels - initial||. Plain descent keeps the relative error of the gradients (found:
up to 5e-6; allowed: 1e-4). Adam divides each coordinate by its own size, so that
rounding decides the step where a gradient is near zero (found: up to 3e-6; allowed:
1e-3).
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
from dpfedbench.models.gradients import Gradients
from dpfedbench.models.members import load_members
from dpfedbench.models.net import Net
from dpfedbench.models.points import AllAtOnce
from dpfedbench.training import engine, rounds
from dpsum.randomness import stream

from .conftest import (
    DIFFERENCE,
    LOTS,
    RUN,
    accounted,
    ledger_in,
    make_config,
    train,
    training_in,
)

SGD = {"server": {"optimizer": {"kind": "sgd"}, "rate": 0.1}}
SHORT = {"participation": {"rounds": 3}, "validation": {"every": 3, "ensemble": 1}}
QUIET = {
    "noise": {"multiplier": 0.05},
    "clipping": {"kind": "constant", "threshold": 1.0},
}
"""Noise far below the gradients, so that it does not hide them."""

RECORD = {"model": {"normalisation": "record"}}
WITHIN = {"within_task": {"multiplier": 0.05, "threshold": 1.0}}
TRANSFER = {
    "method": "transfer",
    "participation": {"cohort": 8},
    "validation": {"every": 0},
}
MOVING = {"clipping": {"kind": "noised-mean-norm"}, "noise": {"multiplier": 0.05}}


@dataclasses.dataclass
class ComparedRun:
    """A run, the fixture of its data, its compiled passes, and the allowed distance."""

    overlays: list
    general: dict = dataclasses.field(default_factory=lambda: RUN)
    fixture: str = "federation"
    kernel: str = "conv4-record"
    tolerance: float = 1e-4


SILOS = {"fixture": "silos", "kernel": "cnn"}
CASES = {
    "dp-agr": ComparedRun([QUIET, SGD], kernel="conv4-batch"),
    "dp-agr adam": ComparedRun([QUIET], kernel="conv4-batch", tolerance=1e-3),
    "dp-agr first order": ComparedRun(
        [QUIET, SGD, RECORD, {"client_update": {"order": 1}}]
    ),
    "dp-agrlr": ComparedRun([{"method": "dp-agrlr"}, WITHIN, QUIET, SGD]),
    "dp-maml-sample": ComparedRun([{"method": "dp-maml-sample"}, WITHIN, QUIET, SGD]),
    "dp-reptile": ComparedRun([{"method": "dp-reptile"} | WITHIN], tolerance=1e-3),
    "adap-dp-fl": ComparedRun(
        [QUIET, {"client_update": {"optimizer": "sgd"}}], LOTS, **SILOS
    ),
    "adap-dp-fl adam": ComparedRun([MOVING], LOTS, **SILOS, tolerance=1e-3),
    "dp-fedavg": ComparedRun(
        [QUIET | {"noise": {"multiplier": 0.01}}], DIFFERENCE, **SILOS
    ),
    "transfer": ComparedRun([TRANSFER], fixture="holder", tolerance=1e-3),
}


def initial_weights(config, data):
    dataset = load_any_records(data)
    net = config.net(dataset.image_shape, len(dataset.class_names))
    return net, net.initial(stream(config.seed, "initial-weights"))


def movement_and_distance(config, data, folder, other_folder):
    """Return how far the first run's model moved, and how far the other's is from it."""
    net, initial = initial_weights(config, data)
    (model,) = load_members(folder / "model.safetensors", net)
    (other_model,) = load_members(other_folder / "model.safetensors", net)
    return np.linalg.norm(model - initial), np.linalg.norm(model - other_model)


@pytest.mark.parametrize("name", CASES)
def test_torch_path_agrees_with_the_kernels(name, request, tmp_path):
    case = CASES[name]
    config = make_config(SHORT, *case.overlays, general=case.general)
    folders = request.getfixturevalue(case.fixture)
    ledgers = []
    accuracies = []
    profiles = []
    for gradients in (case.kernel, "torch"):
        folder = tmp_path / gradients
        train(config, folders, folder, kernels=gradients != "torch", device="cpu")
        assert training_in(folder)["gradients"] == gradients
        ledgers.append(ledger_in(folder))
        metrics = json.loads((folder / "metrics.json").read_text())
        accuracies.append(metrics["accuracy"])
        if config.private:
            profiles.append(accounted(config, folder)["profiles"])
    moved, distance = movement_and_distance(
        config, folders[0], tmp_path / case.kernel, tmp_path / "torch"
    )
    assert moved > 0
    assert distance <= case.tolerance * moved
    for line, torch_line in zip(*ledgers, strict=True):
        values = {
            field: getattr(line, field)
            for field in ("threshold", "sensitivity", "noise_std")
        }
        for field, value in values.items():
            np.testing.assert_allclose(value, getattr(torch_line, field), rtol=1e-3)
        assert dataclasses.replace(torch_line, **values) == line
    assert not config.private or profiles[0] == profiles[1]
    # A few answers of a tiny test.
    assert accuracies[0] == pytest.approx(accuracies[1], abs=6.0)


@pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
)
@pytest.mark.parametrize(
    "name", [name for name, case in CASES.items() if case.kernel.startswith("conv4")]
)
def test_torch_path_agrees_with_the_kernels_in_double_precision(
    name, device, request, tmp_path, monkeypatch
):
    """With the same noise. On a CPU all tasks of a chunk at once, as on a GPU. Clients'
    Adam needs single precision beside double, so they take SGD here.
    """
    case = CASES[name]
    steps = {"participation": {"rounds": 3}, "validation": {"every": 0}}
    if name in ("dp-reptile", "transfer"):
        steps["client_update"] = {"optimizer": "sgd", "inner_rate": 0.5}
    config = make_config(*case.overlays, steps, general=case.general)
    data, clients = request.getfixturevalue(case.fixture)
    initial = Net.initial
    members = {}

    def initial_in_double(self, rng):
        return initial(self, rng).astype(np.float64)

    def keep(path, net, models):
        members[path.parent.name] = models[0]

    double = functools.partial(rounds.choose, dtype=torch.float64)
    monkeypatch.setattr(rounds, "choose", double)
    monkeypatch.setattr(Net, "initial", initial_in_double)
    monkeypatch.setattr(engine, "save_members", keep)
    if device == "cpu":

        def all_at_once(self, theta, x, y, out, products, into):
            labels = torch.as_tensor(y, dtype=torch.int64)
            return AllAtOnce(self, self._theta(theta), x.value, labels, out)

        monkeypatch.setattr(Gradients, "_task_gradients", all_at_once)
    torch.set_default_dtype(torch.float64)
    try:
        for gradients, run_device in ((case.kernel, "cpu"), ("torch", device)):
            folder = tmp_path / gradients
            engine.train(
                config,
                data_dir=data,
                clients_dir=clients,
                run_dir=folder,
                kernels=gradients != "torch",
                device=run_device,
            )
            training = training_in(folder)
            assert training["gradients"] == gradients
            assert training["device"] == run_device
    finally:
        torch.set_default_dtype(torch.float32)
    assert members[case.kernel].dtype == np.float64
    _, start = initial_weights(config, data)
    assert np.abs(members[case.kernel] - start).max() > 1e-3
    np.testing.assert_allclose(
        members["torch"], members[case.kernel], rtol=0, atol=1e-8
    )


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
    train(config, federation, tmp_path / "with", kernels=False, device="cpu")
    moved, distance = movement_and_distance(
        config, federation[0], tmp_path / "with", without
    )
    assert moved > 0
    assert distance <= 1e-4 * moved
    assert training_in(without)["gradients"] == "torch"
