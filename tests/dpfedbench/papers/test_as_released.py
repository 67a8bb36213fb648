"""`reading: as-released`: a paper's released code runs, and nothing is proven for it."""

import math

import dp_accounting
import numpy as np
import pytest
import torch
from torch.nn import functional

from dpfedbench.errors import BenchError
from dpfedbench.experiments.configuration import Configuration, overlaid
from dpfedbench.experiments.expand import make_plan
from dpfedbench.models.choose import choose
from dpfedbench.models.torch_gradients import TorchGradients
from dpfedbench.parts.client_updates.coupled_records import CoupledGradients
from dpfedbench.parts.client_updates.maml import SUPPORT
from dpsum.accounting.claims import TF_PRIVACY_ORDERS
from dpsum.ledger import read_ledger
from tests.dpfedbench.federation.conftest import (
    accounted,
    make_config,
    rounds_of,
    train,
)
from tests.shipped import ROOT, parsed

CONSTANT = {"clipping": {"kind": "constant"}}
RELEASED = {
    "method": "dp-agrlr",
    "reading": "as-released",
    "within_task": {"threshold": 0.2, "multiplier": 1.0, "epsilon": None},
}
BREACHES = {
    "second order": {"client_update": {"order": 2}},
    "batch normalisation": {"model": {"normalisation": "batch"}},
    "exact query gradient": {"within_task": {"query_gradient": "exact"}},
}


def reference_gradient(net, theta, task, *, rate, threshold, steps, groups="all"):
    """The second-order gradient by automatic differentiation of the whole adaptation,
    in double precision, with clipping (of each tensor by itself) and without noise.
    """
    sizes = [len(theta)]
    if groups == "tensors":
        sizes = [math.prod(shape) for shape in net.shapes.values()]
    (support_x, support_y), (query_x, query_y) = task
    start = torch.from_numpy(theta).double().requires_grad_()
    weights = start
    for _ in range(steps):
        logits = net.logits(weights, torch.from_numpy(support_x).double())
        losses = functional.cross_entropy(
            logits, torch.from_numpy(support_y), reduction="none"
        )
        total = torch.zeros_like(weights)
        for loss in losses:
            (row,) = torch.autograd.grad(loss, weights, create_graph=True)
            parts = [
                part * torch.clamp(threshold / part.norm(), max=1.0)
                for part in row.split(sizes)
            ]
            total = total + torch.cat(parts)
        weights = weights - rate / len(losses) * total
    loss = functional.cross_entropy(
        net.logits(weights, torch.from_numpy(query_x).double()),
        torch.from_numpy(query_y),
    )
    (gradient,) = torch.autograd.grad(loss, start)
    return gradient.detach()


@pytest.mark.parametrize(
    "normalisation, threshold, groups",
    [
        ("batch", 0.2, "all"),
        ("batch", 50.0, "all"),
        ("record", 0.2, "all"),
        ("record", 50.0, "all"),
        ("batch", 0.05, "tensors"),
        ("record", 0.3, "tensors"),
    ],
)
def test_coupled_records_second_order_gradient_is_automatic_differentiations(
    federation, tmp_path, normalisation, threshold, groups
):
    """Without noise; 50 clips nothing, 0.2 clips every example; by tensor 0.3 clips
    some of them.
    """
    run = make_config(
        RELEASED,
        {
            "model": {"normalisation": normalisation},
            "client_update": {"order": 2, "inner_steps": 2, "inner_rate": 0.4},
            "within_task": {
                "threshold": threshold,
                "multiplier": 1e-3,
                "query_gradient": "exact",
                "clipping_groups": groups,
            },
        },
    )
    rounds = rounds_of(run, federation, tmp_path)
    for mechanism in rounds.clients.mechanisms.values():
        mechanism.draw_noise = lambda purpose, total: np.zeros(total.dimension)
    rng = np.random.default_rng(0)
    theta = rounds.net.initial(rng)
    theta = (theta + 0.1 * rng.standard_normal(len(theta))).astype(np.float32)
    cohort = np.array([3, 7])
    (rows,) = [
        rows.clone() for rows, _, _ in rounds.clients.contributions(theta, cohort, 0)
    ]
    tasks = rounds.clients.setup.held.gather(cohort)
    for i in range(len(cohort)):
        task = (
            (tasks.support_x[i], tasks.support_y[i]),
            (tasks.query_x[i], tasks.query_y[i]),
        )
        wanted = reference_gradient(
            rounds.net,
            theta,
            task,
            rate=0.4,
            threshold=threshold,
            steps=2,
            groups=groups,
        )
        assert torch.linalg.norm(rows[i] - wanted) < 1e-3 * torch.linalg.norm(wanted)


