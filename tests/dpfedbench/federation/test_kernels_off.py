"""The generic torch path trains what the hand-written passes do (`machine.kernels:
off`): to float error.

The noise is drawn from the same streams, so it is equal bit for bit, and ledgers and
epsilon are too, where thresholds do not follow from releases. Gradients differ by
rounding, about 1e-6 of their norm. What is compared is how far the model moved: ||torch
- kernels|| over ||kernels - initial||. Plain descent keeps the relative error of the
gradients (found: up to 5e-6; allowed: 1e-4). Adam divides each coordinate by its own
size, so that where a gradient is near zero rounding decides the step (found: up to
3e-6; allowed: 1e-3).
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
from dpfedbench.federation import engine, rounds
from dpfedbench.models.members import load_members
from dpfedbench.models.net import Net
from dpfedbench.models.torch_gradients import TorchGradients, _AllAtOnce
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
ROUNDS = {"participation": {"rounds": 3}, "validation": {"every": 3}}
QUIET = {
    "noise": {"multiplier": 0.05},
    "clipping": {"kind": "constant", "threshold": 1.0},
}
"""Noise far below the gradients, so that it does not hide them; an epsilon of some
thousand is an epsilon, too.
"""

RECORD = {"model": {"normalisation": "record"}}
WITHIN = {"within_task": {"multiplier": 0.05, "threshold": 1.0}}
TRANSFER = {"participation": {"cohort": 8}, "validation": {"every": 0}}


def case(
    *overlays,
    general=RUN,
    fixture="federation",
    kernel="conv4-record",
    tolerance=1e-4,
):
    """A run, the fixture of its data, the name of its compiled passes, and how far apart
    both models may be.
    """
    return overlays, general, fixture, kernel, tolerance


BATCH = {"kernel": "conv4-batch"}
IN_SILOS = {"general": LOTS, "fixture": "silos", "kernel": "cnn"}
OWN_THRESHOLDS = {
    "clipping": {"kind": "noised-mean-norm"},
    "noise": {"multiplier": 0.05},
}
CASES = {
    "dp-agr": case(QUIET, SGD, **BATCH),
    "dp-agr adam": case(QUIET, tolerance=1e-3, **BATCH),
    "dp-agr first order": case(QUIET, SGD, RECORD, {"client_update": {"order": 1}}),
    "dp-agrlr": case({"method": "dp-agrlr"}, WITHIN, QUIET, SGD),
    "dp-maml-sample": case({"method": "dp-maml-sample"}, WITHIN, QUIET, SGD),
    "dp-reptile": case({"method": "dp-reptile"} | WITHIN, tolerance=1e-3),
    "adap-dp-fl": case(QUIET, {"client_update": {"optimizer": "sgd"}}, **IN_SILOS),
    "adap-dp-fl adam": case(OWN_THRESHOLDS, tolerance=1e-3, **IN_SILOS),
    "dp-fedavg": case(
        QUIET | {"noise": {"multiplier": 0.01}}, **IN_SILOS | {"general": DIFFERENCE}
    ),
    "transfer": case(
        {"method": "transfer"} | TRANSFER, fixture="holder", tolerance=1e-3
    ),
}


def moved_and_apart(config, data, first, second):
    """Return how far the first model moved, and how far the second is from it."""
    dataset = load_any_records(data)
    net = config.net(dataset.image_shape, len(dataset.class_names))
    initial = net.initial(stream(config.seed, "initial-weights"))
    (one,), (other,) = (
        load_members(folder / "model.safetensors", net) for folder in (first, second)
    )
    return np.linalg.norm(one - initial), np.linalg.norm(one - other)


@pytest.mark.parametrize("name", CASES)
def test_the_torch_path_agrees_with_the_kernels(name, request, tmp_path):
    overlays, general, fixture, kernel, tolerance = CASES[name]
    ensemble = {"validation": {"ensemble": 1}}
    last = {"validation": {"every": 0}} if name == "transfer" else {}
    config = make_config(ROUNDS, ensemble, *overlays, last, general=general)
    folders = request.getfixturevalue(fixture)
    ledgers, accuracies, profiles = [], [], []
    for gradients in (kernel, "torch"):
        folder = tmp_path / gradients
        kernels = gradients != "torch"
        train(config, folders, folder, kernels=kernels, device="cpu")
        assert training_in(folder)["gradients"] == gradients
        ledgers.append(ledger_in(folder))
        metrics = json.loads((folder / "metrics.json").read_text())
        accuracies.append(metrics["accuracy"])
        if config.private:
            profiles.append(accounted(config, folder)["profiles"])
    moved, apart = moved_and_apart(
        config, folders[0], tmp_path / kernel, tmp_path / "torch"
    )
    assert moved > 0 and apart <= tolerance * moved
    followed = ("threshold", "sensitivity", "noise_std")
    for one, other in zip(*ledgers, strict=True):
        values = {field: getattr(one, field) for field in followed}
        for field, value in values.items():
            np.testing.assert_allclose(value, getattr(other, field), rtol=1e-3)
        assert dataclasses.replace(other, **values) == one
    assert not config.private or profiles[0] == profiles[1]
    # A few answers of a tiny test.
    assert accuracies[0] == pytest.approx(accuracies[1], abs=6.0)


DOUBLE = [name for name, case in CASES.items() if case[3].startswith("conv4")]
DEVICES = pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
)


@DEVICES
@pytest.mark.parametrize("name", DOUBLE)
def test_whole_runs_agree_in_double_precision(
    name, device, request, tmp_path, monkeypatch
):
    """With the same noise, at each place of the private sum; on a CPU all tasks of a
    chunk at once, as on a GPU. Clients' Adam wants single precision beside double.
    """
    overlays, general, fixture, kernel, _ = CASES[name]
    steps = {}
    if name in ("dp-reptile", "transfer"):
        steps = {"client_update": {"optimizer": "sgd", "inner_rate": 0.5}}
    rounds_and_no_validation = {
        "participation": {"rounds": 3},
        "validation": {"every": 0},
    }
    config = make_config(*overlays, rounds_and_no_validation, steps, general=general)
    data, clients = request.getfixturevalue(fixture)
    initial = Net.initial
    members = {}

    def initial_in_double(self, rng):
        return initial(self, rng).astype(np.float64)

    def keep(path, net, found):
        members[path.parent.name] = found[0]

    double = functools.partial(rounds.choose, dtype=torch.float64)
    monkeypatch.setattr(rounds, "choose", double)
    monkeypatch.setattr(Net, "initial", initial_in_double)
    monkeypatch.setattr(engine, "save_members", keep)
    if device == "cpu":

        def all_at_once(self, theta, x, y, out, products, into):
            labels = torch.as_tensor(y, dtype=torch.int64)
            return _AllAtOnce(self, self._theta(theta), x.value, labels, out)

        monkeypatch.setattr(TorchGradients, "_at", all_at_once)
    torch.set_default_dtype(torch.float64)
    try:
        for gradients, where in ((kernel, "cpu"), ("torch", device)):
            folder = tmp_path / gradients
            engine.train(
                config,
                data_dir=data,
                clients_dir=clients,
                run_dir=folder,
                kernels=gradients != "torch",
                device=where,
            )
            training = training_in(folder)
            assert (training["gradients"], training["device"]) == (gradients, where)
    finally:
        torch.set_default_dtype(torch.float32)
    assert members[kernel].dtype == np.float64
    dataset = load_any_records(data)
    net = config.net(dataset.image_shape, len(dataset.class_names))
    start = net.initial(stream(config.seed, "initial-weights"))
    assert np.abs(members[kernel] - start).max() > 1e-3
    np.testing.assert_allclose(members["torch"], members[kernel], rtol=0, atol=1e-8)


WITHOUT_DPKERNELS = """
import importlib, json, pkgutil, sys, yaml
from pathlib import Path
sys.modules["dpkernels"] = None
import dpfedbench
from dpfedbench.federation import engine
from dpfedbench.papers import read_run
for module in pkgutil.walk_packages(dpfedbench.__path__, "dpfedbench."):
    if ".workflow" not in module.name:
        importlib.import_module(module.name)
text, data, clients, folder = json.loads(sys.argv[1])
engine.train(read_run(yaml.safe_load(text)), data_dir=Path(data), clients_dir=Path(clients), run_dir=Path(folder), device="cpu")
"""


def test_dpfedbench_imports_and_trains_without_dpkernels(federation, tmp_path):
    """dpkernels cannot be imported; the model is that of torch with the compiled
    sum, to the float error of a sum in another order.
    """
    config = make_config(ROUNDS, QUIET, SGD, general=RUN)
    without = tmp_path / "without"
    arguments = [config.to_yaml(), *map(str, federation), str(without)]
    subprocess.run(
        [sys.executable, "-c", WITHOUT_DPKERNELS, json.dumps(arguments)], check=True
    )
    train(config, federation, tmp_path / "with", kernels=False, device="cpu")
    moved, apart = moved_and_apart(config, federation[0], tmp_path / "with", without)
    assert moved > 0 and apart <= 1e-4 * moved
    assert training_in(without)["gradients"] == "torch"
