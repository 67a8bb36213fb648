"""Rounds of each method against its paper's algorithm, by torch's autograd.

The noise is left out, so that a round is a function of the model and the data. Each
algorithm is written out here in double precision, over the examples on disk. Only the
network's forward pass, the cohorts and the lots are those of the run.

A reference has arguments for what is easily done wrongly: the set of the query
gradient, the number of inner steps, the order of the gradient, the denominator, and the
server's rate and sign. The round has to equal the right reference, and to differ from
each wrong one by far more than the tolerance.
"""

import numpy as np
import pytest
import torch
from torch.nn import functional

from dpfedbench.data.images import load_dataset
from dpfedbench.data.partition import Partition

from .conftest import (
    client_examples,
    lots_config,
    make_config,
    remove_noise,
    rounds_of,
    scaled,
)

TOLERANCE = 5e-3
"""Largest relative error of a round.

Single precision has up to 1.3e-3, where a step of the CNN passes another maximum.
"""
POWER = 0.03
"""Least relative error of a wrong reference."""

INNER_RATE = 0.1
SERVER_RATE = 0.5
UNBOUND = 1e6
QUIET = {"validation": {"every": 0}, "evaluation": {"every": 0}}
SGD = {"kind": "sgd", "momentum": 0.0}
SERVER = {"server": {"rate": SERVER_RATE, "optimizer": SGD}}
RECORD = {"model": {"normalisation": "record"}}
TWO_STEPS = {"client_update": {"inner_steps": 2, "inner_rate": INNER_RATE}}
POISSON = {"participation": {"kind": "poisson", "cohort": 4}}


def constant(threshold):
    return {"clipping": {"kind": "constant", "threshold": threshold}}


def within_task(threshold):
    return {"within_task": {"threshold": threshold, "multiplier": 1.0, "epsilon": None}}


@pytest.fixture
def start(federation, silos, tmp_path, monkeypatch):
    """Return a function that starts a run without noise, at weights that are not those
    of the initialisation: a last layer of zeros passes no gradient on.
    """
    remove_noise(monkeypatch)

    def begin(run, **options):
        folders = silos if run.client_data == "records" else federation
        rounds = rounds_of(run, folders, tmp_path, **options)
        noise = np.random.default_rng(0).standard_normal(rounds.net.dimension)
        rounds.theta += 0.1 * torch.from_numpy(noise).float()
        return rounds

    return begin


def movement(rounds, index):
    """Take a round. Return the weights before it and their change, float64 [d]."""
    before = rounds.theta.double()
    rounds.round(index)
    return before, rounds.theta.double() - before


def relative_error(found, expected):
    return float((found - expected).norm() / expected.norm())


# The parts that the papers' algorithms share


def loss(net, weights, images, labels):
    return functional.cross_entropy(net.logits(weights, images.double()), labels)


def gradient(net, weights, images, labels, **options):
    """Return the gradient of the mean loss."""
    if not weights.requires_grad:
        weights = weights.clone().requires_grad_()
    value = loss(net, weights, images, labels)
    return torch.autograd.grad(value, weights, **options)[0]


def record_gradients(net, weights, images, labels):
    """Return the gradient of each record's loss, [records, d]."""

    def record_loss(weights, image, label):
        return loss(net, weights, image[None], label[None])

    by_record = torch.func.vmap(torch.func.grad(record_loss), in_dims=(None, 0, 0))
    return by_record(weights, images, labels)


def clipped(vector, threshold):
    return vector / max(1.0, float(vector.norm()) / threshold)


def clipped_sum(rows, threshold):
    return sum(clipped(row, threshold) for row in rows)


def task_of(folders, client):
    """Return (support, query) of a client, each (images, labels), from the files.

    A client's one support example of each class stands before its two query examples.
    """
    images = load_dataset(folders[0]).images
    partition = Partition.load(folders[1])
    classes = partition.classes[client][:, None]
    examples = partition.examples[client]
    sets = []
    for part in (examples[:, :1], examples[:, 1:3]):
        labels = np.repeat(np.arange(3), part.shape[1])
        sets.append(scaled(images[classes, part].reshape(-1, 16, 16, 1), labels))
    return sets


# MAML (Finn et al. 2017): DP-FedMeta, Algorithm 1, eq. 3 to 5; DP-MAML, eq. 1 and 2


def maml_gradient(net, theta, task, *, steps=2, order=2, query_set=1):
    """Return the gradient of the query loss at the weights adapted to the support set,
    by the graph of all inner steps.
    """
    support, _ = task
    leaf = theta.clone().requires_grad_()
    weights = leaf
    for _ in range(steps):
        slope = gradient(net, weights, *support, create_graph=order == 2)
        weights = weights - INNER_RATE * slope
    value = loss(net, weights, *task[query_set])
    return torch.autograd.grad(value, leaf)[0]


