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
from dpfedbench.evaluation import evaluate
from dpfedbench.federation import engine, rounds
from dpfedbench.models.members import load_members
from dpfedbench.models.net import Net
from dpfedbench.models.torch_gradients import TorchGradients, _AllAtOnce
from dpsum.ledger import read_ledger
from dpsum.randomness import stream

from .conftest import DIFFERENCE, LOTS, RUN, accounted, make_config

SGD = {"server": {"optimizer": {"kind": "sgd"}, "rate": 0.1}}
ROUNDS = {"participation": {"rounds": 3}, "validation": {"every": 3}}
QUIET = {
    "noise": {"multiplier": 0.05},
    "clipping": {"kind": "constant", "threshold": 1.0},
}
"""Noise far below the gradients, so that it does not hide them; an epsilon of some
thousand is an epsilon, too.
"""

CASES = {
    # Overlays, general values, whose clients, the kernels' name, how far apart.
    "dp-agr": ([QUIET, SGD], RUN, "federation", "conv4-batch", 1e-4),
    "dp-agr adam": ([QUIET], RUN, "federation", "conv4-batch", 1e-3),
    "dp-agr first order, record normalisation": (
        [
            QUIET,
            SGD,
            {"model": {"normalisation": "record"}, "client_update": {"order": 1}},
        ],
        RUN,
        "federation",
        "conv4-record",
        1e-4,
    ),
    "dp-agrlr": (
        [
            {
                "method": "dp-agrlr",
                "within_task": {"multiplier": 0.05, "threshold": 1.0},
            },
            QUIET,
            SGD,
        ],
        RUN,
        "federation",
        "conv4-record",
        1e-4,
    ),
    "dp-maml-sample": (
        [
            {
                "method": "dp-maml-sample",
                "within_task": {"multiplier": 0.05, "threshold": 1.0},
            },
            QUIET,
            SGD,
        ],
        RUN,
        "federation",
        "conv4-record",
        1e-4,
    ),
    "dp-reptile": (
        [
            {
                "method": "dp-reptile",
                "within_task": {"multiplier": 0.05, "threshold": 1.0},
            }
        ],
        RUN,
        "federation",
        "conv4-record",
        1e-3,
    ),
    "adap-dp-fl": (
        [QUIET, {"client_update": {"optimizer": "sgd"}}],
        LOTS,
        "silos",
        "cnn",
        1e-4,
    ),
    "adap-dp-fl adam, its own thresholds": (
        [{"clipping": {"kind": "noised-mean-norm"}, "noise": {"multiplier": 0.05}}],
        LOTS,
        "silos",
        "cnn",
        1e-3,
    ),
    "dp-fedavg": (
        [{"method": "dp-fedavg"}, QUIET, {"noise": {"multiplier": 0.01}}],
        DIFFERENCE,
        "silos",
        "cnn",
        1e-4,
    ),
    "transfer": (
        [
            {
                "method": "transfer",
                "participation": {"cohort": 8},
                "validation": {"every": 0},
            }
        ],
        RUN,
        "holder",
        "conv4-record",
        1e-3,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_torch_path_agrees_with_the_kernels(name, request, tmp_path):
    overlays, general, whose, kernel, tolerance = CASES[name]
    validation = {"validation": {"every": 0}} if "transfer" in name else {}
    config = make_config(
        ROUNDS, {"validation": {"ensemble": 1}}, *overlays, validation, general=general
    )
    data, clients = request.getfixturevalue(whose)
    found, said = {}, {}
    for kernels in (True, False):
        folder = tmp_path / ("kernels" if kernels else "torch")
        engine.train(
            config,
            data_dir=data,
            clients_dir=clients,
            run_dir=folder,
            kernels=kernels,
            device="cpu",
        )
        evaluate(
            config,
            data_dir=data,
            model_path=folder / "model.safetensors",
            out_path=folder / "metrics.json",
            kernels=kernels,
        )
        found[kernels] = folder
        said[kernels] = json.loads((folder / "training.json").read_text())
    assert said[True]["gradients"] == kernel and said[False]["gradients"] == "torch"

    dataset = load_any_records(data)
    net = config.net(dataset.image_shape, len(dataset.class_names))
    initial = net.initial(stream(config.seed, "initial-weights"))
    (ours,), (theirs,) = (
        load_members(found[kernels] / "model.safetensors", net)
        for kernels in (True, False)
    )
    moved, apart = np.linalg.norm(ours - initial), np.linalg.norm(ours - theirs)
    assert moved > 0 and apart <= tolerance * moved

    ledgers = [
        read_ledger(found[kernels] / "ledger.jsonl") for kernels in (True, False)
    ]
    assert len(ledgers[0]) == len(ledgers[1])
    for one, other in zip(*ledgers, strict=True):
        assert one.noise_stream == other.noise_stream
        for field in ("threshold", "sensitivity", "noise_std"):
            np.testing.assert_allclose(
                getattr(one, field), getattr(other, field), rtol=1e-3
            )
        like = {
            field: getattr(one, field)
            for field in ("threshold", "sensitivity", "noise_std")
        }
        assert dataclasses.replace(other, **like) == one
    if config.private:
        accounts = [accounted(config, found[kernels]) for kernels in (True, False)]
        assert accounts[0]["profiles"] == accounts[1]["profiles"]
    accuracies = [
        json.loads((found[kernels] / "metrics.json").read_text())["accuracy"]
        for kernels in (True, False)
    ]
    assert accuracies[0] == pytest.approx(
        accuracies[1], abs=6.0
    )  # a few answers of a tiny test


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
    chunk at once, as on a GPU.
    """
    overlays, general, whose, kernel, _ = CASES[name]
    validation = {"validation": {"every": 0}}
    # Clients' Adam wants single precision beside double.
    own = (
        {"client_update": {"optimizer": "sgd", "inner_rate": 0.5}}
        if name in ("dp-reptile", "transfer")
        else {}
    )
    config = make_config(
        {"participation": {"rounds": 3}}, *overlays, validation, own, general=general
    )
    data, clients = request.getfixturevalue(whose)
    initial, members = Net.initial, dict[str, np.ndarray]()
    monkeypatch.setattr(
        rounds, "choose", functools.partial(rounds.choose, dtype=torch.float64)
    )
    monkeypatch.setattr(
        Net, "initial", lambda self, rng: initial(self, rng).astype(np.float64)
    )
    monkeypatch.setattr(
        engine,
        "save_members",
        lambda path, net, found: members.update({path.parent.name: found[0]}),
    )
    if device == "cpu":
        labels = functools.partial(torch.as_tensor, dtype=torch.int64)
        monkeypatch.setattr(
            TorchGradients,
            "_at",
            lambda self, theta, x, y, out, products, into: _AllAtOnce(
                self, self._theta(theta), x.value, labels(y), out
            ),
        )
    torch.set_default_dtype(torch.float64)
    try:
        for kernels, where in ((True, "cpu"), (False, device)):
            folder = tmp_path / ("kernels" if kernels else "torch")
            engine.train(
                config,
                data_dir=data,
                clients_dir=clients,
                run_dir=folder,
                kernels=kernels,
                device=where,
            )
            training = json.loads((folder / "training.json").read_text())
            assert (training["gradients"], training["device"]) == (
                kernel if kernels else "torch",
                where,
            )
    finally:
        torch.set_default_dtype(torch.float32)
    assert members["kernels"].dtype == np.float64
    net = config.net(
        load_any_records(data).image_shape, len(load_any_records(data).class_names)
    )
    assert (
        np.abs(
            members["kernels"] - net.initial(stream(config.seed, "initial-weights"))
        ).max()
        > 1e-3
    )
    np.testing.assert_allclose(members["torch"], members["kernels"], rtol=0, atol=1e-8)


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
    data, clients = federation
    arguments = [config.to_yaml(), str(data), str(clients), str(tmp_path / "without")]
    subprocess.run(
        [sys.executable, "-c", WITHOUT_DPKERNELS, json.dumps(arguments)], check=True
    )
    engine.train(
        config,
        data_dir=data,
        clients_dir=clients,
        run_dir=tmp_path / "with",
        kernels=False,
        device="cpu",
    )
    dataset = load_any_records(data)
    net = config.net(dataset.image_shape, len(dataset.class_names))
    (without,), (compiled,) = (
        load_members(tmp_path / name / "model.safetensors", net)
        for name in ("without", "with")
    )
    initial = net.initial(stream(config.seed, "initial-weights"))
    moved = np.linalg.norm(compiled - initial)
    assert moved > 0 and np.linalg.norm(without - compiled) <= 1e-4 * moved
    training = json.loads((tmp_path / "without" / "training.json").read_text())
    assert training["gradients"] == "torch"
