"""Records dealt out to clients: by fragments of few labels, and by Dirichlet draws."""

from unittest.mock import Mock

import numpy as np
import pytest

from dpfedbench.data.clients_folder import check_made_for
from dpfedbench.data.partition import RecordPartition
from dpfedbench.data.records import RecordDataset
from dpfedbench.parts.partitions.dirichlet import shared_out
from tests.partitions import make_dirichlet, make_fragments

from .conftest import refusal


def make_records(labels, name="toy"):
    """Return training records with these labels, and no test records."""
    return RecordDataset(
        name=name,
        images=np.zeros((len(labels), 1, 1, 1), np.uint8),
        labels=np.array(labels),
        splits={"train": np.arange(len(labels)), "test": np.arange(0)},
        class_names=tuple("0123456789"[: max(labels) + 1]),
        summary={"sha256": f"checksum of {name}"},
    )


TOY = make_records([0] * 5 + [1] * 3 + [2] * 4)


def test_fragments_are_dealt_as_by_hand(monkeypatch):
    """Fragments of two, 01 23 45 67 89 AB, are dealt backwards, two to each client."""
    stream = Mock()
    stream.return_value.permutation.side_effect = lambda count: np.arange(count)[::-1]
    monkeypatch.setattr("dpfedbench.parts.partitions.fragments.stream", stream)
    partition = make_fragments(TOY, clients=3, fragments=6, seed=7)
    expected = [[10, 11, 8, 9], [6, 7, 4, 5], [2, 3, 0, 1]]
    assert partition.records.tolist() == expected
    stream.assert_called_once_with(7, "partition/fragments")
    histogram = [[0, 0, 4], [1, 3, 0], [4, 0, 0]]
    assert partition.summary["label_histogram"] == histogram
    assert partition.summary["labels_per_client"] == [1, 2, 1]


def test_fragments_are_sorted_by_label_in_any_order_of_records():
    shuffled = make_records([1, 0, 1, 0])
    partition = make_fragments(shuffled, clients=2, fragments=2, seed=0)
    assert sorted(partition.records.tolist()) == [[0, 2], [1, 3]]


@pytest.mark.parametrize(
    ("clients", "fragments"), [(1, 1), (3, 6), (2, 12), (12, 12), (4, 4)]
)
def test_fragments_stay_whole_and_have_each_record_once(clients, fragments):
    partition = make_fragments(TOY, clients=clients, fragments=fragments, seed=1)
    assert partition.records.shape == (clients, 12 // clients)
    assert sorted(partition.records.ravel().tolist()) == list(range(12))
    whole = partition.records.reshape(fragments, -1)
    assert (np.diff(whole, axis=1) == 1).all()


def test_fragments_of_the_papers_scale_differ_in_their_labels():
    """400 fragments, 10 clients. A label's 40 fragments are drawn without replacement:
    at one client their number has mean 4 and variance 40 * 0.1 * 0.9 * 360/399 = 3.25.
    The mean square over the 100 cells lies within a third of it.
    """
    dataset = make_records(np.repeat(np.arange(10), 6000))
    partition = make_fragments(dataset, clients=10, fragments=400, seed=0)
    histogram = np.array(partition.summary["label_histogram"])
    assert partition.records.shape == (10, 6000)
    assert (histogram % 150 == 0).all()
    assert (histogram.sum(axis=0) == 6000).all()
    assert (histogram.sum(axis=1) == 6000).all()
    assert 3.25 * 2 / 3 < ((histogram / 150 - 4) ** 2).mean() < 3.25 * 4 / 3


def test_fragments_that_cannot_be_equal_are_refused():
    for clients, fragments in ((7, 6), (4, 6), (5, 10), (3, 9)):
        message = refusal(
            make_fragments, TOY, clients=clients, fragments=fragments, seed=0
        )
        assert "clients.count" in message or "clients.fragments" in message


@pytest.mark.parametrize("concentration", [0.1, 1000.0])
def test_dirichlet_gives_each_record_to_one_client(tmp_path, concentration):
    """The file pads clients of fewer records with -1."""
    dataset = make_records([0] * 50 + [1] * 30 + [2] * 40)
    options = {"clients": 4, "concentration": concentration, "least": 3}
    make_dirichlet(dataset, seed=5, **options).save(tmp_path)
    partition = RecordPartition.load(tmp_path)
    held = [row[row >= 0] for row in partition.records]
    assert sorted(np.concatenate(held)) == list(range(120))
    sizes = [len(records) for records in held]
    assert sizes == partition.summary["records_per_client"]
    assert min(sizes) >= 3
    histogram = [
        np.bincount(dataset.labels[records], minlength=3).tolist() for records in held
    ]
    assert histogram == partition.summary["label_histogram"]
    again = make_dirichlet(dataset, seed=5, **options).records
    reseeded = make_dirichlet(dataset, seed=6, **options).records
    assert np.array_equal(again, partition.records)
    assert not np.array_equal(reseeded, partition.records)


@pytest.mark.parametrize("concentration", [0.1, 0.5, 10.0])
def test_dirichlet_shares_have_the_moments_of_the_distribution(concentration):
    """The squared shares of Dir(alpha) over K add up to (alpha + 1) / (K alpha + 1) on
    average.

    4,000 labels of 10,000 records; four standard errors, so a false alarm in 6e-5 of
    seeds.
    """
    clients = 6
    rng = np.random.default_rng(3)
    counts = shared_out(rng, [10_000] * 4000, clients, concentration)
    assert (counts.sum(axis=1) == 10_000).all()
    assert counts.min() >= 0
    squares = ((counts / 10_000) ** 2).sum(axis=1)
    error = 4 * squares.std() / np.sqrt(len(squares)) + 1e-4
    expected = (concentration + 1) / (clients * concentration + 1)
    assert abs(squares.mean() - expected) < error


def test_record_partition_is_read_back_and_belongs_to_its_images(tmp_path):
    partition = make_fragments(TOY, clients=3, fragments=6, seed=0)
    partition.save(tmp_path)
    loaded = RecordPartition.load(tmp_path)
    assert np.array_equal(loaded.records, partition.records)
    assert loaded.records.dtype == np.int32
    assert partition.summary.items() <= loaded.summary.items()
    check_made_for(TOY.name, TOY.summary, loaded.summary)
    summary = make_records([0, 1, 2], name="other").summary
    message = refusal(check_made_for, "other", summary, loaded.summary)
    assert "other images (of toy), not for these of other" in message