def meta_step(
    rounds,
    federation,
    theta,
    index,
    *,
    threshold=UNBOUND,
    count=4,
    rate=SERVER_RATE,
    **maml,
):
    """Return the change of the meta-model in a round: DP-FedMeta, Algorithm 2, lines 6
    to 9 without noise; DP-MAML, Algorithm 1.

    Args:
        rounds, federation, theta, index: the run, its data, its weights, the round.
        threshold: norm to which each client's gradient is clipped.
        count: the denominator, L.
        rate: the server's learning rate.
        maml: arguments of `maml_gradient`.
    """
    total = 0.0
    for client in rounds.plan.sample_cohort(index):
        task = task_of(federation, client)
        total = total + clipped(
            maml_gradient(rounds.net, theta, task, **maml), threshold
        )
    return -rate * total / count


MAML = {
    "maml": ({"method": "maml"}, UNBOUND),
    "dp-agr": ({"method": "dp-agr"} | constant(1e4), UNBOUND),
    "dp-agr, clipped": ({"method": "dp-agr"} | constant(0.4), 0.4),
    "dp-maml": ({"method": "dp-maml"} | constant(1e4), UNBOUND),
    "dp-maml, clipped": ({"method": "dp-maml"} | constant(0.4), 0.4),
}
WRONG_MAML = {
    "query gradient from the support set": {"query_set": 0},
    "one inner step too many": {"steps": 3},
    "one inner step too few": {"steps": 1},
    "first order": {"order": 1},
    "divided by one client less": {"count": 3},
    "divided by all clients": {"count": 48},
    "server's sign": {"rate": -SERVER_RATE},
    "server's rate": {"rate": INNER_RATE},
}


@pytest.mark.parametrize(
    ("name", "kernels"), [*((name, True) for name in MAML), ("maml", False)]
)
def test_round_of_maml_is_that_of_autograd(name, kernels, start, federation):
    overlay, threshold = MAML[name]
    rounds = start(make_config(overlay, TWO_STEPS, SERVER, QUIET), kernels=kernels)
    for index in range(2):
        theta, moved = movement(rounds, index)
        expected = meta_step(rounds, federation, theta, index, threshold=threshold)
        assert relative_error(moved, expected) < TOLERANCE
    for fault, changes in WRONG_MAML.items():
        options = {"threshold": threshold} | changes
        wrong = meta_step(rounds, federation, theta, index, **options)
        assert relative_error(moved, wrong) > POWER, fault


def test_clipping_of_the_rounds_above_binds(start, federation):
    """Some gradients are above 0.4, and none is above 1e4."""
    run = make_config({"method": "dp-agr"}, constant(0.4), TWO_STEPS, SERVER, QUIET)
    rounds = start(run)
    theta = rounds.theta.double()
    norms = [
        float(maml_gradient(rounds.net, theta, task_of(federation, client)).norm())
        for client in rounds.plan.sample_cohort(0)
    ]
    assert max(norms) > 0.8
    assert max(norms) < 1e4


def test_round_of_first_order_maml_is_that_of_autograd(start, federation):
    first_order = {"client_update": {"order": 1}}
    run = make_config({"method": "maml"}, TWO_STEPS, first_order, SERVER, QUIET)
    rounds = start(run)
    theta, moved = movement(rounds, 0)
    expected = meta_step(rounds, federation, theta, 0, order=1)
    assert relative_error(moved, expected) < TOLERANCE
    second_order = meta_step(rounds, federation, theta, 0, order=2)
    assert relative_error(moved, second_order) > POWER


@pytest.mark.parametrize("method", ["maml", "dp-agr"])
def test_sum_of_a_poisson_cohort_is_divided_by_its_expected_size(
    method, start, federation
):
    """DP-FedMeta, Algorithm 2, line 9: by L, whoever takes part."""
    clipping = constant(1e4) if method == "dp-agr" else {}
    run = make_config({"method": method}, clipping, POISSON, TWO_STEPS, SERVER, QUIET)
    rounds = start(run)
    sizes = []
    for index in range(3):
        theta, moved = movement(rounds, index)
        size = len(rounds.plan.sample_cohort(index))
        sizes.append(size)
        expected = meta_step(rounds, federation, theta, index)
        assert relative_error(moved, expected) < TOLERANCE
    assert any(size not in (0, 4) for size in sizes)


# MAML of clients that sum over their own examples


