"""`reading: as-released` runs a paper's released code, for which nothing is proven."""

import dataclasses
import math

import dp_accounting
import numpy as np
import pytest
import torch

from dpfedbench.breaches import breaches_of
from dpfedbench.experiments.configuration import Configuration, overlaid
from dpfedbench.experiments.expand import make_plan
from dpfedbench.training.client_updates.maml import SUPPORT
from dploss.gaussian import gaussian_epsilon
from dpsum.accounting.claims import TF_PRIVACY_ORDERS
from dpsum.ledger import read_ledger
from tests.dpfedbench.training.conftest import accounted, make_config, rounds_of, train
from tests.shipped import ROOT, parsed

CONSTANT = {"clipping": {"kind": "constant"}}
RELEASED = {
    "method": "dp-agrlr",
    "reading": "as-released",
    "within_task": {"threshold": 0.2, "multiplier": 1.0, "epsilon": None},
}
EXACT = {"within_task": {"query_gradient": "exact"}}
BREACHES = {
    "second order": {"client_update": {"order": 2}},
    "batch normalisation": {"model": {"normalisation": "batch"}},
    "exact query gradient": EXACT,
}


def trained_account(run, federation, folder):
    """Train a run and return its account."""
    train(run, federation, folder)
    return accounted(run, folder, federation[1])


def reference_gradient(net, theta, sx, sy, qx, qy, *, threshold, groups):
    """Return the second-order gradient by automatic differentiation of the two steps.

    Double precision, with clipping (of all tensors together or of each) and no noise.
    """
    shapes = {"tensors": net.shapes.values(), "all": [[len(theta)]]}[groups]
    sizes = [math.prod(shape) for shape in shapes]
    start = torch.from_numpy(theta).double().requires_grad_()
    weights = start
    for _ in range(2):
        total = torch.zeros_like(weights)
        for loss in net.losses(weights, torch.from_numpy(sx).double(), sy):
            (row,) = torch.autograd.grad(loss, weights, create_graph=True)
            parts = [
                part * torch.clamp(threshold / part.norm(), max=1.0)
                for part in row.split(sizes)
            ]
            total = total + torch.cat(parts)
        weights = weights - 0.4 / len(sy) * total
    loss = net.losses(weights, torch.from_numpy(qx).double(), qy).mean()
    (gradient,) = torch.autograd.grad(loss, start)
    return gradient.detach()


@pytest.mark.parametrize(
    ("normalisation", "threshold", "groups"),
    [
        ("batch", 0.2, "all"),
        ("batch", 50.0, "all"),
        ("record", 0.2, "all"),
        ("record", 50.0, "all"),
        ("batch", 0.05, "tensors"),
        ("record", 0.3, "tensors"),
    ],
)
def test_coupled_records_second_order_gradient_is_that_of_autodiff(
    federation, tmp_path, normalisation, threshold, groups
):
    """Without noise. A threshold of 50 clips no example, 0.2 clips all of them, and 0.3
    by tensor clips some.
    """
    settings = {
        "model": {"normalisation": normalisation},
        "client_update": {"order": 2, "inner_steps": 2, "inner_rate": 0.4},
        "within_task": {"threshold": threshold, "clipping_groups": groups},
    }
    run = make_config(RELEASED, EXACT, settings)
    rounds = rounds_of(run, federation, tmp_path)
    for mechanism in rounds.clients.mechanisms.values():
        mechanism.draw_noise = lambda purpose, total: np.zeros(total.dimension)
    rng = np.random.default_rng(0)
    theta = rounds.net.initial(rng)
    theta = (theta + 0.1 * rng.standard_normal(len(theta))).astype(np.float32)
    cohort = np.array([3, 7])
    ((rows, _),) = rounds.clients.contributions(theta, cohort, 0)
    tasks = vars(rounds.clients.setup.held.gather(cohort)).values()
    for row, *task in zip(rows, *tasks, strict=True):
        expected = reference_gradient(
            rounds.net, theta, *task, threshold=threshold, groups=groups
        )
        error = torch.linalg.norm(row - expected)
        assert error < 1e-3 * torch.linalg.norm(expected)


