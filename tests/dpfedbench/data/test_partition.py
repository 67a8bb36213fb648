"""Clients and tasks: their images or records, and dependence on the seed alone."""

import dataclasses
import math
from unittest.mock import Mock

import numpy as np
import pytest
from scipy import stats

from dpfedbench.data.clients_folder import check_made_for
from dpfedbench.data.images import RawImages, load_dataset
from dpfedbench.data.partition import (
    Partition,
    RecordPartition,
    distinct,
    draw_quarter_turns,
    gather,
    sample_tasks,
)
from dpfedbench.data.records import RecordDataset
from dpfedbench.parts.partitions.dirichlet import shared_out
from tests.partitions import make_dirichlet, make_fragments, make_partition

from .conftest import make_raw_images, refusal


def check_clients(partition, classes):
    """Check that clients or tasks hold distinct images of distinct classes of these."""
    assert np.isin(partition.classes, classes).all()
    for numbers in (partition.classes, partition.examples):
        assert np.diff(np.sort(numbers, axis=-1)).all()


def image_numbers(partition):
    """Return the number of each image that a client has: [clients, images per client]."""
    numbers = partition.classes[:, :, None].astype(int) * 1000 + partition.examples
    return numbers.reshape(len(partition), -1)


def make_clients(dataset, **change):
    options = {"clients": 20, "ways": 5, "examples_per_class": 6}
    return make_partition(dataset, **options | {"kind": "shared", "seed": 0} | change)


def draw_tasks(dataset, split="test", **change):
    options = {"count": 40, "ways": 5, "shots": 1, "query_per_class": 2, "seed": 0}
    return sample_tasks(dataset, split, **options | {"purpose": "meta-test"} | change)


@pytest.mark.parametrize(
    ("clients", "ways", "examples"), [(300, 5, 6), (50, 24, 2), (40, 1, 12)]
)
def test_shared_clients_hold_distinct_training_images(small, clients, ways, examples):
    sizes = {"clients": clients, "ways": ways, "examples_per_class": examples}
    partition = make_clients(small, **sizes, seed=3)
    assert partition.examples.shape == (clients, ways, examples)
    check_clients(partition, small.splits["train"])
    assert set(partition.examples.ravel()) == set(range(small.examples_per_class))


