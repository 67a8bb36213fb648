"""DP-FNAS's released code (`reading: as-released`): what leaves the party, and what the
ledger says of it.
"""

import math

import mpmath
import numpy as np
import pytest
import torch
from scipy import stats
from torch.nn import functional

from dpfedbench.audit.report import audit
from dpfedbench.errors import BenchError
from dpfedbench.papers.dp_fnas import released_search
from dpfedbench.papers.dp_fnas.released_search import (
    Kernels,
    clip_kernels,
    noised_kernels,
)
from dpfedbench.papers.dp_fnas.search_steps import ARCHITECTURE, WEIGHTS

from . import conftest
from .conftest import LOTS, accounted, ledger_in, rounds_of, train
from .test_search import SEARCH

C = 0.5
RELEASED = {
    "reading": "as-released",
    "clients": {"count": 1},
    "client_update": {"kind": "released-search-steps"},
    "clipping": {"kind": "by-kernel", "kernel_norm": C, "threshold": None},
}
KERNELS = 42
"""Of the network of `SEARCH`, counted by hand: 6 of the stem, the scale of its
normalisation, 11 of the last layer (10 rows and its bias), and 24 of depthwise 3 x 3
convolutions: cell 0 has 2 channels and 2 edges, cell 1 has 4 channels and 2 edges, each
edge two such convolutions.
"""


def make_config(*overlays):
    return conftest.make_config(SEARCH, RELEASED, *overlays, general=LOTS)


def test_noised_kernels_leave_out_pointwise_convolutions_and_the_stems_shift():
    shapes = {
        "stem.weight": (2, 3, 3, 3),
        "stem_norm.scale": (2,),
        "stem_norm.shift": (2,),
        "cells.0.preparations.0.pointwise.weight": (4, 2, 1, 1),
        "cells.0.edges.0.operations.sep_conv_5x5.depthwise0.weight": (4, 1, 5, 5),
        "classifier.weight": (10, 4),
        "classifier.bias": (10,),
    }
    found = [
        (group.coordinates.start, group.coordinates.stop, group.size, group.count)
        for group in noised_kernels(shapes)
    ]
    assert found == [
        (0, 54, 9, 6),
        (54, 56, 2, 1),
        (66, 166, 25, 4),
        (166, 206, 4, 10),
        (206, 216, 10, 1),
    ]


def test_clip_kernels_scales_long_kernels_alone():
    gradient = torch.tensor([3.0, 4.0, 0.3, 0.4, 30.0, 0.0, 2.0])
    clipped = clip_kernels(
        gradient, [Kernels(slice(0, 4), 2), Kernels(slice(5, 7), 2)], 1.0
    )
    expected = torch.tensor([0.6, 0.8, 0.3, 0.4, 30.0, 0.0, 1.0])
    assert torch.allclose(clipped, expected, atol=1e-6)
    assert gradient[0] == 3.0


def reference_round(
    net, theta, training, validation, *, rates, kernels, velocity, length
):
    """One round of the released code without noise, written down anew: in double
    precision, with each step along its gradient by plain gradient descent (momentum
    0.9 of the weights).

    Returns the weights after it, and the norm of the gradient before it is cut to 5.
    """
    place, other = net.blocks["weights"], net.blocks["architecture"]

    def gradient(weights, lot):
        weights = weights.clone().requires_grad_()
        loss = functional.cross_entropy(
            net.logits(weights, lot[0]), torch.from_numpy(lot[1])
        )
        return torch.autograd.grad(loss, weights)[0]

    model = torch.from_numpy(theta).double()
    virtual = model.clone()
    virtual[place] = model[place] - rates[0] * (
        0.9 * velocity + gradient(model, training)[place] + 0.1 * model[place]
    )
    of_validation = gradient(virtual, validation)
    epsilon = length / torch.sqrt((of_validation[place] ** 2).sum())
    plus, minus = model.clone(), model.clone()
    plus[place] = plus[place] + epsilon * of_validation[place]
    minus[place] = minus[place] - epsilon * of_validation[place]
    second = gradient(plus, training)[other] - gradient(minus, training)[other]
    along = of_validation[other] - rates[0] * epsilon / 2 * second
    moved = model.clone()
    moved[other] = moved[other] - rates[1] * along
    step = gradient(moved, training)[place]
    norm = float(step.norm())
    step = step * (5 / norm if norm > 5 else 1)
    for begin, end, size in kernels:
        for first in range(begin, end, size):
            length = float(step[first : first + size].norm())
            if length > C:
                step[first : first + size] *= C / length
    moved[place] -= rates[0] * (0.9 * velocity + step + 0.1 * model[place])
    return moved, norm


