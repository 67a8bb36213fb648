"""Record-level privacy of clients that hold different numbers of records: one rate for
all, lots that differ.
"""

import json

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import dpsum
from dpfedbench.audit.report import audit
from dpfedbench.data.partition import RecordPartition
from dpfedbench.data.records import load_records
from dpfedbench.errors import BenchError
from dpfedbench.federation.accounts import ledger_of
from dpsum.accounting.analyses.poisson import upper_epsilon
from dpsum.ledger import read_ledger
from dpsum.randomness import stream
from tests.partitions import make_dirichlet

from .conftest import LOTS, accounted, make_config, stop_before, train

CLIENTS = {"partition": "dirichlet", "concentration": 0.5, "least": 20}
SGD = {"inner_steps": 1, "inner_rate": 0.1, "optimizer": "sgd"}


@pytest.fixture(scope="module")
def unequal(silos, tmp_path_factory):
    """(data folder, clients folder): the 400 records of the four clients, shared out
    unequally.
    """
    folder = tmp_path_factory.mktemp("unequal")
    made = make_dirichlet(
        load_records(silos[0]), clients=4, concentration=0.5, least=20, seed=0
    )
    sizes = made.summary["records_per_client"]
    assert len(set(sizes)) > 2 and sum(sizes) == 400
    made.save(folder)
    return silos[0], folder


def make(*overlays):
    return make_config(
        {"method": "dp-fl", "clients": CLIENTS, "evaluation": {"every": 0}},
        *overlays,
        general=LOTS,
    )


def test_one_rate_for_all_records_and_lots_in_proportion():
    """60 of 400 records are expected in a step, whoever holds them. Means of 2,000
    lots, four standard errors.
    """
    lots = dpsum.PoissonLots(
        clients=3, lot=20, rounds=2000, records=[30, 100, 270], seed=0
    )
    assert lots.rate == 0.15 and [lots.expected(client) for client in range(3)] == [
        4.5,
        15.0,
        40.5,
    ]
    for client, size in enumerate((30, 100, 270)):
        counts = [len(lots.lot(index, 0, client)) for index in range(2000)]
        assert (
            abs(np.mean(counts) - 0.15 * size) < 4 * (size * 0.15 * 0.85 / 2000) ** 0.5
        )
        assert (
            max(
                lot.max(initial=0)
                for lot in (lots.lot(index, 0, client) for index in range(50))
            )
            < size
        )
    said = {
        "clients": 3,
        "records": 400,
        "cohort": 60,
        "rounds": 2000,
        "rate": 0.15,
        "sizes": [30, 100, 270],
    }
    assert dict(lots.describe()) == {"kind": "poisson-lots"} | said
    alike = dpsum.PoissonLots(clients=3, lot=20, rounds=5, records=[100] * 3, seed=0)
    same = dpsum.PoissonLots(clients=3, lot=20, rounds=5, records=100, seed=0)
    assert alike.describe() == same.describe() and np.array_equal(
        alike.lot(1, 0, 2), same.lot(1, 0, 2)
    )
    with pytest.raises(
        dpsum.DpsumError,
        match=r"a client holds 133\.333 on average records: a lot must be from 1",
    ):
        dpsum.PoissonLots(clients=3, lot=134, rounds=1, records=[30, 100, 270])


def test_the_account_is_of_the_rate_that_all_have(unequal, tmp_path, monkeypatch):
    """12 lots at rate 4 x 8 / 400 and z = 2; the ledger tells each client's records,
    which are public.
    """
    run = make()
    files = train(run, unequal, tmp_path / "run")
    for line in read_ledger(tmp_path / "run" / "ledger.jsonl"):
        assert (
            line.sampler["rate"],
            line.sampler["records"],
            line.sampler["cohort"],
        ) == (0.08, 400, 32)
        assert (
            line.sampler["sizes"]
            == json.loads((unequal[1] / "summary.json").read_text())[
                "records_per_client"
            ]
        )
    held = accounted(run, tmp_path / "run")["profiles"]["holds"]["epsilon_high"]
    assert held == upper_epsilon(((2.0, 12),), 0.08, 1e-4)
    with monkeypatch.context() as patch, pytest.raises(stop_before(patch, 5)):
        train(run, unequal, tmp_path / "resumed", checkpoint_seconds=0)
    assert train(run, unequal, tmp_path / "resumed", threads=2) == files


def test_a_ledger_of_another_rate_is_refused(unequal, tmp_path):
    """The fault: each client takes a lot of the same size, and the ledger states the
    mean's rate of it.
    """
    train(make(), unequal, tmp_path)
    text = (tmp_path / "ledger.jsonl").read_text()
    assert '"rate": 0.08' in text
    lines = [
        line.replace('"rate": 0.08', '"rate": 0.07')
        for line in text.splitlines(keepends=True)
    ]
    (tmp_path / "ledger.jsonl").write_text("".join(lines))
    with pytest.raises(BenchError):
        accounted(make(), tmp_path)


def test_the_audit_finds_no_more_than_holds(unequal, tmp_path):
    run = make(
        {"noise": {"multiplier": 1.0}, "participation": {"rounds": 6, "cohort": 40}}
    )
    train(run, unequal, tmp_path)
    report = audit(run, ledger_of(run, tmp_path), canaries=200)
    assert (
        0 < report["epsilon"] <= report["epsilon_holds"]
        and not report["another_mechanism"]
    )
    assert report["clients_audited"] == 4


def test_one_step_of_all_is_a_step_along_the_mean_over_all_records(unequal, tmp_path):
    """Without privacy, each record in each lot (L is the mean number of records),
    averaged by records.
    """
    overlay = {
        "participation": {"cohort": 100, "rounds": 1},
        "client_update": SGD,
        "validation": {"every": 0},
    }
    run = make({"method": "fedavg"}, overlay)
    train(run, unequal, tmp_path)
    dataset, partition = load_records(unequal[0]), RecordPartition.load(unequal[1])
    net = run.net(dataset.image_shape, 10)
    theta = torch.from_numpy(net.initial(stream(0, "initial-weights"))).requires_grad_()
    own = partition.records[partition.records >= 0]
    images = torch.from_numpy(np.asarray(dataset.images[own])).float() / 255
    loss = torch.nn.functional.cross_entropy(
        net.logits(theta, images), torch.from_numpy(dataset.labels[own])
    )
    (gradient,) = torch.autograd.grad(loss, theta)
    trained = load_file(tmp_path / "model.safetensors")
    found = net.flatten(
        {name.removeprefix("member1/"): tensor for name, tensor in trained.items()}
    )
    assert np.allclose(
        found, (theta - 0.1 * gradient).detach().numpy(), rtol=1e-3, atol=1e-6
    )


def test_what_takes_clients_for_alike_is_refused():
    with pytest.raises(
        BenchError,
        match=r"clipping\.kind is norm-of-release, which compares a lot's release",
    ):
        make({"method": "adap-dp-fl", "clipping": "norm-of-release"})
    with pytest.raises(
        BenchError, match=r"those of client_update\.kind search-steps hold as many each"
    ):
        make_config({"method": "dp-fnas", "clients": CLIENTS}, general=LOTS)
    with pytest.raises(BenchError, match=r"clients\.concentration is null"):
        make({"clients": {"concentration": None}})