def record_level_step(rounds, federation, theta, index, *, limits, options):
    """Return the change of the meta-model: DP-FedMeta, Algorithm 3, lines 5 to 13 and
    Algorithm 2; with `by_server` DP-MAML, Algorithm 2, without noise.

    Args:
        rounds, federation, theta, index: the run, its data, its weights, the round.
        limits: (C_0 of the support step, threshold of the query sum).
        options: steps, query_set, by_server and count, the denominator.
    """
    support_limit, query_limit = limits
    total = 0.0
    for client in rounds.plan.sample_cohort(index):
        task = task_of(federation, client)
        weights = theta
        for _ in range(options["steps"]):
            rows = record_gradients(rounds.net, weights, *task[0])
            weights = weights - INNER_RATE * clipped_sum(rows, support_limit) / 3
        rows = record_gradients(rounds.net, weights, *task[options["query_set"]])
        if options["by_server"]:
            total = total + clipped_sum(rows, query_limit)
        else:
            total = total + clipped_sum(rows, support_limit) / len(rows)
    return -SERVER_RATE * total / options["count"]


AGRLR = {"steps": 2, "query_set": 1, "by_server": False, "count": 4}
SAMPLE = {"steps": 2, "query_set": 1, "by_server": True, "count": 4 * 6}


@pytest.mark.parametrize(
    ("support_limit", "query_limit"),
    [(1e4, 1e4), (0.8, 0.5)],
    ids=["no clipping", "clipped"],
)
@pytest.mark.parametrize(
    ("method", "options"),
    [("dp-agrlr", AGRLR), ("dp-maml-sample", SAMPLE)],
    ids=["dp-agrlr", "dp-maml-sample"],
)
def test_round_of_record_level_maml_is_that_of_autograd(
    method, options, support_limit, query_limit, start, federation
):
    # DP-AGRLR's server clips the clients' messages as well; here it does not bind.
    server_limit = 1e4 if method == "dp-agrlr" else query_limit
    run = make_config(
        {"method": method},
        constant(server_limit),
        within_task(support_limit),
        TWO_STEPS,
        SERVER,
        QUIET,
    )
    rounds = start(run)
    theta, moved = movement(rounds, 0)
    limits = (support_limit, query_limit)

    def step(**changes):
        changed = options | changes
        return record_level_step(
            rounds, federation, theta, 0, limits=limits, options=changed
        )

    assert relative_error(moved, step()) < TOLERANCE
    faults = {
        "query gradient from the support set": {"query_set": 0},
        "one inner step too many": {"steps": 3},
        "divided by another number": {"count": options["count"] + 1},
        "other sum": {"by_server": not options["by_server"]},
    }
    for fault, changes in faults.items():
        assert relative_error(moved, step(**changes)) > POWER, fault


# Reptile in batches (Nichol et al. 2018); DP GBML, Section 4, and its batched Algorithm 1


def reptile_step(
    rounds,
    federation,
    theta,
    index,
    *,
    limit=None,
    own_limit=UNBOUND,
    steps=3,
    count=4,
    rate=SERVER_RATE,
):
    """Return the change of the meta-model: phi <- phi + eps mean(phi_k - phi).

    Args:
        rounds, federation, theta, index: the run, its data, its weights, the round.
        limit: norm to which each example's gradient is clipped; None: no sum over
            single examples is taken.
        own_limit: norm to which each client's difference is clipped.
        steps: local steps on all examples of a client.
        count: number of clients.
        rate: the server's learning rate, eps.
    """
    total = 0.0
    for client in rounds.plan.sample_cohort(index):
        support, query = task_of(federation, client)
        images, labels = map(torch.cat, zip(support, query, strict=True))
        weights = theta
        for _ in range(steps):
            if limit is None:
                mean = gradient(rounds.net, weights, images, labels)
            else:
                rows = record_gradients(rounds.net, weights, images, labels)
                mean = clipped_sum(rows, limit) / len(labels)
            weights = weights - INNER_RATE * mean
        total = total + clipped(weights - theta, own_limit)
    return rate * total / count


def own_update(threshold):
    return {"own_update": {"threshold": threshold, "multiplier": 1.0, "epsilon": None}}