def hand_kernels(net):
    """(begin, end, size) of what is clipped, by the shapes of the named tensors."""
    start, found = 0, []
    for name in net.named_blocks["weights"]:
        shape = net.shapes[name]
        size = math.prod(shape)
        if name in ("stem_norm.scale", "classifier.bias"):
            found.append((start, start + size, size))
        elif name == "classifier.weight":
            found.append((start, start + size, shape[1]))
        elif name == "stem.weight" or "depthwise" in name:
            found.append((start, start + size, 9))
        start += size
    return found


@pytest.mark.parametrize("head, length, cut", [(1.0, 0.01, False), (100.0, 1.0, True)])
def test_round_without_noise_is_the_released_codes(
    silos, tmp_path, monkeypatch, head, length, cut
):
    """Twice in a row, the second time with momentum. A large last layer has a gradient
    above 5; between ends that are far apart the difference of gradients counts.
    """
    monkeypatch.setattr(released_search, "DIFFERENCE", length)
    momentum = {"kind": "sgd", "momentum": 0.9}
    steps = {
        "weights": {"rate": 0.5, "optimizer": momentum, "decay": 0.1},
        "architecture": {"rate": 3.0, "optimizer": "sgd"},
    }
    overlay = {
        "client_update": steps,
        "architecture_noise": {"multiplier": 1e-3},
        "architecture_clipping": {"threshold": 1e-6},
    }
    rounds = rounds_of(make_config(overlay), silos, tmp_path)
    clients, net = rounds.clients, rounds.net
    clients._mechanism.noise_of = lambda purpose, total: np.zeros(total.dimension)
    theta = net.initial(np.random.default_rng(0)).astype(np.float32)
    place = net.blocks["weights"]
    classes, features = net.shapes["classifier.weight"]
    theta[place.stop - classes * (features + 1) : place.stop - classes] *= head
    velocity = torch.zeros(place.stop, dtype=torch.float64)
    images, labels = clients._held.images[0], clients._held.labels[0]
    norms = []
    for index in range(2):
        chosen = [clients._lot(name, index) for name in (WEIGHTS, ARCHITECTURE)]
        lots = [(images[lot], labels[lot].astype(np.int64)) for lot in chosen]
        model, norm = reference_round(
            net,
            theta,
            *lots,
            rates=(0.5, 3.0),
            kernels=hand_kernels(net),
            velocity=velocity,
            length=length,
        )
        norms.append(norm)
        ((row, _, _),) = list(clients.contributions(theta, np.arange(1), index))
        moved = row[0].double() - torch.from_numpy(theta)
        expected = model - torch.from_numpy(theta)
        for block in net.blocks.values():
            gap = torch.linalg.norm(moved[block] - expected[block])
            assert gap < 2e-3 * torch.linalg.norm(expected[block])
        velocity = -expected[place] / 0.5
        theta = row[0].numpy().copy()
    assert (max(norms) > 5) is cut


