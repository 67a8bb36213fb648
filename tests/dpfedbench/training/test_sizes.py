"""Record-level privacy of clients that hold different numbers of records."""

import json

import numpy as np
import pytest
import torch

import dpsum
from dpfedbench.audit.report import audit
from dpfedbench.data.partition import RecordPartition
from dpfedbench.data.records import load_records
from dpfedbench.errors import BenchError
from dpsum.accounting.analyses.poisson import upper_epsilon
from dpsum.randomness import stream

from .conftest import UNEQUAL, accounted, ledger_in, lots_config, proven, train
from .test_differences import examples, trained_weights


def make_config(*overlays):
    base = {"method": "dp-fl", "clients": UNEQUAL, "evaluation": {"every": 0}}
    return lots_config(base, *overlays)


def test_lots_of_unequal_clients_have_one_rate():
    """A step has 60 of 400 records in expectation, whichever client holds them. Means
    of 2,000 lots, within four standard errors.
    """
    sizes = [30, 100, 270]
    lots = dpsum.RecordLots(
        clients=3,
        lot=20,
        rounds=2000,
        records=sizes,
        seed=0,
    )
    assert lots.rate == 0.15
    assert [lots.expected_size(client) for client in range(3)] == [4.5, 15.0, 40.5]
    for client, size in enumerate(sizes):
        drawn = [lots.lot(index, 0, client) for index in range(2000)]
        mean = np.mean([len(lot) for lot in drawn])
        assert abs(mean - 0.15 * size) < 4 * (size * 0.15 * 0.85 / 2000) ** 0.5
        assert max(lot.max(initial=0) for lot in drawn) < size
    expected = {
        "clients": 3,
        "records": 400,
        "cohort": 60,
        "rounds": 2000,
    }
    expected |= {"kind": "poisson-lots", "rate": 0.15, "sizes": sizes}
    assert dict(lots.describe()) == expected
    with pytest.raises(dpsum.DpsumError, match="on average records: a lot must have"):
        dpsum.RecordLots(
            clients=3,
            lot=134,
            rounds=1,
            records=sizes,
        )


def test_lots_of_a_list_of_equal_sizes_are_those_of_the_size():
    listed = dpsum.RecordLots(
        clients=3,
        lot=20,
        rounds=5,
        records=[100] * 3,
        seed=0,
    )
    single = dpsum.RecordLots(
        clients=3,
        lot=20,
        rounds=5,
        records=100,
        seed=0,
    )
    assert listed.describe() == single.describe()
    assert np.array_equal(listed.lot(1, 0, 2), single.lot(1, 0, 2))


def test_account_of_unequal_clients_is_of_their_one_rate(unequal, tmp_path):
    """12 lots at rate 4 x 8 / 400 and z = 2. The ledger has each client's number of
    records, which is public. A ledger of another rate is refused.
    """
    run = make_config()
    train(run, unequal, tmp_path)
    sizes = json.loads((unequal[1] / "summary.json").read_text())["records_per_client"]
    for line in ledger_in(tmp_path):
        assert line.sampler["rate"] == 0.08
        assert line.sampler["records"] == 400
        assert line.sampler["cohort"] == 32
        assert line.sampler["sizes"] == sizes
    expected = upper_epsilon(((2.0, 12),), 0.08, 1e-4)
    assert proven(run, tmp_path)["epsilon_high"] == expected
    ledger = tmp_path / "ledger.jsonl"
    ledger.write_text(ledger.read_text().replace('"rate": 0.08', '"rate": 0.07'))
    with pytest.raises(BenchError):
        accounted(run, tmp_path)


def test_audit_of_unequal_clients_is_not_above_what_is_proven(unequal, tmp_path):
    plan = {"noise": {"multiplier": 1.0}, "participation": {"rounds": 6, "cohort": 40}}
    run = make_config(plan)
    train(run, unequal, tmp_path)
    report = audit(run, ledger_in(tmp_path), canaries=200)
    assert 0 < report["epsilon"] <= report["epsilon_proven"]
    assert not report["another_mechanism"]
    assert report["clients_audited"] == 4


def test_plain_step_of_unequal_clients_is_along_the_mean_over_records(
    unequal, tmp_path
):
    """Every record is in every lot (L is the mean number of records), and the mean is
    over records.
    """
    overlay = {
        "method": "fedavg",
        "participation": {"cohort": 100, "rounds": 1},
        "client_update": {"inner_steps": 1, "inner_rate": 0.1, "optimizer": "sgd"},
        "validation": {"every": 0},
    }
    run = make_config(overlay)
    train(run, unequal, tmp_path)
    dataset = load_records(unequal[0])
    records = RecordPartition.load(unequal[1]).records
    net = run.net(dataset.image_shape, 10)
    theta = torch.from_numpy(net.initial(stream(0, "initial-weights"))).requires_grad_()
    images, labels = examples(dataset, records[records >= 0])
    loss = torch.nn.functional.cross_entropy(net.logits(theta, images), labels)
    (gradient,) = torch.autograd.grad(loss, theta)
    expected = (theta - 0.1 * gradient).detach().numpy()
    weights = trained_weights(net, tmp_path)
    assert np.allclose(weights, expected, rtol=1e-3, atol=1e-6)
