"""DP-FNAS's released code (`reading: as-released`): its round, noise and ledger."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch.nn import functional

from dpfedbench.audit.report import audit
from dpfedbench.papers.dp_fnas import released_search
from dpfedbench.papers.dp_fnas.search_steps import ARCHITECTURE, WEIGHTS
from tests.dpsum.accounting.helpers import sampled_gaussian_epsilon

from .conftest import accounted, ledger_in, lots_config, rounds_of, train
from .test_search import SEARCH

C = 0.5
RELEASED = {
    "reading": "as-released",
    "clients": {"count": 1},
    "client_update": {"kind": "released-search-steps"},
    "clipping": {"kind": "by-kernel", "kernel_norm": C, "threshold": None},
}
KERNELS = 42
"""By hand: 6 of the stem, the scale of its normalisation, 11 of the last layer (10 rows
and its bias), and of depthwise convolutions 2 x (2 + 4) channels x 2 edges.
"""


RATES = (0.5, 3.0)
"""Of the weights and of the architecture."""


def make_config(*overlays):
    return lots_config(SEARCH, RELEASED, *overlays)


def reference_round(net, theta, training, validation, velocity, length):
    """Return the weights after a noiseless round, and the norm before the cut."""
    weights = net.blocks["weights"]
    architecture = net.blocks["architecture"]
    theta = torch.from_numpy(theta).double()

    def gradient(model, lot):
        model = model.clone().requires_grad_()
        images, labels = lot
        loss = functional.cross_entropy(
            net.logits(model, images), torch.from_numpy(labels)
        )
        return torch.autograd.grad(loss, model)[0]

    def moved(model, block, change):
        model = model.clone()
        model[block] += change
        return model

    decay = 0.9 * velocity + 0.1 * theta[weights]
    step = gradient(theta, training)[weights] + decay
    virtual = moved(theta, weights, -RATES[0] * step)
    validation_gradient = gradient(virtual, validation)
    direction = validation_gradient[weights]
    epsilon = length / direction.norm()
    plus = gradient(moved(theta, weights, epsilon * direction), training)
    minus = gradient(moved(theta, weights, -epsilon * direction), training)
    second = (plus - minus)[architecture]
    along = validation_gradient[architecture] - RATES[0] * epsilon / 2 * second
    model = moved(theta, architecture, -RATES[1] * along)
    step = gradient(model, training)[weights]
    norm = float(step.norm())
    step = step * min(1.0, 5 / norm)
    for kernel in hand_kernels(net):
        step[kernel] *= C / max(C, float(step[kernel].norm()))
    return moved(model, weights, -RATES[0] * (step + decay)), norm


def hand_kernels(net):
    """Return the coordinates of the clipped kernels, by the tensors' shapes."""
    start = 0
    kernels = []
    for name in net.named_blocks["weights"]:
        shape = net.shapes[name]
        end = start + math.prod(shape)
        size = None
        if name in ("stem_norm.scale", "classifier.bias"):
            size = end - start
        elif name == "classifier.weight":
            size = shape[1]
        elif name == "stem.weight" or "depthwise" in name:
            size = 9
        if size:
            kernels += np.split(np.arange(start, end), (end - start) // size)
        start = end
    assert len(kernels) == KERNELS
    return kernels


@pytest.mark.parametrize(
    ("head", "length", "cut"), [(1.0, 0.01, False), (100.0, 1.0, True)]
)
def test_released_search_without_noise_is_the_released_code(
    silos, tmp_path, monkeypatch, head, length, cut
):
    """A large last layer has a gradient above 5, which the code cuts."""
    monkeypatch.setattr(released_search, "DIFFERENCE", length)
    momentum = {"kind": "sgd", "momentum": 0.9}
    overlay = {
        "client_update": {
            "weights": {"rate": RATES[0], "optimizer": momentum, "decay": 0.1},
            "architecture": {"rate": RATES[1], "optimizer": "sgd"},
        },
        "architecture_noise": {"multiplier": 1e-3},
        "architecture_clipping": {"threshold": 1e-6},
    }
    rounds = rounds_of(make_config(overlay), silos, tmp_path)
    clients = rounds.clients
    search = clients.move.__self__
    net = rounds.net
    search._mechanism.draw_noise = lambda purpose, total: np.zeros(total.dimension)
    theta = net.initial(np.random.default_rng(0)).astype(np.float32)
    block = net.blocks["weights"]
    classes, features = net.shapes["classifier.weight"]
    last_layer = slice(block.stop - classes * (features + 1), block.stop - classes)
    theta[last_layer] *= head
    velocity = torch.zeros(block.stop, dtype=torch.float64)
    images = search._held.images[0]
    labels = search._held.labels[0].astype(np.int64)
    norms = []
    for index in range(2):
        lots = [search._lot(name, index) for name in (WEIGHTS, ARCHITECTURE)]
        records = [(images[lot], labels[lot]) for lot in lots]
        model, norm = reference_round(net, theta, *records, velocity, length)
        norms.append(norm)
        ((row, _),) = list(clients.contributions(theta, np.arange(1), index))
        moved = row[0].double() - torch.from_numpy(theta)
        expected = model - torch.from_numpy(theta)
        for coordinates in net.blocks.values():
            gap = torch.linalg.norm(moved[coordinates] - expected[coordinates])
            assert gap < 2e-3 * torch.linalg.norm(expected[coordinates])
        velocity = -expected[block] / 0.5
        theta = row[0].numpy().copy()
    assert (max(norms) > 5) is cut


def test_released_search_noise_is_z_c_squared_on_kernels_alone(silos, tmp_path):
    """Kolmogorov-Smirnov over 40 rounds of 326 coordinates, false-alarm rate 1e-4. It
    refuses z C, which is twice as much. An empty lot releases noise too.
    """
    z = 1.5
    run = make_config({"noise": {"multiplier": z}, "participation": {"rounds": 40}})
    rounds = rounds_of(run, silos, tmp_path)
    search = rounds.clients.move.__self__
    theta = rounds.net.initial(np.random.default_rng(0)).astype(np.float32)
    training = search._lot(WEIGHTS, 0)

    def release(index):
        model = torch.from_numpy(theta)
        return search._release_weights(model, training, index).numpy().copy()

    released = np.stack([release(index) for index in range(40)])
    noised = np.concatenate(hand_kernels(rounds.net))
    assert len(noised) == 326
    exact = np.delete(released, noised, axis=1)
    assert (exact == exact[0]).all()
    assert np.count_nonzero(exact[0])
    differences = (released[1:, noised] - released[0, noised]) / math.sqrt(2)
    assert np.std(differences) == pytest.approx(z * C**2, rel=0.1)
    assert stats.kstest(differences[0], "norm", (0, z * C**2)).pvalue > 1e-4
    assert stats.kstest(differences[0], "norm", (0, z * C)).pvalue < 1e-4
    # The noise of round 0 was released above: another process starts anew.
    clients = rounds_of(run, silos, tmp_path / "again").clients
    clients.move.__self__._lot = lambda name, index: np.zeros(0, np.int64)
    ((row, _),) = list(clients.contributions(theta, np.arange(1), 0))
    moved = row[0].numpy() - theta
    assert np.isfinite(moved).all()
    assert np.count_nonzero(moved) == 326


def test_released_search_writes_its_noise_and_proves_nothing(silos, tmp_path):
    """C = 0.5 and 42 kernels: the clipped gradient moves by at most 2 x 0.5 x sqrt(42),
    and the noise is 1.0 x 0.25. The paper claims z = 1 by Lemma B.3.
    """
    run = make_config()
    train(run, silos, tmp_path)
    lines = ledger_in(tmp_path)
    assert len(lines) == 4
    expected = {
        "name": WEIGHTS,
        "unit": "record",
        "part": "training half",
        "dimension": 326,
        "threshold": [pytest.approx(math.sqrt(KERNELS))],
        "noise_std": [pytest.approx(0.25)],
        "noise_multiplier": pytest.approx(0.25 / math.sqrt(KERNELS)),
        "claimed_multiplier": pytest.approx(1.0),
        "data_dependent_threshold": True,
    }
    for line in lines:
        assert {name: getattr(line, name) for name in expected} == expected
    profiles = accounted(run, tmp_path, silos[1])["profiles"]
    claim = profiles["claimed"]
    proof = profiles["proven"]
    assert claim["status"] == proof["status"] == "void"
    assert proof["epsilon_high"] == "inf"
    mu = 8 / 50 * math.sqrt(4 * math.expm1(1))  # that of one Gaussian of z = 1 / mu
    expected = sampled_gaussian_epsilon(1 / mu, 1, 1e-4)
    assert claim["epsilon_high"] == pytest.approx(expected, rel=1e-6)
    assert audit(run, lines)["status"] == "nothing to audit"