def test_noise_has_deviation_z_c_squared_and_is_on_kernels_alone(silos, tmp_path):
    """Kolmogorov-Smirnov at a false-alarm rate of 1e-4, in 40 rounds of 326
    coordinates; it refuses z C, which is twice as much.
    """
    z = 1.5
    run = make_config({"noise": {"multiplier": z}, "participation": {"rounds": 40}})
    rounds = rounds_of(run, silos, tmp_path)
    clients = rounds.clients
    theta = rounds.net.initial(np.random.default_rng(0)).astype(np.float32)
    model = torch.from_numpy(theta)
    training = clients._lot(WEIGHTS, 0)
    released = np.stack(
        [
            clients._release_weights(model, training, index).numpy().copy()
            for index in range(40)
        ]
    )
    places = [np.arange(begin, end) for begin, end, _ in hand_kernels(rounds.net)]
    noised = np.concatenate(places)
    assert len(noised) == 326
    exact = np.delete(released, noised, axis=1)
    assert (exact == exact[0]).all() and np.count_nonzero(exact[0])
    differences = (released[1:, noised] - released[0, noised]) / math.sqrt(2)
    assert np.std(differences) == pytest.approx(z * C**2, rel=0.1)
    assert stats.kstest(differences[0], "norm", (0, z * C**2)).pvalue > 1e-4
    assert stats.kstest(differences[0], "norm", (0, z * C)).pvalue < 1e-4


def gdp_epsilon(mu, delta):
    """Epsilon of mu-GDP at delta, by bisection on its formula (Dong et al. 2019,
    Corollary 2.13) with mpmath.
    """
    low, high = mpmath.mpf(0), mpmath.mpf(100)
    for _ in range(200):
        middle = (low + high) / 2
        found = mpmath.ncdf(-middle / mu + mu / 2) - mpmath.e**middle * mpmath.ncdf(
            -middle / mu - mu / 2
        )
        low, high = (middle, high) if found > delta else (low, middle)
    return float(high)


def test_ledger_has_what_was_done_and_nothing_is_proven(silos, tmp_path):
    """C = 0.5 and 42 kernels: the clipped gradient moves by at most 2 x 0.5 x sqrt(42),
    the noise is 1.0 x 0.25. The paper's claim is that of z = 1 by Lemma B.3.
    """
    run = make_config()
    train(run, silos, tmp_path)
    lines = ledger_in(tmp_path)
    assert len(lines) == 4
    for line in lines:
        assert (line.name, line.unit, line.part) == (WEIGHTS, "record", "training half")
        assert line.dimension == 326
        assert line.threshold == pytest.approx([math.sqrt(KERNELS)])
        assert line.noise_std == pytest.approx([0.25])
        assert line.noise_multiplier == pytest.approx(0.25 / math.sqrt(KERNELS))
        assert line.claimed_multiplier == pytest.approx(1.0)
        assert line.data_dependent_threshold
        assert line.reason == run.breaches[0].reason
    found = accounted(run, tmp_path, silos[1])
    claim, holds = (found["profiles"][name] for name in ("as_claimed", "holds"))
    assert found["unit"] == "record" and claim["status"] == holds["status"] == "void"
    assert holds["epsilon_high"] == "inf"
    mu = mpmath.mpf(8) / 50 * mpmath.sqrt(4 * mpmath.expm1(1))
    assert claim["epsilon_high"] == pytest.approx(gdp_epsilon(mu, 1e-4), rel=1e-6)
    report = audit(run, lines)
    assert report["status"] == "nothing to audit" and report["epsilon"] is None


def test_empty_lot_releases_noise(silos, tmp_path):
    run = make_config()
    rounds = rounds_of(run, silos, tmp_path)
    clients = rounds.clients
    clients._lot = lambda name, index: np.zeros(0, np.int64)
    theta = rounds.net.initial(np.random.default_rng(0)).astype(np.float32)
    ((row, _, _),) = list(clients.contributions(theta, np.arange(1), 0))
    moved = row[0].numpy() - theta
    assert np.isfinite(moved).all() and np.count_nonzero(moved) == 326


@pytest.mark.parametrize(
    ("overlay", "message"),
    [
        ({"reading": "as-published"}, "set it to search-steps, or reading to"),
        ({"clients": {"count": 4}}, "each search an architecture of their own"),
        ({"clipping": {"kind": "constant", "threshold": 0.1}}, "set clipping.kind to"),
        ({"budget": {"epsilon": 2.0}}, "set budget.epsilon to null"),
    ],
)
def test_what_the_released_code_does_not_do_is_refused(overlay, message):
    with pytest.raises(BenchError, match=message):
        make_config(overlay)
