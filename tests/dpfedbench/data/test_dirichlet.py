"""Records shared out by Dirichlet draws: who holds what, and how unequal it is."""

import numpy as np
import pytest

from dpfedbench.data.partition import RecordPartition
from dpfedbench.data.records import RawRecords, RecordDataset, load_records
from dpfedbench.errors import BenchError
from dpfedbench.parts.partitions.dirichlet import shared_out
from tests.partitions import make_dirichlet


@pytest.fixture
def toy(tmp_path) -> RecordDataset:
    labels = np.repeat([0, 1, 2], [50, 30, 40])
    raw = RawRecords(
        train_images=np.arange(120, dtype=np.uint8)[:, None, None, None],
        train_labels=labels,
        test_images=np.zeros((2, 1, 1, 1), np.uint8),
        test_labels=np.array([0, 1]),
        class_names=("a", "b", "c"),
        versions={},
    )
    raw.save(tmp_path / "toy", {"name": "toy"})
    return load_records(tmp_path / "toy")


@pytest.mark.parametrize("concentration", [0.1, 1.0, 1000.0])
def test_each_training_record_is_at_one_client(toy, tmp_path, concentration):
    make_dirichlet(toy, clients=4, concentration=concentration, least=3, seed=5).save(
        tmp_path / "clients"
    )
    made = RecordPartition.load(tmp_path / "clients")
    held = [row[row >= 0] for row in made.records]
    assert sorted(np.concatenate(held)) == sorted(toy.splits["train"])
    assert [len(records) for records in held] == made.summary[
        "records_per_client"
    ] and min(map(len, held)) >= 3
    counted = [
        np.bincount(toy.labels[records], minlength=3).tolist() for records in held
    ]
    assert counted == made.summary["label_histogram"]
    again, other = (
        make_dirichlet(toy, clients=4, concentration=concentration, least=3, seed=seed)
        for seed in (5, 6)
    )
    assert np.array_equal(again.records, made.records) and not np.array_equal(
        other.records, made.records
    )


@pytest.mark.parametrize("concentration", [0.1, 0.5, 10.0])
def test_shares_have_the_moments_of_the_distribution(concentration):
    """Of Dir(alpha) over K the squared shares add up to (alpha + 1) / (K alpha + 1) on
    average.

    4,000 labels of 10,000 records; four standard errors, so a false alarm in 6e-5 of
    seeds.
    """
    clients = 6
    counts = shared_out(
        np.random.default_rng(3), [10_000] * 4000, clients, concentration
    )
    assert (counts.sum(axis=1) == 10_000).all() and counts.min() >= 0
    squares = ((counts / 10_000) ** 2).sum(axis=1)
    error = 4 * squares.std() / np.sqrt(len(squares)) + 1e-4
    assert (
        abs(squares.mean() - (concentration + 1) / (clients * concentration + 1))
        < error
    )


def test_a_size_that_cannot_be_had_is_said(toy):
    with pytest.raises(
        BenchError,
        match="some client always had fewer than 31 of toy's 120 training records",
    ):
        make_dirichlet(toy, clients=4, concentration=0.1, least=31, seed=0)