def test_coupled_gradients_of_records_add_up_to_the_batchs_gradient(federation):
    """With batch normalisation: the mean loss's gradient by the library's own pass."""
    net = make_config().net((28, 28, 1), 3)
    rng = np.random.default_rng(1)
    theta = net.initial(rng) + 0.1 * rng.standard_normal(net.dimension)
    theta = theta.astype(np.float32)
    x = rng.random((6, 28, 28, 1)).astype(np.float32)
    y = np.array([0, 0, 1, 1, 2, 2])
    rows = torch.empty((6, net.dimension))
    CoupledGradients(TorchGradients(net)).record_gradients(theta, x, y, rows)
    whole = torch.empty((1, net.dimension))
    choose(net).make().task_gradients(theta[None], x[None], y[None], whole)
    assert torch.linalg.norm(rows.mean(dim=0) - whole[0]) < 1e-4 * whole.norm()
    # Each depends on the others: the rows of a smaller batch are not the same.
    fewer = torch.empty((3, net.dimension))
    CoupledGradients(TorchGradients(net)).record_gradients(theta, x[:3], y[:3], fewer)
    assert torch.linalg.norm(rows[:3] - fewer) > 1e-2 * rows[:3].norm()


@pytest.mark.parametrize("name", BREACHES)
def test_breach_makes_the_records_epsilon_infinite_and_the_claim_void(
    federation, tmp_path, name
):
    """The clients' own guarantee stays, since the server's sum is as published: known
    rounds of one Gaussian with z = 1 at delta = 1e-3, by the formula of Balle and
    Wang 2018 with math.erfc.
    """
    run = make_config(RELEASED, CONSTANT, BREACHES[name])
    train(run, federation, tmp_path)
    found = accounted(run, tmp_path, federation[1])
    (own,) = found["also"]
    assert found["unit"] == "client"
    assert own["unit"] == "record"
    for profile in ("claimed", "proven"):
        assert own["profiles"][profile]["status"] == "void"
    assert own["profiles"]["proven"]["epsilon_high"] in (math.inf, "inf", "Infinity")
    assert run.breaches[0].reason in own["profiles"]["proven"]["explanation"]

    epsilon = found["profiles"]["proven"]["epsilon_high"]

    def below(x):
        return math.erfc(-x / math.sqrt(2)) / 2

    delta = below(0.5 - epsilon) - math.exp(epsilon) * below(-0.5 - epsilon)
    assert delta == pytest.approx(1e-3, rel=1e-6)
    assert found["profiles"]["proven"]["status"] == "proved"
    named = {line.name: line for line in read_ledger(tmp_path / "ledger.jsonl")}
    assert named[SUPPORT].data_dependent_threshold
    assert not named["query-gradient-sum"].data_dependent_threshold


@pytest.mark.parametrize("name", BREACHES)
def test_breach_is_refused_in_a_run_as_published(name):
    with pytest.raises(BenchError) as caught:
        make_config({"method": "dp-agrlr"}, BREACHES[name])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("overlay", "line"),
    [
        (
            {**BREACHES["exact query gradient"], "budget": {"epsilon": 50.0}},
            "reading is as-released, of which no finite ε is proven, but budget.epsilon is "
            "50 and stops the training at it: ",
        ),
        ({}, "reading is as-released, but this run of dp-agrlr does nothing that "),
    ],
)
def test_as_released_is_refused_in_one_line(overlay, line):
    with pytest.raises(BenchError) as caught:
        make_config(RELEASED, CONSTANT, overlay)
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)


def test_as_released_is_another_run_and_as_published_keeps_its_key():
    """A run that never heard of the key has the key of one that states the default."""
    plain = make_config({"method": "dp-agrlr"})
    assert "reading" not in plain.identity()
    assert "query_gradient" not in plain.identity().get("within_task", {})
    released = make_config(RELEASED, BREACHES["exact query gradient"])
    assert released.identity()["reading"] == "as-released"