@pytest.mark.parametrize("name", BREACHES)
def test_breach_makes_the_records_epsilon_infinite_and_the_claim_void(
    federation, tmp_path, name
):
    """The guarantee of clients stays, since the server's sum is as published: one
    Gaussian with z = 1.
    """
    run = make_config(RELEASED, CONSTANT, BREACHES[name])
    account = trained_account(run, federation, tmp_path)
    (record_account,) = account["also"]
    assert (account["unit"], record_account["unit"]) == ("client", "record")
    claimed, proven = (
        record_account["profiles"][name] for name in ("claimed", "proven")
    )
    assert (claimed["status"], proven["status"]) == ("void", "void")
    assert proven["epsilon_high"] == "inf"
    assert breaches_of(run)[0].reason in proven["explanation"]

    proven = account["profiles"]["proven"]
    assert proven["epsilon_high"] == pytest.approx(gaussian_epsilon(1.0, 1e-3))
    assert proven["status"] == "proved"
    lines = {line.name: line for line in read_ledger(tmp_path / "ledger.jsonl")}
    assert lines[SUPPORT].data_dependent_threshold
    assert not lines["query-gradient-sum"].data_dependent_threshold


def test_series_as_released_overlays_its_settings_on_the_released_ones():
    published = {"method": "dp-agrlr"}
    released = published | {"reading": "as-released"}
    fewer = released | {"run": {"client_update": {"inner_steps": 1}}}
    series = {"all": released, "fewer": fewer, "published": published}
    table = {"title": "x", "tasks": ["t"], "series": series}
    tasks = {"t": {"dataset": "glyphs"}}
    experiment = {"title": "x", "tasks": tasks, "tables": {"rows": table}}
    base = parsed(ROOT / "config/config.yaml")
    values = overlaid(base, {"experiments": {"x": experiment}})
    cells = make_plan(Configuration.read(values)).items["x", "rows"].cells
    whole, fewer, published = (cell.runs[0] for cell in cells)
    assert [run.client_update.inner_steps for run in (whole, fewer)] == [5, 1]
    assert whole.model.normalisation == "batch"
    assert whole.clipping.kind == "percentile-of-raw-norms"
    for run in whole, fewer:
        assert run.client_update.order == 2
        assert run.within_task.query_gradient == "exact"
    assert published.within_task.query_gradient == "private"
    marks = ["as released, no finite ε" in cell.variant for cell in cells]
    assert marks == [True, True, False]


def test_claim_of_released_code_may_count_other_clients(federation, tmp_path):
    """The proven ε and the account of a record stay.

    Reference: dp_accounting's Renyi divergences of Poisson sampling, converted to ε as
    in TensorFlow Privacy.
    """
    run = make_config(RELEASED, CONSTANT, EXACT)
    counted = run.replace(budget=dataclasses.replace(run.budget, counted_clients=600))
    account = trained_account(run, federation, tmp_path / "run")
    counted_account = trained_account(counted, federation, tmp_path / "counted")
    claim = counted_account["profiles"]["claimed"]
    accountant = dp_accounting.rdp.RdpAccountant(TF_PRIVACY_ORDERS)
    release = dp_accounting.GaussianDpEvent(run.noise.multiplier)
    rate = run.participation.cohort / 600
    sampled = dp_accounting.PoissonSampledDpEvent(rate, release)
    accountant.compose(sampled, run.participation.rounds)
    orders = np.array(TF_PRIVACY_ORDERS)
    epsilons = accountant._rdp + math.log(1 / run.budget.delta) / (orders - 1)
    assert claim["epsilon_high"] == pytest.approx(epsilons.min(), rel=1e-6)
    assert claim["epsilon_high"] < account["profiles"]["claimed"]["epsilon_high"]
    assert claim["status"] == "void"
    assert "of 600 clients, as the authors' code counts" in claim["explanation"]
    assert counted_account["profiles"]["proven"] == account["profiles"]["proven"]
    assert counted_account["also"] == account["also"]