@pytest.mark.parametrize(
    ("ways", "examples"), [(5, 6), (5, 5), (24, 3), (1, 12), (13, 2)]
)
def test_disjoint_clients_share_no_image_and_are_as_many_as_possible(
    small, ways, examples
):
    """Each class can serve 12 // examples clients, and each client needs all ways."""
    most = 24 * (12 // examples) // ways
    options = {"ways": ways, "examples_per_class": examples, "kind": "disjoint"}
    partition = make_clients(small, clients=most, seed=1, **options)
    images = image_numbers(partition)
    assert len(np.unique(images)) == images.size
    check_clients(partition, small.splits["train"])
    assert partition.summary["clients_per_image"]["max"] == 1
    message = refusal(make_clients, small, clients=most + 1, seed=1, **options)
    assert f"has images for {most} clients" in message


@pytest.mark.parametrize("kind", ["shared", "disjoint"])
def test_client_depends_on_the_seed_and_on_nothing_else(small, kind):
    def images(clients, seed):
        options = {"examples_per_class": 3, "kind": kind}
        return image_numbers(make_clients(small, clients=clients, seed=seed, **options))

    state = np.random.get_state()[1].copy()
    whole = images(19, 0)
    assert np.array_equal(whole, images(19, 0))
    assert np.array_equal(whole[:4], images(4, 0))
    assert not np.array_equal(whole, images(19, 1))
    assert np.array_equal(np.random.get_state()[1], state)


def test_clients_beyond_one_block_are_drawn_anew(small):
    images = image_numbers(make_clients(small, clients=9000))
    fewer = image_numbers(make_clients(small, clients=4100))
    assert np.array_equal(images[:4100], fewer)
    assert not np.array_equal(images[:4096], images[4096:8192])


@pytest.mark.parametrize(("size", "take"), [(5, 2), (4, 2), (4, 3), (7, 3)])
def test_distinct_choices_are_equally_likely(size, take):
    """Chi-squared over all ordered choices, false-alarm rate 1e-6 per case."""
    rows = distinct(np.random.default_rng(7), 60_000, size, take)
    choices, counts = np.unique(rows, axis=0, return_counts=True)
    assert len(choices) == math.perm(size, take)
    assert np.diff(np.sort(choices)).all()
    assert stats.chisquare(counts).pvalue > 1e-6


def test_partition_is_read_back_unless_it_is_damaged(small, tmp_path):
    """It always has the same bytes."""
    partition = make_clients(small)
    folders = (tmp_path / "first", tmp_path / "second")
    for folder in folders:
        partition.save(folder)
    loaded = Partition.load(folders[0])
    assert np.array_equal(loaded.classes, partition.classes)
    assert np.array_equal(loaded.examples, partition.examples)
    assert loaded.quarter_turns is None
    assert partition.summary.items() <= loaded.summary.items()
    for file in ("clients.npz", "summary.json"):
        first, second = ((folder / file).read_bytes() for folder in folders)
        assert first == second
    (folders[0] / "clients.npz").write_bytes(b"PK")
    (folders[1] / "summary.json").write_text("{}")
    for folder in folders:
        assert "clients.npz is" in refusal(Partition.load, folder)


def test_gather_returns_the_images_of_each_client_with_their_labels(small):
    """Pixels of the data set are (class * 7 + example) % 256."""
    partition = make_clients(small)
    ids = np.array([7, 3, 19])
    batch = gather(small, partition, ids, support_per_class=2, query_per_class=3)
    assert batch.support_y.tolist() == [np.repeat(range(5), 2).tolist()] * 3
    assert batch.query_y.tolist() == [np.repeat(range(5), 3).tolist()] * 3
    classes = partition.classes[ids][:, :, None].astype(int)
    pixels = (classes * 7 + partition.examples[ids]) % 256 / 255
    for x, expected in (
        (batch.support_x, pixels[:, :, :2]),
        (batch.query_x, pixels[:, :, 2:5]),
    ):
        images = expected.reshape(3, -1, 1, 1, 1) * np.ones((4, 4, 1))
        np.testing.assert_allclose(x, images, rtol=1e-6)


def test_gather_refuses_more_than_a_client_holds_and_other_images(small, tmp_path):
    partition = make_clients(small)
    clients = np.arange(2)
    sizes = {"support_per_class": 4, "query_per_class": 3}
    assert "more than the 6" in refusal(gather, small, partition, clients, **sizes)
    make_raw_images(30, 6, 10, 12).save(tmp_path / "large", {"name": "large"})
    large = load_dataset(tmp_path / "large")
    sizes = {"support_per_class": 1, "query_per_class": 1}
    message = refusal(gather, large, partition, clients, **sizes)
    assert "made for other images (of small), not for these of large" in message


def test_tasks_depend_on_split_purpose_and_seed_and_not_on_their_number(small):
    """Support and query are disjoint."""
    for split, classes in small.splits.items():
        tasks = draw_tasks(small, split, shots=5, query_per_class=7)
        assert len(tasks) == 40
        check_clients(tasks, classes)
    images = image_numbers(draw_tasks(small))
    assert np.array_equal(images, image_numbers(draw_tasks(small)))
    assert np.array_equal(images[:9], image_numbers(draw_tasks(small, count=9)))
    for change in ({"seed": 1}, {"purpose": "validation"}):
        assert not np.array_equal(images, image_numbers(draw_tasks(small, **change)))


CORNERS = np.array(
    [[[1, 2], [3, 4]], [[2, 4], [1, 3]], [[4, 3], [2, 1]], [[3, 1], [4, 2]]]
)
"""An image of 2 x 2 pixels after 0 to 3 quarter turns counterclockwise, by hand."""


def test_gather_turns_each_class_of_each_client_by_its_own_angle(tmp_path):
    """Image e of class c is CORNERS[0] + 10 c + 100 e. A saved partition turns it too.
    The data set does not change.
    """
    values = np.add.outer(10 * np.arange(4), 100 * np.arange(2))
    images = CORNERS[0] + values[:, :, None, None]
    RawImages(
        images=images[..., None].astype(np.uint8),
        class_names=("a", "b", "c", "d"),
        splits=("train", "train", "validation", "test"),
        versions={},
    ).save(tmp_path / "data", {"name": "corners"})
    dataset = load_dataset(tmp_path / "data")
    classes = np.array([[0, 1], [1, 0]])
    examples = np.array([[[0, 1], [1, 0]], [[0, 1], [0, 1]]])
    turns = np.array([[0, 1], [2, 3]])
    made_for = {"dataset": "corners", "dataset_sha256": dataset.summary["sha256"]}
    Partition(
        classes=classes, examples=examples, quarter_turns=turns, summary=made_for
    ).save(tmp_path / "clients")
    clients = Partition.load(tmp_path / "clients")
    ids = np.array([1, 0])
    batch = gather(dataset, clients, ids, support_per_class=1, query_per_class=1)
    pixels = 255 * np.stack([batch.support_x, batch.query_x], axis=2)[..., 0]
    shifts = values[classes[:, :, None], examples][..., None, None]
    expected = CORNERS[turns][:, :, None] + shifts
    np.testing.assert_allclose(pixels, expected[ids], rtol=1e-6)
    assert np.array_equal(dataset.images[..., 0], images)


def test_quarter_turns_are_equally_likely_and_independent():
    """Chi-squared over pairs of turns of one client, of two clients, and of two blocks;
    false-alarm rate 1e-6 each, at a fixed seed.
    """
    turns = draw_quarter_turns(8192, 2, 0)
    for first, second in (
        (turns[:, 0], turns[:, 1]),
        (turns[:-1, 0], turns[1:, 0]),
        (turns[:4096, 0], turns[4096:, 0]),
    ):
        counts = np.bincount(4 * first + second, minlength=16)
        assert stats.chisquare(counts).pvalue > 1e-6
    assert np.array_equal(draw_quarter_turns(5000, 2, 0), turns[:5000])
    assert not np.array_equal(draw_quarter_turns(8192, 2, 1), turns)


# Records, dealt out by fragments of few labels and by Dirichlet draws


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


def test_fragments_are_dealt_as_by_hand_and_read_back(monkeypatch, tmp_path):
    """Fragments of two, 01 23 45 67 89 AB, are dealt backwards, two to each client."""
    stream = Mock()
    stream.return_value.permutation.side_effect = lambda count: np.arange(count)[::-1]
    monkeypatch.setattr("dpfedbench.parts.partitions.fragments.stream", stream)
    partition = make_fragments(TOY, clients=3, fragments=6, seed=7)
    expected = [[10, 11, 8, 9], [6, 7, 4, 5], [2, 3, 0, 1]]
    assert partition.records.tolist() == expected
    stream.assert_called_once_with(7, "partition/fragments")
    shuffled = make_fragments(
        make_records([1, 0, 1, 0]), clients=2, fragments=2, seed=7
    )
    assert shuffled.records.tolist() == [[0, 2], [1, 3]]
    histogram = [[0, 0, 4], [1, 3, 0], [4, 0, 0]]
    assert partition.summary["label_histogram"] == histogram
    assert partition.summary["labels_per_client"] == [1, 2, 1]
    partition.save(tmp_path)
    loaded = RecordPartition.load(tmp_path)
    assert np.array_equal(loaded.records, partition.records)
    assert loaded.records.dtype == np.int32
    assert partition.summary.items() <= loaded.summary.items()
    check_made_for(TOY.name, TOY.summary, loaded.summary)
    summary = make_records([0, 1, 2], name="other").summary
    message = refusal(check_made_for, "other", summary, loaded.summary)
    assert "other images (of toy), not for these of other" in message


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
        sizes = {"clients": clients, "fragments": fragments}
        assert "clients." in refusal(make_fragments, TOY, **sizes, seed=0)


@pytest.mark.parametrize("concentration", [0.1, 1000.0])
def test_dirichlet_gives_each_record_to_one_client(tmp_path, concentration):
    """The file pads clients of fewer records with -1."""
    dataset = make_records([0] * 50 + [1] * 30 + [2] * 40)
    options = {"clients": 4, "concentration": concentration, "least": 3}
    make_dirichlet(dataset, seed=5, **options).save(tmp_path)
    partition = RecordPartition.load(tmp_path)
    held = [row[row >= 0] for row in partition.records]
    assert sorted(np.concatenate(held)) == list(range(120))
    labels = [dataset.labels[records] for records in held]
    histogram = np.array([np.bincount(of_one, minlength=3) for of_one in labels])
    assert histogram.tolist() == partition.summary["label_histogram"]
    assert histogram.sum(axis=1).tolist() == partition.summary["records_per_client"]
    assert histogram.sum(axis=1).min() >= 3
    again = make_dirichlet(dataset, seed=5, **options).records
    reseeded = make_dirichlet(dataset, seed=6, **options).records
    assert np.array_equal(again, partition.records)
    assert not np.array_equal(reseeded, partition.records)


@pytest.mark.parametrize(
    ("deal", "own"),
    [
        (make_dirichlet, {"concentration": 1.0, "least": 1}),
        (make_fragments, {"fragments": 10}),
    ],
)
def test_clients_of_records_hold_no_test_record(deal, own):
    """Of 100 records the odd ones are for the test, and have the same labels."""
    dataset = dataclasses.replace(
        make_records([0] * 40 + [1] * 60),
        splits={"train": np.arange(0, 100, 2), "test": np.arange(1, 100, 2)},
    )
    partition = deal(dataset, clients=5, seed=0, **own)
    held = partition.records[partition.records >= 0]
    assert sorted(held) == list(range(0, 100, 2))


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