def planned(series):
    experiment = {
        "title": "x",
        "tasks": {"t": {"dataset": "glyphs"}},
        "tables": {"rows": {"title": "x", "tasks": ["t"], "series": series}},
    }
    base = parsed(ROOT / "config/config.yaml")
    configuration = Configuration.read(
        overlaid(base, {"experiments": {"x": experiment}})
    )
    return make_plan(configuration).items["x", "rows"].cells


def test_series_as_released_has_the_released_settings_below_its_own():
    cells = planned(
        {
            "all": {"method": "dp-agrlr", "reading": "as-released"},
            "fewer": {
                "method": "dp-agrlr",
                "reading": "as-released",
                "run": {"client_update": {"inner_steps": 1}},
            },
            "published": {"method": "dp-agrlr"},
        }
    )
    whole, fewer, published = (cell.runs[0] for cell in cells)
    assert whole.client_update.inner_steps == 5
    assert whole.client_update.order == 2
    assert whole.model.normalisation == "batch"
    assert whole.clipping.kind == "percentile-of-raw-norms"
    assert whole.within_task.query_gradient == "exact"
    assert fewer.within_task.query_gradient == "exact"
    assert fewer.client_update.inner_steps == 1
    assert fewer.client_update.order == 2
    assert published.within_task.query_gradient == "private"
    assert published.reading == "as-published"
    marks = ["as released, no finite ε" in cell.variant for cell in cells]
    assert marks == [True, True, False]
    assert "as released" in cells[0].label


def test_series_as_released_of_unknown_code_is_refused():
    """DP-MAML's code was not seen; what extends DP-AGR is not of its authors."""
    for method in ("dp-maml", "dp-agr-ftrl", "maml"):
        with pytest.raises(BenchError, match="states no settings of its authors' code"):
            planned({"rows": {"method": method, "reading": "as-released"}})


def test_a_released_code_may_count_other_clients_in_its_claim(federation, tmp_path):
    """Expected: dp_accounting's Renyi divergences of Poisson sampling, converted as
    TensorFlow Privacy did. What is proven, and the claim for a record, stay.
    """
    run = make_config(RELEASED, CONSTANT, {"within_task": {"query_gradient": "exact"}})
    counted = run.replace(budget=run.budget.replace(counted_clients=600))
    found = []
    for number, each in enumerate((run, counted)):
        train(each, federation, tmp_path / str(number))
        found.append(accounted(each, tmp_path / str(number), federation[1]))
    claim = found[1]["profiles"]["claimed"]
    accountant = dp_accounting.rdp.RdpAccountant(TF_PRIVACY_ORDERS)
    rounds = run.participation.rounds
    cohort = run.participation.cohort
    release = dp_accounting.GaussianDpEvent(run.noise.multiplier)
    sampled = dp_accounting.PoissonSampledDpEvent(cohort / 600, release)
    accountant.compose(sampled, rounds)
    orders = np.array(TF_PRIVACY_ORDERS)
    epsilons = accountant._rdp + math.log(1 / run.budget.delta) / (orders - 1)
    assert claim["epsilon_high"] == pytest.approx(epsilons.min(), rel=1e-6)
    assert claim["epsilon_high"] < found[0]["profiles"]["claimed"]["epsilon_high"]
    assert claim["status"] == "void"
    assert "of 600 clients, as the authors' code counts" in claim["explanation"]
    assert found[1]["profiles"]["proven"] == found[0]["profiles"]["proven"]
    assert found[1]["also"] == found[0]["also"]
    assert "counted_clients" not in run.budget.identity()


def test_counted_clients_are_refused_where_the_claim_would_stand():
    counted = {"budget": {"counted_clients": 600}}
    with pytest.raises(BenchError, match="or reading to as-released") as error:
        make_config({"method": "dp-agrlr"}, counted)
    assert "\n" not in str(error.value)
    exact = {"within_task": {"query_gradient": "exact"}}
    few = {"budget": {"counted_clients": 1}}
    with pytest.raises(BenchError, match="fewer than the"):
        make_config(RELEASED, CONSTANT, exact, few)