REPTILE = {
    "reptile": ({"method": "reptile"}, {}),
    "dp-reptile": ({"method": "dp-reptile"} | within_task(1e4), {"limit": 1e4}),
    "dp-reptile, clipped": (
        {"method": "dp-reptile"} | within_task(0.8),
        {"limit": 0.8},
    ),
    "local-reptile": ({"method": "local-reptile"} | own_update(1e4), {}),
    "local-reptile, clipped": (
        {"method": "local-reptile"} | own_update(0.1),
        {"own_limit": 0.1},
    ),
}
WRONG_REPTILE = {
    "one step too many": {"steps": 4},
    "one step too few": {"steps": 2},
    "divided by one client less": {"count": 3},
    "server's sign": {"rate": -SERVER_RATE},
    "server's rate": {"rate": INNER_RATE},
}


@pytest.mark.parametrize("name", REPTILE)
def test_round_of_reptile_is_that_of_autograd(name, start, federation):
    overlay, options = REPTILE[name]
    update = {"inner_steps": 3, "inner_rate": INNER_RATE, "optimizer": "sgd"}
    run = make_config(overlay, {"client_update": update}, RECORD, SERVER, QUIET)
    rounds = start(run)
    for index in range(2):
        theta, moved = movement(rounds, index)
        expected = reptile_step(rounds, federation, theta, index, **options)
        assert relative_error(moved, expected) < TOLERANCE
    for fault, changes in WRONG_REPTILE.items():
        if "steps" in changes and "own_limit" in options:
            continue  # each difference is cut to one length, whatever the steps
        wrong = reptile_step(rounds, federation, theta, index, **options | changes)
        assert relative_error(moved, wrong) > POWER, fault


# Adap DP-FL, Algorithm 1


def local_steps(net, theta, examples, lots, threshold, options):
    """Return (a client's weights after its local steps, its next threshold): lines 7 to
    14, and eq. 6 to 8 read as the norm of the released mean.

    Args:
        net, theta: the network and the global weights.
        examples: (images, labels) of the client.
        lots: positions of the records of each step.
        threshold: C, to which each record's gradient is clipped.
        options: size, the lot's expected size L; factor, alpha of eq. 8, None for a
            constant threshold; rate of a step.
    """
    images, labels = examples
    weights = theta
    for lot in lots:
        rows = record_gradients(net, weights, images[lot], labels[lot])
        mean = clipped_sum(rows, threshold) / options["size"]
        weights = weights - options["rate"] * mean
        if options["factor"] is not None:
            threshold = options["factor"] * float(mean.norm())
    return weights, threshold


LOCAL = {
    "client_update": {"inner_steps": 2, "inner_rate": INNER_RATE, "optimizer": "sgd"}
}
ADAPTIVE = {"kind": "norm-of-release", "threshold": 2.0, "factor": 1.5}
LOCAL_METHODS = {
    "fedavg": ({"method": "fedavg"}, UNBOUND, None),
    "adap-dp-fl": ({"method": "adap-dp-fl"} | constant(1e4), 1e4, None),
    "adap-dp-fl, clipped": ({"method": "adap-dp-fl"} | constant(0.5), 0.5, None),
    "adap-dp-fl, adaptive": ({"method": "adap-dp-fl", "clipping": ADAPTIVE}, 2.0, 1.5),
}
WRONG_LOCAL = {
    "one local step too many": {"steps": 3},
    "one local step too few": {"steps": 1},
    "divided by another number": {"size": 9},
    "client's sign": {"rate": -INNER_RATE},
}


@pytest.mark.parametrize("name", LOCAL_METHODS)
def test_round_of_local_steps_is_the_mean_of_those_of_autograd(name, start, silos):
    """Line 23: four clients of 100 records each, so that p_k = 1/4."""
    overlay, first_threshold, factor = LOCAL_METHODS[name]
    run = lots_config(overlay, LOCAL, QUIET)
    rounds = start(run)
    lots = run.participation.lots(clients=4, seed=0, steps=2, records=100)
    held = client_examples(silos)

    def step(theta, index, thresholds, steps=2, **changes):
        options = {"size": 8, "factor": factor, "rate": INNER_RATE} | changes
        models = []
        next_thresholds = []
        for client, threshold in enumerate(thresholds):
            # A step too many reads the last lot again.
            drawn = [lots.lot(index, min(i, 1), client) for i in range(steps)]
            model, following = local_steps(
                rounds.net, theta, held[client], drawn, threshold, options
            )
            models.append(model)
            next_thresholds.append(following)
        return torch.stack(models).mean(dim=0) - theta, next_thresholds

    following = [first_threshold] * 4
    for index in range(2):
        thresholds = following
        theta, moved = movement(rounds, index)
        expected, following = step(theta, index, thresholds)
        assert relative_error(moved, expected) < TOLERANCE
    for fault, changes in WRONG_LOCAL.items():
        wrong, _ = step(theta, index, thresholds, **changes)
        assert relative_error(moved, wrong) > POWER, fault
